"""Sentences of a comparison: its verdict, the answers to five questions, and its warnings."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from embedkit.choices import DEFAULT_MODEL
from embedkit.comparison.alerts import Alert, short_trainings
from embedkit.comparison.compare import MAJORITY, Compared
from embedkit.comparison.effects import Effect, Scale
from embedkit.comparison.findings import PoolingAnswer, Verdict
from embedkit.comparison.phrases import Phrases, p_text
from embedkit.encoding.views import split_view, view_ranges
from embedkit.runs.content import FinetuneRun, PredictionRun

__all__ = ["Sentences"]


class Sentences:
    """What a comparison found, in one language.

    Args:
        words: phrases and numbers in the language.
        compared: the comparison.
        scale: how its metric is shown.
    """

    def __init__(self, words: Phrases, compared: Compared, scale: Scale) -> None:
        self._words, self._compared, self._scale = words, compared, scale

    def title(self, verdict: Verdict) -> str:
        """Return the finding in one sentence."""
        words = self._words
        chosen, effect = words.method(verdict.chosen), verdict.effect
        baseline = words.method(self._compared.table.baseline)
        if verdict.chosen in verdict.unfit:
            return self._worse_than_majority("title.unfit")
        if effect is None:
            return words("title.baseline", baseline=baseline)
        key = effect.word
        if key == "open" and not self._scale.gain(effect.value) > 0:
            key = "behind"
        difference = words.difference(effect.value)
        if not self._scale.percent:
            difference = f"{words.metric(self._scale.metric)} {difference}"
        return _capital(words(
            f"title.{key}", chosen=chosen, baseline=baseline,
            records=self._compared.table.records["folds"], worth=words.worth,
            difference=difference,
        ))  # fmt: skip

    def lead(self, verdict: Verdict) -> tuple[str, str, str]:
        """Return score, difference to the baseline and records; empty where there is none."""
        words = self._words
        score, effect = verdict.score, verdict.effect
        first = words(
            "lead.score", metric=_capital(words.metric(self._scale.metric)),
            score=words.score(score.value), interval=words.interval(score.low, score.high),
        )  # fmt: skip
        if effect is None:
            return first, "", ""
        second = words(
            "lead.against", difference=words.difference(effect.value),
            baseline=words.method(effect.other), interval=words.change(effect),
        )  # fmt: skip
        if not self._compared.runs.records.classes:
            return first, second, ""
        return first, second, self._records(effect)

    def methods(self, verdict: Verdict) -> list[str]:
        """Return what the methods are that the other sentences name."""
        named = [verdict.chosen, self._compared.table.baseline]
        named += [] if verdict.finetuned is None else [verdict.finetuned.name]
        runs = {run.name: run.content for run in self._compared.runs.runs}
        return [self._what(name, runs[name]) for name in dict.fromkeys(named) if name in runs]

    def _what(self, name: str, run: PredictionRun) -> str:
        if isinstance(run, FinetuneRun):
            return self._words("what.finetuned", name=name, head=run.head)
        if run.features == "tfidf":
            return self._words("what.tfidf", name=name, estimator=run.estimator)
        return self._words("what.vectors", name=name, estimator=run.estimator,
                           views=" + ".join(run.views))  # fmt: skip

    def word(self, effect: Effect) -> str:
        """Return what the test and the margin say."""
        tests = self._tests(effect)
        p = self._words("p.of_many" if tests > 1 else "p.one", p=p_text(effect.p), tests=tests)
        return self._words(f"word.{effect.word}", p=p, worth=self._words.worth)

    def _tests(self, effect: Effect) -> int:
        """Number of comparisons that p is corrected for; those with the majority on their own."""
        table = self._compared.table
        return len(table.rows) - 1 if MAJORITY in (effect.name, effect.other) else table.tests

    def _records(self, effect: Effect) -> str:
        """Records gained and lost: those of the accuracy, whatever metric is asked for."""
        key = "lead.records" if self._scale.metric == "accuracy" else "lead.records.by_class"
        return self._words(key, gained=effect.gained, lost=effect.lost)

    def alert(self, alert: Alert) -> str:
        """Return a warning as one or two sentences."""
        return _ALERTS.get(alert.kind, _plain)(self._words, alert.kind, dict(alert.values))

    def answers(self, verdict: Verdict) -> list[tuple[str, str, str]]:
        """Return question, answer and command of the five questions; some have no command."""
        return [
            (self._words(f"question.{name}"), *found)
            for name, found in (
                ("layer", self._layer(verdict)),
                ("pooling", self._pooling(verdict)),
                ("blend", self._blend(verdict)),
                ("finetuned", self._finetuned(verdict)),
                ("curve", self._curve(verdict)),
            )
        ]

    def _layer(self, verdict: Verdict) -> tuple[str, str]:
        words = self._words
        found = verdict.layer
        if found is None:
            return words("untried"), self._command(verdict, "probe")
        nested, others = found.nested, found.views - 1
        report = {
            "metric": words.metric(found.metric), "score": words.score(nested.value, found.metric),
            "interval": words.interval(nested.low, nested.high, found.metric),
        }  # fmt: skip
        best = {"view": found.best, "score": words.score(found.score, found.metric)}
        said = [words("view.help", view=found.best)]
        if len(self._compared.runs.probes) > 1:
            said.append(f"{found.run}{words('colon').rstrip()}")
        if not others:
            return self._joined([*said, words("layer.only", view=found.best, **report)]), ""
        if found.level is None:
            said.append(words("layer.best", **best))
        elif len(found.level) == 1:
            said.append(words("layer.alone", others=others, **best))
        else:
            level = [view for view in found.level if view != found.best]
            said.append(words("layer.level", views=view_ranges(level), count=len(level),
                              others=others, **best))  # fmt: skip
        folds = sum(count for _, count in found.chosen)
        if found.chosen == ((found.best, folds),):
            said.append(words("layer.same", folds=folds, **report))
        else:
            chosen = ", ".join(words("layer.folds", view=view, folds=count, all=folds)
                               for view, count in found.chosen)  # fmt: skip
            said.append(words("layer.chosen", views=chosen, all=found.views, **report))
        return self._joined(said), ""

    def _joined(self, sentences: Sequence[str]) -> str:
        return self._words("gap").join(sentences)

    def _pooling(self, verdict: Verdict) -> tuple[str, str]:
        words = self._words
        found = verdict.pooling
        if self._compared.table.level == "word":
            return words("pooling.words"), ""
        if found is None:
            if verdict.layer is None:
                return words("untried"), self._command(verdict, "probe")
            return words("pooling.only", pooling=split_view(verdict.layer.best)[0]), ""
        (pooling, view), *others = found.best
        score = words.score(view.score.value, found.metric)
        said = [words("pooling.best", pooling=pooling, view=view.name, score=score)]
        said += [self._other_pooling(found, name) for name, _ in others]
        return self._joined(said), ""

    def _other_pooling(self, found: PoolingAnswer, pooling: str) -> str:
        apart = found.told_apart(pooling)
        key = "untested" if apart is None else "apart" if apart else "same"
        view = dict(found.best)[pooling]
        score = self._words.score(view.score.value, found.metric)
        return _capital(self._words(f"pooling.{key}", pooling=pooling, view=view.name, score=score))

    def _blend(self, verdict: Verdict) -> tuple[str, str]:
        if verdict.blend is None:
            return self._words("blend.none"), ""
        chosen, runs = self._words.method(verdict.chosen), len(self._compared.runs.runs)
        said = [self._effect("blend.answer", verdict.blend, chosen=chosen, runs=runs)]
        said += self._worse_loss(verdict.blend)
        return self._joined(said), ""

    def _worse_loss(self, effect: Effect) -> Iterator[str]:
        """A better score in the metric asked for may come with worse probabilities."""
        rows = {row.name: row.scores for row in self._compared.table.rows}
        value, other = (rows[name].get("log_loss") for name in (effect.name, effect.other))
        if value is None or other is None or self._scale.metric == "log_loss":
            return
        if value.value > other.value:
            numbers = {name: self._words.score(one.value, "log_loss")
                       for name, one in (("value", value), ("other", other))}  # fmt: skip
            yield self._words("blend.loss", **numbers)

    def _finetuned(self, verdict: Verdict) -> tuple[str, str]:
        words = self._words
        if verdict.finetuned is not None and verdict.finetuned.name in verdict.unfit:
            return self._worse_than_majority(
                "finetuned.unfit", name=words.method(verdict.finetuned.name)
            ), ""
        if verdict.finetuned is not None:
            said = [self._effect("finetuned.answer", verdict.finetuned)]
            said += [self.alert(alert) for alert in short_trainings(self._compared)
                     if alert.values["run"] == verdict.finetuned.name]  # fmt: skip
            return self._joined(said), ""
        if self._compared.table.level == "word":
            return words("finetuned.words"), ""
        kinds = {run.content.kind for run in self._compared.runs.runs}
        if kinds == {"finetuned"}:
            return words("finetuned.alone"), ""
        return words("untried"), self._command(verdict, "finetune")

    def _worse_than_majority(self, key: str, **more: str) -> str:
        """What is said of runs that are worse than the majority in the metric of that."""
        metric = "log_loss" if self._compared.runs.records.classes else "rmse"
        words = self._words
        return words(key, metric=words.metric(metric), majority=words.method(MAJORITY), **more)

    def _effect(self, key: str, effect: Effect, **more: Any) -> str:
        words = self._words
        if not self._compared.runs.records.classes:
            key = key.replace(".answer", ".values")
        interval = words.change(effect)
        if effect.p is not None:
            key_of_p = "p.corrected" if self._tests(effect) > 1 else "p.one"
            interval += words("and") + words(key_of_p, p=p_text(effect.p))
        return words(
            key, answer=words(f"answer.{effect.word}"), name=_capital(words.method(effect.name)),
            other=words.method(effect.other), metric=words.metric(self._scale.metric),
            difference=words.difference(effect.value), interval=interval,
            records=self._records(effect), **more,
        )  # fmt: skip

    def _curve(self, verdict: Verdict) -> tuple[str, str]:
        words = self._words
        found = verdict.curve
        if found is None:
            return words("untried"), self._command(verdict, "probe", "--learning-curve")
        scale = Scale(found.metric, False, words.is_percent(found.metric), self._scale.worth)
        other = Phrases(words.lang, self._compared, scale)
        return words(
            "curve.rises" if found.rises else "curve.flat", view=found.view, few=found.few,
            many=found.many, difference=other.difference(found.rise.value),
            interval=other.change(found.rise),
        ), ""  # fmt: skip

    def _command(self, verdict: Verdict, command: str, *options: str) -> str:
        """Return the command that would answer a question, for the best run's data and split."""
        compared = self._compared
        given = [re.search(r"--split[ =](\S+)", run.content.command or "")
                 for run in compared.runs.all]  # fmt: skip
        split = next((found.group(1) for found in given if found), "split.parquet")
        run = next(run for run in compared.runs.runs if run.name == verdict.chosen)
        model = run.content.dataset.names.model
        found = sorted(
            compared.datasets,
            key=lambda d: (run.name not in d.runs, d.manifest.names.model != model),
        )
        dataset = os.path.normpath(found[0].path) if found else "DATASET"
        parts = ["embedkit", command, dataset, "--split", split, *options]
        model = found[0].manifest.names.model if found else model
        if command == "finetune" and model != DEFAULT_MODEL:
            parts += ["--model", model]
        if run.content.level != "sentence":
            parts += ["--level", run.content.level]
        if run.content.task == "regression":
            parts += ["--task", "regression"]
        return shlex.join([*parts, "--out", str(run.path.parent / command)])


