"""Commands that encode texts to compare them: similarity, words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import MATCHES
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, LAYERS, names_of, option, options, reading_of
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import (
    count_text,
    interval_text,
    number_text,
    one_line,
    percent_text,
    table_text,
    terminal_width,
    wrapped,
)
from embedkit.display import metric_text, visible
from embedkit.errors import EXIT_REJECTS, UsageError

if TYPE_CHECKING:
    from embedkit.sts import PairSimilarity
    from embedkit.words.describe import LayerReport, WordReport
    from embedkit.words.senses import SenseReport
    from embedkit.words.uses import Use
    from embedkit.words.wic import MarkedPairs, SenseTest

__all__ = ["similarity", "words"]

_MATRIX = 10
_OF_SENSES = ("sense", "span", "word_column", "out", "figure")


@command(
    "embedkit similarity sts.tsv --text sentence1 --text-pair sentence2 --score score",
    "embedkit similarity pairs.csv --text a --text-pair b --layers -1 --out pairs",
    tables=True,
)
@click.argument("corpus", type=FILE)
@options(
    option("--text", required=True, help="Column of the first text."),
    option("--text-pair", required=True, help="Column of the second text."),
    option("--score", help="Column of the human score."),
    option("--layers", default="all", help=LAYERS),
    option("--pooling", default="cls,mean,max",
           help="cls, mean, max, last_token or pooler; several with commas."),
    "--special-tokens", "--prefix", "--max-length", "--precision",
    option("--out", type=FILE, help="Folder for the cosines, the table and the figure."),
    "--overwrite", "--id", "dialect", "--limit", "model",
)  # fmt: skip
def similarity(corpus: Path, pooling: str, special_tokens: str, id: str | None, **settings: Any
               ) -> Result:  # fmt: skip
    """Compute cosine similarities of text pairs.

    Every layer and pooling is a view. Without --score the cosine of every pair is printed; with it
    the correlation of every view with the score.
    """
    from embedkit.sts import similarity as compare

    columns = {name: settings.pop(name) for name in ("text", "text_pair")}
    reading = reading_of(settings)
    with progress_bar() as progress:
        found = compare(
            corpus, pooling=pooling, special_tokens=special_tokens == "include", id=id,
            reading=reading, progress=progress, **columns, **settings,
        )  # fmt: skip
    return Result(
        _similarity_data(found), lambda: _similarity_text(found), bool(found.agreement),
        asked_for=True,
        code=EXIT_REJECTS if found.rejected else 0,
    )  # fmt: skip


def _similarity_text(found: PairSimilarity) -> str:
    """Correlations by layer and pooling; without human scores the cosine of every pair."""
    from embedkit.cli.run_text import agreement_finding
    from embedkit.encoding.views import split_view

    count = f"{len(found.records):,} pairs"
    count += f", {found.rejected:,} records rejected" if found.rejected else ""
    count += f", {found.truncated:,} texts cut" if found.truncated else ""
    if not found.agreement:
        table = table_text([
            {"row": record.row, "id": record.id,
             **{name: number_text(values[i]) for name, values in found.cosines.items()}}
            for i, record in enumerate(found.records)
        ])  # fmt: skip
        return f"{table}\n{count}"
    rows: dict[str, dict[str, str]] = {}
    poolings: dict[str, None] = {}
    for one in found.agreement:
        pooling, layer = split_view(one.view)
        poolings[pooling] = None
        rows.setdefault(layer or "–", {})[pooling] = number_text(one.spearman.value)
    lines = [
        agreement_finding(found.agreement),
        f"Spearman of the cosine with the score, {count} ({visible(found.model)}):",
        table_text([{"layer": layer, **{name: cells.get(name, "") for name in poolings}}
                    for layer, cells in rows.items()]),
    ]  # fmt: skip
    scores = [one.spearman for one in found.agreement if math.isfinite(one.spearman.value)]
    if scores:
        width = max((score.high - score.low) / 2 for score in scores)
        lines.append(f"95 % intervals: ±{number_text(width)} at most; Pearson: --json, or "
                     "embedkit info of --out")  # fmt: skip
    if len(scores) < len(found.agreement):
        lines.append("–: the cosines of all pairs are equal, so there is no correlation")
    return "\n".join(lines)


def _similarity_data(found: PairSimilarity) -> dict[str, Any]:
    return {
        "model": found.model,
        "agreement": [asdict(one) for one in found.agreement],
        "rejected": found.rejected,
        "truncated": found.truncated,
        "pairs": _pairs_data(found, lambda i: {
            "score": None if found.gold is None else float(found.gold[i]),
        }),
    }  # fmt: skip


def _pairs_data(
    found: PairSimilarity | MarkedPairs, more: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Records with further columns, and their cosines."""
    return [
        {"row": record.row, "id": record.id, **more(i),
         "cosine": {name: float(values[i]) for name, values in found.cosines.items()}}
        for i, record in enumerate(found.records)
    ]  # fmt: skip


