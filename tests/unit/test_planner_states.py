"""States recorded in an action, names for versions that are kept aside, and the limits of a mirror."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from blobsync.base.errors import UnsafeNamesError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.local.index import Record
from blobsync.local.names import MAX_PART_BYTES
from blobsync.plan.decisions import check_names, decide, decide_all, guard_mirror, leave_out
from blobsync.plan.keep_both_names import beside
from blobsync.plan.pairing import Pair
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route

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
def test_an_unchanged_file_is_recorded_only_if_its_record_is_outdated(
    route: Route, near: FileState, far: FileState, record: Record, remembered: bool
) -> None:
    source, destination = (far, near) if route is Route.DOWNLOAD else (near, far)
    action = decide(Pair("a", source, destination, record), route, PLAIN)
    assert action is not None
    assert (action.action, action.reason, action.size) == (Action.UNCHANGED, Reason.SAME_RECORD, 10)
    expected = (replace(source, md5=ONE), replace(destination, md5=ONE)) if remembered else (None, None)
    assert (action.source, action.destination) == expected


@pytest.mark.parametrize(
    ("source", "destination", "options", "size"),
    [
        pytest.param(None, None, PLAIN, 0, id="a link"),
        pytest.param(None, None, MIRROR, 0, id="a link, with --mirror"),
        pytest.param(HERE, None, PLAIN, 10, id="a file"),
        pytest.param(HERE, replace(THERE, size=12), PLAIN, 10, id="a file at both ends"),
        pytest.param(None, THERE, MIRROR, 10, id="an extra that --mirror would take"),
        pytest.param(None, THERE, PLAIN, None, id="an extra"),
    ],
)
def test_a_left_out_file_that_would_have_moved_is_skipped_with_the_reason(
    source: FileState | None, destination: FileState | None, options: TransferOptions, size: int | None
) -> None:
    action = decide(Pair("a", source, destination, None, Reason.SYMLINK_OUTSIDE, "to /x"), Route.UPLOAD, options)
    if size is None:
        assert action is None
        return
    assert action is not None
    assert (action.action, action.reason, action.size) == (Action.SKIP, Reason.SYMLINK_OUTSIDE, size)


def test_a_path_missing_at_both_ends_needs_no_action() -> None:
    assert decide(Pair("a", None, None), Route.UPLOAD, MIRROR) is None


def test_extras_are_files_only_at_the_destination() -> None:
    pairs = [
        Pair("both", KNOWN, THERE),
        Pair("here", KNOWN, None),
        Pair("there", None, THERE),
        Pair("gone", None, None),
    ]
    assert decide_all(pairs, Route.UPLOAD, PLAIN)[1] == ["there"]


@pytest.mark.parametrize("names", [["a", "a"], ["b", "a", "c", "a", "b"]])
def test_a_name_listed_twice_is_refused(names: list[str]) -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        decide_all([Pair(name, KNOWN, None) for name in names], Route.UPLOAD, PLAIN, shown="data/x")
    assert refused.value.names == tuple((f"data/x/{name}", "is listed twice") for name in sorted({*names} - {"c"}))
    assert refused.value.message.startswith("data/x/a is listed twice")


def test_names_that_come_twice_are_counted_once_each_and_the_first_thousand_named() -> None:
    def refused(*names: str) -> UnsafeNamesError:
        with pytest.raises(UnsafeNamesError) as error:
            decide_all([Pair(name, KNOWN, None) for name in names], Route.UPLOAD, PLAIN)
        return error.value

    assert "(2 such files)" in refused("a", "a", "a", "b", "b", "b", "c").message
    for count in (1_000, 1_001):
        many = refused(*(f"{number:04}" for number in range(count) for _ in range(2)))
        assert f"({count:,} such files)" in many.message and len(many.names) == 1_000


def digits(stamp: str) -> str:
    return hashlib.sha256(stamp.encode()).hexdigest()[:8]


def test_the_aside_name_contains_the_version() -> None:
    assert beside("d/a.jpg", "remote", THERE) == f"a.remote-{digits('10:etag-1')}.jpg"
    assert beside("d/a.jpg", "remote", THERE, 1) == f"a.remote-{digits('10:etag-1:1')}.jpg"
    assert beside("a", "local", HERE) == f"a.local-{digits('10:1000')}"


@pytest.mark.parametrize(("length", "is_suffix"), [(99, True), (126, True), (127, False)])
def test_a_very_long_suffix_is_not_kept_in_an_aside_name(length: int, is_suffix: bool) -> None:
    suffix = "." + "s" * length
    name = beside(f"a{suffix}", "local", HERE)
    assert name.endswith(suffix) is is_suffix
    assert name.startswith(f"a{suffix}"[: MAX_PART_BYTES - 15]) is not is_suffix
    assert len(name) <= MAX_PART_BYTES


@pytest.mark.parametrize(("route", "side"), [(Route.UPLOAD, "remote"), (Route.DOWNLOAD, "local")])
def test_the_destinations_version_is_kept_aside(route: Route, side: str) -> None:
    near, far = replace(HERE, md5=TWO), THERE
    source, destination = (far, near) if route is Route.DOWNLOAD else (near, far)
    action = decide(Pair("a", source, destination), route, BOTH)
    assert action is not None
    assert action.aside == beside("a", side, destination)


def test_a_mirror_does_not_delete_versions_kept_aside() -> None:
    aside = beside("a", "remote", THERE)
    pairs = [
        Pair("d/a", replace(HERE, md5=TWO), THERE),
        Pair(f"d/{aside}", None, THERE),
        Pair("d/extra", None, THERE),
        # A file called "None".
        Pair("d/None", None, THERE),
    ]
    actions, _ = decide_all(pairs, Route.UPLOAD, BOTH._replace(mirror=True))
    assert {action.path: action.action for action in actions} == {
        "d/a": Action.TRANSFER,
        "d/extra": Action.DELETE,
        "d/None": Action.DELETE,
    }


def test_a_version_kept_aside_at_both_ends_is_unchanged() -> None:
    aside = beside("a", "remote", THERE)
    pairs = [Pair("a", replace(HERE, md5=TWO), THERE), Pair(aside, KNOWN, THERE)]
    actions, _ = decide_all(pairs, Route.UPLOAD, BOTH)
    assert {action.path: action.action for action in actions} == {"a": Action.TRANSFER, aside: Action.UNCHANGED}
    assert actions[0].aside == aside


@pytest.mark.parametrize(
    ("at_source", "at_destination", "free"),
    [
        pytest.param(None, None, True, id="nowhere"),
        pytest.param(KNOWN, None, False, id="at the source"),
        pytest.param(None, THERE, True, id="there already"),
        pytest.param(None, replace(THERE, md5=TWO), False, id="another file there"),
        # The transfer reads files without an MD5, and replaces none of them either.
        pytest.param(None, replace(THERE, md5=None), True, id="unknown content there"),
        pytest.param(KNOWN, THERE, True, id="at both ends"),
        pytest.param(replace(KNOWN, md5=TWO), THERE, False, id="another file at the source"),
        pytest.param(HERE, THERE, True, id="unknown content at the source"),
    ],
)
@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_keeping_a_version_aside_replaces_no_file(
    route: Route, at_source: FileState | None, at_destination: FileState | None, free: bool
) -> None:
    side = "local" if route is Route.DOWNLOAD else "remote"
    pairs = [Pair("d/a", replace(HERE, md5=TWO), THERE)]
    if at_source or at_destination:
        pairs.append(Pair(f"d/{beside('d/a', side, THERE)}", at_source, at_destination))
    actions, _ = decide_all(pairs, route, BOTH)
    (action,) = [each for each in actions if each.path == "d/a"]
    assert action.aside == beside("d/a", side, THERE, 0 if free else 1)


def test_keep_writes_at_the_source_only_with_both_ends() -> None:
    pair = Pair("a", replace(HERE, md5=TWO), THERE)
    keep_remote = TransferOptions(keep="remote")
    (adopted,), _ = decide_all([pair], Route.UPLOAD, keep_remote)
    (skipped,), _ = decide_all([pair], Route.UPLOAD, keep_remote, both_ends=False)
    assert (adopted.action, skipped.action) == (Action.ADOPT, Action.SKIP)
    assert decide(pair, Route.UPLOAD, keep_remote) == adopted


@pytest.mark.parametrize(
    ("deletions", "there", "files", "percent", "refused"),
    [
        pytest.param(10, 100, 10, 50.0, False, id="as many files as the limit"),
        pytest.param(11, 100, 10, 50.0, True, id="one more"),
        pytest.param(10, 100, 50, 10.0, False, id="the very share"),
        pytest.param(10, 100, 50, 9.95, True, id="a little more"),
        pytest.param(1, 1, 50, 60.0, True, id="one of one"),
        pytest.param(1, 0, 50, 60.0, True, id="one of nothing"),
    ],
)
def test_the_limits_of_a_mirror(deletions: int, there: int, files: int, percent: float, refused: bool) -> None:
    options = MIRROR._replace(max_delete_files=files, max_delete_percent=percent)
    assert (guard_mirror(deletions, there, 5, (), options, "data") is not None) is refused


@pytest.mark.parametrize(
    ("deletions", "there", "options", "refused"),
    [
        pytest.param(1, 7, MIRROR, False, id="one of seven"),
        pytest.param(18, 19, MIRROR, False, id="nearly all of nineteen"),
        pytest.param(3, 20, MIRROR, True, id="from twenty on the share counts"),
        pytest.param(2, 20, MIRROR, False, id="within the share"),
        pytest.param(1, 7, MIRROR._replace(max_delete_percent=5.0), True, id="a share that was given counts always"),
        pytest.param(1, 7, MIRROR._replace(max_delete_files=10**12), True, id="10 % that was given, too"),
    ],
)
def test_the_default_percentage_applies_from_twenty_files_on(
    deletions: int, there: int, options: TransferOptions, refused: bool
) -> None:
    assert (guard_mirror(deletions, there, 5, (), options, "data") is not None) is refused


@pytest.mark.parametrize(
    ("here", "options", "limit"),
    [
        (0, MIRROR, "because the source is empty"),
        (9, MIRROR, "more than the limit of 1,000 files or 10 %"),
        (9, MIRROR._replace(max_delete_files=3, max_delete_percent=100.0), "more than the limit of 3 files"),
        (9, MIRROR._replace(max_delete_files=10**12, max_delete_percent=5.0), "more than the limit of 5 %"),
    ],
)
def test_a_refusal_names_the_files(here: int, options: TransferOptions, limit: str) -> None:
    doomed = ("a", "b/c", "d", "never read")
    refusal = guard_mirror(1204, 2000, here, (), options, "data/x", iter(doomed))
    assert refusal is not None
    assert refusal.message.endswith(f"{limit}: data/x/a, data/x/b/c, data/x/d, and 1,201 more")
    one = guard_mirror(1, 1, 0, (), options, "data/x", [""])
    assert one is not None and one.message.endswith(": data/x")
    assert one.message.startswith("--mirror would delete the only file of the destination")
    two = guard_mirror(2, 2, 0, (), options, "data/x", ["a", "b"])
    assert two is not None and two.message.startswith("--mirror would delete all 2 files of the destination")


def test_a_mirror_of_an_unreadable_source_names_what_cannot_be_read_and_what_it_would_delete() -> None:
    refusal = guard_mirror(1, 30, 9, ["data/x/broken"], MIRROR, "data/x", ["file7"])
    assert refusal is not None
    assert "1 name of the source could not be read (data/x/broken), so" in refusal.message
    assert refusal.message.endswith("; it would delete data/x/file7")
    many = guard_mirror(2, 30, 9, ["a", "b", "c", "d"], MIRROR, "data/x")
    assert many is not None and "4 names of the source could not be read (a, b, c, and 1 more)" in many.message
    assert many.message.endswith("; it would delete 2 files")


def test_a_refusal_that_knows_no_names_says_its_limit() -> None:
    options = MIRROR._replace(max_delete_files=3, max_delete_percent=99.5)
    refusal = guard_mirror(5, 9, 9, (), options, "data/x")
    assert refusal is not None
    assert refusal.message.endswith("more than the limit of 3 files or 99.5 %")


def moving(path: str, aside: str | None = None) -> FileAction:
    return FileAction(path, Action.TRANSFER, Reason.NEW, 1, aside=aside)


def bad(name: str) -> str | None:
    return "is bad" if "bad" in name else None


def test_files_with_invalid_names_are_left_out_one_by_one() -> None:
    unmoved = FileAction("bad-but-unchanged", Action.UNCHANGED, Reason.SAME_MD5, 1)
    good = [moving("d/a", aside="a.remote"), moving("b"), unmoved, moving("", aside="bad, but not below the path")]
    kept, failures = leave_out([*good, moving("d/bad"), moving("d/c", aside="bad")], "data/x", bad)
    assert list(kept) == good
    assert [(failure.path, failure.code) for failure in failures] == [
        ("data/x/d/bad", "names_unsafe"),
        ("data/x/d/c", "names_unsafe"),
    ]
    assert all("left out: its name is bad" in failure.message for failure in failures)
    assert leave_out([moving("")], "data/bad", lambda name: "is bad")[1][0].path == "data/bad"


def test_existing_names_are_not_checked_if_no_file_is_written() -> None:
    unchanged = FileAction("a", Action.UNCHANGED, Reason.SAME_MD5, 1)
    check_names([unchanged], ["A", "a/b"], "data/x", bad, one_case=True)


@pytest.mark.parametrize(
    ("known", "blob"), [({}, "data/x/x"), ({"from_blobs": True}, "data/x/x"), ({"from_blobs": False}, None)]
)
def test_the_hint_for_a_blob_in_the_way_is_rm_blob(known: dict[str, Any], blob: str | None) -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([moving("x")], ["x/y"], "data/x", bad, **known)
    hint = refused.value.hint or ""
    assert (f"'blobsync rm --blob {blob}' removes that blob alone" in hint) is (blob is not None)
    assert ("rm --blob" in hint) is (blob is not None)
    assert hint.startswith("rename them at the source, or leave them out with --exclude")


def test_of_several_blobs_in_the_way_the_first_is_offered() -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([moving("x"), moving("y")], ["x/1", "y/1"], "data/x", bad)
    assert "'blobsync rm --blob data/x/x' removes" in (refused.value.hint or "")


def test_names_of_copies_aside_are_names_that_are_written() -> None:
    def setting_aside(path: str, aside: str) -> FileAction:
        return moving(path, aside)._replace(destination=THERE)

    with pytest.raises(UnsafeNamesError) as refused:
        check_names([setting_aside("d/a", "bad.remote"), setting_aside("d/b", "c")], (), "data/x", bad)
    assert refused.value.names == (("data/x/d/bad.remote", "is bad"),)
    assert refused.value.message.startswith("1 name cannot")
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([setting_aside("d/bad", "c.remote")], (), "data/x", bad)
    assert refused.value.message.startswith("1 name cannot"), "each name counts once"
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([setting_aside("d/a", "c.remote")], ["d/c.remote/b"], "data/x", bad)
    assert [name for name, _ in refused.value.names] == ["data/x/d/c.remote"]


def test_a_name_that_is_there_already_is_not_judged_and_of_two_it_is_the_one_that_differs() -> None:
    check_names([moving("a")], ["bad"], "data/x", bad)
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([moving("a")], ["A"], "data/x", bad, one_case=True)
    ((name, why),) = refused.value.names
    assert name == "data/x/A" and why.startswith("differs from 'a' only in case")


def test_all_bad_names_are_counted_and_the_first_thousand_told() -> None:
    for count in (999, 1_000, 1_001):
        with pytest.raises(UnsafeNamesError) as refused:
            check_names([moving(f"{n:04}bad") for n in range(count)], (), "data/x", bad)
        assert refused.value.message.startswith(f"{count} names")
        assert len(refused.value.names) == min(count, 1_000)


@pytest.mark.parametrize(("count", "listed", "more"), [(1, 1, ""), (20, 20, ""), (21, 20, "; and 1 more")])
def test_at_most_twenty_names_are_listed(count: int, listed: int, more: str) -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([moving(f"bad{n}") for n in range(count)], (), "data/x", bad)
    said = refused.value.message
    assert said.startswith(f"{count} name{'s' if count > 1 else ''} cannot be written")
    assert (said.count("is bad"), said.endswith(f"is bad{more}")) == (listed, True)
    assert len(refused.value.names) == count


def test_a_single_file_is_reported_with_its_path() -> None:
    with pytest.raises(UnsafeNamesError) as refused:
        check_names([moving("")], (), "data/x", lambda name: "is bad")
    assert refused.value.names == (("data/x", "is bad"),)


def test_a_file_that_will_be_deleted_does_not_clash() -> None:
    check_names([moving("a"), FileAction("A", Action.DELETE, Reason.EXTRA, 1)], (), "data/x", bad, one_case=True)
    with pytest.raises(UnsafeNamesError):
        check_names([moving("a"), FileAction("A", Action.SKIP, Reason.EXTRA, 1)], (), "data/x", bad, one_case=True)
