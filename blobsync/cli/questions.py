"""Questions whose answer is a text: on standard error, and the answer of a secret one is never shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.cli.confirm import CommandInterruptedError

if TYPE_CHECKING:
    from blobsync.cli.session import Session

T = TypeVar("T")


def can_ask(session: Session) -> bool:
    """Whether a person is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not session.json and not session.quiet


def ask_text(session: Session, question: str, default: str = "") -> str:
    """The answer, or ``default`` where it is empty. Raises ``CommandInterruptedError`` on Ctrl-C and Ctrl-D."""
    with session.listener.aside(), _answering():
        sys.stderr.write(f"{question} [{default}]: " if default else f"{question}: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise EOFError
    return line.strip() or default


def ask_secret(session: Session, question: str) -> str:
    """An answer that the terminal does not show; without a terminal, what standard input holds."""
    if not sys.stdin.isatty():
        return sys.stdin.read().strip()
    from getpass import getpass

    with session.listener.aside(), _answering():
        return getpass(f"{question}: ", stream=sys.stderr).strip()


def ask_until(session: Session, ask: Callable[[], str], read: Callable[[str], T]) -> T:
    """Ask again until ``read`` takes the answer."""
    while True:
        try:
            return read(ask())
        except CommandInterruptedError:
            raise
        except BlobsyncError as error:
            session.listener.note(error.message + (f" ({error.hint})" if error.hint else ""))


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        sys.stderr.write("\n")
        raise CommandInterruptedError("interrupted at the prompt: nothing was changed") from stop
    except EOFError:
        raise UsageError("no answer was given, nothing was changed") from None
