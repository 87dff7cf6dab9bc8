"""``q``, ``qq``, ``qr``, ``qf``, ``logs``, ``history``, ``summary``, ``blame`` and ``parse``: looking at jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blobsync.base.errors import UsageError
from blobsync.cli.job_words import (
    cause_data,
    cause_lines,
    holder_lines,
    job_data,
    job_details,
    job_table,
    log_data,
    summary_lines,
)
from blobsync.cli.options import command
from blobsync.cli.output import Result
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.config.model import Cluster
    from blobsync.jobs.board import Board
    from blobsync.jobs.history import JobRecord
    from blobsync.jobs.logs import FetchedLogs

# How much of rank 0's log a query shows.
TAIL_LINES = 100
DEFAULT_MAX = 20

MaxOption = Annotated[int, typer.Option("--max", min=1, metavar="N", help="The newest N jobs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A job id, or any unique end of it.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    command(app, "q")(query)
    command(app, "qq")(queued)
    command(app, "qr")(running)
    command(app, "qf")(failed)
    command(app, "logs")(logs)
    command(app, "history")(history)
    command(app, "summary")(summary)
    command(app, "blame")(blame)
    command(app, "parse")(parse)


def query(
    session: Session,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Job ids, or ends of them.")] = None,
    max: MaxOption = DEFAULT_MAX,
) -> Result:
    """List the newest jobs, or show some: logs (kept in assets/ID/), last lines of rank 0, causes, facts.

    Jobs of all clusters are listed; -c lists those of one.

    \b
      blobsync q
      blobsync q 3f2a
    """
    board = open_board(session)
    if not ids:
        return _listed(session, board, (), max)
    refreshed = board.refresh(board.find(ids))
    note_all(session, refreshed.problems)
    data, lines = [], []
    for record in refreshed.records:
        fetched = board.logs(record)
        causes = board.causes(fetched) if record.info.state.value == "Failed" else ()
        leading = fetched.leading
        tail = fetched.tail(leading, TAIL_LINES) if leading else []
        data.append({**job_data(record), "logs": log_data(fetched), "causes": cause_data(causes), "tail": tail})
        lines += [*tail, *([""] if tail else []), *log_data(fetched)]
        lines += [f"no logs: {fetched.problem.message}"] if fetched.problem and not fetched.names else []
        _note_age(session, fetched)
        lines += [*job_details(record), *cause_lines(causes)]
    return Result({"jobs": data}, lines)


def queued(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List queued jobs."""
    return _listed(session, open_board(session), ("Queued", "Preparing"), max)


