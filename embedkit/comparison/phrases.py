"""Findings in words, in the languages of ``templates/phrases``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from embedkit.choices import REPORT_LANGUAGES, check_choice
from embedkit.comparison.alerts import Alert
from embedkit.comparison.compare import MAJORITY, Compared
from embedkit.comparison.effects import Effect, Scale
from embedkit.comparison.findings import LayerAnswer, PoolingAnswer, Verdict
from embedkit.encoding.views import split_view
from embedkit.runs.resampling import Score

__all__ = ["Phrases", "p_text", "ranges"]

_MINUS = "\N{MINUS SIGN}"
_PERCENT_METRICS = frozenset({
    "accuracy", "macro_f1", "balanced_accuracy", "roc_auc", "average_precision", "precision",
    "recall",
})  # fmt: skip


@cache
def _table(lang: str) -> dict[str, str]:
    text = (files("embedkit") / "templates" / "phrases" / f"{lang}.json").read_text("utf-8")
    return dict(json.loads(text))


class Phrases:
    """Sentences about a comparison in one language.

    Args:
        lang: one of :data:`~embedkit.choices.REPORT_LANGUAGES`.
        compared: the comparison.
        scale: how its metric is shown.

    Raises:
        UsageError: the language is unknown.
    """

    def __init__(self, lang: str, compared: Compared, scale: Scale) -> None:
        check_choice(REPORT_LANGUAGES, report_lang=lang)
        self._words, self._compared, self._scale = _table(lang), compared, scale
        self.lang = lang
        worth = scale.worth * (100 if scale.percent else 1)
        self._digits = 1 if scale.percent else _digits(worth)

    def __call__(self, key: str, **values: Any) -> str:
        """Return the sentence of a key; integers get separators of thousands."""
        shown = {name: f"{value:,}" if isinstance(value, int) else value
                 for name, value in values.items()}  # fmt: skip
        return self._words[key].format(**shown)

    def template(self, key: str) -> str:
        """Return a sentence with its places for values."""
        return self._words[key]

    def all_of(self, prefix: str) -> dict[str, str]:
        """Return the phrases whose keys begin with a prefix, without it."""
        return {key[len(prefix) :]: text for key, text in self._words.items()
                if key.startswith(prefix)}  # fmt: skip

    def metric(self, name: str) -> str:
        """Return the name of a metric."""
        return self._words.get(f"metric.{name}", name)

    def method(self, name: str) -> str:
        """Return the name of a method."""
        if name == MAJORITY:
            return self("majority" if self._compared.runs.records.classes else "mean")
        if name in {blend.name for blend in self._compared.blends.values()}:
            return self("blend", kind=self(f"blend.{name.removeprefix('blend: ')}"))
        return name

    # numbers

    def number(self, value: float, metric: str | None = None) -> str:
        """Return a score without its unit."""
        if math.isnan(value):
            return "–"
        if metric is None or metric == self._scale.metric:
            scaled = value * 100 if self._scale.percent else value
            return f"{scaled:.{self._digits}f}".replace("-", _MINUS)
        if metric in _PERCENT_METRICS or re.fullmatch(r"f[\d.]+", metric):
            return f"{value * 100:.1f}"
        return f"{value:.3f}".replace("-", _MINUS)

    def score(self, value: float, metric: str | None = None) -> str:
        """Return a score with its unit."""
        number = self.number(value, metric)
        return self("percent", value=number) if self.is_percent(metric) else number

    def is_percent(self, metric: str | None = None) -> bool:
        """Whether a metric is shown in per cent."""
        if metric is None or metric == self._scale.metric:
            return self._scale.percent
        return metric in _PERCENT_METRICS or bool(re.fullmatch(r"f[\d.]+", metric))

    def interval(self, low: float, high: float, metric: str | None = None) -> str:
        """Return the ends of an interval of a score."""
        return self("to", low=self.number(low, metric), high=self.number(high, metric))

    def signed(self, value: float) -> str:
        """Return a difference without its unit."""
        if math.isnan(value):
            return "–"
        scaled = value * 100 if self._scale.percent else value
        return f"{scaled:+.{self._digits}f}".replace("-", _MINUS)

    def difference(self, value: float) -> str:
        """Return a difference with its unit."""
        signed = self.signed(value)
        return self("points", value=signed) if self._scale.percent else signed

    def change(self, found: Effect | Score) -> str:
        """Return the ends of the interval of a difference."""
        return self("to", low=self.signed(found.low), high=self.signed(found.high))

    def whole(self, fraction: float) -> str:
        """Return a fraction in per cent, one digit below 10."""
        digits = 0 if fraction >= 0.1 else 1
        return self("percent", value=f"{fraction * 100:.{digits}f}")

    @property
    def worth(self) -> str:
        """The margin with its unit."""
        scaled = self._scale.worth * (100 if self._scale.percent else 1)
        number = f"{scaled:.{self._digits}f}" if not self._scale.percent else f"{scaled:g}"
        if not self._scale.percent:
            return number
        return self("point" if number == "1" else "points", value=number)

    # the verdict

    def title(self, verdict: Verdict) -> str:
        """Return the finding in one sentence."""
        chosen, effect = self.method(verdict.chosen), verdict.effect
        baseline = self.method(self._compared.table.baseline)
        if effect is None:
            return self("title.baseline", baseline=baseline)
        key = effect.word
        if key == "open" and not self._scale.gain(effect.value) > 0:
            key = "behind"
        return _capital(self(
            f"title.{key}", chosen=chosen, baseline=baseline,
            records=self._compared.table.records["folds"], worth=self.worth,
            difference=self.difference(effect.value),
        ))  # fmt: skip

    def lead(self, verdict: Verdict) -> tuple[str, str, str]:
        """Return score, difference to the baseline and records; empty where there is none."""
        score, effect = verdict.score, verdict.effect
        first = self("lead.score", metric=_capital(self.metric(self._scale.metric)),
                     score=self.score(score.value),
                     interval=self.interval(score.low, score.high))  # fmt: skip
        if effect is None:
            return first, "", ""
        second = self("lead.against", difference=self.difference(effect.value),
                      baseline=self.method(effect.other), interval=self.change(effect))  # fmt: skip
        if not self._compared.runs.records.classes:
            return first, second, ""
        return first, second, self("lead.records", gained=effect.gained, lost=effect.lost)

    def word(self, effect: Effect) -> str:
        """Return what the test and the margin say."""
        return self(f"word.{effect.word}", p=p_text(effect.p), worth=self.worth)

    def answers(self, verdict: Verdict) -> list[tuple[str, str, str]]:
        """Return question, answer and command of the five questions; some have no command."""
        return [
            (self(f"question.{name}"), *found)
            for name, found in (
                ("layer", self._layer(verdict.layer)),
                ("pooling", self._pooling(verdict)),
                ("blend", self._blend(verdict)),
                ("finetuned", self._finetuned(verdict)),
                ("curve", self._curve(verdict)),
            )
        ]

    def _layer(self, found: LayerAnswer | None) -> tuple[str, str]:
        if found is None:
            return self("untried"), self._command("probe")
        folds = sum(count for _, count in found.chosen)
        chosen = ", ".join(self("layer.folds", view=view, folds=count, all=folds)
                           for view, count in found.chosen)  # fmt: skip
        first = self("layer.best", view=found.best) if found.level is None else self(
            "layer.level", views=ranges(found.level), count=len(found.level), all=found.views
        )  # fmt: skip
        nested = found.nested
        return f"{first} " + self(
            "layer.chosen", views=chosen, metric=self.metric(found.metric),
            score=self.score(nested.value, found.metric),
            interval=self.interval(nested.low, nested.high, found.metric),
        ), ""  # fmt: skip

    def _pooling(self, verdict: Verdict) -> tuple[str, str]:
        found = verdict.pooling
        if found is None:
            if verdict.layer is None:
                return self("untried"), self._command("probe")
            return self("pooling.only", pooling=split_view(verdict.layer.best)[0]), ""
        (pooling, view), *others = found.best
        said = [self("pooling.best", pooling=pooling, view=view.name,
                     score=self.score(view.score.value, found.metric))]  # fmt: skip
        said += [self._other_pooling(found, name) for name, _ in others]
        return " ".join(said), ""

    def _other_pooling(self, found: PoolingAnswer, pooling: str) -> str:
        apart = found.told_apart(pooling)
        key = "untested" if apart is None else "apart" if apart else "same"
        view = dict(found.best)[pooling]
        return _capital(self(f"pooling.{key}", pooling=pooling, view=view.name,
                             score=self.score(view.score.value, found.metric)))  # fmt: skip

    def _blend(self, verdict: Verdict) -> tuple[str, str]:
        if verdict.blend is None:
            return self("blend.none"), ""
        return self._effect("blend.answer", verdict.blend, chosen=self.method(verdict.chosen),
                            runs=len(self._compared.runs.runs)), ""  # fmt: skip

    def _finetuned(self, verdict: Verdict) -> tuple[str, str]:
        if verdict.finetuned is not None:
            return self._effect("finetuned.answer", verdict.finetuned), ""
        kinds = {run.content.kind for run in self._compared.runs.runs}
        if kinds == {"finetuned"}:
            return self("finetuned.alone"), ""
        return self("untried"), self._command("finetune")

    def _effect(self, key: str, effect: Effect, **more: Any) -> str:
        if not self._compared.runs.records.classes:
            key = key.replace(".answer", ".values")
        return self(
            key, answer=self(f"answer.{effect.word}"), name=self.method(effect.name),
            other=self.method(effect.other), difference=self.difference(effect.value),
            interval=self.change(effect), gained=effect.gained, lost=effect.lost, **more,
        )  # fmt: skip

    def _curve(self, verdict: Verdict) -> tuple[str, str]:
        found = verdict.curve
        if found is None:
            return self("untried"), self._command("probe", "--learning-curve")
        scale = Scale(found.metric, False, self.is_percent(found.metric), self._scale.worth)
        other = Phrases(self.lang, self._compared, scale)
        return self(
            "curve.rises" if found.rises else "curve.flat", view=found.view, few=found.few,
            many=found.many, difference=other.difference(found.rise.value),
            interval=other.change(found.rise),
        ), ""  # fmt: skip

    def _command(self, command: str, *options: str) -> str:
        """Return the command that would answer a question, for the same data and split."""
        compared = self._compared
        given = [re.search(r"--split[ =](\S+)", run.content.command or "")
                 for run in compared.runs.all]  # fmt: skip
        split = next((found.group(1) for found in given if found), "split.parquet")
        dataset = next((d.path.resolve().name for d in compared.datasets), "DATASET")
        parts = ["embedkit", command, dataset, "--split", split, *options]
        if compared.runs.runs[0].content.task == "regression":
            parts += ["--task", "regression"]
        return " ".join([*parts, "--out", f"runs/{command}"])

    # warnings

    def alert(self, alert: Alert) -> str:
        """Return a warning as one or two sentences."""
        values = dict(alert.values)
        return _ALERTS.get(alert.kind, _plain)(self, alert.kind, values)


def _plain(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words(f"alert.{kind}", **values)


def _unfit(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    metric = values["metric"]
    numbers = {name: words.score(values[name], metric) for name in ("value", "majority")}
    return words("alert.unfit", run=values["run"], metric=words.metric(metric), **numbers)


def _random_weights(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words(f"alert.{kind}", run=values["run"], all=values["all"],
                 count=len(values["views"]), views=ranges(values["views"]))  # fmt: skip


def _cut(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    lost = words.whole(values.pop("tokens") / max(values.pop("tokens_all"), 1))
    percent = words.whole(values["texts"] / values["all"])
    return words("alert.cut", **values, percent=percent, tokens_percent=lost)


def _all_wrong(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    said = words("alert.all_wrong", records=values["records"], sure=values["sure"],
                 percent=words.whole(values["percent"]))  # fmt: skip
    more = values["relabel"]
    return said + (f" {words('alert.relabel', records=more)}" if more else "")


def _small_classes(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    names = values["classes"]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return words("alert.small_classes", count=len(names), all=values["all"],
                 limit=values["limit"], classes=shown)  # fmt: skip


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


def _short_training(words: Phrases, kind: str, values: dict[str, Any]) -> str:
    return words("alert.short_training", **values)


_ALERTS = {
    "inputs": _inputs,
    "seed_spread": _seed_spread,
    "unfit": _unfit, "random_weights": _random_weights, "cut": _cut, "all_wrong": _all_wrong,
    "small_classes": _small_classes, "calibration": _calibration, "seeds": _seeds,
    "short_training": _short_training,
}  # fmt: skip


def p_text(p: float | None) -> str:
    """Return p with three digits.

    >>> p_text(0.0004), p_text(0.25), p_text(None)
    ('< 0.001', '0.250', '–')
    """
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def ranges(views: Sequence[str]) -> str:
    """Return views with neighbouring layers of a pooling as ranges.

    >>> ranges(["mean_8", "cls_11", "mean_9", "pooler", "mean_10"])
    'mean_8 … mean_10, cls_11, pooler'
    """
    order = list(dict.fromkeys(split_view(view)[0] for view in views))
    views = sorted(views, key=lambda view: order.index(split_view(view)[0]))
    runs: list[list[str]] = []
    for view in views:
        pooling, layer = split_view(view)
        last = split_view(runs[-1][-1]) if runs else ("", "")
        follows = layer.isdigit() and last[1].isdigit() and int(layer) == int(last[1]) + 1
        if follows and pooling == last[0]:
            runs[-1].append(view)
        else:
            runs.append([view])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _capital(text: str) -> str:
    """Begin a sentence with a capital, but no name of a run or option."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first in ("the", "blend", "accuracy") else text


def _digits(worth: float) -> int:
    if not worth > 0:
        return 3
    return int(min(max(1 - math.floor(math.log10(worth)), 0), 3))
