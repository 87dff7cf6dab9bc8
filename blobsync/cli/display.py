"""Which display of its progress a command gets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from blobsync.cli.output import Console
from blobsync.cli.progress import LINE_EVERY_VERBOSE, BarListener, LineListener, QuietListener
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.cli.progress import ClosingListener


def choose_listener(console: Console, session: Session, terminal: TextIO | None = None) -> ClosingListener:
    """A bar where a person watches, lines where a log file does, nothing where it was asked for or for JSON."""
    if session.quiet or session.json:
        return QuietListener(None if session.quiet else console)
    # With -v log lines would appear in the middle of a bar.
    terminal = terminal or sys.stderr
    drawable = terminal.isatty() and session.environ.get("TERM") != "dumb" and not session.verbose
    if drawable:
        return BarListener(console, terminal=terminal)
    return LineListener(console, LINE_EVERY_VERBOSE, each_worker=True) if session.verbose else LineListener(console)
