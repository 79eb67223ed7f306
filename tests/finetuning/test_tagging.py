"""Fine-tuning on the labels of words: the head of transformers, its loss, and whole entities."""

from __future__ import annotations

import copy
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from seqeval.metrics import f1_score  # type: ignore[import-untyped]
from transformers import AutoModelForTokenClassification, AutoTokenizer

import embedkit
from embedkit import CorpusOptions, Predictor
from embedkit.dataset.read import VectorData
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import MismatchError, UsageError
from embedkit.finetuning.model import padded, predict_logits, read_model
from embedkit.finetuning.options import WORDS, TrainingOptions
from embedkit.predict import predict_file
from embedkit.runs.predictions import Predictions, read_predictions
from embedkit.runs.scores import metrics_of, tags_entities
from embedkit.runs.split import read_split
from embedkit.units.target import Target
from embedkit.units.units import Units
from tests.finetune_fixtures import TINY, built, finetuned, write_lines
from tests.models import check_near
from tests.run_fixtures import predictions_of, write_frame
from tests.runs.test_word_runs import extract
from tests.store_fixtures import extract_tiny, tiny_model
from tests.word_fixtures import TAGS, sentences, write_treebank


@pytest.fixture(scope="module")
def made(common: Path) -> Path:
    """A treebank, its word vectors, a split with a test set, a frozen and a fine-tuned tagger."""
    bank = write_treebank(common / "bank.conllu", 60)
    extract(bank, common / "vectors")
    split = common / "split.parquet"
    embedkit.split(bank, folds=3, test=0.2, out=split)
    embedkit.train(common / "vectors", level="word", split=split, out=common / "frozen")
    tuned(bank, common / "tuned", split=split, epochs=9, learning_rate=3e-2, batch_size=8)
    return common


def tuned(corpus: Any, out: Path, **settings: Any) -> Any:
    given = {"reading": CorpusOptions(word_label="upos")} if str(corpus).endswith(".conllu") else {}
    return embedkit.finetune(corpus, out=out, level="word", **TINY | given | settings)


def predicted(run: Path) -> Predictions:
    return read_predictions(run, finetuned(run).classes)


def test_every_word_is_held_out_once_with_its_sentence(made: Path) -> None:
    """The words and folds are those of the vectors, so that compare takes both runs."""
    found, split = predicted(made / "tuned"), read_split(made / "split.parquet")
    stored = embedkit.load(made / "vectors", level="word")
    order = np.lexsort((found.word, found.row))
    assert np.array_equal(found.row[order], stored.row)
    assert np.array_equal(found.word[order], stored.word)
    assert [found.classes[i] for i in found.y[order]] == stored.column("label")
    assert np.array_equal(found.fold, split.folds[np.searchsorted(split.row, found.row)])
    assert embedkit.compare([made / "frozen", made / "tuned"]).level == "word"
    score = finetuned(made / "tuned").scores["cross_validation"]["accuracy"]
    assert score.value > 0.8 > score.majority  # the tag follows from the word
    assert TrainingOptions(level="word").head_rate == 1e-3


def test_a_corpus_and_its_dataset_give_the_same_tagger(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"split": made / "split.parquet", "epochs": 1}
    tuned(made / "bank.conllu", tmp_path / "a", **given)
    tuned(made / "vectors", tmp_path / "b", **given)
    first, second = ((tmp_path / name / "predictions.parquet").read_bytes() for name in "ab")
    assert first == second
    tuned(made / "bank.conllu", tmp_path / "c", folds=2, epochs=1, test=made / "bank.conllu")
    found = predicted(tmp_path / "c").take(predicted(tmp_path / "c").test)
    texts = embedkit.load(made / "vectors").text
    words = Predictor(tmp_path / "c", device="cpu").predict_words(texts)
    proba = [list(word.proba.values()) for some in words for word in some]
    assert np.allclose(proba, found.proba, atol=1e-5)
    # a full stop is a word, as in the treebank
    for name in "ac":
        (*_, last) = Predictor(tmp_path / name, device="cpu").predict_words("the film home.")
        assert last.text == "."
    frame = pd.DataFrame({"words": [["the", "\u200b", "film"]] * 2})
    write_frame(frame, tmp_path / "new.jsonl")
    caplog.clear()
    assert predict_file(tmp_path / "a", tmp_path / "new.jsonl", out=tmp_path / "new.tsv")[0] == 4
    assert caplog.messages[-1] == "no prediction of 2 words without a token"


