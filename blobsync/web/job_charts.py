"""Charts as SVG with a text for those who do not see them. Pure; all positions are attributes, as the policy allows no
inline style."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from markupsafe import Markup

from blobsync.jobs.history import JobRecord
from blobsync.jobs.node_use import NodeUse
from blobsync.jobs.timeline import lasting_text, moments_of, spans_of
from blobsync.web.render import fragment

_WIDTH, _HEIGHT = 600, 110


def timeline(record: JobRecord, now: float) -> Markup:
    """A job's state over time: a bar, and a list of the same, with the sizes that an elastic job had."""
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
    # One heartbeat is a level line.
    lines = [[*line, (line[0][0] + whole, line[0][1])] if len(line) == 1 else line for line in lines]
    points = [
        " ".join(
            f"{(at - begin) / whole * _WIDTH:.1f},{_HEIGHT - min(1.0, value / top) * (_HEIGHT - 4) - 2:.1f}"
            for at, value in line
        )
        for line in lines
    ]
    return {"name": name, "now": now, "lines": points, "top": top_text, "width": _WIDTH, "height": _HEIGHT}
