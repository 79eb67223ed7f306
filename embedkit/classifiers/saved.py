"""Fitted pipelines on disk, without pickle.

    RUN/model/pipeline.skops   the scikit-learn pipeline
    RUN/model/linear.safetensors  the same as arrays, of logistic regressions on scaled vectors
    RUN/model/booster.txt      the last step of a LightGBM pipeline, in LightGBM's own text format

Only types that skops trusts, or that a row of the estimators' table names, are ever built.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedkit import fsio
from embedkit.checksums import check_files
from embedkit.classifiers import linear
from embedkit.classifiers.booster_text import check_booster
from embedkit.errors import DamagedError, UsageError, first_line

__all__ = ["load_model", "save_model"]


def save_model(folder: Path, pipeline: Any) -> None:
    """Write a fitted pipeline to the ``model`` folder of a run."""
    from sklearn.pipeline import Pipeline
    from skops.io import dumps

    where = folder / "model"
    fsio.make_folder(where)
    last = pipeline.steps[-1][1]
    if hasattr(last, "booster_"):
        text = last.booster_.model_to_string()
        fsio.write_durably(where / "booster.txt", text.encode(), scratch=folder)
        pipeline = Pipeline([*pipeline.steps[:-1], ("nothing", "passthrough")])
    content = _repeatable(dumps(pipeline))
    fsio.write_durably(where / "pipeline.skops", content, scratch=folder)
    fsio.remove_file(where / linear.FILE)
    if (form := linear.linear_form(pipeline)) is not None:
        linear.write_linear(form, where, scratch=folder)


def _repeatable(content: bytes) -> bytes:
    """A skops file without what differs between two equal pipelines: dates and memory addresses."""
    written, numbers = io.BytesIO(), dict[str, str]()

    def number(match: re.Match[str]) -> str:
        return match[1] + numbers.setdefault(match[2], str(len(numbers)))

    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(written, "w") as new:
        schema = re.sub(r'("__id__": |"file": ")(\d+)', number, old.read("schema.json").decode())
        for name in old.namelist():
            data = schema.encode() if name == "schema.json" else old.read(name)
            new_name = re.sub(r"()^(\d+)", number, name)
            new.writestr(zipfile.ZipInfo(new_name), data, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def load_model(run: Path, *, verify: bool = True) -> Callable[[Any], Any]:
    """Return a function: features → probabilities ``(n, classes)``, or values ``(n,)``.

    With ``verify``, its files are compared with their checksums first.

    Raises:
        DamagedError: a file was changed since, or cannot be read.
        UsageError: it holds types that are never built.
    """
    if verify:
        check_files(run, ["model"], advice="Make the run again.")
    arrays = run / "model" / linear.FILE
    if arrays.is_file():
        return _fitting(linear.read_linear(arrays), arrays)
    return _load_pipeline(run / "model" / "pipeline.skops")


def _load_pipeline(file: Path) -> Callable[[Any], Any]:
    from skops.io import get_untrusted_types, loads

    from embedkit.classifiers.estimators import TABLE

    trusted = sorted({name for row in TABLE.values() for name in row.types})
    try:
        content = file.read_bytes()
        unknown = sorted(set(get_untrusted_types(data=content)) - set(trusted))
        if unknown:
            raise UsageError(f"{file} holds {unknown[0]}, which is never loaded from a file.")
        pipeline = loads(content, trusted=trusted)
        for row in TABLE.values():
            if row.check is not None:
                row.check(pipeline)
    except UsageError:
        raise
    except Exception as error:  # skops raises what its nodes raise
        raise DamagedError(f"{file} cannot be read: {error}.") from error
    booster = file.with_name("booster.txt")
    apply: Callable[[Any], Any] | None = getattr(pipeline, "predict", None)
    if booster.is_file():
        apply = _boosted(pipeline, booster)
    elif hasattr(pipeline, "predict_proba"):
        apply = pipeline.predict_proba
    if apply is None:
        raise DamagedError(f"{file} holds {type(pipeline).__name__}, which predicts nothing.")
    return _fitting(apply, file)


def _fitting(apply: Callable[[Any], Any], file: Path) -> Callable[[Any], Any]:
    """The function, whose errors say that the file holds a model of something else."""

    def call(features: Any) -> Any:
        try:
            return apply(features)
        except Exception as error:  # a model raises what its parts raise
            raise DamagedError(
                f"{file} does not fit the run: {first_line(error)}. Make the run again."
            ) from error

    return call


def _boosted(pipeline: Any, file: Path) -> Callable[[Any], Any]:
    import lightgbm
    import numpy as np

    try:
        text = file.read_text("utf-8")
        check_booster(text)
        booster = lightgbm.Booster(model_str=text)
    except (lightgbm.basic.LightGBMError, OSError, ValueError) as error:
        raise DamagedError(f"{file} cannot be read: {error}.") from error

    def apply(features: Any) -> Any:
        values = np.asarray(booster.predict(pipeline.transform(features)))
        if "\nobjective=binary" in text:  # older releases read no parameters from it
            return np.stack([1 - values, values], axis=1)
        return values

    return apply
