"""A program of another user of this machine, which listens at a port and records what it receives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

USER = 54_321
# Responds like an empty blob service; reads each connection once, and records that before it responds.
_PROGRAM = """
import os, socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
kept = open(sys.argv[4], "ab", buffering=0)
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
place = socket.socket(family)
place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
place.bind((sys.argv[2], int(sys.argv[3])))
place.listen(64)
print(place.getsockname()[1], flush=True)
while True:
    asking, _ = place.accept()
    data = asking.recv(1 << 20)
    kept.write(data)
    if data:
        asking.sendall(b"HTTP/1.1 404 Not Found\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    asking.close()
"""


@dataclass(frozen=True)
class Stranger:
    """``port`` is the port at which it listens."""

    port: int
    kept: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def received(self) -> bytes:
        """All bytes that it has received."""
        return self.kept.read_bytes()


@contextmanager
def stranger(folder: Path, *, port: int = 0, address: str = "127.0.0.1", user: int = USER) -> Iterator[Stranger]:
    """Run the program while the block lasts; skips the test if it cannot run as another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    if not Path("/proc/net/tcp").exists():
        pytest.skip("this system does not tell whose a socket is")
    kept = folder / f"received-{port}-{user}"
    words = [sys.executable, "-c", _PROGRAM, str(user), address, str(port), str(kept)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Stranger(int(process.stdout.readline()), kept)
    finally:
        process.kill()
        process.communicate()
