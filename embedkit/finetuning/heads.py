"""An encoder with a head: what fine-tuning trains, as a model that transformers can load.

    tokens -> encoder -> states (sequences, tokens, width) -> pooling -> dropout -> logits

The head is a row of ``HEADS``: the checkpoint's own pooling in one linear layer, a CNN or an LSTM
over all states, or a class of the user's, which is named on the command line and never by a file.
The contrastive head is the mean with length 1, which a classifier of scikit-learn is fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_outputs import SequenceClassifierOutput

from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.model import MAKING, PlainModel, is_out_of_memory, takes_segments
from embedkit.encoding.products import LinearToTrain
from embedkit.errors import UsageError, first_line
from embedkit.finetuning.options import CONTRASTIVE, WORDS, TrainingOptions, own_head
from embedkit.units.target import Target

_FILTERS = 100  # of each width, as in Kim (2014)


class HeadConfig(PretrainedConfig):  # type: ignore[misc]
    """Configuration of an encoder (``config.json``) with a head and its loss.

    ``problem`` is ``classes`` (a logit each), ``one_logit`` (of the second of two classes),
    ``sets`` of classes (a logit each, independent) or ``value`` (regression): the head predicts the
    distance from the mean of the training records, in units of their standard deviation.
    """

    model_type = "embedkit-head"

    encoder: dict | None = None  # type: ignore[type-arg]
    head: str = "cls"
    n_outputs: int = 2
    problem: str = "classes"
    cnn_widths: list | tuple = (2, 3, 4)  # type: ignore[type-arg]
    dropout: float = 0.1
    class_weights: list | tuple = ()  # type: ignore[type-arg]
    label_smoothing: float = 0.0
    target_mean: float = 0.0
    target_scale: float = 1.0


@contextmanager
def undrawn() -> Iterator[None]:
    """Make modules without random weights, which would be drawn only to be replaced.

    Memory that nothing is written to costs nothing.
    """
    with MAKING, quiet_transformers(), no_init_weights():
        yield


class EncoderWithHead(PreTrainedModel):  # type: ignore[misc]
    """An encoder of any family with a head, with random weights."""

    config_class = HeadConfig
    # attention is a matter of the encoder, whose own flags are checked when it is made; without
    # these transformers would refuse everything but eager attention for the whole
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        with undrawn():
            self.encoder = AutoModel.from_config(AutoConfig.for_model(**(config.encoder or {})))
        for module in self.encoder.modules():
            module._is_hf_initialized = True  # nor drawn by post_init() below
            if type(module) is nn.Linear:
                module.__class__ = LinearToTrain  # the same weights, under the same names
        if hasattr(self.encoder, "pooler"):
            # the pooler head has its own; not None, which SqueezeBERT would call
            self.encoder.pooler = nn.Identity()
        self.width = int(self.encoder.config.hidden_size)
        self.head = HEADS.get(config.head, _Own)(config, self.width)
        # a head of the user's gives logits, with its own dropout or none
        gives_logits = isinstance(self.head, _Own)
        self.dropout = nn.Identity() if gives_logits else nn.Dropout(config.dropout)
        last: Any = nn.Identity() if gives_logits else nn.Linear(self.head.width, config.n_outputs)
        self.classifier = last
        # as the frozen encoder does: some families refuse them, GPT-2 would add words
        self.takes_types = takes_segments(self.encoder)
        self.encoded = nn.Identity()  # where states of a whole encoder enter
        self.without_dropout: tuple[nn.Module, ...] = ()
        self.states: Tensor | None = None  # of the batch, where they stand for frozen layers
        # transformers draws the weights of the head
        self.post_init()

    def train(self, mode: bool = True) -> EncoderWithHead:
        """Set the training mode of all modules except ``without_dropout``."""
        # the Trainer switches all modules to training again and again, frozen ones too
        super().train(mode)
        for module in self.without_dropout:
            module.training = False
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        windows: Tensor | None = None,
        counted: Tensor | None = None,
        places: Tensor | None = None,
        states: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return logits ``(texts, n_outputs)``, of words ``(words, n_outputs)``, and the loss.

        The batch is ``(sequences, tokens)``, padded on the right; a sequence is a text, or a window
        of one. ``windows`` ``(texts,)`` is the number of windows of each text; ``counted``
        ``(sequences, tokens)`` is 1 for the tokens that are taken from a window; ``places``
        ``(words,)`` are the tokens of the batch that stand for a word, row after row; ``states``
        ``(sequences, tokens, width)`` are those of :mod:`embedkit.finetuning.states`. The output
        has the vectors that enter the last layer as its only ``hidden_states``.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.takes_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        self.states = states  # until the next batch: gradient checkpointing computes layers again
        # an encoder that is frozen as a whole is not called, if its states are known
        if states is None or any(p.requires_grad for p in self.encoder.parameters()):
            hidden = self.encoded(self.encoder(**inputs).last_hidden_state)
        else:
            hidden = states
        if places is not None:
            # places count through all tokens of the batch: (sequences * tokens, width)
            vectors = hidden.flatten(0, 1)[places]
        else:
            # a list, by which tensors are split; nothing is fetched where each text is one window
            sizes = [1] * len(hidden) if windows is None else windows.tolist()
            counted = attention_mask if counted is None else counted
            vectors = self.head(hidden, attention_mask, counted, sizes)
        logits = self.classifier(self.dropout(vectors))
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=(vectors,))

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss, in float32."""
        config, logits = self.config, logits.float()
        if config.problem == "value":
            # in units of the training records' deviation, so that the learning rate does not depend
            # on the unit
            target = (labels.float() - config.target_mean) / config.target_scale
            return functional.mse_loss(logits[:, 0], target)
        weights = None
        if len(config.class_weights):
            weights = torch.tensor(config.class_weights, device=logits.device)
        smooth = config.label_smoothing
        if config.problem == "sets":
            return functional.binary_cross_entropy_with_logits(logits, labels.float())
        if config.problem == "one_logit":
            # the logit of two classes is the distance of the second from the first: with 0 for the
            # first their softmax is its sigmoid, and weights and smoothing mean the same
            logits = functional.pad(logits, (1, 0))
        return functional.cross_entropy(logits, labels, weight=weights, label_smoothing=smooth)

    def outputs(self, logits: Tensor) -> Tensor:
        """Return probabilities ``(n, classes)``, or values ``(n,)``, in float64."""
        # in float64, so that probabilities sum to 1 as closely as those of other methods
        logits = logits.double()
        if self.config.problem == "value":
            value: Tensor = logits[:, 0] * self.config.target_scale + self.config.target_mean
            return value
        if self.config.problem == "one_logit":
            return torch.stack([torch.sigmoid(-logits[:, 0]), torch.sigmoid(logits[:, 0])], dim=1)
        return logits.sigmoid() if self.config.problem == "sets" else logits.softmax(dim=1)


