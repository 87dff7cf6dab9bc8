"""A container as a process of this machine, and its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.servers.kube.store import micro_stamp, stamp

LAUNCHER = Path(__file__).with_name("container.py")


# The prefix of a line in the file: time, stream, and whether it is whole.
_LINE_HEAD = len("2026-11-21T23:09:00.000000000Z stdout F ")


class Log:
    """Lines with their times; readers can wait for more.

    After ``most()`` bytes a new file begins, between two lines: a kubelet reads the newest one only, but a client that
    follows gets all.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._lines: list[tuple[str, bytes]] = []
        self._more = threading.Condition()
        self._over = False
        self._most = most
        # Of the newest file: the number of its first line, and how many bytes it has.
        self._first = self._bytes = 0

    def write(self, line: bytes) -> None:
        with self._more:
            if self._bytes >= self._most():
                self._first, self._bytes = len(self._lines), 0
            self._lines.append((micro_stamp(), line))
            self._bytes += _LINE_HEAD + len(line)
            self._more.notify_all()

    def lines(self) -> list[tuple[str, bytes]]:
        """All of them so far."""
        with self._more:
            return list(self._lines)

    def close(self) -> None:
        with self._more:
            self._over = True
            self._more.notify_all()

    def first_of(self, last: int | None) -> int:
        """The number of the first of the ``last`` lines that are served (None: of all)."""
        with self._more:
            return self._first if last is None else max(self._first, len(self._lines) - last)

    def read(self, start: int, *, follow: bool) -> Iterator[tuple[str, bytes] | None]:
        """Lines from number ``start`` on; None twice a second while there is nothing new."""
        while True:
            with self._more:
                found, over = self._lines[start:], self._over
                if not found and follow and not over:
                    self._more.wait(0.5)
            yield from found
            if not found and follow and not over:
                yield None
            start += len(found)
            if not found and (over or not follow):
                return


class ContainerProcess:
    """``spec`` is the input of ``container.py``, ``folder`` the container's own, ``most`` the size of a log file."""

    def __init__(self, folder: Path, spec: dict[str, Any], most: Callable[[], int]) -> None:
        self.log, self.started, self.ended = Log(most), stamp(), ""
        self.environ: dict[str, str] = spec["environ"]
        self.folder_in: str = spec["folder_in"]
        self._owner: tuple[int, int] = (spec["user"], spec["group"])
        self.reason = ""
        # The file with what it says at its end, and whether its state has the end of its log when it fails without.
        self.last_words = Path(os.devnull)
        self.tells_end = False
        # Whether the server has been told that it runs: before it hears of its end, however soon that comes.
        self.is_told = False
        self._over = threading.Event()
        (folder / "files").mkdir(parents=True)
        file = folder / "spec.json"
        file.write_text(json.dumps({**spec, "folder": str(folder / "files")}), encoding="utf-8")
        file.chmod(0o600)
        begun, begins = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), str(file), str(begins)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(begins,),
        )
        os.close(begins)
        with open(begun, "rb") as pipe:
            pipe.read()  # until the program itself runs
        threading.Thread(target=self._read, daemon=True).start()

    def signal(self, number: int) -> None:
        """Signal the container's first process, which ignores signals without a handler, except SIGKILL."""
        if (first := self.first_process()) is not None:
            try:
                os.kill(first, number)
            except ProcessLookupError:
                pass  # it has just ended

    def kill(self, reason: str = "") -> None:
        self.reason = reason or self.reason
        self.signal(signal.SIGKILL)

    def first_process(self) -> int | None:
        """Its process id on this machine."""
        try:
            path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            found = path.read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(found[0]) if found and self._process.poll() is None else None

    def enter(self, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` inside, with the container's environment."""
        words = [f"{name}={value}" for name, value in self.environ.items()]
        inside = ["env", "-i", "--chdir", self.folder_in, *words, *argv]
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--root"]
        user, group = self._owner
        rights = [f"--setuid={user}", f"--setgid={group}"] if user else []
        return ["nsenter", "--target", str(self.first_process()), *spaces, *rights, "--", *inside]

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        return self._over.wait(seconds)

    @property
    def exit_code(self) -> int | None:
        if not self._over.is_set():
            return None
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def state(self) -> dict[str, Any]:
        """``containerStatuses[].state``."""
        code = self.exit_code
        if code is None or not self.is_told:
            return {"running": {"startedAt": self.started}}
        reason = self.reason or ("Completed" if code == 0 else "StartError" if code == 128 else "Error")
        times = {"startedAt": self.started, "finishedAt": self.ended}
        said = self.last_words.read_bytes()[:4096]
        if code and self.tells_end and not said:
            said = b"".join(line for _, line in self.log.lines())[-2048:]
        told = {"message": said.decode("utf-8", "replace")} if said else {}
        return {"terminated": {"exitCode": code, "reason": reason, **told, **times}}

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.log.write(line)
        self._process.wait()
        self._process.stdout.close()
        self.ended = stamp()
        self.log.close()
        self._over.set()
