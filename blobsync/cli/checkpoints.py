"""``checkpoints`` and ``checkpoint``: which sets of files are complete, and saying that one is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from blobsync.base.errors import ConfigNotFoundError, LocalFileError, UsageError
from blobsync.base.formatting import count_text, size_text, zulu_text
from blobsync.cli.output import Result
from blobsync.cli.session import Commands, Session, argument, option
from blobsync.cli.tables import table
from blobsync.cli.text_width import cells, columns_of, wrapped

if TYPE_CHECKING:
    from blobsync.project.checkpoints import Checkpoint


app = Commands()
group = app.group("checkpoint", "Say that a checkpoint is complete.")


@app.command("checkpoints", looks=True)
def checkpoints(
    session: Session,
    path: Annotated[str | None, argument(metavar="[PATH]", help="A folder, or one checkpoint. Default: all.")] = None,
    job: Annotated[str | None, option("--job", metavar="ID", help="Only those that this job can go on from.")] = None,
) -> Result:
    """List checkpoints, here and in the container, and which one a restart would take.

    They are what 'checkpoints: PATTERN' in a folder entry of the cluster file names. In the container one is complete
    if it has a mark, and its files are as the mark says; 'half' ones are never restored. A mark without a seal of yours
    counts only for who names its job and its step.

    \b
      blobsync checkpoints
      blobsync checkpoints output/run-7
      blobsync checkpoints --job 3f2a
    """
    found = session.project().checkpoints(path, job=job)
    data = [asdict(each) | {"time": None if each.time is None else zulu_text(each.time)} for each in found]
    return Result({"checkpoints": data}, checkpoint_lines(found))


def checkpoint_lines(found: Sequence[Checkpoint], columns: int | None = None) -> Iterator[str]:
    """A row for each; on a narrow terminal (``columns``) what is said of it stands in a line of its own."""
    columns = columns_of(sys.stdout) if columns is None else columns
    rows = [("CHECKPOINT", "STEP", "WRITTEN", "FILES", "SIZE", "HERE", "THERE")]
    for one in found:
        step = "" if one.step is None else str(one.step)
        at = "" if one.time is None else zulu_text(one.time)
        rows.append((one.path, step, at, f"{one.files:,}", size_text(one.size), one.here, one.there))
    said = ["", *("a restart takes it" if one.is_next else one.missing for one in found)]
    shown = list(table(rows, columns))
    widest = max(map(cells, shown))
    for row, words in zip(shown, said, strict=True):
        if columns and widest + 2 + cells(words) > columns:
            yield row
            yield from wrapped(f"    {words}", columns).split("\n") if words else ()
        else:
            yield f"{row}{' ' * (widest + 2 - cells(row))}{words}".rstrip()


@group.command("done")
def done(
    session: Session,
    path: Annotated[str, argument(metavar="PATH", help="The checkpoint: a folder or a file.")],
    ranks: Annotated[int, option("--ranks", min=1, metavar="N", help="How many processes must say so.")] = 1,
) -> Result:
    """Say that all files of a checkpoint are written: it is uploaded as one, and marked.

    For programs that no rule knows; 'checkpoints: PATTERN' in the cluster file names it. In Python it is
    blobsync.mark_complete(PATH).

    \b
      blobsync checkpoint done output/checkpoint-1000
    """
    from blobsync.local.mark_complete import VARIABLE, mark_complete

    try:
        os.stat(path)
        # In a job, the keeper on the node has the rule of the job's own cluster.
        if not session.environ.get(VARIABLE):
            _demand_set(session, path)
        mark_complete(path, ranks)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file or folder", path=path) from error
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", path=path) from error
    said = "" if ranks == 1 else f", by one of {count_text(ranks, 'rank')}"
    return Result({"path": path, "ranks": ranks}, [f"{path}: said to be complete{said}"])


def _demand_set(session: Session, path: str) -> None:
    """Refuse what is no checkpoint of the project's cluster file; where there is none, nothing is known."""
    from blobsync.config.loader import find_cluster_file, inside_project, load_cluster
    from blobsync.config.mapping import resolve
    from blobsync.config.project_root import current_folder, find_project
    from blobsync.project.checkpoints import demand_set

    here = current_folder(session.environ)
    try:
        root = find_project(here, session.environ)
        find_cluster_file(root, session.cluster, session.environ)
    except ConfigNotFoundError:
        return
    cluster = load_cluster(root, session.cluster, overrides=session.overrides(), environ=session.environ)
    demand_set(cluster, resolve(inside_project(root, path), cwd=here, root=root, cluster=cluster))
