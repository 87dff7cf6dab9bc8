"""The power fails at each wait for the disk: what is on the disk then is good for the same command again.

What was waited for is on the disk. Of all else that was written, each part may be there or not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from blobsync.jobs.history import History
from blobsync.project.transfer_history import TransferLog
from tests.e2e.test_checkpoints import with_checkpoints
from tests.e2e.world import Container, Project, blobsync_command, hashes, read_tree, write_tree
from tests.servers.forked import Forked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler"),
]
SAMPLE = Path(__file__).parent.parent / "data/earlier_state"
SOURCE = Path(__file__).with_name("waits_for_the_disk.c")
# Three of the index, three of the log of transfers.
WAITS = 6
# In the downloads.
FILES = 31

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

    def cut(self, number: int, *words: str, below: Path | None = None) -> tuple[int, list[Tree]]:
        """Run blobsync until wait ``number`` for a file ``below`` (the state folder); returns its exit code, and what
        may be in the state folder then."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        before = self.files()
        # A server of its own has the library before it; what blobsync starts gets it, too.
        preload = f"LD_PRELOAD={self._library}"
        waits = {
            "LD_PRELOAD": str(self._library),
            "WAITS_BELOW": str(below or self._project.state),
            "WAITS_KEPT": str(self._kept),
            "WAITS_CUT": str(number),
        }
        environ = {**os.environ, **self._project.environ, **waits}
        argv = [blobsync_command(), *words]
        process = Forked(argv, folder=self._project.root, environ=environ, before=("env", preload))
        return self._project.finish(process).code, list(self._possible(before))

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

    def waited_below(self, folder: Path) -> dict[str, bytes]:
        """The files in the folder that were waited for, with what they held."""
        found = [(kept, path) for kept, path in self._list() if path.is_relative_to(folder)]
        return {str(path.relative_to(folder)): kept.read_bytes() for kept, path in found}

    def recorded_in_order(self) -> set[bytes]:
        """The MD5s of the models that were waited for, each before any index had a record of it."""
        waited, early = set[bytes](), set[bytes]()
        for kept, path in self._list():
            if path.name == "model.bin":
                waited.add(hashlib.md5(kept.read_bytes()).digest())
            elif path.name.endswith("index.sqlite"):
                with closing(sqlite3.connect(f"file:{kept}?mode=ro", uri=True)) as db:
                    early |= {md5 for (md5,) in db.execute("SELECT md5 FROM pairs")} - waited
        assert not early & waited
        return waited

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
            if not path.is_relative_to(self._project.state):
                continue
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
        new = {f"{os.urandom(2).hex()}{at:060}": b"%d" % number for at in range(25)}
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
            # What this credential may not ask of its account is no trouble.
            said = again.err.replace("this credential cannot read", "")
            assert again.code == 0 and not set(said.split()) & {"damaged", "cannot"}, f"{where}: {again}"
            # The service checks each MD5 that it keeps.
            now, here = _blobs(container), project.data
            assert {name: md5 for name, (_, md5) in now.items()} == {
                name: hashlib.md5((here / name).read_bytes()).digest() for name in read_tree(here)
            }, where
            assert {path: etag for path, (etag, _) in _records(disk.files(), tmp_path / "index").items()} == {
                path: etag for path, (etag, _) in now.items()
            }, where
            if part < 2:
                entries = project.json("history").data["transfers"]
                assert len({each["id"] for each in entries}) == len(entries), where
        known = _blobs(container)


