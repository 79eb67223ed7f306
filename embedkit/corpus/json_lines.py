"""Reader of JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from embedkit.corpus.rows import (
    BadRow,
    Cell,
    NotText,
    Row,
    TextTable,
    bad_row,
    check_encoding,
    too_long,
)
from embedkit.corpus.source import Line
from embedkit.errors import CorpusError

__all__ = ["JsonLinesTable"]

_PEEK = 1_000
_PEEK_BYTES = 16 << 20


class JsonLinesTable(TextTable):
    """One JSON object per line; the columns are the keys of the first thousand."""

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted keys of every object; an absent key is a null cell."""
        for line in self._lines:
            if line.too_long:
                yield too_long(line)
            elif not line.data.strip():
                self.blank += 1
            else:
                try:
                    cells = self._cells(line, wanted)
                except _BadJsonError as error:
                    yield bad_row([line], error.reason, error.detail)
                else:
                    yield Row(line.number, line.offset, line.length, cells)

    def _cells(self, line: Line, wanted: Sequence[str]) -> tuple[Cell, ...]:
        record = self._parse(line)
        try:
            return tuple(_json_cell(record.get(name)) for name in wanted)
        except RecursionError as error:
            raise _BadJsonError("bad_json", "nested too deeply") from error

    def _parse(self, line: Line) -> dict[str, Any]:
        try:
            record = json.loads(
                line.data.decode(self._encoding),
                parse_int=NotText,
                parse_float=NotText,
                parse_constant=_refuse_constant,
                object_pairs_hook=_unique_keys,
            )
        except UnicodeDecodeError as error:
            raise _BadJsonError("invalid_encoding", f"{self._encoding}: {error.reason}") from error
        except RecursionError as error:
            raise _BadJsonError("bad_json", "nested too deeply") from error
        except json.JSONDecodeError as error:
            raise _BadJsonError("bad_json", f"{error.msg} at column {error.colno}") from error
        if not isinstance(record, dict):
            raise _BadJsonError("not_an_object", "expected a JSON object on the line")
        return record

    def _read_columns(self) -> list[str]:
        peeked = list(_first_lines(self._lines))
        self._lines.back(peeked)
        filled = [line for line in peeked if line.data.strip()]
        names: dict[str, None] = {}
        objects = undecodable = 0
        for line in filled:
            try:
                names.update(dict.fromkeys(self._parse(line)))
                objects += 1
            except _BadJsonError as error:
                undecodable += error.reason == "invalid_encoding"
        check_encoding(self.path, self._encoding, bad=undecodable, seen=len(filled))
        if filled and (not objects or _opens_document(filled[0].data.strip())):
            raise CorpusError(
                f"{self.path} is not JSON Lines: it has {objects} JSON objects in its first "
                f"{len(filled)} lines. A pretty-printed document or an array must be rewritten "
                f"with one object per line: jq -c '.[]' {self.path.name} > lines.jsonl."
            )
        return list(names)


class _BadJsonError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _json_cell(value: object) -> Cell:
    if value is None or isinstance(value, str):
        return value
    return NotText(_json_literal(value))


def _json_literal(value: object) -> str:
    if isinstance(value, NotText):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_json_literal, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_json_literal(name)}: {_json_literal(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def _first_lines(lines: Iterator[Line]) -> Iterator[Line]:
    """The first lines of a file, fewer where they are long: they are held in memory."""
    held = 0
    for line in islice(lines, _PEEK):
        yield line
        held += len(line.data)
        if held > _PEEK_BYTES:
            return


def _opens_document(line: bytes) -> bool:
    """Whether an array or object begins on the line and goes on: ``[``, ``{`` or ``[{…},``."""
    return line in (b"[", b"{") or (line.startswith(b"[") and line.endswith(b","))


def _refuse_constant(name: str) -> float:
    raise _BadJsonError("bad_json", f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJsonError("duplicate_key", f"{twice!r} stands twice")
    return record
