"""Joining token deltas of one request: for prompt chunks without tokens, and for consumers that read slowly. Pure."""

from __future__ import annotations

from tokenmill.core.request import TokenDelta


def merge_deltas(first: TokenDelta | None, then: TokenDelta) -> TokenDelta:
    """One delta that says what `first` and then `then` said."""
    if first is None:
        return then
    assert first.request_id == then.request_id and first.finish_reason is None, f"{first} does not continue in {then}"
    has_logprobs = first.logprobs is not None or then.logprobs is not None
    return TokenDelta(
        request_id=then.request_id,
        token_ids=first.token_ids + then.token_ids,
        logprobs=(first.logprobs or ()) + (then.logprobs or ()) if has_logprobs else None,
        prompt_logprobs=first.prompt_logprobs if first.prompt_logprobs is not None else then.prompt_logprobs,
        finish_reason=then.finish_reason,
        stop_token_id=then.stop_token_id,
        num_cached_tokens=first.num_cached_tokens if first.num_cached_tokens is not None else then.num_cached_tokens,
        queue_s=first.queue_s if first.queue_s is not None else then.queue_s,
        seconds=first.seconds + then.seconds,
        prefill_s=first.prefill_s + then.prefill_s,
        draft_s=first.draft_s + then.draft_s,
        rejected_s=first.rejected_s + then.rejected_s,
        transfer_s=first.transfer_s + then.transfer_s,
        num_prefill_tokens=first.num_prefill_tokens + then.num_prefill_tokens,
        num_draft_tokens=first.num_draft_tokens + then.num_draft_tokens,
        num_rejected_tokens=first.num_rejected_tokens + then.num_rejected_tokens,
        error=then.error,
        error_param=then.error_param,
    )


def has_news(delta: TokenDelta) -> bool:
    """Something a consumer can use; a prompt chunk that produced nothing yet has none."""
    return bool(delta.token_ids) or delta.prompt_logprobs is not None or delta.finish_reason is not None


def delta_size(delta: TokenDelta) -> int:
    """What holding it costs, in tokens and logprob entries."""
    entries = (delta.logprobs or ()) + (delta.prompt_logprobs or ())
    return len(delta.token_ids) + sum(1 + len(entry.top) for entry in entries)
