"""The command as users type it: exit codes, one-line messages, what is printed where."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from embedkit import __main__, display
from embedkit.cli import main as cli
from embedkit.cli.text import table_text
from embedkit.encoding.encoder import Encoder
from tests.processes import ROOT, command, environment, fresh
from tests.store_fixtures import (
    N_ACCEPTED,
    ROWS,
    load_quickly,
    manifest_of,
    run,
    tiny_model,
    tree,
    write_tsv,
)

CLEAN = [row for row in ROWS if row[1].strip()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with corpus.tsv (three rejects) and clean.tsv (none)."""
    write_tsv(tmp_path / "corpus.tsv")
    write_tsv(tmp_path / "clean.tsv", CLEAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Encoder, "load", load_quickly)
    monkeypatch.setattr("embedkit.dataset.estimate._LEAST_SECONDS", 0.01)
    return tmp_path


class Result:
    """Exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def message(self) -> str:
        """The error line."""
        lines = [line for line in self.err.splitlines() if not line.startswith("note: ")]
        assert "Traceback" not in self.err
        assert lines, "no message"
        return lines[0].removeprefix("embedkit: ")


@pytest.fixture
def embedkit_(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run the command line in this process: ``embedkit_("extract", ...)``."""

    def call(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["embedkit", *map(str, arguments)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, printed.out, printed.err)

    return call


def extract(*more: str) -> Sequence[str]:
    return ["extract", "corpus.tsv", "--model", str(tiny_model()), "--shard-rows", "3", *more]


# Exit codes and messages


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (extract("--text", "documnt"), 2,
         "--text documnt: corpus.tsv has no such column; it has id, document, label. "
         "Did you mean 'document'?"),
        (["extract", "corpsu.tsv"], 2,
         "corpsu.tsv cannot be opened: No such file or directory. Did you mean 'corpus.tsv'?"),
        (["extract", "."], 2, r"\. is a folder"),
        (extract("--layers", "99"), 2, r"--layers 99: the model has layers 0 \(embeddings\) to 2"),
        (extract("--layers", "1-2"), 2, r"--layers 1-2: expected all, a layer"),
        (extract("--layers", "summe:1..2"), 2, r"--layers summe:1\.\.2: .* Did you mean 'sum'\?"),
        (extract("--layers", ""), 2, "--layers '': expected all"),
        (extract("--pooling", "avg"), 2, "--pooling avg: expected cls, mean, max, last_token"),
        (extract("--pooling", "men"), 2, r"--pooling men: .* Did you mean 'mean'\?"),
        (extract("--keep", "x"), 2, "--keep x: corpus.tsv has no such column"),
        (extract("--keep", "row"), 2, "--keep row: corpus.tsv has no such column"),
        (extract("--words", "middle"), 2, "--words middle: expected first, last"),
        (extract("--max-length", "999"), 2, "--max-length 999: .* positions for 24"),
        (extract("--encoding", "klingon"), 2, "--encoding klingon: not an encoding"),
        (extract("--out", "."), 2, r"--out \.: expected the name of a folder"),
        (extract("--out", "clean.tsv"), 8, "clean.tsv is in the way"),
        (["info", "folder"], 2, "folder is not a dataset"),
        (["info", "clean.tsv"], 2, "clean.tsv is a file. Give the folder of a dataset"),
        (["info", "begun"], 2, r"It is unfinished \(begun.incomplete\): run the same extract"),
        (["info", "begun.incomplete"], 2, "It is an unfinished job: run the extract command"),
        (["verify", "begun.incomplete"], 2, "It is an unfinished job: run the extract command"),
        (["extract", "--words", "clean.tsv"], 2, "Name the corpus before --words"),
        (["tokenize", "--vocab", "1:2", "--pair", "x"], 2, "--pair goes with a text"),
        (["tokenize", "x", "--max-length", "0"], 2, "--max-length 0: expected 1 or more"),
        (["tokenize", "x", "--max-length", "999"], 2, "--max-length 999: .* positions for 512"),
        (["verify", "folder"], 2, "folder is not a dataset. Give a folder that embedkit extract"),
        (["verify", "foldr"], 2, "foldr is not a dataset. It does not exist. Did you mean"),
        (["tokenize"], 2, "give either a text or --vocab"),
        (["tokenize", "x", "--vocab", "1:2"], 2, "give either a text or --vocab"),
    ],
    ids=lambda v: " ".join(v[-2:]) if isinstance(v, list) else None,
)  # fmt: skip
def test_mistakes_are_told_in_one_line(
    here: Path, embedkit_: Any, arguments: list[str], code: int, message: str
) -> None:
    (here / "folder").mkdir()
    job = here / "begun.incomplete/_embedkit/job.json"
    job.parent.mkdir(parents=True)
    job.touch()
    before = tree(here)
    found = embedkit_(*arguments)
    assert found.code == code
    assert re.search(message, found.message)
    assert found.message.endswith((".", "?"))
    assert found.out == ""
    assert tree(here) == before


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_tsv(tmp_path / "corpus.tsv")
    done = fresh("extract", "corpus.tsv", "--model", "./none", cwd=tmp_path)
    assert done.returncode == 2
    assert "no such folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(list(tmp_path.iterdir())) == 1


