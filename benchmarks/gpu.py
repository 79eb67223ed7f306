"""GPU: forward alone, end to end, all layers, token vectors, attention kernels, correctness.

    python -m benchmarks.gpu [--device cuda] [--quick]

bert-base and MiniLM shapes with random weights; texts are put together from the vocabulary of the
packaged tokenizer, so nothing is downloaded. Takes less than eight minutes on a data-centre GPU.
``--device cpu --quick`` runs every line of it on a small scale, to see that it runs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import embedkit
from benchmarks.measure import describe, layer_flops, product_rate, table
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import PRECISIONS, PackedBatch, PlainModel, load_model
from embedkit.encoding.packed import PackedModel
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.views import View, parse_layers, parse_view

PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "pyarrow")
SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "intermediate_size": 3_072},
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
               "intermediate_size": 1_536},
}  # fmt: skip
LENGTHS = (16, 32, 128, 512)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    device: str
    precision: str
    tokens: int
    texts: int
    rounds: int


def main() -> None:
    """Print everything as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a small scale")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --quick tries everything out")
    quick = options.quick
    scale = Scale(options.device, "bf16", 2_048 if quick else 65_536, 200 if quick else 60_000,
                  2 if quick else 7)  # fmt: skip
    name = options.device
    if name.startswith("cuda"):
        torch.cuda.set_device(torch.device(name).index or 0)  # whose events and work are timed
        name = torch.cuda.get_device_name(name)
    print(f"{describe(PACKAGES)}, {name}, {scale.precision}", flush=True)
    started = time.perf_counter()
    peak = ceilings(scale)
    attention(scale)
    agree = []
    for shape, settings in SHAPES.items():
        with checkpoint(settings) as folder:
            agree.append(correctness(shape, folder, scale))
            forward(shape, folder, scale, peak)
            end_to_end(shape, folder, scale)
    print(f"\nmeasured in {time.perf_counter() - started:.0f} s")
    if not all(agree):
        raise SystemExit("the vectors differ from those of transformers by more than they may")


def ceilings(scale: Scale) -> float:
    """FLOP/s of a large matrix product, and bytes per second of a copy."""
    size = 512 if scale.device == "cpu" else 8_192
    dtype = PRECISIONS[scale.precision]
    a = torch.randn(size, size, dtype=dtype, device=scale.device)
    out = torch.empty_like(a)
    peak = 2 * size**3 / seconds(lambda: torch.mm(a, a, out=out), scale)
    source = torch.empty(1 << (24 if scale.device == "cpu" else 30), device=scale.device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source), scale)
    rows = [
        ("matrix product", f"{peak / 1e12:,.1f} TFLOP/s"),
        ("copy", f"{copied / 1e9:,.0f} GB/s"),
    ]
    for shape, config in SHAPES.items():
        rate = product_rate(config["hidden_size"], config["intermediate_size"],
                            rows=scale.tokens, dtype=dtype, device=scale.device)  # fmt: skip
        rows.append((f"products of a {shape} layer", f"{rate / 1e12:,.1f} TFLOP/s"))
    print("\n## Ceilings\n\n" + table(("what", "rate"), rows), flush=True)
    return peak


