"""Commands that learn: split, train, probe, finetune, predict, compare and export."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import EXPORTS, FEATURES, HEADS, PRECISIONS, PREFERENCES
from embedkit.cli.command import Result, answer_lines, command
from embedkit.cli.options import (
    FILE,
    FLAG,
    KnownOrClass,
    choice,
    names_of,
    option,
    options,
    progress_bar,
)
from embedkit.cli.text import (
    asked_for_all,
    fitted,
    metric_heading,
    number_text,
    path_text,
    say,
    table_text,
    terminal_width,
)
from embedkit.display import bytes_text, count_text, json_line, reasons_text, shorten, visible
from embedkit.errors import EXIT_REJECTS, UsageError
from embedkit.runs.metrics import LOWER_IS_BETTER, is_percent, metric_text, score_text
from embedkit.storage import without_secrets

if TYPE_CHECKING:
    from embedkit.comparison.recommendation import Recommendation
    from embedkit.comparison.table import Compared, Difference, MethodCost
    from embedkit.corpus.plan import CorpusOptions
    from embedkit.predict import Prediction, Predictor
    from embedkit.runs.intervals import Score
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
    "--seed",
    "--overwrite",
    "--text",
    "--label",
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
    import numpy as np

    from embedkit.runs.split import UNITS
    from embedkit.runs.split import split as make

    out = out or Path(f"{Path(without_secrets(str(source))).stem}.split.parquet")
    result = make(source, out=out, label=label, seed=seed, reading=reading, **settings)
    sizes, records, groups = result.sizes, len(result.row), len(np.unique(result.group))

    def text() -> str:
        names = [f"{'fold ' if n.isdigit() else ''}{n} {size:,}" for n, size in sizes.items()]
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
    option(
        "--view", help="Stored view, or several to join: mean_6,cls_6. [mean of the last layer]"
    ),
    "--level",
    "--estimator",
    option("--features", help="{FEATURES}.", **choice(FEATURES, "vectors")),
    "--task",
    "--label-separator",
    "--split",
    option("--split-column", help="Stored column with names of folds; test is the test set."),
    "--folds",
    "--test",
    "--threshold",
    "--class-weight",
    "--text",
    "--label",
    "--id",
    "--seed",
    "--overwrite",
)
def train(dataset: Path, view: str | None, progress: ProgressCallback, **settings: Any) -> Result:
    """Cross-validate an estimator on stored vectors.

    It is then fitted on all folds, and saved for predict. DATASET is a folder that extract wrote;
    of a corpus file one is made first, with the default settings of extract.
    """
    from embedkit.classifiers.train import train as fit
    from embedkit.cli.run_text import result_of

    return result_of(fit(dataset, view=names_of(view) or None, progress=progress, **settings))


@command(
    "embedkit probe reviews.vectors --out runs/probe",
    "embedkit probe reviews.vectors --control random-weights --learning-curve --out runs/probe",
)
@click.argument("dataset", type=FILE)
@options(
    "--out",
    option("--view", help="Views to score, separated by commas. [all that are stored]"),
    "--level",
    "--task",
    "--label-separator",
    "--split",
    option(
        "--metric",
        help="Metric that is shown, tuned for and used to choose the view. "
        "[accuracy or r2 is shown, log_loss or rmse is tuned for]",
    ),
    option(
        "--control",
        help="Also encode the texts with three untrained encoders.",
        **choice(["random-weights"]),
    ),
    option("--learning-curve", **FLAG, help="Also fit on 10 to 100 % of the training records."),
    "--text",
    "--label",
    "--id",
    "--overwrite",
)
def probe(dataset: Path, view: str | None, progress: ProgressCallback, **settings: Any) -> Result:
    """Score every stored view on the same folds.

    Controls: the majority class, a control task with random labels and, with --control, untrained
    encoders.
    """
    from embedkit.classifiers.probe import probe as run
    from embedkit.cli.run_text import result_of

    return result_of(run(dataset, view=names_of(view) or None, progress=progress, **settings))


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
    "--out",
    "--model",
    "--device",
    option(
        "--head",
        type=KnownOrClass(HEADS),
        help="Classification head, or module:Class of a torch.nn.Module. [mean for a sentence "
        "encoder that averages tokens, else cls]",
    ),
    "--level",
    "--task",
    "--label-separator",
    "--split",
    "--folds",
    "--test",
    "--test-sample",
    "--test-min-chars",
    option(
        "--epochs", type=int, help="Maximum number of epochs. [200 steps, at least 3, at most 20]"
    ),
    option("--learning-rate", default=5e-5, help="Peak learning rate; it decays linearly to 0."),
    option("--batch-size", default=16, help="Texts per batch."),
    option("--dropout", type=float, help="Dropout before the last layer. [set by the checkpoint]"),
    "--max-length",
    "--class-weight",
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
        default=0.1,
        help="Fraction of the training records used for validation; 0 disables it.",
    ),
    option(
        "--patience",
        type=int,
        help="Stop after N epochs without a better validation score. [5 without --epochs]",
    ),
    option(
        "--select-by",
        default="loss",
        help="Choose the epoch by the validation loss, or by a metric of the validation records "
        "(accuracy, macro_f1, f2 …).",
    ),
    "--threshold",
    "--text",
    "--text-pair",
    "--id",
    "--label",
    "--word-label",
    "--limit",
    "--seed",
    "--overwrite",
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
    from embedkit.finetuning.run import finetune as run

    return result_of(run(corpus, reading=reading, seed=seed, progress=progress, **settings))


_SHOWN = 3
"""Labels of one text that are printed with their probabilities; ``--json`` has all."""


@command(
    'embedkit predict runs/logreg --text "재미있어요" --label-names 0=부정,1=긍정',
    "embedkit predict runs/logreg new.tsv --out predictions.tsv",
    "embedkit predict runs/logreg -",
    'embedkit predict ./checkpoint --text "재미있어요"',
)
@click.argument("run", metavar="RUN|CHECKPOINT")
@click.argument("corpus", required=False)
@options(
    option("--text", help="With CORPUS the column of its texts [that of the run]; else the text."),
    "--text-pair",
    "--id",
    "--encoding",
    option(
        "--out", type=FILE, help="File to write: .tsv, .csv, .jsonl or .parquet. [standard output]"
    ),
    "--submission",
    "--overwrite",
    "--label-names",
    "--device",
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
    a dataset extracted with the same settings as that of the run. Without one, or with -, every
    line of standard input is answered as it comes, by one process.
    """
    from embedkit.predict import Predictor, parse_label_names, predict_file

    names = parse_label_names(label_names)
    model: dict[str, Any] = {"label_names": names, "device": device, "head": head}
    with progress_bar() as progress:
        if corpus not in (None, "-"):
            done, rejected = predict_file(
                run, corpus, reading=reading, as_json=as_json, progress=progress, **model, **output
            )
        elif given := [f"--{name}" for name, value in output.items() if value]:
            raise UsageError(f"{given[0]} is for a corpus; redirect other output with >.")
        else:
            lines = corpus == "-" or reading.text is None
            predictor = Predictor(run, **model, warm=lines)
    if corpus in (None, "-"):
        if lines:
            return answer_lines(partial(_show_text, predictor, as_json=as_json), "text")
        _show_text(predictor, str(reading.text), as_json=as_json)
        return 0
    if not quiet:
        where = f" → {output['out']}" if output["out"] else ""
        lost = f"{count_text(sum(rejected.values()), 'record')} rejected{reasons_text(rejected)}"
        say(f"{done}, {lost}{where}", err=True)
    return EXIT_REJECTS if rejected else 0


