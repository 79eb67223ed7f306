"""Checkpoint → its tokenizer, loaded without surprises; and what it makes of a text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedkit.encoding.checkpoint import (
    DEFAULT_MODEL,
    Checkpoint,
    find_checkpoint,
    quiet_transformers,
)
from embedkit.encoding.families import FAMILIES
from embedkit.encoding.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
    no_panic,
)
from embedkit.errors import DamagedModelError, ModelError, UsageError, check_counts, first_line

__all__ = [
    "FileTokenizer",
    "check_max_length",
    "choose_max_length",
    "load_tokenizer",
    "open_tokenizer",
    "tokenize",
]

logger = logging.getLogger(__name__)

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_WORDPIECE_TOKENIZERS = ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer")


def load_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Load the tokenizer of a checkpoint.

    Raises:
        ModelError: it has none, or one that needs a package that is not installed.
    """
    # without any of these, transformers makes up a tokenizer without any word
    if not any(any(checkpoint.folder.glob(name)) for name in _FILES):
        raise ModelError(
            f"{checkpoint.name}: {checkpoint.folder} holds no tokenizer. It needs tokenizer.json, "
            "vocab.txt or a SentencePiece model."
        )
    casing, stated = _casing(checkpoint), checkpoint.side_json("tokenizer_config.json")
    limit = stated.get("model_max_length")
    if not isinstance(limit, int | float | None):
        raise DamagedModelError(
            f"{checkpoint.name}: model_max_length in {checkpoint.folder / 'tokenizer_config.json'} "
            f"is {limit!r:.60}, not a number."
        )
    checkpoint.side_json("tokenizer.json")  # whose damage it names
    tokenizer = _of_transformers(checkpoint, casing)
    _check_vocabulary(tokenizer, checkpoint)
    if "AutoTokenizer" in (stated.get("auto_map") or {}):
        logger.warning(
            f"{checkpoint.name} brings code for its tokenizer, which is not run; "
            f"{type(tokenizer).__name__} reads its vocabulary. See what it makes of a text: "
            "embedkit tokenize"
        )
    pad = tokenizer.pad_token_id
    try:
        with no_panic(checkpoint.folder):
            return TextTokenizer(
                tokenizer,
                pad_id=int(checkpoint.config.get("pad_token_id") or 0) if pad is None else int(pad),
                type_vocab=int(checkpoint.config.get("type_vocab_size") or 0),
            )
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise DamagedModelError(
            f"{checkpoint.name}: {_file(checkpoint)} cannot be used ({first_line(error)})."
        ) from error


def _of_transformers(checkpoint: Checkpoint, casing: dict[str, bool]) -> Any:
    quiet_transformers()
    from transformers import AutoConfig, AutoTokenizer

    try:
        with no_panic(checkpoint.folder):
            return AutoTokenizer.from_pretrained(
                str(checkpoint.folder),
                config=AutoConfig.for_model(**checkpoint.config),
                local_files_only=True,
                trust_remote_code=False,
                **casing,
            )
    except ImportError as error:
        raise ModelError(
            f"{checkpoint.name}: its tokenizer needs another package ({first_line(error)}). "
            "For the Japanese BERT models: pip install fugashi unidic-lite ipadic."
        ) from error
    except Exception as error:  # the loader raises what its many formats raise
        raise DamagedModelError(
            f"{checkpoint.name}: no tokenizer can be loaded from {_file(checkpoint)} "
            f"({first_line(error)})."
        ) from error


def open_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """As :func:`load_tokenizer`, without transformers where that makes no difference.

    That is known of the checkpoints that come as packages, whose files have known hashes. Of any
    other, transformers may read ``tokenizer.json`` otherwise than the file states.
    """
    if checkpoint.source != "package":
        return load_tokenizer(checkpoint)
    return TextTokenizer(
        FileTokenizer(checkpoint),
        pad_id=int(checkpoint.config["pad_token_id"]),
        type_vocab=int(checkpoint.config["type_vocab_size"]),
    )


