"""Bad networks and busy services: every run is complete, or names the failed files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.e2e.tally import Tally
from tests.e2e.world import (
    Container,
    Done,
    Project,
    check_exact_or_honest,
    hashes,
    random_files,
    read_tree,
    write_tree,
)
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy, weather

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

_SEED = int(os.environ.get("FAULTS_SEED", "20261121"))
_MIB = 1 << 20
_ATTEMPTS = 4


@pytest.fixture
def faulty(service: str) -> Iterator[FaultHandle]:
    with fault_proxy(service) as proxy:
        yield proxy


def _until_exact(run: Callable[[], Done], check: Callable[[Done], None], tally: Tally) -> int:
    """Repeat the command until it succeeds; each run must be complete or name the failed files."""
    for attempt in range(1, _ATTEMPTS + 1):
        done = run()
        check(done)
        tally.runs(exact=done.code == 0, honest=done.code != 0)
        if done.code == 0:
            return attempt
    raise AssertionError(f"not done after {_ATTEMPTS} runs\n{done}")


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_upload_in_bad_weather(
    engine: str,
    project: Project,
    container: Container,
    faulty: FaultHandle,
    tally: Tally,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = random_files(_SEED, 150, [30 * _MIB])
    write_tree(project.data, files)
    # A key's signature covers the length of the body: a cut body would be refused for that, not for its content.
    project.configure(container, url=faulty.url, sas=container.sas())
    # azcopy sends no checksum with a block: a flipped bit goes unnoticed over plain HTTP, and cannot occur over HTTPS.
    faulty.inject(*weather(flipped=0.03 if engine == "direct" else 0), seed=_SEED)
    _until_exact(
        lambda: project.json("u", "data", "--engine", engine),
        lambda done: check_exact_or_honest(done, hashes(files), container.contents("data/")),
        tally,
    )
    tally.faults(faulty.stats().injected)
    assert not set(container.names(uncommitted=True)) - set(container.names())


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_download_in_bad_weather(
    engine: str,
    project: Project,
    container: Container,
    faulty: FaultHandle,
    tally: Tally,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = random_files(_SEED + 1, 150, [30 * _MIB])
    for name, data in files.items():
        container.put(f"data/{name}", data)
    project.configure(container, url=faulty.url)
    faulty.inject(*weather(), seed=_SEED)
    _until_exact(
        lambda: project.json("d", "data", "--engine", engine),
        lambda done: check_exact_or_honest(done, hashes(files), read_tree(project.data)),
        tally,
    )
    tally.faults(faulty.stats().injected)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_copy_in_bad_weather(
    engine: str,
    project: Project,
    new_container: Callable[[str], Container],
    service: str,
    tally: Tally,
) -> None:
    source, destination = new_container("one"), new_container("two")
    files = random_files(_SEED + 2, 60, [30 * _MIB])
    for name, data in files.items():
        source.put(f"data/{name}", data)
    with copy_source_proxy(service) as copying, fault_proxy(copying.url, *weather(), seed=_SEED) as faulty:
        project.configure(source, cluster="from", url=faulty.url, sas=source.sas())
        project.configure(destination, url=faulty.url, sas=destination.sas())
        _until_exact(
            lambda: project.json("u", "data", "-f", "from", "--engine", engine),
            lambda done: check_exact_or_honest(done, hashes(files), destination.contents("data/")),
            tally,
        )
        tally.faults(faulty.stats().injected)


_UP = ("put blob", "put block", "put block list")
_SURVIVED = {
    "reset before the request": Fault("reset_before", at=(2, 5)),
    "reset after it took effect": Fault("reset_after", at=(3, 6)),
    "429": Fault("status", at=(2, 4), status=429),
    "500": Fault("status", at=(2, 4), status=500, retry_after=None),
    "503": Fault("status", at=(2, 4), status=503),
    "a stall": Fault("stall", at=(4,), seconds=1.5),
}
_SURVIVED_UP = {
    "reset in the body": Fault("reset_upload", at=(1, 4)),
    "a body cut short": Fault("truncate_upload", at=(1, 4)),
    "a flipped bit": Fault("flip_up", at=(1, 4)),
    "the commit's answer lost": Fault("reset_after", at=(1,), operations=("put block list",)),
}
_SURVIVED_DOWN = {
    "reset in the body": Fault("reset_download", at=(1, 4)),
    "a body cut short": Fault("truncate", at=(1, 4), operations=("get blob",)),
    "a body cut short that claims to be whole": Fault("truncate_lying", at=(1, 4)),
    "a flipped bit": Fault("flip_down", at=(1, 4)),
    "a listing cut short": Fault("truncate", at=(1,), operations=("list",)),
    "a drip": Fault("drip", at=(1,), seconds=2.0),
}


def _four(names: Sequence[str]) -> list[Any]:
    """Four of these faults; the soak has the others."""
    return [*names[:4], *(pytest.param(name, marks=pytest.mark.soak) for name in names[4:])]


@pytest.mark.parametrize("name", _four([*_SURVIVED_UP, *_SURVIVED]))
def test_one_fault_on_the_way_up_is_survived(
    name: str, project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 8, [17 * _MIB])
    write_tree(project.data, files)
    # A key's signature covers the length of the body: a cut body would be refused for that, not for its content.
    project.configure(container, url=faulty.url, sas=container.sas())
    faulty.inject({**_SURVIVED, **_SURVIVED_UP}[name])
    done = project.json("u", "data")
    injected = faulty.stats().injected
    assert injected
    assert done.code == 0, str(done)
    assert container.contents("data/") == hashes(files)
    tally.faults(injected)
    tally.runs(exact=1)


@pytest.mark.parametrize("name", _four([*_SURVIVED_DOWN, *_SURVIVED]))
def test_one_fault_on_the_way_down_is_survived(
    name: str, project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 8, [17 * _MIB])
    for path, data in files.items():
        container.put(f"data/{path}", data)
    project.configure(container, url=faulty.url)
    faulty.inject({**_SURVIVED, **_SURVIVED_DOWN}[name])
    done = project.json("d", "data")
    injected = faulty.stats().injected
    assert injected
    assert done.code == 0, str(done)
    assert read_tree(project.data) == hashes(files)
    tally.faults(injected)
    tally.runs(exact=1)


def test_the_lost_answer_to_a_copy_is_survived(
    project: Project, new_container: Callable[[str], Container], service: str, tally: Tally
) -> None:
    source, destination = new_container("one"), new_container("two")
    files = random_files(_SEED, 12)
    for name, data in files.items():
        source.put(f"data/{name}", data)
    fault = Fault("reset_after", at=(2, 5), operations=("put blob from url",))
    with copy_source_proxy(service) as copying, fault_proxy(copying.url, fault) as faulty:
        project.configure(source, cluster="from", url=faulty.url, sas=source.sas())
        project.configure(destination, url=faulty.url, sas=destination.sas())
        done = project.json("u", "data", "-f", "from", "--engine", "direct")
        tally.faults(faulty.stats().injected)
    assert (done.code, done.data["transferred"]) == (0, 12), str(done)
    assert destination.contents("data/") == hashes(files)
    tally.runs(exact=1)


@pytest.mark.parametrize("direction", ["u", "d"])
def test_damage_that_azcopy_gives_up_on_is_repaired(
    direction: str, with_azcopy: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 20)
    if direction == "u":
        write_tree(with_azcopy.data, files)
    else:
        for name, data in files.items():
            container.put(f"data/{name}", data)
    with_azcopy.configure(container, url=faulty.url)
    faulty.inject(Fault("flip_up", at=(2, 5)), Fault("flip_down", at=(2, 5)))
    done = with_azcopy.json(direction, "data", "--engine", "azcopy")
    assert done.code == 0, str(done)
    assert (container.contents("data/") if direction == "u" else read_tree(with_azcopy.data)) == hashes(files)
    tally.faults(faulty.stats().injected)
    tally.runs(exact=1)


def test_a_file_that_never_arrives_whole_is_named_and_the_rest_is_done(
    project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 12)
    for path, data in files.items():
        container.put(f"data/{path}", data or b"x")
    expected = hashes({path: data or b"x" for path, data in files.items()})
    project.configure(container, url=faulty.url)
    faulty.inject(Fault("flip_down", rate=1, pattern="f0003"), Fault("truncate_lying", rate=1, pattern="f0007"))
    done = project.json("d", "data")
    assert done.code == 3, str(done)
    assert done.named() == {"data/part0/f0003.bin", "data/part0/f0007.bin"}
    del expected["part0/f0003.bin"], expected["part0/f0007.bin"]
    assert read_tree(project.data) == expected
    tally.faults(faulty.stats().injected)
    tally.runs(honest=1)


@pytest.mark.soak
def test_a_service_that_stays_busy_is_said_to_be_busy(
    project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    write_tree(project.data, {"a.bin": b"a"})
    project.configure(container, url=faulty.url)
    faulty.inject(Fault("status", rate=1, status=503, retry_after=0))
    done = project.json("u", "data", seconds=100)
    assert done.code == 1, str(done)
    assert "service_busy" in done.codes
    assert container.names() == []
    tally.faults(faulty.stats().injected)
    tally.runs(honest=1)


@pytest.mark.parametrize(
    "url", ["https://no-such-host.invalid:10000", "https://{host}", "http://127.0.0.1:9"], ids=["DNS", "TLS", "refused"]
)
def test_a_service_that_cannot_be_reached_is_reported(
    url: str, project: Project, container: Container, service: str
) -> None:
    write_tree(project.data, {"a.bin": b"a"})
    project.configure(container, url=url.format(host=service.removeprefix("http://")))
    done = project.json("u", "data")
    assert done.code == 1, str(done)
    assert done.codes == {"storage_unreachable"}
    assert done.errors[0]["hint"]


def test_a_sas_that_expires_on_the_way_leaves_a_rest_that_is_named(
    project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 40, [9 * _MIB])
    write_tree(project.data, files)
    project.configure(container, url=faulty.url, sas=container.sas("rwl"))
    faulty.inject(Fault("expire", at=(20,)))
    done = project.json("u", "data", "--engine", "direct")
    assert done.code == 3, str(done)
    assert done.codes == {"sas_expired"}, str(done)
    check_exact_or_honest(done, hashes(files), container.contents("data/"))
    tally.faults(faulty.stats().injected)
    tally.runs(honest=1)
    project.configure(container, url=faulty.url, sas=container.sas("rwl", hours=3))
    again = project.json("u", "data", "--engine", "direct")
    assert again.code == 0, str(again)
    assert again.data["transferred"] < len(files)
    assert container.contents("data/") == hashes(files)


def test_a_minted_sas_that_expires_on_the_way_is_minted_again(
    with_azcopy: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    files = random_files(_SEED, 60, [9 * _MIB])
    write_tree(with_azcopy.data, files)
    with_azcopy.configure(container, url=faulty.url)
    faulty.inject(Fault("expire", at=(10,), operations=("put blob",)))
    done = with_azcopy.json("u", "data", "--engine", "azcopy")
    assert done.code == 0, str(done)
    assert container.contents("data/") == hashes(files)
    tally.faults(faulty.stats().injected)
    tally.runs(exact=1)


def test_a_clock_that_is_an_hour_off_is_reported(
    project: Project, container: Container, faulty: FaultHandle, tally: Tally
) -> None:
    write_tree(project.data, {"a.bin": b"a"})
    project.configure(container, url=faulty.url)
    faulty.inject(Fault("skew", rate=1, seconds=3600))
    done = project.json("u", "data")
    assert done.code in (1, 2), str(done)
    assert "clock" in done.errors[0]["message"].lower(), str(done)
    tally.faults(faulty.stats().injected)
    tally.runs(honest=1)
