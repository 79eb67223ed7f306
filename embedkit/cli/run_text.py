"""Runs as text for people: what was just made, and what lies in a folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.cli.text import count_text, reasons_text, table_text
from embedkit.display import bytes_text, duration_text, visible

if TYPE_CHECKING:
    from embedkit.classifiers.probe import ProbeResult
    from embedkit.classifiers.train import TrainResult
    from embedkit.finetuning.folds import FinetuneResult

__all__ = ["finetune_text", "probe_text", "run_info_text", "run_text"]

_PARTS = {"cross_validation": "folds", "folds": "in folds", "test": "test"}


def run_text(result: TrainResult) -> str:
    """Scores of a run beside the majority, with intervals, and where it is."""
    content = result.content
    learner, cost = content["learner"], content["cost"]
    what = " + ".join(content["views"]) or learner["features"]
    lines = [f"wrote {visible(str(result.out))}: {learner['classifier']} on {visible(what)}"]
    lines.append(_scores_table(content))
    if content["threshold"] is not None:
        lines.append(_decision(content))
    lines += _of_test_part(content)
    count = content["records"]["folds"]
    lines.append(
        f"{count:,} records in folds, fitted in {cost['fit_seconds']:.1f} s; predictions of "
        f"held-out records: {visible(str(result.out / 'predictions.parquet'))}"
    )
    return "\n".join(lines)


def finetune_text(result: FinetuneResult) -> str:
    """Scores of a fine-tuned run, what training cost, and where it is."""
    content, out = result.content, visible(str(result.out))
    cost, cut = content["cost"], content["truncated"]
    epochs = sorted({round(epoch) for epoch in content["epochs"]})
    lines = [
        f"wrote {out}: {content['learner']['head']} head on "
        f"{visible(content['dataset']['names']['model'])}, "
        f"{count_text(len(content['models']), 'fold')}",
        _scores_table(content),
        f"{content['records']['folds']:,} records in folds, trained in "
        f"{duration_text(cost['fit_seconds'])} on {cost['device']}, {cost['parameters']:,} "
        f"parameters; epoch kept: {', '.join(map(str, epochs))}",
        f"cut at {cut['limit']} tokens: {cut['records']:,} texts, {cut['tokens']:,} of "
        f"{cut['tokens_all']:,} tokens",
    ]
    if content["threshold"] is not None:
        lines.append(_decision(content))
    lines += _of_test_part(content)
    if rejected := content["dataset"]["rejected"]:
        lines.append(f"{sum(rejected.values()):,} records rejected{reasons_text(rejected)}")
    lines.append(f"predictions of held-out records: {out}/predictions.parquet")
    return "\n".join(lines)


def _of_test_part(content: dict[str, Any]) -> list[str]:
    test = content.get("test") or {}
    count = content.get("records", {}).get("test")
    lines = []
    if rejected := test.get("rejected"):
        lines.append(f"{rejected:,} records of the test part are rejected, {count:,} are predicted")
    if known := test.get("known_texts"):
        lines.append(f"{known:,} of the {count:,} test texts occur among the training texts too")
    return lines


def _decision(content: dict[str, Any]) -> str:
    label = visible(content["classes"][1])
    return f"{label} is decided on from a probability of {content['threshold']:.3g} on"


def _scores_table(content: dict[str, Any]) -> str:
    rows = [
        {
            "score": name,
            "held out": _PARTS[part],
            "value": _number(score["value"]),
            "95 % interval": f"{_number(score['low'])} to {_number(score['high'])}",
            "majority": _number(score["majority"]),
        }
        for part, found in content["scores"].items()
        for name, score in found.items()
    ]
    return table_text(rows)


def _number(value: float | None) -> str:
    """Four digits; what is no number, such as the ROC-AUC of one class alone, is a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def probe_text(result: ProbeResult) -> str:
    """Every view with its score and controls, and what may honestly be reported."""
    views = [asdict(view) for view in result.views]
    nested = asdict(result.nested)
    return "\n".join([
        _probe_table(result.measure, views, result.random),
        *_probe_verdict(result.measure, result.majority, nested),
        f"{result.seconds:.0f} s; figure: {visible(str(result.out / 'figures/layers.png'))}",
    ])  # fmt: skip


