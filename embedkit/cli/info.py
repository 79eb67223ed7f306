"""Commands that look at what is there: info, verify, repair, tokenize."""

from __future__ import annotations

import logging
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.cli.command import Result, command
from embedkit.cli.extract import tokens_text
from embedkit.cli.options import FILE, option, options
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import (
    asked_for_all,
    count_text,
    ledger_text,
    number_text,
    table_text,
    terminal_width,
    wrapped,
)
from embedkit.display import bytes_text, visible
from embedkit.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedkit.dataset.inspection import DatasetInfo
    from embedkit.dataset.repair import Repair
    from embedkit.dataset.verification import Verification
    from embedkit.encoding.architecture import ModelInfo, ModuleInfo

__all__ = ["info", "repair", "tokenize", "verify"]

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 6


@command(
    "embedkit info corpus.vectors",
    "embedkit info runs/logreg",
    "embedkit info klue/bert-base",
    tables=True,
)
@click.argument("what")
@options("--revision", "--offline")
def info(what: str, revision: str | None, offline: bool) -> Result:
    """Describe a dataset, a run or a checkpoint.

    WHAT is a folder that extract wrote, a folder that train, probe, finetune or similarity wrote,
    or the hub id or folder of a checkpoint.
    """
    path = Path(what)
    if path.is_file():
        raise UsageError(f"{what} is a file. Give the folder of a dataset, a run or a checkpoint.")
    if (path / "run.json").is_file():
        from embedkit.cli.run_text import run_info_text
        from embedkit.runs.content import as_json
        from embedkit.runs.folder import read_run

        content = read_run(path)
        return Result(
            as_json(content), lambda: run_info_text(path, content), finding=True, asked_for=True
        )
    unfinished = not path.is_dir() and path.with_name(path.name + ".incomplete").is_dir()
    if unfinished or (path.is_dir() and not (path / "config.json").is_file()):
        from embedkit.dataset.inspection import describe_dataset

        dataset = describe_dataset(path)
        return Result(
            _dataset_data(dataset), lambda: _dataset_text(dataset), finding=True, asked_for=True
        )
    from embedkit.encoding.architecture import describe_model

    try:
        model = describe_model(what, revision=revision, offline=offline)
    except ModelError as error:
        raise error if path.is_dir() else _not_found(path, error) from error
    return Result(model, lambda: _model_text(model), asked_for=True)


def _not_found(path: Path, error: ModelError) -> ModelError:
    """The error for a name that is no folder, and no checkpoint that can be had either."""
    from embedkit.encoding.checkpoint import near_folder

    reason = str(error).removeprefix(f"model={str(path)!r}: ")
    return ModelError(
        f"{path} is neither a dataset nor a run: there is no such folder.{near_folder(path)} "
        f"As a checkpoint: {reason}"
    )


def _dataset_text(info: DatasetInfo) -> str:
    from embedkit.dataset.inspection import atlas_line, health_findings, open_lines

    manifest = info.manifest
    totals, names, vectors = manifest.totals, manifest.names, manifest.job.vectors
    ledger = totals.ledger
    records = ledger_text(totals.accepted, "embedded", totals.rejected_by_reason,
                          totals.left_out_by_reason)  # fmt: skip
    findings = health_findings(info.health)
    lines = [
        _finding(info, findings),
        f"  model      {names.checkpoint}",
        f"             {manifest.n_layers} layers, {manifest.job.model.width} wide, computed in "
        f"{vectors.precision}",
        f"  input      {', '.join(names.inputs)}",
        f"  records    {records}",
        f"  tokens     {tokens_text(manifest)}",
    ]
    if unknown := ledger.get("tokens_unknown"):
        lines.append(f"  unknown    {unknown:,} tokens ({unknown / ledger['tokens_kept']:.1%})")
    if info.duplicate_texts is not None:
        lines.append(f"  duplicates {info.duplicate_texts:,} rows repeat an earlier text")
    lines += [
        f"  {folder:10} {rows:,} rows, {bytes_text(size)} in {count_text(files, 'file')}"
        for folder, files, rows, size in info.tables
    ]
    width = terminal_width()
    lines.append(f"views (mean cosine of two texts, over {info.health_rows:,} rows):")
    for line in findings:
        lines += wrapped(line, width, first="  ", others="    ")
    if asked_for_all():
        lines.append(table_text([
            {"view": h.name, "width": h.width, "cosine": number_text(h.anisotropy),
             "norm": number_text(h.norm_mean), "min": number_text(h.norm_min),
             "max": number_text(h.norm_max), "zero": h.zeros, "nan": h.not_finite}
            for h in info.health
        ]))  # fmt: skip
    return visible("\n".join([
        *lines,
        "open it:", *(f"  {line}" for line in open_lines(info.path, manifest).values()),
        "look at it:", f"  embedkit explore {shlex.quote(str(info.path))}",
        f"  {atlas_line(info.path, manifest)}",
    ]))  # fmt: skip


def _finding(info: DatasetInfo, findings: Sequence[str]) -> str:
    """How much there is, and how much of it can be searched."""
    from embedkit.dataset.inspection import USELESS

    views = count_text(len(info.health), "view")
    text = f"{info.path}: {info.manifest.totals.accepted:,} texts × {views}"
    if all(line.endswith(": fine") for line in findings):
        return f"{text}, all of them fine for search"
    good = sum(h.not_finite == h.zeros == 0 and h.anisotropy < USELESS for h in info.health)
    return f"{text}; {good} of them can be searched"


