"""Locks as files: the same files have the same bytes, and what comes from a clone counts only if all of it fits."""

from __future__ import annotations

import gzip
import hashlib
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, LockError
from blobsync.local.lock_files import (
    Lock,
    LockedFile,
    lock_above,
    lock_text,
    locks_in,
    pack,
    parse_lock,
    read_list,
    read_lock,
    unpack,
    write_lock,
)
from blobsync.local.sorted_runs import IN_MEMORY

ONE, TWO = bytes(16), bytes(range(16))
FILES = (LockedFile("a/x", 3, ONE, "0x1", "2026-11-20T10:00:00.0000000Z"), LockedFile("b é", 0, TWO, "0x2"))


def made(*files: LockedFile) -> tuple[Lock, bytes]:
    packed = pack(files)
    return Lock("data/v", packed.digest, packed.files, packed.size, "eu", "data", "store/v"), packed.data


def listed(*lines: str) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode())


def test_a_list_is_read_as_it_was_written_and_others_can_check_it() -> None:
    lock, data = made(*FILES)
    assert tuple(unpack(data, lock, "L", IN_MEMORY)) == FILES
    assert pack(FILES).data == data
    columns = [line.split("\t")[:3] for line in gzip.decompress(data).decode().splitlines()]
    assert hashlib.sha256("".join("\t".join(row) + "\n" for row in columns).encode()).hexdigest() == lock.digest
    assert (lock.files, lock.bytes) == (2, 3)


def test_another_etag_is_the_same_digest_another_md5_is_not() -> None:
    first = pack(FILES).digest
    assert pack([FILES[0]._replace(etag="0x9", version=""), FILES[1]]).digest == first
    assert pack([FILES[0]._replace(md5=TWO), FILES[1]]).digest != first


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock, data = made(*FILES)
    for each in (lock, replace(lock, is_far=True, folder="ü \"' : #"), replace(lock, account="no", container="123")):
        assert parse_lock(lock_text(each).encode(), "L", "data/v") == each
    assert write_lock(tmp_path, lock, data) and not write_lock(tmp_path, lock, data)
    assert (read_lock(tmp_path, "data/v"), read_list(tmp_path, "data/v")) == (lock, data)
    assert write_lock(tmp_path, replace(lock, bytes=4), data)
    assert (lock_above(tmp_path, "data/v/a/x"), lock_above(tmp_path, "data")) == ("data/v", None)


MD5 = ONE.hex()


@pytest.mark.parametrize(
    "lines",
    [
        (f"../x\t1\t{MD5}\t\t",),
        (f"/etc/x\t1\t{MD5}\t\t",),
        (f"a\t1\t{MD5}\t\t", f"a\t1\t{MD5}\t\t"),
        (f"b\t1\t{MD5}\t\t", f"a\t1\t{MD5}\t\t"),
        (f"a\t-1\t{MD5}\t\t",),
        ("a\t1\tno\t\t",),
        (f'a\t1\t{MD5}\t"\t',),
        (f"a\t1\t{MD5}\t\t../..",),
        (f"a\t1\t{MD5}\t",),
        (f"a\t1\t{MD5}\t\t\t",),
        (f"\t1\t{MD5}\t\t", f"a\t1\t{MD5}\t\t"),
        (f"{'x' * 9000}\t1\t{MD5}\t\t",),
    ],
)
def test_a_list_with_anything_wrong_in_it_is_refused(lines: tuple[str, ...]) -> None:
    # With a digest that fits: whoever writes such a list can write that, too.
    head = "".join("\t".join(line.split("\t")[:3]) + "\n" for line in lines)
    size = sum(int(line.split("\t")[1]) for line in lines)
    lock = Lock("data/v", hashlib.sha256(head.encode()).hexdigest(), len(lines), size, "eu", "data", "v")
    with pytest.raises(LockError):
        unpack(listed(*lines), lock, "L", IN_MEMORY)


def test_a_list_that_is_not_the_locks_own_is_refused() -> None:
    lock, data = made(*FILES)
    bomb, more = gzip.compress(bytes(1 << 26)), made(*FILES, LockedFile("c", 1, ONE))[1]
    others = (made(FILES[0])[1], data[:-9], data + b"x", data + bytes(9), b"", b"no gzip", bomb, more)
    for other in others:
        with pytest.raises(LockError):
            unpack(other, lock, "L", IN_MEMORY)
    for changed in (replace(lock, bytes=4), replace(lock, digest="0" * 64)):
        with pytest.raises(LockError):
            unpack(data, changed, "L", IN_MEMORY)


def test_a_list_of_no_end_of_archives_or_of_a_long_header_is_refused_at_once() -> None:
    lock, data = made(*FILES)
    # A list may have 1 GiB: read one by one these would take ten minutes.
    header = b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * (16 << 20)
    began = time.process_time()
    for other in (gzip.compress(b"") * 500_000, data + gzip.compress(b"") * 500_000, header):
        with pytest.raises(LockError, match=r"follows its last line|cut short"):
            unpack(other, lock, "L", IN_MEMORY)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("files", [1, 12_000])
def test_a_list_of_any_length_is_read_in_pieces(files: int) -> None:
    # Random content compresses badly, so that the packed list has several pieces, too.
    chance = random.Random(5)
    many = [LockedFile(f"f{number:06}", 1, chance.randbytes(16), chance.randbytes(99).hex()) for number in range(files)]
    lock, data = made(*many)
    assert (len(data) > 1 << 20) is (files > 1)
    assert list(unpack(data, lock, "L", IN_MEMORY)) == many
    for wrong in (data[: 1 << 20][:-1], data + data):
        with pytest.raises(LockError):
            unpack(wrong, lock, "L", IN_MEMORY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blobsync_lock: 1", "blobsync_lock: 2"),
        ("files: 2", "files: -1"),
        ("files: 2", "files: 1000000000000"),
        ("files: 2", "files: true"),
        ("bytes: 3\n", ""),
        ('path: "data/v"', 'path: "../v"'),
        ('path: "data/v"', 'path: "data/w"'),
        ('path: "data/v"', "path: [a]"),
        ("sha256: ", "sha256: x # "),
        ('list: "beside this file"', 'list: "../../x"'),
        ("account:", "account: {"),
        ("account:", "\x00"),
    ],
)
def test_a_lock_with_anything_wrong_in_it_is_refused(old: str, new: str) -> None:
    text = lock_text(made(*FILES)[0])
    assert old in text
    with pytest.raises(LockError):
        parse_lock(text.replace(old, new).encode("latin-1"), "L", "data/v")


def test_a_lock_that_is_a_link_out_of_the_project_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    lock, data = made(*FILES)
    write_lock(outside, lock, data)
    (root / "aux_data").mkdir(parents=True)
    (root / "aux_data/locks").symlink_to(outside / "aux_data/locks")
    assert list(locks_in(root, "data")) == []
    assert list(locks_in(outside, "data")) == list(locks_in(outside, "data/v")) == ["data/v"]
    with pytest.raises(LockError):
        read_lock(root, "data/v")
    with pytest.raises(BlobsyncError):
        write_lock(root, replace(lock, bytes=9), data)
    assert read_lock(outside, "data/v") == lock
