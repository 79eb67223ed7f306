"""Files as they come, through embedkit and through what people would write by hand.

``python -m benchmarks.hostile`` makes small corpora with one awkward thing each, embeds them in
three ways, and prints a Markdown table of what became of their records:

right      every text was embedded to the letter under its id; what cannot be embedded was named
named      a record was left out that could have been embedded, and a list says which, and why
refused    an error, and nothing was embedded
lost       records are missing, and nothing says so
changed    a text or an id is another than in the file, and nothing says so
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

Records = list[tuple[str, str]]
ROWS: Records = [("1", "a good movie"), ("2", "정말 좋은 영화"), ("3", "it was bad")]


@dataclass(frozen=True, slots=True)
class Case:
    """A corpus.

    Attributes:
        name: what is awkward in it.
        file: its name.
        content: its bytes.
        records: ids and texts that it holds.
        without: ids whose records need not be embedded if something says so.
        damaged: whether to refuse the file is right.
    """

    name: str
    file: str
    content: bytes
    records: Records
    without: frozenset[str] = frozenset()
    damaged: bool = False


def table(rows: Records, mark: str = "\t", end: str = "\n") -> str:
    """Rows below a header, as they are."""
    return end.join([f"id{mark}text", *(f"{number}{mark}{text}" for number, text in rows)]) + end


def _parquet(rows: list[tuple[str, str | None]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [r[0] for r in rows], "text": [r[1] for r in rows]}), sink)
    return sink.getvalue()


def cases() -> Iterator[Case]:
    """All corpora."""

    def tsv(name: str, rows: Records, *, encoding: str = "utf-8", without: str = "") -> Case:
        content = table(rows).encode(encoding)
        return Case(name, "corpus.tsv", content, rows, frozenset(without.split()))

    yield tsv("nothing awkward", ROWS)
    yield tsv("ids with leading zeros", [(f"00{n}", text) for n, text in ROWS])
    yield tsv("texts NA, null and nan", [*ROWS, ("4", "NA"), ("5", "null"), ("6", "nan")])
    yield tsv("texts that are numbers", [("1", "1e5"), ("2", "007"), ("3", "1.0")])
    yield tsv("an empty text", [*ROWS, ("4", "")], without="4")
    yield tsv("a quotation mark that is never closed", [("1", '"so good'), *ROWS[1:], ("4", "x")])
    yield tsv("quotation marks around a text", [("1", '"good"'), *ROWS[1:]])
    yield tsv("a carriage return in a text", [("1", "a\rb"), *ROWS[1:]])
    yield tsv("U+2028 and U+0085 in texts", [("1", "a\u2028b"), ("2", "c\x85d"), *ROWS[2:]])
    yield tsv("white space around a text", [("1", "  a b  "), *ROWS[1:]])
    yield tsv("UTF-8 with a byte order mark", ROWS, encoding="utf-8-sig")
    yield tsv("UTF-16", ROWS, encoding="utf-16")
    yield tsv("CP949", ROWS, encoding="cp949")
    good = table(ROWS).encode()
    yield Case(
        "a byte that is not UTF-8",
        "corpus.tsv",
        good + b"4\tcaf\xe9\n",
        [*ROWS, ("4", "caf\xe9")],
        frozenset("4"),
        damaged=True,
    )
    yield Case(
        "a NUL in a text",
        "corpus.tsv",
        good + b"4\ta\0b\n",
        [*ROWS, ("4", "a\0b")],
        frozenset("4"),
        damaged=True,
    )
    yield Case(
        "a row with a field too many",
        "corpus.tsv",
        good + b"4\tx\ty\n",
        [*ROWS, ("4", "x")],
        frozenset("4"),
    )
    yield Case(
        "a row with a field too few",
        "corpus.tsv",
        good + b"4\n5\tx\n",
        [*ROWS, ("4", ""), ("5", "x")],
        frozenset("4"),
    )
    yield Case(
        "two columns of one name",
        "corpus.tsv",
        good.replace(b"id\ttext", b"text\ttext"),
        [],
        damaged=True,
    )
    yield Case(
        "a line break in a quoted field",
        "corpus.csv",
        table([("1", '"a\nb"'), *ROWS[1:]], ",").encode(),
        [("1", "a\nb"), *ROWS[1:]],
    )
    lines = [json.dumps({"id": n, "text": text}) for n, text in ROWS]
    yield Case(
        "a broken line of JSON",
        "corpus.jsonl",
        "\n".join([*lines, '{"id": "4", "text": "x']).encode(),
        [*ROWS, ("4", "x")],
        frozenset("4"),
        damaged=True,
    )
    yield Case(
        "a null among texts",
        "corpus.parquet",
        _parquet([*ROWS, ("4", None)]),
        [*ROWS, ("4", "")],
        frozenset("4"),
    )
    yield Case(
        "half of a Parquet file", "corpus.parquet", _parquet([*ROWS])[:200], ROWS, damaged=True
    )
    packed = gzip.compress(table([(str(n), f"text {n}") for n in range(4_000)]).encode())
    yield Case(
        "half of a gzip file", "corpus.tsv.gz", packed[: len(packed) // 2], ROWS, damaged=True
    )
    yield Case(
        "a PDF named .tsv",
        "corpus.tsv",
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\n",
        [],
        damaged=True,
    )


Answer = tuple[Records, set[int]]
"""What was embedded, and the numbers of records that were left out with a reason."""


def by_embedkit(file: Path) -> Answer:
    """``embedkit.extract`` with the default model."""
    import embedkit

    out = file.parent / "vectors"
    embedkit.extract(file, text="text", id="id", out=out)
    data = embedkit.load(out)
    rejects = (out / "_embedkit/rejects.jsonl").read_text("utf-8").splitlines()
    named = {int(json.loads(line)["row"]) for line in rejects}
    return list(zip(map(str, data.ids), map(str, data.text), strict=True)), named


def by_pandas(file: Path) -> Answer:
    """``pandas.read_csv`` and ``SentenceTransformer.encode``."""
    import pandas as pd

    if file.suffix == ".parquet":
        frame = pd.read_parquet(file)
    elif file.suffix == ".jsonl":
        frame = pd.read_json(file, lines=True)
    else:
        frame = pd.read_csv(file, sep="," if ".csv" in file.name else "\t")
    texts = frame["text"].tolist()
    _model().encode(texts)
    return [(str(n), str(t)) for n, t in zip(frame["id"], texts, strict=True)], set()


def by_datasets(file: Path) -> Answer:
    """``datasets.load_dataset`` and ``SentenceTransformer.encode``."""
    import datasets

    kind = {".parquet": "parquet", ".jsonl": "json"}.get(file.suffix, "csv")
    options = {"sep": "," if ".csv" in file.name else "\t"} if kind == "csv" else {}
    loaded = datasets.load_dataset(
        kind, data_files=str(file), split="train", cache_dir=str(file.parent / "cache"), **options
    )
    texts = list(loaded["text"])
    _model().encode(texts)
    return [(str(n), str(t)) for n, t in zip(loaded["id"], texts, strict=True)], set()


WAYS: dict[str, Callable[[Path], Answer]] = {
    "embedkit": by_embedkit,
    "pandas + sentence-transformers": by_pandas,
    "datasets + sentence-transformers": by_datasets,
}

_MODELS: list[Any] = []


def _model() -> Any:
    from sentence_transformers import SentenceTransformer

    from embedkit.encoding.encoder import Encoder

    if not _MODELS:
        folder = Encoder(device="cpu").checkpoint.folder
        _MODELS.append(SentenceTransformer(str(folder), device="cpu"))
    return _MODELS[0]


def outcome(case: Case, way: Callable[[Path], Answer], folder: Path) -> str:
    """What became of the records of a corpus."""
    folder.mkdir()
    file = folder / case.file
    file.write_bytes(case.content)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found, named = way(file)
    except Exception as error:
        return "refused" + (" (right)" if case.damaged else f" ({type(error).__name__})")
    expected, got = dict(case.records), dict(found)
    if any(number not in expected or got[number] != expected[number] for number in got):
        return "changed"
    missing = expected.keys() - got.keys()
    if not missing <= {case.records[row][0] for row in named}:
        return "lost"
    return "right" if missing <= case.without else "named"


def main() -> None:
    """Print the table and the counts."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    logging.disable(logging.WARNING)
    print("| corpus | " + " | ".join(WAYS) + " |\n|---|" + "---|" * len(WAYS))
    good = dict.fromkeys(WAYS, 0)
    count = 0
    with tempfile.TemporaryDirectory(prefix="embedkit-hostile-") as top:
        for number, case in enumerate(cases()):
            row = [
                outcome(case, way, Path(top) / f"{number}-{place}")
                for place, way in enumerate(WAYS.values())
            ]
            count += 1
            for name, found in zip(WAYS, row, strict=True):
                good[name] += "right" in found
            print(f"| {case.name} | " + " | ".join(row) + " |", flush=True)
    print(f"| **right of {count}** | " + " | ".join(f"**{n}**" for n in good.values()) + " |")


if __name__ == "__main__":
    main()
