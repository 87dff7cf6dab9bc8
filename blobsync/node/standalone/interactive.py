"""An interactive job on its node: keeps the node (``hold``), and opens shells in the job (``enter``).

    interactive.py hold --place DIR --node K --seconds N [--limit N] [--terminals]
    interactive.py enter --place DIR --node K

Standard library of Python 3.8 only: it is beside the job's specification. ``DIR`` belongs to the job. It contains a
file for each node's holder, one for each open shell, and ``hold``, the time in seconds, which may be changed while the
job runs. If the nodes share a file system, each sees the shells of all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Dict, List, Optional, Tuple

POLL_SECONDS = 0.3
# How long a shell may take to end after the end of the job.
HANG_UP_SECONDS = 3.0
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
# linux/auxvec.h
AT_SECURE = 23
# Variables of the user's session; all others are the job's.
OF_THE_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")


def next_step(seconds: float, hold: float, limit: float, inside: int) -> str:
    """The next step of a job after ``seconds``: ``wait``, ``stay`` while shells are open, or ``end``."""
    if limit and seconds >= limit:
        return "end"
    if seconds < hold:
        return "wait"
    return "stay" if inside else "end"


def words_for(step: str, inside: int) -> str:
    people = f"{inside} shell{'' if inside == 1 else 's'} open"
    if step == "stay":
        return f"the time to wait is over; the job ends when the last shell is closed ({people})"
    return people


class Place:
    """The job's folder, for one of its nodes."""

    def __init__(self, folder: Path, node: int) -> None:
        self.folder, self.node = folder, node
        self.holder, self.hold = folder / f"node_{node}.json", folder / "hold"

    def begin(self, seconds: int) -> None:
        """Reset the folder: a restarted job waits its full time again."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in self.shells():
            old.unlink()
        if not self.hold.exists() or self.node == 0:
            write(self.hold, f"{seconds}\n")
        write(self.holder, json.dumps({"pid": os.getpid(), "born": birth(os.getpid()), "cwd": os.getcwd()}))

    def read_hold(self, otherwise: float) -> float:
        with suppress(OSError, ValueError):
            found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", self.hold.read_text().strip())
            return int(found[1]) * UNITS[found[2]] if found else otherwise
        return otherwise

    def shells(self) -> List[Path]:
        """The open shells of this node."""
        return sorted(self.folder.glob(f"node_{self.node}.*.shell"))

    def count(self) -> int:
        """The number of open shells on all nodes; removes the files of this node's closed ones."""
        for shell in self.shells():
            if not is_same_process(*read_shell(shell)):
                with suppress(FileNotFoundError):
                    shell.unlink()
        return len(list(self.folder.glob("*.shell")))

    def hang_up(self) -> None:
        """End the shells at the end of the job."""
        until = time.monotonic() + HANG_UP_SECONDS
        number = signal.SIGHUP
        while self.shells():
            for shell in self.shells():
                pid, born = read_shell(shell)
                if is_same_process(pid, born):
                    with suppress(OSError):
                        os.kill(pid, number)
            self.count()
            if time.monotonic() > until:
                number = signal.SIGKILL
            time.sleep(0.05)


