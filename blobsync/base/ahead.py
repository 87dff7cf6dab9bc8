"""Calls that run in threads of their own, which nobody has to wait for.

A pool of ``concurrent.futures`` is waited for: when its ``with`` block ends, and again when the interpreter does.
Ctrl-C would then last as long as the slowest request, or as reading all files that are queued.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

# Items that are taken ahead of the results, for each thread.
_AHEAD = 64

A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


class Ahead(Generic[T]):
    """Starts ``call`` at once in a thread of its own; :meth:`result` waits for it.

    Unlike a pool's, the thread is nobody's to wait for: a caller that loses interest, or an interpreter that
    ends on Ctrl-C, does not hang on a server that does not answer.
    """

    def __init__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._found.append(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]


def side_by_side(call: Callable[[A], T], items: Iterable[A], threads: int) -> Iterator[T]:
    """``map(call, items)`` with up to ``threads`` calls at a time; the results come in the order of the items.

    Raises what the first call that failed raised. A caller that goes away (Ctrl-C, an exception, no more ``next``)
    does not wait for calls under way, and those that have not begun never do.
    """
    todo: SimpleQueue[tuple[Future[T], A] | None] = SimpleQueue()
    gone = threading.Event()

    def work() -> None:
        while (one := todo.get()) is not None and not gone.is_set():
            future, item = one
            try:
                future.set_result(call(item))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is wanted
                future.set_exception(error)

    crew = 0
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(Future())
            todo.put((waiting[-1], item))
            if crew < threads:
                crew += 1
                threading.Thread(target=work, daemon=True).start()
            if len(waiting) >= threads * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        gone.set()
        for _ in range(crew):
            todo.put(None)
