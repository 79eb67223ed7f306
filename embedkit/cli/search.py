"""Commands that look for what is near: search, index, similarity, words, map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from embedkit.choices import INDEX_KINDS, MAP_METHODS, MATCHES, PRECISIONS, SEARCH_METRICS
from embedkit.cli.options import (
    dialect_options,
    model_options,
    output_options,
    reading_of,
    show_progress,
)
from embedkit.display import visible
from embedkit.errors import EXIT_REJECTS, UsageError
from embedkit.types import ProgressCallback, no_progress

__all__ = ["index", "map_", "search", "similarity", "words"]

F = TypeVar("F", bound=Callable[..., Any])


def _view_options(command: F) -> F:
    """Options that say which vectors are compared, and how."""
    for option in reversed((
        click.option("--view", help="Stored view, such as mean_-1. [last mean]"),
        click.option("--metric", default="cosine", show_default=True,
                     type=click.Choice(SEARCH_METRICS), help="How near two vectors are."),
        click.option("--center", is_flag=True,
                     help="Subtract the mean of the dataset first: all vectors of a raw BERT point "
                     "in similar directions."),
        click.option("--whiten", is_flag=True, help="Center, and scale all directions alike."),
        click.option("--threads", type=click.IntRange(min=1),
                     help="Number of threads. [number of cores]"),
    )):  # fmt: skip
        command = option(command)
    return command


def _whitening(center: bool, whiten: bool) -> str | None:
    if center and whiten:
        raise UsageError("give --center or --whiten: whitening centers too.")
    return "center" if center else "whiten" if whiten else None


@contextmanager
def _progress(show: bool) -> Iterator[ProgressCallback]:
    """A progress bar on standard error."""
    if not show:
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda state: bar.update(
            task, description=state.stage, completed=state.done, total=state.total
        )


@click.command(
    epilog="\b\nExamples:\n"
    '  embedkit search reviews.vectors "a waste of money" -k 5\n'
    "  embedkit search reviews.vectors --queries questions.txt --tsv\n"
    "  embedkit search reviews.vectors --like 17 --where \"label = '1'\"\n"
    '  embedkit search reviews.vectors "good fun" --index hnsw --recall 0.95\n'
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("query", required=False)
@click.option(
    "-k", "k", default=10, show_default=True, type=int, help="Number of results for each query."
)
@click.option("--queries", type=click.Path(path_type=Path), help="File of queries, one per line.")
@click.option(
    "--like", type=int, multiple=True, metavar="ROW", help="Find records like a stored one."
)
@click.option("--vector", type=click.Path(path_type=Path), help=".npy file of query vectors.")
@_view_options
@click.option("--where", help="SQL condition on the columns: \"label = '1'\".")
@click.option("--keep-duplicates", is_flag=True, help="Return repeated texts too.")
@click.option(
    "--index",
    "kind",
    type=click.Choice(INDEX_KINDS),
    help="Search an index instead of all records.",
)
@click.option(
    "--recall",
    type=float,
    help="With --index: the fastest setting that reached this recall in tuning.",
)
@click.option("--prefix", help='Put before the query, such as "query: ". [the dataset\'s own]')
@click.option(
    "--model", help="Checkpoint that made the dataset, if it has moved. [the name it had]"
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1.")
@click.option("--tsv", "as_tsv", is_flag=True, help="Print tab-separated lines.")
@output_options
def search(
    dataset: Path, query: str | None, k: int, queries: Path | None, like: tuple[int, ...],
    vector: Path | None, view: str | None, center: bool, whiten: bool, kind: str | None,
    recall: float | None, as_tsv: bool, as_json: bool, quiet: bool, verbose: bool,
    metric: str, threads: int | None, **settings: Any,
) -> None:  # fmt: skip
    """Find the nearest texts of a dataset.

    DATASET is a folder that extract wrote, QUERY a text. Search is exact unless --index is given.
    Repeated texts are returned once.
    """
    from embedkit.cli.search_text import answers_data, answers_text, answers_tsv
    from embedkit.cli.text import json_text
    from embedkit.search.searcher import Searcher, read_queries

    given = [query is not None, queries is not None, bool(like), vector is not None]
    if sum(given) != 1:
        raise UsageError("give a QUERY, or --queries FILE, or --like ROW, or --vector FILE.")
    if recall is not None and kind is None:
        raise UsageError("--recall needs --index; without one search is exact.")
    whitening = _whitening(center, whiten)
    finder = None
    if kind is not None:
        from embedkit.dataset.store import load
        from embedkit.search.index import open_index

        finder = open_index(load(dataset, view), kind=kind, metric=metric, whitening=whitening,
                            recall=recall, threads=threads)  # fmt: skip
    with _progress(show_progress(None, quiet)) as progress:
        searcher = Searcher(
            dataset, view=view, metric=metric, whitening=whitening, threads=threads, finder=finder,
            progress=progress, **settings,
        )  # fmt: skip
        if like:
            answers = searcher.like(like, k=k)
        elif vector is not None:
            answers = searcher.vectors(_read_vectors(vector), k=k)
        else:
            texts = [str(query)] if queries is None else read_queries(queries)
            answers = searcher.texts(texts, k=k)
    if as_json:
        click.echo(json_text(answers_data(answers)))
    elif as_tsv:
        for line in answers_tsv(answers):
            click.echo(line)
    else:
        click.echo(answers_text(answers))


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit index reviews.vectors --tune\n"
    "  embedkit index reviews.vectors --kind ivf --view cls_6 --recall 0.98\n"
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--kind",
    default="hnsw",
    show_default=True,
    type=click.Choice(INDEX_KINDS),
    help="flat: exact; hnsw: fastest, in memory; ivf: on disk; ivfpq: compressed.",
)
@_view_options
@click.option("--tune", is_flag=True, help="Measure recall@10 and speed on held-out records.")
@click.option(
    "--recall", type=float, help="Use the fastest setting that reaches it; implies --tune. [0.95]"
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=int,
    help="Seed of the sample of held-out and training records.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing index.")
@output_options
def index(
    dataset: Path, center: bool, whiten: bool, as_json: bool, quiet: bool, verbose: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Build an index of a view for approximate search, and save it beside the dataset."""
    from embedkit.cli.search_text import index_text
    from embedkit.cli.text import json_text, plain
    from embedkit.search.index import build_index

    with _progress(show_progress(None, quiet)) as progress:
        info = build_index(dataset, whitening=_whitening(center, whiten), progress=progress,
                           **settings)  # fmt: skip
    if as_json:
        click.echo(json_text(plain(info)))
    elif not quiet:
        click.echo(index_text(info, str(dataset)))


