"""Folders of encoders with a head, which are checkpoints of their family; what of them is trained.

    config.json          of the encoder, with ``architectures`` and ``id2label``
    model.safetensors    weights under the names of transformers; in half precision if that
                         changes no number, as in frozen layers of some checkpoints
    head.json            settings of the head
    tokenizer files      cut at as many tokens as the model was trained on

``AutoModelForSequenceClassification`` and ``AutoModelForTokenClassification`` read heads that
transformers has: the ``pooler`` head and that of words of the families in :data:`_PLAIN`. Of every
other model ``AutoModel`` reads the encoder; names of the head's weights begin with ``embedkit.``.

A single logit becomes two, the first of them 0, whose softmax is the same probability. Mean and
scale of a regression are multiplied into the last layer. Paths of the machine are not written.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from embedkit.encoding.casing import stated_case
from embedkit.encoding.definition import as_data
from embedkit.encoding.inventory import wrong_size
from embedkit.encoding.model import takes_segments, whole_fp32
from embedkit.encoding.shard import cut_batches
from embedkit.encoding.tables import word_tokens
from embedkit.encoding.tokenizer import TextTokenizer
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings, ends_of, ranges
from embedkit.errors import ModelError, Option, UsageError, first_line
from embedkit.finetuning.heads import HEADS, EncoderWithHead, HeadConfig, undrawn
from embedkit.finetuning.options import WORDS, TrainingOptions
from embedkit.records import canonical_json, from_json, read_json
from embedkit.scale import undisturbed
from embedkit.storage import reading
from embedkit.types import Int64
from embedkit.units.units import Units

_WEIGHT_DECAY = 0.01  # the usual value of fine-tuning, as in BERT


FrozenParts = tuple[Sequence[nn.Module], nn.Module]
"""Frozen layers and the first module after them; no layers if the whole encoder is frozen."""


# of ModernBERT; Qwen3 and Gemma; GPT-2; GPT-NeoX; OPT; MPT; RoBERTa-PreLayerNorm; Megatron; ESM
_LAST_NORMS = (
    *("final_norm", "norm.", "ln_f.", "final_layer_norm", "decoder.final_layer_norm", "norm_f"),
    *("LayerNorm.", "encoder.ln.", "encoder.emb_layer_norm_after"),
)


def freeze(model: EncoderWithHead, layers: str | int | None) -> FrozenParts | None:
    """Exclude parameters from training; see ``freeze_layers`` of :class:`TrainingOptions`.

    Frozen layers have no dropout: their output for a text is the same in every step. Returned is
    where it enters what is trained; ``None`` if nothing is frozen, or the embeddings alone.
    """
    if layers == "all":
        model.encoder.requires_grad_(False)
        model.without_dropout = tuple(model.encoder.modules())
        # no layer hands states on: they enter behind the encoder, which is not called
        return (), model.encoded
    if layers is not None:
        # the number of layers that are frozen with the embeddings
        highest, config = 0 if layers == "embeddings" else int(layers), model.encoder.config
        count = int(config.num_hidden_layers)
        # families name their stack of layers differently; it is the list with as many modules as
        # layers
        lists = [m for m in model.encoder.modules() if isinstance(m, nn.ModuleList)]
        stacks = [modules for modules in lists if len(modules) == count]
        # layers of ALBERT share their weights, so that none can be frozen without the others; those
        # of XLM are divided among several lists
        if not stacks or config.model_type in ("albert", "flaubert", "xlm"):
            problem = f"the layers of a {config.model_type} encoder have no weights of their own"
            raise UsageError(f"{problem}: pass {Option('freeze_layers', 'all')}.")
        stack = stacks[0]
        trained = {p for layer in stack[highest:] for p in layer.parameters()}
        for name, parameter in model.encoder.named_parameters():
            # a last norm belongs to no layer, and stands behind those that are trained
            if parameter not in trained and not name.startswith(_LAST_NORMS):
                parameter.requires_grad_(False)
        if highest:
            kept = {module for layer in stack[highest:] for module in layer.modules()}
            # not the encoder or its stack themselves, which hold trained layers too
            model.without_dropout = tuple(
                m for m in model.encoder.modules() if kept.isdisjoint(m.modules())
            )
        # where all layers are frozen there is no trained one for states to enter
        if 0 < highest < count:
            return [*stack[:highest]], stack[highest]
    return None


def recompute_activations(encoder: PreTrainedModel) -> None:
    """Compute activations twice instead of keeping them; a :class:`UsageError` if it cannot."""
    if not encoder.supports_gradient_checkpointing:
        reason = "it is not for this encoder in transformers."
        raise UsageError(reason, gradient_checkpointing=True)
    # the older of its two names, where there is no newer one
    older = getattr(encoder, "gradient_checkpointing_enable", None)
    enable: Any = getattr(encoder, "activation_checkpointing_enable", older)
    # the default of older versions gives no gradients where the input of a layer needs none, as
    # behind frozen ones
    enable({"use_reentrant": False})


def parameter_groups(model: EncoderWithHead, options: TrainingOptions) -> list[dict[str, Any]]:
    """Return the trained parameters by learning rate and weight decay, as optimizers take them.

    Biases and norms do not decay.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = options.learning_rate if name.startswith("encoder.") else options.head_rate
            # biases and the weights of norms are vectors
            decay = _WEIGHT_DECAY if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": p, "lr": rate, "weight_decay": d} for (rate, d), p in groups.items()]


