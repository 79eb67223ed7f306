"""Recipes: the stages of an experiment in a TOML file, each a command with its options."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import URLError
from urllib.parse import quote

import click

from embedkit import storage
from embedkit.display import TYPED_IN, duration_text, path_from
from embedkit.errors import (
    EXIT_REJECTS,
    DamagedError,
    MismatchError,
    RecipeError,
    StorageError,
    UsageError,
    did_you_mean,
    first_line,
)
from embedkit.machine import __version__

OUTPUTS = ("out", "report", "write-blend", "makes")
"""Options that name an output; every other value that is the name of a file is an input."""

_PLACE = re.compile(r"\{([A-Za-z_][\w-]*)\}")
_HEADER = re.compile(r"^[ \t]*\[([\w.-]+)\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stage:
    """One call of a command, in the folder of its recipe."""

    name: str
    line: tuple[str, ...]  # the command and its words
    folder: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    can_overwrite: bool


def read_recipe(
    path: Path, commands: Mapping[str, click.Command], settings: Sequence[str] = ()
) -> list[Stage]:
    """Read a recipe; each command parses the options of its stages, without running.

    ``settings`` are ``KEY=VALUE``: a value of ``[set]``, or ``STAGE.OPTION``, or
    ``COMMAND.OPTION`` for all stages of a command.

    Raises:
        UsageError: the file cannot be opened, or a setting has no place in it.
        RecipeError: a name, type or value is wrong.
        DamagedError: the file is not valid TOML.
    """
    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not valid TOML: {first_line(error)}.") from error
    lines = {h[1]: text.count("\n", 0, h.start()) + 1 for h in _HEADER.finditer(text)}

    def fail(table: str, message: str) -> NoReturn:
        raise RecipeError(f"{path}:{lines.get(table, 1)}: [{table}] {message}")

    for name in ("title", "description"):
        content.pop(name, None)
    known_tables = [*commands, "set", "defaults"]
    for name, table in content.items():
        if name not in known_tables or not isinstance(table, dict):
            near = did_you_mean(name, known_tables)
            fail(name, f"is not a table with the name of a command.{near}")
    given, defaults = content.pop("set", {}), content.pop("defaults", {})
    tables: dict[str, dict[str, Any]] = {}
    for name, table in content.items():
        inner = {f"{name}.{key}": value for key, value in table.items() if isinstance(value, dict)}
        own = {key: value for key, value in table.items() if not isinstance(value, dict)}
        tables |= ({name: own} if own or name in lines else {}) | inner
    if not tables:
        fail("extract", "is missing, as is every other stage.")
    tables = {n: tables[n] for n in sorted(tables, key=lambda name: lines.get(name, 1))}
    used = {name.partition(".")[0] for name in tables}
    of = {c: {n.lstrip("-"): p for p in commands[c].params for n in p.opts} for c in used}
    known_options = used.union(*of.values())
    for name in defaults.keys() - known_options:
        near = did_you_mean(name, known_options)
        fail("defaults", f"no stage has an option {name!r}.{near}")
    for setting in settings:
        _override(setting, tables, given)
    known: dict[str, Any] = {}
    for name, value in given.items():
        known[name] = _filled(value, known, partial(fail, "set"))
    stages = []
    for name, table in tables.items():
        command, _, word = name.partition(".")
        of_command = defaults.get(command)
        options = {n: v for n, v in defaults.items() if n in of[command] and type(v) is not dict}
        options |= (of_command if isinstance(of_command, dict) else {}) | table
        places = {"stage": word or command, **known}
        options = {n: _filled(v, places, partial(fail, name)) for n, v in options.items()}
        stages.append(_stage(name, options, path.resolve().parent, of[command]))
        try:
            commands[command].make_context(command, list(stages[-1].line[1:])).close()
        except click.UsageError as error:
            fail(name, error.format_message())
    return stages


def _override(setting: str, tables: dict[str, Any], values: dict[str, Any]) -> None:
    """Apply one ``--set KEY=VALUE`` to a stage, to all stages of a command or to ``[set]``."""
    key, equals, text = setting.partition("=")
    name, _, option = key.strip().rpartition(".")
    of_command = [table for n, table in tables.items() if n.partition(".")[0] == name]
    chosen = [tables[name]] if name in tables else of_command
    if not name:
        chosen = [values] if option in values else []
    if not equals or not chosen:
        known = list(tables if name else values)
        raise UsageError(
            f"--set {setting}: expected KEY=VALUE with {', '.join(known)}"
            f"{'' if name else ' or STAGE.OPTION'}.{did_you_mean(name or option, known)}"
        )
    try:  # numbers, truth values and lists as in TOML; everything else is text
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        value = text
    for table in chosen:
        table[option] = value if isinstance(value, str | int | float | list) else text


def _filled(value: Any, known: Mapping[str, Any], fail: Callable[[str], NoReturn]) -> Any:
    """A value with the names in braces replaced; a name alone keeps the type of its value."""
    if isinstance(value, list):
        return [_filled(item, known, fail) for item in value]
    if not isinstance(value, str):
        return value
    for name in _PLACE.findall(value):
        if name not in known:
            fail(f"{{{name}}} is not in [set] above.{did_you_mean(name, known)}")
    whole = _PLACE.fullmatch(value)
    return known[whole[1]] if whole else _PLACE.sub(lambda m: str(known[m[1]]), value)


def _stage(
    name: str, options: Mapping[str, Any], folder: Path, parameters: Mapping[str, click.Parameter]
) -> Stage:
    """Options as the words of a command line."""
    arguments: list[str] = []
    words: list[str] = []
    files: dict[bool, list[str]] = {True: [], False: []}
    for option, value in options.items():
        items = [str(item) for item in (value if isinstance(value, list) else [value])]
        if items in ([""], []):
            continue
        files[option in OUTPUTS] += items
        parameter = parameters.get(option)
        dashed = f"--{option}" if len(option) > 1 else f"-{option}"
        if isinstance(parameter, click.Argument):
            arguments += items
        elif value is True:
            words.append(dashed)
        elif option != "makes" and (value is not False or parameter is None):  # click names these
            several = parameter is not None and parameter.multiple
            for text in items if several else [",".join(items)]:
                words += [dashed, text] if len(option) == 1 else [f"{dashed}={text}"]
    can_overwrite = "overwrite" in parameters and "--overwrite" not in words
    line = (name.partition(".")[0], *arguments, *words)
    return Stage(name, line, folder, tuple(files[False]), tuple(files[True]), can_overwrite)


def run_recipe(
    stages: Sequence[Stage],
    *,
    quiet: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run stages in their order, until one fails; skip those that are up to date.

    Return of each ``stage`` the ``status`` (``done``, ``up to date`` or ``failed``), the
    ``exit_code`` of its command, ``seconds`` and ``outputs``.

    A ``quiet`` run calls commands with ``-q`` and sends what they print to standard error.
    ``progress`` is called with a line before and after every stage.
    """
    results: list[dict[str, Any]] = []
    for number, stage in enumerate(stages, 1):
        about = f"[{number}/{len(stages)}] {stage.name}"
        names = {part for value in stage.inputs for part in (value, *value.split(","))}
        state = {
            "settings": list(stage.line),
            "inputs": _hashes(stage, sorted(names)),
            "version": __version__,
        }
        before, there = _read_state(stage), _hashes(stage, stage.outputs)
        changed = [name for name in state if before and before[name] != state[name]]
        status = ""
        if "exit_code" not in before:
            status = "was not finished" if before else ""
        elif changed:
            status = f"its {changed[0]} changed"
        else:
            same = before["outputs"] == there
            status = "up to date" if same else "its output is missing or was changed"
        progress(f"{about} … {status}".rstrip())
        started, code = time.monotonic(), before.get("exit_code", 0)
        if status != "up to date":
            if not before and not there:  # outputs of other origin are not claimed
                _write_state(stage, state)
            # it replaces what it wrote itself; what is unfinished is resumed if nothing changed
            replaces = before and (there or {"settings", "inputs"}.intersection(changed))
            overwrite = ["--overwrite"] if replaces and stage.can_overwrite else []
            code = _call([*stage.line, *overwrite], stage.folder, quiet)
            status = "done" if code in (0, EXIT_REJECTS) else "failed"
            if status == "done":
                there = _hashes(stage, stage.outputs)
                _write_state(stage, {**state, "outputs": there, "exit_code": code})
        seconds = time.monotonic() - started
        shown = [path_from(stage.folder / name, "") for name in stage.outputs]
        outcome = {"status": status, "exit_code": code, "seconds": seconds, "outputs": shown}
        results.append({"stage": stage.name} | outcome)
        if status == "failed":
            progress(f"{about}: failed with exit code {code}. Run the same command to go on.")
            break
        if status == "done":
            progress(f"{about}: done in {duration_text(seconds)}")
    return results


