"""Prepares a node for its job, once: code, folders, setup commands; and cleans up after it.

Each folder of a job is at ``$ROOT/<name>``: a link, a mount (blobfuse2), a copy of blobs, or an empty folder.
"""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import os
import shlex
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from blobsync.base.errors import BlobsyncError, NothingMatchedError, ProcessError
from blobsync.base.exit_codes import shell_code
from blobsync.base.locations import BlobContainer
from blobsync.base.process import ProcessRunner
from blobsync.base.redaction import redact
from blobsync.code.unpack import keep_listed, unpack_archive
from blobsync.jobspec.spec import FolderLink
from blobsync.local.names import relative_name
from blobsync.local.os_errors import raise_unless_gone
from blobsync.node.container import fetch_image, remove_image
from blobsync.node.job import NodeJob, read_text, shell_line, write_text
from blobsync.node.job_checkpoints import outside_sets, restore_checkpoint
from blobsync.node.job_stores import JobStores
from blobsync.node.machine import describe_machine, heartbeat, run_into_log
from blobsync.node.ranks import NotReadyError, master_address, ranks_of_node
from blobsync.node.transfers import NodeTransfers, kept_of


def make_ready(job: NodeJob, places: JobStores) -> None:
    """Place code and folders and run setup commands, once per node. Raises ``NotReadyError``."""
    master_address(job.spec, job.environ)
    ready, failed = job.beside("ready"), job.beside("failed")
    with _node_lock(job):
        if ready.exists():
            if read_text(ready) != job.attempt and job.has_checkpoints:
                _restore_again(job, places)
                write_text(ready, job.attempt)
            return
        if read_text(failed).startswith(job.attempt + "\n"):
            raise NotReadyError(read_text(failed).partition("\n")[2])
        try:
            _make_ready(job, places)
        except SystemExit:
            # Stopped meanwhile: no other process will clean up.
            clean_up(job, shell_code(-signal.SIGTERM))
            raise
        except Exception as error:
            text = _sentence(error)
            job.say("setup failed: " + text)
            # On a full disk the next process tries again and fails likewise.
            with suppress(OSError):
                write_text(failed, job.attempt + "\n" + text)
            raise NotReadyError(text) from error
        write_text(ready, job.attempt)
        job.say(f"ready: {job.root}")


def restore_again(job: NodeJob, places: JobStores) -> None:
    """Bring the last checkpoint to a node whose command is started again. Raises ``NotReadyError``."""
    if job.has_checkpoints:
        with _node_lock(job):
            _restore_again(job, places)


def _make_ready(job: NodeJob, places: JobStores) -> None:
    job.root.parent.mkdir(parents=True, exist_ok=True)
    describe_machine(job)
    with _transfers(job) as transfers:
        try:
            _place_code(job, places, transfers)
            _forget_sets(job)
            _place_folders(job, places, transfers)
            transfers.progress.begin("setup")
            _run_setup(job)
        finally:
            if not job.in_place:
                shutil.rmtree(job.beside(_KEPT), ignore_errors=True)


@contextmanager
def _transfers(job: NodeJob) -> Iterator[NodeTransfers]:
    """Transfers of the job. Says meanwhile that the node lives, and how far they are: data may take hours to come."""
    transfers, done = NodeTransfers(job), threading.Event()

    def beat() -> None:
        while not done.wait(job.sync_seconds):
            job.say(heartbeat(job, preparing=transfers.progress.text))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield transfers
    finally:
        done.set()
        thread.join()
        transfers.close()


def _restore_again(job: NodeJob, places: JobStores) -> None:
    """Bring a checkpoint to a node that still has the files of an earlier start: those may be half ones, and newer on
    one node than on another."""
    job.say("the files of an earlier start are here; only the checkpoint is looked at again")
    _forget_sets(job)
    try:
        with _transfers(job) as transfers:
            for entry in job.folders("upload"):
                restore_checkpoint(job, places, transfers, entry)
    except BlobsyncError as error:
        raise NotReadyError(_sentence(error)) from error


def _forget_sets(job: NodeJob) -> None:
    """What programs of an earlier attempt said of their sets counts no more, nor does the stillness of those."""
    job.restored.unlink(missing_ok=True)
    job.beside("left-behind").unlink(missing_ok=True)
    shutil.rmtree(job.set_requests, ignore_errors=True)
    if job.has_checkpoints:
        job.set_requests.mkdir(parents=True, exist_ok=True)
        write_text(job.sets_since, "")


def _sentence(error: Exception) -> str:
    if isinstance(error, BlobsyncError):
        return redact(f"{error.message}; {error.hint}" if error.hint else error.message)
    return redact(str(error) or type(error).__name__)


