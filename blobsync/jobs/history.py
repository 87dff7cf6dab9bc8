"""The jobs that were submitted from this project: one row each, in SQLite. Works without any network.

The file holds no secret, but whole command lines.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TypeVar, cast

from blobsync.ancestors.batchai_runtime import renewed
from blobsync.base.errors import AmbiguousJobError, JobNotFoundError, UnsafeNameError
from blobsync.base.plain_json import made_of, parse_json
from blobsync.jobs.record import Home, JobFilter, JobRecord
from blobsync.jobs.timeline import is_news, merged_states, reported_states
from blobsync.jobspec.spec import JobOptions, JobRef, JobSpec, NodeChange, RunInfo, State, StateChange, TaskInfo
from blobsync.jobspec.task_states import settled
from blobsync.local.state_databases import jobs_database

_T = TypeVar("_T")
_ANY = JobFilter()
_KEPT = """
select * from jobs where backend in (select value from json_each(?1)) and native_id<>''
and state in (select value from json_each(?2))
and run_id not in (select run_id from removed_secrets where gone or tried > ?3)
order by submitted
"""
# The last part of an id is what people copy from a narrow table; what comes before the time is the same for many.
_HEAD = "rtrim(run_id, '0123456789abcdefghijklmnopqrstuvwxyz')"
_LIKE = f"""
select * from jobs where substr(run_id, -length(?1))=?1 or native_id=?1
or substr(run_id, length({_HEAD}) + 1, length(?1))=?1
or (substr(run_id, 1, length(?1))=?1 and length(?1) >= length(rtrim({_HEAD}, '_')))
order by submitted desc
"""  # noqa: S608 - of our own words
_NAMED = "select * from jobs where json_extract(spec, '$.name')=? order by submitted desc, rowid desc limit 1"
_ALIVE = """
select * from jobs
where coalesce(ended, case when state in (select value from json_each(?2)) then confirmed end, 9e99) > ?1
order by submitted desc, rowid desc limit 1000
"""
# The jobs that a filter chooses: states, a cluster, and words that all have to be in the id, the name or the command.
_CHOSEN = """(?2 is null or cluster=?2) and not exists (select 1 from json_each(?3) as word where instr(
    lower(run_id || ' ' || json_extract(spec, '$.name') || ' ' || json_extract(spec, '$.argv')), word.value) = 0)
