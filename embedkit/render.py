"""Results as text for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from embedkit.display import bytes_text, duration_text, visible
from embedkit.inspection import atlas_line, open_lines
from embedkit.stages import bottleneck

if TYPE_CHECKING:
    from embedkit.classify import TrainResult
    from embedkit.estimate import Estimate
    from embedkit.extraction import ExtractPlan, ExtractResult
    from embedkit.finetuning import FinetuneResult
    from embedkit.inspection import DatasetInfo, ModelInfo
    from embedkit.probing import ProbeResult
    from embedkit.store import Manifest

__all__ = [
    "dataset_json",
    "dataset_text",
    "estimate_text",
    "finetune_text",
    "json_text",
    "model_text",
    "plain",
    "plan_text",
    "probe_text",
    "result_text",
    "run_text",
    "stages_text",
    "table_text",
]


_PARTS = {"cross_validation": "folds", "test": "test"}


def plan_text(plan: ExtractPlan) -> str:
    """A job in five lines, before it runs."""
    corpus, encoder = plan.corpus, plan.encoder
    lines = {
        "corpus": f"{len(corpus.files)} file(s), {corpus.dialect.format}, {corpus.dialect.encoding}"
        f", quoting {corpus.dialect.quoting}",
        "columns": f"text={corpus.text} pair={corpus.text_pair} id={corpus.id} "
        f"label={corpus.label} keep={','.join(corpus.keep) or None}",
        "model": f"{encoder.checkpoint.name} ({encoder.checkpoint.source}) on "
        f"{encoder.model.device}, {encoder.precision}",
        "views": ", ".join(v.name for v in plan.views),
        "shards": f"{plan.shard_rows} records each, batches of {encoder.batch_tokens} tokens",
    }
    return visible("\n".join(f"{name:8} {line}" for name, line in lines.items()))


def run_text(result: TrainResult) -> str:
    """Scores of a run beside the majority, with intervals, and where it is."""
    content = result.content
    learner, cost = content["learner"], content["cost"]
    what = " + ".join(content["views"]) or learner["features"]
    lines = [f"wrote {visible(str(result.out))}: {learner['classifier']} on {visible(what)}"]
    lines.append(_scores_table(content))
    if content["threshold"] is not None:
        lines.append(_decision(content))
    lines += _known_texts(content)
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
        f"{visible(content['dataset']['names']['model'])}, {_count(content['models'], 'fold')}",
        _scores_table(content),
        f"{content['records']['folds']:,} records in folds, trained in "
        f"{duration_text(cost['fit_seconds'])} on {cost['device']}, {cost['parameters']:,} "
        f"parameters; epoch kept: {', '.join(map(str, epochs))}",
        f"cut at {cut['limit']} tokens: {cut['records']:,} texts, {cut['tokens']:,} of "
        f"{cut['tokens_all']:,} tokens",
    ]
    if content["threshold"] is not None:
        lines.append(_decision(content))
    lines += _known_texts(content)
    if rejected := content["dataset"]["rejected"]:
        lines.append(f"{sum(rejected.values()):,} records rejected{_reasons(rejected)}")
    lines.append(f"predictions of held-out records: {out}/predictions.parquet")
    return "\n".join(lines)


def _known_texts(content: dict[str, Any]) -> list[str]:
    known = (content["test"] or {}).get("known_texts")
    count = content["records"]["test"]
    return [f"{known:,} of the {count:,} test texts occur among the training texts too"] \
        if known else []  # fmt: skip


def _decision(content: dict[str, Any]) -> str:
    label = visible(content["classes"][1])
    return f"{label} is decided on from a probability of {content['threshold']:.3g} on"


def _scores_table(content: dict[str, Any]) -> str:
    rows = [
        {
            "score": name,
            "held out": _PARTS[part],
            "value": f"{score['value']:.4f}",
            "95 % interval": f"{score['low']:.4f} to {score['high']:.4f}",
            "majority": f"{score['majority']:.4f}",
        }
        for part, found in content["scores"].items()
        for name, score in found.items()
    ]
    return table_text(rows)


def probe_text(result: ProbeResult) -> str:
    """Every view with its score and controls, and what may honestly be reported."""
    rows = [
        {
            "view": visible(view.name),
            result.measure: f"{view.score.value:.4f}",
            "95 % interval": f"{view.score.low:.4f} to {view.score.high:.4f}",
            "shuffled labels": f"{view.shuffled:.4f}",
            **({"random weights": f"{result.random.get(view.name, float('nan')):.4f}"}
               if result.random else {}),
            "chosen in folds": str(view.chosen),
        }
        for view in result.views
    ]  # fmt: skip
    nested = result.nested
    return "\n".join([
        table_text(rows),
        f"majority {result.majority:.4f}",
        f"view chosen inside the folds: {result.measure} {nested.value:.4f} "
        f"({nested.low:.4f} to {nested.high:.4f}); report this, not the highest row",
        f"{result.seconds:.0f} s; figure: {visible(str(result.out / 'figures/layers.png'))}",
    ])  # fmt: skip


def stages_text(result: ExtractResult) -> str:
    """How busy each stage was, and which one the others waited for."""
    if not result.stages:
        return ""
    lines = [
        f"{stage.name:8} busy {stage.share:4.0%}  {duration_text(stage.seconds)}"
        + (f" in {stage.threads} threads" if stage.threads > 1 else "")
        for stage in result.stages
    ]
    slowest = bottleneck(result.stages)
    return "\n".join([*lines, f"bottleneck: {slowest.name}"])


def estimate_text(plan: ExtractPlan, cost: Estimate) -> str:
    """What a job will cost."""
    left = sum(cost.left_out.values())
    lines = [
        f"would write {plan.out}: {cost.accepted:,} rows in {cost.shards} shards",
        f"  records    {cost.records:,} = {cost.accepted:,} to embed + "
        f"{sum(cost.rejected.values()):,} rejected{_reasons(cost.rejected)} + {left:,} left out"
        f"{_reasons(cost.left_out)}",
        f"  tokens     about {cost.tokens:,} (measured on {cost.sampled:,} texts; "
        f"{cost.truncated:.1%} of them are cut at {plan.tokenizer.max_length})",
    ]
    widest = max((len(name) for name in cost.bytes_per_view), default=0)
    for name, size in cost.bytes_per_view.items():
        lines.append(f"    {name:{widest}}  {bytes_text(size):>10}")
    lines += [
        f"  disk       about {bytes_text(cost.bytes_total)}, {bytes_text(cost.free_bytes)} free",
        f"  time       about {duration_text(cost.seconds)} "
        f"({cost.tokens_per_second:,.0f} tokens/s measured here)",
    ]
    if cost.bytes_total * 1.1 > cost.free_bytes:
        lines.append("  WARNING: this will not fit. Use fewer --layers or --storage compact.")
    if cost.quotes:
        lines.append(f"  note: {cost.quotes}")
    return "\n".join(lines)


def result_text(result: ExtractResult) -> str:
    """What a job made, and how to open it."""
    manifest = result.manifest
    totals = manifest.totals
    size = sum(f["bytes"] for f in manifest.files.values())
    if result.was_complete:
        lines = [f"{result.out} is already complete; nothing was done."]
    else:
        speed = result.tokens_fresh / result.seconds if result.seconds else 0
        resumed = f", {result.resumed_shards} shards were there" if result.resumed_shards else ""
        lines = [
            f"wrote {result.out}: {totals['accepted']:,} rows × {_count(manifest.views, 'view')}, "
            f"{bytes_text(size)}, in {duration_text(result.seconds)} "
            f"({speed:,.0f} tokens/s{resumed})"
        ]
    rejected = f"{totals['rejected']:,} rejected{_reasons(totals['rejected_by_reason'])}"
    if totals["rejected"]:
        rejected += f" → {result.out}/_embedkit/rejects.jsonl"
    left = totals["left_out"]
    left_out = f" + {left:,} left out{_reasons(totals['left_out_by_reason'])}" if left else ""
    opened = open_lines(result.out, manifest)
    return visible(
        "\n".join(
            [
                *lines,
                f"  records  {totals['records']:,} = {totals['accepted']:,} embedded + "
                f"{rejected}{left_out}",
                f"  tokens   {_ledger_text(totals['ledger'], manifest)}",
                f"  views    {_views_text(manifest.views)}",
                "open it:",
                f"  {opened['pandas']}",
                f"  {opened['embedkit']}",
            ]
        )
    )


def dataset_text(info: DatasetInfo) -> str:
    """What is in a dataset, how healthy it is, and how to open it."""
    manifest = info.manifest
    totals, names = manifest.totals, manifest.names
    lines = [f"{info.path}: vectors of {', '.join(names['inputs'])}"]
    revision = f" at {names['revision']}" if names["revision"] else ""
    vectors = manifest.job["vectors"]
    lines.append(
        f"  model      {names['model']}{revision}, {manifest.n_layers} layers, "
        f"{manifest.job['model']['width']} wide, computed in {vectors['precision']}"
    )
    lines.append(
        f"  records    {totals['records']:,} = {totals['accepted']:,} embedded + "
        f"{totals['rejected']:,} rejected{_reasons(totals['rejected_by_reason'])} + "
        f"{totals['left_out']:,} left out{_reasons(totals['left_out_by_reason'])}"
    )
    lines.append(f"  tokens     {_ledger_text(totals['ledger'], manifest)}")
    if unknown := totals["ledger"].get("tokens_unknown"):
        share = unknown / totals["ledger"]["tokens_kept"]
        lines.append(f"  unknown    {unknown:,} tokens ({share:.1%})")
    if info.duplicate_texts is not None:
        lines.append(f"  duplicates {info.duplicate_texts:,} rows repeat an earlier text")
    for folder, files, rows, size in info.tables:
        lines.append(f"  {folder:10} {rows:,} rows, {bytes_text(size)} in {files} files")
    lines.append(f"views (norms and mean cosine of two vectors, over {info.health_rows:,} rows):")
    rows_of_table = [
        {
            "view": h.name,
            "width": h.width,
            "norm": f"{h.norm_mean:.3f}",
            "min": f"{h.norm_min:.3f}",
            "max": f"{h.norm_max:.3f}",
            "zero": h.zeros,
            "nan": h.not_finite,
            "cosine": f"{h.anisotropy:.3f}",
        }
        for h in info.health
    ]
    lines.append(table_text(rows_of_table))
    lines.append("open it:")
    lines += [f"  {line}" for line in open_lines(info.path, manifest).values()]
    lines += ["look at it:", f"  embedkit map {shlex.quote(str(info.path))}",
              f"  {atlas_line(info.path, manifest)}"]  # fmt: skip
    return visible("\n".join(lines))


def dataset_json(info: DatasetInfo) -> str:
    """The same as JSON."""
    return json_text(
        {
            "path": str(info.path),
            **plain(info.manifest),
            "health": [plain(h) for h in info.health],
            "health_rows": info.health_rows,
            "duplicate_texts": info.duplicate_texts,
            "open": open_lines(info.path, info.manifest),
            "atlas": atlas_line(info.path, info.manifest),
        }
    )


def model_text(model: ModelInfo) -> str:
    """A checkpoint with its module tree."""
    pooler = "yes" if model.has_pooler else "no (--pooling pooler is refused)"
    lines = [
        f"{model.name}: {model.model_type}, {model.n_layers} layers, {model.width} wide",
        f"  from       {model.source}: {model.folder}",
        f"  positions  {model.positions}; texts are cut at {model.max_length} tokens by default",
        f"  vocabulary {model.vocabulary:,} entries, {model.tokenizer}",
        f"  pooler     {pooler}",
        f"  parameters {model.parameters:,}",
    ]
    if model.revision:
        lines.insert(2, f"  revision   {model.revision}")
    for depth, name, kind, count in model.parts:
        lines.append(f"    {'  ' * depth}{name} ({kind})".ljust(52) + f"{count:>14,}")
    return visible("\n".join(lines))


def table_text(rows: Sequence[dict[str, Any]]) -> str:
    """A plain table: right-aligned numbers, left-aligned text, two spaces between."""
    if not rows:
        return "(nothing)"
    names = list(rows[0])
    cells = [[visible(str(row[name])) for name in names] for row in rows]
    widths = [max(_width(c[i]) for c in [names, *cells]) for i in range(len(names))]
    numeric = [not isinstance(rows[0][n], str) or _is_number(rows[0][n]) for n in names]
    return "\n".join(
        "  "
        + "  ".join(
            _pad(cell, width, right=right)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [names, *cells]
    )


def plain(record: Any) -> dict[str, Any]:
    """A record as plain data for JSON."""
    return dataclasses.asdict(record)


def json_text(value: object) -> str:
    """Readable JSON; numbers that JSON cannot write become null."""
    value = _without_nan(value)
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)


def _ledger_text(ledger: dict[str, int], manifest: Manifest) -> str:
    limit = manifest.job["vectors"]["max_length"]
    text = f"{ledger.get('tokens', 0):,}"
    cut = ledger.get("records_truncated", 0)
    if cut:
        text += f"; {cut:,} texts were cut at {limit} ({ledger['tokens_cut']:,} tokens left out)"
    elif longer := ledger.get("records_longer_than_limit", 0):
        text += f"; {longer:,} texts of more than {limit} were read in windows"
    else:
        text += f"; no text was cut (limit {limit})"
    return text


def _views_text(views: dict[str, int]) -> str:
    names = list(views)
    if len(names) > 8:
        names = [*names[:3], "…", *names[-3:]]
    return f"{' '.join(names)} ({', '.join(sorted({str(w) for w in views.values()}))} wide)"


def _width(text: str) -> int:
    """Columns on a terminal: Hangul and kanji take two."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


def _reasons(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) + ")"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
