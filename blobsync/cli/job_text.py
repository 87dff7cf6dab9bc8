"""What is shown of a job: as a row of a table, as lines of text, and as JSON."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from blobsync.base.formatting import count_text, zulu_text
from blobsync.cli.output import fields_of
from blobsync.cli.tables import table
from blobsync.cli.text_width import columns_of, wrapped
from blobsync.jobs.timeline import age, lasted, lasting_text, moments_of, nodes_after, seconds_of, spans_of
from blobsync.jobspec.interactive import entering_command, hold_text
from blobsync.jobspec.sweep import with_parameters
from blobsync.jobspec.task_states import counts_text
from blobsync.jobspec.topology import job_size_text

if TYPE_CHECKING:
    from blobsync.backends.protocol import ClusterSummary, Holder
    from blobsync.jobs.failure_causes import FoundCause
    from blobsync.jobs.logs import FetchedLogs
    from blobsync.jobs.record import JobRecord
    from blobsync.jobs.task_table import TaskRow
    from blobsync.jobspec.spec import JobSpec, TaskInfo


def short_id(record: JobRecord) -> str:
    """The job's id as tables show it on a narrow terminal."""
    return record.run_id.rpartition("_")[2]


def job_data(record: JobRecord) -> dict[str, Any]:
    """A job for ``--json``; times are ISO 8601 in UTC."""
    spec, info = record.spec, record.info
    return {
        "job_id": record.run_id,
        "status": info.state.value,
        "status_as_of": _iso(record.confirmed or None),
        "status_confirmed": record.is_settled,
        **fields_of(info, "exit_code", "reason", "restarts"),
        **fields_of(record, "cluster", "backend"),
        "native_id": record.ref.native_id,
        "url": record.ref.url or None,
        "name": spec.name,
        "command": list(spec.argv),
        "nodes": spec.nodes,
        "processes": spec.world_size,
        "gpus": spec.gpus,
        "hosts": list(info.nodes),
        "by": record.by or None,
        "submitted": _iso(record.submitted),
        "started": _iso(info.started),
        "ended": _iso(info.ended),
        "elapsed_seconds": seconds_of(record) if info.started else None,
        # In hours, as in ACT.
        "elapsedTime": _hours(record) if info.started else None,
        "code_digest": spec.code.digest if spec.code else None,
        "git_commit": spec.code.git_commit or None if spec.code else None,
        "git_dirty": spec.code.git_dirty if spec.code else None,
        "folders": {
            folder.name: {"mode": folder.mode, "url": f"{folder.container}/{folder.path}"} for folder in spec.folders
        },
        "locks": dict(spec.options.get("locks") or {}),
        "resubmission_of": record.successor_of or None,
        "foreign": spec.is_foreign,
        "unread": list(spec.unread),
        "ssh": ssh_line(record) or None,
        "hold_seconds": spec.hold or None,
        "after": spec.after or None,
        "elastic": _elastic_data(record) if spec.is_elastic else None,
        "task_counts": dict(Counter(str(task.state) for task in _infos(record))) or None,
        "states": [
            {"state": span.state.value, "time": _iso(span.start), "until": _iso(span.end), "seen": span.seen}
            for span in spans_of(record)
        ],
    }


# What of a job that was just submitted is shown.
ACCEPTED = ("job_id", "native_id", "url", "backend", "cluster", "status", "code_digest", "resubmission_of", "ssh")


def accepted_data(record: JobRecord) -> dict[str, Any]:
    """A job that was just submitted, for ``--json``."""
    known = job_data(record)
    return {name: known[name] for name in ACCEPTED}


def _infos(record: JobRecord) -> list[TaskInfo]:
    return [task.info for task in record.tasks]


def task_table(record: JobRecord, rows: Sequence[TaskRow], metric: str) -> Iterator[str]:
    """The tasks of a job: number, state, parameters, minutes, and the metric or the last line."""
    names = tuple(record.spec.tasks.names) if record.spec.tasks else ()
    lines = [("TASK", "STATUS", *names, "MINUTES", metric or "LAST LINE")]
    for row in rows:
        info = row.task.info
        status = info.state.value + (f" ({info.exit_code})" if info.exit_code else "")
        minutes = "" if row.seconds is None else f"{row.seconds / 60:.1f}"
        last = ("" if row.metric is None else f"{row.metric:g}") if metric else row.last_line or info.reason
        lines.append((str(info.number), status, *row.task.parameters.values(), minutes, last))
    return table(lines)


