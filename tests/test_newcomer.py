"""What a newcomer tries first with a corpus whose columns have names of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedkit
from embedkit.errors import UsageError
from embedkit.predict import predict_file
from tests.processes import command
from tests.store_fixtures import tiny_model

pytestmark = pytest.mark.usefixtures("quick")
HEADER = "msg_id,target,sms\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a dataset whose text and label were named, and a corpus to predict."""
    folder = tmp_path_factory.mktemp("newcomer")
    lines = [
        f"m{i:03},{i % 2},{'win money now' if i % 2 else 'see you soon'} {i}\n" for i in range(40)
    ]
    (folder / "train.csv").write_text(HEADER + "".join(lines), "utf-8")
    (folder / "test.csv").write_text("msg_id,sms\nm900,win money\nm901,see you\n", "utf-8")
    named: dict[str, Any] = {"text": "sms", "label": "target", "model": str(tiny_model())}
    embedkit.extract(folder / "train.csv", out=folder / "data", **named)
    embedkit.train(folder / "data", features="tfidf", folds=2, out=folder / "run")
    return folder


def test_predict_reads_the_columns_of_the_run(trained: Path, tmp_path: Path) -> None:
    predict_file(
        trained / "run", trained / "test.csv", out=tmp_path / "s.csv", submission="msg_id,target"
    )
    assert (tmp_path / "s.csv").read_text("utf-8") == "msg_id,target\nm900,1\nm901,0\n"


def test_a_submission_has_no_row_numbers(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"submission='id,target': .*test\.csv has no column of ids"
    ):
        predict_file(
            trained / "run", trained / "test.csv", out=tmp_path / "s.csv", submission="id,target"
        )
    assert not (tmp_path / "s.csv").exists()


def test_a_message_names_no_option_that_the_command_lacks(trained: Path, tmp_path: Path) -> None:
    done = command("train", trained / "train.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "which column is the text?" in done.stderr
    assert "--text-pair is an option of embedkit extract: run that first" in done.stderr
    done = command("train", trained / "train.csv", "--text", "smss", cwd=tmp_path)
    assert "Did you mean 'sms'" in done.stderr
    done = command("probe", trained / "data", "--text", "sms", cwd=tmp_path)
    assert "--text sms is of a corpus" in done.stderr
    done = command("probe", trained / "data", "--label", "targte", cwd=tmp_path)
    assert "--label targte" in done.stderr
    assert "has the columns row, id" in done.stderr
    made = ("--text", "sms", "--label", "target", "--folds", "2")
    assert command("split", trained / "train.csv", *made, cwd=tmp_path).returncode == 0
    done = command("train", trained / "data", "--features", "tfid", cwd=tmp_path)
    assert "Did you mean 'tfidf'" in done.stderr
    done = command("predict", trained / "run", "--text", "win money", cwd=tmp_path)
    assert done.stdout.startswith("1\t")
    done = command("predict", trained / "run", trained / "test.csv", "--text", "sms", cwd=tmp_path)
    assert [line.split("\t")[2] for line in done.stdout.splitlines()[1:]] == ["1", "0"]