def _plain(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words(f"alert.{kind}", **values)


def _unfit(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    metric = values["metric"]
    numbers = {name: words.score(values[name], metric) for name in ("value", "majority")}
    return words("alert.unfit", run=values["run"], metric=words.metric(metric), **numbers)


def _random_weights(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words(f"alert.{kind}", run=values["run"], all=values["all"],
                 count=len(values["views"]), views=view_ranges(values["views"]))  # fmt: skip


def _cut(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    lost = words.whole(values.pop("tokens") / max(values.pop("tokens_all"), 1))
    percent = words.whole(values["texts"] / values["all"])
    return words("alert.cut", **values, percent=percent, tokens_percent=lost)


def _all_wrong(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    count = values["records"]
    said = [words("alert.all_wrong", records=count, sure=values["sure"],
                  percent=words.whole(values["percent"]))]  # fmt: skip
    if values["relabel"]:
        said.append(words("alert.relabel", records=values["relabel"], all=count))
    return words("gap").join(said)


def _small_classes(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    names = values["classes"]
    shown = ", ".join(names[:5])
    said = words("alert.small_classes", count=len(names), all=values["all"],
                 limit=values["limit"], classes=shown)  # fmt: skip
    return said.removesuffix(words("stop")) + " …" if len(names) > 5 else said


def _calibration(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words("alert.calibration", run=values["run"], value=words.whole(values["value"]))


def _seeds(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    spread = words.difference(values["spread"]).lstrip("+")
    return words("alert.seeds", runs=", ".join(values["runs"]), spread=spread)


def _inputs(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    parts = [f"{value} ({', '.join(names)})" for value, names in values["runs"].items()]
    return words("alert.inputs", setting=values["setting"], values="; ".join(parts))


def _seed_spread(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    deviation = words.difference(values["deviation"]).lstrip("+")
    return words("alert.seed_spread", run=values["run"], seeds=values["seeds"],
                 mean=words.score(values["mean"]), deviation=deviation)  # fmt: skip


_ALERTS = {
    "inputs": _inputs,
    "seed_spread": _seed_spread,
    "unfit": _unfit, "random_weights": _random_weights, "cut": _cut, "all_wrong": _all_wrong,
    "small_classes": _small_classes, "calibration": _calibration, "seeds": _seeds,
}  # fmt: skip


def _capital(text: str) -> str:
    """Begin a sentence with a capital, but no name of a run or option."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first in ("the", "blend", "accuracy") else text
