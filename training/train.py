"""Train v4-nano: processes that average their gradients, checkpoints, progress; run again it goes on.

    python -m training.train --corpus build/corpus --out build/v4-nano --steps 4000

Not responsible for: the model (tokenmill.models.deepseek_v4.dense), the corpus (build.py), measures (measure.py).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tokenmill.models.deepseek_v4.config import DeepseekV4Config
from tokenmill.models.deepseek_v4.dense import DenseV4
from tokenmill.models.deepseek_v4.weights import Weights, destinations
from training import model
from training.corpus.domains import DOMAINS
from training.data import Corpus, Phase, held_out
from training.optimiser import Optimiser, Parameter, Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run. Steps end in `long_steps` steps on long rows; the last `cooldown` of all go down to zero.

    sparse_from  share of the steps after which CSA layers keep index_topk entries; before, all, which teaches more
    initial      folder of a model to begin with, of the same architecture; None: fresh weights
    """

    corpus: Path
    out: Path
    steps: int
    seed: int = 0
    rows: int = 8
    length: int = 512
    long_steps: int = 0
    long_length: int = 2048
    warmup: int = 100
    cooldown: float = 0.4
    sparse_from: float = 0.6
    mtp_weight: float = 0.3
    index_weight: float = 0.1
    bias_rate: float = 0.002
    max_norm: float = 1.0
    bf16: bool = True
    checkpoint_s: float = 180.0
    evaluate_every: int = 250
    initial: Path | None = None
    rates: Rates = field(default_factory=Rates)

    def phase(self, step: int) -> Phase:
        """Both phases see equally many tokens per step."""
        border = self.steps - self.long_steps
        if step < border:
            return Phase(0, border, self.length, self.rows)
        return Phase(border, self.steps, self.long_length, max(1, self.rows * self.length // self.long_length))

    def factor(self, step: int) -> float:
        """Warm-up, stable, linear to zero."""
        left = (self.steps - step) / (self.cooldown * self.steps)
        return min(1.0, (step + 1) / self.warmup, left)


#: Hub names, by their last part, of what Muon trains.
_MATRICES = ("wq_a", "wq_b", "wkv", "wgate", "wo_a", "wo_b", "w1", "w2", "w3", "e_proj", "h_proj")


class Trainer:
    def __init__(self, run: Run, config: dict[str, Any], rank: int, num_ranks: int) -> None:
        self.run, self.rank, self.num_ranks = run, rank, num_ranks
        self.device = torch.get_default_device()
        self.config_dict, self.config = config, DeepseekV4Config.from_dict(config)
        self.weights = model.fresh(self.config, run.seed) if run.initial is None else model.load(run.initial)[1]
        self.corpus = Corpus(run.corpus, run.seed)
        self.parameters = learnable(self.config, self.weights, run.rates)
        self.optimiser = Optimiser(self.parameters, run.rates, rank, num_ranks)
        self.model = DenseV4(self.config, self.weights)
        self.biases = [block.moe.bias for block in _blocks(self.weights) if block.moe.bias is not None]
        self.number = 0

    def read_steps(self) -> None:
        """The number in the file `steps`, where there is one, is the run's length from now on: so a run that turns out
        slower or quicker than was thought still cools down before it ends."""
        steps = torch.tensor([self.run.steps], device="cpu")
        path = self.run.out / "steps"
        if self.rank == 0 and path.exists():
            steps[0] = int(path.read_text("utf-8"))
        if self.num_ranks > 1:
            dist.broadcast(steps, 0)
        self.run = replace(self.run, steps=int(steps))

    # -- one step --

    def step(self) -> dict[str, float]:
        run, phase = self.run, self.run.phase(self.number)
        self.model.is_sparse = self.number >= run.sparse_from * run.steps
        batch = self.corpus.batch(self.number, phase, self.rank, self.num_ranks).to(self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=run.bf16):
            losses = self._losses(batch)
        loss = losses["loss"] + run.mtp_weight * losses["mtp"] + run.index_weight * losses["index"]
        for p in self.parameters:
            p.value.grad = None
        loss.backward()
        gradients, told = self._average(losses)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))  # type: ignore[arg-type]
        told["norm"] = float(norm)
        if torch.isfinite(norm):
            clip = min(1.0, run.max_norm / (told["norm"] + 1e-6))
            for p, g in zip(self.parameters, gradients, strict=True):
                if not p.splits:
                    g.mul_(clip)
            self.number += 1
            self.optimiser.step(gradients, self.number, run.factor(self.number - 1))
            self._balance()
        else:
            self.number += 1
        return told

    def _losses(self, batch: Tensor) -> dict[str, Tensor]:
        ids, targets, later = batch[:, :-2], batch[:, 1:-1], batch[:, 2:]
        streams = self.model.streams(ids)
        index = torch.stack(self.model.index_losses).mean() if self.model.index_losses else torch.zeros(())
        loss = F.cross_entropy(self.model.logits(streams), targets.flatten())
        some = -(-len(ids) // 2)  # the MTP block learns from half of the rows, which is enough for it
        mtp_streams = self.model.mtp_streams(streams[: some * ids.shape[1]], targets[:some])
        mtp = F.cross_entropy(self.model.mtp_logits(mtp_streams), later[:some].flatten())
        return {"loss": loss, "mtp": mtp, "index": index}

    def _average(self, losses: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, float]]:
        """Gradients and losses over all ranks, in one message."""
        shapes = [p.value for p in self.parameters]
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in shapes]
        flat = torch.cat([*parts, torch.stack([value.detach() for value in losses.values()])])
        if self.num_ranks > 1:
            dist.all_reduce(flat)
            flat /= self.num_ranks
        *gradients, values = flat.split([p.numel() for p in shapes] + [len(losses)])
        shaped = [g.view_as(p) for g, p in zip(gradients, shapes, strict=True)]
        return shaped, dict(zip(losses, values.tolist(), strict=True))

    def _balance(self) -> None:
        """Router bias: up for experts that got fewer tokens than their share, down for others."""
        counts = torch.stack([self.model.expert_counts[id(bias)] for bias in self.biases]).float()
        if self.num_ranks > 1:
            dist.all_reduce(counts)
        for bias, count in zip(self.biases, counts, strict=True):
            bias += self.run.bias_rate * torch.sign(count.mean() - count) * self.run.factor(self.number - 1)

    # -- measures --

    @torch.no_grad()
    def evaluate(self, length: int = 512, num_rows: int = 8) -> dict[str, dict[str, float]]:
        """Per domain: nats per token, and how often the MTP block's best guess is the trunk's best next token."""
        self.model.is_sparse = True
        found = {}
        for domain in DOMAINS:
            tokens = held_out(self.run.corpus, domain.name)
            count = min(num_rows, (len(tokens) - 2) // length)
            rows = torch.stack([tokens[i * length : (i + 1) * length + 2] for i in range(count)]).to(self.device)
            streams = self.model.streams(rows[:, :-2])
            logits = self.model.logits(streams)
            loss = F.cross_entropy(logits, rows[:, 1:-1].flatten())
            guesses = self.model.mtp_logits(self.model.mtp_streams(streams, rows[:, 1:-1])).argmax(-1).view(count, -1)
            agree = guesses[:, :-1] == logits.argmax(-1).view(count, -1)[:, 1:]
            found[domain.name] = {"loss": round(float(loss), 4), "mtp_agreement": round(float(agree.float().mean()), 4)}
        return found

    # -- checkpoints --

    def save(self) -> None:
        """Atomic: a reader sees the old one or the new one."""
        out = self.run.out
        model.export(out / "next", self.config_dict, self.weights, self.run.corpus / "tokenizer")
        state = {
            "number": self.number,
            "values": {p.name: p.value.detach() for p in self.parameters},
            "states": {p.name: p.state for p in self.parameters},
            "biases": self.biases,
        }
        torch.save(state, out / "state.next")
        os.replace(out / "state.next", out / "state.pt")
        _swap(out / "next", out / "model")

    def resume(self) -> None:
        path = self.run.out / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True, map_location=self.device)
        self.number = state["number"]
        for p in self.parameters:
            p.value.data.copy_(state["values"][p.name])
            p.state = state["states"][p.name]
        for bias, value in zip(self.biases, state["biases"], strict=True):
            bias.copy_(value)