def _reading_options(command: F) -> F:
    """Options that say how a file of pairs or sentences is read."""
    limit = click.option("--limit", type=int, help="Read only the first N records.")
    identity = click.option("--id", help="Column of the id. [guessed; else row numbers]")
    return identity(dialect_options(limit(command)))


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit similarity sts.tsv --text sentence1 --text-pair sentence2 --score score\n"
    "  embedkit similarity pairs.csv --text a --text-pair b --layers -1 --out pairs\n"
)
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--text", required=True, help="Column of the first text.")
@click.option("--text-pair", required=True, help="Column of the second text.")
@click.option("--score", help="Column of the gold score.")
@click.option("--layers", default="all", show_default=True, help="As for extract.")
@click.option(
    "--pooling",
    default="cls,mean,max",
    show_default=True,
    help="Of cls, mean, max, last_token, pooler; several with commas.",
)
@click.option("--special-tokens", default="include", show_default=True,
              type=click.Choice(["include", "exclude"]),
              help="Whether mean and max count [CLS] and [SEP].")  # fmt: skip
@click.option("--prefix", default="", help='Put before every text, such as "query: ".')
@click.option("--max-length", type=int, help="Tokens per text. [what the checkpoint states]")
@click.option("--precision", type=click.Choice(PRECISIONS), help="As for extract.")
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for the cosines, the table and the figure.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace existing output.")
@_reading_options
@model_options
@output_options
def similarity(
    corpus: Path, pooling: str, special_tokens: str, as_json: bool, quiet: bool,
    verbose: bool, **settings: Any,
) -> int:  # fmt: skip
    """Compare the two texts of every record, at every layer and pooling.

    Without --score the cosine of every pair is printed; with it the correlation of every view.
    """
    from embedkit.cli.search_text import similarity_data, similarity_text
    from embedkit.cli.text import json_text
    from embedkit.sts import similarity as compare

    names = ("format", "encoding", "quoting", "no_header", "unicode", "limit")
    reading = reading_of({name: settings.pop(name) for name in names})
    with _progress(show_progress(None, quiet)) as progress:
        found = compare(
            corpus, poolings=pooling.split(","), special_tokens=special_tokens == "include",
            reading=reading, progress=progress, **settings,
        )  # fmt: skip
    click.echo(json_text(similarity_data(found)) if as_json else similarity_text(found))
    return EXIT_REJECTS if found.rejected else 0


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit words homonyms.vectors 배 --layer -1\n"
    '  embedkit words bank --text "He robbed the bank." --text "Fish on the river bank."\n'
    "  embedkit words --marked wic_test.tsv --columns SENTENCE1,SENTENCE2 --label ANSWER "
    "--train wic_train.tsv\n"
)
@click.argument("what", nargs=-1)
@click.option("--text", "texts", multiple=True, help="A sentence; several with several --text.")
@click.option(
    "--match",
    default="word",
    show_default=True,
    type=click.Choice(MATCHES),
    help="word: whole words, of Hangul with particles; start: longer words too.",
)
@click.option("--layer", help="Layer or combination for clusters, such as -1. [the last]")
@click.option("--view", help="The same, as views are named: the layer of mean_-1.")
@click.option("--layers", default="all", show_default=True, help="Of --text and --marked.")
@click.option(
    "--clusters", type=click.IntRange(min=1), help="Number of clusters. [chosen by the silhouette]"
)
@click.option("--sense", help="Column with the known sense of each record.")
@click.option("--marked", type=click.Path(path_type=Path),
              help="File of word-in-context pairs, with the word marked as [word].")  # fmt: skip
