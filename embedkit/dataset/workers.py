"""Stages that run side by side, with little between them, and a clock for each.

Reading and tokenizing run one shard ahead of the encoder, building and writing files one or a few
behind. What waits between two stages is bounded: one shard before the encoder, bytes behind it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

__all__ = ["Clock", "StageTime", "Writers", "ahead", "bottleneck"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageTime:
    """How busy a stage was.

    Attributes:
        name: ``read``, ``tokenize``, ``encode`` or ``write``.
        seconds: working time, summed over its threads.
        threads: how many threads it had.
        fraction: of the wall time that its threads worked, 0 to 1.
    """

    name: str
    seconds: float
    threads: int
    fraction: float


class Clock:
    """Sums the working time of stages; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time inside the ``with`` block as work of a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - started)

    def add(self, stage: str, seconds: float) -> None:
        """Count time that was measured elsewhere, such as on a device."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def stages(self, threads: dict[str, int]) -> tuple[StageTime, ...]:
        """All stages in the given order; ``threads`` says how many each had."""
        wall = max(time.perf_counter() - self._started, 1e-9)
        return tuple(
            StageTime(name, seconds, count, min(seconds / wall / count, 1.0))
            for name, count in threads.items()
            if (seconds := self._seconds.get(name)) is not None
        )


def bottleneck(stages: Iterable[StageTime]) -> StageTime:
    """The stage that the others waited for: the busiest one."""
    return max(stages, key=lambda stage: stage.fraction)


@contextmanager
def ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Run an iterator in a thread, one item ahead of who takes them.

    What it raises is raised where the items are taken. Leaving the block waits for the item in
    work.
    """
    end = object()

    def step() -> T | object:
        return next(items, end)

    with ThreadPoolExecutor(1, thread_name_prefix="embedkit-read") as pool:

        def taken() -> Iterator[T]:
            coming = pool.submit(step)
            while (item := coming.result()) is not end:
                coming = pool.submit(step)
                yield cast("T", item)

        yield taken()


class Writers(Generic[T]):
    """Threads that take finished shards; a context manager that waits for them at its end.

    Args:
        bytes_waiting: so many bytes may be in work or waiting; more than one shard only within.
        threads: number of threads; by default up to four, as there are cores.
    """

    def __init__(self, *, bytes_waiting: int, threads: int | None = None) -> None:
        self.threads = threads or min(4, max(2, (os.cpu_count() or 2) // 2))
        self._limit = bytes_waiting
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="embedkit-write")
        self._pending: list[tuple[int, Future[T]]] = []
        self._results: list[T] = []

    def __enter__(self) -> Writers[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait for what was begun, also after an error, so that nothing finished is lost."""
        self._pool.shutdown(wait=True)

    def submit(self, size: int, work: Callable[[], T]) -> None:
        """Hand over a shard of ``size`` bytes; waits until there is room.

        Raises:
            BaseException: what an earlier shard raised.
        """
        while self._pending and (
            self._pending[0][1].done() or sum(s for s, _ in self._pending) + size > self._limit
        ):
            self._take()
        self._pending.append((size, self._pool.submit(work)))

    def results(self) -> list[T]:
        """What all shards returned, in the order they were handed over; waits for them.

        Raises:
            BaseException: what one of them raised.
        """
        while self._pending:
            self._take()
        return self._results

    def _take(self) -> None:
        _, first = self._pending.pop(0)
        self._results.append(first.result())
