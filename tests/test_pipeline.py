"""Recipes: read, refused with the place of a mistake, run, skipped, resumed; downloads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

from embedkit import pipeline
from embedkit.cli.main import cli
from embedkit.errors import DamagedError, MismatchError, StorageError, UsageError
from embedkit.pipeline import Stage, content_hash, fetch, read_recipe, run_recipe
from embedkit.runs.folder import read_run
from embedkit.runs.run import PredictionRun
from embedkit.storage import seal
from tests.finetune_fixtures import corpus_of
from tests.processes import EMBEDKIT, ROOT, command, completed
from tests.run_fixtures import write_frame
from tests.store_fixtures import korean_reviews, tiny_model

RECIPE = """\
[set]
corpus = "corpus.tsv"
out = "out put"

[split.first]
source = "{corpus}"
folds = 3
out = "{out}/split.parquet"

[split.other]
source = "{corpus}"
folds = 3
seed = 1
label-separator = "."
out = "{out}/other.parquet"
"""


def stages_of(folder: Path, *settings: str, text: str = RECIPE) -> list[Stage]:
    (folder / "recipe.toml").write_text(text, "utf-8")
    return read_recipe(folder / "recipe.toml", cli.commands, settings)


def statuses(results: list[dict[str, Any]]) -> list[str]:
    return [result["status"] for result in results]


def reasons(folder: Path, *settings: str, text: str = RECIPE, call: Any = cli.call) -> list[str]:
    """What a run says before each stage."""
    lines: list[str] = []
    run_recipe(stages_of(folder, *settings, text=text), call, progress=lines.append)
    return [line.partition(" … ")[2] for line in lines if " …" in line]


def test_what_makes_a_stage_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_of(tmp_path / "corpus.tsv")
    changed = ["up to date", "its settings changed"]
    assert reasons(tmp_path) == ["", ""]
    assert reasons(tmp_path, call=pytest.fail) == ["up to date", "up to date"]
    assert reasons(tmp_path, "split.other.seed=2") == changed
    assert reasons(tmp_path) == changed
    (tmp_path / "out put/split.parquet").unlink()
    (tmp_path / "out put/other.parquet").write_bytes(b"x")
    assert reasons(tmp_path) == ["its outputs changed"] * 2
    os.utime(tmp_path / "corpus.tsv", (1, 1))  # its time alone is nothing
    assert reasons(tmp_path) == ["up to date", "up to date"]
    corpus_of(tmp_path / "corpus.tsv", seed=1)
    assert reasons(tmp_path) == ["its inputs changed"] * 2
    assert reasons(tmp_path, text="# more\n" + RECIPE) == ["up to date", "up to date"]
    monkeypatch.setattr(pipeline, "__version__", "9")
    assert reasons(tmp_path) == ["its version changed"] * 2


def test_a_failed_stage_leaves_the_earlier_ones_done(tmp_path: Path, capsys: Any) -> None:
    corpus_of(tmp_path / "corpus.tsv")
    bad = "split.other.label=none"
    lines: list[str] = []
    done = run_recipe(stages_of(tmp_path, bad), cli.call, progress=lines.append)
    assert statuses(done) == ["done", "failed"]
    assert done[-1]["exit_code"] == 2
    assert "exit code 2" in lines[-1]
    assert re.search(r"embedkit: .*--label", capsys.readouterr().err)
    assert reasons(tmp_path, bad) == ["up to date", "was not finished"]
    assert reasons(tmp_path) == ["up to date", "was not finished"]


def test_what_is_not_ours_is_not_replaced(tmp_path: Path, capsys: Any) -> None:
    corpus_of(tmp_path / "corpus.tsv")
    (tmp_path / "out put").mkdir()
    (tmp_path / "out put/split.parquet").write_bytes(b"mine")
    for _ in range(2):  # a second attempt knows no more than the first
        assert run_recipe(stages_of(tmp_path), cli.call)[-1]["exit_code"] == 8
        assert "Choose another" in capsys.readouterr().err
    assert (tmp_path / "out put/split.parquet").read_bytes() == b"mine"


def test_only_what_a_stage_has_written_makes_way(tmp_path: Path) -> None:
    """Of two outputs one may be somebody's; a command without --overwrite finds its place free."""
    (tmp_path / "mine").write_text("mine")
    seen: list[str] = []

    def call(words: Sequence[str]) -> int:
        seen.append(f"{words[-1]} {Path('page').exists()}")
        Path("page").write_text(f"{len(seen)}")
        return 0

    page = '[compare]\nreport = "page"\nruns = ["a", "b"]\n'
    assert reasons(tmp_path, text=page, call=call) == [""]
    more = page + 'write-blend = "mine"\n'
    assert reasons(tmp_path, text=more, call=call) == ["mine is not of this stage"]
    assert "--overwrite" not in seen[-1]
    search = '[search]\ndataset = "d"\nquery = "{q}"\nout = "page"\n[set]\nq = "x"\n'
    (tmp_path / "page").unlink()
    (tmp_path / ".page.stage.json").unlink()
    assert reasons(tmp_path, text=search, call=call) == [""]
    assert reasons(tmp_path, "q=y", text=search, call=call) == ["its settings changed"]
    (tmp_path / "page").write_text("edited")
    assert reasons(tmp_path, "q=y", text=search, call=call) == ["its outputs changed"]
    assert [line.split()[-1] for line in seen[-3:]] == ["False"] * 3
    # a stage that fails leaves what it wrote before
    assert reasons(tmp_path, "q=z", text=search, call=lambda _: 2) == ["its settings changed"]
    assert (tmp_path / "page").read_text() == str(len(seen))
    # and one that was killed is no obstacle
    with pytest.raises(KeyboardInterrupt):
        reasons(tmp_path, "q=z", text=search, call=Mock(side_effect=KeyboardInterrupt))
    assert (tmp_path / "page").read_text() == str(len(seen))
    (tmp_path / "page").rename(tmp_path / ".page.before")  # as kill -9 leaves it
    for query in "zy":
        assert reasons(tmp_path, f"q={query}", text=search, call=call) == ["its settings changed"]
    assert not [*tmp_path.glob(".page.b*")]
    # of a stage that has failed nothing is its own, whatever stands there now
    for stage, name in ((search, "other"), (page, "third")):
        failed = stage.replace('"page"', f'"{name}"')
        assert reasons(tmp_path, text=failed, call=lambda _: 2) == [""]
        (tmp_path / name).write_text("mine")
        assert reasons(tmp_path, text=failed, call=call) == ["was not finished"]
        assert (tmp_path / name).read_text() == "mine"
    assert "--overwrite" not in seen[-1]
    # a place that the command does not write to is noticed in every run
    lost = '[search]\ndataset = "d"\nquery = "x"\nmakes = "elsewhere"\n'
    missing = [reasons(tmp_path, text=lost, call=call) for _ in range(3)]
    assert missing == [[""], *[["its output is missing"]] * 2]


