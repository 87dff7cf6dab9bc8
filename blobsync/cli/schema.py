"""``schema``: prints the JSON schema of a command's ``--json`` output."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from blobsync.base.errors import UsageError
from blobsync.cli.command_words import WORDS
from blobsync.cli.output import Result
from blobsync.cli.session import NO_CLUSTER, Commands, Session, argument, registered


def complete_documented(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The commands that print a document; after the name of a group, its subcommands."""
    from blobsync.cli.documents.schemas import answers

    typed = " ".join([*(ctx.params.get("words") or ()), ""])
    left = (name.removeprefix(typed) for name in answers() if name.startswith(typed))
    return [(word, "") for word in dict.fromkeys(each.partition(" ")[0] for each in left)]


app = Commands()


@app.command("schema", takes=NO_CLUSTER)
def schema(
    session: Session,
    words: Annotated[
        list[str] | None,
        argument(
            metavar="[COMMAND]",
            help="A command; without one, all of them are listed.",
            autocompletion=complete_documented,
        ),
    ] = None,
) -> Result:
    """Print the JSON schema of what a command prints with --json.

    It holds for this version of blobsync. Its $id stays the same as long as scripts that read the document need no
    change.

    \b
      blobsync schema                  the commands that have one
      blobsync schema u
      blobsync schema compute ls
    """
    from blobsync.cli.documents.schemas import answers, document_schema

    known = answers()
    if not words:
        return Result({"commands": list(known), "schema": None}, list(known))
    name = " ".join([WORDS[words[0]].names[0] if words[0] in WORDS else words[0], *words[1:]])
    if name not in known:
        said = f"'{name}' prints no JSON document" if _is_command(name) else f"no such command '{name}'"
        raise UsageError(said, hint="'blobsync schema' lists the commands that print a JSON document")
    found = document_schema(name, known[name])
    return Result({"commands": [name], "schema": found}, json.dumps(found, indent=1).splitlines())


def _is_command(name: str) -> bool:
    """Whether it is a command, by its main name, a group, or a command of one."""
    first, _, rest = name.partition(" ")
    word = WORDS.get(first)
    if word is None:
        return False
    group = registered(word).groups.get(first)
    return not rest or (group is not None and rest in group.commands)
