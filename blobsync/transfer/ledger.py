"""The ledger of a transfer: what is verified, what failed, what still has to be looked at; and its receipt.

Engines report from many threads; verified pairs go to the index while the transfer runs, so that a run
that is killed has recorded what it finished. A file that was written here is on the disk before its record: after a
power failure it could have its size and times, and zeros for content, and would be called unchanged.

A receipt is a JSON file for each transfer and removal that names what was verified and deleted, with sizes and MD5s.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from blobsync.base.errors import FailureCode, FileFailure, LocalFileError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import LocalLocation, below
from blobsync.base.plain_json import parse_object
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact_each, redact_tree
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.local.files import WaitForDisk, hash_file, wait_for_disk
from blobsync.local.index import PairIndex, Record
from blobsync.local.os_errors import LOST, local_error
from blobsync.local.sorted_runs import Spill, Spool
from blobsync.plan.pairing import source_is_near
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, Route, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import check_arrival, unreported

# A run that is killed checks the files of these last seconds again. Each write waits for the disk, and so does the
# thread that moves files: so at most this large a part of the time.
_SAVE_SECONDS = 2.0
_SAVE_SHARE = 0.05
# A file that changed this shortly before it was read may change again within the same clock tick of its file
# system, with the same size, and `stat` would not show it: such a file is read again next time.
# Linux ticks every 1 to 10 ms; file systems without fractions of a second every 1 or 2 s.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000


@dataclass(eq=False, repr=False)
class Ledger:
    """The outcome of each file of one part. ``verified`` holds moved files whose destination was seen to be right.

    A planned file is in one of ``verified``, ``pending`` and ``failures``, or nothing is known of it. A file that
    failed stays failed until it is given to an engine again. ``unplanned`` are files that engines reported although the
    plan does not name them. ``kept`` is the bytes of unfinished files that the next run continues from. ``records`` are
    those of the index between the roots of the part's key. ``now_ns`` is the clock of file times (nanoseconds since
    1970), ``steady`` a monotonic one in seconds; ``wait`` is :func:`blobsync.local.files.wait_for_disk`.
    """

    part: LivePart
    records: PairIndex
    verified: dict[str, Moved] = field(default_factory=dict)
    pending: dict[str, Moved] = field(default_factory=dict)
    failures: dict[str, FileFailure] = field(default_factory=dict)
    unplanned: dict[str, FileFailure] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    now_ns: Callable[[], int] = time.time_ns
    steady: Callable[[], float] = time.monotonic
    wait: WaitForDisk = wait_for_disk
    _planned: frozenset[str] = field(init=False)
    _unsaved: dict[str, Record] = field(default_factory=dict)
    # Files that were written here, with their paths, by the keys of their records.
    _written: dict[str, tuple[FileAction, str]] = field(default_factory=dict)
    # Blobs without an MD5, by their names in their container.
    _unsaved_crc64s: dict[str, RemoteState] = field(default_factory=dict)
    _save_at: float = field(init=False)
    _opened_ns: int = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        actions = self.part.actions
        self._planned = frozenset(action.path for action in actions if action.action is Action.TRANSFER)
        self._save_at = self.steady() + _SAVE_SECONDS
        self._opened_ns = self.now_ns()

    def moved(self, moved: Sequence[Moved]) -> list[Moved]:
        """Count files that an engine has moved; returns those that were not counted before.

        The engine's report counts only if it is the service's response.
        """
        planned = {each.action.path: each for each in moved if not self._is_unplanned(each.action)}
        left = [each for path, each in planned.items() if path not in self.verified and path not in self.failures]
        news = [each for each in left if each.action.path not in self.pending]
        unsure = {each.action.path: each for each in left if not self._saw_enough(each)}
        self.seen([(each, each.destination) for each in left if each.action.path not in unsure])
        with self._lock:
            self.pending |= unsure
        return news

    def seen(self, looked: Sequence[tuple[Moved, FileState | None]]) -> None:
        """Compare destinations that were looked at: verified, or failures."""
        verified: dict[str, Moved] = {}
        failed: dict[str, FileFailure] = {}
        for moved, destination in looked:
            action = moved.action
            source = self._read(action.path, moved.source or action.source)
            if source is not moved.source:
                moved = moved._replace(source=source)
            shown = self.part.shown(action)
            failure = check_arrival(shown, moved, destination)
            if failure is None and isinstance(source, LocalState) and source.md5 is None:
                failure = _not_the_planned_one(shown)
            if failure is not None:
                failed[action.path] = failure
            else:
                same = destination is moved.destination
                verified[action.path] = moved if same else moved._replace(destination=destination)
        with self._lock:
            for path in (*verified, *failed):
                self.pending.pop(path, None)
            self.verified |= verified
            self.failures |= failed
        self._remember([(each.action, each.source, each.destination) for each in verified.values()])

    def failed(self, action: FileAction, failure: FileFailure) -> None:
        """Count a failed file, whatever the engine reported of it before."""
        if self._is_unplanned(action):
            return
        with self._lock:
            self.pending.pop(action.path, None)
            self.verified.pop(action.path, None)
            self.failures[action.path] = failure

    def failed_by(self, actions: Iterable[FileAction], codes: Collection[FailureCode]) -> list[FileAction]:
        """The files that have failed for one of these reasons."""
        return [each for each in actions if each.path in self.failures and self.failures[each.path].code in codes]

    def unreported(self, actions: Iterable[FileAction]) -> list[FileAction]:
        """The files that no engine has reported."""
        known = self.verified.keys() | self.pending.keys() | self.failures.keys()
        return [action for action in actions if action.path not in known]

    @property
    def kept_bytes(self) -> int:
        """The bytes of unfinished files that the next run continues from."""
        there = self.verified.keys() | self.pending.keys()
        return sum(size for path, size in self.kept.items() if path not in there)

    def _is_unplanned(self, action: FileAction) -> bool:
        if action.path in self._planned:
            return False
        shown = self.part.shown(action)
        with self._lock:
            self.unplanned[action.path] = FileFailure(
                shown,
                FailureCode.NOT_PLANNED,
                f"{shown}: an engine reported it, but it is not in the plan",
                "check the destination with 'blobsync verify'; this is a bug in blobsync",
            )
        return True

    def record_unchanged(self) -> None:
        """Record pairs that were found equal by content."""
        found = [each for each in self.part.actions if each.action is Action.UNCHANGED and each.destination is not None]
        self._remember([(action, action.source, action.destination) for action in found])
        self.save()

    def record_settled(self, actions: Iterable[FileAction]) -> None:
        """Record files where the destination's version is to stay, and cannot be copied to the source: from then on
        only the destination counts as changed, until the source changes again."""
        for action in actions:
            if action.reason is not Reason.KEEP_DESTINATION:
                continue
            source = self._read(action.path, action.source)
            if source is not None:
                self._remember([(action, source, outdated(source, self.part.route))])
        self.save()

    def save(self) -> None:
        """Write what is verified to the index."""
        with self._lock:
            records, self._unsaved = self._unsaved, {}
            crc64s, self._unsaved_crc64s = self._unsaved_crc64s, {}
            written, self._written = self._written, {}
            # Other threads need not wait for this write.
            self._save_at = math.inf
        began = self.steady()
        for key in self._not_on_disk(written):
            del records[key]
        if crc64s:
            end = self._remote_end
            # Written together with the records.
            self.records.checksums(str(end.store.container)).put(crc64s)
        self.records.put(records)
        took = self.steady() - began
        self._save_at = began + max(_SAVE_SECONDS, took / _SAVE_SHARE)

    def _not_on_disk(self, written: Mapping[str, tuple[FileAction, str]]) -> Iterator[str]:
        """Wait for the disk; the keys of files that may not be there. They are compared by content next time, and what
        the disk has lost has failed."""
        errors = self.wait([file for _, file in written.values()]) if written else {}
        for key, (action, file) in written.items():
            error = errors.get(file)
            if error is None:
                continue
            yield key
            if error.errno in LOST and action.path in self._planned:
                why = local_error(error, file)
                self.failed(action, FileFailure(self.part.shown(action), why.code, why.message, why.hint))

    @property
    def _remote_end(self) -> OpenBlob:
        end = self.part.destination if source_is_near(self.part.route) else self.part.source
        assert isinstance(end, OpenBlob), "one end of every transfer is a container"
        return end

    def _saw_enough(self, moved: Moved) -> bool:
        """Whether the engine saw a destination that can be compared with the source."""
        shown, source = moved.destination, moved.source or moved.action.source
        if shown is None:
            return False
        if not isinstance(shown, RemoteState) or shown.md5 is not None:
            return True
        # The service computed no MD5: enough only if there is none to compare it with.
        return self.part.route is not Route.UPLOAD and (source is None or source.md5 is None)

    def _read(self, path: str, source: FileState | None) -> FileState | None:
        """A local source with its MD5, if the file is unchanged; an upload is compared with it, even if the engine did
        not read the file itself."""
        if not isinstance(source, LocalState) or source.md5 is not None:
            return source
        assert isinstance(self.part.source, LocalLocation)
        hashed = hash_file(self.part.source.at(path))
        return hashed if hashed is not None and hashed.same_file(source) else source

    def _remember(self, pairs: Sequence[tuple[FileAction, FileState | None, FileState | None]]) -> None:
        """Record the states of source and destination; write them if it is time to."""
        from_near, end = source_is_near(self.part.route), self.part.destination
        with self._lock:
            for action, source, destination in pairs:
                near, remote = (source, destination) if from_near else (destination, source)
                if near is None or not isinstance(remote, RemoteState):
                    continue
                if isinstance(near, LocalState) and from_near:
                    # The time of reading is not known, but it was not before this ledger was created.
                    near = _distrust_fresh(near, self._opened_ns)
                key = self.part.key.at(action.path)
                self._unsaved[key] = Record(near, remote)
                # Also one that a killed run wrote, or that was found equal.
                if isinstance(end, LocalLocation):
                    self._written[key] = action, below(str(end), action.target or action.path)
                if remote.crc64 is not None and remote.md5 is None:
                    self._unsaved_crc64s[self._remote_end.at(action.path)] = remote
            due = self.steady() >= self._save_at
        if due:
            self.save()


def record_unreported(
    part: LivePart, actions: Sequence[FileAction], records: PairIndex, stop: StopRequest = NEVER
) -> dict[str, FileState]:
    """Record files that an engine wrote without a report, because it was killed; returns their states by path.

    See :func:`blobsync.transfer.fresh_look.unreported`. Unrecorded, such a file looks like somebody else's version once
    the source changes. Uploads are left out: the content of the planned version is unknown.
    """
    found: dict[str, FileState] = {}
    if isinstance(part.source, OpenBlob):
        ledger = Ledger(replace(part, actions=tuple(actions)), records)
        for action, there in unreported(part, actions, stop):
            ledger.seen([(Moved(action), there)])
            found[action.path] = there
        ledger.save()
    return found


def _not_the_planned_one(shown: str) -> FileFailure:
    return FileFailure(
        shown,
        FailureCode.CHANGED_WHILE_READ,
        f"{shown}: the file was replaced after it was planned, so the transfer cannot be verified",
        "run the same command again",
    )


def outdated(source: FileState, route: Route) -> FileState:
    """A record of the destination that equals no present file, so that it counts as changed."""
    if source_is_near(route):
        return RemoteState(source.size, "", source.md5)
    return LocalState(source.size, -1, -1, 0, source.md5)


def _distrust_fresh(near: LocalState, read_ns: int) -> LocalState:
    last = max(near.mtime_ns, near.ctime_ns)
    tick = _COARSE_TICK_NS if near.mtime_ns % 1_000_000_000 == 0 and near.ctime_ns % 1_000_000_000 == 0 else _TICK_NS
    return replace(near, mtime_ns=0) if read_ns - last < tick else near


def retry_with(
    actions: Sequence[FileAction], states: Mapping[str, FileState | None], ours: Mapping[str, FileState]
) -> list[FileAction]:
    """The same actions with the present states of their sources; missing sources are left out. ``ours`` are what these
    actions have written at the destination already, which is to be replaced."""
    again = []
    for action in actions:
        state = states.get(action.path)
        if state is not None:
            destination = ours.get(action.path, action.destination)
            again.append(action._replace(source=state, size=state.size, destination=destination))
    return again


VERSION = 1
_KEEP = 1000
_OUR_NAME = pattern(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json")
_T = TypeVar("_T")


class Deletions(Generic[_T]):
    """Deleted files, and those of which an interrupt left it unknown: requested, but not looked at since."""

    def __init__(self, gone: Sequence[_T], unsure: Sequence[_T]) -> None:
        self.gone: Final = gone
        self.unsure: Final = unsure


class CollectedReceipts:
    """A transfer's receipt before it is written: the last batch is in memory, earlier ones on disk."""

    def __init__(self, spill: Spill) -> None:
        self._files = _Entries(spill, _file)
        self._gone = _Entries(spill, _deletion)
        self._unsure = _Entries(spill, _deletion)

    @property
    def unsure(self) -> int:
        """The number of deletions whose outcome is unknown."""
        return len(self._unsure)

    def add(self, ledgers: Sequence[Ledger], deletions: Deletions[tuple[LivePart, FileAction]]) -> None:
        """Add a batch that has ended."""
        self._files.add([(ledger.part, moved) for ledger in ledgers for moved in ledger.verified.values()])
        self._gone.add(deletions.gone)
        self._unsure.add(deletions.unsure)

    def write(
        self, folder: Path, result: TransferResult, *, interrupted: bool, wait: WaitForDisk = wait_for_disk
    ) -> Path:
        """Write the receipt of ``result`` into ``folder``, and remove all but the newest 1,000 receipts.

        Streamed: a million files need no second copy in memory. One that names deletions is on the disk then. Raises
        ``OSError``.
        """
        lists = {
            "files": iter(self._files),
            "deleted_files": iter(self._gone),
            "deletions_not_known": iter(self._unsure),
        }
        head = {**_head(result), "interrupted": interrupted}
        return _write(folder, head, lists, wait if len(self._gone) or len(self._unsure) else None)


