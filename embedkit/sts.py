"""Cosines of sentence pairs at every layer and pooling, and their correlation with gold scores.

The two sentences of a pair are encoded separately, each once; one forward pass gives all views.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus import (
    CorpusOptions,
    CorpusPlan,
    CorpusReader,
    InputFile,
    Record,
    hash_inputs,
    plan_corpus,
)
from embedkit.encoding.views import View, parse_layers, parse_poolings, views_of
from embedkit.errors import UsageError
from embedkit.runs.content import Agreement, Cost, PairCounts, SimilarityRun
from embedkit.runs.folder import check_free, new_run, versions, write_run
from embedkit.runs.metrics import Score
from embedkit.runs.training_content import Checkpoint
from embedkit.search.exact import unit_rows
from embedkit.types import Float64, Progress, ProgressCallback, no_progress

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder

__all__ = ["Agreement", "PairSimilarity", "agreement", "similarity"]

logger = logging.getLogger(__name__)

_CHUNK = 1_024
_SAMPLES, _AT_ONCE = 1_000, 64
_NOTHING = 1e-20


@dataclass(frozen=True, slots=True)
class PairSimilarity:
    """Cosines of all pairs.

    Attributes:
        records: the pairs.
        cosines: ``(n,)`` float64 by view; 0 where a vector is all zeros.
        gold: ``(n,)`` gold scores, or ``None``.
        agreement: of every view with ``gold``; empty without gold scores.
        rejected: records that could not be used.
        truncated: texts that were cut at the model's length.
        model: name of the checkpoint.
        seconds: wall time.
    """

    records: tuple[Record, ...]
    cosines: dict[str, Float64]
    gold: Float64 | None
    agreement: tuple[Agreement, ...]
    rejected: int
    truncated: int
    model: str
    seconds: float


def similarity(
    corpus: str | Path,
    *,
    text: str,
    text_pair: str,
    score: str | None = None,
    id: str | None = None,
    reading: CorpusOptions | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    precision: str | None = None,
    layers: str = "all",
    pooling: str | Sequence[str] = ("cls", "mean", "max"),
    special_tokens: bool = True,
    prefix: str | None = None,
    max_length: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> PairSimilarity:
    """Compare the two texts of every record, at every layer and pooling in one pass.

    Args:
        corpus: a file.
        text: column of the first text.
        text_pair: column of the second.
        score: column of the gold score.
        id: column of the id.
        reading: how the file is read; its columns are those named above.
        model: hub id or folder of the checkpoint.
        revision: branch, tag or commit.
        offline: never ask the hub.
        device: where to encode.
        precision: to compute in.
        layers: see :func:`~embedkit.encoding.views.parse_layers`.
        pooling: of ``cls``, ``mean``, ``max``, ``last_token``, ``pooler``; a list, or a string
            with commas.
        special_tokens: whether ``mean`` and ``max`` count special tokens.
        prefix: put before every text; by default that of the checkpoint.
        max_length: tokens per text.
        out: folder for the cosines, the table and the figure.
        overwrite: replace such a folder.
        seed: of the bootstrap.
        progress: called with the pairs done.

    Raises:
        UsageError: a column or setting cannot be used, a score is not a number, or all are equal.
        OutputExistsError: ``out`` exists already.

    Example:
        >>> found = embedkit.similarity("corpus.tsv", text="text", text_pair="text", layers="-1",
        ...                             pooling="mean")
        >>> {name: round(float(values.min()), 3) for name, values in found.cosines.items()}
        {'mean_6': 1.0}
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.legibility import note_if_spelled_out

    started = time.perf_counter()
    if out is not None:
        check_free(Path(out), overwrite=overwrite)
    reading = replace(
        reading or CorpusOptions(), text=text, text_pair=text_pair, id=id, label=score
    )
    plan, records, rejected = _pairs(Path(corpus), reading)
    gold = None if score is None else _gold(records, score)
    kinds = parse_poolings(pooling)
    encoder = Encoder.load(
        model, revision=revision, offline=offline, device=device, precision=precision,
        max_length=max_length,
    )  # fmt: skip
    note_if_spelled_out(encoder.checkpoint, encoder.tokenizer, [r.text for r in records])
    views = views_of(parse_layers(layers, n_layers=encoder.n_layers), kinds,
                     n_layers=encoder.n_layers)  # fmt: skip
    prefix = encoder.checkpoint.prefix_or_own(prefix)
    cosines, truncated = _cosines(records, encoder, views, special_tokens, prefix, progress)
    found = PairSimilarity(
        records=tuple(records), cosines=cosines, gold=gold,
        agreement=() if gold is None else agreement(cosines, gold, seed=seed),
        rejected=rejected, truncated=truncated, model=encoder.checkpoint.name,
        seconds=time.perf_counter() - started,
    )  # fmt: skip
    if out is not None:
        settings = {"prefix": prefix, "special_tokens": special_tokens,
                    "max_length": encoder.max_length, "precision": encoder.precision}  # fmt: skip
        with new_run(Path(out), overwrite=overwrite) as folder:
            _write(folder, found, plan, encoder, settings)
    return found


