"""DeepSeek V4's weights as the C kernels read them: packed, pinned, and described by C structures.

Not responsible for: scratch, caches, steps (native.py).
"""

from __future__ import annotations

from ctypes import addressof

import torch
from torch import Tensor

from tokenmill.kernels.linear.api import LinearKernel
from tokenmill.kernels.native.library import WeightStruct
from tokenmill.kernels.native.linear import NativeLinear
from tokenmill.kernels.native.v4 import FP32_WEIGHT, CollapseStruct, ConnectionStruct, LayerStruct, MtpStruct
from tokenmill.kernels.select import Kernels
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.weights import (
    AttentionWeights,
    BlockWeights,
    CollapseWeights,
    ConnectionWeights,
    MtpWeights,
    Weights,
)


class NativeWeights:
    """Structures of all layers; valid while this object lives, for it owns what they point into.

    max_inputs  widest input of a product, padded; scratch for activations is sized by it
    """

    def __init__(self, config: DeepseekV4Config, weights: Weights, kernels: Kernels, dtype: torch.dtype) -> None:
        """Takes the weights: each layer's plain tensors are let go as soon as they are packed."""
        self.is_fp32 = dtype is torch.float32
        self.max_inputs = 1
        self._kernels = kernels
        self._keep: list[object] = []
        self.embed = weights.embed if self.is_fp32 else weights.embed.bfloat16()
        self.head = self._pack(weights.head, kernels.head_linear)
        blocks, weights.blocks = weights.blocks, []
        blocks.reverse()
        structs: list[LayerStruct] = []
        while blocks:
            structs.append(self._layer_struct(blocks.pop(), config.compress_ratios[len(structs)]))
        self.layers = (LayerStruct * len(structs))(*structs)
        self.mtp = [self._mtp_struct(mtp) for mtp in weights.mtp]
        self.collapse = self._collapse_of(weights.collapse)
        weights.mtp = []

    def _pin(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        kept = tensor.contiguous()
        self._keep.append(kept)
        return kept.data_ptr()

    def _pack(self, weight: Tensor, make: LinearKernel | None = None) -> WeightStruct:
        """Packed for the CPU's bf16 or integer products, or row-major float32."""
        if self.is_fp32:
            n, k = weight.shape
            self.max_inputs = max(self.max_inputs, k)
            return WeightStruct(format=FP32_WEIGHT, n=n, k=k, ldo=n, weight=self._pin(weight))
        linear = (make or self._kernels.linear)(weight)
        assert isinstance(linear, NativeLinear), f"{type(linear).__name__} is not a native layer"
        self._keep.append(linear)
        self.max_inputs = max(self.max_inputs, linear.packed.inputs)
        return linear.struct()

    def _pack_all(self, weights: Tensor) -> int:
        """[n, N, K] -> address of n packed weights."""
        structs = (WeightStruct * len(weights))(*(self._pack(weight) for weight in weights))
        self._keep.append(structs)
        return addressof(structs)

    def _connection(self, weights: ConnectionWeights) -> ConnectionStruct:
        return ConnectionStruct(self._pin(weights.fn), self._pin(weights.base), self._pin(weights.scale))

    def _collapse_of(self, weights: CollapseWeights) -> CollapseStruct:
        return CollapseStruct(self._connection(weights.hc_head), self._pin(weights.norm))

    def _layer_struct(self, block: BlockWeights, ratio: int) -> LayerStruct:
        attention, moe = block.attention, block.moe
        layer = LayerStruct(
            ratio=ratio,
            attn_norm=self._pin(block.attn_norm),
            ffn_norm=self._pin(block.ffn_norm),
            q_norm=self._pin(attention.q_norm),
            kv_norm=self._pin(attention.kv_norm),
            sink=self._pin(attention.sink),
            hc_attn=self._connection(block.hc_attn),
            hc_ffn=self._connection(block.hc_ffn),
            qkv=self._pack(attention.qkv),
            wq_b=self._pack(attention.wq_b),
            wo_b=self._pack(attention.wo_b),
            wo_a=self._grouped(attention.wo_a),
            gate=self._pin(moe.gate),
            bias=self._pin(moe.bias),
            hash=self._pin(moe.table),
            w13=self._pack_all(moe.w13),
            w2=self._pack_all(moe.w2),
            shared_w13=self._pack(moe.shared_w13),
            shared_w2=self._pack(moe.shared_w2),
        )
        if ratio:
            self._add_compressor(layer, attention)
        return layer

    def _grouped(self, weight: Tensor) -> int:
        """Output projection [G, R, K]: each group's outputs lie side by side in rows of G R floats."""
        structs = (WeightStruct * len(weight))(*(self._pack(group) for group in weight))
        for struct in structs:
            struct.ldo = weight.shape[0] * weight.shape[1]
        self._keep.append(structs)
        return addressof(structs)

    def _add_compressor(self, layer: LayerStruct, attention: AttentionWeights) -> None:
        assert attention.compressor is not None
        layer.compress = self._pin(attention.compress)
        layer.ape, layer.entry_norm = self._pin(attention.compressor.ape), self._pin(attention.compressor.norm)
        if attention.index_compressor is not None:
            assert attention.index_wq_b is not None
            layer.index_ape = self._pin(attention.index_compressor.ape)
            layer.index_norm = self._pin(attention.index_compressor.norm)
            layer.index_weights = self._pin(attention.index_weights)
            layer.index_wq_b = self._pack(attention.index_wq_b)

    def _mtp_struct(self, weights: MtpWeights) -> MtpStruct:
        return MtpStruct(
            layer=self._layer_struct(weights.block, 0),
            e_proj=self._pack(weights.e_proj),
            h_proj=self._pack(weights.h_proj),
            enorm=self._pin(weights.enorm),
            hnorm=self._pin(weights.hnorm),
            collapse=self._collapse_of(weights.collapse),
        )
