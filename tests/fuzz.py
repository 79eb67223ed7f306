"""Files that nobody wrote: ``python -m tests.fuzz`` (``make fuzz``), each target for some seconds.

Valid files are changed by hypothesis: bits, pieces cut out, doubled and put in. Where atheris is
installed, it goes on from the same files and looks for inputs that reach other lines of the code.
Whatever is in a file, its reader returns or raises an error of embedkit; a target runs in a process
of its own, whose end by anything else is a finding too, and the input is kept in ``fuzz-findings``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FINDINGS = Path("fuzz-findings")


@dataclass(frozen=True, slots=True)
class Target:
    """What is read.

    Attributes:
        seeds: returns valid files; called once, in a folder for them.
        read: reads such a file in its place.
        place: its name below the folder.
    """

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]
    place: str


def _dataset(folder: Path) -> Path:
    from tests.store_fixtures import run, write_tsv

    run(write_tsv(folder / "corpus.tsv"), folder / "data", shard_rows=20)
    return folder / "data"


def _file_of(name: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(_dataset(folder) / name).read_bytes()]


def _manifest(file: Path) -> None:
    import embedkit

    data = embedkit.load(file.parent.parent)
    assert data.X.shape == (len(data), data.width)


def _shard(file: Path) -> None:
    import embedkit

    folder = file.parent.parent
    embedkit.verify(folder)
    data = embedkit.load(folder)
    assert data.X.shape == (len(data), data.width)
    assert len(data.ids) == len(data)


def _recipe(file: Path) -> None:
    from embedkit.cli.main import cli
    from embedkit.experiments.recipe import read_recipe

    read_recipe(file, cli.commands, ())


def _recipes(_: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path("pipelines").glob("*.toml"))]


def _corpus(file: Path) -> None:
    from tests.corpus_fixtures import Folder

    Folder(file.parent).read(file.read_bytes(), file.name)


def _tables(ending: str) -> Callable[[Path], list[bytes]]:
    def seeds(folder: Path) -> list[bytes]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {
            "id": ["1", "2", "3"],
            "text": ["a b", "영화, 좋다", 'say "no"\n'],
            "label": [0, 1, 0],
        }
        if ending == "parquet":
            pq.write_table(pa.table(columns), folder / "x.parquet")
            return [(folder / "x.parquet").read_bytes()]
        rows = list(zip(*columns.values(), strict=True))
        if ending == "jsonl":
            lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
            return ["\n".join(lines).encode()]
        mark = {"tsv": "\t", "csv": ","}[ending]
        lines = [mark.join(f'"{v}"' if ending == "csv" else str(v) for v in row) for row in rows]
        return [encoded for name in ("utf-8", "utf-16")
                for encoded in ["\n".join([mark.join(columns), *lines]).encode(name)]]  # fmt: skip

    return seeds


TARGETS = {
    "manifest": Target(_file_of("_embedkit/manifest.json"), _manifest,
                       "data/_embedkit/manifest.json"),
    "footer": Target(_file_of("sentences/part-00000.parquet"), _shard,
                     "data/sentences/part-00000.parquet"),
    "recipe": Target(_recipes, _recipe, "recipe.toml"),
    **{f"corpus.{ending}": Target(_tables(ending), _corpus, f"corpus.{ending}")
       for ending in ("tsv", "csv", "jsonl", "parquet")},
}  # fmt: skip


class _Try:
    """Reads changed files, and keeps the one that it is at."""

    def __init__(self, target: Target, folder: Path, kept: Path) -> None:
        from embedkit.errors import EmbedkitError

        self._target, self._errors, self._kept = target, EmbedkitError, kept
        self._file = folder / target.place
        self.seeds = target.seeds(folder)
        self.tried = 0

    def __call__(self, data: bytes) -> None:
        self.tried += 1
        self._kept.write_bytes(data)
        self._file.write_bytes(data)
        with suppress(self._errors):
            self._target.read(self._file)


def _by_hypothesis(attempt: _Try, seconds: float) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    edits = st.lists(
        st.tuples(st.sampled_from(["flip", "cut", "double", "put"]), st.floats(0, 1),
                  st.integers(0, 64), st.binary(max_size=12)),
        min_size=1, max_size=6,
    )  # fmt: skip
    until = time.monotonic() + seconds

    def one_round(number: int) -> None:
        @seed(number)
        @settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(st.sampled_from(attempt.seeds), edits)
        def check(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> None:
            attempt(_changed(data, changes))

        check()

    number = 0
    while time.monotonic() < until:
        one_round(number)
        number += 1


def _changed(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
    content = bytearray(data)
    for kind, where, length, new in changes:
        at = int(where * len(content))
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << length % 8
        elif kind == "cut":
            del content[at : at + length]
        elif kind == "double":
            content[at:at] = content[at : at + length]
        elif kind == "put":
            content[at : at + len(new)] = new
    return bytes(content)


def _by_atheris(attempt: _Try, seconds: float, folder: Path) -> None:
    import atheris

    seeds = folder / "seeds"
    seeds.mkdir()
    for number, data in enumerate(attempt.seeds):
        (seeds / str(number)).write_bytes(data)
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", "-seed=1", "-verbosity=0",
                   f"-artifact_prefix={folder}/", str(seeds)], attempt)  # fmt: skip
    atheris.Fuzz()


def _one(name: str, engine: str, seconds: float, kept: Path) -> None:
    """Fuzz one target in this process, and print how many files were tried."""
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["embedkit"], enable_loader_override=False):
            for module in ("cli.main", "dataset.store", "dataset.verification", "corpus.plan"):
                importlib.import_module(f"embedkit.{module}")
    from embedkit.encoding.encoder import Encoder
    from tests.store_fixtures import load_quickly

    Encoder.load = load_quickly  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory(prefix="embedkit-fuzz-") as top:
        attempt = _Try(TARGETS[name], Path(top), kept)
        for data in attempt.seeds:
            attempt(data)
        if engine == "atheris":
            _by_atheris(attempt, seconds, Path(top))
        else:
            _by_hypothesis(attempt, seconds)
    print(f"tried {attempt.tried}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="of targets; all by default")
    options.add_argument("--seconds", type=float, default=30, help="for each target and engine")
    options.add_argument("--engine", choices=("hypothesis", "atheris"), help="only in a child")
    given = options.parse_args()
    if given.engine:
        _one(given.names[0], given.engine, given.seconds, Path(os.environ["FUZZ_KEPT"]))
        return 0
    engines = ["hypothesis"]
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: hypothesis alone")
    else:
        assert atheris
        engines.append("atheris")
    findings = 0
    for name in given.names or TARGETS:
        for engine in engines:
            findings += _watched(name, engine, given.seconds)
    print(f"findings {findings}")
    return int(bool(findings))


def _watched(name: str, engine: str, seconds: float) -> bool:
    """Whether fuzzing a target, in a process of its own, ends by anything but its time."""
    with tempfile.TemporaryDirectory(prefix="embedkit-fuzz-") as top:
        kept = Path(top) / "input"
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", name, "--engine", engine,
             "--seconds", str(seconds)],
            env={**os.environ, "FUZZ_KEPT": str(kept)}, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip
        tried = [line for line in (done.stdout + done.stderr).splitlines()
                 if line.startswith(("tried", "Done"))]  # fmt: skip
        print(f"{name} by {engine}: {tried[-1] if tried else 'ended'}, exit code {done.returncode}",
              flush=True)  # fmt: skip
        if done.returncode == 0:
            return False
        FINDINGS.mkdir(exist_ok=True)
        where = FINDINGS / f"{name}-{engine}"
        shutil.copy(kept, where)
        print(
            f"    {where}\n" + "\n".join(f"    {line}" for line in done.stderr.splitlines()[-12:])
        )
        return True


if __name__ == "__main__":
    sys.exit(main())
