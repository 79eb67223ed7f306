"""What embedkit is measured against. Each turns texts into mean vectors of the last layer."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit.encoding.encoder import Encoder

__all__ = ["peers"]

Floats = NDArray[np.float32]
Peer = Callable[[Sequence[str], int], Floats]

_BATCHES = (16, 32, 64, 128)


def peers(encoder: Encoder, texts: Sequence[str]) -> dict[str, Callable[[], Floats]]:
    """Every peer that is installed, at its default and at its best batch size for these texts.

    Args:
        encoder: its checkpoint and ``max_length`` are used by all.
        texts: what they will be measured on; the best batch size is looked for on a part.
    """
    folder, length = str(encoder.checkpoint.folder), encoder.max_length
    found: dict[str, Callable[[], Floats]] = {}
    sentence = _sentence_transformers(folder, length)
    found["sentence-transformers, default (batch 32)"] = lambda: sentence(texts, 32)
    sample = texts[:: max(len(texts) // 400, 1)]
    contenders = {
        "sentence-transformers": sentence,
        "transformers pipeline": _pipeline(folder, length),
        "transformers, sorted by length": _sorted(folder, length),
        "ONNX Runtime, sorted by length": _onnx(folder, length),
    }
    for name, peer in contenders.items():
        if peer is None:
            continue
        best = _best_batch(peer, sample)
        found[f"{name}, best batch ({best})"] = lambda peer=peer, best=best: peer(texts, best)  # type: ignore[misc]
    return found


def _best_batch(peer: Peer, texts: Sequence[str]) -> int:
    seconds = {}
    peer(texts[:50], 16)
    for batch in _BATCHES:
        times = []
        for _ in range(2):
            started = time.perf_counter()
            peer(texts, batch)
            times.append(time.perf_counter() - started)
        seconds[batch] = min(times)
    return min(seconds, key=lambda batch: seconds[batch])


def _sentence_transformers(folder: str, length: int) -> Peer:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(folder, max_seq_length=length)
    width = int(body.get_embedding_dimension())
    model = SentenceTransformer(modules=[body, Pooling(width)], device="cpu")
    return lambda texts, batch: np.asarray(model.encode(list(texts), batch_size=batch))


def _pipeline(folder: str, length: int) -> Peer:
    from transformers import pipeline

    pipe: Any = pipeline("feature-extraction", model=folder, device="cpu")
    options = {"truncation": True, "max_length": length}

    def run(texts: Sequence[str], batch: int) -> Floats:
        found = pipe(list(texts), batch_size=batch, return_tensors=True, tokenize_kwargs=options)
        return np.stack([tokens[0].mean(0).numpy() for tokens in found])

    return run


def _in_order_of_length(
    tokenizer: Any, texts: Sequence[str], length: int, batch: int, forward: Callable[..., Any]
) -> Floats:
    """Batches of similar length, padded to their longest; means over the tokens."""
    encoded = tokenizer(list(texts), truncation=True, max_length=length)
    order = sorted(range(len(texts)), key=lambda i: -len(encoded["input_ids"][i]))
    result: list[Any] = [None] * len(texts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        part = {name: [encoded[name][i] for i in chosen] for name in encoded}
        inputs = tokenizer.pad(part, return_tensors="pt")
        hidden = forward(inputs)
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        vectors = (hidden * mask).sum(1) / mask.sum(1)
        for i, vector in zip(chosen, vectors.numpy(), strict=True):
            result[i] = vector
    return np.stack(result)


def _sorted(folder: str, length: int) -> Peer:
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(texts: Sequence[str], batch: int) -> Floats:
        return _in_order_of_length(
            tokenizer, texts, length, batch, lambda x: model(**x).last_hidden_state
        )

    return run


def _onnx(folder: str, length: int) -> Peer | None:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - the export needs it
    except ImportError:
        return None
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tokenizer(["a first text", "another"], padding=True, return_tensors="pt")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _LastHiddenState(model.eval()),
                tuple(example[n] for n in names),
                str(path),
                input_names=names,
                output_names=["hidden"],
                dynamic_axes={n: {0: "batch", 1: "length"} for n in [*names, "hidden"]},
                dynamo=False,
            )
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def forward(inputs: Any) -> Any:
        (hidden,) = session.run(["hidden"], {n: inputs[n].numpy() for n in names})
        return torch.from_numpy(hidden)

    return lambda texts, batch: _in_order_of_length(tokenizer, texts, length, batch, forward)


class _LastHiddenState(torch.nn.Module):
    """A model as a function of tensors, which is what can be exported."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
