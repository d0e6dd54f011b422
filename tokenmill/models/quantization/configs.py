"""config.json and hf_quant_config.json of a quantised checkpoint, as ModelOpt and compressed-tensors write them.

Field names and values: nvidia-modelopt 0.47 (export), compressed-tensors 0.19 (quant_args, quant_scheme). Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FORMATS = {
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp4": "mxfp4-pack-quantized",
    "fp8_block": "float-quantized",
    "fp8": "float-quantized",
    "int8": "int-quantized",
    "int4": "pack-quantized",
}
_WEIGHTS: dict[str, dict[str, Any]] = {
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
              "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"},
    "mxfp4": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
              "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"},
    "fp8_block": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
    "fp8": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "int8": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "int4": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
}  # fmt: skip


def compressed_tensors_config(scheme: str, ignored: Sequence[str]) -> dict[str, Any]:
    """`quantization_config` of config.json. ignored: module names. Only the weights are quantised, save for int8,
    whose layout means activations in int8 per token as well."""
    weights = {"symmetric": True, "dynamic": False, **_WEIGHTS[scheme]}
    inputs = None
    if scheme == "int8":
        inputs = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
        "format": _FORMATS[scheme],
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[scheme],
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": sorted(ignored),
        "config_groups": {"group_0": group},
    }


def modelopt_config(ignored: Sequence[str], producer: Mapping[str, str]) -> dict[str, Any]:
    """hf_quant_config.json of NVFP4 weights."""
    quantization = {"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": 16}
    return {"producer": dict(producer), "quantization": quantization | {"exclude_modules": sorted(ignored)}}


def modelopt_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same as `quantization_config` of config.json."""
    quantization = config["quantization"]
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": quantization["group_size"]}
    return {
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        "ignore": quantization["exclude_modules"],
        "quant_algo": quantization["quant_algo"],
        "producer": config["producer"],
        "quant_method": "modelopt",
    }