def test_an_interrupted_stage_is_resumed_not_replaced(tmp_path: Path) -> None:
    """After a crash before any output: the same command again; after a change: over again."""
    corpus_of(tmp_path / "corpus.tsv")
    seen: list[Sequence[str]] = []
    before = Path.cwd()

    def crash(words: Sequence[str]) -> int:
        assert tmp_path == Path.cwd()
        seen.append(words)
        raise KeyboardInterrupt

    for settings in ((), (), ("split.first.seed=5",)):
        with pytest.raises(KeyboardInterrupt):
            run_recipe(stages_of(tmp_path, *settings), crash)
        assert before == Path.cwd()
    assert seen[0] == seen[1]
    assert seen[2][-1] == "--overwrite"


def test_what_an_output_at_an_address_leaves_here(tmp_path: Path) -> None:
    outputs = "split.first.out=s3://me:hunter2@bucket/a", "split.other.out=s3://bucket/b/a"
    code = 8

    def call(words: Sequence[str]) -> int:
        # what stands there is not known to be its own, by the other one's record least of all
        assert "--overwrite" not in words
        return code

    run_recipe(stages_of(tmp_path, *outputs), call)
    run_recipe(stages_of(tmp_path, *outputs, "split.first.seed=5"), call)
    code = 0
    run_recipe(stages_of(tmp_path, *outputs), call)
    done = run_recipe(stages_of(tmp_path, *outputs), call)
    assert statuses(done) == ["up to date"] * 2
    assert [stage["outputs"] for stage in done] == [["s3://bucket/a"], ["s3://bucket/b/a"]]
    assert sorted(p.name[:3] for p in tmp_path.iterdir()) == [".a-", ".a-", "rec"]


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    corpus_of(tmp_path / "corpus.tsv")
    run_recipe(stages_of(tmp_path), cli.call)
    record = tmp_path / "out put/.other.parquet.stage.json"
    assert json.loads(record.read_text("utf-8"))["settings"][0] == "split"
    for content in (b"", b"{}", b"\xff", b"[]"):
        record.write_bytes(content)
        assert pipeline._read_state(stages_of(tmp_path)[1]) == {}


