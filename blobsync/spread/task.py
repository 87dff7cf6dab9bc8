"""One task of a spread transfer: reads its shard, carries it out, writes one record.

The same task run twice is harmless: every write has the plan's condition. A file that an earlier run of the task has
moved fails under that condition; where its content is that of the plan, it counts as moved.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import Event, Note
from blobsync.base.exit_codes import shell_code
from blobsync.base.formatting import count_text, size_text
from blobsync.base.locations import LocalLocation
from blobsync.base.records import NamedTuple, dataclass
from blobsync.local.files import WaitForDisk, wait_for_disk
from blobsync.local.os_errors import local_error
from blobsync.plan.project_context import LivePart, key_between
from blobsync.plan.transfer_plan import FileAction, Part
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import Answer, FileRecord, ShardDone, answer_line, read_answer, read_body, record_body
from blobsync.spread.shard import Shard, cut, listed_at, read_shard
from blobsync.spread.shared_store import SealedStore
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.url_list import UrlListStore
from blobsync.transfer.engines import CollectedReport, Engine, MoveTask
from blobsync.transfer.fresh_look import states_at_destination, written_before

# Seconds between two looks whether the process that started this one is still there.
_LOOK_SECONDS = 0.5
_CHUNK = 1 << 16
# A process that is killed takes what it knows with it; its files are tried once more.
_TIMES = 2


def task_name(number: int) -> str:
    """The name of a task's shard, and of its record."""
    return f"{number:07}"


class Ends(NamedTuple):
    """The two ends between which a task may move files; a shard names them as strings."""

    source: OpenLocation
    destination: OpenLocation


class Tools(NamedTuple):
    """What moves the files of a shard: the ends by their names, and the engine. Made anew in each process."""

    ends: Mapping[tuple[str, str], Ends]
    engine: Engine


@dataclass(slots=True)
class Task:
    """Task ``number`` of the run at ``place``. ``workers`` processes share it, each with its own ``tools`` and an equal
    part of ``cap_mbps``. ``log`` gets lines for the job's log. ``watch`` is called once when threads may begin,
    ``wait`` is :func:`blobsync.local.files.wait_for_disk`."""

    place: SealedStore
    number: int
    tools: Callable[[], Tools]
    log: Callable[[str], None]
    workers: int = 1
    cap_mbps: float | None = None
    watch: Callable[[], None] = lambda: None
    wait: WaitForDisk = wait_for_disk
    _answers: list[Answer] = field(default_factory=list)

    def run(self) -> bool:
        """Carry the shard out and write the record; returns whether that is complete. After Ctrl-C the record has what
        is known by then. Raises ``BlobsyncError`` without a shard that was sealed for it, and what the
        store raises."""
        name = f"records/{task_name(self.number)}"
        body = self.place.read(f"shards/{task_name(self.number)}")
        if body is None:
            said = f"{self.place.shown}shards/{task_name(self.number)} is not there as it was left: the task ends"
            raise BlobsyncError(said, code=FailureCode.NOT_REPORTED)
        shard = read_shard(body)
        if self._earlier(name, shard):
            self.log(f"task {self.number} is done already")
            return True
        try:
            for _ in range(_TIMES):
                if left := self._left(shard):
                    self._carry(replace_actions(shard, left))
        except KeyboardInterrupt:
            self.place.fail_soon()
            self._write(name, shard, [])
            raise
        is_done = not self._left(shard)
        self._write(name, shard, [ShardDone(shard.number)] if is_done else [])
        size = sum(each.size for each in shard.actions)
        failed = sum(isinstance(each, FileRecord) and each.failure is not None for each in self._answers)
        files = count_text(len(shard.actions), "file")
        self.log(f"task {self.number} of {shard.path}: {files}, {size_text(size)}, {failed:,} failed")
        return is_done

    def _earlier(self, name: str, shard: Shard) -> bool:
        """Take over what this task has recorded before it was stopped; returns whether that is all."""
        with suppress(FormatError):
            found = read_body(self.place.read(name) or b"", shard.route)
            self._answers = [each for each in found if isinstance(each, FileRecord) and each.failure is None]
            if any(isinstance(each, ShardDone) for each in found):
                return True
        return False

    def _left(self, shard: Shard) -> list[int]:
        """The positions of files without a record."""
        known = {each.path for each in self._answers if isinstance(each, FileRecord)}
        return [index for index, action in enumerate(shard.actions) if action.path not in known]

    def _write(self, name: str, shard: Shard, last: list[Answer]) -> None:
        """Write the record, of downloaded files when they are on the disk: no other machine can wait for what this one
        has in memory."""
        end = _ends_of(shard, self.tools()).destination
        if isinstance(end, LocalLocation):
            names = {each.path: each.target or each.path for each in shard.actions}
            moved = [each.path for each in self._answers if isinstance(each, FileRecord) and each.failure is None]
            for file, error in self.wait([str(end.at(names[path])) for path in moved]).items():
                self.log(f"{local_error(error, file)}: a power failure may take it")
        self.place.write(name, record_body([*self._answers, *last]))

    def _carry(self, shard: Shard) -> None:
        tools = self.tools()
        if self.workers == 1 or len(shard.actions) < 2:
            self.watch()
            collected = _Collected(shard, tools, self.cap_mbps)
            try:
                collected.work()
            finally:
                self._answers += collected.so_far()
            return
        positions = {action.path: index for index, action in enumerate(shard.actions)}
        share = self.cap_mbps / self.workers if self.cap_mbps else None
        pieces = [
            replace_actions(shard, [positions[action.path] for action in piece.actions])
            for piece in cut(part_of(shard, _ends_of(shard, tools)), shard.actions, self.workers, len(shard.actions))
        ]
        sys.stdout.flush()
        sys.stderr.flush()
        children = [_forked(piece, lambda piece: _Collected(piece, self.tools(), share)) for piece in pieces]
        self.watch()
        lines, stopped = _lines_of(children)
        for line in lines:
            # Ctrl-C may have cut one.
            with suppress(FormatError):
                self._answers.append(read_answer(line, shard.route))
        if stopped:
            raise KeyboardInterrupt


