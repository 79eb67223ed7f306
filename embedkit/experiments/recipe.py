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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from embedkit.errors import DamagedError, RecipeError, UsageError, did_you_mean, first_line

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
        UsageError: there is no such file, or a setting has no place in it.
        RecipeError: a name, type or value is wrong; the message says in which line, and what the
            nearest right name is.
        DamagedError: it is no TOML.
    """
    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text)
        lines = key_lines(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} cannot be read as UTF-8: {first_line(error)}.") from error
    except tomllib.TOMLDecodeError as error:
        raise DamagedError(f"{path} is not valid TOML: {first_line(error)}.") from error
    except RecursionError as error:
        raise DamagedError(f"{path} is not valid TOML: nested too deeply.") from error
    return _Reader(path, content, lines, commands).stages(settings)


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
        end = at + 1
        while (parsed := _parsed("\n".join(lines[at:end]))) is None and end < len(lines):
            end += 1
        if parsed:
            key = _deepest(parsed)
            if lines[at].lstrip().startswith("["):
                table = key
            else:
                key = (*table, *key)
            found[key] = at + 1
        at = end
    return found


class _Reader:
    def __init__(
        self, path: Path, content: dict[str, Any], lines: Mapping[Key, int],
        commands: Mapping[str, click.Command],
    ) -> None:  # fmt: skip
        self._path, self._content, self._lines, self._commands = path, content, lines, commands
        self._set: dict[str, Any] = {}
        self._defaults: dict[str, Any] = {}
        self._heads: set[Key] = set()

    def stages(self, settings: Sequence[str]) -> tuple[Stage, ...]:
        tables = self._tables()
        values, self._defaults = self._table(_SET), self._table(_DEFAULTS)
        for setting in settings:
            _override(setting, tables, values, self._path)
        for name, value in values.items():
            if isinstance(value, dict):
                raise self._error((_SET, name), f"[{_SET}] holds values, not tables.")
            self._set[name] = self._filled(value, (_SET, name), self._set)
        self._check_defaults({command for command, *_ in tables})
        makers: dict[Path, str] = {}
        stages = []
        for key, table in tables.items():
            stage = self._stage(key, table)
            stages.append(stage)
            for name in set(stage.outputs) & set(stage.arguments):
                maker = makers.setdefault((stage.folder / name).resolve(), stage.name)
                if maker != stage.name:
                    raise self._error(key, f"it would replace {name}, which {maker} makes.")
        return tuple(stages)

    def _table(self, name: str) -> dict[str, Any]:
        table = self._content.get(name, {})
        if not isinstance(table, dict):
            raise self._error((name,), f"{name} is a table: [{name}], then one value in a line.")
        return table

    def _tables(self) -> dict[Key, dict[str, Any]]:
        """Options of every stage, in the order of the file."""
        tables: dict[Key, dict[str, Any]] = {}
        for command, table in self._content.items():
            if command in (_SET, _DEFAULTS) or (command in _TITLES and isinstance(table, str)):
                continue
            self._check_name((command,), command, self._commands, "there is no command")
            if not isinstance(table, dict):
                raise self._error((command,), f"a stage is a table: [{command}].")
            named = {name: inner for name, inner in table.items() if isinstance(inner, dict)}
            options = {name: value for name, value in table.items() if name not in named}
            if options or (command,) in self._lines:
                tables[command,] = options
            tables |= {(command, name): inner for name, inner in named.items()}
        if not tables:
            raise RecipeError(f"{self._path} has no stage. Write one, such as [extract].")
        self._heads = set(tables)
        return dict(sorted(tables.items(), key=lambda item: self._line(item[0])))

    def _check_defaults(self, used: set[str]) -> None:
        known = {name for command in used for name in _parameters(self._commands[command])}
        for name, value in self._defaults.items():
            if isinstance(value, dict):
                self._check_name((_DEFAULTS, name), name, self._commands, "there is no command")
            else:
                self._check_name((_DEFAULTS, name), name, known, "no stage has an option")

    def _check_name(self, key: Key, name: str, known: Collection[str], message: str) -> None:
        if name not in known:
            near = did_you_mean(name, [*known, *((_SET, _DEFAULTS) if len(key) == 1 else ())])
            raise self._error(key, f"{message} {name!r}.{near}")

    def _options(self, key: Key, own: Mapping[str, Any]) -> Iterator[tuple[str, Any, Key]]:
        """Name, value and key in the file of every option of a stage, defaults first."""
        known, defaults = _parameters(self._commands[key[0]]), self._defaults
        common = {n: v for n, v in defaults.items() if n in known and not isinstance(v, dict)}
        of_command = defaults.get(key[0], {})
        if not isinstance(of_command, dict):  # an option that is called as a command is
            of_command = {}
        found: dict[str, tuple[Any, Key]] = {}
        for table, where in ((common, (_DEFAULTS,)), (of_command, (_DEFAULTS, key[0])), (own, key)):
            found |= {name: (value, (*where, name)) for name, value in table.items()}
        for name, (value, place) in found.items():
            if name != _MAKES:
                self._check_name(place, name, known, f"embedkit {key[0]} has no option")
            yield name, self._filled(value, place, {_STAGE: key[-1], **self._set}), place

    def _stage(self, key: Key, table: Mapping[str, Any]) -> Stage:
        command = self._commands[key[0]]
        known = _parameters(command)
        arguments: list[str] = []
        options: list[str] = []
        values: list[str] = []
        outputs: list[str] = []
        for name, value, place in self._options(key, table):
            if value in ("", []):
                continue
            items = [str(v) for v in (value if isinstance(value, list) else [value])]
            (outputs if name in (*OUTPUTS, _MAKES) else values).extend(items)
            if name != _MAKES:
                words = self._words(known[name], name, value, place)
                argument = isinstance(known[name], click.Argument)
                (arguments if argument else options).extend(words)
        made = (*arguments, *options)
        self._check(key, command, made, known)
        overwrite = "overwrite" in known and "--overwrite" not in options
        return Stage(
            ".".join(key), key[0], made, self._path.resolve().parent, tuple(values),
            tuple(outputs), overwrite,
        )  # fmt: skip

    def _filled(self, value: Any, place: Key, known: Mapping[str, Any]) -> Any:
        """A value with the names in braces replaced; one that is a name alone keeps its type."""
        if isinstance(value, list):
            return [self._filled(item, place, known) for item in value]
        if not isinstance(value, str):
            return value
        for name in _PLACE.findall(value):
            if name not in known:
                near = did_you_mean(name, known)
                raise self._error(place, f"{{{name}}} is not in [{_SET}] above.{near}")
        whole = _PLACE.fullmatch(value)
        return known[whole[1]] if whole else _PLACE.sub(lambda m: str(known[m[1]]), value)

    def _words(self, known: click.Parameter, name: str, value: Any, place: Key) -> list[str]:
        """The words of an argument or option on the command line."""
        items = value if isinstance(value, list) else [value]
        flag = isinstance(known, click.Option) and known.is_flag
        optional = not flag and isinstance(getattr(known, "flag_value", None), str)
        option = max(known.opts, key=len)
        if flag or (optional and isinstance(value, bool)):
            if not isinstance(value, bool):
                raise self._error(place, f"{name}: expected true or false, not {value!r}.")
            return [option] if value else list(known.secondary_opts[:1])
        for item in items:
            self._check_type(known, name, item, place)
        if isinstance(known, click.Argument):
            if known.nargs == 1 and len(items) != 1:
                raise self._error(place, f"{name}: expected one value, not {len(items)}.")
            return [str(item) for item in items]
        if isinstance(value, list) and known.multiple:
            return [word for item in items for word in (option, str(item))]
        text = ",".join(map(str, items))
        return [f"{option}={text}"] if optional or text.startswith("-") else [option, text]

    def _check_type(self, known: click.Parameter, name: str, value: Any, place: Key) -> None:
        kinds: tuple[type, ...] = (str, int, float)
        expected = "text"
        if isinstance(known.type, click.types.IntParamType):
            kinds, expected = (int,), "an integer"
        elif isinstance(known.type, click.types.FloatParamType):
            kinds, expected = (int, float), "a number"
        if type(value) not in kinds:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            raise self._error(place, f"{name}: expected {expected}, not {shown}.")
        if "\0" in str(value):
            raise self._error(place, f"{name}: {value!r:.60} holds a NUL, as no name does.")

    def _check(
        self, key: Key, command: click.Command, arguments: Sequence[str],
        known: Mapping[str, click.Parameter],
    ) -> None:  # fmt: skip
        """Let the command itself parse its options, without running it."""
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
        """The line of a key, or of the table that it is in."""
        while key and key not in self._lines:
            key = key[:-1]
        return self._lines.get(key, 1)

    def _error(self, key: Key, message: str) -> RecipeError:
        table = key if key in self._heads else key[:-1] or key
        where = f" [{'.'.join(table)}]" if table[0] in self._content else ""
        return RecipeError(f"{self._path}:{self._line(key)}:{where} {message}")


def _override(
    setting: str, tables: Mapping[Key, dict[str, Any]], values: dict[str, Any], path: Path
) -> None:
    """Apply one ``--set KEY=VALUE`` to a stage, to all stages of a command or to ``[set]``."""
    name, equals, text = setting.partition("=")
    *stage, option = name.strip().split(".")
    if not equals or not option:
        raise UsageError(f"--set {setting}: expected KEY=VALUE.")
    if stage:
        what, wanted, known = "stage ", ".".join(stage), [".".join(key) for key in tables]
        targets = [table for key, table in tables.items() if ".".join(key) == wanted]
        targets = targets or [table for key, table in tables.items() if key[0] == wanted]
    else:
        what, wanted, known = f"[{_SET}] value ", option, list(values)
        targets = [values] if option in values else []
    if not targets:
        raise UsageError(
            f"--set {setting}: {path} has no {what}{wanted!r}; it has "
            f"{', '.join(known) or 'nothing'}.{did_you_mean(wanted, known)}"
        )
    for table in targets:
        table[option] = _value(text)


def _value(text: str) -> Any:
    """A number, truth value or list as in TOML; everything else is text."""
    value = (_parsed(f"value = {text}") or {}).get("value")
    return value if isinstance(value, str | int | float | list) else text


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


def _deepest(value: Any) -> Key:
    """The one key of a single TOML statement, with its dots."""
    key: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        key.append(name)
    return tuple(key)
