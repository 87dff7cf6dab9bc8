"""Input and output of a worker process: each line arrives once and in order, and it ends when its parent does."""

from __future__ import annotations

import json

import pytest

from blobsync.base.errors import CredentialError, FailureCode, FileFailure
from blobsync.base.events import (
    NO_CONNECTION,
    BytesMoved,
    BytesReused,
    Connected,
    Disconnected,
    Hashing,
    Note,
    UnderWay,
)
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.redaction import Secret
from blobsync.plan.transfer_plan import Route
from blobsync.spread.orders import STOP_LINE, Handed, handed_line
from blobsync.spread.record import (
    Answer,
    FileRecord,
    KeptFile,
    MovedBytes,
    Ready,
    read_answer,
)
from blobsync.spread.shard import Shard, shard_lines
from blobsync.spread.worker_process import Incoming, Outgoing
from blobsync.transfer.engines import Moved
from tests.fakes.tasks import action

_FILE, _BLOB = LocalState(5, 1, 1, 1, bytes(16)), RemoteState(5, "0x1", bytes(16))
_ACTION = action("a", _FILE, None)


class Pipe:
    """The output of the worker."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.out = Outgoing(self.writes.append)

    def flushed(self) -> list[Answer]:
        """Written by the next flush, in at most one write of whole lines."""
        before = len(self.writes)
        self.out.flush()
        assert len(self.writes) - before <= 1
        text = b"".join(self.writes[before:]).decode()
        assert not text or text.endswith("\n")
        return [read_answer(line, Route.UPLOAD) for line in text.splitlines()]


# -- out ----------------------------------------------------------------------------------------------------------


def test_all_that_an_engine_reports_goes_out_once_and_in_its_order() -> None:
    pipe, failure = Pipe(), FileFailure("a", FailureCode.ACCESS_DENIED, "no", "ask")
    pipe.out.say(Ready())
    pipe.out.files_moved([Moved(_ACTION, _FILE, _BLOB, 3)])
    pipe.out.files_moved([Moved(_ACTION, _FILE, _BLOB, compared_by="crc64nvme")])
    pipe.out.file_failed(_ACTION, failure)
    pipe.out.file_kept(_ACTION, 4)
    pipe.out.emit(Note("a sentence"))
    lost, back = Disconnected("host", NO_CONNECTION, 0.0), Connected("host")
    pipe.out.emit(lost)
    pipe.out.emit(back)
    assert pipe.flushed() == [
        Ready(),
        FileRecord("a", _FILE, _BLOB, 3),
        FileRecord("a", _FILE, _BLOB, compared_by="crc64nvme"),
        FileRecord("a", failure=failure),
        KeptFile("a", 4),
        Note("a sentence"),
        lost,
        back,
    ]
    assert pipe.flushed() == [] and len(pipe.writes) == 1, "nothing is written where nothing was said"


def test_what_only_another_engine_tells_is_no_word_of_a_worker() -> None:
    pipe = Pipe()
    pipe.out.stray("name")
    pipe.out.azcopy_job("id")
    pipe.out.emit(Hashing(1, 5))
    assert pipe.flushed() == []


def test_bytes_are_added_up_and_told_before_the_files_that_they_are_of() -> None:
    pipe = Pipe()
    pipe.out.files_moved([Moved(_ACTION, _FILE, _BLOB)])
    pipe.out.emit(BytesMoved(3))
    pipe.out.emit(BytesReused(1))
    pipe.out.emit(BytesMoved(-1))
    pipe.out.emit(BytesReused(1))
    assert pipe.flushed() == [MovedBytes(2, 2), FileRecord("a", _FILE, _BLOB)]
    pipe.out.emit(BytesMoved(4))
    assert pipe.flushed() == [MovedBytes(4, 0)]
    pipe.out.emit(BytesReused(5))
    assert pipe.flushed() == [MovedBytes(0, 5)]
    assert pipe.flushed() == []


def test_of_files_under_way_the_last_word_counts() -> None:
    pipe = Pipe()
    pipe.out.emit(UnderWay(1, "data/a"))
    pipe.out.emit(UnderWay(2, "data/b"))
    pipe.out.emit(BytesMoved(1))
    pipe.out.emit(Note("n"))
    pipe.out.emit(Note("m"))
    assert pipe.flushed() == [MovedBytes(1), UnderWay(2, "data/b"), Note("n"), Note("m")]
    assert pipe.flushed() == []


# -- in -----------------------------------------------------------------------------------------------------------


class Reader:
    """A worker's input, read to its end."""

    def __init__(self, *lines: str) -> None:
        self.ends = 0
        self.left = iter(lines)
        self.incoming = Incoming(self.left, self._end)
        self.incoming.read()

    def _end(self) -> None:
        self.ends += 1

    def shards(self) -> list[Shard]:
        return [self.incoming.shards.get_nowait() for _ in range(self.incoming.shards.qsize())]

    def handed(self) -> list[Handed]:
        return [self.incoming.handed.get_nowait() for _ in range(self.incoming.handed.qsize())]


def _shard(number: int) -> Shard:
    return Shard(number, Route.UPLOAD, "data", "/p/data", "https://a/b", (_ACTION,))


def test_shards_and_credentials_arrive_whatever_their_order() -> None:
    problem = CredentialError("no more")
    first, second = list(shard_lines(_shard(1))), list(shard_lines(_shard(2)))
    handed = handed_line(Handed(Secret("token"), 5.0))
    reader = Reader(first[0], handed, *first[1:], handed_line(Handed(problem=problem)), *second)
    assert reader.shards() == [_shard(1), _shard(2)]
    given, refused = reader.handed()
    assert given == Handed(Secret("token"), 5.0)
    assert refused.problem is not None and refused.problem.message == "no more"
    assert reader.ends == 1, "the parent is gone"


def test_nothing_is_begun_after_the_parent_says_stop(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(*shard_lines(_shard(1)), STOP_LINE, *shard_lines(_shard(2)))
    assert reader.shards() == [_shard(1)] and reader.ends == 1
    assert next(reader.left).startswith('{"blobsync_shard"')
    assert capsys.readouterr().err == ""


def test_a_worker_that_is_sent_nonsense_says_so_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    head, file, end = shard_lines(_shard(1))
    reader = Reader(head, json.dumps({**json.loads(file), "path": "../a"}), end)
    assert not reader.shards() and reader.ends == 1
    assert "the name '../a'" in capsys.readouterr().err
