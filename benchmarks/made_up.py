"""Models with random weights, and texts of made-up words for them: nothing has to be downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

WORDS = 30_000


def save_checkpoint(folder: Path, kind: str, settings: Mapping[str, int]) -> None:
    """A model with random weights and a WordPiece tokenizer whose every word is one token."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import AutoConfig, AutoModel

    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_words()]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    folder.mkdir()
    BertWordPieceTokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    stated = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": 512,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), "utf-8")
    special = {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=len(entries), **special, **settings)
    AutoModel.from_config(config).save_pretrained(folder)


@cache
def _words() -> list[str]:
    """Different words of three syllables."""
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    numbers = np.random.default_rng(0).permutation(len(syllables) ** 3)[:WORDS].tolist()
    count = len(syllables)
    return [
        syllables[n % count] + syllables[n // count % count] + syllables[n // count**2]
        for n in numbers
    ]


def lengths_around(length: int, count: int) -> list[int]:
    """Lengths that differ by up to 30 %, as those of texts of one kind do."""
    random = np.random.default_rng(length)
    drawn: list[int] = random.integers(int(length * 0.7), int(length * 1.3) + 1, count).tolist()
    return drawn


def made_up_texts(lengths: Sequence[int]) -> list[str]:
    """Texts of so many tokens each, the two special ones counted."""
    words, random = np.array(_words()), np.random.default_rng(1)
    return [" ".join(words[random.integers(len(words), size=max(n - 2, 1))]) for n in lengths]
