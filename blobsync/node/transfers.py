"""Downloads and uploads on a node, as ``d`` and ``u`` do on a workstation.

With the same survey, decisions, engine and account: every file is checked by size and MD5, appears whole, is retried
for the same reasons and fails with the same codes; unchanged files of an earlier attempt are kept. The index is beside
the job's root.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import Event, Note
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.locations import LocalLocation
from blobsync.base.reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.direct.pool import was_tried
from blobsync.jobspec.spec import FolderLink
from blobsync.local.disks import LocalDisks
from blobsync.local.files import hash_file
from blobsync.local.index import Index, PairIndex
from blobsync.local.names import blob_problem, local_problem
from blobsync.local.tree import LinkPolicy, ignores_case
from blobsync.node.job import NodeJob
from blobsync.node.ranks import NotReadyError
from blobsync.plan.clashes import Names
from blobsync.plan.decisions import check_names, decide_all
from blobsync.plan.disk_space import WrittenHere, lacking_room
from blobsync.plan.pairing import Pair, is_as_recorded, needs_local_md5
from blobsync.plan.project_context import LivePart, without_stores
from blobsync.plan.survey import Request, survey
from blobsync.plan.transfer_options import TransferOptions, ignored_by
from blobsync.plan.transfer_plan import (
    Action,
    EngineChoice,
    FileAction,
    IndexKey,
    Part,
    PlanPart,
    Route,
    Shape,
    TransferPlan,
    TransferResult,
)
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.carry_out import Engines, carry_out
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import states_at_destination

_ENGINE = EngineChoice("direct", "nodes have no other engine")
_ENGINES = Engines({"direct": DirectEngine})
_DOWN = TransferOptions(engine="direct", compare_content=True)
# In a root of our own, a file that differs is left from a killed attempt.
_DOWN_ANEW = replace(_DOWN, overwrite=True)
# A job may write its output folder: files of the same names from other runs are replaced.
_UP = TransferOptions(engine="direct", overwrite=True)
# The log lists at most so many failures.
_LOGGED_FAILURES = 20

Wanted = Callable[[str], bool]


class _NodeListener:
    def __init__(self, job: NodeJob) -> None:
        self._job = job

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._job.say(event.text)


class NodeTransfers:
    """Transfers of one node for its job."""

    def __init__(self, job: NodeJob, disks: LocalDisks = LocalDisks()) -> None:  # noqa: B008 - it is frozen
        self._job = job
        self._disks = disks
        self._index = Index(job.beside("index.sqlite"), job.say)
        self._listener = _NodeListener(job)
        self._down = _DOWN if job.in_place else _DOWN_ANEW

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def download(
        self,
        name: str,
        remote: OpenBlob,
        local: Path,
        below: str = "",
        wanted: Wanted | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        """Download a blob, or a folder of blobs, to ``local``.

        Only what is ``below``, only ``wanted`` paths, and none that match a pattern of ``ignore``. ``name`` is its name
        in messages and records. Raises ``NothingMatchedError`` if nothing is there, ``NotReadyError`` if the disk has
        too little free space or not all files arrived.
        """
        began = time.monotonic()
        source, target = OpenBlob(remote.store, remote.at(below)), local / below
        shown = f"{name}/{below}" if below else name
        part: LivePart = Part(shown, Route.DOWNLOAD, source, LocalLocation(target), _key(name, remote, below))
        links = LinkPolicy("follow", os.path.realpath(target), shown)
        records = self._index.pair(*part.key.roots)
        ignored = ignored_by([(below, ignore)])
        request = Request(part, links, records, wanted=wanted, compare_content=True, ignored=ignored)
        looked = survey(request, self._listener.emit)
        actions, extras = decide_all(looked.pairs, Route.DOWNLOAD, self._down, shown=shown)
        rule = _name_rule(looked.shape, target)
        check_names(actions, [*extras, *looked.not_chosen], shown, rule, one_case=ignores_case(target))
        self._demand_room(shown, Names(os.path.realpath(target), looked.followed), actions)
        part = replace(part, shape=looked.shape, actions=actions)
        result = self._carry_out(part, self._down, (*looked.unreadable, *looked.blocked))
        seconds = time.monotonic() - began
        for warning in looked.warnings[:_LOGGED_FAILURES]:
            self._job.say(warning)
        self._job.say(f"{shown}: {len(actions):,} files, {result.bytes_transferred:,} bytes in {seconds:.1f} s")
        self._demand_all(result)

    def drop_unrecorded(self, name: str, remote: OpenBlob, local: Path) -> None:
        """Remove the files at ``local`` that were not downloaded there, or have changed since."""
        key = _key(name, remote)
        there = [Path(folder, file) for folder, _, files in os.walk(local) for file in files]
        states = {path.relative_to(local).as_posix(): LocalState.of(path.lstat()) for path in there}
        for pair in _changed(states, self._index.pair(*key.roots)):
            (local / pair.path).unlink()

    def upload(
        self, entry: FolderLink, base: Path, files: Mapping[str, LocalState], destination: OpenBlob
    ) -> tuple[FileFailure, ...]:
        """Upload those of ``files`` (paths below ``base`` with their states) that the container does not have.

        Returns the failures, which are also logged.
        """
        key = _key(entry.name, destination)
        misnamed = {path: why for path in files if (why := blob_problem(destination.at(path)))}
        named = {path: state for path, state in files.items() if path not in misnamed}
        pairs = _changed(named, self._index.pair(*key.roots))
        there = states_at_destination(destination, [Moved(_looked_for(pair)) for pair in pairs], self._listener.emit)
        pairs = [_with_md5(pair._replace(destination=there.get(pair.path)), base) for pair in pairs]
        actions, _ = decide_all(pairs, Route.UPLOAD, _UP, shown=entry.name)
        part: LivePart = Part(entry.name, Route.UPLOAD, LocalLocation(base), destination, key, actions=actions)
        result = self._carry_out(part, _UP, tuple(_misnamed(entry, path, why) for path, why in misnamed.items()))
        # Files that the program removed meanwhile did not fail.
        missed = [each for each in result.failures if os.path.lexists(base / each.path[len(entry.name) + 1 :])]
        for failure in missed[:_LOGGED_FAILURES]:
            self._job.say(f"upload of {_failure_line(failure)}")
        return tuple(missed)

    def _carry_out(self, part: LivePart, options: TransferOptions, unseen: tuple[FileFailure, ...]) -> TransferResult:
        plan = TransferPlan(
            route=part.route,
            cluster=self._job.spec.cluster,
            from_cluster=None,
            paths=(part.path,),
            options=options,
            parts=(without_stores(part),),
            engine=_ENGINE,
            unreadable=unseen,
            created_at=time.time(),
        )
        return carry_out(plan, _OnePart(part, self._index), _ENGINES, self._listener, None)

    def _demand_room(self, shown: str, names: Names, actions: tuple[FileAction, ...]) -> None:
        size = sum(action.size for action in actions if action.action is Action.TRANSFER)
        for lacking in lacking_room([WrittenHere(shown, names, actions)], Action.TRANSFER, size, self._disks):
            raise NotReadyError(
                f"{lacking.message} ({lacking.code})",
                hint=f"free space on {socket.gethostname()}, use nodes with a larger disk, or mount the folder",
            )

    def _demand_all(self, result: TransferResult) -> None:
        failures = sorted([*result.failures, *result.plan.conflicts], key=lambda each: not was_tried(each.message))
        for failure in failures[:_LOGGED_FAILURES]:
            self._job.say(_failure_line(failure))
        if failures:
            shown, count = result.plan.paths[0], len(result.plan.parts[0].actions)
            raise NotReadyError(
                f"{shown}: {len(failures):,} of {count:,} files did not arrive; the first: {_failure_line(failures[0])}"
            )


class _OnePart(NamedTuple):
    """The only part of a plan, which is open already."""

    part: LivePart
    known: Index

    def opened(self, part: PlanPart) -> LivePart:
        return self.part

    def records(self, key: IndexKey) -> PairIndex:
        return self.known.pair(*key.roots)


def _key(name: str, remote: OpenBlob, below: str = "") -> IndexKey:
    return IndexKey(LocalLocation(Path(name)), remote.location, below)


def _failure_line(failure: FileFailure) -> str:
    said = failure.message if failure.path in failure.message else f"{failure.path}: {failure.message}"
    line = f"{said} ({failure.code}){f'; {failure.hint}' if failure.hint else ''}"
    # Names may contain line ends and terminal escapes.
    return line if line.isprintable() else line.encode("unicode_escape").decode()


def _misnamed(entry: FolderLink, path: str, why: str) -> FileFailure:
    return FileFailure(f"{entry.name}/{path}", FailureCode.NAMES_UNSAFE, f"left out: its name {why}", "rename it")


def _name_rule(shape: Shape, target: Path) -> Callable[[str], str | None]:
    if shape is Shape.FILE:
        return lambda name: local_problem(target.name, str(target.parent))
    return lambda name: local_problem(name, str(target))


def _changed(files: Mapping[str, LocalState], records: PairIndex) -> list[Pair]:
    """A pair for each file that is not recorded as unchanged since its upload."""
    known = records.get(list(files))
    pairs = (Pair(path, state, None, known.get(path)) for path, state in files.items())
    return [pair for pair in pairs if pair.record is None or not is_as_recorded(files[pair.path], pair.record.near)]


def _looked_for(pair: Pair) -> FileAction:
    size = pair.source.size if pair.source else 0
    return FileAction(pair.path, Action.TRANSFER, Reason.NEW, size, pair.source)


def _with_md5(pair: Pair, base: Path) -> Pair:
    """The pair with the file's MD5, if only that shows whether the container has the file."""
    if not needs_local_md5(pair, Route.UPLOAD):
        return pair
    hashed: FileState | None = hash_file(base / pair.path)
    return pair if hashed is None else pair._replace(source=hashed)