def _by_text(values: Tensor, sizes: list[int], combine: Callable[..., Tensor]) -> Tensor:
    """Sums, means or maxima of the windows of each text, ``(texts, …)``."""
    if len(sizes) == len(values):
        return values
    return torch.stack([combine(part, 0) for part in torch.split(values, sizes)])


class _Cls(nn.Module):
    """The state of the first token; of windows the mean.

    A head is called with states and mask of windows, the tokens that are counted in each, and the
    number of windows of each text. It gives vectors ``(texts, width)``.
    """

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        return _by_text(hidden[:, 0], sizes, torch.mean)


class _Pooler(_Cls):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__(config, width)
        self.dense = nn.Linear(width, width)

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        return _by_text(torch.tanh(self.dense(hidden[:, 0])), sizes, torch.mean)


class _Mean(_Cls):
    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        # a token in the overlap of two windows is counted in one of them
        weights = counted.unsqueeze(2).to(hidden.dtype)
        totals = _by_text((hidden * weights).sum(1), sizes, torch.sum)
        return totals / _by_text(weights.sum(1), sizes, torch.sum).clamp(min=1)  # an empty text


class _Contrastive(_Mean):
    """The mean with length 1: a cosine of two of them is their product."""

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        return functional.normalize(super().forward(hidden, mask, counted, sizes))


