"""Grown corpora: a dataset that is extended equals one that is made at once."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.dataset.format import TABLES, read_manifest
from embedkit.errors import MismatchError, OutputExistsError, UsageError
from embedkit.search.index import open_index
from tests.processes import invoke
from tests.store_fixtures import run, tiny_model, tree, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

OPTIONS: dict[str, Any] = {"words": "mean", "tokens": True, "shard_rows": 4}
OLD = [(f"i{n}", f"the movie was {'good ' * (n % 3)}{n}" if n % 5 else " ") for n in range(13)]
NEW = [(f"i{n}", "" if n == 13 else f"bad home {n}") for n in range(13, 20)]
CHANGED = [*OLD, *NEW]
CHANGED[6], CHANGED[10], CHANGED[11] = ("i6", "home"), ("i10", "a"), ("i11", " ")
"""Row 6 has another text, row 10 is no reject any more, row 11 is one now."""
Rows = Sequence[tuple[str, str]]


def tsv(path: Path, rows: Rows) -> None:
    path.write_text("id\ttext\n" + "".join(f"{i}\t{t}\n\n" for i, t in rows))


def csv(path: Path, rows: Rows) -> None:
    path.write_text("id,text\n" + "".join(f'{i},"{t}\n""x"""\n' for i, t in rows))


def jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in rows))


def packed(path: Path, rows: Rows) -> None:
    lines = ("id\ttext\n" + "".join(f"{i}\t{t}\n" for i, t in rows)).encode()
    path.write_bytes(gzip.compress(lines))


def parquet(path: Path, rows: Rows) -> None:
    ids, texts = zip(*rows, strict=True)
    pq.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=7)


def conllu(path: Path, rows: Rows) -> None:
    words = (
        ("\n".join(f"{n}\t{w}" + "\t_" * 8 for n, w in enumerate(t.split(), 1)), i)
        for i, t in rows
        if t.split()
    )
    path.write_text("".join(f"# sent_id = {i}\n{lines}\n\n" for lines, i in words))


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "c.tsv": tsv,
    "c.csv": csv,
    "c.jsonl": jsonl,
    "c.tsv.gz": packed,
    "c.parquet": parquet,
    "c.conllu": conllu,
}


def assert_equal(grown: Path, whole: Path) -> None:
    """Both have the same rows, vectors, rejects and counts; only the shards are others."""
    for level in ("sentence", "word", "token"):
        one, two = (embedkit.load(path, level=level) for path in (grown, whole))
        assert one.row.tolist() == two.row.tolist()
        for name in one.columns:
            assert one.column(name) == two.column(name)
        np.testing.assert_array_equal(one.X, two.X)
    totals = [read_manifest(path).totals for path in (grown, whole)]
    for name in ("records", "accepted", "rejected_by_reason", "left_out", "blank_lines"):
        assert getattr(totals[0], name) == getattr(totals[1], name)
    assert totals[0].accepted + totals[0].rejected + totals[0].left_out == totals[0].records
    for name in ("records", "tokens", "tokens_kept", "windows"):
        assert totals[0].ledger[name] == totals[1].ledger[name]
    rejects = [(path / "_embedkit/rejects.jsonl").read_bytes() for path in (grown, whole)]
    assert rejects[0] == rejects[1]
    assert embedkit.verify(grown, recompute=999).ok


def shard_bytes(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(out).items() if "/part-" in name}


