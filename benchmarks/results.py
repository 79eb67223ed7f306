"""From stored vectors to scores: what embedkit adds to bare scikit-learn, and a whole probe.

    python -m benchmarks.results --corpus ratings_train.txt [--only fitting]

``train`` is the whole call: reading the view, folds, scores with intervals, the model fitted on all
folds, figures, files. Beside it stand the bare fits on arrays that are already in memory: those of
the folds alone, and with the one on all records. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import embedkit
import embedkit.runs.folder
from benchmarks.measure import describe, in_turn, table

PACKAGES = ("scikit-learn", "lightgbm", "numpy", "torch", "pyarrow")
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="labelled, 20,000 or more")
    parser.add_argument("--only", choices=["fitting", "probing"])
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    with tempfile.TemporaryDirectory() as name:
        for section in (fitting, probing):
            if options.only in (None, section.__name__):
                section(options.corpus, Path(name))


def fitting(corpus: Path, scratch: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    embedkit.extract(corpus, out=scratch / "data", limit=20_000, precision="fp32")
    made = embedkit.split(scratch / "data", out=scratch / "split.parquet")
    data = embedkit.load(scratch / "data")
    X, y = data.X, np.asarray(data.y)
    folds = made.folds
    parts = [(np.flatnonzero(folds != f), np.flatnonzero(folds == f)) for f in range(5)]

    def learner() -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))

    def bare(*, refit: bool) -> None:
        cross_val_predict(learner(), X, y, cv=parts, method="predict_proba")
        if refit:
            learner().fit(X, y)

    def ours() -> None:
        embedkit.train(
            scratch / "data", out=scratch / "run", split=scratch / "split.parquet", overwrite=True
        )

    contestants: dict[str, Callable[[], object]] = {
        "embedkit.train, everything": ours,
        "scikit-learn, 5 folds": lambda: bare(refit=False),
        "scikit-learn, 5 folds and the fit on all": lambda: bare(refit=True),
    }
    seconds = in_turn(contestants, ROUNDS)
    base = seconds["embedkit.train, everything"]
    print(f"\n## Logistic regression on {len(X):,} × {X.shape[1]}, 5 folds\n")
    print(
        table(
            ("", "seconds", "embedkit / this"),
            [(n, f"{s:.2f}", f"{base / s:.2f} ×") for n, s in seconds.items()],
        )
    )
    cost = embedkit.runs.folder.read_run(scratch / "run").cost
    print(f"\nfits of the 5 folds inside embedkit.train: {cost.fit_seconds:.2f} s", flush=True)


def probing(corpus: Path, scratch: Path) -> None:
    embedkit.extract(
        corpus,
        out=scratch / "views",
        limit=5_000,
        layers="all",
        pooling=["cls", "mean"],
        precision="fp32",
    )
    rounds = []
    for _ in range(3):
        started = time.perf_counter()
        result = embedkit.probe(scratch / "views", out=scratch / "probe")
        rounds.append(time.perf_counter() - started)
        shutil.rmtree(scratch / "probe")
    print(
        f"\n## Probe of {len(result.content.views)} views of 5,000 records: "
        f"{sorted(rounds)[1]:.0f} s (median of 3)"
    )


if __name__ == "__main__":
    main()
