"""Keeps folders of the project uploaded, as ``blobsync keep`` does: each folder in a thread of its own.

A round is an upload of what changed: planned, carried out, verified, recorded and in the history like that of ``u``,
but without a listing and without a walk. After a failure that is not one of files the project is opened again for the
next round, so that a login that was renewed meanwhile is read, and one request shows whether the service answers before
a round begins.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from blobsync.base.errors import (
    FailureCode,
    FileFailure,
    NothingMatchedError,
    TransferCancelledError,
    UsageError,
)
from blobsync.base.events import Emit, Note
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text
from blobsync.base.locations import BlobLocation, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.stopping import StopRequest
from blobsync.config.mapping import is_below
from blobsync.config.model import FolderEntry
from blobsync.keep.keeper import EVERYWHERE, Files, Keeper
from blobsync.keep.round_plan import plan_round, shape_conflicts
from blobsync.keep.watcher import FolderWatcher, Listen, Walk, installed_listener
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.os_errors import where_to_look
from blobsync.local.tree import TreeEntry, walk
from blobsync.plan.blocks import partial_uploads
from blobsync.plan.path_mapping import Leg, check_links, legs, request_for, rooted
from blobsync.plan.project_context import ProjectContext, direct_plan
from blobsync.plan.survey import Request
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, FileAction, TransferPlan, actions_of
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.keeper_records import KeeperRecord, Keepers, KeeperState, keeper_state
from blobsync.store.open_locations import OpenBlob
from blobsync.store.sas import WRITE_FOLDER

# The default of ``--settle``, in seconds.
SETTLE_SECONDS = 5.0
_OPTIONS = TransferOptions(engine="direct")
# A name that no blob has: asking for it shows whether the service answers.
_NO_BLOB = "blobsync-keep-asks-whether-anybody-answers"
# Seconds between two looks whether the threads have reported something.
_POLL_SECONDS = 0.2
_GONE = os.strerror(2)


class Uploads(NamedTuple):
    """An opened project, for one keeper alone. ``stop`` stops what it carries out, from another thread."""

    context: ProjectContext
    carry_out: Callable[[TransferPlan], TransferResult]
    stop: Callable[[], None]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True, repr=False)
class KeptRound:
    """A round of one folder, ``path`` from the project's root. ``uploaded`` files of ``bytes`` arrived and are
    verified; ``waiting`` files wait for stillness or another try; ``failures`` fail now, and ``fresh`` of them were not
    told before. ``problem``: nothing works, since ``since`` (seconds since 1970)."""

    path: str
    number: int
    at: float
    uploaded: int
    bytes: int
    seconds: float
    waiting: int
    failures: Sequence[FileFailure]
    fresh: Sequence[FileFailure]
    problem: str
    since: float
    idle: bool

    def __repr__(self) -> str:
        return f"<KeptRound {self.path!r}: {self.uploaded:,} uploaded, {self.waiting:,} wait>"


@dataclass(frozen=True, slots=True, repr=False)
class KeepResult:
    """What a keeper did until it ended. ``waiting`` files were not uploaded yet, ``failures`` could not be.

    ``problems`` say why nothing works. ``idle``: it ended because nothing changed any more.
    """

    rounds: int
    uploaded: int
    bytes: int
    seconds: float
    waiting: int
    failures: tuple[FileFailure, ...] = ()
    problems: tuple[str, ...] = ()
    idle: bool = False

    def __repr__(self) -> str:
        return f"<KeepResult: {self.uploaded:,} uploaded in {self.rounds:,} rounds, {self.waiting:,} wait>"

    @property
    def ok(self) -> bool:
        """Everything that is there is uploaded and verified."""
        return not self.failures and not self.problems and not self.waiting

    @property
    def exit_code(self) -> ExitCode:
        """0: all is uploaded and verified; 3: some is not."""
        return ExitCode.DONE if self.ok else ExitCode.PARTIAL

    @property
    def left(self) -> str:
        """What is left, in words; empty if nothing is."""
        words = [f"{count_text(self.waiting, 'file')} not uploaded yet"] if self.waiting else []
        words += [f"{count_text(len(self.failures), 'failure')}"] if self.failures else []
        return ", ".join([*words, *self.problems])


def kept_legs(context: ProjectContext, paths: Sequence[str]) -> tuple[Leg, ...]:
    """The folders that these PATHs mean, nested folder entries by themselves.

    Raises mapping errors, ``UntrustedLinkError``, ``NothingMatchedError``, ``UsageError`` for a file, and
    ``CredentialError`` for a credential that clearly does not allow it.
    """
    chosen = legs(context, Direction.UP, [rooted(context, path) for path in paths], _OPTIONS)
    check_links(context, chosen)
    found = []
    for leg in chosen:
        end = leg.part.source
        assert isinstance(end, LocalLocation)
        if end.path.is_dir():
            assert isinstance(leg.part.destination, BlobLocation)
            context.connections.check(leg.part.destination, WRITE_FOLDER)
            found.append(leg)
        elif end.path.exists():
            raise UsageError(f"{leg.part.path} is a file: keep watches folders", hint="name the folder of it")
        elif not leg.optional:
            raise NothingMatchedError(
                f"{leg.part.path}: there is no such folder", hint=where_to_look(end.path), path=leg.part.path
            )
    return tuple(found)


def marked_in_jobs_only(entries: Iterable[FolderEntry], chosen: Sequence[Leg]) -> Iterator[str]:
    """A sentence for each of these folders in which jobs mark checkpoints: a set belongs to the job that wrote it."""
    prefixes = [entry.prefix for entry in entries if entry.checkpoints]
    for path in (leg.part.path for leg in chosen):
        if any(is_below(path, prefix) for prefix in prefixes):
            yield f"{path}: files go up one by one; only jobs upload checkpoints as one, and mark them"


def root_of(leg: Leg) -> str:
    """The real path of the folder that is kept."""
    assert isinstance(leg.part.source, LocalLocation)
    return os.path.realpath(leg.part.source.path)


def walk_of(root: Path, links: LinkPolicy) -> Walk:
    """Every file of a folder of the project, as ``u`` finds them."""

    def walk_below(below: str, followed: dict[str, str]) -> Iterator[TreeEntry]:
        policy = links._replace(shown=f"{links.shown}/{below}") if below else links
        for entry in walk(root / below, policy, followed):
            if entry.reason is Reason.UNREADABLE and entry.detail == _GONE:
                # A program removed it meanwhile.
                continue
            path = "/".join(part for part in (below, entry.path) if part)
            yield entry._replace(path=path) if below else entry

    return walk_below


Report: TypeAlias = "KeptRound | BaseException | None"


class KeptFolder:
    """One folder: its keeper, its thread, and what carries out its rounds. ``opened`` opens the project; ``report``
    gets each round, and what ended the thread."""

    def __init__(
        self,
        leg: Leg,
        opened: Callable[[], Uploads],
        emit: Emit,
        *,
        settle: float,
        listen: Listen | None,
        until_idle: bool,
        report: Callable[[Report], None],
    ) -> None:
        self.path = leg.part.path
        self._leg, self._open, self._emit = leg, opened, emit
        self._report, self._until_idle = report, until_idle
        self._project: Uploads | None = None
        # Destinations that have to be looked at: all in the first round, later what failed before.
        self._doubtful: set[str] | None = None
        # After a failure that is not one of files: whether the service answers has to be asked first.
        self._has_failed = False
        self.rounds = self.uploaded = self.bytes = 0
        request = self._request()
        end = request.part.source
        assert isinstance(end, LocalLocation)
        links = request.links._replace(shown=self.path)
        # Links on the way are followed, as by u; events name the real path.
        self.watcher = FolderWatcher(end.path, walk_of(end.path, links), listen=listen, emit=emit, shown=self.path)
        self._keeper = Keeper(
            end.path, self.watcher, self._upload, settle=settle, ignored=_left_to_others(request), emit=emit,
            shown=self.path,
        )  # fmt: skip
        self._stop = threading.Event()
        self._works = False
        self.thread = threading.Thread(target=self._run, name=f"blobsync keep {self.path}", daemon=True)

    def stop(self) -> None:
        """End it soon: what is on its way to the container is stopped cleanly."""
        self._stop.set()
        project = self._project
        if project is not None:
            project.stop()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                made = self._round()
                self._report(made)
                if self._until_idle and made.idle:
                    break
                self._keeper.wait(self._stop)
            self._report(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._report(error)
        finally:
            self.watcher.close()
            self._close()

    def _round(self) -> KeptRound:
        began, uploaded, size = time.monotonic(), self.uploaded, self.bytes
        made = self._keeper.round()
        cause = self._keeper.cause
        if made.problem and not self._works and cause is not None and cause.exit_code is ExitCode.USAGE:
            # A mistake that was there from the beginning: nobody has to wait for its end.
            raise cause
        # A round that had nothing to upload shows nothing: its files may still have to settle.
        self._works = self._works or bool(made.given and not made.problem)
        self.rounds += bool(made.given)
        return KeptRound(
            path=self.path,
            number=self.rounds,
            at=time.time(),
            uploaded=self.uploaded - uploaded,
            bytes=self.bytes - size,
            seconds=time.monotonic() - began,
            waiting=made.waiting,
            failures=made.failures,
            fresh=made.fresh,
            problem=made.problem,
            since=made.since,
            idle=made.idle,
        )

    def _request(self) -> Request:
        if self._project is None:
            self._project = self._open()
        return request_for(self._project.context, self._leg, _OPTIONS)

    def _close(self) -> None:
        """Close the project; the next round opens it again."""
        project, self._project = self._project, None
        if project is not None:
            project.close()

    def _upload(self, files: Files) -> Sequence[FileFailure]:
        """Carry out a round."""
        failed = True
        try:
            failures = self._uploaded(files)
            failed = any(each.code in EVERYWHERE for each in failures)
        finally:
            if failed:
                self._has_failed = True
                self._close()
        lead = f"{self.path}/"
        self._doubtful = (self._doubtful or set()) - files.keys() | {each.path.removeprefix(lead) for each in failures}
        return failures

    def _uploaded(self, files: Files) -> Sequence[FileFailure]:
        request = self._request()
        assert self._project is not None
        part = request.part
        if self._has_failed:
            assert isinstance(part.destination, OpenBlob)
            part.destination.store.head(_NO_BLOB)
            self._has_failed = False
        clashing = shape_conflicts(part, files, request.records)
        fitting = {path: state for path, state in files.items() if path not in clashing}
        planned = plan_round(part, fitting, request.records, _OPTIONS, self._emit, self._doubtful)
        partial = partial_uploads(part, planned.actions, self._project.context.journal)
        for warning in partial.warnings:
            self._emit(Note(warning))
        failures: list[FileFailure] = [*planned.misnamed, *clashing.values()]
        return [*failures, *self._carried_out(request, partial.actions)] if partial.actions else failures

    def _carried_out(self, request: Request, actions: Sequence[FileAction]) -> Sequence[FileFailure]:
        assert self._project is not None
        part = replace(request.part, actions=actions_of(actions))
        why = "a keeper uploads what changed, file by file"
        plan = direct_plan(self._project.context.cluster.name, [part], _OPTIONS, why)
        result = self._project.carry_out(plan)
        self.uploaded += result.transferred
        self.bytes += result.bytes_transferred
        # What a program removed meanwhile did not fail.
        assert isinstance(part.source, LocalLocation)
        lead, folder = f"{part.path}/", part.source.path
        failed = [each for each in result.failures if os.path.lexists(folder / each.path.removeprefix(lead))]
        return (*failed, *result.conflicts)


def _left_to_others(request: Request) -> Callable[[str], bool] | None:
    """Whether a path takes no part: the folder entry ignores it, or it belongs to another folder entry."""
    tests = [test for test in (request.ignored, request.apart) if test is not None]
    return (lambda path: any(test(path) for test in tests)) if tests else None


class Keeping:
    """The folders that one command keeps; ``record`` shows it to others, who may make ``stop``."""

    def __init__(
        self, folders: Sequence[KeptFolder], queue: SimpleQueue[Report], record: KeeperRecord, stop: StopRequest
    ) -> None:
        self._folders, self._queue, self._record, self._stop = folders, queue, record, stop
        self._last: dict[str, KeptRound] = {}
        self._began = time.monotonic()
        self._done = False

    def rounds(self) -> Iterator[KeptRound]:
        """Each round as it ends, until nothing changes any more. Raises what ended a folder's thread, and
        ``KeyboardInterrupt`` on a request to stop."""
        for folder in self._folders:
            folder.thread.start()
        left = len(self._folders)
        while left:
            self._stop.check()
            try:
                report = self._queue.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if isinstance(report, BaseException):
                raise report
            if report is None:
                left -= 1
                continue
            self._last[report.path] = report
            self._record.change(self._with_round)
            yield report
        self._done = True

    def __repr__(self) -> str:
        return f"<Keeping {' '.join(self.paths)}>"

    @property
    def paths(self) -> tuple[str, ...]:
        """The folders, from the project's root."""
        return tuple(folder.path for folder in self._folders)

    @property
    def result(self) -> KeepResult:
        """What was done so far."""
        last = self._last.values()
        return KeepResult(
            rounds=sum(folder.rounds for folder in self._folders),
            uploaded=sum(folder.uploaded for folder in self._folders),
            bytes=sum(folder.bytes for folder in self._folders),
            seconds=time.monotonic() - self._began,
            waiting=sum(each.waiting for each in last),
            failures=tuple(failure for each in last for failure in each.failures),
            problems=tuple(f"{each.path}: {each.problem}" for each in last if each.problem),
            idle=self._done,
        )

    def end(self) -> None:
        """Stop the folders' threads, and wait until they have stopped."""
        for folder in self._folders:
            folder.stop()
        for folder in self._folders:
            if folder.thread.is_alive():
                folder.thread.join()

    def cancelled(self) -> TransferCancelledError:
        """The error that says what was done until it was stopped."""
        result = self.result
        files = count_text(result.uploaded, "file")
        error = TransferCancelledError(
            f"stopped: {files} uploaded and verified in {count_text(result.rounds, 'round')}; "
            + (result.left or "no file was waiting"),
            hint="run the same command again: it goes on from here",
        )
        error.result = result
        return error

    def _with_round(self, state: KeeperState) -> KeeperState:
        """The state with the last round of each folder."""
        result, last = self.result, self._last.values()
        stuck = [each for each in last if each.problem]
        return replace(
            state,
            rounds=result.rounds,
            last_round=max(each.at for each in last),
            uploaded=result.uploaded,
            bytes=result.bytes,
            waiting=result.waiting,
            failing=len(result.failures),
            conflicts=sum(each.code is FailureCode.CONFLICT for each in result.failures),
            problem="; ".join(result.problems),
            problem_since=min((each.since for each in stuck), default=0.0),
            polling="; ".join(dict.fromkeys(each.watcher.why for each in self._folders if each.watcher.why)),
        )