def content_hash(path: Path) -> str:
    """SHA-256 of a file, of the checksums of a folder, or of the files of a folder without them."""
    for file in (path, path / "SHA256SUMS"):
        if file.is_file():
            return storage.file_sha256(file)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path)}\0{storage.file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _hashes(stage: Stage, names: Sequence[str]) -> dict[str, str]:
    """Hashes of the names that are files or folders; options are any text."""
    there = [n for n in names if n and os.path.exists(stage.folder / n)]  # noqa: PTH110
    return {name: content_hash(stage.folder / name) for name in there}


def _call(words: list[str], folder: Path, quiet: bool) -> int:
    """Run a command in a process of its own, whose peak memory is then its own."""
    path = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    here = {"PYTHONPATH": os.pathsep.join(filter(None, path)), TYPED_IN: str(Path.cwd())}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "embedkit", *words, *["-q"] * quiet],
        cwd=folder,
        env={**os.environ, **here},
        stdout=sys.stderr.fileno() if quiet else None,
    )
    try:
        code = child.wait()
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):  # the terminal sent that to the command too
            child.terminate()
        child.wait()
        raise
    return 128 - code if code < 0 else code


def _state_file(stage: Stage) -> Path:
    first = stage.folder / stage.outputs[0]
    return first.with_name(f".{first.name}.stage.json")


