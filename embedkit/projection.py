"""A map of a view in two dimensions: a figure and one interactive HTML file.

The HTML file contains styles, script and points; a content security policy forbids it to load
anything, and the texts of the corpus reach the page as data, not as markup.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
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

__all__ = ["MapResult", "draw_map", "export_projector", "project"]

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
    """

    html: Path
    png: Path
    view: str
    method: str
    points: int
    records: int
    labels: tuple[tuple[str, int], ...]
    explained: tuple[float, float] | None


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
        out: name of the files without their extensions.
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
    html, png = Path(f"{out}.html"), Path(f"{out}.png")
    for file in (html, png):
        if file.exists() and not overwrite:
            raise OutputExistsError(f"{file} exists already; pass overwrite=True or another out.")
    data = load(dataset, view)
    indices = _drawn(data, limit, seed)
    points, explained = project(data, indices, method=method, seed=seed)
    names, colours, number = _labels(data, indices, color)
    fsio.make_folder(html.absolute().parent)
    title = f"{data.path.name}: {data.views[0]} by {method.upper()}"
    page = _page(data, indices, points, names, colours, number, title)
    fsio.write_durably(html, page.encode(), scratch=html.parent)
    figure = _figure(points, names, colours, number, title, explained)
    fsio.write_durably(png, figure, scratch=png.parent)
    counts = np.bincount(number, minlength=len(names)).tolist()
    return MapResult(
        html, png, data.views[0], method, len(indices), len(data),
        tuple(zip(names, counts, strict=True)), explained,
    )  # fmt: skip


def project(
    data: VectorData, indices: Int64, *, method: str = "pca", seed: int = 0
) -> tuple[Float32, tuple[float, float] | None]:
    """Project some records to two dimensions.

    Args:
        data: the dataset, with one chosen view.
        indices: ``(m,)`` positions among the records, ascending.
        method: one of :data:`~embedkit.choices.MAP_METHODS`. The sign of each axis of
            a PCA makes its largest weight positive, so that the same records give the same axes.
        seed: of UMAP.

    Returns:
        ``(m, 2)`` float32, and for a PCA the fraction of the variance on each axis.

    Raises:
        UsageError: the method is unknown or not installed, or there are fewer than three records.
    """
    check_choice(MAP_METHODS, method=method)
    if len(indices) < 3:
        raise UsageError(
            f"{data.path}: {len(indices)} records are too few for a map; expected 3 or more."
        )
    vectors = data.reader.vectors_at(indices)
    if method == "umap":
        return _umap(vectors, seed), None
    vectors -= vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    values, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    axes = directions[:, [-1, -2]] if data.width > 1 else np.repeat(directions, 2, axis=1)
    largest = axes[np.abs(axes).argmax(axis=0), [0, 1]]
    axes = axes * np.where(largest < 0, -1, 1)
    total = max(float(values.sum()), np.finfo(np.float64).tiny)
    fractions = (float(values[-1]) / total, float(values[-2]) / total if data.width > 1 else 0.0)
    return np.asarray(vectors @ axes.astype(np.float32), np.float32), fractions


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
    indices = _drawn(data, limit, seed)
    columns = [name for name in data.columns if name not in _COUNTS]
    values = data.reader.pick(indices, columns)
    lines = ["\t".join(columns)]
    lines += ["\t".join(_cell(values[name][i]) for name in columns) for i in range(len(indices))]
    content = io.StringIO()
    np.savetxt(content, data.reader.vectors_at(indices), fmt="%.6g", delimiter="\t")
    config = (
        f'embeddings {{\n  tensor_name: "{data.views[0]}"\n  tensor_path: "vectors.tsv"\n'
        '  metadata_path: "metadata.tsv"\n}\n'
    )
    fsio.make_folder(target)
    files = {
        "vectors.tsv": content.getvalue(),
        "metadata.tsv": "\n".join(lines) + "\n",
        "projector_config.pbtxt": config,
    }
    for name, text in files.items():
        fsio.write_durably(target / name, text.encode(), scratch=target)
    return len(indices)


def _cell(value: Any) -> str:
    return " ".join(str("" if value is None else value).split())


def _drawn(data: VectorData, limit: int, seed: int) -> Int64:
    check_counts(limit=limit)
    if len(data) <= limit:
        return np.arange(len(data))
    logger.info("the map shows a random sample of %d of %d records (limit)", limit, len(data))
    random = np.random.default_rng(seed)
    return np.sort(random.choice(len(data), limit, replace=False))


