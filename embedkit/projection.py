"""A map of a view in two dimensions: a figure and one interactive HTML file.

The HTML file contains styles, script and points; a content security policy forbids it to load
anything, and the texts of the corpus reach the page as data, not as markup.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.choices import MAP_METHODS, check_choice
from embedkit.dataset.store import VectorData, load
from embedkit.errors import OutputExistsError, UsageError, check_counts
from embedkit.runs.figures import canvas, render
from embedkit.search.exact import unit_rows
from embedkit.types import Float32, Int64

__all__ = ["MapResult", "draw_map", "export_projector", "kept_neighbours", "project"]

logger = logging.getLogger(__name__)

_TEMPLATES = Path(__file__).parent / "templates"
_COLOURS = (
    "#2c7fb8", "#e6762b", "#3a9e55", "#c8403f", "#8a63b8", "#8c5f4d", "#d873b5", "#7a7a7a",
    "#b0ad29", "#24b5c4", "#1b4f72", "#a04000", "#145a32", "#7b241c", "#4a235a", "#5d6d7e",
)  # fmt: skip
_OTHER = "#9aa0a6"
_SHOWN_TEXT = 300
_MISSING = "(none)"
_COUNTS = ("text_key", "n_tokens", "n_kept", "truncated")
_Labels = list[tuple[str, str]]
_PROJECTOR = """embeddings {{
  tensor_name: "{}"
  tensor_path: "vectors.tsv"
  metadata_path: "metadata.tsv"
}}
"""


@dataclass(frozen=True, slots=True)
class MapResult:
    """The files of a map and what they show.

    Attributes:
        html: the page.
        png: the figure.
        view: the view.
        method: ``pca`` or ``umap``.
        points: number of records shown.
        records: number of records of the dataset.
        labels: (label, records) of the colours, the most frequent first.
        explained: fraction of the variance on each axis of a PCA; ``None`` for UMAP.
        kept: fraction of the nearest neighbours that the map keeps, as
            :func:`kept_neighbours` returns it.
    """

    html: Path
    png: Path
    view: str
    method: str
    points: int
    records: int
    labels: tuple[tuple[str, int], ...]
    explained: tuple[float, float] | None
    kept: float


def draw_map(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | None = None,
    method: str = "pca",
    color: str | None = None,
    limit: int = 100_000,
    seed: int = 0,
    overwrite: bool = False,
) -> MapResult:
    """Project a view to two dimensions and write ``OUT.html`` and ``OUT.png``.

    Args:
        dataset: folder that ``extract`` wrote.
        out: name of the files; an ending .html or .png is left out.
        view: a stored view; by default the last mean.
        method: ``pca``, or ``umap`` (by cosine; the extra ``umap``).
        color: column whose values give the colours; by default the label.
        limit: largest number of records; of more a random sample is taken.
        seed: of the sample and of UMAP.
        overwrite: replace the files.

    Raises:
        UsageError: a setting cannot be used, or there are too few records.
        OutputExistsError: a file exists already.
    """
    stem = str(out).removesuffix(".html").removesuffix(".png")
    html, png = Path(f"{stem}.html"), Path(f"{stem}.png")
    for file in (html, png):
        if file.exists() and not overwrite:
            raise OutputExistsError(f"{file} exists already; pass overwrite=True or another out.")
    data = load(dataset, view)
    indices = _sampled(data, limit, seed)
    points, explained = project(data, indices, method=method, seed=seed)
    kept = kept_neighbours(data.reader.vectors_at(indices), points, seed=seed)
    labels, number = _labels(data, indices, color)
    fsio.make_folder(html.absolute().parent)
    title = f"{data.path.name}: {data.views[0]} by {method.upper()}"
    columns = ["row", *(name for name in ("id", "text") if name in data.columns)]
    values = data.reader.pick(indices, columns)
    page = _page(values, len(data), points, labels, number, title, kept)
    fsio.write_durably(html, page.encode(), scratch=html.parent)
    fsio.write_durably(
        png, _figure(points, labels, number, title, explained, kept), scratch=png.parent
    )
    counts = np.bincount(number, minlength=len(labels)).tolist()
    return MapResult(
        html, png, data.views[0], method, len(indices), len(data),
        tuple((name, n) for (name, _), n in zip(labels, counts, strict=True)), explained,
        kept,
    )  # fmt: skip


def project(
    data: VectorData, indices: Int64, *, method: str = "pca", seed: int = 0
) -> tuple[Float32, tuple[float, float] | None]:
    """Project some records to two dimensions.

    Args:
        data: the dataset, with one chosen view.
        indices: ``(m,)`` positions among the records, ascending.
        method: one of :data:`~embedkit.choices.MAP_METHODS`. The largest weight of each axis of a
            PCA is positive, so that the same records give the same axes.
        seed: of UMAP.

    Returns:
        ``(m, 2)`` float32, and for a PCA the fraction of the variance on each axis.

    Raises:
        UsageError: the method is unknown or not installed, or there are fewer than three records.
    """
    from sklearn.decomposition import PCA

    check_choice(MAP_METHODS, method=method)
    if len(indices) < 3:
        raise UsageError(
            f"{data.path}: {len(indices)} records are too few for a map; expected 3 or more."
        )
    vectors = data.reader.vectors_at(indices)
    if method == "umap":
        return _umap(vectors, seed), None
    vectors -= vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    if data.width == 1:
        vectors = np.column_stack([vectors, np.zeros(len(vectors), np.float32)])
    with np.errstate(invalid="ignore"):  # equal vectors have no variance to take fractions of
        pca = PCA(2, svd_solver="covariance_eigh")
        points = pca.fit_transform(vectors)
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    return np.asarray(points, np.float32), (first, second)


def kept_neighbours(
    vectors: Float32, points: Float32, *, k: int = 10, sample: int = 1_000, seed: int = 0
) -> float:
    """Return the fraction of nearest neighbours in full width that are nearest on the map too.

    Args:
        vectors: ``(m, width)`` float32; neighbours in full width are those by cosine.
        points: ``(m, 2)`` float32, the map; neighbours there are those by Euclidean distance.
        k: number of neighbours; fewer where there are fewer points.
        sample: number of points whose neighbours are looked at.
        seed: of the sample.

    Example:
        >>> random = np.random.default_rng(0)
        >>> vectors = random.normal(size=(200, 16)).astype(np.float32)
        >>> 0 < kept_neighbours(vectors, vectors[:, :2]) < 0.5
        True
    """
    from sklearn.neighbors import NearestNeighbors

    k = min(k, len(vectors) - 1)
    chosen = np.arange(len(vectors))
    if len(chosen) > sample:
        chosen = np.random.default_rng(seed).choice(len(vectors), sample, replace=False)
    found = []
    for all_of_them in (unit_rows(vectors), points):
        finder = NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(all_of_them)
        near = finder.kneighbors(all_of_them[chosen], return_distance=False)
        found.append(
            [set(row) - {i} for row, i in zip(near.tolist(), chosen.tolist(), strict=True)]
        )
    shared = [len(one & other) / len(one) for one, other in zip(*found, strict=True)]
    return float(np.mean(shared))


def export_projector(
    dataset: str | Path,
    folder: str | Path,
    *,
    view: str | None = None,
    limit: int = 100_000,
    seed: int = 0,
    overwrite: bool = False,
) -> int:
    """Write the files of the TensorBoard projector: vectors, metadata and their configuration.

    Args:
        dataset: folder that ``extract`` wrote.
        folder: written; open it with ``tensorboard --logdir FOLDER``.
        view: a stored view; by default the last mean.
        limit: largest number of records; of more a random sample is taken.
        seed: of the sample.
        overwrite: replace the files in the folder.

    Returns:
        Number of records.

    Raises:
        OutputExistsError: the folder is not empty.
    """
    target = Path(folder)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise OutputExistsError(f"{target} exists already; pass overwrite=True or another folder.")
    data = load(dataset, view)
    indices = _sampled(data, limit, seed)
    columns = [name for name in data.columns if name not in _COUNTS]
    values = data.reader.pick(indices, columns)
    rows = [columns, *zip(*(values[name] for name in columns), strict=True)]
    cells = ([" ".join(str("" if v is None else v).split()) for v in row] for row in rows)
    vectors = io.StringIO()
    np.savetxt(vectors, data.reader.vectors_at(indices), fmt="%.6g", delimiter="\t")
    fsio.make_folder(target)
    for name, text in (
        ("vectors.tsv", vectors.getvalue()),
        ("metadata.tsv", "".join("\t".join(row) + "\n" for row in cells)),
        ("projector_config.pbtxt", _PROJECTOR.format(data.views[0])),
    ):
        fsio.write_durably(target / name, text.encode(), scratch=target)
    return len(indices)


def _sampled(data: VectorData, limit: int, seed: int) -> Int64:
    check_counts(limit=limit)
    if len(data) <= limit:
        return np.arange(len(data))
    logger.info("the map shows a random sample of %d of %d records (limit)", limit, len(data))
    random = np.random.default_rng(seed)
    return np.sort(random.choice(len(data), limit, replace=False))


def _umap(vectors: Float32, seed: int) -> Float32:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, and that a seed means one thread
        try:
            from umap import UMAP
        except ImportError as error:
            raise UsageError(
                "method='umap' needs a package: pip install umap-learn. Or use method='pca'."
            ) from error
        made = UMAP(n_neighbors=min(15, len(vectors) - 1), metric="cosine", random_state=seed,
                    init="spectral" if len(vectors) > 50 else "random")  # fmt: skip
        return np.asarray(made.fit_transform(unit_rows(vectors)), np.float32)


def _labels(data: VectorData, indices: Int64, color: str | None) -> tuple[_Labels, Int64]:
    """Labels with colours, the most frequent first, and the number of each record's label."""
    column = color or ("label" if "label" in data.columns else None)
    if column is None:
        return [("all", _COLOURS[0])], np.zeros(len(indices), np.int64)
    if column not in data.columns:
        raise UsageError(f"color={color!r}: {data.path} has {', '.join(data.columns)}.")
    values = [
        _MISSING if v is None else str(v) for v in data.reader.pick(indices, [column])[column]
    ]
    counts = Counter(values)
    common = sorted(counts.most_common(len(_COLOURS)), key=lambda pair: (-pair[1], pair[0]))
    labels = [(name, colour) for (name, _), colour in zip(common, _COLOURS, strict=False)]
    known = {name: i for i, (name, _) in enumerate(labels)}
    number = np.array([known.get(value, len(known)) for value in values], np.int64)
    if len(counts) > len(known):
        labels.append((f"{len(counts) - len(known)} others", _OTHER))
    return labels, number


