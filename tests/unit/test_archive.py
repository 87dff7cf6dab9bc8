"""The code archive: equal bytes for equal code, and readable by other programs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from blobsync.base.errors import ArchiveError
from blobsync.code.git import GitState
from blobsync.code.packed_files import code_rules
from blobsync.code.publish import write_archive
from blobsync.code.snapshot import CodeSnapshot, take_snapshot
from blobsync.code.unpack import unpack_archive
from blobsync.config.model import Cluster
from blobsync.local.os_errors import ChangedWhileReadError

GIT = GitState("0123456789abcdef0123456789abcdef01234567", ("src/new.py",))


def snapshot(root: Path, **settings: object) -> CodeSnapshot:
    cluster = Cluster("aml", "aux_data/aml/aml.yaml", root, **settings)  # type: ignore[arg-type]
    return take_snapshot(code_rules(cluster), root.parent / "no-cache" / "files.json")


def pack(root: Path, to: Path, git: GitState | None = GIT) -> CodeSnapshot:
    found = snapshot(root)
    with to.open("w+b") as out:
        assert write_archive(found, git, out) == to.stat().st_size
    return found


@pytest.fixture
def code(tmp_path: Path) -> Path:
    chance = random.Random(3)
    root = tmp_path / "code"
    (root / "src").mkdir(parents=True)
    for number in range(150):
        (root / f"src/m{number:03}.py").write_text(f"x = {number}\n" * chance.randint(0, 200))
    (root / "src/häßlich 名.py").write_text("y = 1\n")
    (root / "src/noise.bin").write_bytes(chance.randbytes(70_000))
    (root / "src/large.txt").write_bytes(b"one line of many\n" * 120_000)
    (root / "src/large.bin").write_bytes(chance.randbytes(2_500_000))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "empty").touch()
    (root / "link").symlink_to("src/m001.py")
    (root / "src/folder-link").symlink_to("../src")
    return root


def test_unzip_and_python_read_it(code: Path, tmp_path: Path) -> None:
    found = pack(code, tmp_path / "a.zip")
    subprocess.run(["unzip", "-tqq", tmp_path / "a.zip"], check=True)
    with zipfile.ZipFile(tmp_path / "a.zip") as opened:
        assert opened.testzip() is None
        assert opened.namelist() == [".blobsync-manifest.json", *sorted(opened.namelist()[1:])]
        manifest = json.loads(opened.read(".blobsync-manifest.json"))
    assert manifest["digest"] == found.digest
    assert manifest["git"] == {"commit": GIT.commit, "dirty": True, "uncommitted": ["src/new.py"]}
    assert {one["path"]: one["sha256"] for one in manifest["files"]} == {one.path: one.sha256 for one in found.files}
    # The C.UTF-8 locale: Info-ZIP decodes names by the locale.
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    subprocess.run(["unzip", "-qq", tmp_path / "a.zip", "-d", tmp_path / "out"], check=True, env=environ)
    (tmp_path / "out/.blobsync-manifest.json").unlink()
    assert subprocess.run(["diff", "-r", "--no-dereference", code, tmp_path / "out"], check=False).returncode == 0
    assert os.readlink(tmp_path / "out/link") == "src/m001.py"
    modes = {path: stat.S_IMODE((tmp_path / "out" / path).stat().st_mode) for path in ("run.sh", "empty")}
    assert modes == {"run.sh": 0o755, "empty": 0o644}


def test_a_node_takes_an_archive_by_its_digest_and_size(code: Path, tmp_path: Path) -> None:
    found = pack(code, tmp_path / "a.zip")
    (tmp_path / "node").mkdir()
    with pytest.raises(ArchiveError, match="does not hold the code"):
        unpack_archive(tmp_path / "a.zip", tmp_path / "node", "0" * 64, found.size)
    assert not list((tmp_path / "node").iterdir())
    unpack_archive(tmp_path / "a.zip", tmp_path / "node", found.digest, found.size)
    assert (tmp_path / "node" / "run.sh").exists()


def test_same_tree_same_bytes(code: Path, tmp_path: Path) -> None:
    first = pack(code, tmp_path / "a.zip")
    copy = tmp_path / "copy"
    before = os.umask(0o077)
    try:
        # Another folder, order, clock and umask.
        for path in sorted(code.rglob("*"), reverse=True):
            target = copy / path.relative_to(code)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                target.symlink_to(os.readlink(path))
            elif path.is_file():
                target.write_bytes(path.read_bytes())
                target.chmod(0o700 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o600)
                os.utime(target, (1_000_000_000, 1_000_000_000))
    finally:
        os.umask(before)
    second = pack(copy, tmp_path / "b.zip")
    assert second.digest == first.digest
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_digest_is_what_the_documentation_says(code: Path) -> None:
    found = snapshot(code)
    whole = hashlib.sha256()
    for file in found.files:
        path = code / file.path
        mode = "link" if path.is_symlink() else "755" if path.stat().st_mode & 0o100 else "644"
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        whole.update(f"{mode} {hashlib.sha256(content).hexdigest()} {file.path}\0".encode())
    assert found.digest == whole.hexdigest()


@pytest.mark.parametrize("change", ["content", "run bit", "name", "link"])
def test_every_change_of_the_code_changes_the_digest(code: Path, change: str) -> None:
    before = snapshot(code).digest
    if change == "content":
        (code / "run.sh").write_text("#!/bin/sh \n")
    elif change == "run bit":
        (code / "run.sh").chmod(0o644)
    elif change == "name":
        (code / "empty").rename(code / "hollow")
    else:
        (code / "link").unlink()
        (code / "link").symlink_to("src/m002.py")
    assert snapshot(code).digest != before


@pytest.mark.parametrize("change", ["of a small file", "of a large file", "that stat does not show", "that removes it"])
def test_a_file_that_changes_after_the_look_is_noticed(code: Path, tmp_path: Path, change: str) -> None:
    found, file = snapshot(code), code / ("src/large.bin" if change == "of a large file" else "run.sh")
    status = file.stat()
    with file.open("r+b") as stream:
        stream.write(b"changed")
    if change == "that stat does not show":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "that removes it":
        file.unlink()
    with (tmp_path / "a.zip").open("w+b") as out, pytest.raises(ChangedWhileReadError):
        write_archive(found, None, out)
