"""Kills, signals, changes between runs, and damage to unfinished jobs."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embedkit.choices import DEFAULT_MODEL
from embedkit.dataset import planning
from embedkit.dataset.jobs import JobFolder
from embedkit.dataset.schema import read_footer
from embedkit.encoding.encoder import Encoder
from embedkit.errors import (
    CorpusError,
    DamagedError,
    MismatchError,
    OutputExistsError,
)
from embedkit.types import Progress
from tests.processes import ROOT, Process, command
from tests.store_fixtures import (
    N_ACCEPTED,
    ROWS,
    build_tiny,
    load_quickly,
    manifest_of,
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    tree,
    tree_hash,
    write_tsv,
)

pytestmark = pytest.mark.usefixtures("quick")

SMALL = {"shard_rows": 5, "words": "mean", "tokens": True}
"""Two shards of three files each, one with few rows."""


class Crash(BaseException):
    """The power goes out."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_tsv(tmp_path / "corpus.tsv")


@pytest.fixture
def golden(corpus: Path, tmp_path: Path) -> str:
    run(corpus, tmp_path / "golden", **SMALL)
    return tree_hash(tmp_path / "golden")


def test_a_dataset_that_appears_during_the_job_is_kept(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(corpus, tmp_path / "other", layers="0")
    before = tree_hash(tmp_path / "other")
    seen: list[str] = []

    def intrude(state: Any) -> None:
        if not seen:
            shutil.copytree(tmp_path / "other", out)
        seen.append(state.stage)

    with pytest.raises(OutputExistsError, match="came into being while the job ran"):
        run(corpus, out, progress=intrude)
    assert tree_hash(out) == before
    shutil.rmtree(out)
    assert run(corpus, out).resumed_shards == 4


# Real processes


def _kill_until_done(
    arguments: list[str], cwd: Path, *, kills: int, shards: int, seed: int
) -> list[int]:
    """Run a job to ``golden``, then to ``out`` with kills at random moments of its work.

    Args:
        arguments: the command without its output.
        cwd: where to run.
        kills: how many runs to kill at most.
        shards: a run is killed when it has written fewer new shards than this, and none at times.
        seed: of the moments.

    Returns:
        The number of sentence files after each kill.
    """
    assert command(*arguments, "--out", "golden", cwd=cwd).returncode in (0, 3)
    rng = random.Random(seed)
    log, sentences = cwd / "out.incomplete/_embedkit/log.jsonl", cwd / "out.incomplete/sentences"
    found = [0]
    for run_number in range(1, kills + 1):
        process = Process(*arguments, "--out", "out", cwd=cwd)
        process.until(partial(_has_started, log, run_number))
        process.until(partial(_has_written, sentences, found[-1] + rng.randrange(shards)))
        time.sleep(rng.uniform(0, 0.02))  # into the work on the next shard
        process.kill()
        if (cwd / "out").exists():
            break
        found.append(_count(sentences))
    assert command(*arguments, "--out", "out", cwd=cwd).returncode in (0, 3)
    return found[1:]


def _has_started(log: Path, times: int) -> bool:
    return log.is_file() and log.read_text().count("started") == times


def _has_written(folder: Path, count: int) -> bool:
    return _count(folder) >= count


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.parquet"))


@pytest.mark.slow
def test_kill_9_of_a_tiny_job(tmp_path: Path) -> None:
    rows = [(f"{i:03}", f"{'the movie was good ' * (i % 5 + 1)}{i}", "1") for i in range(900)]
    write_tsv(tmp_path / "corpus.tsv", rows)
    arguments = ["extract", "corpus.tsv", "--model", str(tiny_model()), "--shard-rows", "12",
                 "--words", "--tokens", "--layers", "all"]  # fmt: skip
    assert _kill_until_done(arguments, tmp_path, kills=12, shards=8, seed=5)
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "golden")


@pytest.mark.slow
def test_kill_9_of_the_default_model(tmp_path: Path) -> None:
    for name in ("reviews_ko.tsv", "reviews_en.tsv"):
        lines = (ROOT / "data" / name).read_text("utf-8").splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:61]), "utf-8")
    arguments = ["extract", "reviews_ko.tsv", "reviews_en.tsv", "--shard-rows", "8",
                 "--max-length", "64", "--words", "--tokens"]  # fmt: skip
    assert _kill_until_done(arguments, tmp_path, kills=8, shards=4, seed=6)
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "golden")


