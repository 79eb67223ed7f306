"""Every command under faults: ``python -m tests.faults`` (``make test-faults``).

A command is run in a child of a process that has imported everything and loaded the model, in a
folder of its own. Something happens to it: an operation fails, it is killed, the power is cut.
Then what stands under its output's name is what stood there before, or what an undisturbed command
makes; and the same command, given again, makes just that, and leaves nothing else.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.durable import KINDS, Disk, Trace, Tree, materialize

ROWS = [
    (f"{number:02}", f"the movie was {word} {'a ' * (number % 3)}{number % 7}", str(number % 2))
    for number, word in enumerate(("bad", "good") * 14)
]
FINE = (0, 3)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command.

    Attributes:
        command: its line; ``{model}`` is the folder of a tiny checkpoint.
        needs: what of the prepared folder it reads.
        output: what it makes.
        before: a command whose output it replaces.
        other: a command with other settings and the same output.
    """

    command: str
    needs: tuple[str, ...]
    output: str
    before: str = ""
    other: str = ""


EXTRACT = "extract corpus.tsv --out out --model {model} --shard-rows 12 --words --tokens"
TRAIN = "train data --out out --folds 2 --no-tune"
FINETUNE = (
    "finetune corpus.tsv --out out --model {model} --head pooler --epochs 1 --folds 2 "
    "--max-length 12 --limit 12"
)
INDEX = "index data --kind flat --center"
COMPARE = "compare a b --report out/page.html --figures svg"

SCENARIOS = {
    "extract": Scenario(EXTRACT, ("corpus.tsv",), "out", other=f"{EXTRACT} --layers 0"),
    "extract --overwrite": Scenario(
        f"{EXTRACT} --overwrite", ("corpus.tsv",), "out", before=f"{EXTRACT} --layers 0"),
    "train": Scenario(TRAIN, ("data",), "out", other=f"{TRAIN} --seed 1"),
    "train --overwrite": Scenario(
        f"{TRAIN} --overwrite", ("data",), "out", before=f"{TRAIN} --seed 1"),
    "finetune": Scenario(FINETUNE, ("corpus.tsv",), "out", other=f"{FINETUNE} --seed 1"),
    "index": Scenario(INDEX, ("data",), "data/_embedkit/index"),
    "index --overwrite": Scenario(
        f"{INDEX} --overwrite", ("data",), "data/_embedkit/index", before=f"{INDEX} --seed 1"),
    "compare": Scenario(COMPARE, ("data", "a", "b"), "out"),
    "compare --overwrite": Scenario(
        f"{COMPARE} --overwrite", ("data", "a", "b"), "out",
        before=f"{COMPARE} --report-lang ko"),
    "explore": Scenario("explore data --out out/page.html --method pca", ("data",), "out"),
    "run": Scenario("run recipe.toml", ("corpus.tsv", "recipe.toml"), "out"),
    "predict": Scenario("predict a data --out out.tsv", ("data", "a"), "out.tsv"),
    "split": Scenario("split corpus.tsv --folds 2 --out out.parquet", ("corpus.tsv",),
                      "out.parquet"),
    "similarity": Scenario(
        "similarity pairs.tsv --text a --text-pair b --score score --model {model} --out out",
        ("pairs.tsv",), "out"),
    "export": Scenario("export tuned --fold 0 --out out", ("corpus.tsv", "tuned"), "out"),
}  # fmt: skip

RECIPE = """\
[extract]
corpus = "corpus.tsv"
model = "{model}"
out = "out/data"

[train]
dataset = "out/data"
folds = 2
tune = false
out = "out/run"
"""

_PREPARED = (
    "extract corpus.tsv --out data --model {model} --shard-rows 12",
    "train data --out a --folds 2 --no-tune",
    "train data --out b --folds 2 --no-tune --features tfidf",
    FINETUNE.replace("--out out", "--out tuned"),
)


@dataclass
class Counts:
    """What was done, and what went wrong."""

    inputs: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def bad(self, what: str, where: str, detail: str = "") -> None:
        self.wrong[what] += 1
        self.lines.append(f"{what}: {where} {detail}".rstrip())

    def __iadd__(self, other: Counts) -> Counts:
        self.inputs += other.inputs
        self.wrong += other.wrong
        self.lines += other.lines
        return self


