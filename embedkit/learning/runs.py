"""A run on disk: what was fitted on what, its predictions, scores, model and figures.

    RUN/run.json             method, settings, fingerprints, scores, cost, versions
    RUN/predictions.parquet  row, id, fold, y_true, y_pred, proba_<class> …; of held-out records
    RUN/model/               pipeline.skops, booster.txt for LightGBM; of a fine-tuned run fold-0/ …
    RUN/figures/             PNG

Like a dataset, a run appears by one rename when it is complete. A run that takes long keeps what
is finished in ``RUN.incomplete`` and goes on there. Models are read without pickle: only the types
named here are ever built.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit import __version__, fsio
from embedkit.dataset.jobs import difference
from embedkit.display import without_nan
from embedkit.errors import (
    DamagedError,
    EncodeError,
    MismatchError,
    OutputExistsError,
    UsageError,
)

__all__ = ["UNFINISHED", "is_run", "load_model_of", "new_run", "path_from", "read_run",
           "resumable_run", "save_model", "versions", "write_predictions", "write_run"]  # fmt: skip

UNFINISHED = "unfinished"
"""Folder inside of ``RUN.incomplete`` for what only the next attempt needs."""

FORMAT_VERSION = 1

_ALLOWED = (
    "lightgbm.basic.Booster",
    "lightgbm.sklearn.LGBMClassifier",
    "lightgbm.sklearn.LGBMRegressor",
    "collections.OrderedDict",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.metrics._dist_metrics.EuclideanDistance32",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neighbors._kd_tree.KDTree32",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
)
"""Types beyond those that skops trusts by itself; nothing else is ever built from a file."""


@contextmanager
def new_run(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes ``out`` when the block ends without an error.

    Raises:
        OutputExistsError: something is there; with ``overwrite``, something that is no run.
        LockedError: another process is at it.
    """
    check_free(out, overwrite=overwrite)
    work = _incomplete(out)
    if (work / UNFINISHED).is_dir() and not overwrite:
        raise OutputExistsError(
            f"{work} holds an unfinished run of another kind. Finish it with its own command, "
            "choose another --out, or give --overwrite to throw it away."
        )
    fsio.make_folder(work)
    with fsio.exclusive(work):  # first of all: what is in it may be another process at work
        _empty(work)
        yield work
        _publish(work, out)


@contextmanager
def resumable_run(
    out: Path, settings: dict[str, Any], *, overwrite: bool = False, begin: bool = True
) -> Iterator[Path]:
    """As :func:`new_run`, but what an earlier attempt left in the folder is still there.

    ``unfinished/job.json`` in it says what the run is going to be. The folder ``unfinished`` is
    deleted when the run has its final name. Settings that turn out not to work before anything
    is made leave no folder.

    Args:
        out: folder of the run.
        settings: everything that shapes the run, as JSON holds it.
        overwrite: replace a finished run; start an unfinished one over if its settings differ.
        begin: whether a run may be begun; ``False``: only an unfinished one goes on.

    Raises:
        UsageError: there is nothing to go on with.
        OutputExistsError: something is there; with ``overwrite``, something that is no run.
        MismatchError: an unfinished run of other settings is there; the message names them.
        LockedError: another process is at it.
    """
    check_free(out, overwrite=overwrite)
    work = _incomplete(out)
    if not begin and not (work / UNFINISHED).is_dir():
        raise UsageError(
            f"--resume: there is no unfinished run {work}. Leave --resume out to begin one; the "
            "same command goes on by itself where it was interrupted."
        )
    fsio.make_folder(work)
    with fsio.exclusive(work):
        job = work / UNFINISHED / "job.json"
        if any(work.iterdir()):
            _check_job(work, job, settings, overwrite=overwrite)
        fsio.make_folder(job.parent)
        content = json.dumps(settings, ensure_ascii=False, sort_keys=True, indent=1)
        fsio.write_durably(job, content.encode(), scratch=job.parent)
        try:
            yield work
        except (UsageError, EncodeError):  # what they advise is another job: it may begin here
            if [path for path in work.rglob("*") if path.is_file()] == [job]:
                fsio.remove_tree(work)
            raise
        _publish(work, out)
        fsio.remove_tree(out / UNFINISHED)


def _check_job(work: Path, job: Path, settings: dict[str, Any], *, overwrite: bool) -> None:
    """Raise if the folder holds another job; with ``overwrite`` empty it instead."""
    try:
        before = dict(json.loads(job.read_text("utf-8")))
        found = difference(before, json.loads(json.dumps(settings)))
    except (OSError, ValueError, TypeError):  # it was stopped before it had begun
        before, found = {}, "  nothing says what it was going to be"
        if not any(path.is_file() for path in work.rglob("*")):
            return
    if not found:
        return
    if not overwrite:
        raise MismatchError(
            f"{work} was begun with other input, model or settings. Repeat the earlier command to "
            "finish it, choose another --out, or start over with --overwrite. It differs in:\n"
            f"{found}"
        )
    _empty(work)


def _empty(work: Path) -> None:
    for path in work.iterdir():
        fsio.remove_tree(path) if path.is_dir() else fsio.remove_file(path)


