"""How work is stopped: by Ctrl-C from the first instruction on, by signals, and by a request of another thread.

A program started by ``nohup`` or a shell's ``&`` ignores Ctrl-C, and so would every program that it starts: an
ignored signal stays ignored in a new program, a signal with a handler does not.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

_pressed = 0
# Whether Python dropped a KeyboardInterrupt that has not been raised again yet.
_is_owed = False
# Whether it drops one now: it would drop another one as well.
_is_dropping = False
_is_over = False
# How many signals came since they are held; None: they are not.
_held: int | None = None


def hold_ctrl_c() -> None:
    """Hold Ctrl-C until :func:`enable_ctrl_c`, because no message can be shown while modules load. A second Ctrl-C ends
    the program at once. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hold)


def enable_ctrl_c() -> None:
    """Make Ctrl-C raise ``KeyboardInterrupt`` from now on; raise it now if one was held. Only in the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler in (signal.default_int_handler, _hold):
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _again_where_it_was_lost
        # Without a hold, what was pressed was raised then.
        if handler is _hold and _pressed:
            raise KeyboardInterrupt


def raise_what_was_lost() -> None:
    """Raise the ``KeyboardInterrupt`` that Python dropped in one of its callbacks, if it was not raised again since."""
    if _is_owed:
        raise KeyboardInterrupt


def is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused this exception.

    Before 3.12, Python turns it into a ``RuntimeError`` if a class is being created at that moment.
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
    """Treat SIGTERM (sent to a batch job) and the end of the terminal as Ctrl-C, so that what runs elsewhere for us is
    stopped, too. Under nohup the end of the terminal stays ignored. Only in the main thread."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hang_up)


def _hang_up(signum: int, frame: object) -> None:
    # The kernel and the shell both send it, and a second one would interrupt the cleanup.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _forget_terminal()
    _interrupt(signum, frame)


def _forget_terminal() -> None:
    """Send output to nowhere: every write to a terminal that has closed fails."""
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
    global _pressed, _is_owed, _held
    if _is_over or _is_dropping:
        return
    if _held is not None:
        _held += 1
        if _held > 1:
            os._exit(128 + signum)
        return
    _pressed += 1
    _is_owed = False
    raise KeyboardInterrupt


def hear_no_more() -> None:
    """Let signals change nothing from now on: the result is out, and they would only cut off what is to be stored."""
    global _is_over
    _is_over = True


@contextmanager
def finishing() -> Iterator[None]:
    """Let the block go on when a signal comes, which then has no effect; a second one ends the program at once."""
    global _held
    _held = 0
    try:
        yield
    finally:
        _held = None


def end_at_signals() -> None:
    """Let signals end the program as if it had no handlers: what is left to do may wait for a reader for ever."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (_interrupt, _hang_up):
            signal.signal(number, signal.SIG_DFL)


# Seconds until the callback has surely ended.
_SOON = 0.001


def _again_where_it_was_lost(lost: sys.UnraisableHookArgs) -> None:
    """Raise Ctrl-C again after Python dropped it in one of its callbacks, such as an import lock's."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    global _is_owed, _is_dropping
    _is_owed = _is_dropping = True

    def press() -> None:
        time.sleep(_SOON)
        while _is_dropping:
            time.sleep(_SOON)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    _is_dropping = False


def ignore_ctrl_c_alone() -> None:
    """Keep ignoring Ctrl-C in this program, but not in programs that it starts in their own sessions: those are stopped
    with the same signal. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _heard_and_ignored)


@contextmanager
def hearing_what_we_hear() -> Iterator[None]:
    """Let a program that is started in this block ignore Ctrl-C if this one does: both share the terminal."""
    if signal.getsignal(signal.SIGINT) is not _heard_and_ignored:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _heard_and_ignored)


def _heard_and_ignored(signum: int, frame: object) -> None:
    """Do nothing: this program ignores Ctrl-C."""


class StopRequest:
    """A request that any thread may make, and the working thread checks wherever it waits or begins something.

    There it raises ``KeyboardInterrupt``, so that the same cleanup follows as after Ctrl-C.
    """

    def __init__(self) -> None:
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def made(self) -> bool:
        """Whether the request was made."""
        return self._made.is_set()

    def make(self) -> None:
        """Ask the work to stop; returns at once. Safe to repeat."""
        with self._lock:
            self._made.set()
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if the request was made."""
        if self.made:
            raise KeyboardInterrupt

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """While the block runs, call ``wake`` when the request is made, in the thread that makes it.

        A request made before has to be checked with :attr:`made`.
        """
        with self._lock:
            self._wakers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)


# For work that only Ctrl-C stops: this request is never made.
NEVER: Final = StopRequest()
