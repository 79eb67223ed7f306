"""An experiment as a TOML file: which commands, in which order, with which options.

    [set]                          # values that stages name in braces; --set changes them
    corpus = "../data/reviews_ko.tsv"
    out = "../outputs/reviews"

    [extract]                      # a stage: a command, its arguments and options by their names
    corpus = "{corpus}"
    out = "{out}/vectors"
    layers = "all"
    pooling = ["cls", "mean"]      # as on the command line: cls,mean

    [defaults]                     # options of every stage whose command has them
    device = "auto"

    [defaults.train]               # options of every train stage; {stage} is its second word
    dataset = "{out}/vectors"
    out = "{out}/runs/{stage}"

    [train.tfidf]                  # a second word tells stages of one command apart
    features = "tfidf"

What a stage says itself comes before ``[defaults.COMMAND]``, and that before ``[defaults]``.
A command that makes something without being told where gets ``makes = "path"`` besides, so that it
can be skipped when that is up to date.

Everything is checked before anything starts: names and values against the commands themselves, and
a mistake is reported with file and line. Paths count from the file's folder. An empty string leaves
an option out.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from embedkit.errors import UsageError, did_you_mean, first_line

__all__ = ["Stage", "key_lines", "misplaced", "read_recipe"]

Key = tuple[str, ...]

OUTPUTS = ("out", "report", "write-blend")
"""Options that name what a command makes; everything else that exists is an input."""

_SET = "set"
_DEFAULTS = "defaults"
_STAGE = "stage"
_MAKES = "makes"
_TITLES = ("title", "description")
_PLACE = re.compile(r"\{([A-Za-z_][\w-]*)\}")


@dataclass(frozen=True, slots=True)
class Stage:
    """One call of a command.

    Attributes:
        name: ``command`` or ``command.word``.
        command: its first part.
        arguments: of the command line, after the command.
        folder: in which it runs: that of the recipe.
        values: what may be an input, as written: every value but those of outputs.
        outputs: what it makes, as written.
        can_overwrite: whether the command knows ``--overwrite`` and the recipe leaves it open.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    folder: Path
    values: tuple[str, ...]
    outputs: tuple[str, ...]
    can_overwrite: bool


def read_recipe(
    path: Path, commands: Mapping[str, click.Command], settings: Sequence[str] = ()
) -> tuple[Stage, ...]:
    """Read a recipe and check all of it.

    Args:
        path: TOML file.
        commands: what stages may call, by name.
        settings: ``KEY=VALUE``: a value of ``[set]``, or ``STAGE.OPTION``, or ``COMMAND.OPTION``
            for all stages of a command.

    Raises:
        UsageError: the file cannot be read, or a name, type or value is wrong; the message says in
            which line, and what the nearest right name is.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {first_line(error)}.") from error
    return _Reader(path, content, key_lines(text), commands).stages(settings)


def misplaced(path: Path, settings: Sequence[str]) -> Iterator[str]:
    """Notes on settings that name a file from where the user is, not from the recipe's folder."""
    folder = path.resolve().parent
    for setting in settings:
        value = setting.partition("=")[2]
        if os.path.isfile(value) and not os.path.exists(folder / value):  # noqa: PTH110, PTH113 - of any text
            yield (
                f"--set {setting}: paths count from {folder}, where no {value} is; for the one "
                f"here write {os.path.relpath(value, folder)}"
            )


def key_lines(text: str) -> dict[Key, int]:
    """Line, from 1, of every table header and key of a valid TOML text."""
    found: dict[Key, int] = {}
    table: Key = ()
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if not line or line.startswith("#"):
            at += 1
            continue
        end = at + 1
        while (parsed := _parsed("\n".join(lines[at:end]))) is None and end < len(lines):
            end += 1
        key = _deepest(parsed or {})
        if line.startswith("["):
            table = key
            found[table] = at + 1
        else:
            found[(*table, *key)] = at + 1
        at = end
    return found


