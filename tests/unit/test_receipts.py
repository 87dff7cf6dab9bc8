"""A receipt names each file that was verified or deleted, with its size and MD5, and says how the transfer ended."""

from __future__ import annotations

import calendar
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import pytest

from blobsync.base.errors import FailureCode, FileFailure, LocalFileError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.local.sorted_runs import Spill
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import (
    CollectedReceipts,
    Deletions,
    Ledger,
    read_receipt,
    remove_begun,
    upload_receipt,
    write_begun,
    write_removal,
)
from tests.fakes.project_context import World

MD5 = hashlib.md5(b"aaa").digest()
OTHER = hashlib.md5(b"bb").digest()
NOTHING: Deletions[tuple[LivePart, FileAction]] = Deletions((), ())


def planned(world: World, command: str = "u") -> tuple[TransferPlan, Ledger]:
    """A mirror of ``a`` and ``b``, which are only at the source, and of ``same`` and ``extra`` there."""
    folder = world.root / "data/x"
    folder.mkdir(parents=True)
    for name, body in {"a": b"aaa", "b": b"bb", "same": b"s"}.items():
        if command == "u" or name == "same":
            (folder / name).write_bytes(body)
        if command == "d" or name == "same":
            world.store("eu").add(f"store/data/x/{name}", body)
    plan = world.plan(command, "data/x", options=TransferOptions(engine="direct"))
    context = world.context()
    (part,) = plan.parts
    return plan, Ledger(context.opened(part), context.records(part.key))


def verify(ledger: Ledger, name: str, source: FileState | None, there: FileState | None, **changes: Any) -> None:
    (action,) = [each for each in ledger.part.actions if each.path == name]
    ledger.verified[name] = Moved(action._replace(**changes), source, there)


def ended(plan: TransferPlan, **values: Any) -> TransferResult:
    numbers: dict[str, Any] = {
        "transferred": 2,
        "verified": 3,
        "deleted": 1,
        "bytes_transferred": 5,
        "seconds": 1.23456,
    }
    return TransferResult(plan, **{**numbers, **values})


def write(
    folder: Path, result: TransferResult, ledger: Ledger, gone: Any = NOTHING, *, interrupted: bool = False
) -> Path:
    parts = CollectedReceipts(Spill())
    parts.add([ledger], gone)
    assert parts.unsure == len(gone.unsure)
    return parts.write(folder, result, interrupted=interrupted)


def read(file: Path) -> dict[str, Any]:
    found = read_receipt(file.parent, file.name)
    assert found is not None
    return found


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_receipt_says_what_the_transfer_was_and_how_it_ended(
    world: World, tmp_path: Path, *, interrupted: bool
) -> None:
    plan, ledger = planned(world)
    failure = FileFailure("data/x/b", FailureCode.MD5_MISMATCH, "other bytes")
    result = ended(plan, bytes_reused=4, failures=(failure,))
    before = int(time.time())
    found = read(write(tmp_path, result, ledger, interrupted=interrupted))
    # The time of a whole second is of a coarser clock, which may lag.
    written = calendar.timegm(time.strptime(found.pop("written_at"), "%Y-%m-%dT%H:%M:%SZ"))
    assert before - 1 <= written <= time.time()
    assert found == {
        "blobsync_receipt": 1,
        "route": "upload",
        "cluster": "eu",
        "from_cluster": None,
        "engine": "direct",
        "parts": [
            {"path": "data/x", "source": str(plan.parts[0].source), "destination": str(plan.parts[0].destination)}
        ],
        "transferred": 2,
        "verified": 3,
        "unchanged": 1,
        "deleted": 1,
        "conflicts": 0,
        "failed": 1,
        "bytes_transferred": 5,
        "bytes_reused": 4,
        "not_compared": 0,
        "seconds": 1.235,
        "failures": [{"path": "data/x/b", "code": "md5_mismatch", "message": "other bytes"}],
        "interrupted": interrupted,
        "files": [],
        "deleted_files": [],
        "deletions_not_known": [],
    }


def test_a_file_from_outside_says_by_what_it_was_compared_and_no_other(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)
    for name, body in {"a": b"aaa", "b": b"bb"}.items():
        verify(ledger, name, LocalState(len(body), 1, 1, 1, hashlib.md5(body).digest()), None)
    ledger.verified["a"] = ledger.verified["a"]._replace(compared_by="sha256")
    found = read(write(tmp_path, ended(plan, not_compared=1), ledger))
    by = {each["path"]: each.get("compared_by", "not said") for each in found["files"]}
    assert by == {"data/x/a": "sha256", "data/x/b": "not said"} and found["not_compared"] == 1


