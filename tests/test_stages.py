"""Stages of shards beside each other: their order and bounds."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from embedkit.dataset import shards


def shard_of(number: int) -> Any:
    return SimpleNamespace(number=number, records=[], texts=SimpleNamespace(ids=[]))


def plan_of(nbytes: int) -> Any:
    """A plan whose shards have so many bytes of vectors."""
    return SimpleNamespace(start_shard=lambda *_, **__: SimpleNamespace(nbytes=nbytes))


def test_shards_read_ahead_and_bytes_to_be_written_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "_BYTES_WAITING", 250)
    lock, flying, most, read = threading.Lock(), [0], [0], list[int]()

    def begun(number: int, *_counts: int) -> None:
        time.sleep(0.005)  # in which further ones could be read
        assert len(read) <= number + 2

    def write(shard: Any, _: Any) -> Any:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.005)
        with lock:
            flying[0] -= 1
        return shard.number

    def reading(number: int) -> Any:
        read.append(number)
        return shard_of(number)

    maker: Any = SimpleNamespace(read=reading, plan=plan_of(nbytes=100), write=write)
    todo: Any = range(20)
    assert shards.run_shards(maker, todo, begun, lambda _: None) == [*range(20)]
    assert most[0] <= 2