def test_mistakes_that_are_found_while_loading(tmp_path: Path) -> None:
    write_tsv(tmp_path / "corpus.tsv")
    (tmp_path / "utf16.tsv").write_text("id\tdocument\n1\t배\n", "utf-16")
    (tmp_path / "zero.tsv").touch()
    for arguments, word in (
        (["extract", "utf16.tsv"], "--encoding utf-16"),
        (["extract", "zero.tsv"], "zero.tsv is empty"),
        (
            ["info", "nothing.vectors", "--offline"],
            "nothing.vectors is neither a dataset nor a run: there is no such folder. As a check",
        ),
        (
            ["extract", "corpus.tsv", "--model", "no/such-model", "--offline"],
            "offline mode forbids",
        ),
        (["extract", "corpus.tsv", "--model", "nobody", "--offline"], "--model nobody"),
        (["tokenize", "x", "--vocab", "9"], "give either"),
        (["tokenize", "--vocab", "9"], "expected FROM:TO"),
    ):
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert word in done.stderr
        assert done.stdout == ""
    assert len(list(tmp_path.iterdir())) == 3


def test_pooler_that_is_not_there(embedkit_: Any) -> None:
    model = str(tiny_model(pooler=False))
    found = embedkit_("extract", "corpus.tsv", "--model", model, "--pooling", "mean,pooler")
    assert found.code == 2
    assert "has no pooler weights" in found.message


def test_done_and_done_with_rejects(here: Path, embedkit_: Any) -> None:
    model = ["--model", str(tiny_model())]
    assert embedkit_("extract", "clean.tsv", *model).code == 0
    first = embedkit_("extract", "corpus.tsv", *model)
    assert first.code == 3
    assert "13 = 10 embedded + 3 rejected (empty_text 3)" in first.out
    assert "corpus.vectors/_embedkit/rejects.jsonl" in first.out
    again = embedkit_("extract", "corpus.tsv", *model)
    assert again.code == 3
    assert again.out.startswith("corpus.vectors is already complete; nothing was done.")
    assert embedkit_("extract", "clean.tsv", *model).code == 0


def test_mismatch_and_existing_output(here: Path, embedkit_: Any) -> None:
    embedkit_(*extract("--out", "out"))
    other = embedkit_(*extract("--out", "out", "--layers", "0"))
    assert other.code == 8
    assert "--overwrite" in other.message
    assert re.search(r"vectors\.views\.mean_0: nothing there, 16 now", other.err)
    shutil.move("out", "out.incomplete")
    changed = embedkit_(*extract("--out", "out", "--layers", "0"))
    assert changed.code == 4
    assert embedkit_(*extract("--out", "out")).code == 3
    assert embedkit_(*extract("--out", "out", "--layers", "0", "--overwrite")).code == 3
    assert list(manifest_of(here / "out")["job"]["vectors"]["views"]) == ["mean_0"]


