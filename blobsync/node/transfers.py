"""Downloads and uploads on a node, as ``d`` and ``u`` do on a workstation.

With the same survey, decisions, engine and account: every file is checked by size and MD5, appears whole, is retried
for the same reasons and fails with the same codes; unchanged files of an earlier attempt are kept. The index is beside
the job's root.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import Event, Note, Phase
from blobsync.base.file_states import LocalState
from blobsync.base.formatting import count_text, printable, size_text
from blobsync.base.locations import LocalLocation, at_and_above
from blobsync.direct.circuit_breaker import was_tried
from blobsync.direct.engine import DirectEngine
from blobsync.jobspec.spec import FolderLink
from blobsync.keep.checkpoint_sets import FileSet
from blobsync.keep.round_plan import PlannedRound, changed_pairs, forget_replaced, plan_round
from blobsync.keep.set_uploads import Uploaded
from blobsync.local.disks import LocalDisks
from blobsync.local.index import Index, PairIndex
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.names import local_problem
from blobsync.local.os_errors import raise_unless_gone
from blobsync.local.resume_records import BlockJournal
from blobsync.local.tree import ignores_case
from blobsync.node.job import NodeJob
from blobsync.node.ranks import NotReadyError
from blobsync.plan.blocks import partial_uploads
from blobsync.plan.decisions import check_names, decide_all
from blobsync.plan.disk_space import WrittenHere, lacking_room
from blobsync.plan.failure_groups import whole_message
from blobsync.plan.name_clashes import Names
from blobsync.plan.pairing import is_as_recorded
from blobsync.plan.progress import ProgressCounter
from blobsync.plan.project_context import LivePart, OpenedParts, direct_plan
from blobsync.plan.survey import Request, survey
from blobsync.plan.transfer_options import TransferOptions, ignored_by
from blobsync.plan.transfer_plan import (
    NO_ATTRIBUTES,
    Action,
    FileAction,
    IndexKey,
    KeptAttributes,
    Part,
    Route,
    Shape,
)
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import Engines

_DOWN = TransferOptions(engine="direct", compare_content=True)
# In a root of our own, a file that differs is left from a killed attempt.
_DOWN_ANEW = _DOWN._replace(overwrite=True)
# A job may write its output folder: files of the same names from other runs are replaced.
_UP = TransferOptions(engine="direct", overwrite=True)
# The log lists at most so many failures.
_LOGGED_FAILURES = 20

Wanted = Callable[[str], bool]


class NodeProgress:
    """Notes of transfers go to the node's log; of what comes to the node it counts files and bytes."""

    def __init__(self, job: NodeJob) -> None:
        self._job = job
        self.begin("")

    def begin(self, name: str) -> None:
        """What comes from now on."""
        self._name, self._counter = name, ProgressCounter()

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._job.say(event.text)
        # While it verifies, the numbers of the moves stay.
        if not (isinstance(event, Phase) and event.name == "verifying"):
            self._counter.emit(event)

    @property
    def text(self) -> str:
        """How far it is: ``data: 1,200 of 5,000 files, 1.2 GB of 4 GB``; empty: nothing has begun."""
        name, now = self._name, self._counter.snapshot()
        if now.files_expected:
            files = f"{now.files:,} of {count_text(now.files_expected, 'file')}"
            return f"{name}: {files}, {size_text(now.bytes)} of {size_text(now.bytes_expected)}"
        return f"{name}: {now.looked:,} names listed" if now.looked else name


