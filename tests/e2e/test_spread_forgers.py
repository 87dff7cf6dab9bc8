"""``--nodes`` beside a stranger who can read, write, list and remove everything in the container, at any time: forged
documents are never trusted, and in the end all files are equal, or the others are named."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError

from blobsync.base.seals import SealKey
from tests.e2e.test_spread import HELD, nothing_is_left, processes_of
from tests.e2e.world import (
    Container,
    Project,
    every_text_below,
    hashes,
    kill_tree,
    random_files,
    read_tree,
    sha256,
    write_tree,
)
from tests.servers.fault_proxy import fault_proxy
from tests.waiting import meanwhile, wait_until

__all__ = ["nothing_is_left"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.timeout(300)]

_FILES = random_files(20261230, 60, [5 << 20] * 2)
_TWO = ("--nodes", "2")
_SLOWLY = ("--cap-mbps", "60")
_PLACES = ".blobsync/spread/"
_SEED = 20261231


def _key(project: Project) -> SealKey:
    """The user's own key: to compute the names of stores, and to check that no key is visible."""
    file = Path(project.environ["HOME"], ".config", "blobsync", "state.key")
    return SealKey(file.read_bytes()).derive("spread")


def _state(data: bytes, etag: str) -> dict[str, object]:
    return {"size": len(data), "etag": etag, "md5": None, "tier": None}


class Forger:
    """Writes documents like those of tasks and commands, as far as possible without a key."""

    def __init__(self, container: Container, project: Project) -> None:
        self._container, self._project = container, project
        # As the project's configuration has it.
        self.url = container.service

    def places(self) -> list[str]:
        """The stores of all runs, also of old ones: prefixes that end with a slash."""
        parts = [name.removeprefix(_PLACES).split("/") for name in self._container.names(_PLACES)]
        return sorted({f"{_PLACES}{'/'.join(each[:4])}/" for each in parts if each[2:3] == ["runs"]})

    def shard(self, number: int, names: dict[str, bytes], source: str = "") -> bytes:
        """Actions for these files, with the present states of their sources."""
        there = f"{self.url}/{self._container.account}/{self._container.name}/data"
        head = {"blobsync_shard": 1, "number": number, "route": "upload", "path": "data"}
        lines = [{**head, "source": source or str(self._project.data), "destination": there}]
        for name, data in names.items():
            here = self._local(name, data) if (self._project.data / name).exists() else None
            lines.append({"path": name, "reason": "NEW", "size": len(data), "source": here, "destination": None})
        return "\n".join(map(json.dumps, [*lines, {"end": len(names)}])).encode()

    def records(self, number: int, names: dict[str, bytes]) -> bytes:
        """Records that all of them moved, with the present states of both ends."""
        lines: list[dict[str, object]] = [{"blobsync_records": 1}]
        for name, data in names.items():
            md5 = {}
            with suppress(AzureError):
                found = self._container.blob(f"data/{name}").get_blob_properties()
                md5 = {"destination": {**_state(data, found.etag.strip('"')), "md5": _md5(data)}}
            lines.append({"path": name, "source": self._local(name, data), "destination": None, "reused": 0, **md5})
        return "\n".join(map(json.dumps, [*lines, {"done": number}])).encode()

    def leave(self, place: str) -> None:
        """Forge all documents, under their real names."""
        junk = {name: os.urandom(len(data)) for name, data in _FILES.items()}
        for number in (0, 1, 2, 9_999_999):
            self._put(f"{place}records/{number:07}", self.records(number, junk))
        self._put(f"{place}shards/9999998", self.shard(9_999_998, {"excluded.txt": b"x", "link/id_rsa": b"x"}))
        self._put(f"{place}shards/9999999", b"no shard")
        self._put(f"{place}records/0000000", b'{"blobsync_records": 1}\n{"refused": "forged"}\n{"done": 0}\n')
        self._put(f"{place}ended", b"")
        self._put(f"{place}result", b'{"job": "x", "exit_code": 0, "transferred": 1, "verified": 1, "failures": []}')
        self._put(f"{place.partition('runs/')[0]}known", b'{"0badcafe0badcafe": 1}')

    def swap(self, place: str, chance: random.Random) -> None:
        """Copy documents of the run to unused names."""
        names = [name.removeprefix(place) for name in self._container.names(place)]
        for folder in ("shards", "records"):
            own = [name for name in names if name.startswith(f"{folder}/")]
            if not own:
                continue
            taken = chance.choice(own)
            with suppress(AzureError):
                body = self._container.get(f"{place}{taken}")
                self._put(f"{place}{folder}/{chance.randrange(60):07}", body)

    def _local(self, name: str, data: bytes) -> dict[str, object]:
        found = (self._project.data / name).stat()
        times = {"mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino}
        return {"size": len(data), **times, "md5": _md5(data)}

    def _put(self, name: str, data: bytes) -> None:
        with suppress(AzureError):
            self._container.put(name, data)


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def at_work(act: Callable[[], None]) -> AbstractContextManager[None]:
    """Repeat that in a thread until the block ends."""

    def once() -> None:
        with suppress(AzureError):
            act()

    return meanwhile(once)


@pytest.fixture
def forger(project: Project, container: Container) -> Forger:
    project.configure(container)
    write_tree(project.data, _FILES)
    return Forger(container, project)


@pytest.mark.soak
def test_what_was_planted_before_the_first_run_makes_nothing_unchanged(
    project: Project, container: Container, forger: Forger, tmp_path: Path
) -> None:
    # The stores' names are no secret: a stranger may have seen an earlier run of another project.
    before = Project(tmp_path / "before", project.environ, project.before)
    before.configure(container)
    write_tree(before.data, {"a.txt": b"a", "b.txt": b"b"})
    first = before.json("u", "data", *_TWO)
    assert first.code == 0, str(first)
    container.client.delete_blobs(*container.names())
    mark = _key(project).derive("place").secret.hex()[:16]
    long = [name for name, data in _FILES.items() if len(data) > 100]
    junk = {name: os.urandom(len(_FILES[name])) for name in long[:5]}
    for each, data in junk.items():
        container.put(f"data/{each}", data)
    there = sha256(f"{container.service}/{container.account}/{container.name}/data".encode())[:16]
    for place in (f"{_PLACES}{there}/", f"{_PLACES}{there}/{mark}/", f"{_PLACES}{there}/{mark}/runs/0badcafe0badcafe/"):
        forger.leave(place)
        container.put(f"{place}shards/0000000", forger.shard(0, junk))
        container.put(f"{place}records/0000000", forger.records(0, junk))
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["conflicts"]) == (3, len(junk)), str(done)
    assert done.data["unchanged"] == 0 and "are not sealed with your key" in done.err, str(done)
    rest = {name: digest for name, digest in _FILES.hashes.items() if name not in junk}
    assert done.data["verified"] == done.data["transferred"] == len(rest)
    assert container.contents("data/") == {**rest, **hashes(junk)}
    assert project.json("verify", "data").code == 3


