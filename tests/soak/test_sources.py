"""3,000 objects and 4 GB in a bucket, with every kind of checksum: fetched by the service and through this machine,
with objects replaced, removed and cut short on the way, and a kill."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from azure.core.exceptions import ResourceNotFoundError

from tests.e2e.conftest import new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.sources import COPY, configure, no_secret_in, receipt_of
from tests.e2e.world import Container, Project, kill_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import S3Server
from tests.waiting import wait_until

FILES = int(os.environ.get("SOAK_SOURCE_FILES") or 3000)
BYTES = int(os.environ.get("SOAK_SOURCE_BYTES") or 4 << 30)
_LARGE = 16
_MIB = 1 << 20
_PART = 8 * _MIB
# Objects that change in the middle of their copy, of three blocks for the service and of 40 for a relay.
_CHANGING = 160 * _MIB
# Which request for one of them is held, and how many blocks have arrived by then. A service asks for all three blocks
# at once. A relay of eight threads that asks for the tenth block has moved two.
_HELD, _ARRIVED = {"direct": 2, "relay": 10}, 2
_NAMES = ("replaced.bin", "cut.bin", "gone.bin")
_SECONDS = 3600.0


def _parts(seed: str, size: int) -> list[bytes]:
    """``size`` bytes in parts, no two of them equal: exchanged ones have to show."""
    starts = range(0, max(1, size), _PART)
    return [random.Random(f"{seed}/{start}").randbytes(min(_PART, size - start)) for start in starts]


def _fill(server: S3Server, bucket: str) -> dict[str, str]:
    """Small objects of every kind and a few large ones; returns their SHA-256."""
    server.make_bucket(bucket)
    kinds: tuple[dict[str, str], ...] = (
        {},
        {"ChecksumAlgorithm": "CRC64NVME"},
        *({"ChecksumAlgorithm": kind} for kind in ("SHA256", "SHA1", "CRC32", "CRC32C")),
        {"ServerSideEncryption": "aws:kms"},
    )
    found: dict[str, str] = {}

    def small(number: int) -> None:
        chance = random.Random(number)
        body = chance.randbytes(chance.choice((0, 1, 700, 4096, 20_000)))
        name = f"part{number // 100:02}/f{number:04}.bin"
        server.put(bucket, f"far/data/{name}", body, **kinds[number % len(kinds)])
        found[name] = hashlib.sha256(body).hexdigest()

    def large(number: int) -> None:
        name, parts = f"large{number:02}.bin", _parts(f"{number}", BYTES // _LARGE)
        if number % 2:
            server.put_parts(bucket, f"far/data/{name}", parts)
        else:
            server.put(bucket, f"far/data/{name}", b"".join(parts), ChecksumAlgorithm="CRC64NVME")
        found[name] = hashlib.sha256(b"".join(parts)).hexdigest()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(small, range(FILES)))
    for number in range(_LARGE):
        large(number)
    return found


def _in_container(container: Container) -> dict[str, str]:
    def of_one(name: str) -> tuple[str, str]:
        digest = hashlib.sha256()
        for piece in container.blob(name).download_blob().chunks():
            digest.update(piece)
        return name.removeprefix("near/data/"), digest.hexdigest()

    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(of_one, container.names()))


@pytest.mark.soak
@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_many_objects_and_large_ones(
    engine: str,
    project: Project,  # noqa: F811 - the fixture
    moto: S3Server,
    service: str,  # noqa: F811 - the fixture
    new_container: Callable[[str], Container],  # noqa: F811 - the fixture
) -> None:
    bucket, container = f"soak-{engine}", new_container("one")
    expected = _fill(moto, bucket)
    with fault_proxy(moto.url) as faulty, copy_source_proxy(service, outside=[faulty.url]) as copying:
        configure(project, S3Server(faulty.url), bucket)
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        process = project.start(*COPY, "--engine", engine)
        assert wait_until(lambda: len(container.names()) > FILES // 10, seconds=600.0, pause=0.2)
        kill_tree(process.pid)
        process.communicate()
        for name in _NAMES:
            moto.put_parts(bucket, f"far/data/{name}", _parts(name, _CHANGING))
        faulty.inject(
            *(Fault("hold", at=(_HELD[engine],), operations=("get blob",), pattern=f"data/{name}") for name in _NAMES)
        )
        process = project.start(*COPY, "--engine", engine, "--json")
        # The threads of a relay all wait for the block that is held: so there it is one object after the other.
        together = len(_NAMES) if engine == "direct" else 1
        left = set(_NAMES)
        while left:
            held = len(_NAMES) - len(left) + together
            assert wait_until(partial(_are_held, faulty, held), seconds=_SECONDS / 4, pause=0.5)
            # They are half there, and lack a block that is not sent yet.
            assert wait_until(lambda: len(_half_there(container, left)) == together, seconds=300.0, pause=0.5)
            for name in _half_there(container, left):
                left.remove(name)
                _change(moto, bucket, name, expected)
            faulty.release()
        first = project.finish(process, seconds=_SECONDS)
        # The new versions are copied in a second try. What is gone has none: it is named, and everything else is there.
        assert first.code == 3 and first.named() == {"data/gone.bin"}, first
        assert first.codes == {"changed_while_read"}, first
        assert _in_container(container) == expected
        assert {each["compared_by"] for each in receipt_of(first).values()} >= {"crc64nvme", "md5", "nothing"}
        last = project.json(*COPY, "--engine", engine, seconds=_SECONDS)
        assert last.code == 0 and last.data["transferred"] == 0, last
        assert engine == "direct" or copying.stats().fetched == 0
        no_secret_in(project, first, last)


def _are_held(faulty: FaultHandle, count: int) -> bool:
    return faulty.stats().injected.get("hold") == count


def _half_there(container: Container, names: Collection[str]) -> list[str]:
    """Those of the blobs that are not there yet, of which blocks have arrived."""

    def arrived(name: str) -> int:
        with suppress(ResourceNotFoundError):
            return len(container.blob(f"near/data/{name}").get_block_list("uncommitted")[1])
        return 0

    return [name for name in names if arrived(name) >= _ARRIVED]


def _change(server: S3Server, bucket: str, name: str, expected: dict[str, str]) -> None:
    """Replace, cut or remove the object of this name."""
    if name == "gone.bin":
        server.client.delete_object(Bucket=bucket, Key=f"far/data/{name}")
        return
    parts = _parts(name, _CHANGING - 1) if name == "cut.bin" else _parts("another version", _CHANGING)
    server.put_parts(bucket, f"far/data/{name}", parts)
    expected[name] = hashlib.sha256(b"".join(parts)).hexdigest()
