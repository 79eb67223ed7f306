"""The commands of docs/workflows.md run as they stand and print what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from transformers import BertTokenizer

import embedkit
from tests.models import build_old
from tests.processes import ROOT, Done, command

PAGE = (ROOT / "docs/workflows.md").read_text("utf-8")
REFUSED = {"runs/leak": 4, "leak": 2}


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.S | re.M)
    return [body for kind, body in fences if kind == language]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Done]]:
    """A folder in which all commands of the page have run, and what they printed."""
    folder = tmp_path_factory.mktemp("workflows")
    shutil.copytree(ROOT / "data", folder / "data")
    lines = [line for block in blocks("bash") for line in block.strip().splitlines()]
    return folder, {line: command(*shlex.split(line)[1:], cwd=folder) for line in lines}


def test_commands_run(workplace: tuple[Path, dict[str, Done]]) -> None:
    _, results = workplace
    assert len(results) > 12
    for line, result in results.items():
        refused = REFUSED.get(line.rpartition(" ")[2])
        expected = {refused} if refused else {0, 3}  # 3: the corpora hold empty documents
        assert result.returncode in expected, (line, result.stderr)


def test_shown_output_is_printed(workplace: tuple[Path, dict[str, Done]]) -> None:
    folder, results = workplace
    printed = "".join(result.stdout + result.stderr for result in results.values())
    shown = blocks("")
    (tree,) = (block for block in shown if "BertSelfAttention" in block)
    assert tree in printed
    for block in (block for block in shown if block.startswith("embedkit: ")):
        assert re.sub(r"\d+", "N", block.strip()) in re.sub(r"\d+", "N", printed)
    (answers,) = (block for block in shown if block.startswith("row,id"))
    columns = (folder / "answers.csv").read_text().splitlines()[0]
    assert answers.splitlines()[0] == columns
    assert (folder / "submission.csv").read_text().splitlines()[0] == "id,label"


def test_python_runs(
    workplace: tuple[Path, dict[str, Done]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace[0])
    (block,) = blocks("python")
    exec(compile(block, "workflows.md", "exec"), {"__name__": "__main__"})


def test_korean_words_of_an_old_folder_are_known_to_embedkit_alone(tmp_path: Path) -> None:
    """What the page and the README say of folders such as KcBERT's."""
    folder = build_old(tmp_path, "cased")
    text, unknown = "배를 여행을", "[UNK]"
    plain = BertTokenizer.from_pretrained(str(folder))
    theirs = plain.convert_ids_to_tokens(plain(text)["input_ids"])
    ours = [row["token"] for row in embedkit.tokenize(text, model=str(folder))]
    assert theirs == ["[CLS]", unknown, unknown, "[SEP]"]
    assert unknown not in ours
    cased = BertTokenizer.from_pretrained(str(folder), do_lower_case=False)
    assert ours == cased.convert_ids_to_tokens(cased(text)["input_ids"])
