"""Numbers -> points of SVG. Widths and heights are attributes, since the policy of the pages allows no inline style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from blobsync.local.transfer_log import TransferEntry
from blobsync.plan.progress import RatePoint

WIDTH, HEIGHT = 1000, 160
# Columns of the chart of the history: hours of the last two days, or days.
_HOURS = 48
_DAYS = 30
# Nothing older is in a chart.
CHART_SECONDS = _DAYS * 86400
_STACK = {"upload": "up", "download": "down", "copy": "moved"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``parts`` are class, top and height; ``bytes`` and ``files`` are its sums, ``rate`` (bytes a second)
    that of its fastest transfer."""

    name: str
    x: float
    width: float
    parts: tuple[tuple[str, float, float], ...]
    bytes: int
    rate: float
    files: int


@dataclass(frozen=True, slots=True)
class BytesChart:
    """Bytes over time as columns, and how fast they moved as the ``line`` above them."""

    columns: tuple[Column, ...]
    most: int
    fastest: float
    line: str
    unit: str


def bytes_chart(entries: Sequence[TransferEntry], now: float) -> BytesChart | None:
    """What moved by hours of the last two days, or by days of the last month if anything is older; None for nothing."""
    moved = [each for each in entries if each.bytes and each.began > now - CHART_SECONDS]
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
    end = datetime.fromtimestamp(now).replace(minute=0, second=0, microsecond=0)
    if by_hour:
        return [end - timedelta(hours=back) for back in range(_HOURS - 1, -1, -1)]
    end = end.replace(hour=0)
    return [end - timedelta(days=back) for back in range(_DAYS - 1, -1, -1)]


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
    # As the table below the chart has it: an average of an hour would be in no row of it.
    rate = max((each.bytes / each.seconds for each in entries if each.seconds), default=0.0)
    return Column(name, round(x + width * 0.1, 1), round(width * 0.8, 1), tuple(parts), size, rate, files)


def _rates(columns: Sequence[Column], fastest: float) -> str:
    """Where nothing moved there is no rate, so the line skips it."""
    points = [
        f"{each.x + each.width / 2:.1f},{HEIGHT - each.rate / fastest * HEIGHT:.1f}" for each in columns if each.rate
    ]
    return " ".join(points) if len(points) > 1 else ""


def rate_curve(points: Sequence[RatePoint]) -> tuple[str, float]:
    """The outline of the rate over time (seconds, bytes, bytes a second), for a polygon, and its highest value."""
    if len(points) < 2:
        return "", 0.0
    start, end = points[0][0], points[-1][0]
    most = max(point[2] for point in points) or 1.0
    span = max(end - start, 1e-6)
    line = [f"{(at - start) / span * WIDTH:.1f},{HEIGHT - rate / most * HEIGHT * 0.95:.1f}" for at, _, rate in points]
    return f"0,{HEIGHT} {' '.join(line)} {WIDTH},{HEIGHT}", most