def add_lora(model: EncoderWithHead, rank: int, *, seed: int) -> Any:
    """Add matrices beside every linear layer of the encoder; only they and the head are trained.

    A layer x W becomes x W + 2 x A B, with ``rank`` columns in A and zeros in B at first (Hu et al.
    2021, arXiv:2106.09685, with alpha = 2 × rank). Returns the model for :func:`merge_lora`.
    """
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel

    encoder = model.encoder
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not linear:  # GPT-2 has products of another class, SqueezeBERT convolutions
        family = encoder.config.model_type
        raise ModelError(f"a {family} encoder has no linear layers. Leave this out.", lora=rank)
    # A is drawn at random
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear)
    # it puts its layers into the encoder itself, which keeps its place in the model
    return LoraModel(encoder, config, "trained")


def merge_lora(model: EncoderWithHead, added: Any) -> None:
    """Add A B to the encoder's weights, so that an ordinary encoder is saved."""
    model.encoder = added.merge_and_unload()
    model.encoder.requires_grad_(True)  # LoRA had frozen it


class OccurringRows:
    """The rows of a layer's tokens that occur, in the place of all its rows.

    Of a multilingual encoder four fifths of the weights are embeddings of tokens that no text of
    the corpus contains. Their gradient is zero in every step, but it is computed, its norm is
    taken, and AdamW goes through them with two moments each. Weight decay alone changes them, all
    by one factor.

    While a fold is trained, the embedding matrix therefore holds the rows of the tokens that occur,
    and one more row, of ones, that no text refers to::

        rows of the vocabulary          0  1  2  3  4  5  6  7 …
        tokens that occur               0     2        5
        rows that are trained           0     1        2           3: ones

    The optimizer decays the last row like any other that has no gradient, whatever the schedule,
    the skipped steps and the interruptions: what is left of its ones is the factor of all the rows
    that stayed behind. They wait in a file, since they are most of the memory of a training, and
    :meth:`restore` puts the whole matrix together again. It is the one that training of all rows
    gives, but for the rounding of a product in place of one by one. Folds that start from the same
    checkpoint share the file, which the first of them writes.

    The tokens are mapped where the layer is entered and not in the batches, since some families
    count positions from the padding token's id.

    Args:
        layer: of :func:`~embedkit.finetuning.heads.embedding_layer`, on the CPU.
        ids: tokens of all texts that the layer will meet, and of padding, in any order.
        device: where the layer will be.
        file: of all rows, without a name; it is written if it is empty.
    """

    def __init__(
        self, layer: nn.Embedding, ids: Any, device: torch.device, file: IO[bytes]
    ) -> None:
        # nothing of this object may hold the whole matrix, not even a slice of it
        self._layer, self._padding, whole = layer, layer.padding_idx, layer.weight.detach()
        # the layer's own may be in no text, nor pad a batch
        padding = [] if layer.padding_idx is None else [layer.padding_idx]
        self._rows = torch.from_numpy(np.union1d(ids, np.array(padding, np.int64)))
        place = torch.full((len(whole),), -1)  # another token would be an error
        place[self._rows] = torch.arange(len(self._rows))
        if padding:
            # this row gets no gradient, so the layer has to know where it is now
            layer.padding_idx = int(place[padding[0]])
        # where the batches are: looking up on the CPU would make each step wait
        place = place.to(device)

        def enter(_: nn.Module, inputs: Any) -> tuple[Tensor, ...]:
            return (place[inputs[0]], *inputs[1:])

        self._entered, self._file = layer.register_forward_pre_hook(enter), file
        if not file.seek(0, os.SEEK_END):
            whole.numpy().tofile(file)
        rows = whole[self._rows]
        layer.weight = nn.Parameter(torch.cat([rows, torch.ones_like(rows[:1])]))

    def restore(self) -> None:
        """Give the layer all its rows, as training has left them."""
        trained = self._layer.weight.detach()
        # rows that stayed behind have decayed as the row of ones has
        self._file.seek(0)
        stored = torch.from_numpy(np.fromfile(self._file, trained[:0].cpu().numpy().dtype))
        whole = stored.view(-1, trained.shape[1]).to(trained.device)
        whole *= trained[-1]
        whole[self._rows.to(trained.device)] = trained[:-1]
        self._entered.remove()
        self._layer.padding_idx = self._padding
        self._layer.weight = nn.Parameter(whole)