def test_a_transfer_that_came_to_its_end_was_not_interrupted(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)
    assert read(write(tmp_path, ended(plan), ledger))["interrupted"] is False
    assert read(write_removal(tmp_path, "eu", [], Deletions((), ()), []))["interrupted"] is False


def test_of_several_batches_only_the_last_stays_in_memory(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)
    verify(ledger, "a", LocalState(3, 1, 1, 1, MD5), RemoteState(3, "0xA", MD5))
    asked: list[Path] = []

    def folder() -> Path:
        asked.append(tmp_path)
        return tmp_path

    parts = CollectedReceipts(Spill(folder))
    parts.add([ledger], NOTHING)
    assert not asked
    parts.add([ledger], NOTHING)
    parts.add([], NOTHING)
    assert asked
    (tmp_path / "receipts").mkdir()
    files = read(parts.write(tmp_path / "receipts", ended(plan), interrupted=False))["files"]
    assert [entry["path"] for entry in files] == ["data/x/a"] * 2


def test_each_verified_file_stands_there_as_it_is_at_both_ends(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)
    # It grew after the plan: what counts is what was read.
    verify(ledger, "a", LocalState(3000, 1, 1, 1, MD5), RemoteState(3000, "0xA", OTHER))
    verify(ledger, "b", None, RemoteState(2, "0xB", OTHER), destination=RemoteState(7, "0xOLD", MD5))
    files = read(write(tmp_path, ended(plan), ledger, interrupted=False))["files"]
    assert files == [
        {"path": "data/x/a", "size": 3000, "md5": MD5.hex(), "etag": "0xA", "replaced": None, "route": "upload"},
        {
            "path": "data/x/b",
            "size": 2,
            "md5": OTHER.hex(),
            "etag": "0xB",
            "replaced": {"size": 7, "md5": MD5.hex(), "etag": "0xOLD"},
            "route": "upload",
        },
    ]


def test_a_local_version_has_no_etag_and_an_md5_only_where_it_was_read(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world, "d")
    was = LocalState(9, 1, 1, 1)
    verify(ledger, "a", RemoteState(3, "0xA"), LocalState(3, 1, 1, 1, MD5), destination=was)
    verify(ledger, "b", RemoteState(2, "0xB"), LocalState(2, 1, 1, 1), destination=replace(was, md5=OTHER))
    one, other = read(write(tmp_path, ended(plan), ledger, interrupted=False))["files"]
    assert (one["md5"], one["etag"], one["route"]) == (MD5.hex(), None, "download")
    assert one["replaced"] == {"size": 9, "md5": None, "etag": None}
    assert (other["md5"], other["replaced"]["md5"]) == (None, OTHER.hex())


def test_what_was_deleted_stands_apart_from_what_is_not_known(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)

    def extra(name: str, was: FileState | None) -> tuple[LivePart, FileAction]:
        return ledger.part, FileAction(name, Action.DELETE, Reason.EXTRA, 8, destination=was)

    seen, local, unseen = RemoteState(4, "0xE", MD5), LocalState(6, 1, 1, 1), None
    gone = Deletions([extra("seen", seen), extra("local", local)], [extra("unseen", unseen)])
    found = read(write(tmp_path, ended(plan), ledger, gone, interrupted=True))
    assert found["deleted_files"] == [
        {"path": "data/x/seen", "size": 4, "md5": MD5.hex(), "etag": "0xE", "route": "upload"},
        {"path": "data/x/local", "size": 6, "md5": None, "etag": None, "route": "upload"},
    ]
    unknown = {"path": "data/x/unseen", "size": 8, "md5": None, "etag": None, "route": "upload"}
    assert found["deletions_not_known"] == [unknown]


def test_several_transfers_make_one_receipt_that_holds_the_files_of_all(world: World, tmp_path: Path) -> None:
    plan, ledger = planned(world)
    parts = CollectedReceipts(Spill())
    assert parts.unsure == 0
    for name in ("a", "b"):
        ledger.verified.clear()
        verify(ledger, name, None, None)
        parts.add([ledger], NOTHING)
    found = read(parts.write(tmp_path, ended(plan), interrupted=False))
    assert [each["path"] for each in found["files"]] == ["data/x/a", "data/x/b"]


