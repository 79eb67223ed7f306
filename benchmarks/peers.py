"""CPU: sentence vectors against every engine that users could take instead.

    python -m benchmarks.peers [--corpora FOLDER] [--only mixed] [--rounds 3] [--chart FILE]

Every engine turns the same texts, with the same truncation, into mean vectors of the last layer,
from text to vectors. The engines run in turn, round after round, in one process: medians of wall
time. Each engine that pads gets texts in order of length and the best of four batch sizes. Tokens
are counted without padding. "Matrix products alone" is :func:`~benchmarks.measure.product_rate`.
:data:`TABLES` are measured with all instructions of the processor and then, in a second process,
with :data:`AVX2`.

Distances are those to the vectors of ``transformers`` in fp32; STS-B is Spearman's correlation
(× 100) of cosines with the human scores of its test set, of a model whose weights mean something.

FOLDER holds ``nsmc/ratings_test.txt`` (Korean reviews) and ``stsb_en/{train,test}.tsv``; where it
is absent, the reviews of ``data/`` stand in for both and STS-B is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import AVX2, PACKAGES, describe, in_turn, layer_flops, product_rate, table
from benchmarks.texts import CORPORA, count, mixed_lengths, similar_pairs, texts_of
from embedkit.encoding.encoder import Encoder

Floats = NDArray[np.float32]
Engine = Callable[[Sequence[str]], Floats]

BATCHES = (16, 32, 64, 128)
TABLES = {
    "short": ("minilm", "short", os.cpu_count() or 1),
    "mixed": ("minilm", "mixed", os.cpu_count() or 1),
    "long": ("minilm", "long", os.cpu_count() or 1),
    "core": ("minilm", "mixed", 1),
    "base": ("base", "mixed", os.cpu_count() or 1),
}
"""Model, kind of texts and threads of each table."""
ASK_THEMSELVES = ("onnxruntime", "openvino")
"""Packages whose products (MLAS) have no such setting."""
_ASKS_REGISTERS = re.compile(rb"(\x31\xc9|\x89\xd5)\x0f\x01\xd0")
_TESTS_VNNI = re.compile(rb"\xb9\x01\x00\x00\x00\x0f\xa2\xa8\x10.{,200}", re.DOTALL)
FP32_ENGINES = ("transformers, sorted", "ONNX Runtime", "OpenVINO", "CTranslate2")
"""Whose vectors have to be those of transformers."""


class Folder:
    """A checkpoint, its tokenizer, and its exports for other engines, which are made once."""

    def __init__(self, folder: Path, length: int, scratch: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.path, self.length, self.scratch = folder, length, scratch
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def onnx(self) -> Path:
        """The model as a graph from ids, mask and types to the last hidden states."""
        path = self.scratch / "model.onnx"
        if not path.is_file():
            eager: Any = type(self.model).from_pretrained(self.path, attn_implementation="eager")
            names = ["input_ids", "attention_mask", "token_type_ids"]
            example = self.tokenizer(["a first text", "another"], padding=True, return_tensors="pt")
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    _LastHiddenState(eager.eval()),
                    tuple(example[n] for n in names),
                    str(path),
                    input_names=names,
                    output_names=["hidden"],
                    dynamic_axes={n: {0: "batch", 1: "length"} for n in [*names, "hidden"]},
                    dynamo=False,
                )
        return path

    def in_order_of_length(
        self, forward: Callable[[dict[str, Any]], Any], workers: int = 1
    ) -> Callable[[Sequence[str], int], Floats]:
        """Batches of similar length, padded to their longest; means over the tokens."""

        def run(texts: Sequence[str], batch: int) -> Floats:
            encoded = self.tokenizer(list(texts), truncation=True, max_length=self.length)
            order = sorted(range(len(texts)), key=lambda i: -len(encoded["input_ids"][i]))
            result: Any = np.empty((len(texts), self.model.config.hidden_size), np.float32)

            def one(start: int) -> None:
                chosen = order[start : start + batch]
                part = {name: [encoded[name][i] for i in chosen] for name in encoded}
                inputs = self.tokenizer.pad(part, return_tensors="np")
                mask = inputs["attention_mask"][:, :, None].astype(np.float32)
                hidden = np.asarray(forward(inputs))
                result[chosen] = (hidden * mask).sum(1) / mask.sum(1)

            starts = range(0, len(order), batch)
            if workers == 1:
                for start in starts:
                    one(start)
            else:
                with ThreadPoolExecutor(workers) as pool:
                    list(pool.map(one, starts))
            return result  # type: ignore[no-any-return]

        return run


class _LastHiddenState(torch.nn.Module):
    """A model as a function of tensors, which is what can be exported."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