def test_damage_is_exit_5(here: Path, embedkit_: Any) -> None:
    embedkit_(*extract("--out", "out"))
    part = here / "out/sentences/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    for arguments in (["verify", "out"], ["info", "out"]):
        found = embedkit_(*arguments)
        assert found.code == 5
        assert "part-00001.parquet" in found.message
    part.unlink()
    for arguments in (["verify", "out"], ["info", "out"]):
        found = embedkit_(*arguments)
        assert found.code == 5
        assert "part-00001.parquet" in found.message


def test_a_folder_that_cannot_be_written_is_exit_6(
    here: Path, embedkit_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit import fsio

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fsio, "_write_all", refuse)
    found = embedkit_(*extract("--out", "out"))
    assert found.code == 6
    assert re.search(r"cannot write .*: No space left on device \([\d,.]+ MB free\)", found.message)


# What is printed


def test_extract_ends_with_the_lines_that_open_the_dataset(here: Path, embedkit_: Any) -> None:
    found = embedkit_(*extract("--out", "my out"))
    lines = found.out.splitlines()
    assert lines[-3:] == [
        "open it:",
        "  import pandas as pd; df = pd.read_parquet('my out/sentences')",
        "  import embedkit; data = embedkit.load('my out', view='mean_2'); X = data.X",
    ]
    assert lines[0].startswith("wrote my out: 10 rows × 1 view, ")
    assert "note: text column: document (choose another with --text)" in found.err


def test_quiet_prints_nothing(here: Path, embedkit_: Any) -> None:
    found = embedkit_(*extract("--out", "out", "-q"))
    assert (found.code, found.out, found.err) == (3, "", "")
    found = embedkit_("verify", "out", "-q")
    assert (found.code, found.out, found.err) == (0, "", "")
    assert embedkit_("info", "out", "-q").out != ""
    found = embedkit_(*extract("--out", "clean.tsv", "-q"))
    assert found.code == 8
    assert found.message


def test_verbose_tells_the_plan(embedkit_: Any) -> None:
    found = embedkit_(*extract("--out", "out", "-v"))
    assert "views    mean_2" in found.err
    assert "shards   3 records each" in found.err


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("corpus", ["clean.tsv", "corpus.tsv"])
def test_json_is_json_and_nothing_else(here: Path, embedkit_: Any, corpus: str) -> None:
    model = str(tiny_model())
    for arguments in (
        ["extract", corpus, "--model", model, "--dry-run"],
        ["extract", corpus, "--model", model, "--out", "out"],
        ["info", "out"], ["info", model], ["verify", "out"], ["verify", "out", "--recompute", "1"],
        ["tokenize", "배를 타고", "--model", model],
        ["tokenize", "--vocab", "3:6", "--model", model],
    ):  # fmt: skip
        found = embedkit_(*arguments, "--json")
        assert found.code in (0, 3)
        assert json.loads(found.out, parse_constant=_refuse)


def test_info_of_a_dataset(here: Path, embedkit_: Any) -> None:
    embedkit_(*extract("--out", "out", "--words", "--pooling", "cls,mean"))
    text = embedkit_("info", "out").out
    assert text.startswith("out: 10 texts × 2 views")
    assert "input      corpus.tsv" in text
    assert "2 layers, 16 wide, computed in fp32" in text
    assert "1 texts were cut at 24 (17 tokens left out)" in text
    assert "duplicates 1 rows repeat an earlier text" in text
    assert re.search(r"sentences  10 rows, .* in 4 files", text)
    assert re.search(r"^  cls_2, mean_2: cosine 0\.\d\d.*: search with --center", text, re.M)
    assert re.search(r"mean_2 +16 ", embedkit_("info", "out", "--all").out)
    for tool in ("pandas", "polars", "duckdb", "datasets", "numpy", "embedkit"):
        assert f"import {tool}" in text or f"from {tool}" in text


def test_info_of_a_checkpoint(embedkit_: Any) -> None:
    text = embedkit_("info", str(tiny_model())).out
    assert "BertModel, 2 layers, 16 wide" in text
    assert "positions  24" in text
    assert "pooler     yes" in text
    assert re.search(r"encoder \(BertEncoder\) +[\d,]+", text)
    without = embedkit_("info", str(tiny_model(pooler=False))).out
    assert "pooler     no (--pooling pooler is refused)" in without


