"""What the operating system gives this process: cores, memory, and how idle threads wait.

Limits of containers (cgroup versions 1 and 2) are respected. What a system does not report is
``None``. Importing this module loads no library.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "POLICY_VARIABLES",
    "WAIT_POLICY",
    "Memory",
    "cpu_quota",
    "faiss_with_threads",
    "maxrss_bytes",
    "memory",
    "peak_memory_bytes",
    "set_wait_policy",
    "text_of",
    "usable_cores",
]

_NO_LIMIT = 1 << 60
"""cgroup version 1 writes the absence of a limit as a number near 2**63."""

POLICY_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables by which a user sets how idle threads wait."""

WAIT_POLICY = {"GOMP_SPINCOUNT": "1000"}
"""Threads of GNU OpenMP sleep after so many spins; by default they spin for milliseconds, on cores
that another process could use."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory in bytes; ``None`` for what the system does not report.

    Attributes:
        total: of the machine.
        available: what this process may still take without swapping, the limit respected.
        limit: of the container (cgroup).
    """

    total: int | None
    available: int | None
    limit: int | None


def set_wait_policy(environ: MutableMapping[str, str] | None = None) -> None:
    """Let idle OpenMP threads sleep early, unless the user has set how they wait.

    Takes effect in libraries that are loaded afterwards, and in child processes.
    """
    environ = os.environ if environ is None else environ
    if not any(name in environ for name in POLICY_VARIABLES):
        environ.update(WAIT_POLICY)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the container may take; ``None`` if there is no limit.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    quotas = []
    for folder in _cgroups(root, "cpu"):
        words = text_of(folder / "cpu.max").split()
        if not words:
            words = [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (_number(word) for word in (*words, "", "")[:2])
        if quota and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory(root: Path = Path("/")) -> Memory:
    """Memory of the machine and of the container.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    system = dict(_fields(root / "proc/meminfo"))
    total, available = system.get("MemTotal"), system.get("MemAvailable")
    if total is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = []
    for folder in _cgroups(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = (_number(text_of(folder / name)) for name in (limit_name, used_name))
            if limit is None or limit >= _NO_LIMIT:
                continue
            # what is only cached is given back when memory is asked for
            cached = dict(_fields(folder / "memory.stat")).get(cache_name, 0)
            limits.append((limit, limit - max((used or 0) - cached, 0)))
    left = [room for _, room in limits] + ([] if available is None else [available])
    return Memory(
        total=total,
        available=max(min(left), 0) if left else None,
        limit=min((limit for limit, _ in limits), default=None),
    )


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in, innermost first.

    Inside a container the path that the kernel names may not exist; its own group is then mounted
    where the outermost one would be.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            if ".." not in folder.parts and (top / folder).is_dir():
                yield top / folder


def _fields(file: Path) -> Iterator[tuple[str, int]]:
    """Names and bytes of a file of the kernel such as ``/proc/meminfo``."""
    for line in text_of(file).splitlines():
        name, _, value = line.replace(":", " ").partition(" ")
        number = _number(value.removesuffix("kB"))
        if number is not None:
            yield name, number * 1024 if value.endswith("kB") else number


def _number(text: str) -> int | None:
    """The integer that a text spells; ``None`` for ``max`` and for nothing."""
    try:
        return int(text)
    except ValueError:
        return None


def text_of(file: Path) -> str:
    """Text of a file without white space at its ends; empty for one that cannot be read."""
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


@contextmanager
def faiss_with_threads(threads: int) -> Iterator[Any]:
    """The module ``faiss``, set to so many threads until the block ends.

    Where torch is loaded, faiss sets the threads of torch too, on which the last bits of a training
    depend; so the number is put back.

    On macOS faiss and torch each bring an OpenMP library of their own. The second one to be loaded
    ends the process unless that is disabled, and faiss may crash with more than one thread.
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


def maxrss_bytes(maxrss: int) -> int:
    """Bytes of ``ru_maxrss``, which is in bytes on macOS and in units of 1,024 elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024


def peak_memory_bytes() -> int:
    """Most bytes of physical memory that this process has held at a time."""
    return maxrss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
