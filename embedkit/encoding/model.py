"""The interface of models: packed token ids in, hidden states per layer out.

:class:`PlainModel` runs the forward of transformers, for every architecture;
:mod:`embedkit.encoding.packed` runs BERT's family without any padding.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedkit.encoding.checkpoint import Checkpoint, quiet_transformers
from embedkit.encoding.device import Link, is_out_of_memory
from embedkit.encoding.families import FAMILIES
from embedkit.errors import DamagedModelError, ModelError, first_line
from embedkit.types import Int64

__all__ = [
    "PRECISIONS", "PackedBatch", "PlainModel", "check_complete", "load_model", "load_module",
    "mismatched_keys",
]  # fmt: skip

logger = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST_TRUSTED = "2.10"
"""First torch whose restricted reader of pickle files has no known hole."""

OnLayer = Callable[[int, Tensor], None]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences for the model, one after the other without padding.

    Attributes:
        ids: ``(tokens,)`` int64, on the model's device.
        type_ids: ``(tokens,)`` int64 segment ids, on the model's device.
        offsets: ``(sequences + 1,)`` int64, on the model's device: where each sequence begins,
            and where the last one ends.
        lengths: tokens of each sequence, on the host, so that nothing waits for the device.
    """

    ids: Tensor
    type_ids: Tensor
    offsets: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, ids: Tensor, type_ids: Tensor, lengths: Sequence[int]) -> PackedBatch:
        """A batch from its tokens and the lengths of its sequences."""
        ends = torch.tensor([0, *lengths], device=ids.device).cumsum(0)
        return cls(ids, type_ids, ends, tuple(lengths))


class PlainModel:
    """The transformers forward, with padding added and removed inside."""

    name = "transformers"
    pads = True

    def __init__(
        self, model: Any, checkpoint: Checkpoint, *, pad_id: int, pooler: nn.Module | None
    ) -> None:
        self.n_layers = checkpoint.n_layers
        self.width = checkpoint.width
        self.device = next(model.parameters()).device
        self.pooler = pooler
        self.module = model
        self.dtype = next(model.parameters()).dtype
        self.n_parameters = sum(p.numel() for p in model.parameters())
        self.n_parameters += sum(p.numel() for p in pooler.parameters()) if pooler else 0
        self._pad_id = pad_id
        self._link = Link(self.device)
        self._takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
        path = FAMILIES[checkpoint.model_type].layers
        owner, _, name = (path or "").rpartition(".")
        self._stack = (model.get_submodule(owner), name) if path else None
        self.all_layers = list(getattr(*self._stack)) if self._stack else []
        # the first call makes transformers hook the layers that it finds: all must be there
        self._takes_layers = self._knows_last_layer_alone()

    @torch.inference_mode()
    def _knows_last_layer_alone(self) -> bool:
        """Whether this transformers gives chosen layers, each at its index; older ones give all.

        Some of those take a list of layers and leave out the last one all the same.
        """
        one = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        mask = _Mask.of(torch.ones_like(one), whole=True)
        output = self.module(
            input_ids=one, attention_mask=mask, output_hidden_states=[self.n_layers]
        )
        states = output.hidden_states
        return len(states) == self.n_layers + 1 and states[-1] is not None

    @torch.inference_mode()
    def forward(
        self,
        batch: PackedBatch,
        layers: Collection[int],
        on_layer: OnLayer,
        *,
        first_only: bool = False,
    ) -> None:
        """Run the batch and call ``on_layer(layer, hidden)`` for each layer asked for, ascending.

        ``hidden`` is ``(tokens, width)`` on the model's device in its dtype. Layers above the
        highest one asked for are not computed where the architecture allows.

        Args:
            batch: the sequences.
            layers: 0 is the embedding output.
            on_layer: receives the hidden states.
            first_only: of the highest layer, only the first token of every sequence is wanted:
                its ``hidden`` is ``(sequences, width)``.
        """
        order = sorted(layers)
        self._run_only(max(order[-1], 1))
        shape = len(batch.lengths), max(batch.lengths)
        (index,) = self._link.send(_token_index(batch.lengths, shape[1]))
        mask = torch.zeros(shape[0] * shape[1], dtype=torch.int64, device=self.device)
        mask = mask.index_fill_(0, index, 1).view(shape)
        whole = min(batch.lengths) == shape[1]
        inputs = {
            "input_ids": self._padded(batch.ids, index, shape, self._pad_id),
            "attention_mask": _Mask.of(mask, whole=whole),
        }
        if self._takes_types:
            inputs["token_type_ids"] = self._padded(batch.type_ids, index, shape, 0)
        wanted = order if self._takes_layers else True
        output = self.module(**inputs, output_hidden_states=wanted)
        states = dict(enumerate(output.hidden_states))
        states[self.n_layers] = output.last_hidden_state  # 4.57 lists it without ModernBERT's norm
        for layer in order:
            hidden = states[layer]
            first = first_only and layer == order[-1]
            on_layer(layer, hidden[:, 0] if first else hidden.flatten(0, 1).index_select(0, index))

    @torch.inference_mode()
    def pool(self, first: Tensor) -> Tensor:
        """The checkpoint's own pooler on the last layer's first tokens, ``(sequences, width)``.

        Raises:
            ModelError: the checkpoint has no pooler weights.
        """
        if self.pooler is None:
            raise ModelError("this checkpoint has no pooler weights.")
        return self.pooler(first.unsqueeze(1)).float()  # type: ignore[no-any-return]

    def _run_only(self, count: int) -> None:
        if self._stack:
            module, name = self._stack
            if len(getattr(module, name)) != count:
                setattr(module, name, nn.ModuleList(self.all_layers[:count]))

    def _padded(self, values: Tensor, index: Tensor, shape: tuple[int, int], fill: int) -> Tensor:
        padded = torch.full((shape[0] * shape[1],), fill, dtype=torch.int64, device=self.device)
        return padded.index_copy_(0, index, values).view(shape)