def _show_text(predictor: Predictor, text: str, *, as_json: bool) -> None:
    """Print the prediction for a text, or a line for each of its words."""
    shown: list[tuple[dict[str, Any], Prediction]]
    if not predictor.labels_words:
        shown = [({}, one) for one in predictor.predict([text])]
    else:
        names = ("word", "text", "start", "end")
        (words,) = predictor.predict_words([text])
        shown = [({n: getattr(w, n) for n in names}, w.prediction) for w in words]
    for place, prediction in shown:
        if as_json:
            click.echo(json_line(place | {"label": prediction.label, "proba": prediction.proba}))
            continue
        ordered = sorted(prediction.proba.items(), key=lambda item: -item[1])
        percent = partial(metric_text, metric="accuracy", unit=True)
        tail = "  ".join(f"{name} {percent(p)}" for name, p in ordered[:_SHOWN])
        if rest := [p for _, p in ordered[_SHOWN:]]:
            tail += f"  {count_text(len(rest), 'other')} {percent(sum(rest))}"
        cells = [place["text"] for _ in place][:1] + [prediction.label] + [tail] * bool(tail)
        say("\t".join(map(visible, cells)))


@command(
    "embedkit compare runs/tfidf runs/logreg runs/lightgbm",
    "embedkit compare runs/* --metric macro_f1 --min-difference 0.5 --report report.html",
    "embedkit compare runs/tfidf runs/cls --write-blend blend.tsv --answers tfidf.tsv "
    "--answers cls.tsv",
    more=True,
)
@click.argument("runs", nargs=-1, required=True, type=FILE)
@options(
    option(
        "--metric",
        help="Metric to sort by and to test. [accuracy; macro_f1 if classes are uneven or "
        "weighted; rmse for regression]",
    ),
    option(
        "--min-difference",
        type=float,
        help="Smallest difference that matters, in points of a metric in per cent, else in the "
        "metric's units. [1 point, 0.01 of a correlation, but at most a tenth of what the best "
        "lacks; 1 % of the baseline's error]",
    ),
    option("--report", type=FILE, help="HTML report to write."),
    option(
        "--write-blend",
        type=FILE,
        help="File for the blended labels and probabilities; .tsv, .csv, .jsonl or .parquet.",
    ),
    option(
        "--prefer",
        help="Method to use, and to write with --write-blend: {PREFERENCES}.",
        **choice(PREFERENCES, "cost"),
    ),
    option(
        "--answers",
        multiple=True,
        type=FILE,
        help="Predictions of predict for new texts, one file per run in the same order: blend "
        "these.",
    ),
    "--submission",
    "--overwrite",
)
def compare(
    runs: tuple[Path, ...],
    report: Path | None,
    write_blend: Path | None,
    answers: tuple[Path, ...],
    submission: str | None,
    overwrite: bool,
    progress: ProgressCallback,
    **settings: Any,
) -> Result:
    """Compare runs: a verdict, scores, differences, cost.

    RUNS are folders that train, finetune or probe wrote, all with the same split. Differences are
    to the run on TF-IDF, or to the majority class. Two blends of the runs are compared too.

    A file among RUNS has predictions of any other tool for the same records: columns id, y_pred or
    proba_CLASS for each class, and fold.
    """
    from embedkit.comparison.recommendation import recommend
    from embedkit.comparison.table import compare as calculate
    from embedkit.predict import parse_submission

    if (answers or submission) and write_blend is None:
        given = "--answers are" if answers else "--submission is"
        raise UsageError(f"{given} blended into a file; name it with --write-blend.")
    columns = parse_submission(submission)
    compared = calculate(runs, progress=progress, **settings)
    written: list[str] = []
    if write_blend is not None:
        from embedkit.comparison.blend import write_blend as write

        made = compared.blend_to_use()
        count = write(made, write_blend, answers=answers, submission=columns, overwrite=overwrite)
        written.append(f"{path_text(write_blend)}: {count_text(count, 'record')}, {made.name}")
    if report is not None:
        from embedkit.comparison.report import write_report

        write_report(compared, report, overwrite=overwrite, progress=progress)
    advice = recommend(compared)
    return Result(
        {**compared.as_json(), "recommendation": advice},
        lambda: _compare_text(compared, advice, written, report),
    )


