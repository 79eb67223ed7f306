"""Published scores of all-MiniLM-L6-v2 that data on GitHub reproduce, one line for each task.

    git clone https://github.com/OWNER/NAME FOLDER/NAME        of the repositories that --list shows
    python -m benchmarks.published FOLDER [--task STS13 ...] [--model MODEL]

The published values are the results of MTEB (embeddings-benchmark/results, revision 8b3219a9 of the
model). Pairs: Spearman's correlation of cosines with the human scores. Classification: MTEB's own
protocol (:mod:`benchmarks.mteb`). Tasks whose files are not there are left out and said to be.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import spearmanr

import embedkit
from benchmarks.mteb import mteb_protocol
from embedkit.choices import DEFAULT_MODEL
from embedkit.encoding.views import l2_normalize

Pair = tuple[str, str, float]


class Task(NamedTuple):
    """A task: where its files are, and how they are read.

    ``columns`` are those of score and texts, or of text and label; numbers without a header.
    """

    repository: str
    files: tuple[str, ...]  # of a classification training and test set
    columns: tuple[Any, ...]
    published: float
    samples: int = 0  # records of each label in an experiment of a classification
    quoting: str = "none"
    shuffled: int = 0  # the test set is so many pairs at the end, after a shuffle by seed 42


_STS, _DATA = "brmson/dataset-sts", "data/sts/semeval-sts"
_REVIEWS = "amazon-science/amazon-multilingual-counterfactual-dataset"


def _semeval(year: int, published: float, *names: str) -> Task:
    files = tuple(f"{_DATA}/{year}/{name}.test.tsv" for name in names)
    return Task(_STS, files, (0, 1, 2), published)


def _counterfactual(language: str, published: float) -> Task:
    # quotes as MTEB reads them: the numbers of characters in its statistics are those
    files = (f"data/{language}_train.tsv", f"data/{language}_test.tsv")
    columns = ("sentence", "is_counterfactual")
    return Task(_REVIEWS, files, columns, published, samples=32, quoting="csv")


TASKS = {
    "STSBenchmark": Task(
        "stsb_en", ("test.tsv",), ("score", "sentence1", "sentence2"), 82.03, quoting="csv"
    ),
    "STS13": _semeval(2013, 80.60, "FNWN", "OnWN", "headlines"),
    "STS14": _semeval(
        2014, 75.59, "OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"
    ),
    "STS15": _semeval(
        2015, 85.39, "answers-forums", "answers-students", "belief", "headlines", "images"
    ),
    "STS16": _semeval(
        2016, 78.99, "answer-answer", "headlines", "plagiarism", "postediting", "question-question"
    ),
    "SICK-R": Task(
        _STS,
        tuple(
            f"data/sts/sick2014/SICK_{part}.txt" for part in ("train", "trial", "test_annotated")
        ),
        ("relatedness_score", "sentence_A", "sentence_B"),
        77.58,
    ),
    # its published value is one of quotes read as those of CSV, which costs three pairs:
    # taken literally, all 1,379 pairs give 42.18
    "KorSTS": Task(
        "korsts", ("sts-test.tsv",), ("score", "sentence1", "sentence2"), 42.30, quoting="csv"
    ),
    # not the test set of its makers: MTEB has a fifth of all pairs, whose numbers of characters, of
    # distinct texts and mean score are those of the last 1,986 after random.Random(42).shuffle
    "JSICK": Task(
        "verypluming/JSICK",
        ("jsick/jsick.tsv",),
        ("relatedness_score_Ja", "sentence_A_Ja", "sentence_B_Ja"),
        71.33,
        shuffled=1_986,
    ),
    "JSTS": Task(
        "yahoojapan/JGLUE",
        ("datasets/jsts-v1.3/valid-v1.3.json",),
        ("label", "sentence1", "sentence2"),
        62.65,
    ),
    "KLUE-STS": Task(
        "KLUE-benchmark/KLUE",
        ("klue_benchmark/klue-sts-v1.1/klue-sts-v1.1_dev.json",),
        ("labels", "sentence1", "sentence2"),
        22.36,
    ),
    "Banking77Classification": Task(
        "PolyAI-LDN/task-specific-datasets",
        ("banking_data/train.csv", "banking_data/test.csv"),
        ("text", "category"),
        80.04,
        samples=8,
        quoting="csv",
    ),
    "AmazonCounterfactual (en)": _counterfactual("EN", 63.64),
    "AmazonCounterfactual (de)": _counterfactual("DE", 57.82),
    "AmazonCounterfactual (ja)": _counterfactual("JP", 60.90),
}


def pairs_of(task: Task, folder: Path) -> Iterator[Pair]:
    """Yield texts and scores of the pairs that people scored."""
    score, first, second = task.columns
    for file in task.files:
        for row in _rows(task, folder / file):
            value = row[score]
            value = value["real-label"] if isinstance(value, dict) else value
            # quotes that span lines leave rows without their last cells
            if value not in ("", None) and row[second] is not None:
                yield row[first], row[second], float(value)


def _rows(task: Task, file: Path) -> Iterator[Any]:
    text = file.read_text("utf-8")
    if file.suffix == ".json":
        yield from json.loads(text) if text[0] == "[" else map(json.loads, text.splitlines())
        return
    quoting = csv.QUOTE_NONE if task.quoting == "none" else csv.QUOTE_MINIMAL
    options: Any = {"delimiter": "," if file.suffix == ".csv" else "\t", "quoting": quoting}
    lines = text.split("\n")  # a text may hold other ends of lines
    if isinstance(task.columns[0], int):
        yield from (row for row in csv.reader(lines, **options) if row)
    else:
        yield from csv.DictReader(lines, **options)


def score_of(task: Task, folder: Path, encoder: embedkit.Encoder) -> float:
    """Return the score of a task in per cent."""
    if not task.samples:
        pairs = list(pairs_of(task, folder))
        if task.shuffled:
            random.Random(42).shuffle(pairs)
            pairs = pairs[-task.shuffled :]
        a, b, scores = zip(*pairs, strict=True)
        texts = list(dict.fromkeys([*a, *b]))
        unit = l2_normalize(encoder.encode(texts))
        rows = {text: row for row, text in enumerate(texts)}
        cosines = (unit[[rows[t] for t in a]] * unit[[rows[t] for t in b]]).sum(1)
        return 100 * float(spearmanr(cosines, scores).statistic)
    with tempfile.TemporaryDirectory() as made:
        text, label = task.columns
        parts = [
            embedkit.extract(
                folder / file,
                out=Path(made, str(number)),
                text=text,
                label=label,
                quoting=task.quoting,
                model=str(encoder.checkpoint.folder),
            ).out
            for number, file in enumerate(task.files)
        ]
        return 100 * mteb_protocol(*parts, samples_per_label=task.samples).accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, task in TASKS.items():
            print(f"{name:26} {task.repository:60} {', '.join(task.files)}")
        return
    encoder = embedkit.Encoder(options.model, device="cpu")
    print("| task | published | here | difference |\n|---|---:|---:|---:|")
    near = []
    for name in options.task or TASKS:
        task = TASKS[name]
        folder = options.folder / task.repository.rpartition("/")[2]
        if not all((folder / file).is_file() for file in task.files):
            print(f"| {name} | {task.published:.2f} | no files of {task.repository} | |")
            continue
        score = score_of(task, folder, encoder)
        near.append(abs(score - task.published) < 0.1)
        distance = score - task.published
        print(f"| {name} | {task.published:.2f} | {score:.2f} | {distance:+.2f} |", flush=True)
    print(f"\n{sum(near)} of {len(near)} within 0.1")


if __name__ == "__main__":
    main()
