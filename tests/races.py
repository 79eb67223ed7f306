"""Pairs of writing commands that start together, each after a random delay.

Afterwards the folder must be what one of the commands alone, or both one after the other, would
have left; a command that was refused has an exit code that says so.

    python -m tests.races [NAME ...] [--times 20]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a child waits forever for the threads of its parent
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import embedkit
from embedkit.dataset.parquet import read_table
from embedkit.errors import EmbedkitError
from embedkit.verification import verify
from tests.processes import in_children
from tests.store_fixtures import ending, quickly, write_reviews, write_tsv

EXTRACT = "extract corpus.tsv --model {model}"
REUSE = "--model {model} --out data --overwrite --reuse data"
BAYES = "--view mean_2 --estimator sklearn.naive_bayes:GaussianNB"
COMMANDS = {
    "extract": f"{EXTRACT} --out new",
    "extract --overwrite": f"{EXTRACT} --out data --layers 0 --overwrite",
    "extract --reuse": f"extract corpus.tsv more.tsv {REUSE}",
    "reuse others": f"extract corpus.tsv others.tsv {REUSE}",
    "index": "index data --kind flat",
    "export": "export data --to csv --out x.csv --view mean_2",
    "train": f"train data --out run --folds 2 {BAYES}",
    "train --overwrite": f"train kept --out run --folds 2 --seed 5 --overwrite {BAYES}",
    "split": "split corpus.tsv --folds 2 --out split.parquet",
    "split otherwise": "split corpus.tsv --folds 3 --out split.parquet --overwrite",
    "predict": "predict made corpus.tsv --out new.tsv --device cpu",
    "report": "compare made --report page.html",
}
"""Commands by name. Those that read ``data`` may find it replaced."""

REFUSED = (4, 7, 8)
DONE = (0, 3)


def _of_dataset(folder: Path) -> Any:
    data = embedkit.load(folder)
    assert verify(folder).ok
    index = [
        (file.name, len(file.read_bytes())) for file in folder.glob("_embedkit/index/*/*.faiss")
    ]
    return data.views, data.X.tobytes(), data.ids.tolist(), index


def _of_run(folder: Path) -> Any:
    assert verify(folder).ok
    return read_table(folder / "predictions.parquet").to_pydict()


READERS: dict[str, Callable[[Path], Any]] = {
    "new": _of_dataset,
    "data": _of_dataset,
    "run": _of_run,
    "x.csv": Path.read_bytes,
    "split.parquet": Path.read_bytes,
    "new.tsv": Path.read_bytes,
    "page.html": lambda page: page.read_bytes().endswith(b"</html>\n"),
}


def prepare(folder: Path) -> None:
    """Make what commands read."""
    folder.mkdir()
    write_reviews(folder / "corpus.tsv", rejected=False)
    for name in ("more", "others"):
        write_tsv(folder / f"{name}.tsv", [(f"{name}{i}", f"{name} {i}", "1") for i in range(20)])
    for line in (
        f"{EXTRACT} --out data",
        f"{EXTRACT} --out kept",
        f"train kept --out made --folds 2 {BAYES}",
    ):
        (ended,) = together([line], folder, [0.0])  # the threads of libraries do not outlive a fork
        assert ended["code"] in DONE, ended


def call(line: str, folder: Path, delay: float) -> dict[str, Any]:
    """Run a command in this process after a delay; how it ended."""
    time.sleep(delay)
    return ending(line, folder)


def together(lines: Sequence[str], folder: Path, delays: Sequence[float]) -> list[dict[str, Any]]:
    """Run commands in children of this process at the same time; how they ended."""
    calls = (partial(call, line, folder, delay) for line, delay in zip(lines, delays, strict=True))
    return in_children(*calls)


class Races:
    """The pairs of some commands, which start from copies of one folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._after: dict[tuple[str, ...], Any] = {}
        self.counts, self.wrong = Counter[str](), list[str]()

    def _answers(self) -> Any:
        """What the outputs say, and the names of what stands beside them."""
        answers: dict[str, Any] = {"names": sorted(p.name for p in self._folder.iterdir())}
        for name, read in READERS.items():
            if (self._folder / name).exists():
                answers[name] = read(self._folder / name)
        return answers

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._source, self._folder)

    def after(self, *names: str) -> Any:
        """The exit codes of commands that run one after the other, and the answers after them."""
        if names not in self._after:
            self._begin()
            ended = [together([COMMANDS[name]], self._folder, [0.0])[0] for name in names]
            self._after[names] = [one["code"] for one in ended], self._answers()
        return self._after[names]

    def race(self, names: tuple[str, str], delays: tuple[float, float]) -> None:
        """Start two commands at once, and judge how they ended and what they left."""
        self._begin()
        first, second = names
        expected = [self.after(first, second), self.after(second, first)]
        self._begin()
        ended = together([COMMANDS[name] for name in names], self._folder, delays)
        where = f"{first} | {second} {delays}: {ended}"
        codes = tuple(one["code"] for one in ended)
        self.counts[f"{codes}"] += 1
        try:
            answers = self._answers()
        except (AssertionError, EmbedkitError, OSError) as error:
            self.wrong.append(f"damaged ({error!r}): {where}")
            return
        # a command that needs what the other one replaces fails after it as well
        usual = {code for codes, _ in expected for code in codes}
        if not set(codes) <= {*DONE, *REFUSED, *usual} or not set(codes) & set(DONE):
            self.wrong.append(f"wrong exit codes: {where}")
            return
        for name, code in zip(names, codes, strict=True):
            if code not in DONE:
                other = second if name == first else first
                expected = [self.after(other)]
        if {4, 7} & {*codes}:  # what it read was replaced under it, and its unfinished job stays
            answers["names"] = [n for n in answers["names"] if not n.endswith(".incomplete")]
        if answers not in [one for _, one in expected]:
            self.wrong.append(f"neither result: {where}")


def main() -> int:
    """Print the exit codes of the pairs, and what went wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(COMMANDS), help="commands; all by default")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, failed = random.Random(options.seed), False
    with tempfile.TemporaryDirectory(prefix="embedkit-races-") as folder, quickly():
        top = Path(folder).resolve()
        prepare(top / "source")
        races = Races(top / "source", top / "work")
        for names in itertools.combinations_with_replacement(options.names, 2):
            for _ in range(options.times):
                races.race(names, (rng.uniform(0, 0.3), rng.uniform(0, 0.3)))
            print(" | ".join(names), dict(races.counts), *races.wrong[:9], sep="\n    ", flush=True)
            failed |= bool(races.wrong)
            races.counts.clear()
            races.wrong.clear()
    return int(failed)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
