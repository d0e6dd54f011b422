"""`bench serve`: load any OpenAI-compatible server over HTTP; latency, throughput, goodput, cost and their checks.

Not responsible for: which load (load_plan), one request (client), the report's arithmetic (workloads), printing (cli).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.bench.client import Client, open_client
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load import LoadResult, drive
from tokenmill.bench.prompt_maker import PromptMaker, calibrated_maker
from tokenmill.bench.run_files import RunFiles
from tokenmill.bench.serve_report import serve_report
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.bench.server_price import server_usd_per_hour
from tokenmill.bench.target import Prompt, Target
from tokenmill.core.errors import SetupError
from tokenmill.workloads.conductor import Conductor, Due
from tokenmill.workloads.request_record import RequestRecord

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class _Run:
    """What the requests of one run share: connections, prompts, and the answers that later turns repeat."""

    client: Client
    targets: Sequence[Target]
    maker: PromptMaker
    replies: dict[str, dict[int, str]] = field(default_factory=dict)

    async def send(self, due: Due) -> RequestRecord:
        session, turn = due.session, due.turn
        said = self.replies.setdefault(session.session_id, {})
        target = self.targets[session.model % len(self.targets)]
        prompt = self.maker.prompt(turn, said)
        isl = turn.num_prompt_tokens
        record, text = await self.client.send(
            target,
            prompt,
            turn.num_output_tokens,
            isl=isl,
            session_id=session.session_id,
            parent_session_id=session.parent_session_id,
        )
        if due.turn_index + 1 < len(session.turns):
            said[due.turn_index] = text
        else:
            del self.replies[session.session_id]
        return replace(
            record,
            isl=isl,
            osl=turn.num_output_tokens,
            session_id=session.session_id,
            parent_session_id=session.parent_session_id,
            turn_index=due.turn_index,
            model=target.model,
        )


async def run_serve_bench(
    bench: ServeBench, on_progress: OnProgress, now: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """The whole run; SetupError when the server does not answer even an unloaded request."""
    bench.check()
    run_id = bench.run_id or uuid.uuid4().hex[:12]
    async with open_client(bench.url, now) as client:
        target = Target(bench.url, "", bench.endpoint, bench.api_key, bench.ignore_eos)
        names = bench.models or (await client.first_model(target),)
        run = _Run(client, [target.named(name) for name in names], await _maker(bench, client, target, names, run_id))
        unloaded = await _unloaded(bench, run, run_id)
        _check_unloaded(run.targets[0], unloaded)
        if bench.num_warmup:
            await drive(bench.load.warm_up(f"{run_id}/warm-up", bench.num_warmup), run.send, now)
        usage = _Usage()
        result = await _measure(bench, run, bench.load.conductor(run_id), on_progress, now)
        cpu_s, wall_s = usage.spent()
        usd_per_hour = bench.usd_per_hour
        if usd_per_hour is None:
            usd_per_hour = await server_usd_per_hour(client, run.targets[0])
    report = serve_report(bench, result, unloaded, usd_per_hour, (cpu_s, wall_s), run.maker.num_overhead)
    settings = bench.settings() | {"model": names[0], "models": list(names), "run_id": run_id}
    return {"bench": "serve", "settings": settings, "environment": describe_environment(), **report}


async def _measure(
    bench: ServeBench, run: _Run, conductor: Conductor, on_progress: OnProgress, now: Callable[[], float]
) -> LoadResult:
    done, total = 0, bench.load.num_requests or 0
    with RunFiles(bench.folder) if bench.folder else nullcontext() as files:

        def ended(record: RequestRecord) -> None:
            nonlocal done
            done += 1
            on_progress(done, max(total, done))
            if files is not None:
                files.request(record)

        result = await drive(conductor, run.send, now, ended, max_in_flight=bench.load.max_in_flight)
        if files is not None:
            files.trace(result.sent)
    return result


async def _maker(bench: ServeBench, client: Client, target: Target, names: Sequence[str], run_id: str) -> PromptMaker:
    maker = PromptMaker(bench.vocab_size if bench.prompts == "ids" else None, bench.endpoint == "chat")

    async def probe(prompt: Prompt) -> RequestRecord:
        record, _ = await client.send(target.named(names[0]), prompt, 1)
        return record

    return await calibrated_maker(maker, run_id, probe)


async def _unloaded(bench: ServeBench, run: _Run, run_id: str) -> list[RequestRecord]:
    """First turns, one after the other, of sessions that the load does not hold."""
    sessions = bench.load.first_sessions(f"{run_id}/unloaded", bench.num_unloaded)
    records = [await run.send(Due(session, 0, 0.0)) for session in sessions]
    run.replies.clear()
    return records


def _check_unloaded(target: Target, unloaded: Sequence[RequestRecord]) -> None:
    if unloaded and not any(record.is_ok for record in unloaded):
        raise SetupError(
            f"{target.url} answered none of {len(unloaded)} single requests ({unloaded[0].error}): "
            "check --url, --model, --endpoint, --api-key, and that isl + osl fit the model"
        )


class _Usage:
    """CPU time of this process beside the wall's, from here on."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def spent(self) -> tuple[float, float]:
        return time.process_time() - self._cpu_s, max(1e-9, time.perf_counter() - self._wall_s)
