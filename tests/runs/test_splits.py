"""Folds: nothing on both sides, classes evenly, the same for the same seed; bad input."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

import embedkit
from embedkit import CorpusOptions
from embedkit.dataset.format import text_key
from embedkit.dataset.read import text_keys
from embedkit.errors import DamagedError, MismatchError, UsageError
from embedkit.runs.split import (
    Split,
    align_split,
    assign_folds,
    make_split,
    read_split,
    same_text_groups,
    write_split,
)
from embedkit.units.units import Units
from tests.run_fixtures import units_with
from tests.store_fixtures import run

LABELS = ["0", "1"] * 40


def records(
    labels: list[str | None] | None = None, texts: list[str] | None = None, groups: Any = None
) -> Units:
    count = len(labels or texts or groups)
    texts = texts or [f"text {i}" for i in range(count)]
    row = np.arange(count) * 2
    return units_with(texts, label=labels, group=groups, source=("aa",), row=row)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 1 / 3, 0.5])
def test_the_test_part_is_as_large_as_asked(fraction: float) -> None:
    made = make_split(records(list(LABELS * 10)), test=fraction)
    assert np.mean(made.folds == -1) == pytest.approx(fraction, rel=0.1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 60), min_size=60, max_size=120), st.integers(0, 5))
def test_the_same_text_is_never_on_both_sides(numbers: list[int], seed: int) -> None:
    texts = [f"Text  {n}" if i % 2 else f"text {n} " for i, n in enumerate(numbers)]
    texts += [f"another {i}" for i in range(20)]
    labels: list[str | None] = [str(i % 2) for i in range(len(texts))]
    made = make_split(records(labels, texts), folds=3, test=0.2, seed=seed)
    keys = list(map(text_key, texts))
    assert len(set(zip(keys, made.folds, strict=True))) == len(set(keys))


def test_groups_and_texts_form_chains() -> None:
    keys = np.array([text_key(t) for t in ("a", "A\u200b ", "\ufeffb", "c", "d", "\uff24")])
    found = same_text_groups(keys, ["x", "y", "y", None, None, "z"])
    assert found[0] == found[1] == found[2]
    assert found[4] == found[5]
    assert len(set(found)) == 3
    assert same_text_groups(np.arange(3)).tolist() == [0, 1, 2]


def test_a_blank_name_is_no_group() -> None:
    blank = make_split(records(list(LABELS), groups=["", " ", None, "nan"] * 20))
    assert len(set(blank.group)) == 80


@pytest.mark.parametrize("name", ["text_pair", "text", " 작가"])
def test_a_group_may_have_any_name(name: str) -> None:
    groups = [f"g{i // 4}" for i in range(24)]
    frame = pd.DataFrame({"document": [f"film {i}" for i in range(24)], "of": groups})
    expected = embedkit.split(frame, group="of", folds=2, reading=CorpusOptions(text="document"))
    frame = frame.rename(columns={"of": name.strip()})
    made = embedkit.split(frame, group=name, folds=2, reading=CorpusOptions(text="document"))
    assert np.array_equal(made.group, expected.group)
    assert len(set(expected.group)) == 6


@given(
    groups=st.lists(st.integers(0, 30), min_size=40, max_size=90),
    singles=st.integers(0, 60),
    folds=st.integers(2, 5),
    seed=st.integers(0, 5),
)
def test_single_records_even_out_what_groups_leave(
    groups: list[int], singles: int, folds: int, seed: int
) -> None:
    """Groups stay whole; a class differs between folds only by what its groups force."""
    group = np.array([*groups, *range(100, 100 + singles)])
    strata = np.array([i * i % 3 for i in range(len(group))])
    try:
        fold = assign_folds(strata, group, folds, seed=seed)
    except UsageError:
        assert len(np.unique(group)) < folds
        return
    assert len(np.unique([group, fold], axis=1).T) == len(np.unique(group))
    alone = np.bincount(group)[group] == 1
    for number in range(3):
        counts = np.bincount(fold[strata == number], minlength=folds)
        some = np.bincount(fold[(strata == number) & alone], minlength=folds)
        assert (counts[some > 0] <= counts.min() + 1).all()


def test_the_first_folds_are_not_those_of_the_largest_groups() -> None:
    """Of them a test set is made: one text that stands there five times is in a tenth of them."""
    strata, group = np.arange(200) % 2, np.arange(200)
    group[:5] = 0
    first = [assign_folds(strata, group, 10, seed=seed)[0] == 0 for seed in range(200)]
    assert 0.03 < np.mean(first) < 0.2
    # six of sixty groups are of a rare class, which a test set has too
    strata, groups = (np.arange(600) < 60).astype(int), np.arange(600) // 10
    folds = [assign_folds(strata, groups, 10, seed=seed) for seed in range(20)]
    assert all((strata[fold == 0] == 1).any() for fold in folds)
    # nor are all of three groups of a class among the first ones
    strata, groups = (np.arange(200) < 15).astype(int), np.arange(200) // 5
    folds = [assign_folds(strata, groups, 10, seed=seed) for seed in range(20)]
    assert all(0 < (strata[fold < 5] == 1).sum() < 15 for fold in folds)
    strata = np.arange(200) % 2
    for large in (80, 110):  # as a part of a tenth is asked for, it is no group of half of all
        group[:large] = 0
        sizes = [(assign_folds(strata, group, 10, seed=seed) == 0).sum() for seed in range(20)]
        assert max(sizes) <= 20


def test_one_repeated_text_does_not_make_the_folds_of_all_others_slow() -> None:
    """Python runs for groups, of which a single record is none."""

    def calls(count: int) -> int:
        seen = Counter[str]()
        group, strata = np.arange(count), np.arange(count) % 4
        group[7] = 0
        sys.setprofile(lambda _, event, argument: seen.update([event]))
        try:
            assign_folds(strata, group, 5, seed=0)
        finally:
            sys.setprofile(None)
        return seen["call"] + seen["c_call"]

    calls(100)  # imports
    assert calls(4_000) < 1.5 * calls(1_000)


def test_folds_without_repeats_are_those_of_scikit_learn() -> None:
    strata = np.arange(300) ** 2 % 5
    folds = StratifiedKFold(4, shuffle=True, random_state=3).split(strata, strata)
    ours = assign_folds(strata, np.arange(300), 4, seed=3)
    assert all((ours[test] == number).all() for number, (_, test) in enumerate(folds))


def test_many_numbered_classes_are_stratified() -> None:
    labels = np.repeat(np.arange(30), 10)
    made = make_split(records([str(label) for label in labels]), folds=5)
    for label in range(30):
        assert np.bincount(made.folds[labels == label]).tolist() == [2] * 5


def test_ratings_with_a_rare_value_are_spread_evenly() -> None:
    """One to five stars, of which one was given three times: neighbours share a stratum."""
    stars = {"1": 3, "2": 37, "3": 60, "4.0": 60, "5": 40}
    labels: list[str | None] = [star for star, count in stars.items() for _ in range(count)]
    made = make_split(records(labels), folds=5)
    values = np.array(labels, float)
    for fold in range(5):
        here = values[made.folds == fold]
        assert [(here <= 2).sum(), (here == 3).sum(), (here == 5).sum()] == [8, 12, 8]


@pytest.mark.parametrize(
    "values", [range(100), [0] * 98 + [1, 2], [1] + [2] * 99 + [3], np.arange(30) // 4]
)
def test_values_are_binned_whole(values: Any) -> None:
    """Whatever the values, each fold gets its part of every tenth of them."""
    labels: list[str | None] = [str(v) for v in values]
    made = make_split(records(labels), folds=5)
    assert np.ptp(np.bincount(made.folds)) <= 3


BAD_INPUT: dict[str, Any] = {
    "label 'a'": (["a"] * 10, {}),
    r"label 'b' has 1, fewer than the 5 folds\. Leave": (["a"] * 9 + ["b"], {}),
    "5 folds": (["a", "b"] * 2, {}),
    r"label 'a' has 2, too few to hold out a fifth\. Leave": (["a", "b"] * 2, {"folds": 1}),
    "label 'a' has 9, .* 10 folds": (["a", "b"] * 9, {"folds": 10}),
    "test=0.9": (LABELS, {"test": 0.9}),
    "test=nan": (LABELS, {"test": float("nan")}),
}


@pytest.mark.parametrize("message", BAD_INPUT)
def test_bad_input(message: str) -> None:
    labels, options = BAD_INPUT[message]
    with pytest.raises(UsageError, match=message):
        make_split(records(list(labels)), **options)
    with pytest.raises(UsageError, match="needs 5 distinct texts"):
        make_split(records(list(LABELS), ["a", "b"] * 40))


def test_without_any_label_folds_are_not_stratified() -> None:
    made = make_split(records([None] * 20))
    assert np.bincount(made.folds).tolist() == [4] * 5
    assert not made.settings.stratified


def test_written_and_read(tmp_path: Path) -> None:
    made = make_split(records(list(LABELS)), test=0.2)
    write_split(made, tmp_path / "a.parquet")
    write_split(made, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    found = read_split(tmp_path / "a.parquet")
    assert np.array_equal([found.folds, found.group], [made.folds, made.group])
    assert (found.fingerprint, found.settings) == (made.fingerprint, made.settings)
    assert pq.read_schema(tmp_path / "a.parquet").names == ["row", "group", "fold"]
    elsewhere = replace(made, settings=replace(made.settings, source=("bb",)))
    others = [replace(made, row=made.row + 1), replace(made, folds=made.folds[::-1]), elsewhere]
    assert len({each.fingerprint for each in (made, *others)}) == 4
    # of the same input, and of all records that are asked for
    assert np.array_equal(align_split(made, records(list(LABELS))).folds, made.folds)
    fewer = Split(made.row[1:], made.group[1:], made.folds[1:], made.settings)
    for other, message in ((elsewhere, "made for other data"), (fewer, "lacks 1 of 80 records")):
        with pytest.raises(MismatchError, match=message):
            align_split(other, records(list(LABELS)))


def test_what_is_no_split(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file"):
        read_split(tmp_path)
    write_split(make_split(records(list(LABELS))), tmp_path / "made.parquet")
    table = pq.read_table(tmp_path / "made.parquet")
    (tmp_path / "bytes.parquet").write_bytes(b"PAR1 no")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "bare.parquet")
    pq.write_table(table.slice(1), tmp_path / "less.parquet")
    errors = {"none": UsageError, "bytes": DamagedError, "bare": UsageError, "less": DamagedError}
    for name, error in errors.items():
        with pytest.raises(error, match=rf"{name}\.parquet"):
            read_split(tmp_path / f"{name}.parquet")


def test_of_a_corpus(tmp_path: Path, notes: list[str]) -> None:
    corpus = tmp_path / "c.tsv"
    lines = [f"text {i % 30}\t{i % 2}\tg{i % 30 % 7}" for i in range(60)] + ["\t1\tg1"]
    corpus.write_text("text\tlabel\twho\n" + "\n".join(lines) + "\n")
    made = embedkit.split(corpus, out=tmp_path / "s.parquet", folds=3)
    assert len(made.row) == 60
    assert all(made.folds[i] == made.folds[i + 30] for i in range(30))
    with pytest.raises(UsageError, match="group='whom'"):
        embedkit.split(corpus, group="whom")
    grouped = embedkit.split(
        corpus, group="who", folds=2, out=tmp_path / "s.parquet", overwrite=True
    )
    assert grouped.settings.grouped
    # records of a further file are units of their own, which is told
    grouped.check_test("new.tsv")
    made.check_test("new.tsv")
    assert sum("records of the test set are resampled one by one" in n for n in notes) == 1


# equal texts, also where they are not stored


@pytest.mark.parametrize("store_text", [True, False])
def test_the_key_is_what_the_format_says(tmp_path: Path, store_text: bool) -> None:
    texts = [form.format(i) for form in ("bus {}", "Bus  {}", "\uff22us {}") for i in range(9)]
    out = run(texts, tmp_path / "out", store_text=store_text).out
    data = embedkit.load(out)
    assert text_keys(data).tolist() == data.column("text_key") == [text_key(text) for text in texts]
    assert len(set(embedkit.split(out, folds=2).group)) == 9
    digest = hashlib.sha256(b"a text").digest()
    assert text_key("Ａ \t TEXT ") == np.frombuffer(digest[:8], "<i8")[0]


def test_pairs_share_a_key_if_both_texts_do(tmp_path: Path) -> None:
    rows = [("a", "b"), ("A", " b"), ("a", "c"), ("b", "a")]
    corpus = [{"text": first, "text_pair": second} for first, second in rows]
    out = run(corpus, tmp_path / "out", text_pair="text_pair", store_text=False).out
    keys = embedkit.load(out).column("text_key")
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
