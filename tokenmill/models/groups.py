"""Cache groups of models with ordinary attention: one for full layers, one per window. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core.cache_groups import CacheGroup, GroupKind


def group_name(window: int | None) -> str:
    return "full" if window is None else f"window-{window}"


def attention_groups(
    layer_windows: Sequence[int | None], *, num_kv_heads: int, head_dim: int, block_size: int, bytes_per_value: int
) -> tuple[CacheGroup, ...]:
    """One group per kind of layer, full layers first.

    bytes per block = layers of the group x 2 (key, value) x key heads x head dim x tokens x bytes per value.
    A row that sees w tokens, itself included, needs the w - 1 before it. To rebuild the rows of n window layers
    behind a boundary, n (w - 1) tokens are computed afresh: every layer's first w - 1 results are not exact yet.
    """
    row_bytes = 2 * num_kv_heads * head_dim * bytes_per_value
    kinds = sorted(set(layer_windows), key=lambda w: (w is not None, w or 0))
    return tuple(_group(window, list(layer_windows).count(window), row_bytes * block_size) for window in kinds)


def _group(window: int | None, num_layers: int, bytes_per_layer: int) -> CacheGroup:
    name, num_bytes = group_name(window), num_layers * bytes_per_layer
    if window is None:
        return CacheGroup(name, GroupKind.FULL, num_bytes)
    before = window - 1
    return CacheGroup(
        name, GroupKind.SLIDING_WINDOW, num_bytes, window_tokens=before, rebuild_tokens=num_layers * before
    )
