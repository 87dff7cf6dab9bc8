"""What happened to jobs when: changes of their state and of their size, in the history's database.

A cluster's own times count. Where it tells none, the time of asking is kept, and said to be that.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

from blobsync.jobs.spec import NodeChange, RunInfo, State, StateChange
from blobsync.jobs.timeline import is_news, merged_states, told_states

NODE_CHANGES = """
create table if not exists node_changes (
    run_id text not null,
    at real not null,
    running integer not null,
    wanted integer not null,
    primary key (run_id, at)
)
"""
SEEN_SIZE = "alter table node_changes add column seen integer not null default 0"
STATE_CHANGES = """
create table if not exists state_changes (
    run_id text not null,
    at real not null,
    state text not null,
    restarts integer not null,
    seen integer not null,
    primary key (run_id, at, state)
)
"""
# The rows of some jobs: their ids as a list of JSON.
_SIZES = "select * from node_changes where run_id in (select value from json_each(?)) order by at, rowid"
_STATES = "select * from state_changes where run_id in (select value from json_each(?)) order by at, rowid"


def sizes_of(database: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, tuple[NodeChange, ...]]:
    """The known changes of these jobs' sizes, by their times."""
    found: dict[str, tuple[NodeChange, ...]] = {}
    for row in database.execute(_SIZES, (json.dumps(run_ids),)):
        change = NodeChange(row["at"], row["running"], row["wanted"], bool(row["seen"]))
        found[row["run_id"]] = (*found.get(row["run_id"], ()), change)
    return found


def states_of(database: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, tuple[StateChange, ...]]:
    """The known changes of these jobs' states, by their times; a state of a newer blobsync is unknown here."""
    found: dict[str, tuple[StateChange, ...]] = {}
    known = {state.value: state for state in State}
    for row in database.execute(_STATES, (json.dumps(run_ids),)):
        state = known.get(row["state"], State.UNKNOWN)
        change = StateChange(row["at"], state, row["restarts"], bool(row["seen"]))
        found[row["run_id"]] = (*found.get(row["run_id"], ()), change)
    return found


def add_sizes(database: sqlite3.Connection, run_id: str, changes: Iterable[NodeChange]) -> tuple[NodeChange, ...]:
    """Keep those that are new and change something; returns all that are known, in their order."""
    known = list(sizes_of(database, [run_id]).get(run_id, ()))
    for change in changes:
        before = [one for one in known if one.at <= change.at]
        if not before or (change.running, change.wanted) != (before[-1].running, before[-1].wanted):
            known.insert(len(before), change)
            values = (run_id, change.at, change.running, change.wanted, change.seen)
            # Another command may have written the same at this moment.
            database.execute("insert or ignore into node_changes values (?, ?, ?, ?, ?)", values)
    return tuple(known)


def add_states(database: sqlite3.Connection, submitted: float, info: RunInfo, now: float) -> tuple[StateChange, ...]:
    """Keep what a backend told of a job's state; one whose time it did not tell was seen ``now``.

    What was told of a moment stays: a cluster that judges the past by what it knows now says nothing new of it.
    Returns all that are known, in their order.
    """
    known = states_of(database, [info.run_id]).get(info.run_id, ())
    told = {(change.at, change.restarts) for change in known if not change.seen}
    fresh = [change for change in info.states if (change.at, change.restarts) not in told]
    news = [change for change in told_states(replace(info, states=(*known, *fresh))) if change not in known]
    known = tuple(sorted((*known, *news), key=lambda change: change.at))
    last = merged_states(submitted, replace(info, states=known))[-1]
    if is_news(last.state, info.state) or last.restarts < info.restarts:
        news.append(StateChange(now, info.state, info.restarts, seen=True))
        known = (*known, news[-1])
    for change in news:
        values = (info.run_id, change.at, change.state.value, change.restarts, change.seen)
        # Another command may have written the same at this moment.
        database.execute("insert or ignore into state_changes values (?, ?, ?, ?, ?)", values)
    return known


def forget_changes(database: sqlite3.Connection, run_id: str) -> None:
    """Remove all of a job."""
    database.execute("delete from node_changes where run_id=?", (run_id,))
    database.execute("delete from state_changes where run_id=?", (run_id,))
