"""``compare``: the methods side by side, and what the terminal shows of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import embedkit
from embedkit.choices import PREFERENCES
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, choice, option, options
from embedkit.cli.text import asked_for_all, fitted, number_text, table_text, terminal_width
from embedkit.display import bytes_text, count_text, path_text, shorten
from embedkit.errors import UsageError
from embedkit.runs.metrics import (
    LOWER_IS_BETTER,
    OF_PROBABILITIES,
    is_percent,
    metric_text,
    score_text,
)

if TYPE_CHECKING:
    from embedkit.comparison.recommendation import Recommendation
    from embedkit.comparison.table import Compared, MethodCost
    from embedkit.runs.intervals import Difference, Score
    from embedkit.types import ProgressCallback

_HEAD = 9  # columns of the longest name of a baseline that the head of the table has room for


@command(
    "embedkit compare runs/tfidf runs/logreg runs/lightgbm",
    "embedkit compare runs/* --metric macro_f1 --min-difference 0.5 --report report.html",
    "embedkit compare runs/tfidf runs/cls --write-blend blend.tsv --answers tfidf.tsv "
    "--answers cls.tsv",
    with_all=True,
)
@click.argument("runs", nargs=-1, required=True, type=FILE)
@options(
    option(
        "--metric",
        help="Metric to sort by and to test, such as roc_auc, f2 or log_loss. [accuracy; macro_f1 "
        "if classes are uneven or weighted; rmse for regression]",
    ),
    option(
        "--min-difference",
        type=float,
        help="Smallest difference that matters, in points of a metric in per cent, else in the "
        "metric's units. [1 point, 0.01 of a correlation, but at most a tenth of what the best "
        "lacks; 1 % of the baseline's error]",
    ),
    option("--report", type=FILE, help="HTML report to write."),
    option(
        "--write-blend",
        type=FILE,
        help="File for the blended labels and probabilities; .tsv, .csv, .jsonl or .parquet.",
    ),
    option(
        "--prefer",
        help="Method to use, and to write with --write-blend: {PREFERENCES}.",
        **choice(PREFERENCES, "cost"),
    ),
    option(
        "--answers",
        multiple=True,
        type=FILE,
        help="Predictions of predict for new texts, one file per run in the same order: blend "
        "these.",
    ),
    "--submission --overwrite",
)
def compare(
    runs: tuple[Path, ...],
    report: Path | None,
    write_blend: Path | None,
    answers: tuple[Path, ...],
    submission: str | None,
    overwrite: bool,
    progress: ProgressCallback,
    **settings: Any,
) -> Result:
    """Compare runs: a verdict, scores, differences, cost.

    RUNS are folders that train, finetune or probe wrote, all with the same split. Differences are
    to the run on TF-IDF, or to the majority class. Two blends of the runs are compared too.

    A file among RUNS has predictions of any other tool for the same records: columns id, y_pred or
    proba_CLASS for each class, and fold.
    """
    from embedkit.comparison.recommendation import recommend
    from embedkit.pages import page_file
    from embedkit.prediction_files import check_file, parse_submission

    if (answers or submission) and write_blend is None:
        raise UsageError("--answers and --submission are for a file; name it with --write-blend.")
    # before anything is computed: a slip in an option should not cost a minute
    columns = parse_submission(submission)
    if write_blend is not None:
        check_file(write_blend, overwrite=overwrite, name="write_blend")
    if report is not None:
        page_file(report, overwrite=overwrite, name="report")
    compared = embedkit.compare(runs, progress=progress, **settings)
    written: list[str] = []
    if write_blend is not None:
        from embedkit.comparison.blend import write_blend as write

        blend = compared.blend_to_use()
        count = write(blend, write_blend, answers=answers, submission=columns, overwrite=overwrite)
        tests = (run.content.test_set for run in compared.runs)
        lost = 0 if answers else max((test.rejected for test in tests if test), default=0)
        missing = f"; {count_text(lost, 'record')} of the test set rejected" * bool(lost)
        text = f"{count_text(count, compared.noun)}, {blend.name}{missing}"
        if blend.name != compared.selection.name:
            text += f"; {compared.selection.name} holds no model to predict with"
        if compared.metric in OF_PROBABILITIES and "answer" in (columns or {}).values():
            text += "; labels, while the metric is of probabilities: --submission id,COLUMN=CLASS"
        written.append(f"{path_text(write_blend)}: {text}")
    if report is not None:
        compared.report(report, overwrite=overwrite, progress=progress)
        written.append(path_text(report))
    advice = recommend(compared)
    return Result(
        {**compared.as_json(), "recommendation": advice},
        lambda: _compare_text(compared, advice, written),
        # the verdict itself; who has it in a file can do without it on the terminal
        asked_for=not written,
    )


def _compare_text(compared: Compared, advice: Recommendation, written: list[str]) -> str:
    """The answer, the methods, the decisions and what to do next; with ``--all`` all numbers."""
    from embedkit.comparison.recommendation import run_notices

    first = [f"{advice.title} ({advice.method.name})", advice.reason]
    if asked_for_all():
        last = [
            f"{decision.question}: {decision.sentence or decision.command}"
            for decision in advice.decisions
        ]
        last += [f"look first: {notice.sentence}" for notice in run_notices(compared)]
    else:
        answers = {decision.question.lower(): decision.answer for decision in advice.decisions}
        missing = [question for question, answer in answers.items() if answer == "not tried"]
        parts = [f"{name}: {answer}" for name, answer in answers.items() if name not in missing]
        parts += [f"not tried: {', '.join(missing)}"] if missing else []
        last = ["; ".join(parts).replace("layer: layer", "layer")]
        if shorts := [notice.short for notice in run_notices(compared)]:
            last.append(f"look first: {', '.join(shorts)}")
    last.append(f"next: {advice.next}")
    last += [f"wrote {path}" for path in written]
    last.append(comparison_text(compared) if asked_for_all() else "all numbers: --all")
    return "\n".join([*first, _methods_text(compared, advice, first + last), *last])


def _methods_text(compared: Compared, advice: Recommendation, other_lines: list[str]) -> str:
    """The table of methods, with as many rows as make 15 lines with the others."""
    from embedkit.comparison.recommendation import cost_text, fit_text

    metric, width = compared.metric, terminal_width()
    # what the other columns take: scores with intervals, which are longer where metrics have three
    # digits
    room = max(width - (62 if is_percent(metric) else 66), 8)
    lines: dict[str, dict[str, str]] = {}
    versus = f"against {shorten(compared.baseline, _HEAD)}"
    tested = any(row.test for row in compared.rows)
    # the majority last, whatever its rank: it is there for its scores alone
    for row in sorted(compared.rows, key=lambda row: row.kind == "majority"):
        gain = metric_text(row.to_baseline.value if row.to_baseline else None, metric, signed=True)
        cells = {
            "  method": f"{'→' if row.name == advice.method.name else ' '} "
            + shorten(row.name, room),
            _score_heading(metric): score_text(row.scores[metric], metric),
            versus: "–" if row.kind == "majority" else f"{row.verdict} {gain}".strip(),
        }
        if tested:
            test = row.test
            cells["test"] = metric_text(test[metric].value, metric) if metric in test else "–"
        else:
            cells["train"] = fit_text(row) or "–"
        time = cost_text(row)
        lines[row.name] = cells | {compared.level.replace("sentence", "text"): time or "–"}
    # the answer is to fit a small terminal, 15 lines with the one that counts the rest
    room = 14 - sum(len(fitted(line)) for line in other_lines)
    if asked_for_all() or len(lines) <= room:
        return table_text(list(lines.values()))
    first = [name for name in (advice.method.name, compared.baseline) if name in lines]
    # the method to use and the baseline stay, whatever their rank; rows keep their order
    kept = set(list(dict.fromkeys([*first, *lines]))[: max(room - 1, 3)])
    note = f"  … {len(lines) - len(kept)} more (--all)"
    return f"{table_text([cells for name, cells in lines.items() if name in kept])}\n{note}"


def _score_heading(metric: str) -> str:
    unit = ", %" if is_percent(metric) else ""
    return f"{metric}{unit}{' ↓' if metric in LOWER_IS_BETTER else ''}"


def comparison_text(compared: Compared) -> str:
    """Return all scores, differences and costs, each table below its title."""
    from embedkit.comparison.recommendation import input_text
    from embedkit.runs.run import FinetuneRun

    metric, rows, counts = compared.metric, compared.rows, compared.counts
    unit = " in points" * is_percent(metric)
    sample = f"{counts['folds']:,} {compared.noun}s in folds"
    if counts["test"]:
        sample += f", {counts['test']:,} in the test set"
    tested = [row for row in rows if row.test]
    parts = [
        f"Scores on held-out records ({sample}), best first, with 95 % intervals:",
        table_text([_score_cells(row.name, row.scores, metric) for row in rows]),
    ]
    for run in compared.runs:
        content = run.content
        if isinstance(content, FinetuneRun) and (spread := content.seeds_text(metric)):
            parts.append(f"{run.name}, {spread} (of training, which no interval covers)")
    if tested:
        cells = [_score_cells(row.name, row.test, metric) for row in tested]
        parts += ["Test set:", table_text(cells)]
    parts += [
        f"Differences in {metric}{unit} to the baseline ({compared.baseline}) and to the best "
        f"({compared.best}), with 95 % intervals; p of a paired t-test of units, "
        "for the models that were trained, corrected for "
        f"{count_text(compared.tests, 'pair')} of methods:",
        table_text([_gain_cells(r.name, r.to_baseline, r.to_best, metric) for r in rows]),
    ]
    if tested:
        gains = [
            _gain_cells(row.name, row.test_to_baseline, row.test_to_best, metric) for row in tested
        ]
        parts += [f"Differences in {metric}{unit} on the test set:", table_text(gains)]
    parts += [input_text(setting, runs) for setting, runs in compared.inputs.items()]
    parts.append("Cost; the model is without an encoder that was not trained further:")
    costs = [_cost_cells(row.name, row.cost, compared.level) for row in rows if row.cost]
    return "\n".join([*parts, table_text(costs)])


def _score_cells(name: str, scores: Mapping[str, Score], metric: str) -> dict[str, str]:
    names = dict.fromkeys([metric, *scores])
    return {"method": name} | {_score_heading(n): score_text(scores[n], n) for n in names}


def _gain_cells(
    name: str, to_baseline: Difference | None, to_best: Difference | None, metric: str
) -> dict[str, str]:
    """Against the baseline first: where columns do not fit, it is the one that stays."""
    from embedkit.comparison.recommendation import p_text

    cells = {"method": name}
    for other, difference in (("baseline", to_baseline), ("best", to_best)):
        cells |= {f"to {other}": "–", f"p ({other})": "–"}
        if difference is not None:
            cells[f"to {other}"] = score_text(difference, metric, signed=True)
            cells[f"p ({other})"] = p_text(difference.p_corrected)
    return cells


def _cost_cells(name: str, cost: MethodCost, level: str) -> dict[str, str]:
    per = "ms/word" if level == "word" else "ms/text"
    memory, fitted = cost.peak_memory_bytes, cost.parameters
    return {
        "method": name,
        "fit s": number_text(cost.fit_seconds, ".1f"),
        f"encode, {per}": number_text(cost.encode_seconds, ".1f"),
        f"predict, {per}": number_text(cost.predict_seconds),  # seconds per 1,000
        "peak memory": "–" if memory is None else bytes_text(memory),
        "fitted": number_text(fitted, ",")
        if fitted is None or fitted < 1_000_000
        else f"{fitted / 1e6:.1f} M",
        "model": "–" if cost.size_bytes is None else bytes_text(cost.size_bytes),
        "device": cost.device,
    }
