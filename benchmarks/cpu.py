"""CPU: throughput against named peers and the machine, work avoided, dumps, loading, memory.

    python -m benchmarks.cpu [--corpora FOLDER] [--memory 5000,50000] [--only SECTION]

Systems are run in turn, round after round, in one process with the same threads on the same texts
with the same truncation; medians of five rounds. Tokens are counted without padding. The matrix
rate is that of ``torch.mm`` on the four products of a layer, measured in the same rounds.

FOLDER holds ``nsmc/ratings_test.txt`` (Korean reviews) and ``stsb_en/train.tsv`` (English
sentences); where it is absent the reviews of ``data/`` are used, repeated with a number before
each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import embedkit
from benchmarks.measure import describe, disk_rate, in_turn, layer_flops, product_rate, table
from benchmarks.peers import peers
from benchmarks.search import VIEW, write_dataset
from embedkit.corpus import CorpusOptions, CorpusReader, InputFile, Record, plan_corpus
from embedkit.dataset.extraction import run_plan
from embedkit.dataset.planning import ExtractSettings, plan_extract
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.views import View, parse_view
from embedkit.machine import maxrss_bytes

ROOT = Path(__file__).resolve().parents[1]
CORPORA = Path(os.environ.get("EMBEDKIT_TEST_CORPORA", ROOT / "data"))
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "tokenizers",
            "numpy", "pandas", "pyarrow")  # fmt: skip
SHORT_TEXTS = 1_000


@dataclass
class Findings:
    """What is printed at the end: goals with what was measured, and bars."""

    goals: list[tuple[str, str, str, bool]] = field(default_factory=list)
    bars: dict[str, dict[str, float]] = field(default_factory=dict)

    def goal(self, what: str, least: str, measured: str, met: bool) -> None:
        """Note a goal, what was measured, and whether it was met."""
        self.goals.append((what, least, measured, met))


def main() -> None:
    """Print everything as Markdown and draw the bar chart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--memory", default="2000,10000", help="records, separated by commas")
    parser.add_argument("--only", choices=sorted(SECTIONS), action="append")
    parser.add_argument("--chart", type=Path, help="file to draw the bar chart to")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    findings = Findings()
    for name, section in SECTIONS.items():
        if options.only is None or name in options.only:
            section(options, findings)
    print("\n## Goals\n")
    rows = [(a, b, c, "yes" if met else "no") for a, b, c, met in findings.goals]
    print(table(("what", "at least", "measured", "met"), rows))
    if options.chart and findings.bars:
        draw(findings.bars, options.chart)


# throughput


def short(options: argparse.Namespace, findings: Findings) -> None:
    """Short texts against every peer."""
    encoder = Encoder.load(device="cpu", precision="fp32")
    for name, texts in corpora(options.corpora).items():
        seconds = _against_peers(f"{name}, short texts", encoder, texts, findings)
        ours, share = seconds.pop("embedkit"), seconds.pop("share")
        default = next(s for n, s in seconds.items() if "default" in n)
        others = {n: s for n, s in seconds.items() if n != "matrix products alone"}
        best = min(others, key=lambda n: others[n])
        findings.goal(f"{name}: share of the matrix rate", "90 %", f"{share:.0%}", share >= 0.9)
        findings.goal(f"{name}: against the fastest peer ({best})", "1.2 ×",
                      f"{others[best] / ours:.2f} ×", others[best] / ours >= 1.2)  # fmt: skip
        findings.goal(f"{name}: against sentence-transformers at its default", "1.7 ×",
                      f"{default / ours:.2f} ×", default / ours >= 1.7)  # fmt: skip


def mixed(options: argparse.Namespace, findings: Findings) -> None:
    """Lengths from 10 to 500 tokens, evenly on a logarithmic scale."""
    encoder = Encoder.load(device="cpu", precision="fp32", max_length=512)
    texts = _mixed_lengths(encoder, next(iter(corpora(options.corpora).values())))
    seconds = _against_peers("10 to 500 tokens", encoder, texts, findings)
    theirs = min(s for n, s in seconds.items() if n.startswith("sentence-transformers"))
    ratio = theirs / seconds["embedkit"]
    findings.goal("10 to 500 tokens: against sentence-transformers at its best", "1.7 ×",
                  f"{ratio:.2f} ×", ratio >= 1.7)  # fmt: skip


