"""Logistic regressions of the same records from strong to weak regularisation, for inner folds.

Their minima are those of :class:`~sklearn.linear_model.LogisticRegression`, which has no
preconditioner and whose checks take longer than its optimiser where records are few
(``python -m benchmarks.classifiers``). The model that is kept is scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from embedkit.types import Float64, Int64

__all__ = [
    "LogisticPath",
    "Preconditioner",
    "calibration_slope",
    "in_row_space",
    "scale_coefficients",
    "tolerance",
    "with_slope",
]

_RECORD_TOLERANCE = 0.3
_RECORDS_PER_COLUMN = 6
_STEEPEST = 4.0
_GRADIENT, _ROUNDING = 3e-4, 1e-6
_EPSILON = float(np.finfo(np.float64).eps)


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


class Preconditioner:
    """Coordinates in which the losses of all logistic regressions of some records are nearly round.

    The Hessian of a loss is about a multiple of the mean of xxᵀ, x being a record and a 1 for the
    intercept, plus the penalty; its Cholesky factor leads from the one coordinates to the others.
    In these, an optimiser needs a fifth of the evaluations with two classes, and half with twenty.
    Where a minimum lies does not depend on them, so that fits to several targets can share them.

    Args:
        X: ``(n, width)`` float32.
        weight: ``(n,)`` weights of the records.
    """

    def __init__(self, X: Any, weight: Float64 | None = None) -> None:
        self._moments = np.ones((X.shape[1] + 1,) * 2)
        part = np.ones(len(X)) if weight is None else weight
        root = np.sqrt(part / part.sum()).astype(X.dtype)[:, None]
        whole = X * root
        self._moments[:-1, :-1] = whole.T @ whole
        self._moments[-1, :-1] = self._moments[:-1, -1] = (root.T @ whole)[0]
        self._smallest = _ROUNDING * np.trace(self._moments)

    @classmethod
    def of(cls, X: Any, weight: Float64 | None = None) -> Preconditioner | None:
        """Return that of the records; ``None`` if they are sparse, or too few to make up for it."""
        many = isinstance(X, np.ndarray) and len(X) >= _RECORDS_PER_COLUMN * X.shape[1]
        return cls(X, weight) if many else None

    def factor(self, ridge: float) -> Float64:
        """Return the factor for a ridge, ``(width + 1, width + 1)``, lower triangular."""
        from scipy.linalg.lapack import dpotrf

        whole = self._moments.copy()
        whole.ravel()[:: len(whole) + 1] += max(ridge, self._smallest)
        return np.asarray(dpotrf(whole.T, lower=1, overwrite_a=1)[0])


class LogisticPath:
    """Fits of one set of records, each from the coefficients of the one before.

    Args:
        X: ``(n, width)`` float32, or a sparse matrix.
        y: ``(n,)`` class numbers; some classes may be missing.
        classes: number of classes.
        weight: ``(n,)`` weights of the records.
        preconditioner: of the same records; by default a new one.
    """

    def __init__(
        self,
        X: Any,
        y: Int64,
        classes: int,
        weight: Float64 | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        self._known, codes = np.unique(y, return_inverse=True)
        self._classes = classes
        self._preconditioner = preconditioner or Preconditioner.of(X, weight)
        columns = 1 if len(self._known) == 2 else len(self._known)  # of two, the odds of the second
        self._X, self._target = X, np.eye(len(self._known), dtype=X.dtype)[codes][:, -columns:]
        weight = np.ones(len(y)) if weight is None else weight
        self._sum, self._weight = weight.sum(), (weight / weight.sum()).astype(X.dtype)[:, None]
        self._mean = np.asarray(self._weight.T @ X).ravel()
        self._theta = np.zeros((X.shape[1] + 1, columns))
        fraction = (self._target * self._weight).sum(0, dtype=np.float64)
        self._theta[-1] = np.log(fraction / (1 - fraction) if columns == 1 else fraction)
        self._curvature = max(_ROUNDING, float((fraction * (1 - fraction)).mean()))

    def fit(self, C: float) -> None:  # noqa: N803 - scikit-learn's name
        """Minimise the mean loss plus the squares of the coefficients divided by 2 C n."""
        penalty = 1 / (C * self._sum)
        if self._preconditioner is None:
            most = tolerance(len(self._target), most=1e-3)
            self._theta = _minimum(partial(self._loss, penalty=penalty), self._theta, most)
        else:
            self._fit_preconditioned(penalty, self._preconditioner)

    def _fit_preconditioned(self, penalty: float, preconditioner: Preconditioner) -> None:
        from scipy.linalg.blas import dtrsm

        factor = preconditioner.factor(penalty / self._curvature)
        root = np.sqrt(self._curvature)

        def loss(phi: Float64, unit: float) -> tuple[float, Float64]:
            theta = dtrsm(unit / root, factor, phi, lower=1, trans_a=1)
            value, gradient = self._loss(theta, penalty)
            return value / unit**2, dtrsm(1 / unit / root, factor, gradient, lower=1)

        start = root * (factor.T @ self._theta)
        # of length 1, as the optimiser's first step is, is then that of Newton's method
        unit = float(np.linalg.norm(loss(start, 1.0)[1])) or 1.0
        found = _minimum(partial(loss, unit=unit), start / unit, _GRADIENT / unit)
        self._theta = dtrsm(unit / root, factor, found, lower=1, trans_a=1)

    def finish(self, estimator: Any, fit: Callable[[Any], None]) -> None:
        """Call ``fit`` of a :class:`~sklearn.linear_model.LogisticRegression` to end as a path."""
        if self._preconditioner is None:
            fit(estimator.set_params(tol=tolerance(len(self._target))))
        else:
            self.fit(estimator.C)
            estimator.coef_, estimator.intercept_ = self._theta[:-1].T, self._theta[-1]
            fit(estimator.set_params(warm_start=True))
            estimator.set_params(warm_start=False)

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

        small = theta.astype(self._mean.dtype)
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
        gradient = np.empty_like(theta)
        gradient[:-1] = self._X.T @ error
        gradient[:-1] += penalty * theta[:-1]
        gradient[-1] = error.sum(0)
        loss = float((losses * self._weight).sum(dtype=np.float64))
        return loss + 0.5 * penalty * float((theta[:-1] ** 2).sum()), gradient


def _minimum(
    loss: Callable[[Float64], tuple[float, Float64]], start: Float64, most: float
) -> Float64:
    """Return where a loss has its minimum; no element of its gradient is above ``most`` there."""
    from scipy.optimize import minimize

    def flat(theta: Float64) -> tuple[float, Float64]:
        value, gradient = loss(theta.reshape(start.shape))
        return value, gradient.ravel()

    found = minimize(
        flat, start.ravel(), jac=True, method="L-BFGS-B",
        options={"maxiter": 1_000, "maxls": 50, "gtol": most, "ftol": 64 * _EPSILON},
    )  # fmt: skip
    return np.asarray(found.x.reshape(start.shape))


def with_slope(scores: tuple[Float64, Float64], slope: float) -> Float64:
    """Return probabilities ``(n, classes)`` of scores whose coefficients are times the slope."""
    odds = slope * scores[0] + scores[1]
    if odds.shape[1] == 2:  # the same, in a seventh of the time
        ahead = np.clip(odds[:, 1] - odds[:, 0], -700, 700)
        return np.stack([1 / (1 + np.exp(ahead)), 1 / (1 + np.exp(-ahead))], axis=1)
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
        return float(-np.average(np.log(np.maximum(true, _EPSILON)), weights=weight))

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
