"""`bench serve` against a server that needs no model: what is sent, what is counted, what is refused."""

import asyncio
import json

import pytest

from tests.bench.conftest import serve_bench
from tokenmill.bench.client import open_client
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.server_price import parse_usd_per_hour
from tokenmill.bench.target import Target
from tokenmill.core.errors import ConfigError, SetupError
from tokenmill.core.slo import SLO

FEW = {"num_prompts": 12, "isl": 40, "osl": 5, "num_unloaded": 2}


def test_closed_loop_keeps_the_concurrency(fake, run_bench) -> None:
    fake.delay_s = 0.002
    result = run_bench(concurrency=4, **FEW)
    assert fake.max_in_flight == 4
    assert (result["num_requests"], result["num_ok"], result["num_failed"]) == (12, 12, 0)
    assert 3.0 < result["num_in_flight_mean"] <= 4.0
    assert result["num_output_tokens"] == 60 and result["osl_mean"] == 5
    assert result["ttft_s_p50"] > 0.002 and result["tpot_s_p50"] > 0.002
    assert result["finish_reasons"] == {"length": 12}
    assert json.loads(json.dumps(result)) == result


def test_prompts_are_unique_and_of_the_asked_length(fake, run_bench) -> None:
    fake.tokens_per_word = 1.3
    result = run_bench(concurrency=2, **FEW)
    prompts = [body["prompt"] for body in fake.bodies]
    assert len(set(prompts)) == len(prompts)
    assert result["isl_mean"] == pytest.approx(40, abs=2)
    assert all(body["ignore_eos"] and body["stream_options"] == {"include_usage": True} for body in fake.bodies)


def test_chat_subtracts_what_the_template_adds(fake, run_bench) -> None:
    result = run_bench(concurrency=2, endpoint="chat", **FEW)
    assert result["isl_mean"] == pytest.approx(40, abs=1)
    assert "messages" in fake.bodies[-1] and "prompt" not in fake.bodies[-1]


def test_token_ids_are_exact(fake, run_bench) -> None:
    result = run_bench(concurrency=2, prompts="ids", vocab_size=100, num_shared=16, **FEW)
    assert result["isl_mean"] == 40
    measured = [body["prompt"] for body in fake.bodies[2:]]
    assert all(prompt[:16] == measured[0][:16] for prompt in measured)
    assert len({tuple(prompt) for prompt in measured}) == 12


def test_failures_are_counted_apart(fake, run_bench) -> None:
    fake.fails = lambda n: n > 6 and n % 3 == 0
    fake.cuts = lambda n: n > 6 and n % 3 == 1
    result = run_bench(concurrency=3, **FEW)
    errors = result["errors"]
    assert errors["429 overloaded"] >= 2 and errors["the stream ended without a finish reason"] >= 2
    assert result["num_ok"] + result["num_failed"] == 12 and result["num_failed"] == sum(errors.values())
    assert result["num_output_tokens"] == 5 * result["num_ok"]


def test_open_loop_sends_when_due(fake, run_bench) -> None:
    fake.delay_s = 0.02
    result = run_bench(request_rate=200.0, burstiness=float("inf"), **FEW)
    assert fake.max_in_flight > 4  # nobody waited for answers
    assert 11 / 200 + 5 * 0.02 - 0.01 <= result["duration_s"] < 12 * 5 * 0.02  # far from one after the other
    assert result["late_s_p99"] < result["duration_s"]


def test_open_loop_with_a_cap(fake, run_bench) -> None:
    fake.delay_s = 0.005
    run_bench(request_rate=1e6, concurrency=3, **FEW)
    assert fake.max_in_flight == 3


def test_slo_given_and_automatic(fake, run_bench) -> None:
    fake.delay_s = 0.001
    result = run_bench(concurrency=2, slo=SLO(ttft_s=10.0), **FEW)
    assert (result["slo_source"], result["num_good_requests"], result["num_good_tokens"]) == ("given", 12, 60)
    result = run_bench(concurrency=2, slo=SLO(ttft_s=1e-6), **FEW)
    assert result["num_good_tokens"] == 0
    automatic = run_bench(concurrency=1, **FEW)
    assert automatic["slo_source"] == "3 x unloaded median" and automatic["slo"].startswith("ttft=")


def test_cost_from_a_given_price_and_from_the_server(fake, run_bench) -> None:
    fake.cost = {"usd": 0.001, "joules": 2.0, "energy_source": "modelled"}
    result = run_bench(concurrency=2, usd_per_hour=3.6, watts=50.0, **FEW)
    assert result["usd_per_mtok_output"] == pytest.approx(result["duration_s"] * 0.001 / 60 * 1e6)
    assert result["usd_charged"] == pytest.approx(0.012)
    assert result["joules_per_token"] == pytest.approx(50 * result["duration_s"] / 60)
    unpriced = run_bench(concurrency=2, **FEW)
    assert unpriced["usd_per_mtok_output"] is None
    assert unpriced["joules_per_token"] == pytest.approx(24 / 60)  # what the server charged
    assert unpriced["energy_source"] == "charged by the server" and result["energy_source"] == "given watts"
    fake.metrics = (
        "# TYPE tokenmill_device_usd_per_hour gauge\n"
        'tokenmill_device_usd_per_hour{worker_id="a"} 0.5\ntokenmill_device_usd_per_hour{worker_id="b"} 0.25\n'
    )
    assert run_bench(concurrency=2, **FEW)["device_hour_usd"] == 0.75


def test_price_of_other_metrics_is_unknown() -> None:
    assert parse_usd_per_hour("vllm:num_requests_running 3\n") is None


def test_key_is_sent_and_never_stored(fake, run_bench) -> None:
    result = run_bench(concurrency=2, api_key="sk-secret", **FEW)
    assert set(fake.keys) == {"Bearer sk-secret"}
    assert "sk-secret" not in json.dumps(result)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_prompts": 1}, r"--concurrency N or --request-rate R"),
        ({"concurrency": 1}, r"--num-prompts N or --duration S"),
        ({"concurrency": 0, "num_prompts": 1}, r"--concurrency 0 must be 1 or more"),
        ({"request_rate": -1.0, "num_prompts": 1}, r"--request-rate -1 must be above 0"),
        ({"concurrency": 1, "num_prompts": 1, "prompts": "ids"}, r"need --endpoint completions and --vocab-size"),
        ({"concurrency": 1, "isl": 4, "num_shared": 5}, r"exceeds isl=4"),
    ],
)
def test_contradictions_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve_bench("http://127.0.0.1:9", **settings).check()


def test_no_server_is_a_setup_error() -> None:
    bench = serve_bench("http://127.0.0.1:9/v1", concurrency=1, **FEW)
    with pytest.raises(SetupError, match=r"127.0.0.1:9/v1/models cannot be reached .*connection refused"):
        asyncio.run(run_serve_bench(bench, lambda done, total: None))


def test_server_that_refuses_everything_is_a_setup_error(fake, run_bench) -> None:
    fake.fails = lambda n: True
    with pytest.raises(SetupError, match=r"answered none of 2 single requests \(429 overloaded\)"):
        run_bench(concurrency=1, **FEW)


def test_lost_connection_is_a_record_not_an_exception() -> None:
    async def main():
        async with open_client("http://127.0.0.1:9", lambda: 1.0) as client:
            return await client.send(Target("http://127.0.0.1:9", "m"), "hi", 1)

    record, text = asyncio.run(main())
    assert record.error == "ConnectionRefusedError: connection refused" and text == ""
    assert not record.is_ok and record.ttft_s is None
