"""doctor: what it finds on this machine, and what it says of a broken one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import doctor
from embedkit.choices import DEFAULT_MODEL
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, EncodeError
from tests.processes import command, invoke


@pytest.mark.slow
def test_it_works_here(tmp_path: Path) -> None:
    """In a process of its own, as users call it."""
    done = command("doctor", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["works"], found["problems"]) == (0, True, [])
    assert "poor vectors" not in done.stderr  # of a machine that is as it should be
    assert found["devices"]["cpu"]["same_bits"] | {"on one thread": 10} == dict.fromkeys(
        ("alone", "in another order", "on one thread"), 10
    )
    assert found["versions"].keys() >= {"embedkit", "python", "system", "torch", "numpy"}
    assert DEFAULT_MODEL in found["models"]


def test_other_bits_in_other_company_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = Encoder.encode

    def drifting(self: Encoder, texts: Any, **options: Any) -> Any:
        vectors = genuine(self, texts, **options)
        return vectors if len(texts) > 1 else vectors * np.float32(1 + 1e-6)

    monkeypatch.setattr(Encoder, "encode", drifting)
    found = invoke("doctor")
    assert found.return_value == EncodeError.exit_code
    assert "10 of 10 texts have other bits in other company" in found.stdout


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_extract", lambda _: {})
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 0, 0))
    assert "load 1000000.0" in invoke("doctor").stdout


def test_a_problem_is_named_and_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (DamagedError("model.safetensors is damaged."), OSError("no torch here")):

        def broken(_: str, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(doctor, "_extract", broken)
        result = invoke("doctor")
        assert result.return_value == DamagedError.exit_code
        assert str(error) in result.stdout.splitlines()[0]
