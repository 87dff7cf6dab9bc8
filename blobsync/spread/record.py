"""The answers of a worker: one record for each file of a shard, and messages. Does no I/O.

    {"blobsync_records": 1}                                          the first line: the worker has its orders
    {"path": "a/b.jpg", "source": {...}, "destination": {...}}       moved; the states as the worker saw them
    {"path": "a/c.jpg", "code": "access_denied", "message": "...", "hint": "..."}             failed
    {"kept": "a/d.bin", "size": 8388608}                             not finished; the next run goes on from here
    {"bytes": 4194304, "reused": 0}                                  so many more on their way; less than 0 at a retry
    {"moving": 3, "now": "data/a/b.jpg"}                             files under way, and the one that began last
    {"note": "..."}                                                  a sentence for the user
    {"lost": "host", "why": "no connection", "seconds": 0.0}         the worker's requests wait for that host
    {"back": "host"}                                                 and go on
    {"ask": "token", "end": "source"}                                a worker here needs a credential anew
    {"refused": "..."}                                               why a task cannot work on its node
    {"done": 3}                                                      the shard of this number is at its end

Records are not trusted: a file without a record has not moved, and a record of a file that is not in the shard is an
error of the worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import WHYS, Connected, ConnectionEvent, Disconnected, Note, UnderWay
from blobsync.base.file_states import FileState
from blobsync.base.records import dataclass
from blobsync.plan.transfer_plan import Route
from blobsync.spread.file_json import FormatError, message_of, object_of, size_of, state_json, state_of, text_of
from blobsync.spread.shard import is_local
from blobsync.transfer.engines import Moved

VERSION = 1

_MOST = 1 << 62
# Seconds; no request waits longer for its answer.
_LONGEST_WAIT = 1e6
# Names of checksums; "content" and "nothing", too.
_COMPARED_BY = re.compile("[a-z0-9]{0,20}")

# Reads the value of a key. Raises ``FormatError``.
_Read: TypeAlias = Callable[[Mapping[str, Any], str], Any]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file: its two states after it moved, the bytes that were reused, and what its content was compared by; or why
    it did not move (``failure`` has the path as in the record)."""

    path: str
    source: FileState | None = None
    destination: FileState | None = None
    reused: int = 0
    compared_by: str = ""
    failure: FileFailure | None = None

    @classmethod
    def of(cls, moved: Moved) -> FileRecord:
        """The record of a file that an engine has moved."""
        return cls(moved.action.path, moved.source, moved.destination, moved.reused, moved.compared_by)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has read its orders."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """An unfinished file: ``size`` bytes of it are at the destination, recorded for the next run."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """Bytes under way, and bytes that were there already."""

    count: int
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The task cannot work on its node; ``why`` is for the user."""

    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a credential: ``what`` is ``token``, ``renewed`` (the service refused the last) or ``source_sas``,
    ``end`` is ``source`` or ``destination``."""

    what: str
    end: str


@dataclass(frozen=True, slots=True)
class ShardDone:
    """All files of a shard are reported."""

    number: int


_Event: TypeAlias = UnderWay | Note | ConnectionEvent
Answer: TypeAlias = FileRecord | KeptFile | Ready | Refused | Ask | ShardDone | MovedBytes | _Event


def answer_line(answer: Answer) -> str:
    """An answer as one line without its end."""
    return json.dumps(_values(answer), separators=(",", ":"))


def _values(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Ready):
        return {"blobsync_records": VERSION}
    if not isinstance(answer, FileRecord):
        return {key: getattr(answer, name) for key, name, _ in _FIELDS[type(answer)]}
    failure = answer.failure
    if failure is not None:
        return {"path": answer.path, "code": failure.code.value, "message": failure.message, "hint": failure.hint}
    return {
        "path": answer.path,
        "source": state_json(answer.source),
        "destination": state_json(answer.destination),
        "reused": answer.reused,
        **({"compared_by": answer.compared_by} if answer.compared_by else {}),
    }


def read_answer(line: str, route: Route) -> Answer:
    """Read one line of a worker that moves on ``route``. Raises ``FormatError`` if it is invalid."""
    values = object_of(line)
    if "path" in values:
        return _record(values, route)
    for kind, fields in _FIELDS.items():
        if fields[0][0] in values:
            found: Answer = kind(**{name: read(values, key) for key, name, read in fields})
            return found
    if values.get("blobsync_records") != VERSION:
        raise FormatError(f"not records of version {VERSION}")
    return Ready()


def _one_of(*words: str) -> _Read:
    def read(values: Mapping[str, Any], key: str) -> str:
        found = values.get(key)
        if not isinstance(found, str) or found not in words:
            raise FormatError(f"{key} is not one of {', '.join(words)}")
        return found

    return read


def _seconds(values: Mapping[str, Any], key: str) -> float:
    found = values.get(key)
    if type(found) is not float or not 0 <= found < _LONGEST_WAIT:
        raise FormatError(f"{key} is not the length of an outage")
    return found


def _change(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key)
    if type(found) is not int or not -_MOST < found < _MOST:
        raise FormatError(f"{key} is not a number")
    return found


# The fields of each answer: its key in a line, its name, and how it is read. The first key tells the answers apart.
_FIELDS: Mapping[type[Any], tuple[tuple[str, str, _Read], ...]] = {
    MovedBytes: (("bytes", "count", _change), ("reused", "reused", _change)),
    UnderWay: (("moving", "files", size_of), ("now", "path", text_of)),
    Refused: (("refused", "why", message_of),),
    KeptFile: (("kept", "path", text_of), ("size", "size", size_of)),
    ShardDone: (("done", "number", size_of),),
    Note: (("note", "text", message_of),),
    Ask: (("ask", "what", _one_of("token", "renewed", "source_sas")), ("end", "end", _one_of("source", "destination"))),
    Disconnected: (("lost", "host", text_of), ("why", "why", _one_of(*WHYS)), ("seconds", "seconds", _seconds)),
    Connected: (("back", "host", text_of),),
}


def _record(values: dict[str, Any], route: Route) -> FileRecord:
    path = text_of(values, "path")
    if "code" not in values:
        from_here, to_here = is_local(route)
        source = state_of(values, "source", local=from_here)
        destination = state_of(values, "destination", local=to_here)
        return FileRecord(path, source, destination, size_of(values, "reused"), _compared_by(values))
    try:
        code = FailureCode(text_of(values, "code"))
    except ValueError as error:
        raise FormatError("there is no such failure code") from error
    hint = message_of(values, "hint") if values.get("hint") is not None else None
    return FileRecord(path, failure=FileFailure(path, code, message_of(values, "message"), hint))


def _compared_by(values: dict[str, Any]) -> str:
    found = values.get("compared_by", "")
    if not isinstance(found, str) or not _COMPARED_BY.fullmatch(found):
        raise FormatError("compared_by is no checksum")
    return found


def record_body(answers: Iterable[Answer]) -> bytes:
    """The document with these answers."""
    return "".join(f"{answer_line(each)}\n" for each in (Ready(), *answers)).encode()


def read_body(body: bytes, route: Route) -> list[Answer]:
    """The answers in a document. Raises ``FormatError``."""
    return [read_answer(line, route) for line in body.decode("utf-8", "replace").splitlines()]
