"""Results of searching as text for people, as TSV, and as data for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from embedkit.cli.text import count_text, table_text
from embedkit.display import bytes_text, duration_text, visible
from embedkit.encoding.views import split_view

if TYPE_CHECKING:
    from embedkit.projection import MapResult
    from embedkit.search.index import IndexInfo
    from embedkit.search.searcher import Answer, Hit
    from embedkit.sts import PairSimilarity
    from embedkit.words.describe import WordReport
    from embedkit.words.uses import Use
    from embedkit.words.wic import MarkedPairs, SenseTest

__all__ = ["answers_data", "answers_text", "answers_tsv", "field", "index_text", "map_text",
           "marked_data", "marked_text", "similarity_data", "similarity_text", "words_data",
           "words_text"]  # fmt: skip

_SHOWN = 100
_MATRIX = 10
_BREAKS = dict.fromkeys(map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def answers_text(answers: Sequence[Answer]) -> str:
    """A table for each query."""
    parts = []
    for answer in answers:
        if len(answers) > 1 or not answer.query.startswith("vector"):
            parts.append(visible(_flat(answer.query), limit=_SHOWN))
        labelled = any(hit.label is not None for hit in answer.hits)
        parts.append(table_text([_line(hit, labelled=labelled) for hit in answer.hits]))
    return "\n".join(parts)


def answers_tsv(answers: Sequence[Answer]) -> Iterator[str]:
    """Lines with a header; what would break a line in a text becomes a space."""
    yield "\t".join(["query", "rank", "score", "row", "id", "label", "text", "text_pair"])
    for answer in answers:
        for rank, hit in enumerate(answer.hits, start=1):
            cells = [answer.query, str(rank), f"{hit.score:.6f}", str(hit.row), hit.id,
                     hit.label or "", hit.text or "", hit.text_pair or ""]  # fmt: skip
            yield "\t".join(field(cell) for cell in cells)


def answers_data(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [dataclasses.asdict(answer) for answer in answers]


def index_text(info: IndexInfo, folder: str) -> str:
    """What was built and, if it was tuned, what each setting costs."""
    made = ", ".join(f"{name} {value}" for name, value in info.parameters.items())
    lines = [
        f"{visible(folder)}: {info.kind} index of {info.records:,} × {info.width} ({info.view}, "
        f"{info.metric}{f', {info.whitening}' * bool(info.whitening)}), "
        f"{bytes_text(info.nbytes)}, in {duration_text(info.seconds)}"
        + (f"; {made}" if made else "")
    ]
    if info.curve:
        from embedkit.search.kinds import KINDS

        name = KINDS[info.kind].effort or "setting"
        lines.append(table_text([
            {
                name: point.setting,
                "recall@10": f"{point.recall:.4f}",
                "ms per query": f"{point.single_ms:.2f}",
                "queries/s": f"{point.batch_per_second:,.0f}",
                "": "used" if point.setting == info.setting else "",
            }
            for point in info.curve
        ]))  # fmt: skip
    return "\n".join(lines)


def similarity_text(found: PairSimilarity) -> str:
    """Correlations by layer and pooling; without gold scores the cosine of every pair."""
    count = f"{len(found.records):,} pairs"
    if found.rejected:
        count += f", {found.rejected:,} records rejected"
    if found.truncated:
        count += f", {found.truncated:,} texts cut"
    if not found.agreement:
        rows = [
            {"row": record.row, "id": record.id,
             **{name: f"{values[i]:.4f}" for name, values in found.cosines.items()}}
            for i, record in enumerate(found.records)
        ]  # fmt: skip
        return table_text(rows) + f"\n{count}"
    layers: dict[str, dict[str, str]] = {}
    poolings: dict[str, None] = {}
    for one in found.agreement:
        pooling, layer = split_view(one.view)
        poolings[pooling] = None
        cell = "-"
        if math.isfinite(one.spearman.value):
            cell = f"{one.spearman.value:.4f} / {one.pearson.value:.4f}"
        layers.setdefault(layer or "-", {})[pooling] = cell
    table = table_text([
        {"layer": layer, **{name: cells.get(name, "") for name in poolings}}
        for layer, cells in layers.items()
    ])  # fmt: skip
    lines = [
        f"Spearman / Pearson of the cosine with the score, {count} ({visible(found.model)}):",
        table,
    ]
    known = [one.spearman for one in found.agreement if math.isfinite(one.spearman.value)]
    if known:
        best = max(known, key=lambda score: score.value)
        width = max((score.high - score.low) / 2 for score in known)
        lines.append(f"95 % intervals of Spearman: ± {width:.4f} at most; of the highest "
                     f"{best.low:.4f} to {best.high:.4f}")  # fmt: skip
    if len(known) < len(found.agreement):
        lines.append("-: the cosines of all pairs are the same, so there is no correlation")
    return "\n".join(lines)


def similarity_data(found: PairSimilarity) -> dict[str, Any]:
    """The same for JSON, with the cosines."""
    return {
        "model": found.model,
        "agreement": [dataclasses.asdict(one) for one in found.agreement],
        "rejected": found.rejected,
        "truncated": found.truncated,
        "pairs": [
            {"row": record.row, "id": record.id,
             "score": None if found.gold is None else float(found.gold[i]),
             "cosine": {name: float(values[i]) for name, values in found.cosines.items()}}
            for i, record in enumerate(found.records)
        ],
    }  # fmt: skip


def words_text(report: WordReport) -> str:
    """Uses, how alike they are, their clusters, other words, and all layers."""
    count = f"{count_text(len(report.uses), 'use')} of {visible(report.word)}, layer {report.layer}"
    if report.skipped:
        count += f"; {report.skipped:,} more are in parts of texts that were cut"
    lines = [count]
    if len(report.uses) <= _MATRIX:
        lines.append(table_text([
            {"use": i, **{str(j): f"{report.cosines[i, j]:.3f}" for j in range(len(report.uses))},
             "text": _snippet(use)}
            for i, use in enumerate(report.uses)
        ]))  # fmt: skip
    for c, examples in enumerate(report.examples):
        size = int((report.clusters == c).sum())
        lines.append(f"cluster {c}: {count_text(size, 'use')}" + _senses_of(report, c))
        lines += [f"    {_snippet(report.uses[i])}  (row {report.uses[i].row})" for i in examples]
        if report.neighbours:
            near = ", ".join(f"{visible(n.word)} {n.cosine:.2f}" for n in report.neighbours[c])
            lines.append(f"    near: {near}")
    rows = [_layer_line(layer) for layer in report.layers]
    names = [n for n in rows[0] if n == "mean cosine" or any(row[n] is not None for row in rows)]
    lines.append(table_text([{name: row[name] or "-" for name in names} for row in rows]))
    if report.senses is not None:
        lines.append(f"same sense: of the nearest other use; majority sense {report.majority:.3f}")
    return "\n".join(lines)


def words_data(report: WordReport) -> dict[str, Any]:
    """The same for JSON."""
    content = dataclasses.asdict(report)
    return {**content, "cosines": report.cosines.tolist(), "clusters": report.clusters.tolist()}


def marked_text(pairs: MarkedPairs, test: SenseTest | None) -> str:
    """Accuracy by layer, or the cosine of every pair at every layer."""
    left = f"{pairs.unmarked} unmarked, {pairs.cut} cut off, {pairs.rejected} rejected"
    if test is None:
        rows = [
            {"row": record.row, "words": " / ".join(pairs.words[i]),
             **{name: f"{values[i]:.3f}" for name, values in pairs.cosines.items()}}
            for i, record in enumerate(pairs.records)
        ]  # fmt: skip
        return table_text(rows) + f"\n{len(pairs.records):,} pairs; {left}"
    rows = [
        {
            "layer": one.layer,
            "threshold": f"{one.threshold:.4f}",
            "train": f"{one.train:.4f}",
            "test": f"{one.test.value:.4f}",
            "95 % interval": f"{one.test.low:.4f} to {one.test.high:.4f}",
            "": "best on train" if one.layer == test.chosen else "",
        }
        for one in test.layers
    ]
    return "\n".join([
        f"accuracy of 'same sense' on {test.n_test:,} pairs ({left}); thresholds from "
        f"{test.n_train:,} other pairs",
        table_text(rows),
        f"majority {test.majority:.4f}; report the layer that is best on train, not the highest",
    ])  # fmt: skip


def marked_data(pairs: MarkedPairs, test: SenseTest | None) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "test": None if test is None else dataclasses.asdict(test),
        "unmarked": pairs.unmarked,
        "cut": pairs.cut,
        "rejected": pairs.rejected,
        "pairs": [
            {"row": record.row, "id": record.id, "words": list(pairs.words[i]),
             "same": None if pairs.same is None else bool(pairs.same[i]),
             "cosine": {name: float(values[i]) for name, values in pairs.cosines.items()}}
            for i, record in enumerate(pairs.records)
        ],
    }  # fmt: skip


def map_text(found: MapResult) -> str:
    """What was drawn and where it is."""
    count = f"{found.points:,} records" + (
        f" of {found.records:,}" if found.points < found.records else ""
    )
    held = ""
    if found.explained is not None:
        held = f"; its axes explain {sum(found.explained):.0%} of the variance"
    labels = ", ".join(f"{name} {n:,}" for name, n in found.labels[:8])
    return visible(
        f"{found.html} and {found.png}: {count}, {found.view} by {found.method.upper()}{held}\n"
        f"  colours  {labels}"
    )


def _layer_line(layer: Any) -> dict[str, str | None]:
    def number(value: float) -> str | None:
        return None if math.isnan(value) else f"{value:.3f}"

    return {
        "layer": layer.layer,
        "mean cosine": number(layer.cosine),
        "in a cluster": number(layer.within),
        "between clusters": number(layer.between),
        "any two words": number(layer.others),
        "same sense": number(layer.same_sense),
    }


def _senses_of(report: WordReport, cluster: int) -> str:
    if report.senses is None:
        return ""
    pairs = zip(report.senses, report.clusters, strict=True)
    mine = [s for s, c in pairs if c == cluster and s is not None]
    found = sorted(set(mine), key=lambda sense: (-mine.count(sense), sense))
    return " (" + ", ".join(f"{visible(s)} {mine.count(s)}" for s in found) + ")"


def _snippet(use: Use, around: int = 30) -> str:
    """The word in brackets, with some text around it."""
    left, right = use.text[: use.start], use.text[use.end :]
    left = "…" * (len(left) > around) + left[-around:] if left else ""
    right = right[:around] + "…" * (len(right) > around)
    return visible(_flat(f"{left}[{use.text[use.start : use.end]}]{right}"))


def field(text: str) -> str:
    """A TSV field; what would break the line becomes a space."""
    return text.translate(_BREAKS)


def _line(hit: Hit, *, labelled: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"score": f"{hit.score:.4f}", "row": hit.row, "id": hit.id}
    if labelled:
        line["label"] = hit.label or ""
    if hit.text is not None:
        both = hit.text if hit.text_pair is None else f"{hit.text} | {hit.text_pair}"
        line["text"] = visible(_flat(both), limit=_SHOWN)
    return line


def _flat(text: str) -> str:
    return " ".join(text.split())
