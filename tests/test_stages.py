"""Stages beside each other: order, bounds, errors, clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from embedkit.dataset.workers import Clock, StageTime, Writers, ahead, bottleneck


def test_items_come_in_order() -> None:
    with ahead(iter(range(100))) as items:
        assert list(items) == list(range(100))
    with ahead(iter(())) as items:
        assert list(items) == []


def test_one_item_ahead_and_no_more() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(5):
            made.append(i)
            yield i

    with ahead(source()) as items:
        for item in items:
            time.sleep(0.05)
            assert made == list(range(min(item + 2, 5)))


def test_the_source_runs_beside_its_consumer() -> None:
    """Two sides that wait for each other inside one item would never end one after the other."""
    meet = threading.Barrier(2, timeout=10)

    def source() -> Iterator[int]:
        yield 0
        meet.wait()
        yield 1

    with ahead(source()) as items:
        assert next(items) == 0
        meet.wait()
        assert next(items) == 1


def test_an_error_of_the_source_comes_at_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("third")

    got: list[int] = []

    def take_all() -> None:
        with ahead(source()) as items:
            got.extend(items)

    with pytest.raises(LookupError, match="third"):
        take_all()
    assert got == [1, 2]


def test_leaving_early_stops_the_source() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        while True:
            made.append(1)
            yield 1

    with ahead(source()) as items:
        next(items)
    assert len(made) <= 2
    assert not any("embedkit-read" in t.name for t in threading.enumerate())


def test_results_in_the_order_they_were_handed_over() -> None:
    def work(i: int) -> int:
        time.sleep(0.0005 * (20 - i))
        return i

    with Writers[int](bytes_waiting=1 << 30, threads=4) as writers:
        for i in range(20):
            writers.submit(1, partial(work, i))
        assert writers.results() == list(range(20))


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
    with Writers[None](bytes_waiting=250, threads=8) as writers:
        writers.submit(1_000, work)  # one that is too large goes alone
        writers.submit(1_000, work)
        assert writers.results() == [None, None]


def test_an_error_stops_the_run_and_lets_the_others_finish() -> None:
    done: list[int] = []

    def work(i: int) -> int:
        if i == 1:
            raise OSError("disk is full")
        time.sleep(0.05)
        done.append(i)
        return i

    def write_all() -> None:
        with Writers[int](bytes_waiting=1 << 30, threads=3) as writers:
            for i in range(3):
                writers.submit(1, partial(work, i))
            writers.results()

    with pytest.raises(OSError, match="disk is full"):
        write_all()
    assert sorted(done) == [0, 2]


def test_an_error_is_met_by_the_next_shard() -> None:
    def fail() -> int:
        raise OSError("disk is full")

    with Writers[int](bytes_waiting=1 << 30, threads=1) as writers:
        writers.submit(1, fail)
        time.sleep(0.05)
        with pytest.raises(OSError, match="disk is full"):
            writers.submit(1, lambda: 1)


def test_the_busiest_stage_is_the_bottleneck() -> None:
    clock = Clock()
    with clock("read"):
        time.sleep(0.01)
    for _ in range(2):
        with clock("write"):
            time.sleep(0.05)
    with pytest.raises(ZeroDivisionError), clock("encode"):
        _ = 1 / 0
    stages = clock.stages({"read": 1, "tokenize": 1, "encode": 1, "write": 1})
    assert [s.name for s in stages] == ["read", "encode", "write"]
    assert bottleneck(stages).name == "write"
    assert all(0 <= s.share <= 1 for s in stages)
    assert stages[2].seconds >= 0.1
    clock.add("encode", 60)  # a device that was busy while its host was not
    assert bottleneck(clock.stages({"write": 1, "encode": 1})).name == "encode"
    two = StageTime("write", 1.0, 2, 0.5)
    assert bottleneck([two, StageTime("encode", 0.9, 1, 0.9)]).name == "encode"
