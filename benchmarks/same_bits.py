"""How many texts have the same bits in other company, by engine.

    python -m benchmarks.same_bits [--corpora FOLDER] [--texts 500]

Every engine turns texts of 1 to 500 tokens into vectors of the last layer, all together; and again
alone, in another order, in smaller batches and on one thread; embedkit also by two worker
processes. A table says how many per cent of the texts have equal bits both times. Texts without
padding around them, or with another neighbour, sum in another order in most engines: what they
return is right to about six digits, but no fact about the text alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import embedkit
from benchmarks.measure import PACKAGES, describe, table
from benchmarks.peers import ENGINES, ITS_OWN_BATCHES, Engine, Floats, Folder, checkpoint
from benchmarks.texts import CORPORA, mixed_lengths, texts_of
from embedkit.encoding.encoder import Encoder

BATCH, SMALL = 32, 8
LENGTH = 512


def engine_of(name: str, folder: Folder, threads: int, batch: int = BATCH) -> Engine:
    """An engine with so many threads and, where it can be told, texts per batch."""
    torch.set_num_threads(threads)
    made: Any = ENGINES[name](folder, threads)
    return made if name.startswith(ITS_OWN_BATCHES) else lambda texts: made(texts, batch)


def elsewhere(name: str, folder: Folder, threads: int, texts: Sequence[str]) -> Iterator[Any]:
    """In what other company texts are encoded again, and their vectors there."""
    engine = engine_of(name, folder, threads)
    yield "alone", np.concatenate([engine([text]) for text in texts])
    order = np.random.default_rng(0).permutation(len(texts))
    yield "another order", engine([texts[i] for i in order])[np.argsort(order)]
    some = [engine(texts[i : i + SMALL]) for i in range(0, len(texts), SMALL)]
    yield f"{SMALL} at once", np.concatenate(some)
    yield "one thread", engine_of(name, folder, 1)(texts)
    if name.startswith("embedkit"):
        yield "two workers", by_workers(folder, texts, "int8" if "int8" in name else "fp32")


def by_workers(folder: Folder, texts: Sequence[str], precision: Any) -> Floats:
    """The vectors that two processes write to a dataset, in shards of 64 texts."""
    with tempfile.TemporaryDirectory() as scratch:
        made = embedkit.extract(
            list(texts),
            out=Path(scratch, "out"),
            model=str(folder.path),
            precision=precision,
            pooling="mean",
            max_length=folder.length,
            shard_rows=64,
            workers=2,
        )
        return embedkit.load(made).X


def main(corpora: Path, count: int) -> None:
    """Print the table."""
    threads = os.cpu_count() or 1
    with checkpoint("minilm") as source, tempfile.TemporaryDirectory() as scratch:
        encoder = Encoder(str(source), device="cpu")
        texts = list(dict.fromkeys(texts_of(corpora, "stsb_en", count)))
        texts += mixed_lengths(encoder, texts, count // 10, (10, 500))
        folder = Folder(source, LENGTH, Path(scratch))
        rows: list[dict[str, str]] = []
        for name in ENGINES:
            try:
                together = engine_of(name, folder, threads)(texts)
            except ImportError as error:
                print(f"{name}: left out ({error})")
                continue
            rows.append({"% of texts": name})
            for how, vectors in elsewhere(name, folder, threads, texts):
                rows[-1][how] = f"{100 * (vectors == together).all(axis=1).mean():.1f}"
    header = list(rows[0])
    print(describe(PACKAGES))
    print(table(header, [[row.get(name, "–") for name in header] for row in rows]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--texts", type=int, default=500)
    arguments = parser.parse_args()
    main(arguments.corpora, arguments.texts)
