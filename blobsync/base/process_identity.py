"""Identifies a process by its ID and start time: the kernel reuses IDs."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from blobsync.base.records import NamedTuple


class ProcessMark(NamedTuple):
    """A process of this machine. ``born`` is its start time in the kernel's own count; empty if there is no ``/proc``,
    so that only the ID is known."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """The process that has this ID now."""
        return cls(pid, _facts(pid)[1])

    @property
    def is_alive(self) -> bool:
        """Whether the same process still exists and has not ended."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            # No ID is too large for the kernel: a record that says so is damaged.
            return False
        except OSError:
            # Another user's process.
            pass
        state, born = _facts(self.pid)
        return born == self.born and state not in ("Z", "X")

    @property
    def age(self) -> float:
        """Seconds since it began; 0 if that is not known."""
        # The times of its folder in /proc say when somebody looked there first.
        began = int(self.born or 0) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began) if began else 0.0


def _facts(pid: int) -> tuple[str, str]:
    """The state and start time, from what follows the name in /proc/PID/stat; see proc(5)."""
    with suppress(OSError, IndexError):
        text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


def variables_of(pid: int) -> list[bytes]:
    """The environment with which a process began, as ``NAME=value``; empty where Linux does not show it: of another
    user's process, and on other systems."""
    with suppress(OSError):
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    return []


def kill_marked(name: str, value: str) -> int:
    """Kill all processes that began with this variable, in whatever group or session they are; returns their number,
    0 where there is no ``/proc``."""
    wanted, killed = f"{name}={value}".encode(), 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else ())):
        # Other users' processes cannot be read, and one may end meanwhile.
        with suppress(OSError):
            if wanted in variables_of(pid):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed
