"""Cross-validation: one driver for every method, so that all meet the same folds.

    units ──► Problem ──► method.fit ──► Fits ──► Predictions
              target, split, test        a FoldFit for each fold: proba of its held-out units

A method is given everything and answers with what the model of each fold says about units that it
was not fitted on. It may fit folds side by side (pipelines of scikit-learn), one after the other
and resumable (fine-tuning), or many candidates for each of which it keeps the best (probes);
nothing here knows. What all of them share is here: folds that can be fitted, the order of the rows,
the threshold of each fold, and the test set, which nothing is learnt from.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from embedkit.runs.predictions import Predictions, Subset
from embedkit.runs.run import Cost
from embedkit.runs.split import Split, split_for
from embedkit.types import Float64, Int64, ProgressCallback, no_progress
from embedkit.units.target import SEPARATOR, Target, class_prior
from embedkit.units.units import Units

logger = logging.getLogger(__name__)


class FoldFit(NamedTuple):
    """What the model of a fold predicts; ``proba`` are probabilities, or values of a regression."""

    proba: Float64  # of the held-out units
    model: Any  # what the method keeps of it
    inner: tuple[Int64, Float64] | None = None
    """Training units, and what models without each predict of it; None: no inner folds."""
    threshold: float | None = None  # that was chosen without the held-out units
    fit_seconds: float = 0.0
    predict_seconds: float = 0.0


class Fits(NamedTuple):
    """The models of all folds, and what it cost to fit them."""

    folds: Sequence[FoldFit]
    cost: Cost
    final: Any = None  # a model of the units of all folds, for methods that fit one
    test: Float64 | None = None  # what new units, as those of the test set, get
    threshold: float | None = None  # for new units


class Problem(NamedTuple):
    """What is to be learnt: labelled units in the folds of a split, and a test set."""

    units: Units
    target: Target
    split: Split
    test: Subset | None = None

    @classmethod
    def of(
        cls,
        units: Units,
        *,
        task: str = "classification",
        separator: str = SEPARATOR,
        split: str | Path | Split | None = None,
        folds: int = 5,
        seed: int = 0,
    ) -> Self:
        """Return the problem that the labels of the units name, in the folds of a split.

        The test set is that of the split, if it has one. Arguments are those of
        :func:`~embedkit.runs.split.split_for`.

        Raises:
            UsageError: the labels, or the folds, cannot be learnt from.
        """
        target = units.target(task, separator)
        assignment = split_for(units, split, folds=folds, seed=seed, sets=target.of_sets)
        if split is None and assignment.n_folds != folds:  # of a fine-tuned run's vectors
            logger.info(f"{units.name} keeps the {assignment.n_folds} folds of {units.run}")
        # words without a label are in no fold
        assignment = assignment.labelled(target)
        # here, before a test set is encoded and models are fitted, which may take hours
        assignment.check(target)
        problem = cls(units, target, assignment)
        test = problem.subset(assignment.test) if len(assignment.test) else None
        return problem._replace(test=test)

    def subset(self, index: Int64) -> Subset:
        """Return some of the units, to be predicted."""
        group, target = self.split.group[index], self.target.take(index)
        return Subset(units=self.units.take(index), group=group, target=target)

    def held_out(self, folds: Sequence[FoldFit]) -> Predictions:
        """Return the predictions of each fold's model for the units that it holds out, in order."""
        subsets = []
        # a method returns its folds in the order of subsets(); one more or less is an error of
        # strict=
        pairs = zip(self.split.subsets(), folds, strict=True)
        for fold, ((_, held_out), fitted) in enumerate(pairs):
            about: dict[str, Any] = {"fold": fold, "threshold": fitted.threshold}
            subset = self.subset(held_out).predictions(fitted.proba, **about)
            # inner predictions are for training records, and carry the fold that their models have
            # not seen: blends are fitted on them
            if fitted.inner is not None:
                index, proba = fitted.inner
                subset = replace(subset, inner=self.subset(index).predictions(proba, **about))
            subsets.append(subset)
        return Predictions.joined(subsets)

    @property
    def prior(self) -> tuple[float, ...]:
        """Frequencies of the classes, or the mean, of the units that a single fold is trained on.

        Empty for several folds, whose held-out units are the training units of the others.
        """
        if self.split.n_folds > 1:
            return ()
        ((train, _),) = self.split.subsets()
        return tuple(class_prior(self.target.y[train], self.target.classes).tolist())


class Method(Protocol):
    """A way to learn and predict.

    ``FoldFit.model`` and ``Fits.final`` are its own affair: nothing but the method reads them.
    """

    def fit(self, problem: Problem, *, progress: ProgressCallback) -> Fits:
        """Return a model for each fold, with its predictions."""


def cross_validate(
    method: Method, problem: Problem, *, progress: ProgressCallback = no_progress
) -> tuple[Predictions, Fits]:
    """Return predictions for every held-out unit and the test set, and the models behind them."""
    fits = method.fit(problem, progress=progress)
    predictions = problem.held_out(fits.folds)
    # a probe compares views and predicts no test set
    if problem.test is not None and fits.test is not None:
        test = problem.test.predictions(fits.test, threshold=fits.threshold)
        predictions = Predictions.joined([predictions, test])
    return predictions, fits