@contextmanager
def keeping(
    chosen: Sequence[Leg],
    opened: Callable[[], Uploads],
    keepers: Keepers,
    emit: Emit,
    *,
    settle: float,
    until_idle: bool,
    known: Mapping[str, Any],
    stop: StopRequest,
) -> Iterator[Keeping]:
    """Be the keeper of these folders while the block runs.

    Raises ``UsageError`` if one of them has another keeper, and ``TransferCancelledError`` on Ctrl-C or a request to
    stop, wherever in the block it arrives.
    """
    state = keeper_state([leg.part.path for leg in chosen], list(map(root_of, chosen)), settle=settle, **known)
    queue: SimpleQueue[Report] = SimpleQueue()
    listen = installed_listener()
    if listen is None:
        emit(Note("watchfiles is not installed (pip install 'blobsync[keep]'), so folders are walked again and again"))
    with keepers.held(state, stop) as record:
        folders = [
            KeptFolder(leg, opened, emit, settle=settle, listen=listen, until_idle=until_idle, report=queue.put)
            for leg in chosen
        ]
        kept = Keeping(folders, queue, record, stop)
        try:
            yield kept
        except KeyboardInterrupt as pressed:
            kept.end()
            raise kept.cancelled() from pressed
        finally:
            kept.end()