def _pairs(corpus: Path, reading: CorpusOptions) -> tuple[CorpusPlan, list[Record], int]:
    """How a file is read, its pairs, and the number of records that could not be used."""
    plan = plan_corpus([InputFile.of(corpus)], reading)
    for notice in plan.notices:
        if reading.label is not None or not notice.startswith("label"):
            logger.info(notice)
    reader = CorpusReader(plan)
    records = reader.records()
    if not records:
        raise UsageError(f"{plan.files[0].name} contains no pair of texts.")
    return plan, records, reader.counts.n_rejected


def agreement(
    cosines: dict[str, Float64], gold: Float64, *, seed: int = 0
) -> tuple[Agreement, ...]:
    """Spearman's and Pearson's correlation of every view with the gold scores.

    Intervals come from a bootstrap over pairs, with the ranks of the whole sample.

    Args:
        cosines: ``(n,)`` by view.
        gold: ``(n,)``.
        seed: of the bootstrap.

    Raises:
        UsageError: there are fewer than three pairs, or all scores are equal.
    """
    from scipy.stats import rankdata

    _check_gold(gold)
    values = np.stack(list(cosines.values()), axis=1)
    ranked, gold_ranked = rankdata(values, axis=0), rankdata(gold)
    n = len(gold)
    drawn = _bootstrap_weights(n, seed=seed)
    chunks = [
        (_correlations(weights, ranked, gold_ranked), _correlations(weights, values, gold))
        for weights in chain([np.ones((1, n))], drawn)
    ]
    ranks, linear = (np.concatenate(chunk) for chunk in zip(*chunks, strict=True))
    return tuple(
        Agreement(view, _score(ranks[:, i]), _score(linear[:, i])) for i, view in enumerate(cosines)
    )


def _bootstrap_weights(count: int, *, seed: int) -> Iterator[Float64]:
    """Yield how often each pair is sampled, ``(a few samples, count)``."""
    random = np.random.default_rng(seed)
    for start in range(0, _SAMPLES, _AT_ONCE):
        size = min(_AT_ONCE, _SAMPLES - start)
        yield random.multinomial(count, np.full(count, 1 / count), size=size).astype(np.float64)


