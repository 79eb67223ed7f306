"""Search: exact against faiss on the same threads, cold start, indexes, peak memory.

    python -m benchmarks.search [--rows 1000000] [--folder DIR] [--only exact,cold,index]
    python -m benchmarks.search --memory 10000000 [--width 256]

Vectors are synthetic: points around 4,096 centres in 32 latent dimensions, carried into the width
by a random matrix, with a little noise in all directions, scaled to length 1. They are written as a
dataset with the schema, shards and checksums of ``extract``. Queries are drawn in the same way and
are not in the dataset. Contestants run in turn, round after round; medians.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import embedkit
from benchmarks.measure import describe, in_turn, table
from embedkit.dataset.format import Names, Totals, is_dataset
from embedkit.dataset.job import JobFolder
from embedkit.dataset.parquet import shard_bytes
from embedkit.dataset.read import VectorData
from embedkit.dataset.settings import Job, JobSettings
from embedkit.machine import usable_cores
from embedkit.records import from_json
from embedkit.search.exact import nearest
from embedkit.storage import make_folder, remove
from embedkit.types import Float32

PACKAGES = ("numpy", "faiss-cpu", "pyarrow")
VIEW = "mean_6"
SHARD_ROWS = 16_384
CENTRES, LATENT, NOISE = 4_096, 32, 0.02
QUERIES, K = 1_000, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", default="exact,cold,index")
    parser.add_argument("--memory", type=int, metavar="ROWS", help="Only peak memory, of so many.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="Leave the dataset on disk.")
    asked = parser.parse_args()
    rows = asked.memory or asked.rows
    folder = asked.folder / f"embedkit-search-{rows}x{asked.width}"
    print(describe(PACKAGES))
    if not is_dataset(folder):
        write_dataset(folder, rows, asked.width)
    try:
        sections = ["memory"] if asked.memory else asked.only.split(",")
        for section in sections:
            SECTIONS[section](folder, asked)
    finally:
        if not asked.keep:
            remove(folder)


def draw(rows: int, width: int, *, seed: int) -> Iterator[Float32]:
    """Vectors in blocks of a shard; the centres are the same for every seed."""
    fixed = np.random.default_rng(0)
    centres = fixed.normal(size=(CENTRES, LATENT)).astype(np.float32)
    carry = (fixed.normal(size=(LATENT, width)) / LATENT**0.5).astype(np.float32)
    random = np.random.default_rng(seed)
    for start in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - start)
        latent = centres[random.integers(CENTRES, size=count)]
        latent = latent + 0.5 * random.standard_normal((count, LATENT), np.float32)
        vectors = latent @ carry + NOISE * random.standard_normal((count, width), np.float32)
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def queries_of(width: int) -> Float32:
    """Vectors that are not in the dataset."""
    return np.concatenate(list(draw(QUERIES, width, seed=2)))


def write_dataset(folder: Path, rows: int, width: int) -> None:
    """A dataset as ``extract`` writes it, with vectors that no model made."""
    files = [{"sha256": "0" * 64, "bytes": rows}]
    settings = {
        "format_version": 1,
        "input": {
            "files": files,
            "format": "tsv",
            "encoding": "utf-8",
            "delimiter": "\t",
            "quoting": "none",
            "header": True,
            "text": "text",
            "text_pair": None,
            "id": "id",
            "label": "label",
            "keep": [],
            "min_chars": 0,
            "limit": None,
            "sample": None,
            "seed": None,
        },
        "model": {"type": "bert", "n_layers": 6, "width": width, "sha256": {}},
        "vectors": {
            "views": {VIEW: width},
            "token_layers": {},
            "words": None,
            "tokens": False,
            "special_tokens": True,
            "normalize": True,
            "max_length": 256,
            "on_long": "truncate",
            "stride": 0,
            "prefix": "",
            "precision": "fp32",
            "batch_tokens": 2_048,
        },
        "storage": {"profile": "float32", "shard_rows": SHARD_ROWS, "text": True},
    }
    job = Job(
        from_json(JobSettings, settings, file=folder),
        {"synthetic": True, "device": "cpu", "forward": "none"},
    )
    make_folder(folder.parent)
    started = time.perf_counter()
    target = JobFolder(folder, job, overwrite=True, any_environment=True)
    with target.opened():
        receipts = []
        for number, vectors in enumerate(draw(rows, width, seed=1)):
            first = number * SHARD_ROWS
            row = np.arange(first, first + len(vectors))
            names = [str(i) for i in row.tolist()]
            scalars = {
                "row": pa.array(row, pa.int64()),
                "id": pa.array(names),
                "text": pa.array([f"text number {name}" for name in names]),
                "text_key": pa.array(row, pa.int64()),
                "label": pa.array([str(i % 2) for i in row.tolist()]),
                "n_tokens": pa.array(np.full(len(row), 5), pa.int32()),
                "n_kept": pa.array(np.full(len(row), 5), pa.int32()),
                "n_unknown": pa.array(np.zeros(len(row)), pa.int32()),
                "truncated": pa.array(np.zeros(len(row), bool)),
            }
            made = asdict(job)
            facts = {
                "fingerprint": job.settings.fingerprint,
                "shard": number,
                "first_row": int(row[0]),
                "last_row": int(row[-1]),
                "rows": len(row),
                "ledger": {"records": len(row)},
                "job": made,
            }
            data = shard_bytes(scalars, {VIEW: vectors}, facts=facts, storage="float32")
            receipts.append(target.commit(number, {"sentences": data}))
        totals = Totals(records=rows, accepted=rows, ledger={"records": rows})
        called = Names(inputs=("synthetic",), model="none", model_source="none", revision=None)
        target.finish(receipts, totals=totals, names=called)
    print(f"wrote {rows:,} × {width} in {time.perf_counter() - started:.0f} s: {folder}")


def exact(folder: Path, asked: Any) -> None:
    """Exact search against faiss on the same row groups, and with the vectors in memory."""
    import faiss

    data = embedkit.load(folder, VIEW)
    queries = queries_of(data.width)
    flat = faiss.IndexFlatIP(data.width)
    flat.add(data.X)
    ours, theirs = nearest(data, queries, k=K, metric="dot"), flat.search(queries, K)
    same = np.mean([len(set(a) & set(b)) / K for a, b in zip(ours[1], theirs[1], strict=True)])
    print(f"\n{len(data):,} × {data.width}, k {K}; {same:.4f} of the results are the same")
    rows = []
    for threads in dict.fromkeys((1, usable_cores())):
        faiss.omp_set_num_threads(threads)
        for count in (1, 100, QUERIES):
            some = queries[:count]
            search = partial(nearest, data, some, k=K, threads=threads)
            seconds = in_turn(
                {
                    "product": partial(search, metric="dot"),
                    "cosine": partial(search, metric="cosine"),
                    "euclid": partial(search, metric="euclid"),
                    "knn": partial(_knn, data, some),
                    "flat": partial(flat.search, some, K),
                },
                asked.rounds,
            )
            ratio = seconds["knn"] / seconds["product"]
            rows.append(
                [
                    str(threads),
                    f"{count:,}",
                    *(f"{s:.3f}" for s in seconds.values()),
                    f"{ratio:.2f}",
                ]
            )
    print(
        table(
            [
                "threads",
                "queries",
                "product",
                "cosine",
                "euclid",
                "faiss.knn",
                "IndexFlatIP",
                "knn / product",
            ],
            rows,
        )
    )


def _knn(data: VectorData, queries: Float32) -> Any:
    """The same search with the products of faiss."""
    import faiss

    heap = faiss.ResultHeap(len(queries), K, keep_max=True)
    for block in data.reader.blocks:
        vectors = data.reader.vectors_of(block)
        scores, found = faiss.knn(queries, vectors, K, metric=faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, found + block.start)
    heap.finalize()
    return heap


COLD = """
import sys, time
started = time.perf_counter()
import numpy as np
import embedkit
data = embedkit.load(sys.argv[1], "mean_6")
if sys.argv[2] == "read":
    data.X
