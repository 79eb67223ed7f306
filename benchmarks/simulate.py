"""Error rates by simulation: how often verdicts are wrong and intervals miss a known truth.

    python -m benchmarks.simulate [--repetitions 800]

Every world draws labels and predictions of methods from a known distribution: records that are
independent, groups whose records resemble each other, repeated texts, rare positives. Metrics,
intervals and tests are the project's own. ``docs/method.md`` shows the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from scipy import stats

from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.layers import combinations_of
from embedkit.classifiers.probe import Candidates, control_task
from embedkit.runs.cross_validation import Fits, Problem, cross_validate
from embedkit.runs.intervals import Metric, Score, holm, influences, interval, paired_test
from embedkit.runs.metrics import LOWER_IS_BETTER, metrics_for
from embedkit.types import Float32, Float64, Int64
from embedkit.units.units import Units

AREAS = ("roc_auc", "average_precision")
METRICS = {
    True: (
        *("accuracy", "macro_f1", "balanced_accuracy"),
        *("log_loss", "roc_auc", "average_precision", "f2"),
    ),
    False: ("rmse", "r2", "spearman"),
}
STRENGTH, BETTER = {True: 1.5, False: 0.8}, {True: 0.35, False: 0.15}
"""Strength of an ordinary method, and how much stronger a better one is: of classes, of values."""

EQUAL = 5
"""Number of equally good methods; one better method is drawn after them."""

RATES = ("false verdicts", "best of five", "coverage", "of differences", "wrong choice", "power")
_LARGE = 1_000_000


@dataclass(frozen=True)
class World:
    """A distribution of labels and predictions.

    Attributes:
        name: for tables.
        positives: fraction of the second class; 0 for a regression.
        group: fewest and most records of a group.
        alike: correlation of the noise of a group's records, labels included.
        freedom: of Student's t, of which the noise is; of normal noise infinite.
        count: number of records in a sample.
        strength: of an ordinary method, if not :data:`STRENGTH`.
        better: how much stronger a better one is, if not :data:`BETTER`.
    """

    name: str
    positives: float = 0.4
    group: tuple[int, int] = (1, 1)
    alike: float = 0.0
    freedom: float = np.inf
    count: int = 200
    strength: float | None = None
    better: float | None = None

    def draw(
        self, random: np.random.Generator, count: int, methods: Sequence[float]
    ) -> tuple[Int64, Float64, list[Float64]]:
        """Return unit and label of each record, and predictions of methods of some strengths."""
        low, high = self.group
        unit = np.repeat(np.arange(count), random.integers(low, high + 1, size=count))[:count]

        def noise() -> Float64:
            own, shared = (
                random.normal(size=size)
                if np.isinf(self.freedom)
                else random.standard_t(self.freedom, size=size)
                for size in (count, unit[-1] + 1)
            )
            return np.asarray(np.sqrt(1 - self.alike) * own + np.sqrt(self.alike) * shared[unit])

        latent, common = noise(), noise()
        if not self.positives:
            return unit, latent, [s * latent + 0.5 * common + 0.5 * noise() for s in methods]
        y = (latent > stats.norm.isf(self.positives)).astype(np.float64)
        prior = np.log(self.positives / (1 - self.positives))
        predictions = []
        for strength in methods:
            score = strength * y + np.sqrt(0.5) * (common + noise())
            odds = prior + strength * (score - strength / 2)
            predictions.append(1 / (1 + np.exp(-odds)))
        return unit, y, predictions

    def metrics(self, y: Float64, predicted: Float64) -> dict[str, Metric]:
        """Return the metrics of the table; a rare class is predicted from 0.2 on."""
        if self.positives:
            cut = 0.5 if self.positives > 0.2 else 0.2
            proba = np.stack([1 - predicted, predicted], axis=1)
            decided = (predicted >= cut).astype(np.int64)
            metrics = metrics_for(y.astype(np.int64), proba, decided, beta=2)
        else:
            metrics = metrics_for(y, predicted)
        return {name: metrics[name] for name in METRICS[self.positives > 0]}


WORLDS = (
    World("independent"),
    World("independent, 40 records", count=40),
    World("groups of 10", group=(10, 10), alike=0.5),
    World("texts 1 to 4 times", group=(1, 4), alike=1.0),
    World("5 % positives", positives=0.05),
    World("unequal groups, long tails", group=(1, 19), alike=0.5, freedom=5),
    World("near the end, 0.99", positives=0.2, count=300, strength=3.3, better=1.0),
    World("values", positives=0),
    World("values, groups of 10", positives=0, group=(10, 10), alike=0.5),
)


@cache
def truth(world: World, strength: float) -> dict[str, float]:
    """Return the metrics of a method in the whole population, from very many records."""
    _, y, (predicted,) = world.draw(np.random.default_rng(1), _LARGE, [strength])
    return {name: m.value(_LARGE) for name, m in world.metrics(y, predicted).items()}


def rates(world: World, *, repetitions: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return, by metric, how often verdicts and intervals are right or wrong.

    ``false verdicts``: two equal methods are called different (p below 0.05). ``best of five``:
    the best of five equal methods is called better than another. ``coverage``: the interval of a
    score holds the truth; ``of differences``: that of a difference does. ``wrong choice``: the
    better method is given up for a cheaper one, if it is better by the smallest difference that
    matters, where that is easiest. ``power``: the better method is called different from another.
    """
    usual = world.strength or STRENGTH[world.positives > 0]
    better = usual + (world.better or BETTER[world.positives > 0])
    true, true_better = truth(world, usual), truth(world, better)
    pairs = list(combinations(range(EQUAL), 2))
    outcomes: dict[str, list[tuple[bool, ...]]] = {name: [] for name in true}
    for number in range(repetitions):
        random = np.random.default_rng([seed, world.count, number])
        unit, y, predictions = world.draw(random, world.count, [usual] * EQUAL + [better])
        methods = [world.metrics(y, predicted) for predicted in predictions]
        by_method = [influences(metrics, unit, seed=number) for metrics in methods]
        for name in true:
            value = np.array([metrics[name].value(world.count) for metrics in methods])
            influence = np.stack([moved[name] for moved in by_method], axis=1)
            low, high = interval(value[0], influence[:, 0], methods[0][name], unit)
            metric = methods[0][name]
            scale, count = metric.scale, metric.units(unit)
            tests = {
                pair: paired_test(value[[*pair]], influence[:, pair], scale, count)
                for pair in (*pairs, (0, EQUAL), (EQUAL, 0))
            }
            gap = tests[EQUAL, 0]
            truly = true_better[name] - true[name]
            lower = name in LOWER_IS_BETTER
            corrected = holm([tests[pair].p for pair in pairs])
            best = int(np.argmax(-value[:-1] if name in LOWER_IS_BETTER else value[:-1]))
            of_best = [p for p, pair in zip(corrected, pairs, strict=True) if best in pair]
            outcomes[name].append(
                (
                    _is_proven(tests[0, 1].p),
                    any(map(_is_proven, of_best)),
                    low <= true[name] <= high,
                    gap.low <= truly <= gap.high,
                    gap.low > truly if lower else gap.high < truly,
                    _is_proven(tests[0, EQUAL].p),
                )
            )
    return {
        name: dict(zip(RATES, np.mean(found, axis=0).tolist(), strict=True))
        for name, found in outcomes.items()
    }


