"""Shows progress on standard error: a bar on a terminal, a line every 15 seconds elsewhere, nothing with ``-q``.

:func:`bar_text` makes the bar's line, with tqdm's graph in it; :class:`BarListener` draws it. tqdm does not draw the
line itself because its lines do not get shorter on a narrow terminal, and leave the cursor where other output makes
them wrap. The only control sequence needed is "erase the line"; rich would make every command start later.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, TextIO, TypeAlias

from blobsync.base.events import Disconnected, Note
from blobsync.base.formatting import count_text, duration_text, size_text
from blobsync.cli.output import Console, QuietListener, cells, columns_of, shortened
from blobsync.plan.progress import WORKING, Progress, ProgressCounter, WorkerProgress, by_node, step_verb, waiting_text

if TYPE_CHECKING:
    from blobsync.base.events import Event


# A line that fills the last column may wrap, and a wrapped line cannot be erased.
_SPARE = 1
_WIDEST = 120
_GRAPH_LEAST = 6
_GRAPH_MOST = 30
_GRAPH_SHARE = 0.35
_NAME_LEAST = 12
# The parts of the line by importance; the last ones are left out first.
_LOOKING_ORDER = ("waiting", "again", "read", "looked", "time", "rate")
_ORDER = ("waiting", "again", "time", "failures", "rate", "files", "sizes", "name", "graph")
# The width if the terminal does not report one.
_USUAL_COLUMNS = 80
# Fixed widths in columns, so that nothing beside them moves: "999 KB/s", "89 min left".
_SIZE_WIDTH = 7
_TIME_WIDTH = 11
_FAILURES_WIDTH = 11

# The parts of the line in the order in which they are shown.
_Parts = dict[str, str]


def bar_text(progress: Progress, columns: int, *, plain: bool = False) -> str:
    """The line for a terminal of ``columns``, always narrower than that.

    Parts that do not fit are dropped in this order: how many files are under way, the graph, the name of the current
    file, the bytes, how many files are done, the rate, failures, the time. Each has a fixed width, so that it stays in
    its place. While the transfer waits, the reason replaces the rate and the time. ``plain``: the graph has ASCII
    characters only.
    """
    width = min(columns, _WIDEST) - _SPARE
    verb = progress.doing or step_verb(progress.phase)
    if not progress.files_expected:
        return _joined(verb, _fitting(verb, _looking(progress), _LOOKING_ORDER, width))[:width].rstrip()
    lead = f"{verb} {int(progress.share * 100):3}%"
    name = "".join(each if each.isprintable() else "?" for each in progress.current) if progress.under_way else ""
    parts = {"graph": "", **_moving(progress), "name": shortened(name, _NAME_LEAST)}
    if parts["waiting"] and cells(lead) + 2 + cells(parts["waiting"]) > width:
        # The reason for waiting matters more than the progress.
        lead = parts["waiting"]
        parts["waiting"] = ""
    # The width alone decides: neither a failure nor another name moves what is right of the graph.
    room = _room(lead, progress, width)
    graph = min(_GRAPH_LEAST + int(_GRAPH_SHARE * room), _GRAPH_MOST)
    parts["graph"] = _graph(progress.share, graph, plain=plain) if room >= 0 else ""
    chosen = _fitting(lead, parts, _ORDER, width)
    if "name" in chosen:
        chosen["name"] = shortened(name, cells(chosen["name"]) + max(width - cells(_joined(lead, chosen)), 0))
    more = {"under way": parts["under way"], **chosen}
    if chosen.get("name") == name and parts["under way"] and cells(_joined(lead, more)) <= width:
        # Last, so that everything else stays in place.
        chosen = {**chosen, "under way": parts["under way"]}
    return _joined(lead, chosen)[:width].rstrip()


def _room(lead: str, progress: Progress, width: int) -> int:
    """Columns that are left if all parts, including failures, have their minimum width."""
    parts = _moving(progress._replace(failures=1, under_way=0, waiting=""))
    parts = {"graph": " " * _GRAPH_LEAST, **parts, "name": " " * _NAME_LEAST}
    return width - cells(_joined(lead, {each: text for each, text in parts.items() if text}))


def _graph(share: float, width: int, *, plain: bool) -> str:
    from tqdm import tqdm  # imported late: most commands end before a bar appears

    return tqdm.format_meter(share * width, width, 0.0, ncols=width, ascii=plain, bar_format="{bar}")


def _looking(progress: Progress) -> _Parts:
    hashing = progress.doing == "hashing"
    still = hashing or progress.waiting or progress.seconds <= 0
    rate = 0.0 if still else progress.looked / progress.seconds
    read = f"{count_text(progress.under_way, 'file')} of {size_text(progress.bytes_expected)}"
    return {
        "read": read if hashing else "",
        "looked": count_text(progress.looked, "name") if progress.looked else "",
        "rate": f"{rate:,.0f} a second" if rate >= 1 else "",
        "time": duration_text(progress.seconds) if not progress.waiting else "",
        **_waiting(progress),
    }


def _waiting(progress: Progress) -> _Parts:
    said, _, again = waiting_text(progress).partition(", ")
    return {"waiting": said, "again": again}


def _moving(progress: Progress) -> _Parts:
    whole = f"{progress.files_expected:,}"
    done = f"{progress.files:,}"
    noun = "file" if progress.files_expected == 1 else "files"
    left = progress.seconds_left
    rate = f"{size_text(int(progress.rate)):>{_SIZE_WIDTH}}/s" if progress.bytes_expected else ""
    time = f"{_time(left)} left" if left is not None else f"for {_time(progress.seconds)}"
    return {
        "files": f"{done:>{len(whole)}}/{whole} {noun}",
        "sizes": _sizes(progress.bytes, progress.bytes_expected),
        "rate": "" if progress.waiting else rate,
        "time": "" if progress.waiting else f"{time:<{_TIME_WIDTH}}",
        **_waiting(progress),
        "failures": f"{f'{progress.failures:,} failed':<{_FAILURES_WIDTH}}" if progress.failures else "",
        "under way": f"{progress.under_way:,} at a time" if progress.under_way else "",
    }


def _time(seconds: float) -> str:
    """Like ``duration_text``, but never wider than six columns: ``89 min``, ``2.5 h``, ``120 h``."""
    hours = seconds / 3600
    if hours < 1.49:
        return duration_text(seconds)
    return f"{hours:.1f} h" if hours < 99.9 else f"{min(hours, 9999):.0f} h"


def _sizes(there: int, whole: int) -> str:
    """``1.20 of 3.46 GB``: both in the unit of the whole, with a fixed number of digits."""
    if not whole:
        return ""
    number, _, unit = size_text(whole).partition(" ")
    # Always three digits: of 12 MB, half a megabyte is visible.
    decimals = 0 if unit == "B" else max(3 - len(number.partition(".")[0]), 0)
    number = f"{float(number):.{decimals}f}"
    share = float(number) * min(max(there, 0) / whole, 1.0)
    return f"{share:>{len(number)}.{decimals}f} of {number} {unit}"


def _fitting(lead: str, parts: _Parts, order: Sequence[str], width: int) -> _Parts:
    """The most important parts that fit."""
    chosen: _Parts = {}
    for name in (name for name in order if parts[name]):
        more = {each: text for each, text in parts.items() if each in chosen or each == name}
        if cells(_joined(lead, more).rstrip()) > width:
            break
        chosen = more
    return chosen


def _joined(lead: str, chosen: _Parts) -> str:
    graph, name = chosen.get("graph"), chosen.get("name")
    text = f"{lead} |{graph}| " if graph else f"{lead}  "
    for part in (part for each, part in chosen.items() if each not in ("graph", "name")):
        # The padding of a part comes after its comma.
        said = part.rstrip(" ")
        text += f"{said}, {' ' * (len(part) - len(said))}"
    text, filled = text.rstrip(" ,"), len(text) - 2
    return f"{text:<{filled}}{': ' if 'under way' in chosen else '  '}{name}" if name else text


# Seconds between two lines without a terminal; shorter with -v.
LINE_EVERY = 15.0
LINE_EVERY_VERBOSE = 5.0
# Seconds before a bar appears; most commands end earlier.
BAR_AFTER = 0.7
_REDRAW = 0.1
_TICK = 0.5


class _CountingListener(ProgressCounter):
    """The progress as text, for both displays."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, event: Event) -> None:
        """Count an event; show a note."""
        if isinstance(event, Note):
            self.note(event.text)
        else:
            super().emit(event)

    def note(self, text: str) -> None:
        """Show a sentence for the user."""
        self.console.say(text)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def words(self) -> str:
        """``moving 12 of 123 files, 1.2 MB of 90 MB``, or the progress of planning."""
        verb = self.doing or step_verb(self.step)
        if not self.files_expected or self.step not in WORKING:
            return f"{verb}: {count_text(self.looked, 'name')}"
        text = f"{verb} {min(self._files, self.files_expected):,} of {count_text(self.files_expected, 'file')}"
        if self.bytes_expected:
            text += f", {size_text(min(max(self.bytes, 0), self.bytes_expected))} of {size_text(self.bytes_expected)}"
        return text + (f", {self.failures:,} failed so far" if self.failures else "")


