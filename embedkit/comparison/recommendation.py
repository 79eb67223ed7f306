"""Recommendation of a method, the decisions that the runs allow, and warnings.

    Compared ─┬─ recommend ─ title, reason, gain, decisions (layer, fine-tuning, labels …), next
              └─ notices ─── what makes the choice doubtful: cut texts, other inputs, wrong labels

Nothing is chosen here. :mod:`embedkit.comparison.table` has chosen, and these are its words, for
the page and for the terminal alike, so that both say the same. A decision that the runs cannot
answer names the command that would answer it, on the same dataset and split, ready to be typed.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embedkit.choices import DEFAULT_MODEL, ESTIMATORS
from embedkit.comparison.cases import Cases
from embedkit.comparison.load import FOREIGN, LoadedRun
from embedkit.comparison.table import MAJORITY, Compared, Row, best_first, price, records_to_decide
from embedkit.corpus.plan import class_columns, spans_of
from embedkit.display import count_text, duration_text, typing_folder, undashed
from embedkit.encoding.views import split_view, view_ranges, view_text
from embedkit.runs.intervals import Difference
from embedkit.runs.metrics import LOWER_IS_BETTER, metric_name, metric_text, score_text
from embedkit.runs.run import UNTRAINED, FinetuneRun, PredictionRun, ProbeRun, ViewScore, seen_text
from embedkit.runs.scores import constant_text

# a smaller share of cut texts is not worth a warning
_CUT = 0.005
_NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer in a word or two, why, and the whole sentence; or the command that answers it."""

    question: str
    answer: str
    why: str
    sentence: str
    command: str = ""

    @property
    def tone(self) -> str:
        """How a page shows the answer: ``yes``, ``open`` or ``no``."""
        if self.answer in ("not proven", _NOT_TRIED, UNTRAINED):
            return "open"
        return "yes" if self.answer == "yes" else "no"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The method to use, and why."""

    method: Row
    title: str
    reason: str
    against: str  # the baseline, or the majority where the baseline itself is recommended
    gain: Difference  # over that one
    verdict: str
    useful: bool  # the method is proven better than the majority
    decisions: tuple[Decision, ...]
    next: str  # a command


def recommend(compared: Compared) -> Recommendation:
    """Return the method to use, in words; :func:`~embedkit.comparison.table.compare` chose it."""
    selection, chosen, baseline = compared.selection, compared.winner, compared.baseline
    methods = tuple(row for row in compared.rows if row.kind != "majority")
    # a method has no difference to itself
    against = baseline if baseline != chosen.name else MAJORITY
    gain = compared.differences[chosen.name, against]
    if selection.useful:
        title, reason = _title(compared, chosen), _reason(compared, chosen)
    else:
        best, guess = (_score_of(compared, name) for name in (compared.best, MAJORITY))
        title = f"Nothing is proven better than {_majority_text(compared)}"
        reason = f"{compared.best} is the best, {best} {metric_name(compared.metric)}; "
        reason += f"{_majority_text(compared)} has {guess}."
    decisions = tuple(_decisions(compared, methods))
    training, other_views = _training(compared, chosen)
    # first what goes on with a training that was not to its end: until then its question is open
    unfinished = [decision.command for decision in decisions if decision.answer == UNTRAINED]
    commands = [*unfinished, training, *(decision.command for decision in decisions)]
    return Recommendation(
        chosen,
        title,
        reason + _failed(compared) + other_views,
        against,
        gain,
        compared.judge(gain),
        selection.useful,
        decisions,
        next(filter(None, commands), "") or _use(compared),
    )


def _score_of(compared: Compared, name: str, *, test: bool = False) -> str:
    metric, row = compared.metric, compared.row(name)
    return metric_text((row.test if test else row.scores)[metric].value, metric, unit=True)


# sentences


def p_text(p: float | None) -> str:
    r"""Return p with three digits.

    >>> p_text(0.0004), p_text(0.0499), p_text(0.25), p_text(None)
    ('<\xa00.001', '0.049', '0.250', '–')
    """
    if p is None:
        return "–"
    shown = min(p, 0.0494) if p < 0.05 else p  # what is below 0.05 is shown so
    return "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{shown:.3f}"


def _majority_text(compared: Compared) -> str:
    records = compared.records
    return constant_text(compared.metric, records.classes, sets=records.of_sets)


def _title(compared: Compared, chosen: Row) -> str:
    if chosen.kind == "blend":
        return f"Blend the {len(compared.models)} runs"
    content = _run(compared, chosen.name).content
    suffix = " of the fine-tuned encoder" if content.dataset.fold_models else ""
    if isinstance(content, ProbeRun):
        return f"Train on {view_text(content.choice)}{suffix}"
    if isinstance(content, FinetuneRun):
        return "Use the fine-tuned encoder"
    if content.kind == FOREIGN:
        return "Use the other tool"
    features = " + ".join([*map(view_text, content.views), *content.columns]) or "TF-IDF"
    return f"Use {ESTIMATORS.get(content.estimator, content.estimator)} on {features}{suffix}"


def _run(compared: Compared, name: str) -> LoadedRun:
    return next(run for run in compared.runs if run.name == name)


def _reason(compared: Compared, chosen: Row) -> str:
    selection = compared.selection
    best = compared.row(selection.equal[0])
    if chosen is not best:
        return _given_up(compared, best, chosen)
    metric, guess = metric_name(compared.metric), _majority_text(compared)
    rivals = [row.name for row in compared.rows if row.name not in (chosen.name, MAJORITY)]
    if not rivals:
        return f"It is the only method here, and better than {guess}."
    text = f"It has the best {metric}"
    # rows are sorted by their scores: what stands above is not among the candidates
    if chosen is not compared.rows[0]:
        text += f" of those proven better than {guess}"
        text += " and not ruled out by the test set" if selection.failed else ""
    gaps = {name: compared.differences[chosen.name, name] for name in rivals}
    equal = selection.equal[1:]
    cheaper = [name for name in equal if price(compared.row(name)) < price(chosen)]
    if cheaper:
        text += f"; {cheaper[0]} is cheaper and not proven worse"
        gap, count = gaps[cheaper[0]], compared.counts["folds"]
        records = records_to_decide(gap, compared.min_difference, count, pairs=compared.tests)
        if 1 <= records < math.inf:
            text += f": about {float(f'{records:.1g}'):,.0f} more {compared.noun}s would decide"
    elif level := [n for n, gap in gaps.items() if compared.judge(gap) != "better"]:
        others = count_text(len(rivals), "other")
        text += f"; {len(level)} of {others} not proven worse"
        # of those that are no candidates, the cost says nothing
        text += ", but not cheaper" if set(level) <= set(equal) else ""
    else:
        text += ", proven against all others"
    alone = next((r for r in compared.rows if r.kind not in ("blend", "majority")), None)
    if chosen.kind == "blend" and alone is not None:
        text += f"; alone, {alone.name} has {_score_of(compared, alone.name)}"
    return f"{text}."


def _given_up(compared: Compared, best: Row, chosen: Row) -> str:
    """Why a cheaper method is taken and not the best."""
    ahead = score_text(compared.differences[best.name, chosen.name], compared.metric, signed=True)
    text = f"{best.name} is not better by what matters ({ahead})"
    unit = "text" if compared.level == "sentence" else "word"
    for verb, mine, theirs, how in (
        (f"predicts a {unit} in", cost_text(chosen), cost_text(best), ", in a batch"),
        ("trains in", fit_text(chosen), fit_text(best), ""),
    ):
        # as shown: 1.2 ms instead of 1.2 ms would be no reason
        if mine and theirs and mine != theirs:
            return f"{text}; this one {verb} {mine} instead of {theirs}{how}."
    return f"{text}."


def _failed(compared: Compared) -> str:
    """Name the method with the best score of those that the test set rules out, if it was ahead."""
    failed = [row for row in compared.rows if row.name in compared.selection.failed]
    # a method behind the winner explains nothing: it would not have been taken anyway
    if not failed or compared.rows.index(failed[0]) > compared.rows.index(compared.winner):
        return ""
    name, metric = failed[0].name, compared.metric
    best = min if compared.lower else max
    tested = best((r for r in compared.rows if r.test), key=lambda row: row.test[metric].value)
    mine, theirs = (_score_of(compared, method, test=True) for method in (name, tested.name))
    sentence = f" {name} has {_score_of(compared, name)}, but fails on the test set: {mine}"
    return f"{sentence}, {tested.name} {theirs}."


def fit_text(row: Row) -> str:
    """Return the time of all fits; empty if it is unknown."""
    return duration_text(row.cost.fit_seconds if row.cost else None)


def cost_text(row: Row) -> str:
    """Return the time that a text takes in a batch; empty if it is unknown."""
    time = row.cost.milliseconds if row.cost else None
    return duration_text(None if time is None else time / 1_000)


def _decisions(compared: Compared, rows: Sequence[Row]) -> Iterator[Decision]:
    command = _command(compared, "probe", "--learning-curve")
    sentences = compared.level == "sentence"
    if not compared.probes:
        yield _not_tried("Layer", command)
    else:
        _, probe = compared.probes[0]
        yield _layer(probe)
        if sentences:
            yield from _pooling(probe)
    runs = [row for row in rows if row.kind not in ("blend", "probe", FOREIGN)]
    blends = [row for row in rows if row.kind == "blend"]
    if blends:
        models = f"{count_text(len(compared.models), 'run')} to keep"
        # rows are sorted, so that this is the best single method
        single = next(row for row in rows if row.kind != "blend")
        yield _effect(compared, "Blend", blends[0], single, models)
    tuned = [row for row in runs if row.kind == "finetuned"]
    classifiers = [row for row in runs if row.kind != "finetuned"]
    # alone, it is only said of one that was not trained to its end, which goes first
    others = [*classifiers, compared.row(MAJORITY)]
    if tuned and (classifiers or untrained_text(_run(compared, tuned[0].name).content)):
        yield _tuning(compared, tuned[0], others[0])
    elif sentences and not tuned:
        yield _not_tried("Fine-tuning", _command(compared, "finetune"))
    curves = [curve for _, probe in compared.probes for curve in _curve(probe)]
    yield curves[0] if curves else _not_tried("More labels", command)


def _not_tried(question: str, command: str) -> Decision:
    sentence = "" if command else "This needs a dataset with texts and labels: embedkit extract."
    return Decision(question, _NOT_TRIED, "", sentence, command)


def _layer(content: ProbeRun) -> Decision:
    metric, views, folds = content.metric, content.view_scores, len(content.choices)
    chosen = Counter(content.choices).most_common()
    listed = ", ".join(f"{view_text(name)} in {count}" for name, count in chosen)
    highest = metric_text(_best_first(content)[0].score.value, metric, unit=True)
    sentence = (
        f"Chosen without the held-out fold: {listed} of {folds} folds; {metric_name(metric)} "
        f"{score_text(content.nested, metric, unit=True)}. "
        f"The highest of {len(views)} scores of single layers, {highest}, is partly luck."
    )
    if content.over_last is not None:
        gain = score_text(content.over_last, metric, signed=True, unit=True)
        proven = "" if content.is_better else ", which is not proven"
        sentence += f" Over the last layer: {gain}{proven}."
    why = f"chosen in {chosen[0][1]} of {folds} folds"
    return Decision("Layer", view_text(chosen[0][0]), why, sentence)


def _best_first(content: ProbeRun) -> list[ViewScore]:
    views = {view.name: view for view in content.view_scores}
    scores = {name: view.score.value for name, view in views.items()}
    return [views[name] for name in best_first(scores, content.metric)]


def _pooling(content: ProbeRun) -> Iterator[Decision]:
    best: dict[str, ViewScore] = {}
    for view in _best_first(content):
        best.setdefault(split_view(view.name)[0], view)
    parts = [
        f"{pooling} at best {metric_text(view.score.value, content.metric, unit=True)}"
        for pooling, view in best.items()
    ]
    if len(best) > 1:
        yield Decision("Pooling", next(iter(best)), parts[1], f"{', '.join(parts)}.")


def _effect(compared: Compared, question: str, row: Row, other: Row, note: str) -> Decision:
    gap, metric = compared.differences[row.name, other.name], compared.metric
    verdict = compared.judge(gap)
    sentence = (
        f"{row.name} against {other.name}: {metric_name(metric)} "
        f"{score_text(gap, metric, signed=True, unit=True)}, "
        f"p {p_text(gap.p_corrected)}, {verdict}{f'; {note}' if note else ''}."
    )
    answer = {"better": "yes", "worse": "no"}.get(verdict, verdict)
    why = f"{metric_text(gap.value, metric, signed=True)} against {other.name}"
    if row.name in compared.selection.failed:
        answer, why = "no", "fails on the test set"
    return Decision(question, answer, why, sentence)


def _tuning(compared: Compared, tuned: Row, other: Row) -> Decision:
    """Whether fine-tuning is worth it: a run that was still improving never says no."""
    _, path, content, _ = _run(compared, tuned.name)
    reason = untrained_text(content)
    note = f"{UNTRAINED}: {reason}" if reason else ""
    decision = _effect(compared, "Fine-tuning", tuned, other, note)
    if not reason or (decision.answer == "yes" and other.name != MAJORITY):
        return decision
    assert isinstance(content, FinetuneRun)
    folder = path.resolve()
    # the corpus as it can be typed here, whatever folder the run was made from; a stream has none
    corpus = portable(folder / content.dataset.path) if content.dataset.path else ""
    longer = _free(folder.with_name(f"{folder.name}-longer"))
    command = content.going_on(portable(folder), corpus, portable(longer))
    return replace(decision, answer=UNTRAINED, why=reason, command=command)


def _curve(content: ProbeRun) -> Iterator[Decision]:
    """Gain of the last step of the curve, for the view that was chosen most often."""
    points = content.chosen.curve
    if len(points) < 2:
        return
    (size, score), (full_size, full_score) = points[-2:]
    # the two scores are of the same held-out records, but their covariance is not stored; a missing
    # interval adds nothing
    half = math.hypot(*(h for p in (score, full_score) if math.isfinite(h := (p.high - p.low) / 2)))
    value = full_score.value - score.value
    gap = Difference(value, value - half, value + half)  # too wide: of independent samples
    proven = gap.high < 0 if content.metric in LOWER_IS_BETTER else gap.low > 0
    answer = "yes" if proven else "not proven"
    change = metric_text(gap.value, content.metric, signed=True)
    why = f"{change} from the last {full_size - size:,}"
    gain = score_text(gap, content.metric, signed=True, unit=True)
    sentence = f"From {size:,} to {full_size:,} training {content.noun}s: {gain}."
    yield Decision("More labels", answer, why, sentence)


def _command(compared: Compared, command: str, *options: str, of: str = "") -> str:
    """A command on the dataset and split of the runs; empty if it or its labels are gone.

    The dataset is that of the run ``of``, if one is given.
    """
    # vectors of fold models belong to a run, and cannot be probed or trained on under another
    # split; then the dataset that most runs share
    datasets = sorted(
        (
            dataset
            for dataset in compared.datasets
            if (not of or of in dataset.runs)
            and (dataset.manifest.job.storage.text or command != "finetune")
        ),
        key=lambda d: (d.manifest.job.folds is not None, -len(d.runs)),
    )
    if not datasets:
        return ""
    run, dataset = compared.runs[0], datasets[0]
    split, content = run.path / "split.parquet", run.content
    parts = ["embedkit", command, portable(dataset.path), "--split", portable(split), *options]
    model = dataset.manifest.names.model
    if command == "finetune" and model != DEFAULT_MODEL:
        parts += ["--model", model_text(model)]
    if content.level != "sentence":
        parts += ["--level", content.level]
    elif content.label != (stored := dataset.manifest.job.input.label) or stored is None:
        # labels that were passed in Python are nowhere
        kept = dataset.manifest.job.input.keep
        if content.label not in kept and not class_columns(content.label, kept):
            return ""
        parts += ["--label", str(content.label)]
    if content.task != "classification":
        parts += ["--task", content.task]
    if content.task == "multilabel":
        parts += ["--label-separator", content.separator]
    return shlex.join([*parts, "--out", portable(_free(run.path.parent / command))])


def _free(path: Path) -> Path:
    """The path, or the first one with a number behind its name that does not exist."""
    numbered = (path.with_stem(f"{path.stem}-{n}") for n in count(2))
    return next(candidate for candidate in chain([path], numbered) if not candidate.exists())


def portable(path: str | Path) -> str:
    """Return a path as it can be typed in the user's folder: relative, however far it is."""
    return undashed(os.path.relpath(path, typing_folder()))


