"""`tokenmill simulate`: what a recipe would do on hardware that need not be here."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, fail_if_invalid, finish, one_of
from tokenmill.cli.output import print_json


def add_to(app: typer.Typer) -> None:
    app.command()(simulate)
    app.command("replay-plans")(replay_plans)


def replay_plans(
    log: Path = typer.Argument(help="Written by an engine with --set engine.plan_log=FILE."),
    as_json: bool = JSON,
) -> None:
    """Plan a recorded run again: the same requests and results must give the same step plans. Exit code 1 if not."""
    from dataclasses import asdict

    from tokenmill.sim.plan_replay import replay_plans as replay

    told = replay(log)
    if not as_json:
        print(told.difference or f"{told.num_steps} steps of {told.num_requests} requests are the same")
    print_json(asdict(told))
    if told.difference:
        raise typer.Exit(1)


def simulate(
    recipe: str = typer.Argument(help="Model with a price model (deepseek-v4-pro), shipped recipe or .yaml file."),
    hardware: str = typer.Option("gb300_nvl72", help="Key of the catalogue."),
    gpus: int = typer.Option(72, "--gpus", "--devices", min=1, help="How many of them; all are paid for."),
    layout: str | None = typer.Option(None, help="Of one worker: tp8, tep8, dep8; default: the smallest."),
    precision: str | None = typer.Option(None, help="bf16, fp8 or fp4; default: as released."),
    workload: str | None = typer.Option(None, help="Built-in workload or a YAML file."),
    trace: Path | None = typer.Option(None, help="Trace to replay (Mooncake JSONL)."),
    isl: str = typer.Option("1024", help="Without workload and trace: tokens per prompt."),
    osl: str = typer.Option("128", help="Tokens per answer."),
    concurrency: int | None = typer.Option(None, help="Sessions kept alive."),
    request_rate: float | None = typer.Option(None, help="Sessions started per second, whatever comes back."),
    ramp: float = typer.Option(0.0, help="Seconds over which the first sessions of a closed loop start."),
    num_prompts: int | None = typer.Option(None, "--num-prompts", "--requests", help="Requests in all."),
    duration: float | None = typer.Option(None, help="Start nothing later than this (seconds)."),
    speed: float = typer.Option(1.0, help="Of a trace."),
    slo: str | None = typer.Option(None, "--slo", "--goodput", help="ttft=500ms,tpot=50ms."),
    faults: str | None = typer.Option(None, help="Fault script (JSON), or random:N."),
    detail: str = typer.Option("auto", help="all (each token), ends (first and last of a request), auto."),
    save_decisions: Path | None = typer.Option(None, help="Write every decision of the fleet to this file."),
    replay_decisions: Path | None = typer.Option(None, help="Compare with saved ones; code 1 if they differ."),
    seed: int = typer.Option(0, help="Of load, network and faults: the same seed is the same run."),
    sets: list[str] = typer.Option([], "--set", metavar="PATH=VALUE", help="Change any setting of the recipe."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Run a recipe on virtual time: production scheduler, router, fleet and ledger; step times of a hardware model."""
    from tokenmill.bench.load_plan import LoadSettings
    from tokenmill.bench.simulate import Simulation, run_simulation
    from tokenmill.cli.simulate_report import simulate_table
    from tokenmill.core.slo import SLO
    from tokenmill.recipes.load import load_deployment
    from tokenmill.workloads.library import load_workload
    from tokenmill.workloads.synthetic import parse_lengths_text, synthetic_workload

    chosen = None
    if trace is None:
        chosen = (
            load_workload(workload)
            if workload
            else synthetic_workload(parse_lengths_text(isl, "--isl"), parse_lengths_text(osl, "--osl"))
        )
    if chosen is not None and concurrency is None and request_rate is None:
        concurrency, request_rate = chosen.load.concurrency, chosen.load.rate_per_s
    if chosen is not None and num_prompts is None and duration is None:
        num_prompts = 1000
    load = LoadSettings(
        workload=chosen,
        trace=trace,
        concurrency=concurrency,
        rates_per_s=() if request_rate is None else (request_rate,),
        ramp_s=ramp,
        num_requests=num_prompts,
        duration_s=duration,
        speed=speed,
        seed=seed,
    )
    simulation = Simulation(
        config=load_deployment([recipe], sets=sets),
        load=load,
        hardware=hardware,
        num_devices=gpus,
        layout=layout,
        precision=precision,
        slo=SLO.parse(slo) if slo else None,
        detail=one_of("--detail", detail, ("auto", "all", "ends")),
        faults=faults,
        decisions=save_decisions,
        replay=replay_decisions,
        seed=seed,
    )
    result = run_simulation(simulation)
    finish(result, simulate_table, output, as_json=as_json)
    if result["twin"]["differs"]:
        from tokenmill.cli.output import note

        note(f"tokenmill: {result['twin']['differs']}")
        raise typer.Exit(1)
    fail_if_invalid(result)
