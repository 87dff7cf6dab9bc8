"""The node archive: its contents, reproducible bytes, and upload beside the code."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

import blobsync
from blobsync.base.errors import AccessDeniedError, ArchiveError, PreconditionFailedError
from blobsync.jobspec.interactive import HOLDER
from blobsync.jobspec.node_archive import (
    NOT_ON_NODES,
    TRAVELLING,
    NodeArchive,
    node_archive,
    outside_sources,
    pack,
    publish,
    travelling_sources,
)
from blobsync.jobspec.spec import CodeRef
from blobsync.local.state_dir import user_key
from tests.fakes.bootstrap import python_of
from tests.fakes.jobs import make_spec
from tests.fakes.store import MemoryStore, Request

DIGEST = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> NodeArchive:
    return node_archive({"HOME": str(tmp_path_factory.mktemp("home"))})


def members(archive: NodeArchive) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(io.BytesIO(archive.body)) as source:
        return {item.filename: item for item in source.infolist()}


# -- contents ------------------------------------------------------------------------------------------------


def test_it_holds_what_a_node_needs_and_no_more(archive: NodeArchive) -> None:
    names = members(archive)
    assert {"__main__.py", "blobsync/node/__main__.py", "urllib3/connectionpool.py"} <= set(names)
    assert {name for name in names if name.lower().startswith("urllib3/licen")}
    assert {name.split("/")[1] for name in names if name.startswith("blobsync/")}.isdisjoint(NOT_ON_NODES)
    assert {name.partition("/")[0] for name in names} == {"__main__.py", "blobsync", "urllib3"}
    assert not [name for name in names if name.startswith("blobsync/") and not name.endswith(".py")]
    assert len(archive.body) < 3_000_000


def test_it_tells_nothing_of_this_machine(archive: NodeArchive) -> None:
    assert {(item.date_time, item.external_attr, item.compress_type) for item in members(archive).values()} == {
        ((1980, 1, 1, 0, 0, 0), 0o100644 << 16, zipfile.ZIP_STORED)
    }
    assert str(Path(blobsync.__file__).parent.parent).encode() not in archive.body


def test_the_same_sources_give_the_same_bytes() -> None:
    sources = {"b.py": b"b", "a/c.py": b"c"}
    assert pack(sources) == pack(dict(reversed(sources.items())))
    assert pack(sources) != pack({**sources, "b.py": b"B"})


def test_no_module_in_it_needs_a_room_that_is_not(archive: NodeArchive) -> None:
    rooms = "|".join(name for name in NOT_ON_NODES if not name.endswith(".py"))
    needs = re.compile(rf"^ *(?:from|import) blobsync\.(?:{rooms})\b", re.MULTILINE)
    with zipfile.ZipFile(io.BytesIO(archive.body)) as source:
        # What the package exports is loaded by its name.
        names = [name for name in source.namelist() if name.startswith("blobsync/") and name != "blobsync/__init__.py"]
        assert not [name for name in names if needs.search(source.read(name).decode())]


@pytest.mark.parametrize("name", ["fast.cpython-312-x86_64-linux-gnu.so", "fast.pyd", "libz.so.1", "libz.dylib"])
def test_a_native_module_in_the_package_from_outside_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "urllib3" / "util").mkdir(parents=True)
    (tmp_path / "urllib3" / "__init__.py").touch()
    assert "urllib3/__init__.py" in outside_sources(tmp_path / "urllib3")
    (tmp_path / "urllib3" / "util" / name).touch()
    with pytest.raises(ArchiveError, match="nodes take pure Python only"):
        outside_sources(tmp_path / "urllib3")


def test_an_older_python_is_told_what_it_lacks(archive: NodeArchive, tmp_path: Path) -> None:
    python = python_of("3.8")
    if python is None:
        pytest.skip("this machine has no Python 3.8")
    (tmp_path / "node.zip").write_bytes(archive.body)
    done = subprocess.run([python, "-I", str(tmp_path / "node.zip")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("blobsync needs Python 3.10 or newer; this is 3.8.")


def test_what_travels_with_a_job_is_small() -> None:
    sources = travelling_sources(make_spec("true"))
    assert tuple(sources) == TRAVELLING and sum(map(len, sources.values())) < 30_000
    waiting = travelling_sources(make_spec("ssh", options={"hold": 60}))
    assert tuple(waiting) == (*TRAVELLING, HOLDER) and sum(map(len, waiting.values())) < 40_000


# -- the cache -----------------------------------------------------------------------------------------------


def test_an_archive_that_somebody_else_kept_for_us_runs_on_no_node(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    theirs = {"XDG_CONFIG_HOME": str(tmp_path / "their-config")}
    first = node_archive(environ)
    assert first.digest == hashlib.sha256(first.body).hexdigest()
    (kept,) = (tmp_path / "blobsync" / "node").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    # The cached one is used, and not made again.
    other = b"another"
    kept.write_bytes(user_key(environ).seal("node archive", "", kept.stem, other))
    assert node_archive(environ).body == other
    for wrong in (
        kept.read_bytes() + b"!",
        hashlib.sha256(other).hexdigest().encode() + b"\n" + other,
        user_key(theirs).seal("node archive", "", kept.stem, other),
        user_key(environ).seal("node archive", "", "of another version", other),
    ):
        kept.write_bytes(wrong)
        assert node_archive(environ) == first


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_where_nothing_can_be_kept_it_is_made_again(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert node_archive({"XDG_STATE_HOME": str(tmp_path)}).body


# -- upload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "folder"),
    [
        (f"me/code.zip.d/{DIGEST}.zip", "me/code.zip.d"),
        ("me/code.zip", "me/code.zip.d"),
        ("me/folder", "me/folder.d"),
        ("me/code.zip.d/mine.zip", "me/code.zip.d/mine.zip.d"),
    ],
)
def test_it_lies_beside_the_code(code: str, folder: str) -> None:
    ref = NodeArchive(b"12345", DIGEST).beside(CodeRef("https://x/box", code, ""))
    assert (ref.container, ref.path, ref.digest, ref.size) == (
        "https://x/box",
        f"{folder}/node/{DIGEST}.zip",
        DIGEST,
        5,
    )


MADE = NodeArchive(b"the archive", DIGEST)
REF = MADE.beside(CodeRef("https://x/box", "code.zip", ""))


def test_it_is_uploaded_once() -> None:
    store = MemoryStore()
    publish(MADE, REF, store)
    publish(MADE, REF, store)
    assert store.body(REF.path) == MADE.body and len(store.asked("put")) == 1


def test_half_of_one_is_replaced() -> None:
    store = MemoryStore()
    store.add(REF.path, b"the arch")
    publish(MADE, REF, store)
    assert store.body(REF.path) == MADE.body


def test_somebody_else_may_be_faster() -> None:
    store = MemoryStore()

    def before(request: Request) -> None:
        if request.operation == "put":
            store.add(REF.path, MADE.body)
            raise PreconditionFailedError("it is there")

    store.before = before
    publish(MADE, REF, store)
    assert store.body(REF.path) == MADE.body


def test_a_refusal_says_what_to_do() -> None:
    store = MemoryStore()

    def before(request: Request) -> None:
        if request.operation == "put":
            raise AccessDeniedError("no write access")

    store.before = before
    with pytest.raises(AccessDeniedError) as refused:
        publish(MADE, REF, store)
    assert refused.value.hint and REF.path in refused.value.hint and "may write" in refused.value.hint