def test_a_forger_beside_the_run_has_nothing_believed_or_uploaded(
    project: Project, container: Container, forger: Forger, service: str, tmp_path: Path
) -> None:
    """A stranger adds and copies documents; the next test removes and replaces them."""
    secret = tmp_path / "id_rsa"
    secret.write_text("a private key")
    (project.data / "link").symlink_to(tmp_path)
    (project.data / "excluded.txt").write_text("not for others")
    chance = random.Random(_SEED)
    visited: list[str] = []

    def act() -> None:
        for place in forger.places():
            forger.leave(place)
            forger.swap(place, chance)
            visited.append(place)

    seen: list[str] = []
    keys: list[str] = []

    def look() -> None:
        seen.extend(" ".join(words) for _, *words in processes_of(project.root))
        keys.extend(_keys_of(project, container))

    with fault_proxy(service, HELD) as proxy:
        forger.url = proxy.url
        project.configure(container, url=proxy.url)
        process = project.start("u", "data", *_TWO, *_SLOWLY, "--exclude", "excluded.txt", "--json")
        with at_work(act), at_work(look):
            # The run lasts until the stranger was there, and both of them were seen.
            met = wait_until(lambda: len(visited) > 1 and bool(keys and seen), seconds=100)
            proxy.inject()
            proxy.release()
            done = project.finish(process, seconds=150)
        again = project.json("u", "data", "--exclude", "excluded.txt")
    assert met, str(done)
    assert (done.code, done.data["transferred"], done.data["verified"]) == (0, len(_FILES), len(_FILES)), str(done)
    assert container.contents("data/") == _FILES.hashes
    assert "has no seal of this transfer: it counts as absent" in done.err
    assert again.data["unchanged"] == len(_FILES), str(again)
    # The transfer's key was in no command line, and is in no file afterwards.
    assert keys and seen and not [words for words in seen if any(key in words for key in keys)]
    kept = every_text_below(project.root / ".blobsync")
    assert not [file for file, text in kept if any(key.encode() in text for key in keys)]


def _keys_of(project: Project, container: Container) -> list[str]:
    """The run keys of all transfers, in hexadecimal digits. No document contains one."""
    found = []
    for name in container.names(_PLACES):
        with suppress(AzureError, ValueError, FileNotFoundError):
            body = container.get(name)
            if name.endswith("/known"):
                runs = json.loads(body[body.index(b"{") :])
                found += [_key(project).derive("run", run).secret.hex() for run in runs]
            assert not [key for key in found if key.encode() in body], name
    return found