def test_hashes_of_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    hashes = {content_hash(folder)}
    (folder / "b").write_bytes(b"2")
    hashes.add(content_hash(folder))
    (folder / "b").rename(folder / "c")
    assert len(hashes | {content_hash(folder)}) == 3
    seal(folder)
    third = content_hash(folder)
    (folder / "a").write_bytes(b"3")  # identified by its checksums
    assert content_hash(folder) == third
    (folder / "a").unlink()
    assert content_hash(folder) not in ("", third)


# the whole

WHOLE = f"""\
[extract]
corpus = "corpus.tsv"
model = "{{model}}"
out = "out put/vectors"

[train]
dataset = "out put/vectors"
folds = 2
out = "out put/frozen"

[finetune]
corpus = "corpus.tsv"
model = "{{model}}"
folds = 2
epochs = 1
validation = 0
out = "out put/tuned"

{RECIPE}"""


@pytest.mark.slow
def test_the_shell_commands_make_the_same_files(tmp_path: Path) -> None:
    """Stages share a process: none depends on what another one has left behind."""
    for name in ("by run", "by shell"):
        (tmp_path / name).mkdir()
        corpus_of(tmp_path / name / "corpus.tsv")
        recipe = WHOLE.replace("[set]", f"[set]\nmodel = '{tiny_model()}'")
        (tmp_path / name / "recipe.toml").write_text(recipe, "utf-8")
    ran = completed(*EMBEDKIT, "run", "by run/recipe.toml", cwd=tmp_path)
    assert "[5/5] split.other: done in" in ran.stderr
    assert f"made {Path('by run/out put/other.parquet')}" in ran.stderr
    dry = command("run", "by shell/recipe.toml", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "by shell/out put").exists()
    as_json = command("run", "by shell/recipe.toml", "--dry-run", "--json", cwd=tmp_path)
    assert "\n".join(json.loads(as_json.stdout)) == dry.stdout.strip()
    tool = f'embedkit() {{ "{sys.executable}" -m embedkit "$@"; }}\n'
    completed("bash", "-e", "-c", tool + dry.stdout, cwd=tmp_path)
    one, other = (tmp_path / name / "out put" for name in ("by run", "by shell"))
    files = [path.relative_to(other) for path in other.rglob("*") if path.is_file()]
    assert {".parquet", ".safetensors"} <= {path.suffix for path in files}
    for path in files:
        if path.suffix in (".parquet", ".safetensors"):
            assert (one / path).read_bytes() == (other / path).read_bytes(), path
    for name in ("frozen", "tuned"):
        assert read_run(one / name).command == read_run(other / name).command
    again = command("run", "by run/recipe.toml", "--json", cwd=tmp_path)
    assert [s["status"] for s in json.loads(again.stdout)] == ["up to date"] * 5


# downloads

CONTENT = b"text\tlabel\n" + b"a text\t1\n" * 20_000


