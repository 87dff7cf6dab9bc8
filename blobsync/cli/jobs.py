"""``q``, ``qq``, ``qr``, ``qf``, ``logs``, ``summary``, ``blame`` and ``parse``: commands that show jobs.

A job is shown as a row of a table, as lines of text, and as JSON.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import UsageError
from blobsync.base.formatting import count_text, zulu_text
from blobsync.cli.commands import ITS_NAME, NO_CLUSTER, Commands, argument, option
from blobsync.cli.output import Result, columns_of, fields_of, more_line, wrapped
from blobsync.cli.session import Session, interrupted_looking
from blobsync.cli.tables import table
from blobsync.jobs.timeline import age, lasted, lasting_text, moments_of, nodes_after, seconds_of, spans_of
from blobsync.jobspec.interactive import entering_command, hold_text
from blobsync.jobspec.sweep import with_parameters
from blobsync.jobspec.task_states import counts_text
from blobsync.jobspec.topology import job_size_text

if TYPE_CHECKING:
    from blobsync.backends.protocol import ClusterSummary, Holder
    from blobsync.jobs.failure_causes import FoundCause
    from blobsync.jobs.logs import FetchedLogs
    from blobsync.jobs.record import JobList, JobRecord
    from blobsync.jobs.task_table import TaskRow
    from blobsync.jobspec.spec import JobSpec, TaskInfo
    from blobsync.project.jobs import Jobs


DEFAULT_MAX = 20
# How much of one task's log q shows (lines).
REPORT_LINES = 100

MaxOption = Annotated[int, option("--max", min=1, metavar="N", help="Show the newest N jobs.")]
MetricOption = Annotated[
    str, option("--metric", metavar="FILE:FIELD", help="Of a sweep: this value in each task's output.")
]
SortOption = Annotated[
    str, option("--sort", metavar="COLUMN", help="Of a sweep: by index, state, minutes, metric or a parameter.")
]
IdArgument = Annotated[str, argument(metavar="ID", help="A job ID, its beginning or end, or a job's name.")]
OptionalId = Annotated[str | None, argument(metavar="[ID]", help="A job ID, its beginning or end, or a job's name.")]
OptionalIds = Annotated[
    list[str] | None, argument(metavar="[ID...]", help="Job IDs, their beginnings or ends, or names.")
]


app = Commands()


@app.command("q", takes=ITS_NAME)
def query(
    session: Session,
    ids: OptionalIds = None,
    max: MaxOption = DEFAULT_MAX,
    no_logs: Annotated[bool, option("--no-logs", help="Fetch no logs.")] = False,
    watch: Annotated[bool, option("--watch", help="Show the list anew, until these jobs have ended.")] = False,
    metric: MetricOption = "",
    sort: SortOption = "",
    all_users: Annotated[
        bool, option("--all-users", help="Also the newest of other users and machines, from the containers.")
    ] = False,
) -> Result:
    """List the newest jobs, or show some: logs (kept in assets/ID/), last lines of rank 0, causes, facts.

    Of a sweep, a table of its tasks. Jobs of all clusters are listed; -c lists those of one.

    \b
      blobsync q
      blobsync q --all-users
      blobsync q 3f2a
      blobsync q 3f2a --metric metrics.json:eval.loss --sort metric
      blobsync q --watch
    """
    jobs = find_jobs(session)
    if all_users and (ids or watch):
        raise UsageError("--all-users lists jobs: an ID is found without it, and it has no --watch")
    if watch:
        return _watched(session, jobs, ids or (), max)
    if not ids:
        return _listed(session, jobs, (), max, all_users=all_users)
    if no_logs:
        return _facts(jobs.refresh(ids))
    found = [jobs.find_task(id) for id in ids]
    fresh = jobs.refresh([record for record, _ in found])
    reports = [
        _sweep_report(jobs, record, task, metric, sort) if record.tasks else _report(session, jobs, record)
        for record, (_, task) in zip(fresh, found, strict=True)
    ]
    return Result({"jobs": [data for data, _ in reports]}, [line for _, lines in reports for line in lines])


def _report(session: Session, jobs: Jobs, record: JobRecord) -> tuple[Mapping[str, Any], Sequence[str]]:
    """A job with what its logs say, as data and as lines."""
    from blobsync.jobs.node_use import left_behind, preparing_text, seconds_behind

    report = jobs.report(record)
    logs, causes = log_data(report.fetched), cause_data(report.causes)
    behind, preparing = seconds_behind(record, report.fetched), preparing_text(record, report.fetched)
    told = {"logs": logs, "causes": causes, "tail": list(report.tail)}
    left = left_behind(record, report.fetched)
    how_far = {"checkpoint_seconds_behind": behind, "preparing": preparing or None, "left_behind": list(left)}
    problem = report.fetched.problem
    unread = [f"no logs: {problem.message}"] if problem and not report.fetched.names else []
    _note_age(session, report.fetched)
    far = [f"{'preparing:':<14} {preparing}"] if preparing else []
    late = [f"{'checkpoint:':<14} {behind:,} s behind in the container"] if behind is not None else []
    said = [*report.tail, *([""] if report.tail else []), *logs, *unread, *job_details(record), *far, *late, *left]
    return {**job_data(record), **told, **how_far, "tasks": []}, [*said, *cause_lines(report.causes)]


def _sweep_report(
    jobs: Jobs, record: JobRecord, task: int | None, metric: str, sort: str
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """A sweep, or one task of it with the end of its log, as data and as lines."""
    rows = [row for row in jobs.task_rows(record, metric=metric, sort=sort) if task in (None, row.task.number)]
    data = {**job_data(record), **_NO_LOGS, "tasks": task_data(rows)}
    lines = list(task_table(record, rows, metric))
    if task is None:
        return data, [*lines, "", *job_details(record)]
    log = jobs.read_log(record, task=task, tail=REPORT_LINES)
    logs = log_data(log.fetched)
    return {**data, "logs": logs, "tail": list(log.lines)}, [*log.lines, "", *logs, *lines]


def _watched(session: Session, jobs: Jobs, ids: Sequence[str], limit: int) -> Result:
    """The table of jobs whenever it changes, on a terminal always in the same place."""
    if session.json:
        raise UsageError("--watch and --json cannot be combined")

    def screens() -> Iterator[Sequence[str]]:
        before: object = None
        for found in jobs.looks(ids, limit=limit, cluster=session.cluster):
            states = [(record.run_id, record.info.state, record.info.restarts) for record in found]
            if found and (sys.stdout.isatty() or states != before):
                yield [*job_table(found.records), *_left_out(found)]
            before = states
        session.note("all of them have ended" if before else "there are no jobs")

    return Result(screens=screens(), interrupted=interrupted_looking())


_NO_LOGS: Mapping[str, Any] = {
    "logs": [],
    "causes": [],
    "tail": [],
    "checkpoint_seconds_behind": None,
    "preparing": None,
    "left_behind": [],
    "tasks": [],
}


def _facts(records: JobList) -> Result:
    """The facts of jobs without their logs."""
    data = {"jobs": [{**job_data(record), **_NO_LOGS} for record in records]}
    return Result(data, (line for record in records for line in job_details(record)))


@app.command("qq", takes=ITS_NAME)
def queued(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List queued jobs.

    \b
      blobsync qq
      blobsync qq -c eu --max 5
    """
    return _listed(session, find_jobs(session), ("Queued", "Preparing"), max)