def test_words_without_a_label_are_neither_trained_on_nor_scored(tmp_path: Path) -> None:
    """As in ``train``; the probabilities of the others are theirs."""
    tags = [[None if i % 3 == 1 else TAGS[w] for i, w in enumerate(ws)] for ws in sentences(40)]
    frame = pd.DataFrame({"text": [" ".join(words) for words in sentences(40)], "tags": tags})
    tuned(frame, run := tmp_path / "run", split=embedkit.split(frame, test=0.2), word_label="tags")
    p = predicted(run)
    labelled = [(r, i) for r, row in enumerate(tags) for i, tag in enumerate(row) if tag]
    assert sorted(zip(p.row, p.word, strict=True)) == labelled
    words, test = Predictor(run, device="cpu").predict_words([*frame["text"]]), p.take(p.test)
    places = zip(test.row, test.word, strict=True)
    proba = [list(words[row][word].proba.values()) for row, word in places]
    assert np.allclose(proba, test.proba, atol=1e-5)


def test_transformers_gives_the_same_probabilities(made: Path, tmp_path: Path) -> None:
    embedkit.export(made / "tuned", fold=0, out=tmp_path / "plain")
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "plain").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    words = ["the", "movie", "was", "badly", "a"]  # bad ##ly
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    first = [batch.word_ids().index(i) for i in range(len(words))]
    with torch.inference_mode():
        forwards = (plain, copy.deepcopy(plain).double())
        both = [one(**batch).logits[0, first].softmax(-1).numpy() for one in forwards]
    ours = read_model(made / "tuned/model/fold-0")
    loaded = load_tokenizer(find_checkpoint(str(tiny_model())))
    texts = loaded.encode([" ".join(words)], settings=TokenizerSettings(24), offsets=True)
    check_near(ours.outputs(predict_logits(ours, texts)).numpy(), *both)
    assert plain.config.id2label == dict(enumerate(finetuned(made / "tuned").classes))


