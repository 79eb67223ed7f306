"""Held-out records: their texts, what the methods predict, lists worth reading, and neighbours.

A corpus is used only if its bytes have the hashes that the split names; otherwise texts are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedkit.comparison.load import Dataset
from embedkit.comparison.table import Compared
from embedkit.corpus.memory import InputFile
from embedkit.corpus.plan import CorpusOptions, plan_corpus
from embedkit.corpus.records import CorpusReader
from embedkit.dataset.format import is_dataset
from embedkit.dataset.read import load
from embedkit.encoding.windows import match
from embedkit.errors import MismatchError, UsageError
from embedkit.pages import in_context
from embedkit.runs.predictions import Predictions, confidence_of
from embedkit.runs.run import ClassScore, FinetuneRun, PredictionRun, ProbeRun
from embedkit.runs.scores import scores_by_class
from embedkit.storage import file_sha256
from embedkit.types import Bool, Float64, Int64
from embedkit.units.units import Units, unit_keys

LISTS = {
    "all_wrong": "wrong in all",
    "relabel": "labels to check",
    "wrong": "{chosen} wrong",
    "lost": "lost against {baseline}",
    "gained": "gained against {baseline}",
    "unsure": "unsure",
    "cut": "cut",
    "all": "all",
}
"""What a page calls the lists, in their order."""

MOST_SUSPICIONS = 20
# unsure: less than this between the two likeliest classes; sure: the probability that contradicts a
# label
_UNSURE, _SURE = 0.1, 0.9
_RIGHT_OFTEN = 0.5
# what a page can hold: columns of methods, and records with neighbours
_MOST_METHODS, _MOST_QUERIES = 12, 5_000
_NEAREST = 3
_TINY = 1e-12
_AROUND = 100


_NO_TEXTS = (
    "The texts are left out: neither a dataset with texts nor the corpus of these runs is where it "
    "was, unchanged."
)


class Cases(NamedTuple):
    """Held-out records, in the order of the input."""

    records: Predictions  # of the first method; of sets each class is a set, see as_single
    methods: dict[str, Predictions]  # that are shown, by name
    lists: dict[str, Int64]  # positions by name of the list, those to read first at the front
    view: str  # of the neighbours; empty without vectors
    near: dict[int, list[tuple[int, float]]]  # up to three others with cosines, by position
    texts: list[str | None]  # of a pair in two lines; of a word its context
    texts_note: str  # where the texts are from
    lengths: Int64 | None  # in tokens


def cases_of(compared: Compared, shown: str, *, texts: str | Path | None = None) -> Cases:
    """Return all held-out records, with lists about the method ``shown``.

    Texts are from the dataset or corpus file ``texts`` if there is one; neighbours are looked for
    in the vectors of the method, else in the view of a probe, else in the default of the dataset.
    """
    # views and lengths are those of the dataset of the method, else of the first one
    datasets = sorted(compared.datasets, key=lambda dataset: shown not in dataset.runs)
    compared = replace(compared, datasets=tuple(datasets))
    baseline = compared.baseline
    ranking = [row.name for row in compared.rows if row.kind != "majority"]
    run_names = [run.name for run in compared.runs]
    # the method that the page is about and the baseline come first, so that they survive the cut
    # below
    names = [n for n in dict.fromkeys([shown, baseline, *run_names, *ranking]) if n in ranking]
    index = compared.records.out_of_fold
    held_out = compared.records.take(index)
    # first: a file of texts that is refused is refused at once
    by_case, note = _texts(compared, held_out, texts)
    content = next((run.content for run in compared.runs if run.name == shown), None)
    lengths, cut = find_lengths(held_out.row, compared.datasets, content)
    by_name = {name: compared.predictions[name].take(index) for name in names}
    by_name = as_single(by_name) if compared.records.of_sets else by_name
    records, runs = by_name[shown], [by_name[name] for name in run_names]
    other = by_name.get(baseline) if baseline != shown else None
    # what all agree on is asked of the runs alone: blends are made of them, and would agree
    lists = _lists(records, other, runs)
    if len(runs) < 2:
        del lists["all_wrong"]  # of a single run it is the list of its own errors
    if cut is not None:
        # wrong predictions (0) before right ones
        lists["cut"] = _first(cut, is_right(records).astype(np.float64))
    # cut texts can be most of a corpus, and would use up the queries for neighbours
    listed = [i for name, positions in lists.items() if name != "cut" for i in positions.tolist()]
    view, near = _nearest(records, compared, content, listed)
    if "relabel" in lists:
        doubted, p = lists["relabel"].tolist(), runs[0]
        if view:  # most of the nearest records have the predicted label
            votes = {i: [p.y[j] == p.y_pred[i] for j, _ in near.get(i, ())] for i in doubted}
            doubted = [i for i in doubted if sum(votes[i]) >= 2]
        lists["relabel"] = np.array(doubted[:MOST_SUSPICIONS], np.int64)
    lists = {name: lists[name] for name in LISTS if name in lists and len(lists[name])}
    methods = {name: by_name[name] for name in names[:_MOST_METHODS]}
    return Cases(records, methods, lists, view, near, by_case, note, lengths)


def as_single(predictions: Mapping[str, Predictions]) -> dict[str, Predictions]:
    """Return predictions of sets of classes as predictions of one class each: the whole set.

    The probability of a set is that of its classes and of the absence of all others, as if they
    were independent.
    """
    # sets that any method predicts need a number, too, so that all share one list of classes
    matrices = [sets for p in predictions.values() for sets in (p.y, p.y_pred)]
    sets, numbers = np.unique(np.concatenate(matrices), axis=0, return_inverse=True)
    # numpy 2.0 alone returns the inverse of rows as a column
    parts = iter(np.split(numbers.ravel(), len(matrices)))
    single = {}
    for name, p in predictions.items():
        names = [" + ".join(np.array(p.classes)[row == 1].tolist()) or "(none)" for row in sets]
        logs, rest = (np.log(np.clip(q, _TINY, 1)) for q in (p.proba, 1 - p.proba))
        # logarithms, for a product of hundreds of probabilities underflows
        proba = np.exp(logs @ sets.T + rest @ (1 - sets.T))
        # taken in the order in which `matrices` was made: y, then y_pred
        changes = {"y": next(parts), "y_pred": next(parts), "proba": proba, "views": {}}
        single[name] = replace(p, classes=tuple(names), **changes)
    return single


def _lists(
    p: Predictions, other: Predictions | None, runs: Sequence[Predictions]
) -> dict[str, Int64]:
    """Positions by list, the most confident errors or the largest ones first."""
    mine, orders = _order(p), [_order(run) for run in runs]
    wrong = ~is_right(p)
    all_wrong = np.logical_and.reduce([~is_right(run) for run in runs])
    # values: orders are negative errors, so that their maximum is the error of the best method
    every = np.mean(orders, axis=0) if p.classes else np.max(orders, axis=0)
    lists = {"all_wrong": _first(all_wrong, every), "wrong": _first(wrong, mine)}
    if p.classes:
        top = np.sort(p.proba, axis=1)
        margin = top[:, -1] - top[:, -2]
        lists["relabel"] = _first(label_suspicions(runs) & all_wrong, every)
        lists["unsure"] = _first(margin < _UNSURE, margin)
    if other is not None:
        theirs = _order(other)
        gained, lost = (theirs, mine) if p.classes else (theirs - mine, mine - theirs)
        lists["gained"] = _first(~wrong & ~is_right(other), gained)
        lists["lost"] = _first(wrong & is_right(other), lost)
    return lists


def _order(p: Predictions) -> Float64:
    return -confidence_of(p) if p.classes else -np.abs(p.proba - p.y)


def is_right(p: Predictions) -> Bool:
    """True for right predictions: values are off by one standard deviation at most."""
    if p.classes:
        return np.asarray(p.y_pred == p.y)
    return np.asarray(np.abs(p.proba - p.y) <= p.y.std())


def _first(chosen: Bool, order: NDArray[Any]) -> Int64:
    """Positions that are chosen, by ascending ``order``."""
    index = np.flatnonzero(chosen)
    return np.asarray(index[np.argsort(order[index], kind="stable")], np.int64)


def label_suspicions(predictions: Sequence[Predictions]) -> Bool:
    """Return which records may have a wrong label: several methods contradict it with confidence.

    The probabilities are the mean of the methods, all of them out of fold. A record is counted for
    the likeliest class whose probability reaches the mean probability of that class among the
    records labelled so (Northcutt, Jiang & Chuang 2021, "Confident Learning", *JAIR* 70); it is
    suspicious if that is another class than its own, with a probability of 0.9 or more, and if all
    methods predict it. Methods that are wrong half of the time cannot judge.
    """
    proba = np.mean([p.proba for p in predictions], axis=0)
    y = predictions[0].y
    if len(predictions) < 2 or float(np.mean(proba.argmax(1) == y)) <= _RIGHT_OFTEN:
        return np.zeros(len(y), np.bool_)
    counts = np.bincount(y, minlength=proba.shape[1])
    sums = np.bincount(y, proba[np.arange(len(y)), y], minlength=proba.shape[1])
    # a class that no record has cannot be reached
    limit = np.full(proba.shape[1], np.inf)
    np.divide(sums, counts, out=limit, where=counts > 0)
    reached = np.where(proba >= limit, proba, -1.0)
    likeliest = reached.argmax(1)
    agreed = np.logical_and.reduce([p.y_pred == likeliest for p in predictions])
    return np.asarray((reached.max(1) >= _SURE) & (likeliest != y) & agreed)


def _nearest(
    records: Predictions, compared: Compared, content: PredictionRun | None, listed: Sequence[int]
) -> tuple[str, dict[int, list[tuple[int, float]]]]:
    """Return the view, and the three nearest other records of every record in a list.

    The view is that of a run with this ``content``, of which a blend has none.
    """
    from embedkit.search.exact import nearest

    if not compared.datasets:
        return "", {}
    views = () if content is None or isinstance(content, ProbeRun) else content.views
    if not views and compared.probes:
        # a method without vectors (TF-IDF) has no view to find neighbours in; a probe knows a good
        # one
        views = (compared.probes[0][1].chosen.name,)
    level, dataset = compared.level, compared.datasets[0]
    try:
        data = load(dataset.path, list(views) or None, level=level)
    except UsageError:  # a view of another dataset
        data = load(dataset.path, level=level)
    # (rows of the dataset) → position among the records, -1 for the test set and others
    place = match(unit_keys(data.row, data.word if level == "word" else None), records.keys)
    queries = np.flatnonzero(np.isin(place, list(dict.fromkeys(listed))[:_MOST_QUERIES]))
    if not len(queries) or len(data) < 2:
        return "", {}
    # one more than is shown, since a record is its own nearest neighbour; records that have no
    # place here cannot be linked to
    near = nearest(data, data.X[queries], k=_NEAREST + 1, chosen=place >= 0)
    of = {}
    for query, scores, around in zip(queries, *near, strict=True):
        pairs = zip(around, scores, strict=True)
        neighbours = [(int(place[i]), float(s)) for i, s in pairs if i >= 0 and i != query]
        of[int(place[query])] = neighbours[:_NEAREST]
    return "+".join(data.views), of


def by_class(
    p: Predictions, other: Predictions | None
) -> list[tuple[int, ClassScore, float | None]]:
    """Return number, scores, and recall by the other method of each class, the worst F1 first."""
    recalls = [None if other is None else score.recall for score in scores_by_class(other or p)]
    rows = [(c, score, recalls[c]) for c, score in enumerate(scores_by_class(p))]
    return sorted(rows, key=lambda row: (row[1].f1, -row[1].support))


def confused_pairs(p: Predictions, *, limit: int = 15) -> list[tuple[int, int, int]]:
    """Return true class, predicted class and count of wrong predictions, most frequent first."""
    wrong, classes = p.y != p.y_pred, len(p.classes)
    counts = np.bincount(p.y[wrong] * classes + p.y_pred[wrong], minlength=classes**2)
    cells = np.argsort(-counts, kind="stable")[:limit].tolist()
    return [(*divmod(cell, classes), int(counts[cell])) for cell in cells if counts[cell]]


def find_lengths(
    rows: Int64, datasets: Sequence[Dataset], content: PredictionRun | None
) -> tuple[Int64 | None, Bool | None]:
    """Return how many tokens the texts of ``rows`` have, and which were cut, if that is known.

    They are of the first dataset that has them all. A fine-tuned encoder has cut them at its own
    length; in windows it reads all of them.
    """
    for dataset in datasets:
        data = load(dataset.path)
        place = match(rows, data.row)
        if (place >= 0).all():
            values = np.array(data.column("n_tokens"), np.int64)[place]
            if isinstance(content, FinetuneRun):
                tokens = content.tokens
                return values, (values > tokens.max_length) & (tokens.on_long != "window")
            return values, np.array(data.column("truncated"), np.bool_)[place]
    return None, None


# texts


def _texts(
    compared: Compared, records: Predictions, texts: str | Path | None
) -> tuple[list[str | None], str]:
    """The text of each record, the context of each word, and where they are from, as a sentence."""
    path = _place_of_texts(compared, texts)
    if path is None:
        return [None] * len(records.row), _NO_TEXTS
    if is_dataset(path):
        data = load(path)
        names = ", ".join(Path(name).name for name in data.manifest.names.inputs)
        units = Units.of_dataset(data)
        note = f"Texts as stored in {path.resolve().name}, made from {names}."
    else:
        # as it was read for the first run: with another quoting or format its rows would be other
        # records
        read = compared.runs[0].content.dataset.reading or {}
        columns = {name: read.get(name) for name in ("text", "text_pair")}
        options = CorpusOptions(**read.get("dialect", {}) | columns)
        plan = plan_corpus([InputFile.of(path)], options)
        units = Units.of_records(CorpusReader(plan).records(), plan)
        named = ", ".join(repr(name) for name in (plan.text, plan.text_pair) if name)
        note = f"Texts from column {named} of {path.name}."
    by_row = dict(zip(units.row.tolist(), units.texts(separator="\n"), strict=True))
    by_case = [by_row.get(row) for row in records.row.tolist()]
    for dataset in compared.datasets if records.of_words else ():
        data = load(dataset.path, level="word")
        place = match(records.keys, unit_keys(data.row, data.word))
        if (place >= 0).all():
            spans = zip(data.start[place].tolist(), data.end[place].tolist(), strict=True)
            by_case = [
                None if text is None else in_context(text, *span, around=_AROUND)
                for text, span in zip(by_case, spans, strict=True)
            ]
            break
    return by_case, note


def _place_of_texts(compared: Compared, texts: str | Path | None) -> Path | None:
    """The dataset or corpus file that holds the texts, by its bytes; ``None`` if there is none."""
    runs = compared.runs
    source = runs[0].content.split.source
    if texts is None:
        stored = (d.path for d in compared.datasets if d.manifest.job.storage.text)
        corpora = (run.path / run.content.dataset.path for run in runs)
        unchanged = (p for p in corpora if p.is_file() and (file_sha256(p),) == source)
        return next(chain(stored, unchanged), None)
    path, from_dataset = Path(texts), is_dataset(Path(texts))
    if not from_dataset and not path.is_file():
        raise UsageError("it does not exist. Give a dataset or corpus.", texts=path)
    # rows are joined by number, so that the bytes have to be the same
    if (load(path).manifest.source if from_dataset else (file_sha256(path),)) != source:
        raise MismatchError("this is not the corpus of these runs.", texts=path)
    return path
