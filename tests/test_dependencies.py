"""What pyproject.toml asks for is what constraints-oldest.txt pins, and what is installed."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
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