def _token_index(lengths: Sequence[int], longest: int) -> Int64:
    """Where the tokens of a batch are in the padded one, sequence after sequence.

    Computed on the host from the lengths, so that nothing waits for the device.
    """
    counts = np.array(lengths)
    before = np.arange(len(counts)) * longest - (np.cumsum(counts) - counts)
    return np.asarray(np.arange(counts.sum()) + np.repeat(before, counts))


class _Mask(Tensor):
    """An attention mask, ones and zeros; the host has a flag for whether it is all ones.

    transformers checks that for every mask, and would wait for the device. What it computes from
    the mask apart from copies in another dtype is an ordinary tensor.
    """

    whole: bool

    @classmethod
    def of(cls, values: Tensor, *, whole: bool) -> _Mask:
        mask = values.as_subclass(cls)
        mask.whole = whole
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = getattr(args[0], "whole", None) if args else None
        if whole is not None and func in (torch.all, Tensor.all) and len(args) == 1 and not kwargs:
            return torch.tensor(whole)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs or {})
            is_one = (
                func in (Tensor.eq, Tensor.__eq__) and isinstance(args[1], int) and args[1] == 1
            )
            if whole is not None and (is_one or func in (Tensor.to, Tensor.bool)):
                return cls.of(result, whole=whole)
        return result


def load_model(
    checkpoint: Checkpoint, *, pad_id: int, device: torch.device, dtype: torch.dtype
) -> PlainModel:
    """Load the weights of a checkpoint.

    Args:
        checkpoint: where they are.
        pad_id: token id to fill with.
        device: where to run.
        dtype: in which precision.

    Raises:
        ModelError: weights are missing, of another shape, or cannot be read.
    """
    model, report = load_module(checkpoint, "AutoModel", dtype=dtype)
    missing = check_complete(checkpoint, report)
    pooler = getattr(model, "pooler", None)
    if hasattr(model, "pooler"):
        model.pooler = None  # applied to what is asked for, not inside every forward
    if missing:  # only the pooler's: transformers has filled it with random numbers
        pooler = None
    model.eval().to(device)
    try:
        return PlainModel(model, checkpoint, pad_id=pad_id, pooler=_usable(pooler, device))
    except RuntimeError as error:
        if dtype == torch.float32 or is_out_of_memory(error):
            raise
        raise ModelError(  # as DeBERTa in transformers 5.23
            f"{checkpoint.name} cannot run in half precision ({first_line(error)}). Use "
            "precision='fp32'."
        ) from error


