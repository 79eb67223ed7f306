"""Throughput on short texts against named peers, memory against corpus size, start-up.

    python -m benchmarks.extraction [CORPUS.tsv]

Systems are run in turn, round after round, in one process with the same threads, on the same texts
with the same truncation; the median of the rounds is reported as tokens per second without padding
and as the share of what this machine's matrix product reaches on the shapes of the same layers.
Without a corpus, the reviews of ``data/`` are used, repeated with a number before each text.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from embedkit.corpus import CorpusReader, InputFile, Record, plan_corpus
from embedkit.encoder import Encoder
from embedkit.tokenization import TokenizerSettings

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
TEXTS = 3_000


def read_texts(path: Path | None) -> list[str]:
    """The first texts of a corpus, or made-up ones of the same length from the project's own."""
    files = [path] if path else [ROOT / "data" / f"reviews_{x}.tsv" for x in ("ko", "en")]
    plan = plan_corpus([InputFile.of(f) for f in files], limit=TEXTS)
    texts = [r.text for r in CorpusReader(plan) if isinstance(r, Record)]
    return [f"{i} {texts[i % len(texts)]}" for i in range(TEXTS)] if not path else texts


def gemm_rate(tokens: int, width: int, inner: int) -> float:
    """Best FLOP/s of the four products of a layer, with the weights and rows of a real batch."""
    shapes = ((width, 3 * width), (width, width), (width, inner), (inner, width))
    arrays = [(torch.randn(tokens, i), torch.randn(i, o), torch.empty(tokens, o))
              for i, o in shapes]  # fmt: skip
    flops = sum(2 * tokens * i * o for i, o in shapes)
    times = []
    for _ in range(15):
        started = time.perf_counter()
        for a, b, out in arrays:
            torch.mm(a, b, out=out)
        times.append(time.perf_counter() - started)
    return flops / statistics.median(times)


def systems(encoder: Encoder) -> dict[str, Callable[[list[str]], object]]:
    """The contestants; each turns the texts into mean vectors of the last layer."""
    from sentence_transformers import SentenceTransformer

    folder = str(encoder.checkpoint.folder)
    peer = SentenceTransformer(folder, device="cpu")
    peer.max_seq_length = encoder.max_length
    every = [f"{p}_{i}" for i in range(encoder.n_layers + 1) for p in ("cls", "mean")]
    return {
        "embedkit, mean of the last layer": lambda t: encoder.encode(t),
        "embedkit, cls + mean of all layers + pooler": lambda t: encoder.encode_views(
            t, [*every, "pooler"]
        ),
        "sentence-transformers, batch 32 (default)": lambda t: peer.encode(t),
        "sentence-transformers, batch 64": lambda t: peer.encode(t, batch_size=64),
        "sentence-transformers, batch 128": lambda t: peer.encode(t, batch_size=128),
    }


def throughput(texts: list[str]) -> list[str]:
    """Interleaved rounds; one line per system."""
    encoder = Encoder.load(precision="fp32", device="cpu")
    settings = TokenizerSettings(encoder.max_length)
    tokens = sum(t.n_kept for t in encoder.tokenizer.encode(texts, settings=settings))
    inner = int(encoder.checkpoint.config["intermediate_size"])
    per_token = encoder.n_layers * (8 * encoder.width**2 + 4 * encoder.width * inner)
    contestants = systems(encoder)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    rates = []
    for number in range(ROUNDS + 1):
        rates.append(gemm_rate(encoder.batch_tokens, encoder.width, inner))
        for name, run in contestants.items():
            started = time.perf_counter()
            run(texts)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    limit = statistics.median(rates) / per_token
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    first = next(iter(medians.values()))
    lines = [
        f"{len(texts):,} texts, {tokens:,} tokens (mean {tokens / len(texts):.0f}), "
        f"{torch.get_num_threads()} threads; matrix products alone: {limit:,.0f} tokens/s",
        "",
        "| system | tokens/s | share of the matrix rate | time against embedkit |",
        "|---|---|---|---|",
    ]
    for name, median in medians.items():
        speed = tokens / median
        lines.append(f"| {name} | {speed:,.0f} | {speed / limit:.0%} | {median / first:.2f} × |")
    return lines


def memory(corpus: Path) -> list[str]:
    """Peak resident memory of a whole extraction for two sizes of the same corpus."""
    lines = ["| records | peak memory | seconds |", "|---|---|---|"]
    for limit in (5_000, 50_000):
        with tempfile.TemporaryDirectory() as folder:
            peak, seconds = _peak_of(
                ["-m", "embedkit", "extract", str(corpus), "--layers", "all", "--pooling",
                 "cls,mean,pooler", "--quiet", "--limit", str(limit), "--out", f"{folder}/out"]
            )  # fmt: skip
        lines.append(f"| {limit:,} | {peak / 1e6:,.0f} MB | {seconds:,.0f} |")
    return lines


def _peak_of(arguments: list[str]) -> tuple[int, float]:
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss * 1024, time.perf_counter() - started


def start_up() -> list[str]:
    """Seconds until ``--help`` has been printed, median of seven."""
    times = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "embedkit", "--help"], capture_output=True, check=True
        )
        times.append(time.perf_counter() - started)
    return [f"`embedkit --help`: {statistics.median(times):.2f} s"]


def main() -> None:
    """Print everything as Markdown."""
    corpus = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    packages = ("torch", "transformers", "sentence-transformers", "tokenizers", "pyarrow")
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, "
          f"{torch.backends.cpu.get_cpu_capability()}, Python {platform.python_version()}, "
          + ", ".join(f"{p} {version(p)}" for p in packages))  # fmt: skip
    sections = [throughput(read_texts(corpus)), start_up()]
    if corpus:
        sections.insert(1, memory(corpus))
    for lines in sections:
        print("\n" + "\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