@command(
    "embedkit words homonyms.vectors 배 --layer -1",
    "embedkit words homonyms.vectors --sense label --span start,end --out senses.html",
    'embedkit words bank --text "He robbed the bank." --text "Fish on the river bank."',
    "embedkit words --marked wic_test.tsv --columns SENTENCE1,SENTENCE2 --label ANSWER "
    "--train wic_train.tsv",
    tables=True,
)
@click.argument("what", nargs=-1)
@options(
    option("--text", "texts", multiple=True, help="A sentence; can be repeated."),
    option("--match", default="word", type=click.Choice(MATCHES),
           help="word: whole words, in Hangul with particles; start: longer words too; anywhere: "
           "any substring."),
    option("--layer", help="Layer or combination of layers to cluster, such as -1. [the last]"),
    option("--view", help="The layer, given as a view such as mean_-1."),
    option("--layers", default="all", help=f"Layers for --text and --marked: {LAYERS}"),
    option("--clusters", type=click.IntRange(min=1),
           help="Number of clusters. [chosen by silhouette score]"),
    option("--sense", help="Column with the sense of each record: compare uses with the same and "
           "with other senses, layer by layer, of WORD or of all words of --span."),
    option("--span", metavar="START,END",
           help="Columns with the first character of the use in a record and the one after its "
           "last; other occurrences are no uses. [all occurrences of WORD]"),
    option("--word-column", help="Column that names the word of each span. [word, else the text "
           "of the span]"),
    option("--center/--no-center", default=True,
           help="Subtract the mean of each layer over all words before senses are compared."),
    option("--out", type=FILE, help="Page that shows the uses layer by layer (.html)."),
    option("--figure", type=FILE, help="Figure with a panel for each layer (.pdf, .svg, .png)."),
    option("--against", type=FILE, help="Dataset of the same corpus by another model, shown beside "
           "the first on the page."),
    "--overwrite",
    option("--marked", type=FILE,
           help="Corpus of word-in-context pairs, with the word marked as [word]."),
    option("--columns", help="Columns of the two sentences of --marked, separated by a comma."),
    option("--label", help="Column that is true where the two senses are the same."),
    option("--train", type=FILE,
           help="Word-in-context pairs on which the threshold of every layer is fitted."),
    "--prefix",
    "--seed",
    "--id", "dialect", "--limit", "model",
)  # fmt: skip
def words(
    what: tuple[str, ...], texts: tuple[str, ...], marked: Path | None, **settings: Any
) -> Result:
    """Compare the uses of a word.

    WHAT is DATASET WORD, or WORD with sentences in --text, or with --span DATASET alone, for all
    words. With --marked, word-in-context pairs are compared instead. A dataset needs word or token
    vectors (extract --words or --tokens; --keep the columns of --span).
    """
    if marked is not None:
        if what or texts:
            raise UsageError("--marked FILE goes without WORD and --text.")
        pairs, test = _compare_marked(marked, settings)
        left_out = pairs.rejected or pairs.unmarked or pairs.cut
        return Result(_marked_data(pairs, test), lambda: _marked_text(pairs, test),
                      test is not None, asked_for=True,
                      code=EXIT_REJECTS if left_out else 0)  # fmt: skip
    of_senses = any(settings[name] for name in _OF_SENSES)
    if of_senses and texts:
        raise UsageError("sentences have no columns: --sense, --span and pages need a dataset.")
    if of_senses or settings["against"]:
        return _senses(what, settings)
    report = _describe(what, texts, settings)
    data = {**asdict(report), "cosines": report.cosines.tolist(),
            "clusters": report.clusters.tolist()}  # fmt: skip
    return Result(data, lambda: _words_text(report), finding=True, asked_for=True)


