"""The plan of a transfer: a ``TransferPlan`` with an action for each file; printed, saved, compared, carried out later.

The planner creates plans, ``transfer`` carries them out, nothing else changes them. Few actions stay in memory, many
are on the disk.
"""

import enum
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import reduce
from itertools import islice
from operator import eq
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from blobsync.base.errors import (
    DiskTooSmallError,
    FailureCode,
    FileFailure,
    MirrorRefusedError,
    PlanError,
    TrashTooSmallError,
    UndoImpossibleError,
)
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.formatting import count_text
from blobsync.base.locations import SOURCE_OPTION, BlobContainer, BlobLocation, Location, below, is_given
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple, dataclass
from blobsync.local.sorted_runs import IN_MEMORY, Packing, ReadInOrder, Row, Spill, Spool, pack_state, unpack_state
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.wildcards import is_pattern

if TYPE_CHECKING:
    # Few plans are spread.
    from blobsync.plan.spreading import SpreadPlan

CONFLICT_HINT = "choose with --keep local, remote or both, or with --overwrite"
_DIFF_HINT = f"'blobsync diff PATH' shows how the two differ; {CONFLICT_HINT}"
_NO_MD5_HINT = "--compare-content compares the content; or choose with --keep"
# Conflicts of a large plan that are named.
NAMED_CONFLICTS = 10_000


class Direction(str, enum.Enum):
    """The direction of a command: ``u`` to the cluster's container, ``d`` to this machine."""

    UP = "u"
    DOWN = "d"


class Route(str, enum.Enum):
    """The kinds of source and destination."""

    UPLOAD = "upload"
    DOWNLOAD = "download"
    SAME_ACCOUNT = "same-account"
    CROSS_ACCOUNT = "cross-account"

    @property
    def direction(self) -> Direction:
        """The direction of the command that uses this route."""
        return Direction.DOWN if self is Route.DOWNLOAD else Direction.UP

    @property
    def opposite(self) -> "Route":
        """The opposite route."""
        return {Route.UPLOAD: Route.DOWNLOAD, Route.DOWNLOAD: Route.UPLOAD}.get(self, self)


class Shape(str, enum.Enum):
    """Whether a PATH is a file or a folder."""

    FILE = "file"
    FOLDER = "folder"


class Action(str, enum.Enum):
    """What happens to a file. ``TRANSFER`` is shown as upload, download or copy, by the route; ``ADOPT`` is the
    opposite: the source receives the destination's version."""

    TRANSFER = "transfer"
    ADOPT = "adopt"
    DELETE = "delete"
    UNCHANGED = "unchanged"
    NEWER_AT_DESTINATION = "newer_at_destination"
    CONFLICT = "conflict"
    SKIP = "skip"


class FileAction(NamedTuple):
    """The decision about a file.

    ``path`` is relative to the part's two ends, ``""`` for a part of shape file. ``source`` and ``destination`` are the
    states of each side when the plan was made, None if missing, and None for files that the index already has as equal.
    ``aside`` is the name beside the file under which the destination's version stays (``--keep both``). ``target`` is
    the name that an engine writes to if it differs from ``path``; plans have none. ``on_record`` bytes were left there
    by an unfinished run. ``delta``: the destination is a verified version that this project wrote in blocks; equal
    blocks are reused.
    """

    path: str
    action: Action
    reason: Reason
    size: int
    source: FileState | None = None
    destination: FileState | None = None
    target: str | None = None
    aside: str | None = None
    on_record: int = 0
    delta: bool = False

    def __repr__(self) -> str:
        return f"<FileAction {self.path!r}: {self.action.value}, {self.reason.value}, {self.size:,} bytes>"


class MovingFiles(NamedTuple):
    """The number of files that move, their bytes, and those of the largest."""

    files: int = 0
    size: int = 0
    largest: int = 0

    def with_sizes(self, sizes: Sequence[int]) -> "MovingFiles":
        """With more files, of these sizes."""
        return MovingFiles(self.files + len(sizes), self.size + sum(sizes), max(self.largest, max(sizes, default=0)))

    def and_also(self, other: "MovingFiles") -> "MovingFiles":
        """Both together."""
        return MovingFiles(self.files + other.files, self.size + other.size, max(self.largest, other.largest))


