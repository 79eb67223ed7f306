"""What a changed corpus costs with the vectors of the old one, against a fresh extraction.

    python -m benchmarks.reuse [--corpora FOLDER] [--records 100000] [--rounds 3]

The corpus is shuffled, 1 % of its records are removed and as many new ones are added. The command
``embedkit extract`` makes the old one, once, and the changed one several times with ``--reuse``,
each in a process of its own: seconds of the processor, which other programs disturb less than wall
time, start and loading of the model included; medians. That the bytes are those of a fresh
extraction is tested (``tests/dataset/test_reuse.py``).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np

from benchmarks.measure import PACKAGES, describe, table
from benchmarks.texts import CORPORA, texts_of

CHANGED = 0.01


def texts(corpora: Path, count: int) -> list[str]:
    """Distinct texts: those of both corpora, and where they do not suffice with a number before."""
    own = list(
        dict.fromkeys(text for n in ("stsb_en", "nsmc") for text in texts_of(corpora, n, count))
    )
    return [*own, *(f"{i} {own[i % len(own)]}" for i in range(count - len(own)))][:count]


def write(path: Path, some: Sequence[str]) -> Path:
    """A corpus of one column."""
    lines = (" ".join(text.split()) for text in some)
    path.write_text("text\n" + "".join(f"{line}\n" for line in lines), "utf-8")
    return path


def seconds_of(corpus: Path, out: Path, *options: str) -> float:
    """Seconds of the processor that ``embedkit extract`` takes."""
    words = ["extract", str(corpus), "--out", str(out), "--format", "tsv", "--quoting", "none"]
    before = getrusage(RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "embedkit", *words, "--quiet", *options]
    subprocess.run(command, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(options: argparse.Namespace) -> None:
    """Print a table."""
    count, few = options.records, round(CHANGED * options.records)
    every = texts(options.corpora, count + few)
    order = np.random.default_rng(0).permutation(np.arange(few, count + few))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        old = write(folder / "old.tsv", every[:count])
        new = write(folder / "new.tsv", [every[i] for i in order])
        start = seconds_of(write(folder / "one.tsv", every[:1]), folder / "one")
        fresh = seconds_of(old, folder / "old")
        reuse = ("--reuse", str(folder / "old"))
        again = statistics.median(
            seconds_of(new, folder / str(i), *reuse) for i in range(options.rounds)
        )
    print(describe(PACKAGES))
    header = ["records", "fresh, s", "with --reuse, s", "share", "of these for one record, s"]
    share = f"{100 * again / fresh:.1f} %"
    print(table(header, [[f"{count:,}", f"{fresh:.1f}", f"{again:.1f}", share, f"{start:.1f}"]]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args())
