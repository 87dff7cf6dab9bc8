"""What happens while a command works, as values: what ``Listener.emit`` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# Why a transfer waits, as a line of a terminal says it.
NO_CONNECTION = "no connection"
NO_ANSWER = "no answer"
SERVICE_BUSY = "the service is busy"
WHYS = (NO_CONNECTION, NO_ANSWER, SERVICE_BUSY)


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A host that answered before answers nobody any more: ``why`` is one of the words above, and it began ``seconds``
    ago. All requests to it wait and are tried again."""

    host: str
    why: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The host answers again."""

    host: str


@dataclass(frozen=True, slots=True)
class Moving:
    """From now on files move: ``doing`` is ``uploading``, ``downloading`` or ``copying``. ``on_record`` bytes of them
    are there already, left by an earlier run."""

    doing: str
    on_record: int = 0


@dataclass(frozen=True, slots=True)
class FilesCounted:
    """So many more files have moved that are not known to be right yet, or not by name; less than 0: so many of these
    are told of one by one now."""

    files: int


@dataclass(frozen=True, slots=True)
class Hashing:
    """So many more files, of so many bytes, are read for their MD5 while both ends are looked at; less than 0: so many
    have been read."""

    files: int
    size: int


Event: TypeAlias = Disconnected | Connected | Moving | FilesCounted | Hashing


def unheard(event: Event) -> None:
    """Nobody wants to know."""
