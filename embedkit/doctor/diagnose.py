"""All checks, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from embedkit import machine
from embedkit.doctor import models, system
from embedkit.doctor.report import NOTE, PROBLEM, REPORT_IT, Check, Report, without_names
from embedkit.errors import EmbedkitError, EncodeError, StorageError, first_line

__all__ = ["CHECKS", "diagnose"]


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
            done = without_names(_guarded(name, check, state))
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
        self.onednn = system.OneDNN(begin="processor" in CHECKS)
        self.hub = models.Hub()
        self.failed: set[str] = set()


def _guarded(name: str, check: Callable[[_State], Check], state: _State) -> Check:
    """Make a check; an error in it is a finding, not the end."""
    missing = state.failed & set(_NEEDS.get(name, ()))
    if missing:
        return Check(name, NOTE, f"not checked: see {min(missing)}")
    try:
        return check(state)
    except EmbedkitError as error:
        return Check(name, PROBLEM, str(error), REPORT_IT, exit_code=error.exit_code)
    except Exception as error:  # whatever a broken installation raises
        said = f"{type(error).__name__}: {first_line(error)}"
        if name in _ESSENTIAL:
            code = EncodeError.exit_code if isinstance(error, MemoryError) else 1
            code = StorageError.exit_code if isinstance(error, OSError) else code
            return Check(name, PROBLEM, f"failed: {said}", REPORT_IT, exit_code=code)
        return Check(name, NOTE, f"could not be checked: {said}")


_ESSENTIAL = ("packages", "disk", "model", "forward", "extraction")
_NEEDS = {
    "forward": ("packages", "model"),
    "precision": ("packages", "model"),
    "extraction": ("packages", "model"),
}

CHECKS: Mapping[str, Callable[[_State], Check]] = {
    "versions": lambda _: system.versions(),
    "packages": lambda _: system.packages(),
    "extras": lambda _: system.extras(),
    "processor": lambda state: system.processor(state.onednn),
    "threads": lambda state: system.threads(state.load),
    "cuda": lambda _: system.cuda(),
    "memory": lambda state: system.memory(state.memory),
    "disk": lambda _: system.disk(),
    "fonts": lambda _: system.fonts(),
    "model": lambda _: models.model(),
    "forward": lambda _: models.forward(),
    "precision": lambda _: models.precision(),
    "hub": lambda state: models.hub(state.hub),
    "extraction": lambda _: models.extraction(),
}
"""What checks there are, in their order; the names are stable."""
