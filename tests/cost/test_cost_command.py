"""`tokenmill cost`: from a ledger file and from a server; margins, cost of ownership, prices; what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import FakeDispatcher
from tests.api.live import LiveServer
from tokenmill.api.ledger_file import LedgerFile
from tokenmill.cli.main import main
from tokenmill.cost.rates import DeviceRate


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    for name in ("TOKENMILL_API_KEY", "TOKENMILL_PRICES", "TOKENMILL_CATALOGUE"):
        monkeypatch.delenv(name, raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(FakeDispatcher()) as server:
        server.post("/v1/completions", {"model": "bytes", "prompt": "hi", "max_tokens": 4, "user": "acme"})
        yield server


@pytest.fixture
def bill(tmp_path: Path, teller: Callable[..., Any]) -> Path:
    path = tmp_path / "bill.jsonl"
    with LedgerFile(path, "run", None) as file:
        worker = teller()
        file.ledger.hello("w", 0, "m", DeviceRate(3600.0, 10.0), 0.0)
        for name, parent in (("lead", None), ("sub", "lead")):
            file.ledger.begin(name, "m", tenant="acme", session=name, parent_session=parent, num_prompt_tokens=8)
            file.ledger.step(worker.frame({name: 2.0}, idle_s=1.0, tokens=2, prefill_s=1.0, prompt_tokens=8))
            file.ledger.finish(name)
    return path


def asked(result: tuple[int, str, str]) -> dict[str, Any]:
    assert result[0] == 0, result[2]
    answer: dict[str, Any] = json.loads(result[1].strip().splitlines()[-1])
    return answer


def test_a_file_is_asked_like_a_server(run: Callable[..., Any], bill: Path) -> None:
    assert asked(run("cost", "--from", str(bill), "--json"))["usd"]["total"] == 6.0
    assert asked(run("cost", "--from", str(bill), "--session", "lead", "--json"))["usd"]["total"] == 2.0
    both = asked(run("cost", "--from", str(bill), "--session", "lead", "--sub-agents", "--json"))
    assert both["usd"]["total"] == 4.0
    one = asked(run("cost", "--from", str(bill), "--request", "sub"))
    assert one["choices"][0]["usd"] == 2.0 and one["choices"][0]["parent_session"] == "lead"


def test_the_bill_for_people(run: Callable[..., Any], bill: Path) -> None:
    code, out, _ = run("cost", "--from", str(bill), "--by", "session")
    assert code == 0
    for text in (
        "lead",
        "sub",
        "prefill",
        "decode",
        "idle",
        "per million tokens",
        "the prefix cache avoided",
        "modelled",
    ):
        assert text in out


def test_a_server_is_asked_by_its_url(run: Callable[..., Any], server: LiveServer) -> None:
    answer = asked(run("cost", "--url", server.url, "--tenant", "acme", "--json"))
    assert answer["tokens"]["output"] == 4 and answer["query"] == {"tenant": "acme"}
    assert run("cost", "--url", f"{server.url}/v1")[0] == 0
    code, _, err = run("cost", "--url", server.url, "--by", "tenannt")
    assert code == 2 and "did you mean 'tenant'" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("cost", "--url", "http://127.0.0.1:1"), "no tokenmill server answers at http://127.0.0.1:1"),
        (("cost", "--url", "nonsense"), "no tokenmill server answers"),
        (("cost", "--from", "/nonexistent"), "cannot be read (No such file or directory)"),
        (("cost", "margin", "--mix", "8:1", "--cost", "1"), "give --price IN/OUT or --model NAME"),
        (("cost", "margin", "--price", "1/2", "--mix", "8:1"), "give --cost, --device with --tok-s, --url or --from"),
        (("cost", "margin", "--price", "1/2", "--cost", "1"), "a margin needs a mix"),
        (("cost", "margin", "--price", "-1/2", "--mix", "8:1", "--cost", "1"), "greater than or equal to 0"),
        (("cost", "margin", "--price", "1/2", "--mix", "8:1", "--cost", "-1"), "is not possible"),
        (("cost", "margin", "--price", "1/2", "--mix", "8:1", "--device", "h100_sxm"), "needs --tok-s"),
        (
            ("cost", "margin", "--price", "1/2", "--mix", "8:1", "--device", "h100sxm", "--tok-s", "9"),
            "did you mean 'h100_sxm'",
        ),
        (("cost", "margin", "--model", "deepinfra/deepseek-v4-prp", "--mix", "8:1", "--cost", "1"), "did you mean"),
        (("cost", "tco", "--capex-usd", "-5"), "--capex-usd=-5.0 is not possible"),
        (("cost", "tco", "--capex-usd", "5", "--by", "2"), "--by=2.0 is not possible"),
        (("cost", "prices", "--currency", "EUO"), "did you mean 'EUR'"),
        (("cost", "prices", "--device", "h100_sxm", "--kind", "gift"), "no kind of price"),
        (("cost", "prices", "--device", "h100_sxm", "--on", "1999-01"), "has no price of that kind and date"),
        (("cost", "prices", "--on", "1999"), "--on '1999' is no date"),
        (("recipe", "show", "/nonexistent"), "there is no model '/nonexistent'"),
    ],
)
def test_what_goes_wrong_is_one_line(run: Callable[..., Any], args: tuple[str, ...], message: str) -> None:
    code, _, err = run(*args)
    assert code == (1 if "--url" in args else 2)
    assert message in err and err.count("\n") == 1


def test_a_broken_ledger_line_is_named(run: Callable[..., Any], bill: Path) -> None:
    lines = bill.read_text().splitlines(keepends=True)
    bill.write_text("".join([*lines[:3], '{"kind": "cell"}\n', *lines[3:]]))
    code, _, err = run("cost", "--from", str(bill))
    assert code == 2 and f"ledger {bill}, line 4: has no " in err


def test_a_margin_from_a_ledger_takes_its_mix(run: Callable[..., Any], bill: Path) -> None:
    answer = asked(run("cost", "margin", "--price", "1/4", "--from", str(bill), "--json"))
    assert answer["mix"] == {"input_tokens": 16, "output_tokens": 4, "cached_share": 0.0}
    assert answer["cost_usd_per_mtok"] == pytest.approx(6.0 / 20 * 1e6)
    assert answer["revenue_usd_per_mtok"] == pytest.approx((16 + 4 * 4) / 20)
    assert answer["margin_usd_per_mtok"] < 0


def test_a_published_margin_as_of_its_date(run: Callable[..., Any]) -> None:
    args = ("--price", "0.435/0.87", "--mix", "8:1", "--device", "gb300_nvl72", "--kind", "own", "--tok-s", "11200")
    answer = asked(run("cost", "margin", *args, "--on", "2026-04", "--json"))
    assert answer["cost_usd_per_mtok"] == pytest.approx(0.0658, abs=5e-5)
    assert answer["price_over_cost"] == pytest.approx(7.35, abs=0.01)
    later = asked(run("cost", "margin", *args, "--on", "2026-07", "--json"))
    assert later["cost_usd_per_mtok"] == pytest.approx(2.31 * 1e6 / 3600 / 11200)


def test_owning_a_device(run: Callable[..., Any]) -> None:
    answer = asked(run("cost", "tco", "--capex-usd", "50000", "--device", "h100_sxm", "--utilisation", "0.6", "--json"))
    assert answer["given"]["watts"] == 1370
    assert answer["usd_per_used_hour"] == pytest.approx(answer["usd_per_hour"] / 0.6)
    assert answer["sensitivities"][0]["name"] == "utilisation"
    code, out, _ = run("cost", "tco", "--capex-usd", "50000", "--tok-s", "3000")
    assert code == 0 and "per million at 3000 tok/s" in out and "capex_usd" in out


def test_prices_of_a_date_in_a_currency(run: Callable[..., Any], tmp_path: Path) -> None:
    dollars = asked(run("cost", "prices", "--device", "h100_sxm", "--kind", "own", "--on", "2026-07", "--json"))
    euros = asked(
        run("cost", "prices", "--device", "h100_sxm", "--kind", "own", "--on", "2026-07", "--currency", "EUR", "--json")
    )
    assert dollars["prices"][0]["per_hour"] == 1.17
    assert euros["prices"][0]["per_hour"] == pytest.approx(1.17 / euros["rate"]["usd"])
    entry = asked(run("cost", "prices", "--litellm"))["deepinfra/deepseek-v4-pro"]
    assert entry["input_cost_per_token"] == pytest.approx(0.435e-6)


def test_doctor_counts_a_cache_that_cannot_be_used_as_missing(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setattr("tokenmill.cli.diagnosis._kernels", dict)  # choosing kernels may mean compiling them
    monkeypatch.setenv("TOKENMILL_CACHE", str(blocked / "cache"))
    code, out, _ = run("doctor", "--json")
    report = json.loads(out.strip().splitlines()[-1])
    assert code == 1
    assert any(str(blocked) in text and "read and written" in text for text in report["missing"])
