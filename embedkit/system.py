"""What Linux and macOS say in different ways."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

__all__ = ["faiss_with_threads", "maxrss_bytes", "peak_memory_bytes"]


def faiss_with_threads(threads: int) -> Any:
    """The module ``faiss``, set to so many threads.

    On macOS faiss and torch each bring an OpenMP library of their own. The second one to be loaded
    ends the process unless it is told not to, and faiss may crash with more than one thread.
    """
    if sys.platform == "darwin":
        os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "TRUE")
        threads = 1
    import faiss

    faiss.omp_set_num_threads(threads)
    return faiss


def maxrss_bytes(maxrss: int) -> int:
    """Bytes of ``ru_maxrss``, which is in bytes on macOS and in units of 1,024 elsewhere."""
    return maxrss if sys.platform == "darwin" else maxrss * 1024


def peak_memory_bytes() -> int:
    """Most bytes of physical memory that this process has held at a time."""
    return maxrss_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
