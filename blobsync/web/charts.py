"""Charts as SVG, with a text for screen readers. Does no I/O.

Widths and heights are attributes, since the policy of the pages allows no inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

from blobsync.base.records import dataclass
from blobsync.jobs.node_use import NodeUse
from blobsync.jobs.record import JobRecord
from blobsync.jobs.task_table import TaskRow
from blobsync.jobs.timeline import lasting_text, moments_of, spans_of
from blobsync.plan.progress import RatePoint
from blobsync.project.transfer_history import TransferEntry
from blobsync.web.render import fragment

WIDTH, HEIGHT = 1000, 160
# Columns of the chart of the history: hours of the last two days, or days.
_HOURS = 48
_DAYS = 30
# Charts show nothing older.
CHART_SECONDS = _DAYS * 86400
_STACK = {"upload": "up", "download": "down", "copy": "moved"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``parts`` are (class, top, height); ``bytes`` and ``files`` are its sums, ``rate`` (bytes a second)
    is that of its fastest transfer."""

    name: str
    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]
    bytes: int
    rate: float
    files: int


@dataclass(frozen=True, slots=True)
class BytesChart:
    """Bytes over time as columns, and the transfer rate as the ``line`` above them."""

    columns: tuple[Column, ...]
    most: int
    fastest: float
    line: str
    unit: str


def bytes_chart(entries: Sequence[TransferEntry], now: float) -> BytesChart | None:
    """Bytes by hour of the last two days, or by day of the last month if anything is older; None if nothing moved."""
    moved = [each for each in entries if each.bytes and each.kind in _STACK and each.began > now - CHART_SECONDS]
    if not moved:
        return None
    by_hour = all(each.began > now - (_HOURS - 1) * 3600 for each in moved)
    starts = _starts(now, by_hour=by_hour)
    groups: list[list[TransferEntry]] = [[] for _ in starts]
    for each in moved:
        at = max((index for index, start in enumerate(starts) if start.timestamp() <= each.began), default=0)
        groups[at].append(each)
    most = max(sum(each.bytes for each in group) for group in groups)
    width = WIDTH / len(starts)
    form = "%a %H:00" if by_hour else "%d %b"
    columns = tuple(
        _column(start.strftime(form), index * width, width, group, most)
        for index, (start, group) in enumerate(zip(starts, groups, strict=True))
    )
    fastest = max(column.rate for column in columns)
    return BytesChart(columns, most, fastest, _rates(columns, fastest), "hour" if by_hour else "day")


def _starts(now: float, *, by_hour: bool) -> list[datetime]:
    count, step = (_HOURS, timedelta(hours=1)) if by_hour else (_DAYS, timedelta(days=1))
    end = datetime.fromtimestamp(now).replace(minute=0, second=0, microsecond=0)
    end = end if by_hour else end.replace(hour=0)
    return [end - back * step for back in range(count - 1, -1, -1)]


def _column(name: str, x: float, width: float, entries: Sequence[TransferEntry], most: int) -> Column:
    parts, top = [], float(HEIGHT)
    for kind, look in _STACK.items():
        size = sum(each.bytes for each in entries if each.kind == kind)
        if size:
            height = max(2.0, size / most * HEIGHT)
            top -= height
            parts.append((look, round(top, 1), round(height, 1)))
    size = sum(each.bytes for each in entries)
    files = sum(each.transferred for each in entries)
    # As in the table below the chart: the average of an hour would be in none of its rows.
    rate = max((each.rate or 0.0 for each in entries), default=0.0)
    return Column(name, round(x + width * 0.1, 1), round(width * 0.8, 1), tuple(parts), size, rate, files)


def _rates(columns: Sequence[Column], fastest: float) -> str:
    """The line of the rates; it skips columns in which nothing moved."""
    points = [
        f"{each.x + each.width / 2:.1f},{HEIGHT - each.rate / fastest * HEIGHT:.1f}" for each in columns if each.rate
    ]
    return " ".join(points) if len(points) > 1 else ""


def rate_curve(points: Sequence[RatePoint]) -> tuple[str, float]:
    """The outline of the rate over time (seconds, bytes, bytes a second), as a polygon, and its highest value.

    Empty as long as nothing has moved.
    """
    most = max((point[2] for point in points), default=0.0)
    if len(points) < 2 or not most:
        return "", 0.0
    start, end = points[0][0], points[-1][0]
    span = max(end - start, 1e-6)
    line = [f"{(at - start) / span * WIDTH:.1f},{HEIGHT - rate / most * HEIGHT * 0.95:.1f}" for at, _, rate in points]
    return f"0,{HEIGHT} {' '.join(line)} {WIDTH},{HEIGHT}", most


