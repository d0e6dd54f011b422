"""The golden vectors would notice: each feature of the model is taken out, and the logits must move.

Without this a golden test could pass although a feature never acts on the golden prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.deepseek_v4.conftest import GOLDENS, load_golden
from tests.deepseek_v4.harness import Harness
from tokenmill.kernels import invariant
from tokenmill.kernels.moe import reference as moe
from tokenmill.kernels.select import select_kernels
from tokenmill.models.deepseek_v4 import block, compressed, csa_state
from tokenmill.models.deepseek_v4.builder import load_weights
from tokenmill.models.deepseek_v4.checkpoint import HubCheckpoint
from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.groups import cache_formats
from tokenmill.models.deepseek_v4.model import DeepseekV4
from tokenmill.models.deepseek_v4.step import Rotation
from tokenmill.models.deepseek_v4.weights import Weights
from tokenmill.models.weights import open_checkpoint

LENGTH = 300
Patch = pytest.MonkeyPatch


def build(name: str, change: Callable[[Weights], None] | None = None, **config_changes: Any) -> DeepseekV4:
    checkpoint = open_checkpoint(GOLDENS / name)
    config = DeepseekV4Config.from_dict(checkpoint.config)
    weights = load_weights(HubCheckpoint(checkpoint), config, torch.float32, 0)
    if change is not None:
        change(weights)
    config = dataclasses.replace(config, **config_changes)
    kernels = select_kernels(deterministic=True)
    return DeepseekV4(config, weights, kernels, cache_formats(config, "float32"), torch.float32)


def movement(name: str, model: DeepseekV4) -> float:
    """Largest difference from the golden logits."""
    golden = load_golden(GOLDENS / name)
    harness = Harness(model, num_blocks=4)
    logits = harness.prefill(harness.start(), golden.ids(LENGTH))
    rows = golden.reference[f"prompt_{LENGTH}.rows"].long()
    return (logits[rows] - golden.reference[f"prompt_{LENGTH}.logits"]).abs().max().item()


def attentions(weights: Weights) -> list[Any]:
    return [b.attention for b in weights.blocks]


def csa(weights: Weights) -> list[Any]:
    return [a for a in attentions(weights) if a.index_compressor is not None]


def hca(weights: Weights) -> list[Any]:
    return [a for a in attentions(weights) if a.compressor is not None and a.index_compressor is None]


def connections(weights: Weights) -> list[Any]:
    return [c for b in weights.blocks for c in (b.hc_attn, b.hc_ffn)]


def moes(weights: Weights) -> list[Any]:
    return [b.moe for b in weights.blocks]


def zero(tensors: Callable[[Weights], list[torch.Tensor]]) -> Callable[[Weights], None]:
    return lambda weights: [t.zero_() for t in tensors(weights)] and None


#: In the weights: (what, change).
WEIGHTS: dict[str, Callable[[Weights], None]] = {
    "indexer: head weights ignored": lambda w: [a.index_weights.zero_() for a in csa(w)] and None,
    "indexer: ape zero": zero(lambda w: [a.index_compressor.ape for a in csa(w)]),
    "CSA: ape zero": zero(lambda w: [a.compressor.ape for a in csa(w)]),
    "HCA: ape zero": zero(lambda w: [a.compressor.ape for a in hca(w)]),
    "CSA: entries zero": zero(lambda w: [a.compressor.norm for a in csa(w)]),
    "HCA: entries zero": zero(lambda w: [a.compressor.norm for a in hca(w)]),
    "sink off": lambda w: [a.sink.fill_(-1e9) for a in attentions(w)] and None,
    "o groups swapped": lambda w: [a.wo_a.copy_(a.wo_a.roll(1, 0)) for a in attentions(w)] and None,
    "mHC: fn zero": zero(lambda w: [c.fn for c in connections(w)]),
    "mHC: base zero": zero(lambda w: [c.base for c in connections(w)]),
    "mHC: scale one": lambda w: [c.scale.fill_(1.0) for c in connections(w)] and None,
    "mHC head: fn zero": zero(lambda w: [w.collapse.hc_head.fn]),
    "hash table rolled": lambda w: [m.table.copy_(m.table.roll(1, 0)) for m in moes(w) if m.table is not None] and None,
    "gate bias zero": zero(lambda w: [m.bias for m in moes(w) if m.bias is not None]),
    "shared expert off": zero(lambda w: [m.shared_w2 for m in moes(w)]),
}

#: In the config.
CONFIG: dict[str, dict[str, Any]] = {
    "indexer: every visible entry": {"index_topk": 1024},
    "indexer: one entry more": {"index_topk": 9},
    "window one shorter": {"sliding_window": 31},
    "yarn off": {"yarn": None},
    "compressed layers turn as sliding ones": {"compress_rope_theta": 10000.0, "yarn": None},
    "mHC: one sinkhorn iteration": {"hc_sinkhorn_iters": 1},
    "routed scaling 1": {"routed_scaling_factor": 1.0},
    "clamp off": {"swiglu_limit": 1e9},
}


def _no_overlap(patch: Patch) -> None:
    close = csa_state.CsaWindows.close

    def only_this_window(self: Any, pools: Any) -> torch.Tensor:
        self._is_first = torch.ones_like(self._is_first)
        return close(self, pools)

    patch.setattr(csa_state.CsaWindows, "close", only_this_window)


def _no_hca_position(patch: Patch) -> None:
    patch.setattr(compressed, "turn", lambda x, rotation: x)


def _with_ops(patch: Patch, **ops: Any) -> None:
    """Blocks built from now on have other ops."""
    assert block.Block.__init__.__defaults__ == (block.REFERENCE_OPS,)
    patch.setattr(block.Block.__init__, "__defaults__", (replace(block.REFERENCE_OPS, **ops),))


def _comb_transposed(patch: Patch) -> None:
    post = block.REFERENCE_OPS.mhc_post
    _with_ops(patch, mhc_post=lambda streams, y, p, comb: post(streams, y, p, comb.transpose(1, 2)))


def _no_q_norm(patch: Patch) -> None:
    rsqrt = torch.rsqrt
    patch.setattr(torch, "rsqrt", lambda x: torch.ones_like(x) if x.dim() == 3 and x.shape[1] == 8 else rsqrt(x))


def _routed_clamp_off(patch: Patch) -> None:
    _with_ops(patch, experts=lambda x, r, w13, w2, limit: moe.experts(x, r, w13, w2, 1e9))


#: In the code.
CODE: dict[str, Callable[[Patch], None]] = {
    "CSA: no overlap": _no_overlap,
    "entries and index queries not turned": _no_hca_position,
    "output not turned back": lambda p: p.setattr(Rotation, "inverse", lambda self: Rotation(self.cos, 0 * self.sin)),
    "mHC: comb transposed": _comb_transposed,
    "queries not normed per head": _no_q_norm,
    "gate scored with sigmoid": lambda p: p.setattr(
        moe, "_scores", lambda x, gate: invariant.sigmoid(invariant.matmul(x, gate))
    ),
    "clamp off in routed experts": _routed_clamp_off,
    "entries visible one token late": lambda p: p.setattr(compressed.HcaRows, "fetch", _late(compressed.HcaRows.fetch)),
}


def _late(fetch: Callable[..., Any]) -> Callable[..., Any]:
    def fetch_late(self: Any, rows: torch.Tensor, width: int) -> Any:
        entries, is_valid = fetch(self, rows, width)
        is_at_close = (self._hca.visible[rows, None] - 1 == torch.arange(width)) & (rows[:, None] % 128 == 127)
        return entries, is_valid & ~is_at_close

    return fetch_late


@pytest.mark.parametrize("name", ["tiny-flash", "tiny-pro"])
def test_nothing_removed_is_within_tolerance(name: str) -> None:
    assert movement(name, build(name)) < 1e-3


@pytest.mark.parametrize("what", WEIGHTS)
def test_weights_matter(what: str) -> None:
    assert movement("tiny-pro", build("tiny-pro", WEIGHTS[what])) > 0.02


@pytest.mark.parametrize("what", CONFIG)
def test_settings_matter(what: str) -> None:
    assert movement("tiny-pro", build("tiny-pro", **CONFIG[what])) > 0.02


@pytest.mark.parametrize("what", CODE)
def test_arithmetic_matters(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CODE[what](monkeypatch)
    assert movement("tiny-pro", build("tiny-pro")) > 0.02


def test_sliding_layers_have_their_own_rope() -> None:
    """Theta 160000 or YaRN in a sliding layer: invisible on short prompts, wrong later."""
    config = build("tiny-flash").config
    assert movement("tiny-flash", build("tiny-flash", rope_theta=config.compress_rope_theta)) > 0.02
