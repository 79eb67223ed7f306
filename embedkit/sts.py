"""Cosines of sentence pairs at every layer and pooling, and their correlation with gold scores.

The two sentences of a pair are encoded separately, each once; one forward pass gives all views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedkit.arguments import accepts
from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.plan import CorpusOptions, planned_corpus
from embedkit.corpus.records import CorpusReader, Record
from embedkit.dataset.parquet import write_parquet
from embedkit.display import Shown, count_text, reasons_text
from embedkit.encoding.views import View, parse_layers, parse_poolings, views_of
from embedkit.errors import CorpusError, Option, UsageError
from embedkit.geometry import unit_vectors
from embedkit.runs.folder import free_out, new_run, versions, write_run
from embedkit.runs.intervals import Score, estimates, holm
from embedkit.runs.metrics import metrics_for
from embedkit.runs.run import Cost, SimilarityRun
from embedkit.types import Float64, Progress, ProgressCallback, no_progress
from embedkit.units.target import Target

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder


# pairs whose vectors are in memory at once, at all layers and poolings
_CHUNK = 1_024


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PairSimilarity(Shown):
    """Cosines of all pairs."""

    records: tuple[Record, ...]
    cosines: dict[str, Float64]  # (n,) by view; 0 where a vector is all zeros
    gold: Float64 | None  # (n,) scores
    agreement: dict[str, dict[str, Score]]  # by view: spearman and pearson with the scores
    as_high: tuple[str, ...]  # views whose Spearman is not proven lower than the highest
    rejected: int
    truncated: int  # texts that were cut
    model: str

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of the agreement with the scores, or of the fields."""
        rows = [{"view": view} | scores for view, scores in self.agreement.items()]
        return rows or Shown.as_rows(self)


