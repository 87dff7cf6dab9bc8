"""Of each block of a file: whether it has to be sent, and what is known of it when the run ends."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    ChecksumError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
)
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.direct.upload import Fate, SentBlocks
from blobsync.local.resume_records import BlockJournal
from blobsync.plan.blocks import BlockMemory
from blobsync.store.protocol import Block, block_id_of
from tests.fakes.store import MemoryStore, Request

NEAR = LocalState(30, 1, 1, 1)
CHANGED = LocalState(30, 2, 1, 1)
ONE, TWO, THREE = b"one of 10.", b"two of 12...", b"three: 8"


def block(data: bytes) -> Block:
    return Block(block_id_of(hashlib.sha256(data).digest()), len(data))


class Place:
    def __init__(self, root: Path) -> None:
        self.store = MemoryStore()
        self.journal = BlockJournal(root / "unfinished.sqlite")
        self.notes: list[str] = []
        self.blob = str(self.store.container.child("a"))

    def blocks(self, *, journal: bool = True) -> SentBlocks:
        return SentBlocks(BlockMemory(self.journal if journal else None, self.notes.append), self.store, "a")

    def send(self, sent: SentBlocks, *contents: bytes) -> None:
        for data in contents:
            self.store.put_block("a", block(data).id, data)
            sent.acknowledged(block(data))

    def killed_after(self, *contents: bytes) -> None:
        sent = self.blocks()
        sent.look(NEAR, None)
        self.send(sent, *contents)
        self.store.requests.clear()

    def written(self, *contents: bytes) -> RemoteState:
        """A version of these blocks, by this project."""
        self.killed_after(*contents)
        body = b"".join(contents)
        info = self.store.put_block_list(
            "a", [block(data).id for data in contents], size=len(body), md5=hashlib.md5(body).digest()
        )
        self.journal.finish(self.blob, info.etag)
        self.store.requests.clear()
        return RemoteState(info.size, info.etag, info.md5)

    @property
    def asked(self) -> int:
        return len(self.store.asked("block_list"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_before_a_look_nothing_is_there(place: Place) -> None:
    place.killed_after(ONE)
    sent = place.blocks()
    assert sent.bytes_kept == 0 and not sent.from_present_version
    sent.check([block(TWO)])
    assert sent.fate(block(ONE)) is Fate.SEND and place.asked == 0


@pytest.mark.parametrize("journal", [True, False])
def test_each_content_is_sent_once_and_what_the_service_has_counts_with_a_journal(
    place: Place, *, journal: bool
) -> None:
    sent = place.blocks(journal=journal)
    sent.look(NEAR, None)
    assert [sent.fate(block(data)) for data in (ONE, TWO, ONE)] == [Fate.SEND, Fate.SEND, Fate.THERE]
    assert sent.bytes_kept == 0
    place.send(sent, ONE, TWO)
    assert sent.bytes_kept == (len(ONE) + len(TWO) if journal else 0)
    there = {hashlib.sha256(data).digest(): len(data) for data in (ONE, TWO)}
    assert place.journal.staged(place.blob) == (there if journal else {})
    # It takes nothing from before: there is nothing to be asked.
    sent.check([block(THREE)])
    assert place.asked == 0
    sent.finish("an etag", b"md5", [block(ONE), block(TWO)])
    assert place.journal.committed([place.blob]) == ({place.blob: "an etag"} if journal else {})
    digests = b"md5" + b"".join(there)
    assert place.journal.digests(place.blob, "an etag") == (digests if journal else b"")


def test_what_a_killed_run_put_is_there(place: Place) -> None:
    place.killed_after(ONE, TWO)
    sent = place.blocks()
    sent.look(CHANGED, None)
    assert place.journal.unfinished([place.blob]) == {}
    assert [sent.fate(block(data)) for data in (ONE, THREE)] == [Fate.THERE, Fate.SEND]
    assert sent.bytes_kept == len(ONE) and not sent.from_present_version
    place.send(sent, THREE)
    assert sent.bytes_kept == len(ONE) + len(THREE)
    # Of the file as it is now; the other block may still be of use.
    assert place.journal.unfinished([place.blob])[place.blob].there == len(ONE) + len(THREE)
    assert len(place.journal.staged(place.blob)) == 3


def test_without_a_journal_nothing_is_there_from_before(place: Place) -> None:
    basis = place.written(ONE)
    place.killed_after(TWO)
    sent = place.blocks(journal=False)
    sent.look(NEAR, basis)
    assert {sent.fate(block(data)) for data in (ONE, TWO)} == {Fate.SEND} and place.asked == 0


def test_a_block_of_another_size_is_sent(place: Place) -> None:
    place.killed_after(ONE, TWO)
    place.store.blocks["a"][block(ONE).id] += b"more"
    sent = place.blocks()
    sent.look(NEAR, None)
    assert [sent.fate(block(data)) for data in (ONE, TWO)] == [Fate.SEND, Fate.THERE]
    assert sent.bytes_kept == len(TWO)


def test_an_attempt_finds_what_the_one_before_it_has_sent(place: Place) -> None:
    for journal in (True, False):
        sent = place.blocks(journal=journal)
        sent.look(NEAR, None)
        place.send(sent, ONE)
        sent.look(NEAR, None)
        assert [sent.fate(block(data)) for data in (ONE, ONE, THREE)] == [Fate.SENT, Fate.THERE, Fate.SEND]
        assert sent.bytes_kept == (len(ONE) if journal else 0)
        with pytest.raises(ChecksumError):
            sent.check([block(ONE)])


def test_a_look_forgets_what_the_one_before_it_found(place: Place) -> None:
    basis = place.written(ONE)
    place.killed_after(TWO)
    sent = place.blocks()
    sent.look(NEAR, basis)
    assert [sent.fate(block(data)) for data in (ONE, TWO)] == [Fate.THERE, Fate.THERE]
    assert sent.from_present_version == {block(ONE).id} and sent.bytes_kept == len(TWO)
    sent.look(NEAR, basis, trusting=False)
    assert place.asked == 1 and sent.bytes_kept == 0 and not sent.from_present_version
    assert [sent.fate(block(data)) for data in (ONE, TWO)] == [Fate.SEND, Fate.SEND]
    sent.check([block(THREE)])
    assert place.asked == 1


def test_blocks_of_the_version_that_this_project_wrote_are_there_and_no_unfinished_upload(place: Place) -> None:
    basis = place.written(ONE, TWO)
    sent = place.blocks()
    sent.look(NEAR, basis)
    assert [sent.fate(block(data)) for data in (TWO, THREE)] == [Fate.THERE, Fate.SEND]
    assert sent.from_present_version == {block(TWO).id}
    assert sent.bytes_kept == 0 and place.journal.staged(place.blob) == {}
    sent.check([block(ONE), block(TWO)])


def test_a_block_that_is_there_twice_is_taken_from_the_present_version(place: Place) -> None:
    basis = place.written(ONE)
    place.killed_after(ONE)
    sent = place.blocks()
    sent.look(NEAR, basis)
    assert sent.fate(block(ONE)) is Fate.THERE
    assert sent.from_present_version == {block(ONE).id} and sent.bytes_kept == 0


def test_a_version_that_this_project_did_not_write_has_nothing(place: Place) -> None:
    basis = place.written(ONE)
    place.journal.finish(place.blob, "another")
    sent = place.blocks()
    sent.look(NEAR, basis)
    assert sent.fate(block(ONE)) is Fate.SEND and place.asked == 0


def test_without_anything_to_look_for_no_list_is_asked_for(place: Place) -> None:
    place.written(ONE)
    sent = place.blocks()
    sent.look(NEAR, None)
    assert place.asked == 0 and sent.fate(block(ONE)) is Fate.SEND


def test_what_was_made_of_blocks_from_before_is_looked_at(place: Place) -> None:
    basis = place.written(ONE, TWO)
    sent = place.blocks()
    sent.look(NEAR, basis)
    sent.fate(block(ONE))
    sent.check([block(ONE), block(TWO)])
    with pytest.raises(ChecksumError) as caught:
        sent.check([block(TWO), block(ONE)])
    assert "a is not made of the blocks that were sent: block 1 is another one" in caught.value.message
    assert caught.value.hint and caught.value.path == "a"


@pytest.mark.parametrize("error", [StorageUnreachableError, ThrottledError])
def test_a_service_that_is_out_of_reach_is_no_reason_to_send_all(place: Place, error: type[StorageError]) -> None:
    place.killed_after(ONE)

    def refuse(request: Request) -> None:
        raise error("not now")

    place.store.before = refuse
    with pytest.raises(error):
        place.blocks().look(NEAR, None)
    assert place.notes == []


def test_a_service_that_tells_nothing_gets_all_of_it_and_that_is_reported_once(place: Place) -> None:
    place.killed_after(ONE)

    def refuse(request: Request) -> None:
        raise AccessDeniedError("not allowed to read", status=403)

    place.store.before = refuse
    memory = BlockMemory(place.journal, place.notes.append)
    for _ in range(3):
        sent = SentBlocks(memory, place.store, "a")
        sent.look(NEAR, None)
        assert sent.fate(block(ONE)) is Fate.SEND
    assert place.notes == ["cannot list the blocks that are there already, so they are sent again: not allowed to read"]
