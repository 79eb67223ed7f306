"""MTEB on any layer, and on all layers by encoding each text once.

    texts ──► encode_views ──► vectors of every view ──┬─► Model(view="mean_0") ──► mteb.evaluate
              (one pass)       kept for one task       ├─► …                        (once for each)
                                                       └─► Model(view="mean_6")

:class:`Model` is what ``mteb.evaluate`` takes for a model. It keeps the vectors of a task, of every
view that it encodes by and at length 1 if the checkpoint's own are: :func:`by_layer` evaluates one
view after the other, and the texts go through the encoder once and not once for each layer. Needs
``pip install 'embedkit[mteb]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedkit.choices import DEFAULT_MODEL
from embedkit.drawing import as_file, check_form
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import parse_view
from embedkit.errors import UsageError
from embedkit.runs.figures import shaded_table
from embedkit.types import Float32

__all__ = ["Model", "by_layer", "draw"]


class Model:
    """A view of an encoder as a model of MTEB, with the checkpoint's prompts.

    Args:
        model: an encoder, or what one is loaded from.
        revision: branch, tag or commit of a hub checkpoint.
        view: such as ``mean_3``, ``cls_-1`` or ``sentence``; by default the checkpoint's vector.
        device: where a checkpoint is loaded.

    Example::

        mteb.evaluate(embedkit.mteb.Model(view="mean_4"), mteb.get_tasks(["STSBenchmark"]))
    """

    def __init__(
        self,
        model: str | Path | Encoder = DEFAULT_MODEL,
        revision: str | None = None,
        *,
        view: str | None = None,
        device: str | None = None,
    ) -> None:
        if not isinstance(model, Encoder):
            model = Encoder(model, revision=revision, device=device or "auto")
        # a view that is named may be one of a checkpoint whose own vector is not computed here
        last_layer = view is None or not model.checkpoint.definition.problem
        pooling, self._unit = model.checkpoint.own_view(last_layer=last_layer)
        default = f"{pooling}_-1" if pooling.has_layer else str(pooling)
        self.encoder, self.task = model, ""
        self.encode_by([view or default])

    def encode_by(self, views: Sequence[str]) -> tuple[str, ...]:
        """Encode by several views from now on, and return their names; the first one is shown."""
        count = self.encoder.n_layers
        self.views = tuple(parse_view(view, n_layers=count).name for view in views)
        # vectors by prefix and text, each of all views; forgotten when the views change
        self.view, self._kept = self.views[0], dict[tuple[str | None, str], dict[str, Float32]]()
        return self.views

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **settings: Any,
    ) -> Float32:
        """Return the vectors ``(n, width)`` of the texts in batches that MTEB makes.

        The prompt is that of the task, its type or the role of the text, if the checkpoint has one.
        Batches are embedkit's own: ``settings`` change nothing.
        """
        from mteb.models.abs_encoder import get_prompt_name

        # the batches of MTEB are taken apart: the encoder makes its own
        texts = [text for batch in inputs for text in batch["text"]]
        prompts = dict(self.encoder.checkpoint.definition.prompts)
        prefix = prompts.get(get_prompt_name(prompts, task_metadata, prompt_type))
        if task_metadata.name != self.task:  # a task repeats its texts, tasks seldom share them
            self.task, self._kept = task_metadata.name, {}
        # the second view of `by_layer` finds all of its texts here
        new = [text for text in dict.fromkeys(texts) if (prefix, text) not in self._kept]
        if new:
            options: Any = {"prefix": prefix, "normalize_embeddings": self._unit}
            vectors = self.encoder.encode_views(new, self.views, **options)
            for number, text in enumerate(new):
                self._kept[prefix, text] = {view: vectors[view][number] for view in self.views}
        return np.stack([self._kept[prefix, text][self.view] for text in texts])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities ``(n, m)`` of all pairs, as the checkpoint defines them."""
        return torch.from_numpy(self.encoder.similarity(embeddings1, embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities ``(n,)`` of pairs."""
        # of 64 rows and 64 the diagonal: one call for each pair takes longer than all products
        blocks = (slice(start, start + 64) for start in range(0, len(embeddings1), 64))
        similar = self.encoder.similarity
        diagonals = [np.diag(similar(embeddings1[rows], embeddings2[rows])) for rows in blocks]
        return torch.from_numpy(np.concatenate(diagonals))

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB writes beside results: name, revision, and the view as an experiment."""
        from mteb.models import ModelMeta

        checkpoint, name = self.encoder.checkpoint, self.encoder.checkpoint.name
        metadata = {
            # MTEB asks for owner/name, which a folder has not
            "name": name if name.count("/") == 1 else f"local/{Path(name).name}",
            "revision": checkpoint.revision or "local",
            "embed_dim": self.encoder.width,
            "max_tokens": self.encoder.max_length,
            "framework": ["PyTorch"],
            "similarity_fn_name": checkpoint.definition.similarity,
            "experiment_kwargs": {"view": self.view},
        }
        return ModelMeta.create_empty(metadata)


def by_layer(
    tasks: Iterable[Any], model: str | Path | Encoder = DEFAULT_MODEL, *, views: Sequence[str] = ()
) -> Any:
    """Return the main score of every task for every view as a pandas table, tasks in rows.

    Args:
        tasks: tasks of ``mteb.get_tasks``, or your own whose ``load_data`` reads local files.
        model: an encoder, or what one is loaded from.
        views: by default every layer in the checkpoint's own pooling.

    Raises:
        UsageError: ``mteb`` is not installed, or there is no such view.

    Example::

        scores = embedkit.mteb.by_layer(mteb.get_tasks(["STS12", "Banking77Classification"]))
        embedkit.mteb.draw(scores, "layers.svg")
    """
    try:
        import mteb
    except ImportError as error:
        raise UsageError("embedkit.mteb needs mteb: pip install 'embedkit[mteb]'.") from error
    import pandas as pd
    from threadpoolctl import ThreadpoolController

    # MTEB's ten classifiers a view are so small that two threads take four times as long as one;
    # NumPy and SciPy fit with OpenBLAS, torch does not use it and encodes with all of its threads
    openblas = ThreadpoolController().select(internal_api="openblas")
    encoder = model if isinstance(model, Encoder) else Encoder(model)
    pooling = encoder.checkpoint.definition.pooling
    # layer 0 are the embeddings before the first block, so there is one more than blocks
    views = views or [f"{pooling}_{i}" for i in range(encoder.n_layers + 1)]
    shared = Model(encoder, view=views[0])
    names = shared.encode_by(views)
    scores: dict[str, dict[str, float]] = {}
    # tasks outside, views inside: only the vectors of one task are kept
    for task in tasks:
        scores[task.metadata.name] = {}
        task.load_data()
        if hasattr(task, "dataset"):
            task.dataset = _with_lists(task.dataset)
        for view in names:
            shared.view = view
            # without its cache, which would answer with results of earlier runs
            with openblas.limit(limits=1):
                result = mteb.evaluate(
                    shared, task, cache=None, co2_tracker=False, show_progress_bar=False
                )
            scores[task.metadata.name][view] = float(result.task_results[0].get_score())
    return pd.DataFrame.from_dict(scores, orient="index")


def _with_lists(data: Any) -> Any:
    """The data of a task, whose columns are lists, as they were before version 4 of ``datasets``.

    A lazy column reads its rows one by one, each time that somebody looks at it. The labels of a
    classification are looked at some hundred times for each view, which took twenty times as long
    as to fit and score its classifiers. The values are the same.
    """
    from datasets import Dataset

    class Listed(Dataset):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            values = super().__getitem__(key)
            # of rows it is a dict or a list already
            return values[:] if isinstance(key, str) else values

        def select(self, *rows: Any, **options: Any) -> Any:
            return _listed(super().select(*rows, **options))

    def _listed(table: Any) -> Any:
        table = copy(table)
        table.__class__ = Listed  # the same rows; nothing else is told apart by the class
        return table

    if isinstance(data, Mapping):  # by language, by split
        return {name: _with_lists(part) for name, part in data.items()}
    return _listed(data) if type(data) is Dataset else data


def draw(scores: Any, file: str | Path, *, title: str = "Layers by task") -> None:
    """Draw a table of :func:`by_layer` as ``.svg``, ``.pdf`` or ``.png``, a row for each task.

    In per cent; each row is shaded from its least to its most, which is bold.
    """
    columns = {
        view: {task: (value, f"{100 * value:.1f}") for task, value in column.items()}
        for view, column in scores.to_dict().items()
    }
    kind = Path(file).suffix.lower().lstrip(".")
    check_form(file=kind)
    scene = shaded_table(title, list(scores.index), columns, across=True)
    Path(file).write_bytes(as_file(scene, kind))
