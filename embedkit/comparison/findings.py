"""What a comparison says: the method to take, and answers to five questions.

Which layer, which pooling, is a blend worth it, is fine-tuning worth it, would more labels help?
An answer is a record of numbers; :mod:`embedkit.comparison.phrases` puts it into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedkit.comparison.compare import MAJORITY, Compared, Row
from embedkit.comparison.effects import Effect, Scale, effect_of
from embedkit.comparison.load import LoadedProbe
from embedkit.encoding.views import split_view
from embedkit.runs.content import CurvePoint, ViewScore
from embedkit.runs.metrics import LOWER_IS_BETTER
from embedkit.runs.resampling import Score

__all__ = ["CurveAnswer", "LayerAnswer", "PoolingAnswer", "Verdict", "unfit", "verdict_of"]


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """Which view a probe says to take.

    Attributes:
        run: name of the probe.
        metric: metric of the probe.
        nested: score of the choice in inner folds.
        chosen: the views that inner folds chose, and in how many folds; most often first.
        best: view with the best score.
        score: that score.
        level: views that are not told apart from it, in stored order, itself included; ``None``
            where the probe has no tests.
        views: number of views.
    """

    run: str
    metric: str
    nested: Score
    chosen: tuple[tuple[str, int], ...]
    best: str
    score: float
    level: tuple[str, ...] | None
    views: int


@dataclass(frozen=True, slots=True)
class PoolingAnswer:
    """The best view of each pooling, the best pooling first, and p against the best view."""

    metric: str
    best: tuple[tuple[str, ViewScore], ...]

    def told_apart(self, pooling: str) -> bool | None:
        """Whether a pooling's best view is told apart from the best; ``None`` without a test."""
        view = dict(self.best)[pooling]
        return None if view.p_best is None else not view.is_level


@dataclass(frozen=True, slots=True)
class CurveAnswer:
    """What the last step of a learning curve brought.

    Attributes:
        view: whose curve it is.
        metric: metric of the curve.
        few: number of training records before the step.
        many: number after it.
        rise: gain of the step with its 95 % interval.
    """

    view: str
    metric: str
    few: int
    many: int
    rise: Score

    @property
    def rises(self) -> bool:
        """Whether the interval lies above (of an error: below) 0."""
        return self.rise.high < 0 if self.metric in LOWER_IS_BETTER else self.rise.low > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The method to take, and answers; ``None`` where the runs do not allow one.

    Attributes:
        chosen: name of the best single run that is fit to be chosen.
        score: its score.
        effect: against the baseline; ``None`` where it is the baseline itself.
        unfit: runs that are left out of the choice.
        layer: of the best probe.
        pooling: of the best probe, if it has several.
        blend: the best blend against the best run.
        finetuned: the best fine-tuned run against the best other run, each among those that are
            fit to be chosen, if there are such.
        curve: of the best probe that has one.
    """

    chosen: str
    score: Score
    effect: Effect | None
    unfit: tuple[str, ...]
    layer: LayerAnswer | None
    pooling: PoolingAnswer | None
    blend: Effect | None
    finetuned: Effect | None
    curve: CurveAnswer | None


def unfit(compared: Compared) -> tuple[str, ...]:
    """Return the runs that predict worse than the majority, by log-loss or RMSE."""
    rows = {row.name: row for row in compared.table.rows}
    metric = "log_loss" if compared.runs.records.classes else "rmse"
    limit = rows[MAJORITY].scores[metric].value
    return tuple(
        run.name for run in compared.runs.runs if rows[run.name].scores[metric].value > limit
    )


def verdict_of(compared: Compared, scale: Scale) -> Verdict:
    """Return the findings of a comparison, whose metric is shown on ``scale``."""
    table = compared.table
    runs = [row for row in table.rows if row.kind not in ("blend", "majority")]
    left_out = unfit(compared)
    best = ([row for row in runs if row.name not in left_out] or runs)[0]
    effect = effect_of(compared, best.name, table.baseline, scale)
    probes = compared.runs.probes
    return Verdict(
        best.name, best.scores[table.metric], effect, left_out,
        _layer(probes[0]) if probes else None,
        _pooling(probes[0]) if probes else None,
        _best_of(compared, scale, [r for r in table.rows if r.kind == "blend"], best),
        _finetuned(compared, scale, sorted(runs, key=lambda row: row.name in left_out)),
        next(filter(None, map(_curve, probes)), None),
    )  # fmt: skip


def _best_of(compared: Compared, scale: Scale, rows: Sequence[Row], other: Row) -> Effect | None:
    return effect_of(compared, rows[0].name, other.name, scale) if rows else None


def _finetuned(compared: Compared, scale: Scale, runs: Sequence[Row]) -> Effect | None:
    tuned = [row for row in runs if row.kind == "finetuned"]
    others = [row for row in runs if row.kind != "finetuned"]
    return _best_of(compared, scale, tuned, others[0]) if others else None


def _ranked(probe: LoadedProbe) -> list[ViewScore]:
    sign = 1 if probe.content.metric in LOWER_IS_BETTER else -1
    return sorted(probe.content.views, key=lambda view: sign * view.score.value)


def _layer(probe: LoadedProbe) -> LayerAnswer:
    content = probe.content
    chosen = sorted(((v.name, v.chosen) for v in content.views if v.chosen), key=lambda v: -v[1])
    tested = any(view.p_best is not None for view in content.views)
    level = tuple(view.name for view in content.views if view.is_level)
    best = _ranked(probe)[0]
    return LayerAnswer(
        probe.name, content.metric, content.nested, tuple(chosen), best.name, best.score.value,
        level if tested else None, len(content.views),
    )  # fmt: skip


def _pooling(probe: LoadedProbe) -> PoolingAnswer | None:
    found: dict[str, ViewScore] = {}
    for view in _ranked(probe):
        found.setdefault(split_view(view.name)[0], view)
    return PoolingAnswer(probe.content.metric, tuple(found.items())) if len(found) > 1 else None


def _curve(probe: LoadedProbe) -> CurveAnswer | None:
    """The last step of the curve of the view that inner folds chose most often."""
    view = max(_ranked(probe), key=lambda one: one.chosen)
    points: Sequence[CurvePoint] = view.curve
    if len(points) < 2 or points[-2].rise is None:
        return None
    few = points[-2]
    assert few.rise is not None
    return CurveAnswer(view.name, probe.content.metric, few.records, points[-1].records, few.rise)
