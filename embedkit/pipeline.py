"""Recipes: the stages of an experiment in a TOML file, each a command with its options.

A recipe may come from anyone, so it is no program: it writes below its own folder only, neither
hidden files nor such as Python would import, and it names neither code nor addresses to write to. A
recipe that does so needs ``--trust``; what the caller says by ``--set`` needs none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import click

from embedkit import errors, storage
from embedkit.display import duration_text, path_from
from embedkit.machine import __version__
from embedkit.remote import address_of

OUTPUTS = ("out", "report", "write-blend", "makes")
"""Options that name an output; every other value that is the name of a file is an input."""

_WRITING = ("extract", "split", "train", "probe", "finetune", "explore", "export", "index")
"""Commands that write to a place of their own choice, if they are given none."""

_CODE = {"head": "imports and runs {}", "estimator": "imports {}"}
"""Options that lead to code, if their value is ``module:Class``."""

LARGEST = 1 << 36
"""Bytes of a file that ``fetch`` downloads at most."""

_IMPORTED = (*all_suffixes(), ".pth")

_PLACE = re.compile(r"\{([A-Za-z_][\w-]*)\}")
# tomllib gives no line numbers, so tables are looked for in the
# text; what is not found is reported at line 1
_HEADER = re.compile(r"^[ \t]*\[([^\[\]\n]+)\]", re.MULTILINE)
# around the parts of a table's name, which may be quoted
_AROUND = re.compile(r"[\s\"']*(\.|^|$)[\s\"']*")


class Stage(NamedTuple):
    """One call of a command, in the folder of its recipe."""

    name: str
    line: tuple[str, ...]  # the command and its words
    folder: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    can_overwrite: bool
    needs_trust: tuple[str, ...] = ()  # what it does that a recipe may not do by itself


def read_recipe(
    path: Path,
    commands: Mapping[str, click.Command],
    settings: Sequence[str] = (),
    *,
    trust: bool = False,
) -> list[Stage]:
    """Read a recipe; each command parses the options of its stages, without running.

    ``settings`` are ``KEY=VALUE``: a value of ``[set]``, or an option as ``STAGE.OPTION``. A
    :class:`RecipeError` names the line of the table with a wrong name, type or value, or with
    something that needs ``trust``.
    """
    try:
        text = path.read_text("utf-8-sig")
        content = tomllib.loads(text)
    except OSError as error:
        advice = "Recipes are read from files of this machine: download it first."
        advice = advice if address_of(path) else ""
        raise storage.unreadable(path, error, error=errors.UsageError, advice=advice) from error
    except (ValueError, RecursionError) as error:
        problem = errors.first_line(error)
        raise errors.DamagedError(f"{path} is not valid TOML: {problem}.") from error
    headers = {_AROUND.sub(r"\1", header[1]): header.start() for header in _HEADER.finditer(text)}
    lines = {name: text.count("\n", 0, start) + 1 for name, start in headers.items()}

    def fail(table: str, message: str) -> NoReturn:
        raise errors.RecipeError(f"{path}:{lines.get(table, 1)}: [{table}] {message}")

    tables: dict[str, dict[str, Any]] = {}
    for name, table in content.items():
        # for people
        if name in ("title", "description"):
            continue
        if not isinstance(table, dict) or name not in (*commands, "set"):
            near = errors.did_you_mean(name, [*commands, "set"])
            fail(name, f"is not a table with the name of a command.{near}")
        # [probe] with [probe.a] and [probe.b] below it are two stages with these options in common
        shared = {key: value for key, value in table.items() if not isinstance(value, dict)}
        several = {f"{name}.{k}": shared | v for k, v in table.items() if isinstance(v, dict)}
        tables |= {name: shared} if name == "set" or not several else several
    values = tables.pop("set", {})
    if not tables:
        fail("extract", "is missing, as is every other stage.")
    # stages run as they are written down; TOML puts subtables together, wherever they stand
    tables = {n: tables[n] for n in sorted(tables, key=lambda name: lines.get(name, 1))}
    # before names are filled in, so that a new value of [set] reaches all that use it
    for setting in settings:
        _override(setting, tables, values)
    variables: dict[str, Any] = {}
    # in order: a value may name those above it, so that no circle can be made
    for name, value in values.items():
        variables[name] = _filled(value, variables, partial(fail, "set"))
    stages: list[Stage] = []
    for name, table in tables.items():
        command, _, word = name.partition(".")
        places = {"stage": word or command, **variables}
        options = {n: _filled(v, places, partial(fail, name)) for n, v in table.items()}
        names = [(n, p) for p in commands[command].params for n in (*p.opts, *p.secondary_opts)]
        parameters = {n.lstrip("-"): parameter for n, parameter in names}
        stages.append(_stage(name, options, path.resolve().parent, parameters))
        if "-" in stages[-1].inputs:
            fail(name, "reads standard input, of which a recipe has none. Give a file.")
        context = _parsed(commands[command], stages[-1], settings, partial(fail, name))
        try:
            needs = tuple(_needs_trust(context, stages[-1], _values(settings)))
        except errors.UsageError as error:
            fail(name, str(error))
        if needs and not trust:
            fail(name, f"{needs[0]}. If you trust the recipe, pass {errors.Option('trust', True)}.")
        if command in _WRITING and not stages[-1].outputs:
            # a default place is found anew each time, and what is there already would be in the way
            option = "makes" if command == "index" else "out"
            fail(name, f'has no {option}. Say where it writes, such as {option} = "PATH".')
        stages[-1] = stages[-1]._replace(needs_trust=needs)
    _check_outputs(stages, fail)
    return stages


def _check_outputs(stages: Sequence[Stage], fail: Callable[[str, str], NoReturn]) -> None:
    """Refuse two stages with one output: each would replace that of the other in every run."""
    writers: dict[str, str] = {}
    for stage in stages:
        for output in stage.outputs:
            place = address_of(output) or os.path.realpath(stage.folder / output)
            writer, shown = writers.setdefault(place, stage.name), storage.without_secrets(output)
            if writer != stage.name:
                fail(stage.name, f"writes to {shown}, as [{writer}] does.")


def _parsed(
    command: click.Command, stage: Stage, settings: Sequence[str], fail: Callable[[str], NoReturn]
) -> click.Context:
    """What the command's own parser understands of a stage, before any of them runs for hours."""
    try:
        # without --help, which would print it and end the run as if all was done
        context = command.make_context(command.name, [*stage.line[1:]], help_option_names=[])
    except click.UsageError as error:
        message = error.format_message()
        for setting in settings:  # the recipe may have another value
            key, _, value = setting.partition("=")
            option = key.strip().removeprefix(f"{stage.name}.")
            if f"'{value.strip()}'" in message or f"'--{option}'" in message:
                raise errors.UsageError(f"--set {setting}: {message}") from error
        fail(message)
    except ValueError as error:  # a path with a NUL, which only a file can hold
        fail(f"{error}.")
    context.close()  # at once: nothing is run in it
    return context