@app.command("qr", takes=ITS_NAME)
def running(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List running jobs.

    \b
      blobsync qr
    """
    return _listed(session, find_jobs(session), ("Running", "Canceling"), max)


@app.command("qf", takes=ITS_NAME)
def failed(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List failed jobs.

    \b
      blobsync qf --max 3
    """
    return _listed(session, find_jobs(session), ("Failed",), max)


@app.command("logs", takes=NO_CLUSTER)
def logs(
    session: Session,
    id: OptionalId = None,
    follow: Annotated[bool, option("-F", "--follow", help="Show new lines until the job ends.")] = False,
    rank: Annotated[int | None, option("--rank", min=0, metavar="K", help="Show only this process.")] = None,
    tail: Annotated[int | None, option("--tail", min=1, metavar="N", help="Show only the last N lines.")] = None,
) -> Result:
    """Print the log of rank 0, or of another; -F follows all of them. Without an ID: of the newest job. ID/7 is task 7
    of a sweep, ID alone its first.

    \b
      blobsync logs -F
      blobsync logs 3f2a/7 -F
      blobsync logs 3f2a --rank 3 --tail 50
      blobsync logs 3f2a -F
    """
    if follow and session.json:
        raise UsageError("-F and --json cannot be combined")
    jobs = find_jobs(session)
    record, task = find_task(session, jobs, id)
    if follow:
        return Result(lines=_job_lines(session, jobs, record, rank, task), live=True, texts=True)
    log = jobs.read_log(record, rank=rank, tail=tail, task=task)
    run_id = log.record.run_id
    if task is None and len(log.record.tasks) > 1:
        session.note(_which_task(log.record))
    if not log.name:
        session.note(f"{run_id} has no such log{'' if log.record.info.state.is_final else ' yet'}")
    _note_age(session, log.fetched)
    left = note_left_behind(session, log.record, log.fetched)
    lines = list(log.lines)
    data = {"job_id": run_id, "log": log.name or "", "lines": lines, "logs": log_data(log.fetched), "left_behind": left}
    return Result(data, lines, texts=True)


def _which_task(record: JobRecord) -> str:
    """Which task of a sweep is shown, and how to see another: one that failed, if there is one."""
    shown, *others = record.tasks
    failed = [task for task in others if task.state.value == "Failed"]
    other = (failed or others)[0].number
    named = f"task {other}" + (", which failed" if failed else "")
    return f"task {shown.number} of {len(record.tasks):,}; of {named}: blobsync logs {short_id(record)}/{other}"


def note_left_behind(session: Session, record: JobRecord, fetched: FetchedLogs) -> list[str]:
    """Note, and return, what an ended job left outside of its folders or without a mark."""
    from blobsync.jobs.node_use import left_behind

    left = list(left_behind(record, fetched))
    for sentence in left:
        session.note(sentence)
    return left


def _note_age(session: Session, fetched: FetchedLogs) -> None:
    from blobsync.jobs.logs import IncompleteLogError

    if isinstance(fetched.problem, IncompleteLogError):
        session.note(f"{fetched.problem.message}; {fetched.problem.hint}")
    elif fetched.problem and fetched.names:
        session.note(f"showing the logs that were fetched earlier: {fetched.problem.message}")


@app.command("summary")
def summary(session: Session) -> Result:
    """Show what the cluster has free, and how many jobs wait.

    \b
      blobsync summary -c eu
    """
    project = session.project()
    name = project.cluster.name
    found = project.jobs.summary()
    data = {"cluster": name, **fields_of(found, *found.__slots__)}
    return Result(data, summary_lines(name, found), wraps=True)


@app.command("blame")
def blame(session: Session) -> Result:
    """Show who uses the cluster.

    \b
      blobsync blame -c eu
    """
    project = session.project()
    name = project.cluster.name
    holders = project.jobs.holders()
    data = [fields_of(holder, *holder.__slots__) for holder in holders]
    if not holders:
        session.note(f"no jobs on cluster {name}")
    return Result({"cluster": name, "holders": data}, holder_lines(holders) if holders else ())


@app.command("parse", takes=NO_CLUSTER)
def parse(session: Session, id: OptionalId = None) -> Result:
    """Look for known causes of failure in a job's logs, and say what each means. Without an ID: of the newest job.
    ID/7 is task 7 of a sweep.

    \b
      blobsync parse
      blobsync parse 3f2a
    """
    jobs = find_jobs(session)
    record, task = find_task(session, jobs, id)
    found = jobs.diagnose(record, task=task)
    known = {"job_id": found.record.run_id, "retriable": found.is_retriable}
    data = {**known, "causes": cause_data(found.causes)}
    return Result(data, cause_lines(found.causes) if found.causes else ["no known cause found"], wraps=True)


def find_jobs(session: Session, *, resized: bool = False) -> Jobs:
    """The jobs of the project that contains the current folder, whatever its cluster files contain.

    ``resized``: the command supports ``-n``.
    """
    from blobsync.project.open_jobs import open_jobs

    if session.param:
        raise UsageError("-p works with submit only: a job keeps its settings")
    if session.num_gpu is not None and not resized:
        raise UsageError("-n works with submit, resubmit and local only: a job keeps its settings")
    return open_jobs(environ=session.environ, listener=session.listener)


def newest_job(session: Session, jobs: Jobs) -> JobRecord:
    """The newest job, which is noted."""
    record = jobs.newest()
    session.note(f"the newest job: {record.run_id}")
    return record


def find_task(session: Session, jobs: Jobs, id: str | None) -> tuple[JobRecord, int | None]:
    """The job of that ID, and the number of its task in ``ID/7``; without an ID the newest job, which is noted."""
    return (newest_job(session, jobs), None) if id is None else jobs.find_task(id)


def note_all(session: Session, jobs: Jobs, sentences: Sequence[str]) -> None:
    """Show warnings and notes about the project's jobs on standard error."""
    for sentence in sentences:
        session.note_today(sentence, jobs.root)


def followed(jobs: Jobs, record: JobRecord, rank: int | None = None, task: int | None = None) -> Iterator[str]:
    """Log lines as they arrive; with several logs each line names its task and its rank."""
    for line in jobs.follow(record, rank=rank, task=task):
        of_rank = line.rank if record.spec.has_numbered_logs or not record.tasks else None
        names = [str(each) for each in (line.task if task is None else None, of_rank) if each is not None]
        yield f"[{'/'.join(names)}] {line.text}" if record.spec.has_many_logs and names else line.text


def _job_lines(session: Session, jobs: Jobs, record: JobRecord, rank: int | None, task: int | None) -> Iterator[str]:
    """The log lines of a job, between what it waits for and how it ended."""
    before = jobs.get(record).state
    if before.value in ("Queued", "Preparing"):
        session.note(f"{record.run_id} is {before}; its logs follow when it runs")
    yield from followed(jobs, record, rank, task)
    ended = jobs.find(record.run_id)
    session.note(f"{ended.run_id}: {ended.info.sentence}")
    note_left_behind(session, ended, jobs.fetched_logs(ended))


def _listed(session: Session, jobs: Jobs, states: tuple[str, ...], limit: int, *, all_users: bool = False) -> Result:
    found = jobs.list(states, limit=limit, cluster=session.cluster, all_users=all_users)
    rows = [job_data(record) for record in found]
    data: dict[str, Any] = {"jobs": rows, "experiment": found.experiment or None, "more": found.more}
    if not found:
        wanted = " or ".join(state.lower() for state in states)
        session.note(f"there are no {wanted + ' ' if wanted else ''}jobs")
        return Result(data)
    return Result(data, [*job_table(found.records), *_left_out(found)])


def _left_out(found: JobList) -> list[str]:
    return [more_line(found.more, full=f"--max {len(found) + found.more}")] if found.more else []


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
