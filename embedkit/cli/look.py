"""Commands that look at vectors: search, index, similarity, words, explore and diff."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import embedkit
from embedkit.choices import INDEX_KINDS, LAYOUT_METHODS, MATCHES, SEARCH_METRICS
from embedkit.cli.command import Result, answer_lines, command
from embedkit.cli.options import (
    FILE,
    LAYERS,
    MODEL,
    NAME,
    POSITIVE,
    choice,
    names_of,
    option,
    options,
)
from embedkit.cli.text import asked_for_all, number_text, one_line, table_text
from embedkit.display import bytes_text, count_text, duration_text, json_line, visible
from embedkit.errors import EXIT_REJECTS, UsageError
from embedkit.runs.metrics import metric_text, score_text
from embedkit.types import clear_line

if TYPE_CHECKING:
    from embedkit.contexts.uses import Use, WordReport
    from embedkit.corpus.plan import CorpusOptions
    from embedkit.difference import Diff, Explanation
    from embedkit.maps.map import Explored
    from embedkit.search.exact import Answer, NearDuplicates
    from embedkit.sts import PairSimilarity
    from embedkit.types import ProgressCallback


_SHOWN = 100


@command(
    'embedkit search reviews.vectors "a waste of money" -k 5',
    "embedkit search reviews.vectors --json < questions.txt",
    "embedkit search reviews.vectors --like 17 --where \"label = '1'\"",
    'embedkit search reviews.vectors "good fun" --index hnsw',
    "embedkit search reviews.vectors --duplicates 0.95 --out pairs.csv",
)
@click.argument("dataset", type=FILE)
@click.argument("query", required=False)
@options(
    option("-k", "k", type=POSITIVE, help="Number of results per query. [10]"),
    option("--like", type=int, multiple=True, help="Find records like this row; can be repeated."),
    "--view",
    option("--metric", help="Similarity of two vectors.", **choice(SEARCH_METRICS, "cosine")),
    "--whitening",
    option("--where", help="SQL condition on the columns, such as \"label = '1'\"."),
    option(
        "--index", "kind", help="Search an index instead of all records.", **choice(INDEX_KINDS)
    ),
    option("--model", help="Location of the checkpoint, if moved. [its original name]", **MODEL),
    option(
        "--duplicates",
        "threshold",
        type=float,
        metavar="COSINE",
        help="Find the pairs of texts of the dataset that are so near, and their groups.",
    ),
    option("--out", type=FILE, help="File for the pairs: .tsv, .csv, .jsonl or .parquet."),
)
def search(
    dataset: Path,
    query: str | None,
    k: int | None,
    like: tuple[int, ...],
    kind: str | None,
    threshold: float | None,
    out: Path | None,
    progress: ProgressCallback,
    **settings: Any,
) -> Result | int:
    """Find the nearest texts of a dataset.

    DATASET is a folder that extract wrote, QUERY a text; without one every line of standard input
    is answered as it comes, by one process. Search is exact unless --index is given. Duplicate
    texts are returned once. With --duplicates there is no query: every two texts are compared.
    """
    if [query is not None, threshold is not None, bool(like)].count(True) > 1:
        raise UsageError("QUERY, --like ROW and --duplicates COSINE exclude each other; give one.")
    if threshold is not None:
        return _duplicates(dataset, threshold, out, progress, index=kind, k=k, **settings)
    if out is not None:
        raise UsageError("--out is for the pairs of --duplicates; redirect answers with >.")
    if kind is not None:
        from embedkit.search.index import open_index

        data = embedkit.load(dataset, settings["view"])
        shared = {name: settings[name] for name in ("metric", "whitening")}
        settings["finder"] = open_index(data, kind=kind, **shared)
    lines, k = query is None and not like, 10 if k is None else k
    searcher = embedkit.Searcher(dataset, progress=progress, warm=lines, **settings)
    if lines:
        as_json = click.get_current_context().params["as_json"]

        def show(line: str) -> None:
            answer = searcher.texts(line, k=k)
            clear_line()
            click.echo(json_line(asdict(answer)) if as_json else _answers_text([answer]))

        return answer_lines(show, "query")
    answers = searcher.like(like, k=k) if like else searcher.texts([str(query)], k=k)
    return Result(answers, lambda: _answers_text(answers), asked_for=True)


def _answers_text(answers: Sequence[Answer]) -> str:
    """A table for each query."""
    parts = []
    for answer in answers:
        parts.append(visible(one_line(answer.query), limit=_SHOWN))
        labelled = any(hit.label is not None for hit in answer.hits)
        rows: list[dict[str, Any]] = []
        for hit in answer.hits:
            rows.append({"score": f"{hit.score:.4f}", "row": hit.row, "id": hit.id})
            rows[-1] |= {"label": hit.label or ""} if labelled else {}
            if hit.text is not None:
                pair = hit.text if hit.text_pair is None else f"{hit.text} | {hit.text_pair}"
                rows[-1]["text"] = visible(one_line(pair), limit=_SHOWN)
        parts.append(table_text(rows))
    return "\n".join(parts)


def _duplicates(
    dataset: Path, threshold: float, out: Path | None, progress: ProgressCallback, **settings: Any
) -> Result:
    """The near-duplicates of a dataset: exact, by cosine, of its stored vectors."""
    from embedkit.prediction_files import check_file, write_rows

    for name in ("index", "k", "model", "metric"):
        if (value := settings.pop(name)) not in (None, "cosine"):
            option = f"--{name}" if name != "k" else "-k"
            raise UsageError(f"{option} {value} is for queries, not for --duplicates.")
    if out is not None:
        # before every two texts are compared
        check_file(out)
    duplicates = embedkit.near_duplicates(
        dataset, threshold=threshold, progress=progress, **settings
    )
    if out is not None:
        write_rows(duplicates.pairs, PAIR_COLUMNS, out)
    return Result(duplicates, lambda: _duplicates_text(duplicates, out), asked_for=True)


_PAIRS = 10
PAIR_COLUMNS = {"group": "int64", "cosine": "float64"} | {
    f"{whose}{name}": kind
    for whose in ("", "other_")
    for name, kind in (("row", "int64"), ("id", "string"), ("text", "string"))
}
"""Columns of a file of pairs, with their Arrow types."""


def _duplicates_text(duplicates: NearDuplicates, out: Path | None) -> str:
    """How many there are, and the nearest pair of each of the largest groups."""
    lines = [
        f"{duplicates.grouped:,} of {count_text(duplicates.records, 'record')} have a "
        f"near-duplicate (cosine {duplicates.threshold:g} or more): "
        f"{count_text(len(duplicates.pairs), 'pair')} in "
        f"{count_text(duplicates.groups, 'group')}; {duplicates.repeated:,} repeat a text"
    ]
    rows: list[dict[str, Any]] = []
    for number, members in islice(groupby(duplicates.pairs, itemgetter("group")), _PAIRS):
        nearest, *others = members
        records = {pair[n] for pair in (nearest, *others) for n in ("row", "other_row")}
        rows.append({"group": number, "records": len(records)})
        rows[-1]["cosine"] = f"{nearest['cosine']:.4f}"
        rows[-1]["rows"] = f"{nearest['row']}, {nearest['other_row']}"
        for name in ("text", "other_text"):
            rows[-1][name] = visible(one_line(nearest[name]), limit=_SHOWN // 2)
    lines += [table_text(rows)] if rows else []
    if (rest := duplicates.groups - len(rows)) > 0:
        lines.append(f"{count_text(rest, 'more group')}: {out or '--out FILE has every pair'}")
    elif out is not None:
        lines.append(f"wrote {out}")
    return "\n".join(lines)


@command("embedkit index reviews.vectors", "embedkit index reviews.vectors --kind ivf --view cls_6")
@click.argument("dataset", type=FILE)
@options(
    option("--kind", help="{INDEX_KINDS}.", **choice(INDEX_KINDS, "hnsw")),
    "--view --whitening --overwrite",
)
def index(dataset: Path, progress: ProgressCallback, **settings: Any) -> Result:
    """Build an index for approximate search by cosine.

    It is saved in the folder of the dataset. Its recall is measured with up to 500 held-out
    records, which are added afterwards.
    """
    info = embedkit.index(dataset, progress=progress, **settings)
    recall = "too few records to measure its recall"
    if info.recall is not None:
        share = metric_text(info.recall, "accuracy", unit=True)
        recall = f"it finds {share} of the ten nearest records (recall@10)"
    text = (
        f"{dataset}: {info.kind} index of {info.records:,} × {info.width} "
        f"({info.view}, {info.metric}{f', {info.whitening}' * bool(info.whitening)}), "
        f"{bytes_text(info.nbytes)}, in {duration_text(info.seconds)}; {recall}"
    )
    return Result(info, lambda: text)


_MATRIX, _FEW = 10, 4


@command(
    "embedkit similarity sts.tsv --text sentence1 --text-pair sentence2 --score score",
    "embedkit similarity pairs.csv --text a --text-pair b --layers -1 --out pairs",
    with_all=True,
)
@click.argument("corpus", type=FILE)
@options(
    option("--text", required=True, help="Column of the first text."),
    option("--text-pair", required=True, help="Column of the second text."),
    option("--score", help="Column of the human score."),
    option("--layers", default="all", help=LAYERS),
    option("--pooling", default="cls,mean,max", help="{POOLINGS}."),
    option("--out", type=FILE, help="Folder for the cosines, the table and the figure."),
    "--overwrite --model --quoting",
)
def similarity(
    corpus: Path, reading: CorpusOptions, progress: ProgressCallback, **settings: Any
) -> Result:
    """Compute cosine similarities of text pairs.

    Every layer and pooling is a view. Without --score the cosine of every pair is printed; with it
    the correlation of every view with the score.
    """
    settings |= {"text": reading.text, "text_pair": reading.text_pair}
    result = embedkit.similarity(corpus, reading=reading, progress=progress, **settings)
    pairs = [
        {
            "row": record.row,
            "id": record.id,
            "score": None if result.gold is None else float(result.gold[i]),
            "cosine": {name: float(values[i]) for name, values in result.cosines.items()},
        }
        for i, record in enumerate(result.records)
    ]
    counts = {"rejected": result.rejected, "truncated": result.truncated}
    return Result(
        {"model": result.model, "agreement": result.agreement, "as_high": result.as_high}
        | {**counts, "pairs": pairs},
        lambda: _similarity_text(result, pairs),
        asked_for=True,
        code=EXIT_REJECTS if result.rejected else 0,
    )


def _similarity_text(result: PairSimilarity, pairs: list[dict[str, Any]]) -> str:
    """Correlations by pooling and layer; without human scores the cosine of every pair."""
    from embedkit.cli.run_text import agreement_finding, agreement_table, grid_text

    count = count_text(len(result.records), "pair")
    count += f", {count_text(result.rejected, 'record')} rejected" if result.rejected else ""
    count += f", {count_text(result.truncated, 'text')} cut" if result.truncated else ""
    if result.gold is not None and (lacking := int(np.isnan(result.gold).sum())):
        count += f", {lacking:,} without a score"
    if not result.agreement:
        cells = [
            {"row": pair["row"], "id": pair["id"]}
            | {name: number_text(cosine) for name, cosine in pair["cosine"].items()}
            for pair in pairs
        ]
        return f"{table_text(cells)}\n{count}"
    scores = {view: correlations["spearman"] for view, correlations in result.agreement.items()}
    lines = [
        agreement_finding(result),
        f"Spearman of the cosine with the score, {count} ({result.model}):",
        grid_text({view: number_text(score.value) for view, score in scores.items()}),
    ]
    finite = [score for score in scores.values() if math.isfinite(score.value)]
    if finite:
        width = max((score.high - score.low) / 2 for score in finite)
        more = "" if asked_for_all() else "; all, and Pearson: --all"
        lines.append(f"95 % intervals: ±{number_text(width)} at most{more}")
    if len(finite) < len(scores):
        lines.append("–: the cosines of all pairs are equal, so there is no correlation")
    return "\n".join([*lines, *agreement_table(result)])


@command(
    "embedkit words homonyms.vectors 배 --layer -1",
    'embedkit words bank --text "He robbed the bank." --text "Fish on the river bank."',
    with_all=True,
)
@click.argument("what", nargs=-1, type=NAME)
@options(
    option("--text", "texts", multiple=True, help="A sentence; can be repeated."),
    option("--match", help="{MATCHES}.", **choice(MATCHES, "word")),
    option("--layer", help="Layer of the cosines, or layers such as sum:-4..-1. [the last]"),
    option("--model", help="Checkpoint that encodes --text. [the default of extract]", **MODEL),
)
def words(what: tuple[str, ...], texts: tuple[str, ...], **settings: Any) -> Result:
    """Compare the uses of a word.

    WHAT is a DATASET and a WORD, or a WORD alone with --text.

    A dataset needs word or token vectors (extract --words or --tokens).
    """
    if len(what) != (1 if texts else 2):
        raise UsageError("give DATASET WORD, or WORD with sentences in --text.")
    report = embedkit.words(texts or what[0], what[-1], **settings)
    data = {**asdict(report), "cosines": report.cosines.tolist()}
    return Result(data, lambda: _words_text(report), asked_for=True)


def _words_text(report: WordReport) -> str:
    """The finding and uses, few of them with their cosines; with ``--all`` every layer."""
    lines = [_words_finding(report)]
    if report.skipped:
        lines.append(f"{count_text(report.skipped, 'more use')} in parts of texts that were cut")
    everything = asked_for_all()
    if len(report.uses) <= (_MATRIX if everything else _FEW):
        cosines = [
            {"use": i, "text": _snippet(use)}
            | {str(j): number_text(float(c)) for j, c in enumerate(report.cosines[i])}
            for i, use in enumerate(report.uses)
        ]
        lines.append(table_text(cosines))
    else:
        shown = report.uses if everything else report.uses[:_FEW]
        lines += [f"  {_snippet(use)}  (row {use.row})" for use in shown]
    left = len(report.uses) - _FEW
    if not everything:
        more = f"{count_text(left, 'more use')}, " if left > 0 else ""
        return "\n".join([*lines, f"{more}layers: --all"])
    rows = [
        {"layer": layer, "mean cosine": number_text(cosine)}
        | ({"any two words": number_text(report.others.get(layer))} if report.others else {})
        for layer, cosine in report.layers.items()
    ]
    return "\n".join([*lines, table_text(rows)])


def _words_finding(report: WordReport) -> str:
    """The mean cosine of two uses, and the layer where it is least."""
    count = f"{count_text(len(report.uses), 'use')} of {report.word}"
    cosines = {layer: cosine for layer, cosine in report.layers.items() if math.isfinite(cosine)}
    if not cosines:
        return f"{count}: nothing to compare it with"
    least = min(cosines, key=cosines.__getitem__)
    mean = "their cosine" if len(report.uses) == 2 else "mean cosine of two"
    text = f"{count}: {mean} is {number_text(cosines[report.layer])} at layer {report.layer}"
    if least == report.layer:
        return text
    return f"{text} (least at layer {least}: {number_text(cosines[least])})"


def _snippet(use: Use) -> str:
    """The word in brackets, with some text around it."""
    from embedkit.pages import in_context

    return one_line(in_context(use.text, use.start, use.end, around=30))


@command(
    "embedkit explore reviews.vectors",
    "embedkit explore reviews.vectors --view cls_6 --color n_tokens --out reviews.html",
    "embedkit explore reviews.vectors --view mean_12,mean_6 --method pca",
)
@click.argument("dataset", type=FILE)
@options(
    option("--view", help="Views of the slider: mean_6,mean_0. [all of a pooling]"),
    option("--method", help="Layout in two dimensions.", **choice(LAYOUT_METHODS, "tsne")),
    option("--color", help="Column for the first colours, or clusters. [label, else clusters]"),
    option("--out", type=FILE, help="The page. [DATASET.explore.html]"),
    "--overwrite",
)
def explore(dataset: Path, view: str | None, progress: ProgressCallback, **settings: Any) -> Result:
    """Write a page that shows texts as points, layer by layer.

    The page is one HTML file with search, colours, selections and nearest neighbours. It states the
    fraction of neighbours that the picture keeps. Layouts are openTSNE's; each begins where that of
    the layer beside it ended.
    """
    picture = embedkit.explore(dataset, view=names_of(view) or None, progress=progress, **settings)
    return Result(picture, lambda: _text(picture))


def _hundred(share: float) -> int:
    # a half upwards, as the page rounds the same number
    return math.floor(100 * share + 0.5)


def _text(picture: Explored) -> str:
    first = next(row for row in picture.views if row["view"] == picture.shown)
    total = f" of {picture.records:,}" * (picture.points < picture.records)
    count = f"{count_text(picture.points, 'record')}{total}"
    size = f"{count_text(len(picture.views), 'view')}, {bytes_text(picture.nbytes)}"
    text = f"the picture keeps {_hundred(first['kept'])} of 100 nearest neighbours"
    if not math.isnan(same := first["same_label"]):
        best = max(picture.views, key=itemgetter("same_label"))
        is_more = _hundred(best["same_label"]) > _hundred(same)
        most = f"; most at {best['view']}: {_hundred(best['same_label'])}" * is_more
        text += f"; {_hundred(same)} of 100 have the label of their text"
        text += f" (by chance {_hundred(picture.chance)}{most})"
    return f"{picture.page}: {count}, {size}\n  {picture.shown}: {text}"


_TRIED, _MOVED, _EQUAL = 2, 3, 1e-3


@command(
    "embedkit diff reviews.vectors theirs.npy",
    "embedkit diff reviews.vectors reviews-int8.vectors",
    "embedkit diff reviews.vectors reviews.vectors --view mean_6,mean_5",
    with_all=True,
)
@click.argument("dataset", type=FILE)
@click.argument("other", type=FILE)
@options(
    option(
        "--view",
        help="Stored view of both, or two with a comma between: mean_6,mean_5; of a file its "
        "column of vectors: mean_6,vector. [the last mean]",
    )
)
def diff(dataset: Path, other: Path, view: str | None, progress: ProgressCallback) -> Result:
    """Compare vectors of the same texts, and say which setting explains the difference.

    OTHER is a dataset too, or a file that any tool wrote: .npy, .parquet, .csv, .tsv or .jsonl,
    joined by its column id, without one by the order of its rows.

    If vectors of another tool differ, some texts are encoded again with other settings (layer,
    pooling, normalization, prefix, length, case, precision), to name those that come nearest.
    """
    result = embedkit.diff(dataset, other, view=names_of(view) or None, progress=progress)
    return Result(result, lambda: _diff_text(result), asked_for=True)


def _diff_text(result: Diff) -> str:
    """The answer, what it rests on, and the records that moved most."""
    per_cent = partial(metric_text, metric="accuracy")
    counts = {"only in the first": result.only_a, "only in the second": result.only_b}
    counts |= {"left out, whose texts differ": result.other_texts}
    far, cosines, gap = result.distance, result.cosines.items(), result.difference
    together = count_text(result.together, "record")
    facts = {
        "records": f"{result.records:,} in both, by {result.joined}"
        + "".join(f", {count:,} {name}" for name, count in counts.items() if count),
        "settings": "; ".join(result.settings),
    }
    if math.isfinite(far["median"]):
        facts["distance"] = (
            f"{far['median']:.1e} (median), {far['largest']:.1e} (largest, relative L2); "
            f"{result.equal:,} have the same bits"
        )
        facts["cosine"] = ", ".join(f"{number_text(value)} ({name})" for name, value in cosines)
    if math.isfinite(result.kept):
        facts["neighbours"] = (
            f"{result.kept:.1f} of ten are kept; linear CKA {result.cka:.4f} (of {together})"
        )
    if gap is not None:
        first, second = (per_cent(value, unit=True) for value in result.accuracies)
        facts["decisions"] = (
            f"{per_cent(result.decisions, unit=True)} change; accuracy {first} and {second}, "
            f"{score_text(gap, 'accuracy', signed=True)}"
        )
    lines = [_diff_finding(result), *(f"{n:12}{fact}" for n, fact in facts.items() if fact)]
    everything = asked_for_all()
    tried = result.explanations if everything else result.explanations[:_TRIED]
    tried = tried if len(tried) > 1 else ()  # one alone is the answer
    lines += [f"tried       {trial.distance:.1e} with {_settings_text(trial)}" for trial in tried]
    rows = [
        {"row": row["row"], "id": row["id"], "cosine": number_text(row["cosine"])}
        | {"kept": "–" if row["kept"] is None else f"{row['kept']:g}"}
        | {"text": visible(one_line(row.get("text", "")), limit=_SHOWN // 2)}
        for row in (result.moved if everything else result.moved[:_MOVED])
    ]
    return "\n".join([*lines, *([table_text(rows)] if rows else [])])


def _diff_finding(result: Diff) -> str:
    """Equal, explained by settings, or how much of what vectors are used for stays."""
    from embedkit.difference import ROUNDING

    largest, best = result.distance["largest"], result.explanation
    if result.equal == result.records:
        both = " that both have" * (not result.same)
        return f"the same vectors, bit for bit: {count_text(result.records, 'record')}{both}"
    if largest <= ROUNDING:
        return f"equal to within {largest:.1e} (relative L2), as engines of one precision are"
    if best is not None:
        settings = _settings_text(best)
        if best.largest <= _EQUAL:
            how = f"equal to within {best.largest:.1e}" if best.largest else "the same bits"
            return f"{how} with {settings}"
        return (
            f"nearest with {settings}: {best.distance:.1e} apart, {result.before:.1e} without "
            "(relative L2)"
        )
    finding = f"{result.kept:.1f} of ten nearest neighbours are kept"
    if math.isnan(result.kept):
        finding = "fewer than 12 texts, of which neighbours are not compared"
    if result.difference is not None:
        finding += f", {metric_text(result.decisions, 'accuracy', unit=True)} of decisions change"
    return finding + "; no setting that was tried explains it" * bool(result.explanations)


_IN_WORDS = {
    "special_tokens": "special_tokens={}",
    "case": "texts {}",
    "dense": "the Dense of the checkpoint {}",
    "rounding": "vectors in {}",
    "order": "rows in another order ({})",
}
"""Settings that are no options of extract."""


def _settings_text(trial: Explanation) -> str:
    options = [
        ("--normalize" if value else "--no-normalize")
        if name == "normalize"
        else f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in trial.settings.items()
        if name not in _IN_WORDS
    ]
    words = [_IN_WORDS[n].format(value) for n, value in trial.settings.items() if n in _IN_WORDS]
    return ", ".join([*[" ".join(options)] * bool(options), *words]) or "the settings of the first"
