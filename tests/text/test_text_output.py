"""From token deltas to text deltas: whatever way the engine cuts its tokens, the client gets the same answer."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.errors import CapabilityError
from tokenmill.core.request import FinishReason, SamplingParams, TokenDelta, TokenLogprob
from tokenmill.text.logprobs import TextLogprob
from tokenmill.text.output import OutputProcessor, TextDelta
from tokenmill.text.tokenizer import Tokenizer

EOS = 0


def make_delta(
    ids: list[int], finish: FinishReason | None = None, *, stop_token_id: int | None = None, logprobs: bool = False
) -> TokenDelta:
    entries = tuple(TokenLogprob(i, -i / 10, ((i, -i / 10), (65, -9.0))) for i in ids) if logprobs else None
    return TokenDelta(
        request_id="r", token_ids=tuple(ids), logprobs=entries, finish_reason=finish, stop_token_id=stop_token_id
    )


@dataclass
class Answer:
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_output_tokens: int = 0
    num_aborts: int = 0
    num_generated: int = 0
    deltas: list[TextDelta] = field(default_factory=list, compare=False)


def run(processor: OutputProcessor, deltas: list[TokenDelta]) -> Answer:
    """All deltas, also those after the end, as an engine sends them that learns late of a stop string."""
    answer = Answer()
    for token_delta in deltas:
        delta = processor.process(token_delta)
        answer.deltas.append(delta)
        answer.text += delta.text
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs or ()
        answer.num_aborts += delta.should_abort
        answer.num_output_tokens = delta.num_output_tokens
        if delta.finish_reason is not None:
            assert answer.finish_reason is None, "finished twice"
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
    answer.num_generated = answer.num_output_tokens + processor.num_overrun_tokens
    return answer


def cut(ids: list[int], sizes: list[int], end: TokenDelta, logprobs: bool) -> list[TokenDelta]:
    """`ids` in groups of `sizes`; the last group carries the end. A size of 0 is a delta without tokens."""
    groups, at = [], 0
    for size in sizes:
        groups.append(ids[at : at + size])
        at += size
    groups.append(ids[at:])
    *first, last = [make_delta(group, logprobs=logprobs) for group in groups]
    finish, stop_id = end.finish_reason, end.stop_token_id
    return [*first, make_delta(list(last.token_ids), finish, stop_token_id=stop_id, logprobs=logprobs)]


@settings(max_examples=300)
@given(
    data=st.data(),
    stop=st.lists(st.sampled_from(["ab", "b", "aba", "é", "€", "\ufffd", "ba€"]), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 6),
    ending=st.sampled_from(["eos", "stop id", "length", "abort"]),
)
def test_any_cut_gives_the_same_answer(
    byte_tokenizer: Tokenizer,
    bpe_tokenizer: Tokenizer,
    spm_tokenizer: Tokenizer,
    data: st.DataObject,
    stop: list[str],
    include: bool,
    min_tokens: int,
    ending: str,
) -> None:
    """S49, S50, S52: text, ids, usage, logprobs and finish reason are those of the uncut stream."""
    tokenizer = data.draw(st.sampled_from([byte_tokenizer, bpe_tokenizer, spm_tokenizer]))
    texts = ["a", "b", "é", "€", " "]
    known = [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False)]
    ids = data.draw(st.lists(st.sampled_from([*known, 1, 2, 0xE2, tokenizer.vocab_size]), min_size=1, max_size=16))
    sampling = SamplingParams(
        stop=tuple(stop),
        include_stop_str_in_output=include,
        min_tokens=min_tokens,
        logprobs=1,
        stop_token_ids=(7,) if ending == "stop id" else (),
    )
    last_id = {"eos": tokenizer.eos_token_ids[0], "stop id": 7}.get(ending)
    all_ids = ids if last_id is None else [*ids, last_id]
    finish = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}.get(ending, FinishReason.STOP)
    end = make_delta([], finish, stop_token_id=last_id)
    max_cut = len(all_ids) - (last_id is not None)  # the end token comes in the delta that says so
    sizes = data.draw(st.lists(st.integers(0, 5), max_size=8).filter(lambda sizes: sum(sizes) <= max_cut))

    def answer(sizes: list[int]) -> Answer:
        return run(OutputProcessor(tokenizer, [1], sampling), cut(all_ids, sizes, end, logprobs=True))

    whole, pieces = answer([]), answer(sizes)
    whole.num_aborts = pieces.num_aborts  # whether the engine must be told depends on what it knows
    assert pieces == whole
    check_invariants(pieces, all_ids, tokenizer)


def check_invariants(answer: Answer, generated: list[int], tokenizer: Tokenizer) -> None:
    assert answer.finish_reason is not None
    assert answer.num_generated == len(generated)
    assert list(answer.token_ids) == generated[: answer.num_output_tokens]
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    shown = b"".join(entry.bytes for entry in answer.logprobs if not entry.is_hidden)
    assert shown.decode(errors="replace").startswith(answer.text) or "\ufffd" in answer.text
    offsets = [entry.text_offset for entry in answer.logprobs]
    assert offsets == sorted(offsets)


@given(data=st.data(), stop=st.lists(st.sampled_from(["ab", "b", "aba", "é", "\ufffd"]), max_size=3))
def test_the_text_is_the_whole_decode_cut_at_the_first_stop_string(
    byte_tokenizer: Tokenizer, bpe_tokenizer: Tokenizer, spm_tokenizer: Tokenizer, data: st.DataObject, stop: list[str]
) -> None:
    """S50: join(deltas) is what the whole output decodes to."""
    tokenizer = data.draw(st.sampled_from([byte_tokenizer, bpe_tokenizer, spm_tokenizer]))
    known = [i for text in ("a", "b", "é", " ") for i in tokenizer.encode(text, add_special_tokens=False)]
    ids = data.draw(st.lists(st.sampled_from([*known, 0xE2]), max_size=16))
    processor = OutputProcessor(tokenizer, [], SamplingParams(stop=tuple(stop)))
    answer = run(processor, [*(make_delta([i]) for i in ids), make_delta([], FinishReason.LENGTH)])
    whole = tokenizer.decode(ids)
    ends = [(whole.find(s) + len(s), -len(s)) for s in stop if s in whole]
    end, minus_length = min(ends, default=(len(whole), 0))
    assert answer.text == whole[: end + minus_length]


def test_eos_is_counted_but_hidden(byte_tokenizer: Tokenizer) -> None:
    """S49: completion tokens include the end-of-sequence token."""
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(logprobs=0))
    answer = run(processor, [make_delta([*b"hi", EOS], FinishReason.STOP, stop_token_id=EOS, logprobs=True)])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("hi", FinishReason.STOP, None)
    assert answer.num_output_tokens == 3
    assert [entry.is_hidden for entry in answer.logprobs] == [False, False, True]
    assert answer.num_aborts == 0


def test_a_stop_token_names_itself(byte_tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(stop_token_ids=(33,)))
    answer = run(processor, [make_delta(list(b"hi")), make_delta([33], FinishReason.STOP, stop_token_id=33)])
    assert (answer.text, answer.stop_reason, answer.num_output_tokens) == ("hi", 33, 3)


def test_a_stop_string_ends_the_answer_and_the_rest_is_overrun(byte_tokenizer: Tokenizer) -> None:
    """S41, S49: tokens after the one that completed the stop string are dropped and counted apart."""
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(stop=("END",)))
    deltas = [make_delta(list(b"one E")), make_delta(list(b"NDtwo")), make_delta(list(b"three"), FinishReason.LENGTH)]
    answer = run(processor, deltas)
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one ", FinishReason.STOP, "END")
    assert (answer.num_output_tokens, processor.num_overrun_tokens) == (7, 8)
    assert [delta.should_abort for delta in answer.deltas] == [False, True, False]
    assert answer.deltas[2] == TextDelta(num_output_tokens=7)
    assert processor.is_finished


def test_a_stop_string_on_the_last_token_wins_over_length(byte_tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(stop=("d",)))
    answer = run(processor, [make_delta(list(b"end"), FinishReason.LENGTH)])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("en", FinishReason.STOP, "d")
    assert answer.num_aborts == 0


@pytest.mark.parametrize("data", [b"wait EN", b"wait \xe2\x82"])
def test_what_was_held_back_comes_at_the_end(byte_tokenizer: Tokenizer, data: bytes) -> None:
    """S52: a possible stop string that never was, and a character that never was completed."""
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(stop=("END",)))
    answer = run(processor, [make_delta([b]) for b in data] + [make_delta([], FinishReason.LENGTH)])
    assert answer.text == data.decode(errors="replace")
    assert list(answer.token_ids) == list(data)


def test_stop_strings_do_not_fire_within_min_tokens(byte_tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(stop=("b",), min_tokens=3)
    answer = run(OutputProcessor(byte_tokenizer, [1], sampling), [make_delta(list(b"abcabc"))])
    assert (answer.text, answer.num_output_tokens) == ("abca", 5)


def test_include_stop_string(byte_tokenizer: Tokenizer) -> None:
    sampling = SamplingParams(stop=("END",), include_stop_str_in_output=True, logprobs=0)
    processor = OutputProcessor(byte_tokenizer, [1], sampling)
    answer = run(processor, [make_delta(list(b"one ENDx"), logprobs=True)])
    assert answer.text == "one END"
    assert not any(entry.is_hidden for entry in answer.logprobs)


def test_chunks_without_content_are_recognised(byte_tokenizer: Tokenizer) -> None:
    """S42: the hold-back is no chunk, and the first text comes as soon as it cannot be a stop string."""
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(stop=("abcd",)))
    deltas = [processor.process(make_delta([b])) for b in b"abcx"]
    assert [delta.is_empty for delta in deltas] == [True, True, True, False]
    assert deltas[-1].text == "abcx"
    assert deltas[-1].token_ids == tuple(b"abcx")


def test_logprobs_come_with_their_text_and_bytes(byte_tokenizer: Tokenizer) -> None:
    """OpenAI's entries: half a character has bytes, and its logprob waits for the character."""
    processor = OutputProcessor(byte_tokenizer, [1], SamplingParams(logprobs=2))
    first = processor.process(make_delta([0x41, 0xC3], logprobs=True))
    assert [entry.token for entry in first.logprobs or ()] == ["A"]
    second = processor.process(make_delta([0xA9], logprobs=True))
    assert second.text == "é"
    entries = second.logprobs or ()
    assert [(entry.token, entry.bytes, entry.text_offset) for entry in entries] == [
        ("\ufffd", b"\xc3", 1),
        ("\ufffd", b"\xa9", 1),
    ]
    assert [(top.token, top.bytes, top.logprob) for top in entries[0].top][1] == ("A", b"A", -9.0)


