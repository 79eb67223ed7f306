"""Which heavy packages every command imports: what it does not need, its user does not wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

ROWS = [(str(i), f"text {i % 7}", str(i % 2)) for i in range(40)]

HEAVY = (
    "accelerate boto3 datasets duckdb faiss lightgbm matplotlib openTSNE pandas peft polars ray "
    "scipy.optimize scipy.stats sklearn skops sympy torch transformers"
)

LEARNING = "pandas scipy.optimize scipy.stats sklearn"  # sklearn brings the others
ENCODING = "accelerate boto3 scipy.optimize sympy torch transformers"  # transformers brings them

COMMANDS = {
    "info data": "",
    "info vectors": "",
    "verify data": "pandas",
    "compare vectors tfidf": "scipy.optimize",
    "index data --kind flat": "faiss",
    "search data --like 1": "faiss",
    "split data --folds 2": LEARNING,
    "train data --folds 2 --out a": f"{LEARNING} matplotlib",
    "train data --folds 2 --features tfidf --out b": f"{LEARNING} matplotlib",
    "probe data --out c": f"{LEARNING} matplotlib",
    "predict tfidf --text text": LEARNING,
    "predict vectors data": LEARNING,
}

WITH_A_MODEL = {
    "tokenize text --model MODEL": "torch transformers",
    "search data text": f"{ENCODING} faiss",
    "predict vectors --text text": f"{ENCODING} {LEARNING}",
    "extract corpus.tsv --model MODEL --out d": f"{ENCODING} pandas",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup")
    extract_tiny(write_tsv(folder / "corpus.tsv", ROWS), folder / "data", pooling="mean")
    train(folder / "data", folds=2, out=folder / "vectors")
    train(folder / "data", folds=2, features="tfidf", out=folder / "tfidf")
    return folder


def imported_by(command: str, place: Path) -> set[str]:
    """Packages of :data:`HEAVY` that a process has imported after a command."""
    code = (
        "import sys; from embedkit.cli.main import cli; code = cli.call(sys.argv[1:]);"
        f"print(*{{*{HEAVY.split()}}} & {{*sys.modules}}, file=sys.stderr); sys.exit(code)"
    )
    words = command.replace("MODEL", str(tiny_model())).split()
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {*done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_what_it_needs(place: Path, command: str) -> None:
    assert imported_by(command, place) <= {*COMMANDS[command].split()}


@pytest.mark.slow
@pytest.mark.parametrize("command", WITH_A_MODEL)
def test_a_command_with_a_model_imports_what_it_needs(place: Path, command: str) -> None:
    assert imported_by(command, place) <= {*WITH_A_MODEL[command].split()}
