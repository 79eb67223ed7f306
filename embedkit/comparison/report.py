"""A comparison as one HTML page that needs nothing else, and its pictures as files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from embedkit._version import __version__
from embedkit.artefacts import write_files
from embedkit.choices import FIGURE_FORMATS, check_choice
from embedkit.comparison.charts import Chart, charts_of
from embedkit.comparison.compare import MAJORITY, Compared
from embedkit.comparison.content import ReportContent, content_of
from embedkit.comparison.drawing import Scene, as_file, as_svg
from embedkit.comparison.layers import (
    curve,
    curves_of,
    frames_inverted,
    heat_map,
    random_means,
)
from embedkit.comparison.payload import payload_of
from embedkit.comparison.phrases import Phrases, p_text
from embedkit.comparison.sentences import Sentences
from embedkit.comparison.settings import ledger_text, settings_table
from embedkit.comparison.training import training_chart
from embedkit.display import bytes_text
from embedkit.errors import OutputExistsError, UsageError
from embedkit.pages import for_script, lang_attribute, render_page, shown
from embedkit.runs.content import FinetuneRun
from embedkit.runs.metrics import LOWER_IS_BETTER
from embedkit.types import ProgressCallback, no_progress, steps

__all__ = ["write_report"]

_LARGEST_MATRIX = 20
_FIRST_CLASSES = 15
_NARROW_CLASSES = 2
_HALF, _WHOLE, _PHONE = 510.0, 1_060.0, 330.0
_FILE_WIDTH = {"layers": 900.0}


def write_report(
    compared: Compared,
    out: str | Path,
    *,
    texts: str | Path | None = None,
    worth: float | None = None,
    label_names: Mapping[str, str] | None = None,
    report_lang: str = "en",
    figures: str | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Path | None:
    """Write the page.

    Args:
        compared: what :func:`~embedkit.comparison.compare.compare` gave.
        out: ``.html`` file.
        texts: dataset or corpus file to take the texts of records from, instead of the dataset of
            the runs.
        worth: smallest difference that matters: in points of a fraction, else in the metric's
            units; by default 1 point, or 1 % of the baseline's error.
        label_names: names to show beside labels.
        report_lang: language of the page, one of :data:`~embedkit.choices.REPORT_LANGUAGES`.
        figures: also write the pictures in this format, one of
            :data:`~embedkit.choices.FIGURE_FORMATS`, to ``NAME.figures/`` beside the page.
        overwrite: replace an earlier report.
        progress: called after every step.

    Returns:
        The folder of the pictures; ``None`` if none were asked for.

    Raises:
        UsageError: the file has another ending, an option has an unknown value, or ``texts``
            cannot be read.
        MismatchError: ``texts`` is not what the runs were made from.
        OutputExistsError: the file exists.
    """
    page = Path(out)
    if page.suffix not in (".html", ".htm"):
        raise UsageError(f"report={str(page)!r}: expected a name ending in .html.")
    if page.exists() and not overwrite:
        raise OutputExistsError(f"{page} exists. Choose another name, or pass overwrite=True.")
    if figures is not None:
        check_choice(FIGURE_FORMATS, figures=figures)
    content = content_of(compared, texts=texts, worth=worth, label_names=label_names,
                         progress=progress)  # fmt: skip
    words = Phrases(report_lang, compared, content.scale)
    charts = list(_charts(compared, content, words))
    step = steps(progress, "drawing", len(charts) + 1, "pictures")
    pictures = {}
    for chart in charts:
        pictures[chart.name] = _drawn(chart)
        step()
    html = _render(compared, content, words, pictures)
    step()
    folder = page.with_suffix(".figures")
    files = {}
    for chart in charts if figures is not None else ():
        scene = chart.scene(_FILE_WIDTH.get(chart.name.split("-")[0], 640.0))
        files[folder / f"{chart.name}.{figures}"] = as_file(scene, str(figures))
    write_files(files | {page: html.encode()}, overwrite=overwrite)
    return folder if files else None


def _charts(compared: Compared, content: ReportContent, words: Phrases) -> Iterator[Chart]:
    yield from charts_of(content, words)
    for number, probe in enumerate(compared.runs.probes, 1):
        yield Chart(f"layers-{number}", partial(heat_map, probe, words))
    for probe in [one for one in compared.runs.probes if curves_of(one)][:1]:
        yield Chart("curve", partial(curve, probe, _styles(compared, content), words))
    for number, (name, run) in enumerate(_trained(compared), 1):
        style = content.method(name).style
        yield Chart(f"training-{number}", partial(training_chart, name, style, run, words))


def _trained(compared: Compared) -> Iterator[tuple[str, FinetuneRun]]:
    """Fine-tuned runs whose epochs are known, which those of earlier versions do not say."""
    for run in compared.runs.runs:
        if isinstance(run.content, FinetuneRun) and run.content.history:
            yield run.name, run.content


def _styles(compared: Compared, content: ReportContent) -> dict[str, int]:
    """Colours of what learning curves show: those of the best run on a view, or on TF-IDF.

    Those of all other methods stand beside them, so that they are not used for a view.
    """
    found = {f"method {method.name}": method.style for method in content.methods}
    runs = {run.name: run.content for run in compared.runs.runs}
    for method in content.methods:  # the best first
        run = runs.get(method.name)
        if run is not None and run.kind == "frozen" and len(run.views) < 2:
            found.setdefault(run.views[0] if run.views else "", method.style)
    return found


def _render(
    compared: Compared, content: ReportContent, words: Phrases, pictures: Mapping[str, Any]
) -> str:
    filters: dict[str, Callable[..., Any]] = {
        "signed": _signed, "p": p_text, "bytes": bytes_text, "seconds": _seconds, "symbol": _symbol,
        "breaks": _breaks,
    }  # fmt: skip
    return render_page(
        "report", filters=filters,
        **_findings(compared, content, words),
        **_details(compared, content, words),
        words=words, content=content, scale=content.scale, verdict=content.verdict,
        alerts=content.alerts, table=compared.table, classes=content.classes,
        pictures=pictures, wide=_wide(set(pictures), content),
        pair_text=partial(_pair_text, content, words),
        first_classes=_FIRST_CLASSES, nan=math.nan, version=__version__,
        page_words=Markup(for_script(_page_words(words))),
        data=payload_of(content, words),
    )  # fmt: skip


def _findings(compared: Compared, content: ReportContent, words: Phrases) -> dict[str, Any]:
    """What the first lines and captions say."""
    table, split = compared.table, compared.runs.runs[0].content.split
    names = [Path(name).name for d in compared.datasets for name in d.manifest.names.inputs]
    if not names:
        names = [Path(name).name for run in compared.runs.all
                 for name in run.content.dataset.names.inputs]  # fmt: skip
    data = ", ".join(dict.fromkeys(names))
    models = dict.fromkeys(Path(run.content.dataset.names.model).name for run in compared.runs.all)
    facts = words("facts", data=data, records=table.records["folds"], folds=split.folds,
                  model=", ".join(models))  # fmt: skip
    caption = words("cases.caption", count=len(content.cases),
                    repeat=words("cases.repeat") if split.repeats > 1 else "")  # fmt: skip
    if not content.classes:
        limit = f"{float(np.std(content.cases.records.y)):.3g}"
        caption += words("gap") + words("cases.off", limit=limit)
    said = Sentences(words, compared, content.scale)
    return {
        "sentences": said, "title": said.title(content.verdict), "facts": facts.lstrip(" ·"),
        "texts_note": words(f"texts.{content.texts.source}", **content.texts.values),
        "cases_caption": caption,
        "lead": said.lead(content.verdict), "answers": said.answers(content.verdict),
        "legend_methods": [m for m in content.methods if m.name == content.verdict.chosen
                           or (content.has_other and m.name == table.baseline)],
        "unknown_cost": [words.method(m.name) for m in content.methods
                         if m.milliseconds is None and m.kind != "majority"],
    }  # fmt: skip


def _details(compared: Compared, content: ReportContent, words: Phrases) -> dict[str, Any]:
    """What is folded: all numbers and settings."""
    table = compared.table
    metrics = [content.scale.metric]
    metrics += [name for name in table.rows[0].scores if name != content.scale.metric]
    return {
        "metrics": metrics,
        "lower_names": ", ".join(words.metric(m) for m in metrics if m in LOWER_IS_BETTER) or "–",
        "unit": words(f"unit.{compared.runs.runs[0].content.split.unit}"),
        "probes": [
            {"name": probe.name, "metric": probe.content.metric, "views": probe.content.views,
             "tested": any(v.p_best is not None for v in probe.content.views),
             "inverted": frames_inverted(probe), "random": random_means(probe)}
            for probe in compared.runs.probes
        ],
        "matrices": list(_matrices(compared, content)),
        "agreement": _agreement(table.agreement),
        "trained": [name for name, _ in _trained(compared)],
        "runs": compared.runs.all,
        "settings": settings_table(compared),
        "ledgers": [{"path": d.path.resolve().name, "text": ledger_text(d)}
                    for d in compared.datasets],
    }  # fmt: skip


def _agreement(found: Sequence[Sequence[float]]) -> list[str]:
    """The least and largest agreement of two runs; empty where there is none."""
    values = [found[i][j] for i in range(len(found)) for j in range(i)]
    return [f"{end(values) * 100:.0f} %" for end in (min, max)] if values else []


def _matrices(compared: Compared, content: ReportContent) -> Iterator[dict[str, Any]]:
    """Counts of predicted against true classes of the chosen method and the baseline."""
    from sklearn.metrics import confusion_matrix

    count = len(content.classes)
    if not count or count > _LARGEST_MATRIX:
        return
    names = [content.verdict.chosen, compared.table.baseline]
    for name in dict.fromkeys(name for name in names if name != MAJORITY):
        p = compared.predictions[name].take(compared.runs.records.first_repeat)
        counts = confusion_matrix(p.y, p.y_pred, labels=range(count))
        fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        yield {"name": name, "counts": counts.tolist(), "fractions": fractions.tolist()}


def _wide(names: set[str], content: ReportContent) -> set[str]:
    """Sections over the whole width: tables of many classes, and what would stand beside nothing.

    Others stand in twos. Where there is a heat map, it divides them.
    """
    many = len(content.classes) > _NARROW_CLASSES
    order = ["forest", "cost", *(["|"] if "layers-1" in names else []), "curve", "length",
             "values", "calibration",
             *(["classes"] if content.classes and not many else [])]  # fmt: skip
    wide = {"classes"} if many else set()
    row: list[str] = []
    for name in [*order, "|"]:
        if name == "|":
            wide |= set(row)
            row = []
        elif name in names or name == "classes":
            row = [] if row else [name]
    return wide


def _drawn(chart: Chart) -> tuple[Any, Any]:
    """A picture in two widths: for screens, and for phones."""
    whole = chart.name.startswith("layers")
    wide: Scene = chart.scene(_WHOLE if whole else _HALF)
    return (as_svg(wide, name=chart.name),
            as_svg(chart.scene(_PHONE), name=f"{chart.name}-narrow"))  # fmt: skip


def _symbol(style: int) -> Any:
    scene = Scene(14, 14, title="")
    scene.mark(7, 7, style, radius=5)
    drawn = str(as_svg(scene, name="x"))
    start = drawn.index("</title>") + len("</title>")
    return Markup('<svg viewBox="0 0 14 14" aria-hidden="true">') + Markup(drawn[start:])


def _breaks(text: str) -> Any:
    """Text that may end a line after the marks inside names, rather than inside their words."""
    return Markup(re.sub(r"(?<=\w)[_/](?=\w)", r"\g<0><wbr>", str(escape(shown(text)))))


def _pair_text(content: ReportContent, words: Phrases, pair: Any) -> Any:
    names = {key: Markup("<span{}>{}</span>").format(lang_attribute(name), _breaks(name))
             for key, name in (("true", content.classes[pair.true]),
                               ("said", content.classes[pair.said]))}  # fmt: skip
    return Markup(words.template("classes.pair")).format(**names)


def _page_words(words: Phrases) -> dict[str, str]:
    return {"percent": words.template("percent")} | {
        f"cases.{key}": text for key, text in words.all_of("cases.").items()
    }


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _seconds(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f} s"