def _is_proven(p: float | None) -> bool:
    return p is not None and p < 0.05


def bootstrap_rates(world: World, *, repetitions: int) -> dict[str, tuple[float, float]]:
    """Return false verdicts and power of a paired bootstrap of areas, for comparison.

    Two methods are called different where 0 is outside of the middle 95 % of 500 samples.
    """
    usual = world.strength or STRENGTH[True]
    strengths = [usual, usual, usual + (world.better or BETTER[True])]
    different: dict[str, list[tuple[bool, ...]]] = {name: [] for name in AREAS}
    for number in range(repetitions):
        random = np.random.default_rng([0, world.count, number])
        unit, y, predictions = world.draw(random, world.count, strengths)
        units = unit[-1] + 1
        drawn = random.multinomial(units, np.full(units, 1 / units), size=500)[:, unit]
        methods = [world.metrics(y, predicted) for predicted in predictions]
        for name in AREAS:
            one, equal, better = (metrics[name].of(drawn.astype(np.float64)) for metrics in methods)
            ends = [np.quantile(gap, [0.025, 0.975]) for gap in (one - equal, better - one)]
            different[name].append(tuple(bool(low > 0 or high < 0) for low, high in ends))
    found = {name: np.mean(rows, axis=0).tolist() for name, rows in different.items()}
    return {name: (false, power) for name, (false, power) in found.items()}


FITTED = ("accuracy", "log_loss", "roc_auc")


