"""Models by transformers: device, loading, the plain forward, description of a checkpoint.

    checkpoint ─ load_module ─► a class of transformers, and its report of missing weights
               ─ load_weights ► the encoder, what it lacks an error, what it leaves out a statement
               ─ load_model ──► PlainModel, tried with one token; the pooler is set apart

transformers fills what a file lacks with random numbers, and passes over what its class does not
use; both would be vectors of no model, without a word. So its report is read, and only the pooler
may be missing. The plain forward pads and unpads inside of itself: outside of it a batch is always
sequences one after the other, for it as for the packed one.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from embedkit import choices, errors
from embedkit.choices import check_choice
from embedkit.display import Shown
from embedkit.encoding import bert, inventory
from embedkit.encoding.casing import lowered
from embedkit.encoding.checkpoint import (
    Checkpoint,
    check_pickle,
    find_checkpoint,
    quiet_transformers,
)
from embedkit.encoding.definition import AdapterConfig, read_data
from embedkit.encoding.tokenizer import TextTokenizer, choose_max_length, load_tokenizer
from embedkit.errors import DamagedModelError, ModelError, Option, UsageError, first_line
from embedkit.scale import undisturbed

logger = logging.getLogger(__name__)


@cache
def _outlive_forks() -> None:
    # a process that is forked, as by a server that loads before, has none of the threads of the
    # first one, for which it would wait for ever
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


BATCH_TOKENS = {"int8": 1_024, "cpu": 2_048, "cuda": 65_536}
"""Tokens per batch by precision or device; on CPU few, so that activations stay in the cache, and
in int8, which has more of them, so that their memory is not given back after every batch."""

_NO_MEMORY = re.compile(
    "[Cc]an(no|')t allocate memory|std::bad_alloc|_STATUS_ALLOC_FAILED|CUDA error: out of memory"
)
"""Messages of libraries without a class of errors for lack of memory, pinned memory included."""


def choose_device(name: str) -> torch.device:
    """The device of a name; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", name):
        raise UsageError("expected auto, cpu, cuda or cuda:0.", device=name)
    device, count = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UsageError(f"PyTorch sees {count} CUDA devices. Use cpu.", device=name)
    return device


def computes_bf16(device: torch.device) -> bool:
    """True if a device has instructions for bf16; torch emulates it on others."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # either set of instructions is enough; torch has no public name for the question
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def choose_precision(name: str | None, device: torch.device) -> str:
    """The precision of the computation.

    On CUDA ``auto`` and ``None`` are bf16, or fp16 below compute capability 8.0; on CPU ``auto`` is
    bf16 if the processor has instructions for it, else fp32, as ``None`` is.
    """
    # a stated precision is taken as it is, even where the device only emulates it
    if name not in (None, "auto"):
        check_choice(choices.PRECISIONS, precision=name)
        return str(name)
    if device.type == "cpu" and (name is None or not computes_bf16(device)):
        return "fp32"
    return "bf16" if computes_bf16(device) else "fp16"


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error means that memory ran out, whatever its class."""
    # of NumPy and the allocator of CUDA; on CPU torch raises a plain RuntimeError
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return bool(_NO_MEMORY.search(str(error)))


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

MAKING = RLock()
"""Held while a model is made: transformers patches torch for the whole process then, and of two
threads that do so at once the patch of one would stay for good."""

OnLayer = Callable[[int, Tensor], None]


class PackedBatch(NamedTuple):
    """Concatenated sequences without padding; tensors are on the model's device."""

    ids: Tensor  # (tokens,) int64
    type_ids: Tensor  # (tokens,) int64
    offsets: Tensor  # (sequences + 1,) int64, starts of the sequences and the end of the last one
    lengths: tuple[int, ...]  # on the host, so that nothing waits for the device

    @classmethod
    def of(cls, ids: Tensor, type_ids: Tensor, lengths: Sequence[int]) -> PackedBatch:
        """A batch from its tokens and the lengths of its sequences."""
        ends = torch.tensor([0, *lengths], device=ids.device).cumsum(0)
        return cls(ids, type_ids, ends, tuple(lengths))


