"""Run folders from arrays, as train and finetune write them, without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.checksums import seal
from embedkit.classifiers.train import TrainResult
from embedkit.classifiers.train import train as train_tuned
from embedkit.dataset.vector_settings import ModelSettings
from embedkit.runs.content import (
    Cost,
    DatasetContent,
    Names,
    RecordCounts,
    SplitContent,
    TrainRun,
)
from embedkit.runs.folder import write_run

SOURCE = ("ab" * 32,)


def train(dataset: Path, *, tune: bool = False, **options: Any) -> TrainResult:
    """``embedkit.train`` for tests whose subject is not how hyperparameters are chosen."""
    return train_tuned(dataset, tune=tune, **options)


def write_fake_run(
    folder: Path,
    y: Sequence[str] | np.ndarray,
    output: np.ndarray,
    folds: Sequence[int],
    *,
    classes: Sequence[str] = ("0", "1"),
    decided: Sequence[str] | None = None,
    repeat: Sequence[int] | None = None,
    row: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    inner: np.ndarray | None = None,
    split: str = "s",
    **content: Any,
) -> Path:
    """A run of ``(n, classes)`` probabilities, or ``(n,)`` values where ``classes`` is empty.

    ``inner`` are predictions of the same records by inner folds, the same whatever is left out.
    """
    folder.mkdir(parents=True)
    n = len(folds)
    rows = np.arange(n) if row is None else np.array(row)
    columns: dict[str, Any] = {
        "row": rows.astype(np.int64),
        "id": [f"id{r}" for r in rows],
        "group": np.array(rows if group is None else group, np.int64),
        "repeat": np.array(repeat if repeat is not None else [0] * n, np.int16),
        "fold": ["test" if f < 0 else str(f) for f in folds],
    }
    if classes:
        names = np.array(classes)
        said = names[output.argmax(1)] if decided is None else decided
        columns |= {"y_true": list(map(str, y)), "y_pred": list(map(str, said))}
        columns |= {f"proba_{name}": output[:, i] for i, name in enumerate(classes)}
    else:
        columns |= {"y_true": np.asarray(y, np.float64), "y_pred": output}
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    if inner is not None:
        _write_inner(folder, columns, inner, folds, classes)
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_bytes(b"x" * 1_000)
    fields: dict[str, Any] = {
        "estimator": "logreg", "features": "vectors", "settings": {},
        "task": "classification" if len(classes) else "regression",
        "choices": (), "threshold": None, "test_set": None, "scores": {},
        "views": ("mean_2",), "classes": tuple(classes),
        "records": RecordCounts(folds=n, test=0),
        "dataset": DatasetContent(
            fingerprint="f", source=SOURCE, path="", unicode="none", pairs=False,
            model=ModelSettings(type="bert", n_layers=2, width=16, sha256={}),
            names=Names(model="m", revision=None, inputs=()),
        ),
        "split": SplitContent(
            fingerprint=split, source=SOURCE, folds=int(max(folds)) + 1, repeats=1, seed=0,
            stratified=True,
        ),
        "cost": Cost(fit_seconds=2.0, predict_seconds=0.5, peak_memory_bytes=10**8, parameters=17),
        "versions": {"embedkit": "0"},
    }  # fmt: skip
    write_run(folder, TrainRun(**(fields | content)))
    seal(folder)
    return folder


def _write_inner(
    folder: Path, columns: dict[str, Any], inner: np.ndarray, folds: Sequence[int],
    classes: Sequence[str],
) -> None:  # fmt: skip
    """Predictions for all records but those of a fold, for every fold."""
    columns = columns | {f"proba_{name}": inner[:, i] for i, name in enumerate(classes)}
    where = [(f, np.flatnonzero((np.array(folds) != f) & (np.array(folds) >= 0)))
             for f in range(max(folds) + 1)]  # fmt: skip
    tables = []
    for fold, index in where:
        table = pa.table(columns).take(index)
        place = table.column_names.index("fold")
        tables.append(table.set_column(place, "fold", pa.array([str(fold)] * len(index))))
    pq.write_table(pa.concat_tables(tables), folder / "inner_predictions.parquet")


def random_runs(
    folder: Path, names: Sequence[str], *, n: int = 200, classes: int = 2, test: int = 0,
    seed: int = 0, strength: float = 1.0, inner: bool = False,
) -> tuple[list[Path], np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Runs whose probabilities lean towards the truth, the later ones more.

    With ``inner`` the predictions of inner folds are those of the records themselves.
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
    labels = tuple(str(c) for c in range(classes))
    paths = [
        write_fake_run(folder / name, [labels[i] for i in y], output, folds.tolist(),
                       classes=labels, inner=output if inner else None)
        for name, output in zip(names, outputs, strict=True)
    ]  # fmt: skip
    return paths, y, outputs


def many_runs(
    folder: Path, labels: tuple[str, ...], *, n: int, strength: float, random: np.random.Generator
) -> list[Path]:
    """Twelve runs with long names, each leaning a little more towards the truth."""
    y = random.integers(len(labels), size=n)
    paths = []
    for number in range(12):
        scores = random.normal(size=(n, len(labels)))
        scores[np.arange(n), y] += strength + number / 4
        output = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        paths.append(write_fake_run(folder / f"run_with_a_rather_long_name_{number}",
                                    [labels[i] for i in y], output, [i % 5 for i in range(n)],
                                    classes=labels))  # fmt: skip
    return paths


def edit_run(folder: Path, **changes: Any) -> None:
    """Change entries of ``run.json``."""
    content = json.loads((folder / "run.json").read_text("utf-8"))
    (folder / "run.json").write_text(json.dumps({**content, **changes}), "utf-8")
    seal(folder)