def running(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List running jobs."""
    return _listed(session, open_board(session), ("Running", "Canceling"), max)


def failed(session: Session, max: MaxOption = DEFAULT_MAX) -> Result:
    """List failed jobs."""
    return _listed(session, open_board(session), ("Failed",), max)


def logs(
    session: Session,
    id: IdArgument,
    follow: Annotated[bool, typer.Option("-F", "--follow", help="Show new lines until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="K", help="Only this process.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, metavar="N", help="Only the last lines.")] = None,
) -> Result:
    """Print the log of rank 0, or of another; -F follows all of them.

    \b
      blobsync logs 3f2a --rank 3 --tail 50
      blobsync logs 3f2a -F
    """
    from blobsync.jobs.logs import rank_of

    board = open_board(session)
    record = board.find([id])[0]
    if follow:
        if session.json:
            raise UsageError("-F shows lines as they come; --json has one answer: leave one of them out")
        return Result(lines=_told(session, board, record, rank), live=True)
    fetched = board.logs(record)
    names = [name for name in fetched.names if rank is None or ((found := rank_of(name)) and found[1] == rank)]
    name = fetched.leading if rank is None else next(iter(names), None)
    lines = fetched.tail(name, tail or 10**9) if name else []
    if not name and fetched.problem:
        raise fetched.problem
    if not name:
        note_all(session, [f"{record.run_id} has no such log yet"])
    _note_age(session, fetched)
    return Result({"job_id": record.run_id, "log": name, "lines": lines, "logs": log_data(fetched)}, lines)


def _note_age(session: Session, fetched: FetchedLogs) -> None:
    if fetched.problem and fetched.names:
        note_all(session, [f"the logs are those that were fetched before: {fetched.problem.message}"])


def history(session: Session, max: MaxOption = 1000) -> Result:
    """List all jobs that were ever submitted from this project; asks no cluster."""
    records = open_board(session).history.recent(cluster=session.cluster, limit=max)
    return Result({"jobs": [job_data(record) for record in records]}, job_table(records))


def summary(session: Session) -> Result:
    """Show what the cluster has free, and how many jobs wait."""
    cluster, board = submitting(session)
    name = cluster.name
    found = board.backend(cluster).summary()
    data = {field: getattr(found, field) for field in found.__slots__}
    return Result({"cluster": name, **data}, summary_lines(name, found))


def blame(session: Session) -> Result:
    """Show who holds the cluster."""
    cluster, board = submitting(session)
    name = cluster.name
    backend = board.backend(cluster)
    if "blame" not in backend.capabilities:
        raise UsageError(f"cluster {name} ({backend.name}) does not tell who uses it")
    holders = backend.blame()
    data = [{field: getattr(holder, field) for field in holder.__slots__} for holder in holders]
    if not holders:
        session.listener.note(f"nobody has a job on cluster {name}")
    return Result({"cluster": name, "holders": data}, holder_lines(holders) if holders else ())


def parse(session: Session, id: IdArgument) -> Result:
    """Look for known causes of failure in a job's logs, and say what each means.

    \b
      blobsync parse 3f2a
    """
    from blobsync.jobs.parse import is_retriable
    from blobsync.jobs.watch import find_causes

    board = open_board(session)
    refreshed = board.refresh(board.find([id]))
    note_all(session, refreshed.problems)
    record = refreshed.records[0]
    causes = find_causes(board, record)
    data = {"job_id": record.run_id, "causes": cause_data(causes), "retriable": is_retriable(causes)}
    return Result(data, cause_lines(causes) if causes else ["no known cause was found"])


def open_board(session: Session, *, resized: bool = False) -> Board:
    """The jobs of the project around the current folder, whatever its cluster files say.

    ``resized`` says that the command knows what to do with ``-n``.
    """
    from blobsync.config.project_root import current_folder, find_project
    from blobsync.jobs.board import Board

    if session.param:
        raise UsageError("-p is for submit: a job keeps what it was submitted with")
    if session.num_gpu is not None and not resized:
        raise UsageError("-n is for submit, resubmit and local: a job keeps what it was submitted with")
    root = find_project(current_folder(session.environ), session.environ)
    return Board(root, session.environ, note=session.listener.note)


def submitting(session: Session) -> tuple[Cluster, Board]:
    """The chosen cluster, and the jobs."""
    from blobsync.jobs.board import Board

    project = session.project()
    return project.cluster, Board(project.root, session.environ, project.cluster, note=session.listener.note)


def note_all(session: Session, sentences: Sequence[str]) -> None:
    """Warnings and notes, on standard error."""
    for sentence in sentences:
        session.listener.note(sentence)


def followed(board: Board, record: JobRecord, rank: int | None = None) -> Iterator[str]:
    """Lines as they come; with several logs each line says which rank it is from."""
    from blobsync.jobs.logs import rank_of

    several = record.spec.world_size > 1 or "array" in record.spec.options
    for name, line in board.follow(record):
        found = rank_of(name)
        if rank is None or (found and found[1] == rank):
            yield f"[{found[1]}] {line}" if several and found else line


def _told(session: Session, board: Board, record: JobRecord, rank: int | None) -> Iterator[str]:
    """The lines of a job, with what it waits for before them and how it ended after them."""
    refreshed = board.refresh([record])
    note_all(session, refreshed.problems)
    before = refreshed.records[0].info.state
    if before.value in ("Queued", "Preparing"):
        session.listener.note(f"{record.run_id} is {before}; its lines follow when it runs")
    yield from followed(board, record, rank)
    info = board.history.find(record.run_id).info
    code = f", exit code {info.exit_code}" if info.exit_code else ""
    session.listener.note(f"{record.run_id}: {info.state}{code} {info.reason}".rstrip())


def _listed(session: Session, board: Board, states: tuple[str, ...], limit: int) -> Result:
    from blobsync.config.loader import find_cluster_file
    from blobsync.jobs.spec import State

    refreshed = board.recent(tuple(State(state) for state in states), limit, session.cluster)
    note_all(session, refreshed.problems)
    data: dict[str, Any] = {"jobs": [job_data(record) for record in refreshed.records]}
    if not refreshed.records:
        if session.cluster:
            # A cluster whose file is gone may still have jobs; one that has neither is a slip.
            find_cluster_file(board.root, session.cluster, session.environ)
        wanted = " or ".join(state.lower() for state in states)
        session.listener.note(f"there are no {wanted + ' ' if wanted else ''}jobs")
    return Result(data, job_table(refreshed.records) if refreshed.records else ())
