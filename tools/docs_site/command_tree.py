"""The commands as data, read from the Typer tree that the command line itself is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.main import get_command

from blobsync.cli.command_words import SECTIONS
from blobsync.cli.commands import build_app


@dataclass(frozen=True)
class CommandHelp:
    """One command. ``names`` are those of the word; ``rows`` are (option, meaning); ``examples`` have no margin."""

    names: tuple[str, ...]
    section: str
    usage: str
    text: tuple[str, ...]
    examples: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def root_command() -> CommandHelp:
    """``blobsync`` itself, with the options that all commands take."""
    return _read(get_command(build_app()), ("blobsync",), "", "blobsync")


def commands() -> Iterator[CommandHelp]:
    """Each command, in the order of the help; those of a group follow it."""
    tree: Any = get_command(build_app())
    for section, words in SECTIONS:
        for word in words:
            found = tree.commands[word.names[0]]
            yield _read(found, word.names, section, f"blobsync {word.names[0]}")
            for name, inner in getattr(found, "commands", {}).items():
                yield _read(inner, (f"{word.names[0]} {name}",), section, f"blobsync {word.names[0]} {name}")


def _read(found: Any, names: tuple[str, ...], section: str, called: str) -> CommandHelp:
    context = typer.Context(found, info_name=called)
    paragraphs = [part.strip("\n") for part in (found.help or "").split("\n\n")]
    examples = [line for part in paragraphs if part.startswith("\b") for line in part.splitlines()[1:]]
    rows = [row for row in (each.get_help_record(context) for each in found.get_params(context)) if row]
    return CommandHelp(
        names,
        section,
        " ".join(found.get_usage(context).removeprefix("Usage: ").split()),
        tuple(" ".join(part.split()) for part in paragraphs if part and not part.startswith("\b")),
        tuple(line.strip() for line in examples),
        tuple((option, " ".join(meaning.split())) for option, meaning in rows),
    )
