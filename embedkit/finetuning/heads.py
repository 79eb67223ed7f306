"""An encoder with a head: logits for texts, and the training loss.

The head sees the token vectors of the last layer, or of a trained mix of the last few:

    cls      dropout, linear, on [CLS]
    pooler   the checkpoint's tanh layer on [CLS], dropout, linear: BertForSequenceClassification
    mean     dropout, linear, on the mean over all tokens
    cnn      convolutions of several widths side by side, the maximum of each over the text
    lstm     a bidirectional LSTM over the tokens, its last state in either direction

Of a text in several windows, the vector of the head is combined as ``extract`` combines windows: of
``mean`` the mean over all tokens, each taken from the window where it has most context; of ``cnn``
the maximum over the windows; of the others the mean of the windows' vectors.

Padding changes no logit. :mod:`embedkit.finetuning.model_folder` writes and reads models.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from embedkit.encoding.model import PlainModel

__all__ = ["EncoderWithHead", "HeadConfig", "build_model", "pooler_layer"]

_FILTERS = 100


class HeadConfig(PretrainedConfig):  # type: ignore[misc]
    """Content of ``config.json`` of an encoder with a head.

    Attributes:
        encoder: configuration of the encoder, with its ``model_type``.
        head: one of :data:`~embedkit.choices.HEADS`.
        n_outputs: width of the logits.
        problem: ``classes`` (a logit each), ``one_logit`` (of the second of two classes) or
            ``value`` (regression).
        mix_layers: number of last layers whose trained mix the head sees.
        cnn_widths: number of tokens that the convolutions span.
        dropout: before the last linear layer.
        class_weights: of the loss, by class; empty for equal ones.
        label_smoothing: fraction of the target that is spread over all classes.
        target_mean: mean of the training records of a regression; the head predicts the distance
            from it in units of ``target_scale``.
        target_scale: standard deviation of the training records of a regression.
    """

    model_type = "embedkit-head"

    encoder: dict | None = None  # type: ignore[type-arg]
    head: str = "cls"
    n_outputs: int = 2
    problem: str = "classes"
    mix_layers: int = 1
    cnn_widths: list | tuple = (2, 3, 4)  # type: ignore[type-arg]
    dropout: float = 0.1
    class_weights: list | tuple = ()  # type: ignore[type-arg]
    label_smoothing: float = 0.0
    target_mean: float = 0.0
    target_scale: float = 1.0


class EncoderWithHead(PreTrainedModel):  # type: ignore[misc]
    """An encoder of any family with one of the heads of :data:`~embedkit.choices.HEADS`.

    Args:
        config: its parts; the weights are random until they are loaded.
    """

    config_class = HeadConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(AutoConfig.for_model(**(config.encoder or {})))
        if hasattr(self.encoder, "pooler"):
            self.encoder.pooler = None  # the pooler head has its own
        width = int(getattr(self.encoder.config, "hidden_size", None) or self.encoder.config.dim)
        self.mix = nn.Parameter(torch.zeros(config.mix_layers)) if config.mix_layers > 1 else None
        self.head = _HEADS[config.head](config, width)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.head.width, config.n_outputs)
        self.takes_types = "token_type_ids" in inspect.signature(self.encoder.forward).parameters
        self.without_dropout: tuple[nn.Module, ...] = ()
        self.from_lower: Callable[[Tensor], AbstractContextManager[None]] | None = None
        self.post_init()

    def train(self, mode: bool = True) -> EncoderWithHead:
        """Put the model into training mode, but for the modules ``without_dropout``."""
        super().train(mode)
        for module in self.without_dropout:
            module.training = False
        return self

    def floating_point_ops(self, *_: Any, **__: Any) -> int:
        """Return 0: the Trainer would go through all parameters in every step to estimate it."""
        return 0

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        windows: Tensor | None = None,
        counted: Tensor | None = None,
        lower: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Return the logits of a batch of texts that is padded on the right.

        Args:
            input_ids: ``(sequences, tokens)`` int64; a sequence is a text, or a window of one.
            attention_mask: ``(sequences, tokens)``, 0 for padding.
            token_type_ids: ``(sequences, tokens)`` int64 segment ids; not used by encoders without.
            labels: ``(texts,)`` int64 class numbers, or float32 values of a regression.
            windows: ``(texts,)`` int64 number of windows of each text, which follow one another;
                ``None``: every sequence is a text.
            counted: ``(sequences, tokens)``, 1 for the tokens that are taken from a window.
            lower: ``(sequences, tokens, width)`` output of the frozen layers, which are then not
                run; for a model with ``from_lower``.

        Returns:
            ``logits`` ``(batch, n_outputs)``, and ``loss`` where labels are given.
        """
        inputs = self.inputs_of(input_ids, attention_mask, token_type_ids)
        if lower is None:
            hidden = self._hidden(inputs)
        else:
            assert self.from_lower is not None
            with self.from_lower(lower):
                hidden = self._hidden(inputs)
        if windows is None or counted is None:
            vectors = self.head(hidden, attention_mask)
        else:
            vectors = self.head.of_windows(hidden, attention_mask, counted, windows.tolist())
        logits = self.classifier(self.dropout(vectors))
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, in float32."""
        config, logits = self.config, logits.float()
        if config.problem == "value":
            wanted = (labels.float() - config.target_mean) / config.target_scale
            return functional.mse_loss(logits[:, 0], wanted)
        weights = None
        if len(config.class_weights):
            weights = torch.tensor(config.class_weights, device=logits.device)
        smooth = config.label_smoothing
        if config.problem == "classes":
            return functional.cross_entropy(logits, labels, weight=weights, label_smoothing=smooth)
        wanted = labels.float() * (1 - smooth) + smooth / 2
        each = functional.binary_cross_entropy_with_logits(logits[:, 0], wanted, reduction="none")
        weight = torch.ones_like(each) if weights is None else weights[labels]
        return (each * weight).sum() / weight.sum()

    def outputs(self, logits: Tensor) -> Tensor:
        """Return probabilities ``(n, classes)``, or values ``(n,)``, in float64."""
        logits = logits.double()
        if self.config.problem == "value":
            value: Tensor = logits[:, 0] * self.config.target_scale + self.config.target_mean
            return value
        if self.config.problem == "one_logit":
            return torch.stack([torch.sigmoid(-logits[:, 0]), torch.sigmoid(logits[:, 0])], dim=1)
        return torch.softmax(logits, dim=1)

    def inputs_of(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return what the encoder takes of a batch."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.takes_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return inputs

    def _hidden(self, inputs: dict[str, Tensor]) -> Tensor:
        """Token vectors ``(batch, tokens, width)`` of the last layer, or of the mix."""
        if self.mix is None:
            last: Tensor = self.encoder(**inputs).last_hidden_state
            return last
        count = self.config.mix_layers
        states = self.encoder(**inputs, output_hidden_states=True).hidden_states[-count:]
        weights = torch.softmax(self.mix, dim=0)
        return torch.stack([s * w for s, w in zip(states, weights, strict=True)]).sum(0)


class _Cls(nn.Module):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, 0]

    def of_windows(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        """Vectors of texts ``(texts, width)`` from those of their windows."""
        return torch.stack([part.mean(0) for part in self(hidden, mask).split(sizes)])


class _Pooler(_Cls):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__(config, width)
        self.dense = nn.Linear(width, width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.dense(hidden[:, 0]))


class _Mean(_Cls):
    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        weights = mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def of_windows(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        weights = counted.unsqueeze(2).to(hidden.dtype)
        sums: Any = (hidden * weights).sum(1)
        counts: Any = weights.sum(1)
        texts = zip(sums.split(sizes), counts.split(sizes), strict=True)
        return torch.stack([total.sum(0) / count.sum(0) for total, count in texts])


class _Cnn(_Cls):
    """A window begins at every token; beyond the end of the text it sees zeros."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__(config, _FILTERS * len(config.cnn_widths))
        self.spans = [int(span) for span in config.cnn_widths]
        self.convolutions = nn.ModuleList(nn.Conv1d(width, _FILTERS, span) for span in self.spans)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        text = (hidden * mask.unsqueeze(2).to(hidden.dtype)).transpose(1, 2)
        outside = ~mask.bool().unsqueeze(1)
        found = []
        for span, convolution in zip(self.spans, self.convolutions, strict=True):
            windows = torch.relu(convolution(functional.pad(text, (0, span - 1))))
            found.append(windows.masked_fill(outside, 0).amax(2))
        return torch.cat(found, dim=1)

    def of_windows(self, hidden: Tensor, mask: Tensor, counted: Tensor, sizes: list[int]) -> Tensor:
        return torch.stack([part.amax(0) for part in self(hidden, mask).split(sizes)])


