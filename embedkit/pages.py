"""Common parts of the HTML pages: text, packed data, and one file that loads nothing.

The content policy of a page allows its one script alone. Corpus text is escaped, and stays inside
its place whatever its letters do.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from embedkit import storage
from embedkit.display import HARMLESS, visible, without_nan
from embedkit.errors import UsageError
from embedkit.types import Float32, Int64

# characters of a text in a page; the rest is counted
_LONGEST_TEXT = 2_000


def render_page(
    name: str, *, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """Render ``templates/NAME.html`` with the style and the script of the same name."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("embedkit"),
        autoescape=True,
        # a name that a template misspells is an error, not an empty place
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "packed_json": packed_json}
    environment.filters |= filters or {}
    style, script = (environment.get_template(f"{name}.{kind}").render() for kind in ("css", "js"))
    # the content policy names the script by its hash: no other one runs, whatever a text contains
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(f"{name}.html").render(
        style=Markup(style), script=Markup(script), script_hash=digest, **values
    )


def page_file(file: str | Path, *, overwrite: bool, name: str = "out") -> Path:
    """Return the path of a page to write; an error unless it ends in .html and is free."""
    path = Path(file)
    if path.suffix not in (".html", ".htm"):
        raise UsageError("expected a name ending in .html.", **{name: path})
    storage.refuse_existing(path, overwrite=overwrite)
    return path


def packed(content: bytes) -> str:
    """Return base64 of the compressed content; the same content gives the same text."""
    # mtime=0: gzip would write the time, and equal pages would differ
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def packed_json(value: Any) -> str:
    """Return :func:`packed` JSON."""
    text = json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"))
    # lone surrogates have no UTF-8
    return packed(text.encode("utf-8", "replace"))


def cut_texts(texts: Sequence[str | None], *, most_bytes: int) -> list[str | None]:
    """Return the first 2,000 characters of texts, fewer where all would take too many bytes.

    What was left out is counted at the end of a text.
    """
    limit = _LONGEST_TEXT
    # halved until all fit, to 62 characters at the least
    while limit > 100 and sum(len((t or "")[:limit].encode()) for t in texts) > most_bytes:
        limit //= 2
    return [
        text if text is None or len(text) <= limit else f"{text[:limit]} … (+{len(text) - limit:,})"
        for text in texts
    ]


def in_context(text: str, start: int, end: int, *, around: int) -> str:
    """Return a part of a text in brackets, with what stands before it and after it.

    >>> in_context("He robbed the bank yesterday", 14, 18, around=4)
    '…the [bank] yes…'
    """
    first, last = max(start - around, 0), end + around
    before, after = "…" * (first > 0) + text[first:start], text[end:last] + "…" * (last < len(text))
    return f"{before}[{text[start:end]}]{after}"


def with_names(labels: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return labels with the names that they have, which stand behind them.

    >>> with_names(("0", "1"), {"1": "good"})
    ('0', '1 good')
    """
    if unknown := [label for label in names if label not in labels]:
        first = ", ".join(labels[:10]) or "none"
        raise UsageError(f"this is not a label. Labels: {first}.", label_names=unknown[0])
    return tuple(f"{label} {names[label]}" if label in names else label for label in labels)


def shown(text: str) -> str:
    """Return a text without signs that would act on the page; joiners in emoji and words stay."""
    return visible(text, keep=HARMLESS)


def curve_order(points: Float32) -> Int64:
    """An order in which points that follow each other lie together, so that they pack well."""
    # Z-order: the bits of x and y of a point are interleaved, first spread to every second bit,
    # then joined. Neighbours on the curve have small differences, which compress
    cells = (in_square(points) * 65_535).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
    return np.argsort(cells[:, 0] | (cells[:, 1] << np.uint64(1)), kind="stable").astype(np.int64)


def in_square(points: Float32) -> Float32:
    """Points moved to the middle of the unit square, and as large as it is."""
    low, high = points.min(axis=0), points.max(axis=0)
    # one factor for both axes keeps the angles
    size = max(float((high - low).max()), 1e-12)
    return np.asarray((points - (low + high) / 2) / size + 0.5, np.float32)


def byte_planes(values: NDArray[Any], width: int) -> bytes:
    """The lowest ``width`` bytes of numbers: all first ones, all second ones, and so on."""
    # the lowest first; bytes of one significance together compress better than whole numbers
    numbers = values.astype("<u8").reshape(-1, 1).view(np.uint8)
    return numbers[:, :width].T.tobytes()
