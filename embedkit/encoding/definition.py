"""How a checkpoint's makers define the vector of a sentence.

``modules.json`` and the files that it names list modules: a transformer, a pooling, perhaps dense
layers and a normalisation. What is computed here is applied; what is not, such as code of the
checkpoint, becomes the ``problem`` that is the answer when the makers' vector is asked for.

What the files say is data: names of code are dropped, values are checked for their types, and the
steps of a tokenizer for how much they make of a letter, before anything is built from them.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, get_origin

import msgspec

from embedkit.choices import Pooling
from embedkit.encoding import inventory
from embedkit.encoding.inventory import Statement
from embedkit.errors import DamagedModelError, first_line
from embedkit.records import Positive, read_json

FETCH_AGAIN = "Fetch it again."
_MOST_GROWTH = 2_000  # of XLNet they may make 972
_GROWTH = {"NFKC": 18, "NFKD": 18, "NFD": 4, "BertNormalizer": 4, "NFC": 3, "Lowercase": 3}
_GROWTH |= {"ByteLevel": 4}
"""Characters that a step of tokenizers writes at most for one, as of U+FDFA; of others one."""


_NAMES_CODE = re.compile(
    "auto_map|_?(attn|experts)_implementation(_internal)?|kernel_config|transformers_weights"
)
"""Fields of ``config.json`` by which transformers would fetch or import code, or read other
weights than those that are hashed."""


class Module(TypedDict):
    """An entry of ``modules.json``."""

    type: str
    path: str


class _GeneralConfig(TypedDict, total=False):
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    truncate_dim: Positive | None


class _SentenceConfig(TypedDict, total=False):
    """Settings of a module of sentence-transformers, as far as they are read here."""

    max_seq_length: int | None
    pooling_mode: str | list[str]


class Casing(TypedDict, total=False):
    """What ``config.json`` may say for ``vocab.txt``; ``"false"`` would be true in Python."""

    do_lower_case: bool | None
    strip_accents: bool | None


class TokenizerConfig(Casing, total=False):
    """``tokenizer_config.json``, as far as it is read here and not by transformers alone."""

    model_max_length: float | None  # 1e30 where nothing is meant


class AdapterConfig(TypedDict, total=False):
    """``adapter_config.json`` of peft, whose own errors name no key."""

    peft_type: str
    r: int
    lora_alpha: float
    target_modules: str | list[str] | None
    modules_to_save: list[str] | None
    bias: str
    use_rslora: bool
    use_dora: bool


_POOLINGS = {pooling.replace("_", ""): pooling for pooling in Pooling if pooling.has_layer}
"""Poolings by their names in sentence-transformers; earlier ones end in ``_token``."""


class SentenceModule(NamedTuple):
    """A module that follows the pooling: ``Dense`` or ``Normalize``."""

    kind: str
    folder: str
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    """The sentence vector as the makers of a checkpoint define it for sentence-transformers.

    ``problem`` names what embedkit does not compute; then only other views can be had.
    """

    pooling: Pooling = Pooling.MEAN
    modules: tuple[SentenceModule, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    dims: int | None = None  # only so many of its first coordinates
    similarity: str = "cosine"
    problem: str = ""

    def __str__(self) -> str:
        """Describe it, such as ``cls of the last layer, normalized``."""
        if self.problem:
            return f"needs {self.problem}, which is not computed here"
        steps = [f"{self.pooling} of the last layer"]
        for module in self.modules:
            into, out = (module.config.get(name) for name in ("in_features", "out_features"))
            steps.append(f"Dense {into} → {out}" if module.kind == "Dense" else "normalized")
        steps += [f"its first {self.dims} coordinates"] if self.dims else []
        return ", ".join(steps)


def modules_of(folder: Path) -> list[Module]:
    """Content of ``modules.json``; empty where it is absent."""
    modules: list[Module] = read_data(folder / "modules.json", list[Module])
    for module in modules:
        # a path could lead out of the folder, whose files alone are hashed
        if (path := module["path"]) and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", path):
            problem = f"{path!r:.100} is not the name of a folder in it"
            raise damaged(folder / "modules.json", problem)
    return modules


def inner_module(modules: list[Module]) -> str:
    """Path of the transformer: sentence-transformers before 2.0 had a folder for it."""
    first = modules[0] if modules else {"type": "", "path": ""}
    return str(first["path"]) if str(first["type"]).endswith(".Transformer") else ""


def sentence_settings(transformer: Path) -> tuple[str, dict[str, Any]]:
    """File of settings of the transformer for sentence-transformers, and its content."""
    pairs = ((f, read_data(transformer / f, _SentenceConfig)) for f in inventory.SENTENCE_FILES)
    return next((pair for pair in pairs if pair[1]), (inventory.SENTENCE_FILES[0], {}))


def defined_by(
    folder: Path,
    listed: list[Module],
    settings: tuple[str, dict[str, Any]],
    config: dict[str, Any],
    statements: list[Statement],
) -> tuple[Definition, str, list[Statement]]:
    """The makers' vector, its prefix, and all statements, to begin with those of config.json."""
    root = "config_sentence_transformers.json"
    # as the settings: read beside modules.json alone
    general = read_data(folder / root, _GeneralConfig) if listed else {}
    # in the order of the files; what becomes of each key is in encoding.inventory
    statements = [
        *statements,
        *inventory.statements(*settings, inventory.SENTENCE),
        *inventory.statements(root, general, inventory.ROOT),
    ]
    texts = general.get("prompts") or {}
    prompts = {str(key): str(text) for key, text in texts.items() if text is not None}
    problems, modules = list[str](), list[SentenceModule]()
    pooling = None if (folder / "modules.json").is_file() else _usual_pooling(config)
    for number, module in enumerate(listed):
        kind, path = module["type"].rpartition(".")[2], module["path"]
        where, file = f"{path or 'the tokenizer'} ({kind})", f"{path}/config.json"
        if not module["type"].startswith("sentence_transformers."):
            problems.append(f"{where}, code of the checkpoint")
            continue
        # a transformer anywhere but first would take the place of another one
        if kind not in inventory.MODULES or (kind == "Transformer") != (number == 0):
            problems.append(where)
            continue
        if kind == "Transformer":
            continue
        content = read_data(folder / path / "config.json", _SentenceConfig)
        statements += inventory.statements(file, content, inventory.MODULES[kind])
        # nothing of these two can be guessed
        if kind in ("Pooling", "Dense") and not content:
            problems.append(f"{file}, which is missing")
        elif kind == "Pooling":
            modes = [key for key, value in content.items() if value and "pooling_mode_" in key]
            mode = content.get("pooling_mode", modes or "mean")
            # one string in newer files, a list where several are concatenated
            names = [mode] if isinstance(mode, str) else mode
            names = [name.removeprefix("pooling_mode_") for name in names]
            pooling = _POOLINGS.get(names[0].partition("_token")[0]) if len(names) == 1 else None
            if pooling is None:
                problems.append(f"{where} by {' and '.join(names)}")
            # what stands before it is of tokens
            elif modules:
                problems.append(f"{where} after {modules[-1].folder}")
            # the mean would leave out tokens of the prompt, which is not done here
            elif not content.get("include_prompt", True) and any(prompts.values()):
                problems.append(f"{where} without the prompt")
        elif kind in ("Dense", "Normalize"):
            modules.append(SentenceModule(kind, path, content))
    default = general.get("default_prompt_name")
    if default is not None and default not in prompts:
        statements.append(Statement(root, "default_prompt_name", default, inventory.REFUSED))
    # keys that no table knows count as refused
    problems += [str(s) for s in statements if s.effect == inventory.REFUSED]
    # a model with a vector for every token, as for late interaction
    if pooling is None and not problems:
        problems = ["a vector for each token: modules.json has no Pooling"]
    return (
        Definition(
            pooling or Pooling.MEAN,
            tuple(modules),
            prompts,
            general.get("truncate_dim"),
            similarity=general.get("similarity_fn_name") or "cosine",
            problem=", ".join(problems),
        ),
        prompts.get(str(default), ""),
        statements,
    )