class FileTokenizer:
    """What :class:`TextTokenizer` needs of a tokenizer of transformers, from ``tokenizer.json``."""

    is_fast, truncation_side = True, "right"

    def __init__(self, checkpoint: Checkpoint) -> None:
        from tokenizers import Tokenizer

        stated = checkpoint.side_json("tokenizer_config.json")
        self.backend_tokenizer = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
        self.model_max_length, self.name_or_path = stated["model_max_length"], checkpoint.folder
        self.unk_token_id = self.backend_tokenizer.token_to_id(stated["unk_token"])
        added = self.backend_tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in added.items() if token.special]
        self._types = FAMILIES[checkpoint.model_type].wordpiece

    def __call__(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True
    ) -> dict[str, list[int]]:
        """Token ids, and segment ids where the family has them."""
        found = self.backend_tokenizer.encode(text, pair, add_special_tokens=add_special_tokens)
        types = {"token_type_ids": found.type_ids} if self._types else {}
        return {"input_ids": found.ids, **types}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Tokens of ids."""
        return [self.backend_tokenizer.id_to_token(number) for number in ids]


def _file(checkpoint: Checkpoint) -> Path:
    """The file that holds the vocabulary."""
    return next(file for name in _FILES for file in sorted(checkpoint.folder.glob(name)))


def check_max_length(checkpoint: Checkpoint, asked: int | None) -> None:
    """Raise a :class:`UsageError` if a model has no positions for so many tokens per sequence."""
    check_counts(max_length=asked)
    if asked is not None and asked > checkpoint.positions:
        raise UsageError(
            f"max_length={asked}: {checkpoint.name} has positions for {checkpoint.positions} "
            f"tokens. Use at most {checkpoint.positions}, or on_long='window' for long texts."
        )


def choose_max_length(checkpoint: Checkpoint, tokenizer: TextTokenizer, asked: int | None) -> int:
    """Tokens per sequence: what was asked, else what the checkpoint states.

    Raises:
        UsageError: no token was asked for, or more than the model has positions for.
    """
    check_max_length(checkpoint, asked)
    return checkpoint.default_max_length(tokenizer.limit) if asked is None else asked


def tokenize(
    text: str | None = None,
    pair: str | None = None,
    *,
    vocab: str | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    max_length: int | None = None,
    prefix: str | None = None,
) -> list[dict[str, Any]]:
    """What the model sees of a text, one record per token; a warning is logged if it is cut.

    The weights are not loaded.

    Args:
        text: the text.
        pair: its pair.
        vocab: instead of a text, entries of the vocabulary to list, such as ``20000:20020``.
        model: hub id or folder of a checkpoint.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        max_length: tokens per text; by default what the checkpoint states.
        prefix: put before the text; by default that of the checkpoint.

    Raises:
        ModelError: there is no such checkpoint or tokenizer.
        UsageError: the length cannot be had; or the slice cannot be read or is outside of the
            vocabulary.

    Example:
        >>> rows = embedkit.tokenize("unbelievable films")
        >>> [(row["token"], row["id"]) for row in rows]
        [('[CLS]', 101), ('unbelievable', 23653), ('films', 3152), ('[SEP]', 102)]
        >>> embedkit.tokenize(vocab="2000:2002")
        [{'id': 2000, 'token': 'to'}, {'id': 2001, 'token': 'was'}]
    """
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    check_max_length(checkpoint, max_length)
    tokenizer = load_tokenizer(checkpoint)
    if text is None:
        return _entries(tokenizer, vocab or "")
    length = choose_max_length(checkpoint, tokenizer, max_length)
    (found,) = tokenizer.encode(
        [text], None if pair is None else [pair],
        settings=TokenizerSettings(length, prefix=checkpoint.prefix_or_own(prefix)), offsets=True,
    )  # fmt: skip
    if found.cut:
        logger.warning(
            f"the text has {found.n_tokens} tokens; it is cut at {length}, and the model does not "
            f"see the other {found.n_tokens - found.n_kept}"
        )
    return _rows(found, text, pair or "", tokenizer)


def _rows(
    found: TokenizedText, text: str, pair: str, tokenizer: TextTokenizer
) -> list[dict[str, Any]]:
    """One record per token of a text that was not divided."""
    from embedkit.encoding.tables import token_vectors  # which loads torch

    table, types = token_vectors([found], {}, tokenizer), found.windows[0].type_ids
    sources = {0: text, 1: pair, -1: ""}
    return [
        {
            "pos": i, "token": table.token[i], "id": int(table.token_id[i]),
            "segment": int(types[i]), "start": int(table.start[i]), "end": int(table.end[i]),
            "word": int(table.word[i]),
            "text": sources[int(table.segment[i])][table.start[i] : table.end[i]],
        }
        for i in range(len(table))
    ]  # fmt: skip


def _entries(tokenizer: TextTokenizer, vocab: str) -> list[dict[str, Any]]:
    start, colon, stop = vocab.partition(":")
    size = len(tokenizer.hf)
    if not (colon and start.isdigit() and stop.isdigit() and int(start) < int(stop) <= size):
        raise UsageError(f"vocab={vocab!r}: expected FROM:TO with 0 ≤ FROM < TO ≤ {size}.")
    ids = range(int(start), int(stop))
    return [{"id": i, "token": token} for i, token in zip(ids, tokenizer.tokens(ids), strict=True)]


def _check_vocabulary(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Raise a :class:`DamagedModelError` if the tokenizer is not that of the model."""
    known, file = tokenizer.get_vocab(), _file(checkpoint)
    if set(known) <= set(tokenizer.all_special_tokens):
        raise DamagedModelError(
            f"{checkpoint.name}: transformers finds no vocabulary for a {checkpoint.model_type} "
            f"model in {file}. Give a folder with tokenizer.json or vocab.txt."
        )
    rows = checkpoint.config.get("vocab_size")
    if rows and max(known.values()) >= rows:
        raise DamagedModelError(
            f"{checkpoint.name}: {file}: the tokenizer has ids up to {max(known.values())}, but "
            f"the model has only {rows} embeddings. They do not belong together."
        )