@click.option("--columns", help="Columns of the two sentences of --marked, separated by a comma.")
@click.option("--label", help="Column with the label, true where the sense is the same.")
@click.option("--train", type=click.Path(path_type=Path),
              help="Word-in-context pairs to fit the threshold of every layer on.")  # fmt: skip
@click.option("--prefix", default="", help='Put before every sentence, such as "query: ".')
@click.option(
    "--seed", default=0, show_default=True, type=int, help="Seed of samples and of the bootstrap."
)
@_reading_options
@model_options
@output_options
def words(
    what: tuple[str, ...], texts: tuple[str, ...], marked: Path | None, as_json: bool, quiet: bool,
    verbose: bool, **settings: Any,
) -> int:  # fmt: skip
    """Compare the uses of a word.

    WHAT is DATASET WORD, or WORD with sentences in --text. With --marked, word-in-context pairs
    are compared instead. A dataset needs word or token vectors (extract --words or --tokens).
    """
    from embedkit.cli.search_text import marked_data, marked_text, words_data, words_text
    from embedkit.cli.text import json_text

    if marked is not None:
        if what or texts:
            raise UsageError("--marked FILE goes without WORD and --text.")
        pairs, test = _marked(marked, settings)
        click.echo(json_text(marked_data(pairs, test)) if as_json else marked_text(pairs, test))
        return EXIT_REJECTS if pairs.rejected or pairs.unmarked or pairs.cut else 0
    report = _uses(what, texts, settings)
    click.echo(json_text(words_data(report)) if as_json else words_text(report))
    return 0


def _load_encoder(settings: dict[str, Any]) -> Any:
    from embedkit.encoding.encoder import Encoder

    names = ("model", "revision", "offline", "device")
    return Encoder.load(**{name: settings[name] for name in names})