def embedkit_engine(precision: str) -> Callable[[Folder, int], Engine]:
    """Embedkit in a precision; it orders texts and chooses batches itself."""

    def make(folder: Folder, threads: int) -> Engine:
        torch.set_num_threads(threads)
        encoder = Encoder(
            str(folder.path), device="cpu", precision=precision, max_length=folder.length
        )
        return lambda texts: np.asarray(encoder.encode(list(texts), pooling="mean"))

    return make


def sentence_transformers(folder: Folder, threads: int) -> Engine:
    """Batches of 32, as users call it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(str(folder.path), max_seq_length=folder.length)
    model = SentenceTransformer(
        modules=[body, Pooling(int(body.get_embedding_dimension()))], device="cpu"
    )
    return lambda texts: np.asarray(model.encode(list(texts)))


def transformers_sorted(folder: Folder, threads: int) -> Callable[[Sequence[str], int], Floats]:
    """The plain model on padded batches of similar length."""

    def forward(inputs: dict[str, Any]) -> Any:
        tensors = {name: torch.from_numpy(np.asarray(inputs[name])) for name in inputs}
        with torch.inference_mode():
            return folder.model(**tensors).last_hidden_state.numpy()

    return folder.in_order_of_length(forward)


def onnx_runtime(*, int8: bool) -> Callable[[Folder, int], Callable[[Sequence[str], int], Floats]]:
    """ONNX Runtime; int8 is its dynamic quantization, as its documentation recommends for CPU."""

    def make(folder: Folder, threads: int) -> Callable[[Sequence[str], int], Floats]:
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = folder.onnx()
        if int8:
            path, source = path.with_name("int8.onnx"), path
            if not path.is_file():
                quantize_dynamic(source, path, weight_type=QuantType.QInt8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]

        def forward(inputs: dict[str, Any]) -> Any:
            given = {name: np.asarray(inputs[name], np.int64) for name in names}
            return session.run(["hidden"], given)[0]

        return folder.in_order_of_length(forward)

    return make


def openvino(*, int8: bool) -> Callable[[Folder, int], Callable[[Sequence[str], int], Floats]]:
    """OpenVINO on the exported graph; int8 is NNCF's static quantization, made for transformers.

    Its ranges come from 300 short texts that no table measures, as its documentation recommends.
    """

    def make(folder: Folder, threads: int) -> Callable[[Sequence[str], int], Floats]:
        import openvino as ov

        path = folder.onnx()
        if int8:
            path, source = path.with_name("int8.xml"), path
            if not path.is_file():
                import nncf

                texts = texts_of(CORPORA, "stsb_en", 800)[500:]
                given = [dict(folder.tokenizer(text, return_tensors="np")) for text in texts]
                model = nncf.quantize(
                    ov.Core().read_model(source),
                    nncf.Dataset(given),
                    model_type=nncf.ModelType.TRANSFORMER,
                    subset_size=len(given),
                )
                ov.save_model(model, path, compress_to_fp16=False)
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = ov.Core().compile_model(str(path), "CPU", settings)
        names = [one.get_any_name() for one in compiled.inputs]

        def forward(inputs: dict[str, Any]) -> Any:
            return compiled({name: np.asarray(inputs[name]) for name in names})["hidden"]

        return folder.in_order_of_length(forward)

    return make


def ctranslate2(type_: str) -> Callable[[Folder, int], Callable[[Sequence[str], int], Floats]]:
    """CTranslate2: a worker for each core, each with one thread, which is its fastest way."""

    def make(folder: Folder, threads: int) -> Callable[[Sequence[str], int], Floats]:
        import ctranslate2 as ct2

        out = folder.scratch / f"ct2-{type_}"
        if not out.is_dir():
            converter = ct2.converters.TransformersConverter(str(folder.path))
            converter.convert(str(out), quantization=type_)
        encoder = ct2.Encoder(str(out), inter_threads=threads, intra_threads=1, compute_type=type_)

        def forward(inputs: dict[str, Any]) -> Any:
            lengths = inputs["attention_mask"].sum(1)
            ids = [list(map(int, r[:n])) for r, n in zip(inputs["input_ids"], lengths, strict=True)]
            return encoder.forward_batch(ids).last_hidden_state

        return folder.in_order_of_length(forward, threads)

    return make


ENGINES: dict[str, Callable[[Folder, int], Any]] = {
    "embedkit": embedkit_engine("fp32"),
    "embedkit, int8": embedkit_engine("int8"),
    "sentence-transformers, default": sentence_transformers,
    "transformers, sorted": transformers_sorted,
    "ONNX Runtime": onnx_runtime(int8=False),
    "OpenVINO": openvino(int8=False),
    "CTranslate2": ctranslate2("float32"),
    "ONNX Runtime, int8": onnx_runtime(int8=True),
    "OpenVINO, int8": openvino(int8=True),
    "CTranslate2, int8": ctranslate2("int8"),
}
"""How each engine is made for a checkpoint and a number of threads."""

ITS_OWN_BATCHES = ("embedkit", "sentence-transformers")


def engines(folder: Folder, threads: int, sample: Sequence[str]) -> dict[str, Engine]:
    """Every engine that is installed, those that pad at their best batch size for a sample."""
    made: dict[str, Engine] = {}
    for name, make in ENGINES.items():
        torch.set_num_threads(threads)
        try:
            engine = make(folder, threads)
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        if not name.startswith(ITS_OWN_BATCHES):
            best = best_batch(engine, sample)
            engine = lambda texts, run=engine, batch=best: run(texts, batch)  # noqa: E731
        made[name] = engine
    return made


def best_batch(run: Callable[[Sequence[str], int], Floats], sample: Sequence[str]) -> int:
    """The quickest of four batch sizes; larger ones are not tried once they take much longer."""
    seconds: dict[int, float] = {}
    run(sample[:32], 16)
    for batch in BATCHES:
        started = time.perf_counter()
        run(sample, batch)
        seconds[batch] = time.perf_counter() - started
        if seconds[batch] > 1.2 * min(seconds.values()) or batch >= len(sample):
            break
    return min(seconds, key=lambda batch: seconds[batch])


# Texts and models


def lengths(kind: str, encoder: Encoder, corpora: Path) -> list[str]:
    """Texts of a kind of length, about 6,000 tokens of them."""
    texts = texts_of(corpora, "stsb_en", 500)
    if kind == "short":
        return texts
    between = {"mixed": (10, 500), "long": (200, 500)}[kind]
    return mixed_lengths(encoder, texts, {"mixed": 48, "long": 20}[kind], between)


@contextmanager
def checkpoint(kind: str) -> Iterator[Path]:
    """MiniLM, or a checkpoint of BERT-base's shape with random weights and MiniLM's tokenizer."""
    source = Path(Encoder(device="cpu").checkpoint.folder)
    if kind == "minilm":
        yield source
        return
    from transformers import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        config = BertConfig(position_embedding_type="absolute")  # CTranslate2 asks for it
        BertModel(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            shutil.copy(source / name, folder / name)
        yield folder


def limit(package: str, folder: Path) -> None:
    """Copy an installed package to a folder so that its libraries find neither AVX-512 nor VNNI.

    They ask the processor which registers the system saves (``xgetbv``, with 0 in ``ecx``), where
    the copy has the answer of one without AVX-512 (``lea eax, [rcx+7]``); and test two bits of leaf
    7.1 of ``cpuid`` for AVX-VNNI (``test al, 16``, ``test dl, 16``), where it tests none.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return
    shutil.copytree(Path(spec.origin).parent, folder / package)
    counts = [0, 0]
    for library in (folder / package).rglob("*.so*"):
        code, asked = _ASKS_REGISTERS.subn(b"\\1\x8d\x41\x07", library.read_bytes())
        code, tested = _TESTS_VNNI.subn(_tests_nothing, code)
        counts = [counts[0] + asked, counts[1] + tested]
        library.write_bytes(code)
    if not all(counts):
        raise SystemExit(f"{package} asks for instructions in another way")