def _page(
    values: dict[str, list[Any]], total: int, points: Float32, labels: _Labels, number: Int64,
    title: str, kept: float,
) -> str:  # fmt: skip
    """The page of records with the columns ``row`` and ``id``, perhaps ``text``, of so many."""
    from jinja2 import Environment, FileSystemLoader

    style, script = ((_TEMPLATES / f"map.{kind}").read_text("utf-8") for kind in ("css", "js"))
    texts = values.get("text") or [""] * len(points)
    payload = {
        "points": _packed(points, "<f4"),
        "labels": _packed(number, "<u2"),
        "rows": _packed(np.array(values["row"]), "<f8"),
        "names": [name for name, _ in labels],
        "colours": [colour for _, colour in labels],
        "ids": values["id"],
        "texts": [t if len(t) <= _SHOWN_TEXT else t[: _SHOWN_TEXT - 1] + "…" for t in texts],
    }
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
    return environment.get_template("map.html").render(
        title=title, kept=f"{kept:.0%}", count=len(points), total=total, payload=payload,
        style=style, script=script, style_hash=_hash(style), script_hash=_hash(script),
    )  # fmt: skip


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode("ascii")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _figure(
    points: Float32, labels: _Labels, number: Int64, title: str,
    explained: Sequence[float] | None, kept: float,
) -> memoryview:  # fmt: skip
    figure, axis = canvas(7.5, 6)
    # drawn in one random order, so that no label hides the others
    order = np.random.default_rng(0).permutation(len(points))
    size = float(np.clip(20_000 / len(points), 0.5, 16))
    colours = np.array([colour for _, colour in labels])[number[order]]
    axis.scatter(*points[order].T, s=size, c=colours, alpha=0.7, linewidths=0)
    if len(labels) > 1:
        marks = [axis.scatter([], [], s=25, c=colour) for _, colour in labels]
        shown = [name if len(name) <= 30 else name[:29] + "…" for name, _ in labels]
        shown = [name.replace("$", r"\$") for name in shown]
        axis.legend(marks, shown, frameon=False, fontsize=8, loc="best")
    if explained is None:
        axis.set(xticks=[], yticks=[])
    else:
        axis.set(xlabel=f"{explained[0]:.1%} of the variance",
                 ylabel=f"{explained[1]:.1%} of the variance")  # fmt: skip
    title = f"{title}, keeps {kept:.0%} of nearest neighbours"
    axis.set_title(title.replace("$", r"\$"), loc="left", fontsize=9)
    content = io.BytesIO()
    render(figure, content, dpi=130, format="png", metadata={"Software": None})
    return content.getbuffer()
