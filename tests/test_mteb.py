"""The MTEB classification protocol of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from benchmarks.mteb import main, mteb_protocol
from embedkit.encoding.encoder import Encoder
from embedkit.errors import MismatchError, UsageError
from tests.store_fixtures import load_quickly, loading_quickly, run

N = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mteb")
    lines = [f"{'good' if i % 2 else 'bad'} movie number {i}\t{i % 2}" for i in range(N)]
    (folder / "c.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    with loading_quickly():
        run(folder / "c.tsv", folder / "data", layers="all", pooling=["mean", "cls"])
    return folder / "data"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", load_quickly)


def test_the_command(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["mteb", str(data), str(data), "--experiments", "2", "--view", "mean_1,cls_2"]
    monkeypatch.setattr("sys.argv", [*arguments, "--json"])
    main()
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] == pytest.approx(np.mean(found["experiments"]))
    assert len(found["experiments"]) == 2
    monkeypatch.setattr("sys.argv", arguments)
    main()
    assert f"accuracy {found['accuracy']:.4f}, macro-F1" in capsys.readouterr().out


def test_protocol(data: Path) -> None:
    found = mteb_protocol(data, data, samples_per_label=8, experiments=3)
    assert len(found.experiments) == 3
    assert found.accuracy == pytest.approx(np.mean(found.experiments))
    assert found.accuracy > 0.6
    again = mteb_protocol(data, data, samples_per_label=8, experiments=3)
    assert again == found
    with pytest.raises(
        UsageError, match=r"'0' has 30 records, fewer than the samples_per_label=40"
    ):
        mteb_protocol(data, data, samples_per_label=40)


def test_protocol_of_what_does_not_fit(data: Path, tmp_path: Path) -> None:
    def made(name: str, labels: list[str], **settings: Any) -> Path:
        corpus = tmp_path / f"{name}.tsv"
        lines = [f"movie {i}\t{label}\n" for i, label in enumerate(labels)]
        corpus.write_text("text\tlabel\n" + "".join(lines))
        run(corpus, tmp_path / name, **settings)
        return tmp_path / name

    with pytest.raises(UsageError, match=r"all records have the label '1'"):
        mteb_protocol(made("same", ["1"] * 20), data)
    with pytest.raises(UsageError, match=r"5 records have no label \(rows 0, 2"):
        mteb_protocol(made("gaps", ["", "1"] * 5), data)
    with pytest.raises(MismatchError, match=r"fitted on: max_length is 4, expected"):
        mteb_protocol(data, made("cut", ["0", "1"] * 20, max_length=4))
    with pytest.raises(UsageError, match=r"expected 1 or more"):
        mteb_protocol(data, data, experiments=0)
    with pytest.raises(UsageError, match=r"expected 1 or more"):
        mteb_protocol(data, data, samples_per_label=0)


def test_the_protocol_is_that_of_mteb(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which records train each classifier, and by what: against a loop as in MTEB."""
    from sklearn.linear_model import LogisticRegression

    fitted = []
    honest = LogisticRegression.fit

    def fit(self: Any, X: Any, y: Any) -> Any:
        fitted.append((self.max_iter, self.random_state, X.copy(), y.copy()))
        return honest(self, X, y)

    monkeypatch.setattr(LogisticRegression, "fit", fit)
    mteb_protocol(data, data, samples_per_label=8, experiments=3)
    loaded = embedkit.load(data)
    X = loaded.X / np.linalg.norm(loaded.X, axis=1, keepdims=True)
    order = np.arange(N).tolist()
    for max_iter, seed, found, labels in fitted:
        np.random.RandomState(42).shuffle(order)
        counts: dict[str, int] = {}
        drawn = []
        for i in order:
            counts[loaded.y[i]] = counts.get(loaded.y[i], 0) + 1
            if counts[loaded.y[i]] <= 8:
                drawn.append(i)
        assert (max_iter, seed) == (100, 42)
        assert np.allclose(found, X[drawn])
        assert (labels == loaded.y[drawn]).all()
    assert len(fitted) == 3


def test_draws_are_those_of_the_protocol() -> None:
    """The list goes on being shuffled, each time by a generator that begins with 42."""
    order = list(range(10))
    np.random.RandomState(42).shuffle(order)
    once = list(order)
    np.random.RandomState(42).shuffle(order)
    assert once == [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]
    assert order != once
