"""An encoder with a head on it: logits for texts, and the loss they are trained by.

The head sees the token vectors of the last layer, or of a learnt mix of the last few:

    cls      dropout, linear, on [CLS]
    pooler   the checkpoint's tanh layer on [CLS], dropout, linear: BertForSequenceClassification
    mean     dropout, linear, on the mean over all tokens
    cnn      convolutions of several widths side by side, the maximum of each over the text
    lstm     a bidirectional LSTM over the tokens, its last state in either direction

No head lets padding change what it says of a text. A model is written by ``save_pretrained`` and
read by ``from_pretrained``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.model import load_model
from embedkit.errors import UsageError

__all__ = ["EncoderWithHead", "HeadConfig", "build_model", "parameter_depth"]


_FILTERS = 100


class HeadConfig(PretrainedConfig):  # type: ignore[misc]
    """What ``config.json`` says of an encoder with a head.

    Attributes:
        encoder: configuration of the encoder, with its ``model_type``.
        head: one of :data:`~embedkit.choices.HEADS`.
        n_outputs: width of the logits.
        problem: ``classes`` (a logit each), ``one_logit`` (of the second of two classes) or
            ``value`` (regression).
        mix_layers: of how many last layers the head sees a learnt mix.
        cnn_widths: tokens that the convolutions span.
        dropout: before the last linear layer.
        class_weights: of the loss, by class; empty for equal ones.
        label_smoothing: share of the target that is spread over all classes.
        target_mean: of the training part of a regression; the head learns the value's distance
            from it in units of ``target_scale``.
        target_scale: standard deviation of the training part of a regression.
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
        config: what it is made of; the weights are random until they are loaded.
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
        self.takes_types = _takes_types(self.encoder)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits of a batch that is padded on the right.

        Args:
            input_ids: ``(batch, tokens)`` int64.
            attention_mask: ``(batch, tokens)``, 0 for padding.
            token_type_ids: ``(batch, tokens)`` int64 segment ids; left out for encoders that
                have none.
            labels: ``(batch,)`` int64 class numbers, or float32 values of a regression.

        Returns:
            ``logits`` ``(batch, n_outputs)``, and ``loss`` where labels are given.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.takes_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        hidden = self._hidden(inputs)
        logits = self.classifier(self.dropout(self.head(hidden, attention_mask)))
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch, in float32."""
        config, logits = self.config, logits.float()
        weights = None
        if len(config.class_weights):
            weights = torch.tensor(config.class_weights, device=logits.device)
        if config.problem == "value":
            wanted = (labels.float() - config.target_mean) / config.target_scale
            return functional.mse_loss(logits[:, 0], wanted)
        if config.problem == "one_logit":
            smooth = config.label_smoothing
            wanted = labels.float() * (1 - smooth) + smooth / 2
            each = functional.binary_cross_entropy_with_logits(
                logits[:, 0], wanted, reduction="none"
            )
            share = torch.ones_like(each) if weights is None else weights[labels]
            return (each * share).sum() / share.sum()
        return functional.cross_entropy(
            logits, labels, weight=weights, label_smoothing=config.label_smoothing
        )

    def outputs(self, logits: Tensor) -> Tensor:
        """Logits → probabilities ``(n, classes)``, or values ``(n,)``, in float64."""
        logits = logits.double()
        if self.config.problem == "value":
            value: Tensor = logits[:, 0] * self.config.target_scale + self.config.target_mean
            return value
        if self.config.problem == "one_logit":
            second = torch.sigmoid(logits[:, 0])
            return torch.stack([torch.sigmoid(-logits[:, 0]), second], dim=1)
        return torch.softmax(logits, dim=1)

    def _hidden(self, inputs: dict[str, Tensor]) -> Tensor:
        """Token vectors ``(batch, tokens, width)`` of the last layer, or of the mix."""
        if self.mix is None:
            last: Tensor = self.encoder(**inputs).last_hidden_state
            return last
        count = self.config.mix_layers
        states = self.encoder(**inputs, output_hidden_states=True).hidden_states[-count:]
        shares = torch.softmax(self.mix, dim=0)
        return torch.stack([s * share for s, share in zip(states, shares, strict=True)]).sum(0)


class _Cls(nn.Module):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return hidden[:, 0]


class _Pooler(nn.Module):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(width, width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.dense(hidden[:, 0]))


class _Mean(_Cls):
    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        shares = mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * shares).sum(1) / shares.sum(1)


class _Cnn(nn.Module):
    """A window begins at every token; what it spans beyond the text's end is zero."""

    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        self.width = _FILTERS * len(config.cnn_widths)
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