@pytest.mark.soak
def test_a_vandal_keeps_the_run_from_its_end_and_has_nothing_believed(
    project: Project, container: Container, forger: Forger
) -> None:
    """A stranger removes, replaces and restores older documents. The command's result is still true."""
    chance = random.Random(_SEED)
    older: dict[str, bytes] = {}

    def act() -> None:
        names = container.names(_PLACES)
        for name in chance.sample(names, min(4, len(names))):
            older.setdefault(name, container.get(name))
            kind = chance.choice(("remove", "junk", "older", "swap"))
            if kind == "remove":
                container.blob(name).delete_blob()
            else:
                other = chance.choice(names) if kind == "swap" else name
                container.put(name, b"junk" if kind == "junk" else older.get(other, b""))

    process = project.start("u", "data", *_TWO, *_SLOWLY, "--json")
    with at_work(act):
        wait_until(lambda: process.poll() is not None, seconds=25)
    done = project.finish(process, seconds=200)
    there = container.contents("data/")
    assert {name: there[name] for name in there} == {name: _FILES.hashes[name] for name in there}, str(done)
    if done.code == 0:
        assert there == _FILES.hashes and done.data["verified"] == len(_FILES), str(done)
    again = project.json("u", "data", *_TWO)
    assert again.code == 0 and container.contents("data/") == _FILES.hashes, f"{done}\n{again}"
    assert project.json("verify", "data", "--deep").code == 0


@pytest.mark.soak
def test_what_is_put_in_the_place_of_a_file_after_a_kill_is_not_taken_for_it(
    project: Project, container: Container, forger: Forger
) -> None:
    process = project.start("u", "data", *_TWO, *_SLOWLY)
    assert wait_until(lambda: len(container.names("data/")) > 8 or process.poll() is not None, seconds=60)
    kill_tree(process.pid)
    for pid, _ in processes_of(project.root):
        kill_tree(pid)
    process.communicate()
    place = next(place for place in forger.places())
    there = [name.removeprefix("data/") for name in container.names("data/")]
    replaced = next(name for name in there if len(_FILES[name]) > 100)
    junk = os.urandom(len(_FILES[replaced]))
    container.put(f"data/{replaced}", junk)
    forger.leave(place)
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["conflicts"]) == (3, 1), str(done)
    rest = {name: digest for name, digest in _FILES.hashes.items() if name != replaced}
    assert container.contents("data/") == {**rest, replaced: sha256(junk)}
    assert "are not sealed with your key" in done.err, str(done)


@pytest.mark.soak
def test_without_the_key_of_the_first_machine_records_count_as_absent_and_it_is_reported(
    project: Project, container: Container, forger: Forger, tmp_path: Path
) -> None:
    process = project.start("u", "data", *_TWO, *_SLOWLY)
    assert wait_until(lambda: len(container.names("data/")) > 8 or process.poll() is not None, seconds=60)
    kill_tree(process.pid)
    for pid, _ in processes_of(project.root):
        kill_tree(pid)
    process.communicate()
    before = {name: container.blob(name).get_blob_properties().etag for name in container.names("data/")}
    elsewhere = Project(tmp_path / "elsewhere", {"HOME": str(tmp_path / "other home")}, project.before)
    (tmp_path / "other home").mkdir()
    elsewhere.configure(container)
    write_tree(elsewhere.data, _FILES)
    place = next(iter(forger.places()))
    # The claim of the killed command stays: nobody else can know that it is gone.
    refused = elsewhere.json("u", "data", *_TWO)
    assert (refused.code, refused.codes) == (3, {"spread_busy"}), str(refused)
    (claim,) = re.findall(r"it has \S+/(\.blobsync/spread/\w+/claim)", refused.errors[0]["message"])
    assert "remove that blob" in refused.errors[0]["hint"], str(refused)
    container.blob(claim).delete_blob()
    done = elsewhere.json("u", "data", *_TWO)
    assert done.code == 0 and "are not sealed with your key" in done.err and "copy the key from there" in done.err
    # Existing files were compared, and did not move again; other stores were not touched.
    after = {name: container.blob(name).get_blob_properties().etag for name in before}
    assert after == before and container.contents("data/") == _FILES.hashes
    assert container.names(place)
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.data["transferred"]) == (0, 0), str(done)
    assert read_tree(project.data) == _FILES.hashes


@pytest.mark.soak
def test_a_job_of_an_older_version_is_waited_for(project: Project, container: Container, forger: Forger) -> None:
    started = project.json("u", "data", *_TWO, *_SLOWLY, "--detach")
    assert started.code == 0 and forger.places(), str(started)
    job = started.data["job_id"]
    # The state recorded by such a version, whose command was killed.
    with closing(sqlite3.connect(project.state / "jobs.sqlite")) as database, database:
        (text,) = database.execute("select spec from jobs where run_id=?", (job,)).fetchone()
        spec = json.loads(text)
        orders = spec["options"]["spread"]
        new = ("base", "place", "claim", "count", "state")
        older = {name: value for name, value in orders.items() if name not in new}
        spec["options"]["spread"] = {**older, "path": orders["base"], "claims": orders["claim"], "detach": False}
        database.execute("update jobs set spec=? where run_id=?", (json.dumps(spec), job))
    done = project.json("u", "data", *_TWO)
    assert (done.code, done.codes) == (3, {"spread_busy"}) and "an older blobsync" in str(done.errors), str(done)
    assert f"blobsync abort {job}" in str(done.errors)
    assert project.run("abort", job).code == 0
    assert wait_until(lambda: project.json("q", job).data["jobs"][0]["status"] == "Canceled", seconds=60, pause=0.5)
    done = project.json("u", "data", *_TWO)
    assert done.code == 0, str(done)
    assert container.contents("data/") == _FILES.hashes
