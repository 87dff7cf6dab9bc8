"""What nodes say to each other: typed and bounded, and a mark that is made of it."""

from __future__ import annotations

import hashlib
import json

import pytest

from blobsync.keep.checkpoint_sets import Reach
from blobsync.keep.marks import Documents, Mark, MarkedFile, Marks
from blobsync.keep.node_messages import (
    Announced,
    Answer,
    Asked,
    Choice,
    Left,
    NeverError,
    Notes,
    Over,
    gathered,
    mark_what_is_left,
)
from blobsync.store.protocol import ANYTHING
from tests.fakes.lineages import keys, their_keys
from tests.fakes.store import MemoryStore

FOLDER = ".blobsync/checkpoints/out/job"


def notes_of(store: MemoryStore) -> tuple[Notes, list[str]]:
    said: list[str] = []
    return Notes(store, "out", "job", said.append, keys), said


def put(store: MemoryStore, name: str, text: str) -> None:
    """As a node writes it."""
    Documents(store, keys).put(f"{FOLDER}/{name}.json", "job", text, ANYTHING)


def file_of(store: MemoryStore, path: str, body: bytes, node: int = 0) -> MarkedFile:
    info = store.add(f"out/step-1/{path}", body)
    return MarkedFile(path, len(body), hashlib.md5(body).hexdigest(), info.etag, node)


def asked_of(store: MemoryStore, reach: Reach = Reach.OWN, start: str = "0") -> Asked:
    files = (file_of(store, "zero", b"0"),)
    mark = Mark("step-1", "step-1", 1, 5.0, "me_1", "job", 1, files=files)
    return Asked("step-1", mark, "t", start, reach, (0, 1))


def test_notes_are_read_as_they_were_written() -> None:
    store = MemoryStore()
    notes, warnings = notes_of(store)
    announced = Announced("step-1", "step-1", "t", Reach.ALL, 1.5, "me_1", "0")
    answer = Answer("step-1", "t", "0", (file_of(store, "one", b"1"),))
    over = Over("me_1", "0", True, ("step-1",), ())
    notes.say(announced, "step-1")
    notes.say(answer, "step-1", 1)
    notes.say(over, "me_1", 1)
    left = asked_of(store).left()
    notes.say(left, "step-1")
    choice = Choice("0", 1, "step-1", "job", agreed=True)
    notes.say(choice, "me_1")
    assert [name for name, _ in notes.sets(Announced)] == ["step-1"]
    assert notes.said(Announced, "step-1") == announced and announced.reach is Reach.ALL
    assert notes.said(Answer, "step-1", 1) == answer and notes.ended("me_1", "0", 1) == over
    assert notes.ended("me_1", "1", 1) is None and notes.ended("me_2", "0", 1) is None
    assert notes.said(Left, "step-1") == left and notes.said(Choice, "me_1") == choice
    notes.forget("step-1")
    assert notes.said(Announced, "step-1") is None and list(notes.sets(Left)) == [] and not warnings


def test_how_far_a_set_reaches_in_words_of_a_later_version_is_believed_as_little_as_possible() -> None:
    store = MemoryStore()
    notes, warnings = notes_of(store)
    put(store, "parts/step-1/announced", json.dumps({**ANNOUNCED, "reach": "later"}))
    announced = notes.said(Announced, "step-1")
    assert announced is not None and announced.reach is Reach.OWN and not warnings


