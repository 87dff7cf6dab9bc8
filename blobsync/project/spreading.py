"""Joins a plan, the place of its shards, and the job that works there."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Any

from blobsync.base.errors import SpreadBusyError, UsageError
from blobsync.base.locations import BlobUrl
from blobsync.jobs.board import Board
from blobsync.jobs.history import JobRecord
from blobsync.jobs.spread_job import JobCrew, SpreadRequest, demand_shared
from blobsync.local.state_dir import StateDir
from blobsync.plan.project_context import LivePart, ProjectContext
from blobsync.plan.transfer_plan import Action, Route, Shape, TransferPlan
from blobsync.spread.earlier_records import EarlierBlocks, leave_blocks, merge_records, recall, record_files
from blobsync.spread.place import ContainerPlace, FolderPlace, SharedPlace
from blobsync.spread.presence import OwnerLock, Presence
from blobsync.spread.probe import OwnProbe, source_probe
from blobsync.spread.shard import cut, end_text, shard_lines
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.connect import connect
from blobsync.store.ends import LiveEnd, LocalEnd
from blobsync.store.grants import READ_FOLDER, WRITE_FOLDER
from blobsync.store.rest.store import RestBlobStore
from blobsync.transfer.carry_out import Engines

# Where the places of all transfers into a container are.
_PREFIX = ".blobsync/spread"


class Spreading:
    """One transfer over the nodes of a cluster, from the beginning of a ``with`` block to its end.

    Entering raises ``SpreadBusyError`` where somebody else spreads to the same folder.
    """

    def __init__(
        self,
        context: ProjectContext,
        state: StateDir,
        plan: TransferPlan,
        environ: Mapping[str, str],
        note: Callable[[str], None],
    ) -> None:
        if plan.spread is None:
            raise ValueError("a plan that is not spread")
        self._context = context
        self._state = state
        self._plan = plan
        self._environ = environ
        self._note = note
        self._leaving = ExitStack()
        self._parts = [context.opened(part) for part in plan.parts]
        texts = sorted(end_text(part.destination) for part in self._parts)
        self._id = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._crew: JobCrew | None = None
        self._detached = False
        self._job_lives = False
        self._first = 0
        self._blocks = EarlierBlocks()
        self._owner = ""

    def __enter__(self) -> Spreading:
        if self._plan.route in (Route.UPLOAD, Route.DOWNLOAD):
            demand_shared(self._context.cluster)
        with ExitStack() as entering:
            self._owner = entering.enter_context(OwnerLock(self._state.folder("spread") / f"{self._id}.lock"))
            self._presence = entering.enter_context(Presence(self._place, self._owner))
            self._job_lives = self._demand_no_other_job()
            entering.callback(self._remove_probes)
            self._leaving = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._leaving:
            if self._detached:
                return
            if self._crew is not None:
                self._presence.end()
                self._crew.wait()
            if error is not None:
                record_files(self._place, self._parts, self._context.records)
                leave_blocks(self._place)
            else:
                self._place.remove_all()

    def merge(self) -> bool:
        """Bring what workers of an earlier run have told to the index; whether there was anything.

        Also where nothing is left to move: what that run left at the place goes.
        """
        if self._job_lives:
            recall(self._place, self._owner)
        found = merge_records(self._place, self._parts, self._context.records)
        if found.files:
            self._note(f"{found.files:,} files were moved by an earlier run that was stopped")
        self._first, self._blocks = found.next_number, found.blocks
        return found.files > 0

    def engines(self, plan: TransferPlan, engines: Engines) -> Engines:
        """The engines of the plan, with the nodes' in the place of the direct one."""
        spread = self._plan.spread
        assert spread is not None
        if not plan.files_to_transfer:
            return engines
        request = self._request(plan)
        self._crew = JobCrew(self._board, (self._context.cluster, self._context.from_cluster), request, self._place)
        self._presence.show()
        self._place.remove("stop")
        alone = engines.make["direct"]()
        engine = SpreadEngine(
            alone,
            self._place,
            self._crew,
            spread.workers,
            first=self._first,
            range_bytes=(plan.spread or spread).range_bytes,
            earlier=self._blocks,
        )
        return engines._replace(make={**engines.make, "direct": lambda: engine})

    def submit(self, plan: TransferPlan) -> JobRecord:
        """Leave the whole plan at the place, and submit the job whose node 0 carries it out."""
        plan.demand_allowed()
        if plan.is_large:
            raise UsageError("--detach: the plan is too large for the memory of a node", hint="omit --detach")
        for part in self._parts:
            if part.route is Route.DOWNLOAD and part.shape is Shape.FILE:
                raise UsageError(
                    f"--detach: {part.path} is one file, and no node can show that it sees the disk which that goes to",
                    hint="name its folder, with --include for the file, or omit --detach",
                )
        self._place.remove_all()
        spread = self._plan.spread
        assert spread is not None
        count = 0
        for part in self._parts:
            moving = [action for action in part.actions if action.action is Action.TRANSFER]
            for shard in cut(part, moving, spread.workers) if moving else ():
                body = ("\n".join(shard_lines(replace(shard, number=count))) + "\n").encode()
                self._place.write(f"plan/{count:07}", body)
                count += 1
        crew = JobCrew(
            self._board, (self._context.cluster, self._context.from_cluster), self._request(plan), self._place
        )
        # Workers that are there before their parent wait for it.
        self._place.write("alive", b"submitted")
        record = crew.submit()
        self._detached = True
        return record

    def _probe(self, part: LivePart, end: LocalEnd) -> OwnProbe:
        return OwnProbe(end.root if part.shape is Shape.FOLDER else end.root.parent, self._id)

    def _remove_probes(self) -> None:
        """Those of a detached transfer are its parent's."""
        for part in () if self._detached else self._parts:
            for end in (part.source, part.destination):
                if isinstance(end, LocalEnd):
                    self._probe(part, end).remove()

    def _demand_no_other_job(self) -> bool:
        """A detached transfer that waits for its nodes has no claim yet. Whether a job of a command that is gone is
        there."""
        found = JobCrew(
            self._board, (self._context.cluster, None), self._request(self._plan, probes=False), self._place
        ).find()
        if found is not None and (found.spec.spread or {}).get("detach"):
            raise SpreadBusyError(
                f"the job {found.run_id} moves files to this folder",
                hint=f"blobsync q {found.run_id} shows it, blobsync abort {found.run_id} stops it",
            )
        return found is not None

    @cached_property
    def _board(self) -> Board:
        return Board(self._context.root, self._environ, self._context.cluster, note=self._note)

    @cached_property
    def _place(self) -> SharedPlace:
        destination = self._plan.parts[0].destination
        if not isinstance(destination, BlobUrl):
            return FolderPlace(self._state.folder("spread") / self._id)
        if not all(isinstance(part.destination, BlobUrl) and part.destination.name for part in self._plan.parts):
            raise UsageError(
                "--nodes: the destination is a whole container, and the workers need a place beside it",
                hint="give the folder entry a path in the container, or omit --nodes",
            )
        store = self._connected(destination)
        return ContainerPlace(store, store.leases(), f"{_PREFIX}/{self._id}")

    def _connected(self, destination: BlobUrl) -> RestBlobStore:
        account = self._context.connections.account(destination.container)
        cli_login = self._context.cluster.flag("use_cli_auth")
        return self._leaving.enter_context(connect(account, environ=self._environ, use_cli_auth=cli_login))

    def _request(self, plan: TransferPlan, *, probes: bool = True) -> SpreadRequest:
        spread, destination = self._plan.spread, self._plan.parts[0].destination
        assert spread is not None
        rights: dict[str, str] = {}
        for part in self._parts:
            for end, letters in ((part.source, READ_FOLDER), (part.destination, WRITE_FOLDER)):
                if not isinstance(end, LocalEnd):
                    container = str(end.store.container)
                    rights[container] = WRITE_FOLDER if rights.get(container) == WRITE_FOLDER else letters
        in_container = isinstance(destination, BlobUrl)
        folder = f"{_PREFIX}/{self._id}" if in_container else str(self._state.folder("spread") / self._id)
        words = (*shlex.split(plan.command), "--nodes", str(spread.nodes))
        return SpreadRequest(
            words=words,
            plan=spread,
            container=str(destination.container) if isinstance(destination, BlobUrl) else "",
            path=folder,
            ends=[self._ends(part, probes=probes) for part in map(self._context.opened, plan.parts)],
            rights=rights,
            owner=self._owner,
            cap_mbps=plan.options.cap_mbps,
        )

    def _ends(self, part: LivePart, *, probes: bool) -> Mapping[str, Any]:
        probe: Mapping[str, Any] | None = None
        if probes and isinstance(part.source, LocalEnd):
            actions = (action for each, action in self._plan.each() if each.path == part.path)
            probe = source_probe(self._probe(part, part.source), part.source, actions)
        elif probes and isinstance(part.destination, LocalEnd) and part.shape is Shape.FOLDER:
            probe = self._probe(part, part.destination).write()
        return {"source": _values(part.source), "destination": _values(part.destination), "probe": probe}


def _values(end: LiveEnd) -> Mapping[str, Any]:
    if isinstance(end, LocalEnd):
        return {"root": str(end.root), "boundary": [str(place) for place in end.boundary]}
    return {"container": str(end.store.container), "name": end.name}