BAD = ("rows lost", "wrong answers", "tracebacks", "nothing visible", "files left", "stuck")
"""What must not be: another result of the repeated command; an output that is neither the old nor
the new, and is read; an error without a message; neither the old nor the new under its name; files
left beside it; a command that goes on to be refused."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    error: str = ""
    traceback: str = ""
    done: tuple[str, ...] = ()


def forked(action: Callable[[], Any], *, kill_after: float | None = None) -> Any:
    """Do something in a child; what it returned, or ``None`` where it was killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        os.setsid()
        with suppress(BaseException):
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            answer = json.dumps(action()).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
        os._exit(0)
    os.close(writing)
    if kill_after is not None:
        time.sleep(kill_after)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(process, 0)
    return json.loads(answer) if answer else None


def call(line: str, folder: Path, before: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Run a command here as its process would; ``before`` is called when it begins."""
    from tests.processes import command

    try:
        before()
        done = command(*line.format(model=_model()).split(), cwd=folder)
    except Exception:
        return {"code": 1, "traceback": traceback.format_exc()[-3_000:]}
    return {"code": done.returncode, "error": done.stderr[-500:]}


def run(line: str, folder: Path, disk: Disk | None = None, **options: Any) -> Ended:
    """Run a command in a child."""

    def action() -> dict[str, Any]:
        found = call(line, folder, disk.install if disk else lambda: None)
        return {**found, "done": disk.done if disk else []}

    found = forked(action, **options)
    return Ended(-9) if found is None else Ended(**{**found, "done": tuple(found["done"])})


def _call_for_imports(line: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    return call(line, folder), list(sys.modules)


def _model() -> str:
    from tests.store_fixtures import tiny_model

    return str(tiny_model())


def prepare() -> None:
    """Import what commands need, load the model, and stop all clocks."""
    import faiss
    import lightgbm
    import matplotlib.figure
    import pandas
    import sklearn.linear_model
    import torch
    import transformers.trainer

    import embedkit
    from embedkit.classifiers import train
    from embedkit.encoding.encoder import Encoder
    from embedkit.experiments import pipeline
    from embedkit.finetuning import summary
    from embedkit.runs import figures
    from tests.store_fixtures import load_quickly

    assert all((faiss, lightgbm, matplotlib, pandas, sklearn, transformers))
    for found in pkgutil.walk_packages(embedkit.__path__, "embedkit."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    Encoder.load = load_quickly  # type: ignore[method-assign, assignment]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not live on in a child
    torch.set_num_threads(1)
    load_quickly(_model())
    clocks = {"perf_counter": lambda: 0.0, "monotonic": lambda: 0.0}
    stopped = SimpleNamespace(**(vars(time) | clocks))
    for module in [module for name, module in sys.modules.items() if name.startswith("embedkit.")]:
        if getattr(module, "time", None) is time:
            module.time = stopped  # type: ignore[attr-defined]
    train.peak_memory_bytes = summary.peak_memory_bytes = lambda: 1  # type: ignore[attr-defined]
    gc.freeze()  # pages that a collection would touch are copied for every child
    gc.disable()
    figures.render = lambda _, target, **__: target.write(b"a figure")
    os.fsync = os.fdatasync = lambda _: None  # type: ignore[assignment]

    def stage(arguments: Sequence[str], folder: Path, divert: bool) -> int:
        found = call(" ".join(arguments), folder)
        if "traceback" in found:
            raise RuntimeError(found["traceback"])
        return int(found["code"])

    pipeline._call = stage


def base(folder: Path, needs: set[str]) -> Path:
    """A folder with what commands read."""
    folder.mkdir(parents=True)
    lines = ["id\tdocument\tlabel", *("\t".join(row) for row in ROWS), "99\t\t1"]
    (folder / "corpus.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    pairs = [
        f"{a[1]}\t{b[1]}\t{n % 5}" for n, (a, b) in enumerate(zip(ROWS, ROWS[3:], strict=False))
    ]
    (folder / "pairs.tsv").write_text("\n".join(["a\tb\tscore", *pairs]) + "\n", "utf-8")
    (folder / "recipe.toml").write_text(RECIPE.format(model=_model()), "utf-8")
    for line in _PREPARED:
        if line.split()[line.split().index("--out") + 1] in needs:
            found = forked(partial(_call_for_imports, line, folder))
            assert found[0]["code"] in FINE, found[0]
            for name in found[1]:  # the children have them then from the start
                with suppress(Exception):
                    importlib.import_module(name)
    return folder


_LOGS = ("log.jsonl", "whitening", "mean_2.center.safetensors")
_PRIVATE = ("replacing", "unfinished")


def tree(folder: Path) -> Tree:
    """Content of all files below a folder but of logs; ``None`` for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*")) if path.name not in _LOGS
    }  # fmt: skip