def write_begun(folder: Path, plan: TransferPlan) -> Path:
    """Write what a run is about to replace and to delete, for who undoes one that was killed: a receipt of what is
    planned, which the run's own takes the place of. Raises ``OSError``."""

    def files(*kinds: Action) -> Iterator[dict[str, object]]:
        for part, action in plan.each():
            if action.action in kinds:
                was = action.source if action.action is Action.ADOPT else action.destination
                route = part.route.opposite if action.action is Action.ADOPT else part.route
                yield {"path": part.shown(action), "replaced": _replaced(was), "route": route.value}

    head = {**_stamp(), "route": plan.route.value, "cluster": plan.cluster, "interrupted": True}
    lists = {"planned_files": files(Action.TRANSFER, Action.ADOPT), "planned_deletions": files(Action.DELETE)}
    return _write(folder, head, lists, None)


def remove_begun(begun: Path | None) -> None:
    """Remove the record of a run that has ended with a receipt."""
    if begun is not None:
        with suppress(OSError):
            begun.unlink()


class _Entries(Generic[_T]):
    """One list of the receipt; ``form`` converts each added item to an entry."""

    def __init__(self, spill: Spill, form: Callable[[_T], dict[str, object]]) -> None:
        self._earlier = Spool(spill, on_disk=True)
        self._latest: Sequence[_T] = ()
        self._form = form

    def __len__(self) -> int:
        return len(self._earlier) + len(self._latest)

    def add(self, things: Sequence[_T]) -> None:
        for each in self._latest:
            self._earlier.append(self._form(each))
        self._latest = things

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield from self._earlier
        yield from map(self._form, self._latest)