"""
_PAGE = f"""
select * from jobs where (?1='[]' or state in (select value from json_each(?1))) and {_CHOSEN}
order by submitted desc, rowid desc limit ?4 offset ?5
"""  # noqa: S608 - of our own words
_COUNT = f"select state, count(*) from jobs where ?1 is not null and {_CHOSEN} group by state"  # noqa: S608


class History:
    """The jobs in the project's ``jobs.sqlite``. Raises ``JobError`` when the file cannot be used."""

    def __init__(self, file: Path) -> None:
        self._file = jobs_database(file)

    def add(
        self,
        spec: JobSpec,
        ref: JobRef,
        backend: str,
        *,
        successor_of: str = "",
        home: Home | None = None,
        submitted: float | None = None,
    ) -> JobRecord:
        """Record a job; before it is handed over, with a reference that has no native id yet.

        ``submitted`` is for a job that was handed over at another time than now.
        """
        now = time.time()
        since = min(submitted or now, now)
        # An accepted job is in a queue.
        confirmed = now if ref.native_id else 0.0
        info = RunInfo(spec.run_id, State.QUEUED)
        record = JobRecord(spec, ref, backend, info, since, False, successor_of, home, confirmed, bool(ref.native_id))
        values = (
            *(spec.run_id, ref.native_id, ref.place, backend, spec.cluster, spec.to_json()),
            *(State.QUEUED.value, None, 0, "", since, None, None, "", 0, successor_of),
            *(confirmed, home.to_json() if home else ""),
        )
        with self._file.writing() as database:
            database.execute(
                "insert or replace into jobs values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values
            )
        return record

    def accept(self, record: JobRecord, ref: JobRef) -> JobRecord:
        """Record where a submitted job is."""
        now = time.time()
        with self._file.writing() as database:
            database.execute(
                "update jobs set native_id=?, place=?, confirmed=? where run_id=?",
                (ref.native_id, ref.place, now, record.run_id),
            )
        return replace(record, ref=ref, confirmed=now, current=True)

    def remove(self, run_id: str) -> None:
        """Forget a job that was not accepted."""
        with self._file.writing() as database:
            for table in ("jobs", "tasks", "node_changes", "state_changes"):
                database.execute(f"delete from {table} where run_id=?", (run_id,))  # noqa: S608 - of our own words

    def update(self, record: JobRecord, info: RunInfo) -> JobRecord:
        """Record a backend's report; keeps what the backend has forgotten."""
        known, now = _settle(record, info), time.time()
        with self._file.writing() as database:
            before = database.execute("select state from jobs where run_id=?", (record.run_id,)).fetchone()
            database.execute(
                "update jobs set state=?, exit_code=?, restarts=?, reason=?, started=?, ended=?, nodes=?, confirmed=?"
                " where run_id=?",
                (
                    *(known.state.value, known.exit_code, known.restarts, known.reason),
                    *(known.started, known.ended, ",".join(known.nodes), now, record.run_id),
                ),
            )
            changes = _add_sizes(database, record.run_id, info.changes) if record.spec.is_elastic else ()
            states = _add_states(database, record.submitted, known, now)
            if known.tasks and known.tasks != record.info.tasks:
                values = json.dumps([astuple(task) for task in known.tasks])
                database.execute("insert or replace into tasks values (?, ?)", (record.run_id, values))
        is_first = known.state.is_final and before is not None and not State(before["state"]).is_final
        fresh = replace(record, info=replace(known, changes=changes), states=states, confirmed=now, current=True)
        return replace(fresh, has_just_ended=is_first)

    def ask_scale(self, record: JobRecord, nodes: int, at: float) -> JobRecord:
        """Record that an elastic job was asked, at that time, to have this number of nodes."""
        known = record.info.changes
        change = NodeChange(at, known[-1].running if known else 0, nodes)
        with self._file.writing() as database:
            changes = _add_sizes(database, record.run_id, (change,))
        return replace(record, info=replace(record.info, changes=changes))

    def ask_cancel(self, record: JobRecord) -> JobRecord:
        """Record that its cancellation was requested: a backend may forget the job before it confirms."""
        canceling = RunInfo(record.run_id, State.CANCELING, restarts=record.info.restarts)
        asked = StateChange(time.time(), State.CANCELING, record.info.restarts)
        with self._file.writing() as database:
            database.execute("update jobs set cancel_asked=1 where run_id=?", (record.run_id,))
            info = replace(canceling, states=(asked,))
            states = _add_states(database, record.submitted, info, asked.at)
        return replace(record, cancel_asked=True, states=states)

    def with_secrets(self, backends: Sequence[str], tried_before: float) -> tuple[JobRecord, ...]:
        """Ended jobs of these backends whose secrets may still be there, without those tried after ``tried_before``."""
        final = [state.value for state in State if state.is_final]
        return tuple(self._select(_KEPT, json.dumps(backends), json.dumps(final), tried_before))

    def note_secrets(self, records: Sequence[JobRecord], *, gone: bool) -> None:
        """Record that their secrets are ``gone``, or that an attempt to remove them failed."""
        now = time.time()
        with self._file.writing() as database:
            database.executemany(
                "insert or replace into removed_secrets values (?, ?, ?)",
                [(record.run_id, now, gone) for record in records],
            )

    def shared(self, run_ids: Sequence[str]) -> dict[str, tuple[float, str, str]]:
        """What was last written of these jobs into their containers: when it was tried, the state, and the digest."""
        query = "select * from shared_records where run_id in (select value from json_each(?))"
        with self._file.reading() as database:
            return {row[0]: (row[1], row[2], row[3]) for row in database.execute(query, (json.dumps(run_ids),))}

    def note_shared(self, run_id: str, state: State, digest: str) -> None:
        """Record what was written of a job into its container; an empty digest: that failed."""
        with self._file.writing() as database:
            values = (run_id, time.time(), state.value, digest)
            database.execute("insert or replace into shared_records values (?, ?, ?, ?)", values)

    def alive_after(self, at: float) -> tuple[JobRecord, ...]:
        """The newest jobs that are not known to have ended before the time ``at`` (seconds since 1970)."""
        return tuple(self._select(_ALIVE, at, json.dumps([state.value for state in State if state.is_final])))

    def find(self, wanted: str) -> JobRecord:
        """The one job of that id, of an id that begins or ends so, or of that id on its cluster; a whole id wins.
        Else the newest of that name.

        Raises ``JobNotFoundError``, or ``AmbiguousJobError`` with the candidates.
        """
        found = self._select("select * from jobs where run_id=?", wanted)
        if not found and wanted:
            found = self._select(_LIKE, wanted) or self._select(_NAMED, wanted)
        if not found:
            raise JobNotFoundError(
                f"no job of this project has an id that begins or ends with {wanted!r}, or that name",
                hint="blobsync history lists them",
            )
        demand_one(wanted, [record.run_id for record in found])
        return found[0]

    def newest(self) -> JobRecord:
        """The job that was submitted last. Raises ``JobNotFoundError``."""
        found = self.page(limit=1)
        if not found:
            raise JobNotFoundError("no job was submitted from this project yet", hint="blobsync submit CMD...")
        return found[0]

    def holds(self, run_id: str) -> bool:
        """Whether there is a record of this job."""
        return bool(self._select("select * from jobs where run_id=?", run_id))

    def page(self, chosen: JobFilter = _ANY, *, limit: int | None = None, offset: int = 0) -> tuple[JobRecord, ...]:
        """The jobs that are chosen, newest first, without the first ``offset``."""
        # SQLite takes a negative limit for none.
        return tuple(self._select(_PAGE, *_values(chosen), -1 if limit is None else limit, offset))

    def count_states(self, chosen: JobFilter) -> dict[State, int]:
        """How many jobs are in each state; the states of ``chosen`` do not count here."""
        with self._file.reading() as database:
            rows = database.execute(_COUNT, _values(chosen)).fetchall()
        known = {state.value: state for state in State}
        return {known[state]: count for state, count in rows if state in known}

    def clusters(self) -> tuple[str, ...]:
        """The clusters that have jobs, sorted."""
        with self._file.reading() as database:
            return tuple(row[0] for row in database.execute("select distinct cluster from jobs order by cluster"))

    def _select(self, query: str, *values: object) -> list[JobRecord]:
        with self._file.reading() as database:
            rows = database.execute(query, values).fetchall()
            run_ids = [row["run_id"] for row in rows]
            sizes, states = _sizes_of(database, run_ids), _states_of(database, run_ids)
            of_these = "select * from tasks where run_id in (select value from json_each(?))"
            known = database.execute(of_these, (json.dumps(run_ids),)).fetchall()
        try:
            tasks = {
                one["run_id"]: tuple(made_of(TaskInfo, each) for each in parse_json(one["states"])) for one in known
            }
            return [
                _record(row, sizes.get(run_id, ()), states.get(run_id, ()), tasks.get(run_id, ()))
                for row, run_id in zip(rows, run_ids, strict=True)
            ]
        except (ValueError, KeyError, TypeError, AttributeError, UnsafeNameError) as error:
            raise self._file.failure(f"holds a row that blobsync did not write: {error}", error) from error


