"""Streamed text equals the whole decode, whatever the ids, the tokenizer and the cuts. Needs no model."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.text.detokenizer import IncrementalDetokenizer
from tokenmill.text.tokenizer import Tokenizer

TEXTS = [
    "plain",
    "😀 four bytes",
    "👩‍👩‍👧‍👦 family joined by ZWJ",
    "🏳️‍🌈 flag 🇩🇪",
    "한국어 조합",
    "हिन्दी क्षत्रिय",
    "e\u0301 a\u0308\u0323 combining",
    "日本語 <|im_end|> the the",
    "",
]
BROKEN = [
    b"\x80",
    b"\xbf\xbf",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"a\xffb",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf0\x80\x80",
    b"\xe2a",
]


@pytest.fixture(params=["byte", "bpe", "spm"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(f"{request.param}_tokenizer")


def pieces(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back_in_whole_characters(byte_tokenizer: Tokenizer, text: str) -> None:
    """S43: one byte per token is the worst cut there is; no piece may hold a replacement mark."""
    ids = byte_tokenizer.encode(text)
    assert ids == list(text.encode())
    streamed = pieces(byte_tokenizer, ids)
    assert "".join(streamed) == text
    assert all("\ufffd" not in piece for piece in streamed)
    assert all(len(piece) <= 1 for piece in streamed)


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_streams_like_its_whole_decode(tokenizer: Tokenizer, text: str) -> None:
    """S43"""
    ids = tokenizer.encode(text)
    for skip in (True, False):
        assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("data", BROKEN)
def test_broken_bytes_become_replacement_marks_and_valid_json(byte_tokenizer: Tokenizer, data: bytes) -> None:
    """S43: lone continuation bytes, overlong forms, surrogates, truncation in mid-character."""
    streamed = pieces(byte_tokenizer, list(data))
    assert "".join(streamed) == byte_tokenizer.decode(list(data)) == data.decode(errors="replace")
    assert all(json.loads(json.dumps(piece).encode()) == piece for piece in streamed)


@pytest.mark.parametrize("text", TEXTS)
def test_truncation_at_every_token(tokenizer: Tokenizer, text: str) -> None:
    """S43: an answer may end anywhere, also inside a character."""
    ids = tokenizer.encode(text)
    for end in range(len(ids) + 1):
        assert "".join(pieces(tokenizer, ids[:end])) == tokenizer.decode(ids[:end])


@given(data=st.data(), skip=st.booleans())
def test_random_ids_stream_like_their_whole_decode(
    byte_tokenizer: Tokenizer, bpe_tokenizer: Tokenizer, spm_tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    """S43, S52: any ids, ids without a token included, cut anywhere into groups."""
    tokenizer = data.draw(st.sampled_from([byte_tokenizer, bpe_tokenizer, spm_tokenizer]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=len(ids), max_size=len(ids)))
    stream, text, at = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), "", 0
    for size in sizes:
        text += stream.extend(ids[at : at + size])
        at += size
    assert text + stream.flush() == tokenizer.decode(ids, skip)


def test_runs_of_byte_tokens_are_text_only_as_a_whole(spm_tokenizer: Tokenizer) -> None:
    """The whole decode of a sentencepiece-like tokenizer replaces every byte of a run that is not UTF-8."""
    euro = [spm_tokenizer.token_to_id(f"<0x{b:02X}>") for b in "€".encode()]
    a = spm_tokenizer.token_to_id("a")
    bad = spm_tokenizer.token_to_id("<0xFF>")
    assert pieces(spm_tokenizer, [*euro, a]) == ["", "", "", "€a", ""]
    assert "".join(pieces(spm_tokenizer, [*euro, bad, a])) == "\ufffd" * 4 + "a"


def test_first_blank_goes_at_the_start_of_a_text_only(spm_tokenizer: Tokenizer) -> None:
    """Going on after a prompt, the blank between the prompt and the first word is part of the output."""
    the = spm_tokenizer.token_to_id("▁the")
    assert pieces(spm_tokenizer, [the, the]) == ["the", " the", ""]
    stream = IncrementalDetokenizer(spm_tokenizer, continues=True)
    prompt = spm_tokenizer.decode([the])
    assert prompt + stream.push(the) + stream.flush() == spm_tokenizer.decode([the, the])


def test_special_tokens_can_be_shown(bpe_tokenizer: Tokenizer) -> None:
    ids = bpe_tokenizer.encode("the<|im_end|>", add_special_tokens=False)
    assert "".join(pieces(bpe_tokenizer, ids)) == "the"
    assert "".join(pieces(bpe_tokenizer, ids, skip=False)) == "the<|im_end|>"


def test_a_flushed_detokenizer_starts_clean(byte_tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(byte_tokenizer)
    assert stream.push(0xE2) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(0x41) == "A"


def test_cost_per_token_does_not_grow(byte_tokenizer: Tokenizer) -> None:
    """Never-ending broken bytes are the case in which re-decoding a window grows without bound."""
    ids = [0xF0, 0x9F] * 500

    def seconds(repeats: int) -> float:
        best = 1e9
        for _ in range(5):
            stream = IncrementalDetokenizer(byte_tokenizer)
            start = time.thread_time()
            for _ in range(repeats):
                stream.extend(ids)
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(64) < 16 * 4 * seconds(4)
