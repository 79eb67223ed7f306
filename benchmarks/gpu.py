"""GPU: is the packed forward right, how fast is it, and what bounds it.

    python -m benchmarks.gpu [--only packed,forward] [--out FOLDER]
    python -m benchmarks.gpu --device cpu --quick        # runs every line on a small scale

Needs torch, transformers, tokenizers, safetensors, numpy and msgspec, and for the section
``extract`` what ``embedkit.extract`` needs. Models have random weights and a vocabulary of made-up
words: nothing is downloaded. What an environment lacks is skipped by name. Each row is
printed when it is measured, and ``FOLDER/gpu.json`` is written after every section; the sections
stand in the order of what they tell per second.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.made_up import WORDS, lengths_around, made_up_texts, save_checkpoint
from benchmarks.measure import describe, in_turn, product_rate, table
from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import PRECISIONS, Model, PackedBatch, PlainModel, choose_precision
from embedkit.encoding.packed import PackedModel
from embedkit.encoding.shard import cut_batches
from embedkit.encoding.views import View, parse_view
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings

PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "pyarrow")
SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3_072,
    },
    "MiniLM": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1_536,
    },
    "24 x 1,024": {
        "hidden_size": 1_024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4_096,
    },
    "Qwen3-0.6B": {
        "kind": "qwen3",
        "hidden_size": 1_024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3_072,
    },
}
PEERS = ("bert-base", "MiniLM")
"""Shapes that are compared with other libraries."""
_WIDE = {"hidden_size": 768, "num_attention_heads": 12}
FAMILIES = {
    "distilbert": _WIDE,
    "mpnet": _WIDE,
    "modernbert": _WIDE,
    "albert": {**_WIDE, "intermediate_size": 3_072},
    "deberta-v2": {**_WIDE, "intermediate_size": 3_072},
}
"""Others than BERT, of bert-base's width."""
GOALS = {"H100": {"forward": 2.2e6, "text": 1.7e6}, "H200": {"forward": 2.4e6, "text": 1.9e6}}
"""Tokens per second of bert-base at length 128 in bf16, by a part of the card's name."""

Rows = Iterator[dict[str, Any]]


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """A section cannot be measured here; the message says why."""


