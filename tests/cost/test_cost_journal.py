"""The ledger's file: adds up to the very bill, survives a killed writer, and says which line is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.api.ledger_file import LedgerFile
from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.cost.cells import Owner
from tokenmill.cost.journal import JournalWriter, read_journal, run_row
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import Outcome
from tokenmill.cost.totals import NOTHING, Line

RATE = DeviceRate(usd_per_hour=0.1146, watts=6.25, is_estimated=True, source="test")


def lines_of(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def worked(teller: Callable[..., Any], num_frames: int = 7) -> tuple[Ledger, Any]:
    ledger, worker = Ledger(epoch_s=1e9), teller()
    ledger.keep_additions()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for i in range(num_frames):
        ledger.begin(f"r{i}", "m", tenant="acme", session=f"s{i % 3}", parent_session="lead", num_prompt_tokens=5)
        ledger.step(worker.frame({f"r{i}": 0.25}, idle_s=31.125, joules=3.3 if i % 2 else None))
        ledger.finish(f"r{i}")
        ledger.observe(f"r{i}", Outcome(num_output_tokens=1))
    return ledger, worker


def test_a_file_adds_up_to_the_very_bill(teller: Callable[..., Any]) -> None:
    ledger, _ = worked(teller)
    writer = JournalWriter(ledger)
    text = run_row("run-1", 1e9) + writer.batch() + writer.batch(is_last=True)
    journal = read_journal(lines_of(text), "file")
    again = Ledger()
    again.restore_cells(journal.cells)
    again.restore_parents(journal.parents)
    assert again.totals() == ledger.totals() != NOTHING
    assert again.spending.tenant_usd("acme") == ledger.spending.tenant_usd("acme")
    assert again.spending.line_of("s1") == ["s1", "lead"]
    assert (journal.run, journal.num_bytes) == ("run-1", len(text.encode()))
    assert [row["request_id"] for row in journal.requests] == [f"r{i}" for i in range(7)]
    assert sum(row["usd"] for row in journal.requests) == pytest.approx(ledger.totals().charged.usd)


def test_nothing_new_writes_nothing(teller: Callable[..., Any]) -> None:
    ledger, worker = worked(teller)
    writer = JournalWriter(ledger)
    assert writer.batch() and writer.batch()  # requests follow one batch later
    assert writer.batch() == ""
    ledger.step(worker.frame(idle_s=1.0))
    kinds = [json.loads(line)["kind"] for line in lines_of(writer.batch())]
    assert kinds == ["cell", "life", "end"]


@settings(deadline=None, max_examples=50)
@given(cut=st.integers(0, 4000))
def test_a_writer_killed_anywhere_leaves_whole_batches(cut: int) -> None:
    from tests.cost.conftest import Teller

    ledger, worker = worked(Teller, 2)
    writer = JournalWriter(ledger)
    first = run_row("run-1", 1e9) + writer.batch()
    after_first = ledger.totals()
    ledger.step(worker.frame({"x": 1.0}))
    whole = (first + writer.batch()).encode()
    journal = read_journal(whole[: len(first.encode()) + cut].splitlines(keepends=True), "file")
    again = Ledger()
    again.restore_cells(journal.cells)
    is_complete = cut >= len(whole) - len(first.encode())
    assert again.totals() == (ledger.totals() if is_complete else after_first)


def test_a_process_goes_on_where_its_last_frontend_stopped(teller: Callable[..., Any]) -> None:
    """What the killed frontend heard and did not write down is lost, not billed twice; the balance has no hole."""
    ledger, worker = worked(teller, 2)
    writer = JournalWriter(ledger)
    text = run_row("run-1", 1e9) + writer.batch()
    ledger.step(worker.frame({"unwritten": 2.0}))
    journal = read_journal(lines_of(text), "file")
    heir = Ledger(epoch_s=1e9)
    heir.restore_cells(journal.cells)
    heir.restore_lives(journal.lives.items())
    heir.hello("w", 0, "m", RATE, worker.until_s)  # its answer to Introduce: the end of its last frame
    heir.step(worker.frame(idle_s=1.0))
    heir.exited("w", 0, worker.until_s + 0.5)
    assert heir.totals().lines[Line.LOST].seconds == 2.5
    balance = heir.check_balance(1e6)
    assert balance.unexplained == 0 and balance.process == heir.totals().whole.ticks


def test_a_process_that_only_the_dead_frontend_knew_is_billed_from_its_start(teller: Callable[..., Any]) -> None:
    """It said Hello and reported its start-up to a frontend that was killed before it could write that down."""
    ledger, _ = worked(teller, 1)
    journal = read_journal(lines_of(run_row("r", 0.0) + JournalWriter(ledger).batch()), "file")
    heir = Ledger()
    heir.restore_lives(journal.lives.items())
    heir.hello("new", 0, "m", RATE, 14.0, process_started_s=10.0)
    heir.step(teller("new", started_s=14.0).frame(idle_s=1.0))
    assert heir.totals().lines[Line.LOST].seconds == 4.0
    heir.exited("new", 0, 15.0)
    assert heir._lives["new", 0].balance(0).process_s == 5.0
    assert heir.check_balance(worked(teller, 1)[1].until_s).unexplained == 0
    alone = Ledger()  # without a file the earlier bill is another one
    alone.hello("new", 0, "m", RATE, 14.0, process_started_s=10.0)
    assert alone.check_balance(14.0).process == 0


def test_a_process_that_died_while_nobody_listened_ends_with_its_successor(teller: Callable[..., Any]) -> None:
    ledger, worker = worked(teller, 1)
    journal = read_journal(lines_of(run_row("r", 0.0) + JournalWriter(ledger).batch()), "file")
    heir = Ledger()
    heir.restore_cells(journal.cells)
    heir.restore_lives(journal.lives.items())
    heir.hello("w", 1, "m", RATE, worker.until_s + 8.0)
    assert heir.totals().lines[Line.LOST].seconds == 8.0
    assert heir.check_balance(worker.until_s + 8.0).unexplained == 0


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"kind": "cell"', "is no JSON"),
        ("[1]", "is no object with a kind"),
        ('{"kind": "invoice"}', "kind 'invoice' is none of run, cell"),
        (
            '{"kind": "cell", "minute": 1, "model": "m", "tenant": null, "session": null, "counts": {}}',
            "has no 'lines'",
        ),
        (
            '{"kind": "cell", "minute": 1, "model": "m", "tenant": null, "session": null,'
            ' "lines": {"bribes": [0, 0, 0, 0, 0, 0, 0]}, "counts": {}}',
            "'bribes' is not a valid Line",
        ),
        (
            '{"kind": "cell", "minute": 1.5, "model": "m", "tenant": null, "session": null, "lines": {}, "counts": {}}',
            "1.5 is not a whole number",
        ),
        (
            '{"kind": "cell", "minute": 1, "model": "m", "tenant": null, "session": null,'
            ' "lines": {"idle": [1, 2]}, "counts": {}}',
            "line 'idle' has 2 figures; 7 are expected",
        ),
        ('{"kind": "run", "version": 99, "run": "r", "epoch_s": 0}', "version 99 is not the one that is read here (1)"),
    ],
)
def test_a_broken_line_is_named(line: str, fault: str) -> None:
    text = run_row("r", 0.0) + line + '\n{"kind": "end"}\n'
    with pytest.raises(ConfigError) as caught:
        read_journal(lines_of(text), "bill.jsonl")
    assert "ledger bill.jsonl, line 3: " in caught.value.message and fault in caught.value.message
    assert "mend or delete that line" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "hello\nworld",
        "a,b\n1,2\n",
        '{"timestamp": 0}\n',
        '{"timestamp": 0}\n{"timest',
        '{"kind": "x"}\n',
        "[]",
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"notes\.txt, line 1: "):
        LedgerFile(path, "a", None)
    assert path.read_text() == text


@given(cut=st.integers(0, 90))
def test_the_very_first_batch_may_be_torn_anywhere(cut: int) -> None:
    whole = run_row("run-1", 1e9).encode()
    num_bytes = read_journal(whole[:cut].splitlines(keepends=True), "x").num_bytes
    assert num_bytes == (len(whole) if cut >= len(whole) else 0)


@pytest.mark.parametrize("tail", ["nonsense\n", '{"kind":"cell"\n{"kind":"cel', '{"kind":"x"}\n'])
def test_only_the_last_line_can_be_torn(tail: str) -> None:
    with pytest.raises(ConfigError, match=r"ledger x, line 3: "):
        read_journal(lines_of(run_row("r", 0.0) + tail), "x")


# -- on disk --


def test_a_server_goes_on_with_its_file(tmp_path: Path, teller: Callable[..., Any]) -> None:
    path = tmp_path / "new" / "bill.jsonl"
    with LedgerFile(path, "run-1", None) as file:
        file.ledger.hello("w", 0, "m", RATE, 0.0)
        file.ledger.step(teller().frame({"a": 1.0}))
        bill = file.ledger.totals()
    with LedgerFile(path, "run-1", None) as file:
        assert file.ledger.totals() == bill
        assert file.ledger.check_balance(1.0).process_s == 1.0
    with LedgerFile(path, "run-2", None) as file:
        assert file.ledger.totals() == bill
        assert file.ledger.check_balance(1.0).process_s == 0.0, "processes of another deployment are gone"


def test_budgets_go_on_with_the_file(tmp_path: Path) -> None:
    """What sub-agents spent before the restart counts for their lead after it."""
    with LedgerFile(tmp_path / "bill.jsonl", "a", None) as file:
        file.ledger.begin("r", "m", tenant="acme", session="sub", parent_session="lead")
        file.ledger.store("m", 0.25, tenant="acme", session="sub")
    with LedgerFile(tmp_path / "bill.jsonl", "a", None) as file:
        spending = file.ledger.spending
        assert (spending.tenant_usd("acme"), spending.session_usd("sub"), spending.session_usd("lead")) == (0.25,) * 3


def test_a_torn_end_is_cut_off(tmp_path: Path, teller: Callable[..., Any]) -> None:
    path = tmp_path / "bill.jsonl"
    with LedgerFile(path, "run-1", None) as file:
        file.ledger.store("m", 1.0)
    size = path.stat().st_size
    with path.open("ab") as torn:
        torn.write(b'{"kind":"cell","minute":1,"mod')
    with LedgerFile(path, "run-1", None) as file:
        file.ledger.store("m", 1.0)
        assert file.ledger.totals().whole.usd == 2.0
    assert read_journal(path.read_bytes().splitlines(keepends=True), "x").num_bytes == path.stat().st_size > size


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with LedgerFile(tmp_path / "bill.jsonl", "a", None), pytest.raises(ResourceError, match="another server"):
        LedgerFile(tmp_path / "bill.jsonl", "b", None)


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot be written"):
        LedgerFile(tmp_path, "a", None)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bill.jsonl"
    with LedgerFile(path, "a", None) as file:
        real = file._file

        class Full:
            truncate = real.truncate

            def write(self, data: bytes) -> int:
                real.write(data[: len(data) // 2])
                raise OSError(28, "No space left on device")

        file.ledger.store("m", 1.0, tenant="acme")
        monkeypatch.setattr(file, "_file", Full())
        file.flush()
        monkeypatch.setattr(file, "_file", real)
        file.ledger.store("m", 0.5, tenant="acme")
    journal = read_journal(path.read_bytes().splitlines(keepends=True), "x")
    paid = [(owner, cell.freeze().whole.usd) for _, owner, cell in journal.cells]
    assert paid == [(Owner("m", "acme"), 1.0), (Owner("m", "acme"), 0.5)]


def test_a_broken_file_is_refused_and_let_go(tmp_path: Path) -> None:
    path = tmp_path / "bill.jsonl"
    path.write_text('nonsense\n{"kind":"end"}\n')
    for _ in range(2):
        with pytest.raises(ConfigError, match="line 1: is no JSON"):
            LedgerFile(path, "a", None)
