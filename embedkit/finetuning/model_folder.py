"""A fine-tuned model on disk: a checkpoint of the encoder's own family.

    config.json          of the encoder, with ``architectures`` and ``id2label``
    model.safetensors    weights under the names of transformers; of a model with frozen parameters
                         two files and an index, as transformers divides large models: the first
                         holds the frozen ones and is one file for all folds (hard links)
    head.json            what else this package needs to know of the head
    tokenizer files      cut at as many tokens as the model was trained on

``AutoModelForSequenceClassification`` reads a head that transformers has: the ``pooler`` head of
the families in :data:`_OUTPUT`, on the last layer. Of every other model ``AutoModel`` reads the
encoder; the head's weights begin with ``embedkit.``.

A single logit becomes two, the first of them 0, whose softmax is the same probability. Mean and
scale of a regression are multiplied into the last layer. Paths of the machine are not written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForSequenceClassification

from embedkit import fsio
from embedkit.encoding.tokenization import TextTokenizer
from embedkit.errors import DamagedError, first_line
from embedkit.finetuning.heads import EncoderWithHead, HeadConfig

__all__ = [
    "HEAD_FILE", "WEIGHTS", "is_plain_head", "model_name", "read_model", "read_weights",
    "write_model",
]  # fmt: skip

HEAD_FILE = "head.json"
"""File of the head's settings in the folder of a model."""

WEIGHTS = "model*.safetensors*"
"""Pattern of the files with the weights."""

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FROZEN, _TRAINED = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

_OUTPUT = {
    "bert": ("{}.pooler.dense", "classifier"),
    "albert": ("{}.pooler", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
    "camembert": ("classifier.dense", "classifier.out_proj"),
    "mpnet": ("classifier.dense", "classifier.out_proj"),
}
"""Families whose class for classification is the ``pooler`` head: names of its two layers, where
``{}`` is the name of the encoder in it."""

_OWN = "embedkit."
_MACHINE = ("_name_or_path", "name_or_path", "is_local", "local_files_only", "tokenizer_file",
            "vocab_file", "special_tokens_map_file")  # fmt: skip


def model_name(repeat: int, fold: int, seed: int = 0) -> str:
    """Return the name of a model's folder.

    Args:
        repeat: number of the repeat of the split.
        fold: number of the fold.
        seed: number of the seed, from 0.

    >>> model_name(0, 2), model_name(1, 2, seed=1)
    ('fold-2', 'repeat-1-fold-2-seed-1')
    """
    name = f"fold-{fold}" if not repeat else f"repeat-{repeat}-fold-{fold}"
    return f"{name}-seed-{seed}" if seed else name


def is_plain_head(config: HeadConfig) -> bool:
    """Whether transformers has a class for the model."""
    family = (config.encoder or {}).get("model_type")
    return config.head == "pooler" and config.mix_layers == 1 and family in _OUTPUT


def write_model(
    model: EncoderWithHead,
    tokenizer: TextTokenizer,
    folder: Path,
    *,
    classes: Sequence[str],
    max_length: int,
    siblings: Path | None = None,
) -> None:
    """Write a model with its tokenizer into a folder that exists.

    Args:
        model: on any device.
        tokenizer: that of the checkpoint.
        folder: where to write.
        classes: labels by class number; empty for a regression.
        max_length: tokens of a text that the model was trained on.
        siblings: folder of the models of the same run that are written already, whose frozen
            parameters are the same.

    Raises:
        OSError: a file cannot be written.
    """
    plain = is_plain_head(model.config)
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    frozen = {id(weights[name]) for name, p in model.named_parameters() if not p.requires_grad}
    if model.config.problem == "value":
        _scale(weights, model.config.target_scale, model.config.target_mean)
    stored = _to_plain(weights, model.config) if plain else {
        name.removeprefix("encoder.") if name.startswith("encoder.") else _OWN + name: value
        for name, value in weights.items()
    }  # fmt: skip
    _write_weights(stored, {n for n, v in stored.items() if id(v) in frozen}, folder, siblings)
    _write_json(folder / "config.json", _config(model, classes, plain=plain))
    _write_json(folder / HEAD_FILE, _head(model.config))
    try:
        tokenizer.hf.save_pretrained(folder)
    except Exception as error:  # tokenizers raises nothing more particular
        raise OSError(f"{folder.name}: {first_line(error)}") from error
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    _write_json(file, _without_paths(settings) | {"model_max_length": max_length})


def read_model(folder: Path) -> EncoderWithHead:
    """Read a model on the CPU in float32, in evaluation mode.

    Raises:
        DamagedError: a file is missing or cannot be read.
    """
    if not folder.is_dir():
        raise DamagedError(f"{folder} is missing. Make the run again.")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        head = json.loads((folder / HEAD_FILE).read_text("utf-8"))
        with _NothingDrawn():
            model = EncoderWithHead(HeadConfig(encoder=config, **head))
        stored = read_weights(folder)
        weights = _from_plain(stored, model) if is_plain_head(model.config) else {
            name.removeprefix(_OWN) if name.startswith(_OWN) else f"encoder.{name}": value
            for name, value in stored.items()
        }  # fmt: skip
        model.load_state_dict(weights, assign=True)
    except Exception as error:  # the loaders raise what their many formats raise
        raise DamagedError(
            f"{folder} cannot be read: {first_line(error)}. Make the run again."
        ) from error
    model.float().eval()
    return model


class _NothingDrawn(TorchFunctionMode):
    """No weights are drawn at random, which takes longer than reading those that replace them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func in (init.normal_, init.uniform_):
            return args[0] if args else given["tensor"]
        if func in (Tensor.normal_, Tensor.uniform_):  # drawn again until it is within bounds
            return args[0].zero_()
        return func(*args, **given)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the stored weights of a model by name, of one file or of several."""
    files = [_SINGLE]
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text("utf-8"))
        files = sorted(set(index["weight_map"].values()))
    return {name: value for f in files for name, value in load_file(str(folder / f)).items()}