def hold(place: Place, seconds: int, limit: int, terminals: bool) -> int:
    """Wait; returns 0 when the time is over and no shell is open, 143 when asked to stop."""
    asked: List[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    place.begin(seconds)
    began, shown, step = time.monotonic(), "", ""
    say(f"waiting for you: blobsync ssh {os.environ.get('BLOBSYNC_RUN_ID', 'ID').rpartition('_')[2]}")
    while not asked and step != "end":
        inside = place.count() + (len(open_terminals()) if terminals else 0)
        step = next_step(time.monotonic() - began, place.read_hold(seconds), limit, inside)
        if step != "end" and shown != words_for(step, inside):
            shown = words_for(step, inside)
            say(shown)
        time.sleep(POLL_SECONDS)
    say("stopped" if asked else "the time is over, and nobody is inside" if not place.shells() else "the time is over")
    place.hang_up()
    place.holder.unlink()
    return 128 + signal.SIGTERM if asked else 0


def enter(place: Place) -> int:
    """Become a shell with the environment, and in the folder, of the job's program."""
    try:
        holder = json.loads(place.holder.read_text())
        env = environment_of(int(holder["pid"]), str(holder["born"]))
        os.chdir(str(holder["cwd"]))
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        sys.stderr.write(f"blobsync: the job does not wait on node {place.node}, or not any more\n")
        return 1
    env.update({name: os.environ[name] for name in OF_THE_TERMINAL if name in os.environ})
    env["BLOBSYNC_HOLD"] = str(place.hold)
    own = os.getpid()
    write(place.folder / f"node_{place.node}.{own}.shell", json.dumps([own, birth(own)]))
    if sys.stdin.isatty():
        sys.stderr.write(f"blobsync: inside {env.get('BLOBSYNC_RUN_ID', 'the job')}; exit leaves it\n")
    shell = shutil.which("bash", path=env.get("PATH")) or "/bin/sh"
    return os.execve(shell, [shell], env)


def environment_of(pid: int, born: str) -> Dict[str, str]:
    """The environment of a process; see proc(5). Without /proc, ours.

    Raises ``OSError`` if another process has its id by now: another user would choose what the shell runs.
    """
    os.kill(pid, 0)
    if not os.path.isdir("/proc/self"):
        return dict(os.environ)
    # The owner is checked first: a program of the user's cannot turn into another user's.
    if not is_own(pid):
        raise PermissionError(pid)
    words = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    if not born or birth(pid) != born:
        raise ProcessLookupError(pid)
    return dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)


def is_own(pid: int) -> bool:
    """Whether a process is the user's, and was started by the user.

    A set-user-ID program such as sudo runs as root with variables of who started it; getauxval(3) has AT_SECURE.
    """
    users = re.search(r"^Uid:((?:\s+[0-9]+){4})$", Path("/proc", str(pid), "status").read_text(), re.MULTILINE)
    values = dict(struct.iter_unpack("@LL", Path("/proc", str(pid), "auxv").read_bytes()))
    return users is not None and set(map(int, users[1].split())) == {os.geteuid()} and values.get(AT_SECURE) == 0


def open_terminals() -> List[int]:
    """The processes with a terminal, in a container of the job's own, whose shells a service has started."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with suppress(OSError, ValueError, IndexError):
            if int(fields_of(int(name))[4]) and int(name) != os.getpid():
                found.append(int(name))
    return found


def birth(pid: int) -> str:
    """The start time of a process, which differs if its id was reused."""
    with suppress(OSError, IndexError):
        return fields_of(pid)[19]
    return ""


def fields_of(pid: int) -> List[str]:
    """The fields after the name in /proc/PID/stat; the first is the state."""
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()


def is_same_process(pid: Optional[int], born: str) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    state = fields_of(pid)[0] if os.path.isdir("/proc/self") else ""
    return birth(pid) == born and state != "Z"


def read_shell(file: Path) -> Tuple[int, str]:
    """The process id and start time in a shell's file; 0 for an invalid file."""
    with suppress(OSError, ValueError, TypeError):
        pid, born = json.loads(file.read_text())
        return int(pid), str(born)
    return 0, ""


def write(file: Path, text: str) -> None:
    """Write a file atomically."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)


def say(text: str) -> None:
    sys.stdout.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text + "\n")
    sys.stdout.flush()


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="interactive.py")
    parser.add_argument("verb", choices=("hold", "enter"))
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--terminals", action="store_true")
    given = parser.parse_args(argv)
    place = Place(given.place, given.node)
    if given.verb == "enter":
        return enter(place)
    return hold(place, given.seconds, given.limit, given.terminals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
