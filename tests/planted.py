"""Leaks and wrong numbers, planted in copies of the program, that the named tests must notice.

    python -m tests.planted [--only WORD]

Each row replaces one piece of source, which must be there exactly once, and runs test files on the
copy until the first failure. One after which they all pass has survived.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fault:
    """What is planted where, and which test files should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    # thresholds, weights and blends that see what they are scored on
    Fault("fine-tuned threshold learnt on the held-out fold", "finetuning/validation.py",
          "threshold.choose(y[~held], p[~held])", "threshold.choose(y[held], p[held])",
          "finetune_methods finetune"),
    Fault("one threshold for a single model and for the mean of all", "finetuning/validation.py",
          "return each, threshold.choose(y, proba.mean(axis=0))", "return each, each[0]",
          "finetune_methods finetune"),
    Fault("threshold chosen on records that the model was fitted on", "classifiers/folds.py",
          "cut = threshold.choose(inner.y, inner.proba[:, 1])",
          "fitted_on = predict_proba(result.fitted.pipeline, take(features, train), target)\n"
          "                cut = threshold.choose(target.y[train], fitted_on[:, 1])",
          "results classifiers"),
    Fault("blend's threshold learnt on the held-out fold", "comparison/blend.py",
          "chosen = threshold.choose(y, apply(known)[:, 1])",
          "chosen = threshold.choose(records.y[test], proba[test][:, 1])", "compare"),
    Fault("blend's weights learnt on the held-out fold", "comparison/blend.py",
          "known, y = _inner(runs, test) if has_inner else (_of(runs, train), records.y[train])",
          "known, y = _of(runs, test), records.y[test]", "compare"),
    Fault("stack on out-of-fold predictions of the other folds", "comparison/blend.py",
          "known, y = _inner(runs, test) if has_inner else",
          "known, y = _inner(runs, test) if False else", "compare"),
    # inner folds, groups and duplicates
    Fault("inner folds divide groups", "classifiers/tuning.py",
          "self._strata, self._group = target.strata[train], split.group[train]",
          "self._strata, self._group = target.strata[train], train", "results classifiers splits"),
    Fault("validation records divide groups", "finetuning/validation.py",
          "trains=trains, group=self.split.group,", "trains=trains, group=self.split.row,",
          "finetune_methods finetune"),
    Fault("the same text in two folds", "runs/splits.py",
          "None if allow_duplicates else records.keys, records.groups, len(records.row)",
          "None, records.groups, len(records.row)", "splits"),
    Fault("intervals and tests of records instead of units", "runs/resampling.py",
          "names, block = np.unique(unit, return_inverse=True)",
          "names, block = np.unique(np.arange(len(unit)), return_inverse=True)", "resampling"),
    # what is learnt outside of the training records
    Fault("scaler and components fitted on all records", "classifiers/tuning.py",
          "X = steps.fit_transform(self._X)", "X = steps.fit(self._all).transform(self._X)",
          "results classifiers"),
    Fault("vocabulary of all texts", "classifiers/tuning.py",
          "X = steps.fit_transform(self._X)",
          "X = steps.fit(self._all if isinstance(self._all, list) else self._X)"
          ".transform(self._X)", "results classifiers"),
    Fault("class weights of fine-tuning from all records", "finetuning/run.py",
          "y = target.y[train]\n        settings", "y = target.y\n        settings",
          "finetune_methods finetune heads"),
    Fault("the majority sees its own fold", "runs/predictions.py",
          "y = self.y[train] if len(train) else", "y = self.y[test] if len(train) else",
          "results finetune scores"),
    Fault("the best view is chosen by the held-out records", "classifiers/probe.py",
          "max(self._names, key=lambda n: results[n][f].fitted.choice.score)",
          "max(self._names, key=lambda n: self._right(results[n][f], f))", "results classifiers"),
    Fault("the layer of a word test is chosen on the test pairs", "words/wic.py",
          "max(layers, key=lambda one: one.train)", "max(layers, key=lambda one: one.test.value)",
          "words"),
    Fault("a use is its own nearest use", "words/senses.py",
          "compared = (rows[:, None] != rows) & (texts[:, None] != texts)",
          "compared = np.ones((len(rows), len(rows)), bool)", "senses words"),
    # the wrong test, metric, class or weight
    Fault("verdicts without correction", "comparison/compare.py",
          "found = [p for p in (self.p_corrected, self.p_repeats) if p is not None]",
          "found = [p for p in (self.p, self.p_repeats) if p is not None]",
          "compare findings report"),
    Fault("p of accuracy whatever the metric", "comparison/compare.py",
          "tested = {name: found[metric] for name, found in self._metrics.items()}",
          "tested = {name: found.get('accuracy', found[metric]) for name, found in "
          "self._metrics.items()}", "compare"),
    Fault("McNemar over all repeats", "comparison/compare.py",
          "self._records.repeat == self._records.repeat.min()", "self._records.repeat >= 0",
          "compare"),
    Fault("target of a regression not scaled", "classifiers/estimators.py",
          'if settings.task == "regression" and row.scaled_target:\n        from',
          "if False:\n        from",
          "classifiers results"),
    Fault("class weights ignored", "classifiers/tuning.py",
          'more["sample_weight"] = self._weight[train]', "pass", "classifiers results"),
    Fault("class weights ignored in inner folds", "classifiers/tuning.py",
          "weight = None if self._weight is None else self._weight[train]", "weight = None",
          "classifiers results"),
    Fault("columns of probabilities in another order", "classifiers/tuning.py",
          "whole[:, pipeline.classes_] = found", "whole[:, pipeline.classes_[::-1]] = found",
          "classifiers results"),
    Fault("classes sorted as text", "runs/targets.py",
          "classes = tuple(sorted(names.tolist(), key=_in_order))",
          "classes = tuple(sorted(names.tolist(), reverse=True))", "results scores runs"),
    Fault("a path of values that stops before their optima", "classifiers/logistic.py",
          "_GRADIENT, _ROUNDING = 3e-4, 1e-6", "_GRADIENT, _ROUNDING = 0.1, 1e-6", "classifiers"),
    Fault("a path of sparse values that stops before their optima", "classifiers/logistic.py",
          "_RECORD_TOLERANCE = 0.3", "_RECORD_TOLERANCE = 3e3", "classifiers"),
    Fault("a slope that keeps what was learnt by chance", "classifiers/logistic.py",
          "(1 - 1 / chi_square) if chi_square > 1 else 0.0", "max(1.0, float(found.x))",
          "classifiers"),
    Fault("a slope of coefficients that moves the intercept", "classifiers/logistic.py",
          "estimator.intercept_ = estimator.intercept_ + (1 - slope) * centre", "pass",
          "classifiers"),
    # training
    Fault("biases and norms decay", "finetuning/parameters.py",
          "_WEIGHT_DECAY if parameter.ndim > 1 else 0.0", "_WEIGHT_DECAY",
          "finetune_methods finetune heads"),
    Fault("no weight decay", "finetuning/parameters.py",
          "_WEIGHT_DECAY if parameter.ndim > 1 else 0.0", "0.0",
          "finetune_methods finetune heads"),
    Fault("no gradient clipping", "finetuning/training.py",
          "logging_nan_inf_filter=False,", "logging_nan_inf_filter=False, max_grad_norm=0.0,",
          "finetune_methods finetune heads"),
    Fault("layer decay upside down", "finetuning/parameters.py",
          "rate *= options.layer_decay ** (top - depths.get(name, top))",
          "rate *= options.layer_decay ** depths.get(name, top)",
          "finetune_methods finetune heads"),
    # controls and protocols
    Fault("an encoder at random keeps trained weights", "classifiers/controls.py",
          "fresh = type(module)(module.config).to(next(module.parameters()).dtype)",
          "fresh = type(module)(module.config).to(next(module.parameters()).dtype)\n"
          "    kept = {n: v for n, v in module.state_dict().items() if v.ndim > 1}\n"
          "    fresh.load_state_dict(kept, strict=False)", "classifiers results"),
    Fault("records of the protocol drawn by another generator", "../benchmarks/mteb.py",
          "np.random.RandomState(_SEED).shuffle(order)",
          "np.random.default_rng(_SEED).shuffle(order)", "mteb"),
    Fault("one record per label fewer in the protocol", "../benchmarks/mteb.py",
          "if taken.get(y[i], 0) < count:", "if taken.get(y[i], 0) < count - 1:", "mteb"),
)  # fmt: skip

