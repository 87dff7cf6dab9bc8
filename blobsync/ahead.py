"""One call that runs while the caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

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
