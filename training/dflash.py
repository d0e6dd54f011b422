"""Train a DFlash drafter for a target from the target's own text; run again it goes on where it was.

    python -m training.dflash --target build/v4-nano --corpus build/corpus --out build/v4-nano-dflash --steps 3000

First the target continues pieces of the corpus (text.u16), then the drafter learns to fill blocks of masks at random
anchors, given the features of everything before them (arXiv 2602.06036: cross-entropy, later positions count less).
Not responsible for: the drafter at work (tokenmill.models.dflash), the corpus (build.py).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tokenmill.core.request import SamplingParams
from tokenmill.core.step import BlockTable
from tokenmill.kernels.rope.api import RotaryTable
from tokenmill.kernels.rope.frequencies import plain
from tokenmill.llm import LLM
from tokenmill.models.dflash.config import ARCHITECTURE, DFlashConfig, read_dflash_config, spread_layers
from tokenmill.models.dflash.drafter import shapes, turn
from tokenmill.models.features import Features
from tokenmill.models.plain import open_plain
from tokenmill.models.ragged import ragged_batch
from tokenmill.models.registry import load_model

_HEADS = ("head.weight", "lm_head.weight", "embed.weight", "model.embed_tokens.weight")
_EMBEDDINGS = ("embed.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    texts, prompt, answer   pieces of the corpus that the target continues, and tokens of each part
    rows, anchors           sequences per step, and blocks per sequence
    gamma                   position i of a block counts exp(-i / gamma)
    features                target layers that the drafter sees; 0: as many as it has layers
    """

    target: Path
    corpus: Path
    out: Path
    steps: int
    seed: int = 0
    texts: int = 2000
    prompt: int = 128
    answer: int = 384
    rows: int = 4
    anchors: int = 24
    block: int = 8
    layers: int = 2
    features: int = 3
    gamma: float = 4.0
    rate: float = 2e-3
    warmup: int = 100
    checkpoint_s: float = 120.0
    threads: int | None = None

    @property
    def length(self) -> int:
        return self.prompt + self.answer