def _dataset_data(info: DatasetInfo) -> dict[str, Any]:
    from embedkit.dataset.inspection import atlas_line, open_lines

    return {
        "path": str(info.path),
        **asdict(info.manifest),
        "health": [asdict(h) for h in info.health],
        "health_rows": info.health_rows,
        "duplicate_texts": info.duplicate_texts,
        "open": open_lines(info.path, info.manifest),
        "atlas": atlas_line(info.path, info.manifest),
    }


def _model_text(model: ModelInfo) -> str:
    """A checkpoint with its module tree."""
    pooler = "yes" if model.has_pooler else "no (--pooling pooler is refused)"
    lines = [
        f"{model.name}: {model.architecture}, {model.n_layers} layers, {model.width} wide",
        f"  from       {model.source}: {model.folder}",
        *([f"  revision   {model.revision}"] if model.revision else []),
        f"  positions  {model.positions}; texts are cut at {model.max_length} tokens by default",
        f"  vocabulary {model.vocabulary:,} entries, {model.tokenizer}",
        f"  pooler     {pooler}",
        *([f"  labels     {', '.join(model.labels)}"] if model.labels else []),
        f"  parameters {model.parameters:,}, of the encoder {model.encoder_parameters:,}",
        f"  missing    {_names_text(model.missing)}",
        f"  unused     {_names_text(model.unused)}",
    ]
    lines += [_module_line(module) for module in model.modules]
    return visible("\n".join(lines))


def _module_line(module: ModuleInfo) -> str:
    kind = module.kind if module.count == 1 else f"{module.count} × {module.kind}"
    shapes = ", ".join(f"{n} {' × '.join(map(str, s))}" for n, s in module.shapes.items())
    each = " each" if module.count > 1 else ""
    count = f"{module.parameters:,}{each}" if module.parameters else ""
    line = f"  {'  ' * module.depth}{module.name} ({kind})"
    return f"{line:<46} {count:>17}  {shapes}".rstrip()


def _names_text(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{count_text(len(names), 'weight')}: {shown}{more}" if names else "no weights"


@command("embedkit verify corpus.vectors", "embedkit verify corpus.vectors --recompute 2")
@click.argument("out", type=FILE)
@options(
    option("--recompute", default=0, type=click.IntRange(min=0), metavar="N",
           help="Encode N randomly chosen shards again and compare."),
    option("--model", help="Location of the checkpoint, if it has moved. [its original name]"),
    "--device",
)  # fmt: skip
def verify(out: Path, recompute: int, model: str | None, device: str) -> Result:
    """Check a dataset with its indexes, a run, an index, a split, predictions or a cache.

    Checksums; of a dataset also counts, order and finite numbers.
    """
    from embedkit.dataset.verification import require_ok
    from embedkit.verification import verify as check

    with progress_bar() as progress:
        found = check(out, recompute=recompute, model=model, device=device, progress=progress)
    return Result(
        found, lambda: _verification_text(found, out), check=lambda: require_ok(found, out)
    )


def _verification_text(found: Verification, out: Path) -> str:
    counts = [count_text(found.files, "file")]
    counts += [f"{found.rows:,} rows"] * bool(found.rows)
    counts += [f"{found.values:,} numbers"] * bool(found.values)
    text = f"{out}: {', '.join(counts)}: as written"
    if found.recomputed_shards:
        text += (
            f"\nrecomputed {found.recomputed_rows:,} rows of "
            f"{count_text(len(found.recomputed_shards), 'shard')}: "
            f"{found.identical_rows:,} with the same bits, "
            f"largest relative difference {found.worst:.1e}"
        )
    return text


@command("embedkit repair corpus.vectors")
@click.argument("dataset", type=FILE)
def repair(dataset: Path) -> Result:
    """Set damaged files of a dataset aside.

    They are kept in DATASET.damaged. The extract command that made the dataset then makes just
    the damaged shards again.
    """
    from embedkit.dataset.repair import repair as run

    found = run(dataset)
    return Result(found, lambda: _repair_text(found, dataset))


def _repair_text(found: Repair, dataset: Path) -> str:
    if not found.problems:
        return f"{dataset}: as written, nothing to repair"
    lines = list(found.problems)
    if found.aside is not None:
        lines.append(f"set aside: {count_text(len(found.files), 'file')} in {found.aside}")
    if found.unfinished is None:
        lines.append("the vectors are as written; build the index again: embedkit index")
    else:
        lines.append(
            f"to make {count_text(len(found.shards), 'shard')} again, run the extract command that "
            f"made {dataset}; until then the others are in {found.unfinished}"
        )
    return "\n".join(lines)


@command(
    'embedkit tokenize "배를 타고 여행을 간다."',
    "embedkit tokenize --vocab 2000:2010",
)
@click.argument("text", required=False)
@options(
    option("--pair", help="Second text of a pair."),
    option("--vocab", metavar="FROM:TO", help="Print a slice of the vocabulary instead."),
    "--max-length",
    "--prefix",
    "checkpoint",
)
def tokenize(
    text: str | None, pair: str | None, vocab: str | None, max_length: int | None,
    prefix: str | None,
    **model: Any,
) -> Result:  # fmt: skip
    """Show how a text is tokenized.

    A row for each token: its id, segment, offsets and word.
    """
    from embedkit.encoding.vocabulary import tokenize as run

    if (text is None) == (vocab is None):
        raise UsageError("give either a text or --vocab FROM:TO.")
    if vocab is not None and pair is not None:
        raise UsageError("--pair goes with a text, not with --vocab.")
    rows = run(text, pair, vocab=vocab, max_length=max_length, prefix=prefix, **model)
    return Result(rows, lambda: table_text(rows), asked_for=True)