ANNOUNCED = {
    "set": "step-1",
    "stored": "step-1",
    "token": "t",
    "reach": "all",
    "told_at": 0.0,
    "run_id": "me_1",
    "start": "0",
}
FILE = {"path": "a", "size": 1, "md5": "a" * 32, "etag": "e", "node": 0}
ANSWER = {"stored": "step-1", "token": "t", "start": "0", "files": [FILE]}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("announced", json.dumps({**ANNOUNCED, "told_at": "X"}).replace('"X"', "9" * 400)),
        ("announced", json.dumps({**ANNOUNCED, "told_at": "X"}).replace('"X"', "1e999")),
        ("announced", json.dumps({**ANNOUNCED, "told_at": -1})),
        ("announced", json.dumps({**ANNOUNCED, "stored": "../code"})),
        ("announced", json.dumps({**ANNOUNCED, "set": 5})),
        ("announced", json.dumps({**ANNOUNCED, "reach": ["all"]})),
        ("announced", json.dumps({"set": "step-1"})),
        ("announced", "[]"),
        ("announced", "no JSON"),
        ("node-1", json.dumps({**ANSWER, "files": 5})),
        ("node-1", json.dumps({**ANSWER, "files": [5]})),
        ("node-1", json.dumps({**ANSWER, "files": [{**FILE, "size": "X"}]}).replace('"X"', "1e999")),
        ("node-1", json.dumps({**ANSWER, "files": [{**FILE, "size": "X"}]}).replace('"X"', "9" * 400)),
        ("node-1", json.dumps({**ANSWER, "files": [{**FILE, "path": "../../etc/passwd"}]})),
        ("node-1", json.dumps({**ANSWER, "files": {"a": 1}})),
        ("left", json.dumps({"token": "t", "start": "0", "reach": "all", "nodes": [0, 1], "mark": "{}"})),
        ("left", json.dumps({"token": "t", "start": "0", "reach": "all", "nodes": 2, "mark": "{}"})),
    ],
)
def test_what_no_node_can_say_counts_as_absent_and_is_named_once(kind: str, text: str) -> None:
    store = MemoryStore()
    notes, warnings = notes_of(store)
    put(store, f"parts/step-1/{kind}", text)
    for _ in range(2):
        assert notes.said(Announced, "step-1") is None is notes.said(Left, "step-1")
        assert notes.said(Answer, "step-1", 1) is None
    (warning,) = warnings
    assert f"step-1/{kind}.json is left alone" in warning


def test_a_node_says_what_others_will_not_believe_and_goes_on() -> None:
    # An error where a note is made would keep all other sets of that node out of the container.
    store = MemoryStore()
    notes, warnings = notes_of(store)
    many = tuple(f"step-{number}" for number in range(100_001))
    notes.say(Over("me_1", "0", well=True, sets=many, whole=()), "me_1", 1)
    notes.say(Announced("step-1", "step-1", "t", Reach.ALL, -1.0, "me_1", "0"), "step-1")
    assert notes.ended("me_1", "0", 1) is None is notes.said(Announced, "step-1")
    assert len(warnings) == 2


def test_a_note_of_somebody_else_counts_as_absent_and_is_named_once() -> None:
    store = MemoryStore()
    notes, warnings = notes_of(store)
    announced = Announced("step-1", "step-1", "t", Reach.ALL, 1.5, "me_1", "0")
    Notes(store, "out", "job", print, their_keys).say(announced, "step-1")
    store.add(f"{FOLDER}/restore/me_1.json", json.dumps({"attempt": "0", "number": 0}).encode())
    for _ in range(2):
        assert notes.said(Announced, "step-1") is None is notes.said(Choice, "me_1")
    assert len(warnings) == 2 and all("left alone: it has no seal of this lineage" in each for each in warnings)
    # Nor does one of another set.
    put(store, "parts/step-1/announced", json.dumps(ANNOUNCED))
    store.add(f"{FOLDER}/parts/step-2/announced.json", store.body(f"{FOLDER}/parts/step-1/announced.json"))
    assert notes.said(Announced, "step-1") is not None and notes.said(Announced, "step-2") is None


def test_a_choice_that_no_node_can_make_counts_as_absent() -> None:
    store = MemoryStore()
    notes, warnings = notes_of(store)
    for said in ({"number": "1"}, {"number": -1}, {"number": 1, "stored": "../x"}, {"number": 1, "passed": 10**12}, {}):
        put(store, "restore/me_1", json.dumps({"attempt": "0", **said}))
        assert notes.said(Choice, "me_1") is None
    assert len(warnings) == 1