class Totals:
    """The totals of some actions.

    ``counts`` and ``sizes`` (bytes) are by action. ``moving`` are the files that are transferred or adopted, ``aside``
    the versions that are kept under another name. ``on_record`` bytes are already at the destination; ``spared`` and
    ``spared_files`` include blocks that may be reused.
    """

    def __init__(self) -> None:
        self.counts: Counter[Action] = Counter()
        self.sizes: Counter[Action] = Counter()
        self.moving = MovingFiles()
        self.aside = MovingFiles()
        self.on_record = 0
        self.spared = 0
        self.spared_files = 0

    def add(self, actions: Sequence[FileAction]) -> None:
        """Add actions."""
        for kind in Action:
            sizes = [action.size for action in actions if action.action is kind]
            if sizes:
                self.counts[kind] += len(sizes)
                self.sizes[kind] += sum(sizes)
                if kind in _MOVES:
                    self.moving = self.moving.with_sizes(sizes)
        versions = [action.destination for action in actions if action.aside]
        self.aside = self.aside.with_sizes([version.size for version in versions if version is not None])
        for action in actions:
            if action.delta or action.on_record:
                self.on_record += action.on_record
                self.spared_files += 1
                self.spared += action.size if action.delta else action.on_record

    def volume(self, *, both_ends: bool) -> MovingFiles:
        """The files that will move. ``both_ends``: a version that is set aside is brought to the source's end, too."""
        return self.moving.and_also(self.aside) if both_ends else self.moving

    def and_also(self, other: "Totals") -> "Totals":
        """Both together."""
        both = Totals()
        both.counts = self.counts + other.counts
        both.sizes = self.sizes + other.sizes
        both.moving = self.moving.and_also(other.moving)
        both.aside = self.aside.and_also(other.aside)
        both.on_record = self.on_record + other.on_record
        both.spared = self.spared + other.spared
        both.spared_files = self.spared_files + other.spared_files
        return both


_MOVES = (Action.TRANSFER, Action.ADOPT)


