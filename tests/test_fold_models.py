"""Vectors of fine-tuned encoders: each record by a model that has not seen it, or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score

import embedkit
from embedkit.checksums import seal
from embedkit.classifiers.probe import probe
from embedkit.comparison.compare import compare
from embedkit.dataset.fold_models import ALL_FOLDS
from embedkit.dataset.record_keys import text_key
from embedkit.dataset.store import VectorData
from embedkit.errors import DamagedError, MismatchError, ModelError, UsageError
from embedkit.predict import Predictor
from embedkit.runs.split_files import read_split
from embedkit.runs.splits import split
from tests.finetune_fixtures import corpus_of, tuned
from tests.processes import command
from tests.run_fixtures import train

VIEWS = ("mean_1", "cls_2")
LAYERS: dict[str, Any] = {"layers": "1,2", "pooling": ["cls", "mean"], "device": "cpu"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a split with a test set, a run on it, and the vectors of its models."""
    folder = tmp_path_factory.mktemp("folds")
    corpus = corpus_of(folder / "corpus.tsv")
    split(corpus, out=folder / "split.parquet", folds=3, test=0.2)
    tuned(corpus, folder / "run", split=folder / "split.parquet", epochs=1, max_length=16)
    embedkit.extract(corpus, out=folder / "data", model=str(folder / "run"), shard_rows=7,
                     words="mean", tokens=True, **LAYERS)  # fmt: skip
    return folder


def by_fold(run: Path, texts: list[str], views: tuple[str, ...] = VIEWS) -> np.ndarray:
    """``(3, n, width)``: the views side by side, by each of the models."""
    found = []
    for number in range(3):
        encoder = embedkit.Encoder.load(run / f"model/fold-{number}", device="cpu")
        given = encoder.encode_views(texts, views, max_length=16)
        found.append(np.concatenate(list(given.values()), axis=1))
    return np.stack(found)


def expected(found: np.ndarray, folds: np.ndarray) -> np.ndarray:
    return np.stack([found[:, i].mean(0) if fold < 0 else found[fold, i]
                     for i, fold in enumerate(folds)])  # fmt: skip


def test_each_record_has_the_vectors_of_the_model_that_has_not_seen_it(shared: Path) -> None:
    data = embedkit.load(shared / "data", list(VIEWS))
    made = read_split(shared / "split.parquet")
    folds = np.array(data.column("fold"))
    assert (folds == made.folds[:, 0]).all()
    assert {*folds} == {ALL_FOLDS, 0, 1, 2}
    found = by_fold(shared / "run", data.text)
    assert np.abs(found[0] - found[1]).max() > 1e-3  # the models differ
    assert np.allclose(data.X, expected(found, folds), atol=1e-5)
    for number in range(3):  # what trained a model is not encoded by it
        train, _ = made.fold(0, number)
        assert not np.allclose(data.X[train], found[number][train], atol=1e-4)
    job = data.manifest.job
    assert job.folds is not None
    assert job.folds.models == ("fold-0", "fold-1", "fold-2")
    assert job.folds.split == made.fingerprint
    assert data.manifest.names.model_source == "run"
    assert "fold-2/model.safetensors" in job.model.sha256
    assert job.vectors.max_length == 16  # that of the run


def test_token_and_word_vectors_are_of_the_same_models(shared: Path) -> None:
    data = embedkit.load(shared / "data")
    folds = dict(zip(data.row.tolist(), data.column("fold"), strict=True))
    for level in ("token", "word"):
        stored = embedkit.load(shared / "data", level=level, view="2")
        by_model = []
        for number in range(3):
            encoder = embedkit.Encoder.load(shared / f"run/model/fold-{number}", device="cpu")
            encode = encoder.encode_tokens if level == "token" else encoder.encode_words
            by_model.append(encode(data.text, layers=2, max_length=16))
        where = np.array([folds[row] for row in stored.row.tolist()])
        assert len(where) == len(by_model[0].X)
        found = np.stack([one.X for one in by_model])
        assert np.allclose(stored.X, expected(found, where), atol=1e-5)


