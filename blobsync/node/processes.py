"""The user's processes: started in groups of their own, signalled, warned if they handle it, and stopped: terminate
first, kill later."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from blobsync.base.exit_codes import shell_code
from blobsync.base.process import ProcessGroup
from blobsync.base.process_identity import kill_marked, variables_of
from blobsync.base.redaction import redact
from blobsync.jobspec.spec import MARK
from blobsync.node.container import JobImage, container_name
from blobsync.node.job import NodeJob, read_text
from blobsync.node.ranks import Ranks

# This variable marks the processes in a container.
BOX = "BLOBSYNC_CONTAINER"
# Signals that ask a program to stop; they may arrive twice.
ENDING = (signal.SIGTERM, signal.SIGINT)


class UserProcess:
    """A process of the user's, in a group of its own, so that its children can be stopped with it."""

    def __init__(self, job: NodeJob, ranks: Ranks, log: Path | None) -> None:
        """``log`` None: its output is not redirected."""
        self.returncode: int | None = None
        self._child: ProcessGroup | None = None
        self._is_shell_line = job.is_shell_line
        self._image, self._name = JobImage.of(job), container_name(job, ranks.rank)
        words = command = job.command()
        env = job.user_environment(ranks)
        if self._image:
            # A container left by an earlier attempt has the same name.
            self._image.remove(self._name)
            words, env = self._image.started(self._name, command, {**env, BOX: self._name}), dict(job.environ)
        sink_path = log or Path(os.devnull)
        sink_path.parent.mkdir(parents=True, exist_ok=True)
        with sink_path.open("ab") as sink:
            try:
                self._child = ProcessGroup(words, env=env, cwd=job.work_dir, output=sink if log else None)
            except OSError as error:
                self.returncode = start_error_code(error)
                said = redact(f"cannot start {command[0]}: {error.strerror}\n")
                os.write(sink.fileno() if log else sys.stderr.fileno(), said.encode("utf-8", "replace"))

    def poll(self) -> int | None:
        """The exit code as in a shell; None while it runs."""
        if self._child is not None:
            code = self._child.poll()
            self.returncode = code if code is None else shell_code(code)
        return self.returncode

    def signal(self, number: int) -> None:
        """Send a signal: those that stop a program to its whole group, others only to the program."""
        if self._child is not None and self._child.poll() is None:
            self._child.signal(number, to_all=self._is_shell_line or number in (*ENDING, signal.SIGKILL))
            if self._image and number == signal.SIGKILL:
                self._image.remove(self._name)

    def warn_if_handled(self, number: int) -> bool:
        """Send a warning to the topmost process that handles it; False while none does.

        Workers inherit their parent's handler, but must not get the signal.
        """
        if self._child is None or self._child.poll() is not None:
            return True
        listening = processes_that_handle(self._child.pid, number, f"{BOX}={self._name}" if self._image else "")
        for pid in [pid for pid, parent in listening.items() if parent not in listening]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(listening)

    def sweep(self) -> None:
        """Stop processes that the process left running."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL, to_all=True)
            if self._image:
                self._image.remove(self._name)


def start_error_code(error: OSError) -> int:
    """The exit code as in a shell: 127 for a missing program, 126 for one that may not be run."""
    return 127 if isinstance(error, FileNotFoundError) else 126


def processes_that_handle(group: int, number: int, mark: str = "") -> dict[int, int]:
    """The processes of a group that catch a signal, or block it to wait for it, with their parents; see proc(5).

    Those in a container are not in the group; they have ``mark`` in their environment.
    """
    if not os.path.isdir("/proc/self"):
        return {group: 0}
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        # A process may end meanwhile.
        with suppress(OSError, ValueError):
            _, parent, its_group = read_text(Path("/proc", name, "stat")).rpartition(")")[2].split()[:3]
            status = read_text(Path("/proc", name, "status"))
            masks = re.findall(r"^Sig(?:Cgt|Blk):\s*(\w+)", status, re.MULTILINE)
            ours = mark.encode() in variables_of(int(name)) if mark else int(its_group) == group
            if ours and any(int(mask, 16) >> (number - 1) & 1 for mask in masks):
                found[int(name)] = int(parent)
    return found


def kill_strays(job: NodeJob) -> None:
    """Kill processes left by earlier commands of this node.

    torchrun starts each worker in a session of its own: workers outlive a killed torchrun, and would train beside
    those of the next one.
    """
    kill_marked(MARK, job.mark)


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
