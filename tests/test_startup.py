"""Which heavy packages every command imports: what it does not need, its user does not wait for."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.models import slow
from tests.processes import program
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

ROWS = [(str(i), f"text {i % 7}", str(i % 2)) for i in range(40)]

HEAVY = (
    "accelerate boto3 datasets duckdb faiss lightgbm matplotlib openTSNE pandas peft polars "
    "pyarrow ray scipy.optimize scipy.stats sklearn skops sympy tokenizers torch torch._dynamo "
    "transformers transformers.modeling_utils"
)

DATA = "pyarrow"
LEARNING = f"{DATA} pandas scipy.optimize scipy.stats sklearn"  # sklearn brings the others
ENCODING = f"{DATA} boto3 tokenizers torch transformers"  # transformers brings some

# what each process runs, one after the other: what a command may import, a later one may too
PROCESSES: tuple[dict[str, str], ...] = (
    {
        "--help": "",
        "extract --help": "",
        "info data": DATA,
        "info vectors": DATA,
        "compare vectors tfidf": DATA,
        "verify data": f"{DATA} pandas",
    },
    {"index data --kind flat": f"{DATA} faiss", "search data --like 1": f"{DATA} faiss"},
    {"predict vectors data": DATA},
    {
        "split data --folds 2": LEARNING,
        "predict tfidf --text text": LEARNING,
        "train data --folds 2 --out a": LEARNING,
        "train data --folds 2 --features tfidf --out b": LEARNING,
        "train corpus.tsv --folds 2 --features tfidf --out t": LEARNING,
        "probe data --out c": LEARNING,
    },
)

WITH_A_MODEL = {
    "tokenize text --model MODEL": f"{DATA} tokenizers torch transformers",
    "search data text": f"{ENCODING} faiss",
    "predict vectors --text text": ENCODING,
    "extract corpus.tsv --model MODEL --out d": f"{ENCODING} pandas",
}


@pytest.fixture(scope="module")
def place(common: Path) -> Path:
    extract_tiny(write_tsv(common / "corpus.tsv", ROWS), common / "data", pooling="mean")
    for features in ("vectors", "tfidf"):
        train(common / "data", folds=2, features=features, out=common / features)
    return common


def imported_by(commands: Iterable[str], place: Path) -> list[set[str]]:
    """Packages of :data:`HEAVY` that a process has imported after each of its commands."""
    code = (
        "import sys\n"
        "from embedkit.cli.main import cli\n"
        "for line in sys.argv[1:]:\n"
        "    code = cli.call(line.split())\n"
        f"    print(*{{*{HEAVY.split()}}} & {{*sys.modules}}, 'after', code, file=sys.stderr)\n"
    )
    typed = [line.replace("MODEL", str(tiny_model())) for line in commands]
    done = program(sys.executable, "-c", code, *typed, cwd=place)
    answers = [line for line in done.stderr.splitlines() if line.endswith("after 0")]
    assert len(answers) == len(typed), done.stderr
    return [{*line.split()[:-2]} for line in answers]


@pytest.mark.parametrize(
    "commands", [*PROCESSES, *slow(*({c: i} for c, i in WITH_A_MODEL.items()))]
)
def test_a_command_imports_what_it_needs(place: Path, commands: dict[str, str]) -> None:
    for command, imported in zip(commands, imported_by(commands, place), strict=True):
        assert imported <= {*commands[command].split()}, command