def _check_reader(checkpoint: Checkpoint) -> None:
    """Raise a :class:`ModelError` if this torch does not read pickle files safely."""
    file = checkpoint.weights[0]
    if torch.__version__ < _FIRST_TRUSTED:
        raise ModelError(
            f"{checkpoint.name} has only {file}, a pickle file, and a pickle file can harm the "
            f"restricted reader of PyTorch {torch.__version__} (CVE-2026-24747). Update torch to "
            f"{_FIRST_TRUSTED} or newer, or use a checkpoint with safetensors."
        )
    logger.info(
        f"{checkpoint.name} has only {file}, a pickle file; it is read by PyTorch's restricted "
        "reader, which runs no code"
    )


def load_module(
    checkpoint: Checkpoint, kind: str, *, dtype: torch.dtype, device: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, and what its loader reports: missing and unused weights.

    Args:
        checkpoint: where the weights are.
        kind: name of the class in transformers, such as ``AutoModel``.
        dtype: in which precision.
        device: ``meta`` for a model without numbers.

    Raises:
        ModelError: the weights cannot be read.
    """
    if checkpoint.is_pickle:
        _check_reader(checkpoint)
    quiet_transformers()
    import transformers

    try:
        model, report = getattr(transformers, kind).from_pretrained(
            str(checkpoint.folder),
            config=transformers.AutoConfig.for_model(**checkpoint.config),
            dtype=dtype,
            use_safetensors=not checkpoint.is_pickle,
            weights_only=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are named by who calls
            output_loading_info=True,
            **({} if device is None else {"device_map": device}),
        )
    except Exception as error:  # the loader raises what its many formats raise
        reason = f" ({first_line(error)})"
        if any(isinstance(cause, pickle.UnpicklingError) for cause in _causes(error)):
            reason = (  # its own message advises to load the file anyway
                f": {checkpoint.weights[0]} is damaged, or holds something else than tensors, "
                "which could run code"
            )
        raise DamagedModelError(
            f"{checkpoint.name}: the weights cannot be loaded{reason}."
        ) from error
    return model, report


def mismatched_keys(report: dict[str, Any]) -> set[str]:
    """Names of weights that have another shape than the configuration says."""
    found = report["mismatched_keys"]  # names, or tuples that begin with them
    return {key if isinstance(key, str) else key[0] for key in found}


def check_complete(checkpoint: Checkpoint, report: dict[str, Any]) -> set[str]:
    """Return which of the pooler's weights are missing in an encoder that was loaded.

    Raises:
        ModelError: others are missing, or a weight has another shape.
    """
    missing = set(report["missing_keys"])
    wrong = {key for key in missing if not key.startswith("pooler.")} | mismatched_keys(report)
    if wrong:
        raise ModelError(
            f"{checkpoint.name}: {len(wrong)} of the encoder's weights are missing or of another "
            f"shape, such as {min(wrong)}. Random numbers would take their place; the file does "
            "not fit its config.json."
        )
    return missing


def _usable(pooler: Any, device: torch.device) -> nn.Module | None:
    """The pooler as a module of hidden states, ``(n, 1, width)``; ``None`` for anything else."""
    if isinstance(pooler, nn.Linear):  # ALBERT's, which has the other steps in its forward
        pooler = nn.Sequential(nn.Flatten(), pooler, nn.Tanh())
    return pooler.eval().to(device) if isinstance(pooler, nn.Module) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it; older transformers wrap the first one."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