@contextmanager
def whole_fp32(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Keep products in fp32 from TF32, which rounds inputs to 10 bits, on CUDA.

    Some containers switch TF32 on for all processes, and vectors said to be fp32 would be off in
    the third digit. The switch is the process's own, hence set for a forward and set back.
    """
    if device.type != "cuda" or dtype != torch.float32:
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    # the older name is the only one before torch 2.9; there, both at once are an error
    newer = hasattr(matmul, "fp32_precision")
    name, whole = ("fp32_precision", "ieee") if newer else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, whole)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def takes_segments(module: Any) -> bool:
    """Whether a model computes the segments of a tokenizer.

    It has embeddings of them; those of XLNet are of pairs of tokens and have no number in its
    configuration. DeBERTa may have none, and passes over them.
    """
    takes = "token_type_ids" in inspect.signature(module.forward).parameters
    segments = getattr(module.config, "type_vocab_size", 0) or module.config.model_type == "xlnet"
    return takes and bool(segments)


def usable_length(checkpoint: Checkpoint, tokenizer: TextTokenizer, limit: int | None) -> int:
    """As :func:`choose_max_length`; ``ModelError`` where vectors would depend on other texts.

    In a batch with a long text the positions of longrope and of NomicBERT's own code are other ones
    for all texts, and the sparse attention of BigBird draws its tokens anew for every length. Up to
    some length they compute what every text would get alone.
    """
    length, config = choose_max_length(checkpoint, tokenizer, limit), checkpoint.built_config()
    rope, bounds = getattr(config, "rope_parameters", None) or {}, dict[str, int]()
    # one for all layers, or one for each kind of layer
    for kind in (rope, *rope.values()):
        if isinstance(kind, dict) and kind.get("rope_type") == "longrope":
            key = "rope_scaling" if "rope_scaling" in checkpoint.config else "rope_parameters"
            bounds[f"{key} 'longrope'"] = kind["original_max_position_embeddings"]
    if checkpoint.config.get("rotary_scaling_factor"):
        bounds["rotary_scaling_factor"] = checkpoint.config.get("max_trained_positions", 2048)
    if getattr(config, "attention_type", "") == "block_sparse":
        key = "attention_type 'block_sparse' (in a copy of the folder it may be 'original_full')"
        bounds[key] = (5 + 2 * config.num_random_blocks) * config.block_size
    for key, bound in bounds.items():
        if length > bound:
            raise ModelError(
                f"{checkpoint.name}: config.json says {key}: vectors would depend on other texts "
                f"of more than {bound} tokens. Use {Option('max_length', bound)}."
            )
    return length


class Model:
    """The modules of a checkpoint on a device, and what runs batches through them.

    There are two: :class:`PlainModel`, the forward of transformers, which is slow and cannot be
    wrong, and :class:`~embedkit.encoding.packed.PackedModel`, which has to agree with it.
    """

    name: str
    pads: bool
    one_thread = False
    """Whether a batch runs on one thread, where several would change its bits."""
    short_on_two = False
    """Whether two threads change no bit of a batch that fills one step of rows: a short text alone,
    as a process has it that answers requests."""

    def __init__(self, module: Any, pooler: nn.Module | None, checkpoint: Checkpoint) -> None:
        # one device and one dtype hold for all weights, so that any of them tells
        weight = next(module.parameters())
        self.module, self.pooler, self.checkpoint = module, pooler, checkpoint
        self.n_layers, self.width = checkpoint.n_layers, checkpoint.width
        self.device: torch.device = weight.device
        self.dtype: torch.dtype = weight.dtype
        # asked once: a look at a signature takes longer than a product of a short text
        self._takes_types = takes_segments(module)
        _outlive_forks()

    @property
    def leaves_words(self) -> bool:
        """Whether transformers would take segments for words and add their embeddings.

        So do GPT-2 and others whose configuration has no number of segments, not even none.
        """
        takes = "token_type_ids" in inspect.signature(self.module.forward).parameters
        return takes and not (self._takes_types or hasattr(self.module.config, "type_vocab_size"))

    def forward(
        self,
        batch: PackedBatch,
        layers: Collection[int],
        on_layer: OnLayer,
        *,
        first_only: bool = False,
    ) -> None:
        """Run the batch and call ``on_layer(layer, hidden)`` for each requested layer, ascending.

        ``hidden`` is ``(tokens, width)`` on the model's device in its dtype. With ``first_only``
        the highest layer has only the first token of every sequence: ``(sequences, width)``.
        """
        with torch.inference_mode(), whole_fp32(self.device, self.dtype):
            self._run(batch, layers, on_layer, first_only=first_only)

    def _run(
        self, batch: PackedBatch, layers: Collection[int], on_layer: OnLayer, *, first_only: bool
    ) -> None:
        raise NotImplementedError

    def pool(self, first: Tensor) -> Tensor:
        """The checkpoint's pooler on the last layer's first tokens, ``(sequences, width)``."""
        assert self.pooler is not None
        with torch.inference_mode(), whole_fp32(self.device, self.dtype):
            return self.pooler(first.unsqueeze(1)).float()  # type: ignore[no-any-return]


class PlainModel(Model):
    """The transformers forward, with padding added and removed inside."""

    name = "transformers"
    pads = True

    def __init__(
        self, module: Any, pooler: nn.Module | None, checkpoint: Checkpoint, *, pad_id: int
    ) -> None:
        super().__init__(module, pooler, checkpoint)
        self._pad_id = pad_id

    def _run(
        self, batch: PackedBatch, layers: Collection[int], on_layer: OnLayer, *, first_only: bool
    ) -> None:
        # where padding changes vectors, sequences of one length run together and without it
        apart = len(set(batch.lengths)) > 1 and self._sees_padding
        parts = [self._states(part) for part in (_by_length(batch) if apart else [batch])]
        for layer in sorted(layers):
            first = first_only and layer == max(layers)
            # of all rows those of tokens, not of padding
            hidden = [s[layer][:, 0] if first else s[layer].flatten(0, 1)[p] for s, p in parts]
            on_layer(layer, hidden[0] if len(hidden) == 1 else torch.cat(hidden))

    def _states(self, batch: PackedBatch) -> tuple[tuple[Tensor, ...], Tensor]:
        """Hidden states ``(sequences, tokens, width)`` of all layers, and where tokens stand.

        The places are numbers of rows of all sequences, made on the host, which knows the lengths:
        to select by a mask, it would have to wait for the device to count the tokens.
        """
        mask = np.arange(max(batch.lengths)) < np.array(batch.lengths)[:, None]
        places = torch.tensor(np.flatnonzero(mask)).to(self.device, non_blocking=True)

        def padded(values: Tensor, fill: int) -> Tensor:
            rows = values.new_full((mask.size,), fill)
            return rows.index_copy_(0, places, values).view(mask.shape)

        attended = padded(torch.ones_like(batch.ids), 0)
        inputs = {"input_ids": padded(batch.ids, self._pad_id), "attention_mask": attended}
        if self._takes_types:
            inputs["token_type_ids"] = padded(batch.type_ids, 0)
        output = self.module(**inputs, output_hidden_states=True)
        # the last of hidden_states is before the final norm in some families, last_hidden_state
        # never
        return (*output.hidden_states[:-1], output.last_hidden_state), places

    @cached_property
    def _sees_padding(self) -> bool:
        """Whether padding changes vectors, as in FNet, or where convolutions run over tokens."""
        # the same three tokens beside nine others, which pads them, and alone
        ids = torch.arange(12, device=self.device) % 3
        padded, alone = (
            self._states(PackedBatch.of(ids[: sum(n)], ids[: sum(n)] * 0, n))[0][-1][0, :3].float()
            for n in ([3, 9], [3])
        )
        limit = 1e-3 if self.dtype == torch.float32 else 5e-2
        return bool((padded - alone).norm() > limit * alone.norm())


def _by_length(batch: PackedBatch) -> list[PackedBatch]:
    """Parts of a batch, in its order, that need no padding."""
    groups = [[*equal] for _, equal in groupby(batch.lengths)]
    sizes = [sum(lengths) for lengths in groups]
    ids, types = (torch.split(values, sizes) for values in (batch.ids, batch.type_ids))
    return [PackedBatch.of(*part) for part in zip(ids, types, groups, strict=True)]


@undisturbed()
def load_model(
    checkpoint: Checkpoint,
    *,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype,
    light: bool = False,
) -> PlainModel:
    """Load the weights of a checkpoint; ``ModelError`` if they are missing or unreadable.

    The model's own ``checkpoint`` says what the weights turned out to lack; ``light`` is as for
    :func:`load_weights`.
    """
    model, has_pooler, checkpoint = load_weights(checkpoint, dtype=dtype, light=light)
    checkpoint.warn_of_unread()
    # a decoder would keep keys and values of all layers, which nothing reads here
    model.config.use_cache = False
    if checkpoint.config.get("is_encoder_decoder"):
        # its decoder would need inputs of its own
        model = model.get_encoder()
    if (pooler := getattr(model, "pooler", None)) is not None:
        model.pooler = nn.Identity()  # applied on request, not in every forward
    if isinstance(pooler, nn.Linear):  # ALBERT's forward has the other steps
        pooler = nn.Sequential(nn.Flatten(), pooler, nn.Tanh())
    # without weights in the file it holds random numbers, and is none
    pooler = pooler.eval().to(device) if isinstance(pooler, nn.Module) and has_pooler else None
    model.eval().to(device)
    try:
        plain = PlainModel(model, pooler, checkpoint, pad_id=pad_id)
        # one token shows at load, and not in the middle of a corpus, what cannot run at all
        token = torch.zeros(1, dtype=torch.int64, device=device)
        batch = PackedBatch.of(token, token, [1])
        with torch.inference_mode():
            states, _ = plain._states(batch)
        # a layer may hold several, as in ALBERT, and a model may widen or narrow its states at the
        # end, as Reformer and some sizes of OPT do
        came = len(states) - 1, sorted({tuple(hidden.shape[2:]) for hidden in states})
        if came != (plain.n_layers, [(plain.width,)]):
            raise ModelError(
                f"{checkpoint.name}: config.json says {plain.n_layers} layers of width "
                f"{plain.width}, and transformers gives {came[0]} of width "
                f"{' and '.join(' × '.join(map(str, shape)) for shape in came[1])}. "
                "Such a checkpoint is not computed here."
            )
        # in sound weights fp16 may overflow, too; broken ones are an error of the checkpoint
        named = () if states[-1].isfinite().all() else model.named_parameters()
        if broken := [name for name, weight in named if not weight.isfinite().all()]:
            raise DamagedModelError(
                f"{checkpoint.name}: {len(broken)} of its weights hold NaN or infinity, such as "
                f"{broken[0]}. Fetch the checkpoint again, or train it again."
            )
        return plain
    except Exception as error:  # of the models of transformers
        if is_out_of_memory(error) or isinstance(error, ModelError):
            raise
        remedy = Option("precision", "fp32", before=" Use ", after=".")  # as for DeBERTa
        problem = f"{checkpoint.name} cannot run on text alone, in {dtype} ({first_line(error)})."
        raise ModelError(f"{problem}{'' if dtype == torch.float32 else remedy}") from error


def load_weights(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str | None = None, light: bool = False
) -> tuple[Any, bool, Checkpoint]:
    """The encoder, whether it has a pooler, and the checkpoint with what its weights show.

    ``light`` takes the modules of :mod:`~embedkit.encoding.bert` where these can. All else is
    loaded by transformers, by the class that holds the encoder, without a decoder if there is one.
    """
    with MAKING:  # the type of new tensors is another one while transformers makes a model
        loaded = bert.load(checkpoint, dtype=dtype) if light else None
    if loaded is None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

        alone = checkpoint.model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
        kind = "AutoModelForTextEncoding" if alone else "AutoModel"
        loaded = load_module(checkpoint, kind, dtype=dtype, device=device)
    model, report = loaded
    # transformers fills a pooler that the file lacks with random numbers
    lacking = check_complete(checkpoint, report)
    has_pooler = not lacking and getattr(model, "pooler", None) is not None
    # unused weights of a head are expected, those of the encoder are a part that is not computed
    parts = [name for name, _ in model.named_children()]
    unread = inventory.first_unread(
        report["unexpected_keys"], parts, model.base_model_prefix, checkpoint.n_layers
    )
    return model, has_pooler, checkpoint.refusing(unread)


def load_module(
    checkpoint: Checkpoint, kind: str, *, dtype: torch.dtype, device: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, and its loader's report of missing and unused weights.

    ``kind`` is a class of transformers, such as ``AutoModel``; ``device="meta"`` loads no numbers.
    """
    for file in (checkpoint.weights[0], checkpoint.adapter):
        if file.endswith(".bin"):
            check_pickle(checkpoint.name, file)
            logger.info(f"{file} is a pickle file; PyTorch's restricted reader runs no code of it")
    import transformers

    config = checkpoint.built_config()
    # merging is a sum of products, which half precision would round; cast afterwards
    adapts = bool(checkpoint.adapter) and device != "meta"  # in full precision
    problem = f"{checkpoint.transformer / 'config.json'} cannot be used"
    try:
        # another class comes second, after its encoder
        if kind.startswith("Auto"):
            with MAKING, quiet_transformers(), torch.device("meta"):  # where no number takes memory
                # of a configuration of its own, into which transformers writes
                planned = getattr(transformers, kind).from_config(checkpoint.built_config())
            checkpoint.check_count(sum(weight.numel() for weight in planned.parameters()))
        problem = "the weights cannot be loaded"
        with MAKING, quiet_transformers(), _without_adapter(checkpoint) as folder:
            model, report = getattr(transformers, kind).from_pretrained(
                str(folder),
                config=config,
                dtype=torch.float32 if adapts else dtype,
                use_safetensors=not checkpoint.is_pickle,
                weights_only=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported by the caller
                output_loading_info=True,
                **({} if device is None else {"device_map": device}),
            )
        # names, or tuples that begin with them
        keys = report["mismatched_keys"]
        report["mismatched_keys"] = {key if isinstance(key, str) else key[0] for key in keys}
        return (_adapted(checkpoint, model).to(dtype) if adapts else model), report
    except ModelError:  # of adapter_config.json
        raise
    except Exception as error:  # the loader raises what its many formats raise
        if is_out_of_memory(error):
            problem = f"the memory does not suffice to load {checkpoint.name}."
            raise errors.EncodeError(problem) from error
        reason = first_line(error)
        # torch's message advises to load the file anyway
        if isinstance(error, UnpicklingError) and not adapts:
            reason = f"{checkpoint.weights[0]} is damaged, or holds other things than tensors"
        # the error of a dictionary is its key alone, which is the value of ours
        keys = [key for key, value in checkpoint.config.items() if repr(value) == reason]
        reason = f"{keys[0]}={reason} is not known" if keys else reason
        raise DamagedModelError(f"{checkpoint.name}: {problem} ({reason}).") from error


@contextmanager
def _without_adapter(checkpoint: Checkpoint) -> Iterator[Path]:
    """The folder of the transformer, or links to its files but those of an adapter.

    transformers would apply the adapter itself, and then report of no other weights whether they
    are missing.
    """
    if not checkpoint.adapter:
        yield checkpoint.transformer
        return
    with TemporaryDirectory(prefix="embedkit-") as scratch:
        for path in checkpoint.transformer.absolute().iterdir():
            # links and not copies: weights have gigabytes
            if not path.name.startswith("adapter_"):
                Path(scratch, path.name).symlink_to(path)
        yield Path(scratch)


def _adapted(checkpoint: Checkpoint, model: Any) -> Any:
    """A model with an adapter of peft merged into its weights."""
    import peft

    folder, file = str(checkpoint.transformer), checkpoint.adapter
    kind = read_data(Path(folder, "adapter_config.json"), AdapterConfig).get("peft_type")
    stated = f"adapter_config.json says peft_type={kind!r}"
    if kind not in peft.PeftType.__members__:
        raise ValueError(f"{stated}, which the installed peft does not have")
    settings = peft.PeftConfig.from_pretrained(folder)
    # each rank has rows of weights in the file
    ranks = [getattr(settings, "r", 0), *(getattr(settings, "rank_pattern", None) or {}).values()]
    rank = max(r for r in (0, *ranks) if isinstance(r, int))
    if rank > (checkpoint.transformer / file).stat().st_size:
        raise ValueError(f"adapter_config.json says r={rank}, which {file} does not hold")
    if settings.is_prompt_learning:
        raise ValueError(f"{stated}, which adds tokens and cannot be merged into weights")
    settings.inference_mode = True
    settings.megatron_config = None  # with it peft imports the module that the file names
    # of a model with a head, names begin with that of its encoder, in the weights and in settings
    # such as alpha_pattern: here it is put into a module without a head, whose weights are left out
    whole, inner = model, model.base_model_prefix
    weights = peft.utils.load_peft_weights(folder, device="cpu").keys()
    of_head = {name for name in weights if not name.startswith(f"base_model.model.{inner}.")}
    if len(of_head) == len(weights) or hasattr(model, inner):
        of_head.clear()
    else:
        whole = torch.nn.Module()
        setattr(whole, inner, model)
        whole.get_input_embeddings = model.get_input_embeddings  # which peft asks for
        names = [f".{name}" for name, _ in whole.named_modules()]
        saved = settings.modules_to_save or ()
        settings.modules_to_save = [s for s in saved if any(n.endswith(f".{s}") for n in names)]
        settings.task_type = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weights are counted below
        tuned = peft.get_peft_model(whole, settings)
        report = tuned.load_adapter(folder, "default")
    for problem, names in (
        ("weights of {} do not belong to the model", sorted({*report.unexpected_keys} - of_head)),
        ("weights that adapter_config.json asks for are missing in {}", report.missing_keys),
    ):
        if names:
            raise ValueError(f"{len(names)} {problem.format(file)}, such as {names[0]}")
    if not hasattr(tuned, "merge_and_unload"):
        raise ValueError(f"{stated}, which cannot be merged into weights")
    merged = tuned.merge_and_unload(safe_merge=True)
    return merged if whole is model else getattr(merged, inner)


def check_complete(checkpoint: Checkpoint, report: dict[str, Any]) -> set[str]:
    """Missing weights of the pooler; ``ModelError`` if others are missing or misshapen."""
    missing = set(report["missing_keys"])
    wrong = {key for key in missing if not key.startswith("pooler.")}
    wrong |= {*report["mismatched_keys"]}
    if wrong:
        first = min(wrong)
        # a file saved from a wrapped model has all names behind a prefix, which is worth saying
        prefixed = [key for key in report["unexpected_keys"] if key.endswith(f".{first}")]
        prefix = min(prefixed, default=first).removesuffix(first)
        renamed = f" Names in the file begin with {prefix!r}: remove it." if prefix else ""
        raise ModelError(
            f"{checkpoint.name}: {len(wrong)} of the encoder's weights are missing or of another "
            f"shape than config.json says, such as {first}.{renamed}"
        )
    return missing


@dataclass(frozen=True, slots=True, repr=False)
class ModelInfo(Shown):
    """A checkpoint, its numbers of weights and its modules."""

    name: str
    source: str
    folder: str
    revision: str | None
    model_type: str
    architecture: str  # class of transformers whose modules are listed
    n_layers: int
    width: int
    positions: int
    max_length: int
    vocabulary: int
    tokenizer: str
    has_pooler: bool
    sentence: str  # how its makers define a sentence vector
    prompts: dict[str, str]
    labels: tuple[str, ...]
    parameters: int
    encoder_parameters: int  # the pooler included
    modules: str  # as torch prints them
    missing: tuple[str, ...]  # or misshapen; transformers would fill in random numbers
    unused: tuple[str, ...]
    inventory: dict[str, str]  # files and keys in them, and what becomes of each

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers, width {self.width}, {self.parameters:,} parameters"
        return f"checkpoint {self.name}: {self.model_type}, {size}"


def describe_model(name: str) -> ModelInfo:
    """Describe a checkpoint by the class that ``config.json`` names, head included.

    Modules are built on the ``meta`` device, which holds no numbers; no code of a checkpoint runs.
    """
    import transformers

    checkpoint = find_checkpoint(name)
    tokenizer = load_tokenizer(checkpoint)
    checkpoint = lowered(checkpoint, fast=tokenizer.hf.is_fast)
    config = type(checkpoint.built_config())
    architectures = checkpoint.config.get("architectures")
    names = map(str, architectures if isinstance(architectures, list) else ())
    kinds = [getattr(transformers, name, None) for name in names]
    # architectures may name code of the checkpoint, or a class of another family
    kinds = [kind for kind in kinds if getattr(kind, "config_class", None) is config]
    # the class without a head, where config.json names none that can be built
    kind = str((*kinds, transformers.AutoModel._model_mapping[config])[0].__name__)
    encoder, has_pooler, checkpoint = load_weights(checkpoint, dtype=torch.float32, device="meta")
    if not has_pooler:
        encoder.pooler = None  # whose parameters are not counted
    # a second time, with the head: its report says what the whole class lacks
    model, report = load_module(checkpoint, kind, dtype=torch.float32, device="meta")
    labels = (model.config.id2label or {}) if kind.endswith("Classification") else {}
    same = ("name", "source", "revision", "model_type", "n_layers", "width", "positions")
    return ModelInfo(
        **{name: getattr(checkpoint, name) for name in same},
        folder=str(checkpoint.folder),
        architecture=kind,
        max_length=choose_max_length(checkpoint, tokenizer, None),
        vocabulary=len(tokenizer.hf),
        tokenizer=type(tokenizer.hf).__name__ + (" (fast)" if tokenizer.hf.is_fast else " (slow)"),
        has_pooler=has_pooler,
        sentence=str(checkpoint.definition),
        prompts=checkpoint.definition.prompts,
        labels=tuple(str(labels[number]) for number in sorted(labels)),
        parameters=sum(p.numel() for p in model.parameters()),
        encoder_parameters=sum(p.numel() for p in encoder.parameters()),
        modules=str(model),
        missing=tuple(sorted({*report["missing_keys"], *report["mismatched_keys"]})),
        unused=tuple(sorted(report["unexpected_keys"])),
        inventory=_inventory(checkpoint, config),
    )


def _inventory(checkpoint: Checkpoint, config: Any) -> dict[str, str]:
    """The checkpoint's statements, keys of config.json that no table has, and files."""
    effects = {f"{s.file}: {s.key}": s.effect for s in checkpoint.inventory}
    listed = {s.key.partition(".")[0] for s in checkpoint.inventory}
    attributes = {*vars(config()), *config.attribute_map}
    for key in checkpoint.config.keys() - listed:
        effect = inventory.APPLIED if key in attributes else f"unknown to {config.__name__}"
        effects[f"config.json: {key}"] = effect
    for path in checkpoint.folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(checkpoint.folder).as_posix()
            effects[name] = inventory.APPLIED if name in checkpoint.sha256 else "not read"
    return dict(sorted(effects.items()))