def learnable(config: DeepseekV4Config, weights: Weights, rates: Rates) -> list[Parameter]:
    """Fused tensors are one parameter each, and Muon is told the matrices below one another in them.

    Experts and groups of a layer are a batch of matrices.
    """
    found: dict[int, Parameter] = {}
    for name, tensor in destinations(config, weights).items():
        owner = tensor if tensor._base is None else tensor._base
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        if not owner.is_floating_point() or leaf == "bias":
            continue
        owner.requires_grad_()
        if id(owner) not in found:
            is_matrix = leaf in _MATRICES
            rate = rates.muon if is_matrix else rates.embedding if leaf == "embed" else rates.adam
            found[id(owner)] = Parameter(name, owner, (), rate)
        p = found[id(owner)]
        if leaf in _MATRICES and sum(p.splits) < owner.shape[-2]:
            rows = owner.shape[-2] if owner.dim() == 3 and leaf == "wo_a" else tensor.shape[-2]
            p.splits += (rows,)
    return list(found.values())


def _blocks(weights: Weights) -> list[Any]:
    return [*weights.blocks, *(mtp.block for mtp in weights.mtp)]


def _swap(new: Path, place: Path) -> None:
    """Put folder `new` in the place of `place`, which is a link: renaming a link over another is atomic."""
    target = place.with_name(f"{place.name}-{time.time_ns()}")
    os.rename(new, target)
    link = place.with_name(f"{place.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    old = place.resolve() if place.is_symlink() else None
    os.replace(link, place)
    if old is not None:
        for path in old.iterdir():
            path.unlink()
        old.rmdir()


def train(run: Run, config: dict[str, Any], rank: int = 0, num_ranks: int = 1) -> Trainer:
    trainer = Trainer(run, config, rank, num_ranks)
    trainer.resume()
    run.out.mkdir(parents=True, exist_ok=True)
    log = Log(run, rank)
    if rank == 0:
        log.event({"run": json.loads(json.dumps(asdict(run), default=str)), "from_step": trainer.number})
    parent = os.getppid()
    began, first, saved = time.monotonic(), trainer.number, time.monotonic()
    while trainer.number < trainer.run.steps:
        if num_ranks > 1 and os.getppid() != parent:
            raise SystemExit("the process that started this one is gone")
        trainer.read_steps()
        told = trainer.step()
        now, run = time.monotonic(), trainer.run
        per_step = (now - began) / (trainer.number - first)
        log.step(run, trainer.number, told, per_step)
        if rank == 0 and trainer.number % run.evaluate_every == 0:
            log.event({"step": trainer.number, "held_out": trainer.evaluate()})
        if rank == 0 and (now - saved > run.checkpoint_s or trainer.number == run.steps):
            trainer.save()
            saved = now
    return trainer


class Log:
    """Lines for people on stdout, the same as JSON lines in log.jsonl."""

    def __init__(self, run: Run, rank: int) -> None:
        self._rank = rank
        self._path = run.out / "log.jsonl"

    def step(self, run: Run, number: int, told: dict[str, float], per_step: float) -> None:
        if self._rank or (number % 20 and number != run.steps and number > 5):
            return
        left, factor = int(per_step * (run.steps - number)), run.factor(number - 1)
        tokens = run.rows * run.length / per_step
        text = " ".join(f"{name} {value:.3f}" for name, value in told.items())
        print(
            f"step {number}/{run.steps} {text} rate {factor:.2f} {tokens:.0f} tokens/s, {left // 60} min left",
            flush=True,
        )
        self.event({"step": number, **{k: round(v, 4) for k, v in told.items()}, "s_per_step": round(per_step, 4)})

    def event(self, data: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")
        if "s_per_step" not in data:
            print(json.dumps(data), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=model.CONFIG_PATH)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--long-steps", type=int, default=0)
    parser.add_argument("--long-length", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--initial", type=Path, help="folder of a model to begin with")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--cooldown", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    parser.add_argument("--processes", type=int, help="on CPU; default 2. A GPU has one")
    args = vars(parser.parse_args())
    device = args.pop("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    processes, config = args.pop("processes"), model.read_config(args.pop("config"))
    if device == "cuda" and processes not in (None, 1):
        parser.error(f"--processes {processes} is for CPU: a GPU is trained on by one process")
    num_ranks = 1 if device == "cuda" else processes or 2
    run = Run(**args)
    if num_ranks == 1:
        torch.set_default_device(device)
        _process(0, run, config, 1, "")
    else:
        run.out.mkdir(parents=True, exist_ok=True)
        store = f"file://{(run.out / f'rendezvous-{os.getpid()}').resolve()}"
        torch.multiprocessing.spawn(_process, (run, config, num_ranks, store), num_ranks)


def _process(rank: int, run: Run, config: dict[str, Any], num_ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    if num_ranks > 1:
        os.setsid()  # Linux shares processors between sessions first: each rank shall have its own share
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    train(run, config, rank, num_ranks)
    if num_ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