def _against_peers(
    title: str, encoder: Encoder, texts: Sequence[str], findings: Findings
) -> dict[str, float]:
    tokens = _count(encoder, texts)
    inner = int(encoder.checkpoint.config["intermediate_size"])
    flops = encoder.n_layers * layer_flops(encoder.width, inner)
    others = peers(encoder, texts)
    ours = encoder.encode(texts)
    for name, run in others.items():
        if "pipeline" not in name:  # whose means count padding
            assert np.allclose(ours, run(), atol=2e-4), name
    rates: list[float] = []
    contestants: dict[str, Callable[[], object]] = {
        "embedkit": lambda: encoder.encode(texts),
        **others,
        "rate": lambda: rates.append(product_rate(encoder.width, inner)),
    }
    seconds = in_turn(contestants)
    del seconds["rate"]
    seconds["matrix products alone"] = tokens * flops / statistics.median(rates[1:])
    print(f"\n## {title}: {len(texts):,} texts, {tokens:,} tokens (mean "
          f"{tokens / len(texts):.0f})\n")  # fmt: skip
    share = seconds["matrix products alone"] / seconds["embedkit"]
    rows = [
        (name, f"{tokens / s:,.0f}", f"{seconds['matrix products alone'] / s:.0%}",
         f"{s / seconds['embedkit']:.2f} ×")
        for name, s in seconds.items()
    ]  # fmt: skip
    print(table(("system", "tokens/s", "share of the matrix rate", "time / embedkit"), rows))
    sys.stdout.flush()
    findings.bars[title] = {name: tokens / s for name, s in seconds.items()}
    return {**seconds, "share": share}


def base(options: argparse.Namespace, findings: Findings) -> None:
    """A model of 12 layers and width 768, with random weights."""
    with base_model() as folder:
        encoder = Encoder.load(str(folder), device="cpu", precision="fp32")
        texts = _mixed_lengths(encoder, next(iter(corpora(options.corpora).values())), 250, (8, 64))
        tokens = _count(encoder, texts)
        rates: list[float] = []
        seconds = in_turn({
            "embedkit": lambda: encoder.encode(texts),
            "rate": lambda: rates.append(product_rate(768, 3_072)),
        })  # fmt: skip
        flops = encoder.n_layers * layer_flops(768, 3_072)
        share = tokens * flops / statistics.median(rates[1:]) / seconds["embedkit"]
    print(f"\n## 12 layers of width 768: {tokens:,} tokens, {tokens / seconds['embedkit']:,.0f} "
          f"tokens/s, {share:.0%} of the matrix rate")  # fmt: skip
    findings.goal("12 layers of width 768: share of the matrix rate", "93 %", f"{share:.0%}",
                  share >= 0.93)  # fmt: skip


