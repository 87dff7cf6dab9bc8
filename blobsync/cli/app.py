"""The command tree. A command's module is imported only when the command is used.

Each module has ``register(app)``, which adds all of its commands to a ``typer.Typer``.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from blobsync.base.errors import UsageError
from blobsync.base.failure_codes import ExitCode
from blobsync.cli.options import SETTINGS, group_callback
from blobsync.cli.session import Session


class Word(NamedTuple):
    """One command: its names, the first being the main one, its module, and its line of ``--help``."""

    names: tuple[str, ...]
    module: str
    help: str


SECTIONS: tuple[tuple[str, tuple[Word, ...]], ...] = (
    (
        "Data",
        (
            Word(("status",), "status", "Show what is in sync, and what is not, for all folder entries."),
            Word(("u", "upload"), "copy", "Upload files or folders; with -f: copy them from another cluster."),
            Word(("d", "download"), "copy", "Download files or folders."),
            Word(("plan",), "copy", "Show what u or d would do with each file, and why."),
            Word(("apply",), "copy", "Carry out a plan saved with 'plan --save'."),
            Word(("verify",), "copy", "Compare the local files, the blobs and the record of both."),
            Word(("history",), "history", "Show what was transferred, removed and submitted, and by whom."),
            Word(("ls",), "look", "List blobs, or the folder entries if no PATH is given."),
            Word(("du",), "look", "Count the blobs and bytes below a path."),
            Word(("stat",), "look", "Show one path: the local file, the blob, and the record."),
            Word(("cat",), "content", "Print the bytes of a blob."),
            Word(("diff",), "content", "Show how a local file differs from its blob, line by line."),
            Word(("resolve",), "look", "Show where a path lives, and why."),
            Word(("url",), "look", "Make a URL that opens a blob for a limited time."),
            Word(("rm",), "remove", "Delete blobs, after asking."),
        ),
    ),
    (
        "Code and jobs",
        (
            Word(("init", "initi"), "code", "Pack the project's code and upload it, for jobs to run."),
            Word(("initc", "initic"), "code", "Compile in the cluster's docker image, then run init."),
            Word(("submit",), "jobs", "Run a command on the cluster."),
            Word(("local",), "jobs", "Run a command as a job on this machine, in the foreground."),
            Word(("q", "query"), "jobs", "List jobs, or show some with their logs."),
            Word(("qq",), "jobs", "List queued jobs."),
            Word(("qr",), "jobs", "List running jobs."),
            Word(("qf", "f", "failed"), "jobs", "List failed jobs."),
            Word(("logs",), "jobs", "Print a job's logs; -F follows them."),
            Word(("outputs",), "outputs", "List what a job has written, make links to it, or download it."),
            Word(("a", "abort"), "jobs", "Stop jobs."),
            Word(("resubmit",), "jobs", "Submit recorded jobs again, here or on another cluster."),
            Word(("scale",), "jobs", "Change the number of nodes of an elastic job."),
            Word(("ssh",), "jobs", "Open a shell where a job runs."),
            Word(("tunnel",), "tunnel", "Open a port of a job's node here, or a tunnel with a name."),
            Word(("summary", "s"), "jobs", "Show the free capacity of the cluster."),
            Word(("blame",), "jobs", "Show who uses the cluster."),
            Word(("parse",), "jobs", "Find known causes of failure in a job's logs."),
            Word(("watch",), "jobs", "Submit a job again when the failure looks temporary."),
        ),
    ),
    (
        "Set-up",
        (
            Word(("web",), "web", "Show the project, its transfers and jobs in the browser."),
            Word(("config",), "settings", "Check the configuration files, or create them."),
            Word(("login",), "login", "Store your own SAS or account key, outside the project."),
            Word(("convert",), "convert", "Write files of Batch AI or Philly as a cluster file and a command."),
            Word(("compute",), "compute", "List, create, scale and remove compute clusters of Azure ML."),
            Word(("doctor",), "programs", "Check everything that transfers need, and show how to fix it."),
            Word(("azcopy",), "programs", "Install azcopy, or show which one is used."),
            Word(("emulator",), "settings", "Start or stop a local blob server."),
            Word(("schema",), "schema", "Print what a command prints with --json, as a JSON schema."),
            Word(("demo",), "demo", "Try the main commands on a real data set, on this machine."),
        ),
    ),
)

_PACKAGE = "blobsync.cli"


class Offered(NamedTuple):
    """A suggestion of the shell completion, with the attributes that the parser's shell classes read."""

    value: str
    help: str
    type: str = "plain"


class _Commands(MutableMapping[str, Any]):
    """Name -> command; each is built on first use."""

    def __init__(self) -> None:
        self._words = {name: word for _, words in SECTIONS for word in words for name in word.names}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(self._words[name])
        return self._built[name]

    def __setitem__(self, name: str, built: Any) -> None:
        self._built[name] = built

    def __delitem__(self, name: str) -> None:
        del self._words[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)


def _build(word: Word) -> Any:
    """Build the command ``word`` alone, of all commands that its module registers."""
    module = import_module(f"{_PACKAGE}.{word.module}")
    app = typer.Typer(**SETTINGS)
    module.register(app)
    name = word.names[0]
    app.registered_commands = [info for info in app.registered_commands if info.name == name]
    app.registered_groups = [info for info in app.registered_groups if info.name == name]
    if app.registered_groups:
        return get_command(app).commands[name]  # type: ignore[attr-defined]
    return get_command(app)


class CommandTree(TyperGroup):
    """The top level: builds commands lazily and lists them in sections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The words of the table with their help; builds no command."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            Offered(name, word.help)
            for _, words in SECTIONS
            for word in words
            for name in word.names
            if name.startswith(incomplete)
        ]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in the base class; the error for an unknown word suggests a command."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            from blobsync.cli.suggestions import command_hint

            known = {name: word.help for _, words in SECTIONS for word in words for name in word.names}
            raise UsageError(f"no such command '{args[0]}'", hint=command_hint(args, known))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The command list of ``--help``, in the order and with the texts of the table above."""
        for title, words in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(", ".join(word.names), word.help) for word in words])


def _start(ctx: typer.Context, version: bool, **options: Any) -> None:
    """Data, code and jobs between a project and its clusters.

    Start with 'blobsync config new', then 'blobsync u data/voc20' here and 'blobsync d data/voc20' there.
    'blobsync COMMAND --help' explains each command with examples.
    """
    session: Session = ctx.obj
    session.merge(options)
    if version:
        from blobsync import __version__

        typer.echo(f"blobsync {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        if session.json:
            raise UsageError("no command given", hint="'blobsync --help' lists them")
        typer.echo(ctx.get_help())
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line as one Typer app."""
    app = typer.Typer(
        cls=CommandTree, invoke_without_command=True, **{**SETTINGS, "add_completion": True}, epilog=_EPILOG
    )
    app.callback()(group_callback(_start))
    return app


_EPILOG = f"Exit codes: {', '.join(f'{int(code)} {code.sentence}' for code in ExitCode)}."