# The first wait is for a file, then come those of an upload. What is not on the disk then is lost, or zeros.
@pytest.mark.parametrize(
    ("words", "rounds"),
    [
        (("d",), [(1, "zeros"), (FILES + 1, "zeros"), (FILES + WAITS, "lost")]),
        (("d", "--engine", "azcopy"), [(FILES + 3, "zeros")]),
        (("-f", "eu", "d"), [(FILES + 3, "zeros")]),
    ],
    ids=["d", "azcopy", "another cluster"],
)
def test_the_power_fails_at_waits_of_a_download(
    words: tuple[str, ...],
    rounds: list[tuple[int, str]],
    with_azcopy: Project,
    container: Container,
    library: Path,
    tmp_path: Path,
) -> None:
    project = with_azcopy
    project.configure(container)
    project.configure(container, cluster="eu", path="store")
    files = {f"{at % 3}/{at}": os.urandom(5000) for at in range(FILES - 1)} | {"large": os.urandom(3 << 20)}
    store, command = "store" if "eu" in words else "data", (*words, "data")
    container.put(f"{store}/known", b"known")
    assert project.run(*command).code == 0
    for name, data in files.items():
        container.put(f"{store}/{name}", data)
    disk = Disk(project, library, tmp_path)
    before = disk.files()
    for number, how in rounds:
        for name in read_tree(project.data).keys() & files.keys():
            (project.data / name).unlink()
        disk.put(before)
        code, possible = disk.cut(number, *command, below=project.root)
        assert code == -signal.SIGKILL, f"only {disk.waits()} waits"
        on_disk = disk.waited_below(project.data)
        for tree in possible:
            # A record is of content that is on the disk, whatever else is.
            recorded = _records(tree, tmp_path / "index").keys() - {"known"}
            assert {name: on_disk.get(name) for name in recorded} == {name: files[name] for name in recorded}
        unsure = {name for name in read_tree(project.data).keys() & files.keys() if name not in on_disk}
        for name in unsure:
            path = project.data / name
            path.write_bytes(bytes(len(files[name]))) if how == "zeros" else path.unlink()
        disk.put(possible[0] if how == "lost" else possible[1])
        again = project.json(*command)
        wrong = {each["path"].removeprefix("data/") for each in again.errors if each["code"] == "conflict"}
        assert wrong == (unsure if how == "zeros" else set()), (number, again)
        assert again.code == (3 if wrong else 0), (number, again)
        assert not wrong or project.run(*command, "--overwrite").code == 0
        assert read_tree(project.data) == hashes({"known": b"known", **files}), number


@pytest.mark.parametrize("all_parts", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_power_fails_while_the_records_of_an_earlier_version_are_taken_over(
    project: Project, library: Path, tmp_path: Path, all_parts: bool
) -> None:
    (project.root / "aux_data").mkdir()
    assert project.run("history").code == 0
    disk = Disk(project, library, tmp_path)
    own = disk.files()
    disk.put({**own, **{str(path.relative_to(SAMPLE)): path.read_bytes() for path in SAMPLE.rglob("*.*")}})
    before, code = disk.files(), -signal.SIGKILL
    for number in range(1, 99, 1 if all_parts else 4):
        disk.put(before)
        code, possible = disk.cut(number, "history", "--json")
        for part, tree in enumerate(possible if all_parts else possible[:2]):
            disk.put(tree)
            where = f"wait {number}, variant {part}"
            found = TransferLog(project.state / "jobs.sqlite").recent()
            # What had begun and not ended is nowhere else.
            assert [each.id for each in found if each.id != "00000005"] == [f"{at:08}" for at in (4, 3, 2, 1)], where
            assert len(History(project.state / "jobs.sqlite").page()) == 3, where
            with pytest.raises(sqlite3.OperationalError), closing(_opened(project.state)) as db:
                db.execute("SELECT * FROM transfers")
        if not code:
            break
    assert number > WAITS and not code


def _opened(state: Path) -> sqlite3.Connection:
    return sqlite3.connect(state / "transfers.sqlite")


def test_what_a_job_and_its_outputs_bring_is_on_the_disk_before_its_record(
    project: Project, container: Container, library: Path, tmp_path: Path
) -> None:
    with_checkpoints(project, container)
    first = project.run("--json", "submit", "--init", "--wait", "python", "train.py")
    assert first.code == 0, first
    disk = Disk(project, library, tmp_path)
    assert disk.cut(0, "resubmit", first.data["job_id"], below=project.root)[0] == 0
    second = project.json("q").data["jobs"][0]["job_id"]
    assert "started at 20" in project.run("logs", second, "-F").out
    restored = container.get("mine/output/checkpoint-20/model.bin")
    assert disk.recorded_in_order() == {hashlib.md5(restored).digest()}
    assert disk.cut(0, "outputs", first.data["job_id"], "--download", below=project.root)[0] == 0
    brought = {path.read_bytes() for path in project.root.glob("output/*/model.bin")}
    assert restored in brought
    assert disk.recorded_in_order() == {hashlib.md5(each).digest() for each in brought}


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
