"""The decision table of the planner; the test ids name what happened and what was requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blobsync.base.errors import UnsafeNamesError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.local.index import Record
from blobsync.plan.decisions import check_names, decide, decide_all, guard_mirror
from blobsync.plan.keep_both_names import beside
from blobsync.plan.pairing import Pair, needs_local_md5
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route

ONE, TWO, THREE = b"1" * 16, b"2" * 16, b"3" * 16
HERE = LocalState(10, 1_000, 1_000, 7)
THERE = RemoteState(10, "etag-1", ONE)
RECORD = Record(replace(HERE, md5=ONE), THERE)
TOUCHED = replace(HERE, mtime_ns=2_000, md5=ONE)
EDITED = replace(HERE, mtime_ns=2_000, md5=TWO)
EDITED_OLDER = replace(HERE, mtime_ns=5, md5=TWO)
GROWN = replace(HERE, size=11)
REWRITTEN = RemoteState(10, "etag-2", ONE)
REPLACED = RemoteState(10, "etag-2", THREE)
NO_MD5 = RemoteState(10, "etag-2", None)

PLAIN = TransferOptions()
OVERWRITE = TransferOptions(overwrite=True)
KEEP_LOCAL, KEEP_REMOTE, KEEP_BOTH = (TransferOptions(keep=side) for side in ("local", "remote", "both"))
MIRROR = TransferOptions(mirror=True)

UP, DOWN = Route.UPLOAD, Route.DOWNLOAD
Expected = tuple[Action, Reason] | None


@pytest.mark.parametrize(
    ("route", "local", "remote", "record", "options", "expected"),
    [
        pytest.param(UP, HERE, None, None, PLAIN, (Action.TRANSFER, Reason.NEW), id="u: only here"),
        pytest.param(DOWN, None, THERE, None, PLAIN, (Action.TRANSFER, Reason.NEW), id="d: only there"),
        pytest.param(UP, None, THERE, None, PLAIN, None, id="u: only there"),
        pytest.param(DOWN, HERE, None, None, PLAIN, None, id="d: only here"),
        pytest.param(UP, None, THERE, None, MIRROR, (Action.DELETE, Reason.EXTRA), id="u --mirror: only there"),
        pytest.param(DOWN, HERE, None, None, MIRROR, (Action.DELETE, Reason.EXTRA), id="d --mirror: only here"),
        pytest.param(UP, HERE, THERE, RECORD, PLAIN, (Action.UNCHANGED, Reason.SAME_RECORD), id="u: as verified"),
        pytest.param(DOWN, HERE, THERE, RECORD, PLAIN, (Action.UNCHANGED, Reason.SAME_RECORD), id="d: as verified"),
        pytest.param(UP, TOUCHED, THERE, RECORD, PLAIN, (Action.UNCHANGED, Reason.SAME_RECORD), id="u: touched"),
        pytest.param(UP, EDITED, THERE, RECORD, PLAIN, (Action.TRANSFER, Reason.CHANGED_HERE), id="u: edited"),
        pytest.param(
            UP, EDITED_OLDER, THERE, RECORD, PLAIN, (Action.TRANSFER, Reason.CHANGED_HERE), id="u: older mtime"
        ),
        pytest.param(UP, GROWN, THERE, RECORD, PLAIN, (Action.TRANSFER, Reason.CHANGED_HERE), id="u: grown"),
        pytest.param(
            DOWN,
            EDITED,
            THERE,
            RECORD,
            PLAIN,
            (Action.NEWER_AT_DESTINATION, Reason.DESTINATION_CHANGED),
            id="d: edited",
        ),
        pytest.param(
            DOWN, EDITED, THERE, RECORD, OVERWRITE, (Action.TRANSFER, Reason.OVERWRITE), id="d --overwrite: edited"
        ),
        pytest.param(
            DOWN, HERE, REPLACED, RECORD, PLAIN, (Action.TRANSFER, Reason.CHANGED_HERE), id="d: replaced there"
        ),
        pytest.param(
            UP,
            HERE,
            REPLACED,
            RECORD,
            PLAIN,
            (Action.NEWER_AT_DESTINATION, Reason.DESTINATION_CHANGED),
            id="u: replaced there",
        ),
        pytest.param(
            UP, HERE, REWRITTEN, RECORD, PLAIN, (Action.UNCHANGED, Reason.SAME_RECORD), id="u: rewritten alike"
        ),
        pytest.param(UP, EDITED, REPLACED, RECORD, PLAIN, (Action.CONFLICT, Reason.BOTH_CHANGED), id="u: both changed"),
        pytest.param(
            DOWN, EDITED, REPLACED, RECORD, PLAIN, (Action.CONFLICT, Reason.BOTH_CHANGED), id="d: both changed"
        ),
        pytest.param(
            UP,
            replace(EDITED, md5=THREE),
            REPLACED,
            RECORD,
            PLAIN,
            (Action.UNCHANGED, Reason.SAME_MD5),
            id="u: both changed alike",
        ),
        pytest.param(
            UP, EDITED, REPLACED, RECORD, OVERWRITE, (Action.TRANSFER, Reason.OVERWRITE), id="u --overwrite: both"
        ),
        pytest.param(
            UP, EDITED, REPLACED, RECORD, KEEP_LOCAL, (Action.TRANSFER, Reason.KEEP_SOURCE), id="u --keep local"
        ),
        pytest.param(
            UP, EDITED, REPLACED, RECORD, KEEP_REMOTE, (Action.ADOPT, Reason.KEEP_DESTINATION), id="u --keep remote"
        ),
        pytest.param(
            DOWN, EDITED, REPLACED, RECORD, KEEP_REMOTE, (Action.TRANSFER, Reason.KEEP_SOURCE), id="d --keep remote"
        ),
        pytest.param(
            DOWN, EDITED, REPLACED, RECORD, KEEP_LOCAL, (Action.ADOPT, Reason.KEEP_DESTINATION), id="d --keep local"
        ),
        pytest.param(UP, EDITED, REPLACED, RECORD, KEEP_BOTH, (Action.TRANSFER, Reason.KEEP_BOTH), id="u --keep both"),
        pytest.param(
            UP, TOUCHED, THERE, None, PLAIN, (Action.UNCHANGED, Reason.SAME_MD5), id="u: raw azcopy put it there"
        ),
        pytest.param(UP, EDITED, THERE, None, PLAIN, (Action.CONFLICT, Reason.CONTENT_DIFFERS), id="u: never verified"),
        pytest.param(
            UP, GROWN, THERE, None, PLAIN, (Action.CONFLICT, Reason.NEVER_VERIFIED), id="u: never verified, size"
        ),
        pytest.param(DOWN, TOUCHED, NO_MD5, None, PLAIN, (Action.CONFLICT, Reason.NO_MD5), id="d: blob without MD5"),
        pytest.param(
            DOWN, TOUCHED, NO_MD5, None, OVERWRITE, (Action.TRANSFER, Reason.OVERWRITE), id="d --overwrite: no MD5"
        ),
    ],
)
def test_decision_table(
    route: Route,
    local: FileState | None,
    remote: FileState | None,
    record: Record | None,
    options: TransferOptions,
    expected: Expected,
) -> None:
    source, destination = (local, remote) if route is Route.UPLOAD else (remote, local)
    action = decide(Pair("a.jpg", source, destination, record), route, options)
    assert (None if action is None else (action.action, action.reason)) == expected


def test_a_file_that_was_not_read_counts_as_changed_when_its_stat_differs() -> None:
    unread = replace(HERE, mtime_ns=2_000)
    action = decide(Pair("a", unread, THERE, RECORD), UP, PLAIN)
    assert action is not None
    assert action.action is Action.TRANSFER


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (Pair("a", HERE, THERE, RECORD), False),
        (Pair("a", replace(HERE, mtime_ns=2), THERE, RECORD), True),
        (Pair("a", HERE, THERE), True),
        (Pair("a", GROWN, THERE), False),
        (Pair("a", HERE, None), False),
        (Pair("a", HERE, NO_MD5), False),
    ],
    ids=["vouched for", "touched", "no record", "sizes differ", "new", "nothing to compare with"],
)
def test_files_are_hashed_only_where_size_and_record_do_not_decide(pair: Pair, *, expected: bool) -> None:
    assert needs_local_md5(pair, UP) is expected


def test_keeping_both_names_the_other_version_after_itself() -> None:
    conflict = Pair("d/a.tar.gz", EDITED, REPLACED, RECORD)
    (first,), _ = decide_all([conflict], UP, KEEP_BOTH)
    assert first.aside == beside("d/a.tar.gz", "remote", REPLACED)
    assert first.aside.startswith("a.tar.remote-")
    assert first.aside.endswith(".gz")
    (single,), _ = decide_all([conflict._replace(path="")], UP, KEEP_BOTH, shown="data/a.tar.gz")
    assert single.aside == first.aside


def test_a_version_kept_aside_earlier_keeps_its_name_and_is_not_an_extra() -> None:
    conflict = Pair("a", EDITED, REPLACED, RECORD)
    name = beside("a", "remote", REPLACED)
    made_before = Pair(name, None, RemoteState(10, "etag-9", THREE))
    actions, _ = decide_all([conflict, made_before], UP, KEEP_BOTH._replace(mirror=True))
    assert [(action.path, action.aside) for action in actions] == [("a", name)]
    somebodys = Pair(name, None, RemoteState(10, "etag-9", TWO))
    (action,), _ = decide_all([conflict, somebodys], UP, KEEP_BOTH)
    assert action.aside not in (None, name)


@pytest.mark.parametrize("name", ["n" * 255, "é" * 120 + ".jpeg", "x." + "y" * 250])
def test_a_long_name_is_cut_to_make_room(name: str) -> None:
    aside = beside(name, "remote", REPLACED)
    assert len(aside.encode()) <= 255
    assert ".remote-" in aside


def test_keep_never_writes_to_the_other_cluster() -> None:
    conflict = Pair("a", REPLACED, replace(THERE, etag="etag-5", md5=TWO))
    for route in (Route.SAME_ACCOUNT, DOWN):
        keep = KEEP_LOCAL if route is DOWN else KEEP_REMOTE
        action = decide(conflict, route, keep, both_ends=False)
        assert action is not None
        assert (action.action, action.reason) == (Action.SKIP, Reason.KEEP_DESTINATION)


def test_actions_are_sorted_by_path_and_extras_are_listed() -> None:
    pairs = [Pair("b", HERE, None), Pair("x", None, THERE), Pair("a", HERE, None)]
    actions, extras = decide_all(pairs, UP, PLAIN)
    assert [action.path for action in actions] == ["a", "b"]
    assert extras == ["x"]


@pytest.mark.parametrize(
    ("deletions", "there", "here", "unreadable", "options", "said"),
    [
        (5, 5, 0, (), MIRROR, "the source is empty"),
        (1, 100, 99, ("data/b",), MIRROR, "could not be read"),
        (11, 100, 89, (), MIRROR, "11 of 100 files"),
        (1001, 100_000, 99_000, (), MIRROR, "1,001 of 100,000 files (1 %), more than the limit of 1,000 files or 10 %"),
        (3, 100, 97, (), MIRROR._replace(max_delete_files=2), "limit of 2 files"),
    ],
)
def test_a_mirror_that_looks_like_a_mistake_is_refused(
    deletions: int, there: int, here: int, unreadable: Sequence[str], options: TransferOptions, said: str
) -> None:
    refusal = guard_mirror(deletions, there, here, unreadable, options, "data")
    assert refusal is not None
    assert (refusal.code, refusal.path) == ("mirror_refused", "data")
    assert said in refusal.message


def test_a_mirror_within_its_limits_passes() -> None:
    assert guard_mirror(10, 100, 90, (), MIRROR) is None
    assert guard_mirror(0, 0, 0, ("a",), MIRROR) is None


def test_names_that_cannot_be_written_are_listed_all_at_once() -> None:
    actions = [FileAction(name, Action.TRANSFER, Reason.NEW, 1) for name in ("bad1", "good", "bad2")]
    with pytest.raises(UnsafeNamesError) as refused:
        check_names(actions, (), "data/v", lambda name: "is bad" if name.startswith("bad") else None)
    assert [name for name, _ in refused.value.names] == ["data/v/bad1", "data/v/bad2"]


def test_names_that_differ_in_case_are_refused_only_on_a_case_insensitive_disk() -> None:
    actions = [FileAction(name, Action.TRANSFER, Reason.NEW, 1) for name in ("A", "b")]
    check_names(actions, ["a"], "data/v", lambda name: None)
    with pytest.raises(UnsafeNamesError, match="'data/v/a' differs from 'A' only in case"):
        check_names(actions, ["a"], "data/v", lambda name: None, one_case=True)


def test_a_file_where_the_destination_has_a_folder_is_refused() -> None:
    actions = [FileAction("x", Action.TRANSFER, Reason.NEW, 1)]
    with pytest.raises(UnsafeNamesError, match="'data/v/x' is a file beside 'x/y'"):
        check_names(actions, ["x/y"], "data/v", lambda name: None)
