"""blobsync on a real pseudo-terminal of a given width, and the contents of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyte

from tests.e2e.world import Project, blobsync_command, kill_tree
from tests.servers.forked import Forked, can_fork
from tests.waiting import wait_until

CTRL_C = "\x03"
CTRL_D = "\x04"
# High enough for all output.
_ROWS = 5000
_WIDE = 2000
# The first terminal that a session opens becomes its controlling terminal.
_ON_TERMINAL = 'terminal=$1; shift; exec "$@" <"$terminal" >"$terminal" 2>&1'
_DRAWN = re.compile(r"\r([^\r\n\x1b]+)\x1b\[K")
_SECONDS = 60.0


class _Screen:
    def __init__(self, columns: int) -> None:
        self.screen = pyte.Screen(columns, _ROWS)
        self._stream = pyte.ByteStream(self.screen)

    def feed(self, data: bytes) -> None:
        self._stream.feed(data)

    def lines(self) -> list[str]:
        rows = (self.screen.buffer[at] for at in range(self.screen.cursor.y + 1))
        shown = ["".join(row[at].data for at in range(max(row, default=-1) + 1)).rstrip() for row in rows]
        while shown and not shown[-1]:
            shown.pop()
        return shown


class Terminal:
    """A run of blobsync on a terminal of ``columns``. ``code`` is its exit code once it has ended."""

    def __init__(self, project: Project, words: tuple[str, ...], columns: int) -> None:
        self.columns = columns
        self.words = words
        self.code: int | None = None
        self.drawn_over = b""
        self._narrow, self._wide = _Screen(columns), _Screen(_WIDE)
        self._lock = threading.Lock()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        command = (blobsync_command(), *words)
        environ = {**os.environ, "TERM": "xterm-256color", **project.environ}
        environ.pop("COLUMNS", None)
        self.process: subprocess.Popen[Any]
        if can_fork(environ, project.before):
            self.process = Forked(
                command,
                folder=project.root,
                environ=environ,
                before=project.before,
                stdin=slave,
                stdout=slave,
                stderr=slave,
            )
        else:
            shell = ("/bin/sh", "-c", _ON_TERMINAL, "sh", os.ttyname(slave), *project.before)
            self.process = subprocess.Popen((*shell, *command), cwd=project.root, env=environ, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._slave = slave

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                self.drawn_over += data
                self._narrow.feed(data)
                self._wide.feed(data)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def lines(self) -> list[str]:
        """The lines on the screen."""
        with self._lock:
            return self._narrow.lines()

    def answer(self) -> list[str]:
        """The text on the screen, with wrapped sentences joined to one line."""
        with self._lock:
            return unwrapped(self._wide.lines())

    def bars(self) -> list[str]:
        """All texts of progress bars."""
        with self._lock:
            # Of the last character only a part may have come yet.
            return _DRAWN.findall(self.drawn_over.decode(errors="replace"))

    def wait_for(self, sight: Callable[[Terminal], object], *, seconds: float = _SECONDS) -> None:
        assert wait_until(lambda: sight(self) or self.process.poll() is not None, seconds=seconds), str(self)
        # What it wrote last may not have been read yet.
        assert wait_until(lambda: sight(self), seconds=5), f"it ended before\n{self}"

    def finish(self, *, seconds: float = _SECONDS) -> Terminal:
        """Wait for the end, and check that the screen is left clean."""
        try:
            self.code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {seconds} s\n{self}") from None
        self._close()
        self._check()
        return self

    def _close(self) -> None:
        """Read all output before the terminal is closed."""
        os.close(self._slave)
        self._reader.join(_SECONDS)
        os.close(self._master)

    def _check(self) -> None:
        text = self.drawn_over.decode()
        too_wide = [bar for bar in self.bars() if len(bar) >= self.columns]
        assert not too_wide, f"wider than {self.columns}: {too_wide[:3]}\n{self}"
        # Colours are reset on the line on which they are set.
        codes = re.findall(r"\x1b\[.*?[A-Za-z]|\n", text)
        colors = [code for code in codes if code.endswith("m")]
        # Up, and the rest away: a credential that was pasted where it is seen. A list that is shown anew takes it all.
        taken_off = [code for code in codes if code == "\x1b[J" or code[-1] == "A"]
        cleared = {"\x1b[H", "\x1b[2J"} if "--watch" in self.words else set()
        known = {"\x1b[K", "\n", *colors, *taken_off, *cleared}
        assert not set(codes) - known, "it leaves the terminal another than before"
        assert colors[1::2] == ["\x1b[0m"] * (len(colors) // 2) and len(colors) % 2 == 0, colors
        assert not self._narrow.screen.cursor.hidden, "no cursor"
        left = [
            line
            for line in self.lines()
            if re.search(r"^(moving|uploading|downloading|copying|deleting) +\d+%|^(looking|checking)  ", line)
        ]
        assert not left, f"the bar is still there: {left}\n{self}"
        assert "Traceback" not in text and "bug in blobsync" not in text, str(self)
        # The shell's prompt comes at the beginning of a line.
        assert self._narrow.screen.cursor.x == 0, f"it ends in the middle of a line\n{self}"

    def __str__(self) -> str:
        shown = "\n".join(self.lines())
        return f"{' '.join(self.words)} on {self.columns} columns -> {self.code}\n{shown}\n{self.bars()[-3:]}"


def unwrapped(lines: Iterable[str]) -> list[str]:
    """Join continuation lines, which are indented by four more, to their first line."""
    whole: list[str] = []
    for line in lines:
        if whole and re.match(rf"{_indent(whole[-1])}    (?! )", line):
            whole[-1] += f" {line.lstrip()}"
        else:
            whole.append(line)
    return whole


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


@contextmanager
def on_terminal(project: Project, *words: str, columns: int = 80) -> Iterator[Terminal]:
    """Start a run for input by the test; kills it at the end of the block."""
    terminal = Terminal(project, words, columns)
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            kill_tree(terminal.process.pid)
            terminal.process.wait()


def see(project: Project, *words: str, columns: int = 80, seconds: float = _SECONDS) -> Terminal:
    """Run blobsync."""
    with on_terminal(project, *words, columns=columns) as terminal:
        return terminal.finish(seconds=seconds)