def _tests_nothing(code: re.Match[bytes]) -> bytes:
    """``test al, 16`` right after ``cpuid``, and ``test dl, 16; je``, as tests of no bit."""
    tested = code[0].replace(b"\xa2\xa8\x10", b"\xa2\xa8\x00")
    return tested.replace(b"\xf6\xc2\x10\x74", b"\xf6\xc2\x00\x74")


def main() -> None:
    """Print the tables, with all instructions and with AVX2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--only", default=",".join(TABLES), help=f"some of {', '.join(TABLES)}")
    parser.add_argument("--rounds", type=int, default=3, help="of each table, at most")
    parser.add_argument("--seconds", type=float, default=100, help="for the rounds of a table")
    parser.add_argument("--chart", type=Path, help="file to draw the bar chart to")
    parser.add_argument("--rates", type=Path, help=argparse.SUPPRESS)  # of the second process
    options = parser.parse_args()
    if unknown := [name for name in options.only.split(",") if name not in TABLES]:
        parser.error(f"--only {unknown[0]}: expected {', '.join(TABLES)}")
    print(describe(PACKAGES), flush=True)
    bars = _tables(options)
    if options.rates:
        options.rates.write_text(json.dumps(bars))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rates = Path(scratch, "rates.json")
        for package in ASK_THEMSELVES:
            limit(package, Path(scratch))
        command = [sys.executable, "-m", "benchmarks.peers", *sys.argv[1:], "--rates", str(rates)]
        env = {**os.environ, **AVX2, "PYTHONPATH": scratch}
        subprocess.run(command, env=env, check=True)
        bars |= json.loads(rates.read_text())
    if options.chart:
        draw(bars, options.chart)


def _tables(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure the tables in this process: tokens per second by title and engine."""
    bars: dict[str, dict[str, float]] = {}
    chosen = [TABLES[name] for name in options.only.split(",")]
    for model in dict.fromkeys(model for model, _, _ in chosen):
        with checkpoint(model) as path, tempfile.TemporaryDirectory() as scratch:
            folder = Folder(path, 512, Path(scratch))
            quality = _quality(folder, options.corpora) if model == "minilm" else {}
            if quality and not options.rates:
                bars["STS-B"] = quality
            for _, kind, threads in [row for row in chosen if row[0] == model]:
                title = f"{model}, {kind}, {threads} thread{'s' * (threads > 1)}"
                title += ", AVX2" if options.rates else ""
                bars[title] = _measure(title, folder, kind, threads, quality, options)
    return bars


