"""Description of a dataset: tables, health of views, lines that open it."""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from embedkit.dataset.format import TABLES, Manifest
from embedkit.dataset.read import load, text_keys
from embedkit.display import Shown, count_text, visible
from embedkit.encoding.views import view_ranges
from embedkit.geometry import mean_cosine
from embedkit.types import Float32

_HEALTH_ROWS = 20_000
# mean cosine from which centring is recommended
_CENTER = 0.7
USELESS = 0.995
"""Mean cosine from which a view does not distinguish texts."""


@dataclass(frozen=True, slots=True)
class ViewHealth:
    """L2 norms of the vectors of a view, and how many are all zero.

    ``anisotropy`` is the mean cosine between two different vectors; near 1 all point the same way
    (Ethayarajh, 2019).
    """

    name: str
    width: int
    norm_mean: float
    norm_min: float
    norm_max: float
    zeros: int
    anisotropy: float


@dataclass(frozen=True, slots=True, repr=False)
class DatasetInfo(Shown):
    """A dataset."""

    path: Path
    manifest: Manifest
    tables: tuple[tuple[str, int, int, int], ...]  # folder, files, rows, bytes
    health: tuple[ViewHealth, ...]  # over at most 20,000 rows
    health_rows: int
    duplicate_texts: int  # rows whose text is that of an earlier one, as by text_key