@pytest.mark.parametrize("further", [False, True], ids=["longer", "further file"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_grown_dataset_equals_one_made_at_once(tmp_path: Path, name: str, further: bool) -> None:
    """Only the new records are encoded, and old shards keep their bytes."""
    files, write = [tmp_path / name], WRITERS[name]
    write(files[0], OLD)
    out = tmp_path / "out"
    run(files, out, **OPTIONS)
    before = shard_bytes(out)
    if further:
        files.append(tmp_path / f"second-{name}")
        write(files[1], NEW)
    else:
        write(files[0], [*OLD, *NEW])
    with pytest.raises(OutputExistsError, match="append"):
        run(files, out, **OPTIONS)
    result = run(files, out, append=True, **OPTIONS)
    assert result.resumed_shards == len(embedkit.load(out).reader.blocks) - 2
    after = shard_bytes(out)
    assert {part: after[part] for part in before} == before
    run(files, tmp_path / "whole", **OPTIONS)
    assert_equal(out, tmp_path / "whole")
    assert run(files, out, append=True, **OPTIONS).was_complete
    assert run(files, out, **OPTIONS).was_complete
    assert run([tmp_path / name], tmp_path / "new", append=True, **OPTIONS).resumed_shards == 0


def test_the_estimate_of_a_grown_corpus_is_that_of_its_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.dataset.extract._LEAST_SECONDS", 0.01)
    corpus, model = tmp_path / "c.tsv", tiny_model()
    tsv(corpus, OLD)
    extract = "extract", corpus, "--model", model, "--out", tmp_path / "out"
    assert invoke(*extract).exit_code == 0
    tsv(corpus, [*OLD, *NEW])
    before = tree(tmp_path)
    cost = json.loads(invoke(*extract, "--append", "--dry-run", "--json").stdout)
    assert (cost["records"], cost["accepted"]) == (len(NEW), len(NEW) - 1)
    assert f"{len(OLD)} records" in cost["output"]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["c.tsv", "c.parquet"])
@pytest.mark.parametrize(
    ("first", "then", "named"),
    [
        (OLD, CHANGED, r"^3 of the 13 .*6 \(id i6.*10 \(id i10.*11 \(id i11"),
        ([*OLD, *NEW], OLD[:9], r"9 of the 20 records .*9 \(id i9, missing\).*, …"),
    ],
    ids=["changed", "missing"],
)
def test_other_old_records_are_named_or_made_again(
    tmp_path: Path, name: str, first: Rows, then: Rows, named: str
) -> None:
    """Those that did not change are kept."""
    corpus, out, write = tmp_path / name, tmp_path / "out", WRITERS[name]
    write(corpus, first)
    run(corpus, out, **OPTIONS)
    before = tree(out)
    write(corpus, then)
    with pytest.raises(MismatchError, match=named):
        run(corpus, out, append=True, **OPTIONS)
    assert tree(out) == before
    result = run(corpus, out, update=True, **OPTIONS)
    assert result.resumed_shards == 1
    assert result.manifest.extends == ()
    run(corpus, tmp_path / "whole", **OPTIONS)
    assert_equal(out, tmp_path / "whole")


def test_a_damaged_shard_of_a_grown_dataset_is_made_again(tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.tsv", tmp_path / "out"
    tsv(corpus, OLD)
    run(corpus, out, **OPTIONS)
    tsv(corpus, [*OLD, *NEW])
    run(corpus, out, append=True, **OPTIONS)
    part = out / "sentences/part-00000001.parquet"
    before = shard_bytes(out)
    part.write_bytes(part.read_bytes()[:-9])
    assert run(corpus, out, **OPTIONS).resumed_shards == 4
    after = shard_bytes(out)
    assert {n for n in after if after[n] != before[n]} <= {f"{t}/{part.name}" for t in TABLES}
    run(corpus, tmp_path / "whole", **OPTIONS)
    assert_equal(out, tmp_path / "whole")


def test_what_cannot_be_appended(tmp_path: Path) -> None:
    corpus, out = tmp_path / "c.tsv", tmp_path / "out"
    tsv(corpus, OLD)
    run(corpus, out, sample=5, store_text=False)
    tsv(corpus, [*OLD, *NEW])
    with pytest.raises(UsageError, match="sample=5"):
        run(corpus, out, sample=5, store_text=False, append=True)
    tsv(corpus, OLD)
    run(corpus, tmp_path / "none", store_text=False)
    tsv(corpus, NEW)
    with pytest.raises(MismatchError, match="texts, which are not stored"):
        run(corpus, tmp_path / "none", store_text=False, append=True)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_an_index_gets_the_new_records(tmp_path: Path, kind: str) -> None:
    """It is carried along and says that there is more; an updated dataset needs a new one."""
    corpus, out = tmp_path / "c.tsv", tmp_path / "out"
    rows = [(str(n), f"{n:08b}".replace("0", "good ").replace("1", "bus ")) for n in range(150)]
    tsv(corpus, rows[:120])
    run(corpus, out, shard_rows=50)
    embedkit.index(out, kind=kind, whitening="whiten")
    tsv(corpus, rows)
    run(corpus, out, shard_rows=50, append=True)
    data = embedkit.load(out)
    with pytest.raises(MismatchError, match="--append"):
        open_index(data, kind=kind, whitening="whiten")
    info = embedkit.index(out, kind=kind, whitening="whiten", append=True)
    assert info == embedkit.index(out, kind=kind, whitening="whiten", append=True)
    assert (info.records, info.fingerprint) == (150, data.manifest.fingerprint)
    found = open_index(data, kind=kind, whitening="whiten")(data.X, 1)
    assert found.indices[:, 0].tolist() == list(range(150))
    assert embedkit.verify(out).ok
    rows[0] = "0", "bus home"
    tsv(corpus, rows)
    run(corpus, out, shard_rows=50, update=True)
    with pytest.raises(UsageError, match="no index"):
        open_index(embedkit.load(out), kind=kind, whitening="whiten")


def test_a_run_tells_that_its_dataset_has_grown(tmp_path: Path) -> None:
    rows = [(str(n), f"{['good', 'bad'][n % 2]} movie {n}", str(n % 2)) for n in range(40)]
    corpus, out = write_tsv(tmp_path / "c.tsv", rows[:30]), tmp_path / "out"
    run(corpus, out)
    embedkit.train(out, out=tmp_path / "run", folds=2)
    assert "grown" not in invoke("info", tmp_path / "run").output
    write_tsv(corpus, rows)
    run(corpus, out, append=True)
    assert "its dataset has 40 records since" in invoke("info", tmp_path / "run").output
