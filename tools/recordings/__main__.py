"""Plays the session on the emulator, at each width, and writes what was seen."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blobsync.emulator import Emulator, new_key
from tests.conftest import FOR_INSTALLERS, TOOLS
from tests.e2e.world import Container, Project, blobsync_command, write_tree
from tests.servers.delay_proxy import delay_proxy
from tools.recordings.drawing import svg
from tools.recordings.screen import stays

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
WIDTHS = (50, 80, 120)
# Enough files, on a slow enough line, to show the bar for seconds.
FILES, ROUND_TRIP_MS = 120, 500.0
ALT = (
    "blobsync on a terminal of {} columns: the plan of an upload with its first files, the upload with its progress, "
    "the folder deleted, downloaded again and verified"
)

# What is typed; ``rm`` is the shell's.
SESSION = (
    ("blobsync", "plan", "u", "data/voc20"),
    ("blobsync", "u", "data/voc20"),
    ("rm", "-r", "data/voc20"),
    ("blobsync", "d", "data/voc20"),
    ("blobsync", "verify", "data/voc20"),
)
_LINES = 40
_KEY, _READING = 0.03, 1.2
Events = list[tuple[float, bytes]]


@contextmanager
def little_project(files: int, round_trip_ms: float) -> Iterator[Project]:
    """A project with small pictures and their labels, over a connection of the given latency."""
    keys = {"research": new_key()}
    with tempfile.TemporaryDirectory() as folder, Emulator(TOOLS, environ=FOR_INSTALLERS).session(keys) as state:
        service = f"http://127.0.0.1:{state.port}"
        container = Container(service, "research", keys["research"].reveal(), "datasets")
        container.create()
        root, home = Path(folder, "segmentation"), Path(folder, "home")
        root.mkdir()
        home.mkdir()
        project = Project(root, {"HOME": str(home), "USER": "amber"})
        chance = random.Random(20)
        pictures = {f"train/{n:04}.jpg": chance.randbytes(chance.randrange(2_000, 9_000)) for n in range(files)}
        write_tree(project.data / "voc20", {"labels.txt": b"bird\ncat\ncow\n", **pictures})
        with delay_proxy(service, round_trip_ms=round_trip_ms) as line:
            project.configure(container, url=line.url, path="amber/data")
            yield project


def recorded(project: Project, columns: int, session: Sequence[Sequence[str]] = SESSION) -> str:
    """The session as SVG, of a terminal that is ``columns`` wide."""
    events: Events = []
    moment = 0.3
    for words in session:
        moment = _typed(events, moment, " ".join(words))
        if words[0] == "rm":
            shutil.rmtree(project.root / words[-1])
        else:
            moment = _run(project, words[1:], columns, events, moment)
        moment += _READING
    events.append((moment, b"$ "))
    return svg(list(stays(events, columns, _LINES)), columns, ALT.format(columns))


def _typed(events: Events, moment: float, line: str) -> float:
    """A prompt, and the keys one after the other."""
    events.append((moment, b"$ "))
    for at, key in enumerate(line):
        events.append((moment + 0.4 + at * _KEY, key.encode()))
    end = moment + 0.4 + len(line) * _KEY
    events.append((end, b"\r\n"))
    return end


def _run(project: Project, words: Sequence[str], columns: int, events: Events, moment: float) -> float:
    """Run blobsync on a terminal and record its output with times."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **project.environ}
    for name in ("COLUMNS", "NO_COLOR"):
        environ.pop(name, None)
    began = time.monotonic()
    process = subprocess.Popen(
        [blobsync_command(), *words], cwd=project.root, env=environ, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    while data := _read(master):
        events.append((moment + time.monotonic() - began, data))
    os.close(master)
    if process.wait() != 0:
        raise RuntimeError(f"blobsync {' '.join(words)} ended with {process.returncode}")
    return moment + time.monotonic() - began


def _read(master: int) -> bytes:
    """Read from the terminal; empty at its end, which Linux reports as an error."""
    try:
        return os.read(master, 1 << 16)
    except OSError:
        return b""


def main() -> int:
    """Write them all; returns the exit code."""
    for columns in WIDTHS:
        with little_project(FILES, ROUND_TRIP_MS) as project:
            file = IMAGES / f"terminal-{columns}.svg"
            file.write_text(recorded(project, columns), encoding="utf-8")
            print(f"wrote {file} ({file.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
