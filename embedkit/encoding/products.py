"""The matrix products of the packed forward, which take the places of a model's linear layers.

    nn.Linear --hasten--> _product      fp32: weights laid out once as the processor wants them
                          _gelu_product bf16 on CUDA: the GELU behind a product is part of it
                          Joined        CUDA: query, key and value are one product of three parts
    _product --calibrate-> _int8_product int8: inputs and weights in 8 bits, sums in 32
    nn.Linear ----------> LinearToTrain fine-tuning: the same products, and their gradients

Two things are notable. First, a product over 31 rows may sum in another order than one over 32:
libraries choose their kernel by the number of rows. All inputs are therefore filled with zeros to a
multiple of ``ROWS``, and this is what makes the bits of a text independent of its company. Second,
int8 takes its ranges from texts beside this module and not from the corpus, so that a vector does
not depend on what else is embedded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.model import PackedBatch, PlainModel
from embedkit.encoding.tokenizer import TextTokenizer
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.errors import UsageError
from embedkit.scale import undisturbed

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
BY_ONEDNN = _HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() != "AVX2"
"""True if oneDNN computes fp32 products on CPU, else torch's own BLAS. With AVX2 alone that is MKL,
which is faster there, but sums in another order with several threads or below 64 rows; torch for
macOS comes without oneDNN."""


ROWS = 32 if BY_ONEDNN else 64
"""On CPU batches are filled up to a multiple of so many rows. oneDNN makes a kernel for every new
shape, which takes milliseconds and megabytes; and a single row would be summed in another order."""


def filled(values: Tensor) -> Tensor:
    """On CPU, pad with rows of zeros to a multiple of :data:`ROWS`."""
    missing = -len(values) % ROWS
    # a GPU gains nothing from full rows, and batches must not depend on the processor beside it
    if not missing or values.device.type != "cpu":
        return values
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


_CALIBRATED = 256  # tokens of the longest text that fixes the ranges of int8


def _calibration(checkpoint: Checkpoint, tokenizer: TextTokenizer) -> TokenizedTexts:
    """Texts whose activations fix the ranges of int8: single ones, and several as one."""
    # in a file, as they are data; of the package, so that a vector does not depend on the corpus
    texts = Path(__file__).with_name("calibration.txt").read_text("utf-8").splitlines()
    texts += [" ".join(texts[i : i + 6]) for i in range(0, len(texts), 3)]
    # nor on the limit that the user states, which cuts no short text
    longest = int(min(checkpoint.positions, checkpoint.limit, _CALIBRATED))
    settings = TokenizerSettings(longest, prefix=checkpoint.prefix)
    return tokenizer.encode(texts, settings=settings)


_SMOOTH = 0.65
"""How far int8 moves the width of inputs to their weights: 0 not at all, 1 wholly."""


_LARGE = 2.0**23
"""From here on float32 has no fractions: adding it rounds, and leaves integers in the low bits."""


running = threading.local()
"""``now`` is the forward that runs in this thread."""


GELU = {"GELUActivation": "none", "NewGELUActivation": "tanh", "GELUTanh": "tanh"}
"""Classes of activations in transformers, with the name of their form in torch. By their names,
since to import them takes as long as torch does."""


_QKV = (
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q_proj", "k_proj", "v_proj"),
    ("q", "k", "v"),
)
"""Names of the products of an attention in the families of transformers."""


_INNER = (("dense", "intermediate_act_fn"), ("lin1", "activation"), ("ffn", "activation"))
"""Names of the first product of a feed-forward block, and of the activation that follows it."""


def hasten(module: nn.Module, *, join: bool = False) -> None:
    """Replace products, norms and activations in a module by faster equal ones.

    ``join`` computes queries, keys and values in one product, and in bf16 the GELU with the product
    before it.
    """
    # a list first: the tree changes while it is walked
    for parent in list(module.modules()):
        children = dict(parent.named_children())
        for names in _QKV if join else ():
            # before single layers are replaced below, while these are still plain ones
            if {*names} <= children.keys() and _joins(linears := [children[n] for n in names]):
                joined = Joined(linears)
                for place, name in enumerate(names):
                    setattr(parent, name, _computing(partial(joined.part, place=place)))
        for pair in _INNER if join else ():
            product, activation = (children.get(name) for name in pair)
            # the activation becomes an identity and keeps its place, since the parent calls it by
            # name
            if type(activation).__name__ in GELU and _takes_gelu(product):
                setattr(parent, pair[0], _computing(_gelu_product(product)))
                setattr(parent, pair[1], nn.Identity())
        for name, child in list(parent.named_children()):
            # ranges that calibrate() has left on the layer: int8 was asked for
            if seen := vars(child).get("seen"):
                setattr(parent, name, _computing(_int8_product(child, *seen)))
            elif type(child) is nn.Linear and _packs(child.weight):
                setattr(parent, name, _computing(_product(child)))
            elif form := GELU.get(type(child).__name__):
                in_place = partial(torch.ops.aten.gelu_, approximate=form)
                setattr(parent, name, _computing(in_place))
            elif type(child).__name__.endswith("RMSNorm") and hasattr(child, "weight"):
                setattr(parent, name, _computing(_rms_norm(child)))


def _computing(function: Callable[[Tensor], Any]) -> nn.Module:
    """A module that computes a function, in the place of another."""
    module = nn.Module()
    module.forward = function
    return module


def _joins(linears: list[Any]) -> bool:
    """True if products have one input, and all of them a bias or none."""
    plain = all(type(each) is nn.Linear for each in linears)
    return plain and len({(each.in_features, each.bias is None) for each in linears}) == 1


class Joined:
    """Several products of one input, computed at once: three launches become one.

    The modules of transformers ask for each by itself, with the same tensor. The first that asks
    computes all; they stay with the forward, not here, since several threads may run one model.
    """

    def __init__(self, linears: list[Any]) -> None:
        self.weight = torch.cat([each.weight.detach() for each in linears])
        biases = [each.bias.detach() for each in linears if each.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.sizes = [each.out_features for each in linears]

    def part(self, x: Tensor, place: int) -> Tensor:
        """Return one of the products of an input."""
        products = running.now.products
        # by identity: a layer that runs twice asks with another tensor, and the one that is kept
        # here cannot be freed meanwhile and its address reused
        before, result = products.get(self, (None, None))
        if before is not x:
            result = linear(x, self.weight, self.bias)
            products[self] = x, result
        if place == len(self.sizes) - 1:  # asked for last: nothing is kept through the layer
            products.pop(self)
        part: Tensor = result.split(self.sizes, dim=-1)[place]
        return part


def _takes_gelu(product: Any) -> bool:
    """True for a product whose result bf16 rounds more than the form of its GELU matters."""
    plain = type(product) is nn.Linear and product.bias is not None
    return plain and product.weight.dtype == torch.bfloat16


def _gelu_product(layer: Any) -> Callable[[Tensor], Tensor]:
    """A linear layer and its GELU in one kernel of cuBLASLt: an eighth of a forward is saved.

    Its GELU is the form with tanh, up to 5e-4 from the other one: less than bf16 rounds, and it is
    applied to sums that were not rounded before. Vectors come no further from fp32 than those of
    two kernels (``benchmarks.gpu --only correctness``); in fp16 they would.
    """
    # a transposed view, as addmm takes its second matrix, without a copy
    weight, bias = layer.weight.detach().t(), layer.bias.detach()

    def compute(x: Tensor) -> Tensor:
        rows = torch.ops.aten._addmm_activation(bias, x.flatten(0, -2), weight, use_gelu=True)
        return rows.view(*x.shape[:-1], -1)  # type: ignore[no-any-return]

    return compute


def _rms_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """Root mean square normalisation in one kernel, where transformers launches six.

    Some families, such as Gemma, store weights less one: a new norm of theirs has zeros. In half
    precision 1 + weight would lose digits, so that they are multiplied in fp32, as there.
    """
    eps = getattr(norm, "variance_epsilon", None) or norm.eps
    # found by making a new norm of width 1: its weights are zeros where 1 is added, else ones
    less_one = not type(norm)(1).weight.detach().any()
    weight = 1 + norm.weight.detach().float() if less_one else norm.weight.detach()

    def compute(x: Tensor) -> Tensor:
        widened = x.float() if less_one else x
        return rms_norm(widened, weight.shape, weight, eps).type_as(x)

    return compute


def _packs(weight: Tensor) -> bool:
    """True if oneDNN computes products, with packed weights."""
    if weight.device.type != "cpu" or not BY_ONEDNN:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _product(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """A linear layer by oneDNN, with weights packed once."""
    weight = layer.weight.detach().contiguous()
    # 1024 rows are a hint for the layout, not a limit
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1024)
    return partial(_by_onednn, weight=packed, bias=layer.bias)


class LinearToTrain(nn.Linear):
    """A linear layer that is computed by oneDNN with its gradients, where that is used.

    torch's own products are MKL's, which knows no AVX-512 on processors of AMD: there these take
    half the time (240 instead of 110 billion operations a second, one thread of a Zen 5). A layer
    is given this class in place of its own, since it adds no state: names and weights stay.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the products of the rows of a tensor."""
        # autocast has products of its own, and oneDNN none of float64 or of no rows, which an
        # adapter of X-MOD gets where a batch has no text of its language
        autocast = torch.is_autocast_enabled(input.device.type)
        usual = input.dtype == torch.float32 and input.numel()
        if autocast or not _packs(self.weight) or not usual:
            return super().forward(input)
        product: Tensor = _TrainedProduct.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return product


class _TrainedProduct(torch.autograd.Function):
    """y = x W' + b by oneDNN, and its gradients: g W of x, g' x of W, and the sum of g of b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        product = _by_onednn(x, weight, bias)
        # oneDNN's is a view of its rows, which autograd keeps from being changed in place, as
        # DeBERTa and Longformer change their queries; here it is no view, and not copied either
        return torch.ops.aten._unsafe_view(product, product.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, needed = grad.flatten(0, -2), ctx.needs_input_grad
        # frozen weights, and what enters the first layer that is trained, need no gradient
        return (
            _by_onednn(grad, weight.t()) if needed[0] else None,
            _by_onednn(rows.t(), x.flatten(0, -2).t()) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@undisturbed()
def calibrate(plain: PlainModel, tokenizer: TextTokenizer) -> None:
    """Record the range of every input of linear layers, so that :func:`hasten` takes int8."""

    def widen(layer: Any, args: Any) -> None:
        low, high = torch.aminmax(args[0].flatten(0, -2), dim=0)
        layer.seen = torch.minimum(layer.seen[0], low), torch.maximum(layer.seen[1], high)

    # the exact class, as in hasten: a subclass may compute something else
    layers: list[Any] = [m for m in plain.module.modules() if type(m) is nn.Linear]
    if not layers:  # as of GPT-2, whose weights lie the other way
        raise UsageError("its products are not computed in 8 bits.", precision="int8")
    hooks = [layer.register_forward_pre_hook(widen) for layer in layers]
    for layer in layers:
        # from 0 on, so that 0 lies within every range and is exact in 8 bits
        layer.seen = torch.zeros(2, layer.in_features).unbind()
    # one text at a time: padding would widen ranges by values that no text has
    for text in _calibration(plain.checkpoint, tokenizer):
        ids = torch.from_numpy(text.ids.astype(np.int64))
        batch = PackedBatch.of(ids, torch.zeros_like(ids), [len(ids)])
        plain.forward(batch, [plain.n_layers], lambda *_: None)
    for hook in hooks:
        hook.remove()


def _int8_product(layer: Any, low: Tensor, high: Tensor) -> Callable[[Tensor], Any]:
    """A linear layer in 8 bits, exact in its integers: a row's result depends on that row alone.

    Inputs have 8 bits of one fixed range, weights 7 of a range for each output: with 8 bits, the
    sums of processors without VNNI would overflow. Before, wide inputs are divided by a factor and
    their weights multiplied by it (SmoothQuant, Xiao et al., 2023).
    """
    weight = layer.weight.detach()
    # low is at most 0 and high at least 0, so that this is the largest absolute input
    widest = torch.maximum(-low, high).clamp(min=1e-6)
    factor = widest**_SMOOTH / weight.abs().amax(0).clamp(min=1e-6) ** (1 - _SMOOTH)
    weight = weight * factor
    # 63 and not 127: seven bits, one step for each output
    steps = weight.abs().amax(1).clamp(min=1e-12) / 63
    rounded = (weight / steps[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, None)
    lowest, highest = float((low / factor).min()), float((high / factor).max())
    step = max((highest - lowest) / 255, 1e-12)
    # the integer that stands for 0.0 of the input; weights are symmetric, their zeros are 0
    zero, zeros = round(-lowest / step), torch.zeros(len(weight)).long()
    # division by the factor, scaling and shift are one multiplication and one addition
    shift, inverse = torch.tensor(_LARGE + zero), 1 / (factor * step)
    weights = packed, steps, zeros, layer.bias

    def compute(x: Tensor) -> Any:
        # adding 2**23 rounds to even, as round() does, and puts the integer into the low bits;
        # to(uint8) takes the lowest eight. In half the time of round(), clamp and conversion
        moved = torch.addcmul(shift, x, inverse).clamp_(_LARGE, _LARGE + 255)
        rounded = moved.view(torch.int32).to(torch.uint8)
        return torch.ops.onednn.qlinear_pointwise(
            rounded, step, zero, *weights, 1.0, 0, torch.float32, "none", [], ""
        )

    return compute
