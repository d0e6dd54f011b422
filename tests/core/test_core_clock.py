"""Clocks: real time runs forward, virtual time moves only when told."""

from __future__ import annotations

import pytest

from tokenmill.core.clock import ManualClock, SystemClock


def test_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    stamps = [clock.now() for _ in range(100)]
    assert stamps == sorted(stamps)


def test_manual_clock() -> None:
    clock = ManualClock(10.0)
    assert clock.now() == clock.now() == 10.0
    clock.advance(0.0)
    clock.advance(2.5)
    assert clock.now() == 12.5


def test_manual_clock_refuses_to_go_back() -> None:
    with pytest.raises(AssertionError, match="forward"):
        ManualClock().advance(-1e-9)
