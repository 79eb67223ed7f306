"""Stages beside each other: order, bounds, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from embedkit.dataset.shards import Writers, ahead


def test_one_item_ahead_and_no_more() -> None:
    made: list[int] = []
    one_more = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for i in range(5):
            made.append(i)
            one_more.release()
            yield i

    with ahead(source()) as items:
        for item in items:
            for _ in range({0: 2, 4: 0}.get(item, 1)):
                one_more.acquire()
            time.sleep(0.01)  # in which another one could be made
            assert made == list(range(min(item + 2, 5)))


def test_bytes_in_flight_are_bounded() -> None:
    lock = threading.Lock()
    flying = [0]
    most = [0]

    def work() -> None:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.005)
        with lock:
            flying[0] -= 1

    with Writers[None](bytes_waiting=250, threads=8) as writers:
        for _ in range(20):
            writers.submit(100, work)
        writers.results()
    assert most[0] <= 2