def replace_actions(shard: Shard, kept: Sequence[int]) -> Shard:
    """The shard with these of its files only, by their positions."""
    listed = tuple(shard.listed[index] for index in kept) if shard.listed else ()
    return replace(shard, actions=tuple(shard.actions[index] for index in kept), listed=listed)


def _ends_of(shard: Shard, tools: Tools) -> Ends:
    ends = tools.ends.get((shard.source, shard.destination))
    if ends is None:
        raise FormatError("the shard names other ends than the orders of this task")
    return ends


def part_of(shard: Shard, ends: Ends) -> LivePart:
    """The part of a shard's files, between these ends."""
    if isinstance(ends.source, OpenBlob) and isinstance(ends.source.store, UrlListStore):
        ends.source.store.set_files(listed_at(ends.source, shard))
    key = key_between(ends.source, ends.destination)
    return Part(shard.path, shard.route, ends.source, ends.destination, key, actions=shard.actions)


class _Collected:
    """Carries a shard out in this process, and collects what became of each file."""

    def __init__(self, shard: Shard, tools: Tools, cap_mbps: float | None) -> None:
        self._part = part_of(shard, _ends_of(shard, tools))
        self._task = MoveTask(self._part, shard.actions, cap_mbps=cap_mbps)
        self._engine = tools.engine
        self._report, self._notes, self._settled = CollectedReport(), list[Answer](), list[Answer]()

    def work(self) -> None:
        """Move the files."""
        if self._task.actions:
            self._engine.move(self._task, self._report, self)
        for action, failure in self._report.failed:
            if failure.code is FailureCode.CHANGED_MEANWHILE:
                self._settled.append(self._record_of(action, failure))

    def so_far(self) -> list[Answer]:
        """What is known by now; nothing of files that somebody has written meanwhile, until it is known who."""
        moved, failed = list(self._report.moved), list(self._report.failed)
        known = (each for each in failed if each[1].code is not FailureCode.CHANGED_MEANWHILE)
        failures = (FileRecord(action.path, failure=failure) for action, failure in known)
        return [*self._notes, *map(FileRecord.of, moved), *failures, *self._settled]

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._notes.append(event)

    def _record_of(self, action: FileAction, failure: FileFailure) -> FileRecord:
        """A file that somebody has written meanwhile: an earlier run of this task, if it has the plan's content."""
        moved = None
        with suppress(BlobsyncError):
            moved = written_before(self._part, action)
        if moved is None:
            return FileRecord(action.path, failure=failure)
        there = states_at_destination(self._part.destination, [moved], lambda event: None).get(action.path)
        return FileRecord.of(moved._replace(destination=there))


def _forked(piece: Shard, carry: Callable[[Shard], _Collected]) -> tuple[int, int]:
    """Start a process for a piece; returns its ID and the pipe for its record. It is forked, so that it begins at once:
    this process has no threads yet."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        end_with_parent(parent)
        _be_child(writer, piece, carry)
    os.close(writer)
    return pid, reader


def _lines_of(children: Sequence[tuple[int, int]]) -> tuple[list[str], bool]:
    """The lines of their records when all have ended, and whether Ctrl-C has stopped them."""
    bodies, stopped = list[bytes](), False
    # Each writes at its end, and waits until it is read.
    for _, reader in children:
        body, is_whole = b"", False
        while not is_whole:
            try:
                data = os.read(reader, _CHUNK)
                body += data
                is_whole = not data
            except KeyboardInterrupt:
                stopped = True
                for pid, _ in children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGINT)
        os.close(reader)
        bodies.append(body)
    for pid, _ in children:
        os.waitpid(pid, 0)
    return [line for body in bodies for line in body.decode().splitlines()], stopped


def _be_child(writer: int, piece: Shard, carry: Callable[[Shard], _Collected]) -> None:
    """The whole life of a forked process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code, collected = 1, None
    try:
        collected = carry(piece)
        collected.work()
        code = 0
    except KeyboardInterrupt:
        code = shell_code(-signal.SIGTERM)
    except BaseException:  # noqa: BLE001 - in the log; its files have no record
        traceback.print_exc()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        body = "".join(f"{answer_line(each)}\n" for each in (collected.so_far() if collected else ())).encode()
        while body:
            body = body[os.write(writer, body) :]
    # Threads that wait for the network must not keep the process alive.
    os._exit(code)


def end_with_parent(parent: int) -> None:
    """Interrupt this process, as Ctrl-C does, when the process that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
