"""One command at a time for one destination: a lock of this project, and a claim in the container for all others.

The claim is a blob that is created once. It has no seal: it only makes others stop. A command that is killed leaves it,
and the next one of the same project takes it back.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blobsync.base.errors import AccessDeniedError, SpreadBusyError
from blobsync.base.plain_json import parse_object
from blobsync.local.os_errors import local_error, naming
from blobsync.spread.file_json import FormatError, message_of
from blobsync.spread.shared_store import ContainerStore

_CLAIM = "claim"
# What a detached transfer leaves in its place, as its tasks may not delete.
_FREE = b"{}"


@contextmanager
def project_lock(file: Path) -> Iterator[str]:
    """Allow one command of this project at a time, on machines that share its state folder. Yields the UUID of its
    claims, the same each time.

    The kernel releases the lock when the process ends. Raises ``SpreadBusyError`` if another process has it.
    """
    with naming(file):
        stream = file.open("a+", encoding="utf-8")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpreadBusyError(
                "another command of this project moves files to this folder with --nodes at this moment",
                hint="wait for it, or stop it with Ctrl-C",
            ) from error
        except OSError as error:
            raise local_error(error, file) from error
        stream.seek(0)
        try:
            holder = str(uuid.UUID(stream.read().strip()))
        except ValueError:
            holder = str(uuid.uuid4())
            stream.truncate(0)
            stream.write(holder)
            stream.flush()
        yield holder


def take_claim(place: ContainerStore, holder: str, by: str) -> None:
    """Claim the destination; ``by`` says who does, for others. Raises ``SpreadBusyError`` if somebody else has it."""
    body = json.dumps({"holder": holder, "by": by}).encode()
    if place.create(_CLAIM, body):
        return
    known = place.read(_CLAIM)
    if known is None or known == _FREE:
        if place.swap(_CLAIM, known, body):
            return
        known = place.read(_CLAIM)
    said = {}
    with suppress(ValueError):
        said = parse_object((known or b"").decode())
    if said.get("holder") == holder:
        return
    who = "somebody"
    with suppress(FormatError):
        who = message_of(said, "by")
    raise SpreadBusyError(
        f"another command moves files to this folder with --nodes, that of {who}: it has {place.shown}{_CLAIM}",
        hint="wait for it. If it was killed, run it again there, or remove that blob",
    )


def leave_claim(place: ContainerStore) -> None:
    """Give the claim up, also without the right to delete."""
    try:
        place.remove(_CLAIM)
    except AccessDeniedError:
        free_claim(place)


def free_claim(place: ContainerStore) -> None:
    """The same without the right to delete."""
    place.write(_CLAIM, _FREE)
