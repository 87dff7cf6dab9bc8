"""``blobsync``: the commands; runs a command line and returns the exit code.

A command's module is imported only when the command is used. Each module has ``register(app)``, which adds all of its
commands to a ``typer.Typer``.

The command line accepts ACT's spellings of options: renames them, moves them after the command, or says what replaces
them. In ACT all of them came before the command. The names are those of ``parse_args`` in act/aml_client.py
(github.com/microsoft/act).
"""

from __future__ import annotations

import atexit
import gc
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from blobsync.base.errors import (
    BlobsyncError,
    ExitCode,
    FailureCode,
    LocalFileError,
    NothingMatchedError,
    UsageError,
)
from blobsync.base.redaction import HIDDEN, redact
from blobsync.base.stopping import (
    enable_ctrl_c,
    ignore_ctrl_c_alone,
    is_interrupt,
    raise_what_was_lost,
    stop_on_other_signals,
    was_interrupted,
)
from blobsync.cli.output import Console, Result, forget_stdout, start_logging
from blobsync.cli.session import SETTINGS, CommandInterruptedError, Session, group_callback

if TYPE_CHECKING:
    from blobsync.project.api import Project


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


# Typer exports only the most specific parser errors; their base class covers all of them.
_PARSER_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__base__ is Exception)

# Everything after these words belongs to the command that the job runs.
_ENDS_WITH_A_COMMAND = ("submit", "local")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Never raises, never shows a traceback for a user's mistake."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(_without_secrets(words), as_json=_wants_json(words))
    stop_on_other_signals()
    ignore_ctrl_c_alone()
    threading.excepthook = _report_crashed_thread
    # At exit, Python's search for cycles takes a tenth of a short command's time.
    atexit.register(gc.freeze)
    try:
        enable_ctrl_c()
        return _run(words, console)
    except BrokenPipeError:
        # `blobsync ls -r data | head`: the reader has closed the pipe.
        forget_stdout()
        return ExitCode.DONE
    except KeyboardInterrupt:
        return console.fail(CommandInterruptedError("interrupted"))
    except BlobsyncError as error:
        return console.fail(error)
    except OSError as error:
        return console.fail(LocalFileError(f"{error.filename or 'the output'}: {error.strerror or error}"))
    except ModuleNotFoundError as error:
        return console.fail(_missing(error) or _fault(error, words))
    except Exception as error:  # noqa: BLE001 - the last place that can turn a bug into an error message
        if is_interrupt(error):
            return console.fail(CommandInterruptedError("interrupted"))
        return console.fail(_fault(error, words))


def _run(words: Sequence[str], console: Console) -> int:
    session = Session(words=console.command)
    is_logging = False

    def start(session: Session) -> None:
        nonlocal is_logging
        from blobsync.cli.progress import choose_listener  # late: help and completion show no progress

        console.as_json, console.quiet = session.json, session.quiet
        console.choose_colors(session.color, session.environ)
        session.display = session.listener = choose_listener(console, verbose=session.verbose, environ=session.environ)
        if session.timings:
            from blobsync.base.events import together
            from blobsync.cli.timings import PhaseTimes

            console.timed = PhaseTimes(session.began)
            session.listener = together(session.display, console.timed)
        session.held.callback(session.display.close)
        if (session.verbose or session.log_file) and not is_logging:
            start_logging(session.verbose, session.log_file, session.words)
            is_logging = True

    session.started, session.agree = start, _agree
    try:
        answer = _call(words, session)
        # Remove the bar before printing the answer.
        session.display.close()
        if not isinstance(answer, Result):
            return int(answer or 0)
        code = console.show(answer)
        return answer.then() if answer.then else code
    except NothingMatchedError as error:
        error.suggest()
        raise
    except typer.Abort:
        raise UsageError("nothing was confirmed, nothing was changed") from None
    except _PARSER_ERROR as error:
        raise _usage(error, words) from None
    finally:
        try:
            session.held.close()
        except KeyboardInterrupt:
            # Ctrl-C with another error, or a second Ctrl-C.
            session.held.close()
            raise
        if console.timed and not console.as_json:
            console.say(console.timed.sentence())


