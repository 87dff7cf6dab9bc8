"""The thread pool that moves files: many small ones side by side, one large one in pieces.

What is moved is a :class:`FileJob`. A thread takes the next piece of an open file, and opens the next file if there
is none; so at most one file more than there are threads is open, and memory is bounded by the pieces in flight
(:class:`ByteBudget`). :class:`WorkerThreads` runs threads while the caller waits, and ends them cleanly at Ctrl-C
or an error.
"""

from __future__ import annotations

import abc
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import BytesMoved, BytesReused, Listener, UnderWay
from blobsync.base.records import NamedTuple
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.direct.circuit_breaker import CircuitBreaker, NotTriedError
from blobsync.local.resume_records import Ends, WriteIntents
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.protocol import BlobInfo, Order, Sent
from blobsync.transfer.engines import Moved, MoveReport, MoveTask

# How long an interrupted run waits for its threads (seconds); their files are cleaned up without them.
STOP_PATIENCE = 0.7


class Stopping(NamedTuple):
    """How a run of the direct engine stops its threads: by an event that it makes, and then waits ``patience`` seconds
    for them."""

    event: Callable[[], threading.Event] = threading.Event
    patience: float = STOP_PATIENCE


class ThreadWork(Protocol):
    """Work for any number of threads."""

    def run(self) -> None:
        """What each thread runs, until nothing is left or the run is stopped."""
        ...

    def wake(self) -> None:
        """Wake waiting threads after the run was stopped."""
        ...

    def abandon(self) -> None:
        """Remove unfinished files from the disk, while threads may still be using them."""
        ...


class WorkerThreads:
    """The threads of one run; ``stop`` tells them to end, when ``request`` asks for that. A run that an interrupt or an
    error ends waits ``patience`` seconds for them."""

    def __init__(self, stop: threading.Event, request: StopRequest = NEVER, *, patience: float = STOP_PATIENCE) -> None:
        self._stop = stop
        self._request = request
        self._patience = patience
        self._works: list[ThreadWork] = []
        self._over = threading.Condition()
        self._started = 0
        self._ended = 0
        self._bug: BaseException | None = None

    def work(self, *shifts: tuple[ThreadWork, int]) -> None:
        """Start so many threads for each, and return when all have ended; cleans up after an interrupt or an error in
        one of them, and re-raises it."""
        try:
            for work, threads in shifts:
                self._works.append(work)
                for _ in range(threads):
                    # Before it starts: an interrupt meanwhile waits for this one, too.
                    with self._over:
                        self._started += 1
                    # A daemon: a thread blocked on a socket must not keep an interrupted process alive.
                    threading.Thread(target=self._thread, args=(work,), daemon=True).start()
            with self._request.waking(self._look), self._over:
                # Not Thread.join: when interrupted, it treats the thread as ended (CPython 3.10 to 3.12).
                while self._ended < self._started and self._bug is None and not self._request.made:
                    self._over.wait()
            self._request.check()
            if self._bug is not None:
                raise self._bug
        except BaseException:
            self._interrupt()
            raise

    def _look(self) -> None:
        with self._over:
            self._over.notify_all()

    def _interrupt(self) -> None:
        self._stop.set()
        for work in self._works:
            work.wake()
        with self._over:
            self._over.wait_for(lambda: self._ended == self._started, self._patience)
        for work in self._works:
            work.abandon()

    def _thread(self, work: ThreadWork) -> None:
        try:
            work.run()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for this one
            # A bug in one of many threads: stop them all.
            self._bug = error
            self._stop.set()
        finally:
            with self._over:
                self._ended += 1
                self._over.notify_all()


MIB = 1024 * 1024

# Maximum attempts for a file that arrived damaged.
ATTEMPTS = 4


class Stopped(Exception):
    """The run was stopped: the thread has to end its piece."""


class ByteBudget:
    """Limits the bytes in buffers; a single buffer that is larger than the limit is allowed alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, count: int, stop: threading.Event) -> None:
        """Wait for room; raises ``Stopped`` if ``stop`` is set meanwhile."""
        with self._changed:
            while self._used and self._used + count > self._limit:
                self._changed.wait(0.2)
                if stop.is_set():
                    raise Stopped
            self._used += count

    def release(self, count: int) -> None:
        """Return the room."""
        with self._changed:
            self._used -= count
            self._changed.notify_all()


class TokenBucket:
    """A limit on bytes per second (``--cap-mbps``), shared by all threads; allows bursts of a quarter of a second."""

    def __init__(self, mbps: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``mbps`` is in megabits (10^6 bits) per second; None means no limit."""
        self._rate = mbps * 1e6 / 8 if mbps else None
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = -math.inf

    def delay(self, count: int) -> float:
        """Reserve ``count`` bytes; returns how many seconds to wait before sending them."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.25)
            self._free_at = start + count / self._rate
            return max(0.0, start - now)


class RunState:
    """What the jobs of one run share: the rate limit, the memory budget, the stop signal, the report."""

    def __init__(
        self,
        task: MoveTask,
        report: MoveReport,
        listener: Listener,
        budget: int,
        intents: WriteIntents | None = None,
        stopping: Stopping = Stopping(),  # noqa: B008 - it has no state
    ) -> None:
        self.task = task
        self.report = report
        self.listener = listener
        self.reported: set[str] = set()
        self.files_moved = self.bytes_moved = 0
        self.stop, self.patience = stopping.event(), stopping.patience
        # Why no further file is to be begun.
        self.hopeless: BlobsyncError | None = None
        self._bucket = TokenBucket(task.cap_mbps)
        self._budget = ByteBudget(budget)
        self._intents = intents
        self._ends = Ends(str(task.part.source), str(task.part.destination))
        self._lock = threading.Lock()
        self.counting = threading.Lock()
        self._giving_up = CircuitBreaker()
        self._under_way: set[FileJob] = set()

    def about_to_write(self, *files: Written) -> None:
        """Note what the next requests, or renames, give files."""
        if self._intents is not None:
            noted = [(action.path, action.target, size, md5) for action, size, md5 in files if md5 is not None]
            self._intents.add(self._ends, *noted)

    def begins(self, jobs: Sequence[FileJob]) -> None:
        """Report to the listener that files are under way; there is one at least."""
        with self._lock:
            self._under_way.update(jobs)
            count = len(self._under_way)
        self.listener.emit(UnderWay(count, self.task.part.shown(jobs[-1].action)))

    @contextmanager
    def buffer(self, count: int) -> Iterator[None]:
        """Reserve ``count`` bytes of memory while the block runs."""
        self._budget.acquire(count, self.stop)
        try:
            yield
        finally:
            self._budget.release(count)

    def wait_for_rate(self, count: int) -> None:
        """Wait until the rate limit allows ``count`` bytes; raises ``Stopped`` after an interrupt."""
        if self.stop.wait(self._bucket.delay(count)):
            raise Stopped

    def moved(self, moved: Sequence[Moved]) -> None:
        """Report files as moved."""
        if not moved:
            return
        with self._lock:
            self._giving_up.moved()
            self.reported.update([each.action.path for each in moved])
            self.files_moved += len(moved)
            self.bytes_moved += sum([each.action.size for each in moved])
        self.report.files_moved(moved)

    def all_failed(self, error: BlobsyncError) -> None:
        """Report every file as failed, because none could be begun."""
        for action in self.task.actions:
            self.failed(action, error)

    def finish(self, ended: Sequence[Ended]) -> list[FileJob]:
        """Commit and report files whose pieces are all moved, or report their errors; and release them.

        Returns those that are to be moved again.
        """
        self.about_to_write(*[found for job, error in ended if error is None and (found := job.written())])
        moved: list[Moved] = []
        again: list[FileJob] = []
        for job, error in ended:
            try:
                if error is None:
                    moved.append(job.commit())
            except (BlobsyncError, Stopped) as caught:
                error = caught
            job.release()
            if isinstance(error, BlobsyncError):
                # In their order: what moved in between shows that others fail by themselves.
                self.moved(moved)
                moved = []
                again += [job] if self._is_to_move_again(job, error) else []
        self.moved(moved)
        with self._lock:
            self._under_way.difference_update([job for job, _ in ended])
        return again

    def abandon(self) -> None:
        """Remove unfinished files from the disk, while threads may still be using them."""
        with self._lock:
            hanging = list(self._under_way)
        for job in hanging:
            job.abandon()

    def _is_to_move_again(self, job: FileJob, error: BlobsyncError) -> bool:
        if not self.stop.is_set() and job.worth_another_try(error):
            job.start_over()
            return True
        # Another attempt counts its bytes again.
        job.take_back()
        self.failed(job.action, error)
        return False

    def failed(self, action: FileAction, error: BlobsyncError) -> None:
        """Report one file as failed, and decide whether other files are worth trying."""
        failure = FileFailure(self.task.part.shown(action), error.code, error.message, error.hint)
        with self._lock:
            self.reported.add(action.path)
            if self._giving_up.failed(error.code) and self.hopeless is None:
                self.hopeless = NotTriedError(error)
        self.report.file_failed(action, failure)


# The action of a file, and its size and MD5 (None if it is unknown) once it is written.
Written: TypeAlias = tuple[FileAction, int, bytes | None]


class FileJob(abc.ABC):
    """One file to be moved. Call ``open``, ``piece`` as often as ``open`` said, from any threads, then ``close``."""

    def __init__(self, run: RunState, action: FileAction) -> None:
        self.run = run
        self.action = action
        self.attempt = 1
        # Bytes of this attempt that the listener has heard of.
        self.counted = 0
        # Bytes that are at the destination already, and do not move.
        self.reused = 0

    @abc.abstractmethod
    def open(self) -> int:
        """Prepare the move; returns the number of pieces."""

    @abc.abstractmethod
    def piece(self) -> None:
        """Move the next piece that no other thread has taken."""

    def written(self) -> Written | None:
        """What :meth:`commit` writes; None for jobs that have written it by then, or note it themselves."""
        return None

    @abc.abstractmethod
    def commit(self) -> Moved:
        """Finish the file after all pieces. Called once, by the thread of the last piece."""

    @abc.abstractmethod
    def release(self) -> None:
        """Close and remove what is not committed; the last call, safe without an ``open``."""

    def order(self) -> Order:
        """The request that moves a file of one piece, instead of :meth:`piece`; its result goes to :meth:`landed`."""
        raise NotImplementedError

    def landed(self, end: BlobInfo | bytes) -> None:
        """Handle the service's response to the order. The caller counts the bytes."""
        raise NotImplementedError

    def refused(self, error: BlobsyncError) -> BlobsyncError:
        """Convert the order's error to the file's error."""
        return error

    def abandon(self) -> None:  # noqa: B027 - most jobs have nothing on a disk
        """Remove unfinished files from the disk while other threads may still be at work (interrupt)."""

    def count(self, size: int) -> None:
        """Report bytes under way to the listener."""
        with self.run.counting:
            self.counted += size
        self.run.listener.emit(BytesMoved(size))

    @contextmanager
    def sending(self, size: int) -> Iterator[Sent]:
        """Count a body of ``size`` bytes while it is sent: yields a callback for the bytes sent so far."""
        counted = 0

        def sent(so_far: int) -> None:
            nonlocal counted
            self.count(so_far - counted)
            counted = so_far

        try:
            yield sent
        except BaseException:
            sent(0)
            raise
        sent(size)

    def count_reused(self, size: int) -> None:
        """Report bytes that are at the destination already and do not move."""
        with self.run.counting:
            self.reused += size
        self.run.listener.emit(BytesReused(size))

    def worth_another_try(self, error: BlobsyncError) -> bool:
        """Whether to move the whole file again after ``error``: a few times, if a body arrived damaged."""
        return error.code == FailureCode.CHECKSUM_MISMATCH and self.attempt < ATTEMPTS

    def start_over(self) -> None:
        """Begin another attempt."""
        self.attempt += 1
        self.take_back()

    def take_back(self) -> None:
        """Uncount the bytes of this attempt."""
        if self.counted:
            self.run.listener.emit(BytesMoved(-self.counted))
        if self.reused:
            self.run.listener.emit(BytesReused(-self.reused))
        self.counted = self.reused = 0


# A job, and the error that ended it.
Ended: TypeAlias = tuple[FileJob, BaseException | None]


class _Begun:
    """The pool's state of an open job."""

    def __init__(self, job: FileJob, pieces: int) -> None:
        self.job = job
        self.left_to_take = pieces
        self.left_to_end = pieces
        self.error: BaseException | None = None


class WorkerPool:
    """Runs jobs to the end on ``threads`` threads, while the calling thread waits."""

    def __init__(self, run: RunState, jobs: Iterable[FileJob], threads: int) -> None:
        self._run = run
        self._waiting = iter(jobs)
        self._again: deque[FileJob] = deque()
        self._begun: deque[_Begun] = deque()
        self._changed = threading.Condition()
        self._busy = 0
        self._threads = threads

    def work(self) -> None:
        """Return when every job is reported; cleans up and re-raises an interrupt."""
        WorkerThreads(self._run.stop, self._run.task.stop, patience=self._run.patience).work((self, self._threads))

    def run(self) -> None:
        while (begun := self._take()) is not None:
            self._advance(begun)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def abandon(self) -> None:
        self._run.abandon()

    def _take(self) -> _Begun | None:
        """The next piece to move, perhaps of a newly opened file; None if nothing is left to do."""
        while True:
            with self._changed:
                while True:
                    if self._run.stop.is_set():
                        return None
                    if self._begun:
                        begun = self._begun[0]
                        begun.left_to_take -= 1
                        if not begun.left_to_take:
                            self._begun.popleft()
                        return begun
                    job = self._again.popleft() if self._again else next(self._waiting, None)
                    if job is not None:
                        self._busy += 1
                        break
                    if not self._busy:
                        return None
                    self._changed.wait(0.5)
            if (opened := self._open_job(job)) is not None:
                return opened

    def _open_job(self, job: FileJob) -> _Begun | None:
        if self._run.hopeless is not None:
            self._close(job, self._run.hopeless)
            return None
        self._run.begins([job])
        try:
            pieces = job.open()
        except (BlobsyncError, Stopped) as error:
            self._close(job, error)
            return None
        begun = _Begun(job, pieces)
        begun.left_to_take -= 1
        if begun.left_to_take:
            with self._changed:
                self._begun.append(begun)
                self._changed.notify_all()
        return begun

    def _advance(self, begun: _Begun) -> None:
        """Move one piece; close the file after the last one."""
        error: BaseException | None = None
        try:
            begun.job.piece()
        except (BlobsyncError, Stopped) as caught:
            error = caught
        with self._changed:
            begun.left_to_end -= 1
            if error is not None:
                # Threads that stopped because of another thread's failure report Stopped; that failure is the reason.
                if begun.error is None or isinstance(begun.error, Stopped):
                    begun.error = error
                # Do not start the remaining pieces.
                begun.left_to_end -= begun.left_to_take
                begun.left_to_take = 0
                if begun in self._begun:
                    self._begun.remove(begun)
            if begun.left_to_end:
                return
        self._close(begun.job, begun.error)

    def _close(self, job: FileJob, error: BaseException | None) -> None:
        again = self._run.finish([(job, error)])
        with self._changed:
            self._busy -= 1
            self._again += again
            self._changed.notify_all()