class _Reader:
    def __init__(
        self,
        path: Path,
        content: dict[str, Any],
        lines: Mapping[Key, int],
        commands: Mapping[str, click.Command],
    ) -> None:
        self._path, self._content, self._lines = path, content, lines
        self._commands = commands
        self._set: dict[str, Any] = {}
        self._defaults: dict[str, Any] = {}
        self._heads: set[Key] = set()

    def stages(self, settings: Sequence[str]) -> tuple[Stage, ...]:
        tables = self._tables()
        values = self._content.get(_SET, {})
        if not isinstance(values, dict):
            raise self._error((_SET,), f"{_SET} is a table: [set], then one value in a line.")
        for setting in settings:
            _override(setting, tables, values, self._path)
        for name, value in values.items():
            if isinstance(value, dict):
                raise self._error((_SET, name), f"[{_SET}] holds values, not tables.")
            self._set[name] = self._filled(value, (_SET, name))
        self._defaults = self._checked_defaults({key[0] for key in tables})
        stages = {key: self._stage(key, table) for key, table in tables.items()}
        self._check_outputs(stages)
        return tuple(stages.values())

    def _check_outputs(self, stages: Mapping[Key, Stage]) -> None:
        """No stage may replace what another one makes; several may make parts of one folder."""
        makers: dict[Path, str] = {}
        for key, stage in stages.items():
            for name in set(stage.outputs) & set(stage.arguments):
                maker = makers.setdefault((stage.folder / name).resolve(), stage.name)
                if maker != stage.name:
                    raise self._error(key, f"it would replace {name}, which {maker} makes.")

    def _tables(self) -> dict[Key, dict[str, Any]]:
        """Options of every stage, in the order of the file."""
        found: dict[Key, dict[str, Any]] = {}
        for command, table in self._content.items():
            if command in (_SET, _DEFAULTS) or (command in _TITLES and isinstance(table, str)):
                continue
            if command not in self._commands:
                raise self._error(
                    (command,), f"there is no command {command!r}."
                    f"{did_you_mean(command, [*self._commands, _SET, _DEFAULTS])}"
                )  # fmt: skip
            if not isinstance(table, dict):
                raise self._error((command,), f"a stage is a table: [{command}].")
            named = {name: inner for name, inner in table.items() if isinstance(inner, dict)}
            options = {name: value for name, value in table.items() if name not in named}
            if options or (command,) in self._lines:
                found[command,] = options
            found |= {(command, name): inner for name, inner in named.items()}
        if not found:
            raise UsageError(f"{self._path} has no stage. Write one, such as [extract].")
        self._heads = set(found)
        return dict(sorted(found.items(), key=lambda item: self._line(item[0])))

    def _checked_defaults(self, used: set[str]) -> dict[str, Any]:
        """``[defaults]``, each of which some stage has."""
        defaults = self._content.get(_DEFAULTS, {})
        if not isinstance(defaults, dict):
            raise self._error((_DEFAULTS,), "defaults is a table: [defaults].")
        known = {name for command in used for name in _parameters(self._commands[command])}
        for name, value in defaults.items():
            if isinstance(value, dict) and name not in self._commands:
                raise self._error(
                    (_DEFAULTS, name),
                    f"there is no command {name!r}.{did_you_mean(name, self._commands)}",
                )
            if not isinstance(value, dict) and name not in known:
                raise self._error(
                    (_DEFAULTS, name),
                    f"no stage has an option {name!r}.{did_you_mean(name, known)}",
                )
        return defaults

    def _options(self, key: Key, own: Mapping[str, Any]) -> Iterator[tuple[str, Any, Key]]:
        """Name, value and place in the file of every option of a stage, defaults first."""
        known = _parameters(self._commands[key[0]])
        common = {n: v for n, v in self._defaults.items() if n in known and not isinstance(v, dict)}
        of_command = self._defaults.get(key[0], {})
        if not isinstance(of_command, dict):  # an option that is called as a command is
            of_command = {}
        merged: dict[str, tuple[Any, Key]] = {
            name: (value, (_DEFAULTS, name)) for name, value in common.items()
        }
        merged |= {n: (value, (_DEFAULTS, key[0], n)) for n, value in of_command.items()}
        merged |= {name: (value, (*key, name)) for name, value in own.items()}
        for name, (value, place) in merged.items():
            yield name, self._filled(value, place, stage=key[-1]), place

    def _stage(self, key: Key, table: Mapping[str, Any]) -> Stage:
        command = self._commands[key[0]]
        known = _parameters(command)
        arguments: list[str] = []
        options: list[str] = []
        values: list[str] = []
        outputs: list[str] = []
        for name, value, place in self._options(key, table):
            if name == _MAKES:
                outputs.append(str(value))
                continue
            if name not in known:
                raise self._error(
                    place, f"embedkit {key[0]} has no option {name!r}."
                    f"{did_you_mean(name, known)}"
                )  # fmt: skip
            if value in ("", []):
                continue
            words = self._words(known[name], name, value, place)
            (arguments if isinstance(known[name], click.Argument) else options).extend(words)
            items = [str(v) for v in (value if isinstance(value, list) else [value])]
            (outputs if name in OUTPUTS else values).extend(items)
        made = (*arguments, *options)
        self._check(key, command, made, known)
        overwrite = "overwrite" in known and "--overwrite" not in options
        return Stage(
            ".".join(key), key[0], made, self._path.resolve().parent, tuple(values),
            tuple(outputs), overwrite,
        )  # fmt: skip

    def _filled(self, value: Any, place: Key, *, stage: str | None = None) -> Any:
        """A value with the names in braces replaced; one that is a name alone keeps its type."""
        if isinstance(value, list):
            return [self._filled(item, place, stage=stage) for item in value]
        if not isinstance(value, str):
            return value
        known = self._set if stage is None else {_STAGE: stage, **self._set}
        for name in _PLACE.findall(value):
            if name not in known:
                raise self._error(
                    place, f"{{{name}}} is not in [{_SET}] above.{did_you_mean(name, known)}"
                )
        whole = _PLACE.fullmatch(value)
        if whole:
            return known[whole[1]]
        return _PLACE.sub(lambda match: str(known[match[1]]), value)

    def _words(self, known: click.Parameter, name: str, value: Any, place: Key) -> list[str]:
        """What stands on the command line for an option."""
        if isinstance(known, click.Argument):
            items = value if isinstance(value, list) else [value]
            if known.nargs == 1 and len(items) != 1:
                raise self._error(place, f"{name}: expected one value, not {len(items)}.")
            return [self._word(known, name, item, place) for item in items]
        option = max(known.opts, key=len)
        flag = bool(getattr(known, "is_flag", False))
        optional = not flag and isinstance(getattr(known, "flag_value", None), str)
        if flag or (optional and isinstance(value, bool)):
            if not isinstance(value, bool):
                raise self._error(place, f"{name}: expected true or false, not {_toml(value)}.")
            off = known.secondary_opts
            return [option] if value else list(off[:1])
        if isinstance(value, list) and known.multiple:
            return [w for item in value for w in (option, self._word(known, name, item, place))]
        items = value if isinstance(value, list) else [value]
        word = ",".join(self._word(known, name, item, place) for item in items)
        return [f"{option}={word}"] if optional or word.startswith("-") else [option, word]

    def _word(self, known: click.Parameter, name: str, value: Any, place: Key) -> str:
        """One value as text, of the type that the option has."""
        expected = None
        if isinstance(known.type, click.types.IntParamType):
            expected = None if type(value) is int else "an integer"
        elif isinstance(known.type, click.types.FloatParamType):
            expected = None if type(value) in (int, float) else "a number"
        elif type(value) not in (str, int, float):
            expected = "text"
        if expected:
            raise self._error(place, f"{name}: expected {expected}, not {_toml(value)}.")
        return str(value)

    def _check(
        self,
        key: Key,
        command: click.Command,
        arguments: Sequence[str],
        known: Mapping[str, click.Parameter],
    ) -> None:
        """Let the command itself judge its options, without running it."""
        try:
            command.make_context(command.name, list(arguments)).close()
        except click.UsageError as error:
            parameter = getattr(error, "param", None)
            names = [name for name, one in known.items() if one is parameter]
            given = [(*key, name) for name in names if (*key, name) in self._lines]
            message = error.format_message()
            if isinstance(error, click.MissingParameter) and names:
                message = f"embedkit {key[0]} needs {names[0]!r}."
            raise self._error((given or [key])[0], message) from error

    def _line(self, key: Key) -> int:
        """Of a key, or of what it stands in."""
        while key and key not in self._lines:
            key = key[:-1]
        return self._lines.get(key, 1)

    def _error(self, key: Key, message: str) -> UsageError:
        table = key if key in self._heads else key[:-1] or key
        where = f" [{'.'.join(table)}]" if table[0] in self._content else ""
        return UsageError(f"{self._path}:{self._line(key)}:{where} {message}")


