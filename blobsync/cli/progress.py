"""Progress on standard error: a bar on a terminal, a line every 15 seconds elsewhere, nothing with ``-q``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol, TextIO

from blobsync.base.amounts import count_text, duration_text, size_text
from blobsync.base.events import Disconnected
from blobsync.cli.bar import TerminalLine, bar_text, step_verb, waiting_text
from blobsync.cli.output import Console
from blobsync.plan.progress import WORKING, ProgressCounter, WorkerProgress, by_node

if TYPE_CHECKING:
    from blobsync.base.events import Event
    from blobsync.plan.listener import Listener
    from blobsync.plan.transfer_plan import FileFailure

    class ClosingListener(Listener, Protocol):
        """A listener that is closed at the end."""

        def aside(self) -> AbstractContextManager[None]:
            """While a question or another program has the terminal."""
            ...

        def close(self) -> None: ...


# Without a terminal: seconds between two lines. With -v there are more.
LINE_EVERY = 15.0
LINE_EVERY_VERBOSE = 5.0
# Seconds before a bar appears; most commands end earlier.
BAR_AFTER = 0.7
_REDRAW = 0.1
_TICK = 0.5


class QuietListener:
    """No progress; notes only where there is a console for them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def phase(self, name: str) -> None: ...

    def expect(self, files: int, size: int) -> None: ...

    def seen(self, files: int) -> None: ...

    def bytes_moved(self, count: int) -> None: ...

    def bytes_reused(self, count: int) -> None: ...

    def by_worker(self, worker: str, files: int, size: int) -> None: ...

    def under_way(self, files: int, path: str) -> None: ...

    def file_done(self, path: str, failure: FileFailure | None) -> None: ...

    def note(self, text: str) -> None:
        if self._console:
            self._console.say(text)

    def emit(self, event: Event) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None: ...


class _Counting(ProgressCounter):
    """The numbers of both displays, as text."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def words(self) -> str:
        """``moving 12 of 123 files, 1.2 MB of 90 MB``, or how much was looked at."""
        verb = self.doing or step_verb(self.step)
        if not self.files_expected or self.step not in WORKING:
            return f"{verb}: {count_text(self.looked, 'name')}"
        text = f"{verb} {min(self._files, self.files_expected):,} of {count_text(self.files_expected, 'file')}"
        if self.bytes_expected:
            text += f", {size_text(min(max(self.bytes, 0), self.bytes_expected))} of {size_text(self.bytes_expected)}"
        return text + (f", {self.failures:,} failed so far" if self.failures else "")


class LineListener(_Counting):
    """A line at intervals, for logs. ``each_worker``: another one says what each worker, or node, moves."""

    def __init__(self, console: Console, every: float = LINE_EVERY, *, each_worker: bool = False) -> None:
        super().__init__(console)
        self._every = every
        self._each_worker = each_worker
        self._told = time.monotonic()
        self._closed = threading.Event()
        self._ticking = False

    def emit(self, event: Event) -> None:
        super().emit(event)
        with self.lock:
            # Without a connection nothing else happens that would bring a line.
            if isinstance(event, Disconnected) and not self._ticking:
                self._ticking = True
                threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self.lock:
                if not self._lost:
                    self._ticking = False
                    return
                self.show(force=False)

    def show(self, *, force: bool, began: bool = False) -> None:
        """A line when it is time for one."""
        now = time.monotonic()
        if now - self._told < self._every and not force:
            return
        self._told = now
        progress = self.progress(self.clock())
        left = progress.seconds_left
        text = self.words()
        if progress.waiting:
            text += f", {waiting_text(progress)}"
        elif self.step == "moving" and progress.rate >= 1:
            text += f", {size_text(int(progress.rate))}/s"
            text += f", about {duration_text(left)} left" if left is not None else ""
        self.console.say(text)
        self._say_of_each(progress.workers, lambda each: f"{size_text(int(each.rate))}/s")

    def note(self, text: str) -> None:
        self.console.say(text)

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """In the end, once, what each worker has moved."""
        self._closed.set()
        workers = self.workers(self.clock())
        self._say_of_each(workers, lambda each: f"{count_text(each.files, 'file')} and {size_text(each.bytes)}")
        self._each_worker = False

    def _say_of_each(self, workers: Sequence[WorkerProgress], said: Callable[[WorkerProgress], str]) -> None:
        if workers and self._each_worker:
            self.console.say("; ".join(f"{each.name}: {said(each)}" for each in by_node(workers)))


class BarListener(_Counting):
    """One line of the terminal that shows the progress, and is removed at the end.

    It appears once the command takes longer than ``after`` seconds; ``terminal`` is where it is drawn.
    """

    def __init__(self, console: Console, after: float = BAR_AFTER, terminal: TextIO | None = None) -> None:
        super().__init__(console)
        self._appears_at = time.monotonic() + after
        self._drawn = 0.0
        self._line = TerminalLine(terminal or sys.stderr)
        self._closed = threading.Event()
        # Keeps the clock running while nothing else happens: a slow service, one large request.
        threading.Thread(target=self._tick, daemon=True).start()

    def show(self, *, force: bool, began: bool = False) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if self._closed.is_set() or now < self._appears_at or not self.step:
            return
        if now - self._drawn >= _REDRAW or force:
            self._drawn = now
            self._line.draw(bar_text(self.progress(now), self._line.columns, plain=self._line.plain))

    def note(self, text: str) -> None:
        with self.lock:
            self._line.clear()
            self.console.say(text)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Draws nothing meanwhile."""
        with self.lock:
            self._line.clear()
            yield

    def close(self) -> None:
        """Remove the bar; only the answer stays on the terminal."""
        self._closed.set()
        with self.lock:
            self._line.clear()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self.lock:
                self.show(force=False)
