"""Commands from vectors to results: split, train, probe, predict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import FORMATS, QUOTINGS
from embedkit.cli.options import SEED, corpus_options, notifier, output_options, reading_of
from embedkit.display import visible, without_nan
from embedkit.errors import EXIT_INTERRUPTED, EXIT_REJECTS, OutputExistsError, UsageError

if TYPE_CHECKING:
    from embedkit.corpus import CorpusOptions, CorpusReader
    from embedkit.predict import Prediction, Predictor
    from embedkit.prediction_files import Answer

__all__ = ["predict", "probe", "split", "train"]

_CLASSIFIERS = ["logreg", "svm", "ridge", "knn", "mlp", "lightgbm"]
_CHUNK = 1_024


@click.command(
    epilog="\b\nExamples:\n  embedkit split reviews.vectors --out split.parquet\n"
    "  embedkit split reviews.tsv --folds 5 --test 0.2 --group author --out split.parquet\n"
)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Parquet file to make.")
@click.option("--folds", default=5, show_default=True, type=int)
@click.option(
    "--test",
    default=0.0,
    show_default=True,
    type=float,
    help="Part of the records to hold out altogether.",
)
@click.option(
    "--repeats", default=1, show_default=True, type=int, help="How many times to deal the folds."
)
@click.option("--group", help="Column whose values must not be parted.")
@click.option(
    "--allow-duplicates", is_flag=True, help="Let records of the same text lie in different folds."
)
@click.option("--overwrite", is_flag=True)
@corpus_options
@output_options
def split(
    source: Path, out: Path, folds: int, test: float, repeats: int, group: str | None,
    allow_duplicates: bool, overwrite: bool, label: str | None, seed: int, as_json: bool,
    quiet: bool, verbose: bool, **settings: Any,
) -> None:  # fmt: skip
    """Deal records into folds, stratified by label, the same text never on both sides.

    SOURCE is a dataset that extract wrote, or a corpus file; the options on how to read are for the
    latter.
    """
    import numpy as np

    from embedkit.runs.splits import split as make

    made = make(
        source, out=out, folds=folds, test=test, repeats=repeats, seed=seed, label=label,
        group=group, allow_duplicates=allow_duplicates, overwrite=overwrite,
        reading=reading_of(settings),
    )  # fmt: skip
    sizes = {str(f): int((made.folds[:, 0] == f).sum()) for f in np.unique(made.folds[:, 0])}
    summary = {
        "out": str(out), "records": len(made.row), "groups": len(np.unique(made.group)),
        "folds": {("test" if f == "-1" else f): n for f, n in sizes.items()},
        "fingerprint": made.fingerprint,
    }  # fmt: skip
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    elif not quiet:
        shared = len(made.row) - len(np.unique(made.group))
        click.echo(f"wrote {visible(str(out))}: {len(made.row):,} records, {made.n_folds} folds")
        click.echo("  " + ", ".join(
            f"{'test' if f == '-1' else f'fold {f}'} {n:,}" for f, n in sizes.items()
        ))  # fmt: skip
        if shared:
            click.echo(f"  kept together, by text or group: {shared:,} beside the first of theirs")


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit train reviews.vectors --out runs/logreg\n"
    "  embedkit train reviews.vectors --view mean_6,cls_6 --classifier lightgbm --out runs/lgbm\n"
    "  embedkit train reviews.vectors --features tfidf --out runs/tfidf\n"
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--view", help="Stored view; several with commas stand side by side. [last mean]")
@click.option("--classifier", default="logreg", show_default=True, type=click.Choice(_CLASSIFIERS))
@click.option(
    "--features", default="vectors", show_default=True, type=click.Choice(["vectors", "tfidf"])
)
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(["classification", "regression"]),
)
@click.option("--split", type=click.Path(path_type=Path), help="File that embedkit split wrote.")
@click.option("--split-column", help="Kept column that names the folds; test is the test part.")
@click.option("--folds", default=5, show_default=True, type=int, help="Without --split.")
@click.option(
    "--test",
    type=click.Path(path_type=Path),
    help="Corpus file, or dataset made alike, to predict as test part; labels are optional.",
)
@click.option(
    "--threshold",
    help="Of two classes, probability from which on the second is decided on: a number, or the "
    "score to choose it by in inner folds: macro_f1, f1, f2 …",
)
@click.option("--pca", type=int, help="Principal components, learnt in every fold.")
@click.option("--tune", is_flag=True, help="Choose settings by inner folds.")
@click.option("--class-weight", type=click.Choice(["balanced"]))
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--threads", default=1, show_default=True, type=int, help="For LightGBM.")
@click.option("--overwrite", is_flag=True)
@output_options
def train(
    dataset: Path, out: Path, view: str | None, as_json: bool, quiet: bool, verbose: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Cross-validate a classifier on stored vectors, and fit it on all folds."""
    from embedkit.classifiers.train import train as fit
    from embedkit.cli.run_text import run_text

    def progress(line: str) -> None:
        if verbose:
            click.echo(line, err=True)

    views = _views(view)
    result = fit(
        dataset, out=out, view=views, progress=progress, notify=notifier(quiet), **settings
    )
    if as_json:
        content = {"out": str(out), **result.content}
        click.echo(json.dumps(without_nan(content), ensure_ascii=False))
    elif not quiet:
        click.echo(run_text(result))


