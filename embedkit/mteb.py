"""MTEB on any layer, and on all layers by encoding each text once.

    texts ──► encode_views ──► vectors of every view ──┬─► Model(view="mean_0") ──► mteb.evaluate
              (one pass)       kept for one task       ├─► …                        (once for each)
                                                       └─► Model(view="mean_6")

:class:`Model` is what ``mteb.evaluate`` takes for a model. :func:`by_layer` evaluates one for each
view, all on the same store of vectors, so that the texts of a task go through the encoder once and
not once for each layer. Needs ``pip install 'embedkit[mteb]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.choices import DEFAULT_MODEL
from embedkit.drawing import as_file
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import l2_normalize, parse_view
from embedkit.errors import UsageError
from embedkit.runs.figures import shaded_table
from embedkit.types import Float32

__all__ = ["Model", "by_layer", "draw"]


class _Store:
    """Vectors of some views for all texts of a task, each text encoded once.

    They have length 1 if the checkpoint's own vectors do.
    """

    def __init__(self, encoder: Encoder, views: Sequence[str]) -> None:
        self.encoder, self.task = encoder, ""
        self.views = [parse_view(view, n_layers=encoder.n_layers).name for view in views]
        _, self._unit = encoder.checkpoint.own_view(last_layer=True)

    def of(self, view: str, texts: Sequence[str], *, prefix: str | None, task: str) -> Float32:
        """Return the vectors ``(n, width)`` of texts; those of another task are dropped."""
        if task != self.task:
            self.task, self._rows = task, dict[tuple[str | None, str], int]()
            self._vectors = dict[str, Float32]()
        new = [text for text in dict.fromkeys(texts) if (prefix, text) not in self._rows]
        if new:
            unit = self._unit
            made = self.encoder.encode_views(
                new, self.views, prefix=prefix, normalize_embeddings=unit
            )
            for name, vectors in made.items():
                before = [self._vectors[name]] if name in self._vectors else []
                self._vectors[name] = np.concatenate([*before, vectors])
            self._rows |= {(prefix, text): len(self._rows) + i for i, text in enumerate(new)}
        return self._vectors[view][[self._rows[prefix, text] for text in texts]]


class Model:
    """A view of an encoder as a model of MTEB, with the checkpoint's prompts.

    Args:
        model: an encoder, or what one is loaded from.
        revision: branch, tag or commit of a hub checkpoint.
        view: such as ``mean_3``, ``cls_-1`` or ``sentence``; by default the checkpoint's vector.
        device: where a checkpoint is loaded.
        store: vectors that other models share.

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
        store: _Store | None = None,
    ) -> None:
        if not isinstance(model, Encoder):
            model = Encoder(model, revision=revision, device=device or "auto")
        self.encoder = model
        self._store = store or _Store(model, [view or _own_view(model)])
        self.view = self._store.views[0] if view is None or store is None else view

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

        texts = [text for batch in inputs for text in batch["text"]]
        prompts = self.encoder.checkpoint.definition.prompts
        name = get_prompt_name(dict(prompts), task_metadata, prompt_type)
        prefix = None if name is None else prompts[name]
        return self._store.of(self.view, texts, prefix=prefix, task=task_metadata.name)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities ``(n, m)`` of all pairs, as the checkpoint defines them."""
        import torch

        return torch.from_numpy(self.encoder.similarity(embeddings1, embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarities ``(n,)`` of pairs."""
        import torch

        a, b = (np.asarray(vectors, np.float32) for vectors in (embeddings1, embeddings2))
        kind = self.encoder.checkpoint.definition.similarity
        if kind in ("euclidean", "manhattan"):
            power = 2 if kind == "euclidean" else 1
            return torch.from_numpy(-np.linalg.norm(a - b, ord=power, axis=1))
        if kind != "dot":
            a, b = l2_normalize(a), l2_normalize(b)
        return torch.from_numpy((a * b).sum(1))

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB writes beside results: name, revision, and the view as an experiment."""
        from mteb.models import ModelMeta

        checkpoint = self.encoder.checkpoint
        kind = {"dot": "dot", "euclidean": "euclidean", "manhattan": "manhattan"}
        known = {
            "name": checkpoint.name if "/" in checkpoint.name else f"embedkit/{checkpoint.name}",
            "revision": checkpoint.revision or "local",
            "embed_dim": self.encoder.width_of(
                parse_view(self.view, n_layers=self.encoder.n_layers)
            ),
            "max_tokens": self.encoder.max_length,
            "framework": ["PyTorch"],
            "similarity_fn_name": kind.get(checkpoint.definition.similarity, "cosine"),
            "use_instructions": bool(checkpoint.definition.prompts),
            "experiment_kwargs": {"view": self.view},
        }
        return ModelMeta.create_empty(known)


def _own_view(encoder: Encoder) -> str:
    """The view of the checkpoint's own vector."""
    pooling, _ = encoder.checkpoint.own_view(last_layer=True)
    return f"{pooling}_-1" if pooling.has_layer else str(pooling)


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

    encoder = model if isinstance(model, Encoder) else Encoder(model)
    if not views:
        pooling = encoder.checkpoint.definition.pooling
        views = [f"{pooling}_{layer}" for layer in range(encoder.n_layers + 1)]
    store = _Store(encoder, views)
    scores: dict[str, dict[str, float]] = {}
    for task in tasks:
        scores[task.metadata.name] = {}
        for view in store.views:
            found = mteb.evaluate(
                Model(encoder, view=view, store=store),
                task,
                cache=None,
                co2_tracker=False,
                show_progress_bar=False,
            )
            scores[task.metadata.name][view] = float(found.task_results[0].get_score())
    return pd.DataFrame.from_dict(scores, orient="index")


def draw(scores: Any, file: str | Path, *, title: str = "Layers by task") -> None:
    """Draw a table of :func:`by_layer`, a column for each task, as ``.svg``, ``.pdf`` or ``.png``.

    Each column is shaded from its least to its most.
    """
    columns = {
        task: {view: (value, f"{100 * value:.1f}") for view, value in row.items()}
        for task, row in scores.to_dict(orient="index").items()
    }
    scene = shaded_table(title, "view", list(scores.columns), columns)
    Path(file).write_bytes(as_file(scene, Path(file).suffix.lstrip(".")))
