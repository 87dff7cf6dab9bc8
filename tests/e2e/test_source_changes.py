"""Objects outside Azure that change in the middle of their copy: one version or nothing, and the file is named.

A proxy holds a request for the object until the test has changed it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import cached_property

import pytest

from tests.e2e.sources import COPY, MIB, configure, fill
from tests.e2e.world import Container, Done, Project, hashes, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import S3Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

_SMALL = dict(random_files(33, 5))
_LARGE = "large.bin"
_BEFORE = b"what was there before"
_WAYS = {
    "direct": (*COPY, "--engine", "direct"),
    "relay": (*COPY, "--engine", "relay"),
    "download": ("-c", "laion", "d", "data"),
}
# Of two blocks for the service, which fetches 64 MiB at a time, and of several for this machine.
_SIZES = {"direct": 65 * MIB, "relay": 10 * MIB, "download": 18 * MIB}


class Copying:
    """Small objects and a large one, which another version of it has the name of at the destination.

    ``first``, ``second`` and ``third`` are versions of the large one; it is the first.
    """

    def __init__(
        self, way: str, project: Project, server: S3Server, bucket: str, faulty: FaultHandle, container: Container
    ) -> None:
        self.way, self._words = way, (*_WAYS[way], "--overwrite", "--json")
        self._project, self._server, self._bucket, self._faulty = project, server, bucket, faulty
        self._container = container
        self._versions = random_files(31, 0, [_SIZES[way]] * 3)
        fill(server, bucket, _SMALL)
        self.put(self.first)
        container.put(f"near/data/{_LARGE}", _BEFORE)
        write_tree(project.data, {_LARGE: _BEFORE})

    @cached_property
    def first(self) -> bytes:
        return self._versions["large0.bin"]

    @cached_property
    def second(self) -> bytes:
        return self._versions["large1.bin"]

    @cached_property
    def third(self) -> bytes:
        return self._versions["large2.bin"]

    def start(self) -> subprocess.Popen[str]:
        """Begin the copy; returns once bytes of the large object have moved, and others are asked for and held."""
        self._hold("get blob", first=2)
        process = self._project.start(*self._words)
        self._wait_for_the_middle()
        return process

    def to_the_next_try(self) -> None:
        """Go on, up to the same moment of the next try."""
        # Whoever asks for it anew has given up the version that was.
        self._hold("head blob", first=1)
        self._faulty.release()
        assert wait_until(self._faulty.is_holding, seconds=60)
        self._hold("get blob", first=2)
        self._faulty.release()
        self._wait_for_the_middle()

    def _wait_for_the_middle(self) -> None:
        # All but the first are held, and the first is over: moto answers 500 for what it is sending of an object that
        # is replaced.
        assert wait_until(lambda: self._faulty.is_holding() and self._faulty.stats().downloaded >= MIB, seconds=60)

    def _hold(self, operation: str, *, first: int) -> None:
        self._faulty.reset()
        numbers = tuple(range(first, 1000))
        self._faulty.inject(Fault("hold", at=numbers, operations=(operation,), pattern=_LARGE))

    def go_on(self) -> None:
        """Pass on what is held, and all that comes."""
        self._faulty.inject()
        self._faulty.release()

    def finish(self, process: subprocess.Popen[str]) -> Done:
        """Go on to the end."""
        self.go_on()
        return self._project.finish(process)

    def put(self, body: bytes) -> None:
        """Replace the large object."""
        # In parts, so that nothing but its version tells that the bytes are others.
        half = _SIZES[self.way] // 2
        parts = [body[:half], body[half:]]
        self._server.put_parts(self._bucket, f"far/data/{_LARGE}", parts)

    def remove(self) -> None:
        """Remove the large object."""
        self._server.client.delete_object(Bucket=self._bucket, Key=f"far/data/{_LARGE}")

    def keep_versions(self) -> None:
        """Have the bucket keep versions, also of the large object as it is."""
        self._server.client.put_bucket_versioning(Bucket=self._bucket, VersioningConfiguration={"Status": "Enabled"})
        self.put(self.first)

    def again(self) -> Done:
        """The same command, when nothing changes any more."""
        self._faulty.inject()
        return self._project.run(*self._words)

    def arrived(self) -> dict[str, str]:
        """What is at the destination now."""
        return read_tree(self._project.data) if self.way == "download" else self._container.contents("near/data/")


@pytest.fixture(params=["direct"])
def copying(
    project: Project, moto: S3Server, bucket: str, service: str, container: Container, request: pytest.FixtureRequest
) -> Iterator[Copying]:
    with fault_proxy(moto.url) as faulty, copy_source_proxy(service, outside=[faulty.url]) as proxy:
        configure(project, S3Server(faulty.url), bucket)
        project.configure(container, cluster="eu", url=proxy.url, sas=container.sas(), path="near/data")
        yield Copying(request.param, project, moto, bucket, faulty, container)


@pytest.mark.parametrize(
    "less", [pytest.param(0, id="replaced"), pytest.param(1, id="cut short", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(
    "copying", [pytest.param("direct", marks=pytest.mark.soak), "relay", "download"], indirect=True
)
def test_an_object_that_changes_in_the_middle_is_copied_once_more(copying: Copying, less: int) -> None:
    process, body = copying.start(), copying.second[: len(copying.second) - less]
    copying.put(body)
    done = copying.finish(process)
    assert done.code == 0 and done.data["verified"] == len(_SMALL) + 1, done
    assert f"{_LARGE} changed while it was being read; trying it again" in done.err, done
    assert ("relay" if copying.way == "relay" else "direct") == done.data["engine"]
    assert copying.arrived() == hashes({**_SMALL, _LARGE: body})


@pytest.mark.parametrize(
    "copying", [pytest.param("direct", marks=pytest.mark.soak), "relay", "download"], indirect=True
)
def test_an_object_that_changes_at_each_try_is_named_and_nothing_has_its_name(copying: Copying) -> None:
    process = copying.start()
    copying.put(copying.second)
    copying.to_the_next_try()
    copying.put(copying.third)
    done = copying.finish(process)
    assert done.code == 3 and done.data["verified"] == len(_SMALL), done
    assert (done.named(), done.codes) == ({f"data/{_LARGE}"}, {"changed_while_read"}), done
    assert copying.arrived() == hashes({**_SMALL, _LARGE: _BEFORE})
    last = copying.again()
    assert last.code == 0 and copying.arrived() == hashes({**_SMALL, _LARGE: copying.third}), last


@pytest.mark.parametrize(
    "copying", [*(pytest.param(way, marks=pytest.mark.soak) for way in ("direct", "relay")), "download"], indirect=True
)
def test_an_object_that_is_gone_in_the_middle_is_named(copying: Copying) -> None:
    process = copying.start()
    copying.remove()
    done = copying.finish(process)
    assert done.code == 3 and done.data["verified"] == len(_SMALL), done
    assert (done.named(), done.codes) == ({f"data/{_LARGE}"}, {"changed_while_read"}), done
    assert copying.arrived() == hashes({**_SMALL, _LARGE: _BEFORE})


@pytest.mark.soak
def test_an_object_that_becomes_shorter_than_what_is_asked_for_is_copied_once_more_or_named(copying: Copying) -> None:
    shorter = copying.second[: 60 * MIB]
    process = copying.start()
    copying.put(shorter)
    done = copying.finish(process)
    if done.code != 0:
        # The service found no such range before it found another version, and said that it cannot read the source.
        assert (done.code, done.named(), done.codes) == (3, {f"data/{_LARGE}"}, {"changed_while_read"}), done
        assert copying.arrived() == hashes({**_SMALL, _LARGE: _BEFORE})
        done = copying.again()
    assert done.code == 0 and copying.arrived() == hashes({**_SMALL, _LARGE: shorter}), done


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(Copying.remove, id="removed"),
        pytest.param(lambda copying: copying.put(copying.second), id="replaced", marks=pytest.mark.soak),
    ],
)
def test_the_service_fetches_the_version_of_the_plan_where_the_bucket_keeps_versions(
    copying: Copying, change: Callable[[Copying], None]
) -> None:
    copying.keep_versions()
    process = copying.start()
    change(copying)
    done = copying.finish(process)
    assert done.code == 0 and copying.arrived() == hashes({**_SMALL, _LARGE: copying.first}), done