@pytest.mark.parametrize("on_long", ["truncate", "window"])
def test_the_loss_is_of_first_tokens_alone(on_long: str) -> None:
    """As with the label -100 on all others; in windows each word is taken from one of them."""
    given: dict[str, Any] = {"tokens": TokenizerSettings(10, on_long, 3), "offsets": True}
    some = ["the movie badly rained", "a bus " * 9, "good"]
    model, texts = built(tiny_model(), some, head=WORDS, n_outputs=3, **given)
    batch = padded(texts)
    count = len(batch["places"])
    assert count == (4 + 18 + 1 if on_long == "window" else 4 + 8 + 1)
    labels = torch.arange(count) % 3
    with torch.no_grad():
        hidden = model.encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        logits = model.classifier(hidden)
        everywhere = torch.full(batch["input_ids"].shape, -100)
        everywhere.view(-1)[batch["places"]] = labels
        assert (batch["attention_mask"].view(-1)[batch["places"]] == 1).all()
        expected = torch.nn.functional.cross_entropy(logits.view(-1, 3), everywhere.view(-1))
        # in the order of the words, as transformers has it, in one window
        order = everywhere.view(-1)[everywhere.view(-1) != -100]
        assert on_long == "window" or torch.equal(order, labels)
        result = model(**batch, labels=labels)
        assert torch.allclose(result.loss, expected, atol=1e-5)
        assert torch.allclose(predict_logits(model, texts), result.logits, atol=1e-5)


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_whole_entities_are_counted_as_seqeval_counts_them(marks: str) -> None:
    draw = random.Random(1)
    classes = (*(f"{mark}-{kind}" for mark in marks for kind in ("LOC", "PER")), "O")
    assert tags_entities(classes)
    assert not tags_entities((*classes, "NOUN"))
    assert not tags_entities(("O",))
    sizes = [draw.randint(1, 9) for _ in range(60)]
    row = np.repeat(np.arange(60), sizes)
    count = len(classes)
    y, guess = (np.array([draw.randrange(count) for _ in row]) for _ in range(2))
    guess = np.where(np.random.default_rng(0).random(len(row)) < 0.7, y, guess)
    found = predictions_of(Target(y, classes), np.eye(count)[guess], np.zeros_like(row))
    found = replace(found, row=row, word=np.concatenate([np.arange(size) for size in sizes]))
    metric = metrics_of(found)["entity_f1"]
    ends = np.cumsum(sizes)[:-1]
    true, told = (
        [[classes[i] for i in part] for part in np.split(tags, ends)] for tags in (y, guess)
    )
    assert metric.value(len(row)) == pytest.approx(f1_score(true, told))
    weights = np.random.default_rng(2).integers(0, 3, 60)  # whole sentences, some of them twice
    again = [
        [s for s, n in zip(some, weights, strict=True) for _ in range(n)] for some in (true, told)
    ]
    assert metric.of(weights[row][None].astype(float))[0] == pytest.approx(f1_score(*again))


def test_what_cannot_be_tagged(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="word_label="):
        tuned(made / "bank.conllu", tmp_path / "x", reading=CorpusOptions())
    with pytest.raises(UsageError, match="head="):
        tuned(made / "bank.conllu", tmp_path / "x", head="mean")


def test_a_span_of_each_text_is_its_only_word(tmp_path: Path) -> None:
    """Its vector is that of the same words given as a span; what is no span is rejected."""
    texts = ["the movie was badly good", "i was home", "a bus", "it rained", "good bus home"]
    frame = pd.DataFrame({"text": texts, "start": [14, 6, 2, 7, 5], "end": [24, 10, 5, 7, 99]})
    frame["kind"] = ["ADJ", "NOUN", "NOUN", "X", "X"]
    given: dict[str, Any] = {"spans": ["start", "end"], "word_label": "kind", "tokens": True}
    data = extract_tiny(frame, tmp_path / "v", **given)
    assert data.manifest.totals.rejected_by_reason == {"bad_span": 2}
    words = embedkit.load(data.out, level="word", view="2")
    assert words.text == ["badly good", "home", "bus"]
    assert words.column("label") == ["ADJ", "NOUN", "NOUN"]
    check_means_of_tokens(data.out, "2")
    with pytest.raises(UsageError, match="spans="):
        CorpusOptions(spans=["start", "end", "more"])


def check_means_of_tokens(folder: Path, layer: str) -> None:
    """Each span has the mean of the token rows that it touches, added in order in float32."""
    words, tokens = (embedkit.load(folder, level=w, view=layer) for w in ("word", "token"))
    for row, start, end, vector in zip(words.row, words.start, words.end, words.X, strict=True):
        inside = (tokens.row == row) & (tokens.start < end) & (tokens.end > start)
        total = np.zeros_like(vector)
        for token in tokens.X[inside]:
            total += token
        assert np.array_equal(total / np.float32(inside.sum()), vector)