def _override(
    setting: str, tables: Mapping[Key, dict[str, Any]], values: dict[str, Any], path: Path
) -> None:
    """Apply one ``--set KEY=VALUE`` to a stage's options or to ``[set]``."""
    name, equals, text = setting.partition("=")
    name = name.strip()
    if not equals or not name:
        raise UsageError(f"--set {setting}: expected KEY=VALUE.")
    *stage, option = name.split(".")
    value = _value(text)
    if not stage:
        if name not in values:
            raise UsageError(
                f"--set {setting}: [{_SET}] of {path} has no {name!r}; it has "
                f"{', '.join(values) or 'nothing'}.{did_you_mean(name, values)}"
            )
        values[name] = value
        return
    of_command = [key for key in tables if key[:1] == tuple(stage)]
    if tuple(stage) not in tables and of_command:  # one value for all stages of a command
        for key in of_command:
            tables[key][option] = value
        return
    if tuple(stage) not in tables:
        known = [".".join(key) for key in tables]
        raise UsageError(
            f"--set {setting}: {path} has no stage {'.'.join(stage)!r}; it has "
            f"{', '.join(known)}.{did_you_mean('.'.join(stage), known)}"
        )
    tables[tuple(stage)][option] = value


def _value(text: str) -> Any:
    """A number, truth value or list as in TOML; everything else is text."""
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    found = value["value"] if len(value) == 1 else text
    return found if isinstance(found, str | int | float | list) else text


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    """Options by their long names, or the short one if that is all; arguments by their names."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            found[str(parameter.name)] = parameter
        else:
            long = [o for o in parameter.opts if o.startswith("--")] or parameter.opts
            found |= {o.lstrip("-"): parameter for o in long}
    return found


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _deepest(parsed: Mapping[str, Any]) -> Key:
    """The one key of a single TOML statement, with its dots."""
    return tuple(_descend(parsed))


def _descend(value: Any) -> Iterator[str]:
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        yield name


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