def test_a_node_that_is_over_has_no_other_files_than_it_said() -> None:
    store = MemoryStore()
    notes, _ = notes_of(store)
    asked = asked_of(store)
    assert gathered(notes, asked) is None, "it has not answered"
    notes.say(Over("me_1", "before", True, (), ()), "me_1", 1)
    assert gathered(notes, asked) is None, "that was another start"
    notes.say(Over("me_1", "0", True, (), ()), "me_1", 1)
    mark = gathered(notes, asked)
    assert mark is not None and [each.path for each in mark.files] == ["zero"] and mark.nodes == 2
    notes.say(Over("me_1", "0", True, ("step-1",), ()), "me_1", 1)
    with pytest.raises(NeverError, match="node 1 ended without all its files of it"):
        gathered(notes, asked)
    # Its program was killed: it might have written some.
    notes.say(Over("me_1", "0", False, (), ()), "me_1", 1)
    with pytest.raises(NeverError):
        gathered(notes, asked)
    assert gathered(notes, asked_of(store, Reach.ALL)) is not None


def test_what_a_node_said_unasked_counts_when_it_is_over_and_only_as_it_is_then() -> None:
    store = MemoryStore()
    notes, _ = notes_of(store)
    asked = asked_of(store)
    notes.say(Answer("step-1", "", "0", (file_of(store, "one", b"1"),)), "step-1", 1)
    assert gathered(notes, asked) is None
    notes.say(Over("me_1", "0", True, ("step-1",), ()), "me_1", 1)
    with pytest.raises(NeverError):
        gathered(notes, asked)
    notes.say(Over("me_1", "0", True, ("step-1",), ("step-1",)), "me_1", 1)
    mark = gathered(notes, asked)
    assert mark is not None and [each.path for each in mark.files] == ["one", "zero"]
    # Stored elsewhere, or in another start: not what node 0 asks for.
    for other in (Answer("step-1@7", "", "0", ()), Answer("step-1", "", "before", ())):
        notes.say(other, "step-1", 1)
        with pytest.raises(NeverError):
            gathered(notes, asked)


def test_what_node_0_left_is_marked_when_all_have_answered_and_once() -> None:
    store = MemoryStore()
    notes, said = notes_of(store)
    marks = Marks(store, "out", said.append, keys)
    notes.say(asked_of(store).left(), "step-1")
    mark_what_is_left(notes, marks, "job", said.append)
    assert marks.of("job") == []
    notes.say(Answer("step-1", "t", "0", (file_of(store, "one", b"1"),)), "step-1", 1)
    store.add("out/step-1/one", b"2")
    mark_what_is_left(notes, marks, "job", said.append)
    assert marks.of("job") == [], "it is not in the container as the node said"
    file_of(store, "one", b"1")
    for _ in range(2):
        mark_what_is_left(notes, marks, "job", said.append)
        (mark,) = marks.of("job")
    assert [(each.path, each.node) for each in mark.files] == [("one", 1), ("zero", 0)]
    assert said == ["checkpoint step-1 is complete in the container: its last node has answered"]


def test_what_is_left_under_another_name_or_lineage_is_not_marked() -> None:
    store = MemoryStore()
    notes, said = notes_of(store)
    marks = Marks(store, "out", said.append, keys)
    notes.say(Over("me_1", "0", True, (), ()), "me_1", 1)
    left = asked_of(store).left()
    notes.say(left, "step-2")
    mark_what_is_left(notes, marks, "job", said.append)
    other = left.mark.replace('"lineage": "job"', '"lineage": "others"')
    notes.say(Left("t", "0", Reach.OWN, (0, 1), other), "step-1")
    mark_what_is_left(notes, marks, "job", said.append)
    assert not [name for name in store.blobs if name.endswith("/step-1.json")]
