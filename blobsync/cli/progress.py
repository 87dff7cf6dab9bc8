"""How it goes, on standard error: a bar on a terminal, a line now and then elsewhere, nothing with ``-q``."""

from __future__ import annotations

import sys
import threading
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Protocol

from blobsync.cli.output import Console, count_text, duration_text, size_text

if TYPE_CHECKING:
    from blobsync.cli.session import Session
    from blobsync.engines import Listener
    from blobsync.plan import FileFailure

    class ClosingListener(Listener, Protocol):
        """A listener that can be put away at the end."""

        def close(self) -> None: ...


# Elsewhere than on a terminal, one line every so many seconds.
LINE_EVERY = 15.0
# A bar appears once a command takes this long (seconds): most are over before, and tqdm takes time to import.
BAR_AFTER = 0.7
_REDRAW = 0.1
_TICK = 0.5
_VERBS = {
    "surveying": "looking",
    "hashing": "hashing",
    "moving": "moving",
    "verifying": "verifying",
    "deleting": "deleting",
}


def choose_listener(console: Console, session: Session) -> ClosingListener:
    """A bar where a person watches, lines where a log file does, nothing where it was asked for or for JSON."""
    if session.quiet or session.json:
        return QuietListener(None if session.quiet else console)
    return BarListener(console) if sys.stderr.isatty() else LineListener(console)


class QuietListener:
    """No progress; notes only where there is a console for them."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console

    def phase(self, name: str) -> None: ...

    def expect(self, files: int, size: int) -> None: ...

    def seen(self, files: int) -> None: ...

    def bytes_moved(self, count: int) -> None: ...

    def file_done(self, path: str, failure: FileFailure | None) -> None: ...

    def note(self, text: str) -> None:
        if self._console:
            self._console.say(text)

    def close(self) -> None: ...


class _Counting:
    """The numbers behind both displays; any thread may bring them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lock = threading.Lock()
        self.verb = ""
        self.files = self.files_expected = self.failures = self.bytes = self.bytes_expected = self.looked = 0
        self.began = time.monotonic()

    def phase(self, name: str) -> None:
        with self.lock:
            self.verb = _VERBS.get(name, name)
            self.looked = 0
            if name in ("moving", "deleting"):
                self.began = time.monotonic()
            self.show(force=False)

    def expect(self, files: int, size: int) -> None:
        with self.lock:
            self.files_expected += files
            self.bytes_expected += size
            self.show(force=False)

    def seen(self, files: int) -> None:
        with self.lock:
            self.looked += files
            self.show(force=False)

    def bytes_moved(self, count: int) -> None:
        with self.lock:
            self.bytes += count
            self.show(force=False)

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        with self.lock:
            self.files += 1
            self.failures += failure is not None
            self.show(force=False)

    def show(self, *, force: bool) -> None:
        raise NotImplementedError

    def words(self) -> str:
        """``moving 12 of 123 files, 1.2 MB of 90 MB``, or how much was looked at."""
        if not self.files_expected or self.verb not in ("moving", "deleting"):
            return f"{self.verb}: {count_text(self.looked, 'name')}"
        text = f"{self.verb} {self.files:,} of {count_text(self.files_expected, 'file')}"
        if self.bytes_expected:
            text += f", {size_text(max(self.bytes, 0))} of {size_text(self.bytes_expected)}"
        return text + (f", {self.failures:,} failed so far" if self.failures else "")


class LineListener(_Counting):
    """A line now and then, for logs."""

    def __init__(self, console: Console, every: float = LINE_EVERY) -> None:
        super().__init__(console)
        self._every = every
        self._told = time.monotonic()

    def show(self, *, force: bool) -> None:
        """A line when it is time for one."""
        now = time.monotonic()
        if now - self._told < self._every and not force:
            return
        self._told = now
        rate = max(self.bytes, 0) / max(now - self.began, 1e-6)
        text = self.words()
        if self.verb == "moving" and rate > 0:
            left = max(self.bytes_expected - self.bytes, 0) / rate
            text += f", {size_text(int(rate))}/s, about {duration_text(left)} left"
        self.console.say(text)

    def note(self, text: str) -> None:
        self.console.say(text)

    def close(self) -> None: ...


class BarListener(_Counting):
    """One tqdm bar: bytes where their total is known, names while looking."""

    def __init__(self, console: Console, after: float = BAR_AFTER) -> None:
        super().__init__(console)
        self._appears_at = time.monotonic() + after
        self._drawn = 0.0
        self._bar: Any = None
        self._unit = ""
        self._closed = threading.Event()
        # The clock goes on while nothing else does: a service that keeps us waiting, one large request.
        threading.Thread(target=self._tick, daemon=True).start()

    def show(self, *, force: bool) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if now < self._appears_at or not self.verb or (now - self._drawn < _REDRAW and not force):
            return
        self._drawn = now
        in_bytes = self.verb == "moving" and self.bytes_expected > 0
        in_files = self.verb in ("moving", "deleting") and not in_bytes
        done, total = (self.bytes, self.bytes_expected) if in_bytes else (self.looked, None)
        if in_files:
            done, total = self.files, self.files_expected
        self._switch_to("B" if in_bytes else " files" if in_files else " names")
        self._bar.total = total
        self._bar.set_description_str(self.verb, refresh=False)
        self._bar.set_postfix_str(self._files() if in_bytes else self._failed(), refresh=False)
        # A retry may have taken bytes back. The rate is that since the first byte, not since the bar appeared.
        self._bar.n = max(done, 0)
        self._bar.start_t = time.time() - (now - self.began)
        self._bar.refresh()

    def note(self, text: str) -> None:
        with self.lock:
            if self._bar:
                self._bar.clear()
            self.console.say(text)

    def close(self) -> None:
        """Take the bar away; what remains on the terminal is the answer."""
        self._closed.set()
        with self.lock:
            self.verb = ""
            if self._bar:
                self._bar.close()
                self._bar = None

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self.lock:
                if not self._closed.is_set():
                    self.show(force=False)

    def _files(self) -> str:
        return f"{self.files:,}/{self.files_expected:,} files{self._failed()}"

    def _failed(self) -> str:
        return f", {self.failures:,} failed" if self.failures else ""

    def _switch_to(self, unit: str) -> None:
        if self._bar is not None and self._unit == unit:
            return
        from tqdm import tqdm

        if self._bar is not None:
            self._bar.close()
        # tqdm's monitor thread only serves bars that redraw themselves.
        tqdm.monitor_interval = 0
        self._unit = unit
        # Room for the ^C that a terminal shows: a line that wraps cannot be taken away.
        width = min(get_terminal_size().columns, 120) - 4
        self._bar = tqdm(unit=unit, unit_scale=unit == "B", leave=False, file=sys.stderr, ncols=width, smoothing=0)
