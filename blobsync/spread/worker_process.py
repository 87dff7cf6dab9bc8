"""The program of a worker process: orders and shards come in on standard input, records go out on standard output.

It ends with its standard input, also when the parent is killed. It is started in a session of its own, so that Ctrl-C
in the terminal reaches only the parent.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias

from blobsync.base.allocator import keep_freed_memory
from blobsync.base.errors import FileFailure
from blobsync.base.events import BytesMoved, BytesReused, Connected, Disconnected, Event, Note, UnderWay, notes_to
from blobsync.base.exit_codes import ExitCode
from blobsync.base.locations import LocalLocation
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import SasToken, Secret
from blobsync.direct.engine import DirectEngine
from blobsync.local.resume_records import BlockJournal, RangeRecords, WriteIntents
from blobsync.plan.project_context import LivePart, key_between
from blobsync.plan.transfer_plan import FileAction, Part
from blobsync.spread.file_json import FormatError
from blobsync.spread.orders import EndOrders, Handed, WorkerOrders, read_handed, read_orders, signer_of
from blobsync.spread.record import Answer, Ask, FileRecord, KeptFile, MovedBytes, Ready, ShardDone, answer_line
from blobsync.spread.shard import Shard, read_shards
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.store import RestBlobStore
from blobsync.transfer.engines import Engine, Moved, MoveTask

# Seconds. Files without a written record are moved again if the worker is killed.
_WRITE_EVERY = 0.05


class Outgoing:
    """Report and listener of the engine's threads; writes many lines at a time."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        """``write`` writes all bytes or raises ``OSError``."""
        self._write = write
        self._lines: list[str] = []
        self._moved = self._reused = 0
        self._now: UnderWay | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def say(self, answer: Answer) -> None:
        """Goes out with the next :meth:`flush`."""
        line = answer_line(answer)
        with self._lock:
            self._lines.append(line)

    def emit(self, event: Event) -> None:
        """Goes out with the next :meth:`flush`: bytes as one sum, of the files under way the newest; the parent knows
        what is not sent."""
        if isinstance(event, BytesMoved):
            with self._lock:
                self._moved += event.size
        elif isinstance(event, BytesReused):
            with self._lock:
                self._reused += event.size
        elif isinstance(event, UnderWay):
            with self._lock:
                self._now = event
        elif isinstance(event, Note | Disconnected | Connected):
            self.say(event)

    def files_moved(self, moved: Sequence[Moved]) -> None:
        for each in moved:
            self.say(FileRecord.of(each))

    def file_failed(self, action: FileAction, failure: FileFailure) -> None:
        self.say(FileRecord(action.path, failure=failure))

    def file_kept(self, action: FileAction, size: int) -> None:
        self.say(KeptFile(action.path, size))

    def stray(self, name: str) -> None:
        """Does nothing: only azcopy reports these."""

    def azcopy_job(self, job_id: str) -> None:
        """Does nothing: there is none."""

    def flush(self) -> None:
        """Write all collected lines."""
        with self._writing:
            with self._lock:
                lines, self._lines = self._lines, []
                moved, self._moved = self._moved, 0
                reused, self._reused = self._reused, 0
                now, self._now = self._now, None
            if now is not None:
                lines.insert(0, answer_line(now))
            if moved or reused:
                lines.insert(0, answer_line(MovedBytes(moved, reused)))
            if lines:
                self._write(("\n".join(lines) + "\n").encode())

    def flush_often(self, wait: Callable[[float], bool]) -> None:
        """Flush again and again until ``wait``, which gets the seconds in between, returns true."""
        while not wait(_WRITE_EVERY):
            self.flush()


class Incoming:
    """Reads the parent's lines: shards, and responses to requests for credentials."""

    def __init__(self, lines: Iterator[str], at_end: Callable[[], None]) -> None:
        """``at_end`` is called when the parent sends stop, or has ended."""
        self.shards: queue.SimpleQueue[Shard] = queue.SimpleQueue()
        self.handed: queue.SimpleQueue[Handed] = queue.SimpleQueue()
        self._lines = lines
        self._at_end = at_end

    def read(self) -> None:
        """Read until the parent closes the pipe."""
        try:
            for shard in read_shards(self._of_shards()):
                self.shards.put(shard)
        except FormatError as error:
            sys.stderr.write(f"{error}\n")
        finally:
            self._at_end()

    def _of_shards(self) -> Iterator[str]:
        for line in self._lines:
            if line.startswith(('{"handed"', '{"refused"')):
                self.handed.put(read_handed(parse_object(line)))
            elif line.startswith('{"stop"'):
                return
            else:
                yield line


# Takes the arguments of :class:`DirectEngine`.
MakeEngine: TypeAlias = Callable[..., Engine]


