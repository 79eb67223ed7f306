"""What the HTML pages have in common: text, packed data, and one file that loads nothing.

The content policy of a page allows its one script alone. Corpus text is escaped, and stays inside
its place whatever its letters do.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embedkit.display import HARMLESS, visible, without_nan

__all__ = ["cut_texts", "for_script", "lang_attribute", "packed", "packed_json", "render_page",
           "shown"]  # fmt: skip

_LONGEST_TEXT = 2_000
_SCRIPTS = {
    "ja": (("\u3040", "\u30ff"),),
    "ko": (("\uac00", "\ud7a3"), ("\u1100", "\u11ff")),
    "zh": (("\u4e00", "\u9fff"),),
}


def render_page(
    name: str, *, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """Render ``templates/NAME.html`` with the style and the script of the same name.

    Args:
        name: of the templates.
        filters: of the template, beside ``shown`` and ``lang_of``.
        values: of the template, which also gets ``style``, ``script`` and ``script_hash``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("embedkit"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "shown": shown, "lang_of": lang_attribute, "packed_json": packed_json, **(filters or {})
    }  # fmt: skip
    style, script = (environment.get_template(f"{name}.{kind}").render() for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(f"{name}.html").render(
        style=Markup(style), script=Markup(script), script_hash=digest, **values
    )


def packed(content: bytes) -> str:
    """Return base64 of the compressed content; the same content gives the same text."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def packed_json(value: Any) -> str:
    """Return :func:`packed` JSON."""
    text = json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"))
    return packed(text.encode("utf-8", "replace"))


def for_script(value: Any) -> str:
    """Return JSON that no letter of can end the element it stands in."""
    return json.dumps(without_nan(value), ensure_ascii=False).replace("<", "\\u003c")


def cut_texts(texts: Sequence[str | None], *, most_bytes: int) -> list[str | None]:
    """Return the first 2,000 characters of texts, fewer where all would take too many bytes.

    What was left out is counted at the end of a text.
    """
    limit = _LONGEST_TEXT
    while limit > 100 and sum(len((t or "")[:limit].encode()) for t in texts) > most_bytes:
        limit //= 2
    return [
        text if text is None or len(text) <= limit
        else f"{text[:limit]} … (+{len(text) - limit:,})"
        for text in texts
    ]  # fmt: skip


def shown(text: str) -> str:
    """Text as it is, but for signs that would act on the page: controls and direction marks.

    Joiners inside emoji and words stay.
    """
    return visible(text, keep=HARMLESS)


def language_of(text: str) -> str | None:
    """Return the language that the script of a text tells, for its fonts and its pronunciation.

    >>> language_of("긍정"), language_of("よい映画"), language_of("好"), language_of("good")
    ('ko', 'ja', 'zh', None)
    """
    kinds = {
        kind for c in text for kind, ranges in _SCRIPTS.items()
        if any(low <= c <= high for low, high in ranges)
    }  # fmt: skip
    return next((kind for kind in _SCRIPTS if kind in kinds), None)


def lang_attribute(text: str) -> Any:
    """Return the ``lang`` attribute of an element that holds a text, or nothing."""
    from markupsafe import Markup

    found = language_of(text)
    return Markup(' lang="{}"').format(found) if found else Markup("")
