"""The direct engine on the nodes of a cluster: this process cuts shards, offers them to workers, and counts records.

No worker's report counts as success: files that are reported as moved are looked at in the end, and a file without a
record is a failure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import Listener, Note, UnderWay
from blobsync.base.locations import LocalLocation
from blobsync.direct.pool import not_tried
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import FileAction
from blobsync.spread.earlier_records import EarlierBlocks
from blobsync.spread.file_json import LONGEST_TEXT, FormatError, message_of
from blobsync.spread.large_files import LargeFiles
from blobsync.spread.record import (
    FileRecord,
    KeptFile,
    MovedBytes,
    NamedBlock,
    ShardDone,
    answer_line,
    read_answer,
)
from blobsync.spread.shard import Shard, can_be_in_shard, cut, shard_lines
from blobsync.spread.shard_account import TRIES, OwnReading, ShardAccount, WorkersBusy, file_to_read, with_own_look
from blobsync.spread.shard_worker import FROM_PARENT
from blobsync.spread.shared_store import SharedStore
from blobsync.transfer.engines import Engine, MoveReport, MoveTask
from blobsync.transfer.fresh_look import written_before

_RECORD = re.compile(r"(?P<shard>[0-9]{7})~(?P<worker>[A-Za-z0-9.-]{1,60})-[0-9a-f]{8}~[0-9]{6}")
# Seconds between two checks of the workers' job.
_CREW_SECONDS = 5.0
# Seconds without a record from any worker, after which the coordinator checks the documents that it has written.
_QUIET_SECONDS = 60.0
# Seconds for which the records of a finished shard are kept: until then the index has them.
_KEPT_SECONDS = 30.0
# How often workers are started again if their job has ended too early.
_CREWS = 3


class SpreadRefusedError(BlobsyncError):
    """A node of the transfer cannot work."""

    code = FailureCode.SPREAD_REFUSED


class Workforce(Protocol):
    """The workers: a job of any kind of cluster."""

    def start(self) -> None:
        """Start the workers' job. Raises ``JobError`` and the like."""
        ...

    def ended(self) -> str | None:
        """How the job ended, in words; None while workers run, or may start."""
        ...

    def stop(self) -> None:
        """Ask the workers to end; idempotent."""
        ...