def _quality(folder: Folder, corpora: Path) -> dict[str, float]:
    """Spearman's correlation × 100 on the test set of STS-B, by engine."""
    from scipy.stats import spearmanr

    pairs = similar_pairs(corpora)
    if pairs is None:
        return {}
    left, right, scores = pairs
    found = {}
    for name, run in engines(folder, os.cpu_count() or 1, left[:64]).items():
        a, b = run(left), run(right)
        cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        found[name] = 100 * float(spearmanr(cosines, scores).statistic)
    return found


def _measure(
    title: str,
    folder: Folder,
    kind: str,
    threads: int,
    quality: dict[str, float],
    options: argparse.Namespace,
) -> dict[str, float]:
    torch.set_num_threads(threads)
    encoder = Encoder(str(folder.path), device="cpu", precision="fp32", max_length=512)
    texts = lengths(kind, encoder, options.corpora)
    if encoder.n_layers > 6:  # eight times the work of MiniLM for each text
        texts = texts[::4]
    tokens, inner = count(encoder, texts), int(encoder.checkpoint.config["intermediate_size"])
    found = engines(folder, threads, texts[:: max(len(texts) // 200, 1)])
    exact = found["transformers, sorted"](texts)
    started = time.perf_counter()
    distance = {
        name: float(np.linalg.norm(run(texts) - exact) / np.linalg.norm(exact))
        for name, run in found.items()
    }
    rounds = int(options.seconds / (time.perf_counter() - started)) - 1  # one warms up
    assert all(distance[name] < 1e-4 for name in ("embedkit", *FP32_ENGINES) if name in distance)
    torch.set_num_threads(threads)
    rates: list[float] = []
    contestants: dict[str, Callable[[], object]] = {
        **{name: lambda run=run: run(texts) for name, run in found.items()},  # type: ignore[misc]
        "rate": lambda: rates.append(product_rate(encoder.width, inner)),
    }
    seconds = in_turn(contestants, max(min(rounds, options.rounds), 1))
    del seconds["rate"]
    work = tokens * encoder.n_layers * layer_flops(encoder.width, inner)
    seconds["matrix products alone"] = work / statistics.median(rates[1:])
    print(f"\n## {title}: {len(texts):,} texts, {tokens:,} tokens\n")
    rows = [
        (
            name,
            f"{tokens / s:,.0f}",
            f"{s / seconds['embedkit']:.2f} ×",
            f"{distance[name]:.0e}" if name in distance else "",
            f"{quality[name]:.2f}" if name in quality else "",
        )
        for name, s in seconds.items()
    ]
    print(table(("engine", "tokens/s", "time / embedkit", "distance", "STS-B"), rows), flush=True)
    return {name: tokens / s for name, s in seconds.items()}


def draw(bars: dict[str, dict[str, float]], path: Path) -> None:
    """Tokens per second of every engine on all cores: a row for each set of instructions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    quality = bars.get("STS-B", {})
    kinds = {"short": "short texts", "mixed": "10 to 500 tokens", "long": "long texts"}
    shown = [t for t in bars if t.startswith("minilm") and ", 1 thread" not in t]
    figure, axes = plt.subplots(
        -(-len(shown) // len(kinds)),
        len(kinds),
        figsize=(10, 5.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, title in zip(axes.flat, shown, strict=True):
        found = dict(reversed(bars[title].items()))
        for place, (name, rate) in enumerate(found.items()):
            grey = "#d5d8dc" if name == "matrix products alone" else "#8795a3"
            axis.barh(place, rate, color="#c0392b" if name.startswith("embedkit") else grey)
            axis.text(rate, place, f" {rate:,.0f}", va="center", fontsize=7)
        labels = [f"{n}  {quality[n]:.2f}" if n in quality else n for n in found]
        axis.set_yticks(range(len(found)), labels, fontsize=8)
        _, kind, *rest = title.split(", ")
        axis.set_title(", ".join([kinds[kind], *rest[1:]]), loc="left", fontsize=9)
        axis.set_xticks([])
        axis.margins(x=0.2)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    about = "tokens per second, padding not counted; behind the names: STS-B"
    figure.supxlabel(f"{about}. AVX2: forced on all engines.", fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
