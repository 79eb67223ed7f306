"""Published scores of all-MiniLM-L6-v2 that data on GitHub reproduce, one line for each task.

    git clone https://github.com/OWNER/NAME FOLDER/NAME        of the repositories that --list shows
    python -m benchmarks.published FOLDER [--task STS13 ...] [--model MODEL]
    python -m benchmarks.published FOLDER --layers

The published values are the results of MTEB (embeddings-benchmark/results, revision 8b3219a9 of the
model). Pairs: Spearman's correlation of cosines with the human scores. Classification: MTEB's own
protocol (:mod:`benchmarks.mteb`). Tasks whose files are not there are left out and said to be.

``--layers`` gives the same files to the tasks of MTEB itself, and times ``embedkit.mteb.by_layer``
of the last layer alone and of all layers, one after the other, three times.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scipy.stats import spearmanr

import embedkit
from benchmarks.measure import describe, table
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
    quoting: Literal["none", "csv"] = "none"
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


def pairs_of(task: Task, folder: Path) -> list[Pair]:
    """Return texts and scores of the pairs that people scored."""
    score, first, second = task.columns
    pairs = []
    for file in task.files:
        for row in _rows(task, folder / file):
            value = row[score]
            value = value["real-label"] if isinstance(value, dict) else value
            # quotes that span lines leave rows without their last cells
            if value not in ("", None) and row[second] is not None:
                pairs.append((row[first], row[second], float(value)))
    if task.shuffled:
        random.Random(42).shuffle(pairs)
    return pairs[-task.shuffled :]  # all of them, where it is 0


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
        pairs = pairs_of(task, folder)
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


def mteb_task(name: str, folder: Path) -> Any:
    """Return the task of MTEB, with the data of its files."""
    import mteb
    from datasets import Dataset, DatasetDict

    task = TASKS[name]
    if task.repository == _REVIEWS:
        subset = name[-3:-1]
        found = mteb.get_task(
            "AmazonCounterfactualClassification", hf_subsets=[subset], eval_splits=["test"]
        )
    else:
        subset, found = "", mteb.get_task(name)
    if not task.samples:
        columns = zip(*pairs_of(task, folder), strict=True)
        parts = dict(zip(("sentence1", "sentence2", "score"), map(list, columns), strict=True))
        found.dataset = DatasetDict({found.eval_splits[0]: Dataset.from_dict(parts)})
    else:
        text, label = task.columns
        rows = [list(_rows(task, folder / file)) for file in task.files]
        classes = sorted({row[label] for row in rows[0]})
        found.dataset = DatasetDict(
            {
                split: Dataset.from_dict(
                    {
                        "text": [row[text] for row in part],
                        "label": [classes.index(row[label]) for row in part],
                    }
                )
                for split, part in zip(("train", "test"), rows, strict=True)
            }
        )
        if subset:
            found.dataset = {subset: found.dataset}
    found.data_loaded = True
    return found


def _folder(name: str, folder: Path) -> Path | None:
    """The clone that has all files of a task, if there is one."""
    task = TASKS[name]
    clone = folder / task.repository.rpartition("/")[2]
    return clone if all((clone / file).is_file() for file in task.files) else None


def layers(folders: Mapping[str, Path], encoder: embedkit.Encoder, *, rounds: int = 3) -> None:
    """Print what the table of all layers takes, as multiples of that of the last one."""
    from embedkit.mteb import by_layer

    last = f"mean_{encoder.n_layers}"
    seconds: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in folders}
    scores = {}
    for _ in range(rounds):
        for name, folder in folders.items():
            for which, views in ((1, [last]), (2, [])):
                task = mteb_task(name, folder)
                started = time.perf_counter()
                frame = by_layer([task], encoder, views=views)
                seconds[name][which].append(time.perf_counter() - started)
                scores[name] = 100 * float(frame[last].iloc[0])
    one, every = (
        {name: statistics.median(taken[which]) for name, taken in seconds.items()}
        for which in (1, 2)
    )
    one["all of them"], every["all of them"] = sum(one.values()), sum(every.values())
    rows = []
    for name in one:
        known = (
            [f"{TASKS[name].published:.2f}", f"{scores[name]:.2f}"] if name in TASKS else ["", ""]
        )
        ratio = f"{every[name] / one[name]:.2f}"
        rows.append([name, *known, f"{one[name]:.1f}", f"{every[name]:.1f}", ratio])
    print(describe(["embedkit", "torch", "scikit-learn", "mteb"]), "\n")
    print(table(["task", "published", "here", "s, last layer", "s, all layers", "ratio"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--task", action="append", choices=TASKS)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--layers", action="store_true", help="time all layers beside the last one")
    options = parser.parse_args()
    if options.list:
        for name, task in TASKS.items():
            print(f"{name:26} {task.repository:60} {', '.join(task.files)}")
        return
    encoder = embedkit.Encoder(options.model, device="cpu")
    if options.layers:
        named = {name: _folder(name, options.folder) for name in options.task or TASKS}
        layers({name: found for name, found in named.items() if found}, encoder)
        return
    print("| task | published | here | difference |\n|---|---:|---:|---:|")
    near = []
    for name in options.task or TASKS:
        task, folder = TASKS[name], _folder(name, options.folder)
        if folder is None:
            print(f"| {name} | {task.published:.2f} | no files of {task.repository} | |")
            continue
        score = score_of(task, folder, encoder)
        near.append(abs(score - task.published) < 0.1)
        distance = score - task.published
        print(f"| {name} | {task.published:.2f} | {score:.2f} | {distance:+.2f} |", flush=True)
    print(f"\n{sum(near)} of {len(near)} within 0.1")


if __name__ == "__main__":
    main()
