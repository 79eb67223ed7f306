"""Run folders from arrays, as train and finetune write them, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy import special

from embedkit.classifiers.train import side_by_side
from embedkit.classifiers.train import train as train_tuned
from embedkit.dataset.format import Names
from embedkit.dataset.settings import ModelRecord
from embedkit.runs.folder import RunResult, read_run, write_run
from embedkit.runs.intervals import Score, estimates
from embedkit.runs.metrics import metrics_for
from embedkit.runs.predictions import Predictions, Subset, write_predictions
from embedkit.runs.run import Cost, DatasetContent, ProbeRun, ReportedScore, TrainRun, ViewScore
from embedkit.runs.split import Split, SplitSettings, assign_folds
from embedkit.storage import seal
from embedkit.units.target import Target
from embedkit.units.units import Units
from tests.models import state

SOURCE = ("ab" * 32,)
Run = TypeVar("Run")


def train(dataset: Any, *, tune: bool = False, **options: Any) -> RunResult[TrainRun]:
    """``embedkit.train`` for tests whose subject is not how hyperparameters are chosen."""
    return train_tuned(dataset, tune=tune, **options)


def run_of(folder: Path, kind: type[Run]) -> Run:
    """What is recorded of a run, which has to be of this kind."""
    content = read_run(folder)
    assert isinstance(content, kind)
    return content


def one_by_one(tasks: Any, **_: Any) -> list[Any]:
    """Take the place of ``side_by_side``: one task after the other, in their order."""
    return side_by_side(tasks, threads=1)


def split_of(y: Any, *, group: Any = None, folds: int = 5) -> Split:
    """Folds of so many records, the classes spread evenly; those of a group share one."""
    row = np.arange(len(y))
    group = row if group is None else group
    strata = y if y.dtype == np.int64 else np.zeros(len(y), np.int64)
    settings = SplitSettings(source=SOURCE, folds=folds, seed=0, stratified=True)
    return Split(row, group, assign_folds(strata, group, folds, seed=0), settings)


def units_with(inputs: Any, **fields: Any) -> Units:
    """Records whose inputs are these rows of a matrix, or texts."""
    texts = inputs if isinstance(inputs, list) else [str(i) for i in range(len(inputs))]
    units = Units.of_texts(texts, **fields)
    return units if texts is inputs else replace(units, inputs=inputs.__getitem__)


def predictions_of(target: Target, proba: np.ndarray, folds: np.ndarray) -> Predictions:
    """Those of each fold joined, of records that are units of their own; -1 is the test set."""
    row = np.arange(len(proba))
    units = units_with(list(map(str, row)))
    parts = [
        Subset(units=units.take(index), group=index, target=target.take(index)).predictions(
            proba[index], fold=fold, threshold=None
        )
        for fold in np.unique(folds).tolist()
        for index in [np.flatnonzero(folds == fold)]
    ]
    return Predictions.joined(parts)


def scores_of(
    y: Any, proba: Any, predicted: Any = None, *, unit: Any = None, beta: float | None = None
) -> dict[str, Score]:
    """Scores of probabilities, or of values if nothing is predicted from them."""
    unit = np.arange(len(y)) if unit is None else unit
    metrics = metrics_for(y, proba, predicted, beta=beta)
    return {name: estimate.score for name, estimate in estimates(metrics, unit).items()}


def write_fake_run(
    folder: Path,
    y: Any,
    output: np.ndarray,
    folds: Any = None,
    *,
    classes: Sequence[str] = ("0", "1"),
    decided: Any = None,
    row: Any = None,
    group: Any = None,
    inner: bool = False,
    split: str = "s",
    probe: Mapping[str, int] | None = None,
    metric: str = "accuracy",
    **content: Any,
) -> Path:
    """A run of ``(n, classes)`` probabilities, or ``(n,)`` values where ``classes`` is empty.

    Without ``folds`` there are five of them, of one record after the other. With ``inner`` the
    inner folds predict what the folds do, whatever is left out. Of a probe the number of folds is
    given that chose each view.
    """
    n, names = len(y), tuple(classes)
    folds = np.arange(n) % 5 if folds is None else np.array(folds)
    row = np.arange(n) if row is None else np.array(row)
    y_pred = (output.argmax(1) if names else output) if decided is None else decided
    made = Predictions(
        row=row,
        ids=tuple(f"id{r}" for r in row),
        group=row if group is None else np.array(group),
        fold=folds,
        y=np.array([names.index(str(label)) for label in y]) if names else y,
        proba=output,
        y_pred=y_pred,
        classes=names,
        word=np.full(n, -1),
        views=dict.fromkeys(probe or (), y_pred),
    )
    if inner:  # all records but those of a fold
        of_folds = [
            replace(made.take(index), fold=np.full(len(index), fold))
            for fold in range(max(folds) + 1)
            for index in [np.flatnonzero((folds >= 0) & (folds != fold))]
        ]
        made = replace(made, inner=Predictions.joined(of_folds))
    folder.mkdir(parents=True)
    write_predictions(folder, made)
    fields: dict[str, Any] = {
        "estimator": "logreg",
        "features": "vectors",
        "settings": {},
        "task": "classification" if names else "regression",
        "scores": {},
        "views": ("mean_2",),
        "classes": names,
        "prior": () if max(folds) else (1 / (len(names) or 1),) * (len(names) or 1),
        "records": {"folds": n, "test": 0},
        "dataset": DatasetContent(
            fingerprint="f",
            source=SOURCE,
            pairs=False,
            model=ModelRecord(type="bert", n_layers=2, width=16, sha256={}),
            names=Names(inputs=(), model="m", model_source="folder", revision=None),
        ),
        "split": SplitSettings(
            fingerprint=split, source=SOURCE, folds=int(max(folds)) + 1, seed=0, stratified=True
        ),
        "cost": Cost(fit_seconds=2.0, predict_seconds=0.5, peak_memory_bytes=10**8, parameters=17),
        "versions": {"embedkit": "0"},
        "choices": (),
    }
    if probe is None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"x" * 1_000)
    else:
        fields |= {
            "views": tuple(probe),
            "scores": {"cross_validation": {metric: ReportedScore(0.6, 0.5, 0.7, majority=0.5)}},
            "view_scores": tuple(
                ViewScore(name, Score(0.6, 0.5, 0.7), control=0.5, selectivity=0.1, chosen=chosen)
                for name, chosen in probe.items()
            ),
            "metric": metric,
            "random_weights": {},
            "choices": tuple(name for name, count in probe.items() for _ in range(count)),
        }
    write_run(folder, (TrainRun if probe is None else ProbeRun)(**fields | content))
    seal(folder)
    return folder


def write_fake_runs(
    folder: Path,
    names: Iterable[str],
    y: Any,
    outputs: Iterable[np.ndarray],
    folds: Any = None,
    **content: Any,
) -> list[Path]:
    """Runs on the same records."""
    return [
        write_fake_run(folder / name, y, output, folds, **content)
        for name, output in zip(names, outputs, strict=True)
    ]


def random_runs(
    folder: Path,
    names: Sequence[str],
    *,
    n: int = 200,
    classes: int = 2,
    labels: Sequence[str] = (),
    test: int = 0,
    strength: float = 1.0,
    **content: Any,
) -> tuple[list[Path], np.ndarray, list[np.ndarray]]:
    """Runs whose probabilities lean towards the truth, the later ones more.

    ``labels`` are names of the classes, by default their numbers.
    """
    random = np.random.default_rng(0)
    y = random.integers(classes, size=n)
    folds = np.where(np.arange(n) < test, -1, np.arange(n) % 5)
    outputs = []
    for number in range(len(names)):
        scores = random.normal(size=(n, classes))
        scores[np.arange(n), y] += strength * (0.5 + number)
        outputs.append(special.softmax(scores, axis=1))
    named = np.array(labels or [str(c) for c in range(classes)])
    content |= {"classes": tuple(named)}
    return write_fake_runs(folder, names, named[y], outputs, folds, **content), y, outputs


def write_frame(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format that the name of the file says."""
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, force_ascii=False, double_precision=15)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def edit_run(folder: Path, **changes: Any) -> None:
    """Change entries of ``run.json``."""
    state(folder / "run.json", **changes)
    seal(folder)