def attention(scale: Scale) -> None:
    """Attention of one layer by every kernel there is, per length and size of a head."""
    from embedkit.encoding import packed

    rows = []
    for size in (32, 64):
        for length in LENGTHS:
            count = max(scale.tokens // length, 1)
            qkv = torch.randn(count * length, 3 * 12 * size, dtype=PRECISIONS[scale.precision],
                              device=scale.device)  # fmt: skip
            ids = torch.zeros(count * length, dtype=torch.int64, device=scale.device)
            batch = PackedBatch.of(ids, ids, [length] * count)
            spans = packed._Spans(batch, widen=scale.device == "cpu")
            found = {}
            for name, (kernel, _) in packed._KERNELS.items():
                try:
                    found[name] = seconds(partial(kernel, qkv, spans, 12), scale)
                except (RuntimeError, NotImplementedError):
                    continue  # no CPU kernel
            rows += [(f"{size}", f"{length}", name, f"{s * 1e6:,.0f}") for name, s in found.items()]
    title = f"\n## Attention of one layer, {scale.tokens:,} tokens, 12 heads\n\n"
    print(title + table(("head size", "length", "kernel", "µs"), rows), flush=True)


def correctness(shape: str, folder: Path, scale: Scale) -> bool:
    """Distance of either half-precision forward from the plain one in fp32, layer by layer.

    Returns:
        Whether both are within their limits. If not, the measurements go on all the same.
    """
    exact, _ = models(folder, scale, "fp32")
    plain, ours = models(folder, scale, scale.precision)
    batch = random_batch((128, 64, 64, 31, 17, 16, 5, 1), scale.device)
    truth, theirs, packed = (states(m, batch) for m in (exact, plain, ours))
    worst = max(far(packed[i], truth[i]) / far(theirs[i], truth[i]) for i in truth)
    full = PackedModel(exact, find_checkpoint(str(folder)))
    error = max(far(states(full, batch)[i], truth[i]) for i in truth)
    print(f"\n## {shape}: correctness\n\nfp32: largest relative distance of a layer from "
          f"transformers {error:.1e}; {scale.precision}: {worst:.2f} × transformers' own distance "
          "from fp32 (at most 1.2)", flush=True)  # fmt: skip
    return error <= 1e-5 and worst <= 1.2


def forward(shape: str, folder: Path, scale: Scale, peak: float) -> None:
    """Tokens per second with the ids on the device, last layer summed per text."""
    plain, ours = models(folder, scale, scale.precision)
    config = SHAPES[shape]
    rows = []
    random = np.random.default_rng(0)
    mixes: dict[str, Sequence[int]] = {
        str(length): [length] * max(scale.tokens // length, 1) for length in LENGTHS
    }
    drawn = np.clip(random.lognormal(np.log(40), 0.8, scale.tokens // 40), 4, 512).astype(int)
    mixes["mix, mean 40"] = sorted(drawn.tolist(), reverse=True)
    for name, lengths in mixes.items():
        batch = random_batch(lengths, scale.device)
        tokens = sum(lengths)
        products = ours.n_layers * layer_flops(config["hidden_size"], config["intermediate_size"])
        inside = 4 * ours.n_layers * config["hidden_size"] * sum(n * n for n in lengths) / tokens
        for system, model in (("embedkit", ours), ("transformers, padded", plain)):
            try:
                spent = seconds(partial(run, model, batch), scale)
            except torch.OutOfMemoryError:
                continue
            speed = tokens / spent
            share = speed * (products + inside) / peak
            rows.append((name, system, f"{speed:,.0f}", f"{share:.0%}"))
    header = ("length", "system", "tokens/s", "share of the matrix peak")
    print(f"\n## {shape}: forward alone\n\n" + table(header, rows), flush=True)


def end_to_end(shape: str, folder: Path, scale: Scale) -> None:
    """From text: last layer, all layers, token vectors; and sentence-transformers."""
    encoder = Encoder.load(str(folder), device=scale.device, precision=scale.precision)
    texts = random_texts(encoder, scale.texts)
    settings = TokenizerSettings(encoder.max_length)
    started = time.perf_counter()
    tokenized = encoder.tokenizer.encode(texts, settings=settings)
    alone = time.perf_counter() - started
    tokens = sum(text.n_kept for text in tokenized)
    every = [f"{p}_{i}" for i in range(encoder.n_layers + 1) for p in ("cls", "mean")]
    some = tokenized[: max(scale.texts // 20, 50)]
    layers = parse_layers("all", n_layers=encoder.n_layers)

    def views(names: Sequence[str]) -> list[View]:
        return [parse_view(name, n_layers=encoder.n_layers) for name in names]

    cases: dict[str, tuple[int, Callable[[], object]]] = {
        "tokenizing alone": (tokens, lambda: encoder.tokenizer.encode(texts, settings=settings)),
        "vectors from ids, mean_-1": (
            tokens, lambda: encoder.encode_shard(tokenized, views=views(["mean_-1"]))),
        "encode(texts), mean_-1": (tokens, lambda: encoder.encode(texts)),
        "vectors from ids, cls_-1": (
            tokens, lambda: encoder.encode_shard(tokenized, views=views(["cls_-1"]))),
        "vectors from ids, cls + mean of all layers + pooler": (
            tokens, lambda: encoder.encode_shard(tokenized, views=views([*every, "pooler"]))),
        "token vectors of all layers": (
            sum(text.n_kept for text in some),
            lambda: encoder.encode_shard(some, views=(), token_layers=layers)),
        "extract to Parquet, mean_-1": (tokens, lambda: to_files(texts, folder, scale)),
        **sentence_transformers(texts, tokens, folder, scale),
    }  # fmt: skip
    rows = []
    for name, (count, action) in cases.items():
        action()
        times = []
        for _ in range(2 if scale.rounds < 5 else 3):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        rows.append((name, f"{count / statistics.median(times):,.0f}"))
    title = f"\n## {shape}: {len(texts):,} texts of mixed length, {tokens:,} tokens "
    print(title + f"(tokenizing took {alone:.1f} s)\n\n" + table(("what", "tokens/s"), rows),
          flush=True)  # fmt: skip


def sentence_transformers(
    texts: Sequence[str], tokens: int, folder: Path, scale: Scale
) -> dict[str, tuple[int, Callable[[], object]]]:
    """The peer in the same precision, at the best of several batch sizes."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Pooling, Transformer
    except ImportError:
        return {}
    body = Transformer(str(folder), max_seq_length=512)
    pooling = Pooling(int(body.get_word_embedding_dimension() or 0))
    model = SentenceTransformer(modules=[body, pooling], device=scale.device)
    model.to(PRECISIONS[scale.precision])
    sample = list(texts[: max(len(texts) // 10, 50)])
    spent = {}
    for batch in (32, 128) if scale.rounds < 5 else (64, 256, 1_024):
        model.encode(sample[:100], batch_size=batch)
        started = time.perf_counter()
        model.encode(sample, batch_size=batch)
        spent[batch] = time.perf_counter() - started
    best = min(spent, key=lambda batch: spent[batch])
    return {
        f"sentence-transformers, best batch ({best})": (
            tokens, lambda: model.encode(list(texts), batch_size=best))
    }  # fmt: skip


# what is measured on


@contextmanager
def checkpoint(settings: dict[str, int]) -> Iterator[Path]:
    """A BertModel with random weights and the packaged tokenizer."""
    from transformers import BertConfig, BertModel

    source = Encoder.load(device="cpu").checkpoint.folder
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        BertModel(BertConfig(**settings)).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copy(source / name, folder / name)
        yield folder


def models(folder: Path, scale: Scale, precision: str) -> tuple[PlainModel, PackedModel]:
    """The plain and the packed forward of a checkpoint."""
    found = find_checkpoint(str(folder))
    plain = load_model(found, pad_id=0, device=torch.device(scale.device),
                       dtype=PRECISIONS[precision], notify=print)  # fmt: skip
    return plain, PackedModel(plain, found)


def random_batch(lengths: Sequence[int], device: str) -> PackedBatch:
    """Random ids on the device."""
    ids = torch.randint(1_000, 30_000, (sum(lengths),), device=device)
    return PackedBatch.of(ids, torch.zeros_like(ids), list(lengths))


def random_texts(encoder: Encoder, count: int) -> list[str]:
    """Texts of whole words of the vocabulary, 4 to 512 tokens, 40 on average."""
    words = [w for w in encoder.tokenizer.hf.get_vocab() if w.isalpha()]
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(np.log(30), 0.8, count), 4, 500).astype(int)
    return [" ".join(words[i] for i in random.integers(len(words), size=n)) for n in lengths]


def states(model: PlainModel | PackedModel, batch: PackedBatch) -> dict[int, Tensor]:
    """Every layer in float32."""
    found: dict[int, Tensor] = {}
    layers = range(model.n_layers + 1)
    model.forward(batch, layers, lambda i, h: found.update({i: h.float().clone()}))
    return found


def far(ours: Tensor, theirs: Tensor) -> float:
    """Relative L2 distance."""
    return float((ours - theirs).norm() / theirs.norm())


def run(model: PlainModel | PackedModel, batch: PackedBatch) -> None:
    """The forward pass, its last layer used so that it cannot be left out."""

    def use(_: int, hidden: Tensor) -> None:
        hidden.sum()

    model.forward(batch, [model.n_layers], use)


def to_files(texts: Sequence[str], folder: Path, scale: Scale) -> None:
    """A whole extraction to a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus.txt"
        corpus.write_text("\n".join(texts) + "\n", "utf-8")
        embedkit.extract(corpus, out=Path(scratch) / "out", model=str(folder), format="lines",
                         device=scale.device, precision=scale.precision)  # fmt: skip


def seconds(action: Callable[[], object], scale: Scale) -> float:
    """Median seconds of an action, after two that warm up; on CUDA between two events."""
    for _ in range(2):
        action()
    times = []
    for _ in range(scale.rounds):
        if scale.device == "cpu":
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