def below(found: Tree, output: str) -> Tree:
    """What stands under a name, without what only the next command needs."""
    return {
        name: content for name, content in found.items()
        if f"{name}/".startswith(f"{output}/")
        and not {*name.split("/")} & {*_PRIVATE}
        and not any(part.endswith((".incomplete", ".partial")) for part in name.split("/"))
    }  # fmt: skip


class Harness:
    """One scenario in a folder of its own."""

    def __init__(self, name: str, prepared: Path, folder: Path) -> None:
        self.name, self.scenario, self._folder = name, SCENARIOS[name], folder
        self.counts = Counts()
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._start = folder / "start"
        self._start.mkdir()
        for need in self.scenario.needs:
            source = prepared / need
            (shutil.copytree if source.is_dir() else shutil.copy)(source, self._start / need)
        if self.scenario.before:
            assert run(self.scenario.before, self._start).code in FINE
        self.before = tree(self._start)
        work = self.workspace()
        ended = run(self.scenario.command, work)
        assert ended.code in FINE, (name, ended)
        self.golden = tree(work)
        self._remove(work)

    def workspace(self) -> Path:
        """A fresh copy of what the command begins with."""
        self._number += 1
        work = self._folder / str(self._number)
        shutil.copytree(self._start, work)
        return work

    def operations(self) -> list[str]:
        """The durable operations of the undisturbed command."""
        work = self.workspace()
        ended = run(self.scenario.command, work, Disk(work))
        assert ended.code in FINE, ended
        differs = _difference(self.golden, tree(work))
        assert not differs, f"{self.name}: two undisturbed commands differ: {differs}"
        self._remove(work)
        return list(ended.done)

    def fault(self, at: int, kind: str, what: str = "") -> None:
        """Let one operation fail."""
        work = self.workspace()
        self.counts.inputs["faults"] += 1
        ended = run(self.scenario.command, work, Disk(work, at=at, kind=kind))
        where = f"{self.name}: {kind} at {at} {what}:"
        if kind == "short write" and ended.code not in FINE:
            self.counts.bad("rows lost", where, f"exit code {ended.code}: {ended.error}")
        if ended.traceback:
            self.counts.bad("tracebacks", where, ended.traceback)
        self.check(work, where)

    def kill(self, seconds: float) -> None:
        """Kill the command after some time."""
        work = self.workspace()
        self.counts.inputs["kills"] += 1
        run(self.scenario.command, work, kill_after=seconds)
        self.check(work, f"{self.name}: killed after {seconds:.4f} s:")

    def power_cuts(self, *, most: int | None = None, seed: int = 0) -> None:
        """Cut the power at every moment of an undisturbed command."""
        for number, state in enumerate(self.states(most=most, seed=seed)):
            self._number += 1
            work = self._folder / str(self._number)
            materialize(state, work)
            self.counts.inputs["power cuts"] += 1
            self.check(work, f"{self.name}: power cut {number}:")

    def states(self, *, most: int | None = None, seed: int = 0) -> list[Tree]:
        """States that a power cut may leave; of more than ``most`` a sample."""
        work = self.workspace()
        stored = self._folder / "states"

        def action() -> int:
            trace = Trace(work)
            call(self.scenario.command, work, Disk(work, trace=trace).install)
            import pickle

            sys.setrecursionlimit(10_000)
            with stored.open("wb") as sink:
                pickle.dump(list(trace.states(seed)), sink)
            return 0

        assert forked(action) == 0
        import pickle

        states: list[Tree] = pickle.loads(stored.read_bytes())
        self._remove(work)
        if most is not None and len(states) > most:
            states = random.Random(seed).sample(states, most)
        return states

    def check(self, work: Path, where: str) -> None:
        """What is visible is the old or the new; the command given again makes the new."""
        found, output = tree(work), self.scenario.output
        visible = below(found, output)
        old, new = below(self.before, output), below(self.golden, output)
        if visible not in (old, new) and not self._is_prefix(visible, old, new):
            self._read(work, where, visible)
        again = run(self.scenario.command, work)
        if again.traceback:
            self.counts.bad("tracebacks", f"{where} repeated:", again.traceback)
        after = tree(work)
        refused = again.code == 8 and not self.scenario.before
        if after == self.golden and (again.code in FINE or refused):
            pass
        elif again.code in FINE and below(after, output) != new:
            self.counts.bad("rows lost", where, _difference(self.golden, after))
        elif below(after, output) == new:
            self.counts.bad("files left", where, _difference(self.golden, after))
        else:
            self.counts.bad("stuck", where, f"exit code {again.code}: {again.error}")
        self._remove(work)

    def _is_prefix(self, visible: Tree, old: Tree, new: Tree) -> bool:
        """Whether each file of an output of several files is the old, the new or none."""
        return self.name.partition(" ")[0] in ("compare", "run", "index") and all(
            content in (new.get(name, b""), old.get(name, b"")) for name, content in visible.items()
        )

    def _read(self, work: Path, where: str, visible: Tree) -> None:
        output = work / self.scenario.output
        if not visible:
            self.counts.bad("nothing visible", where)
            return

        def refused() -> bool:
            from embedkit.dataset.verification import verify
            from embedkit.errors import EmbedkitError

            try:
                return not verify(output).ok
            except EmbedkitError:
                return True

        if forked(refused) is not True:
            expected = below(self.golden, self.scenario.output)
            self.counts.bad("wrong answers", where, _difference(expected, visible))

    def _remove(self, work: Path) -> None:
        shutil.rmtree(work)


