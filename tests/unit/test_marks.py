"""Marks in a container: written once, read with distrust, checked against the files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from blobsync.base.errors import StorageError
from blobsync.keep.marks import Mark, MarkedFile, Marks
from blobsync.keep.node_messages import merged
from tests.fakes.lineages import content, keys, their_keys
from tests.fakes.store import MemoryStore, Request

FOLDER = ".blobsync/checkpoints/mine%2Foutput/job"
BODY = b"weights"
MD5 = hashlib.md5(BODY).hexdigest()


def marks_of(store: MemoryStore, path: str = "mine/output") -> tuple[Marks, list[str]]:
    warnings: list[str] = []
    return Marks(store, path, warnings.append, keys), warnings


def stored_set(store: MemoryStore, name: str = "checkpoint-1", **changes: Any) -> Mark:
    """A set of one file in the container, and its mark, unwritten."""
    info = store.add(f"mine/output/{name}/model.bin", BODY)
    files = (MarkedFile("model.bin", len(BODY), MD5, info.etag),)
    return replace(Mark(name, name, 1, 5.0, "job", "job", 1, files=files), **changes)


def test_a_mark_is_written_once_and_read_again() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    mark = stored_set(store, values={"a.json:loss": 0.5}, code="ab" * 32)
    assert marks.write(mark)
    assert not marks.write(replace(mark, step=2)), "what was marked is never replaced"
    assert marks.of("job") == [mark] == Marks(store, "mine/output", warnings.append, keys).of("job")
    assert marks.lineages() == {"checkpoint-1": ("job",)}
    assert marks.of("other") == [] and not warnings
    assert list(store.blobs) == ["mine/output/checkpoint-1/model.bin", f"{FOLDER}/checkpoint-1.json"]
    assert content(store.body(f"{FOLDER}/checkpoint-1.json"))["blobsync_checkpoint"] == 1


def test_names_with_slashes_and_signs_of_a_set_are_one_part_of_the_marks_name() -> None:
    store = MemoryStore()
    marks, _ = marks_of(store, "")
    mark = stored_set(store, "run 1/last.ckpt@7%")
    assert marks.write(mark) and marks.of("job") == [mark]
    assert ".blobsync/checkpoints/%2F/job/run%201%2Flast.ckpt%407%25.json" in store.blobs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"set": "../../etc"}, "escape"),
        ({"stored": "/abs"}, "empty part"),
        ({"set": "a\0b"}, "NUL"),
        ({"set": "code"}, "no version of"),
        ({"stored": "valuable/checkpoint-1"}, "no version of"),
        ({"run_id": "../x"}, "run id"),
        ({"lineage": ""}, "run id"),
        ({"code": "rm -rf"}, "code"),
        ({"step": -1}, "step"),
        ({"step": 10**18}, "step"),
        ({"step": "7"}, "wrong type"),
        ({"time": "now"}, "wrong type"),
        ({"time": 1e20}, "time"),
        ({"time": -1}, "time"),
        ({"values": {"a": 10**400}}, "values"),
        ({"set": "x", "stored": "@7"}, "no version of"),
        ({"stored": "checkpoint-1@7/sub"}, "no version of"),
        ({"generation": 10**9}, "generation"),
        ({"nodes": 0}, "nodes"),
        ({"values": {"a": "b"}}, "wrong type"),
        ({"files": []}, "no files"),
        ({"files": "model.bin"}, "wrong type"),
        ({"files": [{"path": "../x"}]}, "missing"),
        ({"blobsync_checkpoint": 2}, "version"),
    ],
)
def test_a_mark_of_somebody_else_passes_the_gate_or_is_left_alone(change: dict[str, Any], said: str) -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    good = stored_set(store)
    values = {**json.loads(good.to_json()), **change}
    with pytest.raises(ValueError, match=said):
        Mark.from_json(json.dumps(values))
    store.add(f"{FOLDER}/checkpoint-1.json", json.dumps(values).encode())
    assert marks.unsealed("job") == [] and len(warnings) == 1
    assert marks.of("job") == marks.unsealed("job") == [] and len(warnings) == 1, "it is said once"


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../../.bashrc"},
        {"path": "a//b"},
        {"size": -1},
        {"size": 10**30},
        {"md5": "x" * 32},
        {"md5": ""},
        {"node": -1},
        {"node": 100_001},
        {"size": "1"},
    ],
)
def test_each_file_of_a_mark_passes_it_too(change: dict[str, Any]) -> None:
    values = json.loads(stored_set(MemoryStore()).to_json())
    values["files"][0].update(change)
    with pytest.raises(ValueError, match=r"name|size|wrong type"):
        Mark.from_json(json.dumps(values))
    values["files"] = [{**values["files"][0], "path": path, "size": 1, "md5": MD5, "node": 0} for path in ("a", "a")]
    with pytest.raises(ValueError, match="twice"):
        Mark.from_json(json.dumps(values))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"blobsync_checkpoint": 1}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_mark_is_left_alone_and_named(body: bytes) -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    store.add(f"{FOLDER}/checkpoint-1.json", body)
    assert marks.of("job") == marks.unsealed("job") == []
    assert f"{FOLDER}/checkpoint-1.json" in warnings[0]


def test_a_mark_under_another_sets_name_or_lineage_counts_for_none() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    text = stored_set(store).to_json().encode()
    store.add(f"{FOLDER}/checkpoint-2.json", text)
    store.add(f"{FOLDER.replace('/job', '/other')}/checkpoint-1.json", text)
    assert marks.unsealed("job") == [] == marks.unsealed("other")
    assert len(warnings) == 2
    with pytest.raises(ValueError, match="no id"):
        marks.of("../job")


def test_a_mark_whose_own_name_no_blob_could_have_stops_nobody() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    mark = stored_set(store)
    marks.write(mark)
    long = "x/" * 700 + "y"
    text = replace(mark, set=long, stored=long).to_json().encode()
    store.add(f"{FOLDER}/long.json", text)
    assert marks.of("job") == [mark] and marks.unsealed("job") == [] and len(warnings) == 1


def test_a_claim_of_another_node_of_the_job_is_the_lineages_own_also_when_it_comes_between_two_looks() -> None:
    store = MemoryStore()
    first, _ = marks_of(store)
    second, _ = marks_of(store)

    def meanwhile(request: Request) -> None:
        if request.operation == "list":
            store.before = lambda _: None
            assert second.claim("job", "checkpoint-1")
            store.add("mine/output/checkpoint-1/rank1.pt", BODY)

    store.before = meanwhile
    assert first.claim("job", "checkpoint-1")
    assert not marks_of(store)[0].claim("other", "checkpoint-1")


def test_a_huge_mark_is_not_read() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    store.add(f"{FOLDER}/checkpoint-1.json", b" " * ((32 << 20) + 1))
    assert marks.of("job") == [] and "bytes" in warnings[0]


def forged(store: MemoryStore, mark: Mark, **more: Any) -> str:
    """The mark as somebody without the key writes it; returns its name."""
    name = f".blobsync/checkpoints/mine%2Foutput/{mark.lineage}/{mark.stored.replace('/', '%2F')}.json"
    store.add(name, json.dumps({**json.loads(mark.to_json()), **more}).encode())
    return name


def test_only_the_lineages_seal_makes_a_mark_its_own() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    own, theirs = stored_set(store), stored_set(store, "checkpoint-2")
    by_nobody = stored_set(store, "checkpoint-3", generation=999_999_999)
    assert marks.write(own)
    assert Marks(store, "mine/output", warnings.append, their_keys).write(theirs)
    forged(store, by_nobody)
    assert marks.of("job") == [own] and marks.unsealed("job") == [theirs, by_nobody] and not warnings
    assert marks.named("job") == [own] and marks.named("job", sealed=False) == [theirs, by_nobody]
    assert [marks.at("job", each.stored) for each in (own, theirs)] == [own, theirs]
    assert Marks(store, "mine/output", warnings.append, lambda lineage: None).of("job") == []


@pytest.mark.parametrize("where", ["elsewhere", "other lineage", "other container", "changed"])
def test_a_seal_is_good_for_one_mark_in_one_place(where: str) -> None:
    store, other = MemoryStore(), MemoryStore("https://other.blob.core.windows.net/c")
    marks, _ = marks_of(store)
    marks.write(stored_set(store))
    document, into, lineage = store.body(f"{FOLDER}/checkpoint-1.json"), store, "job"
    store.delete(f"{FOLDER}/checkpoint-1.json")
    names = {"elsewhere": "checkpoint-2", "other lineage": "checkpoint-1"}
    if where == "changed":
        document = document.replace(b'"step": 1,', b'"step": 2,')
    if where == "other container":
        into = other
    if where == "other lineage":
        lineage = "other"
    into.add(f"{FOLDER.replace('/job', f'/{lineage}')}/{names.get(where, 'checkpoint-1')}.json", document)
    assert marks_of(into)[0].of(lineage) == []


def test_no_job_marks_without_the_key_of_its_lineage() -> None:
    store = MemoryStore()
    with pytest.raises(StorageError, match="without the key of job"):
        Marks(store, "mine/output", print, lambda lineage: None).write(stored_set(store))


def test_one_lineage_alone_writes_below_a_name() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    claim = ".blobsync/checkpoints/mine%2Foutput/.claims/checkpoint-1/lineage.json"
    assert marks.claim("job", "checkpoint-1") and list(store.blobs) == [claim]
    assert not marks.claim("other", "checkpoint-1"), "it has the key of both"
    assert not Marks(store, "mine/output", print, their_keys).claim("job", "checkpoint-1")
    # After a restart, with what that left there.
    store.add("mine/output/checkpoint-1/model.bin", BODY)
    assert marks_of(store)[0].claim("job", "checkpoint-1")
    assert marks.lineages() == {} and marks.of("job") == []
    store.add("mine/output/checkpoint-2", b"somebody else's, or of an earlier version")
    assert not marks.claim("job", "checkpoint-2")
    store.add(claim.replace("-1", "-3"), b'{"lineage": "job"}')
    assert not marks.claim("job", "checkpoint-3") and not warnings


def test_two_who_claim_one_name_at_once_do_not_both_get_it() -> None:
    store = MemoryStore()
    marks, other = marks_of(store)[0], marks_of(store)[0]
    got: list[bool] = []

    def meanwhile(request: Request) -> None:
        if request.operation == "put" and not got:
            got.append(False)
            got[0] = other.claim("other", "checkpoint-1")

    store.before = meanwhile
    assert not marks.claim("job", "checkpoint-1") and got == [True]


def test_a_name_is_free_again_when_its_set_was_let_go_whole() -> None:
    store = MemoryStore()
    marks, _ = marks_of(store)
    for name in ("checkpoint-1", "checkpoint-2"):
        assert marks.claim("job", name)
        marks.write(stored_set(store, name))
    store.add("mine/output/checkpoint-2/model.bin", b"another's")
    for mark in marks.of("job"):
        marks.remove(mark)
    assert marks.claim("other", "checkpoint-1") and not marks.claim("other", "checkpoint-2")


def test_what_is_read_of_marks_without_a_seal_is_bounded_and_leaves_the_sealed_ones_alone() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    for number in range(12):
        forged(store, stored_set(store, f"a-{number:02}"), pad="x" * (2 << 20))
    forged(store, stored_set(store, "large"), pad="x" * (4 << 20))
    own = stored_set(store, "z")
    marks.write(own)
    assert marks.of("job") == [own] and not warnings
    assert len(marks.unsealed("job")) == len(marks.unsealed("job")) == 7
    assert len(warnings) == 6 and "no seal of yours, and what is read of such marks is limited" in warnings[0]


def test_one_large_mark_without_a_seal_is_left_alone_and_the_next_one_is_read() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    forged(store, stored_set(store, "a"), pad="x" * (4 << 20))
    forged(store, small := stored_set(store, "b"))
    assert marks.unsealed("job") == [small]
    assert len(warnings) == 1 and "/a.json is left alone: it has 4,1" in warnings[0]


def test_of_any_number_of_marks_that_are_left_alone_some_are_named() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    for number in range(40):
        forged(store, stored_set(store, f"a-{number:02}"), time=1e20)
    assert marks.unsealed("job") == marks.unsealed("job") == []
    assert len(warnings) == 21 and warnings[-1] == "so are more of them"


def test_files_are_compared_with_their_mark() -> None:
    store = MemoryStore()
    marks, _ = marks_of(store)
    mark = stored_set(store)
    assert marks.mismatch(mark) == ""
    # Another account's copy has other ETags.
    store.add("mine/output/checkpoint-1/model.bin", BODY)
    assert marks.mismatch(mark) == ""
    store.add("mine/output/checkpoint-1/more.bin", b"not the mark's")
    assert marks.mismatch(mark) == ""
    store.add("mine/output/checkpoint-1/model.bin", BODY, with_md5=False)
    assert "other content" in marks.mismatch(mark)
    store.add("mine/output/checkpoint-1/model.bin", b"WEIGHTS")
    assert "other content" in marks.mismatch(mark)
    store.add("mine/output/checkpoint-1/model.bin", b"short")
    assert marks.mismatch(mark) == "mine/output/checkpoint-1/model.bin has 5 bytes, not 7"
    store.delete("mine/output/checkpoint-1/model.bin")
    assert marks.mismatch(mark) == "mine/output/checkpoint-1/model.bin is missing"


def test_the_mark_goes_first_then_its_files_and_nothing_else() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    mark = stored_set(store)
    marks.write(mark)
    store.add("mine/output/checkpoint-1/added.bin", b"")
    store.add("mine/output/checkpoint-10/model.bin", b"")
    deleted: list[str] = []
    store.before = lambda request: deleted.append(request.name) if request.operation.startswith("delete") else None
    marks.remove(mark)
    assert deleted[0] == f"{FOLDER}/checkpoint-1.json"
    assert set(store.blobs) == {"mine/output/checkpoint-1/added.bin", "mine/output/checkpoint-10/model.bin"}
    assert not warnings


def test_files_that_another_lineage_has_marked_stay() -> None:
    store = MemoryStore()
    marks, _ = marks_of(store)
    mark = stored_set(store)
    marks.write(mark)
    marks.write(replace(mark, lineage="other"))
    marks.remove(mark)
    assert marks.of("other") and not marks.of("job")
    assert marks.mismatch(replace(mark, lineage="other")) == ""


@pytest.mark.parametrize("name", ["checkpoint-1/sub", "checkpoint-1", "checkpoint-1/sub/a"])
def test_a_blob_at_or_below_another_marked_name_stays(name: str) -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    mark = stored_set(store)
    info = store.add("mine/output/checkpoint-1/sub/a", BODY)
    mark = replace(mark, files=(*mark.files, MarkedFile("sub/a", len(BODY), MD5, info.etag)))
    marks.write(mark)
    forged(store, replace(mark, set=name, stored=name, lineage="other"))
    marks.remove(mark)
    assert store.body("mine/output/checkpoint-1/sub/a") == BODY
    assert "stays in the container: another mark names it" in warnings[-1]
    assert ("mine/output/checkpoint-1/model.bin" in store.blobs) == (name == "checkpoint-1")


def test_a_file_that_was_replaced_is_not_removed_with_its_mark() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    mark = stored_set(store)
    marks.write(mark)
    store.add("mine/output/checkpoint-1/model.bin", b"another's")
    marks.remove(mark)
    assert store.body("mine/output/checkpoint-1/model.bin") == b"another's"
    assert "stays" in warnings[0]


def test_a_mark_that_goes_while_it_is_read_is_no_mistake() -> None:
    store = MemoryStore()
    marks, warnings = marks_of(store)
    marks.write(stored_set(store))

    def vanish(request: Request) -> None:
        if request.operation == "get":
            store.blobs.pop(request.name, None)

    store.before = vanish
    assert marks.of("job") == [] and not warnings


def test_sets_of_a_job_are_found_by_its_id_in_its_lineage_or_another() -> None:
    store = MemoryStore()
    marks, _ = marks_of(store)
    first = stored_set(store)
    second = stored_set(store, "checkpoint-2", run_id="again")
    for mark in (first, second):
        marks.write(mark)
    assert marks.named("job") == [first, second]
    assert marks.named("again") == [second]
    assert marks.named("stranger") == []


def test_the_parts_of_several_nodes_become_one_mark() -> None:
    one, two = MarkedFile("0.bin", 1, "a" * 32, "e"), MarkedFile("1.bin", 2, "b" * 32, "f")
    mark = Mark("s", "s", None, 0.0, "job", "job")
    both = merged(mark, [(0, [one]), (1, [two, replace(one, etag="g")])])
    assert [(each.path, each.node) for each in both.files] == [("0.bin", 0), ("1.bin", 1)]
    assert both.nodes == 2
    with pytest.raises(ValueError, match=r"nodes 0 and 1 wrote 0\.bin differently"):
        merged(mark, [(0, [one]), (1, [replace(one, md5="c" * 32)])])