def model_text(model: str) -> str:
    """Return a model as it can be typed: a path like others, a name as it is."""
    return portable(model) if Path(model).is_absolute() else model


def _training(compared: Compared, chosen: Row) -> tuple[str, str]:
    """The command that trains on what a probe has chosen, and a sentence if it is on other views.

    A probe keeps no model, so that its views have to be trained on, side by side.
    """
    content = None if chosen.kind == "blend" else _run(compared, chosen.name).content
    if not isinstance(content, ProbeRun):
        return "", ""
    views, sentence = content.choice.split(" + "), ""
    # a sum or a mixture of layers, which the probe has made itself
    if not {view.name for view in content.view_scores}.issuperset(views):
        views = [content.chosen.name]
        sentence = (
            f" The dataset does not store the {view_text(content.choice)}: the next command trains "
            f"on the single view that most folds put first, {view_text(views[0])}."
        )
    options = ["--view", ",".join(views)]
    if content.estimator not in ("logreg", "ridge"):  # which train takes by default
        options += ["--estimator", content.estimator]
    command = _command(compared, "train", *options, of=chosen.name)
    return command, sentence if command else ""


def _use(compared: Compared) -> str:
    """The command that predicts with a run, or writes the predictions of a blend."""
    name = compared.selection.with_model
    if compared.row(name).kind == "blend":
        runs = [portable(run.path) for run in compared.models]
        # the method to use may be another one by another metric
        end = ["--metric", compared.metric, "--write-blend", portable(_free(Path("blend.tsv")))]
        return shlex.join(["embedkit", "compare", *runs, *end, "--prefer", "score"])
    run = _run(compared, name)
    pair = ["--text-pair", "another text"] if run.content.dataset.pairs else []
    # numbers and spans beside a text stand in a file
    spans = run.content.level == "word" and spans_of(run.content.dataset.reading) == "columns"
    what = ["new.tsv"] if run.content.columns or spans else ["--text", "a new text", *pair]
    if isinstance(run.content, FinetuneRun) and ":" in run.content.head:  # the user's own
        what += ["--head", run.content.head]
    return shlex.join(["embedkit", "predict", portable(run.path), *what])


