"""The program of a worker process, run by threads of this one: what it opens, asks for and says, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType

import pytest

from blobsync.base.errors import SasExpiredError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.file_states import LocalState
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.redaction import SasToken, Secret
from blobsync.local.resume_records import BlockJournal, RangeRecords, WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.spread.orders import STOP_LINE, Handed, RemoteOrders, WorkerOrders, orders_line
from blobsync.spread.record import Answer, Ask, KeptFile, Ready, ShardDone, read_answer
from blobsync.spread.shard import Shard, shard_lines
from blobsync.spread.worker_process import Incoming, Outgoing, Worker, serve
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Engine, MoveReport, MoveTask
from tests.fakes.scripted_http import Step, scripted
from tests.fakes.store import MemoryStore

# Seconds. Nothing here takes as long, however busy the machine is.
_TOO_LONG = 60.0
_KEY = Secret("c2VudGluZWxzZW50aW5lbHNlbnRpbmVs")
_BOX = BlobContainer("acct", "box", "http://127.0.0.1:9/acct")
_NOT_ASKED = Handed(problem=SasExpiredError("nobody asked"))
_ACTION = FileAction("a", Action.TRANSFER, Reason.NEW, 1, LocalState(1, 1, 1, 1, None))


def _orders(root: Path, container: BlobContainer = _BOX, credential: str = "key") -> WorkerOrders:
    blobs = RemoteOrders(container.child("sets/data"), credential, _KEY if credential == "key" else None)
    return WorkerOrders(LocalLocation(root), blobs, 3, 40.0, {})


def _shard(root: Path, container: BlobContainer = _BOX) -> Shard:
    return Shard(7, Route.UPLOAD, "data", str(root), f"{container}/sets/data", (_ACTION,))


class Acting:
    """An engine that does ``act`` with each task, and what it was made with."""

    name = "acting"

    def __init__(self, act: Callable[[MoveTask, MoveReport], object] = lambda task, report: None) -> None:
        self._act = act
        self.tasks: list[MoveTask] = []

    def made(
        self,
        *,
        source_sas: Callable[[OpenBlob], SasToken | None],
        journal: BlockJournal | None,
        unfinished: RangeRecords | None,
        intents: WriteIntents | None,
        processes: int,
    ) -> Engine:
        self.source_sas, self.journal, self.unfinished, self.processes = source_sas, journal, unfinished, processes
        self.intents = intents
        return self

    def move(self, task: MoveTask, report: MoveReport, listener: object) -> None:
        self.tasks.append(task)
        self._act(task, report)


class Talk:
    """A worker without pipes: what it is handed, and what it said."""

    def __init__(self, orders: WorkerOrders, engine: Acting) -> None:
        self._written: list[bytes] = []
        self.incoming = Incoming(iter(()), lambda: None)
        self.out = Outgoing(self._written.append)
        self.worker = Worker(orders, self.incoming, self.out, engine.made)

    def said(self) -> list[Answer]:
        self.out.flush()
        return self.written()

    def written(self) -> list[Answer]:
        return _answers(b"".join(self._written))


def _answers(written: bytes) -> list[Answer]:
    return [read_answer(line, Route.UPLOAD) for line in written.decode().splitlines()]


# -- what it moves, and with what ---------------------------------------------------------------------------------


def test_the_engine_gets_what_was_ordered(tmp_path: Path) -> None:
    engine = Acting()
    worker = Talk(_orders(tmp_path), engine).worker
    worker.carry(_shard(tmp_path))
    (task,) = engine.tasks
    assert (engine.processes, task.cap_mbps, list(task.actions)) == (3, 40.0, [_ACTION])
    assert str(task.part.destination) == f"{_BOX}/sets/data"
    assert (engine.journal, engine.unfinished, engine.intents) == (None, None, None), (
        "there is no folder to keep anything in"
    )


@pytest.mark.parametrize("lasting", [True, False])
def test_downloads_are_resumed_where_the_folder_of_state_outlives_the_run(lasting: bool, tmp_path: Path) -> None:
    engine = Acting()
    Talk(replace(_orders(tmp_path), state=StateDir(tmp_path / "state", lasting)), engine)
    assert isinstance(engine.journal, BlockJournal)
    assert isinstance(engine.unfinished, RangeRecords if lasting else type(None))
    assert isinstance(engine.intents, WriteIntents if lasting else type(None))


def test_a_token_is_asked_for_once_and_renewed_when_the_service_refuses_it(tmp_path: Path) -> None:
    with scripted([Step(401), Step(404), Step(404), Step(401), Step(404)]) as service:
        container = BlobContainer("acct", "box", service.url)

        def look(task: MoveTask, report: MoveReport) -> None:
            assert isinstance(task.part.destination, OpenBlob)
            for _ in range(3):
                assert task.part.destination.store.head("x") is None

        talk = Talk(_orders(tmp_path, container, "token"), Acting(look))
        late = time.time() + 3600
        for secret in (Secret("token-1"), Secret("token-2"), None):
            talk.incoming.handed.put(Handed(secret, late))
        talk.worker.carry(_shard(tmp_path, container))
    assert talk.said() == [Ask("token", "destination"), Ask("renewed", "destination"), Ask("renewed", "destination")]
    sent = [request.headers["authorization"].strip() for request in service.seen]
    assert sent == ["Bearer token-1", "Bearer token-2", "Bearer token-2", "Bearer token-2", "Bearer"]


def test_the_sas_of_a_copys_source_comes_from_the_parent_and_so_does_its_error(tmp_path: Path) -> None:
    engine = Acting()
    talk = Talk(_orders(tmp_path), engine)
    source = OpenBlob(MemoryStore(), "x")
    sas = SasToken.parse("sv=1&se=2099-01-01&sig=c2VudGluZWw%3D")
    for handed in (Handed(Secret(sas.reveal())), Handed(), Handed(problem=SasExpiredError("it ended"))):
        talk.incoming.handed.put(handed)
    assert engine.source_sas(source) == sas
    assert engine.source_sas(source) is None
    with pytest.raises(SasExpiredError, match="it ended"):
        engine.source_sas(source)
    assert talk.said() == [Ask("source_sas", "source")] * 3


def test_a_question_is_written_before_its_answer_is_waited_for(tmp_path: Path) -> None:
    engine, asked = Acting(), threading.Event()
    orders = _orders(tmp_path)
    incoming = Incoming(iter(()), lambda: None)

    def written(_: bytes) -> None:
        asked.set()

    Worker(orders, incoming, Outgoing(written), engine.made)
    answering = threading.Thread(target=lambda: incoming.handed.put(Handed() if asked.wait(_TOO_LONG) else _NOT_ASKED))
    answering.start()
    assert engine.source_sas(OpenBlob(MemoryStore(), "x")) is None
    answering.join()


def test_what_the_parent_waits_for_is_written_at_once(tmp_path: Path) -> None:
    def act(task: MoveTask, report: MoveReport) -> None:
        assert talk.written() == ([Ready()] if len(engine.tasks) == 1 else [Ready(), ShardDone(7)])
        if len(engine.tasks) == 2:
            raise KeyboardInterrupt

    engine = Acting(act)
    talk = Talk(_orders(tmp_path), engine)
    for _ in range(2):
        talk.incoming.shards.put(_shard(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        talk.worker.work()


def test_records_are_written_many_times_a_second_and_not_all_the_time() -> None:
    waited: list[float] = []
    written: list[bytes] = []
    out = Outgoing(written.append)

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        out.say(Ready())
        return len(waited) == 4

    out.flush_often(wait)
    assert len(written) == 3, "each time"
    assert all(0.01 <= seconds <= 0.2 for seconds in waited)


# -- the program --------------------------------------------------------------------------------------------------


class Program:
    """``serve`` in this process, with pipes of its own."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        self._records, self._output = os.pipe()
        self._written = b""
        self._open = [self._records, self._output]
        self._before = set(threading.enumerate())
        self._threads: list[threading.Thread] = []
        self.over = threading.Event()

    def run(self, lines: Iterator[str], engine: Acting) -> ExitCode:
        """Its exit code. SIGINT is ignored when it begins, as by a child of ``nohup``."""
        errors = os.open(self.errors, os.O_WRONLY | os.O_CREAT)
        self._open.append(errors)
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with _not_for_ever():
                code = serve((line.encode() + b"\n" for line in self._noted(lines)), self._output, errors, engine.made)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "what it leaves behind is not interrupted"
            self.over.set()
            for thread in self._threads:
                assert thread.daemon, "none keeps the process alive"
                thread.join(_TOO_LONG)
                assert not thread.is_alive()
        finally:
            signal.signal(signal.SIGINT, usual)
        os.write(self._output, b"of a library\n")
        assert self.errors.read_text() == "of a library\n"
        return code

    def until(self, answer: Answer) -> None:
        """Read its records up to this one."""
        while answer not in self.records():
            self._written += os.read(self._records, 65536)

    def rest(self) -> list[Answer]:
        """All its records."""
        os.set_blocking(self._records, False)
        with suppress(BlockingIOError):
            while some := os.read(self._records, 65536):
                self._written += some
        return self.records()

    def records(self) -> list[Answer]:
        return _answers(self._written[: self._written.rfind(b"\n") + 1])

    def close_records(self) -> None:
        self._open.remove(self._records)
        os.close(self._records)

    def close(self) -> None:
        for each in self._open:
            os.close(each)

    def _noted(self, lines: Iterator[str]) -> Iterator[str]:
        """``lines``; notes the program's threads when it has begun to work."""
        for orders in islice(lines, 1):
            yield orders
            self.until(Ready())
            self._threads += set(threading.enumerate()) - self._before
        yield from lines