HELPERS = {
    "classifiers/tuning.py": (
        "records = _Records(take(features, train), target, split, train, settings)",
        "records = _Records(take(features, train), target, split, train, settings)\n"
        "    records._all = features",
    ),
    "classifiers/probe.py": (
        "    def _fit_plain(",
        "    def _right(self, result, f):\n"
        "        y = self._target.y[self._folds[f][1]]\n"
        "        return (result.proba.argmax(1) == y).mean() if self._target.classes else "
        "-((result.proba - y) ** 2).mean()\n\n    def _fit_plain(",
    ),
}
"""Pieces that give a fault what it needs, harmless by themselves."""


def plant(fault: Fault, folder: Path) -> None:
    """Copy the program and its tests into a folder, with the fault.

    Raises:
        ValueError: the source is not there exactly once.
    """
    ignored = shutil.ignore_patterns("__pycache__", ".*", "outputs", "*.incomplete")
    for part in ("embedkit", "benchmarks", "tests", "data", "docs", "pipelines"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile"):
        shutil.copy(ROOT / name, folder)
    path = folder / "embedkit" / fault.file
    source = path.read_text("utf-8")
    helper = [HELPERS[fault.file]] if fault.file in HELPERS else []
    for old, new in ((fault.old, fault.new), *helper):
        if source.count(old) != 1:
            raise ValueError(f"{fault.name}: {old!r} is {source.count(old)} times in {fault.file}")
        source = source.replace(old, new)
    path.write_text(source, "utf-8")


def survives(fault: Fault) -> str:
    """Return the test that noticed, or nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(fault, folder)
        files = [f"tests/test_{one}.py" for one in fault.tests.split()]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header",
             "-m", "not network and not gpu and not slow", *files],
            cwd=folder, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
    if ran.returncode == 1 and failed:
        return failed[0].removeprefix("FAILED tests/")
    if ran.returncode == 0:
        return ""
    raise RuntimeError(f"{fault.name}: pytest ended with {ran.returncode}\n{ran.stdout[-2000:]}")


def main() -> None:
    """Plant every fault, print who noticed, and fail if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name has these words")
    options = parser.parse_args()
    survivors = 0
    for fault in (one for one in FAULTS if options.only in one.name):
        noticed = survives(fault)
        survivors += not noticed
        print(f"{fault.name}: {noticed or 'SURVIVED'}", flush=True)
    raise SystemExit(f"{survivors} survived" if survivors else 0)


if __name__ == "__main__":
    main()
