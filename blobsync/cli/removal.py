"""``rm``, ``undo`` and ``trash``: deletes blobs, and takes back what was removed or replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text, zulu_text
from blobsync.cli.commands import ITS_NAME, Commands, OptionalPaths, PathsArgument, argument, offers, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session, confirm, looking
from blobsync.cli.transfer import DryRun, Full, carried_out, shown_plan
from blobsync.project.trash import limits_of, trash_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blobsync.local.trash import TrashedRun
    from blobsync.project.removal import Deletion, Removal


# Blobs that are named for each pattern, and files of one run.
_NAMED, _NAMED_OF_RUN = 10, 100


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


@app.command("undo", takes=ITS_NAME)
def undo(
    session: Session,
    id: Annotated[
        str,
        argument(
            metavar="ID",
            help="A transfer or removal of the history, or the beginning or end of its ID.",
            autocompletion=offers("HISTORY"),
        ),
    ],
    paths: OptionalPaths = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask before what the run created is deleted.")] = False,
    full: Full = False,
) -> Result:
    """Take back what a transfer or removal did: what it replaced or deleted comes back, what it created goes.

    Blobs come back from the versions or the deleted blobs that the storage account keeps, or from equal files here;
    local files from the trash. What was changed since is left alone, and listed. An undo can be undone.

    \b
      blobsync history
      blobsync undo 3f2a1c9e --dry-run
      blobsync undo 3f2a1c9e
      blobsync undo 3f2a1c9e data/voc20/a.jpg   only some of its files
    """
    with looking():
        project = session.project()
        if session.cluster is None and (cluster := project.find_transfer(id).cluster) != project.cluster.name:
            project = session.project(cluster=cluster)
        made = project.plan_undo(id, paths or [])
    if dry_run:
        return shown_plan(session, project, made, full=full)
    return carried_out(session, project, made, yes=yes, full=full)


IdArgument = Annotated[str, argument(metavar="ID", help="The id of the run, as 'trash ls' shows it.")]
_DAY = 86_400.0


group = app.group("trash", "The local files that a transfer replaced or deleted, for some days: ls, restore, empty.")


@group.command("ls", looks=True)
def trash_ls(
    session: Session,
    id: Annotated[str | None, argument(metavar="[ID]", help="Show the files of this run.")] = None,
) -> Result:
    """List the runs whose replaced and deleted local files are still there, or the files of one.

    \b
      blobsync trash ls
      blobsync trash ls 3f2a1c9e
    """
    project = session.project()
    trash, days = trash_of(project.state), limits_of(project.cluster).days
    runs = trash.runs() if id is None else (trash.find(id),)
    data = [_data(run, days, files=id is not None) for run in runs]
    size = sum(run.size for run in runs)
    lines = [_line(run, days) for run in runs] or ["the trash is empty"]
    if id is not None:
        found = runs[0].files
        lines += [f"  {file.path}  {size_text(file.size)}" for file in found[:_NAMED_OF_RUN]]
        lines += [f"  ... and {len(found) - _NAMED_OF_RUN:,} more, --json has all"] if found[_NAMED_OF_RUN:] else []
    return Result({"runs": data, "bytes": size}, lines, wraps=True)


@group.command("restore")
def trash_restore(
    session: Session,
    id: IdArgument,
    paths: OptionalPaths = None,
    overwrite: Annotated[
        bool, option("--overwrite", help="Also where another file is by now, which goes to the trash.")
    ] = False,
) -> Result:
    """Put the local files that a run replaced or deleted back in their places.

    A file that is there again is left alone.

    \b
      blobsync trash restore 3f2a1c9e
      blobsync trash restore 3f2a1c9e data/voc20/labels.csv --overwrite
    """
    project = session.project()
    done = project.restore(id, paths or [], overwrite=overwrite)
    size = sum(file.size for file in done.files)
    code = ExitCode.DONE if not done.failures else ExitCode.PARTIAL if done.files else ExitCode.FAILED
    data = {"id": id, "restored": len(done.files), "failed": len(done.failures), "bytes": size}
    return Result(data, [f"restored {count_text(len(done.files), 'file')}, {size_text(size)}"], done.failures, code)


@group.command("empty")
def trash_empty(
    session: Session,
    ids: Annotated[list[str] | None, argument(metavar="[ID]...", help="Only the files of these runs.")] = None,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask.")] = False,
) -> Result:
    """Delete what is in the trash for good, after asking.

    \b
      blobsync trash empty
      blobsync trash empty 3f2a1c9e -y
    """
    trash = trash_of(session.project().state)
    runs: Sequence[TrashedRun] = trash.runs() if not ids else [trash.find(each) for each in ids]
    count, size = sum(len(run.files) for run in runs), sum(run.size for run in runs)
    what = f"{count_text(count, 'file')}, {size_text(size)}"
    if runs and not yes:
        confirm(session, f"delete {what} for good?", looks="'blobsync trash ls' lists them")
    trash.empty(runs)
    data = {"ids": [run.id for run in runs], "deleted": count, "bytes": size}
    return Result(data, [f"deleted {what} for good"])


def _line(run: TrashedRun, days: int) -> str:
    what = f"{count_text(len(run.files), 'file')}, {size_text(run.size)}"
    return f"{run.id}: {what}, of {zulu_text(run.at)}, kept until {zulu_text(run.at + days * _DAY)}"


def _data(run: TrashedRun, days: int, *, files: bool) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": run.id,
        "at": zulu_text(run.at),
        "removed_after": zulu_text(run.at + days * _DAY),
        "count": len(run.files),
        "bytes": run.size,
    }
    named = [{"path": file.path, "size": file.size} for file in run.files]
    return known | ({"files": named} if files else {})
