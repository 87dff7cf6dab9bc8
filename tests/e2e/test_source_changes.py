"""Objects outside Azure that change in the middle of their copy: one version or nothing, and the file is named.

A proxy holds a request for the object until the test has changed it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.sources import COPY, MIB, configure, fill
from tests.e2e.world import Container, Done, Project, hashes, random_files, read_tree, wait_until, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.e2e

_SMALL = dict(random_files(33, 5))
_LARGE = "large.bin"
# Of two blocks for the service, which fetches 64 MiB at a time.
_FIRST, _SECOND, _THIRD = random_files(31, 0, [70 * MIB] * 3).values()
_BEFORE = b"what was there before"
_WAYS = {
    "direct": (*COPY, "--engine", "direct"),
    "relay": (*COPY, "--engine", "relay"),
    "download": ("-c", "laion", "d", "data"),
}


class Copying:
    """Small objects and a large one, which another version of it has the name of at the destination."""

    def __init__(
        self, project: Project, server: S3Server, bucket: str, faulty: FaultHandle, container: Container
    ) -> None:
        self._project, self._server, self._bucket, self._faulty = project, server, bucket, faulty
        self._container = container
        fill(server, bucket, _SMALL)
        self.put(_FIRST)
        container.put(f"near/data/{_LARGE}", _BEFORE)
        write_tree(project.data, {_LARGE: _BEFORE})

    def start(self, way: str) -> subprocess.Popen[str]:
        """Begin the copy; returns once bytes of the large object have moved, and others are asked for and held."""
        self._hold("get blob", first=2)
        process = self._project.start(*_WAYS[way], "--overwrite", "--json")
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
        parts = [body[: 35 * MIB], body[35 * MIB :]]
        self._server.put_parts(self._bucket, f"far/data/{_LARGE}", parts)

    def remove(self) -> None:
        """Remove the large object."""
        self._server.client.delete_object(Bucket=self._bucket, Key=f"far/data/{_LARGE}")

    def keep_versions(self) -> None:
        """Have the bucket keep versions, also of the large object as it is."""
        self._server.client.put_bucket_versioning(Bucket=self._bucket, VersioningConfiguration={"Status": "Enabled"})
        self.put(_FIRST)

    def again(self, way: str) -> Done:
        """The same command, when nothing changes any more."""
        self._faulty.inject()
        return self._project.json(*_WAYS[way], "--overwrite")

    def arrived(self, way: str) -> dict[str, str]:
        """What is at the destination now."""
        return read_tree(self._project.data) if way == "download" else self._container.contents("near/data/")


@pytest.fixture
def copying(project: Project, moto: S3Server, bucket: str, service: str, container: Container) -> Iterator[Copying]:
    with fault_proxy(moto.url) as faulty, copy_source_proxy(service, outside=[faulty.url]) as proxy:
        configure(project, S3Server(faulty.url), bucket)
        project.configure(container, cluster="eu", url=proxy.url, sas=container.sas(), path="near/data")
        yield Copying(project, moto, bucket, faulty, container)


@pytest.mark.parametrize(
    "body",
    [pytest.param(_SECOND, id="replaced"), pytest.param(_SECOND[:-1], id="cut short", marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("way", _WAYS)
def test_an_object_that_changes_in_the_middle_is_copied_once_more(copying: Copying, way: str, body: bytes) -> None:
    process = copying.start(way)
    copying.put(body)
    done = copying.finish(process)
    assert done.code == 0 and done.data["verified"] == len(_SMALL) + 1, done
    assert f"{_LARGE} changed while it was being read; trying it again" in done.err, done
    assert ("relay" if way == "relay" else "direct") == done.data["engine"]
    assert copying.arrived(way) == hashes({**_SMALL, _LARGE: body})


@pytest.mark.parametrize("way", ["direct", "relay", pytest.param("download", marks=pytest.mark.soak)])
def test_an_object_that_changes_at_each_try_is_named_and_nothing_has_its_name(copying: Copying, way: str) -> None:
    process = copying.start(way)
    copying.put(_SECOND)
    copying.to_the_next_try()
    copying.put(_THIRD)
    done = copying.finish(process)
    assert done.code == 3 and done.data["verified"] == len(_SMALL), done
    assert (done.named(), done.codes) == ({f"data/{_LARGE}"}, {"changed_while_read"}), done
    assert copying.arrived(way) == hashes({**_SMALL, _LARGE: _BEFORE})
    last = copying.again(way)
    assert last.code == 0 and copying.arrived(way) == hashes({**_SMALL, _LARGE: _THIRD}), last


@pytest.mark.parametrize("way", _WAYS)
def test_an_object_that_is_gone_in_the_middle_is_named(copying: Copying, way: str) -> None:
    process = copying.start(way)
    copying.remove()
    done = copying.finish(process)
    assert done.code == 3 and done.data["verified"] == len(_SMALL), done
    assert (done.named(), done.codes) == ({f"data/{_LARGE}"}, {"changed_while_read"}), done
    assert copying.arrived(way) == hashes({**_SMALL, _LARGE: _BEFORE})


def test_an_object_that_becomes_shorter_than_what_is_asked_for_is_copied_once_more_or_named(copying: Copying) -> None:
    shorter = _SECOND[: 60 * MIB]
    process = copying.start("direct")
    copying.put(shorter)
    done = copying.finish(process)
    if done.code != 0:
        # The service found no such range before it found another version, and said that it cannot read the source.
        assert (done.code, done.named(), done.codes) == (3, {f"data/{_LARGE}"}, {"changed_while_read"}), done
        assert copying.arrived("direct") == hashes({**_SMALL, _LARGE: _BEFORE})
        done = copying.again("direct")
    assert done.code == 0 and copying.arrived("direct") == hashes({**_SMALL, _LARGE: shorter}), done


@pytest.mark.parametrize("change", [Copying.remove, lambda copying: copying.put(_SECOND)], ids=["removed", "replaced"])
def test_the_service_fetches_the_version_of_the_plan_where_the_bucket_keeps_versions(
    copying: Copying, change: Callable[[Copying], None]
) -> None:
    copying.keep_versions()
    process = copying.start("direct")
    change(copying)
    done = copying.finish(process)
    assert done.code == 0 and copying.arrived("direct") == hashes({**_SMALL, _LARGE: _FIRST}), done