@pytest.mark.parametrize("on_long", ["truncate", "window"])
def test_lists_of_spans_are_means_of_their_tokens(tmp_path: Path, on_long: str) -> None:
    """To the last bit; from text and from typed lists; labels in the order of the spans."""
    long = "good bus home " * 20
    texts = ["the movie was badly good", "i was home", long, "nothing here"]
    spans = [[[0, 9], [14, 24]], [[6, 10]], [[0, 8], [9, 30], [60, 101]], []]
    frame = pd.DataFrame({"text": texts, "spans": spans, "kind": ["A B", "C", "D E F", ""]})
    given: dict[str, Any] = {"spans": "spans", "word_label": "kind", "tokens": True}
    given |= {"layers": "0,2", "max_length": 16, "on_long": on_long}
    data = extract_tiny(frame, tmp_path / "v", **given).out
    as_text = extract_tiny(write_frame(frame, tmp_path / "c.tsv"), tmp_path / "t", **given).out
    words, same = (embedkit.load(out, level="word", view="2") for out in (data, as_text))
    assert words.text[:3] == ["the movie", "badly good", "home"]
    assert words.column("label")[:3] == ["A", "B", "C"]
    assert np.array_equal(words.X, same.X)
    assert words.text == same.text
    for layer in ("0", "2"):
        check_means_of_tokens(data, layer)


NO_SPANS = {
    "[[0, 3], [2, 5]]": "begins before 3",
    "[[4, 8], [0, 3]]": "begins before 8",
    "[[0, 99]]": "lies outside",
    "[[3, 3]]": "lies outside",
    "[[3, 4]]": "lies outside",  # white space alone
    "[[0, 1, 2]]": "neither a span",
    "[0, 3]": "neither a span",
    "0 3": "neither a span",
    "[[0, null]]": "neither a span",
}


@pytest.mark.parametrize("spans", NO_SPANS)
def test_what_is_no_list_of_spans_is_rejected(tmp_path: Path, spans: str) -> None:
    frame = pd.DataFrame({"text": ["the movie", "a bus"], "at": [spans, '[["0.0", 1]]']})
    data = extract_tiny(frame, tmp_path / "v", spans=["at"])
    assert data.manifest.totals.rejected_by_reason == {"bad_span": 1}
    assert NO_SPANS[spans] in (data.out / "_embedkit" / "rejects.jsonl").read_text("utf-8")
    assert embedkit.load(data.out, level="word").text == ["a"]


def test_sentences_of_a_text_are_its_words(tmp_path: Path) -> None:
    """A column of that name comes first; else texts are cut, and each part is a mean of tokens."""
    texts = ["the movie was good. I was home! it rained", "a bus.\nA movie", "good"]
    frame = pd.DataFrame({"text": texts})
    data = extract_tiny(frame, tmp_path / "v", spans="sentences", tokens=True)
    words = embedkit.load(data.out, level="word")
    parts = "the movie was good.|I was home! it rained|a bus.|A movie|good"
    assert "|".join(words.text) == parts
    assert words.row.tolist() == [0, 0, 1, 1, 2]
    check_means_of_tokens(data.out, "2")
    again = extract_tiny(frame, tmp_path / "w", spans="sentences", reuse=[data.out])
    assert np.array_equal(embedkit.load(again.out, level="word").X, words.X)
    frame["sentences"] = ["[[0, 3]]", "[]", "[[0, 4]]"]
    named = extract_tiny(frame, tmp_path / "n", spans="sentences")
    assert embedkit.load(named.out, level="word").text == ["the", "good"]


def test_spans_are_no_groups_and_a_test_set_has_its_own(tmp_path: Path) -> None:
    texts = ["the movie", "i was home", "a bus"]
    frame = pd.DataFrame({"text": texts, "at": [[[0, 3]], [[2, 5]], None], "film": ["x", "y", "y"]})
    units = Units.of_corpus(frame.assign(label="a"), CorpusOptions(spans="at"), level="word")
    assert units.records.group is units.records.label is None  # labels of records are not learnt
    assert units.further(frame[:2].iloc[::-1]).column("text") == ["was", "the"]
    reading = CorpusOptions(spans="at", keep=["film"])
    assert Units.of_corpus(frame, reading).group is None  # nor is a column that is kept
    grouped = embedkit.split(frame, reading=CorpusOptions(spans="at"), group="film", folds=2)
    assert grouped.group.tolist() == [0, 1, 1]


