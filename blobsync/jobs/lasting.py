"""How long jobs took, run or wait, and what they did when. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # The command line's start needs none of it.
    from blobsync.jobs.history import JobRecord
    from blobsync.jobs.spec import State


class Span(NamedTuple):
    """A job was in this state from ``start`` to ``end`` (seconds since 1970); ``end`` None: it still is."""

    state: State
    start: float
    end: float | None


def spans_of(record: JobRecord) -> tuple[Span, ...]:
    """A job's state over time, as far as its cluster told the times; the last one is its state now."""
    from blobsync.jobs.spec import State

    info = record.info
    over = info.state.is_final
    if info.started is None:
        waited = Span(State.QUEUED, record.submitted, info.ended if over else None)
        if not over:
            return (waited._replace(state=info.state),)
        return (waited, Span(info.state, info.ended, None)) if info.ended else (waited._replace(state=info.state),)
    waits = Span(State.QUEUED, record.submitted, max(record.submitted, info.started))
    if not over:
        return (waits, Span(info.state, info.started, None))
    ran = Span(State.RUNNING, info.started, info.ended or info.started)
    return (waits, ran, Span(info.state, info.ended or info.started, None))


def seconds_of(record: JobRecord) -> int | None:
    """How long it ran, or has been waiting; None where nobody knows when it ended."""
    info = record.info
    if info.state.is_final and not info.ended:
        return None
    return max(0, int((info.ended or time.time()) - (info.started or record.submitted)))


def lasted(record: JobRecord) -> str:
    """The same for people: ``2d 3h``, ``5m 10s``."""
    seconds = seconds_of(record)
    if seconds is None:
        return ""
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((number for number, (value, _) in enumerate(parts) if value), 3)
    return " ".join(f"{value}{unit}" for value, unit in parts[first : first + 2])
