"""Memory and threads on Linux and macOS, and how the command line's threads wait."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

import faiss
import pytest

from embedkit import machine


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
    environment = {k: v for k, v in os.environ.items() if k not in machine.POLICY_VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert machine.WAIT_POLICY.items() <= json.loads(done.stderr).items()


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    class Usage:
        ru_maxrss = 5_000_000

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: Usage)
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