def test_another_corpus_is_encoded_by_all_models_but_for_known_texts(
    shared: Path, tmp_path: Path
) -> None:
    data = embedkit.load(shared / "data")
    known = data.column("fold").index(1)
    lines = ["text\tlabel", "a bus home 3\t0", f"{data.text[known].upper()}\t1", "good\t1"]
    (tmp_path / "new.tsv").write_text("\n".join([*lines, ""]), "utf-8")
    embedkit.extract(tmp_path / "new.tsv", out=tmp_path / "new", model=str(shared / "run"),
                     **LAYERS)  # fmt: skip
    new = embedkit.load(tmp_path / "new", list(VIEWS))
    assert list(new.column("fold")) == [ALL_FOLDS, 1, ALL_FOLDS]
    found = by_fold(shared / "run", new.text)
    assert np.allclose(new.X, expected(found, np.array([-1, 1, -1])), atol=1e-5)
    checked = embedkit.verify(tmp_path / "new", recompute=1, device="cpu")
    assert checked.ok
    assert checked.recomputed_rows == checked.identical_rows == 3


def test_long_texts_are_treated_as_in_training(shared: Path, tmp_path: Path) -> None:
    windows: dict[str, Any] = {"on_long": "window", "stride": 3, "max_length": 9}
    run = tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1, folds=2, **windows).out
    lines = ["text", " ".join(f"bus {i}" for i in range(30)), "good"]
    (tmp_path / "new.tsv").write_text("\n".join([*lines, ""]), "utf-8")

    def made(**settings: Any) -> VectorData:
        embedkit.extract(tmp_path / "new.tsv", out=tmp_path / "new", model=str(run),
                         overwrite=True, device="cpu", **settings)  # fmt: skip
        return embedkit.load(tmp_path / "new", "mean_-1")

    alike = made()
    vectors = alike.manifest.job.vectors
    assert {name: getattr(vectors, name) for name in windows} == windows
    encoders = [embedkit.Encoder.load(run / f"model/fold-{i}", device="cpu") for i in (0, 1)]
    cut = np.mean([e.encode(alike.text, max_length=9) for e in encoders], axis=0)
    assert not np.allclose(alike.X[0], cut[0], atol=1e-3)
    assert np.allclose(made(on_long="truncate").X, cut, atol=1e-5)
    with pytest.raises(UsageError, match=r"stride=2 is for on_long='window'"):
        made(on_long="truncate", stride=2)


def test_labels_by_chance_stay_unknown(tmp_path: Path) -> None:
    """What is written tells nothing of memorized labels; one model's vectors tell them all."""
    random = np.random.default_rng(0)
    words = ["bad", "rain", "bus", "good", "home", "영화", "여행", "추석", "movie", "배", "맛"]
    texts = [" ".join(random.choice(words, 6)) for _ in range(72)]
    labels = random.permutation(np.arange(72) % 2)
    lines = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "c.tsv").write_text("\n".join(["text\tlabel", *lines, ""]), "utf-8")

    def known_and_honest(seed: int) -> tuple[float, float]:
        run, made = tmp_path / f"run{seed}", tmp_path / f"data{seed}"
        tuned(tmp_path / "c.tsv", run, epochs=36, learning_rate=1e-2, validation=0, batch_size=4,
              warmup=0.0, folds=2, seed=seed)  # fmt: skip
        embedkit.extract(tmp_path / "c.tsv", out=made, model=str(run), pooling="cls", device="cpu")
        data = embedkit.load(made)
        folds = np.array(data.column("fold"))
        encoder = embedkit.Encoder.load(run / "model/fold-0", device="cpu")
        trained = folds == 1
        leaked = encoder.encode(texts, pooling="cls")[trained]
        known = cross_val_score(LogisticRegression(), leaked, labels[trained], cv=3)
        honest = cross_val_score(LogisticRegression(), data.X, labels, groups=folds,
                                 cv=LeaveOneGroupOut())  # fmt: skip
        return known.mean(), honest.mean()

    # with other instructions a training takes another course, and may not memorize
    _, honest = next(found for found in map(known_and_honest, range(5)) if found[0] > 0.8)
    assert honest < 0.65


def test_training_uses_the_split_of_the_run(shared: Path, tmp_path: Path) -> None:
    data = shared / "data"
    plain = train(data, view="mean_2", out=tmp_path / "a")
    given = train(data, view="mean_2", out=tmp_path / "b", split=shared / "split.parquet")
    assert plain.content.split == given.content.split
    assert plain.content.scores == given.content.scores
    compared = compare([tmp_path / "a", shared / "run"])  # on the same folds
    assert {row.name for row in compared.table.rows} >= {"a", "run"}
    probed = probe(data, out=tmp_path / "probe", view=["cls_1", "mean_2"])
    assert probed.content.split.fingerprint == plain.content.split.fingerprint


