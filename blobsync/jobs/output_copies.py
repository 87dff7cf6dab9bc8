"""Copies a job's outputs from the disk of a linked folder into the project, when that is another folder.

With Slurm's ``shared_root`` a job writes to the cluster's file system; the project here has its own folder. What lies
in the project already is never replaced: it may be all that is left of an earlier run.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.errors import BlobsyncError
from blobsync.base.failure_codes import ExitCode, FailureCode
from blobsync.config.mapping import is_below
from blobsync.config.trusted_links import load_trusted_links
from blobsync.jobs.outputs import JobOutputs, OutputFile, output_places
from blobsync.jobspec.spec import FolderLink
from blobsync.local.files import LocalFolder, SourceFile, hash_file
from blobsync.local.names import relative_name
from blobsync.plan.transfer_plan import FileFailure

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class CopiedOutputs:
    """What became of the files on a disk: ``copied`` and verified, or in the project already (``present``)."""

    copied: tuple[OutputFile, ...] = ()
    present: tuple[OutputFile, ...] = ()
    failures: tuple[FileFailure, ...] = ()

    def __repr__(self) -> str:
        return f"<CopiedOutputs: {len(self.copied)} copied, {len(self.present)} present, {len(self.failures)} failed>"

    @property
    def exit_code(self) -> ExitCode:
        """0: all are in the project; 3: some failed or conflict; 1: none is there."""
        if not self.failures:
            return ExitCode.DONE
        if self.copied or self.present or any(each.code == FailureCode.CONFLICT for each in self.failures):
            return ExitCode.PARTIAL
        return ExitCode.FAILED


def copy_outputs(outputs: JobOutputs, root: Path, environ: Mapping[str, str]) -> CopiedOutputs:
    """Bring each file that lies on a disk, and not in the project at ``root``, to its path there.

    Writes through no link out of the project that the user has not trusted. Raises ``LocalFileError`` and
    ``ConfigError`` before anything is written.
    """
    trusted = [Path(link.target) for link in load_trusted_links(root, environ)]
    folder = LocalFolder(root, (root, *trusted))
    boundaries = {place.id: _boundary(place.folder) for place in output_places(outputs.record.spec)}
    copied: list[OutputFile] = []
    present: list[OutputFile] = []
    failures: list[FileFailure] = []
    for one in outputs.files:
        if one.on_disk is None:
            continue
        done: bool | FileFailure
        try:
            done = not outputs.is_here(one) and _copy(folder, one, one.on_disk, boundaries[one.output])
        except BlobsyncError as error:
            done = FileFailure(one.path, error.code, error.message, error.hint)
        if isinstance(done, FileFailure):
            failures.append(done)
        else:
            (copied if done else present).append(one)
    return CopiedOutputs(tuple(copied), tuple(present), tuple(failures))


def _boundary(folder: FolderLink) -> str:
    """The project's folder on that disk, without links: the job's own files may be links within it."""
    return os.path.realpath(folder.source.removesuffix(folder.name) or "/")


def _copy(folder: LocalFolder, one: OutputFile, path: Path, boundary: str) -> bool | FileFailure:
    """Whether it was copied: False if the same bytes are there already. Raises ``BlobsyncError``."""
    real = os.path.realpath(path)
    if not is_below(real, boundary):
        why = f"{path} leads to {real}, outside of {boundary}"
        return FileFailure(one.path, FailureCode.LINK_REFUSED, why, "copy the file itself, if you trust the link")
    name = relative_name(one.path)
    target = folder.path_of(name)
    source = SourceFile(real)
    try:
        if os.path.lexists(target):
            return _compare(one, Path(real), target)
        part = folder.create(name, source.state.size)
        try:
            digest = hashlib.md5(usedforsecurity=False)
            for offset in range(0, source.state.size, _PIECE):
                piece = source.read_at(offset, min(_PIECE, source.state.size - offset))
                digest.update(piece)
                part.write_at(offset, piece)
            source.check_unchanged()
            part.commit(None)
        finally:
            part.discard()
    finally:
        source.close()
    written = hash_file(Path(target))
    if written is None or written.md5 != digest.digest():
        why = f"{target} is not what was copied from {path}"
        return FileFailure(one.path, FailureCode.MD5_MISMATCH, why, "move it away, then run the same command again")
    return True


def _compare(one: OutputFile, path: Path, target: str) -> bool | FileFailure:
    theirs, ours = hash_file(path), hash_file(Path(target))
    if theirs and ours and (theirs.size, theirs.md5) == (ours.size, ours.md5):
        return False
    why = f"{one.path}: the project has another version than {path}; it was left alone"
    hint = f"cp {shlex.quote(str(path))} {shlex.quote(target)} replaces it"
    return FileFailure(one.path, FailureCode.CONFLICT, why, hint)
