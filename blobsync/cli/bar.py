"""The bar: what one line of a terminal says about a command under way, and how it gets there and away again.

What the line says is decided by :func:`bar_text`, which is pure, with tqdm's graph in it; :class:`TerminalLine` draws
it. tqdm's own lines are not used: they do not shorten on narrow terminals, and leave the cursor where other
output makes them wrap. Of the terminal's language only "erase the line" is needed, for which rich would make
every command start later.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from blobsync.base.amounts import count_text, duration_text, size_text
from blobsync.cli.columns import cells, columns_of, shortened
from blobsync.plan.progress import Progress

# A line that fills the last column may wrap, and a wrapped line cannot be erased.
_SPARE = 1
_WIDEST = 120
_GRAPH_LEAST = 6
_GRAPH_MOST = 40
_NAME_LEAST = 16
# The part of the width that the name gets before the graph does.
_NAME_SHARE = 0.3
# What is shown, as far as there is room: the first ones first. In a line of fewer columns bytes say more than a name.
_NAMED_FROM = 60
_LOOKING_ORDER = ("looked", "time", "rate")
_ORDER = ("time", "failures", "rate", "name", "sizes", "graph", "files", "under way")
_NARROW_ORDER = ("time", "failures", "rate", "sizes", "name", "graph", "files", "under way")
# The width if the terminal does not report one.
_USUAL_COLUMNS = 80

# The parts of a line, by what they tell, in the order in which they stand there.
_Parts = dict[str, str]


def step_verb(phase: str) -> str:
    """What a phase is called here: ``looking`` for ``surveying``."""
    return "looking" if phase == "surveying" else phase


def bar_text(progress: Progress, columns: int, *, plain: bool = False) -> str:
    """The line for a terminal of ``columns``, always narrower than that.

    Parts that do not fit are dropped in this order: how many files are under way, how many are done, the graph, the
    bytes, the name of the current file (in fewer than 60 columns before the bytes), the rate, failures, the time.
    ``plain``: the graph has ASCII characters only.
    """
    width = min(columns, _WIDEST) - _SPARE
    if not progress.files_expected:
        lead = step_verb(progress.phase)
        return _joined(lead, _fitting(lead, _looking(progress), _LOOKING_ORDER, width))[:width]
    lead = f"{step_verb(progress.phase)} {int(progress.share * 100):3}%"
    name = "".join(each if each.isprintable() else "?" for each in progress.current) if progress.under_way else ""
    parts = {"graph": " " * _GRAPH_LEAST, **_moving(progress), "name": shortened(name, _NAME_LEAST)}
    chosen = _fitting(lead, parts, _ORDER if columns >= _NAMED_FROM else _NARROW_ORDER, width)
    # What is left over is for the name, up to its share, then for the graph, then for the rest of the name.
    _lengthen(chosen, name, min(_left(lead, chosen, width), int(width * _NAME_SHARE) - _NAME_LEAST))
    if "graph" in chosen:
        graph = min(_GRAPH_LEAST + _left(lead, chosen, width), _GRAPH_MOST)
        chosen["graph"] = _graph(progress.share, graph, plain=plain)
    _lengthen(chosen, name, _left(lead, chosen, width))
    return _joined(lead, chosen)[:width]


def _lengthen(chosen: _Parts, name: str, by: int) -> None:
    if "name" in chosen and by > 0:
        chosen["name"] = shortened(name, cells(chosen["name"]) + by)


def _left(lead: str, chosen: _Parts, width: int) -> int:
    return width - cells(_joined(lead, chosen))


def _graph(share: float, width: int, *, plain: bool) -> str:
    from tqdm import tqdm  # late: most commands end before a bar appears

    return tqdm.format_meter(share * width, width, 0.0, ncols=width, ascii=plain, bar_format="{bar}")


def _looking(progress: Progress) -> _Parts:
    rate = progress.looked / progress.seconds if progress.seconds > 0 else 0.0
    return {
        "looked": count_text(progress.looked, "name") if progress.looked else "",
        "rate": f"{rate:,.0f} a second" if rate >= 1 else "",
        "time": duration_text(progress.seconds),
    }


def _moving(progress: Progress) -> _Parts:
    there = max(progress.bytes, 0)
    moved = max(there - progress.reused, 0)
    rate = moved / progress.seconds if progress.seconds > 0 else 0.0
    sizes = f"{size_text(there)} of {size_text(progress.bytes_expected)}" if progress.bytes_expected else ""
    left = progress.seconds_left
    return {
        "sizes": sizes,
        "files": f"{progress.files:,}/{count_text(progress.files_expected, 'file')}",
        "failures": f"{progress.failures:,} failed" if progress.failures else "",
        "rate": f"{size_text(int(rate))}/s" if sizes and rate >= 1 else "",
        "time": f"{duration_text(left)} left" if left is not None else duration_text(progress.seconds),
        "under way": f"{progress.under_way:,} at a time" if progress.under_way else "",
    }


def _fitting(lead: str, parts: _Parts, order: Sequence[str], width: int) -> _Parts:
    """The most important parts that there is room for."""
    chosen: _Parts = {}
    for name in (name for name in order if parts[name]):
        more = {each: text for each, text in parts.items() if each in chosen or each == name}
        if cells(_joined(lead, more)) > width:
            break
        chosen = more
    return chosen


def _joined(lead: str, chosen: _Parts) -> str:
    graph, name = chosen.get("graph"), chosen.get("name")
    text = f"{lead} |{graph}| " if graph else f"{lead}  "
    text += ", ".join(part for each, part in chosen.items() if each not in ("graph", "name"))
    return f"{text}{': ' if 'under way' in chosen else '  '}{name}" if name else text.rstrip()


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
        return columns_of(self._terminal) or _USUAL_COLUMNS

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
