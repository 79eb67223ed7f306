"""The machine: what doctor finds and says of a broken one, its memory and threads."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import faiss
import numpy as np
import pytest

from embedkit import Encoder, doctor, machine
from embedkit.choices import DEFAULT_MODEL
from embedkit.errors import DamagedError, EncodeError
from tests.processes import ROOT, command, completed, invoke


@pytest.mark.slow
def test_it_works_here(tmp_path: Path) -> None:
    """In a process of its own, as users call it."""
    done = command("doctor", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["works"], found["problems"]) == (0, True, [])
    assert "poor vectors" not in done.stderr  # of a machine that is as it should be
    ways = ("alone", "in another order", "on one thread")
    assert found["devices"]["cpu"]["same_bits"] | {"on one thread": 10} == dict.fromkeys(ways, 10)
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
        monkeypatch.setattr(doctor, "_extract", Mock(side_effect=error))
        result = invoke("doctor")
        assert result.return_value == DamagedError.exit_code
        assert str(error) in result.stdout.splitlines()[0]


# memory and threads on Linux and macOS, and how those of the command line wait


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_stays(name, monkeypatch):
    environment = {name: "7"}
    monkeypatch.setattr(os, "environ", environment)
    machine.set_wait_policy()
    assert environment == {name: "7"}


def test_the_command_line_sets_the_policy() -> None:
    code = (
        "import atexit, json, os, sys; from embedkit.cli.main import main\n"
        "atexit.register(lambda: print(json.dumps(dict(os.environ)), file=sys.stderr))\n"
        "sys.argv = ['embedkit', '--version']; main()"
    )
    unset = dict.fromkeys(machine.POLICY_VARIABLES)
    done = completed(sys.executable, "-c", code, cwd=ROOT, **unset)
    assert machine.WAIT_POLICY.items() <= json.loads(done.stderr).items()


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5_000_000))
    assert machine.peak_memory_bytes() == 5_000_000 * unit
    assert machine.maxrss_bytes(7) == 7 * unit


@pytest.mark.parametrize(("platform", "threads"), [("linux", 3), ("darwin", 1)])
def test_faiss_has_one_thread_on_macos(
    monkeypatch: pytest.MonkeyPatch, platform: str, threads: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(faiss, "omp_set_num_threads", asked.append)
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "")
    monkeypatch.delenv("KMP_DUPLICATE_LIB_OK")
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 7)
    found: Any
    with machine.faiss_with_threads(3) as found:
        assert found is faiss
        assert asked == [threads]
    assert asked == [threads, 7]
    assert os.environ.get("KMP_DUPLICATE_LIB_OK") == ("TRUE" if threads == 1 else None)