@accepts()
def similarity(
    corpus: CorpusLike,
    *,
    text: str,
    text_pair: str,
    score: str | None = None,
    reading: CorpusOptions | None = None,
    model: str = DEFAULT_MODEL,
    device: str = "auto",
    layers: str = "all",
    pooling: str | Sequence[str] = ("cls", "mean", "max"),
    prefix: str | None = None,
    max_length: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> PairSimilarity:
    """Compare the two texts of every record, at every layer and pooling in one pass.

    A score is compared with the cosines by Spearman's rank correlation, which is that of MTEB, and
    by Pearson's, each with a 95 % interval over pairs. Spearman's does not ask how the cosines are
    spread, so that it is the one to compare layers by.

    Args:
        corpus: as for :func:`embedkit.extract`.
        text: column of the first text.
        text_pair: column of the second.
        score: column of the gold score.
        reading: further options of the corpus, such as ``id`` and ``quoting``.
        model: hub id or folder of the checkpoint.
        device: where to encode.
        layers: see :func:`~embedkit.encoding.views.parse_layers`.
        pooling: one, or several in a list or a string with commas.
        prefix: put before every text; by default that of the checkpoint.
        max_length: tokens per text.
        out: folder for the cosines, the table and the figure.
        overwrite: replace such a folder.
        progress: called with the pairs done.

    Returns:
        The cosines of all pairs by view, ``(n,)``; with a score also ``agreement``, both
        correlations of each view, and ``as_high``, the views that are not proven to correlate less
        than the best one (paired differences, corrected by Holm).

    Raises:
        UsageError: a column or setting cannot be used, a score is not a number, or all are equal.
        OutputExistsError: ``out`` exists already.

    Example:
        >>> pairs = embedkit.similarity("corpus.tsv", text="text", text_pair="text", layers="-1",
        ...                             pooling="mean")
        >>> {name: round(float(values.min()), 3) for name, values in pairs.cosines.items()}
        {'mean_6': 1.0}
    """
    from embedkit.encoding.encoder import Encoder

    if out is not None:
        # before texts are encoded, which may take hours
        free_out(out, overwrite=overwrite)
    # the gold score is read as the label of a record
    reading = replace(reading or CorpusOptions(), text=text, text_pair=text_pair, label=score)
    reader, records = _read_pairs(corpus, reading)
    # before the model is loaded: a score that is no number stops at once
    gold = None if score is None else _gold(records, name=f"{Option('score', score)}")
    kinds = parse_poolings(pooling)
    encoder = Encoder(model, device=device, max_length=max_length)
    views = views_of(
        parse_layers(layers, n_layers=encoder.n_layers), kinds, n_layers=encoder.n_layers
    )
    prefix = encoder.checkpoint.prefix_or_own(prefix)
    cosines, truncated = _cosines(records, encoder, views, prefix, progress)
    agreement, as_high = _agreement(cosines, gold) if gold is not None else ({}, ())
    pairs = PairSimilarity(
        records=tuple(records),
        cosines=cosines,
        gold=gold,
        agreement=agreement,
        as_high=as_high,
        rejected=sum(reader.counts.rejected.values()),
        truncated=truncated,
        model=encoder.checkpoint.name,
    )
    if out is not None:
        settings = {"prefix": prefix, "special_tokens": True, "max_length": encoder.max_length}
        content = SimilarityRun(
            corpus=tuple(f.sha256 for f in reader.plan.files),
            model=pairs.model,
            model_sha256=encoder.checkpoint.sha256,
            settings=settings | {"precision": encoder.precision},
            records={"pairs": len(records), "rejected": pairs.rejected, "truncated": truncated},
            agreement=agreement,
            as_high=as_high,
            cost=Cost(),
            versions=versions(),
        )
        _write(Path(out), pairs, content, overwrite=overwrite)
    return pairs


def _agreement(
    cosines: Mapping[str, Float64], gold: Float64
) -> tuple[dict[str, dict[str, Score]], tuple[str, ...]]:
    """Correlations of every view with the scores, and the views as high as the highest."""
    scored_pairs = np.isfinite(gold)
    gold = gold[scored_pairs]
    cosines = {view: values[scored_pairs] for view, values in cosines.items()}
    unit = np.arange(len(gold))  # each pair is a group of its own for the interval
    names = ("spearman", "pearson")
    metrics = {(v, n): metrics_for(gold, cosines[v])[n] for v in cosines for n in names}
    estimated = estimates(metrics, unit)
    agreement = {v: {n: estimated[v, n].score for n in names} for v in cosines}
    ranked = {view: estimated[view, "spearman"] for view in cosines}
    highest = max(cosines, key=lambda view: np.nan_to_num(ranked[view].value, nan=-np.inf))
    others = [v for v in cosines if v != highest and np.isfinite(ranked[v].value)]
    # all views have the same pairs, so that a difference is far surer than two intervals say
    tests = [ranked[highest].less(ranked[view]) for view in others]
    p = holm([test.p for test in tests])
    as_high = (v for v, q in zip(others, p, strict=True) if q is None or q >= 0.05)
    return agreement, tuple(as_high)


def _read_pairs(corpus: CorpusLike, reading: CorpusOptions) -> tuple[CorpusReader, list[Record]]:
    try:
        # a label that was guessed has no meaning here, and is not mentioned
        with planned_corpus(corpus, reading, labels=reading.label is not None) as plan:
            reader = CorpusReader(plan.hashed())
            records = reader.records()
    except CorpusError as error:  # the score takes the place of the label
        raise CorpusError(error.message.renamed(label="score")) from error
    if not records:
        rejected = reasons_text(reader.counts.rejected)
        raise UsageError(f"{plan.files[0].name} contains no pair of texts{rejected}.")
    return reader, records


def _gold(records: Sequence[Record], *, name: str) -> Float64:
    """The scores of the pairs."""
    rows, labels = np.array([r.row for r in records]), [r.label for r in records]
    # NaN of a pair without a score, which is left out of the correlation
    y = Target.of(labels, rows=rows, name=name, task="regression").y
    if (count := int(np.isfinite(y).sum())) < 3:
        raise UsageError(f"{name}: {count_text(count, 'pair')}; a correlation needs 3.")
    return y


def _write(out: Path, pairs: PairSimilarity, content: SimilarityRun, *, overwrite: bool) -> None:
    columns: dict[str, Any] = {"row": pa.array([r.row for r in pairs.records], pa.int64())}
    columns["id"] = pa.array([r.id for r in pairs.records], pa.string())
    if pairs.gold is not None:
        columns["score"] = pairs.gold
    columns |= {f"cosine_{name}": values for name, values in pairs.cosines.items()}
    with new_run(out, overwrite=overwrite) as folder:
        write_parquet(folder / "pairs.parquet", pa.table(columns))
        if pairs.agreement:
            from embedkit.runs.figures import heat_map, save

            scores = {view: by_metric["spearman"] for view, by_metric in pairs.agreement.items()}
            save(folder, layers=heat_map("spearman", scores))
        write_run(folder, content)


def _cosines(
    records: Sequence[Record],
    encoder: Encoder,
    views: Sequence[View],
    prefix: str,
    progress: ProgressCallback,
) -> tuple[dict[str, Float64], int]:
    """Cosine of every pair by view, and the number of truncated texts; no vector is kept."""
    from embedkit.encoding.windows import TokenizerSettings

    settings = TokenizerSettings(max_length=encoder.max_length, prefix=prefix)
    parts, truncated = [], 0
    for start in range(0, len(records), _CHUNK):
        chunk = records[start : start + _CHUNK]
        # first texts, then second ones: np.split halves them again below
        texts = [r.text for r in chunk] + [str(r.text_pair) for r in chunk]
        tokenized = encoder.tokenizer.encode(texts, settings=settings)
        truncated += int(tokenized.cut.sum())
        shard = encoder.encode_shard(tokenized, views=views)
        units = {name: unit_vectors(v) for name, v in shard.views.items()}
        parts.append(
            # rounded, so that those of equal texts are 1, and tie
            {name: np.einsum("ij,ij->i", *np.split(v, 2)).round(12) for name, v in units.items()}
        )
        progress(Progress("comparing", start + len(chunk), len(records), "pairs"))
    return {v.name: np.concatenate([part[v.name] for part in parts]) for v in views}, truncated
