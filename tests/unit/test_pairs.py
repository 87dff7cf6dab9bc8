"""Pairs of a file and a blob: equal, changed, or to be read first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.local.index import Record
from blobsync.plan.pairing import (
    Pair,
    changed_since_verified,
    changes_since_verified,
    equal_content,
    known_equal,
    needs_local_md5,
    source_is_near,
)
from blobsync.plan.transfer_plan import Route

ONE, TWO = b"1" * 16, b"2" * 16
LOCAL = LocalState(10, 1_000, 1_001, 7)
BLOB = RemoteState(10, "etag-1", ONE)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (replace(LOCAL, md5=ONE), BLOB, True),
        (replace(LOCAL, md5=TWO), BLOB, False),
        (LOCAL, BLOB, None),
        (replace(LOCAL, md5=ONE), replace(BLOB, md5=None), None),
        (replace(LOCAL, size=11), replace(BLOB, md5=None), False),
        (replace(LOCAL, md5=ONE, crc64=b"1"), replace(BLOB, md5=None, crc64=b"1"), True),
        (replace(LOCAL, md5=ONE, crc64=b"1"), replace(BLOB, md5=None, crc64=b"2"), False),
        (replace(LOCAL, md5=ONE), replace(BLOB, md5=None, crc64=b"1"), None),
        (replace(LOCAL, md5=ONE, crc64=b"1"), replace(BLOB, crc64=b"2"), True),
        (replace(LOCAL, size=11, crc64=b"1"), replace(BLOB, md5=None, crc64=b"1"), False),
        (replace(LOCAL, size=11, md5=ONE), BLOB, False),
    ],
)
def test_which_pairs_have_equal_content(one: FileState, other: FileState, equal: bool | None) -> None:
    assert equal_content(one, other) is equal
    assert equal_content(other, one) is equal


@pytest.mark.parametrize(
    ("now", "then", "md5", "expected"),
    [
        pytest.param(LOCAL, LOCAL, None, False, id="as it was"),
        pytest.param(replace(LOCAL, md5=TWO), LOCAL, ONE, False, id="stat vouches for it"),
        pytest.param(replace(LOCAL, mtime_ns=2), LOCAL, ONE, True, id="touched, and not read"),
        pytest.param(replace(LOCAL, mtime_ns=2), LOCAL, None, True, id="touched, and nothing to compare with"),
        pytest.param(replace(LOCAL, mtime_ns=2, md5=ONE), LOCAL, ONE, False, id="touched"),
        pytest.param(replace(LOCAL, mtime_ns=2, md5=TWO), LOCAL, ONE, True, id="edited"),
        pytest.param(replace(LOCAL, size=11, md5=ONE), LOCAL, ONE, True, id="another size"),
        pytest.param(BLOB, BLOB, None, False, id="the version that it was"),
        pytest.param(RemoteState(10, "etag-1", None), BLOB, ONE, False, id="its ETag vouches for it"),
        pytest.param(BLOB, RemoteState(10, "etag-1", None), None, False, id="its ETag vouches for the record"),
        pytest.param(RemoteState(10, "etag-1", TWO), BLOB, ONE, True, id="one version with two MD5s is not believed"),
        pytest.param(RemoteState(10, "etag-2", ONE), BLOB, ONE, False, id="written again, alike"),
        pytest.param(RemoteState(10, "etag-2", TWO), BLOB, ONE, True, id="written again, with other content"),
        pytest.param(RemoteState(11, "etag-2", ONE), BLOB, ONE, True, id="written again, longer"),
        pytest.param(RemoteState(10, "etag-2", None), BLOB, ONE, True, id="written again, without an MD5"),
        pytest.param(
            RemoteState(10, "etag-2", None), RemoteState(10, "etag-1", None), None, True, id="never had an MD5"
        ),
        pytest.param(replace(LOCAL, md5=ONE), BLOB, ONE, False, id="a file where a blob was, alike"),
        pytest.param(LOCAL, BLOB, ONE, True, id="a file where a blob was"),
        pytest.param(RemoteState(10, "etag-1", None), LOCAL, ONE, True, id="a blob where a file was"),
    ],
)
def test_which_side_changed_since_it_was_verified(
    now: FileState, then: FileState, md5: bytes | None, expected: bool
) -> None:
    assert changed_since_verified(now, then, md5) is expected


EDITED, REWRITTEN = LocalState(11, 2, 2, 7, TWO), RemoteState(12, "etag-2", b"3" * 16)


@pytest.mark.parametrize(
    ("near", "remote", "expected"),
    [
        (LOCAL, BLOB, (False, False)),
        (EDITED, BLOB, (True, False)),
        (LOCAL, REWRITTEN, (False, True)),
        (EDITED, REWRITTEN, (True, True)),
    ],
)
def test_each_side_is_compared_with_its_own_record_in_the_index(
    near: FileState, remote: FileState, expected: tuple[bool, bool]
) -> None:
    found = changes_since_verified(near, remote, Record(LOCAL, BLOB))
    assert found == expected == (found.near, found.remote)


@pytest.mark.parametrize(
    ("near", "remote", "record", "expected"),
    [
        pytest.param(replace(LOCAL, md5=ONE), BLOB, None, True, id="equal"),
        pytest.param(replace(LOCAL, md5=TWO), BLOB, None, False, id="other content"),
        pytest.param(LOCAL, BLOB, None, None, id="nothing to compare, no record"),
        pytest.param(LOCAL, BLOB, Record(LOCAL, BLOB), True, id="nothing to compare, the record vouches"),
        pytest.param(replace(LOCAL, md5=TWO), BLOB, Record(LOCAL, BLOB), True, id="a blob with a wrong MD5, verified"),
        pytest.param(EDITED, BLOB, Record(LOCAL, BLOB), False, id="edited"),
        pytest.param(LOCAL, replace(BLOB, etag="2", md5=None), Record(LOCAL, BLOB), None, id="written again, no MD5"),
        pytest.param(replace(LOCAL, mtime_ns=2, md5=ONE), BLOB, Record(LOCAL, BLOB), True, id="touched"),
    ],
)
def test_equality_is_decided_by_content_or_by_the_index(
    near: FileState, remote: FileState, record: Record | None, expected: bool | None
) -> None:
    assert known_equal(near, remote, record) is expected


@pytest.mark.parametrize("route", Route)
def test_only_a_download_has_the_local_side_as_its_destination(route: Route) -> None:
    assert source_is_near(route) is (route is not Route.DOWNLOAD)


TOUCHED = replace(LOCAL, mtime_ns=2)


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
@pytest.mark.parametrize(
    ("local", "blob", "record", "needed"),
    [
        pytest.param(LOCAL, BLOB, None, True, id="equal size"),
        pytest.param(LOCAL, replace(BLOB, size=11), None, False, id="another size"),
        pytest.param(LOCAL, replace(BLOB, md5=None), None, False, id="nothing to compare with"),
        pytest.param(replace(LOCAL, md5=ONE), BLOB, None, False, id="read already"),
        pytest.param(LOCAL, None, None, False, id="only here"),
        pytest.param(None, BLOB, None, False, id="only there"),
        pytest.param(LOCAL, BLOB, Record(LOCAL, BLOB), False, id="on record"),
        pytest.param(TOUCHED, BLOB, Record(LOCAL, BLOB), True, id="touched"),
        pytest.param(TOUCHED, replace(BLOB, size=12), Record(LOCAL, BLOB), True, id="touched, and the blob replaced"),
        pytest.param(
            TOUCHED,
            replace(BLOB, size=12, md5=None),
            Record(LOCAL, replace(BLOB, md5=None)),
            False,
            id="touched, and never had an MD5",
        ),
        pytest.param(
            replace(TOUCHED, size=12), replace(BLOB, size=12), Record(LOCAL, BLOB), True, id="grew like the blob"
        ),
        pytest.param(replace(TOUCHED, size=12), BLOB, Record(LOCAL, BLOB), False, id="grew"),
        pytest.param(LOCAL, BLOB, Record(replace(BLOB, etag="0"), BLOB), True, id="recorded between two blobs"),
    ],
)
def test_a_local_file_is_hashed_only_where_an_md5_decides(
    local: FileState | None, blob: FileState | None, record: Record | None, needed: bool, route: Route
) -> None:
    source, destination = (local, blob) if route is Route.UPLOAD else (blob, local)
    assert needs_local_md5(Pair("a", source, destination, record), route) is needed


def test_a_pair_of_blobs_has_no_local_file_to_hash() -> None:
    pair = Pair("a", replace(BLOB, md5=None), BLOB)
    assert not needs_local_md5(pair, Route.SAME_ACCOUNT)
