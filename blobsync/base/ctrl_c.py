"""Ctrl-C where ``nohup`` or a shell's ``&`` started this program, which then ignores it, as all would that it starts.

What is ignored stays so in a new program; what has a handler does not.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def ignore_ctrl_c_alone() -> None:
    """This program goes on to ignore it, and what it starts in sessions of their own does not: that is stopped with
    the same signal. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _heard_and_ignored)


@contextmanager
def hearing_what_we_hear() -> Iterator[None]:
    """What starts here has our terminal, and ignores Ctrl-C if we do."""
    if signal.getsignal(signal.SIGINT) is not _heard_and_ignored:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _heard_and_ignored)


def _heard_and_ignored(signum: int, frame: object) -> None:
    """Ctrl-C is for somebody else."""
