"""``d --locked``: exactly what a lock says, from where each content is now, by the same table as any download."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, LockError, LostContentError, StorageError, UsageError
from blobsync.base.plan_reasons import Reason
from blobsync.cli.status import summary
from blobsync.local.lock_files import LockedFile, list_name, lock_name, pack, read_lock, write_lock
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.store.old_contents import OldContent, with_old_contents
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import GetOrder
from tests.fakes.opened_project import Opened
from tests.fakes.scripted_http import Step, scripted
from tests.fakes.store import Request
from tests.unit.test_sdk import store

_NOT_AS_LOCKED = "everything is equal, but not as locked"
BODIES = {"a": b"one", "b/c": b"two!", "b/d": b"", "e": b"three"}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """A project whose files were uploaded and locked, and then changed in the container."""
    opened = Opened(tmp_path / "project")
    opened.store.versioning = True
    for name, body in BODIES.items():
        opened.write(f"data/v/{name}", body)
    assert opened.project.upload("data/v").ok
    opened.project.lock("data/v")
    yield opened
    opened.project.close()


def change(opened: Opened) -> None:
    opened.store.add("store/data/v/a", b"uno, due")
    opened.store.delete("store/data/v/e")
    opened.store.add("store/data/v/b/c", BODIES["b/c"])
    opened.store.add("store/data/v/new", b"new")


def here(root: Path) -> dict[str, bytes]:
    folder = root / "data/v"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commit(opened: Opened, other: Opened) -> None:
    """Give the lock to the other checkout."""
    for name in (lock_name("data/v"), list_name("data/v")):
        other.write(name, (opened.root / name).read_bytes())


@pytest.fixture
def other(opened: Opened, tmp_path: Path) -> Iterator[Opened]:
    """Another checkout: the lock, and no data."""
    other = Opened(tmp_path / "other")
    other.store = opened.store
    commit(opened, other)
    yield other
    other.project.close()


def reasons(plan: TransferPlan) -> dict[str, tuple[Action, Reason]]:
    return {part.shown(action): (action.action, action.reason) for part, action in plan.each()}


def test_a_fresh_checkout_gets_exactly_the_locked_files(opened: Opened, other: Opened) -> None:
    change(opened)
    result = other.project.download("data/v", locked=True)
    assert result.ok and result.transferred == 4
    assert here(other.root) == BODIES
    again = other.project.plan_download("data/v", locked=True)
    assert (again.count(Action.UNCHANGED), again.files_to_transfer) == (4, 0)


def test_with_nothing_changed_every_file_comes_as_any_download(opened: Opened, other: Opened) -> None:
    plan = other.project.plan_download("data/v", locked=True)
    assert not other.project._open_context.old_contents
    assert other.project.carry_out(plan).ok
    assert here(other.root) == BODIES
    assert opened.store.asked("list_versions") == [] and opened.store.asked("get_version") == []


def test_azcopy_is_never_given_the_folder_which_may_hold_more(opened: Opened, other: Opened) -> None:
    assert other.project.plan_download("data/v").parts[0].whole
    opened.store.add("store/data/v/new", b"new")
    assert not other.project.plan_download("data/v", locked=True).parts[0].whole


def test_what_is_here_already_needs_no_container(opened: Opened) -> None:
    opened.store.requests.clear()
    plan = opened.project.plan_download("data/v", locked=True)
    assert plan.count(Action.UNCHANGED) == 4 and opened.store.requests == []


def test_the_table_holds_local_edits_are_conflicts_and_extras_stay_but_with_mirror(opened: Opened) -> None:
    change(opened)
    assert opened.project.download("data/v").ok
    opened.write("data/v/a", b"mine")
    opened.write("data/v/e", b"edit")
    plan = opened.project.plan_download("data/v", locked=True)
    found = reasons(plan)
    assert found["data/v/a"] == (Action.CONFLICT, Reason.BOTH_CHANGED)
    assert found["data/v/e"][0] is Action.NEWER_AT_DESTINATION
    result = opened.project.carry_out(plan)
    assert result.exit_code == 3 and here(opened.root) == {**BODIES, "a": b"mine", "e": b"edit", "new": b"new"}
    result = opened.project.download("data/v", locked=True, overwrite=True, mirror=True, max_delete_percent=100)
    assert result.ok and here(opened.root) == BODIES


def test_the_next_upload_puts_no_old_content_over_the_new(opened: Opened) -> None:
    change(opened)
    assert opened.project.download("data/v").ok
    assert opened.project.download("data/v", locked=True).ok
    assert here(opened.root)["a"] == BODIES["a"]
    up = opened.project.upload("data/v")
    assert opened.store.body("store/data/v/a") == b"uno, due" and up.plan.count(Action.NEWER_AT_DESTINATION) == 1
    status = opened.project.status(["data/v"]).entries[0]
    assert (status.newer_at_destination, status.to_upload.files) == (1, 0)
    back = opened.project.download("data/v")
    assert back.ok and here(opened.root)["a"] == b"uno, due"


def test_status_knows_after_a_locked_download_what_the_container_has(opened: Opened, other: Opened) -> None:
    change(opened)
    assert other.project.download("data/v").ok
    assert not other.project.status(["data/v"]).differs
    assert other.project.download("data/v", locked=True).ok
    status = other.project.status(["data/v"]).entries[0]
    assert (status.newer_at_destination, status.to_upload.files, status.there.files) == (1, 1, 4)


def test_a_content_that_no_version_has_comes_from_a_local_file(opened: Opened) -> None:
    opened.store.versioning = False
    change(opened)
    opened.store.delete("store/data/v/a")
    # The index knows another file of the same content, which is still as it was.
    opened.write("data/copies/one", BODIES["a"])
    opened.write("data/copies/three", BODIES["e"])
    assert opened.project.upload("data/copies").ok
    for name in BODIES:
        (opened.root / "data/v" / name).unlink()
    assert opened.project.download("data/v", locked=True).ok
    assert here(opened.root) == BODIES


def test_a_content_that_is_nowhere_is_named_and_nothing_is_moved(opened: Opened, other: Opened) -> None:
    opened.store.versioning = False
    change(opened)
    with pytest.raises(LostContentError, match="data/v/a, data/v/e is nowhere any more") as caught:
        other.project.download("data/v", locked=True)
    assert [name for name, _ in caught.value.names] == ["data/v/a", "data/v/e"]
    assert caught.value.exit_code == 1 and "versioning" in (caught.value.hint or "")
    assert not (other.root / "data/v").exists()
    assert other.project.download("data/v", locked=True, exclude=["a", "e"]).transferred == 2
    # What is here already has to be nowhere else.
    assert opened.project.download("data/v", locked=True).ok


def test_versions_that_cannot_be_listed_are_no_versions(opened: Opened, other: Opened) -> None:
    change(opened)

    def refuse(request: Request) -> None:
        if request.operation == "list_versions":
            raise StorageError("the SAS may not list versions")

    opened.store.before = refuse
    with pytest.raises(LostContentError, match="the SAS may not list versions"):
        other.project.download("data/v", locked=True)


def test_a_blob_without_an_md5_is_brought_as_the_version_that_was_locked(opened: Opened, other: Opened) -> None:
    opened.store.add("store/data/v/odd", b"odd", with_md5=False)
    opened.project.lock("data/v", compare_content=True)
    commit(opened, other)
    assert other.project.download("data/v", locked=True).ok
    assert here(other.root) == {**BODIES, "odd": b"odd"}
    (other.root / "data/v/odd").unlink()
    # The same size, and no MD5 either: an earlier version has it.
    opened.store.add("store/data/v/odd", b"ODD", with_md5=False)
    assert other.project.download("data/v", locked=True).ok
    assert here(other.root) == {**BODIES, "odd": b"odd"}


def test_a_part_of_what_is_locked_and_one_file_of_it(opened: Opened, other: Opened) -> None:
    change(opened)
    assert other.project.download("data/v/b", locked=True).transferred == 2
    assert other.project.download("data/v/a", locked=True).transferred == 1
    assert here(other.root) == {name: BODIES[name] for name in ("a", "b/c", "b/d")}


def test_large_files_come_from_their_versions(opened: Opened, other: Opened) -> None:
    large = os.urandom(9_000_000)
    opened.write("data/v/large", large)
    assert opened.project.upload("data/v").ok
    opened.project.lock("data/v")
    commit(opened, other)
    opened.store.add("store/data/v/large", large[:-1] + b"x")
    assert other.project.download("data/v", locked=True).ok
    assert here(other.root)["large"] == large


def test_a_blob_that_changes_while_it_is_brought_is_not_taken_as_it_is_then(opened: Opened, other: Opened) -> None:
    opened.store.versioning = False
    opened.store.takes_orders = False
    done: list[str] = []

    def overwrite(request: Request) -> None:
        if request.operation == "get" and request.name.endswith("/a") and not done:
            done.append(request.name)
            opened.store.add("store/data/v/a", b"NEW")

    plan = other.project.plan_download("data/v", locked=True)
    opened.store.before = overwrite
    result = other.project.carry_out(plan)
    assert [failure.code for failure in result.failures] == [FailureCode.CHANGED_WHILE_READ]
    assert "a" not in here(other.root)


def test_a_lock_that_says_of_a_version_what_the_index_does_not_is_not_believed(opened: Opened) -> None:
    lock, etag = read_lock(opened.root, "data/v"), opened.store.blobs["store/data/v/a"].info.etag
    packed = pack([LockedFile("a", 3, bytes(16), etag)])
    write_lock(opened.root, replace(lock, digest=packed.digest, files=1, bytes=3), packed.data)
    with pytest.raises(LostContentError):
        opened.project.download("data/v", locked=True)


@pytest.mark.parametrize("options", [{"nodes": 2}, {"engine": "azcopy"}])
def test_what_reads_no_versions_is_refused(opened: Opened, other: Opened, options: dict[str, object]) -> None:
    change(opened)
    with pytest.raises(UsageError):
        other.project.download("data/v", locked=True, **options)  # type: ignore[arg-type]


def test_without_a_lock_it_says_how_to_make_one(opened: Opened, other: Opened) -> None:
    with pytest.raises(LockError, match="data/w has no lock"):
        other.project.plan_download("data/w", locked=True)
    with pytest.raises(UsageError):
        other.project.plan_upload("data/v", locked=True)
    (other.root / list_name("data/v")).unlink()
    with pytest.raises(LockError):
        other.project.plan_download("data/v", locked=True)


def test_another_account_with_the_same_files_serves_as_well(opened: Opened, other: Opened) -> None:
    # Its ETags mean nothing there.
    lock = other.root / lock_name("data/v")
    lock.write_text(lock.read_text().replace('account: "eu"', 'account: "us"'))
    assert other.project.download("data/v", locked=True).ok
    assert here(other.root) == BODIES


@pytest.mark.parametrize("deep", [False, True])
def test_verify_compares_what_is_here_with_the_lock(opened: Opened, *, deep: bool) -> None:
    change(opened)
    opened.store.requests.clear()
    assert opened.project.verify("data/v", locked=True, deep=deep).counts == {"equal": 4}
    opened.write("data/v/b/c", b"TWO!")
    opened.write("data/v/more", b"")
    (opened.root / "data/v/e").unlink()
    report = opened.project.verify("data/v", locked=True, deep=deep)
    found = {file.path.removeprefix("data/v/"): file.status for file in report.not_equal}
    assert found == {"b/c": "changed_here", "more": "local_only", "e": "remote_only"}
    assert report.exit_code == 3 and opened.store.requests == []
    # What is as the container has it now is not what was locked.
    assert opened.project.download("data/v", overwrite=True).ok
    report = opened.project.verify("data/v/a", locked=True, deep=deep)
    assert report.counts == {"changed_there": 1} or report.counts == {"differs": 1}
    with pytest.raises(LockError):
        opened.project.verify("data/w", locked=True)


def drifted(opened: Opened, *, fresh: bool = False) -> tuple[str, ...]:
    return opened.project.status(["data"], fresh=fresh).entries[0].drifted


def test_status_names_what_is_not_as_locked(opened: Opened) -> None:
    assert opened.project.verify("data").ok
    opened.project.lock("data/v/a")
    assert drifted(opened) == drifted(opened, fresh=True) == ()
    opened.store.add("store/data/v/e", BODIES["e"])
    assert drifted(opened, fresh=True) == ()
    opened.store.add("store/data/v/e", b"other")
    assert (drifted(opened), drifted(opened, fresh=True), drifted(opened)) == ((), ("data/v",), ("data/v",))
    assert opened.project.download("data", overwrite=True).ok
    said = [summary(opened.project.status(["data"], fresh=fresh)) for fresh in (False, True)]
    assert said == ["nothing but the locks is known to differ; --fresh lists the containers", _NOT_AS_LOCKED]
    opened.store.delete("store/data/v/a")
    assert drifted(opened, fresh=True) == ("data/v", "data/v/a")
    (opened.root / lock_name("data/v")).write_text("no lock")
    assert drifted(opened) == ("data/v", "data/v/a")


def test_old_contents_come_among_many_small_requests_of_present_blobs(opened: Opened) -> None:
    before = opened.store.blobs["store/data/v/a"]
    change(opened)
    (version,) = [
        each.version for each in opened.store.list_versions("store/data/v/a") if each.etag == before.info.etag
    ]
    old = {(str(opened.store.container), "store/data/v/a", before.info.etag): OldContent(None, version)}
    orders = with_old_contents(OpenBlob(opened.store, "store/data/v"), old).store.orders()
    assert orders is not None
    now = opened.store.blobs["store/data/v/b/c"].info
    for etag, name in ((before.info.etag, "store/data/v/a"), (now.etag, now.name), ("0xnone", "store/data/v/a")):
        orders.begin(name if etag != "0xnone" else "none", GetOrder(name, etag, 3))
    orders.begin("longer than it may be", GetOrder("store/data/v/a", before.info.etag, 1))
    found: dict[object, object] = {}
    while orders.under_way:
        found.update(orders.ended(1.0))
    assert (found["store/data/v/a"], found[now.name]) == (b"one", BODIES["b/c"])
    assert isinstance(found["none"], StorageError)
    # One that has no end is not read to its end.
    assert found["longer than it may be"] == b"on"


def test_versions_are_listed_and_read_by_their_ids() -> None:
    one = "<Blob><Name>a</Name><VersionId>2026-11-20T10:00:00.0000000Z</VersionId><Properties><Etag>0x1</Etag>"
    rest = "<Content-Length>3</Content-Length></Properties></Blob>"
    listing = Step(200, f"<EnumerationResults><Blobs>{one}{rest}</Blobs><NextMarker/></EnumerationResults>".encode())
    body = Step(200, b"one", {"ETag": '"0x1"', "Last-Modified": "Fri, 20 Nov 2026 10:00:00 GMT"})
    with scripted([listing, body]) as script:
        opened = store(script)
        (found,) = opened.list_versions("a")
        with opened.open_version("a", found.version) as reader:
            assert reader.read(9) == b"one"
    assert found.version == "2026-11-20T10:00:00.0000000Z"
    assert "include=metadata%2Cversions" in script.seen[0].target
    assert "versionid=2026-11-20T10%3A00%3A00.0000000Z" in script.seen[1].target
