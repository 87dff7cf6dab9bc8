"""``status``: what each folder entry says after each kind of change, from the index and with a listing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    FailureCode,
    NothingMatchedError,
    StorageUnreachableError,
    UsageError,
)
from blobsync.base.exit_codes import ExitCode
from blobsync.config.model import StorageAccount
from blobsync.jobs.history import History
from blobsync.jobspec.spec import FolderLink, JobRef, RunInfo, State
from blobsync.project.status import AccountCheck, EntryStatus
from tests.fakes.jobs import make_spec
from tests.fakes.opened_project import Opened
from tests.fakes.project_context import account, cluster
from tests.fakes.store import MemoryStore


class Place(Opened):
    """A project with the entries ``data`` and ``data/coco`` in one container in memory."""

    def entry(self, path: str = "data", *, fresh: bool = False) -> EntryStatus:
        return next(each for each in self.project.status(fresh=fresh).entries if each.path == path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "project", cluster("eu", data=account("eu"), data__coco=account("eu")))
    yield place
    place.project.close()


@pytest.fixture
def synced(place: Place) -> Place:
    """Three files on both sides, listed and verified."""
    for name in "abc":
        place.write(f"data/{name}", name.encode() * 10)
    assert place.project.upload("data").ok
    return place


_COUNTS = ("newer_at_destination", "missing_here", "ignored", "left_out", "not_files")


def numbers(status: EntryStatus) -> dict[str, int]:
    """What is not zero."""
    names = ("here", "there", "to_upload", "to_download", "conflicts", "never_verified")
    found = {name: getattr(status, name).files for name in names}
    found |= {name: getattr(status, name) for name in _COUNTS}
    return {name: count for name, count in found.items() if count}


def older(path: Path, body: bytes) -> None:
    """Another content, written so that no clock tick hides it."""
    path.write_bytes(body)
    os.utime(path, ns=(1, 1))


_NEW = {"to_download": 1, "missing_here": 1}
_NEWER = {"to_download": 1, "newer_at_destination": 1}

Change = tuple[Callable[[Place], object], dict[str, int]]
LOCAL_CHANGES: dict[str, Change] = {
    "nothing": (lambda place: None, {"here": 3, "there": 3}),
    "a new file": (lambda place: place.write("data/new", b"n"), {"here": 4, "there": 3, "to_upload": 1}),
    "another content": (lambda place: older(place.root / "data/a", b"other"), {"here": 3, "there": 3, "to_upload": 1}),
    "the same size": (lambda place: older(place.root / "data/a", b"x" * 10), {"here": 3, "there": 3, "to_upload": 1}),
    "touched": (lambda place: os.utime(place.root / "data/a", ns=(1, 1)), {"here": 3, "there": 3}),
    "removed": (lambda place: (place.root / "data/a").unlink(), {"here": 2, "there": 3, **_NEW}),
    "a folder of it": (lambda place: place.write("data/a2/b", b"x"), {"here": 4, "there": 3, "to_upload": 1}),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["index", "fresh"])
@pytest.mark.parametrize("kind", LOCAL_CHANGES)
def test_each_change_here_is_seen_at_once(synced: Place, kind: str, fresh: bool) -> None:
    change, expected = LOCAL_CHANGES[kind]
    change(synced)
    assert numbers(synced.entry(fresh=fresh)) == expected


REMOTE_CHANGES: dict[str, Change] = {
    "a new blob": (lambda place: place.store.add("store/data/new", b"n"), {"here": 3, "there": 4, **_NEW}),
    "another content": (lambda place: place.store.add("store/data/a", b"theirs"), {"here": 3, "there": 3, **_NEWER}),
    "removed": (lambda place: place.store.delete("store/data/a"), {"here": 3, "there": 2, "to_upload": 1}),
    "uploaded again": (lambda place: place.store.add("store/data/a", b"a" * 10), {"here": 3, "there": 3}),
}


@pytest.mark.parametrize("kind", REMOTE_CHANGES)
def test_a_change_there_is_seen_by_a_listing_and_remembered(synced: Place, kind: str) -> None:
    change, expected = REMOTE_CHANGES[kind]
    change(synced)
    assert numbers(synced.entry()) == {"here": 3, "there": 3}
    assert numbers(synced.entry(fresh=True)) == expected
    assert numbers(synced.entry()) == expected


@pytest.mark.parametrize("look", ["plan_upload", "plan_download", "verify"])
def test_whatever_lists_a_folder_is_remembered(synced: Place, look: str) -> None:
    synced.store.add("store/data/new", b"n")
    getattr(synced.project, look)("data")
    assert numbers(synced.entry()) == {"here": 3, "there": 4, "to_download": 1, "missing_here": 1}


def look_by(place: Place, how: str) -> None:
    """By a command that lists something; it may find nothing."""
    word, path, *more = how.split()
    project = place.project
    with suppress(NothingMatchedError):
        if word == "ls":
            list(project.list(path, recursive=bool(more)))
        elif word == "du":
            project.usage(path)
        else:
            getattr(project, word)(path)


@pytest.mark.parametrize("how", ["ls data -r", "du data", "verify data", "plan_upload data", "plan_download data"])
def test_whatever_listed_a_folder_tells_its_age_and_what_was_in_it(place: Place, how: str) -> None:
    place.write("data/sub/mine", b"m")
    place.store.add("store/data/sub/theirs", b"th")
    place.store.add("store/data/coco/other", b"c")
    before = time.time()
    look_by(place, how)
    found = place.entry()
    assert numbers(found) == {"here": 1, "there": 1, "to_upload": 1, "to_download": 1, "missing_here": 1}
    assert found.as_of is not None and found.as_of >= before
    place.store.delete("store/data/sub/theirs")
    look_by(place, how)
    assert numbers(place.entry()) == {"here": 1, "to_upload": 1}


@pytest.mark.parametrize("how", ["ls data -r", "ls data", "du data", "verify data", "download data", "upload data"])
def test_a_container_that_was_found_empty_was_listed(place: Place, how: str) -> None:
    place.write("data/a", b"a")
    if how == "verify data":
        (place.root / "data/a").unlink()
    before = time.time()
    look_by(place, how)
    listed = place.entry().as_of
    assert listed is not None and listed >= before


@pytest.mark.parametrize("how", ["ls data/a", "verify data/a", "plan_upload data/a", "plan_download data/a"])
def test_a_single_file_that_was_looked_at_is_known_and_nothing_beside_it(place: Place, how: str) -> None:
    place.write("data/a", b"mine")
    place.write("data/b", b"b")
    place.store.add("store/data/a", b"theirs")
    look_by(place, how)
    assert numbers(place.entry()) == {"here": 2, "there": 1, "conflicts": 1, "never_verified": 1}
    assert place.entry().as_of is None
    (found,) = place.project.status("data/a").entries
    assert found.as_of is not None and numbers(found) == {"here": 1, "there": 1, "conflicts": 1}
    assert place.project.upload("data/a", overwrite=True).ok
    place.store.delete("store/data/a")
    look_by(place, how)
    assert numbers(place.project.status("data/a").entries[0]) == {"here": 1, "to_upload": 1}


def test_one_level_is_known_without_what_is_below_it(synced: Place) -> None:
    for name in ("sub/x", "sub/deeper/y", "new"):
        synced.write(f"data/{name}", b"new")
    assert synced.project.upload("data/sub").ok
    was = synced.entry().as_of
    synced.store.delete("store/data/a")
    synced.store.delete("store/data/sub/x")
    synced.store.add("store/data/b", b"theirs")
    synced.store.add("store/data/theirs", b"t")
    look_by(synced, "ls data")
    expected = {"here": 6, "there": 5, "to_upload": 2, "to_download": 2, "missing_here": 1, "newer_at_destination": 1}
    assert numbers(synced.entry()) == expected
    assert synced.entry().as_of == was


def test_of_a_folder_that_was_listed_in_part_the_rest_stays_unknown(place: Place) -> None:
    for name in ("a", "sub/x", "other/y"):
        place.write(f"data/{name}", b"1")
    place.store.add("store/data/sub/theirs", b"1")
    look_by(place, "verify data/sub")
    assert numbers(place.entry()) == {
        "here": 3, "there": 1, "to_upload": 1, "to_download": 1, "missing_here": 1, "never_verified": 2
    }  # fmt: skip
    look_by(place, "ls data")
    assert numbers(place.entry())["never_verified"] == 1
    assert place.entry().as_of is None
    assert place.project.status("data/other").entries[0].as_of is None
    assert place.project.status("data/a").entries[0].as_of is not None
    look_by(place, "ls data/sub")
    assert place.project.status("data/sub").entries[0].as_of is not None


@pytest.mark.parametrize("how", ["--keep", "download", "upload --overwrite", "remove", "mirror"])
def test_what_blobsync_itself_changed_there_is_known(synced: Place, how: str) -> None:
    project = synced.project
    older(synced.root / "data/a", b"mine")
    synced.store.add("store/data/a", b"theirs")
    synced.store.add("store/data/extra", b"e")
    assert numbers(synced.entry(fresh=True)) == {
        "here": 3, "there": 4, "conflicts": 1, "to_download": 1, "missing_here": 1
    }  # fmt: skip
    if how == "--keep":
        assert project.upload("data", keep="both").ok
        expected = {"here": 4, "there": 5, "to_download": 1, "missing_here": 1}
    elif how == "download":
        assert project.download("data", keep="local").ok
        expected = {"here": 4, "there": 4}
    elif how == "upload --overwrite":
        assert project.upload("data", overwrite=True).ok
        expected = {"here": 3, "there": 4, "to_download": 1, "missing_here": 1}
    elif how == "remove":
        project.remove(project.find_removal("data/a"))
        expected = {"here": 3, "there": 3, "to_upload": 1, "to_download": 1, "missing_here": 1}
    else:
        assert project.upload("data", overwrite=True, mirror=True, max_delete_percent=100).ok
        expected = {"here": 3, "there": 3}
    assert numbers(synced.entry()) == expected
    assert numbers(synced.entry(fresh=True)) == expected


def test_files_that_both_have_and_nobody_verified(place: Place) -> None:
    place.write("data/differs", b"mine")
    place.write("data/same", b"same")
    place.store.add("store/data/differs", b"theirs")
    place.store.add("store/data/same", b"same")
    assert numbers(place.entry()) == {"here": 2, "never_verified": 2}
    assert numbers(place.entry(fresh=True)) == {"here": 2, "there": 2, "conflicts": 1}
    assert place.project.status(fresh=True).exit_code is ExitCode.PARTIAL


def test_a_file_that_nothing_tells_of_is_never_verified_and_no_conflict(place: Place) -> None:
    place.write("data/same", b"same")
    place.store.add("store/data/same", b"same", with_md5=False)
    assert numbers(place.entry(fresh=True)) == {"here": 1, "there": 1, "never_verified": 1}
    assert (place.project.status().exit_code, place.project.status().differs) == (ExitCode.DONE, False)
    assert place.project.status(fresh=True).exit_code is ExitCode.PARTIAL


def test_each_thing_that_is_no_file_to_move_is_counted_as_what_it_is(synced: Place, tmp_path: Path) -> None:
    for name in ("pipe", "c"):
        (synced.root / "data" / name).unlink(missing_ok=True)
        os.mkfifo(synced.root / "data" / name)
    (synced.root / "data/link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").write_bytes(b"o")
    for fresh in (False, True):
        assert numbers(synced.entry(fresh=fresh)) == {"here": 2, "there": 3, "left_out": 1, "not_files": 2}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_whose_name_no_blob_can_have_is_not_to_upload(synced: Place, fresh: bool) -> None:
    (synced.root / "data/bad\tname").write_bytes(b"x")
    found = synced.entry(fresh=fresh)
    assert not found.to_upload.files and not found.never_verified.files and not found.ok
    (failure,) = found.unreadable
    assert (failure.path, failure.code) == ("data/bad\tname", FailureCode.NAMES_UNSAFE)
    assert "control character" in failure.message


def test_entries_inside_others_count_for_themselves(synced: Place) -> None:
    synced.write("data/coco/x", b"x")
    found = synced.project.status(fresh=True).entries
    assert [(each.path, each.here.files, each.there.files) for each in found] == [("data", 3, 3), ("data/coco", 1, 0)]
    assert [each.path for each in synced.project.status("data/coco").entries] == ["data/coco"]


def test_a_path_below_an_entry_counts_alone(synced: Place) -> None:
    synced.write("data/sub/x", b"x")
    assert synced.project.upload("data/sub").ok
    (found,) = synced.project.status("data/sub").entries
    assert (found.here.files, found.there.files) == (1, 1)
    (found,) = synced.project.status("data/a").entries
    assert numbers(found) == {"here": 1, "there": 1}


def test_how_old_the_knowledge_is(synced: Place) -> None:
    before = time.time()
    listed = synced.entry().as_of
    assert listed is not None and listed < before
    assert synced.entry("data/coco").as_of is None or synced.entry("data/coco").there.files == 0
    fresh = synced.entry(fresh=True)
    assert fresh.as_of is not None and fresh.as_of >= before
    assert synced.entry().as_of == pytest.approx(fresh.as_of, abs=1.0)


def test_a_part_of_the_listing_does_not_pass_for_all_of_it(place: Place) -> None:
    place.write("data/a", b"a")
    place.store.add("store/data/b", b"b")
    assert place.project.upload("data", include="a").ok
    assert place.entry().as_of is None
    assert place.project.upload("data/a").ok
    assert place.entry().as_of is None


def test_exit_codes(synced: Place) -> None:
    assert synced.project.status().exit_code is ExitCode.DONE
    assert synced.project.status(fresh=True).exit_code is ExitCode.DONE
    synced.write("data/new", b"n")
    assert synced.project.status().exit_code is ExitCode.PARTIAL
    assert synced.project.status("data/a").exit_code is ExitCode.DONE


def test_nothing_known_is_no_difference_but_no_equality_either(place: Place) -> None:
    place.write("data/a", b"a")
    found = place.project.status("data")
    assert found.exit_code is ExitCode.DONE and not found.differs
    assert found.entries[0].never_verified.files == 1


def test_an_entry_that_cannot_be_looked_at_does_not_hide_the_others(synced: Place) -> None:
    synced.write("data/coco", b"a file where a folder is")
    synced.store.add("store/data/coco/x", b"x")
    found = synced.project.status(fresh=True)
    assert [each.problem is None for each in found.entries] == [True, False]
    assert found.exit_code is ExitCode.PARTIAL


# -- ignored files ----------------------------------------------------------------------------------------------


@pytest.fixture
def ignoring(tmp_path: Path) -> Iterator[Place]:
    here = cluster("eu", data=account("eu"))
    entry = here.folders[0]._replace(ignore=("*.tmp", "/cache/", "!keep.tmp"))
    place = Place(tmp_path / "project", here._replace(folders=(entry,)))
    for name in ("a", "b.tmp", "keep.tmp", "cache/x", "sub/cache/y", "sub/z.tmp"):
        place.write(f"data/{name}", name.encode())
    yield place
    place.project.close()


def test_ignored_files_are_left_out_and_counted(ignoring: Place) -> None:
    plan = ignoring.project.plan_upload("data")
    assert {action.path for _, action in plan.each()} == {"a", "keep.tmp", "sub/cache/y"}
    assert plan.ignored == 3
    assert ignoring.project.upload("data").ok
    assert set(ignoring.store.blobs) == {f"store/data/{name}" for name in ("a", "keep.tmp", "sub/cache/y")}
    assert numbers(ignoring.entry()) == {"here": 3, "there": 3, "ignored": 3}
    assert ignoring.project.verify("data").ok


def test_patterns_count_from_the_entry_whatever_the_path(ignoring: Place) -> None:
    assert ignoring.project.plan_upload("data/cache").files_to_transfer == 0
    assert ignoring.project.plan_upload("data/sub").files_to_transfer == 1
    with pytest.raises(UsageError, match=r"^data/b\.tmp is ignored"):
        ignoring.project.plan_upload("data/b.tmp")


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_a_mirror_never_deletes_ignored_files(ignoring: Place, direction: str) -> None:
    assert ignoring.project.upload("data").ok
    ignoring.store.add("store/data/theirs.tmp", b"t")
    ignoring.store.add("store/data/cache/theirs", b"t")
    for name in ("a", "keep.tmp", "sub/cache/y"):
        ignoring.store.add(f"store/data/{name}", name.encode())
    move = getattr(ignoring.project, direction)
    assert move("data", mirror=True, overwrite=True, max_delete_percent=100).ok
    assert {"store/data/theirs.tmp", "store/data/cache/theirs"} <= set(ignoring.store.blobs)
    assert (ignoring.root / "data/b.tmp").exists() and (ignoring.root / "data/cache/x").exists()
    assert not (ignoring.root / "data/theirs.tmp").exists()


# -- all entries ------------------------------------------------------------------------------------------------


def test_all_entries_stand_for_a_path_each_and_an_empty_one_is_passed_over(tmp_path: Path) -> None:
    place = Place(
        tmp_path / "project", cluster("eu", data=account("eu"), data__coco=account("eu"), output=account("eu"))
    )
    with place.project as project:
        place.write("data/a", b"a")
        place.write("data/coco/b", b"b")
        plan = project.plan_upload(all_entries=True)
        assert [part.path for part in plan.parts] == ["data", "data/coco"]
        file = tmp_path / "all.plan"
        project.save_plan(plan, file)
        # How long an engine would take depends on how quickly the container answers.
        assert replace(project.load_plan(file), engine=plan.engine) == plan
        assert project.carry_out(plan).transferred == 2
        assert project.download(all_entries=True).verified == 2
        with pytest.raises(UsageError, match="give no PATH with it"):
            project.upload("data", all_entries=True)
        with pytest.raises(UsageError, match="no path given"):
            project.upload()


# -- whether accounts answer ----------------------------------------------------------------------------------


class _Silent(MemoryStore):
    def __init__(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        self._error, self._seconds = error, seconds

    def head(self, name: str) -> None:
        time.sleep(self._seconds)
        if self._error:
            raise self._error


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (_Silent(), None),
        (_Silent(AccessDeniedError("only writing is allowed")), None),
        (_Silent(StorageUnreachableError("eu cannot be reached")), "eu cannot be reached"),
    ],
)
def test_an_account_that_refuses_answers_and_one_that_is_not_there_does_not(
    store: MemoryStore, expected: str | None
) -> None:
    def connect(_: StorageAccount) -> MemoryStore:
        return store

    assert AccountCheck(connect, [account("eu"), account("eu")]).silence(account("eu")) == expected


def test_an_account_that_takes_long_is_not_waited_for() -> None:
    check = AccountCheck(lambda _: _Silent(seconds=30.0), [account("eu")], patience=0.05)
    assert check.silence(account("eu")) == "eu did not answer within 0.05 s"


def job(
    place: Place,
    state: State,
    began: float | None,
    ended: float | None,
    mode: str = "upload",
    to: str = "store/data",
    platform: str = "slurm",
) -> str:
    """A recorded job that uploads to ``data``; its times are seconds from now."""
    where = FolderLink("data", str(account("eu").container), to, mode)
    spec = replace(make_spec(), folders=(where,), platform=platform, cluster="c")
    history = History(place.project.state.jobs_file)
    record = history.add(spec, JobRef(spec.run_id, "1"), platform)
    at = [None if each is None else time.time() + each for each in (began, ended)]
    history.update(record, RunInfo(spec.run_id, state, started=at[0], ended=at[1]))
    return spec.run_id


@pytest.mark.parametrize(
    ("state", "began", "ended", "named", "differs"),
    [
        pytest.param(State.COMPLETED, 5.0, 9.0, True, True, id="ran since the listing"),
        pytest.param(State.COMPLETED, -9.0, -5.0, False, False, id="ended before it"),
        pytest.param(State.RUNNING, -9.0, None, True, True, id="runs"),
        pytest.param(State.QUEUED, None, None, True, False, id="has not begun"),
        pytest.param(State.CANCELED, None, 9.0, True, False, id="never began"),
    ],
)
def test_a_listing_does_not_show_what_a_job_uploads(
    synced: Place, state: State, began: float | None, ended: float | None, named: bool, differs: bool
) -> None:
    run_id = job(synced, state, began, ended)
    entry = synced.entry()
    assert [each.id for each in entry.jobs] == ([run_id] if named else [])
    assert entry.differs is differs
    assert synced.project.status().exit_code == (3 if differs else 0)
    # A listing of now has seen what there is.
    assert not synced.entry(fresh=True).jobs
    assert synced.project.status(fresh=True).exit_code == 0


@pytest.mark.parametrize(
    ("mode", "to"), [("download", "store/data"), ("upload", "store/data2"), ("link", "store/data")]
)
def test_a_job_that_uploads_nothing_there_says_nothing_about_it(synced: Place, mode: str, to: str) -> None:
    job(synced, State.COMPLETED, 5.0, 9.0, mode, to)
    assert not synced.entry().jobs


def test_a_folder_that_was_never_listed_differs_when_a_job_uploaded_there(place: Place) -> None:
    run_id = job(place, State.FAILED, -9.0, -5.0, to="store/data/below")
    entry = place.entry()
    assert (entry.as_of, [each.id for each in entry.jobs], entry.differs) == (None, [run_id], True)


def test_a_job_of_this_machine_is_asked_for_and_named(synced: Place) -> None:
    run_id = job(synced, State.RUNNING, -9.0, None, platform="local")
    assert [each.id for each in synced.entry().jobs] == [run_id]
