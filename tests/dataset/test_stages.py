"""Stages of shards beside each other: their order and bounds."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedkit.dataset import shards


def test_one_shard_is_read_ahead_and_bytes_to_be_written_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(shards._BYTES_WAITING, "cpu", 250)
    lock, flying, most, read = threading.Lock(), [0], [0], list[int]()
    one_more = threading.Semaphore(0)

    def reading(number: int) -> Any:
        read.append(number)
        one_more.release()
        return SimpleNamespace(
            number=number, records=[], texts=SimpleNamespace(ids=[]), lengths=lengths
        )

    def begun(number: int, *_counts: int) -> None:
        for _ in range({0: 2, 19: 0}.get(number, 1)):
            assert one_more.acquire(timeout=10)  # the next one is being read
        time.sleep(0.005)  # in which further ones could be
        assert read == list(range(min(number + 2, 20)))

    def write(shard: Any, _: Any) -> Any:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.005)
        with lock:
            flying[0] -= 1
        return shard.number

    lengths = {"n_kept": np.zeros(1, np.int64)}
    encoder = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    pending = SimpleNamespace(nbytes=100)
    made: dict[str, Any] = {"read": reading, "write": write}
    plan = SimpleNamespace(encoder=encoder)
    maker: Any = SimpleNamespace(plan=plan, start=lambda *_: pending, **made)
    todo: Any = range(20)
    assert shards.run_shards(maker, todo, begun, lambda _: None) == [*range(20)]
    assert most[0] <= 2
