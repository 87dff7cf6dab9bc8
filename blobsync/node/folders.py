"""Makes each folder of a job at ``$ROOT/<name>``: a link, a mount (blobfuse2), a copy of blobs, or an empty folder."""

from __future__ import annotations

import fnmatch
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from blobsync.base.errors import NothingMatchedError
from blobsync.base.locations import BlobContainer
from blobsync.base.process import ProcessRunner
from blobsync.jobspec.spec import FolderLink
from blobsync.local.names import relative_name
from blobsync.local.os_errors import raise_unless_gone
from blobsync.node.job import NodeJob
from blobsync.node.job_checkpoints import outside_sets, restore_checkpoint
from blobsync.node.job_stores import JobStores
from blobsync.node.ranks import NotReadyError
from blobsync.node.transfers import NodeTransfers, kept_of


def mount_folder(
    job: NodeJob, places: JobStores, entry: FolderLink, path: Path, process: ProcessRunner | None = None
) -> None:
    """Mount ``entry`` at ``path``, with the SAS in the environment. Raises ``NotReadyError``.

    Options: https://learn.microsoft.com/azure/storage/blobs/blobfuse2-commands-mount
    """
    program = shutil.which("blobfuse2", path=job.environ.get("PATH"))
    if not program:
        raise NotReadyError(
            f"folder {entry.name} has mode {entry.mode}, and this node has no blobfuse2; use mode download"
        )
    path.mkdir(parents=True, exist_ok=True)
    container = BlobContainer.parse(entry.container)
    env = {
        **job.environ,
        "AZURE_STORAGE_ACCOUNT": container.account,
        "AZURE_STORAGE_BLOB_ENDPOINT": container.endpoint,
        "AZURE_STORAGE_ACCOUNT_CONTAINER": container.name,
        "AZURE_STORAGE_AUTH_TYPE": "sas",
        "AZURE_STORAGE_SAS_TOKEN": places.sas(entry.container).reveal(),
    }
    cache = job.beside("cache-" + entry.name.replace("/", "-"))
    words = [program, "mount", str(path), f"--tmp-path={cache}", f"--container-name={container.name}"]
    words += ["--read-only=true"] if entry.mode == "ro_mount" else []
    words += ["--virtual-directory=true", f"--subdirectory={entry.path}"] if entry.path else []
    words += [f"--file-cache-timeout={entry.cache_seconds}"] if entry.cache_seconds else []
    words += [word for text in entry.fuse_options for word in _words(entry, text)]
    done = (process or ProcessRunner()).run(words, env=env)
    job.say(f"mount {entry.name}: {(done.stdout + done.stderr).strip() or 'done'}")
    if done.returncode:
        raise NotReadyError(f"folder {entry.name}: blobfuse2 could not mount it (exit {done.returncode})")


def _words(entry: FolderLink, text: str) -> list[str]:
    """Split one of ``blob_fuse_options``, which may be several words: ``-o attr_timeout=240``."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise NotReadyError(f"folder {entry.name}: blob_fuse_options {text!r}: {error}") from None


def unmount_folders(job: NodeJob, process: ProcessRunner | None = None) -> bool:
    """Unmount all folders in the job's root; False if a mount remains."""
    for entry in job.folders("mount", "ro_mount"):
        path = job.root / entry.name
        if path.is_mount():
            (process or ProcessRunner()).run(["fusermount3", "-u", str(path)])
        if path.is_mount():
            job.say(f"{path} is still mounted; {job.root} stays")
            return False
    return True


# Beside the root: the downloads of a killed attempt, by the number of their entry.
KEPT = "kept"


def place_folders(job: NodeJob, places: JobStores, transfers: NodeTransfers) -> None:
    """Make all folders, outer ones before those inside. Raises ``NotReadyError`` and errors of transfers."""
    for entry in sorted(job.spec.folders, key=lambda entry: entry.name):
        path = job.root / entry.name
        _make_room(job, path, entry)
        inside = f"{entry.name}/"
        inner = [one.name.removeprefix(inside) for one in job.spec.folders if one.name.startswith(inside)]
        if entry.mode == "link" and entry.read_only and inner:
            _link_each(path, Path(entry.source), inner)
        elif entry.mode == "link":
            _link(path, Path(entry.source))
        elif entry.mode in ("mount", "ro_mount"):
            mount_folder(job, places, entry, path)
        elif entry.mode == "download":
            was_begun = _restore_download(job, entry)
            path.mkdir(parents=True, exist_ok=True)
            _download(job, places, transfers, entry, inner)
            if was_begun:
                # Setup commands of that attempt may have changed it.
                transfers.drop_unrecorded(entry.name, places.blobs(entry.container, entry.path), path)
        elif entry.mode == "upload":
            path.mkdir(parents=True, exist_ok=True)
            if job.is_later:
                # A resumed job finds its checkpoints among the files of the earlier attempt.
                _download(job, places, transfers, entry, inner)
            if entry.checkpoints:
                restore_checkpoint(job, places, transfers, entry)
        else:
            raise NotReadyError(f"folder {entry.name}: unknown mode {entry.mode!r}")