def _incomplete(out: Path) -> Path:
    return out.with_name(out.name + ".incomplete")


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raise an :class:`OutputExistsError` if a run cannot be put there."""
    if out.exists() and not (overwrite and is_run(out)):
        advice = "it is not a run of embedkit" if overwrite else "give --overwrite to replace it"
        if not out.is_dir() or any(out.iterdir()):
            raise OutputExistsError(f"{out} is in the way; {advice}, or choose another --out.")


def _publish(work: Path, out: Path) -> None:
    if out.is_dir():
        aside = out.with_name(out.name + ".replaced")
        if is_run(aside):  # left over from a crash; what is under the name itself is whole
            fsio.remove_tree(aside)
        fsio.publish_folder(out, aside)
        fsio.publish_folder(work, out)
        fsio.remove_tree(aside)
    else:
        fsio.publish_folder(work, out)


def is_run(path: Path) -> bool:
    """Whether the folder is a run."""
    return (path / "run.json").is_file()


def write_run(folder: Path, content: dict[str, Any]) -> None:
    """Write ``run.json``, the last file of a run; numbers that JSON cannot write become null."""
    content = {"format_version": FORMAT_VERSION, "command": _command(), **content}
    content = without_nan(content)
    data = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    fsio.write_durably(folder / "run.json", data.encode(), scratch=folder)


def path_from(folder: Path, target: Path) -> str:
    """Where ``target`` is, seen from a run's folder, so that both can be moved together."""
    return os.path.relpath(target.resolve(), folder.resolve())


def _command() -> str | None:
    """The command line that this process was started by; ``None`` if it was not embedkit's."""
    program = Path(sys.argv[0])
    if "embedkit" not in (program.name, program.parent.name):
        return None
    return shlex.join(["embedkit", *sys.argv[1:]])


def read_run(path: Path) -> dict[str, Any]:
    """What ``run.json`` says.

    Raises:
        UsageError: there is no run.
        DamagedError: it cannot be read.
    """
    if not is_run(path):
        unfinished = _incomplete(path)
        advice = "Make one with embedkit train or embedkit finetune."
        if unfinished.is_dir():
            advice = f"It is unfinished ({unfinished}): run the same command again."
        raise UsageError(f"{path} is not a run. {advice}")
    try:
        content = json.loads((path / "run.json").read_text("utf-8"))
        known = content["format_version"] == FORMAT_VERSION and content["kind"] is not None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path}/run.json is damaged: {error}. Make the run again.") from error
    if not known:
        raise UsageError(f"{path} was made by another version of embedkit. Make the run again.")
    return dict(content)


def write_predictions(folder: Path, parts: Sequence[dict[str, Any]]) -> None:
    """Write predictions from columns by name; the same columns give the same bytes."""
    tables = [pa.table(columns) for columns in parts]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.concat_tables(tables, promote_options="default").combine_chunks(), sink,
        compression="zstd", write_page_checksum=True,
    )  # fmt: skip
    file = folder / "predictions.parquet"
    fsio.write_durably(file, memoryview(sink.getvalue()), scratch=folder)


def save_model(folder: Path, pipeline: Any) -> None:
    """Write a fitted pipeline without pickle: skops, and LightGBM's own text for its trees."""
    from sklearn.pipeline import Pipeline
    from skops.io import dumps

    where = folder / "model"
    fsio.make_folder(where)
    learner = pipeline.steps[-1][1]
    if hasattr(learner, "booster_"):
        text = learner.booster_.model_to_string()
        fsio.write_durably(where / "booster.txt", text.encode(), scratch=folder)
        pipeline = Pipeline([*pipeline.steps[:-1], ("nothing", "passthrough")])
    fsio.write_durably(where / "pipeline.skops", dumps(pipeline), scratch=folder)


def load_model_of(path: Path) -> Callable[[Any], Any]:
    """Features → probabilities ``(n, classes)``, or values ``(n,)`` of a regression.

    Raises:
        DamagedError: a file cannot be read.
        UsageError: it holds types that are never built.
    """
    from skops.io import get_untrusted_types, loads

    where = path / "model"
    try:
        content = (where / "pipeline.skops").read_bytes()
        unknown = sorted(set(get_untrusted_types(data=content)) - set(_ALLOWED))
        if unknown:
            raise UsageError(
                f"{where}/pipeline.skops holds {unknown[0]}, which is never loaded from a file."
            )
        pipeline = loads(content, trusted=list(_ALLOWED))
    except UsageError:
        raise
    except Exception as error:  # skops raises what its nodes raise
        raise DamagedError(f"{where}/pipeline.skops cannot be read: {error}.") from error
    booster_file = where / "booster.txt"
    if booster_file.is_file():
        return _boosted(pipeline, booster_file)
    if hasattr(pipeline, "predict_proba"):
        return lambda features: pipeline.predict_proba(features)
    return lambda features: pipeline.predict(features)


def _boosted(pipeline: Any, file: Path) -> Callable[[Any], Any]:
    import lightgbm
    import numpy as np

    try:
        text = file.read_text("utf-8")
        booster = lightgbm.Booster(model_str=text)
    except (lightgbm.basic.LightGBMError, OSError, ValueError) as error:
        raise DamagedError(f"{file} cannot be read: {error}.") from error

    def apply(features: Any) -> Any:
        values = np.asarray(booster.predict(pipeline.transform(features)))
        if "\nobjective=binary" in text:  # older releases read no parameters from it
            return np.stack([1 - values, values], axis=1)
        return values

    return apply


def versions() -> dict[str, str]:
    """Versions of what decides a number."""
    import lightgbm
    import numpy as np
    import sklearn

    return {
        "embedkit": __version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "lightgbm": lightgbm.__version__,
    }
