"""The options and arguments of commands, as their functions declare them; and the reader of plain command lines.

Typer builds help, completion and error messages from them, but importing it and building one command take a quarter of
the CPU time of a short upload. So a command line in which each word is an argument, an option's whole name or its
value is read here. Anything else gets None, and Typer reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from blobsync.base.patterns import pattern

# Name, annotation with its option or argument, default.
OptionRow = tuple[str, Any, Any]
# The default of a parameter that has to be given.
REQUIRED: Any = ...


class Declared(NamedTuple):
    """An option or an argument; ``names`` is empty for an option that is named as its parameter."""

    is_option: bool
    names: tuple[str, ...]
    # The keywords of typer.Option and typer.Argument.
    settings: Mapping[str, Any]

    def having(self, **settings: Any) -> Declared:
        """The same with more settings."""
        return self._replace(settings={**self.settings, **settings})


def option(*names: str, **settings: Any) -> Any:
    """Declare an option in an ``Annotated``; the keywords are those of ``typer.Option``."""
    return Declared(True, names, settings)


def argument(**settings: Any) -> Any:
    """Declare an argument in an ``Annotated``; the keywords are those of ``typer.Argument``."""
    return Declared(False, (), settings)


class _Plain(NamedTuple):
    """A parameter that is read here: ``read`` makes a value of a word, or None where only Typer can tell."""

    name: str
    default: Any
    read: Callable[[str], Any] | None
    is_list: bool
    settings: Mapping[str, Any]

    @property
    def is_flag(self) -> bool:
        return self.read is None


_WHOLE = pattern(r"\d{1,18}", re.ASCII)
_NUMBER = pattern(r"\d{1,12}(?:\.\d{1,12})?", re.ASCII)
# These keywords change nothing of how a word is read, or are obeyed here.
_READ_SETTINGS = frozenset(("help", "metavar", "autocompletion", "hidden", "show_default", "count", "min", "max"))


def _whole(word: str) -> int | None:
    return int(word) if _WHOLE.fullmatch(word) else None


def _number(word: str) -> float | None:
    return float(word) if _NUMBER.fullmatch(word) else None


def _never(word: str) -> None:
    """A path of the file system is looked at by Typer."""
    return


_READERS: Mapping[Any, tuple[Callable[[str], Any] | None, bool]] = {
    bool: (None, False),
    **dict.fromkeys((str, str | None), (str, False)),
    **dict.fromkeys((list[str], list[str] | None), (str, True)),
    **dict.fromkeys((int, int | None), (_whole, False)),
    **dict.fromkeys((float, float | None), (_number, False)),
    **dict.fromkeys((Path, Path | None), (_never, False)),
}


def read_plain(
    words: Sequence[str], rows: Iterable[OptionRow], *, before_a_command: bool = False
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """The values of all parameters, and the words that are left; None if Typer has to read this command line.

    Words are left with ``before_a_command``: from the first one on that is neither an option nor its value.
    """
    options: dict[str, _Plain] = {}
    arguments: list[_Plain] = []
    values: dict[str, Any] = {}
    for row in rows:
        found = _plain(row)
        if found is None:
            return None
        plain, names = found
        values[plain.name] = plain.default
        options |= dict.fromkeys(names, plain)
        arguments += [] if names else [plain]
    left = list(words)
    others: list[str] = []
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            others.append(word)
            if before_a_command:
                return values, [*others, *left]
        elif not _read_option(word, left, options, values):
            return None
    return (values, ()) if _place(others, arguments, values) else None


def _plain(row: OptionRow) -> tuple[_Plain, tuple[str, ...]] | None:
    """The parameter, with its names if it is an option."""
    name, annotation, default = row
    kind, declared = get_args(annotation)
    reader = _READERS.get(kind)
    if reader is None or not _READ_SETTINGS.issuperset(declared.settings):
        return None
    read, is_list = (None, False) if declared.settings.get("count") else reader
    names = declared.names or ((f"--{name.replace('_', '-')}",) if declared.is_option else ())
    # A flag without a name of its own has a second one that turns it off.
    if (read is None and not declared.names) or (is_list and default not in (None, REQUIRED)):
        return None
    return _Plain(name, default, read, is_list, declared.settings), names


def _read_option(word: str, left: list[str], options: Mapping[str, _Plain], values: dict[str, Any]) -> bool:
    """Read the option ``word``, and its value if that follows; False if Typer has to."""
    name, equals, text = word.partition("=")
    option = options.get(name)
    if option is None or (equals and not name.startswith("--")):
        return False
    if option.is_flag:
        values[option.name] = values[option.name] + 1 if option.settings.get("count") else True
        return not equals
    if not equals:
        if not left or left[0].startswith("-"):
            return False
        text = left.pop(0)
    return _read_value(option, text, values)


def _read_value(plain: _Plain, text: str, values: dict[str, Any]) -> bool:
    value = plain.read(text) if plain.read else None
    least, most = plain.settings.get("min"), plain.settings.get("max")
    if value is None or (least is not None and value < least) or (most is not None and value > most):
        return False
    values[plain.name] = [*(_given(values, plain)), value] if plain.is_list else value
    return True


def _given(values: Mapping[str, Any], plain: _Plain) -> list[Any]:
    before = values[plain.name]
    return before if isinstance(before, list) else []


def _place(words: Sequence[str], arguments: Sequence[_Plain], values: dict[str, Any]) -> bool:
    """Give the words to the arguments, the last of which may take several; False if they do not fit."""
    left = list(words)
    for number, each in enumerate(arguments):
        if each.is_list and number + 1 < len(arguments):
            return False
        for _ in range(len(left) if each.is_list else 1):
            if left and not _read_value(each, left.pop(0), values):
                return False
    return not left and REQUIRED not in values.values()
