"""``rm``."""

from __future__ import annotations

from typing import Annotated

import typer

from blobsync.cli.confirm import confirm, looking
from blobsync.cli.options import PathsArgument, command
from blobsync.cli.output import Result, count_text, size_text
from blobsync.cli.session import Session
from blobsync.errors import ExitCode


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(app, "rm")(rm)


def rm(
    session: Session,
    paths: PathsArgument,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
) -> Result:
    """Delete blobs: that blob, or everything below that folder; never local files, never data/voc20 for data/voc.

    \b
      blobsync rm data/old --dry-run
      blobsync rm data/old
    """
    with looking():
        project = session.project()
        doomed = project.find_removal(paths)
    count, size = sum(len(each.names) for each in doomed), sum(each.size for each in doomed)
    what = f"{count_text(count, 'blob')}, {size_text(size)}"
    places = [f"{each.place.path}: {count_text(len(each.names), 'blob')} at {each.place.remote}" for each in doomed]
    data = {"paths": [each.place.path for each in doomed], "count": count, "bytes": size, "dry_run": dry_run}
    if dry_run:
        return Result({**data, "deleted": 0, "failed": 0}, [*places, f"would delete {what}"])
    if not yes:
        for place in places:
            session.listener.note(place)
        confirm(session, f"delete {what}?")
    gone = project.remove(doomed)
    code = ExitCode.DONE if not gone.failures else ExitCode.PARTIAL if gone.deleted else ExitCode.FAILED
    lines = [f"deleted {count_text(gone.deleted, 'blob')}, {size_text(gone.bytes_deleted)}"]
    return Result({**data, "deleted": gone.deleted, "failed": len(gone.failures)}, lines, gone.failures, code)
