"""The default classifier beside plain scikit-learn on the same vectors and folds.

    python -m benchmarks.classifiers [--corpora FOLDER] [--model M...] [--records N...]
        [--only WORD] [--seed N]

For each corpus and model: out-of-fold accuracy and log-loss, and processor seconds with one thread.
Peers are ``LogisticRegressionCV`` with 7 values of C behind ``StandardScaler``, and
``LogisticRegression`` on the vectors as they are. The corpora are those of ``data/``; with
``--corpora`` also KoBEST WiC (pairs), KorSTS (the genre of a sentence), samples of NSMC and the
words of 100 sentences of two treebanks.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import accuracy_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import embedkit
from benchmarks.measure import PACKAGES, describe, table
from embedkit.choices import DEFAULT_MODEL
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.train import Frozen
from embedkit.runs.cross_validation import Problem, cross_validate
from embedkit.units.units import Units

OWN = Path(__file__).parent.parent / "data"
PEERS: dict[str, Callable[[], Any]] = {
    "LogisticRegressionCV": lambda: make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=7, scoring="neg_log_loss", max_iter=1_000)
    ),
    "LogisticRegression": lambda: LogisticRegression(max_iter=1_000),
}


def main() -> None:
    """Print one table of all corpora, and whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--model", nargs="*", default=[DEFAULT_MODEL, "multilingual"])
    parser.add_argument("--records", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--only", default="", help="a word in the names of corpora")
    parser.add_argument("--seed", type=int, default=0, help="of the folds")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    rows: list[tuple[str, ...]] = []
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, corpus, settings in corpora(options.corpora, options.records):
            for model in options.model if options.only in name else ():
                out = Path(scratch, f"{name} {Path(model).name}".replace(" ", "-"))
                embedkit.extract(corpus, out=out, model=model, **settings)
                data = embedkit.load(out, level="word" if "words" in settings else "sentence")
                ours, *peers = scores(data, options.seed)
                met = ours[1] <= peers[0][1] + 0.01 and ours[2] <= peers[0][2]
                losses.append(ours[1] - peers[0][1])
                cells = [f"{a:.3f} / {b:.3f} / {c:.1f}" for a, b, c in (ours, *peers)]
                rows.append((f"{name}, {Path(model).name}", *cells, "yes" if met else "no"))
                print(" | ".join(rows[-1]), flush=True)
    print("\naccuracy / log-loss / processor seconds; met: log-loss at most 0.01 above that of")
    print("LogisticRegressionCV, in no more time\n")
    print(table(("corpus, model", "embedkit", *PEERS, "met"), rows))
    mean = float(np.mean(losses))
    print(f"\nmean log-loss less that of LogisticRegressionCV: {mean:+.3f}", end="; ")
    print(f"met: {'yes' if mean <= 0 and all(row[-1] == 'yes' for row in rows) else 'no'}")


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


def scores(data: Any, seed: int) -> list[tuple[float, float, float]]:
    """Accuracy, log-loss and processor seconds of embedkit and its peers."""
    units = Units.of_dataset(data)
    problem = Problem.of(units, seed=seed)
    target, split = problem.target, problem.split
    method = Frozen(EstimatorSettings(), threads=1)
    found = []
    with threadpool_limits(1), warnings.catch_warnings():
        for kind in (ConvergenceWarning, FutureWarning, UserWarning):
            warnings.simplefilter("ignore", kind)
        for make in (None, *PEERS.values()):
            started = time.process_time()
            if make is None:
                made, _ = cross_validate(method, problem)
                proba = made.proba[np.argsort(made.keys)]
            else:
                proba = out_of_fold(data.X, target.y, split, make)
            seconds = time.process_time() - started
            loss = log_loss(target.y, proba / proba.sum(1, keepdims=True))
            found.append((accuracy_score(target.y, proba.argmax(1)), loss, seconds))
    return found


def out_of_fold(X: Any, y: Any, split: Any, make: Callable[[], Any]) -> Any:
    """Probabilities of every record by a model fitted on the other folds and one on all of them."""
    proba = np.zeros((len(y), y.max() + 1))
    for train, test in split.subsets():
        model = make().fit(X[train], y[train])
        proba[np.ix_(test, model.classes_)] = model.predict_proba(X[test])
    make().fit(X, y)  # as cross_validate does for the model that is kept
    return proba


if __name__ == "__main__":
    main()
