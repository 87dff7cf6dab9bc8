"""Mounts a container's folder with blobfuse2, and takes mounts off again."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from blobsync.base.process import ProcessRunner, SubprocessRunner
from blobsync.jobspec.spec import FolderLink, container_url
from blobsync.node.job import NodeJob
from blobsync.node.places import JobPlaces
from blobsync.node.ranks import NotReadyError


def mount_folder(
    job: NodeJob, places: JobPlaces, entry: FolderLink, path: Path, process: ProcessRunner | None = None
) -> None:
    """Mount ``entry`` at ``path``; the SAS goes through the environment. Raises ``NotReadyError``.

    Options: https://learn.microsoft.com/azure/storage/blobs/blobfuse2-commands-mount
    """
    program = shutil.which("blobfuse2", path=job.environ.get("PATH"))
    if not program:
        raise NotReadyError(
            f"folder {entry.name} has mode {entry.mode}, and this node has no blobfuse2; use mode download"
        )
    path.mkdir(parents=True, exist_ok=True)
    container = container_url(entry.container)
    env = {
        **job.environ,
        "AZURE_STORAGE_ACCOUNT": container.account,
        "AZURE_STORAGE_BLOB_ENDPOINT": container.endpoint,
        "AZURE_STORAGE_ACCOUNT_CONTAINER": container.container,
        "AZURE_STORAGE_AUTH_TYPE": "sas",
        "AZURE_STORAGE_SAS_TOKEN": places.sas(entry.container).reveal(),
    }
    cache = job.beside("cache-" + entry.name.replace("/", "-"))
    words = [program, "mount", str(path), f"--tmp-path={cache}", f"--container-name={container.container}"]
    words += ["--read-only=true"] if entry.mode == "ro_mount" else []
    words += ["--virtual-directory=true", f"--subdirectory={entry.path}"] if entry.path else []
    words += [f"--file-cache-timeout={entry.cache_seconds}"] if entry.cache_seconds else []
    words += [word for text in entry.fuse_options for word in _words(entry, text)]
    done = (process or SubprocessRunner()).run(words, env=env)
    job.say(f"mount {entry.name}: {(done.stdout + done.stderr).strip() or 'done'}")
    if done.returncode:
        raise NotReadyError(f"folder {entry.name}: blobfuse2 could not mount it (exit {done.returncode})")


def _words(entry: FolderLink, text: str) -> list[str]:
    """One of ``blob_fuse_options``, which may be several words: ``-o attr_timeout=240``."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise NotReadyError(f"folder {entry.name}: blob_fuse_options {text!r}: {error}") from None


def take_mounts_off(job: NodeJob, process: ProcessRunner | None = None) -> bool:
    """Unmount what is mounted in the job's root; False while something is still mounted there."""
    for entry in job.folders("mount", "ro_mount"):
        path = job.root / entry.name
        if path.is_mount():
            (process or SubprocessRunner()).run(["fusermount3", "-u", str(path)])
        if path.is_mount():
            job.say(f"{path} is still mounted; {job.root} stays")
            return False
    return True
