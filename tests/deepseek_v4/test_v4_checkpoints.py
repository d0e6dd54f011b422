"""Checkpoints in every layout that the hub and transformers write, and the damage that is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.test_v4_equivalence import tokens
from tests.deepseek_v4.test_v4_goldens import same_bits
from tests.deepseek_v4.tiny import (
    quantised,
    random_tensors,
    rounded,
    scale_name,
    transformers_tensors,
    v4_json,
    write_checkpoint,
)
from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.models.deepseek_v4.model import DeepseekV4
from tokenmill.models.registry import load_model

CONFIG = v4_json()
TENSORS = random_tensors(CONFIG)
PROMPT = tokens(70)


def load(folder: Path, **extra: str) -> DeepseekV4:
    return load_model(folder, dtype="float32", deterministic=True, extra={"mtp": "auto", **extra}).model


def logits(model: DeepseekV4) -> Tensor:
    harness = Harness(model, num_blocks=4)
    return harness.prefill(harness.start(), PROMPT)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return logits(load(write_checkpoint(tmp_path_factory.mktemp("plain"), CONFIG, TENSORS)))


def test_sharded(tmp_path: Path, plain: Tensor) -> None:
    assert same_bits(logits(load(write_checkpoint(tmp_path, CONFIG, TENSORS, num_shards=3))), plain)


def test_module_names_of_transformers(tmp_path: Path, plain: Tensor) -> None:
    model = load(write_checkpoint(tmp_path, CONFIG, transformers_tensors(TENSORS)))
    assert same_bits(logits(model), plain)
    assert model.num_mtp == 0  # transformers drops the MTP block, though the config still announces it


def test_names_of_save_pretrained_in_its_original_format(tmp_path: Path, plain: Tensor) -> None:
    """transformers 5.24: hub names under `model.`, `attn.norm` for `attn.kv_norm`, a few module names at the top."""
    top = {"embed.weight": "embed_tokens.weight", "hc_head_fn": "hc_head.hc_fn"}
    saved = {}
    for name, tensor in TENSORS.items():
        if not name.startswith("mtp."):
            name = top.get(name, name).replace("attn.kv_norm.", "attn.norm.")
            saved[name if name == "head.weight" else f"model.{name}"] = tensor
    assert same_bits(logits(load(write_checkpoint(tmp_path, CONFIG, saved))), plain)


def test_bf16_is_expanded_exactly(tmp_path: Path) -> None:
    stored = rounded(TENSORS)
    wide = {name: t if t.dtype is torch.int64 else t.float() for name, t in stored.items()}
    a, b = write_checkpoint(tmp_path / "a", CONFIG, stored), write_checkpoint(tmp_path / "b", CONFIG, wide)
    assert same_bits(logits(load(a)), logits(load(b)))


@pytest.mark.parametrize("scale_dtype", [torch.float8_e8m0fnu, torch.float32])
def test_fp8_and_fp4_are_expanded_exactly(tmp_path: Path, scale_dtype: torch.dtype) -> None:
    """Against an expansion written out here, code by code; scales as e8m0 or the same powers of two in float32."""
    stored = quantised(TENSORS)
    wide = {}
    for name, tensor in stored.items():
        scale = stored.get(scale_name(name)) if name.endswith(".weight") else None
        if scale is not None:
            wide[name] = _expand(tensor, scale.float())
        elif not name.endswith(".scale"):
            wide[name] = tensor if tensor.dtype is torch.int64 else tensor.float()
    in_file = {name: t.to(scale_dtype) if t.dtype is torch.float8_e8m0fnu else t for name, t in stored.items()}
    a, b = write_checkpoint(tmp_path / "a", CONFIG, in_file), write_checkpoint(tmp_path / "b", CONFIG, wide)
    assert same_bits(logits(load(a)), logits(load(b)))


def _expand(codes: Tensor, scale: Tensor) -> Tensor:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    if codes.dtype is torch.float8_e4m3fn:
        out = codes.float()
        for i in range(out.shape[0]):
            for j in range(0, out.shape[1], 128):
                out[i, j : j + 128] *= scale[i // 128, j // 128]
        return out
    table = torch.tensor([values[c & 7] * (-1 if c & 8 else 1) for c in range(16)])
    byte = codes.view(torch.uint8).int()
    out = torch.empty(byte.shape[0], 2 * byte.shape[1])
    out[:, 0::2], out[:, 1::2] = table[byte % 16], table[byte // 16]  # the even column lies in the low nibble
    return out * scale.repeat_interleave(32, 1)


def test_tied_embeddings(tmp_path: Path) -> None:
    tied = {name: t for name, t in TENSORS.items() if name != "head.weight"}
    untied = TENSORS | {"head.weight": TENSORS["embed.weight"].clone()}
    a = write_checkpoint(tmp_path / "a", CONFIG | {"tie_word_embeddings": True}, tied)
    b = write_checkpoint(tmp_path / "b", CONFIG, untied)
    assert same_bits(logits(load(a)), logits(load(b)))
    assert load(a).num_parameters == load(b).num_parameters - TENSORS["embed.weight"].numel()


def test_mtp_is_loaded_when_present_or_as_asked(tmp_path: Path) -> None:
    """S10: a draft module with a tensor missing is an error, not a poor drafter."""
    whole = write_checkpoint(tmp_path / "whole", CONFIG, TENSORS)
    assert load(whole).num_mtp == 1 and load(whole, mtp="on").num_mtp == 1
    without = load(whole, mtp="off")
    assert without.num_mtp == 0 and "mtp_window" not in {g.name for g in without.cache_groups(128)}
    trunk = {name: t for name, t in TENSORS.items() if not name.startswith("mtp.")}
    cut = write_checkpoint(tmp_path / "cut", CONFIG, trunk)
    assert load(cut).num_mtp == 0
    with pytest.raises(CheckpointError, match=r"has no mtp\.\* tensors"):
        load(cut, mtp="on")
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers=0"):
        silent = CONFIG | {"num_nextn_predict_layers": 0, "compress_ratios": [0, 4, 128, 4]}
        load(write_checkpoint(tmp_path / "silent", silent, TENSORS), mtp="on")
    partial = {name: t for name, t in TENSORS.items() if name != "mtp.0.h_proj.weight"}
    with pytest.raises(CheckpointError, match=r"missing \(1\): mtp.0.h_proj.weight"):
        load(write_checkpoint(tmp_path / "partial", CONFIG, partial))
    with pytest.raises(ConfigError, match="choose auto, on or off"):
        load(whole, mtp="yes")
    with pytest.raises(ConfigError, match="setting rope means nothing"):
        load(whole, rope="plain")


def spoil(change: Callable[[dict[str, Tensor]], None], quant: bool = False) -> dict[str, Tensor]:
    tensors = {name: t.clone() for name, t in (quantised(TENSORS) if quant else TENSORS).items()}
    change(tensors)
    return tensors


def _nan(t: dict[str, Tensor]) -> None:
    t["layers.1.attn.wkv.weight"][3, 4] = torch.nan


def _nan_scale(t: dict[str, Tensor]) -> None:
    t["layers.1.ffn.experts.3.w2.scale"].view(torch.uint8)[0, 0] = 255  # e8m0's only non-number


def _hash(t: dict[str, Tensor]) -> None:
    t["layers.0.ffn.gate.tid2eid"][17, 1] = 8


def _shape(t: dict[str, Tensor]) -> None:
    t["layers.2.attn.compressor.ape"] = torch.zeros(64, 32)


def _names(t: dict[str, Tensor]) -> None:
    del t["layers.3.attn.indexer.wq_b.weight"], t["norm.weight"]
    t["layers.3.attn.indexer.wk.weight"] = torch.zeros(4, 4)


def _no_scale(t: dict[str, Tensor]) -> None:
    del t["layers.1.attn.wq_a.scale"]


def _fp4_no_scale(t: dict[str, Tensor]) -> None:
    del t["layers.1.ffn.experts.0.w1.scale"]


def _grid(t: dict[str, Tensor]) -> None:
    t["layers.1.ffn.experts.0.w1.scale"] = torch.ones(32, 4).to(torch.float8_e8m0fnu)  # 16 columns per scale: NVFP4


def _scaled_bf16(t: dict[str, Tensor]) -> None:
    t["layers.1.attn.wq_a.weight"] = torch.zeros(32, 64, dtype=torch.bfloat16)


def _nvfp4(t: dict[str, Tensor]) -> None:
    t["layers.1.ffn.experts.0.w1.weight_scale_2"] = torch.ones(1)


def _twice(t: dict[str, Tensor]) -> None:
    t["model.norm.weight"] = t["norm.weight"].clone()


DAMAGE = [
    (_nan, False, r"not finite in layers.1.attn.wkv.weight"),
    (_nan_scale, True, r"not finite in layers.1.ffn.experts.3.w2.weight"),
    (_hash, False, r"layers.0.ffn.gate.tid2eid\[17, 1\]=8 is not an expert: possible: 0 to 7"),
    (_shape, False, r"misshaped \(1\): layers.2.attn.compressor.ape \(64, 32\) instead of \(128, 32\)"),
    (_names, False, r"missing \(2\): norm.weight, layers.3.attn.indexer.wq_b.weight; unknown \(1\): layers.3.attn.ind"),
    (_no_scale, True, r"wq_a.weight is float8_e4m3fn without a '.scale' tensor"),
    (_fp4_no_scale, True, r"w1.weight is int8 without a '.scale' tensor"),
    (_grid, True, r"w1.weight int8 .* with scale float8_e8m0fnu \(32, 4\) is a quantisation layout that is not known"),
    (_scaled_bf16, True, r"wq_a.weight bfloat16 .* quantisation layout that is not known"),
    (_nvfp4, True, r"quantised in a layout that is not known \(layers.1.ffn.experts.0.w1.weight_scale_2\)"),
    (_twice, False, r"same tensor under two names"),
]


@pytest.mark.parametrize(("change", "quant", "message"), DAMAGE, ids=[change.__name__ for change, _, _ in DAMAGE])
def test_damage_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], quant: bool, message: str
) -> None:
    folder = write_checkpoint(tmp_path, CONFIG, spoil(change, quant))
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_config_errors_come_before_weights(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, CONFIG, TENSORS)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"compress_ratios": [0, 4, 8, 4]}))
    with pytest.raises(CheckpointError, match=r"compress_ratios\[2\]=8"):
        load(folder)
