"""Asks the user before anything is changed: for a confirmation, consent to a risk, or a text.

Questions go to standard error. The answer to a question for a secret is not shown. Ctrl-C at a question changes
nothing.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blobsync.base.errors import (
    BlobsyncError,
    OpenStateError,
    UntrustedDockerError,
    UntrustedLinkError,
    UntrustedStateError,
    UsageError,
)
from blobsync.base.redaction import redact_answer
from blobsync.cli.output import CommandInterruptedError
from blobsync.cli.text_width import cells, columns_of, wrapped

if TYPE_CHECKING:
    from blobsync.cli.session import Session
    from blobsync.project.api import Project


def confirm(
    session: Session, question: str, *, looks: str = "--dry-run shows what would happen", hint: str = ""
) -> None:
    """Ask a question; return if the answer is yes. ``looks``: how to see beforehand what is asked about; ``hint``: what
    to do without a terminal, where no option says yes.

    Raises ``UsageError`` on any other answer, or without a terminal, and ``CommandInterruptedError`` on Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"not a terminal, cannot ask: {question}", hint=hint or f"add -y to answer yes; {looks}")
    with session.display.paused():
        answer = _ask(question)
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, nothing was changed")


def _ask(question: str) -> str:
    with _answering():
        sys.stderr.write(wrapped(f"{question} [y/N]", columns_of(sys.stderr)) + " ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    # After Ctrl-D the cursor is still on the line of the prompt.
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    return answer


def agree(session: Session, error: BlobsyncError, project: Project | None) -> None:
    """Ask the user to agree to what ``error`` requires: a state folder, or links and options of ``project``. If the
    answer is yes, the command may go on; without a terminal, raises ``error``, whose hint is the command to agree."""
    if isinstance(error, UntrustedStateError):
        _agree_to_state(session, error)
    elif not sys.stdin.isatty() or project is None:
        raise error
    elif isinstance(error, UntrustedLinkError):
        for link, target in error.links:
            confirm(session, f"{link} points outside the project, to {target}: read and write there from now on?")
        project.trust_links(error.links)
    elif isinstance(error, UntrustedDockerError):
        words = shlex.join(error.options)
        confirm(session, f"docker.args reaches beyond the project: use all of {words} here from now on?")
        project.trust_docker(error.options)


def _agree_to_state(session: Session, error: UntrustedStateError) -> None:
    # The command may start again then, since a state folder is opened before anything is changed.
    if not sys.stdin.isatty():
        raise error
    try:
        confirm(session, error.question)
    except UsageError as refusal:
        raise UsageError(refusal.message, hint=error.hint) from error
    from blobsync.local.state_dir import close_state, trust_state

    settle = close_state if isinstance(error, OpenStateError) else trust_state
    settle(Path(error.root), session.environ)


def show_lines(session: Session, lines: Iterable[str], *, wraps: bool = True) -> None:
    """Show what a question is about."""
    with session.display.paused():
        columns = columns_of(sys.stderr) if wraps else 0
        sys.stderr.write("".join(f"{wrapped(line, columns)}\n" for line in lines))


Answer = TypeVar("Answer")


def can_ask(session: Session) -> bool:
    """Whether a person can be asked: on a terminal, without ``--json`` and ``--quiet``."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not session.json and not session.quiet


def ask_text(session: Session, question: str, default: str = "") -> str:
    """Ask for a text; returns ``default`` if it is empty. Raises ``CommandInterruptedError`` on Ctrl-C and Ctrl-D, and
    ``UsageError`` for a credential, which is taken off the screen."""
    columns = columns_of(sys.stderr)
    with session.display.paused(), _answering():
        asked = wrapped(f"{question} [{default}]:" if default else f"{question}:", columns) + " "
        sys.stderr.write(asked)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        answer = line.strip()
        if redact_answer(answer) != answer:
            if columns:
                rows = -(-cells(asked.rpartition("\n")[2] + line.rstrip("\n")) // columns)
                sys.stderr.write(f"\x1b[{rows}A\x1b[J")
            raise UsageError("that looks like a credential, which is asked for unseen", hint="paste it there")
    return answer or default


def ask_secret(session: Session, question: str) -> str:
    """Ask for a secret, which is not shown; without a terminal, reads standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.read().strip()
    from getpass import getpass

    with session.display.paused(), _answering():
        return getpass(wrapped(f"{question}:", columns_of(sys.stderr)) + " ", stream=sys.stderr).strip()


def ask_until(session: Session, ask: Callable[[], str], read: Callable[[str], Answer]) -> Answer:
    """Ask until ``read`` accepts the answer."""
    while True:
        try:
            return read(ask())
        except CommandInterruptedError:
            raise
        except BlobsyncError as error:
            session.note(error.message + (f" ({error.hint})" if error.hint else ""))


def ask_word(session: Session, question: str, *words: str) -> str:
    """Ask until the answer is one of these words; the first is that of no answer."""

    def read(answer: str) -> str:
        found = [word for word in words if word.lower() == answer.lower()]
        if not found:
            raise UsageError(f"'{answer}' is none of {', '.join(words)}")
        return found[0]

    return ask_until(session, lambda: ask_text(session, question, words[0]), read)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        sys.stderr.write("\n")
        raise CommandInterruptedError("interrupted at the prompt: nothing was changed") from stop
    except EOFError:
        sys.stderr.write("\n")
        raise CommandInterruptedError("no answer was given: nothing was changed") from None