def test_tokenize(embedkit_: Any) -> None:
    model = ["--model", str(tiny_model())]
    lines = embedkit_("tokenize", "배를 타고", "--pair", "a bus", *model).out.splitlines()
    table = [line.split() for line in lines]
    assert table[0] == ["pos", "token", "id", "segment", "start", "end", "word", "text"]
    assert [row[1] for row in table[1:]] == [
        "[CLS]", "배", "##를", "타", "##고", "[SEP]", "a", "bus", "[SEP]",
    ]  # fmt: skip
    assert [row[3] for row in table[1:]] == ["0"] * 6 + ["1"] * 3
    assert [row[4:6] for row in table[2:4]] == [["0", "1"], ["1", "2"]]
    lines = embedkit_("tokenize", "--vocab", "0:3", *model).out.splitlines()
    assert [line.split() for line in lines] == [
        ["id", "token"], ["0", "[PAD]"], ["1", "[UNK]"], ["2", "[CLS]"],
    ]  # fmt: skip
    assert embedkit_("tokenize", "--vocab", "0:99999", *model).code == 2
    cut = embedkit_("tokenize", "a a a a a a", "--max-length", "4", *model).out.splitlines()
    assert len(cut) == 5


def test_escape_codes_are_shown_not_sent(here: Path, embedkit_: Any) -> None:
    evil = "\x1b[31mred\x1b]0;owned\x07"
    (here / "evil.tsv").write_text(f"{evil}\tdocument\n1\tgood \u202egood\n", "utf-8")
    model = ["--model", str(tiny_model())]
    for arguments in (
        ["extract", "evil.tsv", "--text", "x", *model],
        ["extract", "evil.tsv", "--text", "document", "--keep", evil, "-v", *model, "--out", "o"],
        ["extract", "evil.tsv", "--text", "document", "--label", evil, *model, "--dry-run"],
        ["tokenize", evil, *model],
        ["info", "o"],
    ):
        found = embedkit_(*arguments)
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", found.out + found.err)
    assert display.visible(evil) == "\\x1b[31mred\\x1b]0;owned\\x07"


def test_dry_run_writes_nothing_and_counts_exactly(here: Path, embedkit_: Any) -> None:
    before = tree(here)
    found = embedkit_(*extract("--dry-run", "--json"))
    assert tree(here) == before
    cost = json.loads(found.out)
    assert found.code == 0
    assert (cost["records"], cost["accepted"], cost["shards"]) == (13, N_ACCEPTED, 4)
    assert cost["rejected"] == {"empty_text": 3}
    assert cost["sampled"] == N_ACCEPTED
    embedkit_(*extract("--out", "out"))
    assert cost["tokens"] == manifest_of(here / "out")["totals"]["ledger"]["tokens_kept"]
    text = embedkit_(*extract("--dry-run")).out
    assert text.startswith("would write corpus.vectors: 10 rows in 4 shards")
    assert "note: " not in text
    assert "note: out is already complete" in embedkit_(*extract("--dry-run", "--out", "out")).out
    options = ("--dry-run", "--out", "out", "--layers", "0", "--json")
    assert "only --overwrite" in json.loads(embedkit_(*extract(*options)).out)["output"]


