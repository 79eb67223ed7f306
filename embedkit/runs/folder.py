"""A run on disk: settings, predictions, scores, model and figures.

    RUN/run.json             settings, fingerprints, scores, cost, versions (:mod:`.run`)
    RUN/predictions.parquet  predictions of held-out records (:mod:`.predictions`)
    RUN/model/               the fitted pipeline; of a fine-tuned run fold-0/ …
    RUN/figures/             SVG
    RUN/SHA256SUMS           of every file

Output is atomic: a run is written to ``RUN.incomplete`` and renamed when complete. A long run keeps
finished folds there, and the same call resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.corpus.memory import CorpusLike, paths_of, stem_of
from embedkit.corpus.plan import spans_of
from embedkit.corpus.readers import READERS
from embedkit.dataset.format import Names, is_dataset, local_dataset
from embedkit.dataset.info import DatasetInfo, describe_dataset
from embedkit.dataset.read import VectorData
from embedkit.dataset.settings import ModelRecord, difference, unlike
from embedkit.display import TYPED, ShownFolder
from embedkit.errors import (
    OVERWRITE,
    EncodeError,
    MismatchError,
    ModelError,
    Option,
    OutputExistsError,
    UsageError,
)
from embedkit.machine import __version__
from embedkit.records import canonical_json, from_json, read_json, to_json
from embedkit.remote import address_of
from embedkit.runs.cross_validation import Problem
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions, write_predictions
from embedkit.runs.run import FORMAT_VERSION, KINDS, DatasetContent, PredictionRun, Run
from embedkit.runs.scores import class_scores, reported_scores
from embedkit.runs.split import write_split
from embedkit.types import AnyPath
from embedkit.units.units import Units, reading_of

if TYPE_CHECKING:  # these take seconds to import
    import pandas as pd

    from embedkit.encoding.model import ModelInfo

_ADVICE = "Make the run again."
_Predicted = TypeVar("_Predicted", bound=PredictionRun)


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(ShownFolder, Generic[_Predicted]):
    """A finished run: folder, content of ``run.json``, and number of rejected records."""

    out: Path
    content: _Predicted
    rejected: int = 0

    def __repr__(self) -> str:
        kind, _, score = repr(self.content).partition(":")
        return f"{kind} {self.out}:{score}"

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of its scores."""
        return self.content.as_rows()

    def to_frame(self) -> pd.DataFrame:
        """Return its scores as a pandas table; of a probe a row for each view and combination."""
        return self.content.to_frame()


def free_out(
    out: str | Path | None, source: CorpusLike = (), *names: str, overwrite: bool = False
) -> Path:
    """Return the folder of a run, once it is known that it can be written.

    By default it is ``runs/corpus-logreg``, for a corpus or dataset and the names of its settings.
    An :class:`OutputExistsError` if something else is there, or a run that is not to be replaced.
    """
    if out is None:
        # a table in memory has the name of its type, such as dataframe
        paths = paths_of(source)
        # the folder that the command runs in has no name as it is given
        stem = stem_of(paths[0]) or Path.cwd().name if paths else type(source).__name__.lower()
        stem = "input" if stem == "-" else stem
        out = Path("runs", "-".join([stem, *(re.sub(r"[^\w.]+", "_", name) for name in names)]))
    out = Path(out)
    # a crash between the two renames of a replacement leaves no folder of this name: that is
    # completed before it is judged
    storage.finish_swap(out, is_run)
    if out.exists() and not (overwrite and is_run(out)):
        replaced = f"pass {OVERWRITE} to replace it, or"
        advice = replaced if is_run(out) else "it is not a run of embedkit:"
        # an empty folder, as mktemp makes it, is no obstacle
        if not out.is_dir() or any(out.iterdir()):
            raise OutputExistsError(f"{out} exists; {advice} choose another {Option('out')}.")
    storage.check_place(out)
    return out


def new_run(out: Path, *, overwrite: bool = False) -> AbstractContextManager[Path]:
    """A folder to fill, which becomes ``out`` when the block ends without an error."""
    free = partial(free_out, out, overwrite=overwrite)
    return storage.new_folder(out, free=free, overwrite=overwrite)