else:
    from embedkit.search.exact import nearest
    nearest(data, np.load(sys.argv[3])[None], k=10)
print(time.perf_counter() - started)
"""


def cold(folder: Path, asked: Any) -> None:
    """A new process until its first result, against a new process that reads the column."""
    width = embedkit.load(folder, VIEW).width
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "q.npy"
        np.save(file, queries_of(width)[0])

        def process(what: str) -> None:
            subprocess.run(
                [sys.executable, "-c", COLD, str(folder), what, str(file)],
                check=True,
                capture_output=True,
            )

        seconds = in_turn(
            {"read": lambda: process("read"), "search": lambda: process("search")}, asked.rounds
        )
    ratio = seconds["search"] / seconds["read"]
    print(
        f"\nnew process, first result: {seconds['search']:.2f} s; reading the column: "
        f"{seconds['read']:.2f} s; ratio {ratio:.2f} (goal below 1.5)"
    )


def index(folder: Path, asked: Any) -> None:
    """HNSW against exact search."""
    from embedkit.search.index import build_index, open_index

    data = embedkit.load(folder, VIEW)
    queries = queries_of(data.width)
    info = build_index(folder, kind="hnsw", view=VIEW, overwrite=True)
    print(f"\nhnsw built in {info.seconds:.0f} s, {info.nbytes / 1e9:.2f} GB, recall {info.recall}")
    ann = open_index(data, kind="hnsw")
    truth, found = nearest(data, queries, k=K), ann(queries, K)
    recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(truth[1], found[1], strict=True)])
    seconds = in_turn(
        {
            "exact, one": lambda: nearest(data, queries[:1], k=K),
            "hnsw, one": lambda: [ann(query[None], K) for query in queries[:100]],
            "exact, batch": lambda: nearest(data, queries, k=K),
            "hnsw, batch": lambda: ann(queries, K),
        },
        asked.rounds,
    )
    seconds["hnsw, one"] /= 100
    print(f"recall@10 {recall:.4f} on {QUERIES} other queries")
    print(table(["", "seconds"], [[name, f"{s:.5f}"] for name, s in seconds.items()]))
    print(
        f"one query {seconds['exact, one'] / seconds['hnsw, one']:.0f} × faster (goal 50), "
        f"a batch {seconds['exact, batch'] / seconds['hnsw, batch']:.1f} × (goal 5)"
    )


MEMORY = """
import json, sys, time
import numpy as np
import embedkit
from embedkit.search.exact import Searcher
from embedkit.machine import peak_memory_bytes
searcher = Searcher(sys.argv[1], view="mean_6", where=sys.argv[3] or None)
queries = np.load(sys.argv[2])
started = time.perf_counter()
answers = searcher.vectors(queries)
seconds = time.perf_counter() - started
peak = peak_memory_bytes()
print(json.dumps({"seconds": seconds, "peak": peak, "hits": len(answers[0].hits)}))
"""


def memory(folder: Path, asked: Any) -> None:
    """Peak memory of a process that searches exactly, with texts fetched."""
    data = embedkit.load(folder, VIEW)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for count, where in ((1, ""), (100, ""), (1_000, ""), (1, "label = '1'")):
            file = Path(scratch) / "q.npy"
            np.save(file, queries_of(data.width)[:count])
            done = subprocess.run(
                [sys.executable, "-c", MEMORY, str(folder), str(file), where],
                check=True,
                capture_output=True,
                text=True,
            )
            found = json.loads(done.stdout)
            rows.append(
                [
                    f"{count:,} {where}".strip(),
                    f"{found['peak'] / 1e6:,.0f} MB",
                    f"{found['seconds']:.1f} s",
                ]
            )
    print(f"\n{len(data):,} × {data.width}: peak memory of exact search (goal below 1,000 MB)")
    print(table(["queries", "peak", "time"], rows))


SECTIONS = {"exact": exact, "cold": cold, "index": index, "memory": memory}

if __name__ == "__main__":
    main()
