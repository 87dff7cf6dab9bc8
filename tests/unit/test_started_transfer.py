"""A transfer in a thread of its own: its result, its progress, and how it is stopped; and the request to stop."""

from __future__ import annotations

import _thread
import asyncio
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from queue import SimpleQueue

import pytest

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import NothingMatchedError, TransferCancelledError, UsageError
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.plan.progress import Progress
from blobsync.project.transfer import Transfer
from tests.fakes.opened_project import Opened
from tests.fakes.store import Request
from tests.waiting import wait_until

PATIENCE = 60.0


class Gate:
    """Holds the requests of a store that change it until somebody opens it; ``reached`` when the first is there."""

    def __init__(self, opened: Opened, held: Callable[[Request], bool]) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self._held = held
        opened.store.before = self._wait

    def _wait(self, request: Request) -> None:
        if self._held(request):
            self.reached.set()
            assert self.open.wait(PATIENCE)


def writes(request: Request) -> bool:
    return request.operation.startswith("put")


def test_the_result_is_what_upload_returns(opened: Opened) -> None:
    opened.write("data/a", b"one")
    transfer = opened.project.start_upload("data")
    assert transfer.result(PATIENCE).transferred == 1
    assert transfer.done() and not transfer.running() and not transfer.cancelled()
    assert transfer.progress.files == 1 and transfer.partial_result is None
    assert opened.blobs() == {"data/a": b"one"}
    (opened.root / "data" / "a").unlink()
    assert opened.project.start_download("data").result(PATIENCE).transferred == 1
    assert (opened.root / "data" / "a").read_bytes() == b"one"
    opened.write("data/b", b"two")
    assert opened.project.start(opened.project.plan_upload("data")).result(PATIENCE).transferred == 1
    assert [entry.kind for entry in opened.project.history()] == ["upload", "download", "upload"]