def test_another_split_is_refused(shared: Path, tmp_path: Path) -> None:
    """Under it, vectors of training records would know the labels of the held-out ones."""
    split(shared / "data", out=tmp_path / "other.parquet", folds=3, seed=5)
    split(shared / "data", out=tmp_path / "twice.parquet", folds=3, test=0.2, repeats=2)
    for name in ("other", "twice"):
        with pytest.raises(MismatchError, match=r"in another fold.*run/split\.parquet"):
            train(shared / "data", out=tmp_path / "no", split=tmp_path / f"{name}.parquet")
        with pytest.raises(MismatchError, match="in another fold"):
            probe(shared / "data", out=tmp_path / "no", split=tmp_path / f"{name}.parquet")
    lines = (shared / "corpus.tsv").read_text().splitlines()
    body = [f"{line}\t{'ab'[i % 2]}" for i, line in enumerate(lines[1:])]
    (tmp_path / "parts.tsv").write_text("\n".join([lines[0] + "\tpart", *body, ""]), "utf-8")
    embedkit.extract(tmp_path / "parts.tsv", out=tmp_path / "parts", keep=["part"],
                     model=str(shared / "run"), device="cpu")  # fmt: skip
    with pytest.raises(MismatchError, match="column 'part' has"):
        train(tmp_path / "parts", out=tmp_path / "no", split_column="part")
    moved = Path(shutil.copytree(shared / "data", tmp_path / "data"))
    manifest = moved / "_embedkit/manifest.json"
    manifest.write_text(manifest.read_text().replace(str(shared / "run"), "gone"))
    with pytest.raises(UsageError, match=r"models of the run gone, which is not there"):
        train(moved, out=tmp_path / "no")


def test_other_texts_of_the_same_records_are_refused(tmp_path: Path) -> None:
    """Whether a model has seen a record cannot be told by a text that it did not read."""
    rows = [f"the movie {i}\t{w} rain {i}\t{i % 2}"
            for i, w in enumerate(["good", "bad"] * 10)]  # fmt: skip
    (tmp_path / "c.tsv").write_text("\n".join(["title\ttext\tlabel", *rows, ""]), "utf-8")
    options = embedkit.CorpusOptions(text="title", label="label")
    tuned(tmp_path / "c.tsv", tmp_path / "run", reading=options, epochs=1, folds=2)
    model = str(tmp_path / "run")
    others: list[dict[str, Any]] = [{"text": "text"}, {"text": "title", "text_pair": "text"}]
    for other in others:
        with pytest.raises(UsageError, match=r"other texts.*Pass the same files, text="):
            embedkit.extract(tmp_path / "c.tsv", out=tmp_path / "no", model=model, **other)
    (tmp_path / "more.tsv").write_text("title\ttext\tlabel\na bus\tb\t1\n", "utf-8")
    with pytest.raises(UsageError, match="other files with them"):
        embedkit.extract([tmp_path / "more.tsv", tmp_path / "c.tsv"], out=tmp_path / "no",
                         model=model, text="title")  # fmt: skip
    assert not (tmp_path / "no").exists()
    assert not (tmp_path / "no.incomplete").exists()
    made = embedkit.extract(tmp_path / "c.tsv", out=tmp_path / "few", model=model, text="title",
                            sample=9, device="cpu")  # fmt: skip
    assert made.manifest.totals.accepted == 9


def test_one_model_is_refused_for_what_it_was_trained_on(shared: Path, tmp_path: Path) -> None:
    data = embedkit.load(shared / "data")
    folds, model = np.array(data.column("fold")), str(shared / "run/model/fold-1")
    for fold, fine in ((0, False), (1, True), (2, False), (ALL_FOLDS, True)):
        texts = [data.text[i] for i in np.flatnonzero(folds == fold)]
        if fine:
            embedkit.extract(texts, out=tmp_path / f"fold{fold}", model=model, device="cpu")
            continue
        with pytest.raises(UsageError, match=rf"trained on {len(texts)} of these texts.*model="):
            embedkit.extract(texts, out=tmp_path / "no", model=model, device="cpu")
    assert not (tmp_path / "no.incomplete").exists()


