"""CPU: share of the machine's matrix rate, work avoided, dumps, loading, memory.

    python -m benchmarks.cpu [--corpora FOLDER] [--memory 5000,50000] [--only SECTION]

What is compared is run in turn, round after round, in one process with the same threads on the same
texts; medians of five rounds. Tokens are counted without padding. The matrix rate is that of
``torch.mm`` on the four products of a layer, measured in the same rounds. Other engines stand in
:mod:`benchmarks.peers`, which also says what FOLDER holds.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import embedkit
from benchmarks.made_up import made_up_texts, save_checkpoint
from benchmarks.measure import (
    PACKAGES,
    describe,
    disk_rate,
    in_turn,
    layer_flops,
    peak_of,
    product_rate,
    table,
)
from benchmarks.peers import checkpoint
from benchmarks.search import VIEW, write_dataset
from benchmarks.texts import CORPORA, count, mixed_lengths, texts_of
from embedkit.corpus.plan import CorpusOptions
from embedkit.corpus.records import CorpusReader
from embedkit.dataset.extract import run_plan
from embedkit.dataset.parquet import FACTS, shard_bytes
from embedkit.dataset.planning import plan_extract
from embedkit.dataset.settings import ExtractOptions
from embedkit.dataset.shards import ExtractPlan, ledger_of, lengths_of, sentence_columns
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import View, parse_view
from embedkit.encoding.windows import TokenizerSettings

SHORT_TEXTS = 1_000
FAMILIES = (
    *(
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "electra",
        "distilbert",
        "albert",
        "nomic_bert",
    ),
    *("jina_embeddings_v3", "ernie", "data2vec-text", "modernbert", "xlm-roberta-xl", "qwen3"),
    *("gemma3_text", "mpnet"),
)


@dataclass
class Findings:
    """What is printed at the end: goals with what was measured."""

    goals: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def goal(self, what: str, least: str, measured: str, met: bool) -> None:
        """Note a goal, what was measured, and whether it was met."""
        self.goals.append((what, least, measured, met))


def main() -> None:
    """Print everything as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--memory", default="2000,10000", help="records, separated by commas")
    parser.add_argument("--only", choices=sorted(SECTIONS), action="append")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    findings = Findings()
    for name, section in SECTIONS.items():
        if options.only is None or name in options.only:
            section(options, findings)
    print("\n## Goals\n")
    rows = [(a, b, c, "yes" if met else "no") for a, b, c, met in findings.goals]
    print(table(("what", "at least", "measured", "met"), rows))


# throughput


def _corpora(folder: Path) -> dict[str, list[str]]:
    return {name: texts_of(folder, name, SHORT_TEXTS) for name in ("nsmc", "stsb_en")}


def base(options: argparse.Namespace, findings: Findings) -> None:
    """A model of 12 layers and width 768, with random weights."""
    with checkpoint("base") as folder:
        encoder = Encoder(str(folder), device="cpu", precision="fp32")
        texts = mixed_lengths(encoder, _corpora(options.corpora)["nsmc"], 250, (8, 64))
        tokens = count(encoder, texts)
        rates: list[float] = []
        seconds = in_turn(
            {
                "embedkit": lambda: encoder.encode(texts),
                "rate": lambda: rates.append(product_rate(768, 3_072)),
            }
        )
        flops = encoder.n_layers * layer_flops(768, 3_072)
        share = tokens * flops / statistics.median(rates[1:]) / seconds["embedkit"]
    print(
        f"\n## 12 layers of width 768: {tokens:,} tokens, {tokens / seconds['embedkit']:,.0f} "
        f"tokens/s, {share:.0%} of the matrix rate"
    )
    findings.goal(
        "12 layers of width 768: share of the matrix rate", "93 %", f"{share:.0%}", share >= 0.93
    )


