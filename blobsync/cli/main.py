"""``blobsync``: the commands; runs a command line and returns the exit code.

A command's module is imported only when the command is used. Each module has its commands in ``app``.

The command line accepts ACT's spellings of options: renames them, moves them after the command, or says what replaces
them. In ACT all of them came before the command. The names are those of ``parse_args`` in act/aml_client.py
(github.com/microsoft/act).
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from blobsync.base.errors import (
    BlobsyncError,
    FailureCode,
    LocalFileError,
    NothingMatchedError,
    StoppedError,
    UnknownClusterError,
    UsageError,
)
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import HIDDEN, redact, register_url
from blobsync.base.stopping import (
    enable_ctrl_c,
    ignore_ctrl_c_alone,
    is_interrupt,
    raise_what_was_lost,
    stop_on_other_signals,
)
from blobsync.cli.command_words import ENDS_WITH_A_COMMAND
from blobsync.cli.output import CommandInterruptedError, Console, Result
from blobsync.cli.session import Session, interrupted


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
        # There is no command to move them to.
        return [*before, *(word for given, _, values in moved for word in (given, *values)), *rest]
    command = rest.pop(0)
    for given, one, _ in moved:
        if command not in one.commands:
            known = ", ".join(one.commands)
            raise UsageError(f"{given} means nothing for {command}", hint=f"it is {one.name} of {known} now")
    own = [word for _, one, values in moved for word in (one.name, *values)]
    return [*before, command, *own, *(rest if command in ENDS_WITH_A_COMMAND else _renamed(rest))]


def _renamed(words: Sequence[str]) -> Iterator[str]:
    """Replace spellings after the command, too: ACT accepted no options there, but people type them."""
    is_option = True
    for word in words:
        is_option = is_option and word != "--"
        given, equals, value = word.partition("=")
        name = RENAMED.get(given) or (MOVED[given].name if given in MOVED else given)
        yield f"{name}{equals}{value}" if is_option else word


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Never raises, never shows a traceback for a user's mistake."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(_without_secrets(words), as_json="--json" in words[: _ours(words)])
    threading.excepthook = _report_crashed_thread
    try:
        stop_on_other_signals()
        ignore_ctrl_c_alone()
        enable_ctrl_c()
        return _run(words, console)
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - the last place that can turn a bug into a message
        return console.fail(_said_of(error, words))


def _run(words: Sequence[str], console: Console) -> int:
    session = Session(console)
    try:
        with session.held:
            from blobsync.cli.commands import run  # late: Typer takes a while, and Ctrl-C is answered meanwhile

            answer = run(in_our_words(words), session)
            raise_what_was_lost()
            # Remove the bar before printing the answer.
            session.display.close()
            if not isinstance(answer, Result):
                return int(answer or 0)
            code = console.show(answer)
            return answer.then() if answer.then else code
    except NothingMatchedError as error:
        error.suggest()
        raise
    except UnknownClusterError as error:
        from blobsync.ancestors.philly import philly_road  # late: the name is seldom wrong

        road = philly_road(error.root, error.name) if error.root else ""
        error.hint = f"{road} writes it; or kubernetes, aml, local" if road else error.hint
        raise
    finally:
        # What Ctrl-C left open, a second one or one that came with an error.
        session.held.close()
        if console.timed and not console.as_json:
            console.say(console.timed.sentence())


def _report_crashed_thread(args: threading.ExceptHookArgs) -> None:
    """Report an exception of a thread without its text, which may quote values."""
    from traceback import format_exception

    if args.exc_type is not SystemExit:
        sys.stderr.write(redact("".join(format_exception(args.exc_type, args.exc_value, args.exc_traceback))))


def _said_of(error: BaseException, words: Sequence[str]) -> BlobsyncError:
    """What users are told of an exception that ended the command."""
    if isinstance(error, BlobsyncError):
        return error
    if isinstance(error, StoppedError):
        return interrupted(error)
    if is_interrupt(error):
        return CommandInterruptedError("interrupted")
    if isinstance(error, OSError):
        return LocalFileError(f"{error.filename or 'the output'}: {error.strerror or error}")
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "azure":
        return UsageError(
            f"this needs {error.name}, which is not installed",
            hint="blobsync.pyz logs in with a SAS or an account key (blobsync login); an installation by pip has it",
        )
    if any(word.startswith("-vv") for word in words):
        from traceback import format_exc

        sys.stderr.write(redact(format_exc()))
    fault = BlobsyncError(
        f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}",
        hint="please report it with the output of the same command with -vv",
    )
    fault.code = FailureCode.INTERNAL
    return fault


def _ours(words: Sequence[str]) -> int:
    """How many words come before the command that the user's own words are, or before ``--``."""
    before, ends = "", False
    for number, word in enumerate(words):
        # The first word of the user's own command, unless it may be the value of an option.
        if word == "--" or (ends and not word.startswith("-") and not before.startswith("-")):
            return number
        before, ends = word, ends or word in ENDS_WITH_A_COMMAND
    return len(words)


# ``--env``, and ``-p``, maybe behind flags and with its value in the same word: ``-qp{...}``; not in the value of -c,
# -f, -n or -t.
_PARAM = pattern(r"(--(?:param|env)(?:=|\Z)|-[abdeg-moq-su-zA-Z]*p)(.*)", re.DOTALL)


def _without_secrets(words: Sequence[str]) -> list[str]:
    """The command as shown in ``--json``; the values of ``-p`` and ``--env`` may be passwords, and a URL may open what
    it names."""
    shown: list[str] = []
    before, is_value, ours = "", False, _ours(words)
    for number, word in enumerate(words):
        # Of a program's own words only the plain ones are taken for it.
        is_option = word.startswith("-") and (number < ours or word in ("-p", "--param"))
        param = _PARAM.fullmatch(word) if is_option else None
        if before == "--source" or word.startswith("--source="):
            register_url(word)
        if is_value:
            word = _hidden(before, word)
        elif param and param[2]:
            word = f"{param[1]}{_hidden(param[1], param[2])}"
        shown.append(redact(word))
        before, is_value = words[number], param is not None and not param[2]
    return shown


def _hidden(option: str, value: str) -> str:
    """What is shown of an option's value: of a variable its name."""
    name, sign, _ = value.partition("=")
    return f"{name}={HIDDEN}" if option.startswith("--env") and sign else HIDDEN


if __name__ == "__main__":
    sys.exit(main())
