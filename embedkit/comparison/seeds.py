"""How much the score of a fine-tuned run varies with the seed of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from embedkit.comparison.load import LoadedRun
from embedkit.display import metric_text
from embedkit.runs.content import FinetuneRun

__all__ = ["SeedSpread", "seed_spreads"]


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """Scores of a run by seed, on out-of-fold predictions.

    Attributes:
        run: its name.
        metric: name of the metric.
        seeds: the seeds.
        values: score of each seed by itself.
    """

    run: str
    metric: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the scores, which is that of a single training."""
        return mean(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation of the scores."""
        return stdev(self.values)

    @property
    def text(self) -> str:
        """The spread as a sentence."""
        values = ", ".join(metric_text(value, self.metric) for value in self.values)
        mean, deviation = (metric_text(one, self.metric) for one in (self.mean, self.deviation))
        return (
            f"{self.run}: {self.metric} of {len(self.seeds)} seeds {values}; mean {mean}, "
            f"standard deviation {deviation} (its row is the mean of their predictions)"
        )


def seed_spreads(runs: Sequence[LoadedRun], metric: str) -> tuple[SeedSpread, ...]:
    """Return the spread of every run that was trained with several seeds and has the metric."""
    found = []
    for run in runs:
        seeds = run.content.seeds if isinstance(run.content, FinetuneRun) else ()
        scores = [one.scores["cross_validation"].get(metric) for one in seeds]
        values = tuple(score for score in scores if score is not None)
        if len(values) > 1:
            found.append(SeedSpread(run.name, metric, tuple(one.seed for one in seeds), values))
    return tuple(found)
