"""Prepares a node for its job, once, and cleans up after it."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blobsync.base.errors import BlobsyncError, NothingMatchedError, ProcessError
from blobsync.base.exit_codes import shell_code
from blobsync.base.process import ProcessRunner
from blobsync.base.redaction import redact
from blobsync.code.unpack import keep_listed, unpack_archive
from blobsync.node.container import fetch_image, remove_image
from blobsync.node.folders import KEPT, keep_downloads, place_folders, unmount_folders
from blobsync.node.job import NodeJob, read_text, shell_line, write_text
from blobsync.node.job_checkpoints import restore_checkpoint
from blobsync.node.job_stores import JobStores
from blobsync.node.machine import describe_machine, heartbeat, run_into_log
from blobsync.node.ranks import NotReadyError, master_address, ranks_of_node
from blobsync.node.transfers import NodeTransfers


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
    describe_machine(job, ProcessRunner())
    with _transfers(job) as transfers:
        try:
            _place_code(job, places, transfers)
            _forget_sets(job)
            place_folders(job, places, transfers)
            transfers.progress.begin("setup")
            _run_setup(job)
        finally:
            if not job.in_place:
                shutil.rmtree(job.beside(KEPT), ignore_errors=True)


@contextmanager
def _transfers(job: NodeJob) -> Iterator[NodeTransfers]:
    """Transfers of the job. Says meanwhile that the node lives, and how far they are: data may take hours to come."""
    transfers, done = NodeTransfers(job), threading.Event()

    def beat() -> None:
        while not done.wait(job.sync_seconds):
            job.say(heartbeat(job, ProcessRunner(), preparing=transfers.progress.text))

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
        keep_downloads(job)
        if not remove_root(job):
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
    if remove_root(job):
        for path in glob.glob(glob.escape(str(job.root)) + ".*"):
            with suppress(OSError):
                os.remove(path)
            shutil.rmtree(path, ignore_errors=True)
    if job.owns_parent:
        with suppress(OSError):
            job.root.parent.rmdir()


def remove_root(job: NodeJob) -> bool:
    """Remove the root; False if something is still mounted in it."""
    if not unmount_folders(job):
        return False
    shutil.rmtree(job.root, ignore_errors=True)
    return not job.root.exists()
