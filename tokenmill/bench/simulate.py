"""`tokenmill simulate`: a recipe under a load on hardware that need not be here; the report of `bench serve`.

Not responsible for: the fleet on virtual time (sim), the load (load_plan), the report's figures (serve_report).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.bench.load import LoadResult
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.serve_report import serve_report
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.core.errors import CapabilityError, ConfigError
from tokenmill.core.slo import SLO
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.totals import Line
from tokenmill.recipes.config import DeploymentConfig
from tokenmill.sim.faults import random_faults, read_faults
from tokenmill.sim.hardware import Placed, place_model
from tokenmill.sim.load import uniform_records
from tokenmill.sim.twin import Twin, TwinConfig

#: Beyond it, tokens are told per request: the run is then paid per request, not per token.
_DETAILED_REQUESTS = 20_000
_RANDOM_FAULTS_S = 30.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """
    hardware, num_devices  a key of the catalogue, and how many of them
    layout, precision      of one worker; None: the smallest that holds the model, as released
    detail        "auto", "all" (each token's time) or "ends" (each request's first and last)
    faults        a script, or "random:N"
    decisions     where the decisions are written; replay: a file of them to compare with
    """

    config: DeploymentConfig
    load: LoadSettings
    hardware: str
    num_devices: int
    layout: str | None = None
    precision: str | None = None
    slo: SLO | None = None
    detail: str = "auto"
    faults: str | None = None
    decisions: Path | None = None
    replay: Path | None = None
    seed: int = 0

    @property
    def keeps_all(self) -> bool:
        if self.detail == "auto":
            return (self.load.num_requests or _DETAILED_REQUESTS) <= _DETAILED_REQUESTS
        return self.detail == "all"


def run_simulation(simulation: Simulation) -> dict[str, Any]:
    """The report, with `ledger`, `fleet` and `twin` beside the columns of a real benchmark."""
    simulation.load.check()
    placed = _place(simulation)
    began_s = time.process_time()
    twin = _twin(simulation, placed)
    twin.run()
    cpu_s = time.process_time() - began_s
    difference = _decisions(simulation, twin)
    report = _report(simulation, placed, twin)
    report["twin"] = {
        "cpu_s": cpu_s,
        "cpu_us_per_request": 1e6 * cpu_s / max(1, len(twin.load.records)),
        "peak_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "virtual_s": twin.end_s - twin.start_s,
        "num_decisions": twin.decisions.num_lines,
        "decisions_digest": twin.decisions.digest,
        "num_faults": twin.mishaps.num_happened,
        "num_restarts": twin.supervisor.num_restarts,
        "differs": difference,
    }
    return report


def check_recipe(config: DeploymentConfig) -> None:
    """CapabilityError for what the twin has no model of, ConfigError for a recipe of several models."""
    if len(config.models) != 1:
        raise ConfigError(f"the recipe serves {len(config.models)} models: simulate one at a time")
    engine = config.models[0].engine
    if engine.speculative_config is not None:
        raise CapabilityError(
            f"the twin has no model of drafts (speculative_config.method={engine.speculative_config.method}): "
            "leave them out with --set engine.speculative_config=null"
        )
    if engine.quantization != "none":
        raise CapabilityError(
            f"the twin has no model of quantization={engine.quantization} on load: give --precision bf16, fp8 or fp4"
        )


def _place(simulation: Simulation) -> Placed:
    check_recipe(simulation.config)
    model = simulation.config.models[0]
    return place_model(
        model.model,
        simulation.hardware,
        simulation.num_devices,
        model.engine,
        name=model.name,
        layout=simulation.layout,
        precision=simulation.precision,
        is_quiet=not simulation.keeps_all,
    )


def _twin(simulation: Simulation, placed: Placed) -> Twin:
    config = TwinConfig(
        (placed.kind,),
        simulation.config.operations,
        placed.rate,
        seed=simulation.seed,
        keeps_all=simulation.keeps_all,
        keeps_decisions=simulation.decisions is not None or simulation.replay is not None,
    )
    workers = [f"worker-{index:04d}" for index in range(placed.kind.num_workers)]
    conductor = simulation.load.conductor(f"sim-{simulation.seed}")
    ledger = Ledger(simulation.slo, max_open=10**9, max_ended=4096)
    return Twin(config, conductor, faults=_faults(simulation, workers), ledger=ledger)


def _faults(simulation: Simulation, workers: list[str]) -> Sequence[Any]:
    from random import Random

    text = simulation.faults
    if text is None:
        return ()
    kind, separator, number = text.partition(":")
    if kind == "random" and separator:
        if not number.isdecimal():
            raise ConfigError(f"--faults {text!r}: write random:5 for five of them, or the path of a script")
        until_s = simulation.load.duration_s or _RANDOM_FAULTS_S
        return random_faults(Random(f"{simulation.seed}/faults"), workers, int(number), until_s)
    return read_faults(Path(text), workers)


def _decisions(simulation: Simulation, twin: Twin) -> str | None:
    """Write them, and compare with an earlier run's; where the two part, or None."""
    from tokenmill.sim.decisions import first_difference

    if simulation.decisions is not None:
        simulation.decisions.write_text("\n".join(twin.decisions.lines) + "\n", encoding="utf-8")
    if simulation.replay is None:
        return None
    try:
        before = simulation.replay.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"decisions {str(simulation.replay)!r} cannot be read: {error.strerror}") from None
    return first_difference(before, twin.decisions.lines)