def test_a_run_on_spans_predicts_the_spans_of_other_texts(tmp_path: Path) -> None:
    texts = ["good bus. It rained home.", "it rained. Good movie.", "home bus. A movie."] * 8
    frame = pd.DataFrame({"text": texts, "at": [[[0, 8], [10, len(text)]] for text in texts]})
    frame["kind"] = ["A B", "B A", "A A"] * 8
    (tmp_path / "new.jsonl").write_text(frame[:3].to_json(orient="records", lines=True), "utf-8")
    runs: dict[str, Predictor] = {}
    for spans in ("at", "sentences"):
        data = extract_tiny(frame, tmp_path / spans, spans=spans, word_label="kind").out
        out, test = tmp_path / f"of {spans}", tmp_path / "new.jsonl"
        embedkit.train(data, out=out, level="word", folds=2, test=test)
        own = pd.read_parquet(out / "predictions.parquet").query("fold == 'test'")
        assert predict_file(out, test, out=tmp_path / f"{spans}.csv")[0] == len(own) == 6
        table = pd.read_csv(tmp_path / f"{spans}.csv")
        assert table["word"].tolist() == own["word"].tolist()
        assert np.allclose(table["proba_A"], own["proba_A"], atol=1e-6)
        runs[spans] = Predictor(out, device="cpu")
    cut = [word.text for word in runs["sentences"].predict_words(texts[0])]
    assert cut == ["good bus.", "It rained home."]
    # words between white space are not what it was trained on
    with pytest.raises(UsageError, match="labels the spans that columns of its corpus tell"):
        runs["at"].predict_words(texts[0])
    assert [w.text for w in runs["at"].predict_words(texts[:1], spans=[[(0, 4)]])[0]] == ["good"]
    wrong: list[Any] = [
        [[(10, 14), (0, 4)]],
        [[(0, 9), (4, 14)]],
        [[(4, 99)]],
        [[(4, 5)], []],
        [[3]],
    ]
    for pairs in wrong:
        with pytest.raises(UsageError, match="span"):
            runs["at"].predict_words(texts[:1], spans=pairs)
    with pytest.raises(UsageError, match="has no column at"):
        predict_file(tmp_path / "of at", write_frame(frame[["text"]], tmp_path / "bare.tsv"))
    words = extract_tiny(frame[["text"]], tmp_path / "words", words="mean").out
    with pytest.raises(MismatchError, match="spans is 'none', expected 'columns'"):
        runs["at"].predict_stored(words)
    with pytest.raises(MismatchError, match="spans is 'none'"):
        Units.of_dataset(VectorData.of(tmp_path / "at", level="word")).further(words)
    # of whole texts spans are no matter
    whole = Units.of_dataset(VectorData.of(tmp_path / "at"))
    assert len(whole.further(tmp_path / "bare.tsv")) == len(frame)


def test_a_further_file_of_another_kind_is_read_as_it_is(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "train.txt", "a, bus", "1\tb")
    units = Units.of_corpus(lines, CorpusOptions(format="lines"))
    frame = pd.DataFrame({"text": ["one, two", "three"]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "new.jsonl").write_text(frame.to_json(orient="records", lines=True), "utf-8")
    for name in ("new.csv", "new.jsonl"):
        assert units.further(tmp_path / name).column("text") == ["one, two", "three"]
    named = Units.of_corpus(tmp_path / "new.csv", CorpusOptions(format="lines"))
    assert len(named.further(tmp_path / "new.csv")) == 3  # as it was read before
    shutil.copy(lines, tmp_path / "new.txt")
    assert units.further(tmp_path / "new.txt").column("text") == ["a, bus", "1\tb"]
