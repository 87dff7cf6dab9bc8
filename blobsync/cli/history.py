"""``history``: transfers, copies, removals and jobs of the project, by time."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import JobNotFoundError, NothingMatchedError, UsageError
from blobsync.base.formatting import count_text, seconds_of, size_text, took_text, zulu_text
from blobsync.cli.commands import ITS_NAME, Commands, argument, offers, option
from blobsync.cli.jobs import MaxOption, find_jobs, job_data, job_details, job_table, state_text
from blobsync.cli.output import Result, more_line
from blobsync.cli.reports import files_shown
from blobsync.cli.session import Session
from blobsync.cli.status import progress_data, so_far
from blobsync.cli.tables import table
from blobsync.jobs.timeline import lasted
from blobsync.project.transfer_history import RUNNING, failure_text, failures_in, files_in, open_logbook

if TYPE_CHECKING:
    from blobsync.jobs.record import JobRecord
    from blobsync.project.transfer_history import LogBook, RunningTransfer, TransferEntry


SinceOption = Annotated[
    str | None, option(metavar="T", help="Only what began since then: 30m, 12h, 7d, 2w, or 2026-11-20[T10:30].")
]
PathOption = Annotated[
    str | None,
    option(metavar="PATH", help="Only transfers that concern this path."),
]


app = Commands()


@app.command("history", looks=True, takes=ITS_NAME)
def history(
    session: Session,
    id: Annotated[
        str | None,
        argument(
            metavar="[ID]",
            help="A transfer or a job, or the beginning or end of its ID.",
            autocompletion=offers("HISTORY"),
        ),
    ] = None,
    only_jobs: Annotated[bool, option("--jobs", help="Only jobs.")] = False,
    only_transfers: Annotated[bool, option("--transfers", help="Only transfers and removals.")] = False,
    since: SinceOption = None,
    path: PathOption = None,
    full: Annotated[bool, option("--full", help="With an ID: show every file.")] = False,
    max: MaxOption = 1000,
) -> Result:
    """Show what was transferred, copied, removed and submitted from this project; asks no cluster and no container.

    Of a transfer that runs it says how far that is. With an ID of a transfer: what failed, and each file with its old
    and its new MD5 and ETag, from the receipt.

    \b
      blobsync history --since 1d
      blobsync history --transfers --path data/voc20
      blobsync history 3f2a1c9e
    """
    if only_jobs and (only_transfers or path is not None):
        raise UsageError("--jobs excludes --transfers and --path")
    book = open_logbook(session.environ, session.note)
    if id is not None:
        return _one(session, book, id, full=full)
    after = None if since is None else _moment(since, time.time())
    # One more than is shown says whether that is all.
    transfers = () if only_jobs else book.recent(since=after, path=path, limit=max + 1)
    jobs: Sequence[JobRecord] = ()
    if not only_transfers and path is None:
        jobs = find_jobs(session).history(cluster=session.cluster, limit=max + 1)
        jobs = [job for job in jobs if after is None or job.submitted >= after]
    far = _running_of(book, transfers)
    data = {
        "transfers": [_data(each, far.get(each.id)) for each in transfers[:max]],
        "jobs": [job_data(job) for job in jobs[:max]],
        "older": len(transfers) > max or len(jobs) > max,
    }
    older = ["  ... and older ones, --max shows more"] if len(transfers) + len(jobs) > max else []
    return Result(data, [*(job_table(jobs[:max]) if only_jobs else _table(transfers, jobs, max, far)), *older])


def _moment(text: str, now: float) -> float:
    """Seconds since 1970."""
    if (ago := seconds_of(text)) is not None:
        return now - ago
    try:
        # Without a time zone: local time.
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write 30m, 12h, 7d, 2w, or a date such as 2026-11-20 or 2026-11-20T10:30"
        raise UsageError(f"--since {text}: not a time", hint=hint) from None


def _running_of(book: LogBook, entries: Sequence[TransferEntry]) -> Mapping[str, RunningTransfer]:
    """Those of these transfers that run and report their progress, by their ids."""
    ids = {entry.id for entry in entries if entry.result == RUNNING}
    return {id: one for id, one in book.running.all().items() if id in ids} if ids else {}


def _data(entry: TransferEntry, running: RunningTransfer | None) -> dict[str, Any]:
    progress = None if running is None else progress_data(running)
    return {**asdict(entry), "began": zulu_text(entry.began), "progress": progress}


def _table(
    transfers: Sequence[TransferEntry], jobs: Sequence[JobRecord], limit: int, far: Mapping[str, RunningTransfer]
) -> Iterator[str]:
    rows = [(entry.began, _transfer_row(entry, far.get(entry.id))) for entry in transfers]
    rows += [(job.submitted, _job_row(job)) for job in jobs]
    rows.sort(key=lambda row: row[0], reverse=True)
    if not rows:
        return iter(["found no transfers and no jobs"])
    head = ("TIME", "ID", "WHAT", "FILES", "SIZE", "TOOK", "RESULT", "PATHS, OR COMMAND")
    return table([head, *(row for _, row in rows[:limit])])


def _transfer_row(entry: TransferEntry, running: RunningTransfer | None) -> tuple[str, ...]:
    files = entry.transferred + entry.deleted
    took = "" if entry.seconds is None else took_text(entry.seconds)
    result = entry.result + (f", {entry.failed:,} failed" if entry.failed else "")
    result += f", {so_far(running)}" if running is not None else ""
    kind = f"{entry.kind} --mirror" if entry.mirror else entry.kind
    where = " ".join(entry.paths)
    return (_time(entry.began), entry.id, kind, f"{files:,}", size_text(entry.bytes), took, result, where)


def _job_row(job: JobRecord) -> tuple[str, ...]:
    words = shlex.join(job.spec.argv)
    return (_time(job.submitted), job.run_id, "job", "", "", lasted(job), state_text(job), words)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _one(session: Session, book: LogBook, id: str, *, full: bool) -> Result:
    try:
        entry = book.log.find(id)
    except NothingMatchedError as nothing:
        try:
            job = find_jobs(session).find(id)
        except JobNotFoundError:
            raise nothing from None
        return Result({"jobs": [job_data(job)]}, job_details(job))
    receipt = book.receipt(entry)
    files, failures = list(files_in(receipt)), failures_in(receipt)
    running = _running_of(book, [entry]).get(entry.id)
    known = {"files": files, "failures": failures, "receipt_kept": receipt is not None}
    data = {"transfers": [_data(entry, running)], **known}
    shown = files_shown(quiet=session.quiet, full=full)
    lines = [*_facts(entry, running), *_failure_lines(failures, shown)]
    lines += _file_lines(entry, files, shown, kept=receipt is not None)
    return Result(data, lines, wraps=True)


def _facts(entry: TransferEntry, running: RunningTransfer | None) -> Iterator[str]:
    is_removal, rest = entry.kind == "rm", f"of {count_text(entry.planned, 'file')}, {size_text(entry.bytes)}"
    facts = [
        ("transfer", entry.id),
        ("began", _time(entry.began)),
        ("took", "" if entry.seconds is None else took_text(entry.seconds)),
        ("result", entry.result),
        ("so far", so_far(running) if running is not None else ""),
        ("problem", entry.problem),
        ("command", entry.command),
        ("by", f"{entry.user} on {entry.host}"),
        ("cluster", entry.cluster + (f", from {entry.from_cluster}" if entry.from_cluster else "")),
        ("engine", entry.engine or ""),
        ("moved", "" if is_removal else f"{entry.transferred:,} {rest}"),
        ("deleted", f"{entry.deleted:,} {rest}" if is_removal else f"{entry.deleted:,}" if entry.deleted else ""),
        ("failed", f"{entry.failed:,}" if entry.failed else ""),
        ("conflicts", f"{entry.conflicts:,}" if entry.conflicts else ""),
        ("receipt", entry.receipt or ""),
    ]
    yield from (f"{name + ':':<14} {value}" for name, value in facts if value)


def _failure_lines(failures: Sequence[Mapping[str, Any]], shown: int) -> Iterator[str]:
    yield from (f"failed {failure_text(each)}" for each in failures[:shown])
    if len(failures) > shown:
        yield more_line(len(failures) - shown)


def _file_lines(entry: TransferEntry, files: Sequence[Mapping[str, Any]], shown: int, *, kept: bool) -> Iterator[str]:
    if entry.receipt and not kept:
        yield "its receipt was removed: the newest 1,000 are kept"
    for file in files[:shown]:
        yield f"{file['action']} {file['path']}"
        yield from (f"  {word}: {_state(state)}" for word, state in (("was", file["was"]), ("is", file)) if _has(state))
    if len(files) > shown:
        yield more_line(len(files) - shown)


def _has(state: Mapping[str, Any] | None) -> bool:
    return state is not None and state.get("size") is not None


def _state(state: Mapping[str, Any]) -> str:
    md5, etag = state.get("md5"), state.get("etag")
    said = [f"{int(state['size']):,} B", f"MD5 {md5}" if md5 else "no MD5", *([f"ETag {etag}"] if etag else [])]
    return ", ".join(said)
