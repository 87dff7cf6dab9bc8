"""Events of a running command, as passed to ``Listener.emit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# Why a transfer waits, as the terminal shows it.
NO_CONNECTION = "no connection"
NO_ANSWER = "no answer"
SERVICE_BUSY = "the service is busy"
WHYS = (NO_CONNECTION, NO_ANSWER, SERVICE_BUSY)


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A host stopped answering ``seconds`` ago: ``why`` is one of the texts above. All requests to it wait and are
    tried again."""

    host: str
    why: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The host answers again."""

    host: str


@dataclass(frozen=True, slots=True)
class Moving:
    """Files are moving from now on: ``doing`` is ``uploading``, ``downloading`` or ``copying``. ``on_record`` of their
    bytes are already there from an earlier run."""

    doing: str
    on_record: int = 0


@dataclass(frozen=True, slots=True)
class FilesCounted:
    """So many more files have moved that are not verified yet, or not reported by name; less than 0: so many of these
    are now reported one by one."""

    files: int


@dataclass(frozen=True, slots=True)
class Hashing:
    """So many more files, with so many bytes, are read for their MD5 while both sides are compared; less than 0: so
    many have been read."""

    files: int
    size: int


Event: TypeAlias = Disconnected | Connected | Moving | FilesCounted | Hashing


def unheard(event: Event) -> None:
    """Ignore an event."""
