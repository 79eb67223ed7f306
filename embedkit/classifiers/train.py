"""Runs from stored vectors: an estimator under the folds of a split, then fitted on all of them."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import RUN_LEVELS, check_choice
from embedkit.classifiers.estimators import EstimatorSettings, save_model
from embedkit.classifiers.tuning import Fitted, fit, predict_proba, take
from embedkit.corpus.memory import CorpusLike
from embedkit.dataset.format import is_dataset
from embedkit.dataset.read import (
    VectorData,
    load,
    records_of_words,
    source_of,
    stored_texts,
    text_keys,
)
from embedkit.dataset.settings import encode_as
from embedkit.dataset.texts import dataset_of, labels_of_words, read_more_texts, reading_of
from embedkit.errors import UsageError
from embedkit.machine import peak_memory_bytes, peak_memory_since
from embedkit.runs.folder import (
    RunResult,
    check_alike,
    check_free,
    check_one_test_set,
    dataset_content,
    default_out,
    joined_pairs,
    marked_spans,
    new_run,
    words_of_texts,
    write_results,
)
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import (
    SEPARATOR,
    Predictions,
    Target,
    TestSet,
    check_folds,
    target_from,
)
from embedkit.runs.run import Choice, Cost, TrainRun
from embedkit.runs.split import Split, split_for, write_split
from embedkit.types import Float64, Int64, Progress, ProgressCallback, no_progress

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Results of a cross-validation; seconds are the shares of all folds in the time it took."""

    predictions: Predictions  # of every held-out record
    choices: tuple[Choice, ...]  # by fold
    final: Fitted  # on the records of all folds
    fit_seconds: float
    predict_seconds: float


