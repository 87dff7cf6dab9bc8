"""Progress events of a command, and the interface of their listeners.

Code that makes progress calls ``listener.emit(event)``. The bar, ``on_progress``, the page, ``--timings`` and the
record of a running transfer are listeners; :func:`together` combines several. Small files are in one event for all that
ended together. There is an event for each block of bytes, so they are named tuples: creating these, and their classes,
takes half the time of frozen dataclasses.

Python's ``logging`` takes a thirtieth of a short command to import, so that notes and debug messages load it late.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from blobsync.base.records import NamedTuple

if TYPE_CHECKING:
    from logging import Logger

    # Every command loads this module.
    from blobsync.base.errors import FileFailure


# Why a transfer waits, as the terminal shows it.
NO_CONNECTION = "no connection"
NO_ANSWER = "no answer"
SERVICE_BUSY = "the service is busy"
WHYS = (NO_CONNECTION, NO_ANSWER, SERVICE_BUSY)


class Disconnected(NamedTuple):
    """A host stopped responding ``seconds`` ago: ``why`` is one of the texts above. All requests to it wait and are
    retried."""

    host: str
    why: str
    seconds: float = 0.0


class Connected(NamedTuple):
    """The host responds again."""

    host: str


ConnectionEvent: TypeAlias = Disconnected | Connected


def ignore(event: object) -> None:
    """Do nothing with an event."""


class Phase(NamedTuple):
    """A phase begins: ``surveying``, ``hashing``, ``moving``, ``verifying`` or ``deleting``."""

    name: str


class Expected(NamedTuple):
    """More files, with their total of bytes, are to move."""

    files: int
    size: int


class Looked(NamedTuple):
    """More names were looked at while surveying or verifying."""

    files: int


class Hashing(NamedTuple):
    """More files, with their total of bytes, are being read for their MD5; negative: these have been read."""

    files: int
    size: int


class Moving(NamedTuple):
    """Files begin to move: ``doing`` is ``uploading``, ``downloading`` or ``copying``. ``on_record`` bytes of them are
    already there from an earlier run."""

    doing: str
    on_record: int = 0


class UnderWay(NamedTuple):
    """The number of files that are moving now; ``path`` began last, as a user would type it. Only engines that see
    single files emit it."""

    files: int
    path: str


class BytesMoved(NamedTuple):
    """More bytes were sent; negative if a retry starts over."""

    size: int


class BytesReused(NamedTuple):
    """Bytes of the files that are already at the destination, and do not move."""

    size: int


class WorkerMoved(NamedTuple):
    """The share of one of several workers in the files and bytes of other events."""

    worker: str
    files: int
    size: int


class FilesCounted(NamedTuple):
    """More files have moved that are not verified yet, or not known by name; negative: these are in a
    ``FilesDone`` now."""

    files: int


class FilesDone(NamedTuple):
    """These files, as a user would type them, are finished; with a ``failure`` they have failed."""

    paths: Sequence[str]
    failure: "FileFailure | None" = None


class Note(NamedTuple):
    """A note for the user."""

    text: str


Event: TypeAlias = (
    Phase
    | Expected
    | Looked
    | Hashing
    | Moving
    | UnderWay
    | BytesMoved
    | BytesReused
    | WorkerMoved
    | FilesCounted
    | FilesDone
    | Note
    | Disconnected
    | Connected
)


Emit: TypeAlias = Callable[[Event], None]


class Listener(Protocol):
    """Reads the events of a command."""

    def emit(self, event: Event) -> None:
        """Called from any thread; must be quick and must not raise."""
        ...


class SilentListener:
    """Ignores every event."""

    def emit(self, event: Event) -> None:
        """Do nothing."""


class LoggingListener:
    """Logs notes with the logger ``blobsync``, as INFO: the default of a project."""

    def emit(self, event: Event) -> None:
        """Log a note."""
        if isinstance(event, Note):
            import logging

            logging.getLogger("blobsync").info("%s", event.text)


class NoteListener:
    """Hands on the text of each note, and ignores every other event."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def emit(self, event: Event) -> None:
        """Hand on a note."""
        if isinstance(event, Note):
            self._say(event.text)


class _Together:
    __slots__ = ("_listeners",)

    def __init__(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners = listeners

    def emit(self, event: Event) -> None:
        for each in self._listeners:
            each.emit(event)


def together(*listeners: Listener) -> Listener:
    """One listener that passes each event to all of these, in their order."""
    return _Together(listeners)


def notes_to(listener: Listener) -> Callable[[str], None]:
    """A function that emits a :class:`Note` of each text."""
    return lambda text: listener.emit(Note(text))


def debug_logger(name: str) -> "Logger | None":
    """The logger ``name`` if its debug messages go anywhere. While nobody has imported ``logging``, none do."""
    if "logging" not in sys.modules:
        return None
    # Another thread may be importing it: this waits until it has.
    import logging

    logger = logging.getLogger(name)
    return logger if logger.isEnabledFor(logging.DEBUG) else None