def families(options: argparse.Namespace, findings: Findings) -> None:
    """Two layers of width 768 of each family, beside padded batches of similar length."""
    lengths = np.exp(np.random.default_rng(0).uniform(np.log(8), np.log(300), 60)).astype(int)
    texts, rows = made_up_texts(lengths.tolist()), []
    for kind in FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            layers = {"num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 12}
            if kind in ("qwen3", "gemma3_text"):  # their defaults are of another width
                layers |= {"num_key_value_heads": 4, "head_dim": 64}
            if kind == "distilbert":
                layers = {"n_layers": 2, "dim": 768, "n_heads": 12}
            if kind == "xlm-roberta-xl":
                layers |= {"intermediate_size": 3_072}
            save_checkpoint(Path(scratch, kind), kind, layers)
            runs = {}
            for forward in ("auto", "transformers"):
                encoder = Encoder(
                    Path(scratch, kind), device="cpu", precision="fp32", forward=forward
                )
                runs[forward] = partial(encoder.encode, texts, pooling="mean")
            seconds = in_turn(runs)
        ratio = seconds["transformers"] / seconds["auto"]
        rows.append((kind, f"{sum(lengths) / seconds['auto']:,.0f}", f"{ratio:.2f} ×"))
        findings.goal(f"{kind}, against padded batches", "1.15 ×", f"{ratio:.2f} ×", ratio >= 1.15)
    print("\n## Families\n\n" + table(("family", "tokens/s", "padded / packed"), rows), flush=True)


def profile(options: argparse.Namespace, findings: Findings) -> None:
    """Where the time of the forward pass goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    encoder = Encoder(device="cpu", precision="fp32")
    view = [parse_view("mean_-1", n_layers=encoder.n_layers)]
    for name, texts in _corpora(options.corpora).items():
        tokenized = encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))
        encoder.encode_shard(tokenized[:100], views=view)
        with recorded(activities=[ProfilerActivity.CPU]) as events:
            encoder.encode_shard(tokenized, views=view)
        found = sorted(events.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in found)
        rows = [
            (e.key.removeprefix("aten::"), f"{e.self_cpu_time_total / total:.1%}", f"{e.count:,}")
            for e in found[:7]
        ]
        print(
            f"\n## {name}: operations\n\n" + table(("operation", "time", "calls"), rows), flush=True
        )


def avoided(options: argparse.Namespace, findings: Findings) -> None:
    """What other views cost, measured against the mean of the last layer."""
    encoder = Encoder(device="cpu", precision="fp32")
    texts = _corpora(options.corpora)["nsmc"]
    tokenized = encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))
    every = [f"{p}_{i}" for i in range(encoder.n_layers + 1) for p in ("cls", "mean")]
    cases = {
        "mean_-1": ["mean_-1"],
        "cls_-1": ["cls_-1"],
        "pooler": ["pooler"],
        "cls + mean of all layers + pooler": [*every, "pooler"],
    }

    def runner(names: list[str]) -> Callable[[], object]:
        views: list[View] = [parse_view(name, n_layers=encoder.n_layers) for name in names]
        return lambda: encoder.encode_shard(tokenized, views=views)

    seconds = in_turn({name: runner(names) for name, names in cases.items()})
    whole = seconds["mean_-1"]
    print("\n## Views\n")
    rows = [(name, f"{s / whole:.2f} ×") for name, s in seconds.items()]
    print(table(("views", "time of mean_-1"), rows), flush=True)
    for name, most in (
        ("cls_-1", 0.92),
        ("pooler", 0.92),
        ("cls + mean of all layers + pooler", 1.05),
    ):
        ratio = seconds[name] / whole
        findings.goal(
            f"{name}: time of mean_-1 alone", f"at most {most} ×", f"{ratio:.2f} ×", ratio <= most
        )


# files


def dump(options: argparse.Namespace, findings: Findings) -> None:
    """Token vectors of all layers to Parquet, against the disk and the forward pass."""
    texts = _corpora(options.corpora)["nsmc"][:1_000]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        corpus = Path(scratch) / "corpus.txt"
        corpus.write_text("\n".join(t.replace("\t", " ") for t in texts) + "\n", "utf-8")
        out = Path(scratch) / "out"
        settings = ExtractOptions(layers="all", tokens=True, precision="fp32", device="cpu")
        reading = CorpusOptions(format="lines")
        with plan_extract(corpus, out=out, reading=reading, settings=settings) as plan:
            encoder = plan.encoder
            tokenized = encoder.tokenizer.encode(texts, settings=plan.vectors.tokenization)
            rates: list[float] = []
            size = [0]

            def extract() -> None:
                shutil.rmtree(out, ignore_errors=True)
                run_plan(plan)
                size[0] = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())

            seconds = in_turn(
                {
                    "extract": extract,
                    "forward": lambda: encoder.encode_shard(
                        tokenized, views=[parse_view("mean_-1", n_layers=encoder.n_layers)]
                    ),
                    "disk": lambda: rates.append(disk_rate(Path(scratch), size[0])),
                }
            )
    on_disk = size[0] / statistics.median(rates[1:])
    bound = max(on_disk, seconds["forward"])
    share = bound / seconds["extract"]
    name = "disk" if on_disk > seconds["forward"] else "forward pass"
    print(
        f"\n## Token vectors of all layers: {size[0] / 1e6:,.0f} MB in "
        f"{seconds['extract']:.1f} s; forward pass alone {seconds['forward']:.1f} s, writing so "
        f"many bytes alone {on_disk:.1f} s",
        flush=True,
    )
    findings.goal(
        f"token vectors, all layers: share of the limit ({name})",
        "90 %",
        f"{share:.0%}",
        share >= 0.9,
    )


def loading(options: argparse.Namespace, findings: Findings) -> None:
    """One view into one matrix, as four readers give it."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        write_dataset(out, 50_000, 384)
        np.save(Path(scratch) / "X.npy", embedkit.load(out, VIEW).X)

        def by_pyarrow() -> object:
            """As ``load`` reads what is not stored plain: compressed columns and float16."""
            with mock.patch("embedkit.dataset.tables.copy_vectors", return_value=False):
                return embedkit.load(out, VIEW).X

        contestants: dict[str, Callable[[], object]] = {
            "embedkit.load": lambda: embedkit.load(out, VIEW).X,
            "embedkit.load through pyarrow alone": by_pyarrow,
            "pandas.read_parquet + np.stack": lambda: np.stack(
                pd.read_parquet(out / "sentences", columns=[VIEW])[VIEW].to_list()
            ),
            "np.load of a copy": lambda: np.load(Path(scratch) / "X.npy"),
        }
        arrays = [np.asarray(run()) for run in contestants.values()]
        assert all(np.array_equal(arrays[0], other) for other in arrays)
        seconds = in_turn(contestants, 7)
    print("\n## One view of 50,000 × 384 float32\n")
    print(table(("reader", "ms"), [(n, f"{s * 1e3:.1f}") for n, s in seconds.items()]), flush=True)
    for name, goal in (
        ("embedkit.load through pyarrow alone", 2),
        ("pandas.read_parquet + np.stack", 5),
    ):
        ratio = seconds[name] / seconds["embedkit.load"]
        findings.goal(f"embedkit.load against {name}", f"{goal} ×", f"{ratio:.1f} ×", ratio >= goal)


# the host


def host(options: argparse.Namespace, findings: Findings) -> None:
    """Processor time of the stages around the model, which takes no time here.

    The tokenizer's own part and the pages of Parquet run without the GIL and are listed apart.
    """
    vocabulary = sorted(Encoder(device="cpu").tokenizer.hf.get_vocab())
    words = [word for word in vocabulary if word.isalpha() and len(word) > 2]
    for length, most in ((16, 33), (128, 50)):
        random = np.random.default_rng(0)
        sizes = random.integers(int(0.7 * length), int(1.3 * length), 4_000) - 2
        texts = [" ".join(random.choice(words, size)) for size in sizes]
        with tempfile.TemporaryDirectory() as scratch:
            corpus = Path(scratch) / "corpus.tsv"
            lines = [f"{i}\t{text}\t{i % 2}\n" for i, text in enumerate(texts)]
            corpus.write_text("id\tdocument\tlabel\n" + "".join(lines), "utf-8")
            settings = ExtractOptions(max_length=512, device="cpu", precision="fp32")
            with plan_extract(corpus, out=Path(scratch) / "out", settings=settings) as plan:
                spent = {name: s / len(texts) * 1e6 for name, s in _stages(plan, texts).items()}
        locked = sum(spent[name] for name in spent if "without the GIL" not in name)
        print(f"\n## Host, {length} tokens: µs a row of one thread\n")
        rows = [*spent.items(), ("with the GIL", locked)]
        print(table(("stage", "µs"), [(n, f"{t:.1f}") for n, t in rows]), flush=True)
        findings.goal(
            f"host, {length} tokens: with the GIL",
            f"at most {most} µs a row",
            f"{locked:.1f} µs",
            locked <= most,
        )


def _stages(plan: ExtractPlan, texts: Sequence[str]) -> dict[str, float]:
    """Least processor seconds of each stage over all texts, in nine rounds."""
    tokenizer, settings = plan.encoder.tokenizer, plan.vectors.tokenization
    backend, (view,) = tokenizer.hf.backend_tokenizer, plan.views
    least: dict[str, float] = {}

    def spent(stage: str, run: Callable[..., Any], *given: Any, **options: Any) -> Any:
        started = time.process_time()
        result = run(*given, **options)
        least[stage] = min(least.get(stage, math.inf), time.process_time() - started)
        return result

    def all_stages() -> None:
        records = spent("reading", list, CorpusReader(plan.corpus))
        encode = partial(backend.encode_batch_fast, add_special_tokens=False)
        encoded = spent("tokenizer, without the GIL", encode, texts)
        ready = SimpleNamespace(encode_batch_fast=lambda *_, **__: encoded)
        own = SimpleNamespace(backend_tokenizer=ready, name_or_path="")
        with mock.patch.object(tokenizer, "hf", own):
            tokenized = spent("ids", tokenizer.encode, texts, settings=settings)
        with mock.patch("embedkit.encoding.shard.Shard._forward"):
            shard = spent("shard", lambda: plan.start_shard(records, tokenized).result())
        lengths = lengths_of(tokenized, tokenizer)
        spent("ledger", lambda: ledger_of(lengths_of(tokenized, tokenizer), limit=512))
        columns = spent("columns", sentence_columns, records, lengths, plan.job.settings)
        vectors, rows = np.zeros_like(shard.views[view.name]), np.arange(len(texts))
        stored = spent("storage form", plan.vectors.as_stored, vectors, name=view.name, rows=rows)
        facts = dict.fromkeys(FACTS, len(texts))
        pages = spent(
            "Parquet pages, without the GIL",
            partial(shard_bytes, facts=facts, storage=plan.vectors.storage),
            columns,
            {view.name: stored},
        )
        spent("SHA-256", hashlib.sha256, pages)

    for _ in range(9):
        all_stages()
    return least


# the process


def process(options: argparse.Namespace, findings: Findings) -> None:
    """Start-up of the command, and peak memory for corpora of different size."""
    times = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "embedkit", "--help"], capture_output=True, check=True
        )
        times.append(time.perf_counter() - started)
    print(f"\n## Process\n\n`embedkit --help`: {statistics.median(times):.2f} s\n")
    findings.goal(
        "embedkit --help",
        "at most 0.4 s",
        f"{statistics.median(times):.2f} s",
        statistics.median(times) <= 0.4,
    )
    corpus = options.corpora / "nsmc" / "ratings_test.txt"
    if not corpus.is_file():
        print("peak memory: not measured, there is no large corpus here")
        return
    peaks, rows = [], []
    for limit in options.memory.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            peak, seconds = peak_of(
                [
                    "-m",
                    "embedkit",
                    "extract",
                    str(corpus),
                    "--layers",
                    "all",
                    "--pooling",
                    "cls,mean,pooler",
                    "--quiet",
                    "--limit",
                    limit,
                    "--out",
                    f"{scratch}/out",
                ]
            )
        peaks.append(peak)
        rows.append((f"{int(limit):,}", f"{peak / 1e6:,.0f} MB", f"{seconds:,.0f}"))
    print(table(("records", "peak memory", "seconds"), rows), flush=True)
    spread = max(peaks) / min(peaks)
    findings.goal(
        "peak memory, most / fewest records", "at most 1.1", f"{spread:.2f}", spread <= 1.1
    )


SECTIONS: dict[str, Callable[[argparse.Namespace, Findings], None]] = {
    "base": base,
    "families": families,
    "profile": profile,
    "avoided": avoided,
    "dump": dump,
    "loading": loading,
    "host": host,
    "process": process,
}


if __name__ == "__main__":
    main()
