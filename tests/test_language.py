"""Help texts, pages and public names use the terms of the field; each term has one name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from embedkit.cli.main import cli
from tests.processes import ROOT

INSTEAD = {
    "deal": "repeat", "deals": "repeats", "dealt": "shuffled",
    "part": "fraction or subset", "parts": "fractions or subsets",
    "share": "fraction", "shares": "fractions",
    "learnt": "fitted or trained", "watch": "validate", "watches": "validates",
    "watching": "validation", "watched": "validation", "asked about": "scored",
    "learner": "estimator", "learners": "estimators", "decided": "y_pred",
    "measure": "metric", "measures": "metrics", "rule": "threshold", "rules": "thresholds",
    "draw": "sample", "draws": "samples", "drawn": "sampled",
    "isotropy": "whitening", "coarse": "prefilter",
}  # fmt: skip
"""Words that have another name here, and what to write."""

REAL = (
    r"part-0",  # names of files
    r"part of `make",
    r"column, type and rule",  # docs/format.md is normative
    r"[Dd]raws? (a|the) (view|figure)",
    r"share a fold",
    r"[Mm]easures? (its|the|recall)",
)
"""Uses in which such a word has its everyday meaning."""

WORDS = re.compile(rf"(?<![\w-])({'|'.join(INSTEAD)})(?![\w-])", re.IGNORECASE)
ALLOWED = re.compile("|".join(REAL))


def words_in(text: str) -> list[str]:
    """The words in a text that have another name, each with its line number."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        allowed = [match.span() for match in ALLOWED.finditer(line)]
        for match in WORDS.finditer(line):
            if not any(start <= match.start() < end for start, end in allowed):
                found.append(f"{number}: {match[1]} (write {INSTEAD[match[1].lower()]})")
    return found


def prose_of(page: str) -> str:
    """A page with empty lines for its Python, whose names are the reader's own."""
    return re.sub(
        r"^```python$.*?^```$", lambda m: "\n" * m[0].count("\n"), page, flags=re.M | re.S
    )


def names_in(code: str) -> Iterator[str]:
    """Public functions, classes, parameters, attributes and constants of a module, with lines."""
    for node in _public(ast.parse(code).body):
        names = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            names += [a.arg for a in (*arguments.posonlyargs, *arguments.args,
                                      *arguments.kwonlyargs)]  # fmt: skip
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            if name.startswith("_"):
                continue
            noun = re.sub(r"^(draw|measure)_", "", name)
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", noun)
            if bad := {word.lower() for word in words} & INSTEAD.keys():
                yield f"{node.lineno}: {name} ({', '.join(sorted(bad))})"


def _public(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        name = getattr(node, "name", "")
        if name.startswith("_") and name != "__init__":
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _public(node.body)


def check(place: str, found: list[str]) -> None:
    assert not found, place


PAGES = [
    p
    for p in ("README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md"))))
    if p != "docs/cli.md"
]  # whose words are in the help texts; fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    check(page, words_in(prose_of((ROOT / page).read_text("utf-8"))))


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help(name: str) -> None:
    command = cli.commands[name]
    texts = [command.help or ""]
    for option in command.params:
        text = getattr(option, "help", None)
        assert text or option.param_type_name == "argument", f"{option.name} has no help text"
        texts.append(text or "")
    check(name, words_in("\n".join(texts)))


MODULES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "embedkit").rglob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module: str) -> None:
    check(module, list(names_in((ROOT / module).read_text("utf-8"))))


def test_such_words_are_found() -> None:
    assert words_in("a\nDrawn by rule") == ["2: Drawn (write sampled)", "2: rule (write threshold)"]
    assert words_in("part-00000.parquet, part of `make check`, draw a view") == []
    code = "class A:\n    share: int\n    def f(self, *, testPart=0): ...\ndef _rule(): ...\n"
    assert list(names_in(code)) == ["2: share (share)", "3: testPart (part)"]
