"""Single bits flipped at random in every kind of file: refused when it is used, or no other answer.

python -m tests.flips [--count 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import embedkit
from embedkit.comparison.load import read_runs
from embedkit.errors import DamagedError, EmbedkitError
from embedkit.predict import Predictor
from embedkit.prediction_files import read_prediction_files
from embedkit.runs.folder import read_run
from embedkit.runs.split import read_split
from embedkit.verification import verify
from tests.processes import command
from tests.store_fixtures import quickly, tiny_model, write_reviews

HARMLESS = ("log.jsonl", "README.md")
"""Names of files that no answer depends on; those of a person, which are no damage if changed."""


def _of_dataset(folder: Path) -> Any:
    answers: list[Any] = []
    for level in ("sentence", "word", "token"):
        data = embedkit.load(folder, level=level)
        answers += [data.columns, [data.column(name) for name in data.columns]]
        answers += [embedkit.load(folder, view, level=level).X.tobytes() for view in data.views]
    return answers, embedkit.info(folder).manifest  # type: ignore[union-attr]


def _of_run(folder: Path) -> Any:
    found = Predictor(folder, device="cpu").predict(["the movie was good", "bad"])
    runs = read_runs([folder])
    # as text, since a NaN in it is not equal to itself
    content = str(asdict(read_run(folder)))
    return [p.proba for p in found], runs[0].predictions.proba.tobytes(), content


def _of_index(folder: Path) -> Any:
    line = f"search {folder.name} --like 3 --like 8 -k 4 --index flat --whitening center --json"
    done = command(*line.split(), cwd=folder.parent)
    if done.returncode:
        raise DamagedError(done.stderr)
    return done.stdout


def _of_predictions(file: Path) -> Any:
    row, ids, proba = read_prediction_files([file], ("0", "1"))
    return np.asarray(row).tolist(), list(ids), [p.tobytes() for p in proba]


def _of_split(file: Path) -> Any:
    split = read_split(file)
    return split.row.tolist(), split.group.tolist(), split.folds.tolist(), split.settings


def prepare(folder: Path) -> dict[str, tuple[Callable[[Path], Any], list[Path]]]:
    """Make all kinds of files: how each is used, and the files by the name of their kind."""
    write_reviews(folder / "corpus.tsv")
    extract = f"extract corpus.tsv --model {tiny_model()} --words --tokens --storage"
    lines = [f"{extract} {storage} --out {storage}" for storage in STORAGES]
    lines += [
        f"extract corpus.tsv --model {tiny_model()} --out indexed",
        "index indexed --kind flat --whitening center",
        "train indexed --out trained --folds 2",
        f"finetune corpus.tsv --model {tiny_model()} --out tuned --epochs 1 --folds 2",
        "split corpus.tsv --folds 2 --out split.parquet",
        "predict trained corpus.tsv --out new.parquet",
    ]
    for line in lines:
        done = command(*line.split(), cwd=folder)
        assert done.returncode in (0, 3), done.stderr
    kinds: dict[str, Callable[[Path], Any]] = dict.fromkeys(STORAGES, _of_dataset)
    kinds |= {"indexed": _of_index, "trained": _of_run, "tuned": _of_run}
    kinds |= {"split.parquet": _of_split, "new.parquet": _of_predictions}
    return {
        name: (
            use,
            [p for p in sorted((folder / name).rglob("*")) if p.is_file()] or [folder / name],
        )
        for name, use in kinds.items()
    }


STORAGES = ("float32", "float16", "compact", "int8")


@quickly()
def flip(folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Flip bits, each in a file of its own; how the uses ended, and what went wrong."""
    kinds, rng = prepare(folder), random.Random(seed)
    expected = {name: use(folder / name) for name, (use, _) in kinds.items()}
    ended, wrong = Counter[str](), list[str]()
    files = [(name, file) for name, (_, files) in kinds.items() for file in files]
    rng.shuffle(files)
    for number in range(count):
        name, file = files[number % len(files)]
        whole = file.read_bytes()
        if not whole or file.name in HARMLESS:
            continue
        content = bytearray(whole)
        # footers, and headers of pages, are a small part of a file
        at = rng.choice([rng.randrange(len(whole)), -rng.randint(1, min(len(whole), 4_000))])
        content[at] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        where = f"{file.relative_to(folder)} at {at}"
        try:
            same = kinds[name][0](folder / name) == expected[name]
            ended["the same answer" if same else "another answer"] += 1
            wrong += [] if same else [f"another answer: {where}"]
        except EmbedkitError:
            ended["refused"] += 1
        except Exception as error:
            ended["other errors"] += 1
            wrong.append(f"{error!r}: {where}")
        if (folder / name).is_dir() and verify(folder / name).ok:
            wrong.append(f"verify finds nothing: {where}")
        file.write_bytes(whole)
    return ended, wrong


def main() -> int:
    """Print how many bits were refused, and what went wrong."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="embedkit-flips-") as folder:
        ended, wrong = flip(Path(folder).resolve(), options.count, options.seed)
    print(f"{options.count} bits: {dict(ended)}", *wrong[:20], sep="\n    ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
