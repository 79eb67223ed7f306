"""Small corpus files, and what reading them gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedkit.corpus.memory import CorpusLike, InputFile, input_files
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, plan_corpus
from embedkit.corpus.records import CorpusReader, Record
from embedkit.corpus.tables import Reject


@dataclass(frozen=True)
class Outcome:
    """Everything one pass over a corpus gave."""

    reader: CorpusReader
    records: list[Record]
    rejects: list[Reject]

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.records]

    @property
    def reasons(self) -> list[tuple[int | None, str]]:
        """Physical line and reason of every reject."""
        return [(reject.line, reject.reason) for reject in self.rejects]

    @property
    def lines(self) -> list[int | None]:
        return [record.line for record in self.records]

    @property
    def content(self) -> Any:
        """All but the names of files."""
        rejects = [replace(reject, file="") for reject in self.rejects]
        return self.records, rejects, self.reader.counts


def plan_files(*paths: Path, **options: Any) -> CorpusPlan:
    return plan_corpus([InputFile.of(path) for path in paths], CorpusOptions(**options))


def read_corpus(corpus: CorpusLike, **options: Any) -> Outcome:
    """Plan and read a corpus; the counts must add up, whatever it holds."""
    with input_files(corpus) as files:
        reader = CorpusReader(plan_corpus(files, CorpusOptions(**options)))
        items = list(reader)
    records = [item for item in items if isinstance(item, Record)]
    rejects = [item for item in items if isinstance(item, Reject)]
    counts = reader.counts
    assert (counts.accepted, sum(counts.rejected.values())) == (len(records), len(rejects))
    assert len(items) + sum(counts.left_out.values()) == counts.records
    rows = [item.row for item in items]
    assert rows == sorted(set(rows))
    assert reader.fraction == 1.0
    return Outcome(reader, records, rejects)


class Folder:
    """Writes a file and reads it back through embedkit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, data: bytes | str, name: str = "corpus.tsv") -> Path:
        path = self.path / name
        path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
        return path

    def read(self, data: bytes | str, name: str = "corpus.tsv", **options: Any) -> Outcome:
        return read_corpus(self.write(data, name), **options)

    def plan(self, data: bytes | str, name: str = "corpus.tsv", **options: Any) -> CorpusPlan:
        return plan_files(self.write(data, name), **options)
