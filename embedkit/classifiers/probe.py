"""Score every stored view under the same folds, beside its controls.

The best score of many views is too high by chance. The nested score is not: for each fold the view
is chosen in inner folds of the training records and then scored on the held-out ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from embedkit.choices import check_choice
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.folds import INNER_FOLDS, fit, predict_proba
from embedkit.classifiers.train import split_for, target_of
from embedkit.dataset.record_keys import stored_texts
from embedkit.dataset.store import VectorData, load
from embedkit.dataset.vector_settings import DatasetEncoder
from embedkit.errors import UsageError, check_counts, check_seed
from embedkit.runs.content import Cost, ProbeRun, SplitContent, ViewScore
from embedkit.runs.folder import new_run, versions, write_run
from embedkit.runs.metrics import SAMPLES, Score, classification_scores, regression_scores
from embedkit.runs.reencoding import dataset_content
from embedkit.runs.split_files import Split
from embedkit.runs.splits import inner_folds
from embedkit.runs.targets import Target, check_folds, class_prior
from embedkit.types import Float32, Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["ProbeResult", "probe"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A finished probe.

    Attributes:
        out: its folder.
        content: the content of ``run.json``: the scores of every view.
    """

    out: Path
    content: ProbeRun


def probe(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | Sequence[str] | None = None,
    estimator: str = "logreg",
    task: str = "classification",
    split: str | Path | None = None,
    folds: int = 5,
    control: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> ProbeResult:
    """Score every stored view under the same folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder for the table and the figure.
        view: name of a stored view, or several in a list; by default all.
        estimator: one of :data:`~embedkit.choices.ESTIMATORS`, fitted on each view.
        task: ``classification`` (scored by accuracy) or ``regression`` (by R²).
        split: file that ``embedkit split`` wrote; of several repeats, the first is used.
        folds: number of folds where no split is given.
        control: ``random-weights`` also encodes the texts by the same architecture with random
            weights.
        seed: of folds, shuffled labels and estimators.
        threads: number of fits at the same time; by default the number of cores.
        overwrite: replace an earlier probe.
        progress: receives the number of fits that are done.

    Raises:
        UsageError: a view, label, setting or split cannot be used.
    """
    started = time.perf_counter()
    wanted = [view] if isinstance(view, str) else view
    settings = EstimatorSettings(estimator, "vectors", task, seed=seed)
    settings.check()
    check_seed(seed)
    check_counts(threads=threads)
    if control is not None:
        check_choice(("random-weights",), control=control)
    data = load(dataset)
    names = list(data.manifest.views) if wanted is None else [
        load(dataset, name).views[0] for name in wanted
    ]  # fmt: skip
    target = target_of(data, task)
    chosen = split_for(data, split, folds=folds, seed=seed)
    work = _Probe(data, target, chosen, settings, names, threads, progress)
    with new_run(Path(out), overwrite=overwrite) as folder:
        from embedkit.runs.figures import draw_probe

        content = work.run(folder, control == "random-weights", started)
        draw_probe(folder, content)
        write_run(folder, content)
    return ProbeResult(Path(out), content)


class _Probe:
    """All fits of one probe; each is one view, one fold, one set of labels."""

    def __init__(
        self,
        data: VectorData,
        target: Target,
        split: Split,
        settings: EstimatorSettings,
        names: list[str],
        threads: int | None,
        progress: ProgressCallback,
    ) -> None:
        self._data, self._target, self._split = data, target, split
        self._settings, self._names, self._threads = settings, names, threads
        self._progress = progress
        self._done = 0
        self._metric = "accuracy" if target.classes else "r2"
        random = np.random.default_rng(settings.seed)
        shuffled = target.y.copy()
        shuffled[split.in_folds] = random.permutation(target.y[split.in_folds])
        self._shuffled = Target(shuffled, target.classes)
        self._folds = [split.fold(0, fold) for fold in range(split.n_folds)]
        check_folds(target, split, repeats=1)

    def run(self, folder: Path, random_weights: bool, started: float) -> ProbeRun:
        fitted = {name: self._fits(load(self._data.path, name).X, inner=True)
                  for name in self._names}  # fmt: skip
        chosen = [self._names[int(np.argmax([fitted[n].inner[f] for n in self._names]))]
                  for f in range(len(self._folds))]  # fmt: skip
        views = tuple(
            ViewScore(
                name,
                self._score(fitted[name].folds),
                self._score(fitted[name].shuffled, samples=0).value,
                chosen.count(name),
            )
            for name in self._names
        )
        y, classes = self._target.y, self._target.classes
        majority = [class_prior(y[train], classes, len(test)) for train, test in self._folds]
        settings = asdict(self._settings)
        del settings["features"]
        return ProbeRun(
            estimator=settings.pop("estimator"),
            task=settings.pop("task"),
            settings=settings,
            dataset=dataset_content(self._data, folder),
            split=SplitContent.of(self._split),
            metric=self._metric,
            majority=self._score(majority, samples=0).value,
            views=views,
            nested=self._score([fitted[name].folds[f] for f, name in enumerate(chosen)]),
            random_weights=self._random_weights() if random_weights else {},
            cost=Cost(seconds=time.perf_counter() - started),
            versions=versions(),
        )

    def _fits(self, X: Float32, *, inner: bool) -> _Fitted:
        """Every fit of one view, several at the same time."""
        from joblib import Parallel, delayed
        from threadpoolctl import threadpool_limits

        tasks = []
        for train, test in self._folds:
            tasks.append((self._target, train, test))
            if inner:
                tasks.append((self._shuffled, train, test))
                folds = inner_folds(self._target.strata[train], self._split.group[train],
                                    INNER_FOLDS, seed=self._settings.seed)  # fmt: skip
                tasks += [(self._target, train[a], train[b]) for a, b in folds]
        with threadpool_limits(1):  # or the first fit to end would set the others' threads free
            found = Parallel(n_jobs=self._threads or -1, prefer="threads")(
                delayed(_one_fit)(X, target, self._split, train, test, self._settings)
                for target, train, test in tasks
            )
        self._done += len(tasks)
        total = len(tasks) * len(self._names)
        self._progress(Progress("fitting", self._done, max(total, self._done), "fits", self._done))
        if not inner:
            return _Fitted(found, [], [])
        step = 2 + INNER_FOLDS
        scores = []
        for start in range(0, len(tasks), step):
            inner_tests = [tasks[start + 2 + i][2] for i in range(INNER_FOLDS)]
            proba = np.concatenate(found[start + 2 : start + step])
            scores.append(self._inner_score(np.concatenate(inner_tests), proba))
        return _Fitted(found[::step], found[1::step], scores)

    def _inner_score(self, index: Int64, proba: Float64) -> float:
        y = self._target.y[index]
        if self._target.classes:
            return float((proba.argmax(1) == y).mean())
        return -float(((y - proba) ** 2).mean())

    def _score(self, folds: Sequence[Float64], samples: int = SAMPLES) -> Score:
        index = np.concatenate([test for _, test in self._folds])
        order = np.argsort(index)
        proba, y = np.concatenate(folds)[order], self._target.y[index[order]]
        seed = self._settings.seed
        if not self._target.classes:
            return regression_scores(y, proba, seed=seed, samples=samples)[self._metric]
        scores = classification_scores(y, proba, proba.argmax(1), seed=seed, samples=samples)
        return scores[self._metric]

    def _random_weights(self) -> dict[str, float]:
        """Scores of the same views by the same architecture with random weights."""
        vectors = _encode_at_random(self._data, self._names, self._settings.seed)
        return {
            name: self._score(self._fits(X, inner=False).folds, samples=0).value
            for name, X in vectors.items()
        }


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Predictions of a view for the held-out records of each fold, and its inner scores."""

    folds: list[Float64]
    shuffled: list[Float64]
    inner: list[float]


def _one_fit(
    X: Float32, target: Target, split: Split, train: Int64, test: Int64,
    settings: EstimatorSettings,
) -> Float64:  # fmt: skip
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # of this thread; the fits run side by side
        return predict_proba(fit(X, target, split, train, settings, tune=False), X[test], target)


def _encode_at_random(data: VectorData, names: Sequence[str], seed: int) -> dict[str, Float32]:
    import torch

    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.model import PlainModel

    texts = stored_texts(data)
    if texts is None or data.manifest.job.input.text_pair:
        raise UsageError(
            "control='random-weights' encodes the stored texts again, and this dataset has none "
            "or has pairs."
        )
    names_, vectors = data.manifest.names, data.manifest.vector_settings
    encoder = Encoder.load(
        names_.model, revision=names_.revision, max_length=vectors.max_length, precision="fp32",
        forward="transformers",
    )  # fmt: skip
    assert isinstance(encoder.model, PlainModel)
    torch.manual_seed(seed)
    for module in encoder.model.module.modules():
        if hasattr(module, "weight") and not isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                torch.nn.init.zeros_(module.bias)
    wanted = [n for n in names if n != "pooler"]
    return DatasetEncoder(encoder, vectors, wanted).views(texts)