class _Cnn(_Cls):
    """Convolutions that begin at every token, with zeros after the end of the text."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__(config, _FILTERS * len(config.cnn_widths))
        self.spans = [int(span) for span in config.cnn_widths]
        self.convolutions = nn.ModuleList(nn.Conv1d(width, _FILTERS, span) for span in self.spans)

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        # padding is zero, as what is behind the longest text of the batch: a text has the same
        # vector in any batch, however far it is padded
        text = (hidden * mask.unsqueeze(2).to(hidden.dtype)).transpose(1, 2)
        outside = ~mask.bool().unsqueeze(1)
        maxima = []
        for span, convolution in zip(self.spans, self.convolutions, strict=True):
            # (texts, filters, tokens): a text shorter than the span has windows too
            windows = torch.relu(convolution(functional.pad(text, (0, span - 1))))
            # after relu no value is below 0, so that 0 never replaces a maximum
            maxima.append(windows.masked_fill(outside, 0).amax(2))
        return _by_text(torch.cat(maxima, dim=1), sizes, torch.amax)


class _Lstm(_Cls):
    def __init__(self, config: HeadConfig, width: int) -> None:
        # both directions together have the width of the encoder
        inner = max(width // 2, 1)
        super().__init__(config, 2 * inner)
        self.lstm = nn.LSTM(width, inner, batch_first=True, bidirectional=True)

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        # packed, so that the last state is that of the last token and not of padding; torch takes
        # the lengths from the CPU
        packed = nn.utils.rnn.pack_padded_sequence(
            hidden.float(), mask.sum(1).clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        # in float32: over hundreds of steps the rounding of half precision would add up
        with torch.autocast(hidden.device.type, enabled=False):
            _, (last, _) = self.lstm(packed)
        return _by_text(torch.cat([last[0], last[1]], dim=1), sizes, torch.mean)


class _Own(_Cls):
    """A module of the user's, which gives logits itself; of windows their mean."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__(config, config.n_outputs)
        self.name = config.head
        expected = "expected a class of torch.nn.Module, made as Class(width, outputs)"
        try:
            module = own_head(self.name)(width, config.n_outputs)
        except TypeError as error:
            raise UsageError(f"{expected}: {first_line(error)}.", head=self.name) from error
        if not isinstance(module, nn.Module):
            raise UsageError(f"{expected}.", head=self.name)
        self.module, parts = module, list[Any](module.modules())
        for part in parts:
            part._is_hf_initialized = True  # transformers would draw its weights anew

    def forward(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        try:
            logits: Tensor = self.module(hidden, mask)
            shape = tuple(logits.shape)
        except Exception as error:  # of the user's code
            if is_out_of_memory(error):
                raise
            problem = f"called with hidden states {tuple(hidden.shape)} and their mask, it says"
            raise UsageError(f"{problem}: {first_line(error)}.", head=self.name) from error
        if shape != (len(hidden), self.width):
            shapes = f"it gives {shape}, not logits {(len(hidden), self.width)}"
            raise UsageError(f"{shapes}.", head=self.name)
        return _by_text(logits, sizes, torch.mean)


HEADS: dict[str, Callable[[HeadConfig, int], Any]] = {
    "cls": _Cls,
    "pooler": _Pooler,
    "mean": _Mean,
    "cnn": _Cnn,
    "lstm": _Lstm,
    WORDS: _Cls,
    CONTRASTIVE: _Contrastive,
}


def head_settings(options: TrainingOptions, target: Target, y: NDArray[Any]) -> dict[str, Any]:
    """Return fields of :class:`HeadConfig`; class weights, mean and scale are those of ``y``.

    ``y`` are the labels of the training records, which alone a head may know.
    """
    settings: dict[str, Any] = {
        "head": options.head_name,
        "cnn_widths": list(options.cnn_widths),
        "label_smoothing": options.label_smoothing,
    }
    if options.dropout is not None:
        settings["dropout"] = options.dropout
    if not target.classes:
        # the head learns values with mean 0 and variance 1, for which its learning rate is meant;
        # 1.0 where all values are the same
        scale = {"target_mean": float(y.mean()), "target_scale": float(y.std()) or 1.0}
        return {**settings, "problem": "value", "n_outputs": 1, **scale}
    if options.class_weight is not None:
        # as scikit-learn's "balanced"; at least 1, since a rare label of words may be in no
        # training record
        counts = np.bincount(y, minlength=len(target.classes))
        settings["class_weights"] = (len(y) / (len(counts) * np.maximum(counts, 1))).tolist()
    if options.one_logit:
        return {**settings, "problem": "one_logit", "n_outputs": 1}
    problem = "classes" if target.separator is None else "sets"
    return {**settings, "problem": problem, "n_outputs": len(target.classes)}


def build_model(plain: PlainModel, *, seed: int, **settings: Any) -> EncoderWithHead:
    """Return an encoder with a new random head; settings of :class:`HeadConfig`.

    The weights of the encoder become those of the model: ``plain`` has none afterwards. Two copies
    of a large vocabulary would be most of the memory of a training.
    """
    config, dropout = plain.module.config, 0.1
    # as the family's own classifier: its setting for heads if it has one, else the encoder's
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "dropout"):
        if isinstance(value := getattr(config, name, None), int | float):
            dropout = float(value)
            break
    # the head's weights are drawn from here on
    torch.manual_seed(seed)
    settings = {"dropout": dropout} | settings
    model = EncoderWithHead(HeadConfig(encoder=config.to_dict(), **settings))
    model.encoder.load_state_dict(plain.module.state_dict(), assign=True)
    plain.module.to("meta")
    # the checkpoint's own pooler is trained already, and a better start than random weights
    if isinstance(model.head, _Pooler) and (dense := pooler_layer(plain)) is not None:
        model.head.dense.load_state_dict(dense.state_dict())
    return model


def embedding_layer(encoder: PreTrainedModel) -> nn.Embedding | None:
    """Return the layer of an encoder that has a row for each token; ``None`` if it is unusual."""
    try:
        layer = encoder.get_input_embeddings()
    except NotImplementedError:
        return None
    # others may look their tokens up in another way: their matrix stays whole
    usual = isinstance(layer, nn.Embedding) and isinstance(layer.weight, nn.Parameter)
    return layer if usual else None


def pooler_layer(plain: PlainModel) -> nn.Linear | None:
    """Return the linear layer of a checkpoint's pooler, if it has one."""
    modules = [] if plain.pooler is None else list(plain.pooler.modules())
    return next((module for module in modules if isinstance(module, nn.Linear)), None)