_PREDICT_TOKENS = {"cpu": 4_096, "cuda": 65_536}
"""Tokens per batch of predictions by device, at most; a GPU spends its time on launches of few."""


def tokenized(units: Units, tokenizer: TextTokenizer, settings: TokenizerSettings) -> Units:
    """Return units whose inputs are the tokens of their texts, each text once.

    Words without a token are left out: the text is cut before them.
    """
    records, spans = units.records, None if units.word is None else units.spans
    pairs = records.column("text_pair") if records.pairs else None
    about: dict[str, Any] = {"settings": settings, "offsets": spans is not None, "words": spans}
    texts = tokenizer.encode(records.column("text"), pairs, **about)
    records = replace(records, inputs=texts.__getitem__)
    if texts.word is None:
        return records
    # words that have a token: others were cut
    _, _, row, word, _ = word_tokens(texts)
    return units.at(row, word.astype(np.int64)).within(records)


def n_seen(texts: TokenizedTexts) -> Int64:
    """Return the number of tokens that a model reads of each text, in all its windows."""
    return np.diff(texts.window_ends[texts.text_windows])


def padded(texts: TokenizedTexts) -> dict[str, torch.Tensor]:
    """Return the windows of texts as a batch ``(windows, tokens)``; see ``EncoderWithHead``."""
    lengths = np.diff(texts.window_ends)
    # (windows, tokens), true where a window has a token; the rest is padding, on the right
    # a batch of empty texts has padding too, which models need
    inside = np.arange(max(lengths.max(initial=0), 1)) < lengths[:, None]

    def stacked(values: NDArray[Any] | int, fill: int) -> torch.Tensor:
        rows = np.full(inside.shape, fill)
        rows[inside] = values
        return torch.from_numpy(rows)

    batch = {
        "input_ids": stacked(texts.ids[texts.seen], texts.pad_id),
        "token_type_ids": stacked(texts.type_ids[texts.seen], 0),
        "attention_mask": stacked(1, 0),
    }
    # without these every sequence is a text, and all of its tokens are counted
    if len(lengths) > len(texts):
        batch["windows"] = torch.from_numpy(np.diff(texts.text_windows))
        batch["counted"] = stacked(texts.owned, 0)
    if texts.word is not None:
        # a token in several windows is taken from the one that owns it
        place = np.zeros(len(texts.ids), np.int64)  # in the batch, of each token
        place[texts.seen[texts.owned]] = np.flatnonzero(inside)[texts.owned]
        token, starts, *_ = word_tokens(texts)
        # the first token of each word
        batch["places"] = torch.from_numpy(place[token[starts]])
    return batch


