"""CPU time of the seals of a transfer: ``python -m benchmarks.seals [--files 20000] [--workers 4] [--rounds 3]``.

An upload of files of 16 KiB to the fast server, the parent and all workers in this process, over a folder. The CPU time
of the seals is measured around each one; that of the transfer is the whole process's, without what prepares it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

from benchmarks.emulator import ACCOUNT, KEY, Emulator
from benchmarks.fast_server import fast_server
from benchmarks.trees import Tree
from blobsync.base.events import SilentListener
from blobsync.base.file_states import LocalState
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.reasons import Reason
from blobsync.base.redaction import Secret
from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, IndexKey, Part, Route
from blobsync.spread.sealed_store import Keys, SealedStore, parent_keys, worker_keys
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings
from blobsync.spread.shared_store import FolderStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.open_locations import OpenBlob
from blobsync.store.rest.auth import SharedKeySigner
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.store import RestBlobStore
from blobsync.transfer.engines import CollectedReport, MoveTask

_SIZE = 16 * 1024
_RUN = SealKey(bytes(range(32)))


class _Spent:
    """CPU time of all threads, in nanoseconds, and how many seals."""

    def __init__(self) -> None:
        self.ns = self.seals = 0
        self._lock = threading.Lock()

    def add(self, since: int) -> None:
        with self._lock:
            self.ns += time.thread_time_ns() - since
            self.seals += 1


class _TimedKey(SealKey):
    """A key whose seals are timed."""

    __slots__ = ()
    spent = _Spent()

    def seal(self, kind: str, place: str, name: str, body: bytes) -> bytes:
        began = time.thread_time_ns()
        try:
            return super().seal(kind, place, name, body)
        finally:
            self.spent.add(began)

    def opened(self, kind: str, place: str, name: str, document: bytes) -> bytes | None:
        began = time.thread_time_ns()
        try:
            return super().opened(kind, place, name, document)
        finally:
            self.spent.add(began)


def _timed(keys: Keys) -> Keys:
    def own(writer: str) -> SealKey | None:
        found = keys.own(writer)
        return _TimedKey(found.secret) if found is not None else None

    return Keys(_TimedKey(keys.shared.secret), own)


class _Workers:
    """Runs the workers in threads of this process."""

    def __init__(self, root: Path, task: MoveTask, count: int, parent: SealedStore) -> None:
        self._root, self._task, self._count, self._parent = root, task, count, parent
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._parent.write("alive", b"1")
        self._threads = [threading.Thread(target=self._hauler(number).work) for number in range(self._count)]
        for thread in self._threads:
            thread.start()

    def ended(self) -> str | None:
        return None

    def stop(self) -> None:
        """They end with their parent."""

    def join(self) -> None:
        self._parent.write("alive", b"")
        for thread in self._threads:
            thread.join()

    def _hauler(self, number: int) -> ShardWorker:
        part, name = self._task.part, f"node{number}.0"
        place = SealedStore(FolderStore(self._root), _timed(worker_keys(_RUN, name)), "run", lambda text: None)
        ends = Ends(part.source, part.destination)
        settings = ShardWorkerSettings(name, number, str(uuid.UUID(int=number)))
        key = str(ends.source), str(ends.destination)
        return ShardWorker(place, {key: ends}, DirectEngine(), settings, lambda: None, lambda text: None)


def _round(root: Path, place: Path, server: Emulator, workers: int) -> tuple[float, float]:
    """CPU seconds of the seals, and of the whole."""
    url = BlobContainer(ACCOUNT, server.new_container(), f"{server.url}/{ACCOUNT}")
    store = RestBlobStore(url, BlobHttp(url, SharedKeySigner(ACCOUNT, Secret(KEY)), environ={}))
    actions = tuple(
        FileAction(str(file.relative_to(root)), Action.TRANSFER, Reason.NEW, _SIZE, LocalState.of(file.stat()))
        for file in sorted(root.rglob("*"))
        if file.is_file()
    )
    key = IndexKey(LocalLocation(Path("data")), url.child("data"), "")
    part: LivePart = Part("data", Route.UPLOAD, LocalLocation(root, (root,)), OpenBlob(store, "data"), key)
    task, report = MoveTask(part, actions), CollectedReport()
    parent = SealedStore(FolderStore(place), _timed(parent_keys(_RUN)), "run", print, session="one")
    workforce = _Workers(place, task, workers, parent)
    seals, whole = _TimedKey.spent.ns, time.process_time()
    SpreadEngine(DirectEngine(), parent, workforce, workers, poll=0.2).move(task, report, SilentListener())
    workforce.join()
    found = (_TimedKey.spent.ns - seals) / 1e9, time.process_time() - whole
    if len(report.moved) != len(actions):
        raise SystemExit(f"{len(report.moved):,} of {len(actions):,} files moved")
    return found


def main(argv: list[str]) -> None:
    options = _parse(argv)
    with tempfile.TemporaryDirectory() as folder, fast_server() as server:
        scratch = Path(folder)
        root = scratch / "data"
        Tree(options.files, _SIZE).make(root)
        found = [_round(root, scratch / f"place{number}", server, options.workers) for number in range(options.rounds)]
    seals, whole = (statistics.median(each) for each in zip(*found, strict=True))
    print(f"{options.files:,} files of 16 KiB, {options.workers} workers, medians of {options.rounds} rounds")
    print(f"  seals: {seals * 1e3:.1f} ms of CPU, {_TimedKey.spent.seals // options.rounds:,} of them")
    print(f"  the transfer: {whole:.2f} s of CPU; seals are {seals / whole:.2%} of it")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seals")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
