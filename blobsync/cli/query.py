"""``q``, ``qq``, ``qr``, ``qf``, ``logs``, ``summary``, ``blame`` and ``parse``: commands that show jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import UsageError
from blobsync.cli.job_text import (
    cause_data,
    cause_lines,
    holder_lines,
    job_data,
    job_details,
    job_table,
    log_data,
    short_id,
    summary_lines,
    task_data,
    task_table,
)
from blobsync.cli.output import Result, more_line
from blobsync.cli.session import ITS_NAME, NO_CLUSTER, Commands, Session, argument, interrupted_looking, option

if TYPE_CHECKING:
    from blobsync.jobs.logs import FetchedLogs
    from blobsync.jobs.record import JobList, JobRecord
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
    data = {field: getattr(found, field) for field in found.__slots__}
    return Result({"cluster": name, **data}, summary_lines(name, found), wraps=True)


@app.command("blame")
def blame(session: Session) -> Result:
    """Show who uses the cluster.

    \b
      blobsync blame -c eu
    """
    project = session.project()
    name = project.cluster.name
    holders = project.jobs.holders()
    data = [{field: getattr(holder, field) for field in holder.__slots__} for holder in holders]
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
