"""DeepSeek V4's compiled kernels as Python functions: C structures and signatures (mirrors csrc/v4.h and v4.c)."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int64, c_void_p

from tokenmill.kernels.kv_quant.layout import RowLayout
from tokenmill.kernels.native.library import Library, WeightStruct

#: WeightStruct.format of row-major float32 weights, which only the V4 kernels read.
FP32_WEIGHT = 3
_ROW_DTYPES = {"fp32": 0, "bf16": 1, "fp8_e4m3": 2, "fp4": 3}


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class LayoutStruct(Structure):
    """v4_layout"""

    _fields_ = _fields(c_int64, "dtype width num_plain group bytes_per_scale row_bytes")

    @classmethod
    def of(cls, layout: RowLayout) -> LayoutStruct:
        return cls(
            _ROW_DTYPES[layout.dtype],
            layout.width,
            layout.num_plain,
            layout.group,
            layout.bytes_per_scale,
            layout.row_bytes,
        )


class TableStruct(Structure):
    """v4_table"""

    _fields_ = [("ids", c_void_p), ("first", c_void_p), ("stride", c_int64)]


class StepStruct(Structure):
    """v4_step"""

    _fields_ = [
        *_fields(c_int64, "num_tokens num_seqs block_size num_units"),
        *_fields(c_void_p, "token_ids positions seq_ids context total certain first_row shared units"),
        *_fields(TableStruct, "window csa indexer csa_state hca hca_state mtp_window"),
        *_fields(c_void_p, "proj streams trace_streams trace_chosen"),
    ]


class ConnectionStruct(Structure):
    """v4_connection"""

    _fields_ = _fields(c_void_p, "fn base scale")


class LayerStruct(Structure):
    """v4_layer"""

    _fields_ = [
        ("ratio", c_int64),
        *_fields(c_void_p, "attn_norm ffn_norm q_norm kv_norm sink"),
        *_fields(ConnectionStruct, "hc_attn hc_ffn"),
        *_fields(WeightStruct, "qkv wq_b wo_b"),
        *_fields(c_void_p, "wo_a compress ape entry_norm index_ape index_norm index_weights"),
        ("index_wq_b", WeightStruct),
        *_fields(c_void_p, "window entries keys state index_state gate bias hash w13 w2"),
        *_fields(WeightStruct, "shared_w13 shared_w2"),
    ]


class CollapseStruct(Structure):
    """v4_collapse"""

    _fields_ = [("hc_head", ConnectionStruct), ("norm", c_void_p)]


class MtpStruct(Structure):
    """v4_mtp"""

    _fields_ = [
        ("layer", LayerStruct),
        *_fields(WeightStruct, "e_proj h_proj"),
        *_fields(c_void_p, "enorm hnorm"),
        ("collapse", CollapseStruct),
    ]


class ModelStruct(Structure):
    """v4_model"""

    _fields_ = [
        *_fields(c_int64, "num_layers hidden heads head_dim rope_dim rank groups o_rank window"),
        *_fields(c_int64, "index_heads index_dim topk experts per_token inner streams iters vocab embed_is_fp32"),
        *_fields(c_float, "eps hc_eps routed_scaling limit"),
        *_fields(LayoutStruct, "kv index"),
        *_fields(c_void_p, "sliding_freq compress_freq embed layers"),
        ("collapse", CollapseStruct),
        ("head", WeightStruct),
        *_fields(c_void_p, "x y post comb mixes qkv q mixed z iq iw gate wide hidden_rows routed cos sin"),
        *_fields(c_void_p, "act act_rows act_scale act_offsets act_rows_scale act_rows_offsets"),
        *_fields(c_void_p, "chosen num_chosen expert_ids expert_rows expert_start expert_weights"),
    ]


class V4Library:
    """The V4 functions of a loaded library. One thread at a time may call."""

    def __init__(self, library: Library) -> None:
        lib = library.lib
        model, step = POINTER(ModelStruct), POINTER(StepStruct)
        lib.tm_v4_init.argtypes, lib.tm_v4_init.restype = [], None
        lib.tm_v4_init()
        self.step = lib.tm_v4_step
        self.step.argtypes, self.step.restype = [model, step], None
        self.collapse = lib.tm_v4_collapse
        self.collapse.argtypes = [model, POINTER(CollapseStruct), c_void_p, c_int64, c_void_p]
        self.collapse.restype = None
        self.logits = lib.tm_v4_logits
        self.logits.argtypes, self.logits.restype = [model, c_void_p, c_int64, c_void_p], None
        self.commit = lib.tm_v4_commit
        self.commit.argtypes, self.commit.restype = [model, step, c_void_p], None
        self.mtp = lib.tm_v4_mtp
        self.mtp.argtypes, self.mtp.restype = [model, POINTER(MtpStruct), step, c_void_p, c_void_p], None
