"""What an action remembers of both sides, how names for second versions are made, and what a mirror may take."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from blobsync.errors import UnsafeNamesError
from blobsync.index import Record
from blobsync.names import MAX_PART_BYTES
from blobsync.pairs import Pair
from blobsync.plan import Action, FileState, LocalState, Reason, RemoteState, Route, TransferOptions
from blobsync.planner import beside, decide, decide_all

ONE, TWO = b"1" * 16, b"2" * 16
HERE = LocalState(10, 1_000, 1_001, 7)
KNOWN = replace(HERE, md5=ONE)
THERE = RemoteState(10, "etag-1", ONE)
BOTH = TransferOptions(keep="both")
MIRROR = TransferOptions(mirror=True)
PLAIN = TransferOptions()


@pytest.mark.parametrize(
    ("route", "near", "far", "record", "remembered"),
    [
        pytest.param(Route.UPLOAD, HERE, THERE, Record(KNOWN, THERE), False, id="u: as recorded"),
        pytest.param(Route.DOWNLOAD, HERE, THERE, Record(KNOWN, THERE), False, id="d: as recorded"),
        pytest.param(
            Route.UPLOAD, replace(KNOWN, mtime_ns=2), THERE, Record(KNOWN, THERE), True, id="the file was touched"
        ),
        pytest.param(
            Route.UPLOAD, HERE, replace(THERE, etag="etag-2"), Record(KNOWN, THERE), True, id="the blob was rewritten"
        ),
        pytest.param(
            Route.UPLOAD,
            HERE,
            RemoteState(10, "etag-1", None),
            Record(HERE, replace(THERE, md5=None)),
            False,
            id="never an MD5",
        ),
        pytest.param(
            Route.UPLOAD,
            replace(KNOWN, mtime_ns=2),
            RemoteState(10, "etag-1", None),
            Record(KNOWN, RemoteState(10, "etag-1", None)),
            True,
            id="the file was touched, and the blob has no MD5",
        ),
        pytest.param(Route.UPLOAD, KNOWN, THERE, Record(THERE, THERE), True, id="recorded by a copy"),
        pytest.param(Route.SAME_ACCOUNT, THERE, THERE, Record(THERE, THERE), False, id="a copy, as recorded"),
        pytest.param(Route.SAME_ACCOUNT, THERE, THERE, Record(KNOWN, THERE), True, id="a copy, recorded by an upload"),
        pytest.param(
            Route.SAME_ACCOUNT, replace(THERE, etag="x"), THERE, Record(THERE, THERE), True, id="a copy, rewritten"
        ),
    ],
)
def test_an_unchanged_file_is_remembered_only_where_the_record_does_not_show_it_as_it_is(
    route: Route, near: FileState, far: FileState, record: Record, remembered: bool
) -> None:
    source, destination = (far, near) if route is Route.DOWNLOAD else (near, far)
    action = decide(Pair("a", source, destination, record), route, PLAIN)
    assert action is not None
    assert (action.action, action.reason, action.size) == (Action.UNCHANGED, Reason.SAME_RECORD, 10)
    expected = (replace(source, md5=ONE), replace(destination, md5=ONE)) if remembered else (None, None)
    assert (action.source, action.destination) == expected


def test_what_is_left_out_at_the_source_is_skipped_with_the_reason() -> None:
    action = decide(Pair("a", None, None, None, Reason.SYMLINK_OUTSIDE, "to /x"), Route.UPLOAD, MIRROR)
    assert action is not None
    assert (action.action, action.reason, action.size) == (Action.SKIP, Reason.SYMLINK_OUTSIDE, 0)


def test_a_path_with_nothing_at_either_end_is_nothing_to_do() -> None:
    assert decide(Pair("a", None, None), Route.UPLOAD, MIRROR) is None


def test_extras_are_what_only_the_destination_has() -> None:
    pairs = [
        Pair("both", KNOWN, THERE),
        Pair("here", KNOWN, None),
        Pair("there", None, THERE),
        Pair("gone", None, None),
    ]
    assert decide_all(pairs, Route.UPLOAD, PLAIN)[1] == ["there"]


@pytest.mark.parametrize("names", [["a", "a"], ["b", "a", "c", "a", "b"]])
def test_a_name_that_comes_twice_is_refused(names: list[str]) -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        decide_all([Pair(name, KNOWN, None) for name in names], Route.UPLOAD, PLAIN, shown="data/x")
    assert refused.value.names == tuple((f"data/x/{name}", "is listed twice") for name in sorted({*names} - {"c"}))
    assert refused.value.message.startswith("data/x/a is listed twice")


def digits(stamp: str) -> str:
    return hashlib.sha256(stamp.encode()).hexdigest()[:8]


def test_the_name_beside_comes_from_the_version() -> None:
    assert beside("d/a.jpg", "remote", THERE) == f"a.remote-{digits('10:etag-1')}.jpg"
    assert beside("d/a.jpg", "remote", THERE, 1) == f"a.remote-{digits('10:etag-1:1')}.jpg"
    assert beside("a", "local", HERE) == f"a.local-{digits('10:1000')}"


@pytest.mark.parametrize(("length", "is_suffix"), [(99, True), (126, True), (127, False)])
def test_a_suffix_of_more_than_half_of_a_name_is_none(length: int, is_suffix: bool) -> None:
    suffix = "." + "s" * length
    name = beside(f"a{suffix}", "local", HERE)
    assert name.endswith(suffix) is is_suffix
    assert name.startswith(f"a{suffix}"[: MAX_PART_BYTES - 15]) is not is_suffix
    assert len(name) <= MAX_PART_BYTES


@pytest.mark.parametrize(("route", "side"), [(Route.UPLOAD, "remote"), (Route.DOWNLOAD, "local")])
def test_the_destinations_version_is_the_one_that_goes_aside(route: Route, side: str) -> None:
    near, far = replace(HERE, md5=TWO), THERE
    source, destination = (far, near) if route is Route.DOWNLOAD else (near, far)
    action = decide(Pair("a", source, destination), route, BOTH)
    assert action is not None
    assert action.aside == beside("a", side, destination)


def test_what_was_kept_aside_is_no_extra_and_everything_else_still_is() -> None:
    aside = beside("a", "remote", THERE)
    pairs = [
        Pair("a", replace(HERE, md5=TWO), THERE),
        Pair(aside, None, THERE),
        Pair("extra", None, THERE),
        # The name of nothing.
        Pair("None", None, THERE),
    ]
    actions, _ = decide_all(pairs, Route.UPLOAD, replace(BOTH, mirror=True))
    assert {action.path: action.action for action in actions} == {
        "a": Action.TRANSFER,
        "extra": Action.DELETE,
        "None": Action.DELETE,
    }


def test_what_was_kept_aside_and_is_at_both_ends_is_unchanged() -> None:
    aside = beside("a", "remote", THERE)
    pairs = [Pair("a", replace(HERE, md5=TWO), THERE), Pair(aside, KNOWN, THERE)]
    actions, _ = decide_all(pairs, Route.UPLOAD, BOTH)
    assert {action.path: action.action for action in actions} == {"a": Action.TRANSFER, aside: Action.UNCHANGED}
    assert actions[0].aside == aside
