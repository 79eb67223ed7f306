"""Options that several commands have: one definition for each, with one name and one meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import (
    CLASS_WEIGHTS,
    DEFAULT_MODEL,
    ESTIMATORS,
    FORMATS,
    ON_LONG,
    PRECISIONS,
    QUOTINGS,
    RUN_LEVELS,
    TASKS,
    UNICODE_FORMS,
)
from embedkit.errors import UsageError

if TYPE_CHECKING:
    from embedkit.corpus import CorpusOptions

__all__ = ["FILE", "LAYERS", "names_of", "option", "options", "reading_of", "whitening_of"]

Option = Callable[[Any], Any]

option = click.option
FILE = click.Path(path_type=Path)
LAYERS = ("all, -1, 0,6,12, -4..-1, sum:-4..-1, mean:-4..-1 or concat:-1,-2; 0 is the embedding "
          "output.")  # fmt: skip


_SHARED: Mapping[str, Option] = {
    name: option(name, help=text, **settings)
    for name, text, settings in (
        # the corpus
        ("--text", "Column of the text. [inferred from the header]", {}),
        ("--text-pair", "Column of the second text of a pair.", {}),
        ("--id", "Column of the id. [inferred from the header; else row numbers]", {}),
        ("--label", "Column of the label. [inferred from the header]", {}),
        ("--format", "Format of the corpus; auto: by the name of the file.",
         {"default": "auto", "type": click.Choice(["auto", *FORMATS])}),
        ("--encoding", "Character encoding of text files.", {"default": "utf-8"}),
        ("--quoting", "Quoting of fields; auto: RFC 4180 in .csv files, none in .tsv and .txt "
         "files.", {"default": "auto", "type": click.Choice(QUOTINGS)}),
        ("--no-header", "The first line is a record; columns are named 0, 1, 2 …",
         {"is_flag": True}),
        ("--unicode", "Unicode normalization of the texts.",
         {"default": "none", "type": click.Choice(UNICODE_FORMS)}),
        ("--min-chars", "Leave out shorter texts; they are counted.", {"default": 0}),
        ("--sample", "Use only N randomly chosen records; the others are counted.",
         {"type": int, "metavar": "N"}),
        ("--limit", "Use only the first N records; the others are counted.",
         {"type": int, "metavar": "N"}),
        ("--seed", "Seed of everything that is random.",
         {"default": 0, "type": click.IntRange(0, 2**31 - 1)}),
        # the encoder
        ("--model", "Hub id or folder of a BERT-family checkpoint; multilingual is "
         "multilingual-e5-small.", {"default": DEFAULT_MODEL}),
        ("--revision", "Branch, tag or commit of a hub checkpoint.", {}),
        ("--offline", "Use only local files, never the hub.", {"is_flag": True}),
        ("--device", "auto, cpu, cuda or cuda:1.", {"default": "auto"}),
        ("--max-length", "Maximum number of tokens per text, special tokens included. [set by the "
         "checkpoint]", {"type": int}),
        ("--on-long", "How to treat texts of more than --max-length tokens.",
         {"default": "truncate", "type": click.Choice(ON_LONG)}),
        ("--stride", "Overlap of neighbouring windows in tokens. [a quarter of --max-length]",
         {"type": int}),
        ("--prefix", 'Text to put before every text; "" for none. ["query: " for --model '
         "multilingual; else none]", {}),
        ("--precision", "Precision of the computation; auto: on CPU bf16 where a short trial finds "
         "it 1.2 × as fast. [fp32 on CPU; bf16 on CUDA, fp16 on older devices]",
         {"type": click.Choice(PRECISIONS)}),
        ("--special-tokens", "Whether mean, max and last_token use [CLS] and [SEP].",
         {"default": "include", "type": click.Choice(["include", "exclude"])}),
        # datasets and runs
        ("--out", "Folder of the run to write.", {"type": FILE, "required": True}),
        ("--overwrite", "Replace existing output.", {"is_flag": True}),
        ("--progress/--no-progress", "Show progress. [on a terminal]", {"default": None}),
        ("--view", "Stored view, such as mean_-1. [mean of the last layer]", {}),
        ("--level", "What is labelled: sentence (the records) or word (their words, as extracted "
         "with --words --word-label).", {"default": "sentence", "type": click.Choice(RUN_LEVELS)}),
        ("--split", "Split file written by embedkit split.", {"type": FILE}),
        ("--test-sample", "Use only N randomly chosen records of the file given with --test.",
         {"type": int, "metavar": "N"}),
        ("--test-min-chars", "Leave out shorter texts of the file given with --test.",
         {"default": 0}),
        ("--folds", "Number of folds, if there is no --split; 1: a single training, a fifth of the "
         "records held out.", {"default": 5}),
        ("--task", "classification: labels are classes; regression: labels are numbers.",
         {"default": "classification", "type": click.Choice(TASKS)}),
        ("--estimator", "Classifier, or its counterpart for regression. [logreg; for regression "
         "ridge]", {"type": click.Choice(ESTIMATORS)}),
        ("--class-weight", "balanced: weight classes inversely to their frequency.",
         {"type": click.Choice(CLASS_WEIGHTS)}),
        ("--submission", "Write two columns under these names, the id and the label or value, of "
         "test records only.", {"metavar": "ID,LABEL"}),
        ("--threads", "Number of threads. [number of cores]", {"type": click.IntRange(min=1)}),
    )
}  # fmt: skip
_DIALECT = ("--format", "--encoding", "--quoting", "--no-header", "--unicode")
_GROUPS = {
    "dialect": _DIALECT,
    "corpus": ("--text", "--text-pair", "--id", "--label", *_DIALECT, "--min-chars", "--sample",
               "--seed", "--limit"),
    "checkpoint": ("--model", "--revision", "--offline"),
    "model": ("--model", "--revision", "--offline", "--device"),
}  # fmt: skip


def options(*given: str | Option) -> Option:
    """Give a command options in this order: names of shared ones, of groups, or its own."""
    found: list[Option] = []
    for one in given:
        if isinstance(one, str):
            found += [_SHARED[name] for name in _GROUPS.get(one, (one,))]
        else:
            found.append(one)

    def decorate(function: Any) -> Any:
        for each in reversed(found):
            function = each(function)
        return function

    return decorate


def reading_of(settings: dict[str, Any]) -> CorpusOptions:
    """How the corpus is read; takes the options of a corpus out of the settings of a command."""
    from embedkit.corpus import CorpusOptions

    names = [field.name for field in fields(CorpusOptions) if field.name in settings]
    values = {name: settings.pop(name) for name in names}
    if "keep" in values:
        values["keep"] = values["keep"].split(",") if values["keep"] else ()
    if "no_header" in settings:
        values["header"] = not settings.pop("no_header")
    return CorpusOptions(**values)


def names_of(text: str | None) -> list[str] | None:
    """Names that are separated by commas."""
    return [name.strip() for name in text.split(",")] if text else None


def whitening_of(center: bool, whiten: bool) -> str | None:
    """The value of the parameter ``whitening`` for ``--center`` and ``--whiten``."""
    if center and whiten:
        raise UsageError("give --center or --whiten: whitening centers too.")
    return "center" if center else "whiten" if whiten else None
