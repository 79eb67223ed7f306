"""The command ``compare``, and its tables for a terminal and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedkit.choices import BEST_BLEND, BLENDS, FIGURE_FORMATS, REPORT_LANGUAGES
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import (
    Rows,
    asked_for_all,
    metric_heading,
    number_text,
    path_text,
    score_text,
    table_markdown,
    table_text,
    terminal_width,
    wrapped,
)
from embedkit.display import bytes_text, is_percent, metric_text, visible
from embedkit.errors import UsageError

if TYPE_CHECKING:
    from embedkit.comparison.compare import Compared, Comparison, Cost, Difference, Row
    from embedkit.runs.metrics import Score

__all__ = ["compare", "comparison_markdown", "comparison_text", "verdict_text"]

_WIDE = 1_000
"""Columns beyond which the output is no terminal."""


@command(
    "embedkit compare runs/tfidf runs/logreg runs/lightgbm",
    "embedkit compare runs/* --metric macro_f1 --worth 0.5 --report report.html",
    "embedkit compare runs/tfidf runs/cls --write-blend blend.tsv --answers tfidf.tsv "
    "--answers cls.tsv",
    tables=True,
)
@click.argument("runs", nargs=-1, required=True, type=FILE)
@options(
    option("--baseline", help="Run to compare all others with, or majority. [the run on TF-IDF]"),
    option("--metric", help="Metric to sort by and to test. [accuracy; rmse for regression]"),
    option("--report", type=FILE, help="HTML report to write."),
    option("--texts", type=FILE,
           help="Dataset or corpus with the texts for the report. [the dataset of the runs]"),
    option("--worth", type=float,
           help="Smallest difference that matters, in points of a fraction, else in the metric's "
           "units. [1 point; 0.01 of a correlation; 1 % of the baseline's error]"),
    option("--label-names", help="Names to show in the report, such as 0=negative,1=positive."),
    option("--report-lang", default="en", type=click.Choice(REPORT_LANGUAGES),
           help="Language of the report."),
    option("--figures", type=click.Choice(FIGURE_FORMATS),
           help="Also write the figures of the report in this format, to REPORT.figures/."),
    option("--write-blend", type=FILE,
           help="File for the blended labels and probabilities; .tsv, .csv, .jsonl or .parquet."),
    option("--blend", default="mean", type=click.Choice([*BLENDS, BEST_BLEND]),
           help="Blend to write; best: by the score in --metric."),
    "--submission",
    option("--answers", multiple=True, type=FILE,
           help="Predictions of predict for new texts, one file per run in the same order: blend "
           "these."),
    "--seed",
    option("--markdown", is_flag=True, help="Print the tables as Markdown."),
    "--overwrite",
)  # fmt: skip
def compare(
    runs: tuple[Path, ...], baseline: str | None, metric: str | None, report: Path | None,
    texts: Path | None, worth: float | None, label_names: str | None, report_lang: str,
    figures: str | None, write_blend: Path | None, blend: str, submission: str | None,
    answers: tuple[Path, ...], seed: int, markdown: bool, overwrite: bool,
) -> Result:  # fmt: skip
    """Compare runs: a verdict, scores, differences, cost.

    RUNS are folders that train, finetune or probe wrote, all with the same split. Two blends of
    them are compared too.
    """
    from embedkit.comparison.compare import compare as calculate
    from embedkit.prediction_files import parse_submission

    if (answers or submission) and write_blend is None:
        given = "--answers are" if answers else "--submission is"
        raise UsageError(f"{given} blended into a file; name it with --write-blend.")
    columns = parse_submission(submission)
    with progress_bar() as progress:
        found = calculate(runs, baseline=baseline, metric=metric, seed=seed, progress=progress)
    wrote: list[str] = []
    if write_blend is not None:
        from embedkit.comparison.blend import write_blend as write

        made = found.chosen_blend(blend)
        count = write(made, write_blend, answers=answers, submission=columns, overwrite=overwrite)
        wrote.append(f"{path_text(write_blend)}: {count:,} records, {made.name}")
    if report is not None:
        from embedkit.comparison.report import write_report
        from embedkit.predict import parse_label_names

        with progress_bar() as progress:
            folder = write_report(
                found, report, texts=texts, worth=worth, label_names=parse_label_names(label_names),
                report_lang=report_lang, figures=figures, overwrite=overwrite, progress=progress,
            )  # fmt: skip
        wrote.append(path_text(report) + (f", figures in {path_text(folder)}" if folder else ""))
    verdict, tables = (
        (verdict_markdown, comparison_markdown) if markdown else (verdict_text, comparison_text)
    )
    return Result(
        found.table,
        lambda: "\n".join([verdict(found, worth), "", tables(found.table),
                           *(f"wrote {one}" for one in wrote if not markdown)]),
        finding=not markdown, asked_for=markdown,
    )  # fmt: skip


def verdict_text(found: Compared, worth: float | None = None) -> str:
    """Return the finding and the answers to five questions, in the width of the terminal."""
    title, lead, answers = _verdict(found, worth)
    width = terminal_width()
    room = max(len(question) for question, _ in answers) + 2
    lines = [visible(title)]
    for line in lead:
        lines += wrapped(visible(line), width)
    for question, answer in answers:
        lines += wrapped(visible(answer), width, first=f"  {question:{room}}",
                         others=" " * (room + 2))  # fmt: skip
    return "\n".join(lines)


def verdict_markdown(found: Compared, worth: float | None = None) -> str:
    """Return the finding and the answers to five questions as Markdown."""
    title, lead, answers = _verdict(found, worth)
    listed = [f"- **{question}** {answer}" for question, answer in answers]
    return "\n".join([f"**{title}**", "", *lead, "", *listed])


def _verdict(found: Compared, worth: float | None) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Return the finding, the sentences on it, and questions with their answers."""
    from embedkit.comparison.effects import scale_of
    from embedkit.comparison.findings import verdict_of
    from embedkit.comparison.phrases import Phrases
    from embedkit.comparison.sentences import Sentences

    scale = scale_of(found, worth)
    verdict = verdict_of(found, scale)
    words = Sentences(Phrases("en", found, scale), found, scale)
    score, against, records = words.lead(verdict)
    sentence = "; ".join(part for part in (score, against) if part)
    lead = [f"{sentence}{f': {records}' if records else ''}."]
    if verdict.effect is not None:
        lead.append(words.word(verdict.effect))
    lead += words.methods(verdict)
    answers = [(question, f"{answer} {command}".strip())
               for question, answer, command in words.answers(verdict)]  # fmt: skip
    return words.title(verdict), lead, answers