class _Lstm(nn.Module):
    def __init__(self, config: HeadConfig, width: int) -> None:
        super().__init__()
        inner = max(width // 2, 1)
        self.width = 2 * inner
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


def build_model(
    checkpoint: Checkpoint,
    *,
    pad_id: int,
    seed: int,
    notify: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> EncoderWithHead:
    """A checkpoint's encoder with a fresh head, on the CPU in float32.

    Args:
        checkpoint: whose weights the encoder gets.
        pad_id: token id to fill with.
        seed: of the head's random weights.
        notify: called with a sentence for the user where something deserves one.
        settings: fields of :class:`HeadConfig`.

    Raises:
        ModelError: the weights cannot be loaded.
        UsageError: the model has not so many layers.
    """
    mix = int(settings.get("mix_layers", 1))
    if not 1 <= mix <= checkpoint.n_layers:
        raise UsageError(f"--mix-layers {mix}: {checkpoint.name} has {checkpoint.n_layers} layers.")
    plain = load_model(checkpoint, pad_id=pad_id, device=torch.device("cpu"), dtype=torch.float32)
    encoder_config = plain.module.config.to_dict()
    torch.manual_seed(seed)
    config = HeadConfig(encoder=encoder_config, dropout=_dropout(plain.module.config), **settings)
    model = EncoderWithHead(config)
    model.encoder.load_state_dict(plain.module.state_dict())
    if config.head == "pooler":
        dense = _dense_of(plain.pooler)
        if dense is None:
            notify(f"{checkpoint.name} has no pooler weights; the head begins with random ones")
        else:
            model.head.dense.load_state_dict(dense.state_dict())
    return model


def parameter_depth(model: EncoderWithHead) -> dict[str, int]:
    """Depth of every parameter: 0 embeddings, 1…n the encoder's layers, n + 1 what follows.

    Raises:
        UsageError: the encoder shares its weights among layers.
    """
    count = int(
        getattr(model.encoder.config, "num_hidden_layers", None) or model.encoder.config.n_layers
    )
    stacks = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and "encoder." in f"{name}."
    ]
    stack = min(stacks, key=len, default="")
    if not stack or model.encoder.config.model_type == "albert":
        raise UsageError(
            f"a {model.encoder.config.model_type} encoder has no layers of their own weights: use "
            "neither --freeze-layers with a number nor --layer-decay."
        )
    depths = {}
    for name, _ in model.named_parameters():
        if name.startswith(f"{stack}."):
            depths[name] = int(name.removeprefix(f"{stack}.").partition(".")[0]) + 1
        elif name.startswith("encoder.") and not name.startswith("encoder.final_norm"):
            depths[name] = 0
        else:
            depths[name] = count + 1
    return depths


def _dense_of(pooler: nn.Module | None) -> nn.Linear | None:
    """The linear layer of a checkpoint's pooler."""
    modules: Sequence[nn.Module] = [] if pooler is None else list(pooler.modules())
    return next((m for m in modules if isinstance(m, nn.Linear)), None)


def _dropout(config: Any) -> float:
    """As the family's own classifier: its own setting where there is one, else the encoder's."""
    for name in ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "dropout"):
        value = getattr(config, name, None)
        if isinstance(value, int | float):
            return float(value)
    return 0.1


def _takes_types(encoder: Any) -> bool:
    import inspect

    return "token_type_ids" in inspect.signature(encoder.forward).parameters