def _values(settings: Sequence[str]) -> list[str]:
    """What the caller says by ``--set``: values as they are, those of lists one by one."""
    texts = [setting.partition("=")[2].strip() for setting in settings]
    return [v.strip(" \"'") for text in texts for v in (text, *text.strip("[]").split(","))]


def _needs_trust(context: click.Context, stage: Stage, callers: Sequence[str]) -> Iterator[str]:
    """What a stage does that its recipe may not do by itself.

    It is read from what the command understands, since an argument may look like an option.
    """
    parameters = {(name or "").replace("_", "-"): value for name, value in context.params.items()}
    names = [*OUTPUTS, *["dataset"] * (stage.line[0] == "index")]  # which holds its indexes
    outputs = [str(parameters[name]) for name in names if parameters.get(name) is not None]
    for text in dict.fromkeys([*outputs, *stage.outputs]):
        if address := address_of(text):  # of which click has removed a slash
            inside = any(f"{address}/".startswith(f"{v}/") for v in callers if "://" in v)
            # an address is no path that could be resolved; one that
            # goes up leaves what the caller named
            allowed = inside and ".." not in address.split("/")
        else:
            folder = stage.folder
            # below the recipe, or below what the caller named by --set; the folder of the recipe
            # itself is neither, since the state of an output stands beside it
            allowed = os.path.realpath(folder / text) != os.path.realpath(folder) and any(
                _is_below(folder / text, folder / root) for root in ("", *callers)
            )
        if not allowed:
            yield f"writes to {storage.without_secrets(text)}"
    if parameters.get("engine") == "ray" and "ray" not in callers:
        yield "reaches a Ray cluster"
    for name, what in _CODE.items():
        text = str(parameters.get(name) or "")
        # names without a colon are those of embedkit's own
        if ":" in text and text not in callers:
            yield what.format(text)


