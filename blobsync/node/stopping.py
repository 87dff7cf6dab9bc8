"""Waits for a node's processes, passes signals on, and stops them: terminate first, kill later."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from blobsync.base.exit_codes import shell_code
from blobsync.node.job import NodeJob
from blobsync.node.processes import ENDING, UserProcess
from blobsync.node.ranks import Ranks

TERM_TO_KILL_SECONDS = 10.0
# Processes often fail together: each may print its error before the first failure ends the others.
_TOGETHER_SECONDS = 1.5
# A scheduler's warnings before it stops the job. They would kill a program without a handler.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_FORWARDED = (*ENDING, signal.SIGHUP, *WARNINGS)
_POLL_SECONDS = 0.05
# Reading /proc for all processes of a node takes time.
_LOOK_SECONDS = 1.0


class HeldSignals:
    """A queue of received signals to be passed on; one may arrive while its program is being started."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def catch(self, numbers: Sequence[signal.Signals]) -> None:
        """Queue these signals from now on."""
        for number in numbers:
            signal.signal(number, self._hold)

    def catch_all(self) -> None:
        """Queue all signals that a program may be sent from now on."""
        self.catch(_FORWARDED)

    def take(self) -> int | None:
        """Remove and return the oldest signal."""
        return self._numbers.pop(0) if self._numbers else None

    def __bool__(self) -> bool:
        return bool(self._numbers)

    @property
    def asks_to_end(self) -> bool:
        """Whether one of them is a request to stop."""
        return any(number in ENDING for number in self._numbers)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._numbers.append(number)


def run_processes(
    job: NodeJob,
    held: HeldSignals,
    log_of: Callable[[Ranks], Path | None],
    all_ranks: Sequence[Ranks],
    restore: Callable[[], None] = lambda: None,
) -> int:
    """Run processes to their end; the first failure ends the others. Passes received signals on to them.

    Stops the processes when the parent of this one exits, because nothing else would. ``restore`` brings the last
    checkpoint before a retry.
    """
    code = run_once(job, held, log_of, all_ranks)
    for retry in range(1, job.retries + 1):
        if not code or job.stopped or held:
            break
        job.say(f"the command ended with {code}; it starts again, retry {retry} of {job.retries}")
        restore()
        code = run_once(job, held, log_of, all_ranks)
    stay(job, held, code)
    return code


def run_once(
    job: NodeJob, held: HeldSignals, log_of: Callable[[Ranks], Path | None], all_ranks: Sequence[Ranks]
) -> int:
    """The same for processes that may be restarted: their end is not the node's."""
    stopped = shell_code(-signal.SIGTERM)
    if job.is_orphaned():
        return stopped
    processes: list[UserProcess] = []
    stopping = Stopping(job, held, processes)
    held.catch_all()
    processes.extend(UserProcess(job, ranks, log_of(ranks)) for ranks in all_ranks)
    while True:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            break
        stopping.look(next((code for code in codes if code), stopped if job.is_orphaned() else 0))
        time.sleep(_POLL_SECONDS)
    # Slurm may have signalled the program and this process at once.
    stopping.look(0)
    for process in processes:
        process.sweep()
    return stopping.first_failure or next((code for code in codes if code), 0) or 0


def stay(job: NodeJob, held: HeldSignals, code: int) -> None:
    """Keep the node after the last process has ended, if the cluster file says so."""
    if job.spec.options.get("sleep_if_fail" if code else "sleep_if_succeed"):
        job.say(f"the command ended with {code}; the node stays until it receives a signal, as set in the cluster file")
        while not held:
            time.sleep(0.2)
    stopping = Stopping(job, held, ())
    for number in ENDING:
        signal.signal(number, stopping.give_up)


class Stopping:
    """Signals and stops a group of processes."""

    def __init__(self, job: NodeJob, held: HeldSignals, processes: Sequence[UserProcess]) -> None:
        self._job = job
        self._held = held
        self._processes = processes
        self._warnings: list[tuple[UserProcess, int]] = []
        self._look_again_at = 0.0
        self._failed_at = 0.0
        self._terminated = False
        self.first_failure = 0

    def look(self, failure: int) -> None:
        """Take the steps that are due; ``failure`` is the exit code of a failed process, or 0."""
        while (number := self._held.take()) is not None:
            self._forward(number)
        if self._warnings and time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _LOOK_SECONDS
            self._warnings = [
                (process, number) for process, number in self._warnings if not process.warn_if_handled(number)
            ]
        if failure and not self._job.stopped and not self.first_failure:
            self.first_failure, self._failed_at = failure, time.monotonic()
        since = time.monotonic() - self._failed_at
        if self.first_failure and since > _TOGETHER_SECONDS and not self._terminated:
            self._terminated = True
            self._signal(signal.SIGTERM)
        if self.first_failure and since > _TOGETHER_SECONDS + TERM_TO_KILL_SECONDS:
            self._signal(signal.SIGKILL)

    def give_up(self, number: int, frame: FrameType | None) -> None:
        """A handler for uploads after the program's end: exits at the second request to stop."""
        if self._is_asked_again():
            sys.exit(shell_code(-number))

    def _forward(self, number: int) -> None:
        """Pass a signal on; a second request to stop kills a program that still saves its state.

        A repetition at once does not count: Slurm's daemon and srun both pass on one request.
        """
        if number in WARNINGS:
            self._job.say(f"received {signal.Signals(number).name}; passing it on to a program that catches it")
            self._warnings += [(process, number) for process in self._processes]
            self._look_again_at = 0.0
            return
        again = number in ENDING and self._is_asked_again()
        self._signal(signal.SIGKILL if again else number)

    def _is_asked_again(self) -> bool:
        now = time.monotonic()
        self._job.asked_to_stop_at = self._job.asked_to_stop_at or now
        return now - self._job.asked_to_stop_at > TERM_TO_KILL_SECONDS / 2

    def _signal(self, number: int) -> None:
        for process in self._processes:
            process.signal(number)
