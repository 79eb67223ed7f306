"""Memory and threads on Linux and macOS, and how the command line's threads wait."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import pytest

from embedkit import machine
from tests.processes import ROOT

# the wait policy


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_stays(name):
    environment = {name: "7"}
    machine.set_wait_policy(environment)
    assert environment == {name: "7"}


@pytest.fixture
def spied(tmp_path: Path) -> dict[str, str]:
    """An environment in which every Python process leaves its environment in a file as it ends."""
    spy = (
        "import atexit, json, os, pathlib\n"
        "atexit.register(lambda: pathlib.Path(os.environ['SPY'], str(os.getpid())).write_text(\n"
        "    json.dumps([os.environ.get(n) for n in os.environ['NAMES'].split()])))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(spy, "utf-8")
    (tmp_path / "seen").mkdir()
    names = [*machine.WAIT_POLICY, "OMP_WAIT_POLICY"]
    environment = {k: v for k, v in os.environ.items() if k not in machine.POLICY_VARIABLES}
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment |= {"PYTHONPATH": path, "SPY": str(tmp_path / "seen"), "NAMES": " ".join(names)}
    subprocess.run([sys.executable, "-c", ""], env=environment, check=True)
    if seen(environment) != [NOTHING]:
        pytest.skip("a file of this environment sets a policy whenever Python starts")
    for file in (tmp_path / "seen").iterdir():
        file.unlink()
    return environment


def seen(environment: dict[str, str]) -> list[str]:
    return sorted(file.read_text("utf-8") for file in Path(environment["SPY"]).iterdir())


NOTHING = "[" + "null, " * len(machine.WAIT_POLICY) + "null]"
POLICY = "[" + ", ".join(f'"{value}"' for value in machine.WAIT_POLICY.values()) + ", null]"
ENTRY = "import sys; from embedkit.cli.main import main; sys.exit(main())"  # what pip's script does


@pytest.mark.parametrize("start", [["-m", "embedkit", "--version"], ["-c", ENTRY, "--version"]])
def test_the_command_line_sets_the_policy(spied, start):
    subprocess.run([sys.executable, *start], env=spied, check=True, capture_output=True)
    assert seen(spied) == [POLICY]


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