def cross_validate(
    features: Any,
    target: Target,
    split: Split,
    settings: EstimatorSettings,
    *,
    ids: Sequence[str] | NDArray[np.str_] | None = None,
    threshold: Threshold | None = None,
    tune: bool = True,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> CrossValidation:
    """Fit and predict every fold, several at the same time, and fit the records of all folds.

    The features are ``(n, width)`` float32, or a list of texts. The test set of the split is
    neither fitted nor predicted. A threshold by a metric is chosen on predictions of inner folds.
    The number of threads, by default one for each core, changes nothing in the results.
    """
    check_folds(target, split)
    held_out = tune or (threshold is not None and threshold.value is None)

    def one_fold(train: Int64, test: Int64) -> tuple[Fitted, Float64, float, float]:
        started = time.perf_counter()
        fitted = fit(features, target, split, train, settings, tune=tune, held_out=held_out)
        trained = time.perf_counter()
        proba = np.empty(0)
        if len(test):
            proba = predict_proba(fitted.pipeline, take(features, test), target)
        return fitted, proba, trained - started, time.perf_counter() - trained

    subsets = split.subsets()
    everything = split.in_folds, np.empty(0, np.int64)
    (*fits, final), part = side_by_side(
        [partial(one_fold, *subset) for subset in [*subsets, everything]],
        threads=threads,
        progress=progress,
    )
    predictions = []
    for fold, ((train, test), (fitted, proba, *_)) in enumerate(zip(subsets, fits, strict=True)):
        where: dict[str, Any] = {"records": split, "ids": split.row if ids is None else ids}
        where |= {"target": target, "fold": fold}
        inner, cut = None, None if threshold is None else threshold.value
        if fitted.inner is not None:
            inner = Predictions.of_fold(train, fitted.inner, **where)
            if threshold is not None:
                cut = threshold.choose(inner.y, inner.proba[:, 1])
        predictions.append(Predictions.of_fold(test, proba, threshold=cut, inner=inner, **where))
    return CrossValidation(
        Predictions.joined(predictions),
        tuple(fitted.choice for fitted, *_ in fits),
        final[0],
        part * sum(fit_seconds for _, _, fit_seconds, _ in fits),
        part * sum(predict_seconds for *_, predict_seconds in fits),
    )


def side_by_side(
    tasks: Iterable[Callable[[], T]],
    *,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[list[T], float]:
    """Return the results of several fits that run at the same time, each with one BLAS thread.

    The time that all took, as a fraction of the sum of their times, is returned too. Vectors of a
    few hundred columns are too small for products of several threads, which wait for
    each other longer than they compute; whole fits are independent.
    """
    from joblib import Parallel, delayed
    from scipy import linalg  # noqa: F401 - has a BLAS of its own, which is limited too
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController()  # looking for them takes as long as a small fit

    def run(task: Callable[[], T]) -> tuple[T, float]:
        with libraries.limit(limits=1):  # OpenMP counts threads for each thread that calls it
            started = time.perf_counter()
            return task(), time.perf_counter() - started

    waiting, results, busy = list(tasks), [], 0.0
    begun = time.perf_counter()
    with libraries.limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the inner score judges such a fit
        # filters are those of the process: one set by a thread ends when another thread's does
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        warnings.filterwarnings("ignore", "One or more of the test scores", UserWarning)
        parallel = Parallel(n_jobs=threads or -1, prefer="threads", return_as="generator")
        for result, seconds in parallel(delayed(run)(task) for task in waiting):
            results.append(result)
            busy += seconds
            progress(Progress("fitting", len(results), len(waiting), "fits", len(results)))
    return results, (time.perf_counter() - begun) / busy


def load_test_set(
    test: CorpusLike, data: VectorData, target: Target, *, texts_only: bool
) -> TestSet:
    """Load a test set; a corpus file is encoded as the training dataset ``data`` was."""
    if isinstance(test, str | os.PathLike) and is_dataset(Path(test)):
        fields = _from_dataset(Path(test), data, texts_only)
    else:
        fields = _from_corpus(test, data, texts_only)
    training = text_keys(records_of_words(data))
    return TestSet.further(target, training=training, name="the test set", **fields)


def _from_dataset(test: Path, data: VectorData, texts_only: bool) -> dict[str, Any]:
    other = load(test, list(data.views), level=data.level)
    check_alike(
        dataset_content(other),
        dataset_content(data),
        name=str(test),
        vectors=not texts_only,
        level=data.level,
    )
    if texts_only and not other.manifest.job.storage.text:
        raise UsageError(f"{test} stores no texts; give the corpus file itself.")
    records = records_of_words(other)
    return {
        "row": other.row,
        "ids": [str(i) for i in other.ids],
        "features": stored_texts(other, separator=" ") if texts_only else other.X,
        "word": other.word if data.level == "word" else None,
        "labels": other.column("label") if "label" in other.columns else None,
        "rows": records.row,
        "keys": text_keys(records),
        "source": source_of(other),
        "rejected": other.manifest.totals.rejected,
    }


def _from_corpus(test: CorpusLike, data: VectorData, texts_only: bool) -> dict[str, Any]:
    columns, of_words = data.manifest.job.input, data.level == "word"
    new = read_more_texts(
        test,
        reading_of(columns),
        name=str(data.path),
        paired=columns.text_pair is not None,
        word_label=columns.word_label if of_words else None,
    )
    encode = None if texts_only else encode_as(data.manifest, data.views, owner=str(data.path))
    fields: dict[str, Any] = {"row": new.row, "ids": new.ids, "labels": new.labels}
    if of_words:
        spans = marked_spans(new.words or ())
        places, features = words_of_texts(new.texts, spans, encode)
        record, word = places[:, 0], places[:, 1]
        labels = labels_of_words(new.words, record, word)
        ids = [new.ids[i] for i in record]
        fields = {"row": new.row[record], "ids": ids, "labels": labels, "word": word}
    else:
        features = (encode or joined_pairs)(new.texts, new.pairs)
    if fields["labels"] is None:
        name = columns.word_label if of_words else columns.label
        logger.warning("%s has no column %r: it is predicted, not scored", new.name, name)
    fields |= {"rows": new.row, "keys": new.text_keys(), "source": new.source}
    return fields | {"features": features, "rejected": sum(new.rejected.values())}


def train(
    dataset: CorpusLike,
    *,
    out: str | Path | None = None,
    view: str | Sequence[str] | None = None,
    level: str = "sentence",
    estimator: str | None = None,
    features: str = "vectors",
    task: str = "classification",
    label_separator: str = SEPARATOR,
    split: str | Path | Split | None = None,
    split_column: str | None = None,
    folds: int = 5,
    test: CorpusLike | None = None,
    threshold: str | None = None,
    tune: bool = True,
    class_weight: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **extraction: Any,
) -> RunResult[TrainRun]:
    """Cross-validate a classifier or regressor on stored vectors, and fit it on all folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column; or a corpus as ``extract``
            takes it, which is extracted first.
        out: new folder; by default ``runs/<dataset>-<estimator>``, and the view if it is given.
        view: a stored view, or several to put side by side; by default the last mean. Of words a
            layer, such as ``6``; by default the last one.
        level: ``sentence``: records are labelled, or ``word``: the words of records, which stay
            together in folds, inner folds, intervals and tests.
        estimator: ``logreg``, ``knn`` or ``lightgbm``, for regression ``ridge``, ``knn`` or
            ``lightgbm``; or any class of scikit-learn or LightGBM with its own default values, such
            as ``sklearn.svm:LinearSVC``. By default ``logreg``, for regression ``ridge``.
        features: ``vectors``, or ``tfidf`` on the stored texts; of words on the words alone.
        task: ``classification``, ``regression`` or ``multilabel``: a record has any number of
            classes, one classifier is fitted for each (``OneVsRestClassifier``), and classes are
            predicted whose probability reaches 0.5. Folds are not stratified.
        label_separator: between the classes of a record. An empty label has no class; a record
            without a label (null) is left out.
        split: result or file of ``embedkit split``; without one a split is made.
        split_column: kept column that names the folds (``test``: the test set) instead.
        folds: number of folds where no split is given.
        test: test set: a dataset made with the same settings, or a corpus.
        threshold: of two classes, the probability from which the second one is predicted: a
            number, or the score to choose it by in inner folds (``macro_f1``, ``f1``, ``f2`` …).
        tune: choose regularisation in inner folds of the training records.
        class_weight: ``balanced`` gives every class the same weight.
        seed: of folds, estimators and intervals.
        overwrite: replace a run.
        progress: called with the number of fits that are done.
        extraction: options of ``extract`` for a corpus (``label="stars"``, ``model=...``).

    Raises:
        UsageError: a view, label, setting or split cannot be used.
        MismatchError: the split or the test set does not fit the dataset.
        OutputExistsError: the folder exists.

    Example:
        >>> result = embedkit.train("vectors", split="split.parquet", view="cls_6", out="runs/cls")
        >>> result.content.estimator, result.content.views
        ('logreg', ('cls_6',))
    """
    peak_before = peak_memory_bytes()
    settings = EstimatorSettings.of(
        estimator, task=task, features=features, class_weight=class_weight, seed=seed
    )
    check_choice(RUN_LEVELS, level=level)
    if features == "tfidf" and view is not None:
        raise UsageError(f"view={view!r}: features='tfidf' are of texts, not of vectors.")
    if out is None:
        method = "tfidf" if features == "tfidf" else settings.estimator
        out = default_out(dataset, method, *([view] if isinstance(view, str) else view or ()))
    check_free(Path(out), overwrite=overwrite)
    dataset = dataset_of(dataset, extraction, level=level, progress=progress)
    data = load(dataset, view, level=level)
    target = target_of(data, task, label_separator)
    shown = data.X if features == "vectors" else stored_texts(data, separator=" ")
    if shown is None:
        raise UsageError(f"features='tfidf' needs texts, and {data.path} stores none.")
    decision = None if threshold is None else Threshold.parse(threshold)
    if decision is not None and (len(target.classes) != 2 or task == "multilabel"):
        count = len(target.classes) or "values"
        raise UsageError(f"threshold={threshold!r} needs two classes; there are {count}.")
    sets = target.separator is not None
    chosen = split_for(data, split, column=split_column, folds=folds, seed=seed, sets=sets)
    if chosen.n_folds == 1 and not tune:
        raise UsageError("folds=1 needs tune=True: inner folds hold the labels of the majority.")
    test_set = TestSet.of_split(chosen, data.ids, target, take(shown, chosen.test))
    if test is not None:
        check_one_test_set(chosen, test)
        test_set = load_test_set(test, data, target, texts_only=features == "tfidf")
    with new_run(Path(out), overwrite=overwrite) as folder:
        result = cross_validate(
            shown,
            target,
            chosen,
            settings,
            ids=data.ids,
            threshold=decision,
            tune=tune,
            progress=progress,
        )
        predictions, pipeline, cut = result.predictions, result.final.pipeline, None
        weights = [getattr(pipeline[-1], name, ()) for name in ("coef_", "intercept_")]
        if decision is not None:
            cut = decision.choose(predictions.y, predictions.proba[:, 1])
        if test_set is not None:
            proba = predict_proba(pipeline, test_set.features, target)
            tested = test_set.predictions(proba, threshold=cut)
            predictions = Predictions.joined([predictions, tested])
        save_model(folder, pipeline)
        write_split(chosen, folder / "split.parquet")
        content = write_results(
            folder,
            TrainRun,
            predictions,
            chosen,
            test_set,
            decision=decision,
            seed=seed,
            estimator=settings.estimator,
            features=features,
            task=task,
            level=level,
            settings={"class_weight": class_weight, "seed": seed, "metric": settings.metric}
            | ({"label_separator": label_separator} if sets else {}),
            choices=(
                *(replace(choice, fold=fold) for fold, choice in enumerate(result.choices)),
                result.final.choice,
            ),
            views=tuple(data.views) if features == "vectors" else (),
            threshold=cut,
            dataset=dataset_content(data, folder),
            cost=Cost(
                fit_seconds=result.fit_seconds,
                predict_seconds=result.predict_seconds,
                peak_memory_bytes=peak_memory_since(peak_before),
                parameters=sum(map(np.size, weights)) or None,
                device="cpu",
            ),
        )
    return RunResult(Path(out), content)


def target_of(data: VectorData, task: str, separator: str = SEPARATOR) -> Target:
    """Return the target of a dataset, of its records or words."""
    if data.level == "word" and task == "multilabel":
        raise UsageError("task='multilabel' is for records, not for level='word'.")
    if data.level == "word" and "label" not in data.columns:
        raise UsageError(
            f"{data.path} has no labels of words. Extract it again with their column: embedkit "
            "extract CORPUS --words --word-label upos (in Python words='mean', word_label='upos')."
        )
    about: dict[str, Any] = {"rows": data.row, "name": str(data.path), "separator": separator}
    return target_from(data.column("label"), task=task, **about)