def test_logprobs_of_cut_and_skipped_tokens_are_hidden(bpe_tokenizer: Tokenizer) -> None:
    ids = bpe_tokenizer.encode("a<|im_end|>b stop", add_special_tokens=False)
    processor = OutputProcessor(bpe_tokenizer, [1], SamplingParams(stop=("stop",), logprobs=0))
    answer = run(processor, [make_delta(ids, logprobs=True)])
    assert answer.text == "ab "
    visible = [(entry.token, entry.is_hidden) for entry in answer.logprobs]
    assert visible[:4] == [("a", False), ("<|im_end|>", True), ("b", False), (" ", False)]
    assert all(is_hidden for _, is_hidden in visible[4:])
    shown = OutputProcessor(bpe_tokenizer, [1], SamplingParams(), skip_special_tokens=False)
    assert run(shown, [make_delta(ids, FinishReason.LENGTH)]).text == "a<|im_end|>b stop"


def test_logprobs_are_absent_unless_asked_for(byte_tokenizer: Tokenizer) -> None:
    delta = OutputProcessor(byte_tokenizer, [1], SamplingParams()).process(make_delta([65]))
    assert delta.logprobs is None


def test_prompt_logprobs_get_text(byte_tokenizer: Tokenizer) -> None:
    processor = OutputProcessor(byte_tokenizer, list(b"abc"), SamplingParams(prompt_logprobs=0))
    token_delta = TokenDelta(request_id="r", prompt_logprobs=(TokenLogprob(98, -1.0), TokenLogprob(99, -2.0)))
    delta = processor.process(token_delta)
    assert [(p.token, p.text_offset, p.logprob) for p in delta.prompt_logprobs or ()] == [
        ("b", 1, -1.0),
        ("c", 2, -2.0),
    ]
    assert not delta.is_empty


