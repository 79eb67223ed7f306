"""A fitted logistic regression as four arrays, applied without scikit-learn.

    RUN/model/linear.safetensors   mean, scale (width,); coef (width, outputs), intercept (outputs,)

Importing scikit-learn and what reads its files takes longer than a prediction. The file is written
beside the pipeline where both give the same probabilities, which is tried when it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from embedkit import fsio
from embedkit.errors import DamagedError, first_line
from embedkit.types import Float64

__all__ = ["FILE", "LinearModel", "linear_form", "read_linear", "write_linear"]

FILE = "linear.safetensors"
_ROWS = "rows have length 1"


class LinearModel:
    """Centre, scale, one product, softmax.

    Args:
        arrays: ``mean`` and ``scale`` ``(width,)``, ``coef`` ``(width, outputs)``, ``intercept``
            ``(outputs,)``; float64. One output is the score of the second of two classes.
        unit_rows: whether rows are divided by their length first.
    """

    def __init__(self, arrays: dict[str, Float64], *, unit_rows: bool) -> None:
        self.arrays, self.unit_rows = arrays, unit_rows

    def __call__(self, features: Any) -> Float64:
        """Probabilities ``(n, classes)`` of vectors ``(n, width)``."""
        X = np.asarray(features, np.float64)
        if self.unit_rows:
            length = np.linalg.norm(X, axis=1, keepdims=True)
            X = X / np.where(length == 0, 1, length)
        found = self.arrays
        scores = (X - found["mean"]) / found["scale"] @ found["coef"] + found["intercept"]
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def linear_form(pipeline: Any) -> LinearModel | None:
    """A fitted pipeline of scalings and a logistic regression in this form; else ``None``."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import Normalizer, StandardScaler

    *before, last = [step for _, step in pipeline.steps]
    unit_rows = bool(before) and isinstance(before[0], Normalizer)
    if type(last) is not LogisticRegression or len(before) != 1 + unit_rows:
        return None
    scaler = before[-1]
    if not isinstance(scaler, StandardScaler) or scaler.scale_ is None:
        return None
    arrays = {"mean": scaler.mean_, "scale": scaler.scale_, "coef": last.coef_.T,
              "intercept": last.intercept_}  # fmt: skip
    made = LinearModel(
        {name: np.ascontiguousarray(value, np.float64) for name, value in arrays.items()},
        unit_rows=unit_rows,
    )
    trial = np.random.default_rng(0).normal(
        scaler.mean_, np.sqrt(scaler.var_), (20, len(scaler.mean_))
    )
    same = np.allclose(made(trial), pipeline.predict_proba(trial), rtol=0, atol=1e-9)
    return made if same else None


def write_linear(model: LinearModel, folder: Path, *, scratch: Path) -> None:
    """Write the arrays into a folder that exists."""
    from safetensors.numpy import save

    content = save(model.arrays, metadata={_ROWS: str(model.unit_rows)})
    fsio.write_durably(folder / FILE, content, scratch=scratch)


def read_linear(file: Path) -> LinearModel:
    """Read the arrays.

    Raises:
        DamagedError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return LinearModel(arrays, unit_rows=stored.metadata()[_ROWS] == "True")
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DamagedError(f"{file} cannot be read: {first_line(error)}.") from error