def keep_downloads(job: NodeJob) -> None:
    """Move downloads out of the root of a killed attempt before it is removed, so that they can be resumed."""
    kept = job.beside(KEPT)
    for number, entry in sorted(enumerate(job.spec.folders), key=lambda each: each[1].name, reverse=True):
        path = job.root / entry.name
        # A link could point to another user's folder.
        if (
            entry.mode == "download"
            and path.is_dir()
            and os.path.realpath(path) == f"{job.root.resolve()}/{entry.name}"
        ):
            kept.mkdir(exist_ok=True)
            if not (kept / str(number)).exists():
                path.rename(kept / str(number))


def _restore_download(job: NodeJob, entry: FolderLink) -> bool:
    """Move the download of a killed attempt back; False if there is none, or a link."""
    kept, path = job.beside(KEPT) / str(job.spec.folders.index(entry)), job.root / entry.name
    if job.in_place or path.exists() or not kept.is_dir():
        return False
    for folder, folders, files in os.walk(kept, onerror=raise_unless_gone):
        for item in (Path(folder, name) for name in (*folders, *files)):
            # A link leads elsewhere, and a pipe or socket would be in the way of a file.
            if item.is_symlink() or not (item.is_file() or item.is_dir()):
                item.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(path)
    return True


def _make_room(job: NodeJob, path: Path, entry: FolderLink) -> None:
    """Replace what the code archive has at ``path``, but never write through another entry's link."""
    parent = os.path.realpath(path.parent)
    outside = not f"{parent}/".startswith(f"{os.path.realpath(job.root)}/")
    same = entry.mode == "link" and os.path.realpath(path) == os.path.realpath(entry.source)
    if outside and not same:
        raise NotReadyError(f"folder {entry.name} is inside another folder that is linked to {parent}")
    if job.in_place or same:
        return
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def _link(path: Path, source: Path) -> None:
    source.mkdir(parents=True, exist_ok=True)
    if os.path.realpath(path) != os.path.realpath(source):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(source)


def _link_each(path: Path, source: Path, inner: Sequence[str]) -> None:
    """Link each item of the read-only ``source`` in a folder which also holds the folders ``inner``."""
    path.mkdir(parents=True)
    ways = {name.split("/")[0] for name in inner}
    for name in os.listdir(source):
        below = source / name
        if name not in ways:
            (path / name).symlink_to(below)
        elif name not in inner and below.is_dir():
            deeper = [one.partition("/")[2] for one in inner if one.startswith(f"{name}/")]
            _link_each(path / name, below, deeper)


def _download(
    job: NodeJob, places: JobStores, transfers: NodeTransfers, entry: FolderLink, inner: Sequence[str]
) -> None:
    """Download the folder, or its included parts, except where other entries belong."""
    remote, path = places.blobs(entry.container, entry.path), job.root / entry.name
    for part in entry.include or ("",):
        plain = part.strip("/")
        try:
            if any(letter in plain for letter in "*?["):
                wanted = _wanted(plain, inner)
                transfers.download(entry.name, remote, path, wanted=wanted, ignore=entry.ignore, kept=kept_of(entry))
            else:
                below = relative_name(plain, str(path)) if plain else ""
                wanted = _wanted("", [] if below else inner)
                if entry.checkpoints:
                    wanted = outside_sets(job, entry, wanted)
                transfers.download(entry.name, remote, path, below, wanted, entry.ignore, kept_of(entry))
        except NothingMatchedError as error:
            if plain:
                raise NotReadyError(
                    f"folder {entry.name}: {part} was not found in {entry.container}", hint=error.hint
                ) from error
            job.say(f"{entry.name}: {entry.container}/{entry.path} is still empty")


def _wanted(pattern: str, inner: Sequence[str]) -> Callable[[str], bool] | None:
    if not pattern and not inner:
        return None
    apart = tuple(f"{name}/" for name in inner)
    return lambda path: not path.startswith(apart) and (not pattern or fnmatch.fnmatchcase(path, pattern))
