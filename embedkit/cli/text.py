"""Results as text for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from unicodedata import category, east_asian_width

from embedkit.dataset.inspection import atlas_line, open_lines
from embedkit.dataset.workers import bottleneck
from embedkit.display import bytes_text, duration_text, visible, without_nan

if TYPE_CHECKING:
    from embedkit.dataset.estimate import Estimate
    from embedkit.dataset.extraction import ExtractResult
    from embedkit.dataset.inspection import DatasetInfo, ModelInfo
    from embedkit.dataset.planning import ExtractPlan
    from embedkit.dataset.store import Manifest

__all__ = [
    "count_text",
    "dataset_json",
    "dataset_text",
    "estimate_text",
    "json_text",
    "model_text",
    "plain",
    "plan_text",
    "reasons_text",
    "result_text",
    "stages_text",
    "table_text",
]


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


def estimate_text(plan: ExtractPlan, cost: Estimate, *, there: str = "") -> str:
    """What a job will cost, and what stands where its output goes."""
    left = sum(cost.left_out.values())
    lines = [
        f"would write {plan.out}: {cost.accepted:,} rows in {count_text(cost.shards, 'shard')}",
        f"  records    {cost.records:,} = {cost.accepted:,} to embed + "
        f"{sum(cost.rejected.values()):,} rejected{reasons_text(cost.rejected)} + {left:,} left out"
        f"{reasons_text(cost.left_out)}",
        f"  tokens     about {cost.tokens:,} (measured on {cost.sampled:,} texts; "
        f"{cost.truncated:.1%} of them are cut at {plan.vectors.max_length})",
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
    if there:
        lines.append(f"  note: {there}")
    return visible("\n".join(lines))


def result_text(result: ExtractResult) -> str:
    """What a job made, and how to open it."""
    manifest = result.manifest
    totals = manifest.totals
    size = sum(f.bytes for f in manifest.files.values())
    if result.was_complete:
        lines = [f"{result.out} is already complete; nothing was done."]
    else:
        speed = result.tokens_fresh / result.seconds if result.seconds else 0
        resumed = (
            f", {count_text(result.resumed_shards, 'shard')} from before"
            if result.resumed_shards
            else ""
        )
        lines = [
            f"wrote {result.out}: {totals.accepted:,} rows × "
            f"{count_text(len(manifest.views), 'view')}, {bytes_text(size)}, in "
            f"{duration_text(result.seconds)} ({speed:,.0f} tokens/s{resumed})"
        ]
    rejected = f"{totals.rejected:,} rejected{reasons_text(totals.rejected_by_reason)}"
    if totals.rejected:
        rejected += f" → {result.out}/_embedkit/rejects.jsonl"
    left = totals.left_out
    left_out = f" + {left:,} left out{reasons_text(totals.left_out_by_reason)}" if left else ""
    opened = open_lines(result.out, manifest)
    return visible(
        "\n".join(
            [
                *lines,
                f"  records  {totals.records:,} = {totals.accepted:,} embedded + "
                f"{rejected}{left_out}",
                f"  tokens   {_ledger_text(totals.ledger, manifest)}",
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
    lines = [f"{info.path}: vectors of {', '.join(names.inputs)}"]
    revision = f" at {names.revision}" if names.revision else ""
    lines.append(
        f"  model      {names.model}{revision}, {manifest.n_layers} layers, "
        f"{manifest.job.model.width} wide, computed in {manifest.job.vectors.precision}"
    )
    lines.append(
        f"  records    {totals.records:,} = {totals.accepted:,} embedded + "
        f"{totals.rejected:,} rejected{reasons_text(totals.rejected_by_reason)} + "
        f"{totals.left_out:,} left out{reasons_text(totals.left_out_by_reason)}"
    )
    lines.append(f"  tokens     {_ledger_text(totals.ledger, manifest)}")
    if unknown := totals.ledger.get("tokens_unknown"):
        share = unknown / totals.ledger["tokens_kept"]
        lines.append(f"  unknown    {unknown:,} tokens ({share:.1%})")
    if info.duplicate_texts is not None:
        lines.append(f"  duplicates {info.duplicate_texts:,} rows repeat an earlier text")
    for folder, files, rows, size in info.tables:
        lines.append(
            f"  {folder:10} {rows:,} rows, {bytes_text(size)} in {count_text(files, 'file')}"
        )
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
    return json.dumps(without_nan(value), ensure_ascii=False, indent=1, default=str)


def _ledger_text(ledger: dict[str, int], manifest: Manifest) -> str:
    limit = manifest.job.vectors.max_length
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
    """Columns on a terminal: Hangul and kanji take two, accents and joined vowels none."""
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    # medial and final jamo, which tokenizers make of Hangul, join the letter before them
    if category(character) in ("Mn", "Me") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _pad(text: str, width: int, *, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def count_text(count: int, name: str) -> str:
    """How many things, with their name in the right number."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def reasons_text(counts: dict[str, int]) -> str:
    """In brackets, what was counted how often; nothing if there is nothing."""
    if not counts:
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) + ")"
