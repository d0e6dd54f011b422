"""`bench serve`: load any OpenAI-compatible server over HTTP and report latency, throughput, goodput and cost.

Not responsible for: one request (http_client), the report's arithmetic (workloads), printing (cli).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import aiohttp

from tokenmill.bench.environment import describe_environment
from tokenmill.bench.http_client import Prompt, Target, first_model, open_session, send
from tokenmill.bench.load import closed_loop, open_loop
from tokenmill.bench.server_price import server_usd_per_hour
from tokenmill.core.errors import ConfigError, SetupError
from tokenmill.core.slo import SLO
from tokenmill.workloads.arrivals import arrival_times
from tokenmill.workloads.percentiles import percentile
from tokenmill.workloads.prompts import text_prompts, token_prompts, words_for_tokens
from tokenmill.workloads.report_cost import cost_report
from tokenmill.workloads.request_metrics import RequestRecord, duration, summarise, unloaded_slo

_PROBE_WORDS = (32, 256)
_SEED_STRIDE = 1_000_003  # seeds of the parts of one run are far apart, so that no prompt comes twice

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ServeBench:
    """
    model            None: the first that the server lists
    concurrency      requests kept in flight (closed loop), or the cap of the open loop
    request_rate     requests per second (open loop); None: closed loop
    burstiness       see workloads.arrivals
    isl, osl         prompt and output tokens; isl is met within a few percent when prompts are text
    num_shared       tokens at the front that all prompts have in common
    prompts          "text" works with every server; "ids" is exact and needs vocab_size
    num_unloaded     requests sent one by one before the load: warm-up, and the base of the automatic SLO
    slo              None: 3 x the unloaded medians
    usd_per_hour     of all the server's devices; None: asked of the server
    """

    url: str
    model: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    ignore_eos: bool = True
    num_prompts: int = 64
    isl: int = 256
    osl: int = 64
    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    num_shared: int = 0
    prompts: Literal["text", "ids"] = "text"
    vocab_size: int | None = None
    num_unloaded: int = 3
    seed: int = 0
    slo: SLO | None = None
    usd_per_hour: float | None = None
    watts: float | None = None
    num_devices: int = 1

    def check(self) -> None:
        """ConfigError for settings that contradict each other."""
        if self.concurrency is None and self.request_rate is None:
            raise ConfigError("neither concurrency nor request rate is given: use --concurrency N or --request-rate R")
        if self.prompts == "ids" and (self.endpoint != "completions" or not self.vocab_size):
            raise ConfigError("prompts as token ids need --endpoint completions and --vocab-size of the model")
        if self.num_shared > self.isl:
            raise ConfigError(f"a shared prefix of {self.num_shared} tokens exceeds isl={self.isl}: lower it")

    def settings(self) -> dict[str, Any]:
        """For the result file: everything but the key."""
        values = asdict(self)
        del values["api_key"], values["slo"]
        return values


async def run_serve_bench(bench: ServeBench, on_progress: OnProgress) -> dict[str, Any]:
    """The whole run; SetupError when the server does not answer even an unloaded request."""
    bench.check()
    async with open_session() as session:
        model = bench.model or await first_model(session, bench.url, bench.api_key)
        target = Target(bench.url, model, bench.endpoint, bench.api_key, bench.ignore_eos)
        ask = partial(_ask, session, target, bench.osl)
        make = await _prompt_maker(bench, partial(_ask, session, target, 1))
        unloaded = [await ask(prompt) for prompt in make(bench.num_unloaded, bench.seed + _SEED_STRIDE)]
        _check_unloaded(target, unloaded)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        records, late_s = await _measure(bench, make(bench.num_prompts, bench.seed), ask, on_progress)
        client_share = (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)
        usd_per_hour = bench.usd_per_hour
        if usd_per_hour is None:
            usd_per_hour = await server_usd_per_hour(session, target)
    report = _report(bench, records, unloaded, usd_per_hour)
    report |= {"client_cpu_share": client_share, "late_s_p99": percentile(late_s, 99) if late_s else None}
    settings = bench.settings() | {"model": model}
    return {"bench": "serve", "settings": settings, "environment": describe_environment(), **report}


async def _ask(session: aiohttp.ClientSession, target: Target, osl: int, prompt: Prompt) -> RequestRecord:
    return await send(session, target, prompt, osl, time.perf_counter)


async def _prompt_maker(bench: ServeBench, probe: Callable[[Prompt], Any]) -> Callable[[int, int], Sequence[Prompt]]:
    """make(num, seed) -> prompts; for text the words per prompt are found by asking the server to count."""
    if bench.prompts == "ids":
        assert bench.vocab_size
        exact = partial(token_prompts, isl=bench.isl, vocab_size=bench.vocab_size, num_shared=bench.num_shared)
        return lambda num, seed: exact(num, seed=seed)
    counts = []
    for index, words in enumerate(_PROBE_WORDS):
        (prompt,) = text_prompts(1, words, seed=bench.seed + (2 + index) * _SEED_STRIDE)
        record = await probe(prompt)
        counts.append((words, record.num_prompt_tokens if record.is_ok else 0))
    words = words_for_tokens(bench.isl, counts) if all(tokens for _, tokens in counts) else bench.isl
    shared = round(words * bench.num_shared / bench.isl)
    return lambda num, seed: text_prompts(num, words, seed=seed, num_shared=shared)


def _check_unloaded(target: Target, unloaded: Sequence[RequestRecord]) -> None:
    if unloaded and not any(record.is_ok for record in unloaded):
        raise SetupError(
            f"{target.url} answered none of {len(unloaded)} single requests ({unloaded[0].error}): "
            "check --url, --model, --endpoint, --api-key, and that isl + osl fit the model"
        )


async def _measure(
    bench: ServeBench, prompts: Sequence[Prompt], ask: Callable[[Prompt], Any], on_progress: OnProgress
) -> tuple[list[RequestRecord], list[float]]:
    done = 0

    def count(record: RequestRecord) -> None:
        nonlocal done
        done += 1
        on_progress(done, len(prompts))

    if bench.request_rate is None:
        assert bench.concurrency
        return await closed_loop(prompts, bench.concurrency, ask, count), []
    due_s = arrival_times(len(prompts), bench.request_rate, burstiness=bench.burstiness, seed=bench.seed)
    return await open_loop(prompts, due_s, ask, count, max_in_flight=bench.concurrency)


def _report(
    bench: ServeBench, records: list[RequestRecord], unloaded: list[RequestRecord], usd_per_hour: float | None
) -> dict[str, Any]:
    slo = bench.slo or unloaded_slo(unloaded)
    report = summarise(records, slo)
    report["slo_source"] = "given" if bench.slo else "3 x unloaded median"
    ok = [record for record in records if record.is_ok]
    report["isl_mean"] = _mean([record.num_prompt_tokens for record in ok])
    report["osl_mean"] = _mean([record.num_output_tokens for record in ok])
    charged = [record.usd for record in ok if record.usd is not None]
    report["usd_charged"] = sum(charged) if charged else None
    return report | cost_report(
        duration_s=duration(records),
        num_input_tokens=sum(record.num_prompt_tokens for record in ok),
        num_output_tokens=sum(record.num_output_tokens for record in ok),
        num_good_tokens=_good_tokens(report),
        usd_per_hour=None if usd_per_hour is None else usd_per_hour / bench.num_devices,
        watts=None if bench.watts is None else bench.watts / bench.num_devices,
        num_devices=bench.num_devices,
    )


def _good_tokens(report: dict[str, Any]) -> int | None:
    value = report.get("num_good_tokens")
    return int(value) if value is not None else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