def _compare_text(
    compared: Compared, advice: Recommendation, written: list[str], report: Path | None
) -> str:
    """The answer, the methods, the decisions and what to do next; with ``--all`` all numbers."""
    from embedkit.comparison.recommendation import run_notices

    first = [f"{advice.title} ({advice.method.name})", advice.reason]
    if asked_for_all():
        last = [f"{one.question}: {one.sentence or one.command}" for one in advice.decisions]
    else:
        answers = {one.question.lower(): one.answer for one in advice.decisions}
        missing = [question for question, answer in answers.items() if answer == "not tried"]
        said = [f"{name}: {answer}" for name, answer in answers.items() if name not in missing]
        said += [f"not tried: {', '.join(missing)}"] if missing else []
        last = ["; ".join(said).replace("layer: layer", "layer")]
        if shorts := [one.short for one in run_notices(compared)]:
            last.append(f"look first: {', '.join(shorts)}")
    last.append(f"next: {advice.next}")
    last += [f"wrote {path}" for path in written]
    last += [] if report is None else [f"report: {path_text(report)}"]
    last.append(comparison_text(compared) if asked_for_all() else "all numbers: --all")
    return "\n".join([*first, _methods_text(compared, advice, first + last), *last])


def _methods_text(compared: Compared, advice: Recommendation, others: list[str]) -> str:
    """The table of methods, with as many rows as make 15 lines with the others."""
    from embedkit.comparison.recommendation import cost_text, fit_text

    metric, width = compared.metric, terminal_width()
    room = max(width - (62 if is_percent(metric) else 66), 8)
    lines: dict[str, dict[str, str]] = {}
    tested = any(row.test for row in compared.rows)
    for one in (row for row in compared.rows if row.kind != "majority"):
        gain = metric_text(one.to_baseline.value, metric, signed=True) if one.to_baseline else "–"
        cells = {
            "  method": f"{'→' if one.name == advice.method.name else ' '} "
            + shorten(one.name, room),
            _score_heading(metric): score_text(one.scores[metric], metric),
            f"against {shorten(compared.baseline, 9)}": f"{one.verdict} {gain}".strip(),
        }
        if tested:
            test = one.test
            cells["test"] = metric_text(test[metric].value, metric) if metric in test else "–"
        else:
            cells["train"] = fit_text(one) or "–"
        time = cost_text(one)
        lines[one.name] = cells | {compared.level.replace("sentence", "text"): time or "–"}
    guess = score_text(compared.row("majority").scores[metric], metric)
    lines["majority"] = dict.fromkeys(next(iter(lines.values())), "–")
    lines["majority"] |= {"  method": "  majority", _score_heading(metric): guess}
    room = 14 - sum(len(fitted(line)) for line in others)
    if asked_for_all() or len(lines) <= room:
        return table_text(list(lines.values()))
    first = [name for name in (advice.method.name, compared.baseline) if name in lines]
    kept = set(list(dict.fromkeys([*first, *lines]))[: max(room - 1, 3)])
    more = f"  … {len(lines) - len(kept)} more (--all)"
    return f"{table_text([cells for name, cells in lines.items() if name in kept])}\n{more}"