def comparison_text(table: Comparison) -> str:
    """Return scores, differences and cost for a terminal."""
    width = terminal_width()
    every = asked_for_all() or width > _WIDE
    return "\n".join(
        table_text(block) if not isinstance(block, str) else "\n".join(wrapped(block, width))
        for block in _blocks(table, every_interval=every)
    )


def comparison_markdown(table: Comparison) -> str:
    """Return scores, differences and cost as Markdown."""
    return "\n\n".join(
        block if isinstance(block, str) else table_markdown(block) for block in _blocks(table)
    )


def _blocks(table: Comparison, *, every_interval: bool = True) -> Iterator[str | Rows]:
    """Sentences and tables; where there is little room, only the first metric has intervals."""
    what = "words" if table.level == "word" else "records"
    counts = f"{table.records['folds']:,} {what} in folds"
    if table.records["test"]:
        counts += f", {table.records['test']:,} in the test set"
    intervals = "95 % intervals" if every_interval else f"95 % intervals of {table.metric} (--all)"
    yield f"Scores on held-out records ({counts}), best first, with {intervals}:"
    yield [_score_cells(table, row, row.scores, every_interval) for row in table.rows]
    yield from (f"Seeds of {one.text}." for one in table.seeds)
    if table.rows[0].test:
        yield "Test set:"
        yield [_score_cells(table, row, row.test, most=3) for row in table.rows]
    unit = " in points" if is_percent(table.metric) else ""
    yield (
        f"Differences in {table.metric}{unit} to the baseline ({visible(table.baseline)}) and to "
        f"the first row ({visible(table.best)}), with 95 % intervals; p of a paired sign-flip "
        f"test, corrected for {table.tests} pairs:"
    )
    yield [_difference_cells(table, row) for row in table.rows]
    if table.rows[0].test:
        yield f"Differences in {table.metric}{unit} on the test set; p corrected for these pairs:"
        yield [_difference_cells(table, row, test=True) for row in table.rows]
    yield from (f"Not the same input: {visible(one.text)}." for one in table.inputs)
    yield "Cost; an encoder that was not trained further is not counted on disk:"
    yield [_cost_cells(row.name, row.cost, table.level) for row in table.rows if row.cost]


def _score_cells(
    table: Comparison, row: Row, scores: Mapping[str, Score], every_interval: bool = True,
    most: int | None = None,
) -> dict[str, str]:  # fmt: skip
    names = [table.metric, *(name for name in scores if name != table.metric)][:most]
    cells = {
        _named(n): score_text(scores[n], n) if every_interval or n == table.metric
        else metric_text(scores[n].value, n)
        for n in names
    }  # fmt: skip
    return {"method": visible(row.name), **cells}


def _named(metric: str) -> str:
    from embedkit.runs.metrics import LOWER_IS_BETTER

    return metric_heading(metric) + (" ↓" if metric in LOWER_IS_BETTER else "")


def _difference_cells(table: Comparison, row: Row, *, test: bool = False) -> dict[str, str]:
    """Against the baseline first: where columns do not fit, it is the one that stays."""
    cells = {"method": visible(row.name)}
    to_best, to_baseline = row.to_best, row.to_baseline
    if test:
        to_best, to_baseline = row.test_to_best, row.test_to_baseline
    repeats = any(r.to_best and r.to_best.p_repeats is not None for r in table.rows) and not test
    for what, found in (("baseline", to_baseline), ("first row", to_best)):
        cells[f"to {what}"] = _difference(found, table.metric)
        cells[f"p ({what})"] = _p(found.p_corrected if found else None)
        if repeats:
            cells[f"p over repeats ({what})"] = _p(found.p_repeats if found else None)
    return cells


def _difference(found: Difference | None, metric: str) -> str:
    if found is None or math.isnan(found.value):
        return "–"
    value, low, high = (
        metric_text(one, metric, signed=True) for one in (found.value, found.low, found.high)
    )
    return f"{value} ({low} to {high})"


def _p(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number_text(p)


def _cost_cells(name: str, cost: Cost, level: str) -> dict[str, str]:
    per = "ms/word" if level == "word" else "ms/text"
    memory = cost.peak_memory_bytes
    return {
        "method": visible(name),
        "fit s": number_text(cost.fit_seconds, ".1f"),
        f"encode, {per}": number_text(cost.encode_seconds, ".1f"),
        f"predict, {per}": number_text(cost.predict_seconds),  # seconds per 1,000
        "peak memory": "–" if memory is None else bytes_text(memory),
        "trainable": number_text(cost.parameters, ","),
        "on disk": bytes_text(cost.size_bytes),
        "device": visible(cost.device),
    }
