"""Ctrl-C from the first instruction on, and where ``nohup`` or a shell's ``&`` started this program, which then ignores
it, as would everything that it starts.

What is ignored stays so in a new program; what has a handler does not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_pressed = 0


def hold_ctrl_c() -> None:
    """Ctrl-C waits for :func:`hear_ctrl_c`: nothing can be said while modules load. A second one ends the program
    at once. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hold)


def hear_ctrl_c() -> None:
    """From now on Ctrl-C is a ``KeyboardInterrupt``, which this raises where one was held. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _hold):
        signal.signal(signal.SIGINT, _interrupt)
        if _pressed:
            raise KeyboardInterrupt


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what led to this exception.

    Before 3.12 Python makes a ``RuntimeError`` of it where a class is made at that moment.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed since the program began."""
    return _pressed > 0


def _hold(signum: int, frame: object) -> None:
    global _pressed
    _pressed += 1
    if _pressed > 1:
        os._exit(128 + signum)


def _interrupt(signum: int, frame: object) -> None:
    global _pressed
    _pressed += 1
    raise KeyboardInterrupt


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