def drafter_json(run: Run, target: dict[str, Any]) -> dict[str, Any]:
    """config.json in the public layout, sized after the target."""
    hidden, num_layers = target["hidden_size"], target["num_hidden_layers"]
    ids = spread_layers(num_layers, run.features) if num_layers > 5 else list(range(num_layers))[-run.features :]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "vocab_size": target["vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": run.layers,
        "num_attention_heads": max(1, hidden // 32),
        "num_key_value_heads": max(1, hidden // 64),
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "block_size": run.block,
        "num_target_layers": num_layers,
        "dflash_config": {"mask_token_id": target.get("pad_token_id") or 0, "target_layer_ids": ids},
        "torch_dtype": "bfloat16",
    }


# -- the target's own text --


def write_texts(run: Run) -> np.ndarray:
    """[texts, length] uint16, made once: greedy and drawn continuations, half and half."""
    path = run.out / "text.u16"
    if not path.exists():
        files = sorted(run.corpus.glob("*.train.u16"))
        assert files, f"{run.corpus} holds no *.train.u16 files: run training.build first"
        rng = np.random.default_rng(run.seed)
        sources = [np.memmap(file, np.uint16, "r") for file in files]
        prompts = [_piece(sources[i % len(sources)], run.prompt, rng) for i in range(run.texts)]
        made = _continue(run, prompts)
        path.with_suffix(".part").write_bytes(made.tobytes())
        path.with_suffix(".part").rename(path)
    return np.memmap(path, np.uint16, "r").reshape(-1, run.length)


def _piece(source: np.ndarray, length: int, rng: np.random.Generator) -> list[int]:
    start = int(rng.integers(len(source) - length))
    piece: list[int] = source[start : start + length].tolist()
    return piece


def _continue(run: Run, prompts: list[list[int]]) -> np.ndarray:
    llm = LLM(str(run.target), max_num_seqs=32, max_model_len=run.length + 1, num_threads=run.threads)
    params = [
        SamplingParams(temperature=float(i % 2), max_tokens=run.answer, ignore_eos=True, seed=i)
        for i in range(len(prompts))
    ]
    outputs = llm.generate(prompts, params)
    rows = [[*p, *o.outputs[0].token_ids] for p, o in zip(prompts, outputs, strict=True)]
    return np.array(rows, dtype=np.uint16)


class Target:
    """Features of whole sequences, embedding and head of the model that will verify."""

    def __init__(self, path: Path, layers: tuple[int, ...], length: int) -> None:
        loaded = load_model(path, dtype="float32")
        self._model: Any = loaded.model
        self._layers, self._size = Features(layers), loaded.default_block_size
        self._blocks = -(-length // self._size)
        self._caches: dict[int, Any] = {}
        checkpoint = open_plain(path)
        names = checkpoint.shapes()
        self.head = checkpoint.read(next(n for n in _HEADS if n in names)).float()
        self.embedding = checkpoint.read(next(n for n in _EMBEDDINGS if n in names)).float()

    @torch.no_grad()
    def features(self, rows: list[list[int]]) -> Tensor:
        """[rows, length, layers x C] float32"""
        num, groups = len(rows), [g.name for g in self._model.cache_groups(self._size)]
        if num not in self._caches:
            self._caches[num] = self._model.allocate_caches(dict.fromkeys(groups, num * self._blocks), self._size)
        tables = [BlockTable(0, tuple(range(i * self._blocks, (i + 1) * self._blocks))) for i in range(num)]
        batch = ragged_batch(rows, [0] * num, dict.fromkeys(groups, tables), self._size)
        _, seen = self._model.forward_with_features(batch, self._caches[num], self._layers)
        return seen.float().view(num, len(rows[0]), -1).clone()


# -- the drafter as it learns --


def fresh(config: DFlashConfig, seed: int) -> dict[str, Tensor]:
    """Layers that write to the stream begin at zero."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes(config).items():
        if "norm" in name:
            out[name] = torch.ones(shape)
        elif "o_proj" in name or "down_proj" in name:
            out[name] = torch.zeros(shape)
        else:
            out[name] = torch.randn(shape, generator=generator) * shape[-1] ** -0.5
    return out


class Learner:
    """The same arithmetic as DFlashDrafter, over many blocks of one sequence at once and with gradients."""

    def __init__(self, config: DFlashConfig, weights: dict[str, Tensor]) -> None:
        self.config, self.weights = config, weights
        self._rotary = RotaryTable(plain(config.head_dim, config.rope_theta))

    def hidden(self, features: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """features [S, F], embedded [A, K, C] of blocks whose newest tokens stand at `anchors` [A] -> [A, K, C].

        A block sees the context before its anchor, and all of itself.
        """
        c, w, (num, size, _) = self.config, self.weights, embedded.shape
        context = self._rms(F.linear(features, w["fc.weight"]), "hidden_norm")
        positions = torch.cat((torch.arange(len(features)), (anchors[:, None] + torch.arange(size)).flatten()))
        cos, sin = self._rotary.rows(positions)
        mask = self._mask(len(features), anchors, size)
        x = embedded.flatten(0, 1)
        for i in range(c.num_layers):
            p = f"layers.{i}."
            h = self._rms(x, p + "input_layernorm")
            source = torch.cat((context, h))
            k = F.linear(source, w[p + "self_attn.k_proj.weight"]).view(-1, c.num_kv_heads, c.head_dim)
            v = F.linear(source, w[p + "self_attn.v_proj.weight"]).view(-1, c.num_kv_heads, c.head_dim)
            q = F.linear(h, w[p + "self_attn.q_proj.weight"]).view(-1, c.num_heads, c.head_dim)
            k = turn(self._rms(k, p + "self_attn.k_norm"), cos, sin)
            q = turn(self._rms(q, p + "self_attn.q_norm"), cos[len(features) :], sin[len(features) :])
            q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0]
            x = x + F.linear(out.transpose(0, 1).flatten(1), w[p + "self_attn.o_proj.weight"])
            h = self._rms(x, p + "post_attention_layernorm")
            h = F.silu(F.linear(h, w[p + "mlp.gate_proj.weight"])) * F.linear(h, w[p + "mlp.up_proj.weight"])
            x = x + F.linear(h, w[p + "mlp.down_proj.weight"])
        return self._rms(x, "norm").view(num, size, -1)

    def _mask(self, length: int, anchors: Tensor, size: int) -> Tensor:
        """[A K, S + A K] bool"""
        owner = torch.arange(len(anchors)).repeat_interleave(size)
        before = torch.arange(length)[None] < anchors[owner][:, None]
        return torch.cat((before, owner[:, None] == owner[None]), dim=1)

    def _rms(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weights[name + ".weight"], self.config.rms_norm_eps)


class Trainer:
    def __init__(self, run: Run) -> None:
        self.run = run
        run.out.mkdir(parents=True, exist_ok=True)
        target = json.loads((run.target / "config.json").read_text("utf-8"))
        self.json = drafter_json(run, target)
        self.config = read_dflash_config(self.json, run.out)
        self.texts = write_texts(run)
        self.target = Target(run.target, self.config.target_layer_ids, run.length)
        self.weights = {name: t.requires_grad_() for name, t in fresh(self.config, run.seed).items()}
        self.learner = Learner(self.config, self.weights)
        self.optimiser = torch.optim.AdamW(self.weights.values(), run.rate, betas=(0.9, 0.98), weight_decay=0.01)
        self.step = 0
        self._restore()

    def batch(self, step: int) -> tuple[list[list[int]], Tensor]:
        """Rows and anchors of a step: functions of seed and step alone, so that a run goes on where it was.

        The first twentieth of the texts is held out, for `measure`.
        """
        rng = np.random.default_rng((self.run.seed, step))
        rows = rng.integers(max(1, len(self.texts) // 20), len(self.texts), self.run.rows)
        low, high = self.run.prompt // 2, self.run.length - self.run.block
        anchors = torch.from_numpy(rng.integers(low, high, (self.run.rows, self.run.anchors)))
        return [self.texts[i].astype(np.int64).tolist() for i in rows], anchors

    def logits(self, row: list[int], features: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """[A, K - 1, V] for the masks of each block, and the ids [A, K - 1] that stand there."""
        ids = torch.tensor(row)[anchors[:, None] + torch.arange(self.run.block)]
        blocks = torch.full_like(ids, self.config.mask_token_id)
        blocks[:, 0] = ids[:, 0]
        hidden = self.learner.hidden(features, F.embedding(blocks, self.target.embedding), anchors)
        return F.linear(hidden[:, 1:], self.target.head), ids[:, 1:]

    def learn(self) -> float:
        rows, anchors = self.batch(self.step)
        features = self.target.features(rows)
        weight = torch.exp(-torch.arange(self.run.block - 1) / self.run.gamma)
        loss = torch.zeros(())
        for row, seen, at in zip(rows, features, anchors, strict=True):
            logits, ids = self.logits(row, seen, at)
            losses = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
            loss = loss + (losses * weight).sum() / (weight.sum() * len(at) * len(rows))
        for group in self.optimiser.param_groups:
            group["lr"] = self.run.rate * self._factor()
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.optimiser.step()
        self.step += 1
        return float(loss.detach())

    def _factor(self) -> float:
        left = 0.5 * (1 + math.cos(math.pi * self.step / self.run.steps))
        return min(1.0, (self.step + 1) / self.run.warmup) * max(left, 0.02)

    @torch.no_grad()
    def measure(self) -> float:
        """Acceptance length on held-out texts: drafts that equal the target's own text, and one more."""
        num = max(1, min(8, len(self.texts) // 20))
        rows = [self.texts[i].astype(np.int64).tolist() for i in range(num)]
        anchors = torch.arange(self.run.prompt, self.run.length - self.run.block, self.run.block)
        kept = []
        for row, seen in zip(rows, self.target.features(rows), strict=True):
            logits, ids = self.logits(row, seen, anchors)
            kept.append((logits.argmax(-1) == ids).long().cumprod(-1).sum(-1))
        return 1 + float(torch.cat(kept).float().mean())

    # -- on disk --

    def save(self) -> None:
        """The checkpoint to go on from, and the drafter as it is now, in the public layout."""
        state = {"step": self.step, "weights": self.weights, "optimiser": self.optimiser.state_dict()}
        torch.save(state, self.run.out / "state.part")
        (self.run.out / "state.part").rename(self.run.out / "state.pt")
        (self.run.out / "config.json").write_text(json.dumps(self.json, indent=2) + "\n", "utf-8")
        plain_weights = {name: t.detach().bfloat16().contiguous() for name, t in self.weights.items()}
        save_file(plain_weights, self.run.out / "model.safetensors", metadata={"format": "pt"})

    def _restore(self) -> None:
        path = self.run.out / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        for name, value in state["weights"].items():
            self.weights[name].data.copy_(value)
        self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]


def train(run: Run) -> dict[str, Any]:
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    trainer = Trainer(run)
    saved_s, loss = time.monotonic(), math.nan
    while trainer.step < run.steps:
        loss = trainer.learn()
        if time.monotonic() - saved_s > run.checkpoint_s:
            trainer.save()
            saved_s = time.monotonic()
        if trainer.step % 100 == 0:
            print(f"step {trainer.step}: loss {loss:.3f}, acceptance length {trainer.measure():.2f}", flush=True)
    trainer.save()
    size = (run.out / "model.safetensors").stat().st_size
    return {"steps": trainer.step, "loss": loss, "acceptance_length": trainer.measure(), "bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, kind in (("target", Path), ("corpus", Path), ("out", Path), ("steps", int)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name, value in asdict(Run(target=Path(), corpus=Path(), out=Path(), steps=1)).items():
        if name not in ("target", "corpus", "out", "steps"):
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=int if value is None else type(value), default=value
            )
    print(json.dumps(train(Run(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
