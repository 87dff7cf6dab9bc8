"""Before anything is touched: the question that a person answers, and what Ctrl-C means until then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blobsync.base.errors import BlobsyncError, TransferCancelledError, UsageError
from blobsync.base.failure_codes import FailureCode
from blobsync.cli.columns import columns_of, wrapped

if TYPE_CHECKING:
    from blobsync.cli.session import Session


class CommandInterruptedError(BlobsyncError):
    """Ctrl-C ends the command, in words. The parser would turn a ``KeyboardInterrupt`` into an error of its own."""

    code = FailureCode.CANCELLED


def interrupted(stop: KeyboardInterrupt) -> CommandInterruptedError:
    """What Ctrl-C means for a command that was at work."""
    if isinstance(stop, TransferCancelledError):
        return CommandInterruptedError(stop.message, hint=stop.hint)
    return CommandInterruptedError("interrupted", hint="run the same command again to finish")


@contextmanager
def looking() -> Iterator[None]:
    """Around what only looks: Ctrl-C raises ``CommandInterruptedError``, which says so."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise interrupted_looking() from stop


def interrupted_looking() -> CommandInterruptedError:
    """What Ctrl-C means while nothing has been touched."""
    return CommandInterruptedError("interrupted before the transfer: nothing was changed")


def confirm(session: Session, question: str) -> None:
    """Return when the answer is yes.

    Raises ``UsageError`` on any other answer, or without a terminal, and ``CommandInterruptedError`` on Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"not a terminal, cannot ask: {question}", hint="add -y to answer yes; --dry-run shows what would happen"
        )
    with session.listener.aside():
        answer = _ask(question)
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, nothing was changed")


def _ask(question: str) -> str:
    answer = ""
    sys.stderr.write(wrapped(f"{question} [y/N]", columns_of(sys.stderr)) + " ")
    sys.stderr.flush()
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt as stop:
        raise CommandInterruptedError("interrupted at the prompt: nothing was changed") from stop
    finally:
        # After Ctrl-C and Ctrl-D the cursor is still on the prompt's line.
        if not answer.endswith("\n"):
            sys.stderr.write("\n")
    return answer