def profile(options: argparse.Namespace, findings: Findings) -> None:
    """Where the time of the forward pass goes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    encoder = Encoder.load(device="cpu", precision="fp32")
    view = [parse_view("mean_-1", n_layers=encoder.n_layers)]
    for name, texts in corpora(options.corpora).items():
        tokenized = encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))
        encoder.encode_shard(tokenized[:100], views=view)
        with recorded(activities=[ProfilerActivity.CPU]) as events:
            encoder.encode_shard(tokenized, views=view)
        found = sorted(events.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in found)
        rows = [(e.key.removeprefix("aten::"), f"{e.self_cpu_time_total / total:.1%}",
                 f"{e.count:,}") for e in found[:7]]  # fmt: skip
        print(f"\n## {name}: operations\n\n" + table(("operation", "time", "calls"), rows),
              flush=True)  # fmt: skip


def avoided(options: argparse.Namespace, findings: Findings) -> None:
    """What other views cost, measured against the mean of the last layer."""
    encoder = Encoder.load(device="cpu", precision="fp32")
    texts = next(iter(corpora(options.corpora).values()))
    tokenized = encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))
    every = [f"{p}_{i}" for i in range(encoder.n_layers + 1) for p in ("cls", "mean")]
    cases = {
        "mean_-1": ["mean_-1"], "cls_-1": ["cls_-1"], "pooler": ["pooler"],
        "cls + mean of all layers + pooler": [*every, "pooler"],
    }  # fmt: skip

    def runner(names: list[str]) -> Callable[[], object]:
        views: list[View] = [parse_view(name, n_layers=encoder.n_layers) for name in names]
        return lambda: encoder.encode_shard(tokenized, views=views)

    seconds = in_turn({name: runner(names) for name, names in cases.items()})
    whole = seconds["mean_-1"]
    print("\n## Views\n")
    rows = [(name, f"{s / whole:.2f} ×") for name, s in seconds.items()]
    print(table(("views", "time of mean_-1"), rows), flush=True)
    for name, most in (("cls_-1", 0.92), ("pooler", 0.92),
                       ("cls + mean of all layers + pooler", 1.15)):  # fmt: skip
        ratio = seconds[name] / whole
        findings.goal(f"{name}: time of mean_-1 alone", f"at most {most} ×", f"{ratio:.2f} ×",
                      ratio <= most)  # fmt: skip


# files


def dump(options: argparse.Namespace, findings: Findings) -> None:
    """Token vectors of all layers to Parquet, against the disk and the forward pass."""
    texts = next(iter(corpora(options.corpora).values()))[:1_000]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        corpus = Path(scratch) / "corpus.txt"
        corpus.write_text("\n".join(t.replace("\t", " ") for t in texts) + "\n", "utf-8")
        out = Path(scratch) / "out"
        settings = ExtractSettings(layers="all", tokens=True, precision="fp32", device="cpu")
        reading = CorpusOptions(format="lines")
        with plan_extract(corpus, out=out, reading=reading, settings=settings) as plan:
            encoder = plan.encoder
            tokenized = encoder.tokenizer.encode(texts, settings=plan.vectors.tokenizer)
            rates: list[float] = []
            size = [0]

            def extract() -> None:
                shutil.rmtree(out, ignore_errors=True)
                run_plan(plan)
                size[0] = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())

            seconds = in_turn({
                "extract": extract,
                "forward": lambda: encoder.encode_shard(
                    tokenized, views=[parse_view("mean_-1", n_layers=encoder.n_layers)]
                ),
                "disk": lambda: rates.append(disk_rate(Path(scratch), size[0])),
            })  # fmt: skip
    on_disk = size[0] / statistics.median(rates[1:])
    bound = max(on_disk, seconds["forward"])
    share = bound / seconds["extract"]
    name = "disk" if on_disk > seconds["forward"] else "forward pass"
    print(f"\n## Token vectors of all layers: {size[0] / 1e6:,.0f} MB in "
          f"{seconds['extract']:.1f} s; forward pass alone {seconds['forward']:.1f} s, writing so "
          f"many bytes alone {on_disk:.1f} s", flush=True)  # fmt: skip
    findings.goal(f"token vectors, all layers: share of the limit ({name})", "90 %",
                  f"{share:.0%}", share >= 0.9)  # fmt: skip


def loading(options: argparse.Namespace, findings: Findings) -> None:
    """One view into one matrix, as four readers give it."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        write_dataset(out, 50_000, 384)
        np.save(Path(scratch) / "X.npy", embedkit.load(out, VIEW).X)

        def by_pyarrow() -> object:
            """As ``load`` reads what is not stored plain: compressed columns and float16."""
            with mock.patch("embedkit.dataset.reader.copy_vectors", return_value=False):
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
    for name, goal in (("embedkit.load through pyarrow alone", 2),
                       ("pandas.read_parquet + np.stack", 5)):  # fmt: skip
        ratio = seconds[name] / seconds["embedkit.load"]
        findings.goal(f"embedkit.load against {name}", f"{goal} ×", f"{ratio:.1f} ×", ratio >= goal)


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
    findings.goal("embedkit --help", "at most 0.4 s", f"{statistics.median(times):.2f} s",
                  statistics.median(times) <= 0.4)  # fmt: skip
    corpus = options.corpora / "nsmc" / "ratings_test.txt"
    if not corpus.is_file():
        print("peak memory: not measured, there is no large corpus here")
        return
    peaks, rows = [], []
    for limit in options.memory.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            peak, seconds = _peak_of([
                "-m", "embedkit", "extract", str(corpus), "--layers", "all", "--pooling",
                "cls,mean,pooler", "--quiet", "--limit", limit, "--out", f"{scratch}/out",
            ])  # fmt: skip
        peaks.append(peak)
        rows.append((f"{int(limit):,}", f"{peak / 1e6:,.0f} MB", f"{seconds:,.0f}"))
    print(table(("records", "peak memory", "seconds"), rows), flush=True)
    spread = max(peaks) / min(peaks)
    findings.goal("peak memory, most / fewest records", "at most 1.1", f"{spread:.2f}",
                  spread <= 1.1)  # fmt: skip


