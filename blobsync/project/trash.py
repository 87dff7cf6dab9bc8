"""Which local files go to the trash, whether it holds them, and how they come back.

A file goes there if a run replaces or deletes it without knowing that a container has it: with ``--overwrite``,
``--mirror`` and ``--keep``, and in an undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure, NothingMatchedError, PreconditionFailedError
from blobsync.base.file_states import LocalState
from blobsync.base.formatting import count_text, size_text
from blobsync.base.locations import LocalLocation
from blobsync.base.records import NamedTuple
from blobsync.config.mapping import is_below
from blobsync.config.model import Cluster
from blobsync.config.trust_store import OutsideLink
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import relative_name
from blobsync.local.state_dir import StateDir
from blobsync.local.trash import TRASH_FOLDER, Trash, TrashedFile, TrashedRun, TrashLimits
from blobsync.plan.transfer_options import replaces_unverified
from blobsync.plan.transfer_plan import Action, TransferPlan


def trash_of(state: StateDir) -> Trash:
    """The trash in the project's state folder."""
    return Trash(state.root / TRASH_FOLDER)


def limits_of(cluster: Cluster) -> TrashLimits:
    """What ``trash`` of the cluster file says."""
    default = TrashLimits()
    days, size = cluster.number("trash.days"), cluster.number("trash.size")
    return TrashLimits(default.days if days is None else days, default.size if size is None else size)


def going(plan: TransferPlan) -> Iterator[int]:
    """The sizes of the local files that the plan replaces or deletes, and keeps in the trash."""
    if plan.options.no_trash or not replaces_unverified(plan.options):
        return
    for part, action in plan.each():
        # --keep remote of an upload replaces the source.
        to, was = (
            (part.source, action.source) if action.action is Action.ADOPT else (part.destination, action.destination)
        )
        moves = action.action in (Action.TRANSFER, Action.ADOPT) and not action.aside
        if isinstance(to, LocalLocation) and was is not None and (moves or action.action is Action.DELETE):
            yield was.size


def too_much(plan: TransferPlan, limits: TrashLimits) -> tuple[FileFailure, ...]:
    """A refusal if the trash cannot hold what goes."""
    count = size = 0
    for each in going(plan):
        count += 1
        size += each
    if size <= limits.size:
        return ()
    path = plan.paths[0] if plan.paths else ""
    said = (
        f"{count_text(count, 'local file')}, {size_text(size)}, would be replaced or deleted,"
        f" and the trash keeps {size_text(limits.size)}"
    )
    hint = "--no-trash replaces and deletes them for good; 'trash: {size: 50 GB}' in the cluster file keeps more"
    return (FileFailure(path, FailureCode.TRASH_TOO_SMALL, said, hint),)


class Restored(NamedTuple):
    """What came back from the trash, by its paths, and what did not."""

    files: tuple[TrashedFile, ...]
    failures: tuple[FileFailure, ...]


def restore(
    trash: Trash,
    run: TrashedRun,
    paths: Sequence[str],
    root: Path,
    trusted: Iterable[OutsideLink],
    *,
    replacing: Path | None = None,
) -> Restored:
    """Put files of a run back where they were: all, or those at or below ``paths``, from the project's root.

    Where another file is, it is left alone, or with ``replacing`` kept there first. Raises ``NothingMatchedError``.
    """
    chosen = [file for file in run.files if not paths or any(is_below(file.path, path) for path in paths)]
    if not chosen:
        raise NothingMatchedError(
            f"{', '.join(paths)}: the trash has nothing of it from {run.id}", hint=f"'blobsync trash ls {run.id}'"
        )
    boundary = (root, *(Path(link.target) for link in trusted))
    folder = LocalFolder(root, boundary, kept=replacing)
    back, failures = [], []
    for file in chosen:
        try:
            _put_back(folder, root, file, replaces=replacing is not None)
        except BlobsyncError as error:
            failures.append(FileFailure(file.path, error.code, error.message, error.hint))
        else:
            back.append(file)
    trash.forget(run, back)
    return Restored(tuple(back), tuple(failures))


def _put_back(folder: LocalFolder, root: Path, file: TrashedFile, *, replaces: bool) -> None:
    """Copy the file back; it stays in the trash until that is done. A file system that can shares the bytes."""
    relative = relative_name(file.path)
    there = LocalState.at(root / relative)
    if there is not None and not replaces:
        raise PreconditionFailedError(
            f"{file.path} is there again, and was left alone", hint="--overwrite puts that into the trash instead"
        )
    source = SourceFile(file.place)
    try:
        part = folder.create(relative, file.size)
        try:
            if not part.copy_from(source.fd, 0, file.size):
                raise source.changed()
            source.check_unchanged()
            part.look_like(source.fd)
            part.commit(there)
        finally:
            part.discard()
    finally:
        source.close()