def _usual_pooling(config: dict[str, Any]) -> Pooling:
    """What sentence-transformers adds without ``modules.json``: a mean; the last of a decoder."""
    match config.get("architectures"):
        case [str(first), *_] if first.endswith("ForCausalLM") and config.get("is_causal", True):
            return Pooling.LAST_TOKEN
    return Pooling.MEAN


def read_data(path: Path, kind: Any = dict[str, Any]) -> Any:
    """Content of a JSON file, whose known fields are of a ``kind``; empty where it is absent."""
    if not path.is_file():
        return (get_origin(kind) or dict)()
    value = read_json(path, error=DamagedModelError, advice=FETCH_AGAIN)
    try:
        # for its errors alone: the value stays as it is, with keys that are not described
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise damaged(path, first_line(error)) from error
    return value


def damaged(file: Path, problem: str) -> DamagedModelError:
    """The error of a file of a checkpoint that can be had whole."""
    return DamagedModelError(f"{file} is damaged: {problem}. {FETCH_AGAIN}")


def as_data(config: dict[str, Any]) -> dict[str, Any]:
    """The ``config.json`` of a model, its parts included, without fields that name code."""
    return {
        name: as_data(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if not _NAMES_CODE.fullmatch(name)
    }


def bounded(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a ``tokenizer.json``; ``DamagedModelError`` if it multiplies a text.

    A few steps that each write ten letters for one make a text of gigabytes.
    """
    steps = [document.get("normalizer"), document.get("pre_tokenizer")]
    try:
        growth = max(_growth({"normalizers": steps}), _growth(document.get("post_processor")))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        growth = math.inf  # of what is no step, and of steps within steps
    if growth > _MOST_GROWTH:
        problem = f"its steps may make more than {_MOST_GROWTH:,} characters or tokens of one"
        raise DamagedModelError(f"{name}: {problem} (tokenizer.json).")
    return document


def _growth(step: Any) -> float:
    """Characters or tokens that may come of one: each step multiplies those of the one before."""
    if step is None:
        return 1
    names = "normalizers", "pretokenizers", "processors"
    inner = chain.from_iterable(step.get(name) or () for name in names)
    # the texts of a table, divided by zeros, follow a tree whose size comes first
    table = base64.b64decode(step.get("precompiled_charsmap") or "")
    texts = table[4 + int.from_bytes(table[:4], "little") :].decode("utf-8", "replace").split("\0")
    template = [*(step.get("single") or ()), *(step.get("pair") or ())]
    ids = [len(token["ids"]) for token in (step.get("special_tokens") or {}).values()]
    factors = [
        _GROWTH.get(step.get("type"), 1),
        len(step.get("content") or ""),
        1 + len(step.get("prepend") or ""),
        *map(len, texts),
        len(template) * max(ids, default=1),
    ]
    return max(factors) * math.prod(map(_growth, inner))
