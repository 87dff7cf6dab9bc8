"""``undo``."""

from __future__ import annotations

from typing import Annotated

from blobsync.cli.output import Result
from blobsync.cli.session import ITS_NAME, Commands, OptionalPaths, Session, argument, looking, offers, option
from blobsync.cli.transfer import DryRun, Full, carried_out, shown_plan

app = Commands()


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
