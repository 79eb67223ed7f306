"""Stages beside each other: order, bounds, errors, clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial
from types import SimpleNamespace

import pytest

from embedkit.dataset import workers
from embedkit.dataset.workers import Clock, StageTime, Writers, ahead, bottleneck


def test_items_come_in_order() -> None:
    with ahead(iter(range(100))) as items:
        assert list(items) == list(range(100))
    with ahead(iter(())) as items:
        assert list(items) == []


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


def test_the_source_runs_beside_its_consumer() -> None:
    """Two sides that wait for each other inside one item would never end one after the other."""
    meet = threading.Barrier(2)

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
    """Each of a pair ends after the one that was handed over later."""
    later = [threading.Event() for _ in range(21)]

    def work(i: int) -> int:
        if i % 2 == 0:
            later[i + 1].wait()
        later[i].set()
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
    begun, failing = threading.Barrier(3), threading.Event()

    def work(i: int) -> int:
        begun.wait()
        if i == 1:
            failing.set()
            raise OSError("disk is full")
        failing.wait()
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
        wait([future for _, future in writers._pending])
        with pytest.raises(OSError, match="disk is full"):
            writers.submit(1, lambda: 1)


def test_the_busiest_stage_is_the_bottleneck(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(workers, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    clock = Clock()
    with clock("read"):
        now[0] += 0.01
    for _ in range(2):
        with clock("write"):
            now[0] += 0.05
    with pytest.raises(ZeroDivisionError), clock("encode"):
        _ = 1 / 0
    found = clock.stages({"read": 1, "tokenize": 1, "encode": 1, "write": 1})
    assert [s.name for s in found] == ["read", "encode", "write"]
    assert bottleneck(found).name == "write"
    assert [s.seconds for s in found] == pytest.approx([0.01, 0, 0.1])
    assert [s.fraction for s in found] == pytest.approx([0.01 / 0.11, 0, 0.1 / 0.11])
    clock.add("encode", 60)  # a device that was busy while its host was not
    assert bottleneck(clock.stages({"write": 1, "encode": 1})).name == "encode"
    two = StageTime("write", 1.0, 2, 0.5)
    assert bottleneck([two, StageTime("encode", 0.9, 1, 0.9)]).name == "encode"
