"""A comparison as one HTML page that needs nothing else, and its pictures as files beside it.

The page loads nothing: style, script and pictures stand in it, and its content policy allows that
one script alone. Corpus text is escaped, and stays inside its cell whatever its letters do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import fsio
from embedkit._version import __version__
from embedkit.comparison.charts import Picture, draw_all, save_pictures
from embedkit.comparison.compare import LOWER_IS_BETTER, MAJORITY, Compared, Row
from embedkit.comparison.texts import Dataset, Texts, find_texts
from embedkit.display import bytes_text, duration_text, visible
from embedkit.errors import OutputExistsError, UsageError
from embedkit.runs.content import FinetuneRun, Run, as_json
from embedkit.runs.predictions import Predictions, fold_names
from embedkit.types import Float64

__all__ = ["Answer", "Disputed", "disputed", "shown", "write_report"]

_TITLES = {
    "accuracy": "accuracy", "macro_f1": "macro-F1", "log_loss": "log-loss", "brier": "Brier",
    "calibration_error": "calibration error", "roc_auc": "ROC-AUC", "mcc": "MCC",
    "average_precision": "average precision", "balanced_accuracy": "balanced accuracy",
    "rmse": "RMSE", "mae": "MAE", "r2": "R²", "pearson": "Pearson", "spearman": "Spearman",
}  # fmt: skip
_LARGEST_MATRIX = 20
_LONGEST_TEXT = 2_000
_HARMLESS = "\n\t\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run says of a record.

    Attributes:
        text: the label, or the value.
        proba: probability of that label; ``None`` for values.
        right: whether it is the true label; ``None`` for values.
    """

    text: str
    proba: float | None
    right: bool | None


@dataclass(frozen=True, slots=True)
class Disputed:
    """A record on which runs differ.

    Attributes:
        row: its number in the input.
        id: its id.
        held: the fold it was held out in, or ``test``.
        truth: its true label or value.
        answers: of every run, in their order.
        spread: mean distance of the runs from their mean: of probabilities the total variation,
            of values the absolute difference.
    """

    row: int
    id: str
    held: str
    truth: str
    answers: tuple[Answer, ...]
    spread: float

    @property
    def wrong(self) -> tuple[int, ...]:
        """Places of the answers that are wrong."""
        return tuple(i for i, answer in enumerate(self.answers) if answer.right is False)


def disputed(compared: Compared, limit: int) -> tuple[Disputed, ...]:
    """The records on which the runs differ most, the most disputed first.

    Records for which all runs decide the same are left out, where there are labels to decide for.
    """
    # texts and labels of a test set that is another corpus are not at hand
    index = compared.runs.records.first_repeat
    if not compared.runs.has_own_test_set:
        index = np.concatenate([index, compared.runs.records.test])
    records = compared.runs.records.take(index)
    found = [run.predictions.take(index) for run in compared.runs.runs]
    outputs = np.stack([p.proba for p in found])
    decided = np.stack([p.y_pred for p in found])
    folds = fold_names(records.fold)
    if not records.classes:
        spread = np.abs(outputs - outputs.mean(0)).mean(0)
        differ = spread > 0
    else:
        spread = np.abs(outputs - outputs.mean(0)).sum(2).mean(0) / 2
        differ = (decided != decided[0]).any(0)
    order = [i for i in np.argsort(-spread, kind="stable") if differ[i]][:limit]
    return tuple(
        Disputed(
            int(records.row[i]), records.ids[i], folds[i], _label(records, records.y[i]),
            tuple(_answer(records, records.y[i], outputs[m, i], decided[m, i])
                  for m in range(len(outputs))),
            float(spread[i]),
        )
        for i in order
    )  # fmt: skip


def write_report(
    compared: Compared,
    out: str | Path,
    *,
    texts: str | Path | None = None,
    limit: int = 100,
    overwrite: bool = False,
) -> Path:
    """Write the page, and its pictures to ``NAME.figures/`` beside it.

    Args:
        compared: what :func:`~embedkit.comparison.compare.compare` gave.
        out: ``.html`` file.
        texts: dataset or corpus file to take the texts of records from, instead of the dataset of
            the runs.
        limit: number of disputed records to show.
        overwrite: replace an earlier report.

    Returns:
        The folder of the pictures.

    Raises:
        UsageError: the file has another ending, or ``texts`` cannot be read.
        MismatchError: ``texts`` is not what the runs were made from.
        OutputExistsError: the file exists.
    """
    page = Path(out)
    if page.suffix not in (".html", ".htm"):
        raise UsageError(f"report={str(page)!r}: expected a name ending in .html.")
    if page.exists() and not overwrite:
        raise OutputExistsError(f"{page} exists. Choose another name, or pass overwrite=True.")
    cases = disputed(compared, limit)
    found = find_texts({case.row for case in cases}, compared.runs.all, compared.datasets, texts)
    pictures = draw_all(compared)
    html = _render(compared, pictures, cases, found)
    fsio.make_folder(page.parent)
    folder = page.with_suffix(".figures")
    save_pictures(pictures, folder)
    fsio.write_durably(page, html.encode(), scratch=page.parent)
    return folder


