"""Copies the logs of a node's processes to this process's own output, which is the log of its pod.

``jobspec.log_frames`` defines the format of a line.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from blobsync.jobspec.log_frames import framed

_EVERY_SECONDS = 0.2
_CHUNK = 1 << 20
# A longer line is copied in parts of this size (bytes).
_LONGEST = 1 << 16
# Kubernetes keeps 4096 bytes of what a container says at its end.
_LAST_BYTES = 1000


class Echo:
    """Follows all logs below ``run_dir`` while in ``with``; writes the rest at its end."""

    def __init__(
        self, run_dir: Path, node_rank: int, attempt: str, out: BinaryIO | None = None, last: str = ""
    ) -> None:
        """``last`` is a file for the last line of the node's first process."""
        self._folders = (run_dir / "user_logs", run_dir / "system_logs")
        self._first = f"blobsync node {node_rank}, attempt {attempt}\n"
        self._out = out or sys.stdout.buffer
        self._seen: dict[Path, int] = {}
        self._last_file, self._last_lines = last, dict[str, bytes]()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Echo:
        self._out.write(self._first.encode())
        self._out.flush()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._pass_on(at_last=True)
        if self._last_file and self._last_lines:
            name = min(self._last_lines)
            # The pod goes on as it was if its runtime has no such file.
            with suppress(OSError):
                Path(self._last_file).write_bytes(framed(name, 0, self._last_lines[name]))

    def _follow(self) -> None:
        while not self._done.wait(_EVERY_SECONDS):
            self._pass_on(at_last=False)

    def _pass_on(self, *, at_last: bool) -> None:
        for folder in self._folders:
            for path in sorted(folder.glob("*.txt")):
                for line in self._new_lines(path, at_last):
                    self._out.write(line)
        self._out.flush()

    def _new_lines(self, path: Path, at_last: bool) -> Iterator[bytes]:
        if path not in self._seen:
            self._seen[path] = 0
            # An empty log shows that the process had no output.
            yield framed(path.stem, 0, b"")
        with path.open("rb") as log:
            log.seek(self._seen[path])
            while body := log.read(_CHUNK):
                whole = len(body) if at_last or len(body) > _LONGEST else body.rfind(b"\n") + 1
                if not whole:
                    return
                for line in io.BytesIO(body[:whole]):
                    yield framed(path.stem, self._seen[path], line)
                    if path.parent.name == "user_logs" and line.strip():
                        self._last_lines[path.stem] = line[-_LAST_BYTES:]
                    self._seen[path] += len(line)
                log.seek(self._seen[path])
