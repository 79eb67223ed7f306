"""What two commands do at once: one result, whole and its own; the other waits or is refused."""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit import storage
from embedkit.dataset import format as format_module
from embedkit.dataset.job import JobFolder
from embedkit.dataset.tables import TableReader
from embedkit.errors import LockedError, OutputExistsError
from embedkit.search import index
from embedkit.verification import verify
from tests.finetune_fixtures import corpus_of
from tests.processes import ROOT, command, completed
from tests.store_fixtures import ROWS, extract_tiny, run, write_tsv

pytestmark = pytest.mark.usefixtures("quick")


def test_a_dataset_is_not_made_twice(corpus: Path, tmp_path: Path, once_before: Any) -> None:
    """The second command saw nothing there; it does not begin under the lock."""
    once_before(JobFolder, "opened", lambda: run(corpus, tmp_path / "out", layers="0"))
    with pytest.raises(LockedError, match="changed by another process"):
        run(corpus, tmp_path / "out")
    assert embedkit.load(tmp_path / "out").views == ("mean_0",)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_manifest_is_read_while_its_dataset_is_replaced(
    tmp_path: Path, once_before: Any, gone: bool
) -> None:
    """It is not damaged, and between the two renames it is not missing."""
    corpus, out = write_tsv(tmp_path / "c.tsv"), tmp_path / "out"
    run(corpus, out)
    work = storage.incomplete(out)
    run(corpus, work, layers="0")
    before = work / storage.UNFINISHED / "replaced"

    def replace() -> None:
        before.parent.mkdir(parents=True, exist_ok=True)
        out.rename(before)
        if gone:
            threading.Timer(0.2, lambda: work.rename(out)).start()
        else:
            work.rename(out)
            (out / format_module.MANIFEST).write_text("{}")  # that of another dataset

    if gone:
        replace()
        assert format_module.read_manifest(out).fingerprint
    else:
        once_before(storage, "check_files", replace)
        with pytest.raises(LockedError, match="changed by another process"):
            format_module.read_manifest(out)


@pytest.mark.parametrize("to", ["csv", "npy"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_one_of_two_exports_is_refused(
    tmp_path: Path, once_before: Any, to: str, overwrite: bool
) -> None:
    """The other one begins in the middle of the first, and after its end."""
    run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out")
    data, file = embedkit.load(tmp_path / "out"), tmp_path / f"x.{to}"
    if overwrite:
        file.write_text("before")
    expected = data.export(tmp_path / f"whole.{to}", to=to).read_bytes()

    def middle() -> None:
        with pytest.raises(LockedError):
            data.export(file, to=to, overwrite=overwrite)

    once_before(TableReader, "vectors_of", middle)
    data.export(file, to=to, overwrite=overwrite)
    assert file.read_bytes() == expected
    with pytest.raises(OutputExistsError):
        data.export(file, to=to)
    assert file.read_bytes() == expected
    assert not file.with_name(f"x.{to}.incomplete").exists()


def test_what_no_command_made_is_not_replaced(tmp_path: Path) -> None:
    """Neither a file that was there nor one that appears while the command works."""
    corpus = corpus_of(tmp_path / "c.tsv", count=120)
    data = extract_tiny(corpus, tmp_path / "data").out
    embedkit.train(data, out=tmp_path / "run", folds=2)
    embedkit.split(corpus, folds=2, out=tmp_path / "s.parquet")
    lines = {
        "mine.tsv": "predict run c.tsv --device cpu --out mine.tsv",
        "page.html": "compare run --report page.html",
        "b.tsv": "compare run --write-blend b.tsv --prefer score",
        "s.parquet": "split c.tsv --folds 3 --out s.parquet",
        "data.csv": "export data --to csv --out data.csv",
    }
    for name, line in lines.items():
        (tmp_path / name).write_text("mine")
        done = command(*line.split(), cwd=tmp_path)
        assert done.returncode == 8, (line, done.stderr)
        assert (tmp_path / name).read_text() == "mine", line
    for line in list(lines.values())[:4]:
        assert command(*line.split(), "--overwrite", cwd=tmp_path).returncode == 0, line
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 120
    assert len((tmp_path / "mine.tsv").read_text().splitlines()) == 121
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").touch()
    with pytest.raises(OutputExistsError, match="folder"):
        embedkit.load(data).export(tmp_path / "folder", to="csv", overwrite=True)
    assert (tmp_path / "folder/mine").exists()


def test_an_index_is_built_in_the_dataset_that_was_read(tmp_path: Path, once_before: Any) -> None:
    """A dataset that replaces it waits for its end; one that replaced it is another dataset."""
    corpus = write_tsv(tmp_path / "c.tsv", ROWS * 3)
    run(corpus, tmp_path / "out")
    replace = partial(run, corpus, tmp_path / "out", layers="0", overwrite=True)
    once_before(index, "_in_dataset", replace)
    with pytest.raises(LockedError, match="replaced"):
        embedkit.index(tmp_path / "out", kind="flat")
    assert verify(tmp_path / "out").ok
    assert not list((tmp_path / "out").glob("_embedkit/index/*"))


@pytest.mark.slow
def test_pairs_of_commands_at_once() -> None:
    """A sample of what ``make crashes`` does twenty times."""
    names = ("extract --reuse", "reuse others", "export", "split", "index")
    completed(sys.executable, "-m", "tests.races", *names, "--times", "1", cwd=ROOT)
