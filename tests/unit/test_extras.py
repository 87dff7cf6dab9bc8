"""What a mirror deletes: the versions that the plan saw, the folders that this leaves empty, and a look afterwards."""

from __future__ import annotations

from pathlib import Path

from blobsync.base.events import Event, Looked
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer import carry_out
from tests.fakes.store import MemoryStore


def _sum_of(events: list[Event]) -> int:
    return sum(event.files for event in events if isinstance(event, Looked))


def _deletion(path: str, destination: FileState | None) -> FileAction:
    return FileAction(path, Action.DELETE, Reason.EXTRA, 0, None, destination)


def _here(root: Path, *paths: str) -> list[FileAction]:
    found = []
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.encode())
        found.append(_deletion(path, LocalState.of(file.stat())))
    return found


def test_folders_that_are_empty_then_go_from_the_deepest_up_and_others_stay(tmp_path: Path) -> None:
    root = tmp_path / "data"
    deletions = _here(root, "a/b/c/one", "a/b/c/two", "a/b/three", "k/x/four", "five")
    (root / "k" / "mine").write_bytes(b"mine")
    (root / "empty").mkdir()
    looked: list[Event] = []
    assert carry_out.delete(LocalLocation(root), deletions, looked.append) == {}
    assert sorted(file.relative_to(root).as_posix() for file in root.rglob("*")) == ["empty", "k", "k/mine"]
    assert root.is_dir() and _sum_of(looked) == 5


def test_a_file_that_changed_since_the_plan_stays_with_its_reason_and_the_others_go(tmp_path: Path) -> None:
    root = tmp_path / "data"
    deletions = _here(root, "a/changed", "a/gone", "b/last")
    (root / "a" / "changed").write_bytes(b"somebody needs this now")
    looked: list[Event] = []
    failures = carry_out.delete(LocalLocation(root), deletions, looked.append)
    assert list(failures) == ["a/changed"] and failures["a/changed"] != "it is still there"
    assert [file.name for file in root.rglob("*")] == ["a", "changed"]
    # What was not deleted need not be looked for.
    assert _sum_of(looked) == 2


def test_only_the_version_that_the_plan_saw_is_deleted_of_a_blob(tmp_path: Path) -> None:
    store = MemoryStore("box")
    for name in ("changed", "gone", "any"):
        store.add(f"sets/{name}", name.encode())
    seen = {name: store.blobs[f"sets/{name}"].info for name in ("changed", "gone")}
    deletions = [_deletion(name, RemoteState(info.size, info.etag, info.md5)) for name, info in seen.items()]
    # A plan that does not say which version it saw.
    deletions.append(_deletion("any", None))
    store.add("sets/changed", b"somebody needs this now")
    looked: list[Event] = []
    failures = carry_out.delete(OpenBlob(store, "sets"), deletions, looked.append)
    assert list(failures) == ["changed"] and failures["changed"] != "it is still there"
    assert list(store.blobs) == ["sets/changed"] and _sum_of(looked) == 2