def _correlations(weights: Float64, x: Float64, y: Float64) -> Float64:
    """Weighted correlation of every column with ``y``: ``(samples, columns)``.

    Args:
        weights: ``(samples, n)``.
        x: ``(n, columns)``.
        y: ``(n,)``.
    """
    x, y = x - x.mean(axis=0), y - y.mean()
    total = weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = weights @ x / total, (weights @ y)[:, None] / total
    both = weights @ (x * y[:, None]) / total - mean_x * mean_y
    spread_x = weights @ x**2 / total - mean_x**2
    spread_y = (weights @ y**2)[:, None] / total - mean_y**2
    # a column of equal values has no correlation, also where rounding leaves it a little spread
    flat = (x**2).mean(axis=0) <= _NOTHING
    spread = np.sqrt(np.maximum(spread_x, 0) * np.maximum(spread_y, 0))
    spread[:, flat] = math.nan
    spread[spread == 0] = math.nan
    return np.asarray(both / spread)


def _score(values: Float64) -> Score:
    if len(values) == 1 or not np.isfinite(values).any():
        return Score(float(values[0]), math.nan, math.nan)
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return Score(float(values[0]), float(low), float(high))


def _cosines(
    records: Sequence[Record], encoder: Encoder, views: Sequence[View], special_tokens: bool,
    prefix: str, progress: ProgressCallback,
) -> tuple[dict[str, Float64], int]:  # fmt: skip
    """Cosine of every pair by view, and the number of truncated texts; no vector is kept."""
    from embedkit.encoding.tokenization import TokenizerSettings

    settings = TokenizerSettings(max_length=encoder.max_length, prefix=prefix)
    parts, truncated = [], 0
    for start in range(0, len(records), _CHUNK):
        some = records[start : start + _CHUNK]
        texts = [r.text for r in some] + [str(r.text_pair) for r in some]
        tokenized = encoder.tokenizer.encode(texts, settings=settings)
        truncated += sum(t.cut for t in tokenized)
        shard = encoder.encode_shard(tokenized, views=views, special_tokens=special_tokens)
        units = {name: unit_rows(v).astype(np.float64) for name, v in shard.views.items()}
        parts.append({
            name: np.einsum("ij,ij->i", *np.split(unit, 2)) for name, unit in units.items()
        })  # fmt: skip
        progress(Progress("comparing", start + len(some), len(records), "pairs"))
    return {v.name: np.concatenate([part[v.name] for part in parts]) for v in views}, truncated


def _check_gold(gold: Float64) -> None:
    if len(gold) < 3 or np.ptp(gold) == 0:
        raise UsageError(
            f"{len(gold)} pairs, {len(np.unique(gold))} different scores: a correlation needs "
            "at least three pairs and two different scores."
        )


def _gold(records: Sequence[Record], column: str) -> Float64:
    values = []
    for record in records:
        try:
            values.append(float(record.label or ""))
        except ValueError:
            values.append(math.nan)
    found = np.array(values, np.float64)
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        first = records[int(bad[0])]
        raise UsageError(
            f"score={column!r}: {len(bad)} records have no number there, the first in row "
            f"{first.row} ({first.label!r})."
        )
    _check_gold(found)
    return found


def _write(
    folder: Path, found: PairSimilarity, plan: CorpusPlan, encoder: Encoder, settings: Any
) -> None:
    import pyarrow as pa

    from embedkit import fsio
    from embedkit.runs.figures import draw_similarity

    columns: dict[str, Any] = {
        "row": pa.array([r.row for r in found.records], pa.int64()),
        "id": pa.array([r.id for r in found.records], pa.string()),
    }
    if found.gold is not None:
        columns["score"] = found.gold
    columns |= {f"cosine_{name}": values for name, values in found.cosines.items()}
    fsio.write_parquet(folder / "pairs.parquet", pa.table(columns))
    if found.agreement:
        draw_similarity(folder, found.agreement)
    write_run(folder, SimilarityRun(
        corpus=tuple(f.sha256 for f in hash_inputs(plan).files),
        model=Checkpoint(name=found.model, sha256=encoder.checkpoint.sha256),
        settings=settings,
        records=PairCounts(pairs=len(found.records), rejected=found.rejected,
                           truncated=found.truncated),
        agreement=found.agreement,
        cost=Cost(seconds=found.seconds),
        versions=versions(),
    ))  # fmt: skip
