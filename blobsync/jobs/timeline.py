"""What jobs did when: the changes of their states and sizes, and how long each lasted. Pure.

The times that a cluster reports count. Where it reports none, the time of asking is kept and marked as ``seen``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from blobsync.base.formatting import count_text
from blobsync.base.records import NamedTuple
from blobsync.jobspec.spec import NodeChange, RunInfo, State, StateChange

if TYPE_CHECKING:
    from blobsync.jobs.record import JobRecord


class Span(NamedTuple):
    """A job was in this state from ``start`` to ``end`` (seconds since 1970); ``end`` None: it still is.

    ``seen``: its cluster did not say since when; it was so when it was asked at ``start``. ``again``: it had been in
    this state before, as one that was put back into the queue.
    """

    state: State
    start: float
    end: float | None
    seen: bool = False
    again: bool = False


def spans_of(record: JobRecord) -> tuple[Span, ...]:
    """A job's state over time, as far as it is known; the last one is its state now."""
    info = record.info
    changes = merged_states(record.submitted, replace(info, states=record.states))
    if is_news(changes[-1].state, info.state):
        # An older blobsync kept no changes; and a cluster that was just asked may know more.
        since = changes[-1].at if info.state.is_final or not record.confirmed else record.confirmed
        seen = bool(record.confirmed) and not info.state.is_final
        changes = (*changes, StateChange(max(since, changes[-1].at), info.state, seen=seen))
    ends = [*(change.at for change in changes[1:]), None]
    spans, before = [], set()
    for change, end in zip(changes, ends, strict=True):
        if end is None or end > change.at:
            spans.append(Span(change.state, change.at, end, change.seen, change.state in before))
            before.add(change.state)
    return tuple(spans)


class Moment(NamedTuple):
    """What happened to a job at a time: its new state, or its new size. ``seconds`` is how long a state has lasted,
    in whole seconds of the clock, so that it fits the times that are shown beside it.

    ``state`` is None for a size. ``seen`` as in ``Span``.
    """

    at: float
    state: State | None
    text: str
    seen: bool
    seconds: int | None = None


def moments_of(record: JobRecord, now: float) -> tuple[Moment, ...]:
    """A job's states and the sizes of an elastic one, by their times."""
    found = [Moment(change.at, None, nodes_after(change), change.seen) for change in record.info.changes]
    for span in spans_of(record):
        lasts = None if span.state.is_final else max(0, int(span.end or now) - int(span.start))
        text = f"{span.state} again" if span.again else str(span.state)
        found.append(Moment(span.start, span.state, text, span.seen, lasts))
    return tuple(sorted(found, key=lambda moment: moment.at))


def nodes_after(change: NodeChange) -> str:
    """An elastic job's size from then on: ``2 nodes, 3 wanted``."""
    wanted = f", {change.wanted} wanted" if change.wanted != change.running else ""
    return f"{count_text(change.running, 'node')}{wanted}"


def is_news(last: State, state: State) -> bool:
    """Whether ``state`` comes after ``last``: a job that is to stop runs for a while, and stays one that is to stop."""
    return last is not state and (state.is_final or last.value != "Canceling")


def reported_states(info: RunInfo) -> tuple[StateChange, ...]:
    """The changes that are known of it; the start of this run is one where nothing more exact is known of it."""
    begun = any(
        change.state in (State.PREPARING, State.RUNNING) and not change.seen and change.restarts >= info.restarts
        for change in info.states
    )
    if begun or info.started is None:
        return info.states
    state = State.PREPARING if info.state is State.PREPARING else State.RUNNING
    return (*info.states, StateChange(info.started, state, info.restarts))


def merged_states(submitted: float, info: RunInfo) -> tuple[StateChange, ...]:
    """All changes that ``info`` has in their order, from the submission to the end, as far as that is known.

    Changes that a cluster reported replace those that were only seen; changes after the end are left out.
    """
    end = info.ended if info.state.is_final else None
    found = sorted(reported_states(info), key=lambda change: change.at)
    merged = [StateChange(submitted, State.QUEUED)]
    for change in found:
        if end is not None and (change.at >= end or change.state.is_final):
            continue
        last = merged[-1]
        if change.state is not last.state or change.restarts > last.restarts:
            merged.append(replace(change, at=max(change.at, last.at)))
    if end is not None:
        merged.append(StateChange(max(end, merged[-1].at), info.state, info.restarts))
    return tuple(merged)


def seconds_of(record: JobRecord) -> int | None:
    """How long a job ran, or has been waiting; None if its end is not known."""
    info = record.info
    if info.state.is_final and not info.ended:
        return None
    return max(0, int(info.ended or time.time()) - int(info.started or record.submitted))


def lasted(record: JobRecord) -> str:
    """The same for people: ``2d 3h``, ``5m 10s``."""
    seconds = seconds_of(record)
    return "" if seconds is None else lasting_text(seconds)


def age(record: JobRecord) -> str:
    """How long ago it was submitted: ``2d``, ``5m``."""
    return lasting_text(max(0, int(time.time() - record.submitted))).partition(" ")[0]


def lasting_text(seconds: int) -> str:
    """``2d 3h``, ``5m 10s``."""
    parts = [(seconds // 86_400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((number for number, (value, _) in enumerate(parts) if value), 3)
    return " ".join(f"{value}{unit}" for value, unit in parts[first : first + 2])
