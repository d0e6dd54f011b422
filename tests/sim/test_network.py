"""Links: latency, contention, order; and what trouble does."""

from __future__ import annotations

from random import Random

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.sim.events import EventQueue
from tokenmill.sim.faults import read_faults
from tokenmill.sim.network import Network, NetworkConfig, Trouble


def make(**config: float) -> tuple[EventQueue, Network, list[tuple[float, str]]]:
    queue = EventQueue()
    return queue, Network(queue, NetworkConfig(**config), Random(1)), []


def drain(queue: EventQueue) -> None:
    while queue.run_next():
        pass


def test_two_big_messages_share_a_link_one_after_the_other() -> None:
    queue, network, seen = make(latency_s=0.001, bytes_per_s=1e6)
    for name, target in (("first", "b"), ("second", "c")):
        network.send("a", target, 1000, lambda name=name: seen.append((queue.now(), name)))
    network.send("x", "y", 1000, lambda: seen.append((queue.now(), "elsewhere")))
    drain(queue)
    times = {name: time for time, name in seen}
    assert times["first"] == pytest.approx(0.002) and times["second"] == pytest.approx(0.003)
    assert times["elsewhere"] == pytest.approx(0.002)


def test_a_small_message_does_not_pass_a_big_one_of_its_connection() -> None:
    queue, network, seen = make(latency_s=0.0, bytes_per_s=1e3)
    network.send("a", "b", 1000, lambda: seen.append((queue.now(), "big")))
    network.send("a", "b", 1, lambda: seen.append((queue.now(), "small")))
    drain(queue)
    assert [name for _, name in seen] == ["big", "small"]


def test_losses_copies_and_partitions() -> None:
    queue, network, seen = make()
    network.set_trouble("b", Trouble(loss=0.5))
    for _ in range(200):
        network.send("a", "b", 10, lambda: seen.append((queue.now(), "x")))
    drain(queue)
    assert 60 < len(seen) < 140 and network.num_lost == 200 - len(seen)
    network.set_trouble("b", Trouble(copy=1.0))
    network.send("a", "b", 10, lambda: seen.append((queue.now(), "twice")))
    drain(queue)
    assert [name for _, name in seen].count("twice") == 2
    network.set_trouble("b", Trouble())
    network.cut_off("b")
    network.send("b", "a", 10, lambda: seen.append((queue.now(), "never")))
    network.heal("b")
    network.send("b", "a", 10, lambda: seen.append((queue.now(), "again")))
    drain(queue)
    names = [name for _, name in seen]
    assert "never" not in names and "again" in names


def test_events_at_one_instant_keep_their_order_and_cancelled_ones_do_not_happen() -> None:
    queue, seen = EventQueue(), []
    for number in range(5):
        event = queue.at(1.0, lambda number=number: seen.append(number))
        if number == 2:
            queue.cancel(event)
    drain(queue)
    assert seen == [0, 1, 3, 4] and queue.now() == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("{}", "must hold a list"),
        ('[{"at_s": 1, "kind": "crush", "worker": "w"}]', "did you mean 'crash'"),
        ('[{"at_s": 1, "kind": "crash", "worker": "v"}]', "worker 'v' is unknown"),
        ('[{"at_s": 1, "kind": "crash", "worker": "w", "second": 1}]', "did you mean 'seconds'"),
        ('[{"at_s": -1, "kind": "crash", "worker": "w"}]', "at_s=-1 is not possible"),
    ],
)
def test_wrong_fault_scripts_say_where(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "faults.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_faults(path, ["w"])