def test_where_no_thread_can_be_started_the_result_is_waited_for_here(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in functions of ``atexit``, of which one stops what still runs.
    def refuse(*given: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    opened.write("data/a", b"one")
    gate = Gate(opened, writes)
    transfer = opened.project.start_upload("data")
    assert gate.reached.wait(PATIENCE)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(FutureTimeoutError):
        transfer.result(0)
    gate.open.set()
    assert transfer.result(PATIENCE).transferred == 1


def test_what_upload_raises_the_result_raises(opened: Opened) -> None:
    with pytest.raises(NothingMatchedError):
        opened.project.start_upload("data/absent").result(PATIENCE)
    assert isinstance(opened.project.start_upload("data/absent").exception(PATIENCE), NothingMatchedError)


def test_mistakes_in_the_call_are_raised_at_once(opened: Opened) -> None:
    with pytest.raises(TypeError, match="mirorr"):
        opened.project.start_upload("data", mirorr=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="not int"):
        opened.project.start_upload([7])  # type: ignore[list-item]
    opened.project.close()
    with pytest.raises(UsageError, match="was closed"):
        opened.project.start_upload("data")


def test_while_it_runs_there_is_progress_and_no_result(opened: Opened) -> None:
    opened.write("data/a", b"one")
    gate = Gate(opened, writes)
    told: list[Progress] = []
    transfer = opened.project.start_upload("data", on_progress=told.append)
    assert gate.reached.wait(PATIENCE)
    with pytest.raises(FutureTimeoutError):
        transfer.result(0.01)
    assert transfer.running() and not transfer.done()
    assert (transfer.progress.phase, transfer.progress.files_expected) == ("moving", 1)
    gate.open.set()
    assert transfer.result(PATIENCE).ok and told[-1].files == 1


def test_it_is_a_future_for_all_that_takes_futures(opened: Opened) -> None:
    opened.write("data/a/x", b"one")
    opened.write("data/b/x", b"two")
    ended: SimpleQueue[object] = SimpleQueue()
    both = [opened.project.start_upload("data/a"), opened.project.start_upload("data/b")]
    for transfer in both:
        transfer.add_done_callback(ended.put)
    assert set(as_completed(both, PATIENCE)) == set(both)
    assert wait(both, PATIENCE).not_done == set()
    assert {ended.get(timeout=PATIENCE) for _ in both} == set(both)
    assert sum(transfer.result().transferred for transfer in both) == 2 and opened.blobs().keys() == {
        "data/a/x",
        "data/b/x",
    }


# -- stopping ---------------------------------------------------------------------------------------------------


def stopped_in_the_middle(opened: Opened, stop: Callable[[Transfer], object]) -> Transfer:
    """One of two files is there, and the other on its way."""
    opened.write("data/a", b"one")
    assert opened.project.upload("data").ok
    opened.write("data/b", b"two")
    gate = Gate(opened, writes)
    transfer = opened.project.start_upload("data")
    assert gate.reached.wait(PATIENCE)
    stop(transfer)
    return transfer


def test_cancel_ends_it_as_ctrl_c_does_and_a_second_run_completes_it(opened: Opened) -> None:
    def stop(transfer: Transfer) -> None:
        assert transfer.cancel() and transfer.cancel()

    transfer = stopped_in_the_middle(opened, stop)
    with pytest.raises(CancelledError, match="stopped: 0 of 1 file is done and verified, 1 is left"):
        transfer.result(PATIENCE)
    assert transfer.cancelled() and transfer.done() and not transfer.running() and transfer.cancel() is False
    found = transfer.partial_result
    assert found is not None and found.interrupted and found.transferred == 0
    assert opened.project.history()[0].result == "cancelled"
    assert opened.project.running() == {}
    opened.store.before = lambda request: None
    assert opened.project.upload("data").ok and opened.blobs() == {"data/a": b"one", "data/b": b"two"}


def test_a_stopped_transfer_is_one_that_ended_for_those_that_wait_for_several(opened: Opened) -> None:
    transfer = stopped_in_the_middle(opened, Transfer.cancel)
    assert wait([transfer], PATIENCE).done == {transfer}
    assert list(as_completed([transfer], PATIENCE)) == [transfer]


def test_planning_is_stopped_too(opened: Opened) -> None:
    opened.write("data/a", b"one")
    gate = Gate(opened, lambda request: True)
    transfer = opened.project.start_upload("data")
    assert gate.reached.wait(PATIENCE)
    transfer.cancel()
    with pytest.raises(CancelledError, match="stopped before anything was changed"):
        transfer.result(PATIENCE)
    assert transfer.partial_result is None and opened.blobs() == {}
    gate.open.set()


def test_from_asyncio_it_is_awaited_and_stopped_with_its_task(opened: Opened) -> None:
    opened.write("data/a", b"one")
    opened.write("data/b", b"two")

    async def run() -> Transfer:
        assert (await asyncio.wrap_future(opened.project.start_upload("data/a"))).transferred == 1
        gate = Gate(opened, writes)
        transfer = opened.project.start_upload("data/b")
        task = asyncio.ensure_future(asyncio.wait_for(asyncio.wrap_future(transfer), PATIENCE))
        while not gate.reached.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return transfer

    transfer = asyncio.run(run())
    assert wait([transfer], PATIENCE).done and transfer.cancelled() and opened.blobs() == {"data/a": b"one"}


def test_stop_from_elsewhere_reaches_a_started_transfer_and_not_a_call(opened: Opened) -> None:
    other = opened.open()

    def stop(transfer: Transfer) -> None:
        assert wait_until(other.running)
        (id,) = other.running()
        other.stop(id)

    transfer = stopped_in_the_middle(opened, stop)
    with pytest.raises(CancelledError, match="stopped: 0 of 1 file"):
        transfer.result(PATIENCE)

    found: list[str] = []

    def refuse(request: Request) -> None:
        end = time.monotonic() + PATIENCE
        while not found and time.monotonic() < end:
            for id in other.running():
                with pytest.raises(UsageError, match="a program that uses blobsync"):
                    other.stop(id)
                found.append(id)
            time.sleep(0.01)

    opened.store.before = refuse
    assert opened.project.upload("data").ok and found


def test_a_command_that_is_stopped_raises_as_after_ctrl_c_and_the_project_can_go_on(opened: Opened) -> None:
    opened.write("data/a", b"one")
    opened.project.command_line = "blobsync upload data"
    gate = Gate(opened, writes)

    def stop() -> None:
        assert gate.reached.wait(PATIENCE)
        other = opened.open()
        wait_until(other.running)
        for id in other.running():
            other.stop(id)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(TransferCancelledError, match="stopped: 0 of 1 file"):
        opened.project.upload("data")
    thread.join()
    gate.open.set()
    assert opened.project.upload("data").ok and opened.blobs() == {"data/a": b"one"}


# -- the end of the project, and of the program ---------------------------------------------------------------------


def test_closing_waits_for_transfers_and_an_exception_stops_them(opened: Opened) -> None:
    opened.write("data/a", b"one")
    gate = Gate(opened, writes)
    with opened.project as project:
        transfer = project.start_upload("data")
        assert gate.reached.wait(PATIENCE)
        threading.Timer(0.05, gate.open.set).start()
    assert transfer.done() and opened.blobs() == {"data/a": b"one"}
    opened.write("data/b", b"two")
    gate = Gate(opened, writes)
    begun: list[Transfer] = []

    def fail() -> None:
        with opened.open() as project:
            begun.append(project.start_upload("data"))
            assert gate.reached.wait(PATIENCE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert begun[0].cancelled() and opened.blobs() == {"data/a": b"one"}


_PROGRAM = """
import sys, threading, time
from pathlib import Path
from tests.fakes.opened_project import Opened

opened = Opened(Path(sys.argv[1]))
opened.write("data/a", b"one")
reached = threading.Event()
def hold(request):
    if request.operation.startswith("put"):
        reached.set()
        time.sleep({seconds})
opened.store.before = hold
transfer = opened.project.start_upload("data")
def tell(done):
    print("cancelled" if done.cancelled() else done.result().transferred, flush=True)
transfer.add_done_callback(tell)
reached.wait()
print("moving", flush=True)
{rest}
"""


def _program(tmp_path: Path, *, seconds: float, rest: str = "") -> subprocess.Popen[str]:
    text = _PROGRAM.format(seconds=seconds, rest=rest)
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path / "project")], cwd=root, stdout=subprocess.PIPE, text=True
    )