class Bench:
    """Where is measured and how much, and the models that are measured.

    Args:
        device: ``cuda``, ``cuda:1`` or ``cpu``.
        precision: of the models, or ``None`` for what embedkit would choose.
        quick: a small scale: two layers, short rounds, few texts.
        scratch: an empty folder for checkpoints and corpora.
        out: where the profiler's trace goes, if anywhere.
    """

    def __init__(
        self, *, device: str, precision: str | None, quick: bool, scratch: Path, out: Path | None
    ) -> None:
        self.device, self.quick, self.scratch, self.out = device, quick, scratch, out
        self.cuda = device.startswith("cuda")
        self.precision = choose_precision(precision, torch.device(device))
        self.dtype = PRECISIONS[self.precision]
        self.of_peers = "fp16" if self.cuda else self.precision
        self.tokens = 512 if quick else 65_536 if self.cuda else 2_048
        self.texts = 40 if quick else 24_000
        self.rounds = 1 if quick else 7
        self._encoders: dict[tuple[str, str, str], Encoder] = {}

    def encoder(self, shape: str, *, forward: str = "auto", precision: str = "") -> Encoder:
        """A model of one of the shapes or families, loaded as embedkit loads any other.

        Raises:
            RuntimeError: the packed forward was asked for and not taken.
        """
        key = (shape, forward, precision or self.precision)
        if key not in self._encoders:
            encoder = Encoder(
                self.folder(shape), device=self.device, precision=key[2], forward=forward
            )
            if shape in SHAPES and forward == "auto" and not isinstance(encoder.model, PackedModel):
                raise RuntimeError(f"{shape}, {key[2]}: the plain forward; the log says why")
            self._encoders[key] = encoder
        return self._encoders[key]

    def plain(self, shape: str, precision: str = "") -> PlainModel:
        """The model of a shape as transformers runs it."""
        model = self.encoder(shape, forward="transformers", precision=precision).model
        assert isinstance(model, PlainModel)
        return model

    def settings(self, shape: str) -> dict[str, int]:
        """Configuration of a model; on a small scale two layers of an eighth of the width."""
        settings = {**SHAPES, **FAMILIES}[shape]
        settings = {key: size for key, size in settings.items() if key != "kind"}
        if not self.quick:
            return settings
        return {**{key: size // 8 for key, size in settings.items()}, "num_hidden_layers": 2}

    def seconds(
        self, contestants: Mapping[str, Callable[[], object]], *, rounds: int = 0
    ) -> dict[str, float]:
        """Median seconds of each, in turn; all work of the device is waited for."""

        def waiting(action: Callable[[], object]) -> None:
            action()
            if self.cuda:
                torch.cuda.synchronize()

        each = {name: partial(waiting, action) for name, action in contestants.items()}
        return in_turn(each, rounds or self.rounds)

    @cached_property
    def peak(self) -> float:
        """FLOP/s of a large matrix product in the precision of the models."""
        size = 8_192 if self.cuda else 1_024
        a = torch.randn(size, size, dtype=self.dtype, device=self.device)
        out = torch.empty_like(a)
        return 2 * size**3 / self.seconds({"": lambda: torch.mm(a, a, out=out)})[""]

    def products(self, shape: str) -> int:
        """Floating-point operations of a token in the matrix products of all layers."""
        with safe_open(self.folder(shape) / "model.safetensors", "pt") as file:
            names = [n for n in file.keys() if "layer" in n and "embed" not in n]  # noqa: SIM118
            shapes = [file.get_slice(name).get_shape() for name in names]
        return sum(2 * math.prod(shape) for shape in shapes if len(shape) == 2)

    def mixes(self) -> dict[str, list[int]]:
        """Lengths of the sequences of one batch, longest first, by name."""
        random = np.random.default_rng(0)
        drawn = np.clip(random.lognormal(np.log(40), 0.8, self.tokens // 50), 4, 512).astype(int)
        equal = {str(length): [length] * (self.tokens // length) for length in (128, 16, 512)}
        return {**equal, "mixed, mean 50": sorted(drawn.tolist(), reverse=True)}

    def batch(self, lengths: Sequence[int]) -> PackedBatch:
        """Random ids on the device."""
        ids = torch.randint(1_000, WORDS, (sum(lengths),), device=self.device)
        return PackedBatch.of(ids, torch.zeros_like(ids), list(lengths))

    def folder(self, shape: str) -> Path:
        """The checkpoint of a shape or family, which is made first."""
        folder = self.scratch / shape
        if not folder.exists():
            kind = shape if shape in FAMILIES else SHAPES[shape].get("kind", "bert")
            save_checkpoint(folder, kind, self.settings(shape))
        return folder


# sections: each yields its rows as they are measured; names that begin with _ go to JSON alone


def packed(bench: Bench) -> Rows:
    """Packed against plain: equality layer by layer, and tokens per second."""
    wrong = []
    for shape in PEERS:
        ours = bench.encoder(shape).model
        plain = bench.encoder(shape, forward="transformers").model
        for name, lengths in bench.mixes().items():
            distances = layer_distances(ours, plain, bench.batch(lengths[:: -(-len(lengths) // 8)]))
            worst = max(distances)
            spent = bench.seconds(forwards(bench, shape, lengths))
            yield {
                "model": shape,
                "length": name,
                "distance": f"{worst:.1e} (layer {distances.index(worst)})",
                **{n: f"{sum(lengths) / s:,.0f}" for n, s in spent.items()},
                "times": f"{spent['transformers, padded'] / spent['embedkit']:.2f}",
                "_distances": distances,
            }
            if not worst <= (1e-5 if bench.dtype == torch.float32 else 5e-2):
                wrong.append(f"{shape}, {name}: {worst:.1e}")
    if wrong:
        raise AssertionError(f"packed and plain forward differ: {'; '.join(wrong)}")


def correctness(bench: Bench) -> Rows:
    """fp32 against transformers; half precision by its distance from fp32."""
    wrong = []
    batch = bench.batch((128, 64, 64, 31, 17, 16, 5, 1))
    for shape in (*PEERS, "Qwen3-0.6B"):
        exact = bench.encoder(shape, forward="transformers", precision="fp32").model
        ours = layer_distances(bench.encoder(shape, precision="fp32").model, exact, batch)
        rows = [("fp32 from transformers", max(ours), 1e-5)]
        if bench.dtype != torch.float32:
            theirs = layer_distances(
                bench.encoder(shape, forward="transformers").model, exact, batch
            )
            half = layer_distances(bench.encoder(shape).model, exact, batch)
            ratio = max(a / b for a, b in zip(half, theirs, strict=True))
            rows.append((f"{bench.precision} from fp32, times transformers' own", ratio, 1.2))
        for what, found, limit in rows:
            yield {
                "model": shape,
                "largest distance of a layer": what,
                "found": f"{found:.2g}",
                "limit": f"{limit:g}",
            }
            if not found <= limit:
                wrong.append(f"{shape}, {what}: {found:.2g}")
    if wrong:
        raise AssertionError("; ".join(wrong))


def ceilings(bench: Bench) -> Rows:
    """What the machine reaches without embedkit."""
    yield {"what": "large matrix product", "rate": f"{bench.peak / 1e12:,.2f} TFLOP/s"}
    for shape in ("MiniLM", "bert-base", "24 x 1,024"):
        config = bench.settings(shape)
        rate = product_rate(
            config["hidden_size"],
            config["intermediate_size"],
            rows=bench.tokens,
            dtype=bench.dtype,
            device=bench.device,
        )
        yield {"what": f"products of a {shape} layer", "rate": f"{rate / 1e12:,.2f} TFLOP/s"}
    source = torch.empty(1 << (28 if bench.cuda else 22), device=bench.device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / bench.seconds({"": lambda: target.copy_(source)})[""]
    yield {"what": "copy", "rate": f"{copied / 1e9:,.0f} GB/s"}


def attention(bench: Bench) -> Rows:
    """Attention of one layer of 12 heads by each kernel that torch has here, in microseconds."""
    for size in (64, 32):
        for name, lengths in bench.mixes().items():
            kernels = attention_kernels(bench, lengths, size)
            spent = bench.seconds(kernels)
            yield {
                "head size": size,
                "length": name,
                **{
                    k: f"{spent[k] * 1e6:,.0f}" if k in spent else "–"
                    for k in ("varlen", "efficient", "dense")
                },
            }


def forward(bench: Bench) -> Rows:
    """The forward alone: share of the matrix rate, what more views cost, waits for the device."""
    for shape in SHAPES:
        model, config = bench.encoder(shape).model, bench.settings(shape)
        top, products = model.n_layers, bench.products(shape)
        for name, lengths in bench.mixes().items():
            batch, tokens = bench.batch(lengths), sum(lengths)
            cases = {
                "last layer": partial(run, model, batch, [top]),
                "first token": partial(run, model, batch, [top], first_only=True),
                "all layers": partial(run, model, batch, range(top + 1)),
            }
            spent = {case: tokens / s for case, s in bench.seconds(cases).items()}
            heads = config["num_attention_heads"]
            across = heads * config.get("head_dim", config["hidden_size"] // heads)
            work = products + top * 4 * across * sum(n * n for n in lengths) / tokens
            waits = waits_of(bench, cases["all layers"])
            yield {
                "model": shape,
                "length": name,
                **{f"{case}, tokens/s": f"{speed:,.0f}" for case, speed in spent.items()},
                "of the matrix rate": f"{spent['last layer'] * work / bench.peak:.0%}",
                "waits": "–" if waits is None else waits,
                "goal": goal(bench, "forward", shape, name, spent["last layer"]),
            }


def profile(bench: Bench) -> Rows:
    """One batch of bert-base, length 128, by kernel; the whole trace goes to the folder given."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    model, batch = bench.encoder("bert-base").model, bench.batch(bench.mixes()["128"])
    action = partial(run, model, batch, [model.n_layers])
    for _ in range(3):
        action()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    with profiler(activities=kinds, acc_events=True) as recorded:
        action()
        if bench.cuda:
            torch.cuda.synchronize()
    if bench.out:
        recorded.export_chrome_trace(str(bench.out / "trace.json.gz"))
    clock = "self_device_time_total" if bench.cuda else "self_cpu_time_total"
    events = sorted(recorded.key_averages(), key=lambda e: -getattr(e, clock))
    total = sum(getattr(e, clock) for e in events)
    for event in events[:12]:
        spent = getattr(event, clock)
        yield {
            "kernel": event.key[:70],
            "calls": event.count,
            "ms": f"{spent / 1e3:.2f}",
            "share": f"{spent / max(total, 1e-9):.1%}",
        }


def memory(bench: Bench) -> Rows:
    """Most memory of the device, the weights among it."""
    if not bench.cuda:
        raise Skipped("only a CUDA device counts its memory")
    for shape in PEERS:
        encoder = bench.encoder(shape)
        for name in ("mean_-1", "all"):
            texts = tokenized(encoder, lengths_around(128, 2_048))
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            encoder.encode_shard(texts, views=views_of(encoder, name))
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_allocated() - before
            yield {
                "model": shape,
                "views": name,
                "all models here, MB": f"{before / 1e6:,.0f}",
                "shard and batch, MB": f"{most / 1e6:,.0f}",
                "reserved, MB": f"{torch.cuda.max_memory_reserved() / 1e6:,.0f}",
            }


def host(bench: Bench) -> Rows:
    """What the host alone could feed: everything but the forward, which does nothing here."""
    loaded = bench.encoder("bert-base")
    nothing = NoModel(loaded.model)
    encoder = copy.copy(loaded)
    encoder.model, encoder.max_length = nothing, 512
    settings = TokenizerSettings(512)
    views = views_of(encoder, "mean_-1")
    for length in (128, 16):
        texts = made_up_texts(lengths_around(length, min(4 * bench.texts, 16_384)))
        ids = encoder.tokenizer.encode(texts, settings=settings)
        tokens = len(ids.ids)

        def both(texts: Sequence[str] = texts) -> None:
            encoder.encode_shard(encoder.tokenizer.encode(texts, settings=settings), views=views)

        cases: dict[str, Callable[[], object]]
        cases = {
            "tokenizing": partial(encoder.tokenizer.encode, texts, settings=settings),
            "shard without forward": partial(encoder.encode_shard, ids, views=views),
            "one after the other": both,
        }
        with np.errstate(all="ignore"):  # the vectors are whatever stood in memory
            for case, seconds in bench.seconds(cases).items():
                yield {
                    "what": case,
                    "length": length,
                    "texts/s": f"{len(texts) / seconds:,.0f}",
                    "tokens/s": f"{tokens / seconds:,.0f}",
                }


def shards(bench: Bench) -> Rows:
    """From ids to vectors in shards as large as ``extract`` makes them, one started ahead."""
    for shape in PEERS:
        encoder = bench.encoder(shape)
        for length in (128, 16):
            texts = tokenized(encoder, lengths_around(length, bench.texts))
            for name, rows in (("mean_-1", 16_384), ("all", 512)):
                views = views_of(encoder, name)
                some = texts[: rows * 16]
                spent = bench.seconds({"": partial(in_shards, encoder, some, views, rows)})[""]
                yield {
                    "model": shape,
                    "length": length,
                    "views": name,
                    "rows per shard": rows,
                    "tokens/s": f"{len(some.ids) / spent:,.0f}",
                }


def text(bench: Bench) -> Rows:
    """End to end, from text to mean vectors on the host, beside the peers."""
    for shape in PEERS:
        encoder = bench.encoder(shape)
        for length in (128, 16):
            texts = made_up_texts(lengths_around(length, bench.texts))
            tokens = sum(text.count(" ") + 3 for text in texts)
            peers = f"transformers {bench.of_peers}, sorted by length"
            systems: dict[str, Callable[[], object]] = {
                "embedkit": partial(encoder.encode, texts),
                peers: partial(transformers_means, bench, shape, texts),
                **sentence_transformers(bench, shape, texts),
            }
            for system, spent in bench.seconds(systems, rounds=min(bench.rounds, 3)).items():
                aim = goal(bench, "text", shape, str(length), tokens / spent)
                yield {
                    "model": shape,
                    "length": length,
                    "system": system,
                    "tokens/s": f"{tokens / spent:,.0f}",
                    "goal": aim if system == "embedkit" else "–",
                }


def idle(bench: Bench) -> Rows:
    """How long the device waits for the host from text to vectors, texts of 128 tokens."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    # on a CPU, where only the lines are tried, operators stand for kernels
    kind = "CUDA" if bench.cuda else "CPU"
    texts = made_up_texts(lengths_around(128, bench.texts))
    for shape in PEERS:
        encode = partial(bench.encoder(shape).encode, texts)
        encode()
        with profiler(activities=[getattr(ProfilerActivity, kind)]) as recorded:
            wall = duration(encode)
        events = [e.time_range for e in recorded.events() if kind in str(e.device_type)]
        # kernels and copies may run side by side: each moment counts once
        spans = sorted((span.start, span.end) for span in events)
        begin, end, busy = spans[0][0], spans[0][0], 0.0
        for start, stop in spans:
            busy += max(stop - max(start, end), 0)
            end = max(end, stop)
        yield {
            "model": shape,
            "s": f"{wall:.2f}",
            "device at work, s": f"{busy / 1e6:.2f}",
            "waiting in between, s": f"{(end - begin - busy) / 1e6:.2f}",
            "before and after, s": f"{wall - (end - begin) / 1e6:.2f}",
        }


def families(bench: Bench) -> Rows:
    """Others than BERT at its width: a shard of mixed lengths, from ids to mean vectors.

    Both sides have their sequences sorted by length and cut into batches, as in use: in a single
    batch of all lengths, a forward that pads would compute padding for the most part.
    """
    random, count = np.random.default_rng(0), 40 if bench.quick else 16_384
    drawn = np.clip(random.lognormal(np.log(40), 0.8, count), 4, 500).astype(int)
    lengths = sorted(drawn.tolist(), reverse=True)
    for family in FAMILIES:
        encoder = bench.encoder(family)
        texts, views = tokenized(encoder, lengths), views_of(encoder, "mean_-1")
        cases: dict[str, Callable[[], object]] = {
            "embedkit": partial(encoder.encode_shard, texts, views=views),
            "transformers, padded": forwards(bench, family, lengths)["transformers, padded"],
        }
        speeds = {n: f"{sum(lengths) / s:,.0f}" for n, s in bench.seconds(cases).items()}
        few = bench.batch((64, 17, 17, 5))
        waits = waits_of(bench, partial(run, encoder.model, few, [encoder.n_layers]))
        yield {
            "model": family,
            "forward": encoder.model.name,
            "layers": encoder.n_layers,
            **speeds,
            "waits": "–" if waits is None else waits,
        }


def extract(bench: Bench) -> Rows:
    """The whole of ``embedkit.extract``, from a file of texts to Parquet."""
    try:
        import embedkit.dataset.extract
    except ImportError as error:
        raise Skipped(f"{error.name} is not installed") from error

    def to_files(corpus: Path, folder: Path, **options: Any) -> None:
        with tempfile.TemporaryDirectory(dir=bench.scratch) as out:
            embedkit.dataset.extract.extract(
                corpus,
                out=Path(out) / "vectors",
                model=str(folder),
                format="lines",
                device=bench.device,
                precision=bench.precision,
                **options,
            )

    mean: dict[str, Any] = {"pooling": "mean"}
    layers: dict[str, Any] = {"layers": "all", "pooling": ["cls", "mean"]}
    lengths = (128,) if bench.quick else (16, 128, 512)
    cases = [(shape, length, mean) for shape in SHAPES for length in lengths]
    cases += [(shape, 128, layers) for shape in PEERS]
    few = bench.scratch / "few.txt"
    few.write_text("a text\n" * 64, "utf-8")
    starts = {}
    for shape in SHAPES:
        # the second time: the first one reads the weights from the disk
        for _ in range(2):
            starts[shape] = duration(partial(to_files, few, bench.folder(shape)))
    for shape, length, options in cases:
        size = {"MiniLM": 4, "bert-base": 2}.get(shape, 1) * bench.texts * 64
        if length > 16 and not bench.quick:
            size *= 4  # else there are too few shards for one to be read while another is encoded
        texts = made_up_texts(lengths_around(length, size // length))
        corpus = bench.scratch / f"corpus-{length}.txt"
        corpus.write_text("\n".join(texts) + "\n", "utf-8")
        tokens = sum(text.count(" ") + 3 for text in texts)
        spent = duration(partial(to_files, corpus, bench.folder(shape), **options))
        yield {
            "model": shape,
            "length": length,
            "views": "all layers, cls and mean" if options is layers else "mean",
            "texts": f"{len(texts):,}",
            "s": f"{spent:.1f}",
            "start-up, s": f"{starts[shape]:.1f}",
            "tokens/s without start-up": f"{tokens / (spent - starts[shape]):,.0f}",
        }


def bits(bench: Bench) -> Rows:
    """Texts whose vectors have the same bits again, alone, and among other texts."""
    for shape, precision in product(PEERS, dict.fromkeys(("fp32", bench.precision))):
        encoder = bench.encoder(shape, precision=precision)
        texts = made_up_texts(lengths_around(60, 30 if bench.quick else 300))
        together = encoder.encode_views(texts, ["mean_-1", "cls_-1"])
        views = list(together)

        def same(
            others: Mapping[str, Any],
            order: Any = slice(None),
            together: Mapping[str, Any] = together,
        ) -> str:
            """Share of texts with the same bits in all views."""
            equal = [(together[name][order] == values).all(1) for name, values in others.items()]
            return f"{np.logical_and.reduce(equal).mean():.1%}"

        few = len(texts) // 3
        alone = [encoder.encode_views([text], views) for text in texts[:few]]
        order = np.random.default_rng(0).permutation(len(texts))
        half = order[: len(texts) // 2]
        yield {
            "model": shape,
            "precision": precision,
            "again": same(encoder.encode_views(texts, views)),
            "shuffled": same(encoder.encode_views([texts[i] for i in order], views), order),
            "among half of them": same(encoder.encode_views([texts[i] for i in half], views), half),
            "alone": same(
                {name: np.concatenate([each[name] for each in alone]) for name in views}, slice(few)
            ),
        }


def duration(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


SECTIONS: dict[str, Callable[[Bench], Rows]] = {
    section.__name__: section
    for section in (
        bits,
        packed,
        ceilings,
        forward,
        profile,
        text,
        idle,
        extract,
        shards,
        host,
        attention,
        correctness,
        families,
        memory,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections one after the other.

    Returns:
        1 if a section failed, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=PRECISIONS, help="by default what extract takes")
    parser.add_argument("--quick", action="store_true", help="a small scale")
    parser.add_argument("--only", help=f"sections, with commas: {', '.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and trace.json.gz")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"--only {unknown[0]}: expected {', '.join(SECTIONS)}")
    if options.device.startswith("cuda"):
        if not torch.cuda.is_available():
            parser.error("there is no CUDA device; --device cpu --quick runs every line on the CPU")
        torch.cuda.set_device(torch.device(options.device).index or 0)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    quiet_transformers()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(
            device=options.device,
            precision=options.precision,
            quick=options.quick,
            scratch=Path(scratch),
            out=options.out,
        )
        return run_sections(bench, wanted)


def run_sections(bench: Bench, names: Sequence[str]) -> int:
    """Print each section as it is measured; a failing one does not stop the others."""
    device = torch.cuda.get_device_name() if bench.cuda else bench.device
    machine = f"{describe(PACKAGES)}, {device}, {bench.precision}"
    print(machine + (", small scale" if bench.quick else ""), flush=True)
    found: dict[str, Any] = {
        "machine": machine,
        "device": device,
        "precision": bench.precision,
        "quick": bench.quick,
        "sections": {},
    }
    for name in names:
        about = (SECTIONS[name].__doc__ or "").partition("\n")[0]
        print(f"\n## {name}: {about}\n", flush=True)
        result = found["sections"][name] = run_section(bench, name)
        if "skipped" in result:
            print(f"skipped: {result['skipped']}")
        if "error" in result:
            print(f"\n{result['error']}")
        print(f"\n({result['seconds']} s)", flush=True)
        if bench.out:
            (bench.out / "gpu.json").write_text(json.dumps(found, indent=1), "utf-8")
    failed = [name for name in names if "error" in found["sections"][name]]
    print("\n" + (f"failed: {', '.join(failed)}" if failed else "all sections ran"), flush=True)
    return int(bool(failed))


def run_section(bench: Bench, name: str) -> dict[str, Any]:
    """Rows of one section, and what went wrong if something did."""
    started = time.perf_counter()
    result: dict[str, Any] = {"rows": []}
    try:
        for row in SECTIONS[name](bench):
            shown = {key: str(value) for key, value in row.items() if not key.startswith("_")}
            lines = table(list(shown), [list(shown.values())]).splitlines()
            print("\n".join(lines[2 if result["rows"] else 0 :]), flush=True)
            result["rows"].append(row)
    except Skipped as error:
        result["skipped"] = str(error)
    except Exception:
        result["error"] = traceback.format_exc()
    result["seconds"] = round(time.perf_counter() - started, 1)
    return result


# what is run


def tokenized(encoder: Encoder, lengths: Sequence[int]) -> TokenizedTexts:
    """Made-up texts as ids."""
    return encoder.tokenizer.encode(made_up_texts(lengths), settings=TokenizerSettings(512))


class NoModel(Model):
    """A model that takes no time: it calls back with nothing."""

    name, pads = "nothing", False

    def __init__(self, model: Model) -> None:
        super().__init__(model.module, None, model.checkpoint)

    def forward(self, *_: Any, **__: Any) -> None:
        """Nothing."""

    def pool(self, first: Tensor) -> Tensor:
        """Nothing either."""
        return first


def run(
    model: Model, batch: PackedBatch, layers: Sequence[int], *, first_only: bool = False
) -> None:
    """The forward; the layers are used so that they cannot be left out."""

    def use(_: int, hidden: Tensor) -> None:
        hidden.sum()

    model.forward(batch, layers, use, first_only=first_only)


def forwards(bench: Bench, shape: str, lengths: Sequence[int]) -> dict[str, Callable[[], object]]:
    """The same sequences through embedkit's forward, and padded through transformers' own."""
    model = bench.encoder(shape).model
    module = bench.plain(shape).module
    padded = []
    for start, stop in cut_batches(np.array(lengths), bench.tokens, padded=True):
        part = torch.tensor(lengths[start:stop], device=bench.device)
        mask = (torch.arange(max(lengths[start:stop]), device=bench.device) < part[:, None]).long()
        padded.append((torch.randint_like(mask, 1_000, WORDS), mask))

    @torch.inference_mode()
    def theirs() -> None:
        for ids, mask in padded:
            module(input_ids=ids, attention_mask=mask).last_hidden_state.sum()

    return {
        "embedkit": partial(run, model, bench.batch(lengths), [model.n_layers]),
        "transformers, padded": theirs,
    }


def attention_kernels(
    bench: Bench, lengths: Sequence[int], size: int
) -> dict[str, Callable[[], object]]:
    """Kernels of torch that take these sequences on this device."""
    heads, tokens, longest = 12, sum(lengths), max(lengths)
    qkv = torch.randn(tokens, 3, heads, size, dtype=bench.dtype, device=bench.device)
    q, k, v = qkv.unbind(1)
    ends = torch.tensor([0, *lengths], device=bench.device).cumsum(0).int()

    def varlen() -> None:
        from torch.nn.attention.varlen import varlen_attn

        varlen_attn(q, k, v, ends, ends, longest, longest)

    def efficient() -> None:
        torch.ops.aten._efficient_attention_forward(
            q[None], k[None], v[None], None, ends, ends, longest, longest, 0.0, 0
        )

    def dense() -> None:
        a, b, c = (x.view(len(lengths), -1, heads, size).transpose(1, 2) for x in (q, k, v))
        torch.nn.functional.scaled_dot_product_attention(a, b, c)

    found: dict[str, Callable[[], object]] = {}
    for kernel in (varlen, efficient, *([dense] if len(set(lengths)) == 1 else [])):
        with contextlib.suppress(ImportError, RuntimeError, NotImplementedError):  # no such kernel
            kernel()
            found[kernel.__name__] = kernel
    return found


def layer_distances(ours: Model, theirs: Model, batch: PackedBatch) -> list[float]:
    """Relative L2 distance of each layer, in float32."""

    def states(model: Model) -> list[Tensor]:
        found: list[Tensor] = []
        model.forward(batch, range(model.n_layers + 1), lambda _, h: found.append(h.float()))
        return found

    return [
        float((a - b).norm() / b.norm()) for a, b in zip(states(ours), states(theirs), strict=True)
    ]


def waits_of(bench: Bench, action: Callable[[], object]) -> int | None:
    """How often the host waits for the device; ``None`` where there is nothing to wait for."""
    if not bench.cuda:
        return None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            action()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    messages = [str(warning.message) for warning in caught]
    return sum("synchroniz" in text and "prototype" not in text for text in messages)


def views_of(encoder: Encoder, name: str) -> list[View]:
    """One view; or ``all``: cls and mean of every layer."""
    names = [name]
    if name == "all":
        names = [f"{p}_{i}" for i in range(encoder.n_layers + 1) for p in ("cls", "mean")]
    return [parse_view(name, n_layers=encoder.n_layers) for name in names]


def in_shards(encoder: Encoder, texts: TokenizedTexts, views: Sequence[View], rows: int) -> None:
    """Shard after shard; the results of one are waited for when the next has been started."""
    before = None
    for start in range(0, len(texts), rows):
        begun = encoder.start_shard(texts[start : start + rows], views=views)
        if before is not None:
            before.result()
        before = begun
    if before is not None:
        before.result()


@torch.inference_mode()
def transformers_means(bench: Bench, shape: str, texts: Sequence[str]) -> None:
    """Mean vectors as one would write it by hand: sorted by length, padded, batch after batch."""
    module = bench.plain(shape, bench.of_peers).module
    tokenizer = bench.encoder(shape).tokenizer.hf
    for start in range(0, len(texts), 16_384):
        ordered = sorted(texts[start : start + 16_384], key=len, reverse=True)
        lengths = np.array([t.count(" ") + 3 for t in ordered])
        sums = []
        for first, last in cut_batches(lengths, bench.tokens, padded=True):
            inputs = tokenizer(ordered[first:last], padding=True, return_tensors="pt")
            inputs = {name: value.to(bench.device) for name, value in inputs.items()}
            hidden = module(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None]
            sums.append((hidden * mask).sum(1).float() / mask.sum(1))
        torch.cat(sums).cpu()


def sentence_transformers(
    bench: Bench, shape: str, texts: Sequence[str]
) -> dict[str, Callable[[], object]]:
    """The peer in the same precision at the best of several batch sizes, if it is installed."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return {}
    try:
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:  # before release 6
        from sentence_transformers.models import Pooling, Transformer  # type: ignore[no-redef]
    encoder = bench.encoder(shape)
    body = Transformer(str(encoder.checkpoint.folder), max_seq_length=512)
    model = SentenceTransformer(modules=[body, Pooling(encoder.width)], device=bench.device)
    model.to(PRECISIONS[bench.of_peers])
    sample = list(texts[: max(len(texts) // 10, 50)])
    sizes = (64, 256, 1_024) if bench.cuda else (32, 128)
    spent = bench.seconds(
        {str(size): partial(model.encode, sample, batch_size=size) for size in sizes}, rounds=1
    )
    best = int(min(spent, key=lambda size: spent[size]))
    whole = partial(model.encode, list(texts), batch_size=best)
    return {f"sentence-transformers {bench.of_peers}, best batch ({best})": whole}


def goal(bench: Bench, section: str, shape: str, length: str, speed: float) -> str:
    """How far the goal is met, where there is one."""
    card = next((card for card in GOALS if bench.cuda and card in torch.cuda.get_device_name()), "")
    if shape != "bert-base" or length != "128" or not card:
        return "–"
    aim = GOALS[card][section]
    return f"{aim / 1e6:.1f} M: {'met' if speed >= aim else 'missed'} ({speed / aim:.0%})"


if __name__ == "__main__":
    raise SystemExit(main())
