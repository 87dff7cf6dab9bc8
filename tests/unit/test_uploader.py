"""Uploads of a job while its command runs: what one folder meets is nothing to the others."""

from __future__ import annotations

import threading
from pathlib import Path

from blobsync.keep.keeper import Found, Keeper
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.job_stores import JobStores
from blobsync.node.uploader import Uploader
from tests.fakes.blob_service import serve
from tests.fakes.jobs import Node, make_spec
from tests.waiting import wait_until


class Faulty:
    """A watcher with a fault of its own."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self, *, anew: bool = False) -> Found:
        self.looks += 1
        raise TypeError("'int' object is not iterable")

    def wait(self, seconds: float, stop: threading.Event) -> None:
        raise AssertionError("nobody waits by it")

    def close(self) -> None:
        pass


def test_a_fault_in_one_folder_ends_no_upload_of_another(tmp_path: Path) -> None:
    with serve() as service:
        node = Node(tmp_path, service)
        spec = make_spec("true", folders=(node.folder_link("output", "upload"),), logs=node.mirror)
        words = node.command("node", spec, "--sync-seconds", "0.1")[3:]
        job = NodeJob(spec, {}, parse_arguments(words), {}, 0)
        places = JobStores({service.url: node.sas}, {})
        (job.root / "output").mkdir(parents=True)
        (job.root / "other").mkdir()
        faulty = Faulty()
        bad = Keeper(job.root / "other", faulty, lambda files: (), settle=0)
        uploader = Uploader(job, places, also=[bad])
        uploader.start()
        assert wait_until(lambda: faulty.looks > 2, seconds=60), "it is tried again"
        (job.root / "output" / "b").write_text("b")
        assert not uploader.stop(0), "the job's end has to tell"
        assert service.blobs["mine/output/b"] == b"b"
    said = [line for line in job.node_log.read_text().splitlines() if "fault" in line]
    assert [line.split("Z ", 1)[1] for line in said] == [
        "upload of other: a fault of blobsync: TypeError: 'int' object is not iterable; the next round tries again",
        "not uploaded: other: a fault of blobsync: TypeError: 'int' object is not iterable",
    ]


def test_a_file_of_a_checkpoint_that_another_job_has_marked_is_not_replaced(tmp_path: Path) -> None:
    with serve() as service:
        node = Node(tmp_path, service)
        service.put("mine/output/checkpoint-1/model.bin", b"theirs")
        service.put("mine/output/log.txt", b"theirs")
        service.put(".blobsync/checkpoints/mine%2Foutput/other/checkpoint-1.json", b"")
        spec = make_spec("true", folders=(node.folder_link("output", "upload"),))
        job = NodeJob(spec, {}, parse_arguments(node.command("node", spec)[3:]), {}, 0)
        (job.root / "output/checkpoint-1").mkdir(parents=True)
        for name in ("checkpoint-1/model.bin", "checkpoint-1/new.bin", "log.txt"):
            (job.root / "output" / name).write_text("ours")
        assert not Uploader(job, JobStores({service.url: node.sas}, {})).stop(0)
        assert service.blobs["mine/output/checkpoint-1/model.bin"] == b"theirs"
        assert service.blobs["mine/output/log.txt"] == service.blobs["mine/output/checkpoint-1/new.bin"] == b"ours"
    said = "is left alone: another job has marked the checkpoint checkpoint-1 in the container"
    assert f"output/checkpoint-1/model.bin {said}" in job.node_log.read_text()