@pytest.mark.parametrize("options", [
    [], ["--layers", "all", "--pooling", "cls,mean"], ["--storage", "float16"], ["--tokens"],
    ["--words"], ["--storage", "compact", "--layers", "all"],
])  # fmt: skip
def test_dry_run_tells_the_bytes(
    here: Path, embedkit_: Any, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """With vectors of a usual width; those of the tiny model are smaller than their frame."""
    monkeypatch.setattr("embedkit.dataset.estimate._LEAST_SECONDS", 0.05)
    lines = [
        line
        for name in ("reviews_ko.tsv", "reviews_en.tsv")
        for line in (ROOT / "data" / name).read_text("utf-8").splitlines(keepends=True)
    ]
    corpus = here / "some.tsv"  # pages of few rows compress less
    corpus.write_text("".join(lines if "compact" in options else lines[:81]), "utf-8")
    from embedkit.dataset.estimate import estimate
    from embedkit.dataset.extraction import run_plan
    from embedkit.dataset.planning import ExtractSettings, plan_extract

    settings: dict[str, Any] = {"max_length": 16}
    for name, value in zip(options[::2], options[1::2] or [""], strict=False):
        key = name[2:]
        settings[key] = {"tokens": True, "words": "mean"}.get(key, value)
    if "pooling" in settings:
        settings["pooling"] = settings["pooling"].split(",")
    with plan_extract(corpus, out=here / "out", settings=ExtractSettings(**settings)) as plan:
        told = estimate(plan).bytes_total
        files = run_plan(plan).manifest.files
    real = sum(f.bytes for f in files.values())
    assert told == pytest.approx(real, rel=0.15)


# Help


@pytest.mark.parametrize("name", ["", "extract", "info", "verify", "tokenize"])
def test_help_holds_an_example(embedkit_: Any, name: str) -> None:
    found = embedkit_(*filter(None, [name, "--help"]))
    assert found.code == 0
    example = rf"\n  +embedkit {name or 'extract'} \S"
    assert re.search(example, found.out)
    assert "\\b" not in found.out
    assert embedkit_(*filter(None, [name, "-h"])).out == found.out


def test_the_examples_of_the_help_are_read_by_the_parser(here: Path, embedkit_: Any) -> None:
    import shlex

    for name, sub in cli.cli.commands.items():
        text = (sub.epilog or "").replace("\\\n", " ")
        lines = [line.strip() for line in text.splitlines()]
        examples = [line for line in lines if "embedkit " in line]
        assert examples, name
        for line in examples:
            arguments = shlex.split(line.rpartition("embedkit ")[2])
            assert arguments[0] == name
            with sub.make_context(name, arguments[1:]) as context:
                assert context.params


def test_version_and_module(here: Path) -> None:
    import embedkit

    assert fresh("--version", cwd=here).stdout.strip().endswith(embedkit.__version__)


def test_the_time_is_that_since_the_process_began(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (point,) = entry_points(group="console_scripts", name="embedkit")
    assert point.load() is __main__.main
    started = time.monotonic() - 2 * 3_600
    monkeypatch.setattr(cli, "main", partial(cli.main, started=started))
    done = command("extract", "clean.tsv", "--model", str(tiny_model()), cwd=here)
    assert ", in 2 h 0 min (encoding " in done.stdout + done.stderr


def test_a_closed_pipe_is_no_error(here: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m embedkit tokenize --vocab 0:40 --model {tiny_model()} | head -n 1; "
        "echo ${PIPESTATUS[0]}",
        shell=True, executable="/bin/bash", cwd=here, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["id", "token", "0"]


def test_the_advice_on_the_encoding_works(here: Path, embedkit_: Any) -> None:
    (here / "k.tsv").write_text("id\tdocument\n1\t배를 타고\n2\t영화 정말\n", "cp949")
    arguments = ("extract", "k.tsv", "--model", tiny_model())
    found = embedkit_(*arguments)
    assert (found.code, "--encoding cp949" in found.message) == (2, True)
    assert embedkit_(*arguments, "--encoding", "cp949").code == 0


def test_tokenize_tells_what_is_cut(embedkit_: Any) -> None:
    found = embedkit_("tokenize", "a b c d e f g", "--max-length", "5")
    assert "the text has 9 tokens; it is cut at 5" in found.err
    assert "the other 4" in found.err
    assert embedkit_("tokenize", "a b c", "--max-length", "5").err == ""


def test_joined_letters_take_no_column_of_a_table() -> None:
    first, second = table_text([{"a": "배", "b": "x"}, {"a": "##ᅢ", "b": "y"}]).splitlines()[1:]
    assert (first, second) == ("  배  x", "  ##ᅢ  y")
    accent = table_text([{"a": "e\u0301", "b": "x"}]).splitlines()[1]
    assert accent == "  e\u0301  x"


def test_standard_input(here: Path) -> None:
    done = command(
        "extract", "-", "--format", "tsv", "--model", tiny_model(), "--out", "out",
        cwd=here, stdin=(here / "corpus.tsv").read_bytes(),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    run("corpus.tsv", here / "two")
    assert (
        manifest_of(here / "out")["totals"]["accepted"]
        == manifest_of(here / "two")["totals"]["accepted"]
    )
