"""Which process a number means: the kernel gives numbers out again, so the time at which it began belongs to it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process of this machine. ``born`` is when it began, in the kernel's own count; empty where there is no
    ``/proc``, and then the number alone has to do."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """The process that has this number now."""
        return cls(pid, _facts(pid)[1])

    @property
    def is_alive(self) -> bool:
        """The same process is still there, and has not ended."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            # Another user's.
            pass
        state, born = _facts(self.pid)
        return born == self.born and state not in ("Z", "X")

    def ask_to_end(self) -> bool:
        """Send SIGTERM, which a blobsync command takes as Ctrl-C, also where a shell lets it ignore that; False if it
        is gone. Raises ``PermissionError`` for a process of another user, and where numbers are all that is known."""
        if not self.born:
            raise PermissionError(1, "this system does not say when a process began")
        handle = _open(self.pid)
        try:
            # Looked at while the handle holds it: from here on the number means this process.
            if not self.is_alive:
                return False
            if Path("/proc", str(self.pid)).stat().st_uid != os.geteuid():
                raise PermissionError(1, f"process {self.pid} belongs to another user")
            if handle is None:
                os.kill(self.pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        except (ProcessLookupError, FileNotFoundError):
            return False
        finally:
            if handle is not None:
                os.close(handle)
        return True


def _open(pid: int) -> int | None:
    """Kernels before 5.3 have no such handles."""
    with suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def _facts(pid: int) -> tuple[str, str]:
    """State and birth, of what follows the name in /proc/PID/stat; see proc(5)."""
    with suppress(OSError, IndexError):
        text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""
