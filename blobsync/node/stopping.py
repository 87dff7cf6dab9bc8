"""Waits for a node's processes, passes signals on, and stops them: terminate first, kill later."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from blobsync.node.job import NodeJob
from blobsync.node.processes import ENDING, UserProcess
from blobsync.node.ranks import Ranks

TERM_TO_KILL_SECONDS = 10.0
# Processes that fail for one reason fail together; each may say its own before the first one ends the others.
_TOGETHER_SECONDS = 1.5
# What a scheduler says while there is still time. It would kill a program without a handler.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
_FORWARDED = (*ENDING, signal.SIGHUP, *WARNINGS)
_POLL_SECONDS = 0.05
# Reading what all processes of a node do is not free.
_LOOK_SECONDS = 1.0


class HeldSignals:
    """Signals that are still to be passed on. One may arrive while the program it is meant for is being started."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def catch(self, numbers: Sequence[signal.Signals]) -> None:
        """From now on these are queued until taken."""
        for number in numbers:
            signal.signal(number, self._hold)

    def catch_all(self) -> None:
        """From now on all that a program may be sent is queued."""
        self.catch(_FORWARDED)

    def take(self) -> int | None:
        """The oldest one, which is forgotten then."""
        return self._numbers.pop(0) if self._numbers else None

    def __bool__(self) -> bool:
        return bool(self._numbers)

    @property
    def asks_to_end(self) -> bool:
        """Whether one of them asks to stop."""
        return any(number in ENDING for number in self._numbers)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._numbers.append(number)


def run_processes(
    job: NodeJob, held: HeldSignals, log_of: Callable[[Ranks], Path | None], all_ranks: Sequence[Ranks]
) -> int:
    """Start and wait; the first process that fails ends the others. Signals that reach us go on to them.

    A node's processes are stopped when our parent exits, because nobody else knows them.
    """
    code = run_once(job, held, log_of, all_ranks)
    stay(job, held, code)
    return code


def run_once(
    job: NodeJob, held: HeldSignals, log_of: Callable[[Ranks], Path | None], all_ranks: Sequence[Ranks]
) -> int:
    """The same for processes that may have to be started again: nothing is decided yet when they have ended."""
    processes: list[UserProcess] = []
    stopping, parent = Stopping(job, held, processes), os.getppid()
    held.catch_all()
    processes.extend(UserProcess(job, ranks, log_of(ranks)) for ranks in all_ranks)
    while True:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            break
        orphaned = 0 if os.getppid() == parent else 128 + signal.SIGTERM
        stopping.look(next((code for code in codes if code), orphaned))
        time.sleep(_POLL_SECONDS)
    # Slurm may have signalled the program and us at once.
    stopping.look(0)
    for process in processes:
        process.sweep()
    return stopping.first_failure or next((code for code in codes if code), 0) or 0


def stay(job: NodeJob, held: HeldSignals, code: int) -> None:
    """When nothing will be started any more: the node stays if the cluster file says so, and ends in peace."""
    if job.spec.options.get("sleep_if_fail" if code else "sleep_if_succeed"):
        job.say(f"the command ended with {code}; the node stays until it receives a signal, as set in the cluster file")
        while not held:
            time.sleep(0.2)
    stopping = Stopping(job, held, ())
    for number in ENDING:
        signal.signal(number, stopping.give_up)


class Stopping:
    """How a group of processes is signalled and stopped."""

    def __init__(self, job: NodeJob, held: HeldSignals, processes: Sequence[UserProcess]) -> None:
        self._job = job
        self._held = held
        self._processes = processes
        self._warnings: list[tuple[UserProcess, int]] = []
        self._look_again_at = 0.0
        self._failed_at = 0.0
        self._told = False
        self.first_failure = 0

    def look(self, failure: int) -> None:
        """What has to be done now; ``failure`` is the code of a process that failed, or 0."""
        while (number := self._held.take()) is not None:
            self._forward(number)
        if self._warnings and time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _LOOK_SECONDS
            self._warnings = [(process, number) for process, number in self._warnings if not process.warn(number)]
        if failure and not self._job.stopped and not self.first_failure:
            self.first_failure, self._failed_at = failure, time.monotonic()
        since = time.monotonic() - self._failed_at
        if self.first_failure and since > _TOGETHER_SECONDS and not self._told:
            self._told = True
            self._signal(signal.SIGTERM)
        if self.first_failure and since > _TOGETHER_SECONDS + TERM_TO_KILL_SECONDS:
            self._signal(signal.SIGKILL)

    def give_up(self, number: int, frame: FrameType | None) -> None:
        """When the program has ended, what it left is brought out in peace, until somebody asks again."""
        if self._is_asked_again():
            sys.exit(128 + number)

    def _forward(self, number: int) -> None:
        """Asked from outside, a program may take its time to save what it has, until it is asked again.

        Not at once, though: Slurm's daemon and srun both pass one request on.
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
