"""What a probe's score is compared with: a control task, and encoders that were never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embedkit.dataset.record_keys import records_of_words, stored_texts, word_spans_of
from embedkit.dataset.store import VectorData
from embedkit.dataset.vector_settings import DatasetEncoder
from embedkit.errors import UsageError
from embedkit.runs.split_files import Split
from embedkit.runs.targets import Target
from embedkit.types import Float32

__all__ = ["control_task", "encode_at_random", "linear_cka"]


def control_task(
    target: Target, split: Split, seed: int, *, words: Sequence[str] | None = None
) -> Target:
    """Return the target of a control task: random labels, the same one for the same text.

    Hewitt & Liang (2019), "Designing and Interpreting Probes with Control Tasks". Every group (the
    records of one text, or of one value of the group column) takes the label of a randomly chosen
    record, so that the labels keep their distribution and tell nothing but which text it is. The
    score of a probe minus its score on the control task is its selectivity.

    Args:
        target: what is predicted.
        split: its groups, and the records in folds, which the labels are taken from.
        seed: of the labels.
        words: ``n`` words as written, where words are predicted: a word has the same label in every
            sentence.
    """
    random = np.random.default_rng(seed)
    index = split.in_folds
    kinds = split.group if words is None else np.array(words, np.str_)
    _, first, group = np.unique(kinds[index], return_index=True, return_inverse=True)
    y = target.y.copy()
    y[index] = random.permutation(target.y[index][first])[group]
    return Target(y, target.classes)


def encode_at_random(data: VectorData, names: Sequence[str], seed: int) -> dict[str, Float32]:
    """Return views of the stored texts by the same architecture with freshly initialised tensors.

    Args:
        data: the dataset, of records or of words.
        names: of stored views or layers; the pooler is left out.
        seed: of the weights.

    Raises:
        UsageError: the dataset stores no texts, or has pairs.
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.model import PlainModel

    texts = stored_texts(records_of_words(data))
    if texts is None or data.manifest.job.input.text_pair:
        raise UsageError(
            "control='random-weights' encodes the stored texts again, and this dataset has none "
            "or has pairs."
        )
    made, vectors = data.manifest.names, data.manifest.vector_settings
    encoder = Encoder.load(
        made.model, revision=made.revision, max_length=vectors.max_length, precision="fp32",
        forward="transformers",
    )  # fmt: skip
    assert isinstance(encoder.model, PlainModel)
    randomize(encoder.model.module, seed)
    wanted = [name for name in names if name != "pooler"]
    encode = DatasetEncoder(encoder, vectors, wanted)
    if data.level == "sentence":
        return encode.views(texts)
    found = encode.words(texts, spans=word_spans_of(data))
    return {f"layer_{name}": layer for name, layer in found.vectors.items()}


def randomize(module: Any, seed: int) -> None:
    """Replace every tensor of a transformers model by those of a newly initialised one."""
    import torch

    torch.manual_seed(seed)
    fresh = type(module)(module.config).to(next(module.parameters()).dtype)
    missing = module.load_state_dict(fresh.state_dict(), strict=False).missing_keys
    if missing:
        raise RuntimeError(f"{missing[0]} would keep its trained values")


def linear_cka(views: Sequence[Float32]) -> Float32:
    """Return the similarity of views by linear centred kernel alignment, ``(views, views)``.

    Kornblith et al. (2019), "Similarity of Neural Network Representations Revisited": 1 for views
    that differ by a rotation and a factor, about 0 for unrelated ones.

    Args:
        views: each ``(n, width)``; the widths may differ.

    >>> X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    >>> linear_cka([X, 2 * X[:, ::-1]]).round(4).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    centred = [X - X.mean(0) for X in views]
    scaled = [X / (np.linalg.norm(X.T @ X) ** 0.5 or 1) for X in centred]
    found = np.eye(len(views), dtype=np.float32)
    for i, X in enumerate(scaled):
        for j in range(i):
            found[i, j] = found[j, i] = np.linalg.norm(X.T @ scaled[j]) ** 2
    return found
