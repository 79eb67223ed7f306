"""The wheel and the image: what a stranger installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests.processes import ROOT


def shell(*words: str | Path, cwd: Path) -> str:
    """Output of a program that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index to build with")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_does_the_main_job(tmp_path: Path) -> None:
    """The packages that it needs are those of this environment; embedkit is not."""
    pip = (sys.executable, "-m", "pip")
    shell(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    empty = tmp_path / "empty"
    venv.create(empty, symlinks=True, with_pip=False)
    python = empty / "bin" / "python"
    shell(*pip, "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    place = Path(
        shell(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    (place / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    where = shell(python, "-c", "import embedkit; print(embedkit.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(place)
    embedkit = empty / "bin" / "embedkit"
    corpus = ROOT / "data" / "requests_en.tsv"
    options = ("--label", "intent", "--limit", "90", "--layers", "-1", "--pooling", "mean")
    shell(embedkit, "extract", corpus, *options, "--out", "vectors", cwd=tmp_path)
    shell(embedkit, "train", "vectors", "--folds", "2", "--out", "a", cwd=tmp_path)
    tfidf = ("--features", "tfidf", "--split", "a/split.parquet", "--out", "b")
    shell(embedkit, "train", "vectors", *tfidf, cwd=tmp_path)
    said = shell(embedkit, "compare", "a", "b", "--report", "report.html", cwd=tmp_path)
    assert "majority" in said
    assert (tmp_path / "report.html").is_file()


def test_the_image_copies_files_and_installs_extras_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").split() if line[0] == "!"
    }
    copied = {
        name
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
        for name in line.split()
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*re.search(r"\[(\w+(?:,\w+)*)\]\"", text)[1].split(",")} <= {  # type: ignore[index]
        *project["optional-dependencies"]
    }