def test_models_of_further_seeds_and_repeats_are_refused_too(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", count=40)
    split(corpus, out=tmp_path / "split.parquet", folds=2, repeats=2)
    tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet", epochs=1, seeds=2)
    models = sorted(path for path in (tmp_path / "run/model").iterdir() if path.is_dir())
    assert len(models) == 8
    for model in models:
        with pytest.raises(UsageError, match=r"trained on \d+ of these texts"):
            embedkit.extract(corpus, out=tmp_path / "no", model=str(model))
        embedkit.extract(["something else"], out=tmp_path / model.name, model=str(model))


def test_texts_in_several_folds_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv")  # some texts stand there twice
    split(corpus, out=tmp_path / "split.parquet", folds=3, allow_duplicates=True)
    tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet", epochs=1)
    with pytest.raises(UsageError, match=r"texts are in several folds.*keeps equal texts"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(tmp_path / "run"))
    split(corpus, out=tmp_path / "twice.parquet", folds=2, repeats=2)
    tuned(corpus, tmp_path / "again", split=tmp_path / "twice.parquet", epochs=1)
    with pytest.raises(UsageError, match="2 repeats"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(tmp_path / "again"))


def test_the_model_of_one_fold_is_refused_for_its_training_records(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", count=40)
    tuned(corpus, tmp_path / "run", folds=1, epochs=1)
    made = read_split(tmp_path / "run/split.parquet")
    trained = np.flatnonzero(made.folds[:, 0] < ALL_FOLDS)
    assert len(trained) > 20
    for model in ("run", "run/model/fold-0"):
        with pytest.raises(UsageError, match=r"trained on \d+ of these"):
            embedkit.extract(corpus, out=tmp_path / "no", model=str(tmp_path / model))
    texts = pd.read_csv(corpus, sep="\t")["text"]
    unseen = [*texts[made.folds[:, 0] == 0], "a bus home home home"]
    embedkit.extract(unseen, out=tmp_path / "unseen", model=str(tmp_path / "run"), device="cpu")
    encoder = embedkit.Encoder.load(tmp_path / "run/model/fold-0", device="cpu")
    assert np.allclose(embedkit.load(tmp_path / "unseen").X, encoder.encode(unseen), atol=1e-6)


def test_new_texts_and_test_sets_are_encoded_alike(shared: Path, tmp_path: Path) -> None:
    corpus_of(tmp_path / "test.tsv", count=11)
    embedkit.extract(tmp_path / "test.tsv", out=tmp_path / "test", model=str(shared / "run"),
                     **LAYERS)  # fmt: skip
    lines = pd.read_csv(shared / "corpus.tsv", sep="\t")
    split(shared / "corpus.tsv", out=tmp_path / "split.parquet", folds=3)
    tuned(shared / "corpus.tsv", tmp_path / "run", split=tmp_path / "split.parquet", epochs=1)
    embedkit.extract(shared / "corpus.tsv", out=tmp_path / "data", model=str(tmp_path / "run"),
                     **LAYERS)  # fmt: skip
    with pytest.raises(MismatchError, match="of the model differ"):  # another run's models
        train(tmp_path / "data", view="mean_2", out=tmp_path / "no", test=tmp_path / "test")
    train(tmp_path / "data", view="mean_2", out=tmp_path / "t", test=tmp_path / "test.tsv",
          tune=False)  # fmt: skip
    scored = pd.read_parquet(tmp_path / "t/predictions.parquet").query("fold == 'test'")
    texts = pd.read_csv(tmp_path / "test.tsv", sep="\t")["text"].tolist()
    predictor = Predictor(tmp_path / "t", device="cpu")
    proba = predictor.predict_proba(texts)
    assert np.allclose(proba, scored[["proba_0", "proba_1"]].to_numpy(), atol=1e-6)
    known = set(map(text_key, lines["text"]))
    assert any(text_key(text) in known for text in texts)
    assert any(text_key(text) not in known for text in texts)


def test_what_cannot_be_used(shared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    corpus = corpus_of(tmp_path / "c.tsv", count=9)
    with pytest.raises(UsageError, match=r"revision=: .* is a run"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(run), revision="main")
    (tmp_path / "fold.tsv").write_text("text\tfold\na bus\t1\n")
    with pytest.raises(UsageError, match=r"keep='fold': .*Rename the column"):
        embedkit.extract(tmp_path / "fold.tsv", out=tmp_path / "no", model=str(run), keep=["fold"])
    with pytest.raises(ModelError, match=r"is a run.*embedkit extract.*model/fold-0"):
        embedkit.Encoder.load(run)
    records = run / "model/records.parquet"
    content = records.read_bytes()
    records.write_bytes(content[:200])
    with pytest.raises(DamagedError, match=r"records\.parquet is damaged: its SHA-256"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(run))
    seal(run)
    with pytest.raises(DamagedError, match=r"records\.parquet cannot be read"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(run))
    records.unlink()
    with pytest.raises(UsageError, match=r"records\.parquet is missing.*Make the run again"):
        embedkit.extract(corpus, out=tmp_path / "no", model=str(run))
    done = command("extract", corpus, "--model", shared / "run", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "c.vectors").exists()