def test_the_program_does_not_end_before_its_transfer(tmp_path: Path) -> None:
    assert _program(tmp_path, seconds=0.5).communicate(timeout=PATIENCE)[0].split() == ["moving", "1"]


_INTERRUPTED_IN_A_LOCK = """
import os, signal
def called(frame, event, arg):
    if event == "c_return" and frame.f_code is threading.Condition.__enter__.__code__:
        os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(called)
"""


@pytest.mark.parametrize(
    "rest",
    [
        *("", "transfer.result()", "time.sleep(600)", "opened.project.close()"),
        pytest.param(f"{_INTERRUPTED_IN_A_LOCK}transfer.result()", id="in a lock of result"),
        pytest.param(f"{_INTERRUPTED_IN_A_LOCK}opened.project.close()", id="in a lock of close"),
    ],
)
def test_ctrl_c_that_ends_the_program_stops_its_transfer(tmp_path: Path, rest: str) -> None:
    with _program(tmp_path, seconds=600.0, rest=rest) as process:
        assert process.stdout is not None and process.stdout.readline() == "moving\n"
        # Python sees a signal that comes in the instants before it blocks in a lock only when it wakes up: press again.
        for _ in range(int(PATIENCE / 5)):
            process.send_signal(signal.SIGINT)
            if select.select([process.stdout], [], [], 5)[0]:
                break
        assert process.stdout.readline() == "cancelled\n"
        assert process.wait(PATIENCE) is not None


# -- the request --------------------------------------------------------------------------------------------------


def test_a_request_wakes_those_that_wait_and_is_ctrl_c_for_those_that_look() -> None:
    stop, woken = StopRequest(), threading.Event()
    stop.check()
    with stop.waking(woken.set):
        stop.make()
    assert woken.is_set() and stop.made
    with pytest.raises(KeyboardInterrupt):
        stop.check()
    late = threading.Event()
    stop.make()
    assert not late.is_set() and not NEVER.made


def test_calls_in_the_background_are_not_waited_for_after_a_request() -> None:
    stop, hold = StopRequest(), threading.Event()
    threading.Timer(0.05, stop.make).start()
    with pytest.raises(KeyboardInterrupt):
        Ahead(hold.wait, PATIENCE).result(stop)
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(hold.wait, [PATIENCE], 1, stop))
    hold.set()
    assert Ahead(hold.wait, PATIENCE).result(NEVER) is True