@contextmanager
def _not_for_ever() -> Iterator[None]:
    """Raises in the main thread if the block takes too long."""

    def late(_: int, __: FrameType | None) -> None:
        raise TimeoutError("the worker did not end")

    usual = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _TOO_LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.close()


def test_a_worker_moves_shards_until_it_is_told_to_stop(program: Program, tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield orders_line(_orders(tmp_path))
        program.until(Ready())
        yield from shard_lines(_shard(tmp_path))
        program.until(ShardDone(7))
        yield STOP_LINE

    engine = Acting()
    assert program.run(lines(), engine) is ExitCode.INTERRUPTED
    assert len(engine.tasks) == 1
    assert program.rest() == [Ready(), ShardDone(7)]


def test_what_was_done_before_an_interrupt_is_written(program: Program, tmp_path: Path) -> None:
    def act(task: MoveTask, report: MoveReport) -> None:
        report.file_kept(task.actions[0], 4)
        raise KeyboardInterrupt

    assert program.run(_one_shard(program, tmp_path), Acting(act)) is ExitCode.INTERRUPTED
    assert program.rest() == [Ready(), KeptFile("a", 4)]


def test_what_was_done_before_an_error_is_written_and_the_error_shown(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(task: MoveTask, report: MoveReport) -> None:
        report.file_kept(task.actions[0], 4)
        raise RuntimeError("the engine broke")

    assert program.run(_one_shard(program, tmp_path), Acting(act)) is ExitCode.FAILED
    assert program.rest() == [Ready(), KeptFile("a", 4)]
    assert "RuntimeError: the engine broke" in capsys.readouterr().err


@pytest.mark.parametrize("first", [(), ("nonsense",)], ids=["no orders", "nonsense"])
def test_a_worker_without_orders_says_so_and_ends(
    first: tuple[str, ...], program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(iter(first), Acting()) is ExitCode.FAILED
    assert program.rest() == []
    assert "read_orders" in capsys.readouterr().err


def test_a_worker_whose_parent_is_gone_is_interrupted_once_and_cleans_up(program: Program, tmp_path: Path) -> None:
    reading: list[threading.Thread] = []
    cleaning, cleaned = threading.Event(), threading.Event()

    def lines() -> Iterator[str]:
        yield orders_line(_orders(tmp_path))
        yield from shard_lines(_shard(tmp_path))
        reading.append(threading.current_thread())
        cleaning.wait(_TOO_LONG)

    def act(task: MoveTask, report: MoveReport) -> None:
        program.until(Ready())
        program.close_records()
        report.file_kept(task.actions[0], 4)
        try:
            threading.Event().wait(_TOO_LONG)
        except KeyboardInterrupt:
            # The end of the input is another reason to interrupt.
            cleaning.set()
            reading[0].join(_TOO_LONG)
            assert not reading[0].is_alive()
            cleaned.set()
            raise

    assert program.run(lines(), Acting(act)) is ExitCode.INTERRUPTED
    assert cleaned.is_set()


def _one_shard(program: Program, root: Path) -> Iterator[str]:
    """Of a parent that then says nothing more."""
    yield orders_line(_orders(root))
    yield from shard_lines(_shard(root))
    program.over.wait(_TOO_LONG)