@click.command(
    epilog="\b\nExamples:\n  embedkit probe reviews.vectors --out runs/probe\n"
    "  embedkit probe reviews.vectors --control random-weights --out runs/probe\n"
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--view", "views", help="Only these, separated by commas. [all that are stored]")
@click.option("--classifier", default="logreg", show_default=True, type=click.Choice(_CLASSIFIERS))
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(["classification", "regression"]),
)
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    help="File that embedkit split wrote; of several deals, the first.",
)
@click.option("--folds", default=5, show_default=True, type=int, help="Without --split.")
@click.option(
    "--control",
    type=click.Choice(["random-weights"]),
    help="Encode the texts by random weights too.",
)
@click.option("--seed", default=0, show_default=True, type=SEED)
@click.option("--jobs", type=int, help="Fits at the same time. [cores]")
@click.option("--overwrite", is_flag=True)
@output_options
def probe(
    dataset: Path, out: Path, views: str | None, as_json: bool, quiet: bool, verbose: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Score every stored view under the same folds, beside its controls."""
    from embedkit.classifiers.probe import probe as run
    from embedkit.cli.run_text import probe_text
    from embedkit.cli.text import json_text, plain

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty() and not quiet:
            click.echo(f"\r{done} of {total} fits", nl=done == total, err=True)

    chosen = _views(views)
    result = run(dataset, out=out, views=chosen, progress=progress, **settings)
    if as_json:
        click.echo(json_text(plain(result)))
    elif not quiet:
        click.echo(probe_text(result))


@click.command(
    epilog="\b\nExamples:\n"
    '  embedkit predict runs/logreg --text "재미있어요" --label-names 0=부정,1=긍정\n'
    "  embedkit predict runs/logreg new.tsv --out answers.tsv\n"
    "  embedkit predict runs/logreg -\n"
)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("corpus", required=False)
@click.option("--text", "single", help="One text, instead of a corpus.")
@click.option("--pair", help="Second text of a pair, with --text.")
@click.option("--column", "text", help="Column of the text in the corpus. [guessed by its name]")
@click.option("--text-pair", help="Column of the second text of a pair.")
@click.option("--id", help="Column of the id. [guessed; else row numbers]")
@click.option(
    "--format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", *FORMATS]),
)
@click.option("--encoding", default="utf-8", show_default=True)
@click.option("--quoting", default="auto", show_default=True, type=click.Choice(QUOTINGS))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; .tsv, .jsonl or .parquet. [TSV to standard output]",
)
@click.option("--label-names", help="Readable names, such as 0=negative,1=positive.")
@click.option("--model", help="Another place of the same checkpoint.")
@click.option("--device", default="auto", show_default=True)
@output_options
def predict(
    run: Path, corpus: str | None, single: str | None, pair: str | None, out: Path | None,
    label_names: str | None, model: str | None, device: str, as_json: bool, quiet: bool,
    verbose: bool, **settings: Any,
) -> int:  # fmt: skip
    """Predict the label of new texts with a run.

    RUN is a folder that train wrote; CORPUS a file of texts, a dataset whose vectors were made as
    those of the run, or - to answer what is typed line by line.
    """
    from embedkit.predict import Predictor, parse_label_names
    from embedkit.prediction_files import kind_of

    if (corpus is None) == (single is None):
        raise UsageError("give either a corpus, -, or --text.")
    if pair is not None and single is None:
        raise UsageError("--pair goes with --text; of a corpus name the column with --text-pair.")
    if out is not None:
        if corpus in (None, "-"):
            raise UsageError("--out is for a corpus; what --text and - answer goes to a file by >.")
        kind_of(out)
        if out.exists() and Path(str(corpus)).exists() and out.samefile(str(corpus)):
            raise OutputExistsError(f"--out {out} is the corpus itself. Choose another file.")
    predictor = Predictor(
        run, label_names=parse_label_names(label_names), device=device, model=model,
        notify=notifier(quiet),
    )  # fmt: skip
    if single is not None:
        pairs = None if pair is None else [pair]
        _show(predictor.predict([single], pairs), as_json)
        return 0
    if corpus == "-":
        return _answer_lines(predictor, as_json)
    return _predict_corpus(predictor, Path(str(corpus)), out, as_json, quiet, reading_of(settings))


def _views(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",")] if text else None


def _answer_lines(predictor: Predictor, as_json: bool) -> int:
    """Answer every line at once, until the input ends or the user has enough."""
    lines = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    try:
        for line in lines:
            _show(predictor.predict([line.rstrip("\r\n")]), as_json)
            sys.stdout.flush()
    except KeyboardInterrupt:
        click.echo(err=True)
        return EXIT_INTERRUPTED
    return 0


def _show(found: Iterable[Prediction], as_json: bool) -> None:
    for one in found:
        if as_json:
            click.echo(json.dumps({"label": one.label, "proba": one.probabilities},
                                  ensure_ascii=False))  # fmt: skip
            continue
        shares = sorted(one.probabilities.items(), key=lambda item: -item[1])
        tail = "  ".join(f"{visible(name)} {share:.3f}" for name, share in shares)
        click.echo(visible(one.label) + (f"\t{tail}" if tail else ""))


def _predict_corpus(
    predictor: Predictor, corpus: Path, out: Path | None, as_json: bool, quiet: bool,
    reading: CorpusOptions,
) -> int:  # fmt: skip
    from embedkit.cli.text import reasons_text
    from embedkit.corpus import CorpusReader, InputFile, plan_corpus
    from embedkit.dataset.store import is_dataset
    from embedkit.prediction_files import write_answers

    notify, reasons = notifier(quiet), ""
    if is_dataset(corpus):
        data, said = predictor.predict_stored(corpus)
        stored = zip((int(row) for row in data.row), map(str, data.ids), said, strict=True)
        count = write_answers(stored, predictor.names, out, as_json=as_json)
        rejected = int(data.manifest.totals["rejected"])
    else:
        plan = plan_corpus([InputFile.of(corpus)], reading)
        for notice in plan.notices:
            if not notice.startswith("label column:"):  # what it is, is what is asked here
                notify(notice)
        reader = CorpusReader(plan)
        count = write_answers(_answered(predictor, reader), predictor.names, out, as_json=as_json)
        rejected, reasons = reader.counts.n_rejected, reasons_text(reader.counts.rejected)
        if reader.counts.quote_notice:
            notify(reader.counts.quote_notice)
    if not quiet:
        text = f"{count:,} texts predicted, {rejected:,} rejected{reasons}"
        click.echo(text + (f" → {visible(str(out))}" if out else ""), err=True)
    return EXIT_REJECTS if rejected else 0


def _answered(predictor: Predictor, reader: CorpusReader) -> Iterator[Answer]:
    """What a run says of every record, so many at a time that batches fill."""
    from itertools import islice

    from embedkit.corpus import Record

    records = (item for item in reader if isinstance(item, Record))
    while waiting := list(islice(records, _CHUNK)):
        pairs = [str(r.text_pair) for r in waiting] if reader.plan.text_pair else None
        said = predictor.predict([r.text for r in waiting], pairs)
        yield from ((r.row, r.id, one) for r, one in zip(waiting, said, strict=True))
