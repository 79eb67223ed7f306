"""Checks of the installation and of the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from embedkit import fsio, machine
from embedkit._version import __version__
from embedkit.display import bytes_text
from embedkit.doctor.report import NOTE, OK, PROBLEM, Check
from embedkit.errors import EncodeError, StorageError, UsageError, first_line

__all__ = [
    "EXTRACTION",
    "EXTRAS",
    "OTHERS",
    "OneDNN",
    "cuda",
    "disk",
    "extras",
    "fonts",
    "memory",
    "packages",
    "processor",
    "threads",
    "versions",
]  # fmt: skip

EXTRAS = {
    "ja": ("fugashi", "unidic-lite", "ipadic"),
    "sentencepiece": ("sentencepiece", "protobuf"),
    "lora": ("peft",),
    "umap": ("umap-learn",),
}
"""Packages of the optional dependencies, by name of the extra."""

EXTRACTION = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy",
               "pyarrow")  # fmt: skip
OTHERS = ("scikit-learn", "scipy", "faiss-cpu", "lightgbm", "skops", "joblib", "threadpoolctl",
           "duckdb", "isal", "accelerate", "matplotlib", "jinja2", "rich", "click")  # fmt: skip

_FORCED = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
           "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
            "KMP_BLOCKTIME", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # fmt: skip
_INSTRUCTIONS = ("sse4_1", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
                 "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve",
                 "i8mm")  # fmt: skip

_LEAST_MEMORY, _GOOD_MEMORY = 600_000_000, 1_500_000_000
_LEAST_DISK, _GOOD_DISK = 200_000_000, 2_000_000_000

_CHILD_SECONDS = 20.0


def versions() -> Check:
    """Versions of embedkit, Python and the system."""
    libc = " ".join(platform.libc_ver()).strip() or platform.mac_ver()[0]
    facts = {
        "embedkit": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "libc": libc,
    }
    return Check(
        "versions", OK,
        f"embedkit {__version__}, {facts['implementation']} {facts['python']}, {facts['system']} "
        f"{facts['release']} {facts['machine']}, {libc}",
        facts=facts,
    )  # fmt: skip


def packages() -> Check:
    """Packages that embedkit needs: their versions, and whether those of extraction load."""
    found = {name: _version(name) for name in (*EXTRACTION, *OTHERS)}
    broken = {}
    for name in EXTRACTION:
        try:
            import_module(name.replace("-", "_"))
        except Exception as error:  # a library of another C++ runtime raises what it likes
            broken[name] = f"{type(error).__name__}: {first_line(error)}"
    old = _below_floor(found)
    missing = [name for name, has in found.items() if has is None and name not in broken]
    facts = {"versions": found, "broken": broken, "below_floor": old}
    text = ", ".join(f"{name} {has}" for name, has in found.items() if has is not None)
    if broken:
        listed = "; ".join(f"{name} cannot be imported ({said})" for name, said in broken.items())
        return Check(
            "packages", PROBLEM, f"{listed}. {text}",
            f"Reinstall: pip install --force-reinstall {' '.join(broken)}",
            facts, exit_code=UsageError.exit_code,
        )  # fmt: skip
    remarks = [f"{name} is missing" for name in missing]
    remarks += [f"{name} {found[name]} is not {wanted}" for name, wanted in old.items()]
    if remarks:
        wanted = " ".join([*missing, *(f"'{name}{wanted}'" for name, wanted in old.items())])
        todo = f"pip install {wanted}"
        return Check("packages", NOTE, f"{'; '.join(remarks)}. {text}", todo, facts)
    return Check("packages", OK, text, facts=facts)


def _below_floor(found: Mapping[str, str | None]) -> dict[str, str]:
    """Packages whose version is not one that the installed embedkit asks for, with what it asks."""
    try:
        from packaging.requirements import Requirement

        wanted = [Requirement(line) for line in requires("embedkit") or ()]
    except (ImportError, PackageNotFoundError):  # run from a source tree
        return {}
    return {
        r.name: str(r.specifier)
        for r in wanted
        if r.marker is None
        and (has := found.get(r.name)) is not None
        and not r.specifier.contains(has, prereleases=True)
    }


def extras() -> Check:
    """Packages of the optional dependencies."""
    facts = {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}
    parts = []
    for extra, names in facts.items():
        there = [f"{name} {has}" for name, has in names.items() if has is not None]
        parts.append(f"{extra}: {', '.join(there) or 'not installed'}")
    return Check("extras", OK, "; ".join(parts), facts=facts)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor(onednn: OneDNN) -> Check:
    """Instruction sets: what the processor has, and what torch and oneDNN make of it."""
    isa = onednn.result()
    import torch

    flags = _instructions()
    forced = {name: os.environ[name] for name in _FORCED if name in os.environ}
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    facts = {
        "name": _processor_name(),
        "instructions": flags,
        "torch": torch.backends.cpu.get_cpu_capability(),
        "onednn": isa,
        "bf16": bool(has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "forced": forced,
    }
    text = (
        f"{facts['name']}; {' '.join(flags)}; torch uses {facts['torch']}, oneDNN "
        f"{isa or 'unknown'}; bf16 products: {'yes' if facts['bf16'] else 'no'}"
    )
    if forced:
        text += "; set by the environment: " + ", ".join(f"{k}={v}" for k, v in forced.items())
    return Check("processor", NOTE if forced else OK, text, facts=facts)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _instructions() -> list[str]:
    """Instruction sets that matter here, as the system names them; empty if it does not tell."""
    try:
        words = Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return []
    return [name for name in _INSTRUCTIONS if name in set(words)]


class OneDNN:
    """oneDNN's instruction set, which it tells only in a log: that of a process of its own."""

    def __init__(self, *, begin: bool) -> None:
        self._child: subprocess.Popen[str] | None = None
        if not begin:
            return
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-c", "import torch; torch.ones(4, 4).to_mkldnn()"],
                env={**os.environ, "ONEDNN_VERBOSE": "1"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, errors="replace",
            )  # fmt: skip
        except (OSError, ValueError):
            return

    def result(self) -> str | None:
        """What the log says; ``None`` if it does not, or the process crashed."""
        if self._child is None:
            return None
        try:
            said, _ = self._child.communicate(timeout=_CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            said, _ = self._child.communicate()
        self._child = None
        found = re.search(r"info,cpu,isa:(.+)", said)
        return found[1].strip() if found else None

    def close(self) -> None:
        """End the process if nobody has waited for it."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def threads(load: float | None) -> Check:
    """Cores that this process may use, the threads that torch starts, and how busy it is."""
    import torch
    from threadpoolctl import threadpool_info

    usable, quota = machine.usable_cores(), machine.cpu_quota()
    runtimes = sorted({str(p["prefix"]) for p in threadpool_info() if p["user_api"] == "openmp"})
    environment = {name: os.environ[name] for name in _THREADS if name in os.environ}
    of_torch = torch.get_num_threads()
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "usable": usable,
        "quota": quota,
        "torch": of_torch,
        "openmp": runtimes,
        "environment": environment,
        "load": load,
    }
    text = f"{facts['torch']} threads in torch, {usable} of {facts['cores']} cores usable"
    text += f", {quota:g} by quota" if quota else ""
    text += f"; OpenMP: {', '.join(runtimes) or 'none'}"
    settings = [f"{k}={v}" for k, v in environment.items()]
    text += f" ({', '.join(settings)})" if settings else ""
    allowed = min(usable, max(int(quota), 1)) if quota else usable
    if of_torch > allowed:
        return Check("threads", NOTE, f"{text}. These are more threads than cores",
                     f"Set OMP_NUM_THREADS={allowed}.", facts)  # fmt: skip
    if load is not None and load > usable / 2:
        text += f". Other programs are busy (load {load:.1f}): speeds below are too low"
        return Check("threads", NOTE, text, facts=facts)
    return Check("threads", OK, text, facts=facts)


def cuda() -> Check:
    """CUDA devices and the driver."""
    import torch

    driver = _driver()
    devices: list[dict[str, Any]] = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        devices.append({
            "name": about.name, "capability": f"{about.major}.{about.minor}",
            "memory_free": free, "memory_total": total,
        })  # fmt: skip
    facts = {"torch": torch.version.cuda, "driver": driver, "devices": devices}
    listed = [
        f"cuda:{number} {d['name']}, compute capability {d['capability']}, "
        f"{bytes_text(d['memory_free'])} of {bytes_text(d['memory_total'])} free"
        for number, d in enumerate(devices)
    ]
    if devices:
        text = f"{'; '.join(listed)}; driver {driver}, torch for CUDA {torch.version.cuda}"
        return Check("cuda", OK, text, facts=facts)
    if driver:
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
        text = f"driver {driver} is there, but torch ({build}) sees no device"
        todo = "Install a torch for this driver: https://pytorch.org/get-started"
        return Check("cuda", NOTE, text, todo, facts)
    return Check("cuda", OK, "no device", facts=facts)


def _driver() -> str | None:
    """Version of NVIDIA's kernel driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else "unknown"


def memory(found: machine.Memory) -> Check:
    """Main memory, as it was before libraries and models were loaded."""
    facts = {"total": found.total, "available": found.available, "limit": found.limit}
    sizes = {name: bytes_text(size) for name, size in facts.items() if size is not None}
    text = f"{sizes.get('available', 'unknown')} available of {sizes.get('total', 'unknown')}"
    text += f", limit of the container {sizes['limit']}" if "limit" in sizes else ""
    if found.available is not None and found.available < _LEAST_MEMORY:
        return Check(
            "memory", PROBLEM,
            f"{text}; extraction with the built-in model takes {bytes_text(_LEAST_MEMORY)} or more",
            "End other programs, or raise the limit of the container.",
            facts, exit_code=EncodeError.exit_code,
        )  # fmt: skip
    if found.available is not None and found.available < _GOOD_MEMORY:
        return Check("memory", NOTE, f"{text}; larger models may not fit", facts=facts)
    return Check("memory", OK, text, facts=facts)


def disk() -> Check:
    """Free space where datasets, temporary files and fetched models go."""
    from huggingface_hub import constants

    places = {
        "current folder": Path.cwd(),
        "temporary files": Path(tempfile.gettempdir()),
        "hub cache": Path(constants.HF_HUB_CACHE),
    }
    facts = {
        name.replace(" ", "_"): {
            "path": str(path), "free": fsio.free_bytes(path), "writable": _writable(path)
        }
        for name, path in places.items()
    }  # fmt: skip
    parts, bad, low = [], [], []
    for name, fact in zip(places, facts.values(), strict=True):
        free = int(str(fact["free"]))
        parts.append(f"{name} {fact['path']}: {bytes_text(free)} free")
        if name == "hub cache":
            continue  # of use only where models are fetched
        if not fact["writable"]:
            bad.append(f"{name}: no permission to write")
        elif free < _LEAST_DISK:
            bad.append(f"{name}: full")
        elif free < _GOOD_DISK:
            low.append(f"{name}: little space")
    text = "; ".join([*bad, *low, *parts])
    if bad:
        return Check("disk", PROBLEM, text,
                     "Free some space, or work in another folder (temporary files: set TMPDIR).",
                     facts, exit_code=StorageError.exit_code)  # fmt: skip
    return Check("disk", NOTE if low else OK, text, facts=facts)


def _writable(path: Path) -> bool:
    existing = path.resolve()
    while not existing.exists():
        existing = existing.parent
    return os.access(existing, os.W_OK)


def fonts() -> Check:
    """Fonts of figures for Korean and Japanese."""
    from embedkit.runs.figures import east_asian_fonts

    facts = east_asian_fonts()
    names = {"ko": "Korean", "ja": "Japanese"}
    text = ", ".join(f"{names[language]}: {font or 'none'}" for language, font in facts.items())
    if None in facts.values():
        text += "; figures show boxes instead of these letters"
        todo = "Install Noto Sans CJK (Debian: apt install fonts-noto-cjk)."
        return Check("fonts", NOTE, text, todo, facts)
    return Check("fonts", OK, text, facts=facts)
