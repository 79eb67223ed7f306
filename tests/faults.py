"""Every command under faults: ``python -m tests.faults`` (``make test-faults``).

A command is run in a child of a process that has imported everything and loaded the model, in a
folder of its own. Something happens to it: an operation fails, it is killed, the power is cut.
Then what stands under its output's name is what stood there before, or what an undisturbed command
makes; and the same command, given again, makes just that, and leaves nothing else.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import pickle
import pkgutil
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# read when the libraries are imported: a child of a process with OpenMP threads waits for them
os.environ["OMP_NUM_THREADS"] = "1"

import torch

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
        read: what is answered from its output; raises or is the same after any damage.
        traced: whether its operations are those of Python; SQLite syncs its files by itself.

    A command that begins with ``@`` is a function of :data:`CALLS`.
    """

    command: str
    needs: tuple[str, ...]
    output: str
    before: str = ""
    other: str = ""
    read: Callable[[Path], Any] | None = None
    traced: bool = True


def _read_dataset(folder: Path) -> Any:
    import embedkit

    found = []
    for level in ("sentence", "word"):
        data = embedkit.load(folder / "out", level=level)
        found += [data.X.tobytes().hex(), data.ids.tolist(), data.y.tolist(), data.row.tolist()]
    return found


def _read_run(folder: Path) -> Any:
    from embedkit.comparison.load import read_runs
    from embedkit.predict import Predictor

    run = read_runs([folder / "out"]).runs[0]
    answers = Predictor(folder / "out", device="cpu").predict(["the movie was good", "a bus"])
    return [str(answers), str(run.content), repr(run.predictions)]


def _read_index(folder: Path) -> Any:
    import embedkit
    from embedkit.search.index import open_index

    data = embedkit.load(folder / "data")
    index = open_index(data, kind="flat", whitening="center")
    found = index(data.X[:3], 4)
    return [found.scores.tolist(), found.indices.tolist()]


def _read_split(folder: Path) -> Any:
    from embedkit.runs.split_files import read_split

    found = read_split(folder / "out.parquet")
    return [found.checksum, found.row.tolist(), found.folds.tolist()]


def _map_vectors(folder: Path) -> Any:
    import embedkit

    return embedkit.load(folder / "data").mapped(folder / "out").tolist()


def _encode_texts(folder: Path) -> Any:
    from embedkit.sklearn import TextEncoder

    encoder = TextEncoder(model=_model(), device="cpu", cache=folder / "out").fit([])
    return encoder.transform([row[1] for row in ROWS]).tolist()


CALLS = {"@map": _map_vectors, "@encode": _encode_texts}
"""What is called from Python; a cache is made again where it is damaged."""

EXTRACT = "extract corpus.tsv --out out --model {model} --shard-rows 12 --words --tokens"
TRAIN = "train data --out out --folds 2 --no-tune"
FINETUNE = (
    "finetune corpus.tsv --out out --model {model} --head pooler --epochs 1 --folds 2 "
    "--max-length 12 --limit 12"
)
INDEX = "index data --kind flat --center"
_INDEX = "data/_embedkit/index/mean_2.flat.cosine.center"
COMPARE = "compare a b --report out/page.html --figures svg"

