"""Options that several commands share, headings of the help, and the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from embedkit import choices
from embedkit.errors import did_you_mean
from embedkit.types import ProgressCallback, no_progress, reported

Option = Callable[[Any], Any]

FIRST_HEADING = "Options"
HEADINGS: Mapping[str, frozenset[str]] = {
    heading: frozenset(names.split())
    for heading, names in {
        "Reading the corpus": "--text-pair --id --keep --word-label --spans --format --encoding "
        "--quoting --delimiter --header --sheet --min-chars --sample --limit",
        "Encoding": "--revision --max-length --batch-size --on-long --prefix --precision",
        "Training": "--seeds --dropout --class-weight --freeze-layers --lora --validation "
        "--patience --threshold",
        "Storage": "--storage --no-text",
        "Running and printing": "--seed --overwrite --all --json --quiet --help",
    }.items()
}
"""Headings of the help and their options; all others come first, under :data:`FIRST_HEADING`."""

FILE = click.Path(path_type=Path)
NAME = click.Path(readable=False)
"""A file or folder, for which shells complete files, or a name that is none: a hub id, a column."""
MODEL: dict[str, Any] = {"type": NAME, "metavar": "MODEL"}
LAYERS = (
    "all, -1, 0,3,6, -4..-1, sum:-4..-1, mean:-4..-1 or concat:-1,-2; 0 is the embedding output."
)


class KnownName(click.Choice[str]):
    """A known name; the nearest one is proposed for another."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the message for another name."""
        near = did_you_mean(str(value), self.choices)
        return super().get_invalid_choice_message(value, ctx) + near


class KnownOrClass(KnownName):
    """A known name, or ``module:Class``."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the name; an error for an unknown one."""
        return value if ":" in str(value) else super().convert(value, param, ctx)


def choice(
    names: Collection[str], default: str | None = None, *, or_class: bool = False
) -> dict[str, Any]:
    """Settings of an option with known values, or with ``module:Class`` beside them."""
    kind = KnownOrClass if or_class else KnownName
    return {"type": kind(list(names)), "default": default}


def option(*names: str, help: str, **settings: Any) -> Option:
    """Make an option; lists of kinds are rendered in its help."""
    return click.option(*names, help=choices.listed(help), **settings)