class LineListener(_CountingListener):
    """Prints a line at intervals, for logs. ``each_worker``: another line has the progress of each worker or node."""

    def __init__(self, console: Console, every: float = LINE_EVERY, *, each_worker: bool = False) -> None:
        super().__init__(console)
        self._every = every
        self._each_worker = each_worker
        self._shown_at = time.monotonic()
        self._closed = threading.Event()
        self._ticking = False

    def emit(self, event: Event) -> None:
        super().emit(event)
        with self.lock:
            # Without a connection no other event prints a line.
            if isinstance(event, Disconnected) and not self._ticking:
                self._ticking = True
                threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self.lock:
                if self._lost:
                    self.show(force=False)

    def show(self, *, force: bool, began: bool = False) -> None:
        """Print a line if the interval has passed."""
        now = time.monotonic()
        if now - self._shown_at < self._every and not force:
            return
        self._shown_at = now
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

    def close(self) -> None:
        """Print, once, what each worker has moved."""
        self._closed.set()
        workers = self.workers(self.clock())
        self._say_of_each(workers, lambda each: f"{count_text(each.files, 'file')} and {size_text(each.bytes)}")
        self._each_worker = False

    def _say_of_each(self, workers: Sequence[WorkerProgress], said: Callable[[WorkerProgress], str]) -> None:
        if workers and self._each_worker:
            self.console.say("; ".join(f"{each.name}: {said(each)}" for each in by_node(workers)))


