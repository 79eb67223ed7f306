"""Stages beside each other: order, bounds, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from embedkit.dataset import shards
from embedkit.dataset.shards import ahead


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


def test_bytes_waiting_to_be_written_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BYTES_WAITING", 250)
    lock, flying, most = threading.Lock(), [0], [0]

    def write(shard: int, _: Any) -> int:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.005)
        with lock:
            flying[0] -= 1
        return shard

    pending = SimpleNamespace(nbytes=100)
    maker: Any = SimpleNamespace(read=int, start=lambda *_: pending, write=write)
    todo: Any = range(20)
    assert shards.run_shards(maker, todo, lambda _: None, lambda _: None) == [*range(20)]
    assert most[0] <= 2
