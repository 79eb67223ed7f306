"""A sample of the faults of :mod:`tests.faults`; ``make test-faults`` has them all."""

from __future__ import annotations

import subprocess
import sys

from tests.processes import ROOT, environment

COMMANDS = ("extract --overwrite", "train", "index --overwrite", "compare", "split")


def test_a_sample_of_faults() -> None:
    """In a process of its own, whose children begin with all imports done."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--sample", "60", *COMMANDS],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows lost 0, wrong answers 0, tracebacks 0" in done.stdout