@pytest.fixture(scope="module")
def long_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """A command that runs for a while, in shards that come often."""
    folder = tmp_path_factory.mktemp("long")
    rows = [(f"{i:05}", f"the movie {i} was good " * 4, "1") for i in range(6_000)]
    write_tsv(folder / "corpus.tsv", rows)
    return ["extract", "corpus.tsv", "--model", str(tiny_model()), "--shard-rows", "8",
            "--words", "--tokens", "--layers", "all"], folder  # fmt: skip


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signals_end_the_job_at_once_and_it_resumes(
    long_job: tuple[list[str], Path], number: int, code: int, word: str
) -> None:
    arguments, folder = long_job
    out = f"signal-{code}"
    process = Process(*arguments, "--out", out, cwd=folder)
    parts = folder / f"{out}.incomplete/sentences"
    assert process.until(lambda: _count(parts) >= 2)
    process.send(number)
    ended = process.wait()
    assert ended.returncode == code
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"embedkit: {word}; run the same command again")
    assert not (folder / out).exists()
    for part in parts.iterdir():
        read_footer(part)


# What stands there already


def test_a_complete_dataset_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    again = run(corpus, tmp_path / "out")
    assert again.was_complete
    assert again.tokens_fresh == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before
    assert again.manifest.totals.accepted == N_ACCEPTED


def _a_file(out: Path) -> None:
    out.write_text("mine")


def _a_folder(out: Path) -> None:
    out.mkdir()
    (out / "mine.txt").write_text("mine")


def _a_link(out: Path) -> None:
    (out.parent / "elsewhere").mkdir()
    out.symlink_to(out.parent / "elsewhere")


def _a_dangling_link(out: Path) -> None:
    out.symlink_to(out.parent / "nowhere")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("obstacle", [_a_file, _a_folder, _a_link, _a_dangling_link])
