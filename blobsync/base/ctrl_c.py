"""Ctrl-C from the first instruction on, and the signals that mean the same; and where ``nohup`` or a shell's ``&``
started this program, which then ignores Ctrl-C, as would everything that it starts.

What is ignored stays so in a new program; what has a handler does not.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_pressed = 0
# Whether one was dropped by Python, and has not come again.
_is_owed = False


def hold_ctrl_c() -> None:
    """Ctrl-C waits for :func:`hear_ctrl_c`: nothing can be said while modules load. A second one ends the program
    at once. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hold)


def hear_ctrl_c() -> None:
    """From now on Ctrl-C is a ``KeyboardInterrupt``, which this raises where one was held. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _hold):
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _again_where_it_was_lost
        if _pressed:
            raise KeyboardInterrupt


def raise_what_was_lost() -> None:
    """Raise the ``KeyboardInterrupt`` that Python dropped in a callback of its own, if it has not come again."""
    if _is_owed:
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


def stop_on_other_signals() -> None:
    """Signals that stop a batch job, and the end of the terminal, are a Ctrl-C: what runs elsewhere for us is stopped,
    too. nohup's wish that the end of the terminal is ignored is kept. Only in the main thread."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)


def _hang_up(signum: int, frame: object) -> None:
    # The kernel and the shell both send it, and a second one would interrupt the cleaning up.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _forget_terminal()
    _interrupt(signum, frame)


def _forget_terminal() -> None:
    """Every write to a terminal that is gone fails: nobody reads it any more."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                os.dup2(nowhere, stream)
    os.close(nowhere)


def _hold(signum: int, frame: object) -> None:
    global _pressed
    _pressed += 1
    if _pressed > 1:
        os._exit(128 + signum)


def _interrupt(signum: int, frame: object) -> None:
    global _pressed, _is_owed
    _pressed += 1
    _is_owed = False
    raise KeyboardInterrupt


# Seconds, for the callback to end.
_SOON = 0.001


def _again_where_it_was_lost(lost: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a callback of its own, such as that of a lock of a module that is loaded."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    global _is_owed
    _is_owed = True

    def press() -> None:
        time.sleep(_SOON)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


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
