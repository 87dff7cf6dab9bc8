"""3,000 objects and 4 GB in a bucket, with every kind of checksum: fetched by the service and through this machine,
with objects replaced, removed and cut short on the way, and a kill."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import moto, new_container, project, service  # noqa: F401 - fixtures
from tests.e2e.sources import configure, no_secret_in, receipt_of
from tests.e2e.world import Container, Project, kill_tree, wait_until
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.s3 import S3Server

FILES = int(os.environ.get("SOAK_SOURCE_FILES") or 3000)
BYTES = int(os.environ.get("SOAK_SOURCE_BYTES") or 4 << 30)
_LARGE = 16
_MIB = 1 << 20
_COPY = ("-c", "eu", "-f", "laion", "u", "data")
_SECONDS = 3600.0


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
        size, part = BYTES // _LARGE, random.Random(-number).randbytes(8 * _MIB)
        parts = [part] * max(1, size // len(part))
        name = f"large{number:02}.bin"
        if number % 2:
            server.put_parts(bucket, f"far/data/{name}", parts)
        else:
            server.put(bucket, f"far/data/{name}", b"".join(parts), ChecksumAlgorithm="CRC64NVME")
        digest = hashlib.sha256()
        for each in parts:
            digest.update(each)
        found[name] = digest.hexdigest()

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
    moto: S3Server,  # noqa: F811 - the fixture
    service: str,  # noqa: F811 - the fixture
    new_container: Callable[[str], Container],  # noqa: F811 - the fixture
) -> None:
    bucket, container = f"soak-{engine}", new_container("one")
    expected = _fill(moto, bucket)
    with copy_source_proxy(service, outside=[moto.url]) as copying:
        configure(project, moto, bucket)
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        process = project.start(*_COPY, "--engine", engine)
        assert wait_until(lambda: len(container.names()) > FILES // 10, seconds=600.0, pause=0.2)
        kill_tree(process.pid)
        process.communicate()
        process = project.start(*_COPY, "--engine", engine, "--json")
        time.sleep(2.0)
        # While it runs: one is replaced, one is removed, one is cut short.
        gone, cut, other = (f"part{FILES // 100 - 1:02}/f{FILES - back:04}.bin" for back in (1, 2, 3))
        moto.client.delete_object(Bucket=bucket, Key=f"far/data/{gone}")
        for name, body in ((cut, b"cut"), (other, b"another version")):
            moto.put(bucket, f"far/data/{name}", body)
            expected[name] = hashlib.sha256(body).hexdigest()
        first = project.finish(process, seconds=_SECONDS)
        assert first.code in (0, 3), first
        last = project.json(*_COPY, "--engine", engine, seconds=_SECONDS)
        assert last.code == 0, last
        found = _in_container(container)
        gone_body = expected.pop(gone)
        assert found.pop(gone, gone_body) == gone_body and found == expected
        if first.data["transferred"] and first.data["receipt"]:
            assert {each["compared_by"] for each in receipt_of(first).values()} >= {"crc64nvme", "nothing"}
        assert engine == "direct" or copying.stats().fetched == 0
        no_secret_in(project, first, last)
