"""The compiled kernels as Python functions: C structures and signatures, one place (mirrors csrc/*.c)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache

from tokenmill.kernels.native.build import Build, build

FORMATS = {"bf16": 0, "int8": 1, "int4": 2, "nvfp4": 4, "mxfp4": 5}
KV_FORMATS = {"bf16": 0, "int8": 1}
PEAKS = {"bf16": 0, "int8": 1}
EPILOGUES = {"store": 0, "add": 1}


class WeightStruct(Structure):
    """tm_weight in gemm.c"""

    _fields_ = [
        ("format", c_int32),
        ("epilogue", c_int32),
        ("n", c_int64),
        ("k", c_int64),
        ("ldo", c_int64),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
    ]


class PackStruct(Structure):
    """tm_pack_job in pack.c"""

    _fields_ = [
        ("format", c_int32),
        ("is_fp32", c_int32),
        ("n", c_int64),
        ("k", c_int64),
        ("padded_k", c_int64),
        ("source", c_void_p),
        ("packed", c_void_p),
        ("scale", c_void_p),
    ]


class PackFp4Struct(Structure):
    """tm_pack_fp4_job in pack.c"""

    _fields_ = [
        ("format", c_int32),
        ("n", c_int64),
        ("k", c_int64),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("packed", c_void_p),
    ]


class ActStruct(Structure):
    """tm_act in rows.c"""

    _fields_ = [
        ("x", c_void_p),
        ("ldx", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("norm", c_void_p),
        ("eps", c_float),
        ("is_swiglu", c_int32),
        ("limit", c_float),
        ("format", c_int32),
        ("y", c_void_p),
        ("scale", c_void_p),
        ("offsets", c_void_p),
    ]


class RopeStruct(Structure):
    """tm_rope in rows.c"""

    _fields_ = [
        ("qkv", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("kv_format", c_int64),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("eps", c_float),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("q_scale", c_float),
        ("q", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
    ]


class AttentionStruct(Structure):
    """tm_attention in attention.c"""

    _fields_ = [
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("window", c_int64),
        ("heads_per_unit", c_int64),
        ("kv_format", c_int64),
        ("q", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("units", c_void_p),
        ("tables", c_void_p),
        ("stride", c_int64),
        ("out", c_void_p),
    ]


class LayerStruct(Structure):
    """tm_layer in llama.c"""

    _fields_ = [
        ("attn_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", WeightStruct),
        ("o", WeightStruct),
        ("gate_up", WeightStruct),
        ("down", WeightStruct),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
    ]


class LlamaStruct(Structure):
    """tm_llama in llama.c"""

    _fields_ = [
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("heads_per_unit", c_int64),
        ("kv_format", c_int64),
        ("eps", c_float),
        ("q_scale", c_float),
        ("embed", c_void_p),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("layers", c_void_p),
        ("head", WeightStruct),
        ("vocab", c_int64),
        ("x", c_void_p),
        ("wide", c_void_p),
        ("mixed", c_void_p),
        ("act", c_void_p),
        ("act_scale", c_void_p),
        ("act_offsets", c_void_p),
        ("q", c_void_p),
    ]


class StepStruct(Structure):
    """tm_step in llama.c"""

    _fields_ = [
        ("num_tokens", c_int64),
        ("num_units", c_int64),
        ("stride", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("units", c_void_p),
        ("tables", c_void_p),
        ("hidden", c_void_p),
    ]


class Library:
    """The loaded library. Calls release the GIL; one thread at a time may call (the pool is one per process)."""

    def __init__(self, built: Build) -> None:
        self.built = built
        self.lib = lib = ctypes.CDLL(str(built.path))
        self.start = lib.tm_start
        self.start.argtypes, self.start.restype = [c_int], c_int
        self.num_threads = lib.tm_num_threads
        self.num_threads.argtypes, self.num_threads.restype = [], c_int
        self.activate = lib.tm_activate
        self.activate.argtypes, self.activate.restype = [POINTER(ActStruct), c_int64], None
        self.pack = lib.tm_pack
        self.pack.argtypes, self.pack.restype = [POINTER(PackStruct)], None
        self.pack_fp4 = lib.tm_pack_fp4
        self.pack_fp4.argtypes, self.pack_fp4.restype = [POINTER(PackFp4Struct)], None
        self.gemm = lib.tm_gemm
        self.gemm.argtypes = [POINTER(WeightStruct), c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_int64]
        self.gemm.restype = None
        self.rope_write = lib.tm_rope_write
        self.rope_write.argtypes, self.rope_write.restype = [POINTER(RopeStruct), c_int64], None
        self.attend = lib.tm_attend
        self.attend.argtypes, self.attend.restype = [POINTER(AttentionStruct), c_int64], None
        self.peak = lib.tm_peak
        self.peak.argtypes, self.peak.restype = [c_int32, c_int64, c_int64], c_int64
        self.read = lib.tm_read
        self.read.argtypes, self.read.restype = [c_void_p, c_int64], c_int64
        self.llama_step = lib.tm_llama_step
        self.llama_step.argtypes, self.llama_step.restype = [POINTER(LlamaStruct), POINTER(StepStruct)], None
        self.llama_logits = lib.tm_llama_logits
        self.llama_logits.argtypes = [POINTER(LlamaStruct), c_void_p, c_int64, c_void_p]
        self.llama_logits.restype = None


@cache
def load_library(num_threads: int) -> Library:
    """Build if needed, load, and start the threads. NativeUnavailableError when it cannot be built."""
    library = Library(build())
    library.start(num_threads)
    return library