SCENARIOS = {
    "extract": Scenario(
        EXTRACT, ("corpus.tsv",), "out", other=f"{EXTRACT} --layers 0", read=_read_dataset),
    "extract --overwrite": Scenario(
        f"{EXTRACT} --overwrite", ("corpus.tsv",), "out", before=f"{EXTRACT} --layers 0"),
    "train": Scenario(TRAIN, ("data",), "out", read=_read_run),
    "train --overwrite": Scenario(
        f"{TRAIN} --overwrite", ("data",), "out", before=f"{TRAIN} --seed 1"),
    "finetune": Scenario(
        FINETUNE, ("corpus.tsv",), "out", other=f"{FINETUNE} --seed 1", read=_read_run),
    "index": Scenario(INDEX, ("data",), _INDEX, read=_read_index),
    "index --overwrite": Scenario(
        f"{INDEX} --overwrite", ("data",), _INDEX, before=f"{INDEX} --seed 1"),
    "compare": Scenario(COMPARE, ("data", "a", "b"), "out"),
    "compare --overwrite": Scenario(
        f"{COMPARE} --overwrite", ("data", "a", "b"), "out",
        before=f"{COMPARE} --report-lang ko"),
    "explore": Scenario("explore data --out out/page.html --method pca", ("data",), "out"),
    "run": Scenario("run recipe.toml", ("corpus.tsv", "recipe.toml"), "out"),
    "predict": Scenario("predict a data --out out.tsv", ("data", "a"), "out.tsv"),
    "split": Scenario("split corpus.tsv --folds 2 --out out.parquet", ("corpus.tsv",),
                      "out.parquet", read=_read_split),
    "similarity": Scenario(
        "similarity pairs.tsv --text a --text-pair b --score score --model {model} --out out",
        ("pairs.tsv",), "out"),
    "export": Scenario("export tuned --fold 0 --out out", ("corpus.tsv", "tuned"), "out"),
    "cache of mapped vectors": Scenario("@map", ("data",), "out", read=_map_vectors),
    "cache of encoded texts": Scenario("@encode", (), "out", read=_encode_texts, traced=False),
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

    @classmethod
    def of(cls, content: dict[str, Any] | None) -> Counts:
        """Those of a worker."""
        if content is None:
            return cls(wrong=Counter(stuck=1), lines=["stuck: a worker ended"])
        return cls(Counter(content["inputs"]), Counter(content["wrong"]), content["lines"])

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


class Child:
    """A child that does something and sends what it returned."""

    def __init__(self, action: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(reading)
            with suppress(BaseException):
                signal.alarm(600)  # nothing waits for what hangs
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                answer = json.dumps(action()).encode()
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(answer)
            os._exit(0)
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def kill(self) -> None:
        """Kill it."""
        os.kill(self._process, signal.SIGKILL)

    def stopped(self) -> bool:
        """Wait until it stops itself; false if it ended instead."""
        return os.WIFSTOPPED(os.waitpid(self._process, os.WUNTRACED)[1])

    def result(self, *, reaped: bool = False) -> Any:
        """What it returned; ``None`` if it did not come to its end."""
        with self._pipe:
            answer = self._pipe.read()
        if not reaped:
            os.waitpid(self._process, 0)
        return json.loads(answer) if answer else None


def forked(action: Callable[[], Any]) -> Any:
    """Do something in a child; what it returned, or ``None`` where it was killed."""
    return Child(action).result()


def call(line: str, folder: Path, before: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Run a command here as its process would; ``before`` is called when it begins."""
    from embedkit.errors import EmbedkitError
    from tests.processes import command

    try:
        before()
        if line in CALLS:
            CALLS[line](folder)
            return {"code": 0}
        done = command(*line.format(model=_model()).split(), cwd=folder)
    except EmbedkitError as error:
        return {"code": error.exit_code, "error": str(error)}
    except Exception:
        return {"code": 1, "traceback": traceback.format_exc()[-1_000:]}
    return {"code": done.returncode, "error": done.stderr[-500:]}


def run(
    line: str, folder: Path, disk: Disk | None = None, *,
    before: Callable[[], Any] = lambda: None, kill_after: float | None = None,
) -> Ended:  # fmt: skip
    """Run a command in a child."""
    child = Child(_action(line, folder, disk, before))
    if kill_after is not None:
        time.sleep(kill_after)
        child.kill()
    found = child.result()
    return Ended(-9) if found is None else Ended(**{**found, "done": tuple(found["done"])})


def _action(
    line: str, folder: Path, disk: Disk | None, before: Callable[[], Any] = lambda: None
) -> Callable[[], dict[str, Any]]:
    def action() -> dict[str, Any]:
        torch.set_num_threads(1)  # two threads of a child that find the parent's pool cross
        before()
        found = call(line, folder, disk.install if disk else lambda: None)
        return {**found, "done": disk.done if disk else []}

    return action


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
    drawing = figures.canvas()
    figures.canvas = lambda *_: drawing
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
    """Content of all files below a folder but of logs and caches; ``None`` for folders."""
    return without_logs({
        str(path.relative_to(folder)): _content(path) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    })  # fmt: skip


def _content(file: Path) -> bytes:
    """Bytes of a file; of a database its rows, which may lie in it in several ways."""
    if file.suffix == ".sqlite":
        with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as database:
            return repr(sorted(database.execute("SELECT * FROM v"))).encode()
    return file.read_bytes()


def _state(folder: Path) -> str:
    """Digest of all that is below a folder; of logs, which tell the time, their sizes."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        if path.name == "log.jsonl":
            content = str(len(content)).encode()
        name = f"{path.relative_to(folder)}\0{path.is_file()}\0{len(content)}\0"
        digest.update(name.encode() + content)
    return digest.hexdigest()


def without_logs(found: Tree) -> Tree:
    """A tree without logs and caches."""
    return {name: content for name, content in found.items() if Path(name).name not in _LOGS}


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
        self._seen = set[str]()
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
        if ended.traceback or (ended.code == -9 and not kind.startswith("killed")):
            self.counts.bad("tracebacks", where, ended.traceback)
        self.check(work, where)

    def kills(self, count: int, *, seed: int = 0) -> None:
        """Kill the command at random moments."""
        rng, started, work = random.Random(seed), time.time(), self.workspace()
        run(self.scenario.command, work)
        whole = time.time() - started
        self._remove(work)
        for _ in range(count):
            seconds = rng.uniform(0, whole)
            work = self.workspace()
            self.counts.inputs["random kills"] += 1
            run(self.scenario.command, work, kill_after=seconds)
            self.check(work, f"{self.name}: killed after {seconds:.4f} s:")

    def limits(self, sizes: Iterable[int]) -> None:
        """No file may become larger: what libraries write outside of Python fails too."""
        for size in sizes:
            work = self.workspace()
            self.counts.inputs["file size limits"] += 1
            self._no_space(work, partial(_limit, size), f"files of at most {size} bytes")
            self.check(work, f"{self.name}: files of at most {size} bytes:")

    def small_disks(self, mount: Path, sizes: Iterable[int]) -> None:
        """A file system of its own that fills up, and then has room again."""
        for size in sizes:
            mount.mkdir(exist_ok=True)
            _mount(mount, size + sum(len(c or b"") + 8_192 for c in self.before.values()))
            try:
                work = mount / "work"
                shutil.copytree(self._start, work)
                self.counts.inputs["full disks"] += 1
                self._no_space(work, lambda: None, f"a disk with {size} bytes free")
                _mount(mount, 1 << 28, again=True)
                self.check(work, f"{self.name}: a disk with {size} bytes free:")
            finally:
                subprocess.run(["umount", mount], check=True)

    def _no_space(self, work: Path, before: Callable[[], Any], what: str) -> None:
        ended = run(self.scenario.command, work, before=before)
        if ended.code not in (*FINE, 6):
            detail = ended.traceback or f"exit code {ended.code}: {ended.error}"
            self.counts.bad("tracebacks", f"{self.name}: {what}:", detail)

    def locks(self, operations: Sequence[str], count: int = 3) -> None:
        """A second command is refused while the first stands still in its work."""
        inside = [at for at, what in enumerate(operations)
                  if ".incomplete/" in what and what.startswith("write")]  # fmt: skip
        for at in inside[:: max(len(inside) // count, 1)][:count]:
            work = self.workspace()
            self.counts.inputs["locks"] += 1
            first = Child(_action(self.scenario.command, work, Disk(work, at=at, kind="stopped")))
            where = f"{self.name}: a second command while the first is at {operations[at]}:"
            if not first.stopped():
                self.counts.bad("stuck", where, "the first did not stop")
                first.result(reaped=True)
                self._remove(work)
                continue
            second = run(self.scenario.command, work)
            if second.code != 7:
                self.counts.bad("rows lost", where, f"exit code {second.code}: {second.error}")
            first.kill()
            first.result()
            self.check(work, where)

    def others(self, operations: Sequence[str], count: int = 4) -> None:
        """A command of other settings after a kill is refused, or makes what is its own."""
        work = self.workspace()
        assert run(self.scenario.other, work).code in FINE
        own = below(tree(work), self.scenario.output)
        self._remove(work)
        for at in range(len(operations) // 3, len(operations), max(len(operations) // count, 1)):
            work = self.workspace()
            self.counts.inputs["changed settings"] += 1
            run(self.scenario.command, work, Disk(work, at=at, kind="killed before"))
            where = f"{self.name}: other settings after {operations[at]}:"
            ended = run(self.scenario.other, work)
            if ended.code in FINE and below(tree(work), self.scenario.output) != own:
                self.counts.bad("rows lost", where)
            elif ended.code not in (*FINE, 4, 8):
                self.counts.bad("tracebacks", where, ended.traceback or ended.error)
            elif ended.code in (4, 8):
                self.check(work, where)
                continue
            self._remove(work)

    def flips(self, count: int, *, seed: int = 0) -> None:
        """One bit of a file of the output changes: readers refuse it, or answer as before."""
        rng, work = random.Random(seed), self.workspace()
        assert run(self.scenario.command, work).code in FINE
        right = forked(partial(self._answer, work))
        assert "answer" in right, right
        for name in sorted(below(self.golden, self.scenario.output)):
            content = (work / name).read_bytes() if self.golden[name] else b""
            for bit in [rng.randrange(len(content) * 8) for _ in range(count)] if content else ():
                self.counts.inputs["bit flips"] += 1
                changed = bytearray(content)
                changed[bit // 8] ^= 1 << bit % 8
                (work / name).write_bytes(changed)
                found = forked(partial(self._answer, work))
                where = f"{self.name}: bit {bit} of {name}:"
                if found is None or "traceback" in found:
                    self.counts.bad("tracebacks", where, str(found and found["traceback"][-400:]))
                elif found.get("answer", right["answer"]) != right["answer"]:
                    self.counts.bad("wrong answers", where)
                (work / name).write_bytes(content)
        self._remove(work)

    def _answer(self, work: Path) -> dict[str, Any]:
        from embedkit.errors import EmbedkitError

        assert self.scenario.read is not None
        try:
            found = json.dumps(self.scenario.read(work)).encode()
        except EmbedkitError as error:
            return {"refused": str(error)}
        except Exception:
            return {"traceback": traceback.format_exc()[-2_000:]}
        return {"answer": hashlib.sha256(found).hexdigest()}

    def power_cuts(self, some: slice = slice(None), *, seed: int = 0) -> None:
        """Cut the power at every moment of an undisturbed command; of the states some."""
        states, last = self.states(seed)
        new = below(self.golden, self.scenario.output)
        for state in last:
            self.counts.inputs["power cuts after the end"] += 1
            if below(without_logs(state), self.scenario.output) != new:
                where = f"{self.name}: power cut after the end:"
                self.counts.bad("rows lost", where, _difference(self.golden, state))
        for number, state in list(enumerate(states))[some]:
            self._number += 1
            work = self._folder / str(self._number)
            materialize(state, work)
            self.counts.inputs["power cuts"] += 1
            self.check(work, f"{self.name}: power cut {number}:")

    def states(self, seed: int = 0) -> tuple[list[Tree], list[Tree]]:
        """States that a power cut may leave, and those after the command has ended."""
        work = self.workspace()
        stored = self._folder / "states"

        def action() -> int:
            trace = Trace(work)
            call(self.scenario.command, work, Disk(work, trace=trace).install)
            with stored.open("wb") as sink:
                found = list(trace.states(seed)), list(trace.last_states(seed))
                pickle.dump(found, sink)
            return 0

        assert forked(action) == 0
        found: list[list[Tree]] = pickle.loads(stored.read_bytes())
        self._remove(work)
        return found[0], found[1]

    def check(self, work: Path, where: str) -> None:
        """What is visible is the old or the new; the command given again makes the new.

        Most faults leave what another one has left already: each state is looked at once.
        """
        state = _state(work)
        if state in self._seen:
            self._remove(work)
            return
        self._seen.add(state)
        self.counts.inputs["different states"] += 1
        found, output = tree(work), self.scenario.output
        visible = below(found, output)
        old, new = below(self.before, output), below(self.golden, output)
        is_cache = self.scenario.command in CALLS  # of which the answers count
        if not is_cache and visible not in (old, new) and not self._is_prefix(visible, old, new):
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
        return self.name.partition(" ")[0] in ("compare", "run") and all(
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


def everything(
    name: str, prepared: Path, folder: Path, *, part: int, parts: int, sample: int
) -> Counts:
    """All that can happen to a command, or every ``sample``-th of it; of ``parts`` parts one."""
    thorough = sample == 1
    harness = Harness(name, prepared, folder)
    operations = harness.operations()
    cases = [
        (at, kind) for at, what in enumerate(operations) for kind in KINDS
        if kind != "short write" or what.startswith("write ")
    ]  # fmt: skip
    mine = [case for number, case in enumerate(cases) if number // _NEIGHBOURS % parts == part]
    for at, kind in mine[sample // 2 :: sample]:
        harness.fault(at, kind, operations[at])
    if harness.scenario.traced:
        harness.power_cuts(slice(part * sample + sample // 2, None, parts * sample))
    if thorough:
        harness.kills(24 // parts, seed=part)
        sizes = sorted({len(content) - 1 for content in harness.golden.values() if content})
        harness.limits(sizes[part::parts])
        if can_mount():
            most = sum(len(content or b"") + 4_096 for content in harness.golden.values())
            harness.small_disks(folder / "small", range(4_096 * (1 + part), most, most // 6))
    if harness.scenario.other and part == 0:
        harness.locks(operations, 4 if thorough else 1)
        harness.others(operations, 6 if thorough else 1)
    if harness.scenario.read is not None and (thorough or part == 0):
        harness.flips(24 // parts if thorough else 1, seed=part)
    return harness.counts


_NEIGHBOURS = 40
"""Faults that follow each other, which leave much the same, are made by one worker."""


def _limit(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _mount(folder: Path, size: int, *, again: bool = False) -> None:
    options = f"size={size}" + ",remount" * again
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True,
                   capture_output=True)  # fmt: skip


@cache
def can_mount() -> bool:
    """Whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder), 1 << 16)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", folder], check=True)
        return True


def summary(counts: Counts) -> str:
    """The counts in one line."""
    done = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.inputs.items()))
    return f"{done}: " + ", ".join(f"{what} {counts.wrong[what]}" for what in BAD)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="of commands; all by default")
    options.add_argument("--sample", type=int, default=1, help="only every N-th fault")
    options.add_argument("--workers", type=int, default=1, help="faults at the same time")
    given = options.parse_args()
    names = given.names or list(SCENARIOS)
    options_of = {"parts": given.workers, "sample": given.sample}
    total = Counts()
    prepare()
    if not can_mount():
        print("full disks are left out: this process may not mount a file system", flush=True)
    with tempfile.TemporaryDirectory(prefix="embedkit-faults-") as top:
        tempfile.tempdir = top  # what is killed leaves its temporary files
        needs = {"data", *(need for name in names for need in SCENARIOS[name].needs)}
        prepared = base(Path(top) / "prepared", needs)
        for name in names:
            started, counts = time.time(), Counts()
            workers = [
                Child(
                    partial(_work, name, prepared, Path(top) / f"{name}-{part}", part, options_of)
                )
                for part in range(given.workers)
            ]
            for worker in workers:
                counts += Counts.of(worker.result())
            print(f"{name}: {summary(counts)} ({time.time() - started:.0f} s)", flush=True)
            for line in counts.lines[:20]:
                print("    ", line[:1_200], flush=True)
            total += counts
    print(f"all: {summary(total)}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"processor time: {sum(one.ru_utime + one.ru_stime for one in used):.0f} s")
    return int(any(total.wrong.values()))


def _work(name: str, prepared: Path, folder: Path, part: int, options: dict[str, int]) -> Any:
    signal.alarm(0)
    try:
        return vars(everything(name, prepared, folder, part=part, **options))
    except Exception:
        return {"inputs": {}, "wrong": {"stuck": 1}, "lines": [traceback.format_exc()[-1_000:]]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