def _peak_of(arguments: list[str]) -> tuple[int, float]:
    """Peak memory and seconds of a Python process.

    It is started by a small process of its own: a child's figure begins with the memory of the
    process that it was forked from.
    """
    starter = (
        "import os, subprocess, sys; child = subprocess.Popen(sys.argv[1:]);"
        "print(os.wait4(child.pid, 0)[2].ru_maxrss)"
    )
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", starter, sys.executable, *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return maxrss_bytes(int(done.stdout.split()[-1])), time.perf_counter() - started


# texts and models


def corpora(folder: Path) -> dict[str, list[str]]:
    """Short texts by name."""
    nsmc, stsb = folder / "nsmc" / "ratings_test.txt", folder / "stsb_en" / "train.tsv"
    if nsmc.is_file() and stsb.is_file():
        return {
            "nsmc": _texts([nsmc], SHORT_TEXTS),
            "stsb_en": _texts([stsb], 2 * SHORT_TEXTS, text="sentence1"),
        }
    own = _texts(_own_corpora(), SHORT_TEXTS)
    return {"data": [f"{i} {own[i % len(own)]}" for i in range(SHORT_TEXTS)]}


def _own_corpora() -> list[Path]:
    return [ROOT / "data" / f"reviews_{language}.tsv" for language in ("ko", "en")]


def _texts(files: Sequence[Path], limit: int, text: str | None = None) -> list[str]:
    plan = plan_corpus([InputFile.of(f) for f in files], CorpusOptions(limit=limit, text=text))
    return [r.text for r in CorpusReader(plan) if isinstance(r, Record)]


def _mixed_lengths(
    encoder: Encoder,
    texts: Sequence[str],
    count: int = 250,
    between: tuple[int, int] = (10, 500),
) -> list[str]:
    """Texts put together from short ones, their lengths even on a logarithmic scale."""
    random = np.random.default_rng(0)
    words = " ".join(texts).split()
    per_word = _count(encoder, [" ".join(words[:2_000])], 10**6) / 2_000
    result = []
    for length in np.exp(random.uniform(np.log(between[0]), np.log(between[1]), count)):
        start = int(random.integers(len(words)))
        result.append(" ".join(words[start : start + max(round(length / per_word), 1)]))
    return [text for text in result if text]


def _count(encoder: Encoder, texts: Sequence[str], length: int | None = None) -> int:
    if length is not None:
        return len(encoder.tokenizer.hf(" ".join(texts))["input_ids"])
    settings = TokenizerSettings(encoder.max_length)
    return sum(t.n_kept for t in encoder.tokenizer.encode(list(texts), settings=settings))


@contextmanager
def base_model() -> Iterator[Path]:
    """A checkpoint of BERT-base's shape with random weights and MiniLM's tokenizer."""
    from transformers import BertConfig, BertModel

    source = Encoder.load(device="cpu").checkpoint.folder
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        BertModel(BertConfig()).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copy(source / name, folder / name)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        yield folder


def draw(bars: dict[str, dict[str, float]], path: Path) -> None:
    """Tokens per second of every system, a group of bars for each set of texts."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(bars), 1, figsize=(9, 2.6 * len(bars)), layout="constrained")
    for axis, (title, found) in zip(np.atleast_1d(axes), bars.items(), strict=True):
        names = list(found)[::-1]
        colours = {"embedkit": "#c0392b", "matrix products alone": "#d5d8dc"}
        axis.barh(
            names, [found[n] for n in names], color=[colours.get(n, "#5d6d7e") for n in names]
        )
        for i, name in enumerate(names):
            axis.text(found[name], i, f" {found[name]:,.0f}", va="center", fontsize=8)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("tokens per second, padding not counted", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


SECTIONS: dict[str, Callable[[argparse.Namespace, Findings], None]] = {
    "short": short, "mixed": mixed, "base": base, "profile": profile, "avoided": avoided,
    "dump": dump, "loading": loading, "process": process,
}  # fmt: skip


if __name__ == "__main__":
    main()
