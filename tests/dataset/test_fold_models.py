"""Vectors of fine-tuned encoders: each record by a model that has not seen it, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import embedkit
from embedkit.classifiers.probe import probe
from embedkit.comparison.table import compare
from embedkit.dataset.fold_models import ALL_FOLDS
from embedkit.dataset.format import text_key
from embedkit.dataset.read import VectorData
from embedkit.errors import DamagedError, MismatchError, ModelError, UsageError
from embedkit.runs.split import TEST, read_split, split
from embedkit.storage import seal
from tests.finetune_fixtures import check_test_set, corpus_of, finetuned, tuned, write_lines
from tests.processes import succeed
from tests.run_fixtures import train, write_frame

VIEWS = ("mean_1", "cls_2")
LAYERS: dict[str, Any] = {"layers": "1,2", "pooling": ["cls", "mean"], "device": "cpu"}


@pytest.fixture(scope="module")
def shared(common: Path) -> Path:
    """A corpus, a split with a test set, a run on it, and the vectors of its models."""
    corpus = corpus_of(common / "corpus.tsv")
    split(corpus, out=common / "split.parquet", folds=3, test=0.2)
    tuned(corpus, common / "run", split=common / "split.parquet", epochs=1, max_length=16)
    levels: dict[str, Any] = {"words": "mean", "tokens": True}
    vectors(corpus, common / "data", common / "run", shard_rows=7, **levels, **LAYERS)
    return common


def vectors(corpus: Any, out: Path, model: Path, **settings: Any) -> Path:
    return embedkit.extract(corpus, out=out, model=str(model), **{"device": "cpu"} | settings).out


def by_fold(run: Path, encode: Callable[[embedkit.Encoder], np.ndarray]) -> np.ndarray:
    """``(3, n, width)``: what each of the models gives."""
    models = [embedkit.Encoder(run / f"model/fold-{i}", device="cpu") for i in range(3)]
    return np.stack([encode(model) for model in models])


def views_of(encoder: embedkit.Encoder, texts: list[str]) -> np.ndarray:
    """The views side by side."""
    return np.concatenate([*encoder.encode_views(texts, VIEWS, max_length=16).values()], axis=1)


def table_of(encoder: embedkit.Encoder, texts: list[str], level: str) -> np.ndarray:
    encode = encoder.encode_tokens if level == "token" else encoder.encode_words
    return encode(texts, layers=2, max_length=16).X


def expected(found: np.ndarray, folds: np.ndarray) -> np.ndarray:
    return np.stack(
        [found[:, i].mean(0) if fold < 0 else found[fold, i] for i, fold in enumerate(folds)]
    )


def test_each_record_has_the_vectors_of_the_model_that_has_not_seen_it(shared: Path) -> None:
    data = embedkit.load(shared / "data", list(VIEWS))
    made = read_split(shared / "split.parquet")
    folds = np.array(data.column("fold"))
    assert (folds == made.folds).all()
    assert {*folds} == {ALL_FOLDS, 0, 1, 2}
    found = by_fold(shared / "run", partial(views_of, texts=data.text))
    assert np.abs(found[0] - found[1]).max() > 1e-3  # the models differ
    assert np.allclose(data.X, expected(found, folds), atol=1e-5)
    for number in range(3):  # what trained a model is not encoded by it
        train, _ = made.subsets()[number]
        assert not np.allclose(data.X[train], found[number][train], atol=1e-4)
    # a query that is one of the texts is encoded by the same model
    searcher = embedkit.Searcher(shared / "data", view="mean_1", keep_duplicates=True)
    for text, answer in zip(data.text, searcher.texts(data.text, k=1), strict=True):
        assert (answer.hits[0].text, answer.hits[0].score) == (text, pytest.approx(1, abs=1e-5))
    job: Any = data.manifest.job
    assert job.folds.models == ("fold-0", "fold-1", "fold-2")
    assert job.folds.split == made.fingerprint
    assert job.vectors.max_length == 16  # that of the run


def test_token_and_word_vectors_are_of_the_same_models(shared: Path) -> None:
    data = embedkit.load(shared / "data")
    folds = dict(zip(data.row.tolist(), data.column("fold"), strict=True))
    for level in ("token", "word"):
        stored = embedkit.load(shared / "data", level=level, view="2")
        found = by_fold(shared / "run", partial(table_of, texts=data.text, level=level))
        where = np.array([folds[row] for row in stored.row.tolist()])
        assert len(where) == found.shape[1]
        assert np.allclose(stored.X, expected(found, where), atol=1e-5)


def test_another_corpus_is_encoded_by_all_models_but_for_known_texts(
    shared: Path, tmp_path: Path
) -> None:
    data = embedkit.load(shared / "data")
    known = data.column("fold").index(1)
    lines = ["text\tlabel", "a bus home 3\t0", f"{data.text[known].upper()}\t1", "good\t1"]
    corpus = write_lines(tmp_path / "new.tsv", *lines)
    new = embedkit.load(vectors(corpus, tmp_path / "new", shared / "run", **LAYERS), list(VIEWS))
    assert list(new.column("fold")) == [ALL_FOLDS, 1, ALL_FOLDS]
    found = by_fold(shared / "run", partial(views_of, texts=new.text))
    assert np.allclose(new.X, expected(found, np.array([-1, 1, -1])), atol=1e-5)
    checked = embedkit.verify(tmp_path / "new", recompute=9, device="cpu")
    assert checked.ok
    assert checked.recomputed_rows == checked.identical_rows == 3


def test_long_texts_are_treated_as_in_training(shared: Path, tmp_path: Path) -> None:
    windows: dict[str, Any] = {"on_long": "window", "stride": 3, "max_length": 9}
    run = tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1, folds=2, **windows).out
    long = " ".join(f"bus {i}" for i in range(30))
    new = write_lines(tmp_path / "new.tsv", "text", long, "good")

    def made(**settings: Any) -> VectorData:
        out = vectors(new, tmp_path / "new", run, overwrite=True, **settings)
        return embedkit.load(out, "mean_-1")

    alike = made()
    kept = alike.manifest.job.vectors
    assert {name: getattr(kept, name) for name in windows} == windows
    encoders = [embedkit.Encoder(run / f"model/fold-{i}", device="cpu") for i in (0, 1)]
    cut = np.mean([e.encode(alike.text, max_length=9) for e in encoders], axis=0)
    assert not np.allclose(alike.X[0], cut[0], atol=1e-3)
    assert np.allclose(made(on_long="truncate").X, cut, atol=1e-5)
    with pytest.raises(UsageError, match="stride=2"):
        made(on_long="truncate", stride=2)


def test_training_uses_the_split_of_the_run(shared: Path, tmp_path: Path) -> None:
    data = shared / "data"
    plain = train(data, view="mean_2", out=tmp_path / "a")
    given = train(data, view="mean_2", out=tmp_path / "b", split=shared / "split.parquet")
    assert plain.content.split == given.content.split
    assert str(plain.content.scores) == str(given.content.scores)  # with intervals of NaN
    compared = compare([tmp_path / "a", shared / "run"])  # on the same folds
    assert {row.name for row in compared.rows} >= {"a", "run"}
    probed = probe(data, out=tmp_path / "probe", view=["cls_1", "mean_2"])
    assert probed.content.split.fingerprint == plain.content.split.fingerprint


def test_texts_that_no_model_has_seen_take_any_split(
    shared: Path, tmp_path: Path, notes: list[str]
) -> None:
    texts = [f"{'bad rain' if i % 2 else 'good home'} {i} again" for i in range(20)]
    frame = pd.DataFrame({"text": texts, "label": [str(i % 2) for i in range(20)]})
    other = vectors(frame, tmp_path / "other", shared / "run", **LAYERS)
    assert train(other, view="mean_2", folds=2, out=tmp_path / "a").content.split.folds == 2
    # nor has one seen a record without a label, which is in no fold
    frame.loc[3, "label"] = None
    corpus = write_frame(frame, tmp_path / "some.jsonl")
    tuned(corpus, tmp_path / "tuned", folds=2, epochs=1, max_length=16)
    some = vectors(corpus, tmp_path / "some", tmp_path / "tuned", **LAYERS)
    made = train(some, view="mean_2", folds=5, out=tmp_path / "b")
    assert made.content.split == finetuned(tmp_path / "tuned").split
    assert any("keeps the 2 folds" in note for note in notes)


def test_another_split_is_refused(shared: Path, tmp_path: Path) -> None:
    """Under it, vectors of training records would know the labels of the held-out ones."""
    split(shared / "data", out=tmp_path / "other.parquet", folds=3, seed=5)
    for make in (train, probe):
        with pytest.raises(MismatchError, match=r"other\.parquet"):
            make(shared / "data", out=tmp_path / "no", split=tmp_path / "other.parquet")
    head, *lines = (shared / "corpus.tsv").read_text().splitlines()
    body = [f"{line}\t{'ab'[i % 2]}" for i, line in enumerate(lines)]
    corpus = write_lines(tmp_path / "parts.tsv", f"{head}\tpart", *body)
    parts = vectors(corpus, tmp_path / "parts", shared / "run", keep=["part"])
    with pytest.raises(MismatchError, match="column 'part'"):
        train(parts, out=tmp_path / "no", split="part")
    moved = Path(shutil.copytree(shared / "data", tmp_path / "data"))
    manifest = moved / "_embedkit/manifest.json"
    manifest.write_text(manifest.read_text().replace(str(shared / "run"), "gone"))
    seal(moved)
    with pytest.raises(UsageError, match="run gone"):
        train(moved, out=tmp_path / "no")


def test_other_texts_of_the_same_records_are_refused(tmp_path: Path) -> None:
    """Whether a model has seen a record cannot be told by a text that it did not read."""
    rows = [f"the movie {i}\t{w} rain {i}\t{i % 2}" for i, w in enumerate(["good", "bad"] * 10)]
    corpus = write_lines(tmp_path / "c.tsv", "title\ttext\tlabel", *rows)
    options = embedkit.CorpusOptions(text="title", label="label")
    run = tuned(corpus, tmp_path / "run", reading=options, epochs=1, folds=2).out
    others: list[dict[str, Any]] = [{"text": "text"}, {"text": "title", "text_pair": "text"}]
    for other in others:
        with pytest.raises(UsageError, match="text="):
            vectors(corpus, tmp_path / "no", run, **other)
    more = write_lines(tmp_path / "more.tsv", "title\ttext\tlabel", "a bus\tb\t1")
    with pytest.raises(UsageError, match="text_pair="):
        vectors([more, corpus], tmp_path / "no", run, text="title")
    assert not (tmp_path / "no").exists()
    assert not (tmp_path / "no.incomplete").exists()
    few = vectors(corpus, tmp_path / "few", run, text="title", sample=9)
    assert len(embedkit.load(few)) == 9


def test_texts_in_several_folds_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv")  # some texts stand there twice
    made = split(corpus, folds=3)
    crossing = replace(made, folds=np.arange(len(made.row)) % 3)
    tuned(corpus, tmp_path / "run", split=crossing, epochs=1)
    with pytest.raises(UsageError, match="several folds"):
        vectors(corpus, tmp_path / "no", tmp_path / "run")


def test_a_text_of_a_fold_may_be_in_the_test_set_too(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv")
    made = split(corpus, folds=3)
    first, *others = np.flatnonzero(made.group == np.bincount(made.group).argmax())
    places = made.folds.copy()
    places[others] = TEST
    tuned(corpus, tmp_path / "run", split=replace(made, folds=places), epochs=1)
    folds = embedkit.load(vectors(corpus, tmp_path / "data", tmp_path / "run")).column("fold")
    assert others
    # of its model, which has not seen it
    assert {folds[copy] for copy in others} == {folds[first]} == {made.folds[first]}


def test_one_model_is_refused_for_its_training_records(shared: Path, tmp_path: Path) -> None:
    data, model = embedkit.load(shared / "data"), shared / "run/model/fold-1"
    for fold in (0, 1, 2, ALL_FOLDS):
        texts = [t for t, of in zip(data.text, data.column("fold"), strict=True) if of == fold]
        if fold in (1, ALL_FOLDS):
            vectors(texts, tmp_path / f"fold{fold}", model)
            continue
        with pytest.raises(UsageError, match=f"trained on {len(texts)} "):
            vectors(texts, tmp_path / "no", model)
    corpus = corpus_of(tmp_path / "c.tsv", count=40)  # all in one fold
    tuned(corpus, tmp_path / "run", folds=1, epochs=1)
    made = read_split(tmp_path / "run/split.parquet")
    trained = np.flatnonzero(made.folds < ALL_FOLDS)
    assert len(trained) > 20
    for name in ("run", "run/model/fold-0"):
        with pytest.raises(UsageError, match=r"trained on \d+ of these"):
            vectors(corpus, tmp_path / "no", tmp_path / name)
    assert not (tmp_path / "no.incomplete").exists()
    column = pd.read_csv(corpus, sep="\t")["text"]
    unseen = [*column[made.folds == 0], "a bus home home home"]
    vectors(unseen, tmp_path / "unseen", tmp_path / "run")
    encoder = embedkit.Encoder(tmp_path / "run/model/fold-0", device="cpu")
    assert np.allclose(embedkit.load(tmp_path / "unseen").X, encoder.encode(unseen), atol=1e-5)
    # a query may be what all were trained on
    query = column[trained[0]]
    answer = embedkit.Searcher(tmp_path / "unseen", device="cpu").texts(query, k=1)
    vectors_of = partial(encoder.encode, normalize_embeddings=True)
    cosines = vectors_of(unseen) @ vectors_of([query])[0]
    assert answer.hits[0].score == pytest.approx(cosines.max(), abs=1e-5)


def test_new_texts_and_test_sets_are_encoded_alike(shared: Path, tmp_path: Path) -> None:
    corpus, test = shared / "corpus.tsv", corpus_of(tmp_path / "test.tsv", count=11)
    others = vectors(test, tmp_path / "test", shared / "run", **LAYERS)
    split(corpus, out=tmp_path / "split.parquet", folds=3)
    tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet", epochs=1)
    data = vectors(corpus, tmp_path / "data", tmp_path / "run", **LAYERS)
    with pytest.raises(MismatchError, match="of the model"):  # another run's models
        train(data, view="mean_2", out=tmp_path / "no", test=others)
    train(data, view="mean_2", out=tmp_path / "t", test=test)
    check_test_set(tmp_path / "t", test)
    known, texts = ({text_key(t) for t in pd.read_csv(f, sep="\t")["text"]} for f in (corpus, test))
    assert known & texts
    assert texts - known


def test_what_cannot_be_used(shared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    corpus = corpus_of(tmp_path / "c.tsv", count=9)
    with pytest.raises(UsageError, match="revision="):
        vectors(corpus, tmp_path / "no", run, revision="main")
    marked = write_lines(tmp_path / "fold.tsv", "text\tfold", "a bus\t1")
    with pytest.raises(UsageError, match="keep='fold'"):
        vectors(marked, tmp_path / "no", run, keep=["fold"])
    with pytest.raises(ModelError, match="model/fold-0"):
        embedkit.Encoder(run)
    records = run / "model/records.parquet"
    content = records.read_bytes()
    for damage in (lambda: records.write_bytes(content[:200]), lambda: seal(run), records.unlink):
        damage()
        with pytest.raises(DamagedError, match=r"records\.parquet"):
            vectors(corpus, tmp_path / "no", run)
    succeed("extract", corpus, "--model", shared / "run", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "c.vectors").exists()
