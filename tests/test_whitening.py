"""Whitening of few records, and its covariance against scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

import embedkit
from embedkit.search.exact import unit_rows
from embedkit.search.whitening import _shrunk, fit_whitening
from tests.processes import ROOT


@pytest.mark.parametrize(("rows", "width"), [(2, 3), (20, 30), (200, 30), (5_000, 30)])
def test_the_covariance_is_shrunk_as_scikit_learn_does(rows: int, width: int) -> None:
    random = np.random.default_rng(rows)
    scales = np.exp(random.normal(size=width))
    X = (random.normal(size=(rows, width)) * scales + 5).astype(np.float32)
    wanted = ledoit_wolf(X.astype(np.float64))[0]
    parts = np.array_split(X, min(7, rows))
    found = _shrunk(parts, X.mean(0, dtype=np.float64).astype(np.float32), rows)
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_few_records_are_not_made_equally_far_apart(tmp_path: Path) -> None:
    """As the plain covariance of fewer records than dimensions does."""
    embedkit.extract(ROOT / "data" / "reviews_ko.tsv", out=tmp_path / "ko", device="cpu")
    data = embedkit.load(tmp_path / "ko")
    X = data.X - data.X.mean(0)
    assert X.shape == (173, 384)

    def cosines(vectors: Any) -> Any:
        unit = unit_rows(vectors)
        return (unit @ unit.T)[np.triu_indices(len(unit), 1)]

    def spread(values: Any) -> float:
        """Of the middle half: some texts have the same tokens, which the model does not know."""
        low, high = np.quantile(values, (0.25, 0.75))
        return float(high - low)

    values, directions = np.linalg.eigh(np.cov(X.T.astype(np.float64), bias=True))
    kept = values > 1e-6 * values[-1]
    plain = (X @ (directions[:, kept] * values[kept] ** -0.5)).astype(np.float32)
    assert spread(cosines(plain)) < 0.001
    found = cosines(fit_whitening(data, "whiten").apply(data.X))
    assert spread(found) > 0.02
    assert np.corrcoef(found, cosines(X))[0, 1] > 0.3
    (answer,) = embedkit.Searcher(tmp_path / "ko", whitening="whiten").like([0], k=10)
    scores = [hit.score for hit in answer.hits]
    assert scores[0] > scores[-1] + 0.02
