"""Temperature scaling: logits divided by a number that is fitted on validation records.

C. Guo et al. 2017, "On Calibration of Modern Neural Networks", ICML. The predicted class stays the
same; a fine-tuned model that is too sure of itself gets a temperature above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from embedkit.finetuning.heads import EncoderWithHead
from embedkit.types import Float64, Int64

__all__ = ["divide_logits", "fit_temperature", "with_temperature"]

_LOWEST, _HIGHEST = 0.01, 100.0
_SMALLEST = np.finfo(np.float64).tiny


def fit_temperature(proba: Sequence[Any] | Float64, y: Int64) -> float:
    """Return the temperature with the lowest log-loss.

    The targets are softened by 1 / (n + 2), as Platt (1999) softens them: where all of a few
    records are predicted rightly, the log-loss alone would make the model infinitely sure.

    Args:
        proba: ``(n, classes)`` probabilities of records that the model was not trained on.
        y: ``(n,)`` their class numbers.

    >>> sure = np.array([[0.99, 0.01]] * 4)
    >>> fit_temperature(sure, np.array([0, 0, 0, 1])) > 1
    True
    """
    from scipy.optimize import minimize_scalar

    found = np.asarray(proba, np.float64)
    n, classes = found.shape
    softened = 1 / (n + 2)
    wanted = np.eye(classes)[y] * (1 - softened) + softened / classes

    def loss(logarithm: float) -> float:
        scaled = with_temperature(found, float(np.exp(logarithm)))
        return float(-(wanted * np.log(np.maximum(scaled, _SMALLEST))).sum(1).mean())

    bounds = (np.log(_LOWEST), np.log(_HIGHEST))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(best.x))


def with_temperature(proba: Float64, temperature: float) -> Float64:
    """Return probabilities ``(n, classes)`` whose logits are divided by the temperature."""
    from scipy.special import softmax

    return np.asarray(softmax(np.log(np.maximum(proba, _SMALLEST)) / temperature, axis=1))


def divide_logits(model: EncoderWithHead, temperature: float) -> None:
    """Divide the last layer by the temperature, so that the model is an ordinary one."""
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.div_(temperature)