def test_fetch(tmp_path: Path, serve: Any) -> None:
    quoted = "/%EC%98%81%ED%99%94%20%ED%8F%89.tsv"
    address = f"http://{serve(dict.fromkeys(('/corpus.tsv', quoted, '/cut'), CONTENT))}"
    right = hashlib.sha256(CONTENT).hexdigest()
    out = tmp_path / "a/b/corpus.tsv"
    assert fetch(f"{address}/corpus.tsv", sha256=right.upper(), out=out)
    assert out.read_bytes() == CONTENT
    assert not fetch(f"{address}/corpus.tsv", sha256=right, out=out)
    assert fetch(f"{address}/영화 평.tsv?a=b%20c", sha256=right, out=tmp_path / "a/x")
    with pytest.raises(MismatchError, match=r"corpus\.tsv"):
        fetch(f"{address}/corpus.tsv", sha256="0" * 64, out=tmp_path / "other")
    for name, message in (("cut", r"9\d,\d{3} bytes too early"), ("missing", "/missing")):
        with pytest.raises(StorageError, match=message):
            fetch(f"{address}/{name}", sha256=right, out=tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    out.write_bytes(b"mine")
    with pytest.raises(MismatchError, match=r"corpus\.tsv"):
        fetch(f"{address}/corpus.tsv", sha256=right, out=out)
    assert out.read_bytes() == b"mine"


def test_fetch_wants_an_address_and_a_hash(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sha256"):
        fetch("https://example.org/x", sha256="abc", out=tmp_path / "x")
    for url in ("file:///etc/hostname", "example.org/x", "https:///x", "http://[x/y"):
        with pytest.raises(UsageError, match="https://"):
            fetch(url, sha256="0" * 64, out=tmp_path / "x")
    with pytest.raises(UsageError, match="out="):
        fetch("https://example.org/x", sha256="0" * 64, out=tmp_path)
    with pytest.raises(StorageError, match="refused"):
        fetch("http://127.0.0.1:9/x", sha256="0" * 64, out=tmp_path / "x")


# the recipes of the project

PRINTING = ("search", "words")  # leave no file, run every time
QUICK = ("semantic_search", "word_senses")


def stand_ins(folder: Path, address: str) -> dict[str, list[str]]:
    """Small settings and files for each recipe, to run without network in seconds."""
    corpus_of(folder / "corpus.tsv", count=120)
    abstracts = [f"{'we treat rats' if i % 5 else 'we screen'} no {i}" for i in range(60)]
    found = pd.DataFrame({"title": "a study", "abstract": abstracts}).reset_index(names="id")
    write_frame(found.assign(judgement=[int(i % 5 == 0) for i in range(60)]), folder / "papers.csv")
    write_frame(found[:12], folder / "test.csv")
    kinds = ("the bank was good", "bank", 4, 8), ("배를 타고 간다", "배", 0, 1)
    uses = pd.DataFrame([*kinds] * 6, columns=["sentence", "word", "start", "end"])
    uses["sentence"] += [f" {i}" for i in range(12)]
    uses = uses.assign(sense=[i % 4 > 1 for i in range(12)], language="ko").reset_index(names="id")
    write_frame(uses, folder / "uses.tsv")
    # its makers' vector has length 1, as of most checkpoints that people choose
    body = st.Transformer(str(tiny_model()))
    steps = [body, st.Pooling(body.get_embedding_dimension(), "mean"), st.Normalize()]
    SentenceTransformer(modules=steps, device="cpu").save(str(folder / "model"))
    tiny = [f"model={folder / 'model'}"]
    small = [*tiny, "epochs=1", "folds=2", "max-length=16", "device=cpu"]
    corpus = [f"corpus={folder / 'corpus.tsv'}"]
    papers = [f"corpus={folder / 'papers.csv'}", f"test={folder / 'test.csv'}"]
    uses_file = [f"corpus={folder / 'uses.tsv'}"]
    digest = hashlib.sha256(NSMC).hexdigest()
    reviews = [f"url={address}", f"corpus={folder / 'nsmc.txt'}", f"sha256={digest}"]
    both = [*tiny, f"english-{tiny[0]}", "split.folds=2"]
    short = ["finetune.epochs=1", "finetune.freeze-layers=1"]
    labelled = [f"{name}={folder / 'corpus.tsv'}" for name in ("labelled", "asked")]
    test_reviews = [f"test={folder / 'nsmc_test.txt'}", f"test-sha256={digest}"]
    return {
        "quickstart": [*tiny, *corpus, "label=label", "layers=all", *short],
        "two_languages": [*tiny, f"english-{tiny[0]}", "label=label", *labelled],
        "reviews": [*small, *corpus],
        "nsmc": [*small, *reviews, *test_reviews, "sample=60", "test-sample=30", "folds=1"],
        "nsmc_layers": [*both, *reviews, *test_reviews, "records=60", "test-records=30"],
        "nsmc_finetuning": [*both, *reviews, "sample=60", "epochs=1", "device=cpu"],
        "medical_papers": [*small, "validation=0.4", *papers],
        "semantic_search": [*tiny, *corpus, "device=cpu"],
        "word_senses": [*tiny, *uses_file, "device=cpu", "extract.spans.layers=0,2"],
    }


NSMC = "\n".join(korean_reviews(80)).encode()


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in QUICK))
        for path in sorted((ROOT / "pipelines").glob("*.toml"))
    ],
)
def test_every_recipe_runs_on_a_stand_in(recipe: Path, tmp_path: Path, serve: Any) -> None:
    files = {f"/nsmc/ratings_{part}.txt": NSMC for part in ("train", "test")}
    address = f"http://{serve(files)}/nsmc"
    settings = [*stand_ins(tmp_path, address)[recipe.stem], f"out={tmp_path / 'out'}"]
    stages = read_recipe(recipe, cli.commands, settings)
    assert statuses(run_recipe(stages, cli.call, quiet=True)) == ["done"] * len(stages)
    compares = [stage.line[0] for stage in stages].count("compare")
    assert (tmp_path / "out/report.html").is_file() == bool(compares)
    if compares:
        html = (tmp_path / "out/report.html").read_text("utf-8")
        runs = [p.name for p in (tmp_path / "out/runs").iterdir() if not p.name.startswith(".")]
        assert len(runs) >= 3
        assert all(f">{name}" in html or f" {name}" in html for name in runs)
    if recipe.stem == "nsmc":  # 500 of the test file for all, however they were read
        found = [read_run(tmp_path / "out/runs" / name) for name in runs]
        assert [r.records["test"] for r in found if isinstance(r, PredictionRun)] == [30] * 3
    again = run_recipe([stage for stage in stages if stage.line[0] not in PRINTING], cli.call)
    assert set(statuses(again)) == {"up to date"}