def _senses(what: tuple[str, ...], settings: dict[str, Any]) -> Result:
    """Senses by layer, as a table, a page and a figure."""
    from embedkit.explore.senses_page import check_outputs, write_senses
    from embedkit.words.senses import compare_senses

    names = names_of(settings["span"]) or []
    if len(what) not in (1, 2) or (len(what) == 1 and not names):
        raise UsageError("give DATASET WORD, or DATASET with --span START,END for all words.")
    if names and len(names) != 2:
        raise UsageError("--span needs two columns: START,END.")
    out, figure, other = settings["out"], settings["figure"], settings["against"]
    if other is not None and out is None:
        raise UsageError("--against is for the page: give --out PAGE too.")
    check_outputs(out, figure, overwrite=settings["overwrite"])
    with progress_bar() as progress:
        reports = [
            compare_senses(
                dataset, what[1] if len(what) == 2 else None, sense=settings["sense"],
                span=(names[0], names[1]) if names else None,
                word_column=settings["word_column"], match=settings["match"],
                center=settings["center"], seed=settings["seed"], progress=progress,
            )
            for dataset in [what[0], *([other] if other is not None else [])]
        ]  # fmt: skip
    if out is not None or figure is not None:
        write_senses(reports, out=out, figure=figure, overwrite=settings["overwrite"])
    written = [str(file) for file in (out, figure) if file is not None]
    data = [_senses_data(report) for report in reports]
    return Result({"models": data, "files": written},
                  lambda: "\n\n".join([_senses_text(r) for r in reports] + written),
                  finding=True, asked_for=True)  # fmt: skip


def _senses_text(report: SenseReport) -> str:
    """The finding, and every layer."""
    count = f"{len(report.by_word)} words" if len(report.by_word) > 1 else report.words[0]
    found = f"{report.model}: {count}, {count_text(len(report.uses), 'use')}"
    if report.scored:
        best = max(report.layers, key=lambda one: one.nearest.value)
        score = best.nearest
        found += (
            f"; the nearest other use has the same sense in {percent_text(score.value)} at layer "
            f"{best.layer} ({interval_text(score, 'accuracy')}), the most of all layers; chance "
            f"{percent_text(report.chance)}"
        )
    if report.skipped:
        found += f"; {report.skipped:,} more are in parts of texts that were cut"
    if not report.scored:
        return found
    table = table_text([
        {"layer": one.layer, "nearest has the same, %": metric_text(one.nearest.value, "accuracy"),
         "95 % interval": interval_text(one.nearest, "accuracy"),
         "same sense": number_text(one.same), "other sense": number_text(one.other),
         "difference": number_text(one.same - one.other, "+.3f")}
        for one in report.layers
    ])  # fmt: skip
    means = (
        "cosines of two uses of a word" + ", the mean of each layer subtracted" * report.centered
    )
    return f"{found}\n{table}\n{means}"