class BarListener(_CountingListener):
    """One line of the terminal that shows the progress, and is removed at the end.

    It appears once the command takes longer than ``after`` seconds; ``terminal`` is where it is drawn.
    """

    def __init__(self, console: Console, after: float = BAR_AFTER, terminal: TextIO | None = None) -> None:
        super().__init__(console)
        self._appears_at = time.monotonic() + after
        # When it was drawn last; 0: it is not there.
        self._drawn = 0.0
        self._terminal = terminal or sys.stderr
        encoding = getattr(self._terminal, "encoding", None) or "ascii"
        self._plain = encoding.lower().replace("-", "") != "utf8"
        self._closed = threading.Event()
        # Updates the time while no events come, as during one large request.
        threading.Thread(target=self._tick, daemon=True).start()

    def show(self, *, force: bool, began: bool = False) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if self._closed.is_set() or now < self._appears_at or not self.step:
            return
        if now - self._drawn >= _REDRAW or force:
            self._drawn = now
            # A window can be resized at any time.
            columns = columns_of(self._terminal) or _USUAL_COLUMNS
            text = bar_text(self.progress(self.clock()), columns, plain=self._plain)
            # The cursor stays at the beginning: other output, and the ^C that the terminal echoes, does not lengthen
            # the line, and the next drawing covers it.
            self._write(f"\r{text}\x1b[K\r")

    def note(self, text: str) -> None:
        with self.paused():
            self.console.say(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Erase the line, with anything that the terminal echoed into it, and draw nothing meanwhile."""
        with self.lock:
            if self._drawn:
                self._write("\r\x1b[K")
                self._drawn = 0.0
            yield

    def close(self) -> None:
        """Remove the bar; only the answer stays on the terminal."""
        self._closed.set()
        with self.paused():
            return

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            with self.lock:
                self.show(force=False)

    def _write(self, text: str) -> None:
        # A closed terminal does not stop the work.
        with suppress(OSError, ValueError):
            self._terminal.write(text)
            self._terminal.flush()


# Each is closed at the end; with ``paused()`` a question or another program has the terminal.
Display: TypeAlias = "QuietListener | LineListener | BarListener"


def choose_listener(
    console: Console, *, verbose: int, environ: Mapping[str, str], terminal: TextIO | None = None
) -> Display:
    """A bar on a terminal, lines in a log file, nothing with ``--quiet`` or ``--json``."""
    if console.quiet or console.as_json:
        return QuietListener(None if console.quiet else console)
    # With -v log lines would interrupt the bar.
    terminal = terminal or sys.stderr
    drawable = terminal.isatty() and environ.get("TERM") != "dumb" and not verbose
    if drawable:
        return BarListener(console, terminal=terminal)
    return LineListener(console, LINE_EVERY_VERBOSE, each_worker=True) if verbose else LineListener(console)