# reading

GOOD = """\
title = "An experiment"

[set]
corpus = ["a.tsv", "b.tsv"]
folds = 4
name = "x"
out = "{name}/out"

[extract]
corpus = "{corpus}"
layers = "-1"
pooling = ["cls",
           "mean"]
tokens = true
words = "first"
dry-run = false
out = "{out}/v"

[train]
dataset = "{out}/v"
split = "s.parquet"
seed = 4
out = "{out}/{stage}"

[train.b]
folds = "{folds}"
seed = 5
split = ""

[split]
source = "{out}/v"
test = 0.2
label = ""
out = "s.parquet"

[train.a]
"""


def test_stages_in_the_order_written(tmp_path: Path) -> None:
    stages = stages_of(tmp_path, text=GOOD)
    assert [stage.name for stage in stages] == ["extract", "train.b", "split", "train.a"]
    extract, b, split, a = stages
    line = "extract a.tsv b.tsv --out=x/out/v --layers=-1 --pooling=cls,mean --words=first --tokens"
    assert " ".join(extract.line) == line
    # options of the command are those of all its stages, whose own come first
    assert a.line == ("train", "x/out/v", "--out=x/out/a", "--split=s.parquet", "--seed=4")
    assert b.line == ("train", "x/out/v", "--out=x/out/b", "--folds=4", "--seed=5")
    assert split.line == ("split", "x/out/v", "--out=s.parquet", "--test=0.2")
    assert (extract.outputs, a.outputs) == (("x/out/v",), ("x/out/a",))
    assert extract.inputs[:2] == ("a.tsv", "b.tsv")
    assert extract.folder == tmp_path


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_stages_read_nothing_and_print_where_commands_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a query\n"))
    monkeypatch.setattr(cli.commands["split"], "callback", lambda **_: print([*sys.stdin]))
    done = command("run", "recipe.toml", option, cwd=tmp_path)
    assert "[]\n" in (done.stdout if option == "-q" else done.stderr)
    assert sys.stdin.read() == "a query\n"


def test_values_from_the_command_line(tmp_path: Path) -> None:
    of_a = ("train.a.overwrite=true", "train.a.seed=9", "train.a.split=")
    of_extract = ("extract.words=true", "extract.keep=['p', 'q']", "extract.out=['v', 'w']")
    values = ("corpus=c d.tsv", "folds=7", "name=a=b")
    stages = stages_of(tmp_path, *values, *of_a, "split.label=genre", *of_extract, text=GOOD)
    extract, train, split, last = stages
    assert extract.line[1] == "c d.tsv"
    assert {"--words", "--keep=p,q"} <= set(extract.line)
    assert extract.outputs == ("v,w",)  # one name, as the command reads it
    assert train.line[2:] == ("--out=a=b/out/b", "--folds=7", "--seed=5")
    assert "--label=genre" in split.line
    assert " ".join(last.line) == "train a=b/out/v --out=a=b/out/a --seed=9 --overwrite"


WORDS = """\
[ extract . "C=1" ]
corpus = "a"
normalize = false
words = false
part = [0, 2]
out = "o"

[verify]
path = "o"

["extract".x]
corpus = "a"
no-header = false
out = "p"
"""


