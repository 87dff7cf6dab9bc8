"""Coordinator lock and heartbeat: one parent at a time coordinates a spread transfer."""

from __future__ import annotations

import fcntl
import secrets
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from blobsync.base.errors import BlobsyncError, SpreadBusyError
from blobsync.local.errors import naming
from blobsync.spread.shared_store import CLAIM_SECONDS, SharedStore

_OWNER = "owner"
# Seconds between two renewals of a claim, and between two heartbeats.
BEAT_SECONDS = CLAIM_SECONDS / 4
# How long to wait for a heartbeat that is under way (seconds) when the end is hurried.
_LAST_BEAT_SECONDS = 2.0


class CoordinatorLock:
    """Held during a ``with`` block. ``holder`` is a UUID: a coordinator that has the same one is the same coordinator,
    started again."""

    def __init__(self, place: SharedStore, holder: str, *, beat: float = BEAT_SECONDS) -> None:
        """The claim is on ``place``, and is renewed each ``beat``, in seconds."""
        self._place = place
        self._signs = place
        self._holder = holder
        self._seconds = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> CoordinatorLock:
        """Raises ``SpreadBusyError`` if somebody else has the claim."""
        if not self._place.claim(_OWNER, self._holder):
            raise SpreadBusyError(
                f"another command moves files to this folder with --nodes at this moment: it has {self._place.shown}",
                hint=f"wait for it; if it was killed, try again after {CLAIM_SECONDS} s",
            )
        return self

    def show(self, signs: SharedStore) -> None:
        """Start the heartbeat at the store of the shards, so that workers see that the coordinator is alive."""
        self._signs = signs
        self._say()
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
            self._place.release(_OWNER, self._holder)
            return
        # Keep the exception that ended the block, not that the store cannot be reached: the claim expires by itself.
        with suppress(BlobsyncError):
            self.end(hurried=True)
            self._place.release(_OWNER, self._holder)

    def end(self, *, hurried: bool = False) -> None:
        """Let workers end: nothing is left to do. ``hurried``: do not wait for a store that cannot be reached, from now
        on."""
        if hurried:
            self._place.hurry()
            self._signs.hurry()
        if self._over.is_set() or not self._thread.is_alive():
            # The heartbeat never started, or has ended: the store may be gone.
            return
        self._over.set()
        self._thread.join(_LAST_BEAT_SECONDS if hurried else None)
        # The SAS of a detached coordinator does not allow it to delete anything.
        self._signs.write("alive", b"")

    def _beat(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._place.claim(_OWNER, self._holder)
                self._say()
            except BlobsyncError:
                # The next heartbeat tries again; workers are patient.
                continue

    def _say(self) -> None:
        self._signs.write("alive", secrets.token_hex(8).encode())


class OwnerLock:
    """Allows one coordinator of this project at a time, on machines that share its state folder. Entering returns the
    UUID of its claims, the same each time, so that the coordinator after one that was killed need not wait.

    The kernel releases the lock when the process ends.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stream: IO[str] | None = None

    def __enter__(self) -> str:
        """Raises ``SpreadBusyError`` if another process has the lock."""
        with naming(self._file):
            stream = self._file.open("a+", encoding="utf-8")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.close()
            raise SpreadBusyError(
                "another command of this project moves files to this folder with --nodes at this moment",
                hint="wait for it, or stop it with Ctrl-C",
            ) from error
        self._stream = stream
        stream.seek(0)
        try:
            return str(uuid.UUID(stream.read().strip()))
        except ValueError:
            made = str(uuid.uuid4())
            stream.truncate(0)
            stream.write(made)
            stream.flush()
            return made

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
