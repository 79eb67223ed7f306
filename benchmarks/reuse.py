"""What a changed corpus costs with the vectors of the old one, against a fresh extraction.

    python -m benchmarks.reuse [--corpora FOLDER] [--records 100000] [--rounds 3] [--profile]

The corpus is shuffled, 1 % of its records are removed and as many new ones are added. The command
``embedkit extract`` makes it anew, once, and several times with ``--reuse``, each in a process of
its own: wall time from the start of the command to its end, medians, and both folders compared
byte by byte. ``--profile`` says where the time of a reuse goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import embedkit
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
    """Wall time of ``embedkit extract``."""
    words = ["extract", str(corpus), "--out", str(out), "--format", "tsv", "--quoting", "none"]
    started = time.perf_counter()
    command = [sys.executable, "-m", "embedkit", *words, "--quiet", *options]
    subprocess.run(command, check=True)
    return time.perf_counter() - started


def main(options: argparse.Namespace) -> None:
    """Print a table."""
    count, few = options.records, round(CHANGED * options.records)
    every = texts(options.corpora, count + few)
    order = np.random.default_rng(0).permutation(np.arange(few, count + few))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        old = write(folder / "old.tsv", every[:count])
        new = write(folder / "new.tsv", [every[i] for i in order])
        first = seconds_of(old, folder / "old")
        fresh = seconds_of(new, folder / "fresh")
        reuse = ("--reuse", str(folder / "old"))
        times = [seconds_of(new, folder / f"r{i}", *reuse) for i in range(options.rounds)]
        sums = [(folder / name / "SHA256SUMS").read_bytes() for name in ("fresh", "r0")]
        assert sums[0] == sums[1], "other bytes than those of a fresh extraction"
        again = statistics.median(times)
        print(describe(PACKAGES))
        cells = [
            f"{count:,}",
            f"{first:.1f}",
            f"{fresh:.1f}",
            f"{again:.2f}",
            f"{again / fresh:.1%}",
        ]
        print(table(["records", "the old one, s", "fresh, s", "with --reuse, s", "share"], [cells]))
        if options.profile:
            with cProfile.Profile() as profile:
                embedkit.extract(new, out=folder / "p", reuse=folder / "old", format="tsv")
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    main(parser.parse_args())
