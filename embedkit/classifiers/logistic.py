"""Logistic regressions of the same records from strong to weak regularisation, for inner folds.

They are those of :class:`~sklearn.linear_model.LogisticRegression`, whose checks take longer than
the optimiser where records are few (``python -m benchmarks.classifiers``). The model that is kept
is scikit-learn's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from embedkit.types import Float64, Int64

__all__ = [
    "LogisticPath",
    "calibration_slope",
    "in_row_space",
    "scale_coefficients",
    "tolerance",
    "with_slope",
]

_RECORD_TOLERANCE = 0.3
_STEEPEST = 4.0
_SMALLEST = float(np.finfo(np.float64).eps)


def tolerance(records: int, most: float = 1e-4) -> float:
    """Return the largest element of the gradient at which a fit ends.

    The loss is a mean over records: what another penalty adds to its gradient is the smaller the
    more there are, and a fit that starts from the value before would end before it began.
    """
    return min(most, _RECORD_TOLERANCE / records)


def in_row_space(X: Any) -> Any:
    """Return vectors ``(n, n)`` with the same lengths and angles, if they have more columns.

    Scaling by lengths, centring, principal components and squared coefficients do not depend on the
    basis, so that neither does anything that is predicted.
    """
    if not isinstance(X, np.ndarray) or len(X) >= X.shape[1]:
        return X
    from scipy.linalg import qr

    return np.ascontiguousarray(qr(X.T, mode="r", check_finite=False)[0][: len(X)].T)


class LogisticPath:
    """Fits of one set of records, each from the coefficients of the one before.

    Args:
        X: ``(n, width)`` float32, or a sparse matrix.
        y: ``(n,)`` class numbers; some classes may be missing.
        classes: number of classes.
        weight: ``(n,)`` weights of the records.
    """

    def __init__(self, X: Any, y: Int64, classes: int, weight: Float64 | None = None) -> None:
        self._known, codes = np.unique(y, return_inverse=True)
        self._classes = classes
        columns = 1 if len(self._known) == 2 else len(self._known)  # of two, the odds of the second
        self._X, self._target = X, np.eye(len(self._known), dtype=X.dtype)[codes][:, -columns:]
        weight = np.ones(len(y)) if weight is None else weight
        self._sum, self._weight = weight.sum(), (weight / weight.sum()).astype(X.dtype)[:, None]
        self._mean = np.asarray(self._weight.T @ X).ravel()
        self._theta = np.zeros((X.shape[1] + 1, columns))
        fraction = (self._target * self._weight).sum(0, dtype=np.float64)
        self._theta[-1] = np.log(fraction / (1 - fraction) if columns == 1 else fraction)

    def fit(self, C: float) -> None:  # noqa: N803 - scikit-learn's name
        """Minimise the mean loss plus the squares of the coefficients divided by 2 C n."""
        from scipy.optimize import minimize

        found = minimize(
            self._loss, self._theta.ravel(), args=(1 / (C * self._sum),), jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1_000, "maxls": 50, "gtol": tolerance(len(self._target), most=1e-3),
                     "ftol": 64 * np.finfo(np.float64).eps},
        )  # fmt: skip
        self._theta = found.x.reshape(self._theta.shape)

    def scores(self, X: Any) -> tuple[Float64, Float64]:
        """Return what the coefficients add to the log-odds, and the log-odds of a mean record.

        Args:
            X: ``(m, width)``, as that of the training records.

        Returns:
            Two arrays ``(m, classes)`` whose sum are the log-odds; the first has mean 0 over the
            training records.
        """
        coefficients = self._theta[:-1].astype(self._mean.dtype)
        centre = self._mean @ coefficients
        parts = [np.zeros((X.shape[0], self._classes)), np.full((X.shape[0], self._classes), -50.0)]
        parts[1][:, self._known] = 0.0
        last = self._known[-len(centre) :]
        parts[0][:, last] = X @ coefficients - centre
        parts[1][:, last] = centre + self._theta[-1]
        return parts[0], parts[1]

    def _loss(self, theta: Float64, penalty: float) -> tuple[float, Float64]:
        """The penalised loss and its gradient; in float32 but for the coefficients."""
        from scipy.special import expit

        whole = theta.reshape(self._theta.shape)
        small = whole.astype(self._mean.dtype)
        odds = self._X @ small[:-1] + small[-1]
        if odds.shape[1] == 1:
            losses = np.logaddexp(0, odds) - self._target * odds
            error = expit(odds)
        else:
            odds -= odds.max(1, keepdims=True)
            error = np.exp(odds)
            total = error.sum(1, keepdims=True)
            losses = np.log(total) - (self._target * odds).sum(1, keepdims=True)
            error /= total
        error -= self._target
        error *= self._weight
        gradient = np.empty_like(whole)
        gradient[:-1] = self._X.T @ error
        gradient[:-1] += penalty * whole[:-1]
        gradient[-1] = error.sum(0)
        loss = float((losses * self._weight).sum(dtype=np.float64))
        return loss + 0.5 * penalty * float((whole[:-1] ** 2).sum()), gradient.ravel()


def with_slope(scores: tuple[Float64, Float64], slope: float) -> Float64:
    """Return probabilities ``(n, classes)`` of scores whose coefficients are times the slope."""
    odds = slope * scores[0] + scores[1]
    odds -= odds.max(1, keepdims=True)
    np.exp(odds, out=odds)
    return np.asarray(odds / odds.sum(1, keepdims=True))


def calibration_slope(
    scores: tuple[Float64, Float64], y: Int64, weight: Float64 | None = None
) -> float:
    """Return the factor, 0 to 4, of the coefficients with the lowest log-loss on other records.

    A slope below 1 takes back what a fit learnt by chance; one above 1 takes back what a strong
    penalty does to the lengths of the coefficients, where it is good for their directions. Being
    fitted itself, it is multiplied by (χ² - 1) / χ², where χ² is twice the gain in log-likelihood
    over a slope of 0, and is 0 where that gain is below what chance gives. Both factors are of J.
    C. van Houwelingen and S. Le Cessie 1990, "Predictive value of statistical models", Statistics
    in Medicine 9.

    Args:
        scores: of :meth:`LogisticPath.scores`, of records that the fit did not see.
        y: ``(n,)`` their class numbers.
        weight: ``(n,)`` their weights.
    """
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(y))

    def loss(slope: float) -> float:
        true = with_slope(scores, slope)[rows, y]
        return float(-np.average(np.log(np.maximum(true, _SMALLEST)), weights=weight))

    found = minimize_scalar(
        loss, bounds=(0.0, _STEEPEST), method="bounded", options={"xatol": 0.01}
    )
    chi_square = 2 * len(y) * (loss(0.0) - float(found.fun))
    return float(found.x) * (1 - 1 / chi_square) if chi_square > 1 else 0.0


def scale_coefficients(estimator: Any, slope: float, X: Any, weight: Float64 | None) -> None:
    """Multiply the coefficients by a slope; the log-odds of the weighted mean of ``X`` stay."""
    centre = np.average(X @ estimator.coef_.T, axis=0, weights=weight)
    estimator.intercept_ = estimator.intercept_ + (1 - slope) * centre
    estimator.coef_ = estimator.coef_ * np.float32(slope)
