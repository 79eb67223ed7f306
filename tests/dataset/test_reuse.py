"""Reused vectors: a dataset that takes them from others equals one that is made at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import embedkit
from embedkit.dataset.job import JobFolder
from embedkit.dataset.shards import ExtractPlan, ShardMaker
from embedkit.errors import LockedError, MismatchError, OutputExistsError, UsageError
from embedkit.search.index import open_index
from tests.finetune_fixtures import tuned, write_lines
from tests.processes import ends_with, invoke
from tests.store_fixtures import begin, manifest_of, run, tiny_model, tree, write_reviews

pytestmark = pytest.mark.usefixtures("quick")

OPTIONS: dict[str, Any] = {"words": "mean", "tokens": True, "shard_rows": 4}
OLD = [(f"i{n}", f"the movie was {'good ' * (n % 3)}{n}" if n % 5 else " ") for n in range(13)]
NEW = [(f"i{n}", "" if n == 13 else f"bad home {n}") for n in range(13, 20)]
Rows = Sequence[tuple[str, str]]


def tsv(path: Path, rows: Rows) -> Path:
    path.write_text("\ufeffid\ttext\n" + "".join(f"{i}\t{t}\n\n" for i, t in rows), "utf-8")
    return path


def frame(rows: Rows, text: str = "{}") -> pd.DataFrame:
    return pd.DataFrame([(i, text.format(t)) for i, t in rows], columns=["id", "text"])


def conllu(path: Path, rows: Rows) -> None:
    lines = list[str]()
    for number, (i, text) in enumerate(row for row in rows if row[1].strip()):
        lines += [f"# newdoc id = d{number}"] * (number % 4 == 0) + [f"# sent_id = {i}"]
        lines += [f"{n}\t{word}" + "\t_" * 8 for n, word in enumerate(text.split(), 1)] + [""]
    path.write_text("\n".join([*lines, ""]))


WRITERS: dict[str, Callable[[Path, Rows], object]] = {
    "c.tsv": tsv,
    "c.csv": lambda path, rows: frame(rows, '{}\n"x"').to_csv(path, index=False),
    "c.jsonl": lambda path, rows: frame(rows).to_json(path, orient="records", lines=True),
    "c.tsv.gz": lambda path, rows: frame(rows).to_csv(path, sep="\t", index=False),
    "c.parquet": lambda path, rows: frame(rows).to_parquet(path, row_group_size=7),
    "c.conllu": conllu,
}


SHUFFLED = [OLD[i] for i in np.random.default_rng(0).permutation(len(OLD))]
# they share a key, and vectors only where the model does not see the difference
ALIKE = [("1", "Good bus"), ("2", "good  bus"), ("3", "good bus")]
CHANGES: dict[str, tuple[Rows, Rows, int]] = {
    "the same": (OLD, OLD, 0),
    "shuffled": (OLD, SHUFFLED, 0),
    "shortened": (OLD, [*OLD[:3], *OLD[9:]], 0),
    "grown in the middle": (OLD, [*OLD[:6], *NEW, *OLD[6:]], 6),
    "edited": (OLD, [*OLD[:5], ("i5", "home"), *OLD[6:]], 1),
    "other labels": (OLD, [(f"x{i}", text) for i, text in OLD], 0),
    "texts that differ in case alone": (ALIKE[:1], ALIKE, 2),
}
"""What may happen to a corpus: before and after it, and how many texts are encoded."""


def check_fresh(out: Path, corpus: Any, **options: Any) -> None:
    """Compare a dataset with one that is made at once."""
    run(corpus, out.with_name("fresh"), **options)
    assert tree(out) == tree(out.with_name("fresh"))


def encoded(starts: Sequence[Any]) -> int:
    """Number of the texts that the model got in some calls of ``ShardMaker.start``."""
    return sum(len(call.arguments[1].texts) for call in starts)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_corpus_has_the_bytes_of_a_fresh_extraction(
    tmp_path: Path, change: str, calls_of: Any
) -> None:
    """Only new texts are tokenized and encoded; ids are labels too."""
    before, after, fresh = CHANGES[change]
    corpus, out = tsv(tmp_path / "c.tsv", before), tmp_path / "out"
    options = {**OPTIONS, "label": "id"}
    run(corpus, out, **options)
    tsv(corpus, after)
    if change != "the same":
        with pytest.raises(OutputExistsError, match="reuse="):
            run(corpus, out, **options)
    starts, tokenized = calls_of(ShardMaker, "start"), calls_of(ExtractPlan, "tokenized")
    run(corpus, out, reuse=out, overwrite=True, **options)
    texts = sum(len(call.arguments[1]) for call in tokenized)
    assert encoded(starts) == texts == fresh
    check_fresh(out, corpus, **options)
    assert embedkit.verify(out, recompute=999).ok


@pytest.mark.parametrize(
    ("name", "storage"), [*zip(WRITERS, ["float16", "compact"] * 3, strict=True)]
)
def test_every_format_and_storage(tmp_path: Path, name: str, storage: str) -> None:
    files, options = [tmp_path / name, tmp_path / f"second-{name}"], {**OPTIONS, "storage": storage}
    for file, rows in zip(files, (OLD, NEW), strict=True):
        WRITERS[name](file, rows)
    run(files[0], tmp_path / "old", **options)
    grown = run(files, tmp_path / "grown", reuse=tmp_path / "old", **options)
    fresh = run(files, tmp_path / "fresh", **options)
    assert tree(tmp_path / "grown") == tree(tmp_path / "fresh")
    assert 0 < grown.tokens_fresh < fresh.tokens_fresh / 2


@pytest.mark.parametrize("odd", [{"on_long": "window", "max_length": 9, "stride": 2}, {}])
def test_what_lengths_do_not_tell_is_counted_again(tmp_path: Path, odd: dict[str, Any]) -> None:
    """Windows, and special tokens that a text spells out, stand in no column."""
    rows = [*OLD, ("s", "a [SEP] bus"), ("l", "the movie was " * 9)]
    corpus = tsv(tmp_path / "c.tsv", rows)
    run(corpus, tmp_path / "old", **OPTIONS, **odd)
    tsv(corpus, [*NEW, *rows[::-1]])
    run(corpus, tmp_path / "new", reuse=tmp_path / "old", **OPTIONS, **odd)
    check_fresh(tmp_path / "new", corpus, **OPTIONS, **odd)
    ledger = manifest_of(tmp_path / "new")["totals"]["ledger"]
    assert ledger["records_spelling_special_tokens"] == 1
    assert (ledger["windows"] > ledger["records"]) == bool(odd)


def test_normalized_cut_and_two_sources(tmp_path: Path, calls_of: Any) -> None:
    """Each text is taken where it is; of two views one is wanted; and workers do so too."""
    options: dict[str, Any] = {"normalize": True, "dims": 5, "shard_rows": 4}
    for name, rows in (("a", OLD[:6]), ("b", OLD[4:]), ("c", [*NEW, *OLD])):
        tsv(tmp_path / f"{name}.tsv", rows)
    for name, pooling in (("a", "cls,mean"), ("b", "cls,max")):
        run(tmp_path / f"{name}.tsv", tmp_path / name, pooling=pooling, words="mean", **options)
    corpus, sources = tmp_path / "c.tsv", [tmp_path / "a", tmp_path / "b"]
    starts = calls_of(ShardMaker, "start")
    run(corpus, tmp_path / "both", pooling="cls", reuse=sources, **options)
    assert encoded(starts) == 6
    check_fresh(tmp_path / "both", corpus, pooling="cls", **options)


@pytest.mark.slow
def test_workers_reuse_too(tmp_path: Path) -> None:
    corpus = tsv(tmp_path / "c.tsv", OLD)
    run(corpus, tmp_path / "old", **OPTIONS)
    tsv(corpus, [*NEW, *OLD])
    words = ["extract", corpus, "--model", tiny_model(), "--out", tmp_path / "two", "--words"]
    words += ["--tokens", "--precision", "fp32", "--device", "cpu", "--workers", "2"]
    ends_with(3, *map(str, words), "--reuse", tmp_path / "old", cwd=tmp_path)
    log = (tmp_path / "two/_embedkit/log.jsonl").read_text("utf-8").splitlines()
    fresh = run(corpus, tmp_path / "fresh", **OPTIONS).tokens_fresh
    assert 0 < sum(json.loads(line).get("tokens_encoded", 0) for line in log) < fresh
    for level in ("sentence", "word", "token"):
        two, new = (embedkit.load(tmp_path / n, level=level).X for n in ("two", "fresh"))
        np.testing.assert_array_equal(two, new)


def test_marked_words_are_those_of_the_text(tmp_path: Path, calls_of: Any) -> None:
    """A text whose marked words have moved is another one; one with other labels is not."""

    def spans(name: str, *rows: str) -> Path:
        return write_lines(tmp_path / name, "text\tstart\tend\tkind", *rows)

    options: dict[str, Any] = {"spans": ["start", "end"], "word_label": "kind", "words": "mean"}
    run(spans("a.tsv", "the movie was good\t4\t9\tN", "a bus\t2\t5\tN"), tmp_path / "a", **options)
    changed = spans("b.tsv", "the movie was good\t14\t18\tJ", "a bus\t2\t5\tX")
    starts = calls_of(ShardMaker, "start")
    run(changed, tmp_path / "b", reuse=tmp_path / "a", **options)
    assert encoded(starts) == 1
    check_fresh(tmp_path / "b", changed, **options)


def test_a_kill_in_between(tmp_path: Path) -> None:
    """The same command goes on, and other commands see the old dataset until then."""
    corpus, out = tsv(tmp_path / "c.tsv", OLD), tmp_path / "out"
    run(corpus, out, **OPTIONS)
    before = tree(out)
    tsv(corpus, [*NEW, *OLD])
    begin(corpus, out, reuse=out, overwrite=True, **OPTIONS)
    assert tree(out) == before
    assert run(corpus, out, reuse=out, overwrite=True, **OPTIONS).resumed_shards >= 1
    check_fresh(out, corpus, **OPTIONS)


def test_two_at_once_publish_what_they_name(tmp_path: Path, once_before: Any) -> None:
    """One that looked before the other ended, and begins after it, replaces and takes nothing."""
    out = tmp_path / "out"
    again: dict[str, Any] = {"reuse": out, "overwrite": True, **OPTIONS}
    for name, rows in (("old", OLD), ("nov", [*OLD, *NEW]), ("dec", OLD[:7])):
        tsv(tmp_path / f"{name}.tsv", rows)
    run(tmp_path / "old.tsv", out, **OPTIONS)
    once_before(JobFolder, "opened", lambda: run(tmp_path / "nov.tsv", out, **again))
    with pytest.raises(LockedError, match="changed by another process"):
        run(tmp_path / "dec.tsv", out, **again)
    data = embedkit.load(out)
    assert data.manifest.names.inputs == (str(tmp_path / "nov.tsv"),)
    assert len(data) == 16
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]  # nothing was begun
    assert embedkit.verify(out).ok
    once_before(JobFolder, "opened", lambda: run(tmp_path / "old.tsv", out, **again))
    with pytest.raises(MismatchError, match="changed meanwhile"):
        run(tmp_path / "dec.tsv", tmp_path / "new", reuse=out, **OPTIONS)


OTHER_VECTORS: dict[str, Any] = {
    "stores no texts": ({"store_text": False}, {}),
    "int8 rounds": ({}, {"storage": "int8"}),
    "it has no cls_2": ({"pooling": "mean"}, {"pooling": "cls"}),
    "max_length is 9": ({"max_length": 9}, {}),
    "words is None, expected 'mean'": ({}, {"words": "mean"}),
    "words is 'first'": ({"words": "first"}, {"words": "mean"}),
    "tokens is False": ({}, {"tokens": True}),
    "prefix is 'a '": ({"prefix": "a "}, {}),
}


@pytest.mark.parametrize("message", OTHER_VECTORS)
def test_datasets_whose_vectors_are_others(tmp_path: Path, message: str) -> None:
    made, wanted = OTHER_VECTORS[message]
    corpus = tsv(tmp_path / "c.tsv", OLD)
    run(corpus, tmp_path / "old", **made)
    with pytest.raises((MismatchError, UsageError), match=message):
        run(corpus, tmp_path / "new", reuse=tmp_path / "old", **wanted)
    assert not (tmp_path / "new").exists()


def test_another_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tsv(tmp_path / "c.tsv", OLD)
    run(corpus, tmp_path / "old")
    monkeypatch.setattr("tokenizers.__version__", "9.9")
    with pytest.raises(MismatchError, match=r"another environment[^$]*9\.9"):
        run(corpus, tmp_path / "new", reuse=tmp_path / "old")
    run(corpus, tmp_path / "new", reuse=tmp_path / "old", allow_env_change=True)


def test_texts_that_are_there_cost_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.dataset.extract._LEAST_SECONDS", 0.01)
    tsv(tmp_path / "c.tsv", OLD)
    extract = "extract", tmp_path / "c.tsv", "--model", tiny_model(), "--out", tmp_path / "out"
    assert invoke(*extract).exit_code == 0
    before = tree(tmp_path)
    cost = invoke(*extract, "--overwrite", "--reuse", tmp_path / "out", "--dry-run", "--json")
    assert json.loads(cost.stdout)["seconds"] == 0
    assert tree(tmp_path) == before
    again = invoke(*extract, "--overwrite", "--reuse", tmp_path / "out")
    assert "(nothing was encoded)" in again.output
    tsv(tmp_path / "c.tsv", [*OLD, ("x", "a new text")])
    grown = invoke(*extract, "--overwrite", "--reuse", tmp_path / "out")
    assert re.search(r"\(\d+\s+of\s+\d+\s+tokens\s+encoded,\s", grown.output)


def test_a_run_tells_that_its_dataset_is_another_one(tmp_path: Path) -> None:
    corpus, out = write_reviews(tmp_path / "c.tsv", 30, rejected=False), tmp_path / "out"
    run(corpus, out)
    embedkit.train(out, out=tmp_path / "run", folds=2)
    embedkit.index(out, kind="flat")
    tuned(out, tmp_path / "tuned", epochs=1, folds=2)
    for name in ("run", "tuned"):
        assert "another one" not in invoke("info", tmp_path / name).output
    write_reviews(corpus, rejected=False)
    run(corpus, out, reuse=out, overwrite=True)
    for name in ("run", "tuned"):
        assert "another one has its place now, of 40" in invoke("info", tmp_path / name).output
    with pytest.raises(UsageError, match="no index"):
        open_index(embedkit.load(out), kind="flat")
