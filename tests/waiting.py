"""Waiting for a state, in place of a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Seconds. What works takes less, also where the machine is ten times as slow.
PATIENCE = 120.0


def wait_until(true: Callable[[], object], *, seconds: float = PATIENCE, pause: float = 0.01) -> bool:
    """Look until it is true; False if it was not in time.

    It rests as long as each look took, since many looks are commands: what is waited for needs the processor, too.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if true():
            return True
        now = time.monotonic()
        if now > deadline:
            return False
        time.sleep(max(pause, now - began))


@contextmanager
def meanwhile(act: Callable[[], object], *, pause: float = 0.05) -> Iterator[None]:
    """Repeat that in a thread until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(pause):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