def _report(simulation: Simulation, placed: Placed, twin: Twin) -> dict[str, Any]:
    records = twin.load.records
    rate, num_workers = placed.rate, placed.kind.num_workers
    bench = ServeBench(
        url=f"twin://{simulation.hardware}",
        load=simulation.load,
        models=(placed.kind.card.name,),
        prompts="ids",
        num_unloaded=0,
        slo=simulation.slo,
        usd_per_hour=rate.usd_per_hour * num_workers,
        watts=rate.watts * num_workers,
        num_devices=simulation.num_devices,
    )
    in_flight_s = sum(record.end_s - record.sent_s for record in records)
    result = LoadResult(
        records=records,
        num_abandoned_turns=twin.load.num_abandoned_turns,
        in_flight_mean=in_flight_s / max(1e-9, twin.end_s - twin.start_s),
        sent=twin.load.sent,
    )
    report = serve_report(bench, result, [], rate.usd_per_hour * num_workers, (0.0, 1.0), 0)
    if not simulation.keeps_all:
        report |= uniform_records(records)
    fleet = {
        "hardware": simulation.hardware,
        "num_devices": simulation.num_devices,
        "num_idle_devices": placed.num_idle_devices,
        "num_workers": num_workers,
        "layout": str(placed.layout),
        "block_size": placed.kind.card.block_size,
        "kv_capacity_tokens": placed.kind.card.kv_capacity_tokens,
        "router": simulation.config.operations.router,
        "rate_source": rate.source,
    }
    return {
        "bench": "simulate",
        "settings": bench.settings() | {"seed": simulation.seed, "detail": simulation.detail, "models": bench.models},
        "environment": {"device": simulation.hardware, "is_simulated": True},
        **report,
        "fleet": fleet,
        "ledger": ledger_report(twin),
    }


def ledger_report(twin: Twin) -> Mapping[str, Any]:
    """The bill from the start of the processes on, by line, and whether it adds up."""
    ledger = twin.frontend.ledger
    totals, balance = ledger.totals(), ledger.check_balance(twin.queue.now())
    return {
        "usd": totals.whole.usd,
        "seconds": totals.whole.seconds,
        "usd_by_line": {line.value: totals.lines[line].usd for line in Line},
        "usd_per_mtok_total": totals.usd_per_mtok_total,
        "usd_per_mtok_output": totals.usd_per_mtok_output,
        "usd_per_mtok_good": totals.usd_per_mtok_good,
        "is_balanced": balance.is_balanced,
        "unexplained_s": balance.unexplained_s,
    }
