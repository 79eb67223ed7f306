"""Runs from stored vectors: an estimator under the folds of a split, then fitted on all of them.

    dataset ─ Units ─ inputs (n, width) float32, or texts ─┬─ fit of fold 0 ─ held-out probabilities
                      of views, numbers behind them        ├─ fit of fold 1 ─ …
                                                           └─ fit of all folds ─ model/, test set

All of these fits run at the same time, a thread and one BLAS thread each: a product of vectors of a
few hundred columns is too small to be divided. The fit of all folds is one more among them and
costs no further time where a core is free. What a fit has taken is the clock of its own thread, so
that neither the others nor another program are counted as its cost.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from embedkit.arguments import accepts
from embedkit.choices import ClassWeight, Features, RunLevel, Task
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.model import save_model
from embedkit.classifiers.tuning import fit, predict_proba
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.plan import CorpusOptions, class_columns
from embedkit.dataset.encoders import encode_as
from embedkit.dataset.format import dataset_folder
from embedkit.dataset.read import VectorData
from embedkit.dataset.settings import EXTRACTION
from embedkit.errors import UsageError
from embedkit.machine import peak_memory_bytes, peak_memory_since
from embedkit.records import Positive, Seed
from embedkit.runs.cross_validation import Fits, FoldFit, Problem, cross_validate
from embedkit.runs.folder import (
    RunResult,
    check_alike,
    corpus_content,
    dataset_content,
    free_out,
    new_run,
    write_results,
)
from embedkit.runs.predictions import Subset
from embedkit.runs.run import Cost, DatasetContent, TrainRun
from embedkit.runs.split import Split
from embedkit.types import Int64, ProgressCallback, no_progress, steps
from embedkit.units.target import SEPARATOR
from embedkit.units.units import Labels, Units, beside_numbers, load_or_extract, told_rejected

logger = logging.getLogger(__name__)

_READING = {field.name for field in fields(CorpusOptions)}
# settings that stand in run.json as they are
_RECORDED = ("estimator", "features", "task", "views", "columns")

T = TypeVar("T")


class Frozen(NamedTuple):
    """An estimator on stored vectors or on TF-IDF: a pipeline for each fold, and one for all.

    Fits run at the same time. The number of threads, by default one for each core, changes nothing
    in the results.
    """

    settings: EstimatorSettings
    threads: int | None = None

    def check(self, problem: Problem) -> None:
        """Raise a :class:`UsageError` for what this method cannot judge."""
        target, split = problem.target, problem.split
        if self.settings.threshold is not None:
            self.settings.threshold.check(target)
        # of records the split is refused already; the model would have no output for it
        present = np.unique(target.y[split.in_folds])
        lacking = np.setdiff1d(np.arange(len(target.classes)), present)
        if not target.of_sets and len(lacking):
            label = target.classes[lacking[0]]
            raise UsageError(f"label {label!r} is in the test set alone. Make it empty there.")

    def fit(self, problem: Problem, *, progress: ProgressCallback) -> Fits:
        """Fit and predict every fold, and fit the units of all folds."""
        _, target, split, test = problem
        settings, subsets, cut = self.settings, split.subsets(), None
        # the model of all folds is one more fit, which holds nothing out; beside the others it
        # costs no further time where cores are free
        everything = split.in_folds, split.in_folds[:0]
        fits = [partial(fit_fold, problem, *each, settings) for each in (*subsets, everything)]
        threads = settings.threads or self.threads
        *folds, last = side_by_side(fits, threads=threads, progress=progress)
        final, proba = last.model, None
        # the threshold of the model of all folds is chosen on out-of-fold predictions, which no
        # fold's own score uses: those have a threshold of their own inner folds
        if settings.threshold is not None:
            y = np.concatenate([target.y[held_out] for _, held_out in subsets])
            cut = settings.threshold.choose(y, np.concatenate([fold.proba for fold in folds])[:, 1])
        if test is not None:
            inputs = test.units.inputs(np.arange(len(test.units)))
            proba = predict_proba(final.pipeline, inputs, target)
        return Fits(
            folds=folds,
            final=final,
            test=proba,
            threshold=cut,
            cost=Cost(
                fit_seconds=sum(fold.fit_seconds for fold in folds),
                predict_seconds=sum(fold.predict_seconds for fold in folds),
                parameters=_parameters(final.pipeline),
            ),
        )

    def fit_and_write(
        self,
        folder: Path,
        dataset: DatasetContent,
        problem: Problem,
        *,
        peak_before: int,
        progress: ProgressCallback,
    ) -> TrainRun:
        """Fit all folds, and write the run with the model of all of them, which predicts new units.

        ``peak_before`` is the highest memory before the call, which is not of this run.
        """
        predictions, fits = cross_validate(self, problem, progress=progress)
        save_model(folder, fits.final.pipeline)
        settings = self.settings._asdict()
        about = {name: settings[name] for name in ("class_weight", "seed", "metric")}
        each = (replace(fold.model.choice, fold=i) for i, fold in enumerate(fits.folds))
        return write_results(
            folder,
            TrainRun,
            problem,
            predictions,
            decision=self.settings.threshold,
            **{name: settings[name] for name in _RECORDED},
            settings=about | problem.target.settings,
            dataset=dataset,
            choices=(*each, fits.final.choice),
            threshold=fits.threshold,
            cost=replace(fits.cost, peak_memory_bytes=peak_memory_since(peak_before)),
        )


def fit_fold(
    problem: Problem, train: Int64, held_out: Int64, settings: EstimatorSettings
) -> FoldFit:
    """Fit the units ``train``, and predict the units that are held out."""
    threshold = settings.threshold
    # the libraries compute in this very thread (side_by_side leaves them one), so that its clock
    # has all of the fit and nothing else
    started = time.thread_time()  # others fit, and other programs run, at the same time
    fitted = fit(problem, train, settings)
    trained, proba = time.thread_time(), np.empty(0)
    if len(held_out):
        proba = predict_proba(fitted.pipeline, problem.units.inputs(held_out), problem.target)
    predicted, cut = time.thread_time(), None if threshold is None else threshold.value
    if threshold is not None and fitted.inner is not None:
        cut = threshold.choose(problem.target.y[train], fitted.inner[:, 1])
    return FoldFit(
        proba=proba,
        model=fitted,
        # kept for blends too, which are stacked on them
        inner=None if fitted.inner is None else (train, fitted.inner),
        threshold=cut,
        fit_seconds=trained - started,
        predict_seconds=predicted - trained,
    )


def side_by_side(
    tasks: Iterable[Callable[[], T]],
    *,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> list[T]:
    """Return the results of several fits that run at the same time, each with one BLAS thread.

    Vectors of a few hundred columns are too small for products of several threads, which wait for
    each other longer than they compute; whole fits are independent.
    """
    from joblib import Parallel, delayed
    from scipy import linalg  # noqa: F401 - has a BLAS of its own, which is limited too
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController()  # looking for them takes as long as a small fit

    def run(task: Callable[[], T]) -> T:
        with libraries.limit(limits=1):  # OpenMP counts threads for each thread that calls it
            return task()

    waiting, results = list(tasks), []
    # BLAS is limited for the process, here; OpenMP for each thread, above
    as_arrays = config_context(transform_output="default")  # a thread of joblib's has it anyway
    with libraries.limit(limits=1), warnings.catch_warnings(), as_arrays:
        warnings.simplefilter("ignore", ConvergenceWarning)  # the inner score judges such a fit
        # filters are those of the process: one set by a thread ends when another thread's does
        # few records of a class; a class of sets that all records of a fold have, or none
        few = r"The (least populated|number of unique) class|Label (not )?\d+ is present in all"
        warnings.filterwarnings("ignore", few, UserWarning)
        # threads, since the libraries release the lock while they compute, and vectors need no
        # copy; results come in the order of the tasks, whichever ends first
        parallel = Parallel(n_jobs=threads or -1, prefer="threads", return_as="generator")
        fitted = steps(progress, "fitting", len(waiting), "fits")
        for result in parallel(delayed(run)(task) for task in waiting):
            results.append(result)
            fitted()
    return results


def _data(
    source: CorpusLike, what: dict[str, Any], *, features: str, label: Labels, **about: Any
) -> tuple[Units, DatasetContent, tuple[str, ...], int]:
    """The units to learn from, their record, the views, and the number of rejected records.

    A corpus is extracted first, with the options ``what``; ``about`` as for
    :func:`load_or_extract`. TF-IDF reads its texts alone, for which vectors would cost a thousand
    times as much, unless an option of encoding asks for a dataset, or the labels are values, which
    are counted by its rows.
    """
    of_texts = features == "tfidf" and what.keys() <= _READING
    if of_texts and isinstance(label, str | None) and dataset_folder(source) is None:
        reading = CorpusOptions(**what, label=label)
        units = Units.of_corpus(source, reading, level=about["level"], split=about["split"])
        # told, as it is of a corpus that is extracted
        return units, corpus_content(units), (), told_rejected(units.name, units.rejected)
    data = load_or_extract(source, what, label=label, **about)
    views = tuple(data.views) if features == "vectors" else ()
    return Units.of_dataset(data, label=label), dataset_content(data), views, data.lost


def _test_set(
    test: CorpusLike, dataset: DatasetContent, problem: Problem, settings: EstimatorSettings
) -> Subset:
    """A test set of its own; a corpus is encoded as ``dataset`` was."""
    units, target, split, _ = problem
    views = settings.views
    split.check_test(test)
    column = units.reading["word_label" if units.level == "word" else "label"]
    folder = dataset_folder(test)
    if folder is not None:
        test_data = VectorData.of(folder, [*views] or None, level=units.level)
        check_alike(test_data, dataset, name=str(test), vectors=bool(views))
        further, stored = Units.of_dataset(test_data), (dataset.reading or {}).get("label")
        # the labels that a dataset stores are taken of both, whatever they are called; others are
        # a kept column, or values, which the other dataset does not have
        is_kept = column in test_data.columns
        if units.level == "sentence" and (column is None or column != stored or is_kept):
            further = replace(further, label=None)
            if is_kept or class_columns(column, test_data.columns):
                further = Units.of_dataset(test_data, label=column)
    else:
        further = units.further(test, keep=settings.columns)
        if views:
            further = further.encoded(encode_as(dataset, views, owner=units.name))
    if further.label is None:
        lacking = f"column {column!r}" if column else "column that is named as the label"
        logger.warning(f"{further.name} has no {lacking}: it is predicted, not scored")
    further = _read_by(settings, further)
    return Subset.further(further, units, target)


def _read_by(settings: EstimatorSettings, units: Units, *, fitted: bool = True) -> Units:
    """Units with the inputs of a pipeline: vectors and numbers behind them, or texts."""
    # a dataset stores the labels as the column label, whatever it was called
    label = units.reading["label"] or "label"
    if {"label", label, *label.split(",")} & {*settings.columns}:
        shown = ",".join(settings.columns)
        raise UsageError("one of them is the label, which is to be predicted.", columns=shown)
    if settings.features == "vectors":
        return beside_numbers(units, settings.columns, fitted=fitted)
    # TF-IDF takes texts of pairs joined by a space
    return units.with_texts()


def _parameters(pipeline: Any) -> int | None:
    """The number of parameters of a linear model; other kinds have none to compare."""
    weights = [np.size(getattr(pipeline[-1], n, ())) for n in ("coef_", "intercept_")]
    return sum(weights) or None


@accepts(*EXTRACTION)
def train(
    dataset: CorpusLike,
    *,
    out: str | Path | None = None,
    view: str | Sequence[str] | None = None,
    level: RunLevel = "sentence",
    label: Labels = None,
    estimator: str | None = None,
    features: Features = "vectors",
    columns: str | Sequence[str] = (),
    task: Task = "classification",
    label_separator: str = SEPARATOR,
    split: str | Path | Split | None = None,
    folds: Positive = 5,
    test: CorpusLike | None = None,
    threshold: str | float | None = None,
    tune: bool = True,
    class_weight: ClassWeight | None = None,
    seed: Seed = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **extraction: Any,
) -> RunResult[TrainRun]:
    """Cross-validate a classifier or regressor on stored vectors, and fit it on all folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column; or a corpus as ``extract``
            takes it, which is extracted first. Of a corpus ``tfidf`` reads the texts alone, and
            encodes nothing; with an option of encoding (``model=...``) it makes a dataset too,
            which the next runs use.
        out: new folder; by default ``runs/<dataset>-<estimator>`` (``-tfidf`` of texts), and behind
            it the view and columns if they are given.
        view: a stored view, or several to put side by side; by default the last mean. Of words a
            layer, such as ``6``; by default the last one.
        level: ``sentence``: records are labelled, or ``word``: the words of records, which stay
            together in folds, inner folds, intervals and tests.
        label: column of the labels, if it is not the one of the dataset: a kept one, or the values
            themselves, one for each row of the input (``label=frame["stars"]``). A test set
            without a column of that name is predicted, not scored.
        estimator: ``logreg``, ``knn`` or ``lightgbm``, for regression ``ridge``, ``knn`` or
            ``lightgbm``; or any class of scikit-learn or LightGBM with its own default values, such
            as ``sklearn.svm:LinearSVC``. By default ``logreg``, for regression ``ridge``: take it
            first. ``knn`` shows whether labels follow neighbours. ``lightgbm`` is for few columns,
            not for vectors, where it is rarely better: 300 records of 12 classes take it 80 times
            as long as ``logreg``, which takes 0.3 s.
        features: ``vectors``, or ``tfidf`` on the stored texts; of words on the words alone.
        columns: numeric columns of the dataset beside the vectors, such as ``price``: what
            ``extract`` stored with ``keep``, or the columns of a corpus. They are scaled, and
            missing values replaced by the median, both learnt inside the training folds.
        task: {TASKS}: of these
            one classifier is fitted for each (``OneVsRestClassifier``), and those are predicted
            whose probability reaches 0.5; folds are not stratified.
        label_separator: between the classes of a record. An empty label has no class; a record
            without a label (null) is left out.
        split: result or file of ``embedkit split``, or a column that names the folds; ``test`` is
            the test set, and of ``train`` and ``validation`` the latter is held out. Without one a
            split is made.
        folds: number of folds where no split is given.
        test: test set: a dataset made with the same settings, or a corpus.
        threshold: of two classes, the probability from which the second one is predicted: a
            number, or the score to choose it by in inner folds (``macro_f1``, ``f1``, ``f2`` …).
            Take one where classes are uneven and decisions count; probabilities stay as they are,
            and it is no further fit: the inner predictions of ``tune`` serve it.
        tune: choose regularisation in inner folds of the training records. It takes ten times as
            long as a fit without it (0.3 s in place of 0.03 for 300 requests of 12 classes), and
            the log-loss is 0.93 in place of 1.64: leave it on, but for a first look.
        class_weight: ``balanced`` gives every class the same weight, for F scores of rare classes.
            It costs nothing, but probabilities are then those of balanced classes, so that their
            log-loss is worse; a ``threshold`` moves decisions alone.
        seed: of folds, estimators, intervals and a ``sample`` of the corpus.
        overwrite: replace a run.
        progress: called with the number of fits that are done.
        extraction: options of ``extract`` for a corpus (``text="review"``, ``model=...``).

    Returns:
        The folder of the run, and the content of its ``run.json`` (``content.scores``,
        ``content.choices`` …).

    Raises:
        UsageError: a view, label, setting or split cannot be used.
        MismatchError: the split or the test set does not fit the dataset.
        OutputExistsError: the folder exists.

    Example:
        >>> result = embedkit.train("vectors", split="split.parquet", view="cls_6", out="runs/cls")
        >>> result.content.estimator, result.content.views
        ('logreg', ('cls_6',))
    """
    # first: a peak before this call is not this run's
    peak = peak_memory_bytes()
    # names, the folder and the threshold are checked before the corpus is encoded, which may take
    # hours
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    views = (view,) if isinstance(view, str) else tuple(view or ())
    options: dict[str, Any] = {"features": features, "class_weight": class_weight, "seed": seed}
    options |= {"task": task, "views": views, "columns": names, "threshold": threshold}
    settings = EstimatorSettings.of(estimator, tune=tune, level=level, **options)
    out = free_out(out, dataset, settings.method, *views, *names, overwrite=overwrite)
    what = {name: value for name, value in extraction.items() if value is not None}
    what |= {"seed": seed} if "sample" in what else {}
    about: dict[str, Any] = {"label": label, "level": level, "split": split, "view": view}
    about |= {"keep": dict.fromkeys(names, "columns"), "progress": progress}
    units, described, views, lost = _data(dataset, what, features=features, **about)
    method = Frozen(settings._replace(views=views))
    units = _read_by(method.settings, units, fitted=False)
    splitting: dict[str, Any] = {"split": split, "folds": folds, "seed": seed}
    problem = Problem.of(units, task=task, separator=label_separator, **splitting)
    method.check(problem)
    # encoded when all else is known to be right
    if test is not None:
        further = _test_set(test, described, problem, method.settings)
        problem = problem._replace(test=further)
    with new_run(out, overwrite=overwrite) as folder:
        content = method.fit_and_write(
            folder, described, problem, peak_before=peak, progress=progress
        )
    return RunResult(out, content, lost)