def _read_state(stage: Stage) -> dict[str, Any]:
    """The state beside a stage's first output; empty without a readable one."""
    with suppress(OSError, ValueError):
        state = json.loads(_state_file(stage).read_text("utf-8")) if stage.outputs else None
        if isinstance(state, dict) and state.keys() >= {"settings", "inputs", "version"}:
            return state
    return {}


def _write_state(stage: Stage, state: Mapping[str, Any]) -> None:
    if stage.outputs:
        file = _state_file(stage)
        storage.make_folder(file.parent)
        text = json.dumps(state, ensure_ascii=False, indent=1) + "\n"
        storage.write_durably(file, text.encode(), scratch=file.parent)


def fetch(url: str, *, sha256: str, out: str | Path) -> bool:
    """Download a file with a known hash, unless ``out`` has it already; whether it was downloaded.

    Raises:
        UsageError: the address or the hash cannot be used.
        MismatchError: the existing or the downloaded file has another hash.
        StorageError: the network or the file system refused.
    """
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    expected, target = sha256.lower(), Path(out)
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise UsageError(f"sha256={sha256!r}: expected 64 hex digits.")
    if not re.match(r"https?://([^/\[\]]|\[[^/\]]+\])", url):
        raise UsageError(f"{url}: expected an address that begins with https:// or http://.")
    if target.is_dir():
        raise UsageError(f"out={str(target)!r} is a folder; expected a file name.")
    if target.is_file():
        if storage.file_sha256(target) == expected:
            return False
        raise MismatchError(f"{target} exists with another hash. Move it away.")
    address = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # letters beyond ASCII; the rest stays
    request = Request(address, headers={"User-Agent": f"embedkit/{__version__}"})
    try:
        with urlopen(request, timeout=30) as source:
            content = source.read()
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        raise StorageError(
            f"{url} cannot be downloaded: {getattr(error, 'reason', None) or error}. Check the "
            f"network, or put the file at {target} yourself."
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise MismatchError(f"{url} has another hash; nothing was kept.")
    storage.make_folder(target.parent)
    storage.write_durably(target, content, scratch=target.parent)
    return True
