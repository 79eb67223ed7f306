"""Runs as text for people: the answer first, everything else with ``--all``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from embedkit import storage
from embedkit.cli.command import Result
from embedkit.cli.text import asked_for_all, table_text
from embedkit.dataset.format import is_dataset, read_manifest
from embedkit.display import (
    as_argument,
    bytes_text,
    count_text,
    duration_text,
    path_text,
    reasons_text,
)
from embedkit.encoding.views import layer_rank, split_view, view_ranges, view_text
from embedkit.errors import EXIT_REJECTS
from embedkit.runs.metrics import (
    LOWER_IS_BETTER,
    interval_text,
    is_percent,
    metric_name,
    metric_text,
    score_text,
)
from embedkit.runs.run import (
    UNTRAINED,
    FinetuneRun,
    PredictionRun,
    ProbeRun,
    ReportedScore,
    Run,
    SimilarityRun,
    seen_text,
)
from embedkit.runs.scores import constant_text, headline_metric

if TYPE_CHECKING:
    from embedkit.runs.folder import RunResult
    from embedkit.runs.intervals import Score
    from embedkit.sts import PairSimilarity

_FIRST = ("accuracy", "entity_f1", "micro_f1", "macro_f1", "log_loss", "r2", "rmse", "spearman")
"""Scores that are printed without ``--all``."""

_SUBSETS = {"cross_validation": "held-out", "test": "test"}
_AGREEMENT = ("spearman", "pearson")
_CLASSES = 6


def result_of(result: RunResult[Any]) -> Result:
    """Return what a command prints of a new run."""
    data = {"out": str(result.out), **asdict(result.content)}
    return Result(data, lambda: run_text(result), code=EXIT_REJECTS if result.rejected else 0)


def run_text(result: RunResult[Any]) -> str:
    """Return the finding, main scores, cost and folder of a new run."""
    content, out = result.content, path_text(result.out)
    finding, results = _KINDS[content.kind]
    lines = [finding(content), *results(content), f"{_method(content)}: {_cost(content)}"]
    note = f"everything: embedkit info {as_argument(out)} --all"
    return "\n".join([*lines, f"wrote {out} ({note})"])


def run_info_text(path: Path, content: Run) -> str:
    """Return the finding, settings and results of a run, and how to open it."""
    finding, results = _KINDS[content.kind]
    folder = as_argument(path)
    lines = [finding(content), *results(content)]
    lines += [f"  {name:9}  {text}" for name, text in _facts(path, content)]
    if (path / "model").is_dir():
        lines.append(f"use it: embedkit predict {folder} new.tsv --out labels.tsv")
    # of runs with predictions, and of similarity
    for name in ("predictions.parquet", "pairs.parquet"):
        if (path / name).is_file():
            lines.append(f"open it: df = pandas.read_parquet({str(path / name)!r})")
    last = [f"figures: {path}/figures"] if (path / "figures").is_dir() else []
    last += [] if asked_for_all() else ["everything: --all"]
    return "\n".join([*lines, "; ".join(last)])


def _prediction_finding(content: PredictionRun) -> str:
    metric = _headline(content)
    # the test set, where there is one that says something: nothing was chosen by it
    tested = content.scores.get("test", {}).get(metric)
    subset = "test" if tested and math.isfinite(tested.value) else "cross_validation"
    if metric not in content.scores.get(subset, {}):
        count = count_text(content.records["folds"], content.noun)
        return f"{count} with one label only: there is no {metric}"
    score = content.scores[subset][metric]
    baseline = _against(content, metric, score)
    return f"{_score(metric, score)}: {baseline}"


def _headline(content: PredictionRun) -> str:
    """The metric by which compare judges the run, so that both speak of one number.

    Of values it is R², which says something alone, where compare has the error in their unit.
    """
    support = [label.support for label in content.per_class.get("cross_validation", ())]
    if support:
        return headline_metric([content], support)
    return "accuracy" if content.classes else "r2"


def agreement_finding(content: SimilarityRun | PairSimilarity) -> str:
    """Return which view agrees best with human scores."""
    if not content.agreement:
        return "no human scores to compare the cosines with"
    scores = {view: correlations["spearman"] for view, correlations in content.agreement.items()}
    scores = {view: score for view, score in scores.items() if math.isfinite(score.value)}
    if not scores:
        return "no view agrees with the scores"
    best = max(scores, key=lambda view: scores[view].value)
    near = content.as_high
    text = f"{best} agrees best with the scores: "
    text += f"Spearman {score_text(scores[best], 'spearman')}"
    return text + (f"; not proven lower: {view_ranges(near)}" if near else "")


def _probe_finding(content: ProbeRun) -> str:
    """What inner folds choose, its score, and what it gains over the last layer."""
    nested, metric = content.nested, content.metric
    text, chosen = view_text(content.choice), content.choices.count(content.choice)
    # the score is that of all choices, inside of folds
    text += f" in {chosen} of {len(content.choices)} folds" * (chosen < len(content.choices))
    text += f": {score_text(nested, metric, unit=True)}"
    if content.over_last is not None:
        gain = metric_text(content.over_last.value, metric, signed=True)
        ends = interval_text(content.over_last, metric, signed=True) or "no interval"
        text += f", {gain} over the last layer ({ends})"
        if not content.is_better:
            text = f"nothing is proven better than the last layer; {text}"
    baseline = _against(content, metric, nested)
    return f"{text}\nheld-out {metric_name(metric)}: {baseline}"


def _score(metric: str, score: Score) -> str:
    if math.isnan(score.value):
        return f"{metric} undefined"
    return f"{metric} {score_text(score, metric, unit=True)}"


def _against(content: PredictionRun, metric: str, score: ReportedScore) -> str:
    """Comparison of a score with the baseline that knows only the labels."""
    majority = score.majority
    name = constant_text(metric, content.classes, sets=content.task == "multilabel")
    baseline = f"{name} ({metric_text(majority, metric, unit=True)})"
    if not score.differs:
        return f"no proven gain over {baseline}"
    better = (score.value < majority) == (metric in LOWER_IS_BETTER)
    distance = metric_text(abs(score.value - majority), metric)
    distance += " points" if is_percent(metric) else ""
    return f"{distance} {'better' if better else 'worse'} than {baseline}"


def agreement_table(content: SimilarityRun | PairSimilarity) -> Iterator[str]:
    """Yield the table of all correlations with their intervals, where everything is asked for."""
    if asked_for_all():
        views = sorted(content.agreement, key=lambda view: layer_rank(split_view(view)[1]))
        rows = [
            {"view": view}
            | {name: score_text(content.agreement[view][name], name) for name in _AGREEMENT}
            for view in views
        ]
        yield table_text(rows)


def _finetuned_finding(content: FinetuneRun) -> str:
    finding = _prediction_finding(content)
    return finding if content.is_trained else f"{finding}; {UNTRAINED}"


def _finetuned_scores(content: FinetuneRun) -> Iterator[str]:
    # first: what the interval of the first line does not cover
    if spread := content.seeds_text(_headline(content)):
        yield f"  on held-out {content.noun}s {spread} (of training, which no interval covers)"
    yield from _scores(content)
    cut, rejected = content.truncated, content.dataset.rejected or {}
    epochs = ", ".join(f"{epoch:g}" for epoch in sorted(set(content.epochs)))
    models = count_text(len(content.models), "model")
    yield f"{models}, {content.improving} still improving; best epochs: {epochs}"
    if cut["records"]:
        lost = f"{cut['tokens']:,} of {cut['tokens_all']:,} tokens"
        limit = content.tokens.max_length
        yield f"{count_text(cut['records'], 'text')} cut at {limit} tokens: {lost} left out"
    if rejected:
        yield f"{count_text(sum(rejected.values()), 'record')} rejected{reasons_text(rejected)}"


def _scores(content: PredictionRun) -> Iterator[str]:
    if asked_for_all():
        yield from _score_tables(content)
    else:
        finding = _prediction_finding(content)
        for subset, scores in reversed(content.scores.items()):
            shown = [_score(name, scores[name]) for name in _FIRST if name in scores]
            # what the first line has said is not said again
            shown = [text for text in shown if not finding.startswith(text)]
            size = content.records[subset.replace("cross_validation", "folds")]
            units = count_text(size, f"{_SUBSETS[subset]} {content.noun}")
            yield f"  {units}: {', '.join(shown) or finding}"
    loss = "log_loss" if content.classes else "rmse"
    for subset, scores in content.scores.items():
        score = scores.get(loss)
        # a model can be right more often than the majority and still be sure of its errors, which
        # only these losses show
        if score and score.differs and score.value > score.majority:
            value, guess = metric_text(score.value, loss), metric_text(score.majority, loss)
            yield (
                f"warning: {loss} is worse than a constant guess ({value} against {guess}, "
                f"{_SUBSETS[subset]})"
            )
    if content.threshold is not None:
        yield f"decision threshold for {content.classes[1]}: {content.threshold:.3g}"
    test, count = content.test_set, content.records["test"]
    if test and test.rejected:
        rejected = count_text(test.rejected, "record")
        yield f"{rejected} of the test set rejected, {count:,} predicted"
    if test and test.seen_texts:
        yield f"warning: {seen_text(test.seen_texts, count)}"


def _score_tables(content: PredictionRun) -> Iterator[str]:
    yield table_text(content.as_rows())
    for subset, classes in content.per_class.items():
        yield table_text(
            [
                {
                    "class": row.label,
                    "held out": _SUBSETS[subset],
                    "f1, %": metric_text(row.f1, "f1"),
                    "precision, %": metric_text(row.precision, "f1"),
                    "recall, %": metric_text(row.recall, "f1"),
                    f"{content.noun}s": f"{row.support:,}",
                }
                for row in sorted(classes, key=lambda row: row.f1)
            ]
        )


def grid_text(cells: Mapping[str, str]) -> str:
    """Return a text of each view as a table: a line for each pooling, a column for each layer."""
    layers = dict.fromkeys(split_view(view)[1] or "–" for view in cells)
    rows: dict[str, dict[str, str]] = {}
    for view, cell in cells.items():
        pooling, layer = split_view(view)
        row = rows.setdefault(pooling, {"layer": pooling} | dict.fromkeys(layers, ""))
        row[layer or "–"] = cell
    return table_text(list(rows.values()), gap=1)


def _probe_results(content: ProbeRun) -> Iterator[str]:
    metric, views = content.metric, content.view_scores
    if asked_for_all():
        yield table_text(content.as_rows())
        if rows := content.geometry_rows():
            yield f"without labels:\n{table_text(rows)}"
    else:
        yield grid_text({view.name: metric_text(view.score.value, metric) for view in views})

    def between(values: list[float]) -> str:
        # one where there is one view, or where both are alike
        return " to ".join({metric_text(end(values), metric): 0 for end in (min, max)})

    listed = [*views, *content.combinations] if asked_for_all() else views
    control = "a random label for each word" if content.level == "word" else "random labels"
    controls = f"with {control} {between([view.control for view in listed])}"
    if untrained := content.random_weights.values():
        controls += f"; never trained {between([fmean(values) for values in untrained])}"
    yield f"{controls}; guessing {metric_text(content.nested.majority, metric)}"
    for view in views if asked_for_all() else [content.chosen]:
        if view.curve:
            points = (f"{n:,} → {metric_text(p.value, metric)}" for n, p in view.curve)
            yield f"{view_text(view.name)}, by training {content.noun}s: {', '.join(points)}"
    counts = Counter(content.choices).most_common()
    chosen = [f"{view_text(name)} in {count_text(count, 'fold')}" for name, count in counts]
    if len(chosen) > 3 and not asked_for_all():
        chosen = [*chosen[:3], "…"]
    # the column of the table counts single views and combinations each among their kind
    yield f"chosen{' of them all' * asked_for_all()}: {'; '.join(chosen)}"


def _facts(path: Path, content: Run) -> Iterator[tuple[str, str]]:
    if content.command and asked_for_all():
        yield "command", content.command
    if isinstance(content, PredictionRun):
        names, split = content.dataset.names, content.split
        yield "method", _method(content)
        if content.features != "tfidf" and asked_for_all():
            yield "model", names.model + (f" at {names.revision}" if names.revision else "")
            yield "input", ", ".join(names.inputs)
        kinds = [f"{name}, " for name in ("stratified", "grouped") if getattr(split, name)]
        folds = f"{count_text(split.folds, 'fold')}, {''.join(kinds)}seed {split.seed}"
        yield "split", f"{folds} ({split.fingerprint[:12]})"
        test = f" and {content.records['test']:,} to test" if content.records["test"] else ""
        shown = content.classes if asked_for_all() else content.classes[:_CLASSES]
        ellipsis = ", …" if len(shown) < len(content.classes) else ""
        labels = f"; {count_text(len(content.classes), 'label')}: {', '.join(shown)}{ellipsis}"
        # of a single fold the other records are trained on alone
        unit = f"held-out {content.noun}" if split.folds == 1 else content.noun
        data = f"{count_text(content.records['folds'], unit)}{test}"
        yield "data", data + (labels if content.classes else "")
        source = path / content.dataset.path
        if content.dataset.path and is_dataset(source):
            manifest = read_manifest(source)
            # the path is where the dataset was: another one may have been written there. Of a run
            # on its texts, whose fingerprint is another one, the corpus has to be the same
            now, then = manifest.source, content.dataset.source
            if not isinstance(content, FinetuneRun):
                now, then = (manifest.fingerprint,), (content.dataset.fingerprint,)
            if now != then:
                count = count_text(manifest.totals.accepted, "record")
                yield "dataset", f"another one has its place now, of {count}"
        yield "cost", _cost(content)
    if isinstance(content, SimilarityRun):
        yield "model", content.model
        yield "records", "{pairs:,} pairs, {rejected:,} rejected".format(**content.records)
    if asked_for_all():
        yield "on disk", bytes_text(storage.tree_bytes(path))
        yield "versions", ", ".join(f"{name} {v}" for name, v in content.versions.items())


def _method(content: PredictionRun) -> str:
    if isinstance(content, FinetuneRun):
        return f"{content.estimator}, {content.head} head, on {content.dataset.names.model}"
    views = ("every view",) if isinstance(content, ProbeRun) else content.views
    return f"{content.estimator} on {' + '.join([*views, *content.columns]) or 'TF-IDF'}"


_KINDS: dict[str, tuple[Callable[[Any], str], Callable[[Any], Iterator[str]]]] = {
    "frozen": (_prediction_finding, _scores),
    "finetuned": (_finetuned_finding, _finetuned_scores),
    "probe": (_probe_finding, _probe_results),
    "similarity": (agreement_finding, agreement_table),
}


def _cost(content: PredictionRun) -> str:
    cost = content.cost
    parts = [
        (cost.fit_seconds, duration_text, "of fitting"),
        (cost.parameters, "{:,}".format, "parameters"),
        (cost.peak_memory_bytes, bytes_text, "in the process"),
    ]
    return ", ".join(f"{text(value)} {noun}" for value, text, noun in parts if value is not None)
