"""The bar: what one line of a terminal says about a command under way, and how it gets there and away again.

What the line says is decided by :func:`bar_text`, which is pure, with tqdm's graph in it; :class:`TerminalLine` draws
it. tqdm's own lines are not used: they do not shorten on narrow terminals, and leave the cursor where other
output makes them wrap. Of the terminal's language only "erase the line" is needed, for which rich would make
every command start later.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

from blobsync.base.amounts import count_text, duration_text, size_text
from blobsync.plan.progress import Progress

# A line that fills the last column may wrap, and a wrapped line cannot be erased.
_SPARE = 1
_WIDEST = 120
_GRAPH_LEAST = 10
_GRAPH_MOST = 40
_NAME_LEAST = 15
_ENDLESS = 10_000
# The width if the terminal does not report one.
_USUAL_COLUMNS = 80


def step_verb(phase: str) -> str:
    """What a phase is called here: ``looking`` for ``surveying``."""
    return "looking" if phase == "surveying" else phase


def bar_text(progress: Progress, columns: int, *, plain: bool = False) -> str:
    """The line for a terminal of ``columns``, always narrower than that.

    On narrow terminals, parts are dropped in this order: the graph, files, bytes, rate, failures, the time.
    ``plain``: the graph has ASCII characters only.
    """
    width = min(columns, _WIDEST) - _SPARE
    if not progress.files_expected:
        return _fitting(step_verb(progress.phase), _looking(progress), width)[:width]
    done, total = progress.files, progress.files_expected
    if progress.bytes_expected:
        # A retry may have taken bytes back, or sent some twice.
        done, total = progress.bytes, progress.bytes_expected
    share = min(max(done / total, 0.0), 1.0)
    lead = f"{step_verb(progress.phase)} {int(share * 100):3}%"
    parts = _moving(progress)
    text = _fitting(lead, parts, width)
    if text == _fitting(lead, parts, _ENDLESS):
        text += _files_now(progress, width - len(text) - _GRAPH_LEAST - 3)
        # Only if nothing else had to be dropped: numbers matter more.
        graph = min(width - len(text) - 3, _GRAPH_MOST)
        if graph < _GRAPH_LEAST:
            return text[:width]
        text = f"{lead} |{_graph(share, graph, plain=plain)}|{text[len(lead) + 1 :]}"
    return text[:width]


def _files_now(progress: Progress, room: int) -> str:
    """How many files are under way and which began last, where there is room beside the graph."""
    if not progress.under_way:
        return ""
    text = f", {progress.under_way:,} at a time"
    left = room - len(text) - 2
    if left < _NAME_LEAST or not progress.current:
        return text if len(text) <= room else ""
    name = "".join(each if each.isprintable() else "?" for each in progress.current)
    return f"{text}: {name if len(name) <= left else '...' + name[3 - left :]}"


def _graph(share: float, width: int, *, plain: bool) -> str:
    from tqdm import tqdm  # late: most commands end before a bar appears

    return tqdm.format_meter(share * width, width, 0.0, ncols=width, ascii=plain, bar_format="{bar}")


# Each part with its priority; parts are shown in the order of the list.
_Parts = list[tuple[int, str]]


def _looking(progress: Progress) -> _Parts:
    rate = progress.looked / progress.seconds if progress.seconds > 0 else 0.0
    return [
        (0, count_text(progress.looked, "name") if progress.looked else ""),
        (2, f"{rate:,.0f} a second" if rate >= 1 else ""),
        (1, duration_text(progress.seconds)),
    ]


def _moving(progress: Progress) -> _Parts:
    there = max(progress.bytes, 0)
    moved = max(there - progress.reused, 0)
    rate = moved / progress.seconds if progress.seconds > 0 else 0.0
    sizes = f"{size_text(there)} of {size_text(progress.bytes_expected)}" if progress.bytes_expected else ""
    left = progress.seconds_left
    return [
        (3, sizes),
        (4, f"{progress.files:,}/{count_text(progress.files_expected, 'file')}"),
        (1, f"{progress.failures:,} failed" if progress.failures else ""),
        (2, f"{size_text(int(rate))}/s" if sizes and rate >= 1 else ""),
        (0, f"{duration_text(left)} left" if left is not None else duration_text(progress.seconds)),
    ]


def _fitting(lead: str, parts: _Parts, width: int) -> str:
    """``lead`` and the most important parts that there is room for."""
    chosen: list[int] = []
    for at in sorted((at for at, (_, text) in enumerate(parts) if text), key=lambda at: parts[at][0]):
        if len(_joined(lead, parts, [*chosen, at])) > width:
            break
        chosen.append(at)
    return _joined(lead, parts, chosen)


def _joined(lead: str, parts: _Parts, chosen: list[int]) -> str:
    return ", ".join([lead, *(parts[at][1] for at in sorted(chosen))]).replace(", ", "  ", 1)


class TerminalLine:
    """The last line of a terminal, drawn over and over; ``terminal`` is the stream that leads to it."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._drawn = False
        encoding = getattr(terminal, "encoding", None) or "ascii"
        self.plain = encoding.lower().replace("-", "") != "utf8"

    @property
    def columns(self) -> int:
        """How wide the terminal is now; a window can be resized at any time."""
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or _USUAL_COLUMNS
        except (OSError, ValueError):
            return _USUAL_COLUMNS

    def draw(self, text: str) -> None:
        """Put ``text`` in the place of what was drawn before."""
        # The cursor stays at the beginning: what others write, and the ^C that the terminal echoes, adds nothing
        # to the line's width, and the next drawing covers it.
        self._write(f"\r{text}\x1b[K\r")
        self._drawn = True

    def clear(self) -> None:
        """Leave nothing of it, nor of what the terminal echoed beside it."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        # A closed terminal does not stop the work.
        with suppress(OSError, ValueError):
            self._terminal.write(text)
            self._terminal.flush()
