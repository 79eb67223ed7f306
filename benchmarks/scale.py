"""Growth: what a row costs in corpora of 10,000 to 10,000,000 rows; what workers bring.

    python -m benchmarks.scale [--rows 10000,100000,1000000] [--workers 1,2] [--folder DIR]
    python -m benchmarks.scale --only workers [--rows 8192] [--rounds 5]     # needs ray

A model of one layer and width 32 with random weights encodes texts of 12 made-up words, so that
everything else than the forward pass weighs as much as it can. Each row of the table is one corpus:
seconds of the whole command, of the command that only plans (``--dry-run``), of the same command
again on the finished dataset, of the rest after a kill at half of the shards, of ``embedkit.load``,
of a search, and of ``--reuse`` with one per cent more rows; and peak memory of the first. The
exponent is the slope of log seconds over log rows, after the seconds of a corpus of 100 rows, which
are start-up, are taken off.

The second table is about processes: the built-in English model encodes texts of 14 words in
shards of 4,096 with one worker of one thread, one process of all threads, a worker for each core,
and the same through Ray. Medians of rounds in turn, of whole processes; the last column has the
start-up (the seconds of 100 texts in two shards) taken off, which are measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.made_up import made_up_texts, save_checkpoint
from benchmarks.measure import PACKAGES, describe, in_turn, peak_of, table
from embedkit.choices import DEFAULT_MODEL

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
EXTRACT = """
import json, pathlib, sys, embedkit
corpus, out, options = sys.argv[1:]
embedkit.extract(pathlib.Path(corpus), out=out, overwrite=True, **json.loads(options))
"""
LOAD = "import sys, embedkit; d = embedkit.load(sys.argv[1]); print(d.X.sum(), len(d.ids))"


def write_corpus(path: Path, rows: int) -> None:
    """Rows with an id, a text of 12 words, and a label; texts repeat after 10,000 rows."""
    texts = made_up_texts([14] * 10_000)
    with path.open("w", encoding="utf-8") as file:
        file.write("id\ttext\tlabel\n")
        for start in range(0, rows, len(texts)):
            part = texts[: rows - start]
            file.writelines(f"{start + i}\t{start} {t}\t{i % 2}\n" for i, t in enumerate(part))


def seconds_of(arguments: Sequence[str]) -> float:
    """Seconds of a Python process that has to end well."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def killed_at_half(command: Sequence[str], out: Path, shards: int) -> float:
    """Kill an extraction when half of its shards are there; seconds of the command again."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    folder = out.with_name(out.name + ".incomplete")
    while process.poll() is None and len([*folder.rglob("part-*.parquet")]) < shards // 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return seconds_of(command)


def measure(rows: int, workers: int, folder: Path) -> tuple[float, list[str]]:
    """Seconds of an extraction, and a row of the table."""
    corpus, out = folder / f"{rows}.tsv", folder / f"{rows}-{workers}"
    if not corpus.is_file():
        write_corpus(corpus, rows)
    options = ["--model", str(folder / "tiny"), "-q"]
    options += ["--workers", str(workers)] if workers > 1 else []
    command = ["-m", "embedkit", "extract", str(corpus), *options]
    dry = seconds_of([*command, "--out", str(out), "--dry-run"])
    peak, whole = peak_of([*command, "--out", str(out)])
    shards = len([*out.rglob("part-*.parquet")])
    again = seconds_of([*command, "--out", str(out)])
    load = seconds_of(["-c", LOAD, str(out)])
    search = seconds_of(["-m", "embedkit", "search", str(out), "--like", "3", "--json"])
    size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    half = killed_at_half([*command, "--out", f"{out}-killed"], Path(f"{out}-killed"), shards)
    write_corpus(folder / "grown.tsv", rows + rows // 100)
    grown = ["-m", "embedkit", "extract", str(folder / "grown.tsv"), *options, "--overwrite"]
    grown += ["--reuse", str(out)]
    reused = seconds_of([*grown, "--out", str(out)])
    seconds = (whole, dry, again, half, load, search, reused)
    line = [f"{rows:,}", str(workers), str(shards), f"{whole / rows * 1e6:,.0f}"]
    line += [f"{s:,.1f}" for s in seconds]
    line += [f"{peak / 1e6:,.0f}", f"{size / 1e6:,.0f}"]
    print(*line, file=sys.stderr, flush=True)
    return whole, line


def compare_workers(rows: int, rounds: int, folder: Path) -> list[list[str]]:
    """Lines of the table of processes, on the machine's cores."""
    cores = str(len(os.sched_getaffinity(0)))
    one = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    shared = {"workers": int(cores)}
    kinds: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "1 worker, 1 thread": ({}, one),
        f"1 process, {cores} threads": ({}, {}),
        f"{cores} workers, 1 thread each": (shared, {}),
        f"{cores} workers by Ray": (shared | {"engine": "ray"}, {}),
    }

    def extract(size: int, name: str) -> None:
        options, environment = kinds[name]
        options = options | {"model": DEFAULT_MODEL, "shard_rows": min(size // 2, 4_096)}
        words = [str(folder / f"{size}.tsv"), str(folder / "out"), json.dumps(options)]
        command = [sys.executable, "-c", EXTRACT, *words]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})

    seconds = {}
    for size in (100, rows):
        write_corpus(folder / f"{size}.tsv", size)
        runs = {name: partial(extract, size, name) for name in kinds}
        seconds[size] = in_turn(runs, rounds, warm=size == rows)
    start, whole = seconds[100], seconds[rows]
    (first, slowest), *_ = whole.items()
    lines = []
    for name, took in whole.items():
        net = (slowest - start[first]) / (took - start[name])
        figures = (f"{took:.1f}", f"{slowest / took:.2f} ×", f"{start[name]:.1f}", f"{net:.2f} ×")
        lines.append([name, *figures])
    return lines


def main() -> None:
    """Print the tables and the exponents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="by default 10000,100000,1000000; of workers 8192")
    parser.add_argument("--rounds", type=int, default=5, help="of workers")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", choices=("growth", "workers"), default="growth")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    header = ["rows", "workers", "shards", "µs a row", "extract s", "dry run s", "again s"]
    header += ["rest after a kill s", "load s", "search s", "reuse s", "peak MB", "on disk MB"]
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        if options.only == "workers":
            rows = int(options.rows or 8_192)
            lines = compare_workers(rows, options.rounds, folder)
            header = [f"{rows:,} texts", "s", "speed", "start-up s", "speed without start-up"]
            print(table(header, lines))
            return
        save_checkpoint(folder / "tiny", "bert", TINY)
        lines, exponents = [], []
        for workers in map(int, options.workers.split(",")):
            start, _ = measure(100, workers, folder)
            sizes = [int(n) for n in (options.rows or "10000,100000,1000000").split(",")]
            found = [measure(size, workers, folder) for size in sizes]
            lines += [line for _, line in found]
            if len(sizes) > 1:
                net = [np.log(max(whole - start, 1e-3)) for whole, _ in found]
                slope = np.polyfit(np.log(sizes), net, 1)[0]
                exponents.append(f"{workers} worker{'s' * (workers > 1)}: exponent {slope:.3f}")
    print(table(header, lines), "", *exponents, sep="\n")


if __name__ == "__main__":
    main()