def demand_one(wanted: str, run_ids: Sequence[str]) -> None:
    """Raise ``AmbiguousJobError`` if several jobs could be the ``wanted`` one."""
    if len(run_ids) > 1:
        names = ", ".join(run_ids[:8])
        raise AmbiguousJobError(f"{len(run_ids):,} jobs could be {wanted!r}: {names}", hint="give more of the id")


def _changes_of(
    database: sqlite3.Connection, table: str, run_ids: Sequence[str], made: Callable[[sqlite3.Row], _T]
) -> dict[str, tuple[_T, ...]]:
    """The known changes of these jobs, by their times."""
    query = f"select * from {table} where run_id in (select value from json_each(?)) order by run_id, at, rowid"  # noqa: S608
    rows = groupby(database.execute(query, (json.dumps(run_ids),)), itemgetter("run_id"))
    return {run_id: tuple(map(made, each)) for run_id, each in rows}


def _sizes_of(database: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, tuple[NodeChange, ...]]:
    return _changes_of(
        database,
        "node_changes",
        run_ids,
        lambda row: NodeChange(row["at"], row["running"], row["wanted"], bool(row["seen"])),
    )


def _states_of(database: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, tuple[StateChange, ...]]:
    """A state of a newer blobsync is unknown here."""
    known = {state.value: state for state in State}
    return _changes_of(
        database,
        "state_changes",
        run_ids,
        lambda row: StateChange(row["at"], known.get(row["state"], State.UNKNOWN), row["restarts"], bool(row["seen"])),
    )


