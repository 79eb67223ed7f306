"""Make a run from stored vectors: cross-validate an estimator, then fit it on all folds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.choices import RUN_LEVELS, check_choice
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.folds import CrossValidation, cross_validate
from embedkit.classifiers.saved import save_model
from embedkit.classifiers.test_set import TestSet, load_test_set
from embedkit.classifiers.tuning import predict_proba, take
from embedkit.corpus import CorpusOptions
from embedkit.corpus.options import check_test_reading
from embedkit.dataset.record_keys import records_of_words, source_of, stored_texts
from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError, check_counts, check_seed
from embedkit.machine import peak_memory_bytes
from embedkit.runs.content import (
    Cost,
    EstimatorChoice,
    RecordCounts,
    SplitContent,
    TestSetContent,
    TrainRun,
)
from embedkit.runs.folder import new_run, versions, write_run
from embedkit.runs.metrics import Threshold, check_metric
from embedkit.runs.predictions import (
    Predictions,
    class_scores,
    reported_scores,
    write_predictions,
)
from embedkit.runs.reencoding import dataset_content
from embedkit.runs.split_files import (
    TEST,
    Split,
    align_split,
    check_fold_models,
    read_split,
    split_of_run,
)
from embedkit.runs.splits import leaking_records, make_split, records_of, split_by_column
from embedkit.runs.targets import Target, target_from
from embedkit.types import ProgressCallback, no_progress

__all__ = ["TrainResult", "split_for", "target_of", "train"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run.

    Attributes:
        out: its folder.
        content: the content of ``run.json``.
    """

    out: Path
    content: TrainRun


