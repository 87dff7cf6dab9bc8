"""``trash``: the local files that downloads, mirrors and undos replaced or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text, zulu_text
from blobsync.cli.confirm import confirm
from blobsync.cli.output import Result
from blobsync.cli.session import Commands, OptionalPaths, Session, argument, option
from blobsync.project.trash import limits_of, trash_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobsync.local.trash import TrashedRun

IdArgument = Annotated[str, argument(metavar="ID", help="The id of the run, as 'trash ls' shows it.")]
_DAY = 86_400.0
# Files of one run that are named.
_NAMED = 100


app = Commands()
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
        lines += [f"  {file.path}  {size_text(file.size)}" for file in runs[0].files[:_NAMED]]
        lines += [f"  ... and {len(runs[0].files) - _NAMED:,} more, --json has all"] * (len(runs[0].files) > _NAMED)
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
