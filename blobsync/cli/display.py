"""Chooses the progress display of a command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from blobsync.cli.output import Console
from blobsync.cli.progress import LINE_EVERY_VERBOSE, BarListener, LineListener, QuietListener
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.cli.progress import ClosingListener


def choose_listener(console: Console, session: Session, terminal: TextIO | None = None) -> ClosingListener:
    """A bar on a terminal, lines in a log file, nothing with ``--quiet`` or ``--json``."""
    if session.quiet or session.json:
        return QuietListener(None if session.quiet else console)
    # With -v log lines would interrupt the bar.
    terminal = terminal or sys.stderr
    drawable = terminal.isatty() and session.environ.get("TERM") != "dumb" and not session.verbose
    if drawable:
        return BarListener(console, terminal=terminal)
    return LineListener(console, LINE_EVERY_VERBOSE, each_worker=True) if session.verbose else LineListener(console)