def train(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | Sequence[str] | None = None,
    level: str = "sentence",
    estimator: str | None = None,
    features: str = "vectors",
    task: str = "classification",
    split: str | Path | None = None,
    split_column: str | None = None,
    folds: int = 5,
    test: str | Path | None = None,
    test_sample: int | None = None,
    test_min_chars: int = 0,
    threshold: str | None = None,
    pca: int | None = None,
    tune: bool = True,
    metric: str | None = None,
    class_weight: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> TrainResult:
    """Cross-validate a classifier or regressor on stored vectors, and fit it on all folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder of the run.
        view: a stored view, or several to put side by side; by default the last mean. Of words a
            layer, such as ``6``; by default the last one.
        level: ``sentence``: records are labelled, or ``word``: the words of records, which stay
            together in folds, inner folds, intervals and tests.
        estimator: one of :data:`~embedkit.choices.ESTIMATORS`; by default ``logreg``, of values
            ``ridge``.
        features: ``vectors``, or ``tfidf`` on the stored texts; of words on the words alone.
        task: ``classification`` or ``regression``.
        split: file that ``embedkit split`` wrote; without one a split is made.
        split_column: kept column that names the folds (``test``: the test set) instead.
        folds: number of folds where no split is given.
        test: test set: a dataset made with the same settings, or a corpus file.
        test_sample: predict so many records of the test file, sampled with the same seed.
        test_min_chars: leave shorter texts of the test file out.
        threshold: of two classes, the probability from which the second one is predicted: a
            number, or the score to choose it by in inner folds (``macro_f1``, ``f1``, ``f2`` …).
        pca: number of principal components, fitted in every fold.
        tune: choose scaling and regularisation in inner folds of the training records.
        metric: what tuning optimises; by default log-loss, in a regression the squared error.
        class_weight: ``balanced`` gives every class the same weight.
        seed: of folds, estimators and intervals.
        threads: number of fits at the same time; by default one for each core.
        overwrite: replace a run.
        progress: receives the number of fits that are done.

    Raises:
        UsageError: a view, label, setting or split cannot be used.
        MismatchError: the split belongs to other data, or the test set was made with other
            settings.
        OutputExistsError: the folder exists.

    Example:
        >>> result = embedkit.train("vectors", split="split.parquet", view="cls_6", out="runs/cls")
        >>> result.content.estimator, result.content.views
        ('logreg', ('cls_6',))
    """
    settings = EstimatorSettings.of(
        estimator, task=task, features=features, pca=pca, class_weight=class_weight, seed=seed,
        metric=metric,
    )  # fmt: skip
    check_seed(seed)
    check_counts(threads=threads)
    check_test_reading(test, sample=test_sample, min_chars=test_min_chars)
    if features == "tfidf" and view is not None:
        raise UsageError(f"view={view!r}: features='tfidf' are of texts, not of vectors.")
    check_choice(RUN_LEVELS, level=level)
    data = load(dataset, view, level=level)
    target, shown = target_of(data, task), _features(data, settings)
    if metric is not None:
        check_metric(metric, classes=len(target.classes))
    decision = _threshold(threshold, target)
    chosen = _split(data, split, split_column, folds=folds, seed=seed)
    if chosen.n_folds == 1 and not tune:
        raise UsageError("folds=1 needs tune=True: inner folds hold the labels of the majority.")
    _check_one_test_set(chosen, test)
    reading = CorpusOptions(
        sample=test_sample, min_chars=test_min_chars, seed=0 if test_sample is None else seed
    )
    test_set = None if test is None else load_test_set(
        Path(test), data, target, texts_only=features == "tfidf", reading=reading
    )  # fmt: skip
    work = _Training(data, target, chosen, settings, decision, tune=tune)
    with new_run(Path(out), overwrite=overwrite) as folder:
        found = cross_validate(
            shown, target, chosen, settings, ids=data.ids, threshold=decision, tune=tune,
            threads=threads, progress=progress,
        )  # fmt: skip
        content = work.finish(folder, found, test_set)
    return TrainResult(Path(out), content)


def _check_one_test_set(split: Split, test: str | Path | None) -> None:
    if test is not None and len(split.test):
        raise UsageError(
            f"the split has a test set already; leave out test={str(test)!r}, or take a split "
            "without one."
        )


def _split(
    data: VectorData, split: str | Path | None, column: str | None, *, folds: int, seed: int
) -> Split:
    if column is None:
        return split_for(data, split, folds=folds, seed=seed)
    if split is None:
        return _column_split(data, column, folds=folds, seed=seed)
    raise UsageError("pass split= or split_column=, not both.")


def target_of(data: VectorData, task: str) -> Target:
    """Return the target of a dataset; errors as for :func:`~embedkit.runs.targets.target_from`.

    Raises:
        UsageError: of words also, the dataset was made without labels of words.
    """
    if data.level == "word" and "label" not in data.columns:
        raise UsageError(
            f"{data.path} has no labels of words. Extract it again with their column: embedkit "
            "extract CORPUS --words --word-label upos (in Python words='mean', word_label='upos')."
        )
    return target_from(data.column("label"), rows=data.row, name=str(data.path), task=task)


def split_for(data: VectorData, split: str | Path | None, *, folds: int, seed: int) -> Split:
    """Return the given split in the order of the dataset, or a new one; of words by their records.

    Of vectors that were made by the models of a fine-tuned run it is that of the run.

    Raises:
        MismatchError: it was made for other data, or the models of a run had other folds.
    """
    records = records_of_words(data)
    if split is None and data.manifest.job.folds is not None:
        split = split_of_run(data)
    if split is None:
        return _of_level(make_split(records_of(records), folds=folds, seed=seed), data)
    chosen = align_split(
        read_split(Path(split)), source=source_of(data), row=records.row, name=str(data.path),
        file=split,
    )  # fmt: skip
    check_fold_models(records, chosen, split=str(split))
    return _of_level(chosen, data)


def _of_level(chosen: Split, data: VectorData) -> Split:
    return chosen if data.level == "sentence" else chosen.of_words(data.row, data.word)


def _column_split(data: VectorData, column: str, *, folds: int, seed: int) -> Split:
    records = records_of_words(data)
    made = split_by_column(
        records_of(records), records.column(column), column=column, folds=folds, seed=seed
    )
    check_fold_models(records, made, split=f"column {column!r}")
    if leaking := leaking_records(made):
        logger.warning(
            "%s records have duplicates in another fold of column %r; scores may be inflated by "
            "leakage", f"{leaking:,}", column,
        )  # fmt: skip
    return _of_level(made, data)


def _threshold(text: str | None, target: Target) -> Threshold | None:
    if text is None:
        return None
    if len(target.classes) != 2:
        raise UsageError(
            f"threshold={text!r} needs two classes; there are {len(target.classes) or 'values'}."
        )
    return Threshold.parse(text)


class _Training:
    """One run: the folds, the model fitted on all of them, and a test set where there is one."""

    def __init__(
        self,
        data: VectorData,
        target: Target,
        split: Split,
        settings: EstimatorSettings,
        threshold: Threshold | None,
        *,
        tune: bool,
    ) -> None:
        self._data, self._target, self._split = data, target, split
        self._settings, self._threshold, self._tune = settings, threshold, tune

    def finish(self, folder: Path, found: CrossValidation, test_set: TestSet | None) -> TrainRun:
        """Predict the test set, and write everything into the folder."""
        from embedkit.runs.figures import draw_run

        predictions, pipeline = found.predictions, found.final.pipeline
        threshold = None
        if self._threshold is not None:
            threshold = self._threshold.choose(predictions.y, predictions.proba[:, 1])
        tested = self._predict_test(pipeline, test_set, threshold)
        if tested is not None:
            predictions = Predictions.joined([predictions, tested])
        write_predictions(folder, predictions)
        save_model(folder, pipeline)
        draw_run(folder, predictions)
        content = self._content(folder, found, predictions, test_set, threshold)
        write_run(folder, content)
        return content

    def _predict_test(
        self, pipeline: Any, test_set: TestSet | None, threshold: float | None
    ) -> Predictions | None:
        """Predictions of the test set: one of its own, or that of the split."""
        if test_set is not None:
            proba = predict_proba(pipeline, test_set.features, self._target)
            return Predictions.of_fold(
                np.arange(len(proba)), proba, row=test_set.row, ids=test_set.ids,
                target=test_set.target, fold=TEST, group=test_set.group, threshold=threshold,
                word=test_set.word,
            )  # fmt: skip
        index = self._split.test
        if not len(index):
            return None
        features = take(_features(self._data, self._settings), index)
        proba = predict_proba(pipeline, features, self._target)
        return Predictions.of_fold(
            index, proba, row=self._data.row, ids=self._data.ids, target=self._target, fold=TEST,
            group=self._split.group, threshold=threshold, word=self._split.word,
        )  # fmt: skip

    def _content(
        self,
        folder: Path,
        found: CrossValidation,
        predictions: Predictions,
        test_set: TestSet | None,
        threshold: float | None,
    ) -> TrainRun:
        settings = asdict(self._settings)
        beta = self._threshold.beta if self._threshold else None
        return TrainRun(
            estimator=settings.pop("estimator"),
            features=settings.pop("features"),
            task=settings.pop("task"),
            level=self._data.level,
            settings=settings,
            choices=self._choices(found),
            views=tuple(self._data.views) if self._settings.features == "vectors" else (),
            classes=self._target.classes,
            threshold=threshold,
            threshold_metric=self._threshold.metric if self._threshold else None,
            dataset=dataset_content(self._data, folder),
            split=SplitContent.of(self._split),
            records=RecordCounts(folds=len(predictions.first_repeat), test=len(predictions.test)),
            test_set=None if test_set is None else TestSetContent(
                source=test_set.source, rejected=test_set.rejected, seen_texts=test_set.seen_texts
            ),
            scores=reported_scores(predictions, seed=self._settings.seed, beta=beta),
            per_class=class_scores(predictions),
            cost=Cost(
                fit_seconds=found.fit_seconds,
                predict_seconds=found.predict_seconds,
                peak_memory_bytes=peak_memory_bytes(),
                parameters=_parameters(found.final.pipeline),
                device="cpu",
            ),
            versions=versions(),
        )  # fmt: skip

    def _choices(self, found: CrossValidation) -> tuple[EstimatorChoice, ...]:
        folds = [(r, f) for r in range(self._split.repeats) for f in range(self._split.n_folds)]
        named = zip([*folds, (None, None)], [*found.choices, found.final.choice], strict=True)
        return tuple(
            EstimatorChoice(
                repeat=repeat, fold=fold, scaling=choice.scaling,
                parameters={self._settings.row.parameter: choice.value}
                | ({} if choice.rounds is None else {"n_estimators": choice.rounds}),
                at_edge=choice.at_edge, slope=choice.slope,
            )
            for (repeat, fold), choice in named
        )  # fmt: skip


def _features(data: VectorData, settings: EstimatorSettings) -> Any:
    if settings.features == "vectors":
        if settings.pca is not None and settings.pca > data.X.shape[1]:
            raise UsageError(f"pca={settings.pca}: the vectors have {data.X.shape[1]} columns.")
        return data.X
    texts = stored_texts(data, separator=" ")
    if texts is None:
        raise UsageError(f"features='tfidf' needs texts, and {data.path} stores none.")
    return texts


def _parameters(pipeline: Any) -> int | None:
    """Number of fitted parameters in the last step of a linear model or network."""
    last = pipeline.steps[-1][1]
    if hasattr(last, "coef_"):
        return int(np.size(last.coef_) + np.size(last.intercept_))
    if hasattr(last, "coefs_"):
        return sum(int(w.size) for w in [*last.coefs_, *last.intercepts_])
    return None
