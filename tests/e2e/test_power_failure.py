"""The power fails at each wait for the disk: what is on the disk then is good for the same command again.

What was waited for is on the disk. Of all else that was written, each part may be there or not.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, blobsync_command, read_tree, write_tree

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler"),
]
SOURCE = Path(__file__).with_name("waits_for_the_disk.c")
# Three of the index, three of the log of transfers: docs/performance.md.
WAITS = 6

Tree = Mapping[str, bytes]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("waits") / "waits.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(SOURCE), "-ldl"], check=True)
    return built


class Disk:
    """The state folder of a project, as a power failure may leave it."""

    def __init__(self, project: Project, library: Path, scratch: Path) -> None:
        self._project = project
        self._library = library
        self._kept = scratch / "kept"

    def cut(self, number: int, *words: str) -> tuple[int, list[Tree]]:
        """Run blobsync until wait ``number``; returns its exit code, and what may be on the disk then."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        before = self.files()
        ended = subprocess.run(
            [blobsync_command(), *words],
            cwd=self._project.root,
            env={
                **os.environ,
                **self._project.environ,
                "LD_PRELOAD": str(self._library),
                "WAITS_BELOW": str(self._project.state),
                "WAITS_KEPT": str(self._kept),
                "WAITS_CUT": str(number),
            },
            capture_output=True,
            check=False,
        )
        return ended.returncode, list(self._possible(before))

    def put(self, tree: Tree) -> None:
        """Make the state folder what ``tree`` says."""
        for name in self.files():
            (self._project.state / name).unlink()
        for name, data in tree.items():
            path = self._project.state / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)

    def waits(self) -> int:
        return len(self._list())

    def files(self) -> dict[str, bytes]:
        root = self._project.state
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def _list(self) -> list[tuple[Path, Path]]:
        file = self._kept / "list"
        lines = [line.split(" ", 1) for line in file.read_text().splitlines()] if file.exists() else []
        return [(self._kept / number, Path(path)) for number, path in lines]

    def _possible(self, before: Tree) -> Iterator[Tree]:
        """What was waited for, what was written in all, and each file, and each half of its blocks, more or less."""
        least, most = self._waited_for(before), self.files()
        yield least
        yield most
        for name in sorted({*least, *most}):
            if least.get(name) != most.get(name):
                yield _with(least, name, most.get(name))
                yield _with(most, name, least.get(name))
                for half in (0, 1) if name.endswith(".sqlite") else ():
                    torn = _torn(least.get(name, b""), most.get(name, b""), half)
                    yield _with(least, name, torn)
                    yield _with(most, name, torn)

    def _waited_for(self, before: Tree) -> dict[str, bytes]:
        found, unnamed = dict(before), dict[str, bytes]()
        for kept, path in self._list():
            name = str(path.relative_to(self._project.state))
            if path.is_dir():
                names = set(kept.read_text().splitlines())
                for each in [each for each in found if str(Path(each).parent) == name and Path(each).name not in names]:
                    del found[each]
                found |= {each: data for each, data in unnamed.items() if Path(each).name in names}
            else:
                # The name of a new file is there once its folder is.
                (found if name in found else unnamed)[name] = kept.read_bytes()
        return found


def _torn(old: bytes, new: bytes, half: int) -> bytes:
    """Every second block of 4 KiB is the new one."""
    size = max(len(old), len(new))
    blocks = ((new if number % 2 == half else old)[at : at + 4096] for number, at in enumerate(range(0, size, 4096)))
    return b"".join(blocks)


def _with(tree: Tree, name: str, data: bytes | None) -> Tree:
    changed = {each: content for each, content in tree.items() if each != name}
    return changed if data is None else {**changed, name: data}


def _records(tree: Tree, folder: Path) -> dict[str, tuple[str, bytes]]:
    """The ETag and MD5 of each verified file, in the index of a state folder."""
    folder.mkdir(exist_ok=True)
    for name in ("index.sqlite", "index.sqlite-journal"):
        (folder / name).unlink(missing_ok=True)
        if name in tree:
            (folder / name).write_bytes(tree[name])
    with closing(sqlite3.connect(folder / "index.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {path: (etag, md5) for path, etag, md5 in db.execute("SELECT path, etag, md5 FROM pairs")}


def _blobs(container: Container) -> dict[str, tuple[str, bytes]]:
    return {
        blob.name.removeprefix("data/"): (blob.etag.strip('"'), bytes(blob.content_settings.content_md5 or b""))
        for blob in container.client.list_blobs("data/")
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("all_parts", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_power_fails_at_each_wait_of_an_upload(
    project: Project, container: Container, library: Path, tmp_path: Path, all_parts: bool
) -> None:
    project.configure(container)
    write_tree(project.data, {name: name.encode() for name in ("a", "b/c", "d")})
    assert project.run("u", "data").code == 0
    disk = Disk(project, library, tmp_path)
    known = _blobs(container)
    for number in range(1, WAITS + 1):
        # So many that blocks of the index are divided.
        new = {f"{os.urandom(2).hex()}{at:060}": b"%d" % number for at in range(60)}
        write_tree(project.data, {"a": os.urandom(100), **new})
        code, possible = disk.cut(number, "u", "data")
        assert code == -signal.SIGKILL, f"only {disk.waits()} waits"
        there = _blobs(container)
        for part, tree in enumerate(possible if all_parts else possible[:2]):
            where = f"wait {number}, variant {part}"
            # A record is of the blob that is there, or of one that was there: then the blob counts as changed.
            for path, (etag, md5) in _records(tree, tmp_path / "index").items():
                assert (etag, md5) in (there.get(path), known.get(path)), f"{where}: {path}"
            disk.put(tree)
            again = project.run("u", "data")
            assert again.code == 0 and not set(again.err.split()) & {"damaged", "cannot"}, f"{where}: {again}"
            assert container.contents("data/") == read_tree(project.data), where
            assert {path: etag for path, (etag, _) in _records(disk.files(), tmp_path / "index").items()} == {
                path: etag for path, (etag, _) in _blobs(container).items()
            }, where
            if part < 2:
                entries = project.json("history").data["transfers"]
                assert len({each["id"] for each in entries}) == len(entries), where
        known = _blobs(container)


def test_a_short_upload_waits_for_the_disk_six_times(
    project: Project, container: Container, library: Path, tmp_path: Path
) -> None:
    project.configure(container)
    write_tree(project.data, {"a": b"1"})
    assert project.run("u", "data").code == 0
    write_tree(project.data, {"a": b"2"})
    disk = Disk(project, library, tmp_path)
    assert disk.cut(0, "u", "data")[0] == 0
    assert disk.waits() == WAITS