@pytest.mark.parametrize("name", ["out", "out.incomplete"])
def test_what_embedkit_did_not_make_is_never_touched(
    corpus: Path, tmp_path: Path, obstacle: Callable[[Path], None], name: str, overwrite: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    obstacle(work / name)
    before = tree(work), sorted(work.iterdir()), (work / name).is_symlink()
    with pytest.raises(OutputExistsError, match=r"[Pp]ass another out=|Give the folder"):
        run(corpus, work / "out", overwrite=overwrite)
    assert (tree(work), sorted(work.iterdir()), (work / name).is_symlink()) == before


def test_another_dataset_is_not_replaced_unasked(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(corpus, out, layers="0")
    before = tree(out)
    with pytest.raises(OutputExistsError, match=r"vectors\.views\.mean_0: 16 there, nothing now"):
        run(corpus, out)
    assert tree(out) == before
    run(corpus, out, overwrite=True)
    assert list(manifest_of(out)["job"]["vectors"]["views"]) == ["mean_2"]
    assert not (out / "_embedkit/replacing").exists()


def test_an_empty_folder_is_free(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(corpus, tmp_path / "out").manifest.totals.accepted == N_ACCEPTED


# What changed between two runs


def _begin(corpus: Path, out: Path, **settings: Any) -> None:
    """Leave a job unfinished after its first shard."""

    def stop(state: Progress) -> None:
        if state.stage == "shard 2":
            raise Crash

    with pytest.raises(Crash):
        run(corpus, out, progress=stop, **settings)
    assert out.with_name(out.name + ".incomplete").is_dir()


SHAPING = [
    ({"layers": "0"}, "views.mean_0"),
    ({"layers": "concat:1..2"}, "views.mean_concat_1to2"),
    ({"pooling": ["cls"]}, "views.cls_2"),
    ({"pooling": ["mean", "pooler"]}, "views.pooler"),
    ({"words": "mean"}, "vectors.words"),
    ({"tokens": True}, "vectors.tokens"),
    ({"max_length": 12}, "max_length"),
    ({"on_long": "window"}, "on_long"),
    ({"special_tokens": False}, "special_tokens"),
    ({"unicode": "nfc"}, "input.unicode"),
    ({"normalize": True}, "normalize"),
    ({"prefix": "query: "}, "prefix"),
    ({"precision": "bf16"}, "precision"),
    ({"storage": "float16"}, "profile"),
    ({"storage": "compact"}, "profile"),
    ({"min_chars": 2}, "min_chars"),
    ({"sample": 5}, "input.sample"),
    ({"limit": 5}, "input.limit"),
    ({"batch_tokens": 64}, "batch_tokens"),
    ({"shard_rows": 4}, "shard_rows"),
    ({"store_text": False}, "storage.text"),
    ({"keep": ["document"]}, "input.keep"),
    ({"text": "id", "id": "document"}, "input.text"),
    ({"label": "id"}, "input.label"),
    ({"text_pair": "label"}, "input.text_pair"),
    ({"quoting": "csv"}, "input.quoting"),
    ({"header": False, "text": "1"}, "input.header"),
    ({"encoding": "cp949", "text": "id"}, "input.encoding"),
]


@pytest.mark.parametrize(("change", "field"), SHAPING, ids=lambda v: str(v)[:40])
def test_a_changed_setting_is_refused(
    corpus: Path, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    out = tmp_path / "out"
    _begin(corpus, out)
    before = tree(tmp_path)
    with pytest.raises(MismatchError, match=f"{field}.* there, .* now"):
        run(corpus, out, **change)
    assert tree(tmp_path) == before
    result = run(corpus, out)  # the earlier command still finishes it
    assert result.resumed_shards >= 1


def test_the_seed_counts_only_with_a_sample(corpus: Path, tmp_path: Path) -> None:
    _begin(corpus, tmp_path / "a", sample=8)
    with pytest.raises(MismatchError, match=r"input\.seed: 0 there, 1 now"):
        run(corpus, tmp_path / "a", sample=8, seed=1)
    _begin(corpus, tmp_path / "b")
    assert run(corpus, tmp_path / "b", seed=1).resumed_shards >= 1


@pytest.mark.parametrize("change", [
    lambda folder: {"progress": print},
    lambda folder: {"offline": True},
    lambda folder: {"device": "cpu"},
    lambda folder: {"corpus": shutil.copy(folder / "corpus.tsv", folder / "moved.tsv")},
    lambda folder: {"model": str(shutil.copytree(tiny_model(), folder / "moved model"))},
])  # fmt: skip
def test_what_shapes_no_byte_may_change(
    corpus: Path, tmp_path: Path, change: Callable[[Path], dict[str, Any]]
) -> None:
    _begin(corpus, tmp_path / "out")
    settings = {"corpus": corpus, **change(tmp_path)}
    assert run(settings.pop("corpus"), tmp_path / "out", **settings).resumed_shards >= 1


def test_a_changed_corpus_is_refused(corpus: Path, tmp_path: Path) -> None:
    _begin(corpus, tmp_path / "out")
    content = corpus.read_bytes()
    for changed in (
        content.replace(b"the movie", b"the movid", 1), content + b"x\ty\tz\n", content[:-1],
    ):  # fmt: skip
        corpus.write_bytes(changed)
        with pytest.raises(MismatchError, match=r"input\.files\[0\]\.sha256"):
            run(corpus, tmp_path / "out")
    corpus.write_bytes(content)
    other = write_tsv(tmp_path / "other.tsv", ROWS[:2])
    with pytest.raises(MismatchError, match=r"input\.files\[1\]\.bytes: nothing there"):
        run([corpus, other], tmp_path / "out")
    assert run(corpus, tmp_path / "out").resumed_shards >= 1


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_changed_model_is_refused(corpus: Path, tmp_path: Path, file: str) -> None:
    first = shutil.copytree(tiny_model(), tmp_path / "model")
    _begin(corpus, tmp_path / "out", model=str(first))
    second = shutil.copytree(tiny_model(), tmp_path / "second")
    if file == "model.safetensors":
        shutil.copy(tiny_model(seed=2) / file, second / file)
    else:
        (second / file).write_text((second / file).read_text("utf-8") + " ", "utf-8")
    with pytest.raises(MismatchError, match=rf"model\.sha256\.{file}"):
        run(corpus, tmp_path / "out", model=str(second))


def test_another_environment_is_refused_unless_allowed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(corpus, tmp_path / "out")
    genuine = planning._environment
    monkeypatch.setattr(planning, "_environment", lambda e: {**genuine(e), "torch": "9.9"})
    with pytest.raises(MismatchError, match=r"torch: .* there, \"9\.9\" now") as caught:
        run(corpus, tmp_path / "out")
    assert "allow_env_change=True" in str(caught.value)
    result = run(corpus, tmp_path / "out", allow_env_change=True)
    assert result.resumed_shards == 1
    first, second = manifest_of(tmp_path / "out")["environments"]
    assert first["shards"] == [0]
    assert second["shards"] == [1, 2, 3]
    assert second["environment"]["torch"] == "9.9"
    assert run(corpus, tmp_path / "out").was_complete


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("first", "then"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_job_goes_on_with_another_number_of_threads(
    corpus: Path, tmp_path: Path, first: int, then: int
) -> None:
    """It does where the thread counts give equal bits, and is refused where they do not."""
    settings = {**SMALL, "model": DEFAULT_MODEL}
    golden, out = tmp_path / "golden", tmp_path / "out"
    trials = []
    for count in (first, then):
        with threads(count):
            trials.append(planning._arithmetic(Encoder.load(DEFAULT_MODEL, device="cpu")))
    with threads(first):
        run(corpus, golden, **settings)
        _begin(corpus, out, **settings)
    with threads(then):
        if len(set(trials)) == 2:
            with pytest.raises(MismatchError, match="arithmetic"):
                run(corpus, out, **settings)
            return
        assert run(corpus, out, **settings).resumed_shards == 1
    assert tree_hash(out) == tree_hash(golden)
    log = (out / "_embedkit/log.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["threads"] for line in log} == {first, then}


def test_a_processor_that_gives_other_bits_is_another_environment(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(corpus, tmp_path / "out")
    genuine = Encoder.encode_views

    def rounded(encoder: Encoder, *arguments: Any, **options: Any) -> Any:
        found = genuine(encoder, *arguments, **options)
        return {name: np.nextafter(values, np.float32(9)) for name, values in found.items()}

    monkeypatch.setattr(Encoder, "encode_views", rounded)
    with pytest.raises(MismatchError, match=r"arithmetic: \"\w{16}\" there, \"\w{16}\" now"):
        run(corpus, tmp_path / "out")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_processor_matters_only_where_it_computes(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_quickly(str(tiny_model()))
    monkeypatch.setattr(encoder.model, "device", torch.device(device))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(planning, "_arithmetic", lambda _: "of this processor")
    found = planning._environment(encoder)
    assert found["device"] == {"cpu": "cpu", "cuda": "a GPU"}[device]
    assert ("of this processor" in found.values()) == (device == "cpu")
    assert not {"threads", "instructions"} & set(found)


# Damage to an unfinished job


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


TABLES = ("sentences", "words", "tokens")


@pytest.mark.parametrize("folder", TABLES)
@pytest.mark.parametrize("damage", ["delete", "truncate", "empty", "swap", "vectors", "end"])
def test_a_damaged_shard_is_made_again(
    corpus: Path, tmp_path: Path, golden: str, folder: str, damage: str
) -> None:
    out = tmp_path / "out"
    unfinished = tmp_path / "out.incomplete"

    def stop(*_: Any, **__: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFolder, "finish", stop)
        with pytest.raises(Crash):
            run(corpus, out, **SMALL)
    part = unfinished / folder / "part-00000.parquet"
    content = part.read_bytes()
    if damage == "delete":
        part.unlink()
    elif damage == "swap":
        part.rename(tmp_path / "x")
        (unfinished / folder / "part-00001.parquet").rename(part)
        (tmp_path / "x").rename(unfinished / folder / "part-00001.parquet")
    elif damage == "vectors":
        _flip(part, _vector_offset(part))
    elif damage == "end":
        _flip(part, len(content) - 1)
    else:
        part.write_bytes(content[: len(content) // 2] if damage == "truncate" else b"")
    result = run(corpus, out, **SMALL)
    assert result.resumed_shards == (0 if damage == "swap" else 1)
    assert tree_hash(out) == golden


def _vector_offset(part: Path) -> int:
    """A byte in the middle of the values of the last column."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(part).row_group(0)
    column = metadata.column(metadata.num_columns - 1)
    return int(column.data_page_offset + column.total_compressed_size - 20)


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_byte_of_any_file_is_found(
    corpus: Path, tmp_path: Path, golden: str, seed: int
) -> None:
    """Every file of a shard is hashed, and the hash is written before the file counts."""
    rng = random.Random(seed)
    _begin(corpus, tmp_path / "out", **SMALL)
    part = tmp_path / "out.incomplete" / rng.choice(TABLES) / "part-00000.parquet"
    _flip(part, rng.randrange(part.stat().st_size) if seed else 0)
    run(corpus, tmp_path / "out", **SMALL)
    assert tree_hash(tmp_path / "out") == golden


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"settings": 3}'])
def test_a_torn_job_file_is_refused_and_overwritten(
    corpus: Path, tmp_path: Path, golden: str, content: bytes
) -> None:
    _begin(corpus, tmp_path / "out", **SMALL)
    (tmp_path / "out.incomplete/_embedkit/job.json").write_bytes(content)
    with pytest.raises(MismatchError, match="start over with overwrite=True"):
        run(corpus, tmp_path / "out", **SMALL)
    run(corpus, tmp_path / "out", overwrite=True, **SMALL)
    assert tree_hash(tmp_path / "out") == golden


def test_leftovers_in_scratch_are_swept(corpus: Path, tmp_path: Path, golden: str) -> None:
    _begin(corpus, tmp_path / "out", **SMALL)
    scratch = tmp_path / "out.incomplete/_embedkit/scratch"
    (scratch / "sentences-part-00001.partial").write_bytes(b"torn")
    run(corpus, tmp_path / "out", **SMALL)
    assert tree_hash(tmp_path / "out") == golden
    assert not (tmp_path / "out/_embedkit/scratch").exists()


@pytest.mark.parametrize("name", ["part-00007.parquet", "part-00000 (copy).parquet", "notes.txt"])
def test_a_foreign_file_among_the_shards_is_refused(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    _begin(corpus, tmp_path / "out")
    sentences = tmp_path / "out.incomplete/sentences"
    shutil.copy(sentences / "part-00000.parquet", sentences / name)
    with pytest.raises(DamagedError, match="does not belong to this job"):
        run(corpus, tmp_path / "out")
    (sentences / name).unlink()
    assert run(corpus, tmp_path / "out").resumed_shards == 4


def test_a_corpus_that_changes_during_the_run_is_noticed(corpus: Path, tmp_path: Path) -> None:
    def append(state: Progress) -> None:
        if state.stage == "shard 2":
            with corpus.open("a") as stream:
                stream.write("020\tlate\t1\n")

    with pytest.raises(CorpusError, match="changed while it was being read"):
        run(corpus, tmp_path / "out", progress=append)
    assert not (tmp_path / "out").exists()
    with pytest.raises(MismatchError, match=r"input\.files\[0\]\.bytes"):
        run(corpus, tmp_path / "out")


def test_a_job_that_stops_at_bad_values_keeps_its_shards(
    corpus: Path, tmp_path: Path, golden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.errors import EncodeError

    genuine = Encoder.start_shard
    calls = []

    def spoiled(self: Encoder, *args: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, *args, **kwargs).result()
        if "mean_2" in vectors.views:  # not in the trial of the bits
            calls.append(1)
            if len(calls) == 2:
                vectors.views["mean_2"][1, 3] = np.nan
        return SimpleNamespace(result=lambda: vectors, nbytes=0)

    monkeypatch.setattr(Encoder, "start_shard", spoiled)
    with pytest.raises(
        EncodeError, match=r"mean_2: NaN or infinite values in 1 vectors \(rows 8\)"
    ):
        run(corpus, tmp_path / "out", **SMALL)
    assert run(corpus, tmp_path / "out", **SMALL).resumed_shards == 1
    assert tree_hash(tmp_path / "out") == golden


def test_the_loaded_model_is_used(corpus: Path, tmp_path: Path) -> None:
    """The quick loader gives what the real one gives."""
    first = load_quickly(str(tiny_model())).encode(["the movie was good"])
    monkey = build_tiny(tmp_path / "again")
    second = load_quickly(str(monkey)).encode(["the movie was good"])
    assert np.array_equal(first, second)
