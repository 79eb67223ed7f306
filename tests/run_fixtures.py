"""Run folders from arrays, as train and finetune write them, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.classifiers.train import side_by_side
from embedkit.classifiers.train import train as train_tuned
from embedkit.dataset.format import Names
from embedkit.dataset.settings import ModelRecord
from embedkit.runs.folder import RunResult, read_run, write_run
from embedkit.runs.intervals import Score, scored
from embedkit.runs.metrics import metrics_for
from embedkit.runs.predictions import Predictions
from embedkit.runs.run import (
    Cost,
    DatasetContent,
    FinetuneRun,
    PredictionRun,
    ProbeRun,
    ReportedScore,
    TrainRun,
    ViewScore,
)
from embedkit.runs.split import Split, SplitSettings, assign_folds
from embedkit.storage import seal
from embedkit.units.target import Target
from embedkit.units.units import Units

SOURCE = ("ab" * 32,)
Run = TypeVar("Run", FinetuneRun, ProbeRun, TrainRun)


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


def split_of(y: Any, *, row: Any = None, group: Any = None, folds: int = 5) -> Split:
    """Folds of so many records, the classes spread evenly; those of a group share one."""
    row = np.arange(len(y)) if row is None else row
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
    records: dict[str, Any] = {"units": units_with(list(map(str, row))), "group": row}
    parts = [
        Predictions.of_fold(index, proba[index], target=target, fold=fold, **records)
        for fold in np.unique(folds).tolist()
        for index in [np.flatnonzero(folds == fold)]
    ]
    return Predictions.joined(parts)


def scores_of(
    y: Any, proba: Any, predicted: Any = None, *, unit: Any = None, beta: float | None = None
) -> dict[str, Score]:
    """Scores of probabilities, or of values if nothing is predicted from them."""
    unit = np.arange(len(y)) if unit is None else unit
    return scored(metrics_for(y, proba, predicted, beta=beta), unit)


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
    inner: np.ndarray | None = None,
    split: str = "s",
    probe: Mapping[str, int] | None = None,
    metric: str = "accuracy",
    **content: Any,
) -> Path:
    """A run of ``(n, classes)`` probabilities, or ``(n,)`` values where ``classes`` is empty.

    Without ``folds`` there are five of them, of one record after the other. ``inner`` are
    predictions of the same records by inner folds, the same whatever is left out. Of a probe the
    number of folds is given that chose each view.
    """
    folder.mkdir(parents=True)
    n = len(y)
    folds = np.arange(n) % 5 if folds is None else folds
    rows = np.arange(n) if row is None else np.array(row)
    columns: dict[str, Any] = {
        "row": rows.astype(np.int64),
        "id": [f"id{r}" for r in rows],
        "group": np.array(rows if group is None else group, np.int64),
        "fold": ["test" if f < 0 else str(f) for f in folds],
    }
    if classes:
        names = np.array(classes)
        predicted = names[output.argmax(1)] if decided is None else decided
        columns |= {"y_true": list(map(str, y)), "y_pred": list(map(str, predicted))}
        columns |= {f"proba_{name}": output[:, i] for i, name in enumerate(classes)}
    else:
        columns |= {"y_true": np.asarray(y, np.float64), "y_pred": output}
    columns |= {f"view_{view}": columns["y_pred"] for view in probe or ()}
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    if inner is not None:
        columns |= {f"proba_{name}": inner[:, i] for i, name in enumerate(classes)}
        parts = []
        for fold in range(max(folds) + 1):  # all records but those of a fold
            index = [i for i, f in enumerate(folds) if f >= 0 and f != fold]
            parts.append(pd.DataFrame(columns).iloc[index].assign(fold=str(fold)))
        schema = pa.table(columns).schema
        table = pa.Table.from_pandas(pd.concat(parts), schema, preserve_index=False)
        pq.write_table(table, folder / "inner_predictions.parquet")
    if probe is None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"x" * 1_000)
    fields: dict[str, Any] = {
        "estimator": "logreg",
        "features": "vectors",
        "settings": {},
        "task": "classification" if len(classes) else "regression",
        "scores": {},
        "views": ("mean_2",),
        "classes": tuple(classes),
        "prior": () if max(folds) else (1 / (len(classes) or 1),) * (len(classes) or 1),
        "records": {"folds": n, "test": 0},
        "dataset": DatasetContent(
            fingerprint="f",
            source=SOURCE,
            path="",
            pairs=False,
            model=ModelRecord(type="bert", n_layers=2, width=16, sha256={}),
            names=Names(inputs=(), model="m", model_source="folder", revision=None),
        ),
        "split": SplitSettings(
            fingerprint=split, source=SOURCE, folds=int(max(folds)) + 1, seed=0, stratified=True
        ),
        "cost": Cost(fit_seconds=2.0, predict_seconds=0.5, peak_memory_bytes=10**8, parameters=17),
        "versions": {"embedkit": "0"},
    }
    run: PredictionRun
    if probe is None:
        run = TrainRun(**({"choices": ()} | fields | content))
    else:
        score = Score(0.6, 0.5, 0.7)
        views = tuple(
            ViewScore(name, score, control=0.5, selectivity=0.1, chosen=chosen)
            for name, chosen in probe.items()
        )
        fields |= {
            "views": tuple(probe),
            "scores": {"cross_validation": {metric: ReportedScore(0.6, 0.5, 0.7, majority=0.5)}},
            "view_scores": views,
            "metric": metric,
            "random_weights": {},
            "choices": tuple(name for name, count in probe.items() for _ in range(count)),
        }
        run = ProbeRun(**(fields | content))
    write_run(folder, run)
    seal(folder)
    return folder


def write_fake_runs(
    folder: Path,
    names: Iterable[str],
    y: Any,
    outputs: Iterable[np.ndarray],
    folds: Any = None,
    *,
    inner: bool = False,
    **content: Any,
) -> list[Path]:
    """Runs on the same records; with ``inner`` their predictions are those of inner folds too."""
    return [
        write_fake_run(folder / name, y, output, folds, inner=output if inner else None, **content)
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
    seed: int = 0,
    strength: float = 1.0,
    inner: bool = False,
) -> tuple[list[Path], np.ndarray, list[np.ndarray]]:
    """Runs whose probabilities lean towards the truth, the later ones more.

    ``labels`` are names of the classes, by default their numbers.
    """
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=n)
    folds = np.where(np.arange(n) < test, -1, np.arange(n) % 5)
    outputs = []
    for number in range(len(names)):
        scores = random.normal(size=(n, classes))
        scores[np.arange(n), y] += strength * (0.5 + number)
        output = np.exp(scores)
        outputs.append(output / output.sum(1, keepdims=True))
    named = np.array(labels or [str(c) for c in range(classes)])
    classes_of_runs: dict[str, Any] = {"classes": tuple(named), "inner": inner}
    return write_fake_runs(folder, names, named[y], outputs, folds, **classes_of_runs), y, outputs


def edit_run(folder: Path, **changes: Any) -> None:
    """Change entries of ``run.json``."""
    content = json.loads((folder / "run.json").read_text("utf-8"))
    (folder / "run.json").write_text(json.dumps({**content, **changes}), "utf-8")
    seal(folder)