@contextmanager
def _node_lock(job: NodeJob) -> Iterator[None]:
    """A lock between the processes of this node; the kernel releases it when its holder dies."""
    job.beside("lock").parent.mkdir(parents=True, exist_ok=True)
    with job.beside("lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _place_code(job: NodeJob, places: JobStores, transfers: NodeTransfers) -> None:
    """Fetch the code archive (or a blob folder of code), verify it, unpack it, and rename it to its place."""
    code = job.spec.code
    if job.spec.spread is not None:
        job.root.mkdir(exist_ok=True)
        return
    if code is None:
        if not job.root.is_dir():
            raise NotReadyError(f"there is no folder {job.root}")
        return
    if job.root.is_dir():
        job.say("an earlier attempt did not finish; starting again")
        _keep_downloads(job)
        if not _remove_root(job):
            raise NotReadyError(f"{job.root} of an earlier attempt cannot be removed")
    began = time.monotonic()
    fresh = Path(tempfile.mkdtemp(prefix=job.root.name + ".new-", dir=job.root.parent))
    archive = fresh.with_name(fresh.name + ".zip")
    try:
        place = places.blobs(code.container, code.blob)
        if code.blob.endswith(".zip"):
            transfers.download(code.blob, place, archive)
            unpack_archive(archive, fresh, code.digest, code.size)
        else:
            transfers.download(code.blob, place, fresh)
            if code.digest:
                keep_listed(fresh, code.digest)
        fresh.chmod(0o755)
        fresh.rename(job.root)
        job.say(f"code {code.digest[:12]} unpacked in {time.monotonic() - began:.1f} s")
    except NothingMatchedError as error:
        raise NotReadyError(f"there is no code {code.blob} in {code.container}; 'blobsync init' uploads it") from error
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _run_setup(job: NodeJob) -> None:
    env = job.user_environment(ranks_of_node(job.spec, job.node_rank)[0])
    if "wrapper" in job.spec.options:
        job.temp.mkdir(parents=True, exist_ok=True)
    if job.own_output:
        job.own_output.mkdir(parents=True, exist_ok=True)
    image = fetch_image(job)
    for number, line in enumerate(job.spec.setup):
        job.say("setup: " + line)
        # The command's working directory, unless it does not exist yet.
        folder = job.work_dir if job.work_dir.is_dir() else job.root
        try:
            if image:
                code, image = image.run_setup(line, number, env)
            else:
                code = run_into_log(shell_line(line), folder, env, job.node_log)
        except OSError as error:
            raise ProcessError(f"the setup command cannot be started: {error.strerror}") from error
        if code:
            raise NotReadyError(f"the setup command ended with {code}: {line}")
    job.demand_work_dir()


def clean_up(job: NodeJob, code: int) -> None:
    """Remove the job's files from this node, unless the cluster file says to keep them."""
    remove_image(job)
    if not job.removes_root(code):
        return
    # The mark of readiness goes first: a requeued job may come back to this node.
    job.beside("ready").unlink(missing_ok=True)
    if _remove_root(job):
        for path in glob.glob(glob.escape(str(job.root)) + ".*"):
            with suppress(OSError):
                os.remove(path)
            shutil.rmtree(path, ignore_errors=True)
    if job.owns_parent:
        with suppress(OSError):
            job.root.parent.rmdir()


def _remove_root(job: NodeJob) -> bool:
    """Remove the root; False if something is still mounted in it."""
    if not _unmount_folders(job):
        return False
    shutil.rmtree(job.root, ignore_errors=True)
    return not job.root.exists()


def _mount_folder(job: NodeJob, places: JobStores, entry: FolderLink, path: Path) -> None:
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
    done = ProcessRunner().run(words, env=env)
    job.say(f"mount {entry.name}: {(done.stdout + done.stderr).strip() or 'done'}")
    if done.returncode:
        raise NotReadyError(f"folder {entry.name}: blobfuse2 could not mount it (exit {done.returncode})")


def _words(entry: FolderLink, text: str) -> list[str]:
    """Split one of ``blob_fuse_options``, which may be several words: ``-o attr_timeout=240``."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise NotReadyError(f"folder {entry.name}: blob_fuse_options {text!r}: {error}") from None


def _unmount_folders(job: NodeJob) -> bool:
    """Unmount all folders in the job's root; False if a mount remains."""
    for entry in job.folders("mount", "ro_mount"):
        path = job.root / entry.name
        if path.is_mount():
            ProcessRunner().run(["fusermount3", "-u", str(path)])
        if path.is_mount():
            job.say(f"{path} is still mounted; {job.root} stays")
            return False
    return True


# Beside the root: the downloads of a killed attempt, by the number of their entry.
_KEPT = "kept"


def _place_folders(job: NodeJob, places: JobStores, transfers: NodeTransfers) -> None:
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
            _mount_folder(job, places, entry, path)
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


def _keep_downloads(job: NodeJob) -> None:
    """Move downloads out of the root of a killed attempt before it is removed, so that they can be resumed."""
    kept = job.beside(_KEPT)
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
    kept, path = job.beside(_KEPT) / str(job.spec.folders.index(entry)), job.root / entry.name
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
            is_pattern = any(letter in plain for letter in "*?[")
            below = relative_name(plain, str(path)) if plain and not is_pattern else ""
            wanted = _wanted(plain if is_pattern else "", [] if below else inner)
            if entry.checkpoints and not is_pattern:
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