def _score_heading(metric: str) -> str:
    return metric_heading(metric) + (" ↓" if metric in LOWER_IS_BETTER else "")


def comparison_text(compared: Compared) -> str:
    """Return all scores, differences and costs, each table below its title."""
    from embedkit.comparison.recommendation import input_text

    metric, rows, counts = compared.metric, compared.rows, compared.counts
    what, unit = f"{counts['folds']:,} records in folds", " in points" * is_percent(metric)
    if compared.level == "word":
        what = what.replace("records", "words")
    if counts["test"]:
        what += f", {counts['test']:,} in the test set"
    tested = [row for row in rows if row.test]
    parts = [
        f"Scores on held-out records ({what}), best first, with 95 % intervals:",
        table_text([_score_cells(row.name, row.scores, metric) for row in rows]),
    ]
    if tested:
        cells = [_score_cells(row.name, row.test, metric) for row in tested]
        parts += ["Test set:", table_text(cells)]
    parts += [
        f"Differences in {metric}{unit} to the baseline ({compared.baseline}) and to the first row "
        f"({rows[0].name}), with 95 % intervals; p of a paired t-test of units, "
        "for the models that were trained, corrected for "
        f"{count_text(compared.tests, 'pair')} of methods:",
        table_text([_gain_cells(r.name, r.to_baseline, r.to_best, metric) for r in rows]),
    ]
    if tested:
        gains = ((row.name, row.test_to_baseline, row.test_to_best) for row in tested)
        parts.append(f"Differences in {metric}{unit} on the test set:")
        parts.append(table_text([_gain_cells(*one, metric) for one in gains]))
    parts += [input_text(*one) for one in compared.inputs.items()]
    parts.append("Cost; an encoder that was not trained further is not counted on disk:")
    costs = [_cost_cells(row.name, row.cost, compared.level) for row in rows if row.cost]
    return "\n".join([*parts, table_text(costs)])


