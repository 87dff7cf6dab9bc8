"""Accepts ACT's spellings of options: renames them, moves them after the command, or says what replaces them.

In ACT all of them came before the command. The names are those of ``parse_args`` in act/aml_client.py
(github.com/microsoft/act).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from blobsync.base.errors import UsageError


class OwnOption(NamedTuple):
    """A present option of a command: its name, whether a value follows, and the commands that have it."""

    name: str
    has_value: bool
    commands: tuple[str, ...]


_LISTS = ("q", "query", "qq", "qr", "qf", "f", "failed")
_RESUBMIT_TO = OwnOption("-t", True, ("resubmit",))
_DRY_RUN = OwnOption("--dry-run", False, ("submit",))

RENAMED: Mapping[str, str] = {"--from_cluster": "--from-cluster", "--num_gpu": "--num-gpu"}
MOVED: Mapping[str, OwnOption] = {
    "-rt": _RESUBMIT_TO,
    "--resubmit_to": _RESUBMIT_TO,
    "--max": OwnOption("--max", True, _LISTS),
    "-single": OwnOption("--single", False, ("submit",)),
    "-no-s": _DRY_RUN,
    "--real_submit": _DRY_RUN,
    "-no-wl": OwnOption("--no-logs", False, ("q", "query")),
}
_COMPILE = "what compile.aml.sh gets is a key of the cluster file: -p '{compile_args: ...}'"
_COLLECTION = "there is no database of collections any more"
_UNUSED = "ACT did not use it"
GONE: Mapping[str, str] = {
    "-ca": _COMPILE,
    "--compile_args": _COMPILE,
    "-ic": _COLLECTION,
    "--inject_collection": _COLLECTION,
    "-no-dt": "use blobsync q without an ID, or blobsync history --jobs, which asks no cluster",
    "-no-lf": "q fetches only what is new of each log",
    "-no-wg": _UNUSED,
    "--with_gpu": _UNUSED,
    "-no-m": _UNUSED,
    "--with_meta": _UNUSED,
}

_WITH_VALUE = frozenset({"-c", "--cluster", "-f", "--from-cluster", "-p", "--param", "-n", "--num-gpu"})
# These are followed by a command of the user's own.
_COMMANDS_OF_USERS = ("submit", "local")


def in_our_words(words: Sequence[str]) -> list[str]:
    """The command line with ACT's spellings replaced. Raises ``UsageError`` for options that no longer exist."""
    before: list[str] = []
    moved: list[tuple[str, OwnOption, list[str]]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        given, equals, value = rest.pop(0).partition("=")
        if given in GONE:
            raise UsageError(f"{given} is gone: {GONE[given]}", hint=f"leave out {given}")
        option = RENAMED.get(given, given)
        if given in MOVED:
            takes = MOVED[given].has_value
            values = [value] if equals else [rest.pop(0)] if takes and rest else []
            moved.append((given, MOVED[given], values))
            continue
        before.append(f"{option}{equals}{value}")
        if option in _WITH_VALUE and not equals and rest:
            before.append(rest.pop(0))
    if not rest or rest[0] == "--":
        return [*before, *_not_moved(moved), *rest]
    command = rest.pop(0)
    for given, one, _ in moved:
        if command not in one.commands:
            known = ", ".join(one.commands)
            raise UsageError(f"{given} means nothing for {command}", hint=f"it is {one.name} of {known} now")
    own = [word for _, one, values in moved for word in (one.name, *values)]
    return [*before, command, *own, *(rest if command in _COMMANDS_OF_USERS else _renamed(rest))]


def _not_moved(moved: Sequence[tuple[str, OwnOption, list[str]]]) -> Iterator[str]:
    """The options as they were, if there is no command to move them to."""
    for given, _, values in moved:
        yield from (given, *values)


def _renamed(words: Sequence[str]) -> Iterator[str]:
    """Replace spellings after the command, too: ACT accepted no options there, but people type them."""
    is_option = True
    for word in words:
        is_option = is_option and word != "--"
        given, equals, value = word.partition("=")
        name = RENAMED.get(given) or (MOVED[given].name if given in MOVED else given)
        yield f"{name}{equals}{value}" if is_option else word
