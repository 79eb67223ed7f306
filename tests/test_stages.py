"""Stages beside each other: order and bounds."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from embedkit.dataset import shards


def test_one_shard_is_read_ahead_and_no_more() -> None:
    made: list[int] = []
    one_more = threading.Semaphore(0)

    def read(shard: int) -> int:
        made.append(shard)
        one_more.release()
        return shard

    def begun(shard: Any) -> None:
        for _ in range({0: 2, 4: 0}.get(shard, 1)):
            one_more.acquire()
        time.sleep(0.01)  # in which another one could be read
        assert made == list(range(min(shard + 2, 5)))

    pending = SimpleNamespace(nbytes=1)
    maker: Any = SimpleNamespace(read=read, start=lambda *_: pending, write=lambda shard, _: shard)
    todo: Any = range(5)
    assert shards.run_shards(maker, todo, begun, lambda _: None) == [*todo]


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
