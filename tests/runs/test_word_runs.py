"""Runs on words: folds, scores and reports by whole sentences."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import embedkit
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.probe import control_task
from embedkit.classifiers.train import Frozen
from embedkit.encoding.tables import word_vectors
from embedkit.encoding.views import parse_layers
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import MismatchError, UsageError
from embedkit.runs.cross_validation import Problem
from embedkit.runs.predictions import Predictions, read_predictions
from embedkit.runs.run import ProbeRun, TrainRun
from embedkit.runs.split import TEST, read_split, split_for
from embedkit.units.units import Units
from tests.page_checks import json_block, page_of
from tests.run_fixtures import run_of, train
from tests.store_fixtures import run, tiny_model
from tests.word_fixtures import write_treebank


def extract(corpus: Any, out: Path, **settings: Any) -> Path:
    options: dict[str, Any] = {"words": "mean", "word_label": "upos", "shard_rows": 64}
    return run(corpus, out, **(options | {"layers": [0, 2]} | settings)).out


@pytest.fixture(scope="module")
def made(common: Path) -> Path:
    """Words of 40 sentences, a split of the sentences, and a run on layer 0, on TF-IDF, a probe."""
    data = extract(write_treebank(common / "bank.conllu"), common / "vectors")
    embedkit.split(data, folds=3, out=common / "split.parquet")
    split: dict[str, Any] = {"level": "word", "split": common / "split.parquet"}
    train(data, view="0", out=common / "tags", **split)
    train(data, view="0", out=common / "tuned", tune=True, **split)
    train(data, features="tfidf", out=common / "forms", tune=True, **split)
    embedkit.probe(data, out=common / "probe", **split)
    return common


def predictions(run: Path) -> Predictions:
    return read_predictions(run, run_of(run, TrainRun).classes)


@pytest.mark.parametrize("labels", ["news", ""])
def test_labels_of_records_do_not_matter_to_words(tmp_path: Path, labels: str) -> None:
    """All records have the same label, or none has one."""
    texts = [f"the dog sees {'a cat' if i % 2 else 'a dog'}" for i in range(30)]
    frame = pd.DataFrame({"text": texts, "label": labels, "tags": "DET NOUN VERB DET NOUN"})
    data = extract(frame, tmp_path / "v", word_label="tags", label="label")
    result = train(data, level="word", folds=2, out=tmp_path / "run")
    assert result.content.classes == ("DET", "NOUN", "VERB")


def test_labels_that_are_moved_by_one_word_are_noticed(made: Path, tmp_path: Path) -> None:
    data = extract(write_treebank(tmp_path / "bank.conllu", shift=1), tmp_path / "vectors")
    moved = train(data, view="0", level="word", folds=3, out=tmp_path / "tags")
    assert run_of(made / "tags", TrainRun).scores["cross_validation"]["accuracy"].low > 0.8
    assert moved.content.scores["cross_validation"]["accuracy"].high < 0.6


def test_a_tag_of_the_test_set_alone_is_refused(made: Path) -> None:
    """The saved model would have no output for it."""
    split = read_split(made / "split.parquet")
    units = Units.of_dataset(embedkit.load(made / "vectors", level="word"))
    last, label = units.row.max(), np.array(units.label)
    moved = replace(split, folds=np.where(split.row == last, TEST, split.folds))
    units = replace(units, label=np.where(units.row == last, "RARE", label).tolist())
    problem = Problem.of(units, split=moved)
    with pytest.raises(UsageError, match="'RARE' is in the test set alone"):
        Frozen(EstimatorSettings()).check(problem)


def test_control_task_gives_a_word_one_label(made: Path) -> None:
    words = embedkit.load(made / "vectors", level="word")
    units = Units.of_dataset(words)
    target = units.target()
    split = split_for(units, folds=3, seed=0)
    control = control_task(target, split, 1, words=words.text)
    labels = {word: set(control.y[np.array(words.text) == word]) for word in set(words.text)}
    assert all(len(one) == 1 for one in labels.values())
    assert (control.y != target.y).any()
    same = control_task(target, split, 1, words=["bank"] * len(words))
    assert np.array_equal(same.y, control_task(target, split, 1).y)
    assert len(np.unique(same.y)) == len(target.classes)
    probe = run_of(made / "probe", ProbeRun)
    assert [view.name for view in probe.view_scores] == ["layer_0", "layer_2"]


def test_runs_on_words_are_compared_word_by_word(made: Path, tmp_path: Path) -> None:
    found = embedkit.compare([made / "tags", made / "forms", made / "probe"])
    assert found.level == "word"
    words = embedkit.load(made / "vectors", level="word")
    assert found.counts["folds"] == len(words)
    html = page_of(found, tmp_path / "page.html")
    assert f"{len(words):,} words" in html
    assert "record" not in html.partition("<header>")[2].partition('<details class="card fold')[0]
    data = json_block(tmp_path / "page.html", "data")
    assert data["noun"] == "word"
    marked = [re.findall(r"\[(.+?)\]", text) for text in data["texts"]]
    assert marked == [[word] for word in words.text]


def test_only_common_words_are_compared(made: Path, tmp_path: Path) -> None:
    """Another model may cut sentences at other words."""
    short = extract(made / "bank.conllu", tmp_path / "short", max_length=8)
    train(short, view="0", level="word", split=made / "split.parquet", out=tmp_path / "cut")
    found = embedkit.compare([made / "tags", tmp_path / "cut"])
    assert found.counts["folds"] == len(embedkit.load(short, level="word"))


def test_levels_are_not_mixed(made: Path, tmp_path: Path) -> None:
    run([{"text": f"a bus {i}", "label": str(i % 2)} for i in range(12)], tmp_path / "v")
    train(tmp_path / "v", folds=2, out=tmp_path / "texts")
    with pytest.raises(MismatchError, match=r"texts .*tags"):
        embedkit.compare([made / "tags", tmp_path / "texts"])


def test_each_word_of_a_text_is_labelled(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.predict._CHUNK", 7)
    predictor = embedkit.Predictor(made / "tuned")
    found = predictor.predict_words("the movie was  good.")
    spans: Any = np.array([[0, 3], [4, 9]])
    assert predictor.predict_words("the movie was", spans=spans)[1].text == "movie"
    assert predictor.predict_words("the movie was", spans=[]) == []
    assert [one.text for one in found] == ["the", "movie", "was", "good", "."]
    assert [(one.start, one.end) for one in found] == [(0, 3), (4, 9), (10, 13), (15, 19), (19, 20)]
    # the vectors of the first word are those of another place in the sentence, too
    assert [one.label for one in found][1:] == ["NOUN", "AUX", "ADJ", "PUNCT"]
    forms = embedkit.Predictor(made / "forms").predict_words(["the movie was  good.", ""])
    assert [one.label for one in forms[0]][:4] == ["DET", "NOUN", "AUX", "ADJ"]
    assert forms[1] == []
    units, stored = predictor.predict_stored(made / "vectors")
    assert len(units) == len(embedkit.load(made / "vectors", level="word"))
    assert np.mean([one.label for one in stored] == np.array(units.label)) > 0.98
    with pytest.raises(UsageError, match="predict_words"):
        predictor.predict(["the movie"])


def test_vectors_of_other_sub_tokens_are_refused(made: Path, tmp_path: Path) -> None:
    other = extract(made / "bank.conllu", tmp_path / "first", words="first")
    with pytest.raises(MismatchError, match="words"):
        embedkit.Predictor(made / "tags").predict_stored(other)
    with pytest.raises(MismatchError, match="words"):
        train(made / "vectors", level="word", view="0", test=other, out=tmp_path / "x")


@pytest.mark.parametrize("given", [{"view": "0"}, {"features": "tfidf"}], ids=str)
def test_a_test_set_of_words(made: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    bank = write_treebank(tmp_path / "new.conllu", 12, seed=5)
    both = []
    for i, test in enumerate((bank, extract(bank, tmp_path / "new"))):
        out = tmp_path / f"run{i}"
        run = train(made / "vectors", level="word", test=test, folds=3, out=out, **given)
        assert run.content.scores["test"]["accuracy"].value > 0.9
        both.append(predictions(out).take(predictions(out).test))
    assert both[0].keys.tolist() == both[1].keys.tolist()
    assert both[0].proba == pytest.approx(both[1].proba, abs=1e-5)
    assert len(np.unique(both[0].group)) == 11  # two sentences are the same


def test_words_within_one_token_share_it() -> None:
    encoder = embedkit.Encoder(str(tiny_model()), device="cpu")
    given: dict[str, Any] = {"offsets": True, "words": [[(0, 2), (2, 5), (6, 9)]]}
    texts = encoder.tokenizer.encode(["movie bus"], settings=TokenizerSettings(24), **given)
    shard = encoder.encode_shard(texts, views=(), token_layers=parse_layers("2", n_layers=2))
    found = word_vectors(texts, [["movie bus"]], shard.tokens, "mean")
    assert found.text.tolist() == ["mo", "vie", "bus"]
    assert (found.X[0] == found.X[1]).all()
    assert not (found.X[1] == found.X[2]).all()
