"""`tokenmill calibrate`: steps of the real engine on this machine, measured and fitted, checked on loads left out.

Runs the engine in this process through its own scheduler; with `is_served`, a server too, for what sharing the machine
with HTTP and clients costs. Not responsible for: the fit (cost/steptime/fit), the file (calibration), printing (cli).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.bench.aio import run_async
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.local_server import local_server
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import Request, SamplingParams
from tokenmill.core.step import StepPlan, StepResult
from tokenmill.core.work_description import WorkDescription
from tokenmill.cost.steptime.calibration import Calibration
from tokenmill.cost.steptime.fit import MeasuredStep, fit_measured, fit_served
from tokenmill.cost.steptime.measured import MeasuredStepTime
from tokenmill.cost.steptime.shape import StepShape
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine
from tokenmill.models.priced import describe_model
from tokenmill.models.store import resolve_model
from tokenmill.workloads.prompts import token_prompts
from tokenmill.workloads.synthetic import parse_lengths_text, synthetic_workload

#: (sequences, prompt tokens): each is prefilled and then decoded; sequences climb, contexts climb.
_LOADS = (
    *((1, 32), (2, 32), (4, 32), (8, 32), (16, 32), (32, 32), (64, 32)),
    *((1, 96), (1, 200), (1, 420), (1, 1500), (4, 900), (8, 500), (16, 250), (32, 120)),
)
#: Left out of the fit: what its error is told from.
_CHECKS = ((3, 700), (12, 160), (24, 64))
#: Concurrencies at which a server is compared with the engine alone.
_SERVED_AT = (1, 4, 12)
_SERVED_ISL, _SERVED_OSL = 48, 64


@dataclass(frozen=True, slots=True)
class CalibrateBench:
    """
    name       what the calibration is of in its file; None: the model
    num_steps  decode steps of each load
    repeats    times that the loads are gone through; every step counts
    is_served  measure a server, too
    engine     fields of EngineConfig, as the calibrated deployment has them
    """

    model: str
    name: str | None = None
    num_steps: int = 8
    repeats: int = 2
    seed: int = 0
    is_served: bool = False
    engine: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        for name in ("num_steps", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible: give 1 or more")


def run_calibration(
    bench: CalibrateBench, tell: Callable[[str], None], now: Callable[[], float] = time.perf_counter
) -> tuple[Calibration, dict[str, Any]]:
    """The calibration, and a JSON-able report; `tell` gets a line per stage."""
    bench.check()
    path = Path(resolve_model(bench.model))
    work = _describe(bench.model, path)
    tell(f"loading {bench.model}")
    driver = _Driver(load_engine(path, EngineConfig.parse(bench.engine), name=bench.model), bench, now)
    driver.run(_LOADS[:2])  # warm-up: kernels are compiled, caches touched
    steps: list[MeasuredStep] = []
    for repeat in range(bench.repeats):
        steps += driver.run(_LOADS)
        tell(f"pass {repeat + 1} of {bench.repeats}: {len(steps)} steps measured")
    made = fit_measured(steps, work.keys)
    checks = [_check(driver.run([load]), load, made) for load in _CHECKS if driver.is_possible(*load)]
    served = _serve(bench, made, driver.vocab_size, tell) if bench.is_served else None
    if served is not None:
        made = made.served(served["factor"], served["step_s"])
    environment = describe_environment()
    calibration = Calibration(bench.name or bench.model, made, _origin(bench, environment, len(steps)))
    report = {
        "bench": "calibrate",
        "settings": asdict(bench),
        "environment": environment,
        "num_steps": len(steps),
        "range_factor": made.range_factor,
        "checks": checks,
        "served": served,
        "decode_s": {str(n): made.step_s(StepShape.decode(n, n * 256)) for n in (1, 2, 4, 8, 16, 32, 64)},
        "prefill_s": {str(n): made.step_s(StepShape.prefill(n)) for n in (16, 64, 128, 256, 512)},
    }
    return calibration, report


def _describe(model: str, path: Path) -> WorkDescription:
    """By the name where it is known, else by the config beside the weights."""
    try:
        return describe_model(model)
    except ConfigError:
        return describe_model(str(path))


class _Driver:
    """An engine whose every step is timed: from the end of the step before to its own end, whoever works between.

    So planning and telling count where they delay the next step, in the plain loop and in the overlapped one.
    """

    def __init__(self, engine: Engine, bench: CalibrateBench, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now
        self._bench = bench
        self._num_requests = 0
        self._steps: list[MeasuredStep] = []
        self._last_end_s = 0.0
        self._record(engine.runner)

    def _record(self, runner: Any) -> None:
        """Plans pass here on their way to the runner."""
        run = runner.run

        def recorded(plan: StepPlan) -> StepResult:
            result = run(plan)
            end_s = self._now()
            self._steps.append(MeasuredStep(StepShape.of_plan(plan), end_s - self._last_end_s))
            self._last_end_s = end_s
            return result

        runner.run = recorded

    @property
    def vocab_size(self) -> int:
        return self._engine.card.vocab_size

    def is_possible(self, num_seqs: int, num_tokens: int) -> bool:
        card, total = self._engine.card, num_tokens + self._bench.num_steps + 1
        fits = num_seqs * total <= card.kv_capacity_tokens
        return num_seqs <= card.max_num_seqs and total <= card.max_model_len and fits

    def run(self, loads: Sequence[tuple[int, int]]) -> list[MeasuredStep]:
        """Loads that this engine cannot hold are left out; the prefix cache never helps."""
        found: list[MeasuredStep] = []
        for num_seqs, num_tokens in loads:
            if self.is_possible(num_seqs, num_tokens):
                found += self._run_load(num_seqs, num_tokens)
        return found

    def _run_load(self, num_seqs: int, num_tokens: int) -> list[MeasuredStep]:
        engine, self._steps = self._engine, []
        engine.clear_cache()
        self._add(num_seqs, num_tokens)
        self._last_end_s = self._now()
        while engine.has_work():
            engine.step()
        return self._steps

    def _add(self, num_seqs: int, num_tokens: int) -> None:
        card, seed = self._engine.card, self._bench.seed + self._num_requests
        sampling = SamplingParams(temperature=0.0, max_tokens=self._bench.num_steps, ignore_eos=True)
        for prompt in token_prompts(num_seqs, num_tokens, vocab_size=card.vocab_size, seed=seed):
            self._num_requests += 1
            self._engine.add(
                Request(
                    request_id=f"calibrate-{self._num_requests}",
                    model=card.name,
                    prompt_token_ids=prompt,
                    sampling=sampling,
                    seed=0,
                    eos_token_ids=card.eos_token_ids,
                )
            )


def _check(steps: Sequence[MeasuredStep], load: tuple[int, int], made: MeasuredStepTime) -> dict[str, Any]:
    """Measured against predicted, prompt steps and decode steps apart."""
    result: dict[str, Any] = {"num_seqs": load[0], "num_prompt_tokens": load[1]}
    for kind, of in (
        ("prefill", [s for s in steps if s.shape.num_prefill_seqs]),
        ("decode", [s for s in steps if not s.shape.num_prefill_seqs]),
    ):
        measured, predicted = (
            statistics.median(v) for v in ([s.seconds for s in of], [made.step_s(s.shape) for s in of])
        )
        result |= {f"{kind}_s_p50": measured, f"{kind}_predicted_s_p50": predicted}
        result[f"{kind}_error"] = predicted / measured - 1.0
    return result


def _serve(
    bench: CalibrateBench, made: MeasuredStepTime, vocab_size: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds per user and token through the HTTP door against what the engine alone would need for the same steps.

    From throughput, not from gaps between chunks: without a tokenizer nothing is streamed before the end.
    """
    alone_s, served_s = [], []
    workload = synthetic_workload(*(parse_lengths_text(str(n), "") for n in (_SERVED_ISL, _SERVED_OSL)))
    flags = [part for name, value in bench.engine.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with local_server([bench.model, *flags], is_quiet=True) as url:
        for concurrency in _SERVED_AT:
            load = LoadSettings(workload, concurrency=concurrency, num_requests=3 * concurrency, seed=bench.seed)
            serving = ServeBench(url, load, prompts="ids", vocab_size=vocab_size, num_unloaded=2)
            report = run_async(run_serve_bench(serving, lambda done, total: None))
            alone_s.append(_token_alone_s(made, concurrency))
            served_s.append(report["in_flight_counted_mean"] / report["output_tput_per_s"])
            tell(
                f"served, {concurrency} in flight: {served_s[-1] * 1e3:.1f} ms per token, alone {alone_s[-1] * 1e3:.1f}"
            )
    factor, step_s = fit_served(alone_s, served_s)
    return {
        "concurrency": list(_SERVED_AT),
        "alone_s": alone_s,
        "served_s": served_s,
        "factor": factor,
        "step_s": step_s,
    }


def _token_alone_s(made: MeasuredStepTime, concurrency: int) -> float:
    """A decode step, and in each answer's time every user's prompt once."""
    context = _SERVED_ISL + _SERVED_OSL / 2
    step_s = made.step_s(StepShape.decode(concurrency, concurrency * context))
    return step_s + concurrency * made.step_s(StepShape.prefill(_SERVED_ISL)) / _SERVED_OSL


def _origin(bench: CalibrateBench, environment: dict[str, Any], num_steps: int) -> dict[str, str]:
    names = ("when", "tokenmill", "commit", "cpu", "num_cores", "load_average_1m")
    settings = ", ".join(f"{name}={value}" for name, value in sorted(bench.engine.items())) or "defaults"
    return {name: str(environment[name]) for name in names} | {"engine": settings, "num_steps": str(num_steps)}