class NodeTransfers:
    """Transfers of one node for its job."""

    def __init__(self, job: NodeJob, disks: LocalDisks = LocalDisks()) -> None:  # noqa: B008 - it is frozen
        self._job = job
        self._disks = disks
        self._index = Index(job.beside("index.sqlite"), job.say)
        self._journal = BlockJournal(job.beside("blocks.sqlite"), job.say)
        self._engines = Engines({"direct": partial(DirectEngine, journal=self._journal)})
        self.progress = NodeProgress(job)
        self._down = _DOWN if job.in_place else _DOWN_ANEW

    def close(self) -> None:
        """Close the index and the journal of blocks."""
        self._index.close()
        self._journal.close()

    def download(
        self,
        name: str,
        remote: OpenBlob,
        local: Path,
        below: str = "",
        wanted: Wanted | None = None,
        ignore: Sequence[str] = (),
        kept: KeptAttributes = NO_ATTRIBUTES,
    ) -> None:
        """Download a blob, or a folder of blobs, to ``local``.

        Only what is ``below``, only ``wanted`` paths, and none that match a pattern of ``ignore``. ``name`` is its name
        in messages and records. Raises ``NothingMatchedError`` if nothing is there, ``NotReadyError`` if the disk has
        too little free space or not all files arrived.
        """
        began = time.monotonic()
        source, target = OpenBlob(remote.store, remote.at(below)), local / below
        shown = f"{name}/{below}" if below else name
        self.progress.begin(shown)
        key = _key(name, remote, below)
        part: LivePart = Part(shown, Route.DOWNLOAD, source, LocalLocation(target), key, kept=kept)
        links = LinkPolicy("follow", os.path.realpath(target), shown)
        records = self._index.pair(*part.key.roots)
        ignored = ignored_by([(below, ignore)])
        request = Request(part, links, records, wanted=wanted, compare_content=True, ignored=ignored)
        looked = survey(request, self.progress.emit)
        actions, extras = decide_all(looked.pairs, Route.DOWNLOAD, self._down, shown=shown)
        rule = _name_rule(looked.shape, target)
        check_names(actions, [*extras, *looked.not_chosen], shown, rule, one_case=ignores_case(target))
        self._demand_room(shown, Names(os.path.realpath(target), looked.followed), actions)
        part = replace(part, shape=looked.shape, actions=actions)
        result = self._carry_out(part, self._down, (*looked.unreadable, *looked.blocked))
        seconds = time.monotonic() - began
        for warning in looked.warnings[:_LOGGED_FAILURES]:
            self._job.say(warning)
        self._job.say(
            f"{shown}: {count_text(len(actions), 'file')}, {result.bytes_transferred:,} bytes in {seconds:.1f} s"
        )
        self._demand_all(result)

    def drop_unrecorded(self, name: str, remote: OpenBlob, local: Path) -> None:
        """Remove the files at ``local`` that were not downloaded there, or have changed since.

        Raises ``LocalFileError`` if not all of it can be looked at.
        """
        key = _key(name, remote)
        folders = os.walk(local, onerror=raise_unless_gone)
        there = [Path(folder, file) for folder, _, files in folders for file in files]
        states = {path.relative_to(local).as_posix(): LocalState.of(path.lstat()) for path in there}
        part: LivePart = Part(name, Route.UPLOAD, LocalLocation(local), remote, key)
        for pair in changed_pairs(part, states, self._index.pair(*key.roots)):
            (local / pair.path).unlink()

    def upload(
        self,
        entry: FolderLink,
        base: Path,
        files: Mapping[str, LocalState],
        destination: OpenBlob,
        marked: Callable[[], Collection[str]],
    ) -> tuple[FileFailure, ...]:
        """Upload those of ``files`` (paths below ``base`` with their states) that the container does not have.

        What is ``marked`` there, a path or all below it, is not replaced. Returns the failures, which are also logged.
        """
        key = _key(entry.name, destination)
        part: LivePart = Part(entry.name, Route.UPLOAD, LocalLocation(base), destination, key, kept=kept_of(entry))
        records = self._index.pair(*key.roots)
        planned = _sparing(entry.name, plan_round(part, files, records, _UP, self.progress.emit), records, marked)
        return self._send(part, base, planned, _UP)

    def upload_set(
        self, entry: FolderLink, one: FileSet, local: Path, destination: OpenBlob, *, cap_mbps: float | None
    ) -> Uploaded:
        """Upload the files of a set that lies at ``local``. Returns failures, and the ETags of what is verified."""
        name, options = f"{entry.name}/{one.name}", _UP._replace(cap_mbps=cap_mbps)
        key, shape = _key(name, destination), Shape.FILE if one.is_file else Shape.FOLDER
        kept = kept_of(entry)
        part: LivePart = Part(name, Route.UPLOAD, LocalLocation(local), destination, key, shape=shape, kept=kept)
        records = self._index.pair(*key.roots)
        forget_replaced(part, one.files, records, self.progress.emit)
        planned = plan_round(part, one.files, records, options, self.progress.emit)
        missed = self._send(part, local, planned, options)
        known = records.get(list(one.files))
        sure = {path: known[path].remote.etag for path in known if is_as_recorded(one.files[path], known[path].near)}
        return Uploaded(missed, sure)

    def _send(
        self, part: LivePart, base: Path, planned: PlannedRound, options: TransferOptions
    ) -> tuple[FileFailure, ...]:
        """Upload what a round has planned; of large files the blocks that the service does not have.

        Returns the failures, which are also logged. Files that the program removed meanwhile did not fail.
        """
        blocks = partial_uploads(part, planned.actions, self._journal)
        for warning in blocks.warnings:
            self._job.say(warning)
        result = self._carry_out(replace(part, actions=blocks.actions), options, planned.misnamed)
        missed = tuple(each for each in result.failures if os.path.lexists(base / each.path[len(part.path) + 1 :]))
        for failure in missed[:_LOGGED_FAILURES]:
            self._job.say(f"upload of {failure_line(failure)}")
        return missed

    def _carry_out(self, part: LivePart, options: TransferOptions, unseen: tuple[FileFailure, ...]) -> TransferResult:
        plan = direct_plan(self._job.spec.cluster, [part], options, "nodes have no other engine", unseen)
        return carry_out(plan, OpenedParts([part], self._index), self._engines, self.progress, None)

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
            self._job.say(failure_line(failure))
        if failures:
            shown, count = result.plan.paths[0], len(result.plan.parts[0].actions)
            raise NotReadyError(
                f"{shown}: {len(failures):,} of {count:,} files did not arrive; the first: {failure_line(failures[0])}"
            )