# warnings


class Notice(NamedTuple):
    """Warning about the choice: a few words, a sentence, and a list of records or ``""``."""

    short: str
    sentence: str
    records: str = ""


def notices(compared: Compared, cases: Cases) -> Iterator[Notice]:
    """Yield the warnings about a recommendation."""
    yield from run_notices(compared)
    if count := len(cases.lists.get("relabel", ())):
        labels = count_text(count, "label")
        sentence = f"{labels} that all methods and the nearest {compared.noun}s contradict."
        yield Notice(f"{labels} to check", sentence, "relabel")
    if count := len(cases.lists.get("all_wrong", ())):
        verb = "is" if count == 1 else "are"
        sentence = f"{count:,} of {len(cases.records.row):,} {verb} predicted wrongly by every run."
        short = f"{count_text(count, compared.noun)} that no run gets right"
        yield Notice(short, sentence, "all_wrong")


def run_notices(compared: Compared) -> Iterator[Notice]:
    """Yield the warnings that need neither predictions nor texts."""
    for setting, runs in compared.inputs.items():
        yield Notice(f"{setting} differs", input_text(setting, runs))
    if seen := compared.seen_texts:
        sentence = seen_text(seen, compared.counts["test"])
        ruled = "a difference that they alone could make there rules no method out"
        yield Notice("test texts in training", f"{sentence}: {ruled}.")
    yield from _cut(compared)
    yield from _random_weights(compared)
    for run in compared.runs:
        if text := untrained_text(run.content):
            yield Notice(f"{run.name} is {UNTRAINED}", f"{run.name}: {text}.")