def _is_below(path: Path, folder: Path) -> bool:
    """True if a path is a folder or plainly in it, links followed; of others the name tells less.

    Hidden files, such as those of a shell, of git and of a virtual environment, are run by others,
    and so are the modules of Python.
    """
    # links followed first: a link in the folder may lead out of it
    place, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    inner = place.relative_to(root).parts if place.is_relative_to(root) else (".",)
    return not any(part.startswith(".") or part.endswith(_IMPORTED) for part in inner)


def _override(setting: str, tables: dict[str, Any], values: dict[str, Any]) -> None:
    """Apply one ``--set KEY=VALUE`` to a stage or to ``[set]``."""
    key, equals, text = setting.partition("=")
    name, _, option = key.strip().rpartition(".")
    # only what is there can be set: a misspelt key would change nothing, silently
    keys, target = (tables, name) if name else (values, option)
    if not equals or target not in keys:
        names = [*keys] if name else [*keys, "STAGE.OPTION"]
        raise errors.UsageError(
            f"--set {setting}: expected KEY=VALUE with {', '.join(names)}."
            f"{errors.did_you_mean(target, keys)}"
        )
    value: Any = text
    with suppress(tomllib.TOMLDecodeError):  # numbers, truth values and lists as in TOML
        value = tomllib.loads(f"value = {text}")["value"]
    chosen = tables[name] if name else values
    # a date or a table in TOML was meant as text
    chosen[option] = value if isinstance(value, str | int | float | list) else text


def _filled(value: Any, variables: Mapping[str, Any], fail: Callable[[str], NoReturn]) -> Any:
    """A value with the names in braces replaced; a name alone keeps the type of its value."""
    if isinstance(value, list):
        return [_filled(item, variables, fail) for item in value]
    if not isinstance(value, str):
        return value
    for name in _PLACE.findall(value):
        if name not in variables:
            fail(f"{{{name}}} is not in [set] above.{errors.did_you_mean(name, variables)}")
    # so that limit = "{n}" is a number, and "runs/{n}" a text
    match = _PLACE.fullmatch(value)
    return variables[match[1]] if match else _PLACE.sub(lambda m: str(variables[m[1]]), value)


def _stage(
    name: str, options: Mapping[str, Any], folder: Path, parameters: Mapping[str, click.Parameter]
) -> Stage:
    """Options as the words of a command line."""
    arguments: list[str] = []
    words: list[str] = []
    files: dict[bool, list[str]] = {True: [], False: []}
    # in the order of the command: the order of keys says nothing, as everywhere in TOML
    places = {option: place for place, option in enumerate(parameters)}
    for option, value in sorted(options.items(), key=lambda o: places.get(o[0], len(places))):
        items = [str(item) for item in (value if isinstance(value, list) else [value])]
        # an empty value leaves the option out, so that --set can take it away
        if items in ([""], []):
            continue
        # an option of an output gets a list as one name, with commas
        is_name = option in OUTPUTS and option != "makes"
        files[option in OUTPUTS] += [",".join(items)] if is_name else items
        parameter = parameters.get(option)
        dashed = f"--{option}" if len(option) > 1 else f"-{option}"
        if isinstance(parameter, click.Argument):
            arguments += items
        elif value is True:
            words.append(dashed)
        elif value is False and parameter is not None:
            # the flag that says the opposite, if there is one
            words += (parameter.secondary_opts if dashed in parameter.opts else parameter.opts)[:1]
        elif parameter is not None and parameter.nargs > 1:
            words += [dashed, *items]
        # `makes` is for the recipe only: outputs of commands that have no option for them
        elif option != "makes":
            # options that may be repeated get a word for each item, others a list with commas
            several = parameter is not None and parameter.multiple
            for text in items if several else [",".join(items)]:
                # with an equals sign, so that a value that begins with a dash is no option
                words += [dashed, text] if len(option) == 1 else [f"{dashed}={text}"]
    line = (name.partition(".")[0], *arguments, *words)
    inputs, outputs = tuple(files[False]), tuple(files[True])
    return Stage(name, line, folder, inputs, outputs, "overwrite" in parameters)


