"""Move tasks as the planner would make them, and a listener that records."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blobsync.base.errors import FileFailure
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Event,
    Expected,
    FilesDone,
    Listener,
    Note,
    UnderWay,
    WorkerMoved,
)
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.direct.thread_pool import RunState, Stopping, Written
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, IndexKey, Part, Route
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.protocol import BlobStore
from blobsync.transfer.engines import CollectedReport, Engine, Moved, MoveTask


class RecordingListener:
    """Adds up the events; ``on_bytes`` is called for bytes under way."""

    def __init__(self, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        self.bytes = self.reused = 0
        self.workers: dict[str, list[int]] = {}
        self.begun: list[tuple[int, str]] = []
        self.failures: dict[str, FileFailure] = {}
        self.moved: list[Moved] = []
        self.notes: list[str] = []
        self.expected: list[tuple[int, int]] = []
        self.events: list[Event] = []
        self._on_bytes = on_bytes
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            self._add(event)
        if isinstance(event, BytesMoved):
            self._on_bytes(event.size)

    @property
    def of_bytes(self) -> list[tuple[str, int]]:
        """Each event about bytes, which displays take as progress."""
        return [(type(each).__name__, each.size) for each in self.events if isinstance(each, (BytesMoved, BytesReused))]

    def _add(self, event: Event) -> None:
        match event:
            case BytesMoved(count):
                self.bytes += count
            case BytesReused(count):
                self.reused += count
            case WorkerMoved(worker, files, size):
                before = self.workers.get(worker, [0, 0])
                self.workers[worker] = [before[0] + files, before[1] + size]
            case UnderWay(files, path):
                self.begun.append((files, path))
            case FilesDone([path], failure) if failure is not None:
                self.failures[path] = failure
            case Note(text):
                self.notes.append(text)
            case Expected(files, size):
                self.expected.append((files, size))


def local_state(path: Path) -> LocalState | None:
    """State as the survey would see it."""
    return LocalState.of(os.stat(path)) if path.exists() else None


def remote_state(store: BlobStore, name: str) -> RemoteState | None:
    """State as the survey would see it."""
    info = store.head(name)
    return RemoteState(info.size, info.etag, info.md5, info.given_tier) if info else None


def action(path: str, source: FileState | None, destination: FileState | None) -> FileAction:
    """One file to be moved."""
    return FileAction(path, Action.TRANSFER, Reason.NEW, source.size if source else 0, source, destination)


def index_key(near: str, remote: str, path: str = "") -> IndexKey:
    """``path`` below two roots."""
    return IndexKey(LocalLocation(Path(near)), LocalLocation(Path(remote)), path)


def live_part(
    route: Route, source: OpenLocation, destination: OpenLocation, actions: Sequence[FileAction] = ()
) -> LivePart:
    """``data/x`` between these ends."""
    return Part("data/x", route, source, destination, index_key("data", "blobs", "x"), actions=tuple(actions))


def upload(root: Path, store: BlobStore, prefix: str, paths: Sequence[str] | None = None) -> MoveTask:
    """Everything below ``root``, or ``paths``, or the file ``root`` itself (``paths`` of one empty text)."""
    source, destination = LocalLocation(root), OpenBlob(store, prefix)
    if paths is None:
        paths = sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())
    actions = [action(path, local_state(source.at(path)), remote_state(store, destination.at(path))) for path in paths]
    return MoveTask(live_part(Route.UPLOAD, source, destination), actions, whole_folder=True)


def download(store: BlobStore, prefix: str, root: Path, paths: Sequence[str]) -> MoveTask:
    """Blobs to files."""
    source, destination = OpenBlob(store, prefix), LocalLocation(root)
    actions = [action(path, remote_state(store, source.at(path)), local_state(destination.at(path))) for path in paths]
    return MoveTask(live_part(Route.DOWNLOAD, source, destination), actions)


def copy(store: BlobStore, prefix: str, other: BlobStore, target: str, paths: Sequence[str]) -> MoveTask:
    """Blobs to blobs."""
    source, destination = OpenBlob(store, prefix), OpenBlob(other, target)
    actions = [
        action(path, remote_state(store, source.at(path)), remote_state(other, destination.at(path))) for path in paths
    ]
    return MoveTask(live_part(Route.CROSS_ACCOUNT, source, destination), actions)


def capped(task: MoveTask, mbps: float) -> MoveTask:
    """The same at a limited speed."""
    return task._replace(cap_mbps=mbps)


def moved_by(engine: Engine, task: MoveTask, listener: Listener | None = None) -> CollectedReport:
    """Report of an engine for a task."""
    report = CollectedReport()
    engine.move(task, report, listener or RecordingListener())
    return report


class RecordedRun(RunState):
    """A run whose report can be read. It records the waits, the buffers that were taken, and what is about to be
    written, which ``noting`` gets, too."""

    report: CollectedReport

    def __init__(self, task: MoveTask, listener: Listener, budget: int = 1 << 30) -> None:
        super().__init__(task, CollectedReport(), listener, budget)
        self.paced: list[int] = []
        self.buffers: list[int] = []
        self.noted: list[tuple[str, int, bytes | None]] = []
        self.noting: Callable[[int, bytes | None], None] = lambda size, md5: None

    def wait_for_rate(self, count: int) -> None:
        super().wait_for_rate(count)
        self.paced.append(count)

    def about_to_write(self, *files: Written) -> None:
        super().about_to_write(*files)
        for action, size, md5 in files:
            self.noted.append((action.path, size, md5))
            self.noting(size, md5)

    @contextmanager
    def buffer(self, count: int) -> Iterator[None]:
        with super().buffer(count):
            self.buffers.append(count)
            yield


class Woken(threading.Condition):
    """Who waits looks again only when somebody notifies it: after a minute at the earliest, not after a moment."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else 60.0)


class Looking(threading.Condition):
    """Remembers how long its waiters want to wait until they look again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout)
        return super().wait(timeout)

    @property
    def is_often(self) -> bool:
        return bool(self.asked) and all(each is not None and 0 < each <= 0.5 for each in self.asked)


def noticed_by(event: threading.Event) -> Stopping:
    """How one run of the direct engine is to stop: ``event`` is set when it has noticed that, and begins nothing more.

    It then waits for its threads as long as they take on a busy machine: nothing is left to them.
    """
    return Stopping(lambda: event, 60.0)


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """Interrupt the main thread like Ctrl-C, also while it waits."""
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