def _casing(checkpoint: Checkpoint) -> dict[str, bool]:
    """Case and accents where ``tokenizer_config.json`` does not state how they are treated.

    Transformers would lower-case, and take Hangul apart, whatever ``tokenizer.json`` states; so
    that is passed on. In a folder with ``vocab.txt`` alone, ``tokenizer_config.json`` decides,
    then ``config.json``, then the vocabulary.
    """
    stated = checkpoint.side_json("tokenizer_config.json")
    entries = checkpoint.folder / "vocab.txt"
    if not FAMILIES[checkpoint.model_type].wordpiece:
        return {}
    if (checkpoint.folder / "tokenizer.json").is_file():
        options = {} if "do_lower_case" in stated else _casing_of_normalizer(checkpoint, stated)
        if options in ({}, {"do_lower_case": True}):
            return options
        why = "tokenizer.json states"
    else:
        options = {
            key: bool(source[key])
            for source in (checkpoint.config, stated)
            for key in ("do_lower_case", "strip_accents")
            if source.get(key) is not None
        }
        if not entries.is_file():
            return {}
        if "do_lower_case" in options:
            return options
        try:
            text = entries.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise DamagedModelError(
                f"{entries} is damaged: it cannot be read as UTF-8 ({first_line(error)})."
            ) from error
        options = _casing_of_entries(text.split("\n")) | options
        why = "its vocabulary shows (a tokenizer_config.json with do_lower_case would settle it)"
    case = "lower-cases" if options["do_lower_case"] else "keeps case"
    logger.warning(
        f"{checkpoint.name} does not state how its tokenizer treats case; it {case}, as {why}"
    )
    return options


def _casing_of_normalizer(checkpoint: Checkpoint, stated: dict[str, Any]) -> dict[str, bool]:
    """Case and accents as ``tokenizer.json`` treats them."""
    kind = str(stated.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    if kind not in _WORDPIECE_TOKENIZERS:
        return {}
    within = checkpoint.side_json("tokenizer.json").get("normalizer")
    if not isinstance(within, dict):
        return {}
    if within.get("type") != "BertNormalizer" or not isinstance(within.get("lowercase"), bool):
        return {}
    options = {"do_lower_case": within["lowercase"]}
    if isinstance(within.get("strip_accents"), bool):
        options["strip_accents"] = within["strip_accents"]
    return options


def _casing_of_entries(entries: list[str]) -> dict[str, bool]:
    """Case and accents as a vocabulary shows them.

    A tokenizer that lower-cases could never produce its upper-case entries, and one that strips
    accents takes precomposed Hangul and kana apart.
    """
    words = [e for e in entries if not (e.startswith("[") and e.endswith("]"))]
    if any(e != e.lower() for e in words):
        return {"do_lower_case": False}
    whole = any("가" <= c <= "힣" or c in "がパ" for e in words for c in e)
    return {"do_lower_case": True, "strip_accents": not whole}