def describe_dataset(path: Path) -> DatasetInfo:
    """Describe a dataset; reads its vectors for the health figures."""
    data, tables = load(path), []
    manifest = data.manifest
    for folder in TABLES:
        if files := manifest.files_of(folder):
            rows, size = sum(f.rows for f in files), sum(f.bytes for f in files)
            tables.append((folder, len(files), rows, size))
    keys = text_keys(data)
    duplicates = len(keys) - len(np.unique(keys))
    blocks = data.reader.blocks  # evenly spaced row groups of them are read
    # whole row groups, since a reader cannot read less; linspace spreads them over the corpus,
    # which may be sorted
    count = -(-_HEALTH_ROWS // max([1, *(block.rows for block in blocks)]))
    chosen = np.unique(np.linspace(0, len(blocks) - 1, min(count, len(blocks))).astype(int))
    parts = [np.arange(blocks[i].start, blocks[i].stop) for i in chosen.tolist()]
    sample = np.concatenate(parts)[:_HEALTH_ROWS]
    views = manifest.views.items()
    health = [_health(name, w, load(path, name).reader.vectors_at(sample)) for name, w in views]
    return DatasetInfo(path, manifest, tuple(tables), tuple(health), len(sample), duplicates)


def health_findings(health: Sequence[ViewHealth]) -> list[str]:
    """Return sentences about the use of views; views with the same finding together.

    >>> one = dict(width=8, norm_mean=1.0, norm_min=1.0, norm_max=1.0, zeros=0)
    >>> health_findings([ViewHealth("cls_0", anisotropy=1.0, **one),
    ...                  ViewHealth("mean_0", anisotropy=0.42, **one)])[1]
    'mean_0: cosine 0.42: suitable for search'
    """
    # the same sentence for twelve layers is said once, with their range
    by_finding: dict[str, list[ViewHealth]] = {}
    for view in health:
        by_finding.setdefault(_finding(view), []).append(view)
    lines = []
    for what, views in by_finding.items():
        cosines = [f"{view.anisotropy:.2f}" for view in views]
        low, high = min(cosines), max(cosines)
        cosine = low if low == high else f"{low} to {high}"
        names = view_ranges([view.name for view in views])
        lines.append(f"{names}: {what.format(cosine=cosine)}")
    return lines


def _finding(view: ViewHealth) -> str:
    """The use of a view, with a place for its mean cosine."""
    if view.zeros:
        return f"all zero: {count_text(view.zeros, 'vector')}, without a cosine"
    if not math.isfinite(view.anisotropy):
        return "too few vectors to compare"
    if view.anisotropy >= USELESS:
        return "cosine {cosine} between any two texts: useless for search"
    if view.anisotropy >= _CENTER:
        return "cosine {cosine} between any two texts: search with --whitening center"
    return "cosine {cosine}: suitable for search"


def open_lines(path: Path, manifest: Manifest) -> dict[str, str]:
    """Return runnable lines that open a dataset, by tool."""
    view = manifest.default_view("sentences")
    where = str(path)
    sentences = f"{where}/sentences"
    pattern = f"{glob.escape(sentences)}/*.parquet"
    vector = f'"{view}"::FLOAT[{manifest.views[view]}] AS "{view}"'  # Parquet knows lists alone
    query = f"SELECT * REPLACE ({vector}) FROM '" + pattern.replace("'", "''") + "'"
    folder = repr(where)
    if glob.has_magic(where):  # which it would take for a pattern
        folder = f"'parquet', data_files={pattern!r}"
    return {
        "pandas": f"import pandas as pd; df = pd.read_parquet({sentences!r})",
        "polars": f"import polars as pl; df = pl.read_parquet({sentences!r})",
        "duckdb": f"import duckdb; df = duckdb.sql({query!r})",
        "datasets": (
            f"from datasets import load_dataset; ds = load_dataset({folder}, split='train')"
        ),
        "embedkit": f"import embedkit; data = embedkit.load({where!r}, view={view!r}); X = data.X",
    }


_CARD = """\
---
configs:
{configs}
# license: the name of a licence that both the texts and the model allow, such as cc-by-4.0
---

# Vectors of {inputs}

| | |
|---|---|
| model | {model}, {layers} layers, {precision} |
| vectors | {tables} |
| records | {accepted:,} embedded, {rejected:,} rejected, {left_out:,} left out |
| texts | {texts} |
| licence | to be filled in |

Each row is a record of the corpus, in its order; its vectors are lists of fixed length.{note}
`SHA256SUMS` lists all files but the log and indexes, and `embedkit verify` compares them with it.
DATASET is the path of this folder in the lines that open it:

```python
{lines}
```
"""


def card_of(manifest: Manifest) -> str:
    """Return the dataset card, by which ``load_dataset`` and a hub know the tables."""
    job, totals, names = manifest.job, manifest.totals, manifest.names
    stored = job.vectors.tables
    columns = {table: view_ranges(list(manifest.columns_of(table))) for table in stored}
    # datasets reads as many rows at once as the first row group has, which may be none
    about = "- config_name: {0}\n  data_files: {0}/*.parquet\n  batch_size: 8192"
    configs = [about.format(table) for table in stored]
    configs[0] += "\n  default: true"  # of sentences
    notes = [f" {sentence}." for sentence in batch_invariance(manifest)]
    scaled = " Numbers are int8; `embedkit.scale` in the metadata of a column has the factors."
    notes += [scaled] * (job.storage.profile == "int8")
    return _CARD.format(
        configs="\n".join(configs),
        # Markdown shows HTML, and a name may hold some
        inputs=escape(visible(", ".join(Path(name).name for name in names.inputs))),
        model=visible(names.checkpoint),
        layers=job.model.n_layers,
        precision=job.vectors.precision,
        tables="; ".join(f"{table}: {views}" for table, views in columns.items()),
        accepted=totals.accepted,
        rejected=totals.rejected,
        left_out=totals.left_out,
        texts="in the column `text`" if job.storage.text else "not stored",
        note="".join(notes),
        lines="\n".join(open_lines(Path("DATASET"), manifest).values()),
    )


def batch_invariance(manifest: Manifest) -> list[str]:
    """Return the sentence that vectors are batch-invariant, if they are.

    They are where encoders run without padding on a CPU, in fp32 and int8.
    """
    environments = [entry["environment"] for entry in manifest.environments]
    packed = all((e.get("device"), e.get("forward")) == ("cpu", "packed") for e in environments)
    exact = packed and manifest.job.vectors.precision in ("fp32", "int8")
    sentence = "Batch-invariant: a text has the same bits alone, in any batch and in any order"
    return [sentence] * exact


def _health(name: str, width: int, vectors: Float32) -> ViewHealth:
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    # of no vectors all three are NaN
    shown = norms if len(norms) else np.array([np.nan])
    mean, least, largest = float(shown.mean()), float(shown.min()), float(shown.max())
    filled = norms > 0  # vectors of zeros have no direction
    zeros, anisotropy = int((~filled).sum()), mean_cosine(vectors[filled])
    return ViewHealth(name, width, mean, least, largest, zeros, anisotropy)
