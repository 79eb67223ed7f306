"""What pyproject.toml asks for is what constraints-oldest.txt pins, and what is imported."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions, requires, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.processes import ROOT

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
