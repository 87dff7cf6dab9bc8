"""azcopy as an engine: each task is one azcopy job over exactly the task's files, checked by us.

azcopy's own report is not used. Uploads are reported without a destination state, so that the caller checks
them. Downloads are checked here, file by file, before they take their final names. When azcopy copies a whole folder it
lists the source itself, and no kernel confines it to names in a container: it gets such a copy only if it cannot
replace any other blob, and afterwards the destination is compared with the plan.

azcopy cannot be given a list of local files at speed (its list is walked one by one), and a folder itself may hold more
than the plan. So it uploads a tree of symlinks to exactly the planned files, read with ``--follow-symlinks``: 15
microseconds a file, and azcopy no more than the files themselves.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from pathlib import Path
from typing import ClassVar

from blobsync.azcopy import argv
from blobsync.azcopy.azcopy_process import AzcopyJob, AzcopyJobOutcome, JobProgress
from blobsync.azcopy.binary import find_azcopy
from blobsync.azcopy.eligible_files import action_refusal, is_single_file, needs_list_of_files, refusal
from blobsync.azcopy.failure_reasons import LogReader, blob_or_path
from blobsync.azcopy.file_results import (
    LogFollower,
    Verdict,
    blobs_below,
    damaged_blobs,
    needs_reading_back,
    send_again,
)
from blobsync.azcopy.run_folders import Workspace, workspace
from blobsync.azcopy.sandbox import Landlock
from blobsync.azcopy.staged_downloads import Arrivals
from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import (
    BlobsyncError,
    CredentialError,
    FailureCode,
    LocalFileError,
    ProcessError,
    SasPermissionError,
    StorageError,
)
from blobsync.base.events import BytesMoved, FilesCounted, Listener, Note, UnderWay
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.process import ProcessRunner
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.direct.thread_pool import RunState
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.os_errors import local_error
from blobsync.plan.engine_model import CHATTY_FILES
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.store.sas import READ_FOLDER, WRITE_BLOBS, WRITE_BLOBS_WITH_TIER
from blobsync.transfer.engines import Moved, MoveReport, MoveTask

# Of the hashing of an upload.
_CHUNK = 1 << 20
_THREADS = 2
# Stop azcopy after so many seconds without traffic.
STALL_AFTER = 300.0


def _impatient() -> ProcessRunner:
    # By then azcopy has had time to stop.
    return ProcessRunner(terminate_after=0.3, kill_after=0.3)


# (the end to open, rights as SAS letters) -> the SAS for its container; None where there is no credential.
SasForEnd = Callable[[OpenBlob, str], SasToken | None]


@dataclass(slots=True)
class AzcopyEngine:
    """The engine for bulk. ``state_dir`` is where it works (``transfers`` in the state folder).

    ``binary`` None is the one that ``find_azcopy`` finds; ``stall_after`` is in seconds. ``confinement`` keeps azcopy
    to its own places; where it cannot, azcopy is told each name to download instead of listing a folder by itself.
    """

    name: ClassVar = "azcopy"

    state_dir: Path
    mint: SasForEnd
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    runner: ProcessRunner = field(default_factory=_impatient)
    binary: Path | None = None
    stall_after: float = STALL_AFTER
    confinement: Landlock = field(default_factory=Landlock)

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`. Raises ``AzcopyError`` when there is no azcopy to use."""
        run = RunState(task, report, listener, 0)
        carried = _sort_out(run, confined=self.confinement.is_possible)
        if not carried:
            return
        binary = self.binary or find_azcopy(self.environ, runner=self.runner).path
        try:
            with workspace(self.state_dir) as space:
                _Transfer(self, binary, run, carried, space).work()
                space.failed = run.files_moved < len(carried)
            if space.kept:
                listener.emit(Note(f"azcopy's log of the failures: {space.kept}"))
        except (LocalFileError, CredentialError, StorageError, ProcessError) as error:
            for action in [each for each in carried if each.path not in run.reported]:
                run.failed(action, error)


def _sort_out(run: RunState, *, confined: bool) -> list[FileAction]:
    """Return the actions that azcopy can carry out; report the others."""
    listed = needs_list_of_files(run.task, confined=confined)
    why = refusal(run.task, listed=listed)
    carried = []
    for action in run.task.actions:
        reason = why or action_refusal(run.task, action, listed=listed)
        if reason is None:
            carried.append(action)
        else:
            run.failed(action, BlobsyncError(reason, hint="use --engine direct", code=FailureCode.AZCOPY_CANNOT_CARRY))
    return carried