def test_without_a_tokenizer_ids_pass_at_once() -> None:
    sampling = SamplingParams(logprobs=0, stop_token_ids=(9,))
    processor = OutputProcessor(None, [1], sampling)
    first = processor.process(make_delta([5, 6], logprobs=True))
    assert (first.text, first.token_ids, first.num_output_tokens) == ("", (5, 6), 2)
    assert [(e.token, e.bytes) for e in first.logprobs or ()] == [("token_id:5", b""), ("token_id:6", b"")]
    last = processor.process(make_delta([9], FinishReason.STOP, stop_token_id=9, logprobs=True))
    assert (last.token_ids, last.finish_reason, last.stop_reason) == ((9,), FinishReason.STOP, 9)


def test_prompt_logprobs_without_a_tokenizer() -> None:
    token_delta = TokenDelta(request_id="r", prompt_logprobs=(TokenLogprob(2, -1.0),))
    delta = OutputProcessor(None, [1, 2], SamplingParams(prompt_logprobs=0)).process(token_delta)
    assert [entry.token for entry in delta.prompt_logprobs or ()] == ["token_id:2"]


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(CapabilityError, match="stop_token_ids") as error:
        OutputProcessor(None, [1], SamplingParams(stop=("x",)))
    assert error.value.param == "stop"


def test_the_blank_after_the_prompt_is_output(spm_tokenizer: Tokenizer) -> None:
    the = spm_tokenizer.token_to_id("▁the")
    assert the is not None
    answer = run(OutputProcessor(spm_tokenizer, [the], SamplingParams()), [make_delta([the], FinishReason.LENGTH)])
    assert answer.text == " the"


def test_a_run_of_byte_tokens_may_complete_a_stop_string_at_the_end(spm_tokenizer: Tokenizer) -> None:
    euro = [spm_tokenizer.token_to_id(f"<0x{b:02X}>") or 0 for b in "€".encode()]
    processor = OutputProcessor(spm_tokenizer, [1], SamplingParams(stop=("€",)))
    answer = run(processor, [make_delta(euro, FinishReason.LENGTH)])
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", FinishReason.STOP, "€")


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.ERROR])
def test_abort_and_error_pass_through(byte_tokenizer: Tokenizer, finish: FinishReason) -> None:
    answer = run(OutputProcessor(byte_tokenizer, [1], SamplingParams(stop=("xy",))), [make_delta(list(b"ax"), finish)])
    assert (answer.text, answer.finish_reason) == ("ax", finish)