def run_info_text(path: Path, content: dict[str, Any]) -> str:
    """What a finished run is, what came out, and what to do with it.

    Args:
        path: its folder.
        content: what its ``run.json`` says.
    """
    lines = [f"{path}: a {content['kind']} run of embedkit {content['versions']['embedkit']}"]
    lines += [f"  {name:9}  {visible(text)}" for name, text in _facts(path, content) if text]
    lines.append(_results(content))
    if content.get("threshold") is not None:
        lines.append(_decision(content))
    lines += _of_test_part(content)
    lines.append("open it:")
    where = shlex.quote(str(path))
    for name in ("predictions.parquet", "pairs.parquet"):
        if (path / name).is_file():
            lines.append(f"  import pandas as pd; df = pd.read_parquet({str(path / name)!r})")
    if (path / "model").is_dir():
        lines.append(f"  embedkit predict {where} new.tsv --out new.predictions.tsv")
    figures = sorted(p.name for p in (path / "figures").glob("*.png"))
    if figures:
        lines.append(
            f"  figures: {visible(', '.join(figures))} in {visible(str(path / 'figures'))}"
        )
    return "\n".join(lines)


def _facts(path: Path, content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of what a run was made from, as far as its kind has them."""
    yield "command", content.get("command") or ""
    if learner := content.get("learner"):
        what = " + ".join(content.get("views") or []) if content["kind"] == "frozen" else ""
        head = f", {learner['head']} head" if "head" in learner else ""
        yield "learner", f"{learner['classifier']} on {what or learner['features']}{head}"
    names = content.get("dataset", {}).get("names") or {"model": content["model"]["name"]}
    if content.get("learner", {}).get("features") != "tfidf":
        yield "model", str(names["model"]) + (f" at {r}" if (r := names.get("revision")) else "")
    yield "input", ", ".join(names.get("inputs", []))
    if split := content.get("split"):
        kinds = [f"{name}," for name in ("stratified", "grouped") if split.get(name)]
        yield (
            "split",
            (
                f"{split['folds']} folds, {count_text(split['repeats'], 'deal')}, "
                f"{' '.join([*kinds, 'seed'])} {split['seed']} ({split['fingerprint'][:12]})"
            ),
        )
    if "classes" in content:
        yield "labels", ", ".join(content["classes"]) or "values"
    parts = content.get("records", {})
    yield "records", ", ".join(f"{count:,} {_PARTS.get(name, name)}"
                               for name, count in parts.items() if count)  # fmt: skip
    cost = content["cost"]
    seconds = [f"{duration_text(cost[name])} {what}" for name, what in (
        ("fit_seconds", "to fit all folds"), ("predict_seconds", "to predict"),
        ("seconds", "in all")) if cost.get(name) is not None]  # fmt: skip
    memory = cost.get("peak_memory_bytes")
    parameters = cost.get("parameters")
    yield "cost", ", ".join([
        *seconds,
        *([] if parameters is None else [f"{parameters:,} parameters"]),
        *([] if memory is None else [f"{bytes_text(memory)} of memory"]),
    ])  # fmt: skip
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    yield "on disk", bytes_text(size)
    yield "versions", ", ".join(f"{n} {v}" for n, v in content["versions"].items())


def _results(content: dict[str, Any]) -> str:
    if content["kind"] == "probe":
        measure = content["measure"]
        return "\n".join([
            _probe_table(measure, content["views"], content["random_weights"]),
            *_probe_verdict(measure, content["majority"], content["nested"]),
        ])  # fmt: skip
    if content["kind"] == "similarity":
        names = ("spearman", "pearson")
        return table_text([
            {"view": one["view"]} | {name: _with_interval(one[name]) for name in names}
            for one in content["agreement"]
        ])  # fmt: skip
    return _scores_table(content)


def _with_interval(score: dict[str, float | None]) -> str:
    """A score as run.json holds it; a correlation of constant cosines is none."""
    if score["value"] is None:
        return "–"
    return f"{score['value']:.4f} ({score['low']:.4f} to {score['high']:.4f})"


def _probe_table(measure: str, views: list[dict[str, Any]], random: dict[str, float]) -> str:
    return table_text([
        {
            "view": view["name"],
            measure: f"{view['score']['value']:.4f}",
            "95 % interval": f"{view['score']['low']:.4f} to {view['score']['high']:.4f}",
            "shuffled labels": f"{view['shuffled']:.4f}",
            **({"random weights": f"{random.get(view['name'], float('nan')):.4f}"}
               if random else {}),
            "chosen in folds": str(view["chosen"]),
        }
        for view in views
    ])  # fmt: skip


def _probe_verdict(measure: str, majority: float, nested: dict[str, float]) -> list[str]:
    return [
        f"majority {majority:.4f}",
        f"view chosen inside the folds: {measure} {nested['value']:.4f} "
        f"({nested['low']:.4f} to {nested['high']:.4f}); report this, not the highest row",
    ]