def test_options_as_toml_has_them(tmp_path: Path) -> None:
    """Flags of both kinds, options of several values, tables with quoted names.

    The file begins with a byte order mark, as editors of Windows write one.
    """
    extract, verify, other = stages_of(tmp_path, text="\ufeff" + WORDS)
    assert extract.line == ("extract", "a", "--out=o", "--no-normalize", "--part", "0", "2")
    assert [extract.name, other.name] == ["extract.C=1", "extract.x"]
    assert verify.outputs == ()
    assert other.line[3] == "--header"


@pytest.mark.parametrize(
    ("table", "below", "line"),
    [
        ("diff", "", "diff dataset other --view=view"),
        ("predict", "[predict.a]\nrun = 'run'", "predict run corpus --text=text --out=out"),
        ("compare", "", "compare runs --report=report --write-blend=write-blend"),
    ],
)
def test_the_order_of_keys_says_nothing(tmp_path: Path, table: str, below: str, line: str) -> None:
    keys = [word.rpartition("=")[2] for word in line.split()[1:] if word not in below]
    found = set()
    for order in permutations(f"{key} = '{key}'\n" for key in keys):
        found.add(stages_of(tmp_path, text=f"[{table}]\n{''.join(order)}{below}")[0])
    (stage,) = found
    assert " ".join(stage.line) == line


MISTAKES = {
    r"toml:25: \[train.b\] .*--folds": ("folds = 4", "folds = 'four'"),
    r"toml:9: \[extract\] .*--dry-rum.*--dry-run": ("dry-run", "dry-rum"),
    r"toml:30: \[spilt\] .*Did you mean 'split'": ("[split]", "[spilt]"),
    r"\[train.b\] \{fold\}.*mean 'folds'": ('"{folds}"', '"{fold}"'),
    r"\[train.b\] .*DATASET": ('dataset = "{out}/v"\n', ""),
    r"\[split\] .*--help": ("test = 0.2", "help = true"),
    r"\[train.a\] .*as \[train.b\] does": ("[train.a]", "[train.a]\nout = '{out}/../out/b'"),
    r"30: \[index\] has no makes.*": ("[split]", "[index]\ndataset='d'\n[split]"),
    r"recipe.toml is not valid TOML: .*line 32": ("test = 0.2", "test = "),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_have_a_place(tmp_path: Path, message: str) -> None:
    change = MISTAKES[message]
    assert change[0] in GOOD
    with pytest.raises(DamagedError, match=message) as caught:
        stages_of(tmp_path, text=GOOD.replace(*change))
    assert caught.value.exit_code == 5


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    for text in ("title = 'x'\n", "split = 3\n", "set = 3\n[split]\n", "[split]\nx = 1\n"):
        with pytest.raises(UsageError, match=r"recipe\.toml"):
            stages_of(tmp_path, text=text)
    with pytest.raises(UsageError, match=r"none\.toml"):
        read_recipe(tmp_path / "none.toml", cli.commands)
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    with pytest.raises(DamagedError, match=r"latin\.toml"):
        read_recipe(tmp_path / "latin.toml", cli.commands)


def test_the_recipe_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs/experiments.md").read_text("utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.S | re.M)
    names = [stage.name for stage in stages_of(tmp_path, text=block)]
    assert names == ["extract", "split", "train.tfidf", "train.last_layer"]


MISTYPED: dict[str, Any] = {
    r"train\.seed=1.*extract, train.b, split, train.a": (GOOD, ("train.seed=1",)),
    r"corpuss=x.*Did you mean 'corpus'": (GOOD, ("corpuss=x",)),
    "with STAGE.OPTION": ("[split]\n", ("split=1",)),
    r"train\.c\.tune.*extract, train.b, split": (GOOD, ("train.c.tune=true",)),
    r"^--set train\.a\.sed=1: .*--sed": (GOOD, ("train.a.sed=1",)),
    r"^--set train\.a\.seed=x: .* 'x' is not a valid integer": (GOOD, ("train.a.seed=x",)),
    "reads standard input": ('[extract]\ncorpus = "-"\nout = "v"\n', ()),
}


@pytest.mark.parametrize("message", MISTYPED)
def test_mistakes_in_shared_options_and_on_the_command_line(tmp_path: Path, message: str) -> None:
    recipe, settings = MISTYPED[message]
    with pytest.raises(UsageError, match=message):
        stages_of(tmp_path, *settings, text=recipe)
