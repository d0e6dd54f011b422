"""Token streams: merging while nobody reads, limits, ends."""

import asyncio

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tokenmill.core.errors import WorkerLostError
from tokenmill.core.request import FinishReason, TokenDelta, TokenLogprob
from tokenmill.operations.deltas import delta_size, has_news, merge_deltas
from tokenmill.operations.streams import TokenStream


def delta(*token_ids: int, **fields: object) -> TokenDelta:
    return TokenDelta(request_id="r", token_ids=token_ids, **fields)  # type: ignore[arg-type]


def read_all(stream: TokenStream) -> list[TokenDelta]:
    async def main() -> list[TokenDelta]:
        read = []
        while not read or read[-1].finish_reason is None:
            read.append(await stream.get())
        return read

    return asyncio.run(main())


def test_a_reader_that_keeps_up_sees_each_delta() -> None:
    async def main() -> list[TokenDelta]:
        stream = TokenStream(100)
        read = []
        for token_id in range(3):
            stream.put(delta(token_id))
            read.append(await stream.get())
        return read

    assert asyncio.run(main()) == [delta(0), delta(1), delta(2)]


def test_what_waits_is_one_delta_and_its_size_is_known() -> None:
    stream = TokenStream(3)
    for token_id in range(3):
        stream.put(delta(token_id))
    assert not stream.is_over_limit
    stream.put(delta(3, finish_reason=FinishReason.LENGTH))
    assert stream.is_over_limit
    assert read_all(stream) == [delta(0, 1, 2, 3, finish_reason=FinishReason.LENGTH)]
    assert not stream.is_over_limit


def test_an_error_comes_after_the_tokens_before_it() -> None:
    async def main() -> None:
        stream = TokenStream(100)
        stream.put(delta(1))
        stream.fail(WorkerLostError("gone"))
        assert await stream.get() == delta(1)
        for _ in range(2):
            with pytest.raises(WorkerLostError):
                await stream.get()

    asyncio.run(main())


def test_there_is_one_end() -> None:
    stream = TokenStream(100)
    stream.put(delta(1, finish_reason=FinishReason.STOP))
    with pytest.raises(AssertionError, match="after the end"):
        stream.put(delta(2))
    with pytest.raises(AssertionError, match="second end"):
        stream.fail(WorkerLostError("gone"))


def test_a_waiting_reader_is_woken() -> None:
    async def main() -> TokenDelta:
        stream = TokenStream(100)
        reader = asyncio.create_task(stream.get())
        await asyncio.sleep(0)
        stream.put(delta(1))
        return await asyncio.wait_for(reader, 5)

    assert asyncio.run(main()) == delta(1)


_deltas = st.builds(
    lambda ids, with_logprobs, cached, seconds: delta(
        *ids,
        prefill_s=seconds / 2,
        draft_s=seconds / 4,
        rejected_s=seconds / 8,
        transfer_s=seconds / 8,
        num_prefill_tokens=len(ids),
        num_draft_tokens=3,
        num_rejected_tokens=2,
        logprobs=tuple(TokenLogprob(i, -0.5, ((i, -0.5),)) for i in ids) if with_logprobs else None,
        num_cached_tokens=cached,
        seconds=seconds,
    ),
    st.lists(st.integers(0, 9), max_size=4),
    st.booleans(),
    st.none() | st.integers(0, 99),
    st.sampled_from([0.0, 0.25, 0.5]),
)


@given(st.lists(_deltas, min_size=1, max_size=6))
def test_merging_keeps_everything(deltas: list[TokenDelta]) -> None:
    merged = None
    for each in deltas:
        merged = merge_deltas(merged, each)
    assert merged is not None
    assert merged.token_ids == tuple(i for each in deltas for i in each.token_ids)
    sums = ("seconds", "prefill_s", "draft_s", "rejected_s", "transfer_s", "num_prefill_tokens")
    sums += ("num_draft_tokens", "num_rejected_tokens")
    for name in sums:
        assert getattr(merged, name) == sum(getattr(each, name) for each in deltas)
    logprobs = tuple(entry for each in deltas for entry in each.logprobs or ())
    assert (merged.logprobs or ()) == logprobs
    told = [each.num_cached_tokens for each in deltas if each.num_cached_tokens is not None]
    assert merged.num_cached_tokens == (told[0] if told else None)
    assert delta_size(merged) == sum(delta_size(each) for each in deltas)
    assert has_news(merged) == any(has_news(each) for each in deltas)


def test_merging_knows_every_field() -> None:
    """A field that is new in TokenDelta must be thought about in merge_deltas; then it may be listed here."""
    assert {field.name for field in msgspec.structs.fields(TokenDelta)} == {
        "request_id",
        "token_ids",
        "logprobs",
        "prompt_logprobs",
        "finish_reason",
        "stop_token_id",
        "num_cached_tokens",
        "queue_s",
        "seconds",
        "prefill_s",
        "draft_s",
        "rejected_s",
        "transfer_s",
        "num_prefill_tokens",
        "num_draft_tokens",
        "num_rejected_tokens",
        "error",
        "error_param",
    }


def test_prompt_logprobs_and_ends_are_news() -> None:
    entry = (TokenLogprob(1, -1.0),)
    assert has_news(delta(prompt_logprobs=entry)) and has_news(delta(finish_reason=FinishReason.STOP))
    assert not has_news(delta(num_cached_tokens=3, seconds=1.0))
    merged = merge_deltas(delta(prompt_logprobs=entry), delta(1, stop_token_id=1, finish_reason=FinishReason.STOP))
    assert merged == delta(1, prompt_logprobs=entry, stop_token_id=1, finish_reason=FinishReason.STOP)
