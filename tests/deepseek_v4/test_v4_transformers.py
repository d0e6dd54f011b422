"""Against Hugging Face transformers on freshly drawn configs and weights; a failing seed is in the test's name.

Draws whose router or indexer is within 1e-4 of choosing otherwise are redrawn: there two correct float32
implementations may differ.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.deepseek_v4.harness import Harness
from tests.deepseek_v4.tiny import random_tensors, transformers_tensors, v4_json, write_checkpoint
from tokenmill.models.deepseek_v4.config import AttentionKind, kind_of_ratio
from tokenmill.models.registry import load_model

pytestmark = pytest.mark.requires_transformers

MARGIN = 1e-4
QUICK, SLOW = (4, 15, 25), range(50)


def draw_config(draw: random.Random) -> dict[str, Any]:
    """Shapes that no release has; HCA layers share one ratio, because transformers knows one."""
    num_layers = draw.randint(2, 5)
    ratios = [draw.choice([0, 4, 4, draw_hca]) for draw_hca in [draw.choice([32, 64, 128])] for _ in range(num_layers)]
    groups, per_group = draw.choice([1, 2, 4]), draw.choice([1, 2, 3])
    rope = draw.choice([4, 8, 12])
    num_experts = draw.choice([4, 6, 8])
    return v4_json(
        vocab_size=draw.choice([96, 131, 256]),
        hidden_size=draw.choice([40, 48, 64]),
        num_hidden_layers=num_layers,
        compress_ratios=ratios,
        num_nextn_predict_layers=0,
        num_attention_heads=groups * per_group,
        o_groups=groups,
        o_lora_rank=draw.choice([6, 12, 16]),
        head_dim=draw.choice([rope * draw.choice([2, 3, 4]), 16, 32]),
        qk_rope_head_dim=rope,
        q_lora_rank=draw.choice([20, 32]),
        sliding_window=draw.choice([1, 7, 32, 100, 128]),
        index_n_heads=draw.choice([8, 12]),
        index_head_dim=rope * draw.choice([2, 3]),
        index_topk=draw.choice([4, 9, 16]),
        n_routed_experts=num_experts,
        num_experts_per_tok=draw.randint(1, 3),
        moe_intermediate_size=draw.choice([16, 24]),
        num_hash_layers=draw.randint(0, min(2, num_layers)),
        routed_scaling_factor=draw.choice([1.0, 1.5, 2.5]),
        swiglu_limit=draw.choice([0.7, 1.0, 10.0]),
        hc_mult=draw.choice([2, 4]),
        hc_sinkhorn_iters=draw.choice([3, 20]),
        rope_scaling={
            "type": "yarn",
            "factor": draw.choice([2, 16]),
            "original_max_position_embeddings": draw.choice([64, 4096]),
            "beta_fast": 32,
            "beta_slow": 1,
        },
    )


class Peer:
    """transformers' model of a config and tensors, with the margins of its choices."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

        hca = [r for r in config["compress_ratios"] if r > 4]
        kinds = [kind_of_ratio(r).value for r in config["compress_ratios"]]
        skip = ("architectures", "model_type", "compress_ratios")
        given = {name: value for name, value in config.items() if name not in skip}
        rates = {AttentionKind.CSA.value: 4, AttentionKind.HCA.value: hca[0] if hca else 128}
        theirs = DeepseekV4Config(**given, layer_types=kinds, compress_rates=rates, dtype="float32")
        assert theirs.qk_rope_head_dim == config["qk_rope_head_dim"]
        theirs._attn_implementation = "eager"
        self.model = DeepseekV4ForCausalLM(theirs).eval().float()
        missing, unexpected = self.model.load_state_dict(transformers_tensors(tensors), strict=False)
        assert not unexpected and all("inv_freq" in name for name in missing), (missing, unexpected)
        self.margins: list[float] = []
        for layer in self.model.model.layers:
            if not layer.mlp.is_hash:
                layer.mlp.gate.register_forward_hook(self._on_gate)
            if layer.self_attn.layer_type == AttentionKind.CSA.value:
                indexer = layer.self_attn.compressor.indexer
                indexer.scorer.register_forward_hook(lambda _, __, out, k=indexer.index_topk: self._on_scores(out, k))

    def _on_gate(self, gate: Any, _: Any, out: Any) -> None:
        scores = gate.score_fn(out[0]) + gate.e_score_correction_bias
        self._note(scores, torch.full((len(scores),), scores.shape[1]), gate.top_k)

    def _on_scores(self, scores: Tensor, topk: int) -> None:
        visible = (torch.arange(scores.shape[1]) + 1) // 4
        hidden = torch.arange(scores.shape[2]) >= visible[:, None]
        self._note(scores[0].masked_fill(hidden, -torch.inf), visible, topk)

    def _note(self, scores: Tensor, num_candidates: Tensor, k: int) -> None:
        rows = scores[num_candidates > k]
        if len(rows):
            best = rows.topk(k + 1, dim=-1).values
            self.margins.append((best[:, -2] - best[:, -1]).min().item())

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Tensor:
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def compare(seed: int, folder: Path) -> None:
    for attempt in range(20):
        draw = random.Random(1000 * seed + attempt)
        config = draw_config(draw)
        tensors = random_tensors(config, seed=draw.randrange(2**31))
        ids = draw.choices(range(config["vocab_size"]), k=draw.randint(130, 290))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns about the yarn factor of a small context
            peer = Peer(config, tensors)
        want = peer.logits(ids)
        if min(peer.margins, default=1.0) >= MARGIN:
            break
    else:
        pytest.fail(f"seed {seed}: every draw had a margin below {MARGIN}")
    print(f"seed {seed}.{attempt}: ratios {config['compress_ratios']}, {len(ids)} tokens")
    write_checkpoint(folder, config, tensors)
    best = want.topk(2, dim=-1).values
    is_clear = best[:, 0] - best[:, 1] > 2e-3
    for deterministic in (True, False):  # the reference, then the C kernels in float32 where they serve the shape
        harness = Harness(load_model(folder, dtype="float32", deterministic=deterministic).model, num_blocks=4)
        got = harness.prefill(harness.start(), ids, 77)
        assert (got - want).abs().max().item() < 1e-3, f"seed {seed}.{attempt}: {config}"
        assert torch.equal(got.argmax(-1)[is_clear], want.argmax(-1)[is_clear])


@pytest.mark.parametrize("seed", QUICK)
def test_drawn_configs_equal_transformers(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path)


def test_a_fresh_draw_equals_transformers(tmp_path: Path) -> None:
    """A seed that nobody has tried; it is printed when it fails."""
    compare(random.SystemRandom().randrange(10**9), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW)
def test_many_drawn_configs_equal_transformers(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path)