_WIDTH, _HEIGHT = 600, 110


def task_chart(rows: Sequence[TaskRow], metric: str) -> dict[str, object] | None:
    """The metric of each task, else how long it ran, as a point each; None for fewer than two."""
    values = [(row.task.number, row.metric if metric else row.seconds and row.seconds / 60) for row in rows]
    known = [(number, value) for number, value in values if value is not None]
    if len(known) < 2:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    first, last = min(number for number, _ in known), max(number for number, _ in known)
    points = [
        (
            f"{10 + (number - first) / (last - first) * (_WIDTH - 20):.1f}",
            f"{_HEIGHT - 10 - (value - low) / ((high - low) or 1.0) * (_HEIGHT - 20):.1f}",
            f"task {number}: {value:g}",
        )
        for number, value in known
    ]
    words = {"name": metric or "Minutes", "low": f"{low:.4g}", "high": f"{high:.4g}"}
    return {**words, "points": points, "width": _WIDTH, "height": _HEIGHT}


def timeline(record: JobRecord, now: float) -> Markup:
    """A job's state over time: a bar, and the same as a list, with the sizes of an elastic job."""
    spans = spans_of(record)
    begin = spans[0].start
    last = spans[-1].start if spans[-1].state.is_final else now
    whole = max(1.0, last - begin)
    bars = [
        (span.state.value.lower(), (span.start - begin) / whole, max(0.0, (span.end or last) - span.start) / whole)
        for span in spans
        if not span.state.is_final
    ]
    listed = [
        {
            "kind": moment.state.value.lower() if moment.state else "size",
            "text": moment.text,
            "at": datetime.fromtimestamp(moment.at).strftime("%Y-%m-%d %H:%M:%S"),
            "lasts": "" if moment.seconds is None else lasting_text(moment.seconds),
            "seen": moment.seen,
        }
        for moment in moments_of(record, now)
    ]
    return Markup(fragment("job_time.html", bars=bars, listed=listed))  # noqa: S704 - a template escaped it


def use_charts(nodes: Sequence[NodeUse]) -> Markup:
    """GPU use, load and free disk of each node over time."""
    return Markup(fragment("job_use.html", nodes=[_charts(node) for node in nodes]))  # noqa: S704 - the same


def _charts(use: NodeUse) -> dict[str, object]:
    first, last = use.samples[0], use.samples[-1]
    charts = []
    gpus = max(len(sample.gpus) for sample in use.samples)
    if gpus:
        lines = [[(one.at, one.gpus[gpu][0]) for one in use.samples if gpu < len(one.gpus)] for gpu in range(gpus)]
        now = " · ".join(f"{share} %" for share, _ in last.gpus) or "unknown"
        charts.append(_chart("GPU use", now, lines, 100.0, "100 %"))
    load = [(one.at, one.load) for one in use.samples]
    top = max(1.0, *(value for _, value in load))
    charts.append(_chart("Load", f"{last.load:.1f}", [load], top, f"{top:.1f}"))
    disk = [(one.at, float(one.disk_free)) for one in use.samples]
    free = f"{last.disk_free:,} of {last.disk_total:,} GB"
    charts.append(_chart("Free disk", free, [disk], max(1.0, float(last.disk_total)), f"{last.disk_total:,} GB"))
    span = [datetime.fromtimestamp(one.at).strftime("%m-%d %H:%M") for one in (first, last)]
    return {"node": use.node, "charts": charts, "span": span, "count": len(use.samples)}


def _chart(
    name: str, now: str, lines: Sequence[Sequence[tuple[float, float]]], top: float, top_text: str
) -> dict[str, object]:
    begin = min(at for line in lines for at, _ in line[:1])
    whole = max(1.0, max(at for line in lines for at, _ in line[-1:]) - begin)
    # A single heartbeat is drawn as a level line.
    lines = [[*line, (line[0][0] + whole, line[0][1])] if len(line) == 1 else line for line in lines]
    points = [
        " ".join(
            f"{(at - begin) / whole * _WIDTH:.1f},{_HEIGHT - min(1.0, value / top) * (_HEIGHT - 4) - 2:.1f}"
            for at, value in line
        )
        for line in lines
    ]
    return {"name": name, "now": now, "lines": points, "top": top_text, "width": _WIDTH, "height": _HEIGHT}