def write_removal(
    folder: Path,
    cluster: str,
    places: Sequence[str],
    deletions: Deletions[tuple[str, BlobInfo]],
    failures: Sequence[FileFailure],
    *,
    interrupted: bool = False,
    wait: WaitForDisk = wait_for_disk,
) -> Path:
    """Write the receipt of an ``rm``, which is on the disk then; ``places`` are the URLs it was given. Raises
    ``OSError``."""
    head: dict[str, object] = {
        **_stamp(),
        "route": "rm",
        "cluster": cluster,
        "places": list(places),
        "deleted": len(deletions.gone),
        "failed": len(failures),
        "failures": _failed(failures),
        "interrupted": interrupted,
    }

    def entries(found: Iterable[tuple[str, BlobInfo]]) -> Iterator[dict[str, object]]:
        return (_deleted(shown, blob) for shown, blob in found)

    lists = {"deleted_files": entries(deletions.gone), "deletions_not_known": entries(deletions.unsure)}
    return _write(folder, head, lists, wait)


def _write(
    folder: Path,
    head: Mapping[str, object],
    lists: Mapping[str, Iterator[dict[str, object]]],
    wait: WaitForDisk | None,
) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = folder / f"{stamp}-{os.urandom(4).hex()}.json"
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(json.dumps(redact_tree(head), indent=1)[:-2])
        for name, entries in lists.items():
            out.write(f',\n "{name}": [')
            for count, some in enumerate(redact_each(entries)):
                # A line for each: in a text a quote is escaped, so that this is only between two of them.
                lines = json.dumps(some)[1:-1].replace('}, {"', '},\n  {"')
                out.write(("," if count else "") + f"\n  {lines}")
            out.write("\n ]")
        out.write("\n}\n")
    os.replace(part, file)
    # Nothing else knows what was deleted.
    if wait and (error := wait([str(file), str(folder)]).get(str(file))):
        raise error
    ours = sorted(path for path in folder.glob("*.json") if _OUR_NAME.fullmatch(path.name))
    for old in ours[:-_KEEP]:
        old.unlink(missing_ok=True)
    return file


