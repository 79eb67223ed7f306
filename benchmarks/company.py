"""How encoding slows down beside other processes, by how OpenMP's threads wait for each other.

    python -m benchmarks.company [--corpora FOLDER] [--rounds 5] [--seconds 4] [--set NAME=VALUE]...

Every setting has two processes that have loaded the model and wait. In each round every setting in
turn encodes for some seconds alone, beside a second process of the same setting (the mean of the
two), beside one of OpenMP's defaults, beside one process that keeps a core busy, and beside one for
every core. Medians of the rounds, with the least and the most.

Without ``--set`` the settings are libgomp's default and counts of spins from 0 to 100,000. On
Linux a run during which other programs took more than ``--foreign`` of the processors' time is
repeated once; the less disturbed one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

from benchmarks.measure import PACKAGES, describe, table
from benchmarks.texts import CORPORA, texts_of
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.windows import TokenizerSettings

LOT = 100
TRIES = 2
DEFAULT = "default"
SPINS = (0, 100, 1_000, 10_000, 100_000)
RUNTIME = ("OMP_", "GOMP_", "KMP_", "MKL_")
SITUATIONS = ("alone", "beside another", "beside a default", "beside 1 hog", "beside hogs")


def main() -> None:
    """Print a table: tokens per second by setting and situation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--foreign", type=float, default=0.03)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE[,NAME=VALUE]")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.corpora)
        return
    given = options.set or [f"GOMP_SPINCOUNT={count}" for count in SPINS]
    settings = {DEFAULT: {}} | {s: dict(p.split("=") for p in s.split(",")) for s in given}
    print(describe(PACKAGES), flush=True)
    found = measure(settings, options)
    rows = [(name, *(_shown(found[name, where]) for where in SITUATIONS)) for name in settings]
    print("\n" + table(("tokens/s", *SITUATIONS), rows))


def measure(
    settings: Mapping[str, Mapping[str, str]], options: argparse.Namespace
) -> dict[tuple[str, str], list[float]]:
    """Tokens per second of every setting in every situation, round after round."""
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        pairs = {
            name: [stack.enter_context(worker(env, options.corpora)) for _ in range(2)]
            for name, env in settings.items()
        }
        for process in chain.from_iterable(pairs.values()):
            assert process.stdout
            process.stdout.readline()
        for number in range(options.rounds + 1):
            for name, (one, other) in pairs.items():
                beside = pairs[DEFAULT][1]
                for where, runs, hogs in (
                    ("alone", [one], 0),
                    ("beside another", [one, other], 0),
                    ("beside a default", [one, beside], 0),
                    ("beside 1 hog", [one], 1),
                    ("beside hogs", [one], os.cpu_count() or 1),
                ):
                    rates = undisturbed(runs, hogs, options)
                    rate = statistics.mean(rates) if runs == [one, other] else rates[0]
                    print(f"{number} {name}: {where} {rate:,.0f}", file=sys.stderr, flush=True)
                    if number:  # the first round warms up
                        found.setdefault((name, where), []).append(rate)
    return found


def undisturbed(
    workers: Sequence[subprocess.Popen[str]], hogs: int, options: argparse.Namespace
) -> list[float]:
    """The rate of each process, of the run that other programs took least time from."""
    tries: list[tuple[float, list[float]]] = []
    while len(tries) < TRIES and (not tries or min(tries)[0] > options.foreign):
        with busy(hogs) as others:
            ours = [p.pid for p in workers] + [p.pid for p in others]
            before = foreign_seconds(ours)
            started = time.perf_counter()
            rates = run(workers, options.seconds)
            spent = time.perf_counter() - started
            share = (foreign_seconds(ours) - before) / (spent * (os.cpu_count() or 1))
        tries.append((share, rates))
    share, rates = min(tries)
    if share > options.foreign:
        print(f"{share:.0%} of the time was others':", file=sys.stderr, end=" ")
    return rates


def foreign_seconds(ours: Sequence[int]) -> float:
    """Seconds of processor time since the start of the machine that no process of ours took."""
    if not Path("/proc/stat").is_file():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    for pid in ours:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks -= int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(workers: Sequence[subprocess.Popen[str]], seconds: float) -> list[float]:
    """Let processes encode at the same time; their rates."""
    for process in workers:
        assert process.stdin
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    rates = []
    for process in workers:
        assert process.stdout
        rates.append(json.loads(process.stdout.readline()))
    return rates


@contextmanager
def worker(setting: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that loads the model, says so in a line, and waits."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(RUNTIME)}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.company", "--worker", "--corpora", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, **setting},
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def work(folder: Path) -> None:
    """Answer every number of seconds on standard input with tokens per second."""
    texts = texts_of(folder, "nsmc", 1_000)
    encoder = Encoder(device="cpu", precision="fp32")
    lots = [texts[i : i + LOT] for i in range(0, len(texts), LOT)]
    settings = TokenizerSettings(encoder.max_length)
    tokens = [len(encoder.tokenizer.encode(x, settings=settings).ids) for x in lots]
    print("ready", flush=True)
    for line in sys.stdin:
        done, number = 0, 0
        started = time.perf_counter()
        while time.perf_counter() - started < float(line):
            encoder.encode(lots[number % len(lots)])
            done += tokens[number % len(lots)]
            number += 1
        print(json.dumps(done / (time.perf_counter() - started)), flush=True)


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that do nothing but keep a core busy."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield hogs
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def _shown(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


if __name__ == "__main__":
    main()
