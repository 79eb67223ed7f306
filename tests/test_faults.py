"""A sample of the faults of :mod:`tests.faults`; ``make test-faults`` has them all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import ROOT, Done, environment

COMMANDS = ("extract", "index --overwrite")
MUTANTS = ("no fsync of files", "publish_folder without fsync", "no lock", "no fingerprint",
           "written in place", "the old one deleted first", "no checksum of pages")  # fmt: skip


def python(*arguments: str) -> Done:
    """A process of its own, whose children begin with all imports done."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_sample_of_faults() -> None:
    done = python("tests.faults", "--sample", "60", *COMMANDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows lost 0, wrong answers 0, tracebacks 0" in done.stdout


@pytest.mark.slow
def test_planted_faults_are_found() -> None:
    done = python("tests.mutants", *MUTANTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"mutants {len(MUTANTS)}, survivors 0" in done.stdout
