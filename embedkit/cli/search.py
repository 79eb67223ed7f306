"""Commands on the vectors of a dataset: search, index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import INDEX_KINDS, SEARCH_METRICS
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options, whitening_of
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import number_text, one_line, table_text
from embedkit.display import bytes_text, duration_text, metric_text, visible
from embedkit.errors import UsageError

if TYPE_CHECKING:
    from embedkit.search.index import IndexInfo
    from embedkit.search.searcher import Answer, Hit

__all__ = ["index", "search"]

_SHOWN = 100
_TIMED_RECORDS = 10_000
_BREAKS = dict.fromkeys(map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " ")

_COMPARED = (
    "--view",
    option("--metric", default="cosine", type=click.Choice(SEARCH_METRICS),
           help="Similarity of two vectors."),
    option("--center", is_flag=True,
           help="Subtract the mean of the dataset first; raw BERT vectors all point in similar "
           "directions."),
    option("--whiten", is_flag=True, help="Subtract the mean and decorrelate the dimensions."),
    "--threads",
)  # fmt: skip


@command(
    'embedkit search reviews.vectors "a waste of money" -k 5',
    "embedkit search reviews.vectors --queries questions.txt --tsv",
    "embedkit search reviews.vectors --like 17 --where \"label = '1'\"",
    'embedkit search reviews.vectors "good fun" --index hnsw --recall 0.95',
)
@click.argument("dataset", type=FILE)
@click.argument("query", required=False)
@options(
    option("-k", "k", default=10, help="Number of results per query."),
    option("--queries", type=FILE, help="Text file of queries, one per line."),
    option("--like", type=int, multiple=True, metavar="ROW",
           help="Find records similar to this row; can be repeated."),
    option("--vector", type=FILE, help=".npy file of query vectors."),
    *_COMPARED,
    option("--where", help="SQL condition on the columns, such as \"label = '1'\"."),
    option("--keep-duplicates", is_flag=True, help="Return duplicate texts too."),
    option("--index", "kind", type=click.Choice(INDEX_KINDS),
           help="Search an index instead of all records."),
    option("--recall", type=float,
           help="With --index: minimum recall@10, according to the tuning of the index."),
    option("--no-verify", is_flag=True,
           help="With --index: do not read the whole index to compare it with its checksum."),
    option("--prefix", help='Text to put before the query, such as "query: ". '
           "[that of the dataset]"),
    option("--model", help="Location of the checkpoint, if it has moved. [its original name]"),
    "--device",
    option("--tsv", "as_tsv", is_flag=True, help="Print tab-separated values."),
)  # fmt: skip
def search(
    dataset: Path, query: str | None, k: int, queries: Path | None, like: tuple[int, ...],
    vector: Path | None, center: bool, whiten: bool, kind: str | None, recall: float | None,
    no_verify: bool, as_tsv: bool, **settings: Any,
) -> Result:  # fmt: skip
    """Find the nearest texts of a dataset.

    DATASET is a folder that extract wrote, QUERY a text. Search is exact unless --index is given.
    Duplicate texts are returned once.
    """
    from embedkit.search.searcher import Searcher, read_queries

    given = [query is not None, queries is not None, bool(like), vector is not None]
    if sum(given) != 1:
        raise UsageError("give a QUERY, or --queries FILE, or --like ROW, or --vector FILE.")
    if recall is not None and kind is None:
        raise UsageError("--recall needs --index; without one search is exact.")
    settings["whitening"] = whitening_of(center, whiten)
    if kind is not None:
        from embedkit.dataset.store import load
        from embedkit.search.index import open_index

        shared = {name: settings[name] for name in ("metric", "whitening", "threads")}
        data = load(dataset, settings["view"])
        settings["finder"] = open_index(
            data, kind=kind, recall=recall, verify=not no_verify, **shared
        )
    with progress_bar() as progress:
        searcher = Searcher(dataset, progress=progress, few_texts=query is not None, **settings)
        if like:
            answers = searcher.like(like, k=k)
        elif vector is not None:
            answers = searcher.vectors(_read_vectors(vector), k=k)
        else:
            texts = [str(query)] if queries is None else read_queries(queries)
            answers = searcher.texts(texts, k=k)
    text = _answers_tsv if as_tsv else _answers_text
    return Result([asdict(answer) for answer in answers], lambda: text(answers), asked_for=True)


def _read_vectors(path: Path) -> Any:
    """A matrix of a ``.npy`` file."""
    import zipfile

    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it holds several arrays")
        return found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"--vector {visible(str(path))} cannot be read: {reason}. Give a .npy file of floats."
        ) from error


def _answers_text(answers: Sequence[Answer]) -> str:
    """A table for each query."""
    parts = []
    for answer in answers:
        if len(answers) > 1 or not answer.query.startswith("vector"):
            parts.append(visible(one_line(answer.query), limit=_SHOWN))
        labelled = any(hit.label is not None for hit in answer.hits)
        parts.append(table_text([_cells(hit, labelled) for hit in answer.hits]))
    return "\n".join(parts)


def _cells(hit: Hit, labelled: bool) -> dict[str, Any]:
    cells: dict[str, Any] = {"score": f"{hit.score:.4f}", "row": hit.row, "id": hit.id}
    if labelled:
        cells["label"] = hit.label or ""
    if hit.text is not None:
        both = hit.text if hit.text_pair is None else f"{hit.text} | {hit.text_pair}"
        cells["text"] = visible(one_line(both), limit=_SHOWN)
    return cells


def _answers_tsv(answers: Sequence[Answer]) -> str:
    """Lines with a header; what would break a line in a text becomes a space."""

    def lines() -> Iterator[Sequence[str]]:
        yield "query", "rank", "score", "row", "id", "label", "text", "text_pair"
        for answer in answers:
            for rank, hit in enumerate(answer.hits, start=1):
                yield (answer.query, str(rank), f"{hit.score:.6f}", str(hit.row), hit.id,
                       hit.label or "", hit.text or "", hit.text_pair or "")  # fmt: skip

    return "\n".join("\t".join(cell.translate(_BREAKS) for cell in line) for line in lines())


@command(
    "embedkit index reviews.vectors --tune",
    "embedkit index reviews.vectors --kind ivf --view cls_6 --recall 0.98",
)
@click.argument("dataset", type=FILE)
@options(
    option("--kind", default="hnsw", type=click.Choice(INDEX_KINDS),
           help="flat: exact; hnsw: fastest, in memory; ivf: on disk; ivfpq: compressed."),
    *_COMPARED,
    option("--tune", is_flag=True, help="Measure recall@10 and speed on held-out records."),
    option("--recall", type=float,
           help="Minimum recall@10: use the fastest setting that reaches it; implies --tune. "
           "[0.95]"),
    "--seed",
    "--overwrite",
)  # fmt: skip
def index(dataset: Path, center: bool, whiten: bool, **settings: Any) -> Result:
    """Build an index for approximate search.

    It is saved in the folder of the dataset.
    """
    from embedkit.search.index import build_index

    whitening = whitening_of(center, whiten)
    with progress_bar() as progress:
        info = build_index(dataset, whitening=whitening, progress=progress, **settings)
    return Result(info, lambda: _index_text(info, dataset))


def _index_text(info: IndexInfo, folder: Path) -> str:
    """What was built and, if it was tuned, the recall and speed of each setting."""
    from embedkit.search.kinds import KINDS

    made = ", ".join(f"{name} {value}" for name, value in info.parameters.items())
    text = (
        f"{visible(str(folder))}: {info.kind} index of {info.records:,} × {info.width} "
        f"({info.view}, {info.metric}{f', {info.whitening}' * bool(info.whitening)}), "
        f"{bytes_text(info.nbytes)}, in {duration_text(info.seconds)}" + (f"; {made}" * bool(made))
    )
    if not info.curve:
        return text
    few = info.records < _TIMED_RECORDS
    table = table_text([
        {
            KINDS[info.kind].effort or "setting": point.setting,
            "recall@10, %": metric_text(point.recall, "recall"),
            **({} if few else {"ms per query": number_text(point.single_ms),
                               "queries/s": f"{point.batch_per_second:,.0f}"}),
            "": "used" if point.setting == info.setting else "",
        }
        for point in info.curve
    ])  # fmt: skip
    if few:
        table += (
            f"\nno rates: with fewer than {_TIMED_RECORDS:,} records they are those of the call "
            "itself, and exact search (no index) is as fast"
        )
    return f"{text}\n{table}"
