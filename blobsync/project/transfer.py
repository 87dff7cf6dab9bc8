"""A transfer in a thread of its own: its progress and its result, and how to stop it."""

from __future__ import annotations

import _thread
import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress

from blobsync.base.errors import TransferCancelledError
from blobsync.base.stopping import StopRequest
from blobsync.plan.progress import Progress, ProgressCounter
from blobsync.plan.transfer_result import TransferResult

# The interpreter waits for their threads before it ends, and stops them after Ctrl-C.
_STARTED: weakref.WeakSet[Transfer] = weakref.WeakSet()


class Transfer(Future[TransferResult]):
    """A transfer that runs in a thread of its own: a ``concurrent.futures.Future`` of its ``TransferResult``.

    It has the methods of futures: ``done()``, ``exception()``, ``add_done_callback()``, and ``concurrent.futures.wait``
    and ``as_completed`` for several. From asyncio: ``await asyncio.wrap_future(transfer)``; a task that is cancelled
    there stops the transfer. The interpreter waits for the transfer at its end; if Ctrl-C ends the program, the
    transfer is stopped.
    """

    def __init__(self, work: Callable[[], TransferResult], stop: StopRequest, counter: ProgressCounter) -> None:
        super().__init__()
        self._work = work
        self._stop = stop
        self._counter = counter
        self._stopped: TransferCancelledError | None = None
        self._has_ended = False
        # No daemon thread: it must finish its writes before the interpreter ends.
        _STARTED.add(self)
        threading.Thread(target=self._run, name="blobsync transfer").start()

    def __repr__(self) -> str:
        how = "stopped" if self.cancelled() else "ended" if self.done() else repr(self.progress)
        return f"<Transfer: {how}>"

    @property
    def progress(self) -> Progress:
        """The present progress; at the end, the last one."""
        return self._counter.snapshot()

    @property
    def partial_result(self) -> TransferResult | None:
        """The result of a stopped transfer so far, with ``interrupted`` set; None if it was not stopped, or before
        anything moved."""
        return self._stopped.result if self._stopped is not None else None

    def cancel(self) -> bool:
        """Stop the transfer as Ctrl-C stops ``upload``: cleanly, so that a second run continues from there. Safe from
        any thread, and to repeat.

        Returns at once: False if it has ended, else True; :meth:`result` waits for the end. A transfer that was about
        to end may still succeed.
        """
        if self._has_ended:
            return False
        self._stop.make()
        return True

    def running(self) -> bool:
        """Whether it has not ended; a stopped transfer runs until everything is cleaned up."""
        return not self._has_ended

    def result(self, timeout: float | None = None) -> TransferResult:
        """Wait for the end, at most ``timeout`` seconds, and return what ``upload`` returns, or raise what it raises.

        Raises ``concurrent.futures.TimeoutError`` (from Python 3.11 on the built-in ``TimeoutError``) while it runs,
        and ``concurrent.futures.CancelledError``, with a message, if it was stopped; :attr:`partial_result` is what was
        done. Ctrl-C during the wait stops the transfer, and raises what it raises from ``upload``.
        """

        def end() -> None:
            # Unlike ``wait``, which a callback of a stopped transfer would never return from.
            with suppress(Exception):
                super(Transfer, self).exception(timeout)

        try:
            _apart(end)
            return super().result(0)
        except CancelledError:
            said = self._stopped.message if self._stopped is not None else "stopped before anything was changed"
            raise CancelledError(said) from None
        except KeyboardInterrupt:
            _apart(lambda: _stop([self]))
            if self._stopped is not None:
                raise self._stopped from None
            raise

    def _run(self) -> None:
        try:
            result = self._work()
        except KeyboardInterrupt as stop:
            self._stopped = stop if isinstance(stop, TransferCancelledError) else None
            self._has_ended = True
            super().cancel()
            self.set_running_or_notify_cancel()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the result
            self._has_ended = True
            self.set_exception(error)
        else:
            self._has_ended = True
            self.set_result(result)


def wait_for(running: Sequence[Transfer]) -> None:
    """Return when all have ended; Ctrl-C stops them first."""
    try:
        _apart(lambda: wait(running))
    except KeyboardInterrupt:
        _apart(lambda: _stop(running))
        raise


def _apart(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, and wait for its end.

    Ctrl-C is raised in the main thread. If that is about to enter a lock of a future then, nobody ever leaves the lock,
    and the transfer never ends (seen in ``threading.Condition.__enter__`` of CPython 3.11). A plain lock that
    nobody else needs does not matter; ``threading.Thread.start`` waits with a condition, too.
    """
    ended = threading.Lock()
    ended.acquire()

    def run() -> None:
        try:
            work()
        finally:
            ended.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        # The first releases of Python 3.12 start no thread for functions of ``atexit``.
        run()
    # Python sees a signal that comes in the instant before it blocks only when it wakes up.
    while not ended.acquire(timeout=1):
        pass


def _stop(transfers: Iterable[Transfer]) -> None:
    wait([transfer for transfer in transfers if transfer.cancel()])


def _stop_after_ctrl_c() -> None:
    """Stop all transfers after Ctrl-C has ended the program, since the interpreter waits for them."""
    threading.main_thread().join()
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        _stop(_STARTED)


threading.Thread(target=_stop_after_ctrl_c, daemon=True).start()
atexit.register(lambda: _apart(lambda: _stop(_STARTED)))