@undisturbed()
def predict_logits(
    model: PreTrainedModel,
    texts: TokenizedTexts,
    *,
    precision: str = "fp32",
    states: StatesOf | None = None,
) -> torch.Tensor:
    """Return logits ``(units, outputs)`` float32 on the CPU, of any model for classification."""
    device = next(model.parameters()).device
    model.eval()
    # models of transformers take less than ours, and some no segments, or words in their place
    takes = {*inspect.signature(model.forward).parameters}
    if not (isinstance(model, EncoderWithHead) or takes_segments(model)):
        takes.discard("token_type_ids")
    # a checkpoint of transformers has num_labels; in our own configuration n_outputs stands for it
    width = getattr(model.config, "n_outputs", None) or model.config.num_labels
    # rows of the result that belong to each text: one, or one for each of its words with a token
    text = np.arange(len(texts)) if texts.word is None else word_tokens(texts)[2]
    ends = ends_of(np.bincount(text, minlength=len(texts)))
    result = torch.zeros(int(ends[-1]), width, device=device)  # fetched once, at the end
    lengths = n_seen(texts)
    # the longest first: it is the width of its batch, and memory runs out at once or not at all
    order = np.argsort(-lengths, kind="stable")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    # some families say other things of a padded text (XLNet, FNet, ConvBERT). Without padding 100
    # and more texts take less time, a few short ones take more; states of frozen layers are
    # compared where there is most of it
    edges: Any = np.flatnonzero(np.diff(lengths[order])) + 1 if states is None else []
    batches = [
        part[start:stop]
        for part in np.split(order, edges)
        for start, stop in cut_batches(lengths[part], _PREDICT_TOKENS[device.type], padded=True)
    ]
    with (
        torch.inference_mode(),
        whole_fp32(device, half or torch.float32),
        torch.autocast(device.type, half, enabled=half is not None),
    ):
        for index in batches:
            batch: dict[str, Any] = padded(texts[index])
            if states is not None:
                batch["states"] = states(index, batch["attention_mask"])
            inputs = {n: v.to(device) for n, v in batch.items() if n in takes and v is not None}
            rows = ranges(ends[index], np.diff(ends)[index])
            # batches are not in the order of the texts, their logits are put where they belong
            result[torch.from_numpy(rows).to(device)] = model(**inputs).logits.float()
    return result.cpu()


StatesOf = Callable[[Int64, Tensor], Tensor | None]
"""Indices of texts and their mask ``(windows, tokens)`` → ``states`` for an encoder, if any."""


HEAD_FILE = "head.json"
WEIGHTS = "model.safetensors"

