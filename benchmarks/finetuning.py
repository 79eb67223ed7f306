"""How long training takes beside the way that tutorials show: every review padded to 512 tokens.

    python -m benchmarks.finetuning
    python -m benchmarks.finetuning --corpus ratings_train.txt

Both train the same checkpoint on the same reviews for the same epochs, one after the other in one
process. The tutorial's way is a plain loop: a sequence classifier of transformers, batches of 8 in
random order, all padded to 512. Ours is what ``embedkit finetune`` runs for a fold, with its
checkpoint after every epoch; batches are of like length and padded to the longest of the batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import describe, table
from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus.plan import CorpusOptions
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint, quiet_transformers
from embedkit.encoding.model import load_model
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.finetuning.heads import build_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.training import Fold, train_fold
from embedkit.units.target import Target
from embedkit.units.units import Units

LENGTH, BATCH = 512, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", default="data/reviews_ko.tsv")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--reviews", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    quiet_transformers()
    data = Units.of_corpus(options.corpus, CorpusOptions(min_chars=6, sample=options.reviews))
    checkpoint = find_checkpoint(options.model)
    target = data.target()
    _tutorial(checkpoint, data.take(np.arange(BATCH)), target.y[:BATCH], 1)  # warm up
    contestants = {
        f"tutorial: padded to {LENGTH}, batch {BATCH}": _tutorial(
            checkpoint, data, target.y, options.epochs
        )
    }
    for batch in (BATCH, TrainingOptions().batch_size):
        contestants[f"embedkit: batches by length, batch {batch}"] = _ours(
            checkpoint, data, target, options.epochs, batch
        )
    slowest = max(contestants.values())
    rows = [
        [name, f"{seconds:.1f}", f"1 / {slowest / seconds:.1f}"]
        for name, seconds in contestants.items()
    ]
    print(describe(["embedkit", "torch", "transformers", "accelerate"]))
    print(f"{options.model}, {len(data):,} reviews, {options.epochs} epochs\n")
    print(table(["", "seconds", "fraction of the time"], rows))


def _tutorial(checkpoint: Checkpoint, data: Units, y: NDArray[Any], epochs: int) -> float:
    """Seconds of the plain loop."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint.folder, num_labels=2)
    started = time.perf_counter()
    inputs = tokenizer(
        data.texts(), padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    dataset = torch.utils.data.TensorDataset(
        inputs["input_ids"], inputs["attention_mask"], torch.from_numpy(y)
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()
    for _ in range(epochs):
        for ids, mask, labels in loader:
            optimizer.zero_grad()
            model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
            optimizer.step()
    return time.perf_counter() - started


def _ours(checkpoint: Checkpoint, data: Units, target: Target, epochs: int, batch: int) -> float:
    """Seconds of one fold that trains on everything."""
    tokenizer = load_tokenizer(checkpoint)
    plain = load_model(
        checkpoint, pad_id=tokenizer.pad_id, device=torch.device("cpu"), dtype=torch.float32
    )
    model = build_model(plain, seed=0, head="pooler")
    with tempfile.TemporaryDirectory() as work:
        started = time.perf_counter()
        length = min(LENGTH, checkpoint.positions)
        texts = tokenizer.encode(data.texts(), settings=TokenizerSettings(length))
        everything = np.arange(len(texts))
        options = TrainingOptions(
            epochs=epochs, batch_size=batch, learning_rate=1e-5, validation=0, precision="fp32"
        )
        fold = Fold(
            number=0,
            name="one fold",
            record=np.arange(len(data)),
            texts=texts,
            target=target,
            train=everything,
            valid=everything[:0],
            threshold=everything[:0],
            held_out=everything[:0],
            seed=0,
            device=torch.device("cpu"),
            pad_id=tokenizer.pad_id,
            work=Path(work),
            options=options,
        )
        train_fold(fold, model)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
