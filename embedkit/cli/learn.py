"""Commands that learn: split, train, probe, finetune, predict and export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import embedkit
from embedkit.choices import CONTROLS, EXPORTS, FEATURES, HEADS, OBJECTIVES, PRECISIONS
from embedkit.cli.command import Result, answer_lines, command
from embedkit.cli.options import FILE, FLAG, NAME, choice, names_of, option, options, progress_bar
from embedkit.cli.text import say
from embedkit.display import count_text, json_line, path_text, reasons_text, visible
from embedkit.errors import EXIT_REJECTS, UsageError
from embedkit.runs.metrics import metric_text
from embedkit.storage import without_secrets

if TYPE_CHECKING:
    from embedkit.corpus.plan import CorpusOptions
    from embedkit.predict import Predictor
    from embedkit.types import ProgressCallback


@command(
    "embedkit split reviews.vectors --out split.parquet",
    "embedkit split reviews.tsv --folds 5 --test 0.2 --group author --out split.parquet",
)
@click.argument("source", type=FILE)
@options(
    option("--out", type=FILE, help="Parquet file to write. [SOURCE.split.parquet]"),
    option("--folds", default=5, help="Number of folds; 1: a fifth of the records is held out."),
    option("--test", default=0.0, help="Fraction of the records to hold out as a test set."),
    option("--group", help="Group column; a group is never divided between folds."),
    "--seed --overwrite --text --label",
    option("--label-separator", help="Between the classes of a record; folds are not stratified."),
)
def split(
    source: Path,
    out: Path | None,
    label: str | None,
    seed: int,
    reading: CorpusOptions,
    **settings: Any,
) -> Result:
    """Assign records to folds.

    Folds are stratified by label; duplicate texts always share a fold. SOURCE is a dataset that
    extract wrote, or a corpus file; the options on how to read are for the latter.
    """
    from embedkit.runs.split import UNITS

    out = out or Path(f"{Path(without_secrets(str(source))).stem}.split.parquet")
    result = embedkit.split(source, out=out, label=label, seed=seed, reading=reading, **settings)
    sizes, records, groups = result.sizes, len(result.row), len(np.unique(result.group))

    def text() -> str:
        names = [f"{'fold ' if n.isdigit() else ''}{n} {size:,}" for n, size in sizes.items()]
        if left := records - sum(sizes.values()):
            names.append(f"without a label {left:,}")
        return (
            f"wrote {path_text(out)}: {count_text(records, 'record')}, "
            f"{count_text(result.n_folds, 'fold')}\n"
            f"  {', '.join(names)}\n"
            f"  never divided: {UNITS[result.settings.unit]} ({groups:,})"
        )

    data = {"out": str(out), "records": records, "groups": groups, "folds": sizes}
    return Result(data | {"unit": result.settings.unit, "fingerprint": result.fingerprint}, text)


@command(
    "embedkit train reviews.vectors",
    "embedkit train reviews.vectors --view mean_6,cls_6 --estimator lightgbm --out runs/lgbm",
    "embedkit train reviews.vectors --features tfidf --out runs/tfidf",
    "embedkit train treebank.vectors --level word --view 6 --out runs/tags",
)
@click.argument("dataset", type=FILE)
@options(
    "--out",
    option("--view", help="Stored view, or several to join: mean_6,cls_6. [the last mean]"),
    "--level --estimator",
    option("--features", help="{FEATURES}.", **choice(FEATURES, "vectors")),
    option("--columns", help="Numeric columns to read beside the vectors, with commas: price,age."),
    "--task --label-separator --split",
    "--folds --test --threshold --class-weight --text --label --id --seed --overwrite",
)
def train(dataset: Path, progress: ProgressCallback, **settings: Any) -> Result:
    """Cross-validate an estimator on stored vectors.

    It is then fitted on all folds, and saved for predict. DATASET is a folder that extract wrote;
    of a corpus file one is made first, with the default settings of extract, except for TF-IDF,
    which reads its texts alone.
    """
    from embedkit.cli.run_text import result_of

    settings["view"] = names_of(settings["view"]) or None
    settings["columns"] = names_of(settings["columns"])
    return result_of(embedkit.train(dataset, progress=progress, **settings))


@command(
    "embedkit probe reviews.vectors --out runs/probe",
    "embedkit probe reviews.vectors --control random-weights --learning-curve --out runs/probe",
    with_all=True,
)
@click.argument("dataset", type=FILE)
@options(
    "--out",
    option("--view", help="Views to score, separated by commas. [all that are stored]"),
    "--level --task --label-separator --split",
    option(
        "--metric",
        help="Metric that is shown, tuned for and used to choose the view. "
        "[accuracy or r2 is shown, log_loss or rmse is tuned for]",
    ),
    option(
        "--control", help="Also encode the texts with three untrained encoders.", **choice(CONTROLS)
    ),
    option("--learning-curve", **FLAG, help="Also fit on 10 to 100 % of the training records."),
    "--text --label --overwrite",
)
def probe(dataset: Path, view: str | None, progress: ProgressCallback, **settings: Any) -> Result:
    """Score every stored view on the same folds.

    Controls: the majority class, a control task with random labels and, with --control, untrained
    encoders.
    """
    from embedkit.cli.run_text import result_of

    views = names_of(view) or None
    return result_of(embedkit.probe(dataset, view=views, progress=progress, **settings))


@command(
    "embedkit finetune reviews.tsv --out runs/cls",
    "embedkit finetune reviews.vectors --split split.parquet --head cnn --epochs 10 --patience 2 "
    "--out runs/cnn",
    "embedkit finetune treebank.conllu --level word --word-label upos --out runs/tagger",
    "embedkit finetune papers.csv --text title --text-pair abstract --class-weight balanced "
    "--threshold f2 --test new.csv --out runs/papers",
)
@click.argument("corpus", type=FILE)
@options(
    "--out --model --device",
    option(
        "--head",
        help="Classification head, or module:Class of a torch.nn.Module. [mean for a sentence "
        "encoder that averages tokens and for a decoder, else cls]",
        **choice(HEADS, or_class=True),
    ),
    "--level --task",
    option(
        "--objective",
        help="{OBJECTIVES}. [contrastive up to 320 training texts, in batches of 8 or more]",
        **choice(OBJECTIVES),
    ),
    "--label-separator --split --folds --test",
    option("--epochs", type=int, help="Maximum number of epochs. [200 steps, 15 a class; 3 to 20]"),
    option("--learning-rate", default=5e-5, help="Peak learning rate; it decays linearly to 0."),
    option("--batch-size", default=16, help="Texts per batch."),
    option("--dropout", type=float, help="Dropout before the last layer. [set by the checkpoint]"),
    option(
        "--seeds",
        default=1,
        help="Models of each fold, with seeds of their own: their mean predicts, and the spread "
        "of their scores is stated.",
    ),
    "--max-length --class-weight",
    option("--freeze-layers", metavar="K|embeddings|all", help="Encoder layers to freeze."),
    option(
        "--lora",
        type=int,
        metavar="RANK",
        help="Train low-rank matrices (LoRA) instead of the weights of the encoder; try rank 8 "
        "and a learning rate of 1e-3.",
    ),
    option(
        "--precision",
        help="Precision of the computation; auto: fp32 on CPU, bf16 on CUDA (fp16 on older "
        "devices).",
        **choice(PRECISIONS, "auto"),
    ),
    option(
        "--validation",
        type=float,
        help="Fraction of the training records used for validation; 0 disables it. [0.1; of pairs "
        "0, unless they choose a threshold]",
    ),
    option(
        "--patience",
        type=int,
        help="Stop after N epochs without a better validation score. [5 without --epochs]",
    ),
    "--threshold --text --text-pair --id --label --word-label --limit --seed --overwrite",
)
def finetune(
    corpus: Path, seed: int, reading: CorpusOptions, progress: ProgressCallback, **settings: Any
) -> Result:
    """Train an encoder with a classification head.

    One model is trained per fold. CORPUS is a corpus file with a label column, or a dataset that
    extract wrote, whose texts and labels are used. Run the same command again to resume an
    interrupted run. embedkit.finetune in Python has further options.
    """
    from embedkit.cli.run_text import result_of

    run = embedkit.finetune(corpus, reading=reading, seed=seed, progress=progress, **settings)
    return result_of(run)


_SHOWN = 3
"""Labels of one text that are printed with their probabilities; ``--json`` has all."""


@command(
    'embedkit predict runs/logreg --text "재미있어요" --label-names 0=부정,1=긍정',
    "embedkit predict runs/logreg new.tsv --out predictions.tsv",
    "embedkit predict runs/logreg -",
    'embedkit predict ./checkpoint --text "재미있어요"',
)
@click.argument("run", metavar="RUN|CHECKPOINT", type=NAME)
@click.argument("corpus", required=False, type=NAME)
@options(
    option("--text", help="With CORPUS the column of its texts [that of the run]; else the text."),
    "--text-pair --id",
    option(
        "--encoding",
        default="utf-8",
        show_default="that of the run",
        help="Character encoding of text files.",
    ),
    option(
        "--out", type=FILE, help="File to write: .tsv, .csv, .jsonl or .parquet. [standard output]"
    ),
    "--submission --overwrite --label-names --device",
    option("--head", help="Own head of the run, module:Class: its code is imported and runs."),
)
def predict(
    run: str,
    corpus: str | None,
    label_names: str | None,
    device: str,
    head: str | None,
    as_json: bool,
    quiet: bool,
    reading: CorpusOptions,
    **output: Any,
) -> int:
    """Predict labels of new texts with a run or a checkpoint.

    RUN is a folder that train or finetune wrote, CHECKPOINT the folder or hub id of a model for
    classification (BertForSequenceClassification and the like); CORPUS a file of texts or its URL,
    with the columns of the corpus of the run, and a header if that had one; or a dataset extracted
    with the same settings as that of the run. Without one, or with -, every
    line of standard input is answered as it comes, by one process. Of a run on pairs of texts a
    line has both, with a tab between them. Without --out each record is a line, with --json one of
    JSON.
    """
    from embedkit.predict import parse_label_names, predict_file
    from embedkit.units.units import lacks_column

    names = parse_label_names(label_names)
    model: dict[str, Any] = {"label_names": names, "device": device, "head": head}
    if corpus in (None, "-"):
        if file_options := [
            name
            for name, value in {**reading.given, **output}.items()
            if value and (corpus or name not in ("text", "text_pair"))
        ]:
            problem = f"--{file_options[0].replace('_', '-')} is for the file of a corpus"
            advice = "lines of standard input are UTF-8, and answers go to standard output"
            raise UsageError(f"{problem}; {advice}.")
        if reading.text is None and reading.text_pair is not None:
            raise UsageError("give the first text too, by --text.", text_pair=reading.text_pair)
        # a single --text is answered as soon as the model is there; for lines it is warmed up, so
        # that the first answer is as quick as the others
        lines = corpus == "-" or reading.text is None
        # a bar while the model is loaded, and none when lines are typed and answered
        with progress_bar():
            predictor = embedkit.Predictor(run, **model, warm=lines)
        if not lines:
            _show_text(predictor, str(reading.text), reading.text_pair, as_json=as_json)
            return 0
        if predictor.columns:
            raise lacks_column("standard input", predictor.columns[0])
        return answer_lines(partial(_show_line, predictor, as_json=as_json), "text")
    with progress_bar() as progress:
        count, unit, rejected = predict_file(
            run, corpus, reading=reading, as_json=as_json, progress=progress, **model, **output
        )
    if as_json and output["out"]:  # without a file the predictions themselves are printed
        place = {"out": str(output["out"]), "predicted": count}
        click.echo(json_line({**place, "rejected": rejected}))
    if not quiet:
        where = f" → {output['out']}" if output["out"] else ""
        lost = f"{count_text(sum(rejected.values()), 'record')} rejected{reasons_text(rejected)}"
        say(f"{count_text(count, unit)} predicted, {lost}{where}", err=True)
    return EXIT_REJECTS if rejected else 0


def _show_line(predictor: Predictor, line: str, *, as_json: bool) -> None:
    """Print the prediction for a line, which holds a text or a pair."""
    pair = line.split("\t") if predictor.reads_pairs else [line]
    if predictor.reads_pairs and len(pair) != 2:
        raise UsageError(f"{line!r}: expected two texts with a tab between them.")
    _show_text(predictor, *pair, as_json=as_json)


def _show_text(
    predictor: Predictor, text: str, second: str | None = None, *, as_json: bool
) -> None:
    """Print the prediction for a text or a pair, or a line for each word of a text."""
    from embedkit.prediction_files import fields_of

    if not text.strip() or (second is not None and not second.strip()):
        raise UsageError("the text is empty.")  # as that of a record, or of a query
    predictor.check_pairs(second is not None, option="text_pair")
    names = ("word", "text", "start", "end") if predictor.labels_words else ()
    shown = predictor.predict_words(text) if names else [predictor.predict(text, second)]
    for prediction in shown:
        if as_json:
            place = {name: getattr(prediction, name) for name in names}
            click.echo(json_line(fields_of(place, prediction)))
            continue
        ordered = sorted(prediction.proba.items(), key=lambda item: -item[1])
        percent = partial(metric_text, metric="accuracy", unit=True)
        tail = "  ".join(f"{name} {percent(p)}" for name, p in ordered[:_SHOWN])
        if rest := [p for _, p in ordered[_SHOWN:]]:
            # of sets of classes each has a probability of its own, and they have no sum
            sets = predictor.content is not None and predictor.content.task == "multilabel"
            total = f"at most {percent(rest[0])}" if sets else percent(sum(rest))
            tail += f"  {count_text(len(rest), 'other')} {total}"
        # the word before its label; of a whole text there is no such cell
        cells = [*filter(None, [prediction.text]), prediction.label, *filter(None, [tail])]
        say("\t".join(map(visible, cells)))


@command(
    "embedkit export runs/finetuned --out checkpoint",
    "embedkit export runs/finetuned --fold 0 --out checkpoint",
    "embedkit export reviews.vectors --to csv --out reviews.csv",
)
@click.argument("what", type=FILE)
@options(
    option("--out", type=FILE, help="New file or folder; by default <run>.checkpoint."),
    option("--fold", default="best", help="Number of the fold; best: the lowest validation loss."),
    option("--to", **choice(EXPORTS), help="Format for the vectors of a dataset."),
    "--view",
)
def export(what: Path, out: Path | None, fold: str, to: str | None, view: str | None) -> Result:
    """Write a fine-tuned model for transformers, or the vectors of a dataset for other tools.

    WHAT is a folder that finetune or extract wrote. With --head pooler on a family whose classifier
    is that (BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, MPNet), AutoModelForSequenceClassification
    loads the folder and gives the same probabilities; a run on words is one of
    AutoModelForTokenClassification; with other heads it holds the encoder alone.
    """
    if to is not None and fold == "best":  # else refused below
        data = embedkit.load(what, view)
        path = data.export(out, to=to)
        summary = {"out": str(path), "rows": len(data), "width": data.width, "views": data.views}
        return Result(summary, lambda: f"wrote {path}: {len(data):,} rows × {data.width}")
    result = embedkit.export(what, out=out, fold=fold, to=to, view=view)

    def text() -> str:
        name, head = result.model, result.head
        content = f"the model {name} with its {head} head"
        if not result.has_head:
            content = f"the encoder of {name} without its {head} head, which transformers lacks"
        lines = [f"wrote {result.out}: {content}", f"  texts are cut at {result.max_length} tokens"]
        if result.in_windows:
            lines.append("  embedkit reads longer ones in windows: their probabilities differ")
        if result.prefix:
            lines.append(f"  put {result.prefix!r} before every text, as in training")
        if result.threshold is not None and result.has_head:
            lines.append(f"  embedkit predicts the second class from {result.threshold:.4f} on")
        return "\n".join([*lines, "load it:", *map("  {}".format, code)])

    code = result.code.splitlines()
    return Result(result, text)