POSITIVE = click.IntRange(min=1)
FLAG: Mapping[str, Any] = {"is_flag": True}
_COUNT: Mapping[str, Any] = {"type": int, "metavar": "N"}
# options without a default are None when they are not given, so that the library chooses by
# checkpoint, device or file; their help says how in brackets
_SHARED_ROWS: Sequence[tuple[str, str, Mapping[str, Any]]] = (
    # the corpus
    ("--text", "Column of the text. [inferred from the header]", {}),
    ("--text-pair", "Column of the second text of a pair.", {}),
    ("--id", "Column of the id. [inferred from the header; else row numbers]", {}),
    (
        "--label",
        "Column of the label, or, with commas, columns of classes, 0 or 1. [inferred from the "
        "header]",
        {},
    ),
    ("--word-label", "Column of the labels of words: with spaces between, or upos of CoNLL-U.", {}),
    (
        "--format",
        "Format; auto: by name and first bytes.",
        choice(["auto", *choices.FORMATS], "auto"),
    ),
    ("--encoding", "Character encoding of text files.", {"default": "utf-8"}),
    ("--quoting", "Quoting of fields: {QUOTINGS}.", choice(choices.QUOTINGS, "auto")),
    ("--delimiter", "What separates cells, or tab. [what divides the first lines alike]", {}),
    ("--sheet", "Name of the sheet of a workbook. [the first]", {}),
    (
        "--header/--no-header",
        "The first line names the columns; else they are 0, 1, 2 …",
        {"default": True},
    ),
    ("--min-chars", "Leave out shorter texts; they are counted.", {"default": 0}),
    ("--sample", "Use only N randomly chosen records; the others are counted.", _COUNT),
    ("--limit", "Use only the first N records; the others are counted.", _COUNT),
    ("--seed", "Seed of everything that is random.", {"default": 0}),
    # the encoder
    (
        "--model",
        "Hub id or folder of a checkpoint; multilingual is multilingual-e5-small.",
        {"default": choices.DEFAULT_MODEL, **MODEL},
    ),
    ("--revision", "Branch, tag or commit of a hub checkpoint.", {}),
    ("--device", "auto, cpu, cuda or cuda:1.", {"default": "auto"}),
    ("--max-length", "Maximum number of tokens per text. [set by the checkpoint]", {"type": int}),
    ("--prefix", 'Text before every text; "" for none. [set by the checkpoint]', {}),
    (
        "--precision",
        "Precision of the computation; auto: on CPU bf16 where the processor has "
        "instructions for it; int8: on CPU, about 0.1 from fp32. [fp32 on CPU; bf16 on CUDA, "
        "fp16 on older devices]",
        choice(choices.PRECISIONS),
    ),
    # datasets and runs
    ("--out", "Folder of the run to write. [runs/CORPUS-METHOD]", {"type": FILE}),
    ("--overwrite", "Replace existing output.", FLAG),
    ("--whitening", "Change of all vectors first: {WHITENINGS}.", choice(choices.WHITENINGS)),
    ("--view", "Stored view, such as mean_-1. [the last mean]", {}),
    (
        "--level",
        "What is labelled: {RUN_LEVELS}; extract words with --words --word-label.",
        choice(choices.RUN_LEVELS, "sentence"),
    ),
    (
        "--split",
        "File of embedkit split, or a column: folds, or train, validation, test.",
        {"type": NAME, "metavar": "FILE|COLUMN"},
    ),
    ("--test", "Test set: a corpus or a dataset, with labels or without.", {"type": FILE}),
    (
        "--folds",
        "Number of folds, if there is no --split; 1: a single training, a fifth of the "
        "records held out.",
        {"default": 5},
    ),
    ("--task", "{TASKS}.", choice(choices.TASKS, "classification")),
    (
        "--label-separator",
        "Between the classes of a record, with --task multilabel.",
        {"default": "|", "metavar": "TEXT"},
    ),
    (
        "--estimator",
        "Classifier or regressor, or module:Class of scikit-learn, such as "
        "sklearn.svm:LinearSVC. [logreg; for regression ridge]",
        choice(choices.ESTIMATORS, or_class=True),
    ),
    (
        "--threshold",
        "Decision threshold for the second of two classes: a number, or a metric to optimize "
        "(macro_f1, f1, f2 …), in inner folds or on the validation records.",
        {},
    ),
    (
        "--class-weight",
        "balanced: weight classes by inverse frequency.",
        choice(choices.CLASS_WEIGHTS),
    ),
    ("--label-names", "Readable names of labels, such as 0=negative,1=positive.", {}),
    (
        "--submission",
        "Write test records only, as these columns: the id and the label or value (id,label), or "
        "probabilities of classes (id,target=1; id,toxic,insult).",
        {"metavar": "ID,COLUMN…"},
    ),
)
_SHARED = {name: option(name, help=text, **settings) for name, text, settings in _SHARED_ROWS}


def options(*entries: str | Option) -> Option:
    """Give a command options in this order: names of shared ones, or options of its own."""
    makers = [
        make
        for entry in entries
        for make in (map(_SHARED.__getitem__, entry.split()) if isinstance(entry, str) else [entry])
    ]

    def decorate(function: Any) -> Any:
        # decorators apply from the last to the first, and click shows options in that order
        # reversed
        for make in reversed(makers):
            function = make(function)
        return function

    return decorate


def names_of(text: str | None) -> list[str]:
    """Names separated by commas, as a list."""
    return [name.strip() for name in text.split(",")] if text else []


def progress_bar() -> AbstractContextManager[ProgressCallback]:
    """Progress with the time left, on a terminal and without ``--quiet``, after a second."""
    return reported(no_progress if click.get_current_context().params["quiet"] else None)