def planned_tasks(spec: JobSpec | None) -> list[dict[str, Any]]:
    """The tasks of a sweep that would be submitted, each with its command."""
    array = spec.tasks if spec else None
    return [
        {"index": number, "parameters": array.parameters(number), "command": list(with_parameters(spec, number).argv)}
        for number in (array.all_numbers if array else ())
        if spec and array
    ]


def task_data(rows: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """The tasks for ``--json``."""
    return [
        {
            "index": row.task.number,
            "parameters": dict(row.task.parameters),
            "status": row.task.state.value,
            **fields_of(row.task.info, "exit_code", "restarts", "reason"),
            "started": _iso(row.task.info.started),
            "ended": _iso(row.task.info.ended),
            "elapsed_seconds": None if row.seconds is None else int(row.seconds),
            "last_line": row.last_line,
            "metric": row.metric,
        }
        for row in rows
    ]


def _elastic_data(record: JobRecord) -> dict[str, Any]:
    changes = record.info.changes
    last = changes[-1] if changes else None
    return {
        "min_nodes": record.spec.min_nodes,
        "max_nodes": record.spec.max_nodes,
        "nodes": last.running if last else None,
        "wanted": last.wanted if last else record.spec.nodes,
        "changes": [
            {"time": _iso(one.at), "nodes": one.running, "wanted": one.wanted, "seen": one.seen} for one in changes
        ],
    }


def nodes_text(record: JobRecord) -> str:
    """The present and the requested number of nodes of an elastic job."""
    changes, spec = record.info.changes, record.spec
    bounds = f"elastic, {spec.min_nodes} to {spec.max_nodes}"
    if not changes:
        return f"{spec.nodes} wanted ({bounds})"
    return f"{nodes_after(changes[-1])} ({bounds})"


def state_text(record: JobRecord) -> str:
    """The job's state in a few words; marked if it is unconfirmed."""
    return _sure(record) + (f" ({record.info.exit_code})" if record.info.exit_code else "")


def _sure(record: JobRecord) -> str:
    state = record.info.state.value
    if record.is_settled or not record.confirmed or record.info.state.is_final:
        return state
    ago = lasting_text(max(0, int(time.time() - record.confirmed))).partition(" ")[0]
    return f"{state} as of {ago} ago, not confirmed"


def job_table(records: Sequence[JobRecord]) -> Iterator[str]:
    """A table of jobs: one line per job below a heading."""
    return table(job_rows(records))


def job_rows(records: Sequence[JobRecord]) -> list[tuple[str, ...]]:
    """The rows of that table, the heading first; the name column only if a job has a name."""
    named = any(record.spec.name for record in records)
    foreign = any(record.by for record in records)
    more = [*(["BY"] if foreign else []), *(["NAME"] if named else [])]
    rows = [("ID", "STATUS", "AGE", "TIME", "CLUSTER", "GPUS", *more, "COMMAND")]
    for record in records:
        info, spec = record.info, record.spec
        status = state_text(record)
        if record.tasks:
            status += f", {counts_text(_infos(record))}"
        if info.restarts:
            status += f", restarted {info.restarts}x"
        gpus = str(spec.gpus or f"{spec.world_size} CPU")
        by = [f"{record.by}, from the container" if record.by else ""] if foreign else []
        name = [spec.name] if named else []
        cells = (status, age(record), lasted(record), record.cluster, gpus, *by, *name, shlex.join(spec.argv))
        rows.append((record.run_id, *cells))
    return rows


# Facts that are copied in one piece.
_COPIED = ("command", "enter it", "page")


def job_details(record: JobRecord, columns: int | None = None) -> Iterator[str]:
    """The properties of a job, one per line; on a narrow terminal those that are no command or link break at blanks."""
    info, spec = record.info, record.spec
    facts = [
        ("job", record.run_id + (f" ({spec.name})" if spec.name else "")),
        ("status", _sure(record) + (f", exit code {info.exit_code}" if info.exit_code is not None else "")),
        ("tasks", counts_text(_infos(record)) if record.tasks else ""),
        ("reason", info.reason),
        ("restarts", str(info.restarts) if info.restarts else ""),
        ("by", f"{record.by}, from the container" if record.by else ""),
        ("command", shlex.join(spec.argv)),
        ("cluster", _place(record)),
        ("size", job_size_text(record.spec)),
        ("hosts", " ".join(info.nodes)),
        ("submitted", _iso(record.submitted) or ""),
        ("started", _iso(info.started) or ""),
        _elapsed(record),
        ("code", _code(record)),
        ("not read", ", ".join(spec.unread)),
        *((f"folder {folder.name}", f"{folder.mode} {folder.container}/{folder.path}") for folder in spec.folders),
        *((f"lock {path}", digest) for path, digest in (spec.options.get("locks") or {}).items()),
        ("enter it", ssh_line(record)),
        (
            "waits",
            f"{hold_text(spec.hold)} from its start, then until the last shell is closed" if ssh_line(record) else "",
        ),
        ("page", record.ref.url),
        ("again for", record.successor_of),
        ("after", spec.after),
        ("nodes", nodes_text(record) if spec.is_elastic else ""),
    ]
    columns = columns_of(sys.stdout) if columns is None else columns
    for name, value in facts:
        if value:
            line = f"{name + ':':<14} {value}"
            yield from [line] if name in _COPIED else wrapped(line, columns).split("\n")
    for number, moment in enumerate(moments_of(record, time.time())):
        lasts = f", {lasting_text(moment.seconds)}" if moment.seconds is not None else ""
        seen = " (seen then)" if moment.seen else ""
        line = f"{'over time:' if number == 0 else '':<14} {_iso(moment.at)}  {moment.text}{lasts}{seen}"
        yield from wrapped(line, columns).split("\n")


def ssh_line(record: JobRecord) -> str:
    """The command that opens a shell in a job submitted with 'ssh'; empty for other jobs, and after its end."""
    waits = record.spec.hold and not record.info.state.is_final
    return entering_command(record.run_id) if waits else ""


def cause_lines(findings: Iterable[FoundCause]) -> Iterator[str]:
    """Each known cause with its line in the log and whether another try helps."""
    for finding in findings:
        cause = finding.cause
        again = "; a retry may help" if cause.retriable else ""
        yield f"{cause.code}: {cause.meaning}{again}"
        yield f"    {finding.log}:{finding.line_number} ({count_text(finding.count, 'line')}): {finding.line}"


def cause_data(findings: Iterable[FoundCause]) -> list[dict[str, Any]]:
    """The causes for ``--json``."""
    return [
        {
            **fields_of(finding.cause, "code", "meaning", "retriable"),
            **fields_of(finding, "log", "line_number", "line", "count"),
        }
        for finding in findings
    ]


def log_data(fetched: FetchedLogs) -> list[str]:
    """The paths of the local logs."""
    return [str(fetched.path(name)) for name in fetched.names]


def summary_lines(cluster: str, summary: ClusterSummary) -> Iterator[str]:
    """The free resources of a cluster."""
    yield f"cluster {cluster}"
    for noun, free, total in (
        ("nodes", summary.nodes_free, summary.nodes_total),
        ("GPUs", summary.gpus_free, summary.gpus_total),
    ):
        if total is not None:
            yield f"  {noun}: {free if free is not None else '?'} of {total} free"
    yield f"  jobs: {summary.jobs_running} running, {summary.jobs_queued} queued"
    yield from (f"  {note}" for note in summary.notes)


def holder_lines(holders: Sequence[Holder]) -> Iterator[str]:
    """Who uses the cluster, the largest users first."""
    rows = [("USER", "GPUS", "NODES", "STATUS", "ID", "NAME")]
    for holder in sorted(holders, key=lambda one: (-one.gpus, -one.nodes, one.user)):
        rows.append(
            (holder.user, str(holder.gpus), str(holder.nodes), holder.state.value, holder.native_id, holder.name)
        )
    return table(rows)


def _place(record: JobRecord) -> str:
    native = record.ref.native_id
    return f"{record.cluster} ({record.backend}{f', {native}' if native not in ('', record.run_id) else ''})"


def _code(record: JobRecord) -> str:
    code = record.spec.code
    if record.spec.is_foreign:
        return "its own; blobsync did not submit it"
    if code is None:
        return "none: the project's folder itself"
    commit = f", commit {code.git_commit[:12]}" if code.git_commit else ""
    return (code.digest[:12] or code.blob) + commit + (" and uncommitted changes" if code.git_dirty else "")


def _hours(record: JobRecord) -> float | None:
    seconds = seconds_of(record)
    return None if seconds is None else round(seconds / 3600, 2)


def _elapsed(record: JobRecord) -> tuple[str, str]:
    """How long it ran, is running or is waiting, as one fact."""
    info = record.info
    if info.ended:
        return "ended", f"{_iso(info.ended)}{f' after {lasted(record)}' if info.started else ''}"
    if info.state.is_final or info.state.value == "Unknown":
        return "ended", ""
    # A preempted job has a start time although it is queued.
    runs = info.started and info.state.value != "Queued"
    return "running for" if runs else "waiting for", lasted(record)


def _iso(moment: float | None) -> str | None:
    return None if moment is None else zulu_text(moment)
