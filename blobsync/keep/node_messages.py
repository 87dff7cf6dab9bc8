"""Messages between the nodes of a job about their sets: small documents in the container, beside the marks.

    .blobsync/checkpoints/<entry path>/<lineage>/parts/<set>/announced.json     node 0: it has all of a set
    .../parts/<set>/node-1.json              node 1: its files of it, verified in the container
    .../parts/<set>/left.json                node 0, at its end: its own files; who answers last writes the mark
    .../over/<run id>.node-1.json            a node at its end: of these sets it has files, and of no other
    .../restore/<run id>.json, <run id>.node-1.json       which set all of them start from

Whoever can write to the container can write there. So a note counts with the seal of its lineage only, has a type and
bounds, names pass the gate, and what is none counts as absent. A mark that is made of notes is compared with the
container like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TypeAlias, TypeVar
from urllib.parse import quote, unquote

from blobsync.base.errors import BlobNotFoundError
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.keep.checkpoint_sets import Reach
from blobsync.keep.marks import (
    MAX_FILES,
    Documents,
    Keys,
    Mark,
    MarkedFile,
    Marks,
    demand_id,
    demand_sane_file,
    marks_folder,
)
from blobsync.local.names import local_problem
from blobsync.store.protocol import ANYTHING, BlobStore

# The year 5138.
_LATEST_SECONDS = 1e11
_MAX_SETS = 100_000


@dataclass(frozen=True, slots=True)
class Announced:
    """Node 0 takes a set for complete, and stores it under a name.

    ``reach`` is for which nodes that holds (:class:`Reach`); ``told_at`` when programs on node 0 said so, in seconds
    since 1970 (0: they did not). ``token`` tells it from what it said of the set before. ``run_id`` and ``start`` are
    the job's, and which of its starts.
    """

    set: str
    stored: str
    token: str
    reach: Reach
    told_at: float
    run_id: str
    start: str

    def demand_sane(self) -> None:
        """Raise ``ValueError`` for what no node can say."""
        _demand_names((self.set, self.stored))
        if not 0 <= self.told_at <= _LATEST_SECONDS:
            raise ValueError("its time is out of bounds")


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's files of a set, as they are in the container; ``token`` is that of what it answers, or empty: it was not
    asked, and is at its end."""

    stored: str
    token: str
    start: str
    files: tuple[MarkedFile, ...]

    def demand_sane(self) -> None:
        """Raise ``ValueError`` for what no node can say."""
        _demand_names((self.stored,))
        if len(self.files) > MAX_FILES:
            raise ValueError("it has too many files")
        for each in self.files:
            demand_sane_file(each)


@dataclass(frozen=True, slots=True)
class Over:
    """A node at its end: it has files of these ``sets`` and of no other. What it answered last of those in ``whole`` is
    what it has. ``well``: its program ended well."""

    run_id: str
    start: str
    well: bool
    sets: tuple[str, ...]
    whole: tuple[str, ...]

    def demand_sane(self) -> None:
        """Raise ``ValueError`` for what no node can say."""
        if len(self.sets) > _MAX_SETS or len(self.whole) > _MAX_SETS:
            raise ValueError("it names too many sets")


@dataclass(frozen=True, slots=True)
class Left:
    """What node 0 leaves at its end of a set that other ``nodes`` have not answered: the mark with its own files."""

    token: str
    start: str
    reach: Reach
    nodes: tuple[int, ...]
    mark: str

    def demand_sane(self) -> None:
        """Raise ``ValueError`` for what no node can say."""
        if len(self.nodes) > MAX_FILES:
            raise ValueError("it names too many nodes")
        Mark.from_json(self.mark)


@dataclass(frozen=True, slots=True)
class Choice:
    """The set that node 0 takes in the start ``attempt``, as its proposal with this ``number``; ``stored`` None: none.

    ``passed``: so many were marked, and none fits. ``agreed``: all nodes have it. Of another node: whether it has a
    ``problem`` with that proposal.
    """

    attempt: str
    number: int
    stored: str | None = None
    lineage: str = ""
    passed: int | None = None
    agreed: bool = False
    problem: bool = False

    def demand_sane(self) -> None:
        """Raise ``ValueError`` for what no node can say."""
        if not 0 <= self.number < 10**9 or not 0 <= (self.passed or 0) < 10**9:
            raise ValueError("a number is out of bounds")
        if self.stored is not None:
            _demand_names((self.stored,))


def _demand_names(names: Sequence[str]) -> None:
    for name in names:
        if why := local_problem(name):
            raise ValueError(f"the name {name!a} {why}")


Note: TypeAlias = Announced | Answer | Over | Left | Choice
T = TypeVar("T", Announced, Answer, Over, Left, Choice)

# What node 0 alone says of a set; the others' answers have their numbers.
_OF_NODE_0: Mapping[type[Note], str] = {Announced: "announced", Left: "left"}


