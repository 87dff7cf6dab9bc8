"""A shard: the share of a part of a plan that one worker carries out. Does no I/O.

Its file is JSON lines without secrets, the same for a process here and for a program on another machine:

    {"blobsync_shard": 1, "number": 3, "route": "upload", "source": "/p/data", "destination": "https://...", ...}
    {"path": "a/b.jpg", "reason": "new", "size": 12, "source": {...}, "destination": null}      one line per file
    {"end": 1}                                                                                  how many there were

A file of a list of URLs has what the list says of it, ``"listed": ["https://...", "12", "sha256:5fec..."]``.

The ends in it are compared only: a worker moves files between the ends of its orders, and refuses a shard that names
others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from blobsync.base.plan_reasons import Reason
from blobsync.base.records import dataclass
from blobsync.config.source_option import listed_file, words_of
from blobsync.config.sources import ListedFile
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.spread.file_json import (
    FormatError,
    name_of,
    object_of,
    shown_name,
    size_of,
    state_json,
    state_of,
    text_of,
)
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.read_only import SourceStore

VERSION = 1

# The cost of one request besides its bytes, as bytes; and how much one request moves.
_REQUEST = 256 << 10
_PIECE = 8 << 20
# A larger shard takes too much of a worker's memory.
MOST_FILES = 5_000
# The platform may allow fewer tasks than that takes.
_MOST_OF_A_TASK = 50_000


@dataclass(frozen=True, slots=True)
class Shard:
    """Files of one part, each ``TRANSFER``. ``path`` is the part as a user would type it; the ends are strings,
    a path or a URL without SAS. ``number`` is unique in its part. ``listed``: where each file is, if the source is a
    list of URLs."""

    number: int
    route: Route
    path: str
    source: str
    destination: str
    actions: tuple[FileAction, ...]
    listed: tuple[ListedFile, ...] = ()

    @property
    def weight(self) -> int:
        """The amount of work; see :func:`weight`."""
        return sum(map(weight, self.actions))


def weight(action: FileAction) -> int:
    """The work of one file, in bytes: its size, and the cost of its requests."""
    return action.size + (1 + action.size // _PIECE) * _REQUEST


def cut(part: LivePart, actions: Sequence[FileAction], wanted: int, most_files: int = MOST_FILES) -> tuple[Shard, ...]:
    """Put every action into exactly one of about ``wanted`` shards, in order; the result is deterministic.

    No shard weighs more than an equal share plus one file, nor has more than ``most_files``. There are at least as many
    as ``wanted``, if there are as many files.
    """
    weights = [weight(action) for action in actions]
    ends = str(part.source), str(part.destination)
    edges = _edges(weights, min(wanted, len(actions)))
    runs = [
        actions[start : min(start + most_files, last)]
        for first, last in pairwise(edges)
        for start in range(first, last, most_files)
    ]
    return tuple(
        Shard(number, part.route, part.path, *ends, tuple(run), listed=_listed(part.source, run))
        for number, run in enumerate(runs)
    )


def _listed(source: OpenLocation, actions: Sequence[FileAction]) -> tuple[ListedFile, ...]:
    if not isinstance(source, OpenBlob) or not isinstance(source.store, SourceStore):
        return ()
    lines = (source.store.listed(source.at(action.path)) for action in actions)
    return tuple(line for line in lines if line is not None)


def listed_at(source: OpenBlob, shard: Shard) -> Mapping[str, ListedFile]:
    """The files of a shard by their names in ``source``, a list of URLs."""
    return {source.at(action.path): line for action, line in zip(shard.actions, shard.listed, strict=True)}


def _edges(weights: Sequence[int], wanted: int) -> list[int]:
    """The start of each of ``wanted`` runs, and the end of the last; at most as many as there are weights, which are
    above 0.

    Each takes an equal share of what the previous runs left, so that a large file makes the next runs smaller.
    """
    edges, left, taken = [0], sum(weights), 0
    for index, each in enumerate(weights):
        runs_left = wanted - len(edges) + 1
        if taken * runs_left >= left or len(weights) - index < runs_left:
            edges.append(index)
            left -= taken
            taken = 0
        taken += each
    return [*edges, len(weights)]


def shard_lines(shard: Shard) -> Iterator[str]:
    """The lines of the shard's file, without line ends."""
    head: dict[str, Any] = {"number": shard.number, "route": shard.route.value, "path": shard.path}
    yield _json({"blobsync_shard": VERSION, **head, "source": shard.source, "destination": shard.destination})
    for action, listed in zip_longest(shard.actions, shard.listed):
        line = {
            "path": action.path,
            "reason": action.reason.name,
            "size": action.size,
            "source": state_json(action.source),
            "destination": state_json(action.destination),
        }
        if action.target is not None:
            line["target"] = action.target
        if action.on_record:
            line["on_record"] = action.on_record
        if action.delta:
            line["delta"] = True
        if listed is not None:
            line["listed"] = words_of(listed)
        yield _json(line)
    yield _json({"end": len(shard.actions)})


def read_shards(lines: Iterable[str]) -> Iterator[Shard]:
    """Parse shards from lines, each as soon as its last line is there; one whose last line never comes is left out.

    Raises ``FormatError``.
    """
    values = map(object_of, lines)
    for head in values:
        if head.get("blobsync_shard") != VERSION:
            raise FormatError(f"not a shard of version {VERSION}")
        number = size_of(head, "number")
        path, source, destination = (text_of(head, key) for key in ("path", "source", "destination"))
        try:
            route = Route(text_of(head, "route"))
        except ValueError as error:
            raise FormatError("there is no such route") from error
        actions: dict[str, FileAction] = {}
        listed: list[ListedFile] = []
        for each in values:
            if "end" in each:
                break
            _add(actions, _action(each, route))
            listed += [_line(each)] if "listed" in each else []
            if len(listed) not in (0, len(actions)):
                raise FormatError("not every file is in the list")
        else:
            return
        if size_of(each, "end") != len(actions):
            raise FormatError("lines of the shard are missing")
        if "" in actions and len(actions) > 1:
            raise FormatError("one file is the part itself, and others are in it")
        yield Shard(number, route, path, source, destination, tuple(actions.values()), tuple(listed))


def _add(actions: dict[str, FileAction], action: FileAction) -> None:
    if len(actions) >= _MOST_OF_A_TASK:
        raise FormatError(f"a shard has more than {_MOST_OF_A_TASK:,} files")
    if action.path in actions:
        raise FormatError(f"{shown_name(action.path)} is there twice")
    actions[action.path] = action


def shard_body(shard: Shard) -> bytes:
    """The shard's file."""
    return ("\n".join(shard_lines(shard)) + "\n").encode()


def read_shard(body: bytes) -> Shard:
    """Parse a shard's file. Raises ``FormatError``."""
    for shard in read_shards(body.decode("utf-8", "replace").splitlines()):
        return shard
    raise FormatError("lines of the shard are missing")


def is_local(route: Route) -> tuple[bool, bool]:
    """Whether the source, and whether the destination of a route is local."""
    return route is Route.UPLOAD, route is Route.DOWNLOAD


def can_be_in_shard(action: FileAction, route: Route) -> bool:
    """Whether the validation would accept it: not a download of a single file, which has no name, nor a file of unknown
    state."""
    if action.source is None:
        return False
    if not action.path and action.target is None:
        return route is not Route.DOWNLOAD
    try:
        for key in ("path", *(["target"] if action.target is not None else [])):
            name_of({"path": action.path, "target": action.target}, key, local=any(is_local(route)))
    except FormatError:
        return False
    return True


def _action(values: dict[str, Any], route: Route) -> FileAction:
    from_here, to_here = is_local(route)
    near = from_here or to_here
    reason = text_of(values, "reason")
    if reason not in Reason.__members__:
        raise FormatError("there is no such reason")
    source = state_of(values, "source", local=from_here)
    if source is None:
        # A worker would move whatever has that name by now.
        raise FormatError("a file to move has no source")
    return FileAction(
        # A blob, or the file of an upload, may be the end itself.
        "" if values.get("path") == "" and not to_here else name_of(values, "path", local=near),
        Action.TRANSFER,
        Reason[reason],
        size_of(values, "size"),
        source,
        state_of(values, "destination", local=to_here),
        target=name_of(values, "target", local=near) if "target" in values else None,
        on_record=size_of(values, "on_record") if "on_record" in values else 0,
        delta=values.get("delta") is True,
    )


def _line(values: dict[str, Any]) -> ListedFile:
    words = values["listed"]
    if not isinstance(words, list) or len(words) != len(ListedFile._fields):
        raise FormatError("listed is not a URL, a size and a checksum")
    try:
        return listed_file(*(text_of({"listed": each}, "listed") for each in words))
    except ValueError as error:
        raise FormatError(f"listed: {error}") from error


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))
