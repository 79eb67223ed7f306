"""Crash enumeration: a command fails or is killed at each of its durable operations.

    python -m tests.durable [extract train ...] [--sample N]      (make crashes)

A durable operation changes the working folder or makes a change last: opening for writing, writing,
``fsync``, renaming, linking, deleting, making folders, and calls of libraries that write files.
Each one fails by EIO, or by ENOSPC like all writing after it. The folder is recorded after each one
of an undisturbed command: this is what a kill leaves. What a power cut leaves is derived: data that
was not synced is lost, half there or there; names in a folder that was not synced are lost or kept.

Afterwards the output is missing, refused, or right. The same command, given again, ends normally,
its output is that of an undisturbed command, and no other file is left.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import argparse
import builtins
import errno
import gc
import io
import itertools
import os
import random
import re
import shutil
import sys
import tempfile
import threading
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
from transformers import PreTrainedTokenizerBase

import embedkit
from embedkit.errors import EmbedkitError
from tests.processes import command, in_children
from tests.store_fixtures import ending, quickly, write_reviews

ERRORS = ("EIO", "ENOSPC")
GROWING = ("open", "write", "mkdir", "link", "symlink", "save_file", "save_pretrained")

Tree = Mapping[str, bytes | None]
"""Content of files by path; ``None`` for empty folders."""
Names = dict[tuple[int, str], int]
"""Number of each file or folder, by the number of its folder and its name; the root is 0."""


@dataclass
class Disk:
    """The durable operations below a folder, one of which may fail by one of :data:`ERRORS`.

    If it is ``traced``, ``moments`` are the names and contents below the folder before and after
    each operation, and which file or folder was just synced.
    """

    root: Path
    at: int | None = None
    error: str = ""
    traced: bool = False
    operations: list[str] = field(default_factory=list)
    moments: list[tuple[Names, dict[int, bytes], int | None]] = field(default_factory=list)
    full: bool = False
    turn: Any = field(default_factory=threading.RLock)  # threads: one operation after the other
    inodes: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    active: ClassVar[Disk]

    def __post_init__(self) -> None:
        self.note("")

    def operation(
        self, name: str, path: str, call: Callable[[], Any], half: Callable[[], Any] = lambda: None
    ) -> Any:
        """Do an operation or let it fail; ``half`` is what a failing one leaves."""
        place = os.path.abspath(path)
        if not f"{place}/".startswith(f"{self.root}/"):
            return call()
        with self.turn:
            fails = len(self.operations) == self.at
            self.operations.append(f"{name} {os.path.relpath(place, self.root)}")
            if fails or (self.full and name in GROWING):
                self.full = self.error == "ENOSPC"
                half()
                number = getattr(errno, self.error)
                raise OSError(number, os.strerror(number), path)
            result = call()
            self.note(place if name == "fsync" else "")
            return result

    def note(self, synced: str) -> None:
        """Record the folder as it is now."""
        names, contents, numbers = Names(), dict[int, bytes](), {self.root: 0}
        inodes = dict[int, int]()
        for path in sorted(self.root.rglob("*")) if self.traced else ():
            inode = path.lstat().st_ino
            if inode not in inodes:  # one that was free before is another file now
                inodes[inode] = self.inodes.get(inode) or next(self.numbers)
            names[numbers[path.parent], path.name] = numbers[path] = inodes[inode]
            if not path.is_dir():
                contents[inodes[inode]] = path.read_bytes()
        self.inodes = inodes
        self.moments.append((names, contents, numbers.get(Path(synced))))


Disk.active = Disk(Path("/nowhere"))


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def install() -> None:
    """Route the durable operations of this process through the active disk."""
    real_open, real_write, real_stream = os.open, os.write, io.open

    def wrap(owner: Any, name: str, at: int) -> None:
        """``at`` is the place of the path among the arguments."""
        real = getattr(owner, name)

        def function(*args: Any, **kw: Any) -> Any:
            folder, path = kw.get("dst_dir_fd" if at else "dir_fd"), os.fspath(args[at])
            place = path if folder is None else os.path.join(_path_of(folder), path)
            return Disk.active.operation(name, place, partial(real, *args, **kw))

        setattr(owner, name, function)

    def opened(path: Any, flags: int, *args: Any, **kw: Any) -> Any:
        call = partial(real_open, path, flags, *args, **kw)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return Disk.active.operation("open", os.fspath(path), call)
        return call()

    def written(descriptor: int, data: Any) -> Any:
        whole, half = (partial(real_write, descriptor, d) for d in (data, data[: len(data) // 2]))
        return Disk.active.operation("write", _path_of(descriptor), whole, half)

    def synced(descriptor: int) -> None:
        Disk.active.operation("fsync", _path_of(descriptor), lambda: None)  # there is no power cut

    def streamed(file: Any, mode: str = "r", *args: Any, **kw: Any) -> Any:
        writes = not isinstance(file, int) and set(mode) & set("wax+")
        # that of Python writes by ``os.write``
        return (_pyio.open if writes else real_stream)(file, mode, *args, **kw)

    for name in ("replace", "rename", "link", "symlink"):
        wrap(os, name, 1)
    for name in ("unlink", "remove", "rmdir", "mkdir", "truncate"):
        wrap(os, name, 0)
    wrap(safetensors.torch, "save_file", 1)
    wrap(PreTrainedTokenizerBase, "save_pretrained", 1)
    os.open, os.write = opened, written
    os.fsync = os.fdatasync = synced  # type: ignore[assignment]
    io.open = builtins.open = streamed


def states_of(disk: Disk) -> Iterator[tuple[Tree, bool]]:
    """What a kill or a power cut may leave, and whether the command had ended."""
    rng, (durable, stored, _) = random.Random(0), disk.moments[0]
    durable, stored, data = dict(durable), dict(stored), dict(stored)
    pending: list[tuple[Names, Names]] = []  # changes of names: what went, what came
    for (before, _, _), (names, contents, synced) in itertools.pairwise(disk.moments):
        change = dict(before.items() - names.items()), dict(names.items() - before.items())
        if any(change):
            pending.append(change)
        if synced is not None and synced in contents:
            stored[synced] = contents[synced]
        for change in [c for c in pending if synced in {key[0] for key in c[1] or c[0]}]:
            durable = _applied(durable, [change])
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
        ended = names is disk.moments[-1][0]
        for changes, content in kept:
            yield _tree(_applied(durable, changes), content), ended


def _applied(names: Names, changes: Sequence[tuple[Names, Names]]) -> Names:
    for gone, came in changes:
        names = {key: number for key, number in names.items() if gone.get(key) != number} | came
    return names


def _tree(names: Names, data: dict[int, bytes], folder: int = 0, start: str = "") -> Tree:
    tree: dict[str, bytes | None] = {}
    for (parent, name), number in names.items():
        if parent == folder and number in data:
            tree[start + name] = data[number]
        elif parent == folder:
            inside = _tree(names, data, number, f"{start}{name}/")
            tree |= inside or {start + name: None}
    return tree


# Commands, in children of this process


def _dataset(folder: Path) -> Any:
    levels: Any = ["sentence"] + [n for n in ("word", "token") if (folder / f"out/{n}s").is_dir()]
    data = [embedkit.load(folder / "out", level=level) for level in levels]
    return levels, [(d.X.tobytes(), d.ids.tolist(), d.y.tolist(), d.row.tolist()) for d in data]


def _told(line: str, folder: Path) -> Any:
    """What a command says of the output of another one."""
    done = command(*line.split(), cwd=folder)
    return None if done.returncode else done.stdout


EXTRACT = "extract corpus.tsv --model {model} --out"
GROWN = f"{EXTRACT} out --words --overwrite --reuse out more.tsv"
REUSE = (f"{EXTRACT} out --words", GROWN)
OVERWRITE = (f"{EXTRACT} out --layers 0", f"{EXTRACT} out --overwrite")
PREDICT = partial(_told, "predict out --text movie --device cpu --json")
SEARCH = "search data --like 3 --like 8 -k 4 --index flat --whitening center --json"
FINETUNE = "finetune corpus.tsv --out out --model {model} --head pooler --epochs 1 --folds 2"
SCENARIOS: dict[str, tuple[tuple[str, ...], Callable[[Path], Any]]] = {
    "extract": ((f"{EXTRACT} out --words --tokens",), _dataset),
    "extract --overwrite": (OVERWRITE, _dataset),
    "extract --reuse": (REUSE, _dataset),
    "train": (("train data --out out --folds 2",), PREDICT),
    "finetune": ((f"{FINETUNE} --max-length 12 --limit 12",), PREDICT),
    "index": (("index data --kind flat --whitening center",), partial(_told, SEARCH)),
}
"""Commands, the last of which is disturbed; how their output is read."""

SAME = (".parquet", ".safetensors", ".skops", ".faiss")
"""Files that are made again with the same bytes; others hold times."""


def _call(line: str, folder: Path, disk: Disk) -> dict[str, Any]:
    """Run a command in this process; how it ended."""
    Disk.active = disk
    return ending(line, folder)


def prepare(folder: Path) -> None:
    """Make the files that commands read."""
    install()
    folder.mkdir()
    write_reviews(folder / "corpus.tsv", 28)
    write_reviews(folder / "more.tsv", 8)
    (made,) = in_children(partial(_call, f"{EXTRACT} data", folder, Disk(folder)))
    assert made["code"] == 3, made
    gc.freeze()  # a collection would copy all pages for every child
    gc.disable()


class Harness:
    """The errors, kills and power cuts of one scenario, in one folder."""

    def __init__(self, name: str, source: Path, folder: Path) -> None:
        lines, self._read = SCENARIOS[name]
        self._line, self._work = lines[-1], folder
        self._seen, self.done, self.wrong = set[int](), Counter[str](), list[str]()
        self._start, self._answers = files_of(source), list[Any]()
        for line in lines:
            self._put(self._start)
            (self._undisturbed,) = in_children(partial(self._observed, line, traced=True))
            assert self._undisturbed["code"] in (0, 3), self._undisturbed
            self._answers.append(self._undisturbed["after"])
            assert self._answers[-1] is not None, self._undisturbed
            if line != self._line:
                self._start = files_of(self._work)

    def _put(self, tree: Tree) -> None:
        """Make the content of the folder that of a tree."""
        shutil.rmtree(self._work, ignore_errors=True)
        for name, content in tree.items():
            path = self._work / name
            (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
            if content is not None:
                path.write_bytes(content)
                os.utime(path, (1e9, 1e9))  # jobs record it

    def _observed(self, line: str, *, traced: bool = False) -> dict[str, Any]:
        """Run a command: what can be read before and after it, and what it did."""
        before, disk = self._answer(), Disk(self._work, traced=traced)
        found = _call(line, self._work, disk)
        cuts = {state_of(tree): (tree, ended) for tree, ended in states_of(disk)}
        found |= {"cuts": list(cuts.values()), "operations": [*disk.operations]}
        return found | {"before": before, "after": self._answer(), "files": files_of(self._work)}

    def _answer(self) -> Any:
        """What the output says; ``None`` if it is missing or refused."""
        with suppress(EmbedkitError):
            return self._read(self._work)
        return None

    def run(self, sample: int) -> None:
        """Check what every N-th kill or power cut leaves, and every N-th error."""
        some, operations = slice(sample // 2, None, sample), self._undisturbed["operations"]
        for tree, ended in self._undisturbed["cuts"][some]:
            self._check("kills and power cuts", tree, ended=ended)
        for at, error in [*itertools.product(range(len(operations)), ERRORS)][some]:
            self._put(self._start)
            disk = Disk(self._work, at, error)
            (result,) = in_children(partial(_call, self._line, self._work, disk))
            self._check_end(result, (0, 3, 6), f"{error} at {at} {operations[at]}")
            self._check("errors", files_of(self._work), where=f"{error} at {at} {operations[at]}")

    def _check(self, kind: str, tree: Tree, *, where: str = "", ended: bool = False) -> None:
        """Read the output, repeat the command, and read again; each state once."""
        self.done[kind] += 1
        if (state := state_of(tree)) in self._seen:
            return
        self._seen.add(state)
        self.done["states"] += 1
        where = f"{where or kind}, state {len(self._seen)}:"
        self._put(tree)
        (found,) = in_children(partial(self._observed, self._line))
        complete = found.get("before") == self._answers[-1]
        self._check_end(found, (0, 3, 8) if complete else (0, 3), f"{where} repeated:")
        if "traceback" in found:
            return
        before, after, files = found["before"], found["after"], found["files"]
        expected: Tree = self._undisturbed["files"]
        if before not in (None, *self._answers):
            self.wrong.append(f"wrong vectors: {where}")
        if after != self._answers[-1] or (ended and before != after):
            self.wrong.append(f"rows lost: {where} {found['error']}")
        if left := sorted(files.keys() ^ expected.keys()):
            self.wrong.append(f"files left: {where} {left[:6]}")
        for name in files.keys() & expected.keys():
            if name.endswith(SAME) and files[name] != expected[name]:
                self.wrong.append(f"wrong vectors: {where} {name}")

    def _check_end(self, ended: dict[str, Any], expected: Sequence[int], where: str) -> None:
        if ended["code"] not in expected:
            kind = "tracebacks" if "traceback" in ended else "wrong exit codes"
            self.wrong.append(f"{kind}: {where} {ended}"[:2_000])


def files_of(folder: Path) -> Tree:
    """All files below a folder, and empty folders."""
    names, contents, _ = Disk(folder, traced=True).moments[0]
    return _tree(names, contents)


def state_of(tree: Tree) -> int:
    """A hash of a tree, without the random parts of names, and a log that nobody reads."""
    return hash(
        frozenset(
            (re.sub(r"\.\w{12}\.partial$", ".partial", name), name.endswith("log.jsonl") or data)
            for name, data in tree.items()
        )
    )


def main(typed: Sequence[str] | None = None) -> int:
    """Print what was done and what went wrong, by scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=SCENARIOS, help="scenarios; all by default")
    parser.add_argument("--sample", type=int, default=1, help="only every N-th error and cut")
    options = parser.parse_args(typed)
    if unknown := [name for name in options.names if name not in SCENARIOS]:
        parser.error(f"{unknown[0]}: expected {', '.join(SCENARIOS)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="embedkit-crashes-") as folder, quickly():
        top = Path(folder).resolve()
        prepare(top / "source")
        for name in options.names:
            harness = Harness(name, top / "source", top / name)
            harness.run(options.sample)
            counts = harness.done + Counter(line.partition(":")[0] for line in harness.wrong)
            done = ", ".join(f"{number:,} {what}" for what, number in counts.items())
            print(f"{name}: {done}", *harness.wrong[:20], sep="\n    ", flush=True)
            failed |= bool(harness.wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