def _sparing(
    name: str, planned: PlannedRound, records: PairIndex, marked: Callable[[], Collection[str]]
) -> PlannedRound:
    """The round without what would replace a file of a marked set, which fails. What this job wrote itself is none."""
    replaced = [each.path for each in planned.actions if each.destination is not None]
    replaced = [path for path in replaced if path not in records.get(replaced)]
    taken = frozenset(marked()) if replaced else frozenset[str]()
    spared = {path: min(own) for path in replaced if (own := taken.intersection(at_and_above(path)))}
    failures = [
        FileFailure(
            f"{name}/{path}",
            FailureCode.CONFLICT,
            f"{name}/{path} is left alone: another job has marked the checkpoint {own} in the container",
            "output: per_job gives each job a folder of its own",
        )
        for path, own in spared.items()
    ]
    actions = tuple(each for each in planned.actions if each.path not in spared)
    return PlannedRound(actions, (*planned.misnamed, *failures))


def _key(name: str, remote: OpenBlob, below: str = "") -> IndexKey:
    return IndexKey(LocalLocation(Path(name)), remote.location, below)


def kept_of(entry: FolderLink) -> KeptAttributes:
    """What a folder keeps of its files besides their content."""
    return KeptAttributes(entry.modes, entry.times)


def failure_line(failure: FileFailure) -> str:
    """The failure in one line of a log."""
    return printable(f"{whole_message(failure)} ({failure.code}){f'; {failure.hint}' if failure.hint else ''}")


def _name_rule(shape: Shape, target: Path) -> Callable[[str], str | None]:
    if shape is Shape.FILE:
        return lambda name: local_problem(target.name, str(target.parent))
    return lambda name: local_problem(name, str(target))
