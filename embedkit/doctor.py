"""Check of the installation: a small extraction on every device, versions, missing libraries."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError, distributions, metadata, requires
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.display import count_text
from embedkit.errors import EmbedkitError, EncodeError, first_line
from embedkit.machine import __version__, usable_cores

# scripts that tokenizers treat differently, one text of a single token, and a long one,
# so that batches have texts of many lengths
_TEXTS = (
    "The film was good, but the book that it follows was better.",
    "배를 타고 여행을 간다.",
    "吾輩は猫である。",
    "a",
    "It rained. " * 10,
)


def diagnose() -> dict[str, Any]:
    """Extract and verify a few texts on every device, without network; list what is missing.

    The findings are plain data, for people and for bug reports:

        works, exit_code   the code is 0, or that of a command which meets the first problem
        problems, notes    why extraction does not work; what makes it slower, or limits it
        versions           of libraries and of the system; ``None``: missing
        devices            device → its name, and the figures of an extraction
        models             checkpoints that load without network
        missing            extra → packages that are not installed
    """
    from embedkit.encoding.checkpoint import find_checkpoint, has_multilingual

    problems: list[str] = []
    # before the check itself makes load
    load, cores = os.getloadavg()[0], usable_cores()
    busy = f"other programs are busy (load {load:.1f}): the speed is too low"
    notes = [busy] if load > cores else []
    devices: dict[str, dict[str, Any]] = {"cpu": {"name": count_text(cores, "core")}}
    code = 0
    try:
        import torch

        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            devices[f"cuda:{index}"] = {"name": torch.cuda.get_device_name(index)}
        for device, about in devices.items():
            about |= _extract(device)
    # the first problem ends the trial, and everything else is reported all the same
    except EmbedkitError as error:
        problems, code = [str(error)], error.exit_code
    except Exception as error:  # a broken installation raises anything
        problems, code = [f"{type(error).__name__}: {first_line(error)}"], EncodeError.exit_code
    models = []
    with suppress(EmbedkitError):
        find_checkpoint(DEFAULT_MODEL, offline=True)
        models.append(DEFAULT_MODEL)
    # looked for, not loaded: whether a first run needs the network is all that is asked
    if has_multilingual():
        models.append(MULTILINGUAL)
    else:
        notes.append(f"the model {MULTILINGUAL!r} is not here: it needs the network the first time")
    versions: dict[str, str | None] = {"embedkit": __version__}
    versions |= {"python": platform.python_version(), "system": platform.platform()}
    missing: dict[str, list[str]] = {}
    with suppress(PackageNotFoundError):  # run from a source tree
        versions |= (needed := _versions(""))
        for extra in metadata("embedkit").get_all("Provides-Extra") or []:
            missing[extra] = [name for name, version in _versions(extra).items() if version is None]
        if lacking := [name for name, version in needed.items() if version is None]:
            notes.append(f"required, but not installed: {', '.join(lacking)}")
    return {
        "works": not problems,
        "exit_code": code,
        "problems": problems,
        "notes": notes,
        "versions": versions,
        "devices": devices,
        "models": models,
        "missing": missing,
    }


def _extract(device: str) -> dict[str, Any]:
    """Extract a few texts into a temporary folder, verify it, and encode them again otherwise."""
    from embedkit.dataset.extract import run_plan
    from embedkit.dataset.planning import plan_extract
    from embedkit.dataset.read import load
    from embedkit.dataset.settings import ExtractOptions
    from embedkit.scale import threads_limited
    from embedkit.verification import require_ok, verify

    # with a number each, so that no two are equal
    texts = [f"{i} {text}" for i in range(2) for text in _TEXTS]
    cpu = device == "cpu"
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="embedkit-doctor-") as scratch:
        out = Path(scratch, "vectors")
        settings = ExtractOptions(
            device=device,
            # fp32 is the default, without a note on others
            precision="fp32" if cpu else "auto",
            layers="all",
            normalize=True,
            offline=True,
        )
        # loading takes most of the time, hence one encoder for all; the dataset is made by one
        # thread, and compared with what several compute
        with (
            plan_extract(texts, out=out, settings=settings) as plan,
            threads_limited(1) if cpu else nullcontext(),
        ):
            run_plan(plan)
        require_ok(verify(out), out)
        data = load(out)
        stored, tokens = data.X, data.manifest.totals.ledger["tokens_kept"]
    # includes loading; the speed of the model is measured on its own below
    seconds = time.perf_counter() - started
    encoder = plan.encoder
    order = np.random.default_rng(0).permutation(len(texts))
    vectors = {
        "alone": np.concatenate([encoder.encode([text]) for text in texts]),
        "in another order": encoder.encode([texts[i] for i in order])[np.argsort(order)],
    } | ({"on one thread": stored} if cpu else {})
    # after the others, which have warmed it up
    started = time.perf_counter()
    together = encoder.encode(texts)
    speed = tokens / (time.perf_counter() - started)
    same = {how: int((vectors[how] == together).all(axis=1).sum()) for how in vectors}
    # threads may, on some processors, change the order of sums, which a job finds out before it
    # goes on; on a GPU kernels may depend on the shape of a batch, and the count is only reported
    if cpu and (least := min(same["alone"], same["in another order"])) < len(texts):
        raise EncodeError(
            f"{len(texts) - least} of {len(texts)} texts have other bits in other company: the "
            "libraries installed here do not compute as they promise."
        )
    return {
        "records": len(texts),
        "seconds": seconds,
        "tokens_per_second": speed,
        "precision": encoder.precision,
        "same_bits": same,
    }


def _versions(extra: str) -> dict[str, str | None]:
    """Packages that embedkit, or one of its extras, needs on this system."""
    from packaging.requirements import Requirement

    needs = map(Requirement, requires("embedkit") or ())
    # markers decide by extra and by system; without a marker a package is always needed
    valid = [n for n in needs if (n.marker.evaluate({"extra": extra}) if n.marker else not extra)]
    return {n.name: next((d.version for d in distributions(name=n.name)), None) for n in valid}