class _Lstm(_Cls):
    def __init__(self, config: HeadConfig, width: int) -> None:
        inner = max(width // 2, 1)
        super().__init__(config, 2 * inner)
        self.lstm = nn.LSTM(width, inner, batch_first=True, bidirectional=True)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            hidden.float(), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        with torch.autocast(hidden.device.type, enabled=False):
            _, (last, _) = self.lstm(packed)
        return torch.cat([last[0], last[1]], dim=1)


_HEADS: dict[str, Callable[[HeadConfig, int], Any]] = {
    "cls": _Cls,
    "pooler": _Pooler,
    "mean": _Mean,
    "cnn": _Cnn,
    "lstm": _Lstm,
}


def build_model(plain: PlainModel, *, seed: int, **settings: Any) -> EncoderWithHead:
    """Return a copy of an encoder with a new head, on the CPU in float32.

    Args:
        plain: the encoder, on the CPU in float32.
        seed: of the head's random weights.
        settings: fields of :class:`HeadConfig`.
    """
    config, dropout = plain.module.config, 0.1  # unless the settings say otherwise
    # as the family's own classifier: its own setting where there is one, else the encoder's
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "dropout"):
        if isinstance(value := getattr(config, name, None), int | float):
            dropout = float(value)
            break
    torch.manual_seed(seed)
    settings = {"dropout": dropout} | settings
    model = EncoderWithHead(HeadConfig(encoder=config.to_dict(), **settings))
    model.encoder.load_state_dict(plain.module.state_dict())
    if isinstance(model.head, _Pooler) and (dense := pooler_layer(plain)) is not None:
        model.head.dense.load_state_dict(dense.state_dict())
    return model


def pooler_layer(plain: PlainModel) -> nn.Linear | None:
    """Return the linear layer of a checkpoint's pooler; ``None`` if it has no such weights."""
    modules = [] if plain.pooler is None else list(plain.pooler.modules())
    return next((module for module in modules if isinstance(module, nn.Linear)), None)
