"""The version, cores, threads and peak memory; importing this module loads no library."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

__version__ = "0.1.0"

POLICY_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which users set the wait policy of idle threads."""

WAIT_POLICY = {"GOMP_SPINCOUNT": "1000"}
"""Idle threads of GNU OpenMP sleep after 1,000 spins; by default they spin for milliseconds."""


def set_wait_policy() -> None:
    """Let idle OpenMP threads sleep early in libraries loaded later, unless the user has set it."""
    # a user who has set one of them has chosen, for all of these libraries
    if os.environ.keys().isdisjoint(POLICY_VARIABLES):
        os.environ.update(WAIT_POLICY)


def usable_cores() -> int:
    """Number of cores available to this process."""
    # a container or taskset may allow fewer cores than the machine has
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def faiss_with_threads(threads: int) -> Iterator[Any]:
    """The module ``faiss`` with a number of threads, which is reset afterwards.

    With torch loaded, faiss changes torch's number of threads too. On macOS both bring their own
    OpenMP: loading the second one must be allowed, and faiss may crash with several threads.
    """
    if sys.platform == "darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
        threads = 1
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


@cache
def _blas() -> Any:
    """The libraries of this process, which take longer to find than a small search."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def of_all_threads(
    begin: Callable[[], Callable[[], object]],
) -> Callable[[], _GeneratorContextManager[None]]:
    """A context that changes the process: the first thread in it begins, the last one ends it.

    ``begin`` returns what undoes it. If each thread did both, one would take what another has set
    for what was there before, and leave it so.
    """
    lock, ends = Lock(), list[Callable[[], object]]()

    @contextmanager
    def context() -> Iterator[None]:
        with lock:
            ends.append(ends[0] if ends else begin())
        try:
            yield
        finally:
            with lock:
                end = ends.pop()
                if not ends:
                    end()

    return context


@of_all_threads
def blas_with_one_thread() -> Callable[[], object]:
    """One thread of BLAS while searches run, in whichever threads; then as many as before."""
    end: Callable[[], object] = _blas().limit(limits=1, user_api="blas").restore_original_limits
    return end


def release_memory() -> None:
    """Give freed memory back to the system.

    glibc keeps what it finds between blocks in use, as the states of a training's batches leave it:
    half a gigabyte, which what follows would only add to. Other systems' allocators return it.
    """
    import ctypes

    # the function is unknown to musl and to macOS
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def maxrss_bytes(maxrss: int) -> int:
    """Bytes of ``ru_maxrss``: in bytes on macOS, in units of 1,024 elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024


def peak_memory_since(before: int) -> int | None:
    """Peak physical memory of this process; ``None`` if it is the one of ``before``."""
    # the peak is of the whole life of the process: one that has not risen says nothing about this
    # part
    peak = peak_memory_bytes()
    return peak if peak > before else None


def peak_memory_bytes() -> int:
    """Peak physical memory of this process."""
    return maxrss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