class _Transfer:
    """One running task."""

    def __init__(
        self, engine: AzcopyEngine, binary: Path, run: RunState, actions: Sequence[FileAction], space: Workspace
    ) -> None:
        self._engine = engine
        self._binary = binary
        self._run = run
        self._task = run.task
        self._actions = actions
        self._space = space
        self._single = is_single_file(run.task)
        self._listed = needs_list_of_files(run.task, confined=engine.confinement.is_possible)
        self._tuning = argv.tuning(
            os.cpu_count() or 1,
            run.task.cap_mbps,
            chatty_log=run.task.part.route is not Route.DOWNLOAD and len(actions) <= CHATTY_FILES,
            fetches=run.task.part.route is Route.DOWNLOAD,
        )
        self._credentials: list[SasToken] = []
        self._size = sum(action.size for action in actions)
        # azcopy names the files that it has moved only at its end: until then they are counted.
        self._bytes, self._files = _Total(run.listener, BytesMoved), _Total(run.listener, FilesCounted)

    def work(self) -> None:
        """Move, check and report every file."""
        source, destination = self._task.part.source, self._task.part.destination
        if isinstance(source, LocalLocation) and isinstance(destination, OpenBlob):
            self._upload(source, destination)
        elif isinstance(source, OpenBlob) and isinstance(destination, LocalLocation):
            self._download(source, destination)
        elif isinstance(source, OpenBlob) and isinstance(destination, OpenBlob):
            self._copy(source, destination)
        else:
            raise ValueError("a move needs a blob at one end")
        # By now all are reported by name.
        self._files.reached(0)
        self._moved(self._run.bytes_moved)

    def _upload(self, source: LocalLocation, destination: OpenBlob) -> None:
        folder, _, leaf = destination.name.rpartition("/") if self._single else (destination.name, "", "")
        names = {action.target or action.path or leaf: action for action in self._actions}
        unlinked = build_links(self._space.links, [(name, source.at(each.path)) for name, each in names.items()])
        for name, problem in unlinked.items():
            self._run.failed(names.pop(name), problem)
        sas = self._mint(destination, WRITE_BLOBS)
        end = OpenBlob(destination.store, folder)
        command = argv.upload_command(self._binary, self._space.links, end.in_container(), sas, self._tuning)
        hashes = SourceHashes(source, list(names.values()))
        try:
            outcome, log = self._run_job(command)
            hashes.join(self._task.stop)
        finally:
            hashes.stop()
        self._judge_upload(names, hashes, Verdict(self._task.part.route, outcome, log, self._credentials, end))

    def _judge_upload(self, names: Mapping[str, FileAction], hashes: SourceHashes, verdict: Verdict) -> None:
        unchecked: dict[str, tuple[FileAction, LocalState]] = {}
        for name, action in names.items():
            state = hashes.states.get(action.path)
            error = hashes.errors.get(action.path) or verdict.failure(name, state or action.source)
            if not error and state and needs_reading_back(verdict.end.store, state.size, self._tuning.block_mb):
                unchecked[verdict.end.at(name)] = action, state
            else:
                self._settle(action, error, state)
        if not unchecked:
            return
        md5s = {name: state.md5 or b"" for name, (_, state) in unchecked.items()}
        found = damaged_blobs(verdict.end.store, md5s)
        damaged = [(unchecked.pop(name)[0], there) for name, there in found.items()]
        for action, state in unchecked.values():
            self._settle(action, None, state)
        if damaged:
            again = send_again(self._task, damaged, self._run.listener)
            # The listener has already counted these bytes.
            self._bytes.count += sum(moved.action.size for moved in again.moved)
            self._run.moved(again.moved)
            for action, failure in again.failed:
                self._run.report.file_failed(action, failure)

    def _copy(self, source: OpenBlob, destination: OpenBlob) -> None:
        # Names that azcopy cannot carry are planned, too: it meets them as it lists the folder by itself.
        planned = {each.path for each in self._task.actions}
        lists_by_itself = not (self._single or self._listed)
        others = (name for name, _ in blobs_below(destination) if name not in planned)
        if lists_by_itself and (other := next(others, None)) is not None:
            why = f"azcopy lists the source by itself, and could replace {other!r} at the destination"
            left = BlobsyncError(why, hint="use --engine direct", code=FailureCode.AZCOPY_CANNOT_CARRY)
            for action in self._actions:
                self._run.failed(action, left)
            return
        verdict = self._run_copy(source, destination)
        there = dict(blobs_below(destination)) if lists_by_itself else {}
        for action in self._actions:
            error = verdict.failure(action.path, action.source)
            self._settle(action, error, action.source, there.get(action.path))
        for name in sorted(there.keys() - planned):
            self._run.report.stray(name)

    def _run_copy(self, source: OpenBlob, destination: OpenBlob) -> Verdict:
        source_sas = self._mint(source, READ_FOLDER)
        try:
            destination_sas, keep_tier = self._mint(destination, WRITE_BLOBS_WITH_TIER), True
        except SasPermissionError:
            destination_sas, keep_tier = self._mint(destination, WRITE_BLOBS), False
        command = argv.copy_command(
            self._binary,
            (source.in_container(), source_sas),
            (destination.in_container(), destination_sas),
            self._tuning,
            keep_tier=keep_tier,
            folder=not self._single,
            listed=self._list_of_files(),
        )
        outcome, log = self._run_job(command)
        return Verdict(self._task.part.route, outcome, log, self._credentials, destination)

    def _download(self, source: OpenBlob, destination: LocalLocation) -> None:
        root = destination.path
        with ExitStack() as held:
            place = destination.parent if self._single else destination
            parent = place.path
            existed = os.path.lexists(parent)
            folder = LocalFolder(parent, place.boundary, kept=place.kept)
            if not existed:
                held.callback(_remove_if_empty, parent)
            try:
                staged = self._space.make_staging(parent)
            except OSError as error:
                raise local_error(error, parent) from error
            held.callback(shutil.rmtree, staged, ignore_errors=True)
            target = staged / "f"
            if not self._single:
                target.mkdir()
            command = argv.download_command(
                self._binary,
                source.in_container(),
                self._mint(source, READ_FOLDER),
                target,
                self._tuning,
                folder=not self._single,
                listed=self._list_of_files(),
            )
            names = {action.path or target.name: action for action in self._actions}
            base = staged if self._single else target
            arrivals = Arrivals(self._run, base, folder, names, source, only=root.name if self._single else "")
            self._receive(command, arrivals, source, staged)

    def _receive(self, command: argv.Command, arrivals: Arrivals, source: OpenBlob, staged: Path) -> None:
        arrivals.start()
        try:
            outcome, log = self._run_job(command, lambda log: arrivals.complete or self._has_no_room(log))
        except BaseException:
            arrivals.stop()
            raise
        missing = arrivals.finish()
        verdict = Verdict(self._task.part.route, outcome, log, self._credentials, source)
        # Names that azcopy cannot carry are planned, too: it meets them as it lists the folder by itself.
        planned = {each.path for each in self._task.actions}
        for name in (*(name for name in arrivals.strays(staged) if name not in planned), *verdict.unplanned(planned)):
            self._run.report.stray(name)
        for action in missing:
            self._run.failed(action, verdict.reason(action.path))

    def _has_no_room(self, log: LogFollower) -> bool:
        """Whether the disk had no room for a fetched file: azcopy would go on with the others.

        If azcopy can reserve the room of each file, it goes on, so that files with enough room arrive.
        """
        return self._run.hopeless is not None or log.shows_no_room()

    def _run_job(
        self, command: argv.Command, done: Callable[[LogFollower], bool] = LogFollower.shows_success
    ) -> tuple[AzcopyJobOutcome, LogReader]:
        log = LogFollower(self._space.logs, self._under_way)

        def finished() -> bool:
            self._task.stop.check()
            return done(log)

        space = self._space
        env = argv.child_environment(self._engine.environ, space.home, space.logs, space.plans, self._tuning)
        places = [space.home, space.logs, space.plans, *([space.staging] if space.staging else [])]
        confined = replace(command, argv=(*self._engine.confinement.words(places), *command.argv))
        runner, stall_after = self._engine.runner, self._engine.stall_after
        job = AzcopyJob(runner, confined, env, space.note_process, self._counted, finished, stall_after)
        try:
            outcome = job.run()
        finally:
            if job.outcome.job_id:
                self._run.report.azcopy_job(job.outcome.job_id)
        log.read()
        return outcome, log.reader

    def _counted(self, progress: JobProgress) -> None:
        # Bytes of whole blocks only would not change for minutes on a slow connection.
        self._moved(max(progress.bytes_done, progress.bytes_over_wire))
        # Downloads are reported one by one as they arrive.
        if self._task.part.route is not Route.DOWNLOAD:
            self._files.reached(max(progress.files_done, self._files.count))

    def _moved(self, size: int) -> None:
        # Bytes that are sent twice count once.
        self._bytes.reached(min(size, self._size))

    def _under_way(self, files: int, blob: str) -> None:
        """Report what is moving. The log names both ends as azcopy does; users know the destination's blob."""
        part = self._task.part
        if isinstance(part.destination, OpenBlob):
            top = blob_or_path(str(part.destination))
            if blob == top or blob.startswith(f"{top}/"):
                self._run.listener.emit(UnderWay(files, f"{part.path}{blob[len(top) :]}".lstrip("/")))

    def _settle(
        self,
        action: FileAction,
        error: BlobsyncError | None,
        source: LocalState | RemoteState | None,
        seen: RemoteState | None = None,
    ) -> None:
        if error is not None:
            # azcopy has counted those that it moved, without this one.
            self._run.failed(action, error)
        else:
            self._files.reached(max(self._files.count - 1, 0))
            self._run.moved([Moved(action, source=source, destination=seen)])

    def _mint(self, end: OpenBlob, rights: str) -> SasToken:
        sas = self._engine.mint(end, rights)
        if sas is None:
            raise CredentialError(
                f"azcopy needs a SAS for {end.store.container}, and no credential here can create one",
                hint="use --engine direct, or add account_key or sas_token to the storage account's file",
            )
        self._credentials.append(sas)
        return sas

    def _list_of_files(self) -> Path | None:
        if not self._listed:
            return None
        return self._space.write("files.txt", "".join(f"{action.path}\n" for action in self._actions))