@contextmanager
def resumable_run(
    out: Path, settings: dict[str, Any], *, overwrite: bool = False
) -> Iterator[Path]:
    """A folder as in :func:`new_run`, with the content that an earlier attempt left.

    ``_unfinished/job.json`` in it holds the settings: everything that shapes the run, as JSON. The
    folder ``_unfinished`` is deleted when the run has its final name. Settings that fail before a
    file is written leave no folder. ``overwrite`` also discards an unfinished run with other
    settings.
    """
    work = storage.incomplete(out)
    job = work / storage.UNFINISHED / "job.json"

    def write_job(work: Path) -> None:
        # called when the folder is locked, so that no other process is writing what is compared
        # here
        if any(work.iterdir()) and (differences := _other_settings(work, job, settings)):
            if not overwrite:
                raise MismatchError(
                    f"{work} is an unfinished run. Repeat its command, choose another "
                    f"{Option('out')}, or pass {OVERWRITE}. It differs in:\n{differences}"
                )
            storage.empty_folder(work)
        storage.make_folder(job.parent)
        storage.write_durably(job, canonical_json(settings))

    with storage.new_folder(out, free=lambda: free_out(out, overwrite=overwrite), begin=write_job):
        try:
            yield work
        except (UsageError, EncodeError):  # their advice is another job, which may begin here
            # nothing but the settings was written: left behind, they would refuse the corrected
            # call
            if [path for path in work.rglob("*") if path.is_file()] == [job]:
                storage.remove(work)
            raise


def _other_settings(work: Path, job: Path, settings: dict[str, Any]) -> str:
    """Settings in which the job in a folder differs; empty for the same one, or for none."""
    try:
        before = dict(json.loads(job.read_text("utf-8")))
        # through JSON as the other one went: tuples are lists on both sides
        return difference(before, json.loads(json.dumps(settings)))
    except (OSError, ValueError, TypeError):  # stopped before the settings were written
        filled = any(path.is_file() for path in work.rglob("*"))
        return "  its settings are unknown" if filled else ""


def is_run(path: Path) -> bool:
    """Return whether the folder is a run."""
    return (path / "run.json").is_file()


def write_run(folder: Path, content: Run) -> None:
    """Write ``run.json``, the last file of a run; numbers that JSON cannot write become null."""
    # a script or a notebook has no command line that would make this run
    if typed := TYPED.get():
        # without --overwrite, so that pasting the command deletes nothing
        words = (storage.without_secrets(w) for w in typed.words if w != "--overwrite")
        content = replace(content, command=shlex.join(["embedkit", *words]))
    data = to_json(content) + b"\n"
    storage.write_durably(folder / "run.json", data)


def write_results(
    folder: Path,
    kind: type[_Predicted],
    problem: Problem,
    predictions: Predictions,
    *,
    dataset: DatasetContent,
    decision: Threshold | None,
    libraries: Mapping[str, str] | None = None,
    **content: Any,
) -> _Predicted:
    """Write predictions, split, figures and ``run.json`` with the scores.

    ``content`` are further fields of it, of a probe with the only score that it has.
    """
    from embedkit.runs.figures import draw_run

    write_predictions(folder, predictions)
    write_split(problem.split, folder / "split.parquet")
    if "scores" not in content:
        beta = decision.beta if decision else None
        content["scores"] = reported_scores(predictions, beta=beta, prior=problem.prior)
        content["per_class"] = class_scores(predictions)
    test, source = problem.test, Path(problem.units.name).resolve()
    # relative, so that runs and datasets can be moved together; a DataFrame has no path
    path = os.path.relpath(source, folder.resolve()) if source.exists() else ""
    run = kind(
        dataset=replace(dataset, path=path),
        level=problem.units.level,
        label=problem.units.reading["label"],
        classes=predictions.classes,
        prior=problem.prior,
        threshold_metric=decision.metric if decision else None,
        split=problem.split.record,
        records={"folds": len(predictions.out_of_fold), "test": len(predictions.test)},
        test_set=test.content if test else None,
        versions=versions() | dict(libraries or {}),
        **content,
    )
    draw_run(folder, run, predictions)
    write_run(folder, run)
    return run


