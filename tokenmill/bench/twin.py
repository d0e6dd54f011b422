"""`bench twin`: a real server on this machine and its twin, side by side at several loads.

The step times are calibrated on the same machine in the same run, on other loads (calibrate.py); what the door adds to
a first token is taken from single requests. Not responsible for: the fit (cost/steptime), the fleet (sim).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.bench.aio import run_async
from tokenmill.bench.calibrate import CalibrateBench, run_calibration
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.local_server import local_server
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.engine.config import EngineConfig
from tokenmill.operations.config import OperationsConfig
from tokenmill.sim.kinds import worker_kind
from tokenmill.sim.twin import Twin, TwinConfig
from tokenmill.workloads.request_metrics import summarise
from tokenmill.workloads.synthetic import parse_lengths_text, synthetic_workload

TPOT_BOUND, TTFT_BOUND = 0.15, 0.25
_LEAST_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class TwinBench:
    """
    models         each served in turn
    concurrencies  the load points
    per_user       requests of each user at a point
    engine         fields of EngineConfig, on both sides
    """

    models: tuple[str, ...]
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    isl: int = 96
    osl: int = 48
    per_user: int = 3
    seed: int = 0
    engine: dict[str, Any] = field(default_factory=dict)


def run_twin_bench(bench: TwinBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """The points of every model, and whether all are within bounds."""
    models = {model: _one_model(bench, model, tell) for model in bench.models}
    points = [point for told in models.values() for point in told["points"]]
    return {
        "bench": "twin",
        "settings": {"concurrencies": bench.concurrencies, "isl": bench.isl, "osl": bench.osl, "seed": bench.seed},
        "environment": describe_environment(),
        "models": models,
        "tpot_off_worst": max(abs(point["tpot_off"]) for point in points),
        "ttft_off_worst": max(abs(point["ttft_off"]) for point in points),
        "is_ok": all(point["is_ok"] for point in points),
    }


def _one_model(bench: TwinBench, model: str, tell: Callable[[str], None]) -> dict[str, Any]:
    calibrating = CalibrateBench(model, repeats=1, is_served=True, seed=bench.seed, engine=bench.engine)
    calibration, report = run_calibration(calibrating, tell)
    flags = [part for name, value in bench.engine.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    times, points = calibration.step_time, []
    with local_server([model, *flags], is_quiet=True) as url:
        door_s = _door_s(bench, url, times)
        for concurrency in bench.concurrencies:
            real = _real(bench, url, concurrency)
            point = _compare(real, run_point(bench, times, concurrency, round(real["isl_mean"]), door_s), concurrency)
            points.append(point)
            tell(
                f"{model}, {concurrency} in flight: TPOT {real['tpot_s_p50'] * 1e3:.1f} ms, twin "
                f"{point['tpot_off']:+.0%}; TTFT {real['ttft_s_p50'] * 1e3:.0f} ms, twin {point['ttft_off']:+.0%}"
            )
    return {"door_s": door_s, "calibration": report["checks"], "served": report["served"], "points": points}


def _real(bench: TwinBench, url: str, concurrency: int) -> dict[str, Any]:
    settings = ServeBench(url, _load(bench, concurrency, bench.isl), num_unloaded=1)
    return run_async(run_serve_bench(settings, lambda done, total: None))


def _door_s(bench: TwinBench, url: str, times: StepTime) -> float:
    """What the client, HTTP, text and the wire add to a first token: single requests, beside the twin without a door.

    Requests that come together pass the door one after another, as these are the work of one process.
    """
    alone = replace(bench, per_user=6)
    real = _real(alone, url, 1)
    twin = run_point(alone, times, 1, round(real["isl_mean"]), 0.0)
    return max(0.0, real["ttft_s_p50"] - twin["ttft_s_p50"])


def _load(bench: TwinBench, concurrency: int, isl: int) -> LoadSettings:
    workload = synthetic_workload(*(parse_lengths_text(str(n), "") for n in (isl, bench.osl)))
    number = max(_LEAST_REQUESTS, concurrency * bench.per_user)
    return LoadSettings(workload, concurrency=concurrency, num_requests=number, seed=bench.seed)


def run_point(
    bench: TwinBench, times: StepTime, concurrency: int, isl: int, door_s: float, vocab_size: int = 32_000
) -> dict[str, Any]:
    """The same load in the twin: one worker with the settings of the server."""
    size: dict[str, Any] = {"name": "m", "vocab_size": vocab_size, "max_model_len": 8192, "budget_bytes": 1 << 30}
    kind = worker_kind(EngineConfig.parse(bench.engine), times, 1, load_s=0.0, **size)
    config = TwinConfig(
        (kind,),
        OperationsConfig(),
        DeviceRate(1.0, 1.0),
        seed=bench.seed,
        door_s=door_s,
    )
    twin = Twin(config, _load(bench, concurrency, isl).conductor("twin"))
    twin.run()
    return summarise(twin.load.records, None)


def _compare(real: dict[str, Any], twin: dict[str, Any], concurrency: int) -> dict[str, Any]:
    off = {name: twin[f"{name}_s_p50"] / real[f"{name}_s_p50"] - 1 for name in ("tpot", "ttft")}
    names = ("tpot_s_p50", "ttft_s_p50", "output_tput_per_s", "num_ok")
    return {
        "concurrency": concurrency,
        "real": {name: real[name] for name in names},
        "twin": {name: twin[name] for name in names},
        "tpot_off": off["tpot"],
        "ttft_off": off["ttft"],
        "is_ok": abs(off["tpot"]) <= TPOT_BOUND and abs(off["ttft"]) <= TTFT_BOUND,
    }
