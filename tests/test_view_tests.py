"""Tests between views of a probe, and the last steps of a learning curve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, root_mean_squared_error

import embedkit
from embedkit.classifiers.probe import probe
from embedkit.classifiers.view_tests import compare_to_best, rise_of
from embedkit.encoding.encoder import Encoder
from embedkit.runs.targets import Target, growing_order
from tests.store_fixtures import load_quickly, tiny_model
from tests.test_report import corpus_of

N = 400


def outputs_of(accuracies: dict[str, float]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Probabilities of views that are right so often, on errors of their own."""
    random = np.random.default_rng(0)
    y = random.integers(2, size=N)
    found = {}
    for name, accuracy in accuracies.items():
        said = np.where(random.random(N) < accuracy, y, 1 - y)
        found[name] = np.where(np.eye(2)[said] > 0, 0.8, 0.2)
    return found, y


def test_only_what_is_worse_is_told_apart_from_the_best() -> None:
    outputs, y = outputs_of({"good": 0.85, "near": 0.84, "bad": 0.6})
    outputs["same"] = outputs["good"]
    p = compare_to_best(outputs, y, metric="accuracy", unit=np.arange(N), seed=0)
    best = max(outputs, key=lambda name: accuracy_score(y, outputs[name].argmax(1)))
    assert p[best] == 1
    assert p["same"] == pytest.approx(p["good"])
    assert p["bad"] is not None
    assert p["near"] is not None
    assert p["bad"] < 0.01 < 0.05 < p["near"]
    alone = {name: outputs[name] for name in (best, "near")}
    single = compare_to_best(alone, y, metric="accuracy", unit=np.arange(N), seed=0)["near"]
    assert single is not None
    assert single <= p["near"]  # more views, more pairs to correct for


def test_the_best_of_an_error_is_the_lowest() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=N)
    outputs = {"far": y + random.normal(size=N), "near": y + random.normal(size=N) * 0.3}
    p = compare_to_best(outputs, y, metric="rmse", unit=np.arange(N), seed=0)
    assert p["near"] == 1
    assert p["far"] is not None
    assert p["far"] < 0.01


def test_a_rise_is_the_difference_of_the_scores() -> None:
    outputs, y = outputs_of({"few": 0.7, "all": 0.8})
    found = rise_of(outputs["few"], outputs["all"], y, metric="accuracy", unit=np.arange(N), seed=0)
    scores = {name: accuracy_score(y, one.argmax(1)) for name, one in outputs.items()}
    assert found.value == pytest.approx(scores["all"] - scores["few"])
    # the standard error of a paired difference of fractions
    moved = (outputs["all"].argmax(1) == y).astype(float) - (outputs["few"].argmax(1) == y)
    margin = 1.96 * moved.std(ddof=1) / np.sqrt(N)
    assert (found.high - found.low) / 2 == pytest.approx(margin, rel=0.15)
    same = rise_of(outputs["all"], outputs["all"], y, metric="accuracy", unit=np.arange(N), seed=0)
    assert (same.low, same.value, same.high) == (0, 0, 0)
    noise = np.random.default_rng(1).normal(size=(2, N))
    error = rise_of(y + noise[0], y + noise[1] / 2, y.astype(float), metric="rmse",
                    unit=np.arange(N), seed=0)  # fmt: skip
    expected = [root_mean_squared_error(y, y + one) for one in (noise[1] / 2, noise[0])]
    assert error.value == pytest.approx(expected[0] - expected[1])


def test_a_probe_stores_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", load_quickly)
    embedkit.extract(corpus_of(tmp_path / "c.tsv", 120), out=tmp_path / "data", layers="0,2",
                     model=str(tiny_model()))  # fmt: skip
    found = probe(tmp_path / "data", out=tmp_path / "probe", folds=2, threads=1, shuffles=1,
                  learning_curve=True).content  # fmt: skip
    assert len(found.views) == 2
    best = max(found.views, key=lambda view: view.score.value)
    assert best.p_best == 1
    for view in found.views:
        assert view.p_best is not None
        assert 0 < view.p_best <= 1
        *few, last = view.curve
        assert last.rise is None
        assert (last.score, last.low, last.high) == pytest.approx(
            (view.score.value, view.score.low, view.score.high)
        )
        for point in few:
            assert point.rise is not None
            assert point.rise.value == pytest.approx(last.score - point.score)
            assert point.low <= point.score <= point.high


def test_few_records_of_a_curve_are_of_all_classes() -> None:
    y = np.repeat([0, 1, 2], [150, 40, 10])
    target = Target(y, ("a", "b", "c"))
    train = np.arange(1, 200)
    for seed in range(3):
        order = growing_order(train, target, seed=seed)
        assert np.array_equal(np.sort(order), train)
        assert set(y[order[:3]]) == {0, 1, 2}
        for n in range(3, len(order)):
            expected = np.bincount(y[train]) * n / len(train)
            assert np.abs(np.bincount(y[order[:n]], minlength=3) - expected).max() <= 2
    values = Target(np.arange(200.0), ())
    assert sorted(growing_order(train, values, seed=0)) == list(train)


@pytest.mark.parametrize(
    "seeds", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.slow)], ids=["one", "more"]
)
def test_a_curve_of_a_small_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]
) -> None:
    """A tenth of its training records may be two."""
    monkeypatch.setattr(Encoder, "load", load_quickly)
    embedkit.extract(corpus_of(tmp_path / "c.tsv", 30), out=tmp_path / "data",
                     model=str(tiny_model()))  # fmt: skip
    for seed in seeds:
        found = probe(tmp_path / "data", out=tmp_path / f"probe{seed}", folds=3, threads=1,
                      shuffles=1, seed=seed, learning_curve=True)  # fmt: skip
        assert [len(view.curve) for view in found.content.views] == [5]