def _score_cells(name: str, scores: Mapping[str, Score], metric: str) -> dict[str, str]:
    names = dict.fromkeys([metric, *scores])
    return {"method": name} | {_score_heading(n): score_text(scores[n], n) for n in names}


def _gain_cells(
    name: str, to_baseline: Difference | None, to_best: Difference | None, metric: str
) -> dict[str, str]:
    """Against the baseline first: where columns do not fit, it is the one that stays."""
    from embedkit.comparison.recommendation import p_text

    cells = {"method": name}
    for other, difference in (("baseline", to_baseline), ("first row", to_best)):
        cells |= {f"to {other}": "–", f"p ({other})": "–"}
        if difference is not None and not math.isnan(difference.value):
            cells[f"to {other}"] = score_text(difference, metric, signed=True)
            cells[f"p ({other})"] = p_text(difference.p_corrected)
    return cells


def _cost_cells(name: str, cost: MethodCost, level: str) -> dict[str, str]:
    per = "ms/word" if level == "word" else "ms/text"
    memory, fitted = cost.peak_memory_bytes, cost.parameters
    return {
        "method": name,
        "fit s": number_text(cost.fit_seconds, ".1f"),
        f"encode, {per}": number_text(cost.encode_seconds, ".1f"),
        f"predict, {per}": number_text(cost.predict_seconds),  # seconds per 1,000
        "peak memory": "–" if memory is None else bytes_text(memory),
        "trainable": number_text(fitted, ",")
        if fitted is None or fitted < 1_000_000
        else f"{fitted / 1e6:.1f} M",
        "on disk": "–" if cost.size_bytes is None else bytes_text(cost.size_bytes),
        "device": cost.device,
    }


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
    loads the folder and gives the same probabilities; with other heads it holds the encoder alone.
    """
    if to is not None:
        from embedkit.dataset.read import load

        data = load(what, view)
        path = data.export(out, to=to)
        found = {"out": str(path), "rows": len(data), "width": data.width, "views": data.views}
        return Result(found, lambda: f"wrote {path}: {len(data):,} rows × {data.width}")
    from embedkit.finetuning.checkpoint import export as write

    result = write(what, out=out, fold=fold)

    def text() -> str:
        name, head = result.model, result.head
        what = f"the model {name} with its {head} head"
        if not result.has_head:
            what = f"the encoder of {name} without its {head} head, which transformers lacks"
        lines = [f"wrote {result.out}: {what}", f"  texts are cut at {result.max_length} tokens"]
        if result.prefix:
            lines.append(f"  put {result.prefix!r} before every text, as in training")
        if result.threshold is not None and result.has_head:
            lines.append(f"  embedkit predicts the second class from {result.threshold:.4f} on")
        return "\n".join([*lines, "load it:", *map("  {}".format, code)])

    code = result.code.splitlines()
    return Result(result, text)
