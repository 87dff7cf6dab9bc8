"""Small files: one thread moves them, and several only where the disk keeps one waiting."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from blobsync.base.file_states import LocalState
from blobsync.base.reasons import Reason
from blobsync.direct.crew import Crew
from blobsync.direct.lane import HANDS, Lane
from blobsync.direct.pool import RunState
from blobsync.direct.sent_blocks import BlockMemory
from blobsync.direct.upload import UploadJob
from blobsync.direct.width import Width
from blobsync.local.errors import ChangedWhileReadError
from blobsync.local.source_folder import SourceFolder
from blobsync.plan.listener import SilentListener
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, IndexKey, Part, Route
from blobsync.store.ends import LocalEnd, RemoteEnd
from blobsync.store.protocol import Orders
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordedRun, upload


class Slow(UploadJob):
    """A file on a disk that lets its reader wait."""

    seconds = 0.0
    threads: set[int]

    def open(self) -> int:
        time.sleep(self.seconds)
        self.threads.add(threading.get_ident())
        return super().open()


@pytest.mark.parametrize(("seconds", "several"), [(0.0, False), (0.01, True)], ids=["quick disk", "slow disk"])
def test_more_threads_work_only_where_the_disk_is_slow(tmp_path: Path, seconds: float, several: bool) -> None:
    files = {f"f{number}": f"{number}".encode() for number in range(120)}
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    store = MemoryStore()
    actions = tuple(
        FileAction(name, Action.TRANSFER, Reason.NEW, len(body), LocalState.of((tmp_path / name).stat()))
        for name, body in files.items()
    )
    key = IndexKey("data", "x", "")
    part: LivePart = Part("data", Route.UPLOAD, LocalEnd(tmp_path), RemoteEnd(store, "p"), key)
    report = CollectedReport()
    run = RunState(MoveTask(part, actions), report, SilentListener(), 1 << 20)
    threads: set[int] = set()

    def job(action: FileAction) -> Slow:
        memory = BlockMemory(None, lambda text: None)
        made = Slow(run, action, SourceFolder(tmp_path), store, f"p/{action.path}", 1 << 20, memory)
        made.seconds, made.threads = seconds, threads
        return made

    opened: list[Orders] = []

    def orders() -> Orders:
        made = store.orders()
        assert made is not None
        opened.append(made)
        return made

    lane = Lane(run, map(job, actions), orders, Width(32, 64))
    Crew(run.stop).work((lane, HANDS))
    assert {name.removeprefix("p/"): blob.body for name, blob in store.blobs.items()} == files
    assert sorted(moved.action.path for moved in report.moved) == sorted(files)
    assert (len(threads) > 1) is several
    assert len(opened) == len(threads)


@pytest.mark.parametrize("way", ["in the lane", "in the pool"])
def test_a_small_file_that_changed_after_it_was_read_is_not_sent(tmp_path: Path, way: str) -> None:
    file, store = tmp_path / "f", MemoryStore()
    file.write_bytes(b"first")
    task = upload(tmp_path, store, "p")
    run = RecordedRun(task, SilentListener(), 1 << 20)
    job = UploadJob(
        run, task.actions[0], SourceFolder(tmp_path), store, "p/f", 1 << 20, BlockMemory(None, lambda text: None)
    )
    assert job.open() == 1
    # In place, with the same size.
    with file.open("r+b") as opened:
        opened.write(b"other")
    os.utime(file, ns=(1, 1))
    with pytest.raises(ChangedWhileReadError):
        job.order() if way == "in the lane" else job.piece()
    job.release()
    assert not store.blobs and not store.asked("put")