def test_a_removal_names_its_places_and_what_became_of_each_blob(tmp_path: Path) -> None:
    blob = BlobInfo("store/data/x/a", 3, "0xA", MD5)
    failure = FileFailure("data/x/c", FailureCode.DELETE_FAILED, "it is leased")
    removed = Deletions([("data/x/a", blob)], [("data/x/b", blob._replace(md5=None))])
    found = read(write_removal(tmp_path, "eu", ["https://a/b"], removed, [failure], interrupted=True))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.pop("written_at"))
    assert found == {
        "blobsync_receipt": 1,
        "route": "rm",
        "cluster": "eu",
        "places": ["https://a/b"],
        "deleted": 1,
        "failed": 1,
        "failures": [{"path": "data/x/c", "code": "delete_failed", "message": "it is leased"}],
        "interrupted": True,
        "deleted_files": [{"path": "data/x/a", "size": 3, "md5": MD5.hex(), "etag": "0xA"}],
        "deletions_not_known": [{"path": "data/x/b", "size": 3, "md5": None, "etag": "0xA"}],
    }


def test_a_receipt_of_deletions_is_on_the_disk_and_no_other_waits(world: World, tmp_path: Path) -> None:
    waits: list[list[str]] = []

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        waits.append([*files])
        return {file: OSError(errno.EIO, "Input/output error") for file in files if len(waits) > 2}

    plan, ledger = planned(world)
    blob, receipts = BlobInfo("x", 3, "0xA"), CollectedReceipts(Spill())
    receipts.add([ledger], NOTHING)
    receipts.write(tmp_path, ended(plan), interrupted=False, wait=wait)
    assert waits == []
    unsure = CollectedReceipts(Spill())
    unsure.add([], Deletions((), [(ledger.part, plan.parts[0].actions[0])]))
    unsure.write(tmp_path, ended(plan), interrupted=False, wait=wait)
    assert waits.pop()
    receipts.add([], Deletions([(ledger.part, plan.parts[0].actions[0])], ()))
    removed = Deletions([("one", blob)], ())
    files = [
        receipts.write(tmp_path, ended(plan), interrupted=False, wait=wait),
        write_removal(tmp_path, "eu", [], removed, [], wait=wait),
    ]
    assert waits == [[str(file), str(tmp_path)] for file in files]
    with pytest.raises(OSError, match="Input/output"):
        write_removal(tmp_path, "eu", [], removed, [], wait=wait)


def test_a_receipt_is_text_that_people_can_read_one_file_a_line(tmp_path: Path) -> None:
    blob = BlobInfo("x", 3, "0xA")
    # What is between two of them, in a name, and more than are written at a time.
    names = ["one", 'two"}, {"', *map(str, range(100))]
    removed = Deletions([(name, blob) for name in names], ())
    text = write_removal(tmp_path, "eu", [], removed, []).read_text()
    assert [each["path"] for each in json.loads(text)["deleted_files"]] == names
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("{", "}")
    assert ' "cluster": "eu",' in lines and "," not in lines
    assert [json.loads(line.rstrip(","))["path"] for line in lines if line.startswith('  {"path"')] == names


def test_no_signature_gets_into_a_receipt(tmp_path: Path) -> None:
    url = "https://a.blob.core.windows.net/c/x?sv=1&sig=" + "Ab3" * 14 + "c%3D"
    failure = FileFailure("x", FailureCode.STORAGE_ERROR, url)
    removed = Deletions([(url, BlobInfo("x", 3, "0xA"))], ())
    text = write_removal(tmp_path, "eu", [url], removed, [failure]).read_text()
    assert text.count("https://a.blob.core.windows.net/c/x?sv=1&sig=***") == 3 and "Ab3" not in text


def test_a_name_that_is_no_unicode_is_kept_as_it_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    file = write_removal(tmp_path, "eu", [name], Deletions([(name, BlobInfo("x", 3, "0xA"))], ()), [])
    found = read(file)
    assert found["places"] == [name] and found["deleted_files"][0]["path"] == name