def fitted_rates(count: int, *, repetitions: int) -> dict[str, float]:
    """Return how often two *methods* of equal worth are called different, by metric.

    Other rates are of predictions: whether the models that exist differ. Here models are fitted: a
    logistic regression in five folds on one of two sets of ten features, which tell the same. Their
    expected scores are equal, but of two models that were trained on a few records one is better by
    the luck of these records, and no interval on held-out records covers that.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    different: dict[str, list[bool]] = {name: [] for name in FITTED}
    for number in range(repetitions):
        random = np.random.default_rng([number, count])
        y = random.permutation(np.arange(count) % 2)
        folds = StratifiedKFold(5, shuffle=True, random_state=number)
        methods = []
        for _ in range(2):
            X = random.normal(size=(count, 10)) + 0.35 * (2 * y[:, None] - 1)
            model = LogisticRegression()
            proba = cross_val_predict(model, X, y, cv=folds, method="predict_proba")
            found = metrics_for(y, proba)
            methods.append({name: found[name] for name in FITTED})
        unit = np.arange(count)
        by_method = [influences(metrics, unit, seed=number) for metrics in methods]
        for name in FITTED:
            value = np.array([metrics[name].value(count) for metrics in methods])
            influence = np.stack([moved[name] for moved in by_method], axis=1)
            test = paired_test(value, influence, methods[0][name].scale)
            different[name].append(_is_proven(test.p))
    return {name: float(np.mean(found)) for name, found in different.items()}


def probed(
    views: Mapping[str, Float32], y: Int64, *, folds: int = 3, seed: int = 0
) -> tuple[Fits, Score]:
    """Return the fits of a probe on views ``(n, width)``, and the gain over their last layer."""
    count = len(y)
    settings = EstimatorSettings(seed=seed)
    units = Units(
        row=np.arange(count),
        ids=np.arange(count),
        key=np.arange(count),
        label=[f"{label:02}" for label in y],
        column={"text": [str(i) for i in range(count)]}.__getitem__,
        inputs=np.arange(count).__getitem__,
    )
    problem = Problem.of(units, folds=folds, seed=seed)
    random = control_task(problem.target, problem.split, seed)
    combinations = combinations_of(list(views), mixtures=True)
    method = Candidates(list(views), combinations, views.__getitem__, settings, random)
    _, fits = cross_validate(method, problem)
    gain = method.over_last(problem, fits)
    assert gain is not None
    return fits, gain


def claims_of_layers(*, repetitions: int, count: int = 120) -> float:
    """Return how often a probe calls its choice better than the last layer among equal layers.

    Each of four layers turns the same ten features, a few of which tell the classes, in its own
    way, and has five columns of noise beside them: no set of layers knows more than one.
    """
    claims = []
    for number in range(repetitions):
        random = np.random.default_rng([number, count])
        y = random.permutation(np.arange(count) % 2)
        X = random.normal(size=(count, 10))
        X[:, :3] += 0.4 * (2 * y[:, None] - 1)
        views = {}
        for layer in range(4):
            turned = X @ np.linalg.qr(random.normal(size=(10, 10)))[0]
            beside = 0.5 * random.normal(size=(count, 5))
            views[f"mean_{layer}"] = np.hstack([turned, beside]).astype(np.float32)
        claims.append(probed(views, y, seed=number)[1].low > 0)
    return float(np.mean(claims))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=800)
    repetitions = parser.parse_args().repetitions
    print("| world | metric |", " | ".join(RATES), "|")
    print("|---|---|" + "---:|" * len(RATES))
    for world in WORLDS:
        for metric, found in rates(world, repetitions=repetitions).items():
            cells = " | ".join(f"{found[rate]:.3f}" for rate in RATES)
            print(f"| {world.name} | {metric} | {cells} |", flush=True)
    print("\n| paired bootstrap | metric | false verdicts | power |\n|---|---|---:|---:|")
    for world in WORLDS:
        if world.strength:  # near the end of a scale
            for name, two in bootstrap_rates(world, repetitions=repetitions).items():
                print(f"| {world.name} | {name} | {two[0]:.3f} | {two[1]:.3f} |", flush=True)
    print("\n| fitted models | " + " | ".join(FITTED), "|\n|---|" + "---:|" * len(FITTED))
    for count in (100, 400):
        found = fitted_rates(count, repetitions=repetitions)
        print(f"| {count} records |", " | ".join(f"{found[name]:.3f}" for name in FITTED), "|")
    claims = claims_of_layers(repetitions=repetitions // 4)
    print(f"\nprobes of equal layers that claim a gain over the last one: {claims:.3f}")


if __name__ == "__main__":
    main()
