"""Crash enumeration: a command fails or is killed at each of its durable operations.

    python -m tests.durable [extract train ...] [--sample N]      (make crashes)

A durable operation changes the working folder or makes a change last: opening for writing, writing,
``fsync``, renaming, linking, deleting, making folders, and calls of libraries that write files.
Each one fails by EIO, or by ENOSPC like all writing after it, or the process is killed before or
after it. The power is cut after each one too: data that was not synced is lost, half there or
there; names in a folder that was not synced are lost or kept.

Afterwards the output is missing, refused, or right. The same command, given again, ends normally,
its output is that of an undisturbed command, and no other file is left.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import argparse
import builtins
import errno
import gc
import hashlib
import importlib
import io
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

os.environ["OMP_NUM_THREADS"] = "1"  # a child waits forever for the threads of its parent
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import safetensors.torch
import torch
from transformers import PreTrainedTokenizerBase

FAULTS = ("EIO", "ENOSPC", "killed before", "killed after")
GROWING = ("open", "write", "mkdir", "link", "symlink", "library")

# Interposition at the functions of os and io


@dataclass
class Disk:
    """The durable operations below a folder, one of which may fail by one of :data:`FAULTS`.

    ``note`` is called after each operation, with the path that was synced if it was ``fsync``.
    """

    root: Path
    at: int | None = None
    fault: str = ""
    note: Callable[[str | None], object] = lambda _: None
    operations: list[str] = field(default_factory=list)
    full: bool = False
    turn: Any = field(default_factory=threading.RLock)  # threads: one operation after the other

    active: ClassVar[Disk | None] = None

    def operation(
        self, name: str, path: str, call: Callable[[], Any], half: Callable[[], Any]
    ) -> Any:
        """Do an operation or let it fail; ``half`` is what an interrupted one leaves."""
        folder, last = os.path.split(os.path.abspath(path))
        place, root = os.path.join(os.path.realpath(folder), last), os.path.realpath(self.root)
        if not f"{place}/".startswith(f"{root}/"):
            return call()
        with self.turn:
            fault = self.fault if len(self.operations) == self.at else ""
            self.operations.append(f"{name} {os.path.relpath(place, root)}")
            if fault == "killed before":
                half()
                os.kill(os.getpid(), signal.SIGKILL)
            if fault in ("EIO", "ENOSPC") or (self.full and name in GROWING):
                self.full = self.fault == "ENOSPC"
                half()
                number = getattr(errno, self.fault)
                raise OSError(number, os.strerror(number), path)
            try:
                result = call()
            finally:
                if fault == "killed after":
                    os.kill(os.getpid(), signal.SIGKILL)
            self.note(path if name == "fsync" else None)
            return result


def _do(
    name: str, path: str, call: Callable[[], Any], half: Callable[[], Any] = lambda: None
) -> Any:
    return call() if Disk.active is None else Disk.active.operation(name, path, call, half)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _place(path: Any, folder: int | None) -> str:
    return os.fspath(path) if folder is None else os.path.join(_path_of(folder), path)


def install() -> None:
    """Route the durable operations of this process through the active disk, if there is one."""
    real_open, real_write, real_stream = os.open, os.write, io.open

    def wrap(owner: Any, name: str, path: Callable[[Any, Any], str], kind: str) -> None:
        real = getattr(owner, name)

        def function(*args: Any, **kw: Any) -> Any:
            return _do(kind, path(args, kw), partial(real, *args, **kw))

        setattr(owner, name, function)

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        call = partial(real_open, path, flags, mode, dir_fd=dir_fd)
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return call()
        return _do("open", _place(path, dir_fd), call)

    def written(descriptor: int, data: Any) -> Any:
        half = partial(real_write, descriptor, data[: (len(data) + 1) // 2])
        return _do("write", _path_of(descriptor), partial(real_write, descriptor, data), half)

    def synced(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        _do("fsync", _path_of(number), lambda: None)  # the power is never really cut

    def streamed(file: Any, mode: str = "r", *args: Any, **kw: Any) -> Any:
        writes = Disk.active is not None and not isinstance(file, int) and set(mode) & set("wax+")
        # that of Python writes by ``os.write``
        return (_pyio.open if writes else real_stream)(file, mode, *args, **kw)

    def first(args: Sequence[Any], kw: Mapping[str, Any]) -> str:
        return str(next((a for a in (*args, *kw.values()) if isinstance(a, str | Path)), "/"))

    for name in ("replace", "rename", "link", "symlink"):
        wrap(os, name, lambda args, kw: _place(args[1], kw.get("dst_dir_fd")), name)
    for name in ("unlink", "remove", "rmdir", "mkdir", "truncate"):
        wrap(os, name, lambda args, kw: _place(args[0], kw.get("dir_fd")), name)
    wrap(torch, "save", first, "library")
    wrap(safetensors.torch, "save_file", first, "library")
    wrap(PreTrainedTokenizerBase, "save_pretrained", first, "library")
    os.open, os.write = opened, written
    os.fsync = os.fdatasync = synced  # type: ignore[assignment]
    io.open = builtins.open = streamed


# Power cuts

Tree = Mapping[str, bytes | None]
"""Content of files by path; ``None`` for folders."""
Names = dict[tuple[int, str], int]
"""Number of each file or folder, by the number of its folder and its name; the root is 0."""


class Trace:
    """The names and contents below a folder after each operation of a command."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._inodes: dict[int, int] = {}
        self._next = itertools.count(1)
        self.moments: list[tuple[Names, dict[int, bytes], int | None]] = []
        self.note(None)

    def note(self, synced: str | None) -> None:
        """Record the folder as it is now, and which file or folder was just synced."""
        names: Names = {}
        contents: dict[int, bytes] = {}
        inodes: dict[int, int] = {}
        numbers = {self._root: 0}
        for path in sorted(self._root.rglob("*")):
            inode = path.lstat().st_ino
            if inode not in inodes:  # one that was free before is another file now
                inodes[inode] = self._inodes.get(inode) or next(self._next)
            names[numbers[path.parent], path.name] = numbers[path] = inodes[inode]
            if not path.is_dir():
                contents[inodes[inode]] = path.read_bytes()
        self._inodes = inodes
        self.moments.append((names, contents, numbers.get(Path(os.path.realpath(synced or "/")))))

    def states(self) -> Iterator[tuple[bool, Tree]]:
        """What a power cut may leave at any moment, and whether the command had ended."""
        rng, (durable, stored, _) = random.Random(0), self.moments[0]
        durable, stored, data = dict(durable), dict(stored), dict(stored)
        pending: list[tuple[Names, Names]] = []  # changes of names: what went, what came
        for (before, _, _), (names, contents, synced) in itertools.pairwise(self.moments):
            change = dict(before.items() - names.items()), dict(names.items() - before.items())
            if any(change):
                pending.append(change)
            if synced is not None and synced in contents:
                stored[synced] = contents[synced]
            for change in [c for c in pending if synced in {key[0] for key in c[1] or c[0]}]:
                _apply(change, durable)
                pending.remove(change)
                for earlier in pending:  # a name that was removed since does not come back
                    for key in change[0].keys() & earlier[1].keys():
                        del earlier[1][key]
            data.update(contents)
            lost = {n: stored.get(n, b"") for n in data}
            torn = {n: d if d == lost[n] else d[: len(d) // 2] for n, d in data.items()}
            mixed = {n: rng.choice((lost, torn, data))[n] for n in data}
            kept = [(pending, data), (pending, lost), (pending, torn), ([], lost)]
            for change in pending[-6:]:
                kept += [([c for c in pending if c is not change], mixed), ([change], mixed)]
            ended = names is self.moments[-1][0]
            yield from ((ended, _tree(durable, changes, content)) for changes, content in kept)


def _apply(change: tuple[Names, Names], names: Names) -> None:
    for key, number in change[0].items():
        if names.get(key) == number:
            del names[key]
    names.update(change[1])


def _tree(names: Names, changes: Sequence[tuple[Names, Names]], data: dict[int, bytes]) -> Tree:
    names = dict(names)
    for change in changes:
        _apply(change, names)
    tree: dict[str, bytes | None] = {}
    folders = [(0, "")]
    for folder, start in folders:
        for (inside, name), number in names.items():
            if inside == folder:
                tree[start + name] = data.get(number)
                if number not in data:
                    folders.append((number, f"{start}{name}/"))
    return tree


# Commands, in children of this process


def _dataset(folder: Path) -> Any:
    import embedkit

    levels = ["sentence"] + [n for n in ("word", "token") if (folder / f"out/{n}s").is_dir()]
    data = [embedkit.load(folder / "out", level=level) for level in levels]
    return levels, [(d.X.tobytes(), d.ids.tolist(), d.y.tolist(), d.row.tolist()) for d in data]


def _told(line: str, folder: Path) -> Any:
    """What a command says of the output of another one."""
    from embedkit.errors import DamagedError
    from tests.processes import command

    done = command(*line.split(), cwd=folder)
    if done.returncode:
        raise DamagedError(done.stderr)
    return done.stdout


EXTRACT = "extract corpus.tsv --model {model} --out"
APPEND = (f"{EXTRACT} out --words", f"{EXTRACT} out --words --append more.tsv")
OVERWRITE = (f"{EXTRACT} out --layers 0", f"{EXTRACT} out --overwrite")
PREDICT = partial(_told, "predict out --text movie --text bus --device cpu --json")
SEARCH = "search data --like 3 --like 8 -k 4 --index flat --whitening center --json"
FINETUNE = "finetune corpus.tsv --out out --model {model} --head pooler --epochs 1 --folds 2"
SCENARIOS: dict[str, tuple[tuple[str, ...], str, Callable[[Path], Any]]] = {
    "extract": ((f"{EXTRACT} out --words --tokens",), "corpus.tsv", _dataset),
    "extract --overwrite": (OVERWRITE, "corpus.tsv", _dataset),
    "extract --append": (APPEND, "corpus.tsv more.tsv", _dataset),
    "train": (("train data --out out --folds 2",), "data", PREDICT),
    "finetune": ((f"{FINETUNE} --max-length 12 --limit 12",), "corpus.tsv", PREDICT),
    "index": (("index data --kind flat --whitening center",), "data", partial(_told, SEARCH)),
}
"""Commands, the last of which is disturbed; what they read; how their output is read."""

SAME = (".parquet", ".safetensors", ".skops", ".faiss")
"""Files that are made again with the same bytes; others hold times."""


def in_child(action: Callable[[], Any]) -> Any:
    """What an action returns in a child, the signal that ended it, or how it was raised."""
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)

    def act() -> None:
        try:
            sending.send(action())
        except Exception:
            sending.send({"code": None, "traceback": traceback.format_exc()[-1_500:]})

    process = fork.Process(target=act)
    process.start()
    sending.close()
    with suppress(EOFError):
        return receiving.recv()
    process.join()
    return {"code": process.exitcode}


def _call(line: str, folder: Path, disk: Disk | None = None) -> dict[str, Any]:
    """Run a command in this process; how it ended."""
    import embedkit.dataset.extract as planning
    from tests.processes import command
    from tests.store_fixtures import tiny_model

    planning._shard_rows = lambda *_: 12
    torch.set_num_threads(1)  # the threads of the parent do not live in a child
    Disk.active = disk
    try:
        done = command(*line.format(model=tiny_model()).split(), cwd=folder)
    finally:
        Disk.active = None
    return {"code": done.returncode, "error": done.stderr[-500:]}


def prepare(folder: Path) -> None:
    """Load the model, and make the files that commands read."""
    install()
    from embedkit.encoding.encoder import Encoder
    from embedkit.runs import figures
    from tests.store_fixtures import load_quickly, tiny_model, write_tsv

    Encoder.load = load_quickly  # type: ignore[method-assign, assignment]
    vars(figures)["as_file"] = lambda *_: b"a figure"
    load_quickly(str(tiny_model()))
    folder.mkdir()
    rows = [
        (f"{number:02}", f"the movie was {word} {'a ' * (number % 3)}{number % 7}", str(number % 2))
        for number, word in enumerate(("bad", "good") * 14)
    ]
    write_tsv(folder / "corpus.tsv", [*rows, ("99", "", "1")])
    write_tsv(folder / "more.tsv", [*rows[:8], ("100", "", "1")])
    assert in_child(partial(_call, f"{EXTRACT} data", folder))["code"] == 3
    gc.freeze()  # a collection would copy all pages for every child
    gc.disable()


class Harness:
    """The faults of one scenario, or every N-th, in folders of its own."""

    def __init__(self, name: str, source: Path, folder: Path, sample: int) -> None:
        lines, needs, self._read = SCENARIOS[name]
        self._line, self._folder, self._sample = lines[-1], folder, sample
        self._numbers, self._seen = itertools.count(), set[str]()
        self.done, self.wrong = Counter[str](), list[str]()
        self._start: Tree = {n: d for n, d in files_of(source).items() if n.split("/")[0] in needs}
        self._answers: list[Any] = []
        for line in lines:
            work = self._workspace(self._start)
            self._undisturbed = in_child(partial(self._observed, line, work))
            assert self._undisturbed["code"] in (0, 3), self._undisturbed
            self._answers.append(self._undisturbed["after"])
            assert "answer" in self._answers[-1], self._answers
            for module in self._undisturbed["modules"]:  # imported here instead of in each child
                with suppress(Exception):
                    importlib.import_module(module)
            if line != self._line:
                self._start = files_of(work)

    def _workspace(self, tree: Tree) -> Path:
        """A folder of its own with the content of a tree."""
        work = self._folder / str(next(self._numbers))
        work.mkdir(parents=True)
        for name, content in sorted(tree.items()):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).mkdir() if content is None else (work / name).write_bytes(content)
        return work

    def _observed(self, line: str, work: Path) -> dict[str, Any]:
        """Run a command: what can be read before and after it, and what it did."""
        before, disk = self._answer(work), Disk(work)
        found = _call(line, work, disk)
        found |= {"operations": disk.operations, "modules": [*sys.modules]}
        return found | {"before": before, "after": self._answer(work), "files": files_of(work)}

    def _answer(self, work: Path) -> dict[str, Any]:
        from embedkit.errors import EmbedkitError

        try:
            return {"answer": self._read(work)}
        except EmbedkitError as error:
            return {"refused": str(error)}

    def faults(self) -> None:
        """Let operations fail, one in each command, and check what is left."""
        operations = self._undisturbed["operations"]
        cases = [(at, fault) for at in range(len(operations)) for fault in FAULTS]
        for at, fault in cases[self._sample // 2 :: self._sample]:
            work, where = self._workspace(self._start), f"{fault} at {at} {operations[at]}:"
            ended = in_child(partial(_call, self._line, work, Disk(work, at, fault)))
            killed = fault.startswith("killed")
            self._check_end(ended, (-signal.SIGKILL,) if killed else (0, 3, 6), where)
            self._check("faults", work, where)

    def power_cuts(self) -> None:
        """Check what power cuts leave during an undisturbed command, and after it."""
        traced = self._workspace(self._start)

        def states() -> list[tuple[bool, Tree]]:
            trace = Trace(traced)
            _call(self._line, traced, Disk(traced, note=trace.note))
            return list({repr(sorted(t.items())): (end, t) for end, t in trace.states()}.values())

        cases = list(enumerate(in_child(states)))
        for number, (ended, tree) in cases[self._sample // 2 :: self._sample]:
            self._check("power cuts", self._workspace(tree), f"power cut {number}:", ended=ended)

    def _check(self, kind: str, work: Path, where: str, *, ended: bool = False) -> None:
        """Read the output, repeat the command, and read again; each state once."""
        self.done[kind] += 1
        state = hashlib.sha256(repr(sorted(files_of(work).items())).encode()).hexdigest()
        if state not in self._seen:
            self._seen.add(state)
            self.done["states"] += 1
            found = in_child(partial(self._observed, self._line, work))
            complete = found.get("before") == self._answers[-1]
            self._check_end(found, (0, 3, 8) if complete else (0, 3), f"{where} repeated:")
            if "before" in found:
                self._compare(found, where, ended)
        shutil.rmtree(work)

    def _check_end(self, ended: dict[str, Any], expected: Sequence[int], where: str) -> None:
        if ended["code"] not in expected:
            kind = "tracebacks" if "traceback" in ended else "wrong exit codes"
            self.wrong.append(f"{kind}: {where} {ended}"[:2_000])

    def _compare(self, found: dict[str, Any], where: str, ended: bool) -> None:
        before, after, files = found["before"], found["after"], found["files"]
        expected: Tree = self._undisturbed["files"]
        if "answer" in before and before not in self._answers:
            self.wrong.append(f"wrong vectors: {where}")
        if after != self._answers[-1] or (ended and before != after):
            self.wrong.append(f"rows lost: {where} {after.get('refused', '')}")
        if left := sorted(files.keys() ^ expected.keys()):
            self.wrong.append(f"files left: {where} {left[:6]}")
        for name in files.keys() & expected.keys():
            if name.endswith(SAME) and files[name] != expected[name]:
                self.wrong.append(f"wrong vectors: {where} {name}")


def files_of(folder: Path) -> Tree:
    """All files below a folder, and empty folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


def main() -> int:
    """Print what was done and what went wrong, by scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=SCENARIOS, help="scenarios; all by default")
    parser.add_argument("--sample", type=int, default=1, help="only every N-th fault and power cut")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="embedkit-crashes-") as folder:
        tempfile.tempdir, top = folder, Path(folder)  # killed children leave temporary files
        prepare(top / "source")
        for name in options.names:
            harness = Harness(name, top / "source", top / name, options.sample)
            harness.faults()
            harness.power_cuts()
            counts = harness.done + Counter(line.partition(":")[0] for line in harness.wrong)
            done = ", ".join(f"{number:,} {what}" for what, number in counts.items())
            print(f"{name}: {done}", *harness.wrong[:20], sep="\n    ", flush=True)
            failed |= bool(harness.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
