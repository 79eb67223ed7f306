"""Linux and macOS."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import faiss
import pytest

from embedkit import machine as system


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    class Usage:
        ru_maxrss = 5_000_000

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: Usage)
    assert system.peak_memory_bytes() == 5_000_000 * unit
    assert system.maxrss_bytes(7) == 7 * unit


def test_peak_memory_of_this_process_is_that_of_a_python() -> None:
    assert 10_000_000 < system.peak_memory_bytes() < 1 << 40


@pytest.mark.parametrize(("platform", "threads"), [("linux", 3), ("darwin", 1)])
def test_faiss_has_one_thread_on_macos(
    monkeypatch: pytest.MonkeyPatch, platform: str, threads: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(faiss, "omp_set_num_threads", asked.append)
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "")
    monkeypatch.delenv("KMP_DUPLICATE_LIB_OK")
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 7)
    found: Any
    with system.faiss_with_threads(3) as found:
        assert found is faiss
        assert asked == [threads]
    assert asked == [threads, 7]
    assert os.environ.get("KMP_DUPLICATE_LIB_OK") == ("TRUE" if threads == 1 else None)
