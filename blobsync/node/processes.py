"""The user's processes: started in groups of their own, signalled, warned if they handle it, cleaned up."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

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
