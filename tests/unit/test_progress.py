"""How far a transfer is, as numbers: they agree with each other, and with what happens."""

from __future__ import annotations

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Connected,
    Disconnected,
    Expected,
    FileDone,
    FilesCounted,
    Hashing,
    Moving,
    Phase,
)
from blobsync.plan.progress import Progress, ProgressCounter

MB = 1_000_000


class Counter(ProgressCounter):
    """A counter whose time is set by hand, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def show(self, *, force: bool, began: bool = False) -> None: ...

    def seen_now(self) -> Progress:
        return self.progress(self.now)

    def move(self, seconds: float, size: int = MB, *, reused: int = 0) -> None:
        """So many seconds in which ``size`` bytes a second move, or are there already; each half second is told."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            if size:
                self.emit(BytesMoved(size // 2))
            if reused:
                self.emit(BytesReused(reused // 2))
            self.progress(self.now)


def counter(files: int, size: int, *, on_record: int = 0, doing: str = "uploading") -> Counter:
    made = Counter()
    made.emit(Expected(files, size))
    made.emit(Moving(doing, on_record))
    made.emit(Phase("moving"))
    return made


def test_speed_and_time_left_are_of_the_same_last_seconds() -> None:
    """The line becomes five times slower after five minutes."""
    told = counter(1, 2000 * MB)
    told.move(300, 5 * MB)
    told.move(40, 1 * MB)
    now = told.seen_now()
    left = now.bytes_expected - now.bytes
    assert now.rate == pytest.approx(1 * MB, rel=0.01)
    assert now.seconds_left == pytest.approx(left / now.rate, rel=0.05)


def test_what_is_compared_and_not_sent_is_work_that_is_done() -> None:
    """A file of 10 GB of which each hundredth block changed: 1 MB/s is sent while 100 MB/s are compared."""
    told = counter(1, 10_000 * MB)
    told.move(20, MB, reused=99 * MB)
    now = told.seen_now()
    assert now.rate == pytest.approx(MB, rel=0.01)
    assert now.seconds_left == pytest.approx(80, rel=0.05)


def test_what_an_earlier_run_left_says_nothing_of_the_line() -> None:
    told = counter(1, 1000 * MB, on_record=500 * MB)
    told.move(1, 0, reused=500 * MB)
    assert told.seen_now().seconds_left is None
    told.move(10, 10 * MB)
    assert told.seen_now().seconds_left == pytest.approx(40, rel=0.15)


def test_no_more_bytes_or_files_than_there_are() -> None:
    told = counter(2, 3 * MB)
    told.emit(BytesMoved(5 * MB))
    told.emit(FilesCounted(3))
    now = told.seen_now()
    assert (now.bytes, now.files, now.share) == (3 * MB, 2, 1.0)
    told.emit(BytesMoved(-6 * MB))
    assert told.seen_now().bytes == 0


def test_files_that_are_told_of_one_by_one_later_count_once() -> None:
    told = counter(4, 4 * MB)
    told.emit(FilesCounted(3))
    assert told.seen_now().files == 3
    for name in "abc":
        told.emit(FilesCounted(-1))
        told.emit(FileDone(name, None))
    assert told.seen_now().files == 3


def test_without_a_connection_there_is_neither_speed_nor_time_left_and_the_word_says_why() -> None:
    told = counter(1, 1000 * MB)
    told.move(20)
    before = told.seen_now()
    assert before.rate and before.seconds_left and not before.waiting
    told.emit(Disconnected("acct.example", "no connection"))
    told.move(1, 0)
    assert not told.seen_now().waiting, "a broken connection is no news"
    told.move(7, 0)
    now = told.seen_now()
    assert (now.waiting, now.waiting_seconds, now.retrying) == ("no connection", 8.0, True)
    assert (now.rate, now.seconds_left) == (0.0, None)
    told.emit(Connected("acct.example"))
    told.move(1)
    after = told.seen_now()
    assert not after.waiting
    # The outage says nothing of the line.
    assert after.rate == pytest.approx(MB, rel=0.05)
    assert after.seconds_left == pytest.approx(979, rel=0.05)


def test_two_hosts_are_both_waited_for() -> None:
    told = counter(1, 1000 * MB, doing="copying")
    told.move(5)
    told.emit(Disconnected("one", "no connection"))
    told.move(3, 0)
    told.emit(Disconnected("two", "the service is busy"))
    told.emit(Connected("one"))
    told.move(3, 0)
    assert told.seen_now().waiting == "the service is busy"
    told.emit(Connected("two"))
    assert not told.seen_now().waiting


@pytest.mark.parametrize(("doing", "said"), [("uploading", "no answer"), ("downloading", "no answer"), ("copying", "")])
def test_a_stall_is_said_where_bytes_are_seen_as_they_go(doing: str, said: str) -> None:
    """A copy from server to server is told of when a file has ended."""
    told = counter(1, 1000 * MB, doing=doing)
    told.move(10)
    told.move(9, 0)
    now = told.seen_now()
    assert (now.waiting, now.retrying) == (said, False)
    assert bool(now.rate) is not bool(said)


def test_while_names_are_looked_at_an_outage_is_said_too() -> None:
    told = Counter()
    told.emit(Phase("surveying"))
    told.emit(Disconnected("acct.example", "no connection", 1.0))
    told.now += 4
    assert (told.seen_now().waiting, told.seen_now().waiting_seconds) == ("no connection", 5.0)


def test_files_that_are_read_for_their_md5_are_said_to_be_hashed() -> None:
    told = Counter()
    told.emit(Phase("surveying"))
    told.emit(Hashing(3, 120 * MB))
    now = told.seen_now()
    assert (now.phase, now.doing, now.under_way, now.bytes_expected) == ("surveying", "hashing", 3, 120 * MB)
    told.emit(Hashing(-3, -120 * MB))
    assert (told.seen_now().doing, told.seen_now().under_way) == ("", 0)


def test_a_failure_that_is_mended_is_none() -> None:
    told = counter(1, MB)
    told.emit(FileDone("a", FileFailure("a", FailureCode.SERVICE_BUSY, "busy")))
    told.emit(FileDone("a", None))
    assert (told.seen_now().files, told.seen_now().failures) == (1, 0)
