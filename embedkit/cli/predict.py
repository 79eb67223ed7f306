"""The command ``predict``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice, repeat
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
    from embedkit.corpus import CorpusPlan, CorpusReader, Record
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
    _check_records(predictor, {"--pair": pair, "--submission": columns})
    if single is not None:
        _show_text(predictor, single, pair, as_json)
        return 0
    if corpus == "-":
        return _predict_lines(predictor, as_json)
    write = partial(
        write_prediction_file, names=predictor.names, out=out, as_json=as_json, submission=columns,
        words=("word", "text") if predictor.labels_words else (),
    )  # fmt: skip
    count, rejected, reasons = (
        _predict_dataset(predictor, Path(str(corpus)), write)
        if corpus_plan is None
        else _predict_corpus(predictor, corpus_plan, write)
    )
    if not quiet:
        what, of = ("words", " records") if predictor.labels_words else ("texts", "")
        told = f"{count:,} {what} predicted, {rejected:,}{of} rejected{reasons}"
        say(told + (f" → {out}" if out else ""), err=True)
    return EXIT_REJECTS if rejected else 0


def _check_records(predictor: Predictor, given: dict[str, Any]) -> None:
    """Raise a :class:`UsageError` for options that are of records, of a run that labels words."""
    for name, value in given.items():
        if predictor.labels_words and value is not None:
            raise UsageError(
                f"{name} is for runs that label records; {predictor.run} labels words."
            )


def _predict_lines(predictor: Predictor, as_json: bool) -> int:
    """Print the prediction for every line at once, until the input ends or Ctrl-C is pressed."""
    lines = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    try:
        for line in lines:
            _show_text(predictor, line.rstrip("\r\n"), None, as_json)
            sys.stdout.flush()
    except KeyboardInterrupt:
        say("", err=True)
        return EXIT_INTERRUPTED
    return 0


def _show_text(predictor: Predictor, text: str, pair: str | None, as_json: bool) -> None:
    """Print the prediction for a text, or a line for each of its words."""
    if not predictor.labels_words:
        _show(predictor.predict([text], None if pair is None else [pair]), as_json)
        return
    (found,) = predictor.predict_words([text])
    places = [{"word": w.word, "text": w.text, "start": w.start, "end": w.end} for w in found]
    _show([w.prediction for w in found], as_json, places)


def _show(
    found: Iterable[Prediction], as_json: bool, places: Iterable[dict[str, Any]] = ()
) -> None:
    for one, place in zip(found, chain(places, repeat({})), strict=False):
        if as_json:
            say(json_line(place | {"label": one.label, "proba": one.proba}))
            continue
        ordered = sorted(one.proba.items(), key=lambda item: -item[1])
        tail = "  ".join(f"{visible(name)} {percent_text(proba)}"
                         for name, proba in ordered[:_SHOWN])  # fmt: skip
        if len(ordered) > _SHOWN:
            rest = sum(proba for _, proba in ordered[_SHOWN:])
            tail += f"  {len(ordered) - _SHOWN} others {percent_text(rest)}"
        word = f"{visible(place['text'])}\t" if place else ""
        say(word + visible(one.label) + (f"\t{tail}" if tail else ""))


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
    predictor: Predictor, dataset: Path, write: Callable[[Iterable[PredictedRecord]], int]
) -> tuple[int, int, str]:
    """Write predictions; return how many, how many records are rejected, and why."""
    from embedkit.prediction_files import PredictedRecord

    with progress_bar() as progress:
        data, found = predictor.predict_stored(dataset, progress=progress)
    stored = zip(map(int, data.row), map(str, data.ids), found, strict=True)
    records = (PredictedRecord(*one) for one in stored)
    if predictor.labels_words:
        words = zip(records, data.word.tolist(), data.text, strict=True)
        records = (replace(one, word=word, text=text) for one, word, text in words)
    return write(records), data.manifest.totals.rejected, ""


def _predict_corpus(
    predictor: Predictor, plan: CorpusPlan, write: Callable[[Iterable[PredictedRecord]], int]
) -> tuple[int, int, str]:
    from embedkit.corpus import CorpusReader

    reader = CorpusReader(plan)
    with progress_bar() as progress:
        count = write(_predicted(predictor, reader, progress))
    if reader.counts.quote_notice:
        logger.warning("%s", reader.counts.quote_notice)
    return count, reader.counts.n_rejected, reasons_text(reader.counts.rejected)


def _predicted(
    predictor: Predictor, reader: CorpusReader, progress: ProgressCallback
) -> Iterator[PredictedRecord]:
    """The prediction for every record, in chunks that fill batches."""
    from embedkit.corpus import Record
    from embedkit.prediction_files import PredictedRecord

    records = (item for item in reader if isinstance(item, Record))
    while chunk := list(islice(records, _CHUNK)):
        if predictor.labels_words:
            yield from _predicted_words(predictor, chunk)
        else:
            pairs = [str(r.text_pair) for r in chunk] if reader.plan.text_pair else None
            found = predictor.predict([r.text for r in chunk], pairs)
            for record, one in zip(chunk, found, strict=True):
                yield PredictedRecord(record.row, record.id, one)
        progress(Progress("predicting", round(100 * reader.fraction), 100, "%"))


def _predicted_words(predictor: Predictor, records: list[Record]) -> Iterator[PredictedRecord]:
    from embedkit.prediction_files import PredictedRecord
    from embedkit.runs.reencoding import marked_spans

    found = predictor.predict_words([r.text for r in records], spans=marked_spans(records))
    for record, words in zip(records, found, strict=True):
        for one in words:
            yield PredictedRecord(
                record.row, record.id, one.prediction, word=one.word, text=one.text
            )