class Worker:
    """Moves shards between the two ends of its orders."""

    def __init__(
        self, orders: WorkerOrders, incoming: Incoming, outgoing: Outgoing, make_engine: MakeEngine = DirectEngine
    ) -> None:
        self._orders = orders
        self._incoming = incoming
        self._out = outgoing
        self._asking = threading.Lock()
        self._source = self._opened(orders.source, "source")
        self._destination = self._opened(orders.destination, "destination")
        state = orders.state
        self._engine = make_engine(
            source_sas=self._source_sas,
            journal=BlockJournal(state.unfinished_file, notes_to(outgoing)) if state else None,
            unfinished=RangeRecords(state) if state and state.lasting else None,
            intents=WriteIntents(state) if state and state.lasting else None,
            processes=orders.processes,
        )

    def work(self) -> NoReturn:
        """Move shards until an interrupt."""
        self._out.say(Ready())
        self._out.flush()
        while True:
            shard = self._incoming.shards.get()
            self.carry(shard)
            self._out.say(ShardDone(shard.number))
            self._out.flush()

    def carry(self, shard: Shard) -> None:
        """Raises ``FormatError`` for a shard whose ends are not those of the orders."""
        if (shard.source, shard.destination) != (str(self._source), str(self._destination)):
            raise FormatError("the shard names other ends than the orders of this worker")
        key = key_between(self._source, self._destination)
        part: LivePart = Part(shard.path, shard.route, self._source, self._destination, key)
        task = MoveTask(part, shard.actions, cap_mbps=self._orders.cap_mbps)
        self._engine.move(task, self._out, self._out)

    def _opened(self, end: EndOrders, which: str) -> OpenLocation:
        if isinstance(end, LocalLocation):
            return end
        asked: list[str] = []

        def ask_token() -> tuple[Secret, float]:
            asked.append("renewed" if asked else "token")
            handed = self._ask(asked[-1], which)
            return handed.secret or Secret(""), handed.ends

        container = end.location.container
        http = BlobHttp(container, signer_of(end, ask_token), environ=self._orders.environ, emit=self._out.emit)
        return OpenBlob(RestBlobStore(container, http), end.location.name)

    def _source_sas(self, end: OpenBlob) -> SasToken | None:
        secret = self._ask("source_sas", "source").secret
        return SasToken.parse(secret.reveal()) if secret else None

    def _ask(self, what: str, end: str) -> Handed:
        """Wait for a credential. Raises ``CredentialError`` as the parent did."""
        with self._asking:
            self._out.say(Ask(what, end))
            self._out.flush()
            handed = self._incoming.handed.get()
        if handed.problem is not None:
            raise handed.problem
        return handed


class _Pipes:
    """This process's end of the two pipes."""

    def __init__(self, lines: Iterable[bytes], output: int, errors: int) -> None:
        """``output`` and ``errors`` are file descriptors."""
        self._out = os.dup(output)
        # Output of libraries must not get among the records.
        os.dup2(errors, output)
        self._main = threading.get_ident()
        self._first = threading.Lock()
        self.lines = (line.decode("utf-8", "replace") for line in lines)

    def interrupt(self) -> None:
        """Interrupt the main thread once, whose engine cleans up as after Ctrl-C."""
        if self._first.acquire(blocking=False):
            signal.pthread_kill(self._main, signal.SIGINT)

    def write(self, data: bytes) -> None:
        """Write all bytes; interrupt the work if the reader has gone."""
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            self.interrupt()


def serve(lines: Iterable[bytes], output: int, errors: int, make_engine: MakeEngine = DirectEngine) -> ExitCode:
    """Read the orders, then work until a request to stop: the program, given its input and the file descriptors of its
    output. Afterwards SIGINT is ignored, and threads may still wait for input or for the network."""
    # nohup and a shell's `&` start programs that ignore it, which their children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = _Pipes(lines, output, errors)
    incoming, outgoing = Incoming(pipes.lines, pipes.interrupt), Outgoing(pipes.write)
    ended = threading.Event()
    try:
        orders = read_orders(next(pipes.lines, ""))
        for task in (incoming.read, lambda: outgoing.flush_often(ended.wait)):
            threading.Thread(target=task, daemon=True).start()
        Worker(orders, incoming, outgoing, make_engine).work()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except BaseException:  # noqa: BLE001 - the parent shows it
        traceback.print_exc()
        code = ExitCode.FAILED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended.set()
    outgoing.flush()
    return code


if __name__ == "__main__":
    keep_freed_memory()
    # Threads that wait for the network or for input must not keep the process alive.
    os._exit(serve(sys.stdin.buffer, 1, 2))
