"""Phrases and numbers of a report, in the languages of ``templates/phrases``."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from importlib.resources import files
from typing import Any

from embedkit.choices import REPORT_LANGUAGES, check_choice
from embedkit.comparison.compare import MAJORITY, Compared
from embedkit.comparison.effects import Effect, Scale
from embedkit.display import MINUS, is_percent, metric_text
from embedkit.runs.resampling import Score

__all__ = ["Phrases", "p_text"]

_KANA = "[\u3001-\u30ff\u4e00-\u9fff\uff01-\uff5e]"
"""Japanese letters and punctuation."""


@cache
def _table(lang: str) -> dict[str, str]:
    text = (files("embedkit") / "templates" / "phrases" / f"{lang}.json").read_text("utf-8")
    return dict(json.loads(text))


class Phrases:
    """Phrases and numbers in one language, as one comparison shows them.

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
        """Return the sentence of a key; integers get separators of thousands.

        Of runs that label words it is that of ``KEY@word``, where there is one.
        """
        shown = {name: f"{value:,}" if isinstance(value, int) else value
                 for name, value in values.items()}  # fmt: skip
        if self._compared.table.level == "word":
            key = f"{key}@word" if f"{key}@word" in self._words else key
        if self.lang != "ja":
            return self._words[key].format(**shown)
        # spaces divide Latin names from Japanese words, but no Japanese words from each other
        marked = self._words[key].format(**{name: f"\0{value}\0" for name, value in shown.items()})
        return re.sub(rf"(?<={_KANA}) \0(?={_KANA})|(?<={_KANA})\0 (?={_KANA})|\0", "", marked)

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
            scaled = round(scaled, self._digits) + 0.0  # no negative zero
            return f"{scaled:.{self._digits}f}".replace("-", MINUS)
        return metric_text(value, metric)

    def score(self, value: float, metric: str | None = None) -> str:
        """Return a score with its unit."""
        number = self.number(value, metric)
        percent = self.is_percent(metric) and not math.isnan(value)
        return self("percent", value=number) if percent else number

    def mark(self, value: float, metric: str | None = None) -> str:
        """Return a score with its unit as axes have it: without zeros at its end."""
        text = self.number(value, metric)
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return self("percent", value=text) if self.is_percent(metric) else text

    def is_percent(self, metric: str | None = None) -> bool:
        """Whether a metric is shown in per cent."""
        if metric is None or metric == self._scale.metric:
            return self._scale.percent
        return is_percent(metric)

    def interval(self, low: float, high: float, metric: str | None = None) -> str:
        """Return the ends of an interval of a score."""
        return self("to", low=self.number(low, metric), high=self.number(high, metric))

    def signed(self, value: float) -> str:
        """Return a difference without its unit."""
        if math.isnan(value):
            return "–"
        scaled = value * 100 if self._scale.percent else value
        return f"{scaled:+.{self._digits}f}".replace("-", MINUS)

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


def p_text(p: float | None) -> str:
    r"""Return p with three digits.

    >>> p_text(0.0004), p_text(0.25), p_text(None)
    ('<\xa00.001', '0.250', '–')
    """
    if p is None:
        return "–"
    return "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"


def _digits(worth: float) -> int:
    if not worth > 0:
        return 3
    return int(min(max(1 - math.floor(math.log10(worth)), 0), 3))