class Actions(ReadInOrder[FileAction]):
    """The actions of a part in the order of their paths: few in memory, many on the disk.

    Written once, then read any number of times.
    """

    def __init__(self, spill: Spill = IN_MEMORY, *, on_disk: bool = False) -> None:
        self._spill = spill
        self._rows = Spool(spill, PACKED_ACTION, on_disk=on_disk)
        self.totals = Totals()

    @property
    def is_on_disk(self) -> bool:
        """Whether memory does not hold them."""
        return self._rows.is_on_disk

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._rows.size

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[FileAction]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        """Compare the actions, wherever they are stored; a tuple of the same ones is equal, too."""
        if not isinstance(other, (Actions, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(len(self))

    def extend(self, actions: Sequence[FileAction]) -> None:
        """Add actions, whose paths come after the present ones."""
        self._rows.extend(actions)
        self.totals.add(actions)

    def replaced(self, actions: Iterable[FileAction]) -> "Actions":
        """The same files with these actions."""
        other = Actions(self._spill, on_disk=self.is_on_disk)
        for batch in batches_of(actions, self._spill.batch):
            other.extend(batch)
        return other

    @property
    def batch(self) -> int:
        """The number of actions to carry out at a time: all if they are in memory."""
        return self._spill.batch if self.is_on_disk else max(1, len(self))


def actions_of(actions: Sequence[FileAction]) -> Actions:
    """``actions`` with their totals."""
    if isinstance(actions, Actions):
        return actions
    found = Actions()
    found.extend(actions)
    return found


def batches_of(actions: Iterable[FileAction], size: int) -> Iterator[tuple[FileAction, ...]]:
    """``actions`` in tuples of ``size``; the last one may be shorter."""
    rest = iter(actions)
    while batch := tuple(islice(rest, size)):
        yield batch


_ACTIONS = tuple(Action)
_REASONS = tuple(Reason)
_NUMBER_OF_ACTION = {action: number for number, action in enumerate(_ACTIONS)}
_NUMBER_OF_REASON = {reason: number for number, reason in enumerate(_REASONS)}


def _pack(action: FileAction) -> Row:
    """The action as plain values. Plans have no ``target``."""
    return (
        action.path,
        _NUMBER_OF_ACTION[action.action],
        _NUMBER_OF_REASON[action.reason],
        action.size,
        pack_state(action.source),
        pack_state(action.destination),
        action.aside,
        action.on_record,
        action.delta,
    )


def _unpack(row: Row) -> FileAction:
    path, action, reason, size, source, destination, aside, on_record, delta = row
    return FileAction(
        path,
        _ACTIONS[action],
        _REASONS[reason],
        size,
        unpack_state(source),
        unpack_state(destination),
        None,
        aside,
        on_record,
        delta,
    )


PACKED_ACTION = Packing(_pack, _unpack)


class IndexKey(NamedTuple):
    """The place of a part's records in the index: two roots, and the part's path below both."""

    near: Location
    remote: Location
    path: str

    @property
    def roots(self) -> tuple[str, str]:
        """Both roots as text, as the index has them."""
        return str(self.near), str(self.remote)

    def at(self, relative: str) -> str:
        """The path of a file of the part below the roots."""
        return below(self.path, relative)

    def each_at(self, relatives: Iterable[str]) -> list[str]:
        """:meth:`at` of each."""
        start = f"{self.path}/" if self.path else ""
        return [start + each if each else self.path for each in relatives]


_E = TypeVar("_E", covariant=True)
_F = TypeVar("_F")


class KeptAttributes(NamedTuple):
    """What a folder entry keeps of its files besides their content: executable bits, times."""

    modes: bool = False
    times: bool = False


NO_ATTRIBUTES = KeptAttributes()


@dataclass(frozen=True, repr=False)
class Part(Generic[_E]):
    """One PATH of the command, or what a nested folder entry maps elsewhere: its two ends and the action for each file.
    Planning creates it; the transfer and its result use it.

    A plan has it with plain ends (``PlanPart``: no secrets, nothing open); the survey and the transfer with its stores
    (``LivePart``). ``path`` is what a user would type from the project's root (``data/voc20``), ``key`` its place in
    the index. ``shape`` and ``actions`` come from the survey. ``whole``: every file of the source folder is
    transferred, so that an engine may transfer the folder as such. ``kept``: see ``KeptAttributes``.
    """

    path: str
    route: Route
    source: _E
    destination: _E
    key: IndexKey
    shape: Shape = Shape.FOLDER
    actions: Sequence[FileAction] = ()
    whole: bool = False
    kept: KeptAttributes = NO_ATTRIBUTES

    def __repr__(self) -> str:
        return f"<Part {self.path!r}: {self.shape.value}, {len(self.actions):,} actions>"

    def between(self, source: _F, destination: _F) -> "Part[_F]":
        """The same part with these ends."""
        return Part(
            *(self.path, self.route, source, destination, self.key, self.shape, self.actions, self.whole, self.kept)
        )

    def turned_round(self, actions: Iterable[FileAction] = ()) -> "Part[_E]":
        """The part in the opposite direction, for these files."""
        back = replace(self, source=self.destination, destination=self.source, route=self.route.opposite)
        return replace(back, actions=tuple(actions), whole=False)

    def shown(self, action: FileAction) -> str:
        """The file of ``action`` as a user would type it."""
        return below(self.path, action.path)

    def shown_aside(self, action: FileAction) -> str:
        """The name aside as a user would type it."""
        folder = self.shown(action).rpartition("/")[0]
        return below(folder, action.aside or "")


PlanPart: TypeAlias = Part[Location]


@dataclass(frozen=True)
class EngineChoice:
    """``name`` is ``azcopy``, ``direct`` or ``relay``; ``why`` is one sentence for the user.

    The seconds are the model's estimates (``engine_model``), None without one. They come from measured times, as may be
    the sentence: choices of the same engine are equal.
    """

    name: str
    why: str = field(compare=False)
    direct_seconds: float | None = field(default=None, compare=False)
    azcopy_seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ProcessChoice:
    """The number of processes; ``why`` is one sentence for the user."""

    count: int
    why: str


@dataclass(frozen=True, repr=False)
class TransferPlan:
    """Everything that a command will do. Made by ``planner``, carried out by ``transfer``.

    ``paths`` are the PATHs as given from the project's root, so that a saved plan can be made again and compared before
    it is applied. ``unreadable`` are the paths of the source that could not be read. ``extras`` counts files that only
    the destination has, ``ignored`` those that a folder entry ignores. ``refusals`` say why the plan can be looked at,
    but not carried out (``--mirror`` would delete too much, a disk is too small). ``undoes`` is the id of the
    run that the plan takes back.
    """

    route: Route
    cluster: str
    from_cluster: str | None
    paths: tuple[str, ...]
    options: TransferOptions
    parts: tuple[PlanPart, ...]
    engine: EngineChoice
    processes: ProcessChoice = ProcessChoice(1, "nothing asks for more")
    spread: "SpreadPlan | None" = None
    warnings: tuple[str, ...] = ()
    unreadable: tuple[FileFailure, ...] = ()
    extras: int = 0
    ignored: int = 0
    refusals: tuple[FileFailure, ...] = ()
    undoes: str = ""
    created_at: float = field(default=0.0, compare=False)

    @property
    def is_selective(self) -> bool:
        """Whether patterns may leave out files of its parts."""
        by_path = self.options.wildcards and any(map(is_pattern, self.paths))
        return by_path or bool(self.options.include or self.options.exclude)

    @property
    def is_large(self) -> bool:
        """Whether some of its actions are on the disk."""
        return any(actions_of(part.actions).is_on_disk for part in self.parts)

    def each(self) -> Iterator[tuple[PlanPart, FileAction]]:
        """Every file of every part, in order."""
        for part in self.parts:
            for action in part.actions:
                yield part, action

    @property
    def _totals(self) -> Totals:
        return totals_of(self.parts)

    def count(self, kind: Action) -> int:
        """The number of files with this action."""
        return self._totals.counts[kind]

    def size(self, kind: Action) -> int:
        """The bytes of the files with this action."""
        return self._totals.sizes[kind]

    def parts_with(self, kind: Action) -> list[PlanPart]:
        """The parts with files that get this action."""
        return [part for part in self.parts if totals_of([part]).counts[kind]]

    @property
    def written_over(self) -> dict[BlobContainer, bool]:
        """The containers in which blobs are replaced or deleted; True: some are replaced."""
        found: dict[BlobContainer, bool] = {}
        for part in self.parts:
            counts, end = totals_of([part]).counts, part.destination
            if not isinstance(end, BlobLocation) or not (counts[Action.TRANSFER] or counts[Action.DELETE]):
                continue
            doomed = {each.action for each in part.actions if each.destination is not None}
            if Action.TRANSFER in doomed:
                found[end.container] = True
            elif Action.DELETE in doomed:
                found.setdefault(end.container, False)
        return found

    @property
    def conflicts(self) -> tuple[FileFailure, ...]:
        """The files that are left alone because both sides changed.

        For a large plan these are the first ones, and one line for all others.
        """
        count = self.count(Action.CONFLICT)
        named = tuple(islice(conflicts_of(self.each()), min(count, NAMED_CONFLICTS) if self.is_large else count))
        if count == len(named):
            return named
        more = f"in conflict and left alone: {count_text(count - len(named), 'more file')}"
        hint = "'blobsync plan' with --json writes a file with all of them"
        return (*named, FileFailure(self.paths[0], FailureCode.CONFLICT, more, hint))

    def batches(self) -> "Iterator[TransferPlan]":
        """Smaller plans, each in memory, that together do the same, except deletions.

        A plan that is not large is its only batch.
        """
        if not self.is_large:
            yield self
            return
        for part in self.parts:
            for batch in batches_of(filter(_is_to_do, part.actions), actions_of(part.actions).batch):
                yield replace(self, parts=(replace(part, actions=batch, whole=False),), refusals=(), unreadable=())

    @property
    def command(self) -> str:
        """The words that make the same plan, without its options, from the project's root."""
        if self.undoes:
            return shlex.join(["blobsync", "undo", self.undoes, *self.paths])
        far, word = self.from_cluster, "d" if self.route is Route.DOWNLOAD else "u"
        named = far is not None and is_given(far)
        before = ["-f", far] if far is not None and not named else []
        after = [SOURCE_OPTION, far] if far is not None and named else []
        return shlex.join(["blobsync", "-c", self.cluster, *before, word, *self.paths, *after])

    def __repr__(self) -> str:
        files = count_text(self.files_to_transfer, "file")
        what = f"{files}, {self.bytes_to_transfer:,} bytes to move by {self.engine.name}"
        return f"<TransferPlan {self.route.value} {some_paths(self.paths)}: {what}>"

    def demand_allowed(self) -> None:
        """Raise ``MirrorRefusedError``, ``DiskTooSmallError``, ``TrashTooSmallError`` or ``UndoImpossibleError`` for a
        plan that must not be carried out."""
        if self.refusals:
            first = self.refusals[0]
            kinds: tuple[type[PlanError], ...] = (DiskTooSmallError, TrashTooSmallError, UndoImpossibleError)
            kind = next((kind for kind in kinds if kind.code is first.code), MirrorRefusedError)
            raise kind(first.message, hint=first.hint, path=first.path)

    @property
    def settles_both_ends(self) -> bool:
        """Whether ``--keep`` may write at the source's end, too."""
        return self.options.settles_both_ends(self.from_cluster)

    @property
    def files_to_transfer(self) -> int:
        """Files that will move, in both directions."""
        return self._volume.files

    @property
    def bytes_on_record(self) -> int:
        """Bytes of these files that are already at the destination, and are not sent again if they are correct."""
        return self._totals.on_record

    @property
    def bytes_to_transfer(self) -> int:
        """Bytes of the files that will move, including those on record."""
        return self._volume.size

    @property
    def _volume(self) -> MovingFiles:
        return self._totals.volume(both_ends=self.settles_both_ends)


def _is_to_do(action: FileAction) -> bool:
    """Whether an action changes a file or the index."""
    if action.action is Action.SKIP:
        return action.reason is Reason.KEEP_DESTINATION
    if action.action is Action.UNCHANGED:
        return action.destination is not None
    return action.action in _MOVES


def totals_of(parts: Iterable[PlanPart]) -> Totals:
    """The totals of the actions of these parts."""
    return reduce(Totals.and_also, (actions_of(part.actions).totals for part in parts), Totals())


def conflicts_of(actions: Iterable[tuple[PlanPart, FileAction]]) -> Iterator[FileFailure]:
    """The conflicts among the actions, as failures."""
    for part, action in actions:
        if action.action is Action.CONFLICT:
            said = f"left alone: {action.reason.value}"
            yield FileFailure(part.shown(action), FailureCode.CONFLICT, said, _conflict_hint(part.route, action))


def _conflict_hint(route: Route, action: FileAction) -> str:
    if action.reason is Reason.CHANGED_SINCE:
        return "it is somebody's work by now; 'blobsync history --path PATH' shows whose, if it was done from here"
    if action.reason is Reason.NOT_KEPT:
        return "if somebody has a copy of the file, upload that"
    if action.reason is Reason.ONE_FILE_HERE:
        return "replace the symlink with a separate folder or file, or --exclude one of the two names"
    # The missing MD5s are those of blobs: other tools upload large files without one.
    ends = [state for state in (action.source, action.destination) if state is not None]
    without = any(isinstance(state, RemoteState) and state.md5 is None for state in ends)
    if without and len({state.size for state in ends}) == 1:
        return _NO_MD5_HINT
    return _DIFF_HINT if route in (Route.UPLOAD, Route.DOWNLOAD) else CONFLICT_HINT


def some_paths(paths: tuple[str, ...]) -> str:
    """The first path, and the number of the others."""
    first = paths[0] if paths else "nothing"
    shown = first if len(first) <= 60 else f"...{first[-57:]}"
    return f"{shown!r}" + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")


# Route -> the word for a transfer in `plan`.
VERBS = {
    Route.UPLOAD: "upload",
    Route.DOWNLOAD: "download",
    Route.SAME_ACCOUNT: "copy",
    Route.CROSS_ACCOUNT: "copy",
}


def verb(plan: TransferPlan, action: FileAction) -> str:
    """The action as users read it: ``upload``, ``download``, ``copy``, ``delete``, ``unchanged``, ..."""
    if action.action is Action.ADOPT:
        return "download" if plan.route is Route.UPLOAD else "upload"
    return VERBS[plan.route] if action.action is Action.TRANSFER else action.action.value


def plan_record(plan: TransferPlan, part: PlanPart, action: FileAction) -> dict[str, Any]:
    """An action as JSON."""
    return (
        {
            "path": part.shown(action),
            "action": verb(plan, action),
            "reason": action.reason.value,
            "size": action.size,
        }
        | ({"aside": part.shown_aside(action)} if action.aside else {})
        | ({"on_record": action.on_record} if action.on_record else {})
        | ({"delta": True} if action.delta else {})
    )
