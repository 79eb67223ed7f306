"""The command ``predict``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit import fsio
from embedkit.cli.command import command
from embedkit.cli.options import FILE, option, options, reading_of
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import percent_text, reasons_text, say
from embedkit.display import json_line, visible
from embedkit.errors import EXIT_INTERRUPTED, EXIT_REJECTS, OutputExistsError, UsageError
from embedkit.types import Progress, ProgressCallback

if TYPE_CHECKING:
    from embedkit.corpus import CorpusPlan, CorpusReader
    from embedkit.predict import Prediction, Predictor
    from embedkit.prediction_files import PredictedRecord

__all__ = ["predict"]

_CHUNK = 256
_SHOWN = 3
"""Labels of one text that are printed with their probabilities; ``--json`` has all."""

logger = logging.getLogger(__name__)


@command(
    'embedkit predict runs/logreg --text "재미있어요" --label-names 0=부정,1=긍정',
    "embedkit predict runs/logreg new.tsv --out predictions.tsv",
    "embedkit predict runs/logreg -",
    'embedkit predict ./checkpoint --text "재미있어요"',
)
@click.argument("run", metavar="RUN|CHECKPOINT")
@click.argument("corpus", required=False)
@options(
    option("--text", "single", help="One text, instead of a corpus."),
    option("--pair", help="Second text of a pair, with --text."),
    option("--column", "text", help="Column of the text in the corpus. [inferred from the header]"),
    "--text-pair", "--id", "--format", "--encoding", "--quoting",
    option("--out", type=FILE,
           help="File to write; .tsv, .csv, .jsonl or .parquet. [TSV to standard output]"),
    "--submission",
    option("--label-names", help="Readable names, such as 0=negative,1=positive."),
    option("--model", help="Location of the checkpoint, if it has moved. [its original name]"),
    "--device",
    option("--no-verify", is_flag=True,
           help="Do not compare the models of a run with their checksums."),
)  # fmt: skip
def predict(
    run: str, corpus: str | None, single: str | None, pair: str | None, out: Path | None,
    submission: str | None, label_names: str | None, model: str | None, device: str,
    no_verify: bool, as_json: bool, quiet: bool, **settings: Any,
) -> int:  # fmt: skip
    """Predict labels of new texts with a run or a checkpoint.

    RUN is a folder that train or finetune wrote, CHECKPOINT the folder or hub id of a model for
    classification (BertForSequenceClassification and the like); CORPUS a file of texts, a dataset
    extracted with the same settings as that of the run, or - to read lines from standard input.
    """
    from embedkit.predict import Predictor, parse_label_names
    from embedkit.prediction_files import file_format, parse_submission, write_prediction_file

    if (corpus is None) == (single is None):
        raise UsageError("give either a corpus, -, or --text.")
    if pair is not None and single is None:
        raise UsageError("--pair goes with --text; for a corpus name the column with --text-pair.")
    columns = parse_submission(submission)
    if columns is not None and corpus in (None, "-"):
        raise UsageError("--submission is for a corpus, which has ids.")
    if out is not None:
        if corpus in (None, "-"):
            raise UsageError("--out is for a corpus; redirect the output of --text and - with >.")
        file_format(out)
        if out.exists() and Path(str(corpus)).exists() and out.samefile(str(corpus)):
            raise OutputExistsError(f"--out {out} is the corpus itself. Choose another file.")
        fsio.check_place(out)
    corpus_plan = None if corpus in (None, "-") else _planned(Path(str(corpus)), settings)
    predictor = Predictor(
        run, label_names=parse_label_names(label_names), device=device, model=model,
        few_texts=single is not None, verify=not no_verify,
    )  # fmt: skip
    if single is not None:
        _show(predictor.predict([single], None if pair is None else [pair]), as_json)
        return 0
    if corpus == "-":
        return _predict_lines(predictor, as_json)
    write = partial(
        write_prediction_file, names=predictor.names, out=out, as_json=as_json, submission=columns
    )
    if corpus_plan is None:
        return _predict_dataset(predictor, Path(str(corpus)), write, out=out, quiet=quiet)
    return _predict_corpus(predictor, corpus_plan, write, out=out, quiet=quiet)


def _predict_lines(predictor: Predictor, as_json: bool) -> int:
    """Print the prediction for every line at once, until the input ends or Ctrl-C is pressed."""
    lines = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    try:
        for line in lines:
            _show(predictor.predict([line.rstrip("\r\n")]), as_json)
            sys.stdout.flush()
    except KeyboardInterrupt:
        say("", err=True)
        return EXIT_INTERRUPTED
    return 0


def _show(found: Iterable[Prediction], as_json: bool) -> None:
    for one in found:
        if as_json:
            say(json_line({"label": one.label, "proba": one.proba}))
            continue
        ordered = sorted(one.proba.items(), key=lambda item: -item[1])
        tail = "  ".join(f"{visible(name)} {percent_text(proba)}"
                         for name, proba in ordered[:_SHOWN])  # fmt: skip
        if len(ordered) > _SHOWN:
            rest = sum(proba for _, proba in ordered[_SHOWN:])
            tail += f"  {len(ordered) - _SHOWN} others {percent_text(rest)}"
        say(visible(one.label) + (f"\t{tail}" if tail else ""))


def _planned(corpus: Path, settings: dict[str, Any]) -> CorpusPlan | None:
    """How the corpus is read, before a model is loaded; ``None`` for a dataset."""
    from embedkit.corpus import InputFile, plan_corpus
    from embedkit.dataset.store import is_dataset

    if is_dataset(corpus):
        return None
    plan = plan_corpus([InputFile.of(corpus)], reading_of(settings))
    for notice in plan.notices:
        if not notice.startswith("label column:"):  # the label is what is predicted
            logger.info("%s", notice)
    return plan


def _predict_dataset(
    predictor: Predictor, dataset: Path, write: Callable[[Iterable[PredictedRecord]], int],
    *, out: Path | None, quiet: bool,
) -> int:  # fmt: skip
    from embedkit.prediction_files import PredictedRecord

    with progress_bar() as progress:
        data, found = predictor.predict_stored(dataset, progress=progress)
    stored = zip(map(int, data.row), map(str, data.ids), found, strict=True)
    count = write(PredictedRecord(*one) for one in stored)
    return _told(count, data.manifest.totals.rejected, "", out=out, quiet=quiet)


def _predict_corpus(
    predictor: Predictor, plan: CorpusPlan, write: Callable[[Iterable[PredictedRecord]], int],
    *, out: Path | None, quiet: bool,
) -> int:  # fmt: skip
    from embedkit.corpus import CorpusReader

    reader = CorpusReader(plan)
    with progress_bar() as progress:
        count = write(_predicted(predictor, reader, progress))
    if reader.counts.quote_notice:
        logger.warning("%s", reader.counts.quote_notice)
    reasons = reasons_text(reader.counts.rejected)
    return _told(count, reader.counts.n_rejected, reasons, out=out, quiet=quiet)


def _told(count: int, rejected: int, reasons: str, *, out: Path | None, quiet: bool) -> int:
    if not quiet:
        text = f"{count:,} texts predicted, {rejected:,} rejected{reasons}"
        say(text + (f" → {out}" if out else ""), err=True)
    return EXIT_REJECTS if rejected else 0


def _predicted(
    predictor: Predictor, reader: CorpusReader, progress: ProgressCallback
) -> Iterator[PredictedRecord]:
    """The prediction for every record, in chunks that fill batches."""
    from embedkit.corpus import Record
    from embedkit.prediction_files import PredictedRecord

    records = (item for item in reader if isinstance(item, Record))
    while chunk := list(islice(records, _CHUNK)):
        pairs = [str(r.text_pair) for r in chunk] if reader.plan.text_pair else None
        found = predictor.predict([r.text for r in chunk], pairs)
        yield from (PredictedRecord(r.row, r.id, one) for r, one in zip(chunk, found, strict=True))
        progress(Progress("predicting", round(100 * reader.fraction), 100, "%"))