_PLAIN = {
    "bert": ("Bert", "bert", "bert.pooler.dense", "classifier"),
    "albert": ("Albert", "albert", "albert.pooler", "classifier"),
    "roberta": ("Roberta", "roberta", "classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("XLMRoberta", "roberta", "classifier.dense", "classifier.out_proj"),
    "camembert": ("Camembert", "roberta", "classifier.dense", "classifier.out_proj"),
    "mpnet": ("MPNet", "mpnet", "classifier.dense", "classifier.out_proj"),
}
"""Families with classes that are the ``pooler`` head and the head of words: their name, encoder,
and the two layers of the former."""

_OWN = "embedkit."
# settings of tokenizers and configurations that name paths, which would make equal models differ
_MACHINE = (
    "_name_or_path",
    "name_or_path",
    "is_local",
    "local_files_only",
    "tokenizer_file",
    "vocab_file",
    "special_tokens_map_file",
)


def is_plain_head(config: HeadConfig) -> bool:
    """Return whether transformers has a class for the model."""
    family = (config.encoder or {}).get("model_type")
    return config.head in ("pooler", WORDS) and family in _PLAIN


def write_model(
    model: EncoderWithHead,
    tokenizer: TextTokenizer,
    folder: Path,
    *,
    classes: Sequence[str],
    max_length: int,
) -> None:
    """Write a model with its tokenizer into a folder that exists."""
    plain = is_plain_head(model.config)
    weights: dict[str, Tensor] = {}
    for prefix, part in _parts(model).items():
        weights |= part.state_dict(prefix=prefix)
    kernel, bias = _last(model)
    scaled = model.config.problem == "value" and kernel in weights
    if scaled:
        scale, mean = model.config.target_scale, model.config.target_mean
        # so that the model gives values in their own unit, as transformers expects of a regression
        weights[kernel] = weights[kernel] * scale
        weights[bias] = weights[bias] * scale + mean
    if plain and model.config.problem == "one_logit":
        for name in (kernel, bias):
            weights[name] = torch.cat([torch.zeros_like(weights[name]), weights[name]])
    for name, value in weights.items():
        # the first numbers tell of nearly all that was trained: two copies of a large vocabulary
        # would be most of the memory of a run
        if _is_half(value.flatten()[:1_024]) and _is_half(value):
            weights[name] = value.half()
    save_weights(weights, folder)
    _write_json(folder / "config.json", _config(model, classes, plain=plain))
    # what is in the weights is not applied again: read back, mean and scale are 0 and 1
    in_weights = {"target_mean", "target_scale"} if scaled else set()
    names = inspect.get_annotations(HeadConfig).keys() - {"encoder"} - in_weights
    _write_json(folder / HEAD_FILE, {name: getattr(model.config, name) for name in names})
    try:
        tokenizer.hf.save_pretrained(folder)
    except Exception as error:  # tokenizers raises nothing more particular
        raise OSError(f"{folder.name}: {first_line(error)}") from error
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    # transformers cuts texts at this length if it is asked to, as training did
    settings = _without_paths(settings) | stated_case(tokenizer.hf)
    _write_json(file, settings | {"model_max_length": max_length})


def _is_half(value: Tensor) -> bool:
    """Whether half precision holds the same numbers, which are not whole ones or truths."""
    return value.is_floating_point() and value.half().to(value.dtype).equal(value)


def read_config(folder: Path) -> HeadConfig:
    """Read the configuration of a model."""
    files = folder / "config.json", folder / HEAD_FILE
    encoder, head = (from_json(dict[str, Any], read_json(file), file=file) for file in files)
    # fields of another version are left out, and missing ones have their defaults
    names = inspect.get_annotations(HeadConfig).keys() & head.keys() - {"encoder"}
    # transformers checks types
    with reading(files[1], Exception, advice="Make the run again."):
        if not isinstance(head.get("head", ""), str):
            raise TypeError(f"head is {head['head']!r:.60}, not a name")
        return HeadConfig(encoder=as_data(encoder), **{name: head[name] for name in names})


def read_model(folder: Path, head: str | None = None) -> EncoderWithHead:
    """Read a model, whose checksums were compared, on the CPU in float32, in evaluation mode.

    A file does not decide which code runs: a model with a ``head`` of the user's own needs its name
    from the caller, the same one that the file has; else a :class:`UsageError` says so.
    """
    config = read_config(folder)
    ours = str(config.head) in HEADS
    if not ours and config.head != head:
        raise UsageError(
            f"{folder} has a head of its own, which is code that is imported and run. If you trust "
            f"it, pass {Option('head', config.head)}."
        )
    # the loaders raise what their many formats raise
    with reading(folder, Exception, advice="Make the run again."):
        # compared before weights are made: a configuration of billions of them would fill the
        # memory
        sizes = (config.encoder or {}) | {"head_size": max(config.n_outputs, *config.cnn_widths)}
        if problem := wrong_size(sizes, folder / WEIGHTS):
            raise ValueError(problem)
        # a head of the user's own may look at its weights
        with undrawn() if ours else nullcontext():
            model = EncoderWithHead(config)
        stored = load_file(str(folder / WEIGHTS))
        if is_plain_head(model.config) and model.config.problem == "one_logit":
            for name in _last(model):
                # the first of the two logits that write_model made of one is 0
                stored[name] = stored[name][1:]
        # the longest first: "classifier.dense." and "" begin other names too
        for prefix, part in sorted(_parts(model).items(), key=lambda item: -len(item[0])):
            tensors = {n: stored.pop(n) for n in [*stored] if n.startswith(prefix)}
            tensors = {n.removeprefix(prefix): value for n, value in tensors.items()}
            # assign: nothing is copied to the model's own tensors; missing and unexpected names are
            # errors
            part.load_state_dict(tensors, assign=True)
    # stored in half precision where that changes no number
    model.float().eval()
    return model


def read_to_train(folder: Path, settings: Mapping[str, Any]) -> EncoderWithHead:
    """Read a model to go on with its training; a regression has its mean and scale apart again."""
    model = read_model(folder, settings["head"])
    # what shapes the training is that of this one; the folder states that of the earlier one
    model.config.class_weights = settings.get("class_weights", ())
    model.config.label_smoothing = settings["label_smoothing"]
    if "dropout" in settings and isinstance(model.dropout, nn.Dropout):
        model.config.dropout = model.dropout.p = settings["dropout"]
    if model.config.problem == "value" and isinstance(last := model.classifier, nn.Linear):
        mean, scale = settings["target_mean"], settings["target_scale"]
        # trained on values with mean 0 and variance 1, as it was before it was written; the outputs
        # stay
        last.weight = nn.Parameter(last.weight.detach() / scale)
        last.bias = nn.Parameter((last.bias.detach() - mean) / scale)
        model.config.target_mean, model.config.target_scale = mean, scale
    return model


def save_weights(tensors: Mapping[str, Tensor], folder: Path, *, name: str = WEIGHTS) -> None:
    """Write weights by name into a file of a folder that exists."""
    # safetensors refuses tensors that are not contiguous, and two of one memory
    arrays: dict[str, Tensor] = {}
    places = set[int]()
    for key, value in tensors.items():
        array = value.detach().cpu().contiguous()
        arrays[key] = array.clone() if array.data_ptr() in places else array
        places.add(array.data_ptr())
    save_file(arrays, folder / name, metadata={"format": "pt"})


def _config(model: EncoderWithHead, classes: Sequence[str], *, plain: bool) -> dict[str, Any]:
    """``config.json`` of the encoder, with the labels if transformers has the head."""
    # made anew from its values, so that changes here do not reach the model in use
    config = AutoConfig.for_model(**(model.config.encoder or {}))
    config.architectures = [type(model.encoder).__name__]
    if plain:
        names = list(classes) or ["value"]
        kind = "Token" if model.config.head == WORDS else "Sequence"
        config.architectures = [f"{_PLAIN[config.model_type][0]}For{kind}Classification"]
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        kind = "multi" if model.config.problem == "sets" else "single"
        config.problem_type = f"{kind}_label_classification" if classes else "regression"
    return _without_paths(json.loads(config.to_json_string()))


def _parts(model: EncoderWithHead) -> dict[str, nn.Module]:
    """Parts of a model by the prefix of their weights in its file, the last layer at the end."""
    last = model.classifier
    if not is_plain_head(model.config):
        return {"": model.encoder, f"{_OWN}head.": model.head, f"{_OWN}classifier.": last}
    _, encoder, dense, output = _PLAIN[model.encoder.config.model_type]
    if model.config.head == WORDS:
        return {f"{encoder}.": model.encoder, "classifier.": last}
    return {f"{encoder}.": model.encoder, f"{dense}.": model.head.dense, f"{output}.": last}


def _last(model: EncoderWithHead) -> tuple[str, str]:
    """Names of the weights of the last layer in the file of a model."""
    *_, prefix = _parts(model)
    return f"{prefix}weight", f"{prefix}bias"


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _MACHINE}


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_bytes(canonical_json(content) + b"\n")
