"""Drives a load: closed loop (so many in flight) or open loop (so many per second). Not responsible for: requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def closed_loop(
    items: Sequence[T], concurrency: int, send: Callable[[T], Awaitable[R]], on_done: Callable[[R], None]
) -> list[R]:
    """Keep `concurrency` of `items` in flight until all are done; results in the order of items."""
    assert concurrency >= 1, f"{concurrency=}"
    results: dict[int, R] = {}
    todo: Iterator[tuple[int, T]] = iter(enumerate(items))

    async def worker() -> None:
        for index, item in todo:
            results[index] = await send(item)
            on_done(results[index])

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(items))):
            group.create_task(worker())
    return [results[index] for index in range(len(items))]


async def open_loop(
    items: Sequence[T],
    due_s: Sequence[float],
    send: Callable[[T], Awaitable[R]],
    on_done: Callable[[R], None],
    *,
    max_in_flight: int | None = None,
) -> tuple[list[R], list[float]]:
    """Send each item when it is due, whatever has come back; (results, seconds each was sent too late).

    max_in_flight  above it a due item waits, and its lateness shows it
    """
    loop = asyncio.get_running_loop()
    seats = asyncio.Semaphore(max_in_flight or len(items) or 1)
    began = loop.time()
    late_s = [0.0] * len(items)

    async def one(index: int) -> R:
        await asyncio.sleep(max(0.0, began + due_s[index] - loop.time()))
        async with seats:
            late_s[index] = max(0.0, loop.time() - began - due_s[index])
            result = await send(items[index])
        on_done(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(len(items))]
    return [task.result() for task in tasks], late_s
