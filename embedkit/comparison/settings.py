"""Settings of runs side by side, and what became of the records of a dataset."""

from __future__ import annotations

import json
from typing import Any

from embedkit.comparison.compare import Compared
from embedkit.comparison.texts import Dataset
from embedkit.runs.content import as_json

__all__ = ["ledger_text", "settings_table"]

_ELSEWHERE = frozenset({
    "scores", "per_class", "views", "command", "random_weights", "nested", "cka", "cost", "records",
    "choices", "classes",
})  # fmt: skip


def settings_table(compared: Compared) -> list[tuple[str, list[str]]]:
    """Return the settings in which the runs differ: a name, and a value of every run.

    Of a single run all of them are returned. Nested settings are named by their path, such as
    ``dataset.vectors.max_length``.
    """
    found = [_flat(as_json(run.content)) for run in compared.runs.all]
    names = dict.fromkeys(name for one in found for name in one)
    rows = [(name, [one.get(name, "–") for one in found]) for name in names]
    return [(name, cells) for name, cells in rows if len(found) == 1 or len(set(cells)) > 1]


def _flat(value: dict[str, Any], path: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, inner in value.items():
        if not path and name in _ELSEWHERE:
            continue
        if isinstance(inner, dict) and inner:
            flat |= _flat(inner, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = (
                inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
            )
    return flat


def ledger_text(dataset: Dataset) -> str:
    """Return how a dataset was made, and what became of its records and tokens."""
    manifest = dataset.manifest
    totals, vectors = manifest.totals, manifest.job.vectors
    ledger = totals.ledger
    if cut := ledger.get("records_truncated", 0):
        tokens = (f"{cut:,} texts were cut at {vectors.max_length}, "
                  f"{ledger.get('tokens_cut', 0):,} tokens left out")  # fmt: skip
    elif longer := ledger.get("records_longer_than_limit", 0):
        tokens = f"{longer:,} texts of more than {vectors.max_length} were read in windows"
    else:
        tokens = f"no text was cut (limit {vectors.max_length})"
    left_out = f" + {totals.left_out:,} left out" if totals.left_out else ""
    return "\n".join([
        f"made for: {', '.join(dataset.runs)}",
        f"model: {manifest.names.checkpoint}",
        f"records: {totals.records:,} = {totals.accepted:,} embedded + "
        f"{sum(totals.rejected_by_reason.values()):,} rejected{left_out}",
        f"tokens: {ledger.get('tokens', 0):,}; {tokens}",
        f"fingerprint: {manifest.fingerprint}",
    ])  # fmt: skip
