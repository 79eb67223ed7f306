"""The folder of an unfinished job, without a model."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from embedkit.dataset.jobs import Job, already_complete, difference, open_job, what_is_there
from embedkit.dataset.manifest import (
    JobSettings,
    Layout,
    Names,
    Totals,
    is_dataset,
    read_manifest,
)
from embedkit.dataset.schema import Footer, shard_bytes
from embedkit.decoding import decode
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, UsageError
from tests.store_fixtures import tree

SETTINGS = {
    "format_version": 1,
    "input": {"files": [{"sha256": "a", "bytes": 1}], "format": "tsv", "encoding": "utf-8",
              "delimiter": "\t", "quoting": "none", "header": True, "text": "text",
              "text_pair": None, "id": None, "label": None, "keep": [], "unicode": "none",
              "min_chars": 0, "limit": None, "sample": None, "seed": None},
    "model": {"type": "bert", "n_layers": 1, "width": 4, "sha256": {"a": "1", "b": "2"}},
    "vectors": {"views": {"mean_1": 4}, "token_layers": {}, "words": None, "tokens": False,
                "special_tokens": True, "normalize": False, "max_length": 8,
                "on_long": "truncate", "stride": 0, "prefix": "", "precision": "fp32",
                "batch_tokens": 64},
    "storage": {"profile": "float32", "shard_rows": 1, "text": True},
}  # fmt: skip
JOB = Job(decode(JobSettings, SETTINGS, file=Path("settings")), {"torch": "2"})
NAMES = Names(inputs=("a.tsv",), model="m", model_source="folder", revision=None)


def limited(limit: int = 1) -> JobSettings:
    """Settings that differ in one field."""
    return replace(JOB.settings, input=replace(JOB.settings.input, limit=limit))


def commit(folder: Any, number: int) -> None:
    footer = Footer(
        folder._job.fingerprint, number, number, number, 1, {"tokens": 1}, {},
        asdict(folder._job),
    )  # fmt: skip
    columns = {"row": pa.array([number]), "text_key": pa.array([number])}
    data = shard_bytes(columns, {}, footer=footer, storage="float32")
    folder.commit(number, footer, data, {})


def make(out: Path, job: Job = JOB, shards: tuple[int, ...] = (0, 1), **options: Any) -> None:
    with open_job(out, job, **options) as folder:
        for number in shards:
            if folder.finished(number) is None:
                commit(folder, number)
        folder.finish(n_shards=len(shards), totals=Totals(accepted=2), names=NAMES)


@pytest.mark.parametrize("shards", [(0, 1, 2), (2, 0, 1)])
def test_shards_may_come_in_any_order(tmp_path: Path, shards: tuple[int, ...]) -> None:
    make(tmp_path / "out", shards=shards)
    make(tmp_path / "in order", shards=(0, 1, 2))
    for name in ("part-00000.parquet", "part-00002.parquet"):
        one, two = (tmp_path / n / "sentences" / name for n in ("out", "in order"))
        assert one.read_bytes() == two.read_bytes()
    assert is_dataset(tmp_path / "out")
    assert not (tmp_path / "out.incomplete").exists()
    assert read_manifest(tmp_path / "out").n_shards == 3


def test_what_is_finished_is_known_again(tmp_path: Path) -> None:
    with open_job(tmp_path / "out", JOB) as folder:
        assert folder.finished(0) is None
        commit(folder, 0)
    with open_job(tmp_path / "out", JOB) as folder:
        footer = folder.finished(0)
        assert footer is not None
        assert footer.shard == 0
        assert folder.finished(1) is None
    Layout(tmp_path / "out.incomplete").shard_file("sentences", 0).rename(
        Layout(tmp_path / "out.incomplete").shard_file("sentences", 1)
    )
    with open_job(tmp_path / "out", JOB) as folder:
        assert folder.finished(1) is None  # it says itself that it is another


def test_already_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not already_complete(out, JOB, overwrite=False)
    make(out)
    assert already_complete(out, JOB, overwrite=False)
    assert not already_complete(out, JOB, overwrite=True)
    other = Job(limited(), JOB.environment)
    with pytest.raises(OutputExistsError, match=r"input\.limit: nothing there, 1 now"):
        already_complete(out, other, overwrite=False)
    elsewhere = Job(JOB.settings, {"torch": "3"})
    assert already_complete(out, elsewhere, overwrite=False)


def test_the_fingerprint_is_of_the_settings_alone() -> None:
    files = dict(reversed(JOB.settings.model.sha256.items()))
    same = replace(JOB.settings, model=replace(JOB.settings.model, sha256=files))
    assert JOB.fingerprint == Job(same, {}).fingerprint
    assert JOB.fingerprint != Job(limited(), JOB.environment).fingerprint
    assert len(JOB.fingerprint) == 64


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_settings_in_an_unfinished_folder(tmp_path: Path, overwrite: bool) -> None:
    with open_job(tmp_path / "out", JOB) as folder:
        commit(folder, 0)
    other = Job(limited(), JOB.environment)
    if overwrite:
        make(tmp_path / "out", other, shards=(0,), overwrite=True)
        assert read_manifest(tmp_path / "out").fingerprint == other.fingerprint
    else:
        with pytest.raises(MismatchError, match=r"\n  input\.limit: nothing there, 1 now$"):
            make(tmp_path / "out", other)
        make(tmp_path / "out")


@pytest.mark.parametrize("environment", [JOB.environment, {"torch": "0"}])
def test_a_job_without_a_shard_binds_nobody(tmp_path: Path, environment: dict[str, Any]) -> None:
    with open_job(tmp_path / "out", JOB):
        pass
    other = Job(limited(), environment)
    make(tmp_path / "out", other)
    assert read_manifest(tmp_path / "out").fingerprint == other.fingerprint
    with open_job(tmp_path / "with a file", JOB):
        pass
    (tmp_path / "with a file.incomplete/sentences/mine.txt").touch()
    with pytest.raises(MismatchError, match=r"input\.limit: nothing there, 1 now"):
        make(tmp_path / "with a file", other)
    assert (tmp_path / "with a file.incomplete/sentences/mine.txt").is_file()


def test_what_a_run_would_meet_is_told_and_nothing_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = Job(limited(), JOB.environment)

    def there(job: Job = JOB, *, overwrite: bool = False) -> str:
        before = tree(tmp_path)
        found = what_is_there(out, job, overwrite=overwrite)
        assert tree(tmp_path) == before
        return found

    assert there() == ""
    with open_job(out, JOB) as folder:
        assert there(other) == ""
        commit(folder, 0)
    assert "holds 1 finished shards" in there()
    assert "begun otherwise: only overwrite=True" in there(other)
    make(out)
    assert "already complete; nothing would be done" in there()
    assert "made otherwise: only overwrite=True would replace it" in there(other)
    assert "would be replaced" in there(other, overwrite=True)
    shutil.rmtree(out)
    out.touch()
    assert "is in the way" in there(overwrite=True)


def test_a_shard_too_many_is_refused(tmp_path: Path) -> None:
    with open_job(tmp_path / "out", JOB) as folder:
        for number in range(3):
            commit(folder, number)
    with pytest.raises(DamagedError, match=r"part-00002\.parquet does not belong .* 2 shards"):
        make(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, ""),
        ({"a": 1}, {"a": 1}, ""),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "  a.b: 1 there, 2 now"),
        ({"a": [1, 2]}, {"a": [2, 1]}, "  a: [1, 2] there, [2, 1] now"),
        ({"f": [{"s": "x"}]}, {"f": [{"s": "x"}, {"s": "y"}]}, '  f[1].s: nothing there, "y" now'),
        ({"한": "글"}, {}, '  한: "글" there, nothing now'),
        ({"a": "x" * 99}, {"a": ""}, '  a: "' + "x" * 56 + '… there, "" now'),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, "  a: 1 there, 2 now\n  b: 1 there, 2 now"),
    ],
)
def test_differences_are_told_field_by_field(
    before: dict[str, Any], now: dict[str, Any], expected: str
) -> None:
    assert difference(before, now) == expected


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown": 1}'])
def test_a_damaged_manifest(tmp_path: Path, content: str) -> None:
    make(tmp_path / "out")
    Layout(tmp_path / "out").manifest.write_text(content)
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path / "out")


def test_what_is_said_of_a_folder_that_is_no_dataset(tmp_path: Path) -> None:
    with open_job(tmp_path / "out", JOB):
        pass
    with pytest.raises(UsageError, match=r"unfinished .*run the same extract command again"):
        read_manifest(tmp_path / "out")
    make(tmp_path / "other")
    with pytest.raises(UsageError, match=r"does not exist\. Did you mean 'other'"):
        read_manifest(tmp_path / "othr")
    with pytest.raises(UsageError, match="Give a folder that embedkit extract wrote"):
        read_manifest(tmp_path)
