"""``undo``: what comes back, from where, and what is left alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from blobsync.base.errors import NothingMatchedError, TransferCancelledError, UndoImpossibleError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.plan_reasons import Reason
from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.api import Project
from tests.fakes.past_store import PastStore
from tests.fakes.project_context import cluster
from tests.fakes.store import Request

KEY = Secret("c2VudGluZWw=")
MANY = TransferOptions(mirror=True, max_delete_percent=100.0)


class World:
    """A project whose container keeps what ``keeps`` says."""

    def __init__(self, root: Path, keeps: str) -> None:
        self.root, self.store = root, PastStore(keeps)
        self.account = StorageAccount(
            "aux_data/configs/eu.yaml", "eu", "data", "http://127.0.0.1:1/eu", account_key=KEY
        )
        self.store.container_url = self.account.container
        (root / "data").mkdir(parents=True)
        self.project = self.open()

    def open(self, far: Cluster | None = None) -> Project:
        trusts = {"BLOBSYNC_TRUSTED_HOSTS": "127.0.0.1"}
        environ = {"HOME": str(self.root / "home"), "PATH": os.environ["PATH"], **trusts}
        settings = cluster("eu", data=self.account)._replace(root=self.root)
        return Project(self.root, self.root, settings, far, environ=environ, connect=lambda account: self.store)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.root / "data" / name).write_text(text)

    def here(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in (self.root / "data").iterdir()}

    def there(self) -> dict[str, str]:
        return {name.removeprefix("store/data/"): blob.body.decode() for name, blob in self.store.blobs.items()}

    @property
    def last(self) -> str:
        return self.project.history(limit=1)[0].id

    def undo(self, id: str = "", *paths: str) -> TransferResult:
        return self.project.carry_out(self.project.plan_undo(id or self.last, paths))


def kinds(plan: TransferPlan) -> dict[str, tuple[Action, Reason]]:
    return {action.path: (action.action, action.reason) for _, action in plan.each()}


def changed(world: World) -> tuple[Mapping[str, str], str]:
    """A mirror that replaces ``a``, deletes ``b``, creates ``c``, and leaves ``d``; the former content and its id."""
    world.write(a="one", b="two", d="four")
    assert world.project.upload("data").ok
    before = world.there()
    world.write(a="ONE", c="three")
    (world.root / "data/b").unlink()
    assert world.project.upload("data", MANY).ok
    return before, world.last


def test_an_upload_that_mirrored_is_taken_back_and_its_undo_too(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        before, id = changed(world)
        after = world.there()
        result = world.undo(id)
        assert result.ok and world.there() == before
        assert (result.transferred, result.deleted) == (2, 1)
        (seen,) = world.project.status(["data"]).entries
        assert (seen.there.files, seen.to_upload.files, seen.to_download.files) == (3, 1, 2), "c; a and b"
        entry = world.project.history(limit=1)[0]
        assert (entry.kind, entry.mirror, entry.result) == ("undo", False, "done")
        again = world.project.plan_undo(id)
        assert set(kinds(again).values()) == {(Action.UNCHANGED, Reason.AS_BEFORE)}
        assert world.undo(entry.id).ok and world.there() == after
        assert world.undo().ok and world.there() == before


def test_status_knows_at_once_what_a_copy_wrote_and_deleted(tmp_path: Path) -> None:
    world = World(tmp_path, "nothing")
    with world.project:
        world.write(a="one", c="three")
        assert world.project.upload("data").ok and world.project.verify("data").ok
    world.store.add("far/a", b"uno")
    world.store.add("far/b", b"due")
    far = Cluster("far", "aux_data/aml/far.yaml", tmp_path, folders=(FolderEntry("data", world.account, "far"),))
    with world.open(far) as copies:
        assert copies.upload("data", MANY, overwrite=True).ok
    with world.open() as world.project:
        assert world.there() == {"a": "uno", "b": "due", "far/a": "uno", "far/b": "due"}
        (seen,) = world.project.status(["data"]).entries
        assert (seen.newer_at_destination, seen.missing_here, seen.to_upload.files, seen.there.files) == (1, 1, 1, 2)


def test_what_was_changed_since_is_left_alone_and_named(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        _, id = changed(world)
        for name in ("a", "b", "c"):
            world.store.add(f"store/data/{name}", b"somebody's")
        result = world.undo(id)
        assert result.exit_code is ExitCode.PARTIAL
        assert [(each.path, each.message) for each in result.conflicts] == [
            (f"data/{name}", "left alone: changed since the run") for name in ("a", "b", "c")
        ]
        assert world.there() == {"a": "somebody's", "b": "somebody's", "c": "somebody's", "d": "four"}


def test_a_removal_is_taken_back_path_by_path(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        world.write(a="one", b="two")
        assert world.project.upload("data").ok
        (world.root / "data/a").unlink()
        world.project.remove(world.project.find_removal("data"))
        assert world.there() == {}
        id = world.last
        assert world.undo(id, "data/a").ok and world.there() == {"a": "one"}
        with pytest.raises(NothingMatchedError, match="nothing at data/other"):
            world.project.plan_undo(id, "data/other")
        assert world.undo(id).ok and world.there() == {"a": "one", "b": "two"}


def test_with_soft_delete_alone_a_replaced_blob_comes_back_from_its_deleted_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path, "deleted")
    with world.project:
        before, id = changed(world)
        after = world.there()
        assert [action for action, _ in kinds(world.project.plan_undo(id)).values()] == [
            *(Action.TRANSFER, Action.TRANSFER, Action.DELETE),
        ]
        assert world.undo(id).ok and world.there() == before
        # Undelete has made all deleted snapshots active: none stays so.
        assert {words.split()[0] for words, _ in world.store.past} == {"deleted"}
        assert world.undo().ok and world.there() == after
        assert world.undo().ok and world.there() == before


def test_a_snapshot_that_is_active_is_a_source_and_stays(tmp_path: Path) -> None:
    world = World(tmp_path, "deleted")
    with world.project:
        before, id = changed(world)
        world.store.undelete("store/data/a")
        active = [words for words, _ in world.store.past if words.startswith("snapshot ")]
        assert len(active) == 1 and world.undo(id).ok and world.there() == before
        assert active[0] in dict(world.store.past)


def test_a_deleted_blob_of_other_content_is_not_undeleted(tmp_path: Path) -> None:
    world = World(tmp_path, "deleted")
    with world.project:
        _, id = changed(world)
        world.store.add("store/data/b", b"somebody's")
        world.store.delete("store/data/b")
        plan = world.project.plan_undo(id, ["data/b"])
        assert kinds(plan) == {"b": (Action.CONFLICT, Reason.NOT_KEPT)}


def test_where_nothing_is_kept_only_equal_files_here_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, "nothing")
    with world.project:
        _, id = changed(world)
        world.write(b="two")
        result = world.undo(id)
        assert [each.path for each in result.conflicts] == ["data/a"]
        assert world.there() == {"a": "ONE", "b": "two", "d": "four"}


def test_a_download_is_taken_back_from_the_trash_and_its_undo_too(tmp_path: Path) -> None:
    world = World(tmp_path, "nothing")
    with world.project:
        world.write(a="one", d="four")
        assert world.project.upload("data").ok
        world.write(a="my edit", extra="only here")
        world.store.add("store/data/a", b"theirs")
        world.store.add("store/data/new", b"new")
        before = world.here()
        assert world.project.download("data", MANY, overwrite=True).ok
        after = world.here()
        assert world.undo().ok and world.here() == before
        assert world.undo().ok and world.here() == after
        world.write(a="another edit")
        result = world.undo()
        assert [(each.path, world.here()["a"]) for each in result.conflicts] == [("data/a", "another edit")]


@pytest.mark.parametrize("fails_after", [0, 1, 2])
def test_a_run_that_was_killed_is_taken_back_as_far_as_it_came(tmp_path: Path, fails_after: int) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        world.write(a="one", b="two", c="three")
        assert world.project.upload("data").ok
        before = world.there()
        world.write(a="ONE", b="TWO", c="THREE", e="five")
        count = 0

        def kill(request: Request) -> None:
            nonlocal count
            if request.operation == "put":
                if count == fails_after:
                    raise MemoryError("killed")
                count += 1

        world.store.before = kill
        with pytest.raises(MemoryError):
            world.project.upload("data", engine="direct")
        world.store.before = lambda request: None
    with world.open() as world.project:
        assert len({*world.there().items()} - {*before.items()}) == fails_after
        assert world.undo().ok and world.there() == before


def test_a_removal_that_was_killed_is_taken_back(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        world.write(a="one", b="two")
        assert world.project.upload("data").ok
        before = world.there()
        deletions = world.project.find_removal("data")

        def kill(request: Request) -> None:
            if request.operation == "delete" and request.name.endswith("b"):
                raise MemoryError("killed")

        world.store.before = kill
        with pytest.raises(MemoryError):
            world.project.remove(deletions)
        world.store.before = lambda request: None
        assert world.there() == {"b": "two"}
        assert world.undo().ok and world.there() == before


def test_what_cannot_be_undone_is_said(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        world.write(a="one")
        result = world.project.upload("data")
        assert result.receipt is not None
        text = result.receipt.read_text()
        result.receipt.write_text(text.replace('"path"', '"plath"'))
        with pytest.raises(UsageError, match="damaged"):
            world.project.plan_undo(world.last)
        result.receipt.unlink()
        with pytest.raises(UsageError, match="not on record any more"):
            world.project.plan_undo(world.last)
        other = world.project.cluster._replace(name="us")
        with pytest.raises(UsageError, match="with the cluster eu"):
            world.project.with_cluster(other).plan_undo(world.last)


def test_an_undo_that_was_stopped_can_be_undone_and_repeated(tmp_path: Path) -> None:
    world = World(tmp_path, "versions")
    with world.project:
        before, id = changed(world)

        def stop(request: Request) -> None:
            if request.operation == "put_from_url" and request.name.endswith("b"):
                raise KeyboardInterrupt

        world.store.before = stop
        with pytest.raises(TransferCancelledError):
            world.undo(id)
        world.store.before = lambda request: None
        assert world.undo(id).ok and world.there() == before


@pytest.mark.parametrize(("keeps", "works"), [("versions", True), ("deleted", True), ("nothing", False)])
def test_what_must_be_undoable_is_refused_where_it_is_not(tmp_path: Path, keeps: str, works: bool) -> None:
    world = World(tmp_path, keeps)
    with world.project:
        world.write(a="one", b="two")
        assert world.project.upload("data").ok
    world.project = world.open()
    world.project.cluster = world.project.cluster._replace(values={"undo": "required"})
    with world.project:
        before = world.there()
        world.write(a="ONE")
        plan = world.project.plan_upload("data")
        assert bool(plan.refusals) is not works
        world.write(c="new")
        assert not world.project.plan_upload("data/c").refusals, "what is new can always be undone"
        if not works:
            with pytest.raises(UndoImpossibleError, match="undo: required"):
                world.project.upload("data")
            assert world.there() == before
        deletions = world.project.find_removal("data/b")
        if works:
            assert len(world.project.remove(deletions).gone) == 1
        else:
            with pytest.raises(UndoImpossibleError, match="neither versioning nor soft delete"):
                world.project.remove(deletions)
            assert world.there() == before


@pytest.mark.parametrize(
    ("keeps", "said"), [("versions", "keeps versions"), ("deleted", "for 7 days"), ("", "neither")]
)
def test_an_upload_that_replaces_says_before_what_could_be_undone(tmp_path: Path, keeps: str, said: str) -> None:
    world = World(tmp_path, keeps)
    with world.project:
        world.write(a="one")
        assert world.project.upload("data").plan.warnings == ()
        world.write(a="ONE", b="new")
        (warning,) = world.project.plan_upload("data").warnings
        assert said in warning and warning.startswith(str(world.account.container))
