"""The held-out records as the page reads them: columns of JSON, compressed."""

from __future__ import annotations

from typing import Any

import numpy as np

from embedkit.comparison.content import ReportContent
from embedkit.comparison.phrases import Phrases
from embedkit.pages import cut_texts, packed_json
from embedkit.runs.predictions import fold_names

__all__ = ["payload_of"]

_MOST_BYTES = 5_000_000


def payload_of(content: ReportContent, words: Phrases) -> str:
    """Return the records as base64 of gzipped JSON; the same records give the same bytes."""
    cases, records = content.cases, content.cases.records
    names = words.all_of("cases.list.")
    effect = content.verdict.effect
    methods = {"chosen": words.method(content.verdict.chosen),
               "baseline": words.method(effect.other) if effect else ""}  # fmt: skip
    found: dict[str, Any] = {
        "labels": list(content.classes),
        "methods": [words.method(name) for name in cases.methods],
        "rows": records.row.tolist(),
        "ids": list(records.ids),
        "fold": fold_names(records.fold),
        "y": _numbers(records.y, content),
        "said": [_numbers(one, content) for one in cases.said],
        "confidence": np.rint(cases.confidence * 1_000).astype(int).tolist(),
        "right": [] if content.classes else [one.astype(int).tolist() for one in cases.right],
        "texts": cut_texts(content.shown, most_bytes=_MOST_BYTES),
        "lengths": None,
        "cut": None,
        "unit": words(f"length.{content.length_unit}"),
        "lists": {name: index.tolist() for name, index in cases.lists.items()},
        "order": [*cases.lists, "all"],
        "names": {name: text.format(**methods) for name, text in names.items()},
        "near": _near(content),
        "views": [
            {name: _numbers(said, content) for name, said in probe.items()}
            for probe in content.views
        ],
        "limit": None if content.classes else float(np.std(records.y)),
    }
    if content.case_lengths is not None:
        found["lengths"] = content.case_lengths.values.tolist()
        if "cut" in cases.lists:
            found["cut"] = content.case_lengths.cut.astype(int).tolist()
    return packed_json(found)


def _numbers(values: Any, content: ReportContent) -> list[Any]:
    if content.classes:
        return [int(value) for value in values]
    return [float(f"{value:.4g}") for value in values]


def _near(content: ReportContent) -> dict[str, Any] | None:
    near = content.cases.nearest
    if near is None:
        return None
    of = {
        str(i): [[int(j), round(float(c) * 1_000)] for j, c in zip(*pair, strict=True) if j >= 0]
        for i, pair in enumerate(zip(near.indices, near.cosines, strict=True))
        if near.indices[i, 0] >= 0
    }
    return {"view": near.view, "of": of}
