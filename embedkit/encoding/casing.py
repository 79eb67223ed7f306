"""Whether a tokenizer lower-cases, and what a checkpoint says of it in several places."""

from __future__ import annotations

import logging
import unicodedata
from inspect import signature
from pathlib import Path
from typing import Any

from embedkit.encoding.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


def casing_of(checkpoint: Checkpoint, settings: dict[str, Any]) -> dict[str, bool]:
    """Options of case and accents for ``vocab.txt`` alone: as stated, else by the vocabulary."""
    from transformers.models.auto import tokenization_auto

    entries = checkpoint.transformer / "vocab.txt"
    # by the class and not by the family: many families have the tokenizer of BERT, and a checkpoint
    # of any may name it; a vocab.txt may be one of BPE too
    named = settings.get("tokenizer_class") or checkpoint.config.get("tokenizer_class")
    name = named or tokenization_auto.TOKENIZER_MAPPING_NAMES.get(checkpoint.model_type)
    kind = tokenization_auto.tokenizer_class_from_name(str(name))
    if kind is None or "do_lower_case" not in signature(kind).parameters or not entries.is_file():
        return {}
    options = {
        key: bool(source[key])
        # the later one wins: tokenizer_config.json over config.json
        for source in (checkpoint.config, settings)
        for key in ("do_lower_case", "strip_accents")
        if source.get(key) is not None
    }
    # without a statement transformers lower-cases, which spoils the words of a cased model
    if "do_lower_case" not in options:
        # special entries such as [CLS] are upper-case in every vocabulary and left out
        lines = entries.read_text("utf-8", errors="replace").split("\n")
        words = [e for e in lines if not (e.startswith("[") and e.endswith("]"))]
        # a tokenizer that lower-cases never produces upper-case entries
        options["do_lower_case"] = all(e == e.lower() for e in words)
        if options["do_lower_case"]:  # one that strips accents decomposes Hangul and kana, too
            bare = all(entry == unicodedata.normalize("NFD", entry) for entry in words)
            options.setdefault("strip_accents", bare)
        why = "its vocabulary shows (a tokenizer_config.json with do_lower_case would settle it)"
        _note_case(checkpoint, why, lowers=options["do_lower_case"])
    return options


def restore_case(tokenizer: Any, checkpoint: Checkpoint, file: Path) -> None:
    """Normalize as ``tokenizer.json`` says; transformers would lower-case, and decompose Hangul."""
    from tokenizers import Tokenizer
    from tokenizers.normalizers import BertNormalizer

    backend = tokenizer.backend_tokenizer
    # the normalizer of BERT, which transformers makes anew from its own defaults
    if type(backend.normalizer) is BertNormalizer:
        normalizer = Tokenizer.from_file(str(file)).normalizer
        if str(normalizer) != str(backend.normalizer):
            backend.normalizer = normalizer
            lowers = normalizer is not None and normalizer.normalize_str("A") == "a"
            _note_case(checkpoint, "tokenizer.json states", lowers=lowers)


def lower_case(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Lower-case texts first, as sentence-transformers does unless the tokenizer does it."""
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    # a sequence of one or none, so that both can be tried in the same way
    normalizer = normalizers.Sequence([backend.normalizer] if backend.normalizer else [])
    # tried, not read: many kinds of normalizers lower-case, and some put a mark before the text
    if normalizer.normalize_str("A") != normalizer.normalize_str("a"):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizer])
        logger.info(f"{checkpoint.name}: texts are lower-cased (sentence_bert_config.json)")


def stated_case(tokenizer: Any) -> dict[str, bool]:
    """What a tokenizer does with case and accents; transformers makes that of BERT anew from it."""
    from tokenizers.normalizers import BertNormalizer, Sequence

    whole: Any = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    for part in whole if isinstance(whole, Sequence) else [whole]:  # type: ignore[union-attr]
        if isinstance(part, BertNormalizer):
            strips = part.lowercase if part.strip_accents is None else part.strip_accents
            return {"do_lower_case": whole.normalize_str("A") == "a", "strip_accents": strips}
    return {}


def lowered(checkpoint: Checkpoint, *, fast: bool) -> Checkpoint:
    """The checkpoint, which refuses to lower-case if its tokenizer has no normalizer to change."""
    stated = (s for s in checkpoint.inventory if s.key == "do_lower_case" and s.value)
    return checkpoint if fast else checkpoint.refusing(next(stated, None))


def _note_case(checkpoint: Checkpoint, why: str, *, lowers: bool) -> None:
    logger.warning(
        f"{checkpoint.name} does not state how its tokenizer treats case; it "
        f"{'lower-cases' if lowers else 'keeps case'}, as {why}"
    )


def cased_normalizer(normalizer: Any) -> Any:
    """A normalizer without lower-casing; nothing of one that does nothing else."""
    from tokenizers.normalizers import BertNormalizer, Lowercase, Sequence

    match normalizer:
        case Sequence():
            parts = map(cased_normalizer, normalizer)  # type: ignore[call-overload]
            return Sequence([part for part in parts if part])
        case BertNormalizer():
            kept = normalizer.clean_text, normalizer.handle_chinese_chars, normalizer.strip_accents
            return BertNormalizer(*kept, lowercase=False)
        case Lowercase():
            return None
    return normalizer