def read_run(path: Path) -> Run:
    """Read ``run.json``; errors name its field."""
    file = path / "run.json"
    if not is_run(path):
        unfinished = storage.incomplete(path)
        advice = "Make one with embedkit train or embedkit finetune."
        if is_dataset(path):
            advice = f"It is a dataset: make one with embedkit train {shlex.quote(str(path))}."
        elif address_of(path):
            advice = "Runs are read from folders of this machine: copy it first."
        elif not path.exists():
            advice = "It does not exist."
        if unfinished.is_dir():
            advice = f"It is unfinished ({unfinished}): run the same command again."
        raise UsageError(f"{path} is not a run. {advice}")
    storage.check_files(path, ["run.json"], advice=_ADVICE)
    data = read_json(file, advice=_ADVICE)
    # the fields depend on kind and version, so that these are read first: a file of another version
    # is not damaged
    head = from_json(Run, data, file=file, advice=_ADVICE)
    if head.format_version != FORMAT_VERSION or head.kind not in KINDS:
        raise UsageError(f"{path} was made by another version of embedkit. {_ADVICE}")
    return from_json(KINDS[head.kind], data, file=file, advice=_ADVICE)


@accepts()
def info(what: AnyPath) -> Run | DatasetInfo | ModelInfo:
    """Return the description of a run, a dataset or a checkpoint.

    Args:
        what: folder that ``train``, ``probe``, ``finetune`` or ``similarity`` wrote: the content of
            its ``run.json``; a dataset: its manifest, tables and the health of its views; or hub id
            or folder of a checkpoint: its modules and sizes.

    Raises:
        UsageError: it is a file.
        ModelError: there is no such folder, and no such checkpoint.

    >>> embedkit.info("vectors").manifest.totals.accepted
    12
    """
    path = local_dataset(what)
    if path.is_file():
        raise UsageError(f"{what} is a file. Give the folder of a dataset, a run or a checkpoint.")
    if is_run(path):
        return read_run(path)
    unfinished = not path.is_dir() and storage.incomplete(path).is_dir()
    if unfinished or (path.is_dir() and not (path / "config.json").is_file()):
        return describe_dataset(path)
    from embedkit.encoding.model import describe_model

    try:
        return describe_model(os.fspath(what))
    except ModelError as error:
        if path.is_dir():
            raise
        problem = f"{path} is neither a dataset nor a run. As a checkpoint: {error.problem}"
        raise ModelError(problem) from error


def versions() -> dict[str, str]:
    """Versions of what decides a number, of what is installed."""
    libraries = {"embedkit": __version__}
    for name in ("numpy", "scikit-learn", "lightgbm"):
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return libraries


def corpus_content(
    units: Units, names: Names | None = None, model: ModelRecord | None = None
) -> DatasetContent:
    """Return the record of a corpus, or of the texts of a dataset, for ``run.json``."""
    # file contents and how they were read, not the path of the file
    shaping = json.dumps({"source": units.source, "reading": units.reading}, sort_keys=True)
    return DatasetContent(
        fingerprint=hashlib.sha256(shaping.encode()).hexdigest(),
        source=units.source,
        model=model,
        names=names or Names(inputs=(units.name,), model="", model_source="", revision=None),
        pairs=units.pairs,
        reading=units.reading,
        rejected=units.rejected,
        marked_words=READERS[units.reading["dialect"]["format"]].marks_words,
    )


def dataset_content(data: VectorData) -> DatasetContent:
    """Return the record of a dataset for ``run.json``."""
    manifest, job = data.manifest, data.manifest.job
    return DatasetContent(
        fingerprint=manifest.fingerprint,
        source=manifest.source,
        model=job.model,
        names=manifest.names,
        pairs=job.input.text_pair is not None,
        vectors=job.vectors,
        storage=job.storage.profile,
        reading=reading_of(job.input),
        fold_models=job.folds is not None,
        marked_words=READERS[job.input.format].marks_words,
    )


def check_alike(data: VectorData, expected: DatasetContent, *, name: str, vectors: bool) -> None:
    """Check that a model which was fitted on ``expected`` can be applied to the dataset ``name``.

    Vectors of another model, or of other settings, would give predictions that look like any.
    Without ``vectors`` the model reads texts, whose vectors do not matter. A
    :class:`MismatchError` names the settings that differ.
    """
    content, differences = dataset_content(data), list[str]()
    checks: list[tuple[str, Any, Any]] = [("pairs", content.pairs, expected.pairs)]
    if data.level == "word":
        checks.append(("spans", spans_of(content.reading), spans_of(expected.reading)))
    if vectors:
        ours, theirs = content.vector_settings, expected.vector_settings
        differences = ours.differences(theirs)
        checks += [("words", ours.words, theirs.words)] if data.level == "word" else []
    differences += unlike(checks)
    if differences:
        raise MismatchError(
            f"{name} does not fit the data of the model: {'; '.join(differences[:4])}. Extract it "
            "with the same settings, or give the corpus file itself."
        )
