"""What all benchmarks share: rounds in turn, medians, the machine's own rates."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from embedkit.machine import maxrss_bytes

ROUNDS = 5
AVX2 = {
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
"""Forces an older processor's instructions, as far as engines can be told so by variables."""
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
    "ctranslate2",
    "tokenizers",
    "numpy",
    "pandas",
    "pyarrow",
)


def in_turn(
    contestants: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, *, warm: bool = False
) -> dict[str, float]:
    """Median seconds of each contestant; they run one after the other, round after round.

    A first round warms up and does not count, unless they are ``warm``.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warm, rounds + 1):
        for name, run in contestants.items():
            started = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in seconds.items()}


def layer_flops(width: int, inner: int) -> int:
    """Floating-point operations of the four matrix products of one layer, per token."""
    return 8 * width**2 + 4 * width * inner


def product_rate(
    width: int,
    inner: int,
    *,
    rows: int = 2_048,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> float:
    """FLOP/s of the four products of a layer and nothing else.

    They are those of ``torch.mm``, into memory that is there, or of oneDNN with packed weights,
    whichever is faster: the former is MKL's, which knows no AVX-512 on processors of AMD.
    """
    shapes = ((width, 3 * width), (width, width), (width, inner), (inner, width))
    kinds: list[list[Callable[[], object]]] = [[], []] if device == "cpu" else [[]]
    for i, o in shapes:
        x, weight, out = (
            torch.randn(size, dtype=dtype, device=device) for size in ((rows, i), (o, i), (rows, o))
        )
        kinds[0].append(partial(torch.mm, x, weight.t().contiguous(), out=out))
        if device == "cpu":
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
            linear = torch.ops.mkldnn._linear_pointwise
            kinds[1].append(partial(linear, x, packed, None, "none", [], ""))
    times: list[list[float]] = [[] for _ in kinds]
    for _ in range(15):
        for found, products in zip(times, kinds, strict=True):
            started = time.perf_counter()
            for product in products:
                product()
            if device != "cpu":
                torch.cuda.synchronize()
            found.append(time.perf_counter() - started)
    return rows * layer_flops(width, inner) / min(map(statistics.median, times))


def disk_rate(folder: Path, size: int) -> float:
    """Bytes per second of writing files of 64 MB one after the other, each made durable."""
    block = os.urandom(1 << 20)
    written = 0
    with tempfile.TemporaryDirectory(dir=folder) as target:
        started = time.perf_counter()
        while written < size:
            with (Path(target) / str(written)).open("wb") as file:
                for _ in range(64):
                    written += file.write(block)
                file.flush()
                os.fsync(file.fileno())
        return written / (time.perf_counter() - started)


def peak_of(arguments: Sequence[str]) -> tuple[int, float]:
    """Peak memory and seconds of a Python process.

    It is started by a small process of its own: a child's figure begins with the memory of the
    process that it was forked from.
    """
    starter = (
        "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:]);"
        "print(os.wait4(child.pid, 0)[2].ru_maxrss)"
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", starter, sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return maxrss_bytes(int(done.stdout.split()[-1])), time.perf_counter() - started


def describe(packages: Sequence[str]) -> str:
    """Date, machine and versions in one line."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return (
        f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, {', '.join(found)}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