def _render(
    compared: Compared, pictures: Sequence[Picture], cases: Sequence[Disputed], texts: Texts
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("embedkit"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "shown": shown, "excerpt": _excerpt, "signed": _signed, "p": _p_text,
        "bytes": bytes_text, "duration": duration_text,
        "title": lambda name: _TITLES.get(name, name),
    }  # fmt: skip
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    table, records = compared.table, compared.runs.records
    return environment.get_template("report.html").render(
        table=table,
        metrics=list(table.rows[0].scores),
        lower=LOWER_IS_BETTER,
        majority=MAJORITY,
        classes=records.classes,
        verdict=_verdict(table.rows, table.baseline),
        pictures={p.name: {"title": p.title, "svg": Markup(p.inline)} for p in pictures},
        trained=[p.name for p in pictures if p.title.startswith("Training: ")],
        matrices=_matrices(compared),
        cases=cases,
        texts=texts,
        runs=compared.runs.runs,
        probes=compared.runs.probes,
        ledgers=[_ledger(dataset) for dataset in compared.datasets],
        cuts={run.name: run.content.truncated for run in compared.runs.runs
              if isinstance(run.content, FinetuneRun)},
        split=compared.runs.runs[0].content.split,
        unit=compared.runs.runs[0].content.split.unit_text,
        settings=[
            {"name": run.name, "kind": run.content.kind, "path": str(run.path),
             "command": run.content.command, "versions": run.content.versions,
             "details": _details(run.content)}
            for run in compared.runs.all
        ],
        version=__version__,
        style=Markup(environment.get_template("report.css").render()),
        script=Markup(script),
        script_hash=digest,
    )  # fmt: skip


def shown(text: str) -> str:
    """Text as it is, but for signs that would act on the page: controls and direction marks.

    Joiners inside emoji and words stay.
    """
    return "".join(
        c if c in _HARMLESS or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else visible(c)
        for c in text
    )


def _excerpt(text: str) -> str:
    """The beginning of a text that would fill screens; the others as they are."""
    more = len(text) - _LONGEST_TEXT
    return text if more <= 0 else f"{text[:_LONGEST_TEXT]} … ({more:,} more characters)"


def _label(records: Predictions, value: Any) -> str:
    return records.classes[int(value)] if records.classes else f"{float(value):.4g}"


def _answer(records: Predictions, truth: Any, output: Float64, decided: Any) -> Answer:
    if not records.classes:
        return Answer(f"{float(output):.4g}", None, None)
    return Answer(
        records.classes[int(decided)], float(output[int(decided)]), bool(decided == truth)
    )


def _verdict(rows: Sequence[Row], baseline: str) -> dict[str, Any]:
    """What the first lines of the page say."""
    best = rows[0]
    difference = best.to_baseline
    return {
        "best": best,
        "baseline": baseline,
        "difference": difference,
        "sure": difference is not None and difference.significant,
        "level": [row.name for row in rows[1:]
                  if row.name != MAJORITY and row.to_best and not row.to_best.significant],
    }  # fmt: skip


def _matrices(compared: Compared) -> list[dict[str, Any]]:
    """Counts of decided against true labels, with fractions of the true label for shading."""
    records = compared.runs.records
    count = len(records.classes)
    if not count or count > _LARGEST_MATRIX:
        return []
    made = []
    for row in compared.table.rows:
        if row.name == MAJORITY:
            continue
        index = records.out_of_fold
        y_pred = compared.predictions[row.name].y_pred[index]
        cells = np.bincount(records.y[index] * count + y_pred, minlength=count**2)
        counts = cells.reshape(count, count)
        fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        made.append({"name": row.name, "counts": counts.tolist(), "fractions": fractions.tolist()})
    return made


def _ledger(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    totals, vectors = manifest.totals, manifest.job.vectors
    return {
        "path": str(dataset.path.resolve().name),
        "runs": dataset.runs,
        "model": manifest.names.checkpoint,
        "inputs": [Path(name).name for name in manifest.names.inputs],
        "records": totals.records,
        "accepted": totals.accepted,
        "rejected": totals.rejected,
        "left_out": totals.left_out,
        "ledger": totals.ledger,
        "max_length": vectors.max_length,
        "on_long": vectors.on_long,
        "fingerprint": manifest.fingerprint,
    }


def _details(content: Run) -> str:
    """Settings of a run as text; scores and long lists are elsewhere."""
    left_out = ("scores", "views", "command", "random_weights", "nested")
    kept = {name: value for name, value in as_json(content).items() if name not in left_out}
    return json.dumps(kept, ensure_ascii=False, indent=1, sort_keys=True)


def _signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _p_text(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
