"""The durable operations of a process: counted, made to fail, and recorded to cut the power later.

Operations are those that Python code makes below one folder, and single calls into libraries that
write files by themselves. What these write in between is seen when the next operation is recorded.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import hashlib
import importlib
import io
import os
import random
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from embedkit import fsio

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
KINDS = ("EIO", "ENOSPC", "short write", "killed before", "killed after")

_GROWING = ("open", "write", "mkdir", "link", "symlink", "library")
_LIBRARIES = (
    ("torch", "save"), ("safetensors.torch", "save_file"),
    ("embedkit.finetuning.model_folder", "save_file"), ("embedkit.finetuning.export", "save_file"),
    ("transformers.modeling_utils", "safe_save_file"),
    ("transformers.tokenization_utils_fast", "PreTrainedTokenizerFast._save_pretrained"),
    ("transformers.tokenization_utils_tokenizers", "TokenizersBackend._save_pretrained"),
)  # fmt: skip
"""Functions that write files outside of Python; each is one operation."""


class Disk:
    """What happens to the durable operations below a folder.

    Args:
        root: the folder.
        at: number of the operation that fails; ``None`` for none.
        kind: how it fails, one of :data:`KINDS`; ``stopped`` stops the process before it.
        trace: is told of every operation when it is done.
    """

    def __init__(
        self, root: Path, *, at: int | None = None, kind: str = "", trace: Trace | None = None
    ) -> None:
        self.done: list[str] = []
        self._root, self._at, self._kind, self._trace = str(root.resolve()), at, kind, trace
        self._one_at_a_time = threading.RLock()
        self._full = False

    def install(self) -> None:
        """Stand between this process and the file system until it ends."""
        for name in ("replace", "rename", "link", "symlink"):
            self._wrap(os, name, 1)
        for name in ("unlink", "remove", "rmdir", "mkdir", "truncate"):
            self._wrap(os, name, 0)
        if hasattr(fsio, "_exchange"):
            self._wrap(fsio, "_exchange", 1)
        for module, name in _LIBRARIES:
            with suppress(ImportError, AttributeError):
                owner = importlib.import_module(module)
                *outer, last = name.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                self._wrap(owner, last, None)
        real_open, real_write, builtin = os.open, os.write, io.open

        def opened(path: Any, flags: int, *args: Any, **kw: Any) -> int:
            call = partial(real_open, path, flags, *args, **kw)
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return call()
            return int(self.operation("open", self._place(path, kw.get("dir_fd")), call))

        def written(descriptor: int, data: Any) -> int:
            return int(self.operation(
                "write", _path_of(descriptor), lambda: real_write(descriptor, data),
                half=lambda: real_write(descriptor, data[: (len(data) + 1) // 2]),
            ))  # fmt: skip

        def streamed(file: Any, mode: str = "r", *args: Any, **kw: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+") or not self._below(file):
                return builtin(file, mode, *args, **kw)
            return _stream(self, file, mode, *args, **kw)

        os.open, os.write = opened, written
        io.open = builtins.open = streamed
        os.fsync = os.fdatasync = self._synced  # type: ignore[assignment]

    def operation(
        self, what: str, path: str, real: Callable[[], Any], half: Callable[[], Any] | None = None
    ) -> Any:
        """One operation: it is done, or fails as it was to."""
        if not self._below(path):
            return real()
        with self._one_at_a_time:
            now = len(self.done) == self._at
            self.done.append(f"{what} {os.path.relpath(path, self._root)}")
            if now and self._kind == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if now and self._kind == "short write" and half:
                return half()
            if now and self._kind == "killed before":
                if half:
                    half()
                os.kill(os.getpid(), signal.SIGKILL)
            if (now and self._kind in ERRORS) or (self._full and what in _GROWING):
                self._full = self._kind == "ENOSPC"
                if half and not self._full:
                    half()
                number = ERRORS[self._kind]
                raise OSError(number, os.strerror(number), path)
            result = real()
            if now and self._kind == "killed after":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._trace is not None:
                self._trace.note(path if what == "fsync" else None)
            return result

    def _synced(self, descriptor: int) -> None:
        self.operation("fsync", _path_of(descriptor), lambda: None)

    def _wrap(self, owner: Any, name: str, position: int | None) -> None:
        real = getattr(owner, name)

        def function(*args: Any, **kw: Any) -> Any:
            call = partial(real, *args, **kw)
            if position is None:
                paths = [a for a in (*args, *kw.values()) if isinstance(a, str | Path)]
                paths += [a[0] for a in (*args, *kw.values()) if isinstance(a, tuple)]
                return self.operation("library", str(paths[0]) if paths else "", call)
            return self.operation(name, self._place(args[position], kw.get("dir_fd")), call)

        setattr(owner, name, function)

    def _place(self, path: Any, folder: int | None) -> str:
        return str(path) if folder is None else os.path.join(_path_of(folder), path)

    def _below(self, path: Any) -> bool:
        whole = os.path.abspath(os.fspath(path))
        parent = os.path.realpath(os.path.dirname(whole))
        return f"{os.path.join(parent, os.path.basename(whole))}/".startswith(f"{self._root}/")


class _File(io.FileIO):
    """A file that Python code writes."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        self._disk, self._path = disk, path
        disk.operation("open", path, partial(super().__init__, path, mode))

    def write(self, data: Any) -> int:
        real = super().write
        return int(self._disk.operation(
            "write", self._path, lambda: real(data), half=lambda: real(data[: (len(data) + 1) // 2])
        ))  # fmt: skip


def _stream(
    disk: Disk, file: Any, mode: str, buffering: int = -1, encoding: str | None = None,
    errors: str | None = None, newline: str | None = None, **_: Any,
) -> Any:  # fmt: skip
    raw = _File(disk, os.path.abspath(os.fspath(file)), mode.translate({98: None, 116: None}))
    if buffering == 0:
        return raw
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if "b" in mode:
        return buffered
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)


def _path_of(descriptor: int) -> str:
    if sys.platform == "darwin":
        return fcntl.fcntl(descriptor, 50, bytes(1024)).rstrip(b"\0").decode()  # F_GETPATH
    return os.readlink(f"/proc/self/fd/{descriptor}")


# What a power cut leaves

Tree = Mapping[str, bytes | None]
"""Content of files by their path; nothing of folders."""


@dataclass
class _Moment:
    """The folder after an operation: names in each folder, content of files, what was synced."""

    entries: dict[tuple[int, str], int]
    contents: dict[int, bytes]
    synced: int | None


@dataclass
class Trace:
    """All states of a folder while a command runs; each object in it has a number of its own."""

    root: Path
    moments: list[_Moment] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _seen: dict[int, tuple[tuple[int, ...], bytes]] = field(default_factory=dict)
    _next: int = 1

    def __post_init__(self) -> None:
        self.note(None)

    def note(self, synced: str | None) -> None:
        """Record the folder as it is now."""
        moment = _Moment({}, {}, None)
        living: dict[int, int] = {}
        where = {str(self.root.resolve()): 0}
        self._scan(str(self.root), 0, moment, living, where)
        self._numbers = living
        moment.synced = None if synced is None else where.get(os.path.realpath(synced))
        self.moments.append(moment)

    def _scan(
        self, folder: str, number: int, moment: _Moment, living: dict[int, int],
        where: dict[str, int],
    ) -> None:  # fmt: skip
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            one = living.get(found.st_ino, self._numbers.get(found.st_ino))
            if one is None:
                one, self._next = self._next, self._next + 1
            living[found.st_ino] = moment.entries[number, name] = one
            where[os.path.realpath(path)] = one
            if stat.S_ISDIR(found.st_mode):
                self._scan(path, one, moment, living, where)
            else:
                signs = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if self._seen.get(one, ((), b""))[0] != signs:
                    self._seen[one] = signs, _read(path)
                moment.contents[one] = self._seen[one][1]

    def states(self, seed: int = 0) -> Iterator[Tree]:
        """What may be found after a power cut at any moment, each once.

        A file has the content of its last ``fsync``, half of what was written since, or all of it.
        Changes of names whose folder was not synced are lost, all, all but one, or one is kept.
        """
        return _each_once(tree for trees in self._all_states(random.Random(seed)) for tree in trees)

    def last_states(self, seed: int = 0) -> Iterator[Tree]:
        """What may be found after the last moment."""
        return _each_once(list(self._all_states(random.Random(seed)))[-1])

    def _all_states(self, rng: random.Random) -> Iterator[list[Tree]]:
        first = self.moments[0]
        stored, names, pending = dict(first.contents), dict(first.entries), list[_Change]()
        data = dict(first.contents)  # of files that are gone too, whose names may still be there
        for before, now in zip(self.moments, self.moments[1:], strict=False):
            change = _Change.between(before.entries, now.entries)
            if change is not None:
                pending.append(change)
            if now.synced is not None:
                if now.synced in now.contents:
                    stored[now.synced] = now.contents[now.synced]
                for kept in [p for p in pending if now.synced in p.folders]:
                    kept.apply(names)
                    pending.remove(kept)
                    for earlier in pending:  # a name that was taken away since does not come back
                        for key in kept.gone.keys() & earlier.new.keys():
                            del earlier.new[key]
            data.update(now.contents)
            torn = {one: _torn(stored.get(one, b""), content) for one, content in data.items()}
            old = {one: stored.get(one, b"") for one in data}
            some = {one: rng.choice((old, torn, data))[one] for one in data}
            trees = [_tree(names, pending, contents) for contents in (data, old, torn)]
            trees.append(_tree(names, [], old))
            for one in pending[-6:]:
                trees.append(_tree(names, [p for p in pending if p is not one], some))
                trees.append(_tree(names, [one], some))
            yield trees


def _each_once(trees: Iterable[Tree]) -> Iterator[Tree]:
    seen = set()
    for state in trees:
        digest = hashlib.sha256(repr(sorted(state.items())).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            yield state


@dataclass(frozen=True, eq=False)
class _Change:
    """Names that one operation took away and gave."""

    gone: dict[tuple[int, str], int]
    new: dict[tuple[int, str], int]

    @classmethod
    def between(
        cls, before: dict[tuple[int, str], int], now: dict[tuple[int, str], int]
    ) -> _Change | None:
        gone = {key: one for key, one in before.items() if now.get(key) != one}
        new = {key: one for key, one in now.items() if before.get(key) != one}
        return cls(gone, new) if gone or new else None

    @property
    def folders(self) -> set[int]:
        """Folders whose ``fsync`` makes the change durable."""
        return {folder for folder, _ in (self.new or self.gone)}

    def apply(self, names: dict[tuple[int, str], int]) -> None:
        for key, one in self.gone.items():
            if names.get(key) == one:
                del names[key]
        names.update(self.new)


def _tree(
    names: dict[tuple[int, str], int], pending: list[_Change], contents: dict[int, bytes]
) -> Tree:
    names = dict(names)
    for change in pending:
        change.apply(names)
    inside: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), one in names.items():
        inside.setdefault(folder, []).append((name, one))
    found: dict[str, bytes | None] = {}

    def walk(folder: int, start: str) -> None:
        for name, one in inside.get(folder, ()):
            found[start + name] = contents.get(one)
            if one not in contents:
                walk(one, f"{start}{name}/")

    walk(0, "")
    return found


def _torn(stored: bytes, data: bytes) -> bytes:
    return data if stored == data else data[: len(data) // 2]


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 30)
    finally:
        os.close(descriptor)


def materialize(tree: Tree, folder: Path) -> None:
    """Write a state into a folder that does not exist."""
    folder.mkdir()
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