def read_receipt(folder: Path, name: str) -> dict[str, Any] | None:
    """Read a receipt; None if the file does not exist any more. Raises ``LocalFileError``."""
    if not _OUR_NAME.fullmatch(name):
        return None
    file = folder / name
    try:
        found = parse_object(file.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LocalFileError(f"the receipt {file} cannot be read: {error}", path=str(file)) from error
    return found


def upload_receipt(file: Path, end: OpenBlob) -> str:
    """Upload a receipt beside the data that it describes, as ``<folder or file>.receipts/<name>``.

    Returns the blob's URL. Raises what the store raises.
    """
    body = file.read_bytes()
    name = f"{end.name}.receipts/{file.name}"
    properties = BlobProperties(content_type="application/json")
    end.store.put(name, body, md5=hashlib.md5(body).digest(), properties=properties)
    return str(end.store.container.child(name))


def _stamp() -> dict[str, object]:
    return {"blobsync_receipt": VERSION, "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def _head(result: TransferResult) -> dict[str, object]:
    plan = result.plan
    return {
        **_stamp(),
        "route": plan.route.value,
        "cluster": plan.cluster,
        "from_cluster": plan.from_cluster,
        "engine": plan.engine.name,
        "parts": [
            {"path": part.path, "source": str(part.source), "destination": str(part.destination)} for part in plan.parts
        ],
        "transferred": result.transferred,
        "verified": result.verified,
        "unchanged": plan.count(Action.UNCHANGED),
        "deleted": result.deleted,
        "conflicts": plan.count(Action.CONFLICT),
        "failed": len(result.failures),
        "bytes_transferred": result.bytes_transferred,
        "bytes_reused": result.bytes_reused,
        "not_compared": result.not_compared,
        "seconds": round(result.seconds, 3),
        "failures": _failed(result.failures),
    }


def _failed(failures: Iterable[FileFailure]) -> list[dict[str, object]]:
    return [{"path": failure.path, "code": failure.code, "message": failure.message} for failure in failures]


def _file(verified: tuple[LivePart, Moved]) -> dict[str, object]:
    part, moved = verified
    return {
        "path": part.shown(moved.action),
        "size": moved.action.size if moved.source is None else moved.source.size,
        "md5": _md5(moved.source, moved.destination),
        "etag": moved.destination.etag if isinstance(moved.destination, RemoteState) else None,
        "replaced": _replaced(moved.action.destination),
        "route": part.route.value,
        **({"compared_by": moved.compared_by} if moved.compared_by else {}),
    }


def _deletion(deleted: tuple[LivePart, FileAction]) -> dict[str, object]:
    part, action = deleted
    return {**_deleted(part.shown(action), action.destination or action), "route": part.route.value}


def _replaced(was: FileState | None) -> dict[str, object] | None:
    """The previous version at the destination; the MD5 only if it was known."""
    if was is None:
        return None
    etag = was.etag if isinstance(was, RemoteState) else None
    return {"size": was.size, "md5": was.md5.hex() if was.md5 else None, "etag": etag}


def _deleted(shown: str, was: FileState | BlobInfo | FileAction) -> dict[str, object]:
    """A file as it was before it was deleted."""
    md5 = None if isinstance(was, FileAction) else was.md5
    etag = was.etag if isinstance(was, (RemoteState, BlobInfo)) else None
    return {"path": shown, "size": was.size, "md5": md5.hex() if md5 else None, "etag": etag}


def _md5(*states: FileState | None) -> str | None:
    known = [state.md5 for state in states if state is not None and state.md5 is not None]
    return known[0].hex() if known else None
