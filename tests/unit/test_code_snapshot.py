"""The code snapshot: which files are read again, and which are refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError, SecretsFoundError
from blobsync.code.packed_files import CodeRules, code_rules
from blobsync.code.snapshot import CodeSnapshot, take_snapshot
from blobsync.config.model import Cluster
from tests.unit.test_secrets_scan import KEY
from tests.waiting import wait_until

OLD_NS = time.time_ns() - 3600 * 10**9


def write(path: Path, text: str) -> None:
    """A file with old times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    write(root / "a.py", "a")
    write(root / "src/b.py", "b")
    return root


def rules(root: Path) -> CodeRules:
    return code_rules(Cluster("aml", "aux_data/aml/aml.yaml", root))


def snapshot(root: Path, *, allow_secrets: bool = False) -> CodeSnapshot:
    """So late that nothing is written again within the same tick of a coarse clock."""
    late = time.time_ns() + 3 * 10**9
    return take_snapshot(rules(root), root.parent / "files.json", allow_secrets=allow_secrets, now_ns=lambda: late)


def test_unchanged_files_are_not_read_again(root: Path) -> None:
    first = snapshot(root)
    # What cannot be opened cannot have been read; links to nowhere would have another stat.
    before = (root / "a.py").stat()
    cache = (root.parent / "files.json").read_text()
    assert f'"a.py":[1,{before.st_mtime_ns},{before.st_ctime_ns},{before.st_ino},' in cache
    (root.parent / "files.json").write_text(cache.replace(first.files[0].sha256, "0" * 64))
    assert snapshot(root).files[0].sha256 == "0" * 64


def test_a_changed_file_is_read_again_whatever_its_mtime(root: Path) -> None:
    first = snapshot(root)
    before = (root / "a.py").stat()
    while (root / "a.py").stat().st_ctime_ns == before.st_ctime_ns:
        (root / "a.py").write_text("x")
        os.utime(root / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert snapshot(root).digest != first.digest


def test_a_file_that_was_just_written_is_not_remembered(root: Path) -> None:
    older = (root / "src/b.py").stat().st_ctime_ns
    assert wait_until(lambda: time.time_ns() > older + 1_500_000_000)
    write(root / "a.py", "new")
    # A second later, however long the walk takes.
    written = (root / "a.py").stat()
    now = max(written.st_mtime_ns, written.st_ctime_ns) + 10**9
    take_snapshot(rules(root), root.parent / "files.json", now_ns=lambda: now)
    cache = (root.parent / "files.json").read_text()
    assert '"a.py"' not in cache and '"src/b.py"' in cache


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": "0"}', '{"version":"1.1","files":{"a.py":[1]}}'])
def test_a_damaged_memory_is_no_error(root: Path, damage: str) -> None:
    expected = snapshot(root).digest
    (root.parent / "files.json").write_text(damage)
    assert snapshot(root).digest == expected


def test_credentials_stop_it_and_are_not_repeated(root: Path) -> None:
    write(root / "src/b.py", f"\nAccountKey={KEY}")
    with pytest.raises(SecretsFoundError, match=r"src/b\.py:2 \(a storage account key\)") as caught:
        snapshot(root)
    assert KEY not in str(caught.value)
    assert caught.value.hint and "--allow-secrets" in caught.value.hint
    assert {file.path for file in snapshot(root, allow_secrets=True).files} == {"a.py", "src/b.py"}
    snapshot(root, allow_secrets=True)
    with pytest.raises(SecretsFoundError):
        snapshot(root)


def test_a_configuration_with_a_secret_is_left_out(root: Path) -> None:
    write(root / "aux_data/configs/a.yaml", "account_name: a\naccount_key: c2hvcnQ=\n")
    write(root / "aux_data/configs/b.yaml", "account_name: b\naccount_key: ${KEY}\n")
    found = snapshot(root)
    assert {file.path for file in found.files} == {"a.py", "src/b.py", "aux_data/configs/b.yaml"}
    assert [one.path for one in found.left_out] == ["aux_data/configs/a.yaml"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(root: Path) -> None:
    (root / "a.py").chmod(0)
    with pytest.raises(LocalFileError, match=r"a\.py: Permission denied"):
        snapshot(root)


def test_the_biggest_come_first(root: Path) -> None:
    for number in range(20):
        write(root / f"f{number:02}", "x" * number)
    assert [file.path for file in snapshot(root).biggest(3)] == ["f19", "f18", "f17"]