def _umap(vectors: Float32, seed: int) -> Float32:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, while they are loaded
            from umap import UMAP
    except ImportError as error:
        raise UsageError(
            "method='umap' needs a package: pip install umap-learn. Or use method='pca'."
        ) from error
    neighbours = min(15, len(vectors) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that one thread is used for the sake of the seed
        made = UMAP(n_neighbors=neighbours, metric="cosine", random_state=seed,
                    init="spectral" if len(vectors) > 50 else "random")  # fmt: skip
        return np.asarray(made.fit_transform(unit_rows(vectors)), np.float32)


def _labels(
    data: VectorData, indices: Int64, color: str | None
) -> tuple[list[str], list[str], Int64]:
    """Names and colours, the most frequent first, and the number of each record's."""
    column = color or ("label" if "label" in data.columns else None)
    if column is None:
        return ["all"], [_COLOURS[0]], np.zeros(len(indices), np.int64)
    if column not in data.columns:
        raise UsageError(f"color={color!r}: {data.path} has {', '.join(data.columns)}.")
    values = [
        _MISSING if v is None else str(v) for v in data.reader.pick(indices, [column])[column]
    ]
    common = Counter(values).most_common()
    names = [name for name, _ in sorted(common[: len(_COLOURS)], key=lambda x: (-x[1], x[0]))]
    colours = list(_COLOURS[: len(names)])
    if len(common) > len(names):
        names.append(f"{len(common) - len(names)} others")
        colours.append(_OTHER)
    known = {name: i for i, name in enumerate(names)}
    return names, colours, np.array([known.get(v, len(names) - 1) for v in values], np.int64)


def _page(
    data: VectorData, indices: Int64, points: Float32, names: Sequence[str],
    colours: Sequence[str], number: Int64, title: str,
) -> str:  # fmt: skip
    from jinja2 import Environment, FileSystemLoader

    style, script = ((_TEMPLATES / f"map.{kind}").read_text("utf-8") for kind in ("css", "js"))
    columns = [name for name in ("id", "text") if name in data.columns]
    values = data.reader.pick(indices, ["row", *columns])
    texts = values.get("text") or [""] * len(indices)
    payload = {
        "points": _packed(points, "<f4"),
        "labels": _packed(number, "<u2"),
        "rows": _packed(np.array(values["row"]), "<f8"),
        "names": list(names),
        "colours": list(colours),
        "ids": values["id"],
        "texts": [t if len(t) <= _SHOWN_TEXT else t[: _SHOWN_TEXT - 1] + "…" for t in texts],
    }
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
    return environment.get_template("map.html").render(
        title=title, count=len(indices), total=len(data), payload=payload, style=style,
        script=script, style_hash=_hash(style), script_hash=_hash(script),
    )  # fmt: skip


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode("ascii")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _figure(
    points: Float32, names: Sequence[str], colours: Sequence[str], number: Int64, title: str,
    explained: tuple[float, float] | None,
) -> memoryview:  # fmt: skip
    figure, axis = canvas(7.5, 6)
    # drawn in one random order, so that no label hides the others
    order = np.random.default_rng(0).permutation(len(points))
    size = float(np.clip(20_000 / len(points), 0.5, 16))
    axis.scatter(*points[order].T, s=size, c=np.array(colours)[number[order]], alpha=0.7,
                 linewidths=0)  # fmt: skip
    if len(names) > 1:
        marks = [axis.scatter([], [], s=25, c=colour) for colour in colours]
        shown = [name if len(name) <= 30 else name[:29] + "…" for name in names]
        shown = [name.replace("$", r"\$") for name in shown]
        axis.legend(marks, shown, frameon=False, fontsize=8, loc="best")
    if explained is not None:
        axis.set_xlabel(f"{explained[0]:.1%} of the variance")
        axis.set_ylabel(f"{explained[1]:.1%} of the variance")
    else:
        axis.set_xticks([])
        axis.set_yticks([])
    axis.set_title(title.replace("$", r"\$"), loc="left", fontsize=9)
    content = io.BytesIO()
    render(figure, content, dpi=130, format="png", metadata={"Software": None})
    return content.getbuffer()