def _write_weights(
    stored: Mapping[str, Tensor], frozen: set[str], folder: Path, siblings: Path | None
) -> None:
    if not frozen:
        _save(stored, folder / _SINGLE)
        return
    written = next(siblings.glob(f"*/{_FROZEN}"), None) if siblings else None
    if written is None or not fsio.link_file(written, folder / _FROZEN):
        _save({name: stored[name] for name in frozen}, folder / _FROZEN)
    _save({name: v for name, v in stored.items() if name not in frozen}, folder / _TRAINED)
    size = sum(value.numel() * value.element_size() for value in stored.values())
    files = {name: _FROZEN if name in frozen else _TRAINED for name in stored}
    _write_json(folder / _INDEX, {"metadata": {"total_size": size}, "weight_map": files})


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    own = {name: value.contiguous() for name, value in tensors.items()}
    save_file(own, file, metadata={"format": "pt"})


def _config(model: EncoderWithHead, classes: Sequence[str], *, plain: bool) -> dict[str, Any]:
    """``config.json``: that of the encoder, and the labels where transformers has the head."""
    config = AutoConfig.for_model(**(model.config.encoder or {}))
    if not plain:
        config.architectures = [type(model.encoder).__name__]
        return _without_paths(json.loads(config.to_json_string()))
    config.architectures = [_plain_class(config).__name__]
    names = list(classes) or ["value"]
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = "single_label_classification" if classes else "regression"
    return _without_paths(json.loads(config.to_json_string()))


def _plain_class(config: Any) -> Any:
    return AutoModelForSequenceClassification._model_mapping[type(config)]


def _head(config: HeadConfig) -> dict[str, Any]:
    """Fields of :class:`HeadConfig`; mean and scale of a regression are in the weights."""
    names = ("head", "n_outputs", "problem", "mix_layers", "cnn_widths", "dropout",
             "class_weights", "label_smoothing")  # fmt: skip
    found = {name: getattr(config, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


def _scale(weights: dict[str, Tensor], scale: float, mean: float) -> None:
    weights["classifier.weight"] = weights["classifier.weight"] * scale
    weights["classifier.bias"] = weights["classifier.bias"] * scale + mean


def _names(config: HeadConfig) -> tuple[str, str, str]:
    """Names of the encoder, the pooler's layer and the last one in the class of transformers."""
    settings = AutoConfig.for_model(**(config.encoder or {}))
    prefix = _plain_class(settings).base_model_prefix
    dense, output = _OUTPUT[settings.model_type]
    return prefix, dense.format(prefix), output


def _to_plain(weights: Mapping[str, Tensor], config: HeadConfig) -> dict[str, Tensor]:
    prefix, dense, output = _names(config)
    parts = {"encoder": prefix, "head.dense": dense, "classifier": output}
    stored = {}
    for name, value in weights.items():
        part = next(p for p in parts if name.startswith(p + "."))
        stored[parts[part] + name.removeprefix(part)] = value
    if config.problem == "one_logit":
        for name in (f"{output}.weight", f"{output}.bias"):
            stored[name] = torch.cat([torch.zeros_like(stored[name]), stored[name]])
    return stored


def _from_plain(stored: Mapping[str, Tensor], model: EncoderWithHead) -> dict[str, Tensor]:
    prefix, dense, output = _names(model.config)
    parts = {dense: "head.dense", output: "classifier", prefix: "encoder"}
    weights = {}
    for name, value in stored.items():
        part = next(p for p in parts if name.startswith(p + "."))
        own = parts[part] + name.removeprefix(part)
        last = model.config.problem == "one_logit" and part == output
        weights[own] = value[1:] if last else value
    return weights


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _MACHINE}


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    file.write_text(text, "utf-8")