def _difference(expected: Tree, found: Tree) -> str:
    names = [f"+{name}" for name in found.keys() - expected.keys()]
    names += [f"-{name}" for name in expected.keys() - found.keys()]
    names += [
        f"~{name}" for name in expected.keys() & found.keys() if expected[name] != found[name]
    ]
    return " ".join(sorted(names)[:6])


def faults_of(
    harness: Harness, *, part: int = 0, parts: int = 1, kinds: Iterable[str] = KINDS
) -> None:
    """Each operation fails in each way; of ``parts`` equal parts one."""
    operations = harness.operations()
    cases = [
        (at, kind) for at, what in enumerate(operations) for kind in kinds
        if kind != "short write" or what.startswith("write ")
    ]  # fmt: skip
    for at, kind in cases[part::parts]:
        harness.fault(at, kind, operations[at])


def summary(counts: Counts) -> str:
    """The counts in one line."""
    done = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.inputs.items()))
    return f"{done}: " + ", ".join(f"{what} {counts.wrong[what]}" for what in BAD)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="of commands; all by default")
    options.add_argument("--sample", type=int, default=1, help="only every N-th fault")
    given = options.parse_args()
    names = given.names or list(SCENARIOS)
    total = Counts()
    prepare()
    with tempfile.TemporaryDirectory(prefix="embedkit-faults-") as top:
        needs = {"data", *(need for name in names for need in SCENARIOS[name].needs)}
        prepared = base(Path(top) / "prepared", needs)
        for name in names:
            started = time.time()
            harness = Harness(name, prepared, Path(top) / name.replace(" ", "-"))
            faults_of(harness, part=given.sample // 2, parts=given.sample)
            harness.power_cuts(most=None if given.sample == 1 else 200 // given.sample)
            print(f"{name}: {summary(harness.counts)} ({time.time() - started:.0f} s)", flush=True)
            for line in harness.counts.lines[:20]:
                print("    ", line[:1_000], flush=True)
            total += harness.counts
    print(f"all: {summary(total)}")
    return int(any(total.wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
