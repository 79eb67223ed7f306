"""Commands: split, train, probe, predict."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import CLASS_WEIGHTS, ESTIMATORS, FEATURES, FORMATS, QUOTINGS, TASKS
from embedkit.cli.options import SEED, corpus_options, output_options, reading_of
from embedkit.cli.progress import show_lines
from embedkit.display import visible
from embedkit.errors import EXIT_INTERRUPTED, EXIT_REJECTS, OutputExistsError, UsageError

if TYPE_CHECKING:
    from embedkit.corpus import CorpusOptions, CorpusReader
    from embedkit.predict import Prediction, Predictor
    from embedkit.prediction_files import PredictedRecord

__all__ = ["predict", "probe", "split", "train"]

_CHUNK = 1_024

logger = logging.getLogger(__name__)


@click.command(
    epilog="\b\nExamples:\n  embedkit split reviews.vectors --out split.parquet\n"
    "  embedkit split reviews.tsv --folds 5 --test 0.2 --group author --out split.parquet\n"
)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Parquet file to make.")
@click.option("--folds", default=5, show_default=True, type=int, help="Number of folds.")
@click.option(
    "--test",
    default=0.0,
    show_default=True,
    type=float,
    help="Fraction of the records to hold out as test set.",
)
@click.option("--repeats", default=1, show_default=True, type=int, help="Number of repeats.")
@click.option("--group", help="Column whose values must share a fold.")
@click.option(
    "--allow-duplicates", is_flag=True, help="Allow records of the same text in different folds."
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@corpus_options
@output_options
def split(
    source: Path, out: Path, folds: int, test: float, repeats: int, group: str | None,
    allow_duplicates: bool, overwrite: bool, label: str | None, seed: int, as_json: bool,
    quiet: bool, verbose: bool, **settings: Any,
) -> None:  # fmt: skip
    """Assign records to folds, stratified by label; the same text always shares a fold.

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
    sizes = {name: int((made.folds[:, 0] == fold).sum()) for name, fold in
             [*((str(fold), fold) for fold in range(made.n_folds)), ("test", -1)]}  # fmt: skip
    if not len(made.test):
        del sizes["test"]
    groups = len(np.unique(made.group))
    if as_json:
        summary = {"out": str(out), "records": len(made.row), "groups": groups, "folds": sizes,
                   "unit": made.settings.unit,
                   "fingerprint": made.fingerprint}  # fmt: skip
        click.echo(json.dumps(summary, ensure_ascii=False))
    elif not quiet:
        click.echo(f"wrote {visible(str(out))}: {len(made.row):,} records, {made.n_folds} folds")
        click.echo("  " + ", ".join(
            f"{'test' if name == 'test' else f'fold {name}'} {n:,}" for name, n in sizes.items()
        ))  # fmt: skip
        click.echo(f"  never divided: {made.settings.unit_text} ({groups:,})")


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit train reviews.vectors --out runs/logreg\n"
    "  embedkit train reviews.vectors --view mean_6,cls_6 --estimator lightgbm --out runs/lgbm\n"
    "  embedkit train reviews.vectors --features tfidf --out runs/tfidf\n"
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--view", help="Stored view; several with commas stand side by side. [last mean]")
@click.option(
    "--estimator",
    default="logreg",
    show_default=True,
    type=click.Choice(ESTIMATORS),
    help="Classifier, or its counterpart for regression.",
)
@click.option(
    "--features",
    default="vectors",
    show_default=True,
    type=click.Choice(FEATURES),
    help="Stored vectors, or TF-IDF of the stored texts.",
)
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(TASKS),
    help="What the labels are: classes, or numbers.",
)
@click.option("--split", type=click.Path(path_type=Path), help="File that embedkit split wrote.")
@click.option("--split-column", help="Kept column that names the folds; test is the test set.")
@click.option("--folds", default=5, show_default=True, type=int, help="Folds without --split.")
@click.option(
    "--test",
    type=click.Path(path_type=Path),
    help="Test set: corpus file, or dataset made with the same settings; labels are optional.",
)
@click.option(
    "--threshold",
    help="Decision threshold for the second of two classes: a number, or the score to choose it by "
    "in inner folds: macro_f1, f1, f2 …",
)
@click.option("--pca", type=int, help="Principal components, fitted in every fold.")
@click.option("--tune", is_flag=True, help="Choose parameters in inner folds.")
@click.option(
    "--class-weight", type=click.Choice(CLASS_WEIGHTS), help="balanced: the same for all."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=SEED,
    help="Seed of folds, estimators and bootstrap.",
)
@click.option(
    "--threads", default=1, show_default=True, type=int, help="Threads of one fit, for LightGBM."
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@output_options
def train(
    dataset: Path, out: Path, view: str | None, as_json: bool, quiet: bool, verbose: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Cross-validate a classifier on stored vectors, and fit it on all folds."""
    from embedkit.classifiers.train import train as fit
    from embedkit.cli.run_text import content_json, run_text

    progress = show_lines(show=verbose)
    result = fit(dataset, out=out, view=_views(view), progress=progress, **settings)
    if as_json:
        click.echo(content_json(result))
    elif not quiet:
        click.echo(run_text(result))


@click.command(
    epilog="\b\nExamples:\n  embedkit probe reviews.vectors --out runs/probe\n"
    "  embedkit probe reviews.vectors --control random-weights --out runs/probe\n"
)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--view", "views", help="Only these, separated by commas. [all that are stored]")
@click.option(
    "--estimator",
    default="logreg",
    show_default=True,
    type=click.Choice(ESTIMATORS),
    help="Classifier, or its counterpart for regression.",
)
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(TASKS),
    help="What the labels are: classes, or numbers.",
)
@click.option(
    "--split",
    type=click.Path(path_type=Path),
    help="File that embedkit split wrote; of several repeats, the first.",
)
@click.option("--folds", default=5, show_default=True, type=int, help="Folds without --split.")
@click.option(
    "--control",
    type=click.Choice(["random-weights"]),
    help="Also encode the texts with random weights.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=SEED,
    help="Seed of folds, estimators and bootstrap.",
)
@click.option("--threads", type=int, help="Number of fits at the same time. [cores]")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@output_options
def probe(
    dataset: Path, out: Path, views: str | None, as_json: bool, quiet: bool, verbose: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Score every stored view under the same folds, beside its controls."""
    from embedkit.classifiers.probe import probe as run
    from embedkit.cli.run_text import content_json, probe_text

    progress = show_lines(show=sys.stderr.isatty() and not quiet)
    result = run(dataset, out=out, views=_views(views), progress=progress, **settings)
    if as_json:
        click.echo(content_json(result))
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
    help="Format of the corpus. [by its name]",
)
@click.option("--encoding", default="utf-8", show_default=True, help="Of a delimited corpus.")
@click.option(
    "--quoting",
    default="auto",
    show_default=True,
    type=click.Choice(QUOTINGS),
    help="How fields are quoted.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write; .tsv, .jsonl or .parquet. [TSV to standard output]",
)
@click.option("--label-names", help="Readable names, such as 0=negative,1=positive.")
@click.option("--model", help="Another location of the same checkpoint.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1.")
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
    from embedkit.prediction_files import file_format

    if (corpus is None) == (single is None):
        raise UsageError("give either a corpus, -, or --text.")
    if pair is not None and single is None:
        raise UsageError("--pair goes with --text; of a corpus name the column with --text-pair.")
    if out is not None:
        if corpus in (None, "-"):
            raise UsageError("--out is for a corpus; what --text and - answer goes to a file by >.")
        file_format(out)
        if out.exists() and Path(str(corpus)).exists() and out.samefile(str(corpus)):
            raise OutputExistsError(f"--out {out} is the corpus itself. Choose another file.")
    predictor = Predictor(
        run, label_names=parse_label_names(label_names), device=device, model=model
    )
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
            click.echo(json.dumps({"label": one.label, "proba": one.proba},
                                  ensure_ascii=False))  # fmt: skip
            continue
        ordered = sorted(one.proba.items(), key=lambda item: -item[1])
        tail = "  ".join(f"{visible(name)} {proba:.3f}" for name, proba in ordered)
        click.echo(visible(one.label) + (f"\t{tail}" if tail else ""))


def _predict_corpus(
    predictor: Predictor, corpus: Path, out: Path | None, as_json: bool, quiet: bool,
    reading: CorpusOptions,
) -> int:  # fmt: skip
    from embedkit.cli.text import reasons_text
    from embedkit.corpus import CorpusReader, InputFile, plan_corpus
    from embedkit.dataset.store import is_dataset
    from embedkit.prediction_files import PredictedRecord, write_prediction_file

    reasons = ""
    if is_dataset(corpus):
        data, found = predictor.predict_stored(corpus)
        stored = zip(map(int, data.row), map(str, data.ids), found, strict=True)
        records: Iterable[PredictedRecord] = (PredictedRecord(*one) for one in stored)
        count = write_prediction_file(records, predictor.names, out, as_json=as_json)
        rejected = int(data.manifest.totals["rejected"])
    else:
        plan = plan_corpus([InputFile.of(corpus)], reading)
        for notice in plan.notices:
            if not notice.startswith("label column:"):  # the label is what is predicted
                logger.info("%s", notice)
        reader = CorpusReader(plan)
        records = _predicted(predictor, reader)
        count = write_prediction_file(records, predictor.names, out, as_json=as_json)
        rejected, reasons = reader.counts.n_rejected, reasons_text(reader.counts.rejected)
        if reader.counts.quote_notice:
            logger.warning("%s", reader.counts.quote_notice)
    if not quiet:
        text = f"{count:,} texts predicted, {rejected:,} rejected{reasons}"
        click.echo(text + (f" → {visible(str(out))}" if out else ""), err=True)
    return EXIT_REJECTS if rejected else 0


def _predicted(predictor: Predictor, reader: CorpusReader) -> Iterator[PredictedRecord]:
    """The prediction for every record, in chunks that fill batches."""
    from embedkit.corpus import Record
    from embedkit.prediction_files import PredictedRecord

    records = (item for item in reader if isinstance(item, Record))
    while chunk := list(islice(records, _CHUNK)):
        pairs = [str(r.text_pair) for r in chunk] if reader.plan.text_pair else None
        found = predictor.predict([r.text for r in chunk], pairs)
        yield from (PredictedRecord(r.row, r.id, one) for r, one in zip(chunk, found, strict=True))
