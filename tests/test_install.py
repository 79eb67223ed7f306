"""The wheel and the image: what a stranger installs, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.processes import ROOT, program


def shell(*words: str | Path, cwd: Path) -> str:
    """Output of a program that knows nothing of this checkout."""
    done = program(*words, cwd=cwd, PYTHONPATH=None)
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
    place = Path(sysconfig.get_path("purelib", "venv", {"base": str(empty)}))
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
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    kept = {name.removeprefix("!") for name in ignored if name.startswith("!")}
    copied = set(" ".join(re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)).split())
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert {*re.search(r"\[(\w+(?:,\w+)*)\]\"", text)[1].split(",")} <= {  # type: ignore[index]
        *PROJECT["optional-dependencies"]
    }


# what pyproject.toml asks for

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NEEDS = [Requirement(line) for line in PROJECT["dependencies"]]


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {package: Version(found) for package, found in pairs}


@pytest.mark.parametrize("need", NEEDS, ids=str)
def test_floors_are_tested_and_hold_here(need: Requirement) -> None:
    (bound,) = need.specifier
    if bound.operator == ">=":
        assert pins("constraints-oldest.txt")[need.name] == Version(bound.version)
    assert need.specifier.contains(version(need.name))


def test_both_constraints_are_allowed() -> None:
    floors = {need.name: need.specifier for need in NEEDS}
    for file in ("constraints.txt", "constraints-oldest.txt"):
        for package, pinned in pins(file).items():
            assert package not in floors or floors[package].contains(pinned), (file, package)


def test_what_is_imported_is_asked_for() -> None:
    """By embedkit, or by what it asks for: developers have more installed than users."""
    known, todo, extras = {"embedkit"}, list(NEEDS), str(PROJECT["optional-dependencies"])
    packages = packages_distributions()
    for need in todo:
        if need.name not in known and (need.marker is None or need.marker.evaluate({"extra": ""})):
            known |= {need.name, canonicalize_name(need.name)}
            todo += map(Requirement, requires(need.name) or ())
    for file in (ROOT / "embedkit").rglob("*.py"):
        for name in re.findall(r"^ *(?:from|import) (\w+)", file.read_text("utf-8"), flags=re.M):
            owners = {canonicalize_name(owner) for owner in packages.get(name, ["embedkit"])}
            assert owners & known or any(o in extras for o in owners), f"{file.name} imports {name}"
