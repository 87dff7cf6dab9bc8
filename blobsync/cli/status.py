"""``status``: the whole project on one screen; and running transfers in the words of ``status`` and ``history``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import BlobsyncError
from blobsync.base.formatting import count_text, duration_text, size_text, zulu_text
from blobsync.cli.commands import Commands, OptionalPaths, option
from blobsync.cli.keep import keeper_data, keeper_line
from blobsync.cli.output import Result, fields_of
from blobsync.cli.session import Session, with_consent

if TYPE_CHECKING:
    from blobsync.base.errors import FileFailure
    from blobsync.project.keeper_records import KeeperState
    from blobsync.project.status import EntryStatus, FileTally, ProjectStatus
    from blobsync.project.transfer_history import RunningTransfer


app = Commands()


@app.command("status", looks=True)
def status(
    session: Session,
    paths: OptionalPaths = None,
    fresh: Annotated[bool, option("--fresh", help="List the containers now.")] = False,
) -> Result:
    """Show how the folder entries stand: what is to upload, to download, or in conflict.

    Walks the local files. What the containers hold is taken from when they were last listed (by u, d, plan, verify or
    status --fresh); each line says when that was. Transfers of this project that run or plan right now are named, too,
    as are folders that are kept uploaded.

    Exits with 3 if something is known to differ, or a job that uploads there has run since; else with 0: without
    --fresh, that means that nothing is known to differ.

    \b
      blobsync status
      blobsync status data output/run7
      blobsync status --fresh
    """
    project = session.project()
    found = with_consent(session, project, lambda: project.status(paths or (), fresh=fresh))
    running, kept = tuple(project.running().values()), tuple(project.keepers().values())
    lines = _lines(found, running, kept, time.time(), quiet=session.quiet)
    data = {
        **fields_of(found, "fresh", "differs"),
        "entries": [_entry_data(entry) for entry in found.entries],
        "running": [running_data(each) for each in running],
        "kept": [keeper_data(each) for each in kept],
    }
    problems: list[FileFailure | BlobsyncError] = []
    for entry in found.entries:
        problems += [*([entry.problem] if entry.problem else []), *entry.unreadable]
    return Result(data, lines, problems, found.exit_code, wraps=True)


def _entry_data(entry: EntryStatus) -> dict[str, Any]:
    return {
        **fields_of(entry, "path", "url", "newer_at_destination", "missing_here", "ignored", "left_out", "not_files"),
        **{name: asdict(getattr(entry, name)) for name in _TALLIES},
        "there": asdict(entry.there) if entry.as_of is not None or entry.there.files else None,
        "unreadable": len(entry.unreadable),
        "as_of": None if entry.as_of is None else round(entry.as_of, 3),
        "answers": entry.silence is None and entry.problem is None,
        "silence": entry.silence,
        "drifted": list(entry.drifted),
        "jobs": [{"job_id": job.id, "status": job.state.value, "ended": job.ended} for job in entry.jobs],
    }


# Jobs that are named for each entry.
_JOBS = 3
_TALLIES = ("here", "there", "to_upload", "to_download", "conflicts", "never_verified")


def _lines(
    found: ProjectStatus, running: Sequence[RunningTransfer], kept: Sequence[KeeperState], now: float, *, quiet: bool
) -> Iterator[str]:
    for entry in [] if quiet else found.entries:
        if entry.problem is not None:
            yield f"{entry.path}: could not be looked at"
            continue
        yield f"{entry.path}: {_sides(entry)}{_age(entry, now)}"
        yield from (f"  {said}" for said in _standing(entry))
    if running and not quiet:
        yield running_line(running)
    yield from (keeper_line(state) for state in (() if quiet else kept))
    yield summary(found)


def _sides(entry: EntryStatus) -> str:
    here = f"{_amount(entry.here)} here"
    if entry.as_of is None:
        if entry.there.files:
            return f"{here}, at least {_amount(entry.there)} in the container, not listed as a whole yet"
        return f"{here}, container not listed yet"
    return f"{here}, {_amount(entry.there)} in the container"


def _amount(tally: FileTally) -> str:
    return f"{count_text(tally.files, 'file')} ({size_text(tally.bytes)})"


def _age(entry: EntryStatus, now: float) -> str:
    if entry.as_of is None or entry.fresh:
        return ""
    return f", as of {duration_text(max(0.0, now - entry.as_of))} ago"


def _standing(entry: EntryStatus) -> Iterator[str]:
    if entry.to_upload.files:
        yield f"to upload: {_amount(entry.to_upload)}"
    if entry.to_download.files:
        more = [f"{entry.missing_here:,} missing here"] if entry.missing_here else []
        more += [f"{entry.newer_at_destination:,} newer in the container"] if entry.newer_at_destination else []
        yield f"to download: {_amount(entry.to_download)}: {', '.join(more)}"
    if entry.conflicts.files:
        yield f"in conflict: {_amount(entry.conflicts)}"
    if entry.never_verified.files:
        yield f"never verified: {_amount(entry.never_verified)}"
    rest = [f"{entry.ignored:,} ignored"] if entry.ignored else []
    rest += [f"{entry.left_out:,} left out (symlinks)"] if entry.left_out else []
    rest += [f"{entry.not_files:,} left out (neither file nor folder)"] if entry.not_files else []
    rest += [f"{len(entry.unreadable):,} cannot be uploaded"] if entry.unreadable else []
    if rest:
        yield ", ".join(rest)
    for path in entry.drifted:
        yield f"not as locked: {path}; 'blobsync lock {path}' or 'd --locked {path}'"
    for job in entry.jobs[:_JOBS]:
        yield f"job {job.id} ({job.state.value}) {'has run since, and ' if job.ran else ''}uploads here"
    if len(entry.jobs) > _JOBS:
        yield f"and {count_text(len(entry.jobs) - _JOBS, 'more job')}"
    if entry.silence is not None:
        yield f"the account does not answer: {entry.silence}"


def summary(found: ProjectStatus) -> str:
    """The last line: whether anything differs, as far as is known."""
    differing = sum(entry.differs for entry in found.entries)
    if differing:
        entries = f"{differing} of {count_text(len(found.entries), 'path')} {'differs' if differing == 1 else 'differ'}"
        return f"{entries}; 'blobsync plan u PATH' or 'plan d PATH' shows the files"
    if any(entry.problem or entry.unreadable for entry in found.entries):
        return "not everything could be looked at"
    as_locked = not any(entry.drifted for entry in found.entries)
    if found.fresh:
        doubtful = any(entry.never_verified.files for entry in found.entries)
        if doubtful:
            return "some files were never verified"
        return "everything is equal" if as_locked else "everything is equal, but not as locked"
    if any(entry.silence for entry in found.entries):
        return "nothing is known to differ; 'blobsync doctor' shows how to reach what does not answer"
    what = "nothing is" if as_locked else "nothing but the locks is"
    return f"{what} known to differ; --fresh lists the containers"


# Seconds without an update after which a transfer is reported as silent.
_SILENT = 15.0
# Maximum number of transfers that one line names.
_NAMED = 3


def so_far(running: RunningTransfer) -> str:
    """The progress: ``43 %, 2 min left``."""
    progress = running.progress
    words = [
        "planning" if running.planning else "",
        f"{int(progress.share * 100)} %" if progress.files_expected else "",
    ]
    words.append("" if running.planning or progress.phase == "moving" else progress.phase)
    words.append("" if progress.seconds_left is None else f"{duration_text(progress.seconds_left)} left")
    words.append(f"nothing heard for {duration_text(running.silent)}" if running.silent > _SILENT else "")
    return ", ".join(word for word in words if word)


def progress_data(running: RunningTransfer) -> dict[str, Any]:
    """The numbers of the progress, and their time."""
    return {**running.progress.values(), "told": zulu_text(running.told)}


def running_data(running: RunningTransfer) -> dict[str, Any]:
    """A running transfer as JSON."""
    known = fields_of(running, "id", "kind", "planning", "command", "user", "host", "pid", "paths")
    return {**known, "began": zulu_text(running.began), "progress": progress_data(running)}


def who_moves(running: RunningTransfer) -> str:
    """A running transfer: ``process 4711 uploads data/x (43 %, 2 min left)``."""
    place = "" if running.is_here else f" on {running.host}"
    paths = " ".join(running.paths[:_NAMED]) or "all folder entries"
    verb = _VERBS.get(running.kind, running.kind)
    return f"process {running.pid}{place} {verb} {paths} ({so_far(running) or 'starting'})"


_VERBS = {"upload": "uploads", "download": "downloads", "copy": "copies", "rm": "removes"}


def running_line(running: Sequence[RunningTransfer]) -> str:
    """All running transfers, in one line."""
    named = [who_moves(each) for each in running[:_NAMED]]
    more = [f"{len(running) - _NAMED:,} more"] if len(running) > _NAMED else []
    return f"{count_text(len(running), 'transfer')} running now: {'; '.join([*named, *more])}"