def input_text(setting: str, runs: Mapping[str, Sequence[str]]) -> str:
    """Return a difference of the input as a sentence."""
    values = "; ".join(f"{value} ({', '.join(names)})" for value, names in runs.items())
    return f"The runs saw different input: {setting} is {values}."


def _cut(compared: Compared) -> Iterator[Notice]:
    def notice(name: str, every: int, texts: int, lost: float, limit: int) -> Iterator[Notice]:
        if texts / max(every, 1) >= _CUT:
            percent = f"{texts / every * 100:.3g} %"
            sentence = f"{name} cuts {texts:,} of {every:,} texts ({percent}) at {limit} tokens; "
            sentence += f"{lost * 100:.3g} % of all tokens are not read."
            yield Notice(f"{percent} of texts cut in {name}", sentence, "cut")

    for dataset in compared.datasets:
        totals, limit = dataset.manifest.totals, dataset.manifest.job.vectors.max_length
        lost = totals.ledger.get("tokens_cut", 0) / max(totals.ledger.get("tokens", 0), 1)
        texts = totals.ledger.get("records_truncated", 0)
        yield from notice(dataset.path.resolve().name, totals.accepted, texts, lost, limit)
    for run in compared.runs:
        if isinstance(content := run.content, FinetuneRun):
            cut, limit = content.truncated, content.tokens.max_length
            lost = cut["tokens"] / max(cut["tokens_all"], 1)
            yield from notice(run.name, cut["records_all"], cut["records"], lost, limit)


def _random_weights(compared: Compared) -> Iterator[Notice]:
    """Views for which encoders that were never trained are within the interval."""
    for name, content in compared.probes:
        views, lower = [], content.metric in LOWER_IS_BETTER
        for view in content.view_scores:
            if view.name in content.random_weights:
                value = float(np.mean(content.random_weights[view.name]))
                if value <= view.score.high if lower else value >= view.score.low:
                    views.append(view.name)
        if views:
            yield Notice(
                f"{count_text(len(views), 'view')} not proven better than untrained",
                f"{name}: encoders that were never trained are within the interval at {len(views)} "
                f"of {len(content.random_weights)} views: {view_ranges(views)}.",
            )


def untrained_text(content: PredictionRun) -> str:
    """Return that most models of a run were still improving at their end; else nothing."""
    if not isinstance(content, FinetuneRun) or content.is_trained:
        return ""
    return f"{content.improving} of {len(content.models)} models were still improving at their end"