class _Total:
    """Reports the changes of a total to the listener."""

    def __init__(self, listener: Listener, change: Callable[[int], BytesMoved | FilesCounted]) -> None:
        self._listener = listener
        self._change = change
        self.count = 0

    def reached(self, count: int) -> None:
        """Set the total so far."""
        if count != self.count:
            self._listener.emit(self._change(count - self.count))
            self.count = count


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


def build_links(root: Path, names: Sequence[tuple[str, Path]]) -> dict[str, BlobsyncError]:
    """Create a link below ``root`` for each (relative name, file); returns the failures by name.

    These are failures of the disk of ``root``, not of the file: another engine needs no links.
    """
    made = {""}
    failed: dict[str, BlobsyncError] = {}
    for name, file in names:
        parent = name.rpartition("/")[0]
        try:
            if parent not in made:
                os.makedirs(root / parent, exist_ok=True)
                made.add(parent)
            os.symlink(os.path.abspath(file), root / name)
        except OSError as error:
            failed[name] = BlobsyncError(f"{root / name}: {error.strerror}", code=FailureCode.AZCOPY_CANNOT_CARRY)
    return failed


class SourceHashes:
    """Hashes the files of an upload in threads while azcopy sends them.

    Costs 1.6 ms of processor time a MiB beside azcopy's own MD5, and no second disk read where the file fits into
    the page cache. A file that cannot be read, or is not the planned one any more, shows here, too.
    """

    def __init__(self, source: LocalLocation, actions: Sequence[FileAction]) -> None:
        """Starts in the background."""
        self._source = source
        self._halt = StopRequest()
        self.states: dict[str, LocalState] = {}
        self.errors: dict[str, BlobsyncError] = {}
        self._all = Ahead(deque, side_by_side(self._note, actions, _THREADS), maxlen=0)

    def join(self, stop: StopRequest = NEVER) -> None:
        """Wait for the rest; raises ``KeyboardInterrupt`` when ``stop`` asks for that."""
        self._all.result(stop)

    def stop(self) -> None:
        """Skip the remaining files."""
        self._halt.make()

    def _note(self, action: FileAction) -> None:
        if self._halt.made:
            return
        try:
            self.states[action.path] = self._hash(action)
        except BlobsyncError as error:
            self.errors[action.path] = error

    def _hash(self, action: FileAction) -> LocalState:
        file = SourceFile(self._source.at(action.path), action.source)
        try:
            md5 = hashlib.md5(usedforsecurity=False)
            size = file.state.size
            for offset in range(0, size, _CHUNK):
                if self._halt.made:
                    break
                md5.update(file.read_at(offset, min(_CHUNK, size - offset)))
            file.check_unchanged()
        finally:
            file.close()
        seen = file.state
        return LocalState(seen.size, seen.mtime_ns, seen.ctime_ns, seen.inode, md5.digest())
