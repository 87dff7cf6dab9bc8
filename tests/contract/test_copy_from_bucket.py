"""Objects of a bucket that the service fetches in many blocks: their CRC64s, as a server answers them, are compared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from azure.storage.blob import BlobClient

from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess
from blobsync.direct.copy_from_source import CopyFromSourceJob
from blobsync.direct.thread_pool import MIB, WorkerPool
from blobsync.direct.upload import BlockSizes
from blobsync.store.connect import connect
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobStore
from blobsync.store.s3 import open_bucket
from blobsync.transfer.engines import NOTHING_COMPARED, CollectedReport
from tests.conftest import Azurite
from tests.contract.test_blob_store import new_account, with_sas
from tests.fakes.tasks import RecordedRun, RecordingListener, copy
from tests.servers.copy_source_proxy import CopySourceHandle, copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import KEYS, S3Server, rclone_web_server

# No two blocks are equal, so that exchanged ones show.
BODY = random.Random(61).randbytes(6 * MIB + 5)
BLOCKS = BlockSizes(single=400, block=MIB)


@dataclass(frozen=True)
class Place:
    """A bucket behind a line that a test damages, a container behind a service that fetches, and the blob past both."""

    faulty: FaultHandle
    copying: CopySourceHandle
    source: BlobStore
    destination: BlobStore
    account: StorageAccount
    blob: BlobClient

    def move(self, blocks: BlockSizes = BLOCKS) -> CollectedReport:
        """Copy the object with four threads."""
        task = copy(self.source, "p", self.destination, "q", ["a"])
        run = RecordedRun(task, RecordingListener(), 1 << 30)
        ends = OpenBlob(self.source, "p"), OpenBlob(self.destination, "q")
        WorkerPool(run, [CopyFromSourceJob(run, task.actions[0], *ends, comparing=False, sizes=blocks)], 4).work()
        return run.report


@pytest.fixture
def place(azurite: Azurite, moto: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as held:
        faulty = held.enter_context(fault_proxy(moto.url))
        copying = held.enter_context(copy_source_proxy(azurite.url, outside=[faulty.url]))
        moto.put(bucket, "p/a", BODY, ChecksumAlgorithm="CRC64NVME")
        account = new_account(azurite)
        blob = BlobClient(account.blob_endpoint, account.container_name, "q/a", credential=azurite.keys["one"])
        through = with_sas(account, "rwdl")._replace(blob_endpoint=f"{copying.url}/one")
        access = BucketAccess(region="us-east-1", by_hand=True)
        laion = StorageAccount("laion.yaml", "", bucket, faulty.url, bucket=access)
        source, destination = open_bucket(laion, {"HOME": "/nonexistent"}), connect(through, environ={})
        held.callback(source.close)
        held.callback(destination.close)
        yield Place(faulty, copying, source, destination, through, blob)


def test_the_crc64s_of_many_blocks_are_the_objects_own(place: Place) -> None:
    report = place.move()
    assert not report.failed and [each.compared_by for each in report.moved] == ["crc64nvme"], report
    assert place.blob.download_blob().readall() == BODY
    committed, _ = place.blob.get_block_list("committed")
    assert [block.size for block in committed] == [MIB] * 6 + [5]
    assert place.copying.stats().fetched == len(BODY), "each block once"


@pytest.mark.parametrize("kind", ["flip_down", "truncate_lying"])
def test_one_damaged_block_of_many_is_a_failure_and_there_is_no_blob(place: Place, kind: str) -> None:
    place.faulty.inject(Fault(kind, at=(3, 10, 17, 24), operations=("get blob",), pattern="p/a"))
    report = place.move()
    assert not report.moved and [failure.code for _, failure in report.failed] == ["checksum_mismatch"], report
    assert not place.blob.exists()
    # The same once: the next try brings the right bytes.
    place.faulty.inject(Fault(kind, at=(3,), operations=("get blob",), pattern="p/a"))
    report = place.move()
    assert [each.compared_by for each in report.moved] == ["crc64nvme"], report
    assert place.blob.download_blob().readall() == BODY


def test_exchanged_blocks_are_a_failure_and_there_is_no_blob(
    place: Place, azurite: Azurite, bucket: str, tmp_path: Path
) -> None:
    exchanged = BODY[MIB : 2 * MIB] + BODY[:MIB] + BODY[2 * MIB :]
    file = tmp_path / bucket / "p/a"
    file.parent.mkdir(parents=True)
    file.write_bytes(exchanged)
    with rclone_web_server(tmp_path) as other:
        # The bucket says what it has, and the service is given something else.
        with copy_source_proxy(azurite.url, outside=[f"{place.faulty.url}={other}"]) as exchanging:
            there = connect(place.account._replace(blob_endpoint=f"{exchanging.url}/one"), environ={})
            report = replace(place, destination=there).move()
            there.close()
    assert not report.moved and [failure.code for _, failure in report.failed] == ["checksum_mismatch"], report
    assert not place.blob.exists()


def test_a_service_that_tells_no_crc64s_leaves_the_object_not_compared(place: Place) -> None:
    place.copying.tell_crc64(tells=False)
    report = place.move()
    assert [each.compared_by for each in report.moved] == [NOTHING_COMPARED], report