def run_recipe(
    stages: Sequence[Stage],
    call: Callable[[Sequence[str]], int],
    *,
    quiet: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run stages in their order, until one fails; skip those that are up to date.

    ``call`` runs a command in this process, which loads libraries once, and returns its exit code.
    Return of each ``stage`` the ``status`` (``done``, ``up to date`` or ``failed``), the
    ``exit_code`` of its command, ``seconds`` and ``outputs``.

    A ``quiet`` run calls commands with ``-q``.
    ``progress`` is called with a line before and after every stage.
    """
    results: list[dict[str, Any]] = []
    for number, stage in enumerate(stages, 1):
        about = f"[{number}/{len(stages)}] {stage.name}"
        _bring_back(stage.folder / name for name in stage.outputs if not address_of(name))
        # an option may list several files with commas; what is no file is dropped by `_hashes`
        names = {part for value in stage.inputs for part in (value, *value.split(","))}
        there = _hashes(stage, stage.outputs)
        state = {
            # the file lies beside results, and is passed on with them
            "settings": [storage.without_secrets(word) for word in stage.line],
            "inputs": _hashes(stage, sorted(names)),
            "version": __version__,
            "outputs": there,
        }
        before = _read_state(stage)
        changed = [name for name in state if before and before.get(name) != state[name]]
        # `outputs` is among them: a result that was changed or deleted is made again
        status = f"its {changed[0]} changed" if changed else "up to date"
        written = before.get("outputs", {})
        foreign = there.keys() - written
        # written only when a stage is done; what stands there before that is not claimed
        if "exit_code" not in before:
            status = "was not finished" if before else ""
        elif foreign:
            status = f"{min(foreign)} is not of this stage"
        elif not changed and not all(_is_there(stage, name) for name in stage.outputs):
            status = "its output is missing"  # as it was when the stage was done
        progress(f"{about} … {status}".rstrip())
        started, code = time.monotonic(), before.get("exit_code", 0)
        if status != "up to date":
            # outputs of other origin are not claimed; of addresses nobody has looked at them
            if not (before or there or any(map(address_of, stage.outputs))):
                _write_state(stage, state)
            # it replaces what it wrote itself; what is unfinished is resumed if nothing changed
            replaces = before and (there or {"settings", "inputs"}.intersection(changed))
            overwrite = ["--overwrite"] if replaces and not foreign and stage.can_overwrite else []
            # some commands replace nothing: what the stage wrote makes way, also if it was changed,
            # and comes back if the stage fails; fetch looks itself at what is there, and need not
            # download it again
            makes_way = not (foreign or stage.can_overwrite or stage.line[0] == "fetch")
            ways = [stage.folder / name for name in (there.keys() & written if makes_way else ())]
            words = [*stage.line, *overwrite, *["-q"] * quiet]
            # as if it were typed in that folder: only a command knows which of its words are paths
            with _making_way(ways) as done, chdir(stage.folder):
                code = call(words)
                done += [code] * (code in (0, errors.EXIT_REJECTS))
            status = "done" if done else "failed"
            if status == "done":
                # inputs are those from before the run: if one changed meanwhile, the
                # stage is not up to date next time
                update = {"outputs": _hashes(stage, stage.outputs), "exit_code": code}
                _write_state(stage, state | update)
        seconds = time.monotonic() - started
        outputs = [storage.without_secrets(n) for n in stage.outputs if _is_there(stage, n)]
        shown = [address_of(n) or path_from(stage.folder / n, "") for n in outputs]
        outcome = {"status": status, "exit_code": code, "seconds": seconds, "outputs": shown}
        results.append({"stage": stage.name} | outcome)
        if status == "failed":
            advice = f"Move {min(foreign)} away, and run" if foreign else "Run"
            progress(f"{about}: failed with exit code {code}. {advice} the same command to go on.")
            break
        if status == "done":
            progress(f"{about}: done in {duration_text(seconds)}")
    return results


@contextmanager
def _making_way(paths: Sequence[Path]) -> Iterator[list[int]]:
    """Nothing stands at the paths; what did comes back unless the list gets a code of success.

    ``page`` waits as ``.page.before``, which is none of the names that commands write to: a command
    that fails, an interrupt and a kill leave the earlier result.
    """
    for path in paths:
        path.rename(_aside(path))
    done = list[int]()
    try:
        yield done
    finally:
        for path in paths:
            storage.remove(_aside(path) if done else path)
        _bring_back(paths)


def _bring_back(paths: Iterable[Path]) -> None:
    # what a stage made way for that has failed, or was killed
    for path in paths:
        if os.path.lexists(_aside(path)):
            if not os.path.lexists(path):
                _aside(path).rename(path)
            storage.remove(_aside(path))


def _aside(path: Path) -> Path:
    return path.parent / f".{path.name}.before"


def content_hash(path: Path) -> str:
    """SHA-256 of a file, of the checksums of a folder, or of the files of a folder without them."""
    # checksums stand for the files of a dataset or run, which need not be read again
    for file in (path, path / "SHA256SUMS"):
        if file.is_file():
            # what they list may be gone all the same
            names = storage.file_sums(path, torn=True) if file != path else ()
            if all((path / name).is_file() for name in names):
                return storage.file_sha256(file)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path)}\0{storage.file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _hashes(stage: Stage, names: Sequence[str]) -> dict[str, str]:
    """Hashes of the names that are files or folders; options are any text."""
    paths = {name: stage.folder / name for name in names if name}
    # a separator may be . or /: a folder around the recipe is no input, and holds its outputs too
    return {
        name: content_hash(path)
        for name, path in paths.items()
        if os.path.exists(path) and not stage.folder.is_relative_to(os.path.realpath(path))  # noqa: PTH110
    }


def _is_there(stage: Stage, name: str) -> bool:
    # of addresses nobody has looked
    return bool(address_of(name)) or (stage.folder / name).exists()


def _state_file(stage: Stage) -> Path:
    out = storage.without_secrets(stage.outputs[0])
    first = stage.folder / out
    if address_of(out):
        # nothing local can be written below an address: beside the recipe, by all of the address,
        # since another one may end alike, and its output would count as that of this stage
        first = stage.folder / f"{Path(out).name}-{hashlib.sha256(out.encode()).hexdigest()[:8]}"
    # hidden and beside the output, not in it: the output may be a
    # file, and a folder is replaced as a whole
    return first.with_name(f".{first.name}.stage.json")


def _read_state(stage: Stage) -> dict[str, Any]:
    """The state beside a stage's first output; empty without a readable one."""
    with suppress(OSError, ValueError, TypeError, LookupError):  # without outputs an IndexError
        state = dict(json.loads(_state_file(stage).read_text("utf-8")))
        return state | {"outputs": dict(state["outputs"])}
    return {}


def _write_state(stage: Stage, state: Mapping[str, Any]) -> None:
    if stage.outputs:
        file = _state_file(stage)
        storage.make_folder(file.parent)
        text = json.dumps(state, ensure_ascii=False, indent=1) + "\n"
        storage.write_durably(file, text.encode())


def fetch(url: str, *, sha256: str, out: str | Path) -> bool:
    """Download a file with a known hash unless ``out`` has it; return if it was downloaded."""
    expected, target, shown = sha256.lower(), Path(out), storage.without_secrets(url)
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise errors.UsageError("expected 64 hex digits.", sha256=sha256)
    if not re.match(r"https?://([^/\[\]]|\[[^/\]]+\])", url):
        raise errors.UsageError(f"{shown}: expected an address of https:// or http://.")
    # urllib would take them for a part of the host's name, and they would be shown in errors
    if re.match(r"[a-z]+://[^/?#]*@", url):
        raise errors.UsageError(f"{shown}: leave out user and password, which are not sent.")
    if target.is_dir():
        raise errors.UsageError("this is a folder; expected a file name.", out=target)
    if target.is_file():
        if storage.file_sha256(target) == expected:
            return False
        # not replaced: it may be somebody's own file
        raise errors.MismatchError(f"{target} exists with another hash. Move it away.")
    address = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # letters beyond ASCII; the rest stays
    request = Request(address, headers={"User-Agent": f"embedkit/{__version__}"})
    try:
        with (
            # under another name until its hash is right, so that `out` is complete or not there
            storage.new_file(target, free=lambda: None) as work,
            urlopen(request, timeout=30) as source,
            work.open("wb") as copy,
        ):
            _copy_checked(source, copy, expected, shown)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the answer
        reason = str(getattr(error, "reason", None) or error).partition("\n")[0]
        raise errors.StorageError(
            f"{shown} cannot be downloaded: {reason}. Check the network, or put the file at "
            f"{target} yourself."
        ) from error
    return True


def _copy_checked(source: Any, target: Any, sha256: str, name: str) -> None:
    """Copy a stream, which may have no end, and compare the hash of its bytes."""
    digest, size = hashlib.sha256(), 0
    while block := source.read(1 << 20):
        size += len(block)
        # counted while it is read, since a server may announce any length
        if size > LARGEST:
            raise OSError(f"it has more than {LARGEST:,} bytes")
        digest.update(block)
        with storage.storage_errors(Path(target.name)):  # no fault of the network
            target.write(block)
    # read() with a size does not raise if the connection ends before the announced length
    if source.length:
        raise OSError(f"the connection ended {source.length:,} bytes too early")
    if digest.hexdigest() != sha256:
        problem = f"{name} has the hash {digest.hexdigest()}; nothing was kept"
        raise errors.MismatchError(f"{problem}. Pass this one if the file is the right one.")