class Notes:
    """The notes of one lineage beside the marks of a folder entry; ``warn`` is told of those that are none.

    A note is of a set, by its name, or, if it is :class:`Over` or :class:`Choice`, of a job's start, by its run id.
    """

    def __init__(self, store: BlobStore, path: str, lineage: str, warn: Callable[[str], None], keys: Keys) -> None:
        self._store, self._warn, self._lineage = store, warn, lineage
        self._documents = Documents(store, keys)
        self._folder = f"{marks_folder(path)}/{demand_id(lineage)}"
        self._warned = set[str]()

    def say(self, said: Note, of: str, node: int = 0) -> None:
        """Say something as a node."""
        self._documents.put(self._place(type(said), of, node), self._lineage, json.dumps(asdict(said)), ANYTHING)

    def said(self, kind: type[T], of: str, node: int = 0) -> T | None:
        """What a node said; None: nothing yet, or nothing that counts."""
        blob = self._place(kind, of, node)
        try:
            body = self._documents.read(blob, self._lineage).body
            if body is None:
                raise ValueError("it has no seal of this lineage")
            said = made_of(kind, parse_object(body), newer=True)
            # Not where a note is made: a set that no mark can name must not keep the others from theirs.
            said.demand_sane()
            return said
        except BlobNotFoundError:
            return None
        except ValueError as error:
            if blob not in self._warned:
                self._warned.add(blob)
                self._warn(f"{blob} is left alone: {error}")
            return None

    def ended(self, run_id: str, start: str, node: int) -> Over | None:
        """What a node said at its end; None if it is not there yet in this start."""
        said = self.said(Over, run_id, node)
        return said if said is not None and (said.run_id, said.start) == (run_id, start) else None

    def sets(self, kind: type[Announced | Left]) -> Iterator[tuple[str, str]]:
        """The sets of which node 0 has said such a thing, each with the version of that."""
        prefix = f"{self._folder}/parts/"
        for blob in self._store.list_blobs(prefix):
            quoted, _, name = blob.name[len(prefix) :].partition("/")
            if name == f"{_OF_NODE_0[kind]}.json":
                yield unquote(quoted), blob.etag

    def forget(self, name: str) -> None:
        """Remove what was said of a set."""
        prefix = f"{self._folder}/parts/{quote(name, safe='')}/"
        self._store.delete_many([blob.name for blob in self._store.list_blobs(prefix)])

    def _place(self, kind: type[Note], of: str, node: int) -> str:
        if kind is Over:
            name = f"over/{demand_id(of)}.node-{node}"
        elif kind is Choice:
            name = f"restore/{demand_id(of)}" + (f".node-{node}" if node else "")
        else:
            name = f"parts/{quote(of, safe='')}/{_OF_NODE_0.get(kind, f'node-{node}')}"
        return f"{self._folder}/{name}.json"


# -- what follows from them ------------------------------------------------------------------------------------------


class NeverError(Exception):
    """A node will not bring its files of a set any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A set whose files of other nodes are asked for: the mark with those of node 0."""

    name: str
    mark: Mark
    token: str
    start: str
    reach: Reach
    nodes: tuple[int, ...]

    def left(self) -> Left:
        """What node 0 leaves of it."""
        return Left(self.token, self.start, self.reach, self.nodes, self.mark.to_json())


def gathered(notes: Notes, asked: Asked) -> Mark | None:
    """The mark with the files of all nodes; None while one of them has not answered.

    Raises :class:`NeverError` if one never will, ``ValueError`` for a file that two of them wrote differently.
    """
    parts: list[tuple[int, Sequence[MarkedFile]]] = [(0, asked.mark.files)]
    for node in asked.nodes:
        if node:
            files = _part_of(notes, asked, node)
            if files is None:
                return None
            parts.append((node, files))
    return merged(asked.mark, parts)


def _part_of(notes: Notes, asked: Asked, node: int) -> Sequence[MarkedFile] | None:
    # In this order: what a node has answered is there before it says that it is over.
    over = notes.ended(asked.mark.run_id, asked.start, node)
    said = notes.said(Answer, asked.name, node)
    if said is not None and said.stored == asked.mark.stored:
        is_last = over is not None and asked.name in over.whole and said.start == asked.start
        if said.token == asked.token or is_last:
            return said.files
    if over is None:
        return None
    if asked.name not in over.sets and (over.well or asked.reach is Reach.ALL):
        return ()
    raise NeverError(f"node {node} ended without all its files of it")


def merged(mark: Mark, parts: Sequence[tuple[int, Sequence[MarkedFile]]]) -> Mark:
    """A mark with the files of all nodes. Raises ``ValueError`` for a file that two of them wrote differently."""
    files: dict[str, MarkedFile] = {}
    for node, listed in parts:
        for each in listed:
            known = files.setdefault(each.path, replace(each, node=node))
            if known.md5 != each.md5:
                raise ValueError(f"nodes {known.node} and {node} wrote {each.path} differently")
    return replace(mark, files=tuple(files[path] for path in sorted(files)), nodes=len(parts))


def mark_what_is_left(notes: Notes, marks: Marks, lineage: str, say: Callable[[str], None]) -> None:
    """Mark the sets that node 0 has left to others, if all nodes have answered by now."""
    waiting = [(name, said) for name, _ in list(notes.sets(Left)) if (said := notes.said(Left, name)) is not None]
    stored = {mark.stored for mark in marks.of(lineage)} if waiting else set[str]()
    for name, left in waiting:
        own = Mark.from_json(left.mark)
        if own.lineage != lineage or own.set != name or own.stored in stored:
            continue
        try:
            mark = gathered(notes, Asked(name, own, left.token, left.start, left.reach, left.nodes))
        except (NeverError, ValueError):
            continue
        if mark is not None and not marks.mismatch(mark) and marks.write(mark):
            say(f"checkpoint {mark.stored} is complete in the container: its last node has answered")
