"""The default classifier beside plain scikit-learn on the same vectors and folds.

    python -m benchmarks.classifiers [--corpora FOLDER] [--model M...] [--records N...]
        [--only WORD] [--seed N]

For each corpus: out-of-fold accuracy and log-loss with 95 % intervals, and processor seconds, all
with one thread (below 1,000 records the median of three rounds in turn). Peers are
``LogisticRegression()`` on the vectors as they are, the same behind ``Normalizer``, and
``LogisticRegressionCV(Cs=10)`` behind ``StandardScaler``. The values that tuning tries are also
fitted by ``LogisticRegression(warm_start=True)``, to show what own code is for. The corpora are
those of ``data/``; with ``--corpora`` also KoBEST WiC (pairs), KorSTS (the genre of a sentence),
samples of NSMC and the words of 100 sentences of two treebanks.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from threadpoolctl import threadpool_limits

import embedkit
from benchmarks.cpu import PACKAGES
from benchmarks.measure import describe, table
from embedkit.choices import DEFAULT_MODEL
from embedkit.classifiers.estimators import TABLE, EstimatorSettings
from embedkit.classifiers.folds import cross_validate
from embedkit.classifiers.logistic import LogisticPath, in_row_space, tolerance, with_slope
from embedkit.classifiers.scaling import CommonScaler
from embedkit.classifiers.train import split_for, target_of
from embedkit.runs.metrics import Score, classification_scores

OWN = Path(__file__).parent.parent / "data"
SHOWN = ("accuracy", "log_loss")
_SHOWN_VALUE = 10.0
PEERS: dict[str, Callable[[], Any]] = {
    "LogisticRegression": lambda: LogisticRegression(max_iter=1_000),
    "Normalizer + LR": lambda: make_pipeline(Normalizer(), LogisticRegression(max_iter=1_000)),
    "LogisticRegressionCV": lambda: make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=10, max_iter=1_000)
    ),
}


def main() -> None:
    """Print one table per corpus, and what of the goals holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--model", nargs="*", default=[DEFAULT_MODEL])
    parser.add_argument("--records", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--only", default="", help="a word in the names of corpora")
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, corpus, settings in corpora(options.corpora, options.records):
            for model in options.model if options.only in name else ():
                out = Path(scratch, f"{name} {Path(model).name}".replace(" ", "-"))
                embedkit.extract(corpus, out=out, model=model, **settings)
                data = embedkit.load(out, level="word" if "words" in settings else "sentence")
                compare(f"{name}, {Path(model).name}", data, options.seed)


def corpora(folder: Path | None, records: list[int]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, file or table, and reading options of each corpus."""
    for language in ("en", "ko"):
        yield f"reviews {language}", OWN / f"reviews_{language}.tsv", {}
        yield f"requests {language}", OWN / f"requests_{language}.tsv", {"label": "intent"}
    if folder is None:
        return
    pair = {"text": "SENTENCE1", "text_pair": "SENTENCE2", "label": "ANSWER", "id": "ID"}
    wic = pd.read_csv(folder / "kobest_wic/train.tsv", sep="\t", quoting=csv.QUOTE_NONE, dtype=str)
    yield "KoBEST WiC", wic.assign(ANSWER=wic.ANSWER.str.strip().str.lower()), pair
    genre = {"text": "sentence1", "label": "genre"}
    yield "KorSTS, genre", folder / "korsts/sts-train.tsv", genre
    for count in records:
        yield f"NSMC {count:,}", folder / "nsmc/ratings_train.txt", {"sample": count}
    words = {"words": "mean", "word_label": "upos", "limit": 100}
    yield "UD English EWT", folder / "ud_english_ewt/en_ewt-ud-dev.conllu", words
    yield "UD Korean GSD", folder / "ud_korean_gsd/ko_gsd-ud-dev.conllu", words


def compare(name: str, data: Any, seed: int) -> None:
    """Print the table of one corpus."""
    target = target_of(data, "classification")
    split = split_for(data, None, folds=5, seed=seed)
    kinds: dict[str, Callable[[], Any]] = {
        "embedkit": lambda: cross_validate(data.X, target, split, EstimatorSettings(), threads=1),
        **{peer: partial(out_of_fold, data.X, target.y, split, make)
           for peer, make in PEERS.items()},
    }  # fmt: skip
    found: dict[str, Any] = {}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    with threadpool_limits(1), warnings.catch_warnings():
        for kind in (ConvergenceWarning, FutureWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        for _ in range(3 if len(target.y) < 1_000 else 1):
            for kind, one in kinds.items():
                started = time.process_time()
                found[kind] = one()
                taken[kind].append(time.process_time() - started)
        path = paths(data.X, target, split)
    seconds = {kind: float(np.median(times)) for kind, times in taken.items()}
    ours = found["embedkit"].predictions
    order = np.argsort(ours.row)
    found["embedkit"] = ours.proba[order]
    found["majority"] = ours.majority().proba[order]
    scores = {n: classification_scores(target.y, p, p.argmax(1)) for n, p in found.items()}
    rows = [
        (n, *(_shown(scores[n][m]) for m in SHOWN), f"{seconds[n]:.2f}" if n in seconds else "")
        for n in found
    ]
    print(f"\n{name}: {len(target.y):,} records, {len(target.classes)} classes")
    print(table(("classifier", *SHOWN, "processor seconds"), rows), flush=True)
    loss, accuracy = (np.array([scores[n][m].value for n in PEERS]) for m in SHOWN[::-1])
    mine = scores["embedkit"]
    goals = {
        "log-loss no worse than the majority's":
            mine["log_loss"].value <= scores["majority"]["log_loss"].value,
        "log-loss within its interval of the best peer's": mine["log_loss"].low <= loss.min(),
        "accuracy within its interval of the best peer's":
            mine["accuracy"].high >= accuracy.max(),
        "at most half of LogisticRegressionCV's time":
            seconds["embedkit"] <= 0.5 * seconds["LogisticRegressionCV"],
    }  # fmt: skip
    for goal, met in goals.items():
        print(f"  {goal}: {'met' if met else 'NOT met'}", flush=True)
    for name, (took, error) in path.items():
        print(f"  a path of inner fits, {name}: {took:.1f} ms, mean error at C = {_SHOWN_VALUE:g}: "
              f"{error:.5f}", flush=True)  # fmt: skip


def paths(X: Any, target: Any, split: Any, rounds: int = 5) -> dict[str, tuple[float, float]]:
    """Of the values of C on one training set, by us and by scikit-learn: milliseconds and error.

    Processor milliseconds of all values, and the mean distance of the probabilities at C = 10 from
    those at the minimum.
    """
    train, _ = split.fold(0, 0)
    y, values = target.y[train], TABLE["logreg"].values
    scale = make_pipeline(Normalizer(), CommonScaler())
    scaled = scale.fit_transform(X[train])
    plain = partial(LogisticRegression, max_iter=10_000, C=_SHOWN_VALUE)
    best = plain(tol=1e-8).fit(scaled, y).predict_proba(scaled)

    def ours() -> Any:
        narrow: Any = scale.fit_transform(in_row_space(X[train]))
        path, last = LogisticPath(narrow, y, len(target.classes)), narrow
        for value in values:
            path.fit(value)
            if value == _SHOWN_VALUE:
                last = path.scores(narrow)
        return with_slope(last, 1.0)

    def theirs() -> Any:
        scaled = last = scale.fit_transform(X[train])
        one = plain(warm_start=True, tol=tolerance(len(y), most=1e-3))
        for value in values:
            one.set_params(C=value).fit(scaled, y)
            if value == _SHOWN_VALUE:
                last = one.predict_proba(scaled)
        return last

    found: dict[str, tuple[float, float]] = {}
    for name, fit in {"ours": ours, "LogisticRegression": theirs}.items():
        taken = []
        for _ in range(rounds):
            started = time.process_time()
            proba = fit()
            taken.append(1_000 * (time.process_time() - started))
        found[name] = float(np.median(taken)), float(np.abs(proba - best).mean())
    return found


def out_of_fold(X: Any, y: Any, split: Any, make: Callable[[], Any]) -> Any:
    """Probabilities of every record by a model fitted on the other folds and one on all of them."""
    proba = np.empty((len(y), y.max() + 1))
    for fold in range(split.n_folds):
        train, test = split.fold(0, fold)
        proba[test] = make().fit(X[train], y[train]).predict_proba(X[test])
    make().fit(X, y)  # as cross_validate does for the model that is kept
    return proba


def _shown(score: Score) -> str:
    return f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"


if __name__ == "__main__":
    main()