def test_the_oldest_beyond_a_thousand_go_and_nothing_else(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"20200101T000000Z-{number:08x}.json").write_text("{}")
    # Names that are not ours, before and after them all.
    others = ["20190101T000000Z-0123abc.json", "notes.json", "0.json", "20190101T000000Z-01234567.json.txt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    file = write_removal(tmp_path, "eu", [], Deletions((), ()), [])
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json", file.name)
    left = {path.name for path in tmp_path.iterdir()}
    ours = {f"20200101T000000Z-{number:08x}.json" for number in range(2, 1001)}
    assert left == {*others, *ours, file.name}


class Shared(PosixPath):
    """A folder of which another process removes the oldest receipts at the same time."""

    def glob(self, pattern: str, **options: Any) -> Iterator[Shared]:  # type: ignore[override]
        found = list(super().glob(pattern, **options))
        for each in sorted(found)[:2]:
            each.unlink()
        return iter(found)


def test_an_old_receipt_that_somebody_else_removes_is_no_trouble(tmp_path: Path) -> None:
    for number in range(1002):
        (tmp_path / f"20200101T000000Z-{number:08x}.json").write_text("{}")
    file = write_removal(Shared(tmp_path), "eu", [], Deletions((), ()), [])
    assert file.exists() and len(list(tmp_path.iterdir())) == 1000


def test_two_receipts_of_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    files = {write_removal(tmp_path, "eu", [], Deletions((), ()), []) for _ in range(5)}
    assert files == set(tmp_path.iterdir()) and len(files) == 5


def test_only_a_receipt_of_ours_is_read(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "20200101T000000Z-01234567.json").write_text("{}")
    assert read_receipt(tmp_path, "20200101T000000Z-01234567.json") == {}
    assert read_receipt(tmp_path, "20200101T000000Z-76543210.json") is None
    # The name comes from a file that others may have written.
    assert read_receipt(tmp_path / "inside", "../20200101T000000Z-01234567.json") is None
    assert read_receipt(tmp_path, "20200101T000000Z-01234567.json\n") is None


@pytest.mark.parametrize("text", ["[]", "{", "", None])
def test_a_receipt_that_is_none_is_an_error_that_names_the_file(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "20200101T000000Z-01234567.json"
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    with pytest.raises(LocalFileError, match=f"the receipt {file} cannot be read: ") as caught:
        read_receipt(tmp_path, file.name)
    assert caught.value.path == str(file)


@pytest.mark.parametrize(("root", "name"), [("store/data/x", "store/data/x.receipts/r.json"), ("", ".receipts/r.json")])
def test_a_receipt_goes_beside_the_data_that_it_is_about(world: World, tmp_path: Path, root: str, name: str) -> None:
    store = world.store("eu")
    file = tmp_path / "r.json"
    file.write_text("{}")
    assert upload_receipt(file, OpenBlob(store, root)) == str(store.container.child(name))
    (blob,) = store.blobs.values()
    assert (blob.info.name, blob.body, blob.info.md5) == (name, b"{}", hashlib.md5(b"{}").digest())
    assert blob.info.content_type == "application/json"


def test_what_a_run_is_about_to_do_is_written_down_until_it_has_ended(world: World, tmp_path: Path) -> None:
    plan, _ = planned(world)
    near, far = LocalState(6, 1, 1, 1), RemoteState(4, "0xE", MD5)
    actions = [
        FileAction("new", Action.TRANSFER, Reason.NEW, 6, source=near),
        FileAction("old", Action.TRANSFER, Reason.CHANGED_HERE, 6, source=near, destination=far),
        FileAction("theirs", Action.ADOPT, Reason.KEEP_DESTINATION, 4, source=near, destination=far),
        FileAction("extra", Action.DELETE, Reason.EXTRA, 4, destination=far),
        FileAction("same", Action.UNCHANGED, Reason.SAME_RECORD, 6, source=near, destination=far),
    ]
    (part,) = plan.parts
    begun = write_begun(tmp_path, replace(plan, parts=(replace(part, actions=actions),)))
    found = read(begun)
    here, there = {"size": 6, "md5": None, "etag": None}, {"size": 4, "md5": MD5.hex(), "etag": "0xE"}
    assert found["interrupted"] is True
    assert found["planned_files"] == [
        {"path": "data/x/new", "replaced": None, "route": "upload"},
        {"path": "data/x/old", "replaced": there, "route": "upload"},
        {"path": "data/x/theirs", "replaced": here, "route": "download"},
    ]
    assert found["planned_deletions"] == [{"path": "data/x/extra", "replaced": there, "route": "upload"}]
    remove_begun(None)
    for _ in range(2):
        remove_begun(begun)
        assert not begun.exists()
