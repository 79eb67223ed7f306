"""What the site has that the pages of ``docs/`` do not: a hook of ``mkdocs.yml``.

The Python interface is made from docstrings, with links and tables; ``docs/api.md`` has the same
text for readers of files. Links to files outside of ``docs/`` become their names.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

import embedkit

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")
_ROLE = re.compile(r":(?:class|func|meth|data|mod):`~?([^`<]*?)(?: <[^`]*>)?`")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page for the site."""
    if page.file.src_uri == "api.md":
        names = [name for name in embedkit.__all__ if not name.startswith("_") and name != "errors"]
        names += ["sklearn.TextEncoder", "sklearn.StoredVectors"]
        parts = ["# Python interface", "What `import embedkit` exports, and `embedkit.sklearn`."]
        parts += [f"::: embedkit.{name}" for name in names]
        return "\n\n".join([*parts, "## Errors", "::: embedkit.errors"])
    return _OUTSIDE.sub(r"\1", markdown)


class Docstrings(Extension):
    """Docstrings as mkdocstrings reads them: examples in the plural, roles as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a class, function or module."""
        if obj.docstring is not None:
            text = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(r"`\1`", text)
