"""Where runs that are compared did not see the same input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedkit.comparison.load import LoadedProbe, LoadedRun
from embedkit.runs.content import FinetuneRun, PredictionRun, ProbeRun

__all__ = ["InputDifference", "input_differences"]

_SPECIAL = {True: "include", False: "exclude"}


@dataclass(frozen=True, slots=True)
class InputDifference:
    """A setting of the input that is not the same in all runs.

    Attributes:
        setting: its name: ``model``, ``prefix``, ``max_length``, ``on_long``, ``stride``,
            ``special_tokens`` or ``unicode``.
        runs: names of the runs by value; a run that has no such setting, such as one on TF-IDF, is
            left out.
    """

    setting: str
    runs: dict[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """The difference as a sentence."""
        parts = [f"{value} in {', '.join(names)}" for value, names in self.runs.items()]
        return f"{self.setting}: {'; '.join(parts)}"


def input_differences(runs: Sequence[LoadedRun | LoadedProbe]) -> tuple[InputDifference, ...]:
    """Return the settings of the input in which runs differ.

    Frozen vectors and a fine-tuned encoder are compared fairly only if both read the same tokens.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for setting, value in _settings(run.content).items():
            found.setdefault(setting, {}).setdefault(value, []).append(run.name)
    return tuple(
        InputDifference(setting, {value: tuple(names) for value, names in values.items()})
        for setting, values in found.items()
        if len(values) > 1
    )


def _settings(content: PredictionRun | ProbeRun) -> Mapping[str, str]:
    """What shaped the input of a run: name of each setting and its value as text."""
    dataset = content.dataset
    settings = {"unicode": dataset.unicode}
    if isinstance(content, PredictionRun) and content.features == "tfidf":
        return settings  # the whole text, without an encoder
    files = json.dumps(sorted(dataset.model.sha256.items())).encode()
    digest = hashlib.sha256(files).hexdigest()
    settings["model"] = f"{dataset.names.model} (files {digest[:8]})"
    if isinstance(content, FinetuneRun):
        tokens = content.tokens
        read = (tokens.prefix, tokens.max_length, tokens.on_long, tokens.stride, True)
    elif dataset.vectors is not None:
        vectors = dataset.vectors
        read = (vectors.prefix, vectors.max_length, vectors.on_long, vectors.stride,
                vectors.special_tokens)  # fmt: skip
    else:
        return settings
    prefix, max_length, on_long, stride, special = read
    settings |= {"prefix": repr(prefix), "max_length": str(max_length), "on_long": on_long}
    if on_long == "window":
        settings["stride"] = str(stride)
    return settings | {"special_tokens": _SPECIAL[special]}