def _senses_data(report: SenseReport) -> dict[str, Any]:
    return {
        "model": report.model, "centered": report.centered, "chance": report.chance,
        "scored": report.scored, "skipped": report.skipped,
        "layers": [asdict(one) for one in report.layers],
        "words": {
            name: [{"layer": layer, "same": same, "other": other}
                   for layer, (same, other) in zip(report.units, values, strict=True)]
            for name, values in report.by_word.items()
        },
        "uses": [{**asdict(use), "word": word, "sense": sense} for use, word, sense in
                 zip(report.uses, report.words, report.senses, strict=True)],
    }  # fmt: skip


def _load_encoder(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The encoder, and the layers to read."""
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.views import parse_layers

    names = ("model", "revision", "offline", "device")
    encoder = Encoder.load(**{name: settings[name] for name in names})
    return encoder, parse_layers(settings["layers"], n_layers=encoder.n_layers)


def _compare_marked(marked: Path, settings: dict[str, Any]) -> tuple[MarkedPairs, SenseTest | None]:
    from embedkit.words.wic import evaluate, marked_pairs

    columns = names_of(settings["columns"]) or []
    train, label = settings["train"], settings["label"]
    if len(columns) != 2:
        raise UsageError("--marked needs --columns FIRST,SECOND, the columns of the sentences.")
    if train is not None and label is None:
        raise UsageError("--train needs --label COLUMN, true where the senses are the same.")
    if label is not None and train is None:
        raise UsageError("--label is for the threshold that is fitted on --train FILE. Give both.")
    encoder, layers = _load_encoder(settings)
    names = ("format", "encoding", "quoting", "no_header", "unicode", "limit", "id")
    reading = reading_of({name: settings[name] for name in names})

    def read(path: Path) -> MarkedPairs:
        return marked_pairs(path, encoder, layers, text=columns[0], text_pair=columns[1],
                            label=label, prefix=settings["prefix"], reading=reading)  # fmt: skip

    pairs = read(marked)
    return pairs, None if train is None else evaluate(read(train), pairs, seed=settings["seed"])


def _describe(what: tuple[str, ...], texts: Sequence[str], settings: dict[str, Any]) -> WordReport:
    from embedkit.encoding.views import parse_layers, parse_view
    from embedkit.words.describe import describe_uses
    from embedkit.words.uses import uses_in_dataset, uses_in_texts

    if len(what) != (1 if texts else 2):
        raise UsageError("give DATASET WORD, or WORD with sentences in --text, or --marked FILE.")
    layer, view, match, seed = (settings[name] for name in ("layer", "view", "match", "seed"))
    if layer is not None and view is not None:
        raise UsageError("give --layer or --view: both name the layer.")
    word = what[-1]
    if texts:
        encoder, layers = _load_encoder(settings)
        n_layers = encoder.n_layers
        found = uses_in_texts(encoder, texts, word, layers, match=match, prefix=settings["prefix"])
    else:
        found = uses_in_dataset(what[0], word, match=match, seed=seed)
        n_layers = found.data.manifest.n_layers if found.data else 0
    if layer is not None:
        layer = parse_layers(layer, n_layers=n_layers)[0]
    elif view is not None:
        layer = parse_view(view, n_layers=n_layers).layer
    return describe_uses(found, word, layer=layer, clusters=settings["clusters"], seed=seed)


def _words_text(report: WordReport) -> str:
    """The finding, uses, their similarity, their clusters, other words, and all layers."""
    lines = [_words_finding(report)]
    if report.skipped:
        lines.append(f"{report.skipped:,} more uses are in parts of texts that were cut")
    if len(report.uses) <= _MATRIX:
        lines.append(table_text([
            {"use": i, "text": _snippet(use),
             **{str(j): number_text(float(cosine)) for j, cosine in enumerate(report.cosines[i])}}
            for i, use in enumerate(report.uses)
        ]))  # fmt: skip
    width = terminal_width()
    for c, examples in enumerate(report.examples):
        size = int((report.clusters == c).sum())
        lines.append(f"cluster {c}: {count_text(size, 'use')}")
        lines += [f"    {_snippet(report.uses[i])}  (row {report.uses[i].row})" for i in examples]
        if report.neighbours:
            near = ", ".join(f"{visible(n.word)} {n.cosine:.2f}" for n in report.neighbours[c])
            lines += wrapped(near, width, first="    near: ", others="          ")
    rows = [_layer_cells(layer) for layer in report.layers]
    names = [n for n in rows[0] if n == "mean cosine" or any(row[n] != "–" for row in rows)]
    lines.append(table_text([{name: row[name] for name in names} for row in rows]))
    return "\n".join(lines)


def _words_finding(report: WordReport) -> str:
    """How many groups the uses form, and at which layer these lie furthest apart."""
    count = f"{count_text(len(report.uses), 'use')} of {visible(report.word)}"
    number = len(report.examples)
    if number < 2:
        return f"{count}, layer {report.layer}: one group, no senses are told apart"
    apart = {one.layer: one.within - one.between for one in report.layers}
    best = max((name for name in apart if math.isfinite(apart[name])),
               key=lambda name: apart[name], default=report.layer)  # fmt: skip
    chosen = next(one for one in report.layers if one.layer == report.layer)
    return (
        f"{count}, layer {report.layer}: {number} groups, cosine {number_text(chosen.within)} in a "
        f"group and {number_text(chosen.between)} between groups; furthest apart at layer {best}"
    )


def _layer_cells(layer: LayerReport) -> dict[str, str]:
    numbers = {
        "mean cosine": layer.cosine,
        "in a cluster": layer.within,
        "between clusters": layer.between,
        "any two words": layer.others,
    }
    return {"layer": layer.layer} | {n: number_text(v) for n, v in numbers.items()}


def _snippet(use: Use, around: int = 30) -> str:
    """The word in brackets, with some text around it."""
    left, right = use.text[: use.start], use.text[use.end :]
    left = "…" * (len(left) > around) + left[-around:] if left else ""
    right = right[:around] + "…" * (len(right) > around)
    return visible(one_line(f"{left}[{use.text[use.start : use.end]}]{right}"))


def _marked_text(pairs: MarkedPairs, test: SenseTest | None) -> str:
    """Accuracy by layer, or the cosine of every pair at every layer."""
    left = f"{pairs.unmarked} unmarked, {pairs.cut} cut off, {pairs.rejected} rejected"
    if test is None:
        table = table_text([
            {"row": record.row, "words": " / ".join(pairs.words[i]),
             **{name: number_text(float(values[i])) for name, values in pairs.cosines.items()}}
            for i, record in enumerate(pairs.records)
        ])  # fmt: skip
        return f"{table}\n{len(pairs.records):,} pairs; {left}"
    best = next(one for one in test.layers if one.layer == test.chosen)
    table = table_text([
        {"layer": one.layer, "test, %": metric_text(one.test.value, "accuracy"),
         "95 % interval": interval_text(one.test, "accuracy"),
         "train, %": metric_text(one.train, "accuracy"), "threshold": number_text(one.threshold),
         "": "best on train" if one.layer == test.chosen else ""}
        for one in test.layers
    ])  # fmt: skip
    return "\n".join([
        f"whether two uses have the same sense: {percent_text(best.test.value)} right "
        f"({interval_text(best.test, 'accuracy')}) at layer {test.chosen}, the best on the "
        f"training pairs; majority {percent_text(test.majority)}",
        f"accuracy on {test.n_test:,} pairs ({left}); thresholds from {test.n_train:,} other pairs",
        table,
    ])  # fmt: skip


def _marked_data(pairs: MarkedPairs, test: SenseTest | None) -> dict[str, Any]:
    return {
        "test": None if test is None else asdict(test),
        "unmarked": pairs.unmarked,
        "cut": pairs.cut,
        "rejected": pairs.rejected,
        "pairs": _pairs_data(pairs, lambda i: {
            "words": list(pairs.words[i]),
            "same": None if pairs.same is None else bool(pairs.same[i]),
        }),
    }  # fmt: skip
