"""The numbers of a transfer's progress: consistent with each other and with its events."""

from __future__ import annotations

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import (
    BytesMoved,
    BytesReused,
    Connected,
    Disconnected,
    Expected,
    FilesCounted,
    FilesDone,
    Hashing,
    Moving,
    Phase,
    WorkerMoved,
)
from blobsync.plan.progress import Progress, ProgressCounter

MB = 1_000_000


class Counter(ProgressCounter):
    """A counter whose time is set by hand, from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def seen_now(self) -> Progress:
        return self.progress(self.now)

    def move(self, seconds: float, size: int = MB, *, reused: int = 0) -> None:
        """Let ``size`` bytes a second move, or ``reused`` be skipped, with an event each half second."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            if size:
                self.emit(BytesMoved(size // 2))
            if reused:
                self.emit(BytesReused(reused // 2))
            self.progress(self.now)


def new_counter(files: int, size: int, *, on_record: int = 0, doing: str = "uploading") -> Counter:
    made = Counter()
    made.emit(Expected(files, size))
    made.emit(Moving(doing, on_record))
    made.emit(Phase("moving"))
    return made


def test_speed_and_time_left_use_the_same_last_seconds() -> None:
    """The line becomes five times slower after five minutes."""
    counter = new_counter(1, 2000 * MB)
    counter.move(300, 5 * MB)
    counter.move(40, 1 * MB)
    now = counter.seen_now()
    left = now.bytes_expected - now.bytes
    assert now.rate == pytest.approx(1 * MB, rel=0.01)
    assert now.seconds_left == pytest.approx(left / now.rate, rel=0.05)


def test_compared_blocks_count_as_done_without_being_sent() -> None:
    """A file of 10 GB of which each hundredth block changed: 1 MB/s is sent while 100 MB/s are compared."""
    counter = new_counter(1, 10_000 * MB)
    counter.move(20, MB, reused=99 * MB)
    now = counter.seen_now()
    assert now.rate == pytest.approx(MB, rel=0.01)
    assert now.seconds_left == pytest.approx(80, rel=0.05)


def test_bytes_of_an_earlier_run_do_not_count_for_the_rate() -> None:
    counter = new_counter(1, 1000 * MB, on_record=500 * MB)
    counter.move(1, 0, reused=500 * MB)
    assert counter.seen_now().seconds_left is None
    counter.move(10, 10 * MB)
    assert counter.seen_now().seconds_left == pytest.approx(40, rel=0.15)


def test_bytes_and_files_never_exceed_the_total() -> None:
    counter = new_counter(2, 3 * MB)
    counter.emit(BytesMoved(5 * MB))
    counter.emit(FilesCounted(3))
    now = counter.seen_now()
    assert (now.bytes, now.files, now.share) == (3 * MB, 2, 1.0)
    counter.emit(BytesMoved(-6 * MB))
    assert counter.seen_now().bytes == 0


def test_files_counted_in_bulk_and_then_reported_one_by_one_count_once() -> None:
    counter = new_counter(4, 4 * MB)
    counter.emit(FilesCounted(3))
    assert counter.seen_now().files == 3
    for name in "abc":
        counter.emit(FilesCounted(-1))
        counter.emit(FilesDone([name]))
    assert counter.seen_now().files == 3


def test_a_lost_connection_shows_its_reason_instead_of_rate_and_time_left() -> None:
    counter = new_counter(1, 1000 * MB)
    counter.move(20)
    before = counter.seen_now()
    assert before.rate and before.seconds_left and not before.waiting
    counter.emit(Disconnected("acct.example", "no connection"))
    counter.move(1, 0)
    assert not counter.seen_now().waiting, "a broken connection is no news"
    counter.move(7, 0)
    now = counter.seen_now()
    assert (now.waiting, now.waiting_seconds, now.retrying) == ("no connection", 8.0, True)
    assert (now.rate, now.seconds_left) == (0.0, None)
    counter.emit(Connected("acct.example"))
    counter.move(1)
    after = counter.seen_now()
    assert not after.waiting
    # The outage does not count for the rate.
    assert after.rate == pytest.approx(MB, rel=0.05)
    assert after.seconds_left == pytest.approx(979, rel=0.05)


def test_outages_of_two_hosts_end_when_both_answer() -> None:
    counter = new_counter(1, 1000 * MB, doing="copying")
    counter.move(5)
    counter.emit(Disconnected("one", "no connection"))
    counter.move(3, 0)
    counter.emit(Disconnected("two", "the service is busy"))
    counter.emit(Connected("one"))
    counter.move(3, 0)
    assert counter.seen_now().waiting == "the service is busy"
    counter.emit(Connected("two"))
    assert not counter.seen_now().waiting


@pytest.mark.parametrize("doing", ["uploading", "downloading", "copying"])
def test_a_stall_is_shown_instead_of_a_speed(doing: str) -> None:
    counter = new_counter(1, 1000 * MB, doing=doing)
    counter.move(10)
    counter.move(7, 0)
    assert not counter.seen_now().waiting and counter.seen_now().rate
    counter.move(2, 0)
    now = counter.seen_now()
    assert (now.waiting, now.waiting_seconds, now.retrying) == ("no answer", 9.0, False)
    assert (now.rate, now.seconds_left) == (0.0, None)
    counter.move(1)
    assert not counter.seen_now().waiting and counter.seen_now().rate


@pytest.mark.parametrize(("every", "patience"), [(3.0, 8.0), (12.0, 24.0), (40.0, 30.0)])
def test_a_copy_that_is_counted_by_large_blocks_has_stalled_after_twice_its_usual_silence(
    every: float, patience: float
) -> None:
    """From server to server nothing is known of a block before it is there."""
    counter = new_counter(1, 100_000 * MB, doing="copying")
    for _ in range(4):
        counter.move(every, 0)
        counter.emit(BytesMoved(100 * MB))
    counter.move(patience - 1, 0)
    assert not counter.seen_now().waiting and counter.seen_now().rate
    counter.move(1, 0)
    assert (counter.seen_now().waiting, counter.seen_now().rate) == ("no answer", 0.0)


def test_what_moved_in_the_first_moment_counts_for_a_stall_and_for_the_rate() -> None:
    """Too short an interval to be noted by itself."""
    counter = new_counter(1, 1000 * MB)
    counter.now += 0.1
    counter.emit(BytesMoved(10 * MB))
    counter.now += 0.9
    assert counter.seen_now().rate == pytest.approx(10 * MB)
    again = new_counter(1, 1000 * MB)
    again.now += 0.1
    again.emit(BytesMoved(10 * MB))
    again.now += 9
    assert again.seen_now().waiting == "no answer"


def test_an_outage_during_listing_is_shown() -> None:
    counter = Counter()
    counter.emit(Phase("surveying"))
    counter.emit(Disconnected("acct.example", "no connection", 1.0))
    counter.now += 4
    assert (counter.seen_now().waiting, counter.seen_now().waiting_seconds) == ("no connection", 5.0)


def test_files_read_for_their_md5_are_shown_as_hashing() -> None:
    counter = Counter()
    counter.emit(Phase("surveying"))
    counter.emit(Hashing(3, 120 * MB))
    now = counter.seen_now()
    assert (now.phase, now.doing, now.under_way, now.bytes_expected) == ("surveying", "hashing", 3, 120 * MB)
    counter.emit(Hashing(-3, -120 * MB))
    assert (counter.seen_now().doing, counter.seen_now().under_way) == ("", 0)


def test_a_failure_fixed_by_a_retry_does_not_count() -> None:
    counter = new_counter(1, MB)
    counter.emit(FilesDone(["a"], FileFailure("a", FailureCode.SERVICE_BUSY, "busy")))
    counter.emit(FilesDone(["a"]))
    assert (counter.seen_now().files, counter.seen_now().failures) == (1, 0)


@pytest.mark.parametrize("late", [0.0, 20.0])
def test_workers_are_never_faster_than_all_together(late: float) -> None:
    counter = new_counter(1000, 1000 * MB)
    if late:
        counter.move(late)
    seen: list[tuple[float, float]] = []
    for step in range(80):
        counter.now += 0.25
        # Each reports a second's work at once, as files end.
        for worker in "abcd":
            if (step + ord(worker)) % 4 == 0:
                counter.emit(BytesMoved(MB))
                counter.emit(WorkerMoved(f"process {worker}", 1, MB))
        found = counter.seen_now()
        seen.append((sum(each.rate for each in found.workers), found.rate))
    assert all(together <= 1.3 * whole for together, whole in seen), seen
    assert seen[-1][0] == pytest.approx(4 * MB, rel=0.2)
