"""A comparison as tables of text, for a terminal and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from embedkit.cli.text import table_text
from embedkit.comparison.compare import LOWER_IS_BETTER, Comparison, Cost, Difference, Row
from embedkit.display import bytes_text, visible
from embedkit.runs.metrics import Score

__all__ = ["comparison_markdown", "comparison_text"]


def comparison_text(table: Comparison) -> str:
    """Scores, differences and cost for a terminal."""
    return _joined(table, table_text)


def comparison_markdown(table: Comparison) -> str:
    """The same as Markdown."""
    return _joined(table, _markdown, gap="\n\n")


def _joined(
    table: Comparison, draw: Callable[[Sequence[dict[str, Any]]], str], gap: str = "\n"
) -> str:
    counts = f"{table.records['folds']:,} records in folds"
    if table.records["test"]:
        counts += f", {table.records['test']:,} in the test part"
    parts = [
        f"Scores on held-out records with 95 % intervals ({counts}), best first:",
        draw([_score_cells(table, row) for row in table.rows]),
    ]
    if table.rows[0].test:
        parts += [
            "Test part:", draw([_test_cells(row) for row in table.rows]),
            f"Differences in {table.metric} on the test part; p corrected for these pairs:",
            draw([_difference_cells(table, row, test=True) for row in table.rows]),
        ]  # fmt: skip
    parts += [
        f"Differences in {table.metric} with 95 % intervals; p of the paired bootstrap test of "
        f"{table.metric}, corrected for {table.tests} pairs:",
        draw([_difference_cells(table, row) for row in table.rows]),
        "Cost:",
        draw([_cost_cells(row.name, row.cost) for row in table.rows if row.cost]),
    ]  # fmt: skip
    return gap.join(parts)


def _score_cells(table: Comparison, row: Row) -> dict[str, str]:
    names = [table.metric, *(name for name in row.scores if name != table.metric)]
    return {
        "method": visible(row.name),
        **{_named(n): _interval(row.scores[n], both=n == table.metric) for n in names},
    }


def _named(metric: str) -> str:
    return metric + (" ↓" if metric in LOWER_IS_BETTER else "")


def _test_cells(row: Row) -> dict[str, str]:
    return {"method": visible(row.name)} | {
        _named(name): _interval(score, both=True) for name, score in list(row.test.items())[:3]
    }


def _interval(score: Score, *, both: bool) -> str:
    if math.isnan(score.value):
        return "–"
    if both:
        return f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"
    return f"{score.value:.3f} ±{(score.high - score.low) / 2:.3f}"


def _difference_cells(table: Comparison, row: Row, *, test: bool = False) -> dict[str, str]:
    cells = {"method": visible(row.name)}
    to_best, to_baseline = row.to_best, row.to_baseline
    if test:
        to_best, to_baseline = row.test_to_best, row.test_to_baseline
    for what, name, found in (
        ("best", table.best, to_best),
        ("baseline", table.baseline, to_baseline),
    ):
        cells[f"to {what}, {visible(name)}"] = _difference(found)
        cells[f"p ({what})"] = _p(found.p_corrected if found else None)
        if any(r.to_best and r.to_best.p_repeats is not None for r in table.rows) and not test:
            cells[f"p over repeats ({what})"] = _p(found.p_repeats if found else None)
    return cells


def _difference(found: Difference | None) -> str:
    if found is None or math.isnan(found.value):
        return "–"
    return f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _cost_cells(name: str, cost: Cost | None) -> dict[str, str]:
    if cost is None:
        return {}
    memory = cost.peak_memory_bytes
    return {
        "method": visible(name),
        "train s": _number(cost.fit_seconds, ".1f"),
        "s per 1,000 predictions": _number(cost.predict_seconds, ".3f"),
        "s per 1,000 encoded": _number(cost.encode_seconds, ".1f"),
        "peak memory": "–" if memory is None else bytes_text(memory),
        "trainable": _number(cost.parameters, ","),
        "on disk": bytes_text(cost.size_bytes),
        "device": visible(cost.device),
    }


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [names, ["---", *("---:" for _ in names[1:])]]
    lines += [[str(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