def _marked(marked: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    from embedkit.encoding.views import parse_layers
    from embedkit.words.wic import evaluate, marked_pairs

    columns = [name.strip() for name in (settings["columns"] or "").split(",")]
    if len(columns) != 2:
        raise UsageError("--marked needs --columns FIRST,SECOND, the columns of the sentences.")
    if settings["train"] is not None and settings["label"] is None:
        raise UsageError("--train needs --label COLUMN, true where the sense is the same.")
    encoder = _load_encoder(settings)
    layers = parse_layers(settings["layers"], n_layers=encoder.n_layers)
    names = ("format", "encoding", "quoting", "no_header", "unicode", "limit", "id")
    reading = reading_of({name: settings[name] for name in names})

    def read(path: Path) -> Any:
        return marked_pairs(path, encoder, layers, text=columns[0], text_pair=columns[1],
                            label=settings["label"], prefix=settings["prefix"],
                            reading=reading)  # fmt: skip

    pairs = read(marked)
    if settings["train"] is None:
        return pairs, None
    return pairs, evaluate(read(settings["train"]), pairs, seed=settings["seed"])


def _uses(what: tuple[str, ...], texts: tuple[str, ...], settings: dict[str, Any]) -> Any:
    from embedkit.encoding.views import parse_layers, parse_view
    from embedkit.words.describe import describe_uses
    from embedkit.words.uses import uses_in_dataset, uses_in_texts

    if len(what) != (1 if texts else 2):
        raise UsageError("give DATASET WORD, or WORD with sentences in --text, or --marked FILE.")
    if settings["layer"] is not None and settings["view"] is not None:
        raise UsageError("give --layer or --view: both name the layer.")
    word = what[-1]
    if texts:
        encoder = _load_encoder(settings)
        layers = parse_layers(settings["layers"], n_layers=encoder.n_layers)
        n_layers = encoder.n_layers
        found = uses_in_texts(encoder, texts, word, layers, match=settings["match"],
                              prefix=settings["prefix"])  # fmt: skip
    else:
        found = uses_in_dataset(what[0], word, match=settings["match"], seed=settings["seed"])
        n_layers = found.data.manifest.n_layers if found.data else 0
    layer = settings["layer"]
    if layer is not None:
        layer = parse_layers(layer, n_layers=n_layers)[0].name
    elif settings["view"] is not None:
        layer = parse_view(settings["view"], n_layers=n_layers).layer.name
    return describe_uses(
        found, word, layer=layer, clusters=settings["clusters"],
        senses=found.senses(settings["sense"]), seed=settings["seed"],
    )  # fmt: skip


@click.command(
    "map",
    epilog="\b\nExamples:\n"
    "  embedkit map reviews.vectors\n"
    "  embedkit map reviews.vectors --view cls_6 --method umap --color n_tokens --out umap\n"
    "  embedkit map reviews.vectors --projector logs\n",
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--view", help="Stored view, such as mean_-1. [last mean]")
@click.option("--out", help="Name of the files without .html and .png. [DATASET.map]")
@click.option(
    "--method",
    default="pca",
    show_default=True,
    type=click.Choice(MAP_METHODS),
    help="umap needs: pip install umap-learn.",
)
@click.option("--color", help="Column whose values give the colours. [label]")
@click.option("--limit", default=100_000, show_default=True, type=int,
              help="Largest number of records; of more a random sample is shown.")  # fmt: skip
@click.option(
    "--seed", default=0, show_default=True, type=int, help="Seed of the sample and of UMAP."
)
@click.option("--projector", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Write the files of the TensorBoard projector there instead.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace existing output.")
@output_options
def map_(
    dataset: Path, out: str | None, method: str, color: str | None, projector: Path | None,
    as_json: bool, quiet: bool, verbose: bool, **settings: Any,
) -> None:  # fmt: skip
    """Draw a view in two dimensions: a figure and an interactive HTML page."""
    from embedkit.cli.search_text import map_text
    from embedkit.cli.text import json_text, plain
    from embedkit.projection import draw_map, export_projector

    if projector is not None:
        count = export_projector(dataset, projector, **settings)
        if as_json:
            click.echo(json_text({"projector": str(projector), "points": count}))
        elif not quiet:
            click.echo(f"{visible(str(projector))}: {count:,} vectors for the projector; look at "
                       f"them: tensorboard --logdir {visible(str(projector))}")  # fmt: skip
        return
    where = out or f"{dataset.resolve().name}.map"
    found = draw_map(dataset, out=where, method=method, color=color, **settings)
    if as_json:
        click.echo(json_text(plain(found)))
    elif not quiet:
        click.echo(map_text(found))


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
