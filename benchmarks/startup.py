"""How long commands take before they do anything, as multiples of ``import torch``.

    python -m benchmarks.startup [--rounds 5] [--avx2] [--answers]

Every command runs on the 300 requests of ``data/`` in a process of its own, in turn with the others
and with a process that imports torch; medians of processor time, which other programs disturb less
than they do wall time, and the median of the multiples of each round.

    command     │ interpreter, imports │ work: fits, the model, the answer │
    its imports │ interpreter, imports │

A second process imports what the command had imported by its end, in the same order, and nothing
else: what it takes is the part of a command that its user waits for without a reason.

``--answers`` measures what comes afterwards instead, in processes that stay: the first answer to a
text of a :class:`~embedkit.Predictor` and of a :class:`~embedkit.Searcher` over 100,000 records,
the median of 30 others and the quickest, in wall time and in processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import AVX2, PACKAGES, describe, table

TORCH = "import torch"
GOALS = {
    "info data": 0.5,
    "compare vectors tfidf": 0.5,
    "split data --out split.parquet --overwrite": 1.0,
    "train data --out trained --overwrite": 1.0,
    "probe data --view mean_6 --out probed --overwrite": 1.0,
    "predict tfidf --text parcel": 1.0,
    "search data parcel": 2.5,
    "predict vectors --text parcel": 2.5,
    "extract requests.tsv --limit 3 --out few --overwrite": 2.5,
}
"""Commands, and the multiples that their imports should not exceed."""
NAMES = """
import sys
from embedkit.cli.main import cli
cli.call(sys.argv[1:])
print(*sys.modules, file=open("modules.txt", "w"))
"""
IMPORTS = """
from contextlib import suppress
from importlib import import_module
for name in open("modules.txt").read().split():
    with suppress(BaseException):  # some are made by others while these are imported
        import_module(name)
"""
ANSWERS = {
    "Predictor('vectors').predict(text)": 15,
    "Predictor('tfidf').predict(text)": 15,
    "Searcher('many').texts(text)": 25,
}
"""Calls of a warm process, and the milliseconds that they should not exceed."""
RECORDS = 100_000
CALLS = """
import sys, time
from embedkit import Predictor, Searcher
made, _, method = sys.argv[1].rpartition(".")
answer = getattr(eval(made), method.partition("(")[0])
for number in range(31):
    wall, used = time.perf_counter(), time.process_time()
    answer(f"where is parcel {number} that I ordered")
    print(time.perf_counter() - wall, time.process_time() - used)
"""


def main() -> None:
    """Print a table: seconds and multiples by command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--avx2", action="store_true", help="as on a processor without AVX-512")
    parser.add_argument("--answers", action="store_true", help="of processes that stay")
    options = parser.parse_args()
    print(describe(PACKAGES), flush=True)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
    if options.avx2:
        environment |= AVX2
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        corpus = Path(__file__).parents[1] / "data" / "requests_en.tsv"
        (place / "requests.tsv").write_bytes(corpus.read_bytes())
        for made in (
            "extract requests.tsv --label intent --layers 0,-1 --pooling mean --out data",
            "train data --out vectors",
            "train data --features tfidf --out tfidf",
        ):
            seconds_of(made, place, environment)
        if options.answers:
            print("\n" + _answers(place, environment))
            return
        seconds: dict[str, list[float]] = {name: [] for name in (TORCH, *GOALS)}
        imports: dict[str, list[float]] = {name: [] for name in GOALS}
        for number in range(options.rounds + 1):  # the first one compiles modules
            for name, times in seconds.items():
                used = seconds_of(name, place, environment)
                alone = 0.0
                if name in imports:
                    python(["-c", NAMES, *name.split(), "-q"], place, environment)
                    alone = python(["-c", IMPORTS], place, environment)
                if number:
                    times.append(used)
                    imports.get(name, []).append(alone)
    rows = []
    for name, times in seconds.items():
        row = [f"`{name}`", f"{statistics.median(times):.2f} s"]
        for part in (times, imports.get(name, times)):
            multiples = (a / b for a, b in zip(part, seconds[TORCH], strict=True))
            row.append(f"{statistics.median(multiples):.2f}")
        rows.append((*row, f"{GOALS[name]:.1f}" if name in GOALS else ""))
    heads = ("command", "processor time", "× import torch", "its imports alone", "goal")
    print("\n" + table(heads, rows))


def _answers(place: Path, environment: dict[str, str]) -> str:
    """The table of :data:`ANSWERS`."""
    lines = [f"{number} parcel" for number in range(RECORDS)]
    (place / "many.txt").write_text("\n".join(["text", *lines]) + "\n", "utf-8")
    seconds_of("extract many.txt --out many", place, environment)
    rows = []
    for call, goal in ANSWERS.items():
        command = [sys.executable, "-c", CALLS, call]
        done = subprocess.run(
            command, cwd=place, env=environment, check=True, capture_output=True, text=True
        )
        times = [[1000 * float(n) for n in line.split()] for line in done.stdout.splitlines()]
        (first, _), *others = times
        wall, used = zip(*others, strict=True)
        median = f"{statistics.median(wall):.1f} ms, {statistics.median(used):.1f} ms"
        rows.append((f"`{call}`", f"{first:.1f} ms", median, f"{min(wall):.1f} ms", f"{goal} ms"))
    heads = ("call", "first answer", "median of 30, of processors", "quickest", "goal")
    return table(heads, rows)


def seconds_of(command: str, folder: Path, environment: dict[str, str]) -> float:
    """Processor time of a command of embedkit, or of the import of torch."""
    embedkit = ["-m", "embedkit", *command.split(), "-q"]
    return python(["-c", TORCH] if command == TORCH else embedkit, folder, environment)


def python(program: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Processor time of a process of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
