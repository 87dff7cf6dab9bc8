"""``rm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text
from blobsync.cli.confirm import confirm
from blobsync.cli.output import Result
from blobsync.cli.session import Commands, PathsArgument, Session, looking, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobsync.project.removal import Deletion, Removal

# Blobs that are named for each pattern.
_NAMED = 10


app = Commands()


@app.command("rm")
def rm(
    session: Session,
    paths: PathsArgument,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask.")] = False,
    blob: Annotated[
        bool, option("--blob", help="Delete only the blob with exactly this name, nothing below it.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
) -> Result:
    """Delete blobs: that blob, or everything below that folder; never local files, never data/voc20 for data/voc.

    \b
      blobsync rm data/old --dry-run
      blobsync rm data/old
      blobsync rm 'output/run7/*.tmp'         what a pattern matches, in quotes
      blobsync rm --blob data/t               the blob, not what is below data/t/
    """
    with looking():
        project = session.project()
        deletions = project.find_removal(paths, blob_only=blob, wildcards=True)
    count, size = sum(len(each.blobs) for each in deletions), sum(each.size for each in deletions)
    what = f"{count_text(count, 'blob')}, {size_text(size)}"
    places = [line for each in deletions for line in _lines(each)]
    data = {"paths": [each.shown for each in deletions], "count": count, "bytes": size, "dry_run": dry_run}
    if dry_run:
        return Result({**data, "deleted": 0, "failed": 0}, [*places, f"would delete {what}"], wraps=True)
    if not yes:
        for place in places:
            session.note(place)
        for container in sorted({each.place.remote.container for each in deletions}, key=str):
            session.note(project.recovery(container))
        confirm(session, f"delete {what}?")
    return _removed(project.remove(deletions), data)


def _lines(deletion: Deletion) -> Iterator[str]:
    """What goes; of a pattern the first matches by name, since it may match more than was meant."""
    folders = f" and {count_text(len(deletion.directories), 'folder')}" if deletion.directories else ""
    yield f"{deletion.shown}: {count_text(len(deletion.blobs), 'blob')}{folders} at {deletion.place.remote}"
    if deletion.pattern:
        yield from (f"  {name}" for name in deletion.names(_NAMED))
        if len(deletion.blobs) > _NAMED:
            yield f"  ... and {len(deletion.blobs) - _NAMED:,} more"


def _removed(done: Removal, data: dict[str, Any]) -> Result:
    code = ExitCode.DONE if not done.failures else ExitCode.PARTIAL if done.gone else ExitCode.FAILED
    data |= {"deleted": len(done.gone), "failed": len(done.failures)}
    data["receipt"] = str(done.receipt) if done.receipt else None
    line = f"deleted {count_text(len(done.gone), 'blob')}, {size_text(done.bytes_deleted)}"
    return Result(data, [line], done.failures, code, wraps=True)
