"""Cache groups of DeepSeek V4 and the bytes they hold; torch-free. Not responsible for tensors (caches.py).

Every group maps a logical block of source tokens (128 by default) to a block of its own pool:

    window      kv rows of all trunk layers, sliding_window - 1 tokens are needed behind the next one
    csa         compressed entries of the ratio-4 layers, kept for ever
    indexer     their indexer keys, kept for ever
    hca         compressed entries of the ratio-32/64/128 layers, kept for ever
    csa_state   overlap rows and open rows of the ratio-4 compressors, main and indexer
    hca_state   online softmax of the open window; empty at every block boundary, so that a hit needs none of it
    mtp_window  kv rows of the MTP blocks, only when they are loaded; a hit may miss them

A state group's block i holds the state as of the last computed token inside logical block i: going on from token n
reads block (n-1) // block_size, and a finished block keeps the state that a prefix hit at its end needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.cache_groups import CacheGroup, GroupKind
from tokenmill.core.errors import ConfigError
from tokenmill.kernels.kv_quant.layout import RowLayout, index_layout, kv_layout
from tokenmill.models.deepseek_v4.config import CSA_RATIO, AttentionKind, DeepseekV4Config, kind_of_ratio

DEFAULT_BLOCK_SIZE = 128
_FLOAT_BYTES = 4
#: Rows of D floats that a CSA compressor keeps of kv, and again of the gate: part A of the four tokens of the last
#: closed window, parts A and B of at most three tokens of the open one.
CSA_STATE_ROWS = CSA_RATIO + 2 * (CSA_RATIO - 1)
#: Rows of D floats of an HCA compressor's online softmax: maximum, total, weighted sum.
HCA_STATE_ROWS = 3


@dataclass(frozen=True, slots=True)
class CacheFormats:
    """Row layouts of window rows and compressed entries (`kv`) and of indexer keys (`index`)."""

    kv: RowLayout
    index: RowLayout


def cache_formats(config: DeepseekV4Config, dtype: str, kv: str = "auto", index: str = "auto") -> CacheFormats:
    """`auto` follows the dtype of the activations: fp32 for float32, bf16 for bfloat16."""
    auto = "fp32" if dtype == "float32" else "bf16"
    if index == "fp4" and config.index_head_dim % 2:
        raise ConfigError(f"index_cache_dtype=fp4 needs an even index_head_dim, not {config.index_head_dim}: use bf16")
    return CacheFormats(
        kv=kv_layout(auto if kv == "auto" else kv, config.head_dim, config.qk_rope_head_dim),
        index=index_layout(auto if index == "auto" else index, config.index_head_dim),
    )


def check_block_size(config: DeepseekV4Config, block_size: int) -> None:
    """A block must hold whole windows of every compressor: then its end is a boundary of all of them."""
    ratios = sorted({ratio for ratio in config.compress_ratios if ratio})
    if block_size < 1 or any(block_size % ratio for ratio in ratios):
        raise ConfigError(
            f"block_size={block_size} does not fit compress_ratios {ratios}: a multiple of each is needed, "
            f"e.g. {DEFAULT_BLOCK_SIZE}"
        )


def cache_groups(
    config: DeepseekV4Config, formats: CacheFormats, block_size: int, num_mtp: int = 0
) -> tuple[CacheGroup, ...]:
    """Groups that have no layer are left out."""
    check_block_size(config, block_size)
    num_csa, num_hca = len(config.layers_of(AttentionKind.CSA)), len(config.layers_of(AttentionKind.HCA))
    window = config.sliding_window - 1
    row = formats.kv.row_bytes
    groups = [
        CacheGroup(
            "window",
            GroupKind.SLIDING_WINDOW,
            config.num_hidden_layers * block_size * row,
            window_tokens=window,
            rebuild_tokens=rebuild_tokens(config),
        )
    ]
    if num_csa:
        entries = num_csa * block_size // CSA_RATIO
        groups += [
            CacheGroup("csa", GroupKind.COMPRESSED, entries * row),
            CacheGroup("indexer", GroupKind.INDEXER_KEYS, entries * formats.index.row_bytes),
            CacheGroup(
                "csa_state",
                GroupKind.COMPRESSOR_STATE,
                csa_state_bytes(config),
                window_tokens=1,
                rebuild_tokens=rebuild_tokens(config) + CSA_RATIO,
            ),
        ]
    if num_hca:
        entries = sum(block_size // r for r in config.compress_ratios if kind_of_ratio(r) is AttentionKind.HCA)
        groups += [
            CacheGroup("hca", GroupKind.COMPRESSED, entries * row),
            CacheGroup(
                "hca_state", GroupKind.COMPRESSOR_STATE, hca_state_bytes(config), window_tokens=0, is_required=False
            ),
        ]
    if num_mtp:
        groups.append(
            CacheGroup(
                "mtp_window", GroupKind.DRAFT, num_mtp * block_size * row, window, lookahead_tokens=1, is_required=False
            )
        )
    return tuple(groups)


def rebuild_tokens(config: DeepseekV4Config) -> int:
    """How far back the last layer's window reaches through the windows below it; entries are kept, not rebuilt.

    Layer l's input is exact from l x (W - 1) tokens after a fresh start on, and its last W - 1 rows are needed. (The
    state of a CSA layer needs its last 4 tokens, so 4 more are enough whatever W is.)
    """
    return config.num_hidden_layers * (config.sliding_window - 1)


def csa_state_bytes(config: DeepseekV4Config) -> int:
    """kv and gate, main and indexer, of all CSA layers."""
    widths = config.head_dim + config.index_head_dim
    return len(config.layers_of(AttentionKind.CSA)) * 2 * CSA_STATE_ROWS * widths * _FLOAT_BYTES


def hca_state_bytes(config: DeepseekV4Config) -> int:
    return len(config.layers_of(AttentionKind.HCA)) * HCA_STATE_ROWS * config.head_dim * _FLOAT_BYTES


def live_bytes(config: DeepseekV4Config, formats: CacheFormats, num_tokens: int, num_mtp: int = 0) -> dict[str, int]:
    """What a sequence of `num_tokens` really holds, by group: rows and entries in use, not the blocks around them.

    Specification section 13 with online HCA state and minimal CSA state.
    """
    row, in_window = formats.kv.row_bytes, min(num_tokens, config.sliding_window)
    num_csa = len(config.layers_of(AttentionKind.CSA))
    num_entries = num_csa * (num_tokens // CSA_RATIO)
    held = {
        "window": config.num_hidden_layers * in_window * row,
        "csa": num_entries * row,
        "indexer": num_entries * formats.index.row_bytes,
        "csa_state": csa_state_bytes(config),
        "hca": sum(num_tokens // r for r in config.compress_ratios if kind_of_ratio(r) is AttentionKind.HCA) * row,
        "hca_state": hca_state_bytes(config),
        "mtp_window": num_mtp * in_window * row,
    }
    present = {group.name for group in cache_groups(config, formats, DEFAULT_BLOCK_SIZE, num_mtp)}
    return {name: num_bytes for name, num_bytes in held.items() if name in present}