def _add_sizes(database: sqlite3.Connection, run_id: str, changes: Iterable[NodeChange]) -> tuple[NodeChange, ...]:
    """Keep those that are new and change something; returns all that are known, in their order."""
    known = list(_sizes_of(database, [run_id]).get(run_id, ()))
    for change in changes:
        before = [one for one in known if one.at <= change.at]
        if not before or (change.running, change.wanted) != (before[-1].running, before[-1].wanted):
            known.insert(len(before), change)
            values = (run_id, change.at, change.running, change.wanted, change.seen)
            # Another command may have written the same at this moment.
            database.execute("insert or ignore into node_changes values (?, ?, ?, ?, ?)", values)
    return tuple(known)


def _add_states(database: sqlite3.Connection, submitted: float, info: RunInfo, now: float) -> tuple[StateChange, ...]:
    """Record the states that a backend reported; one without a time was seen ``now``.

    A recorded report of a moment stays, even if the backend reports that moment differently later. Returns all known
    changes, in their order.
    """
    known = _states_of(database, [info.run_id]).get(info.run_id, ())
    reported = {(change.at, change.restarts) for change in known if not change.seen}
    fresh = [change for change in info.states if (change.at, change.restarts) not in reported]
    news = [change for change in reported_states(replace(info, states=(*known, *fresh))) if change not in known]
    known = tuple(sorted((*known, *news), key=lambda change: change.at))
    last = merged_states(submitted, replace(info, states=known))[-1]
    if is_news(last.state, info.state) or last.restarts < info.restarts:
        news.append(StateChange(now, info.state, info.restarts, seen=True))
        known = (*known, news[-1])
    values = [(info.run_id, change.at, change.state.value, change.restarts, change.seen) for change in news]
    # Another command may have written the same at this moment.
    database.executemany("insert or ignore into state_changes values (?, ?, ?, ?, ?)", values)
    return known


def _settle(record: JobRecord, info: RunInfo) -> RunInfo:
    if info.state is State.UNKNOWN:
        if record.info.state.is_final:
            return record.info
        if record.cancel_asked:
            info = replace(record.info, state=State.CANCELED, reason="cancelled by blobsync", tasks=())
    # Of a transfer over nodes, its result decides.
    if record.spec.tasks is not None and record.spec.spread is None:
        info = settled(record.spec.tasks, record.info.tasks, info)
    return replace(
        info,
        # Slurm's accounting does not report restarts.
        restarts=max(info.restarts, record.info.restarts),
        started=info.started or record.info.started,
        ended=info.ended or record.info.ended,
        nodes=info.nodes or record.info.nodes,
    )


def _values(chosen: JobFilter) -> tuple[object, ...]:
    """The parameters of the two queries."""
    words = json.dumps(chosen.text.lower().split())
    return json.dumps([state.value for state in chosen.states]), chosen.cluster, words


def _record(
    row: sqlite3.Row, changes: tuple[NodeChange, ...], states: tuple[StateChange, ...], tasks: tuple[TaskInfo, ...]
) -> JobRecord:
    spec = JobSpec.from_json(row["spec"])
    spec = replace(spec, options=cast("JobOptions", renewed(spec.options, spec.env)))
    if spec.run_id != row["run_id"] or spec.cluster != row["cluster"]:
        raise ValueError("the specification belongs to another job")
    info = RunInfo(
        row["run_id"],
        State(row["state"]),
        row["exit_code"],
        row["restarts"],
        row["reason"],
        row["started"],
        row["ended"],
        tuple(node for node in row["nodes"].split(",") if node),
        changes,
        tasks=tasks,
    )
    ref = JobRef(row["run_id"], row["native_id"], row["place"])
    home = Home.from_json(row["home"]) if row["home"] else None
    asked, successor_of = bool(row["cancel_asked"]), str(row["successor_of"])
    submitted, confirmed = float(row["submitted"]), float(row["confirmed"])
    record = JobRecord(spec, ref, str(row["backend"]), info, submitted, asked, successor_of, home, confirmed)
    return replace(record, states=states)
