"""Large uploads to services that check the CRC64 of a block, ignore it or refuse it, over lines that damage bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest

from benchmarks.emulator import ACCOUNT, KEY
from benchmarks.fast_server import Crc64Mode, fast_server
from tests.conftest import TOOLS
from tests.e2e.world import Container, Project
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

_MIB = 1 << 20
# Nine blocks of 2 MiB.
_BIG = b"".join(hashlib.sha256(bytes([number])).digest() * (_MIB // 32) for number in range(17))
_BLOCKS = 9


@pytest.fixture(autouse=True)
def package() -> None:
    pytest.importorskip("anycrc", reason="without it every block has an MD5")


@pytest.fixture
def container(request: pytest.FixtureRequest) -> Iterator[Container]:
    """In a service of the mode that the test names, or in Azurite."""
    mode: Crc64Mode | Literal["azurite"] = request.param
    if mode == "azurite":
        yield request.getfixturevalue("new_container")()
        return
    with fast_server(tools=TOOLS, crc64=mode) as server:
        yield Container(server.url, ACCOUNT, KEY, server.new_container())


@pytest.fixture
def line(project: Project, container: Container) -> Iterator[FaultHandle]:
    """The way from the project to the server."""
    with fault_proxy(container.service) as proxy:
        project.configure(container, url=proxy.url)
        project.data.mkdir()
        (project.data / "big").write_bytes(_BIG)
        yield proxy


def _puts(line: FaultHandle) -> Counter[tuple[str, int]]:
    """How many blocks were sent with each check and answered with each status."""
    return Counter((entry.check, entry.status) for entry in line.journal() if entry.operation == "put block")


def _put(line: FaultHandle) -> int:
    """The number of blocks that the service has taken."""
    return sum(count for (_, status), count in _puts(line).items() if status == 201)


@pytest.mark.parametrize("container", ["check"], indirect=True)
def test_a_service_that_checks_it_gets_the_crc64(project: Project, container: Container, line: FaultHandle) -> None:
    done = project.json("u", "data")
    assert done.code == 0, str(done)
    assert _puts(line) == {("CRC64", 201): _BLOCKS}
    assert container.get("data/big") == _BIG


@pytest.mark.parametrize(
    ("container", "answered"),
    [("ignore", 201), ("refuse", 500), ("azurite", None)],
    indirect=["container"],
)
def test_any_other_service_gets_every_block_with_an_md5(
    project: Project, container: Container, line: FaultHandle, answered: int | None
) -> None:
    done = project.json("u", "data")
    assert done.code == 0, str(done)
    puts = _puts(line)
    # Azurite says who it is; of another, those that were on their way at the first answer had a CRC64 before: on a slow
    # machine all.
    with_crc64 = puts.pop(("CRC64", answered), 0) if answered else 0
    assert puts == {("MD5", 201): _BLOCKS} and (0 < with_crc64 <= _BLOCKS if answered else not with_crc64)
    assert container.get("data/big") == _BIG


@pytest.mark.parametrize(
    "at",
    [pytest.param((2, 3), id="two")]
    + [pytest.param((at,), id=name, marks=pytest.mark.soak) for at, name in ((1, "the first"), (9, "the last"))],
)
@pytest.mark.parametrize("container", ["check", "ignore", "refuse", "azurite"], indirect=True)
def test_a_damaged_block_is_never_part_of_a_blob(
    project: Project, container: Container, line: FaultHandle, at: tuple[int, ...]
) -> None:
    line.inject(Fault("flip_up", at=at, operations=("put block",)))
    done = project.json("u", "data")
    assert done.code == 0, str(done)
    assert line.stats().injected == {"flip_up": len(at)}
    assert container.get("data/big") == _BIG
    assert container.blob("data/big").get_blob_properties().content_settings.content_md5 == bytearray(
        hashlib.md5(_BIG).digest()
    )


@pytest.mark.parametrize("container", ["check"], indirect=True)
def test_blocks_with_a_crc64_are_sent_again_after_an_outage_and_kept_for_the_next_run(
    project: Project, container: Container, line: FaultHandle
) -> None:
    line.inject(
        Fault("reset_upload", at=(2,), operations=("put block",)),
        Fault("reset_after", at=(4,), operations=("put block",)),
        Fault("status", status=403, at=(7,), operations=("put block",)),
    )
    failed = project.json("u", "data")
    assert failed.code == 1 and failed.named() == {"data/big"}, str(failed)
    kept = _put(line)
    assert kept >= 2
    line.inject()
    line.reset()
    done = project.json("u", "data")
    assert done.code == 0, str(done)
    assert _put(line) <= _BLOCKS - kept
    assert container.get("data/big") == _BIG


@pytest.mark.parametrize("container", ["check"], indirect=True)
def test_of_a_changed_file_the_changed_blocks_alone_are_sent(
    project: Project, container: Container, line: FaultHandle
) -> None:
    assert project.json("u", "data").code == 0
    changed = _BIG[: 5 * _MIB] + b"x" + _BIG[5 * _MIB + 1 :]
    (project.data / "big").write_bytes(changed)
    line.reset()
    done = project.json("u", "data")
    assert done.code == 0, str(done)
    assert _puts(line) == {("CRC64", 201): 1}
    assert container.get("data/big") == changed
