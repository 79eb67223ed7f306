"""A tiny corpus, a tiny model with a head, and fine-tuning runs of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers.utils import logging

from embedkit import Predictor, finetune
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.runs.folder import RunResult
from embedkit.runs.run import FinetuneRun
from tests.models import TEXTS, plain_model
from tests.run_fixtures import run_of
from tests.store_fixtures import tiny_model

N = 60
SHORT = TokenizerSettings(24)
TINY: dict[str, Any] = {
    "model": str(tiny_model()),
    "device": "cpu",
    "epochs": 2,
    "learning_rate": 8e-3,
    "batch_size": 16,
    "folds": 3,
}
LEARNING: dict[str, Any] = {"batch_size": 8, "learning_rate": 5e-3}
"""For runs that have to learn: more steps, which take most of the time of a tiny training."""


def built(
    model: str | Path,
    texts: Sequence[str] = TEXTS[:10],
    *,
    tokens: TokenizerSettings = SHORT,
    offsets: bool = False,
    seed: int = 5,
    **settings: Any,
) -> tuple[EncoderWithHead, TokenizedTexts]:
    """A model with a head, and texts tokenized for it."""
    tokenizer = load_tokenizer(find_checkpoint(str(model)))
    encoded = tokenizer.encode(list(texts), settings=tokens, offsets=offsets)
    return build_model(plain_model(model), seed=seed, **settings).eval(), encoded


def corpus_of(
    path: Path, *, count: int = N, labels: Any = None, label: bool = True, seed: int | None = None
) -> Path:
    """Texts of which one word tells the label; every fifth one stands there twice."""
    rng = np.random.default_rng(count if seed is None else seed)
    words = [["bad", "rain", "bus"], ["good", "home", "영화"]]
    lines = ["text\tlabel\tid" if label else "text\tid"]
    for i in range(count):
        told = rng.choice(words[i % 2], 1 + i % 3)
        text = "the movie was good" if i % 10 == 5 else f"the movie {' '.join(told)} was {i % 4}"
        shown = str(i % 2) if labels is None else labels[i]
        lines.append(f"{text}\t{shown}\tid{i}" if label else f"{text}\tid{i}")
    return write_lines(path, *lines)


def finetuned(run: Path) -> FinetuneRun:
    return run_of(run, FinetuneRun)


def tuned(corpus: Any, out: Path, **settings: Any) -> RunResult[FinetuneRun]:
    logging.set_verbosity_warning()
    before = callers_state()
    result = finetune(corpus, out=out, **TINY | settings)
    assert callers_state() == before
    return result


def callers_state() -> tuple[Any, ...]:
    """Generators of random numbers, and what transformers shows, which are not ours to change."""
    shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    arrays = np.random.get_state(legacy=False)  # noqa: NPY002
    return *shows, str(arrays), torch.get_rng_state().tolist(), random.getstate()


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([*lines, ""]), "utf-8")
    return path


def predictions(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "predictions.parquet")


def check_test_set(run: Path, corpus: Path, *, head: str | None = None) -> None:
    """The models on disk give the probabilities that the run wrote for its test set."""
    tested = predictions(run).query("fold == 'test'")
    texts = pd.read_csv(corpus, sep="\t")["text"][tested["row"]].tolist()
    outputs = Predictor(run, device="cpu", head=head).predict_proba(texts)
    assert np.allclose(outputs, tested[["proba_0", "proba_1"]], atol=1e-5)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "training.jsonl").read_text().splitlines()]
