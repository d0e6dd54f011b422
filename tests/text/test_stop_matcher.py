"""Stop strings: nothing of one ever leaks, and cuts do not matter."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenmill.text.stop_matcher import StopMatcher

ALPHABET = st.text("ab.", max_size=5)
STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=4)


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    """Texts released piece by piece, and the stop string met."""
    matcher, shown = StopMatcher(stops, include_stop=include), []
    for piece in pieces:
        step = matcher.push(piece)
        shown.append(step.text)
        if step.stop is not None:
            return shown, step.stop
    return [*shown, matcher.flush()], None


def naive(stops: list[str], text: str, include: bool = False) -> tuple[str, str | None]:
    """Straight from the definition: the first place where any stop string is complete, there the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(stops=STOPS, pieces=st.lists(ALPHABET, max_size=12), include=st.booleans())
@example(stops=["aab", "ab"], pieces=["aaa", "b"], include=False)
@example(stops=["bc", "abcd"], pieces=["abc", "d"], include=False)
def test_any_cut_gives_what_the_definition_says(stops: list[str], pieces: list[str], include: bool) -> None:
    """S41, S52: text and stop string are those of the whole text."""
    shown, stop = run(stops, pieces, include)
    assert ("".join(shown), stop) == naive(stops, "".join(pieces), include)


@given(stops=STOPS.filter(bool), pieces=st.lists(ALPHABET, max_size=12))
def test_holds_back_no_more_than_needed(stops: list[str], pieces: list[str]) -> None:
    """S42: what is held back is always the beginning of some stop string, and shorter than it."""
    matcher, seen, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        step = matcher.push(piece)
        seen, shown = seen + piece, shown + step.text
        if step.stop is not None:
            return
        held = seen[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize("num_pieces", range(1, 7))
def test_a_stop_string_over_several_tokens_never_shows_its_beginning(num_pieces: int) -> None:
    """S41: cut at every set of places, no shown text ends with a prefix of the stop string."""
    stop, text = "\n\nUser:", "Hello\n\nUser: hi"
    for cuts in itertools.combinations(range(1, len(text)), num_pieces - 1):
        pieces = [text[i:j] for i, j in itertools.pairwise((0, *cuts, len(text)))]
        shown, found = run([stop], pieces)
        assert ("".join(shown), found) == ("Hello", stop)


def test_false_alarm_is_shown_at_once() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("xEN").text == "x"
    assert matcher.push("x").text == "ENx"
    assert matcher.push("E").text == ""
    assert matcher.flush() == "E"


def test_the_longest_of_several_complete_at_once_wins() -> None:
    assert run(["c", "bc", "abc"], ["xabc"]) == (["x"], "abc")


def test_a_stop_string_that_may_not_fire_is_text() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("xab", can_stop=False).text == "xab"
    assert matcher.push("a", can_stop=False).text == ""
    step = matcher.push("b")
    assert (step.text, step.stop) == ("", "ab")
    assert matcher.is_stopped
    assert matcher.flush() == ""


def test_without_stop_strings_everything_passes() -> None:
    assert run([], ["ab", "c"]) == (["ab", "c", ""], None)


def test_many_long_stop_strings_stay_linear() -> None:
    """A text that keeps almost matching is looked at once per stop string."""
    matcher = StopMatcher(["a" * 5000 + "b"])
    shown = "".join(matcher.push("a" * 100).text for _ in range(200))
    assert len(shown) == 20000 - 5000
