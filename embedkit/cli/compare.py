"""The command ``compare``, and its tables for a terminal and for Markdown."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedkit.choices import BEST_BLEND, BLENDS
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options
from embedkit.cli.text import Rows, number_text, score_text, table_markdown, table_text
from embedkit.display import bytes_text, visible
from embedkit.errors import UsageError

if TYPE_CHECKING:
    from embedkit.comparison.compare import Comparison, Cost, Difference, Row
    from embedkit.runs.metrics import Score

__all__ = ["compare", "comparison_markdown", "comparison_text"]

logger = logging.getLogger(__name__)


@command(
    "embedkit compare runs/tfidf runs/logreg runs/lightgbm",
    "embedkit compare runs/* --metric macro_f1 --report report.html",
    "embedkit compare runs/tfidf runs/cls --write-blend blend.tsv --answers tfidf.tsv "
    "--answers cls.tsv",
)
@click.argument("runs", nargs=-1, required=True, type=FILE)
@options(
    option("--baseline", help="Run to compare all others with, or majority. [the run on TF-IDF]"),
    option("--metric", help="Metric to sort by and to test. [accuracy; rmse for regression]"),
    option("--report", type=FILE, help="HTML report to write."),
    option("--texts", type=FILE,
           help="Dataset or corpus with the texts for the report. [the dataset of the runs]"),
    option("--records", default=100, type=click.IntRange(min=0),
           help="Number of records in the report on which the runs disagree."),
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
    texts: Path | None, records: int, write_blend: Path | None, blend: str,
    submission: str | None, answers: tuple[Path, ...], seed: int, markdown: bool, overwrite: bool,
) -> Result:  # fmt: skip
    """Compare runs: scores, differences, cost.

    RUNS are folders that train, finetune or probe wrote, all with the same split. Two blends of
    them are compared too.
    """
    from embedkit.comparison.compare import compare as calculate
    from embedkit.prediction_files import parse_submission

    if (answers or submission) and write_blend is None:
        given = "--answers are" if answers else "--submission is"
        raise UsageError(f"{given} blended into a file; name it with --write-blend.")
    columns = parse_submission(submission)
    found = calculate(runs, baseline=baseline, metric=metric, seed=seed)
    if write_blend is not None:
        from embedkit.comparison.blend import write_blend as write

        made = found.chosen_blend(blend)
        count = write(made, write_blend, answers=answers, submission=columns, overwrite=overwrite)
        logger.info("wrote %s: %s records, %s", write_blend, f"{count:,}", made.name)
    if report is not None:
        from embedkit.comparison.report import write_report

        figures = write_report(found, report, texts=texts, limit=records, overwrite=overwrite)
        logger.info("wrote %s, pictures in %s", report, figures)
    text = comparison_markdown if markdown else comparison_text
    return Result(found.table, lambda: text(found.table), asked_for=markdown)


def comparison_text(table: Comparison) -> str:
    """Return scores, differences and cost for a terminal."""
    return "\n".join(_blocks(table, table_text))


def comparison_markdown(table: Comparison) -> str:
    """Return scores, differences and cost as Markdown."""
    return "\n\n".join(_blocks(table, table_markdown))


def _blocks(table: Comparison, draw: Callable[[Rows], str]) -> Iterable[str]:
    counts = f"{table.records['folds']:,} records in folds"
    if table.records["test"]:
        counts += f", {table.records['test']:,} in the test set"
    yield f"Scores on held-out records with 95 % intervals ({counts}), best first:"
    yield draw([_score_cells(table, row) for row in table.rows])
    yield from (f"Seeds of {one.text}." for one in table.seeds)
    if table.rows[0].test:
        yield "Test set:"
        yield draw([_test_cells(table, row) for row in table.rows])
    yield (f"Differences in {table.metric} with 95 % intervals; p of a paired bootstrap test, "
           f"corrected for {table.tests} pairs:")  # fmt: skip
    yield draw([_difference_cells(table, row) for row in table.rows])
    if table.rows[0].test:
        yield f"Differences in {table.metric} on the test set; p corrected for these pairs:"
        yield draw([_difference_cells(table, row, test=True) for row in table.rows])
    yield from (f"Not the same input: {visible(one.text)}." for one in table.inputs)
    yield "Cost:"
    yield draw([_cost_cells(row.name, row.cost) for row in table.rows if row.cost])


def _score_cells(table: Comparison, row: Row) -> dict[str, str]:
    names = [table.metric, *(name for name in row.scores if name != table.metric)]
    cells = {
        _named(n): score_text(row.scores[n], ".3f") if n == table.metric else _short(row.scores[n])
        for n in names
    }
    return {"method": visible(row.name), **cells}


def _test_cells(table: Comparison, row: Row) -> dict[str, str]:
    names = [table.metric, *(name for name in row.test if name != table.metric)][:3]
    cells = {_named(n): score_text(row.test[n], ".3f") for n in names}
    return {"method": visible(row.name), **cells}


def _named(metric: str) -> str:
    from embedkit.comparison.compare import LOWER_IS_BETTER

    return metric + (" ↓" if metric in LOWER_IS_BETTER else "")


def _short(score: Score) -> str:
    value = number_text(score.value, ".3f")
    return value if value == "–" else f"{value} ±{(score.high - score.low) / 2:.3f}"


def _difference_cells(table: Comparison, row: Row, *, test: bool = False) -> dict[str, str]:
    cells = {"method": visible(row.name)}
    to_best, to_baseline = row.to_best, row.to_baseline
    if test:
        to_best, to_baseline = row.test_to_best, row.test_to_baseline
    repeats = any(r.to_best and r.to_best.p_repeats is not None for r in table.rows) and not test
    for what, name, found in (
        ("best", table.best, to_best),
        ("baseline", table.baseline, to_baseline),
    ):
        cells[f"to {what}, {visible(name)}"] = _difference(found)
        cells[f"p ({what})"] = _p(found.p_corrected if found else None)
        if repeats:
            cells[f"p over repeats ({what})"] = _p(found.p_repeats if found else None)
    return cells


def _difference(found: Difference | None) -> str:
    if found is None or math.isnan(found.value):
        return "–"
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _p(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number_text(p, ".3f")


def _cost_cells(name: str, cost: Cost) -> dict[str, str]:
    memory = cost.peak_memory_bytes
    return {
        "method": visible(name),
        "train s": number_text(cost.fit_seconds, ".1f"),
        "s per 1,000 predictions": number_text(cost.predict_seconds, ".3f"),
        "s per 1,000 encoded": number_text(cost.encode_seconds, ".1f"),
        "peak memory": "–" if memory is None else bytes_text(memory),
        "trainable": number_text(cost.parameters, ","),
        "on disk": bytes_text(cost.size_bytes),
        "device": visible(cost.device),
    }
