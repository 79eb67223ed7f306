"""Sets of layers against single ones, and what numbers without labels know of the labelled score.

    python -m benchmarks.layers NAME=FILE,TEXT,LABEL ... [--model MODEL ...] [--sample 300]

For every corpus and encoder all layers are probed in mean pooling, in the same folds. The first
table has accuracies of the candidate that inner folds choose, of the single layer that they choose
and of the last layer; the second one Spearman's correlation over layers of each number without
labels with the score of the layer, as a mean over the corpora.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import embedkit
from embedkit.choices import DEFAULT_MODEL
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.layers import combinations_of
from embedkit.classifiers.probe import Candidates, best_of_folds, control_task, geometry_of
from embedkit.geometry import METRICS
from embedkit.runs.cross_validation import Problem, cross_validate
from embedkit.units.units import Units


def measure(dataset: Path, *, folds: int) -> dict[str, Any]:
    """Return scores of the choice, of single layers and of the last one, and correlations."""
    data = embedkit.load(dataset)
    names = list(data.manifest.columns_of("sentences"))
    vectors = {name: embedkit.load(dataset, name).X for name in names}
    units, settings = Units.of_dataset(data), EstimatorSettings()
    problem = Problem.of(units, folds=folds)
    random = control_task(problem.target, problem.split, 0)
    combinations = combinations_of(names, mixtures=True)
    method = Candidates(names, combinations, vectors.__getitem__, settings, random)
    _, fits = cross_validate(method, problem)
    gain = method.over_last(problem, fits)
    assert gain is not None
    single = best_of_folds(fits.final[name] for name in names)
    scores = [method.estimate(problem, fits.final[name]).value for name in names]
    numbers = geometry_of(data, units, method)
    return {
        "chosen": method.estimate(problem, fits.folds).value,
        "single": method.estimate(problem, single).value,
        "last": scores[-1],
        "highest": max(scores),
        "gain": gain,
        "choices": [fit.model.name for fit in fits.folds],
        "correlations": {
            metric: float(spearmanr([numbers[n][metric] for n in names], scores).statistic)
            for metric in METRICS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="+", metavar="NAME=FILE,TEXT,LABEL")
    parser.add_argument("--model", action="append", dest="models")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--folds", type=int, default=3)
    options = parser.parse_args()
    print("| corpus | encoder | chosen | best single | last | gain over last | choices |")
    print("|---|---|---:|---:|---:|---:|---|")
    found: dict[str, list[Mapping[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models or (DEFAULT_MODEL, "multilingual"):
            for corpus in options.corpora:
                name, _, place = corpus.partition("=")
                file, text, label = place.rsplit(",", 2)
                out = Path(folder, f"{name}-{Path(model).name}")
                columns: dict[str, Any] = {"text": text, "label": label, "sample": options.sample}
                embedkit.extract(
                    file, out=out, model=model, layers="all", pooling="mean", tokens=True, **columns
                )
                one = measure(out, folds=options.folds)
                found.setdefault(Path(model).name, []).append(one)
                scores = " | ".join(f"{100 * one[key]:.1f}" for key in ("chosen", "single", "last"))
                gain = one["gain"]
                ends = f"{100 * gain.value:+.1f} ({100 * gain.low:.1f} to {100 * gain.high:.1f})"
                choices = "; ".join(one["choices"])
                print(
                    f"| {name} | {Path(model).name} | {scores} | {ends} | {choices} |", flush=True
                )
    print("\n| encoder | " + " | ".join(METRICS) + " |\n|---|" + "---:|" * len(METRICS))
    for model, rows in found.items():
        cells = []
        for metric in METRICS:
            values = [row["correlations"][metric] for row in rows]
            cells.append(f"{np.nanmean(values):+.2f} ({min(values):+.2f} to {max(values):+.2f})")
        print(f"| {model} | {' | '.join(cells)} |")
    every = [row["chosen"] - row["single"] for rows in found.values() for row in rows]
    print(f"\nchosen less best single, mean of {len(every)}: {100 * np.mean(every):+.2f} points")


if __name__ == "__main__":
    main()