def _agree(session: Session, error: BlobsyncError, project: Project | None) -> None:
    from blobsync.cli.confirm import agree  # late: few commands ever ask

    agree(session, error, project)


def _call(words: Sequence[str], session: Session) -> Any:
    answer = build_app()(in_our_words(words), prog_name="blobsync", standalone_mode=False, obj=session)
    if answer == ExitCode.INTERRUPTED and was_interrupted():
        # Typer converts Ctrl-C to an exit code without a message.
        raise KeyboardInterrupt
    raise_what_was_lost()
    return answer


def _report_crashed_thread(args: threading.ExceptHookArgs) -> None:
    """Report an exception of a thread without its text, which may quote values."""
    from traceback import format_exception

    if args.exc_type is not SystemExit:
        sys.stderr.write(redact("".join(format_exception(args.exc_type, args.exc_value, args.exc_traceback))))


# The parser's names of types, and what users call them.
_PLAIN = {"valid int range": "whole number", "valid integer": "whole number", "valid float": "number"}


def _usage(error: Any, words: Sequence[str]) -> UsageError:
    """Convert the parser's error to ours."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else _typed_path(words)
    message = error.format_message().rstrip(".")
    for theirs, ours in _PLAIN.items():
        message = message.replace(f"is not a {theirs}", f"is not a {ours}")
    word, option = path.rpartition(" ")[2], getattr(error, "option_name", "")
    if word == "submit" and option == "-f":
        return UsageError(
            "-f names a cluster to copy from, and submit copies nothing",
            hint="a job file is given by --file: blobsync submit --file job.json",
        )
    if ctx and word in _ENDS_WITH_A_COMMAND and any(option in each.opts for each in ctx.find_root().command.params):
        return UsageError(
            f"{option} must come before {word}: later options belong to {word} or to your command",
            hint=f"blobsync {option} ... {word} ...",
        )
    takes = f"'{path} --help' shows what it takes"
    if ctx and option:
        from blobsync.cli.suggestions import option_hint

        hint = option_hint(option, getattr(error, "possibilities", None) or (), ctx.find_root())
        message, takes = message.partition(" (Possible options")[0], f"{hint}{takes}"
    return UsageError(message[:1].lower() + message[1:], hint=takes)


def _typed_path(words: Sequence[str]) -> str:
    """The command of a line in which an option lacks its value: the parser does not name it."""
    path, known = "blobsync", get_command(build_app())
    for word in words:
        commands = getattr(known, "commands", {})
        if word in commands:
            path, known = f"{path} {word}", commands[word]
    return path


def _missing(error: ModuleNotFoundError) -> BlobsyncError | None:
    """The error for an Azure package that is not installed; None for any other module."""
    if (error.name or "").partition(".")[0] != "azure":
        return None
    return UsageError(
        f"this needs {error.name}, which is not installed",
        hint="blobsync.pyz logs in with a SAS or an account key (blobsync login); an installation by pip has all of it",
    )


def _fault(error: Exception, words: Sequence[str]) -> BlobsyncError:
    if any(word.startswith("-vv") for word in words):
        from traceback import format_exc

        sys.stderr.write(redact(format_exc()))
    fault = BlobsyncError(
        f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}",
        hint="please report it with the output of the same command with -vv",
    )
    fault.code = FailureCode.INTERNAL
    return fault


def _wants_json(words: Sequence[str]) -> bool:
    """Whether a command line that cannot be parsed contains ``--json``."""
    before, ends = "", False
    for word in words:
        if word == "--json":
            return True
        # The first word of the user's own command, unless it may be the value of an option.
        if word == "--" or (ends and not word.startswith("-") and not before.startswith("-")):
            return False
        before, ends = word, ends or word in _ENDS_WITH_A_COMMAND
    return False


def _without_secrets(words: Sequence[str]) -> list[str]:
    """The command as shown in ``--json``; the value of ``-p`` may be a password."""
    shown: list[str] = []
    for before, word in zip(["", *words], words):  # noqa: B905 - the first list is longer by one on purpose
        if before in ("-p", "--param"):
            word = HIDDEN
        elif word.startswith("--param="):
            word = f"--param={HIDDEN}"
        shown.append(redact(word))
    return shown


if __name__ == "__main__":
    sys.exit(main())
