"""What a run knows of the dataset that it was made from, and which datasets are alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedkit.dataset.record_keys import source_of, whole_text
from embedkit.dataset.store import VectorData
from embedkit.errors import MismatchError
from embedkit.runs.content import DatasetContent, Names
from embedkit.runs.folder import path_from

__all__ = ["check_alike", "dataset_content", "joined_pairs"]


def dataset_content(data: VectorData, folder: Path | None = None) -> DatasetContent:
    """Return what shaped the vectors of a dataset, as ``run.json`` keeps it.

    Args:
        data: the dataset.
        folder: of the run, from which the dataset's path is given.
    """
    manifest = data.manifest
    job, names = manifest.job, manifest.names
    return DatasetContent(
        fingerprint=manifest.fingerprint,
        source=source_of(data),
        path="" if folder is None else path_from(folder, data.path),
        model=job.model,
        names=Names(model=names.model, revision=names.revision, inputs=names.inputs),
        unicode=job.input.unicode,
        pairs=job.input.text_pair is not None,
        vectors=job.vectors,
        storage=job.storage.profile,
    )


def check_alike(
    made: DatasetContent, expected: DatasetContent, *, name: str, vectors: bool = True
) -> None:
    """Check that a model which was fitted on one dataset can be applied to another.

    Args:
        made: how the dataset was made.
        expected: how the other one was made.
        name: of the dataset, for messages.
        vectors: the model reads vectors; without, only what shapes a text is compared.

    Raises:
        MismatchError: something that shapes a vector differs; it is named with both values.
    """
    differences = [
        f"{key} is {getattr(made, key)!r}, expected {getattr(expected, key)!r}"
        for key in (("pairs",) if vectors else ("pairs", "unicode"))
        if getattr(made, key) != getattr(expected, key)
    ]
    if vectors:
        differences += made.vector_settings.differences(expected.vector_settings)
    if differences:
        raise MismatchError(
            f"{name} was made with other settings than the data that the model was fitted on: "
            f"{'; '.join(differences[:4])}. Extract it again with the same settings, or give "
            "the corpus file itself."
        )


def joined_pairs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Return texts as TF-IDF reads them: those of a pair joined by a space."""
    seconds: Sequence[str | None] = pairs or [None] * len(texts)
    return [whole_text(a, b, separator=" ") for a, b in zip(texts, seconds, strict=True)]