class SpreadClock(NamedTuple):
    """The coordinator's clock, in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class _Task:
    """One call of ``move``. ``open`` are the states of unfinished shards, ``done`` of those whose worker has finished,
    or cannot be trusted, each with the message for files without a record. ``refused`` are failures, by shard and path,
    that count once the shard is finished: a worker that was cut off reports them while another worker, which has taken
    the shard over, still moves the file. ``reading`` are files that this machine reads itself."""

    task: MoveTask
    report: MoveReport
    listener: Listener
    large: LargeFiles
    reading: OwnReading
    open: dict[str, ShardAccount] = field(default_factory=dict)
    attempts: dict[str, str] = field(default_factory=dict)
    lying: set[str] = field(default_factory=set)
    done: list[tuple[ShardAccount, str]] = field(default_factory=list)
    refused: dict[tuple[int, str], FileRecord] = field(default_factory=dict)
    busy: WorkersBusy = field(init=False)

    def __post_init__(self) -> None:
        self.busy = WorkersBusy(self.listener, self.task.part.path)


class SpreadEngine:
    """Uploads, downloads, and copies from server to server, with workers on other machines."""

    name = "direct"

    def __init__(
        self,
        alone: Engine,
        place: SharedStore,
        workforce: Workforce,
        workers: int,
        *,
        watch: SpreadClock = SpreadClock(),  # noqa: B008 - it is frozen
        poll: float = 1.0,
        first: int = 0,
        keep_records: bool = False,
        range_bytes: int = 0,
        earlier: EarlierBlocks | None = None,
    ) -> None:
        """``alone`` is the engine of this process, for files that fit no shard and for retries. ``poll`` is how long to
        wait for records, in seconds. ``first`` is an unused shard number; ``keep_records``: other programs read them.
        ``range_bytes`` is the length of the ranges into which large files are cut; 0: none. ``earlier`` are blocks of
        such files that an earlier run has put."""
        self._alone = alone
        self._place = place
        self._workforce = workforce
        self._workers = workers
        self._watch = watch
        self._poll = poll
        self._count = first
        self._keep_records = keep_records
        self._range_bytes = range_bytes
        self._earlier = earlier or EarlierBlocks()
        self._heard: set[str] = set()
        self._closed: dict[str, float] = {}

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`. Raises ``SpreadRefusedError`` if a node reports that it cannot
        work, and what the job's cluster raises."""
        reading = OwnReading()
        large = LargeFiles(task, report, listener, self._range_bytes, self._earlier, reading)
        run = _Task(task, report, listener, large, reading)
        route = task.part.route
        away = [each for each in task.actions if can_be_in_shard(each, route) or run.large.takes(each)]
        if not away or task.again:
            self._alone.move(task, report, listener)
            return
        kept = {id(action) for action in away}
        here = [action for action in task.actions if id(action) not in kept]
        self._put(run, away)
        try:
            self._workforce.start()
            self._wait(run)
        except BaseException:
            self._stop(run)
            raise
        finally:
            reading.close()
        if here:
            self._alone.move(task._replace(actions=here, whole_folder=False), report, listener)

    def _put(self, run: _Task, actions: Sequence[FileAction]) -> None:
        """The heaviest first, so that none of them is still running when all others have ended."""
        large = {action.path for action in actions if run.large.takes(action)}
        small = [action for action in actions if action.path not in large]
        shards = [*cut(run.task.part, small, self._workers)]
        shards += [shard for action in actions if action.path in large for shard in run.large.cut(action)]
        self._hand_out(run, sorted(shards, key=lambda shard: -shard.weight))

    def _hand_out(self, run: _Task, shards: Sequence[Shard]) -> None:
        for shard in shards:
            numbered = replace(shard, number=self._count)
            name = f"{self._count:07}"
            self._count += 1
            account = ShardAccount(numbered)
            if there := [NamedBlock(index, each) for index, each in run.large.there(numbered).items()]:
                # Written first, so that the worker that takes the shard finds them.
                record = f"{name}~{FROM_PARENT}{1:08x}~{0:06}"
                self._place.write(f"records/{record}", "\n".join(map(answer_line, there)).encode())
                self._heard.add(record)
                for block in there:
                    account.name(block)
            self._place.write(f"shards/{name}", _body(numbered))
            run.open[name] = account

    def _wait(self, run: _Task) -> None:
        looked, crews = self._watch.now(), 1
        heard = looked
        while run.open or run.reading.open:
            run.task.stop.check()
            if not run.open:
                run.reading.settle(self._poll)
                self._hand_out(run, run.large.again())
                continue
            if self._listen(run):
                heard = self._watch.now()
                if heard - looked < _CREW_SECONDS:
                    self._watch.sleep(self._poll)
                    continue
            self._demand_willing(run.task.part)
            if self._watch.now() - heard >= _QUIET_SECONDS:
                heard = self._watch.now()
                self._mend(run)
            if self._watch.now() - looked >= _CREW_SECONDS:
                looked = self._watch.now()
                self._tidy()
                how = self._workforce.ended()
                # Records written between the last look and the end of the job count.
                if how is not None and not self._listen(run):
                    if crews >= _CREWS:
                        self._give_up(run, how)
                        return
                    crews += 1
                    run.listener.emit(Note(f"the workers' job ended early, {how}; starting it again"))
                    self._workforce.start()
            self._watch.sleep(self._poll)

    def _mend(self, run: _Task) -> None:
        """Restore, after a while without records, documents that somebody else has removed or overwritten. A shard that
        its worker has finished, but whose records are missing, is ended."""
        done = set(self._place.names("done"))
        # Their records were written before.
        self._listen(run)
        for name, account in tuple(run.open.items()):
            if name in done:
                self._close(run, account, "its worker has finished it, and what it said of it is not there")
            elif self._place.read(f"shards/{name}") is None:
                shown = f"{self._place.shown}shards/{name}"
                run.listener.emit(Note(f"somebody else has removed or replaced {shown}: it is put back"))
                self._place.write(f"shards/{name}", _body(account.shard))

    def _tidy(self) -> None:
        """Remove records that are in the index: each look lists the whole store."""
        if self._keep_records:
            return
        due = [name for name, closed in self._closed.items() if self._watch.now() - closed >= _KEPT_SECONDS]
        for shard in due:
            del self._closed[shard]
            self._place.remove(f"shards/{shard}")
            for name in [name for name in self._heard if name.startswith(f"{shard}~")]:
                self._place.remove(f"records/{name}")
                self._heard.discard(name)
            self._place.remove(f"done/{shard}")

    def _demand_willing(self, part: LivePart) -> None:
        has_disk = isinstance(part.source, LocalLocation) or isinstance(part.destination, LocalLocation)
        for worker in self._place.names("refused"):
            body = self._place.read(f"refused/{worker}")
            if body is None:
                continue
            said = message_of({"text": body.decode("utf-8", "replace")[:LONGEST_TEXT].replace("\0", "")}, "text")
            raise SpreadRefusedError(f"{worker} cannot take part: {said}", hint=_NOT_SHARED if has_disk else _HERE)

    def _listen(self, run: _Task) -> bool:
        """Read new records; False if none is from a worker."""
        new = [name for name in self._place.names("records") if name not in self._heard]
        heard = False
        for name in new:
            self._heard.add(name)
            match = _RECORD.fullmatch(name)
            if match and (account := run.open.get(match["shard"])):
                heard = self._read(run, name, match, account) or heard
        # The worker that finished a shard left out what others had reported, whose records may come later in this list.
        while run.done:
            self._close(run, *run.done.pop())
        run.reading.settle()
        self._hand_out(run, run.large.again())
        return heard

    def _read(self, run: _Task, name: str, match: re.Match[str], account: ShardAccount) -> bool:
        attempt = name.rpartition("~")[0]
        body = self._place.read(f"records/{name}") if attempt not in run.lying else None
        if body is None:
            return False
        shard = match["shard"]
        if run.attempts.get(shard) != attempt:
            # Another worker has taken it over: what was under way moves again.
            run.attempts[shard] = attempt
            account.begin_again(match["worker"], run.listener)
        try:
            for line in body.decode("utf-8", "replace").splitlines():
                self._hear(run, account, line)
        except FormatError as error:
            run.lying.add(attempt)
            run.listener.emit(Note(f"what {match['worker']} says of a shard is not believed: {error}"))
            run.done.append((account, "its worker said what cannot be, and is not believed"))
        return True

    def _hear(self, run: _Task, account: ShardAccount, line: str) -> None:
        answer = read_answer(line, run.task.part.route)
        if isinstance(answer, FileRecord):
            self._told_of(run, account, answer)
        elif isinstance(answer, NamedBlock):
            account.name(answer)
        elif isinstance(answer, MovedBytes):
            account.tell(answer.count, answer.reused, run.listener)
        elif isinstance(answer, UnderWay):
            run.busy.hear(account.shard.number, answer)
        elif isinstance(answer, KeptFile):
            run.report.file_kept(account.planned(answer.path), answer.size)
        elif isinstance(answer, Note):
            run.listener.emit(answer)
        elif isinstance(answer, ShardDone):
            run.done.append((account, f"not moved: {TRIES:,} workers in a row were lost over its shard"))

    def _told_of(self, run: _Task, account: ShardAccount, record: FileRecord) -> None:
        if record.path not in account.left:
            # An earlier attempt has reported it; a file that is not in the shard is an error.
            account.planned(record.path)
            return
        if record.failure is not None:
            run.refused[account.shard.number, record.path] = record
            if record.failure.code is FailureCode.DISK_FULL:
                self._end_fetching(run, record.failure)
            return
        run.refused.pop((account.shard.number, record.path), None)
        if account.shard.order is not None:
            run.large.heard(account, record)
            return
        moved = account.moved(record)
        account.arrived(run.listener)
        part = run.task.part
        file = file_to_read(part.source, part.destination, moved)
        if file is None:
            run.report.file_moved(with_own_look(moved._replace(destination=None), None))
            return
        there = moved.destination if isinstance(part.destination, LocalLocation) else None
        reported = moved._replace(destination=there)
        run.reading.begin(file, lambda own: run.report.file_moved(with_own_look(reported, own)))

    def _close(self, run: _Task, account: ShardAccount, said: str) -> None:
        name = f"{account.shard.number:07}"
        if run.open.pop(name, None) is None:
            return
        self._closed[name] = self._watch.now()
        run.busy.ends(account.shard.number)
        self._settle(run, account, said)
        account.close(run.listener)

    def _give_up(self, run: _Task, how: str) -> None:
        while run.open:
            _, account = run.open.popitem()
            self._settle(run, account, f"not moved: the workers' job ended early {_CREWS} times; the last: {how}")
        while run.reading.open:
            run.reading.settle(self._poll)

    def _settle(self, run: _Task, account: ShardAccount, said: str) -> None:
        """End a shard: files that nobody moved have failed, for the reason that a worker gave, or for ``said``."""
        if account.shard.order is not None:
            self._settle_range(run, account, said)
            return
        for action in tuple(account.left.values()):
            record = run.refused.pop((account.shard.number, action.path), None)
            if record is not None and record.failure is not None:
                self._fail(run, account, record, record.failure)
                continue
            hint = "run the same command again: verified files are skipped"
            failure = FileFailure(run.task.part.shown(action), FailureCode.NOT_REPORTED, said, hint)
            run.report.file_failed(action, failure)

    def _settle_range(self, run: _Task, account: ShardAccount, said: str) -> None:
        path = account.shard.actions[0].path
        refused = run.refused.pop((account.shard.number, path), None)
        if refused is not None:
            run.large.heard(account, refused)
        self._hand_out(run, run.large.ended(account, said))
        if run.large.has_failed(account):
            self._withdraw(run, path)

    def _withdraw(self, run: _Task, path: str) -> None:
        """The other ranges of a failed file are useless: workers do not begin them."""
        names = [name for name, each in run.open.items() if each.shard.actions[0].path == path]
        for name in names:
            said = "not moved: another range of the file has failed"
            run.large.ended(self._take_back(run, name, FailureCode.NOT_REPORTED, said, None), said)

    def _end_fetching(self, run: _Task, failure: FileFailure) -> None:
        """All nodes write to one disk, and it is full: begin no other file."""
        said = not_tried(failure.message)
        for name in [name for name in run.open if name not in run.attempts]:
            account = self._take_back(run, name, failure.code, said, failure.hint)
            for action in account.left.values():
                shown = run.task.part.shown(action)
                run.report.file_failed(action, FileFailure(shown, failure.code, said, failure.hint))

    def _take_back(self, run: _Task, name: str, code: FailureCode, said: str, hint: str | None) -> ShardAccount:
        """Take back a shard that is no longer to be moved. A coordinator that is started again reads it, too."""
        account = run.open.pop(name)
        self._closed[name] = self._watch.now()
        run.busy.ends(account.shard.number)
        failed = [FileRecord(path, failure=FileFailure(path, code, said, hint)) for path in account.left]
        lines = [*map(answer_line, failed), answer_line(ShardDone(account.shard.number))]
        self._place.write(f"records/{name}~{FROM_PARENT}{0:08x}~{0:06}", "\n".join(lines).encode())
        self._place.write(f"done/{name}", b"")
        account.take_back(run.listener)
        return account

    def _fail(self, run: _Task, account: ShardAccount, record: FileRecord, failure: FileFailure) -> None:
        part, action = run.task.part, account.failed(record)
        if failure.code is FailureCode.CHANGED_MEANWHILE:
            # Another worker may have moved it without being able to report it.
            there = written_before(part, action)
            if there is not None:
                account.found(action)
                run.report.file_moved(there)
                return
        reported = FileFailure(part.shown(action), failure.code, failure.message, failure.hint)
        run.report.file_failed(action, reported)

    def _stop(self, run: _Task) -> None:
        """Stop the workers; records that they have left count. Raises nothing if the store cannot be reached: the
        claim's holder reports that."""
        self._place.hurry()
        with suppress(BlobsyncError):
            self._place.write("stop", b"")
        self._workforce.stop()
        with suppress(BlobsyncError):
            self._listen(run)


def _body(shard: Shard) -> bytes:
    return ("\n".join(shard_lines(shard)) + "\n").encode()


_HERE = "without --nodes this machine does it"
_NOT_SHARED = (
    "--nodes needs the project on a file system that all nodes share, under the same path; "
    "elsewhere, -f copies need no local files, and --processes uses this machine"
)
