"""Combinations of layers as the input of a fit: views side by side, sums, learnt mixtures.

    side by side   (n, Σ width)           what one layer knows beside another
    sum            (n, width)             of neighbouring layers
    mixture        (n, layers · width) ──► rows of each layer at length 1 (unit_layers)
                                       ──► Σ softmax(a)_l · x_l (n, width) ──► classifier

The mixture is the scalar mix of ELMo (Peters et al. 2018, "Deep Contextualized Word
Representations") and of layer probing (Tenney et al. 2019, "BERT Rediscovers the Classical NLP
Pipeline"): softmax weights that are fitted together with the classifier. They multiply the mixture
by a learnt scale, which a penalty on the coefficients would otherwise have to stand in for. Here
the scale is the slope that tuning chooses in the inner folds: fitted on the training records
themselves it would only undo the penalty.

Unlike a concatenation, a mixture has as few coefficients as a single layer. It can only find what
layers say in the same directions, as those of a residual network do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from embedkit.encoding.views import split_view
from embedkit.types import Float64

MOST_BYTES = 1 << 30
"""Of vectors in memory: of views that are read once, and of a mixture."""

_NOT_LINEAR = ("max", "pooler", "sentence")
"""Poolings whose vectors for a sum of layers are not the sum of their vectors."""

_ITERATIONS = 1_000  # as for logreg


class Candidate(NamedTuple):
    """One or more stored views as the input of a fit."""

    name: str
    views: tuple[str, ...]
    combination: str = "side by side"  # or sum, mixture


def combinations_of(
    names: Sequence[str], *, mixtures: bool, view_bytes: int = 0
) -> list[Candidate]:
    """Return sums of two neighbouring layers and of the last four, and a mixture of all.

    Each is of one pooling, in the order of the layers. Sums are called as ``extract`` calls them:
    ``mean_sum_3to4``; a mixture ``mean_mixture``. There are ``mixtures`` for an estimator that can
    learn one, and none where the layers, each of ``view_bytes``, are too large to be in memory
    together.
    """
    combinations = []
    # each pooling once, in the order of the views
    for pooling in dict.fromkeys(split_view(name)[0] for name in names):
        layers = [n for n in names if split_view(n)[0] == pooling and layer_of(n) >= 0]
        layers.sort(key=layer_of)
        spans: list[Sequence[str]] = [*pairwise(layers)]
        spans += [layers[-4:]] if len(layers) > 3 else []
        for span in spans if pooling not in _NOT_LINEAR else ():
            first, last = layer_of(span[0]), layer_of(span[-1])
            name = f"{pooling}_sum_{first}to{last}"
            # none is missing in between, and it is not stored
            if last - first + 1 == len(span) and name not in names:
                combinations.append(Candidate(name, tuple(span), "sum"))
        # a mixture is fitted on all layers side by side, in one array
        if mixtures and len(layers) > 1 and view_bytes * len(layers) <= MOST_BYTES:
            combinations.append(Candidate(f"{pooling}_mixture", tuple(layers), "mixture"))
    return combinations


def layer_of(view: str) -> int:
    """The layer of a view; -1 of a combination, and of what has none."""
    layer = split_view(view)[1]
    return int(layer) if layer.isdigit() else -1


def unit_layers(X: NDArray[Any], *, layers: int) -> NDArray[Any]:
    """Return ``(n, layers · width)`` vectors side by side, each layer of a row at length 1."""
    X = np.asarray(X)
    # each layer of a row becomes a row of its own for the normalisation: layers differ in length,
    # and a longer one would have more weight in the mixture by that alone
    return np.asarray(normalize(X.reshape(len(X) * layers, -1)).reshape(X.shape))


class LayerMixture(LogisticRegression):  # type: ignore[misc]
    """Logistic regression on a weighted mean of layers, whose weights are fitted with it.

    Weights and coefficients minimise the loss of :class:`~sklearn.linear_model.LogisticRegression`
    together, from equal weights on, by L-BFGS. Then the coefficients are fitted once more by
    scikit-learn on the mixture: with one layer this is its logistic regression.

    ``coef_`` are those of the layers side by side, so that predictions need nothing else.
    ``weights_`` ``(layers,)`` are the fractions of the layers.
    """

    # scikit-learn clones by these names, so that seed and class weights cannot be set
    def __init__(self, layers: int = 1, *, C: float = 1.0) -> None:  # noqa: N803
        super().__init__(C=C, max_iter=_ITERATIONS)
        self.layers = layers

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit on ``(n, layers · width)`` vectors."""
        X = np.asarray(X)
        # (layers, n, width)
        stacked = np.stack(np.split(X, self.layers, axis=1))
        weights = _fitted_weights(stacked, y, self.C) if self.layers > 1 else np.ones(1)
        # the weights were found by a short search; on the mixture they give, the coefficients are
        # those of scikit-learn to its own precision
        super().fit(_mixed(weights, stacked), y)
        self.weights_ = weights
        coef: NDArray[Any] = self.coef_  # type: ignore[has-type]
        # a product with the coefficients of a mixture is one with those of its layers, weighted; in
        # the dtype of X, else predictions would copy all layers to float64
        self.coef_ = np.hstack([weight * coef for weight in weights.astype(X.dtype)])
        # what scikit-learn has noted is the width of the mixture, and it would refuse the layers
        # side by side
        self.n_features_in_ = X.shape[1]
        return self


def _mixed(weights: Float64, stacked: NDArray[Any]) -> NDArray[Any]:
    """The weighted sum ``(n, width)`` of ``(layers, n, width)`` vectors, in their dtype."""
    return np.tensordot(weights.astype(stacked.dtype), stacked, 1)


def _fitted_weights(stacked: NDArray[Any], y: NDArray[Any], strength: float) -> Float64:
    """The weights ``(layers,)`` of ``(layers, n, width)`` vectors that suit the labels best."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax, softmax

    layers, _, width = stacked.shape
    classes, codes = np.unique(y, return_inverse=True)
    # (n, classes), 1 for the class of the record
    true = np.eye(len(classes))[codes]
    # of two classes scikit-learn penalises the difference between their coefficients
    penalty = (2 if len(classes) == 2 else 1) / strength

    def loss(parameters: Float64) -> tuple[float, Float64]:
        # scores (layers,) whose softmax are the weights: they stay positive and sum to 1
        # unconstrained
        scores, intercept, flat = np.split(parameters, [layers, layers + len(classes)])
        coef, weights = flat.reshape(len(classes), width), softmax(scores)
        mixed = _mixed(weights, stacked)
        log_proba = log_softmax(mixed @ coef.T + intercept, axis=1)
        error = np.exp(log_proba) - true  # the gradient by the log-odds
        by_mixed = (error @ coef).astype(stacked.dtype)  # else NumPy copies all layers
        by_weight = np.tensordot(stacked, by_mixed, 2).astype(np.float64)
        gradients = (
            # through the softmax
            weights * (by_weight - weights @ by_weight),
            error.sum(0),
            (error.T @ mixed + penalty * coef).ravel(),
        )
        value = penalty / 2 * (coef**2).sum() - (log_proba * true).sum()
        return float(value), np.concatenate(gradients)

    # equal weights, and no coefficients
    start = np.zeros(layers + len(classes) * (1 + width))
    # the weights settle long before the coefficients, which are fitted again
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    return np.asarray(softmax(best.x[:layers]))
