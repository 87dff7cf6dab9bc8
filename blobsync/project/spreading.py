"""Transfers over the nodes of a cluster (``--nodes``): the plan's division, the shared folder, and the job."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.events import Listener, notes_to
from blobsync.base.formatting import count_text
from blobsync.base.locations import BlobLocation, LocalLocation, is_source
from blobsync.base.plain_json import parse_object
from blobsync.base.records import dataclass
from blobsync.base.user_folders import config_home
from blobsync.config.model import Cluster
from blobsync.jobs.array_job import ArrayJob
from blobsync.jobs.context import JobContext
from blobsync.jobs.detached import closed
from blobsync.jobs.record import JobRecord
from blobsync.jobs.spread_job import SpreadRequest, demand_other_ended, demand_shared, spread_spec
from blobsync.jobspec.node_secrets import own_spread_key
from blobsync.jobspec.spec import owner_name
from blobsync.local.state_dir import KEY_FILE, StateDir
from blobsync.plan.project_context import LivePart, ProjectContext
from blobsync.plan.spreading import Load, choose_spread
from blobsync.plan.transfer_plan import Action, ProcessChoice, Route, Shape, TransferPlan
from blobsync.spread.claim import leave_claim, project_lock, take_claim
from blobsync.spread.probe import own_probe, remove_own_probe, source_probe, written_probe
from blobsync.spread.shard import Shard, shard_body, weight
from blobsync.spread.shared_store import ContainerStore, FolderStore, SealedStore, SharedStore, new_run
from blobsync.spread.spread_engine import Cutter, SpreadEngine, cut_all, with_fewer_tasks
from blobsync.spread.task import task_name
from blobsync.spread.verified_records import take_over
from blobsync.store.connect import connect
from blobsync.store.open_locations import OpenLocation
from blobsync.store.sas import READ_FOLDER, WRITE_FOLDER
from blobsync.store.source_orders import source_values
from blobsync.transfer.batch import remove_unrecorded
from blobsync.transfer.engines import Engines

# The folder of the places of all transfers into a container.
_PREFIX = ".blobsync/spread"
# Tells the next command which runs have documents at the place; sealed with the user's own key.
_RUNS = "known"
_MARK_CHARS = 16
_THREADS = 16
# Seconds: between two looks for records, and how long tasks that are stopped by Ctrl-C are waited for.
_POLL_SECONDS, _SOON_SECONDS = 0.5, 10.0


class Spreading:
    """One transfer over the nodes of a cluster, from the beginning of a ``with`` block to its end.

    Entering raises ``SpreadBusyError`` if another transfer over nodes has the same destination.
    """

    def __init__(
        self,
        context: ProjectContext,
        state: StateDir,
        plan: TransferPlan,
        environ: Mapping[str, str],
        listener: Listener,
    ) -> None:
        if plan.spread is None:
            raise ValueError("a plan that is not spread")
        self._context = context
        self._state = state
        self._plan, self._spread = plan, plan.spread
        self._environ = environ
        self._listener, self._note = listener, notes_to(listener)
        self._stores, self._leaving = ExitStack(), ExitStack()
        self._parts = [context.opened(part) for part in plan.parts]
        texts = sorted(str(part.destination) for part in self._parts)
        self._id = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._tasks: RunningTasks | None = None
        self._detached = False
        # When each of this command's runs began, in nanoseconds since 1970.
        self._runs: dict[str, int] = {}
        self._jobs = JobContext(context.root, environ, context.cluster, note=self._note)
        # Where documents are; of a download in no container.
        self._container = ""
        self._claims: SharedStore
        self._base: SharedStore

    def __enter__(self) -> Spreading:
        if self._plan.route in (Route.UPLOAD, Route.DOWNLOAD):
            demand_shared(self._context.cluster)
        with ExitStack() as entering:
            entering.enter_context(self._stores)
            holder = entering.enter_context(project_lock(self._state.folder("spread") / f"{self._id}.lock"))
            self._own_key = own_spread_key(self._environ)
            self._open_places()
            # Unique among all transfers of this user.
            self._place_name = f"{self._container} {self._base_path}"
            if isinstance(self._claims, ContainerStore):
                by = f"{owner_name(self._environ)} on {os.uname().nodename}"
                take_claim(self._claims, holder, by)
                entering.push(self._leave_claim)
            demand_other_ended(self._jobs, self._container, self._base_path)
            entering.callback(self._remove_probes)
            entering.push(self._end)
            self._leaving = entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Every exit sees the exception that ended the block.
        self._leaving.__exit__(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._detached:
            return
        if error is not None:
            # What tasks have left is taken over by the next command.
            if self._tasks is not None:
                self._tasks.stop()
            return
        if self._tasks is not None:
            self._tasks.job.finish()
        self._remove_documents()

    def merge(self) -> bool:
        """Add what an earlier run's tasks have moved to the index, and remove all documents of such runs; returns
        whether there were any, so that a plan that was made before is out of date.

        Call it also if nothing is left to move.
        """
        runs = self._earlier_runs()
        count = 0
        for run, begun_ns in runs.items():
            found = take_over(self._sealed(run), self._parts, self._context.records, begun_ns)
            closed(self._jobs, run, all_verified=found.files == found.planned)
            count += found.files
        if count:
            self._note(f"an earlier run moved {count_text(count, 'file')}")
        self._note_foreign_files()
        self._remove_documents()
        return bool(runs)

    def engines(self, plan: TransferPlan, engines: Engines) -> Engines:
        """The engines of the plan, with that of the nodes in place of the direct one."""
        if not plan.files_to_transfer:
            return engines
        engine = SpreadEngine(
            engines.make["direct"](),
            partial(self._begin, plan),
            # A large plan has a job for each part of a batch.
            together=() if plan.is_large else [self._context.opened(part) for part in plan.parts],
            poll=_POLL_SECONDS,
            tidy=partial(remove_unrecorded, engines.unfinished),
        )
        return engines._replace(make={**engines.make, "direct": lambda: engine})

    def submit(self, plan: TransferPlan) -> JobRecord:
        """Submit the job whose tasks carry the whole plan out, and close it."""
        plan.demand_allowed()
        if plan.is_large:
            raise UsageError("--detach: the plan is too large for the memory of a node", hint="omit --detach")
        for part in self._parts:
            if part.route is Route.DOWNLOAD and part.shape is Shape.FILE:
                raise UsageError(
                    f"--detach: {part.path} is one file, and no node can show that it sees the disk which that goes to",
                    hint="name its folder, with --include for the file, or omit --detach",
                )
        self._remove_documents()
        moving = [
            (part, [action for action in part.actions if action.action is Action.TRANSFER])
            for part in map(self._context.opened, plan.parts)
        ]
        tasks = self._begin(plan, partial(cut_all, moving))
        self._detached = True
        return tasks.job.record

    def _begin(self, plan: TransferPlan, cutter: Cutter) -> RunningTasks:
        """Submit the job of one more run: with fewer tasks where a limit asks for that."""
        self._tasks = with_fewer_tasks(cutter, self._spread.shards, partial(self._submit_run, plan))
        return self._tasks

    def _submit_run(self, plan: TransferPlan, shards: Sequence[Shard]) -> RunningTasks:
        run, place = new_run(), self._base
        # The next command finds the documents by this, and removes them.
        self._runs[run] = time.time_ns()
        place.write(_RUNS, self._own_key.seal(_RUNS, self._place_name, _RUNS, json.dumps(self._runs).encode()))
        sealed = self._sealed(run)
        list(
            side_by_side(
                lambda shard: sealed.write(f"shards/{task_name(shard.number)}", shard_body(shard)), shards, _THREADS
            )
        )
        request = self._request(plan, run, len(shards))
        spec = spread_spec(self._jobs, self._context.cluster, request, place.below(f"runs/{run}"))
        job = ArrayJob.submit(self._jobs, (self._context.cluster, self._context.from_cluster), spec)
        return RunningTasks(shards, sealed, job, self._fail_soon, self._note)

    def _remove_documents(self) -> None:
        if why := self._base.remove_all():
            self._note(f"{self._base.shown} has files that could not be removed: {why}")

    def _fail_soon(self) -> None:
        """Wait only seconds for services that do not answer."""
        self._base.fail_soon()
        self._context.connections.fail_soon()

    def _probe(self, part: LivePart, end: LocalLocation) -> Path:
        return own_probe(end.path if part.shape is Shape.FOLDER else end.path.parent, self._id)

    def _remove_probes(self) -> None:
        """Remove the probes; those of a detached transfer belong to the task that closes it."""
        for part in () if self._detached else self._parts:
            for end in (part.source, part.destination):
                if isinstance(end, LocalLocation):
                    remove_own_probe(self._probe(part, end))

    def _sealed(self, run: str) -> SealedStore:
        return SealedStore(self._base.below(f"runs/{run}"), self._own_key.derive("run", run), run, self._note)

    def _earlier_runs(self) -> Mapping[str, int]:
        """The runs that an earlier command of this user left at the place, and when each began."""
        document = self._base.read(_RUNS)
        body = self._own_key.opened(_RUNS, self._place_name, _RUNS, document) if document is not None else None
        return parse_object(body.decode()) if body is not None else {}

    def _note_foreign_files(self) -> None:
        """Note files at the place that this user's key does not open."""
        known = self._base.read(_RUNS)
        strange = known is not None and self._own_key.opened(_RUNS, self._place_name, _RUNS, known) is None
        # Those of a blobsync that wrote them otherwise, too.
        unsealed = known is None and any(self._base.names(folder) for folder in ("shards", "records"))
        claims = self._claims
        if strange or unsealed or (isinstance(claims, ContainerStore) and claims.has_others_than(self._mark)):
            where = self._base.shown if strange or unsealed else claims.shown
            self._note(
                f"{where} has files that are not sealed with your key, {config_home(self._environ) / KEY_FILE}: they "
                "are ignored. If you began a transfer there on another machine, copy the key from there; otherwise the "
                "files can be removed"
            )

    def _leave_claim(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the claim. Left, it stops others, but not this project's next command."""
        if self._detached or not isinstance(self._claims, ContainerStore):
            return
        with suppress(*(() if error is None else (BlobsyncError,))):
            leave_claim(self._claims)

    def _open_places(self) -> None:
        """Open the place of all runs' documents, and that of the claim; of a download the state folder, which is this
        user's own."""
        ends = [part.destination for part in self._plan.parts]
        # Each key has a place of its own, so that no user removes another's files.
        self._mark = self._own_key.derive("place").secret.hex()[:_MARK_CHARS]
        if not isinstance(ends[0], BlobLocation):
            self._claims_path = self._base_path = str(self._state.folder("spread") / self._id)
            self._claims = self._base = FolderStore(Path(self._base_path))
            return
        if not all(isinstance(end, BlobLocation) and end.name for end in ends):
            raise UsageError(
                "--nodes: the destination is a whole container, and the tasks need a place beside it",
                hint="give the folder entry a path in the container, or omit --nodes",
            )
        account = self._context.connections.account(ends[0].container)
        cli_login = self._context.cluster.flag("use_cli_auth")
        store = connect(account, environ=self._environ, use_cli_auth=cli_login, emit=self._listener.emit)
        self._stores.enter_context(store)
        self._container, self._claims_path = str(ends[0].container), f"{_PREFIX}/{self._id}"
        self._base_path = f"{self._claims_path}/{self._mark}"
        self._claims, self._base = (ContainerStore(store, path) for path in (self._claims_path, self._base_path))

    def _request(self, plan: TransferPlan, run: str, count: int) -> SpreadRequest:
        rights: dict[str, str] = {}
        for part in self._parts:
            for end, letters in ((part.source, READ_FOLDER), (part.destination, WRITE_FOLDER)):
                if not isinstance(end, LocalLocation) and not is_source(end.location):
                    container = str(end.store.container)
                    rights[container] = WRITE_FOLDER if rights.get(container) == WRITE_FOLDER else letters
        is_copy = plan.route not in (Route.UPLOAD, Route.DOWNLOAD)
        return SpreadRequest(
            words=(*shlex.split(plan.command), "--nodes", str(self._spread.nodes)),
            plan=self._spread,
            container=self._container,
            base=self._base_path,
            ends=[self._ends(part) for part in map(self._context.opened, plan.parts)],
            rights=rights,
            run=run,
            count=count,
            cap_mbps=plan.options.cap_mbps,
            claim=self._claims_path,
            state="" if is_copy or not self._state.lasting else str(self._state.root),
            compare_content=plan.options.compare_content,
        )

    def _ends(self, part: LivePart) -> Mapping[str, Any]:
        probe: Mapping[str, Any] | None = None
        if isinstance(part.source, LocalLocation):
            actions = (action for each, action in self._plan.each() if each.path == part.path)
            probe = source_probe(self._probe(part, part.source), part.source, actions)
        elif isinstance(part.destination, LocalLocation) and part.shape is Shape.FOLDER:
            probe = written_probe(self._probe(part, part.destination))
        return {"source": self._values(part.source), "destination": self._values(part.destination), "probe": probe}

    def _values(self, end: OpenLocation) -> Mapping[str, Any]:
        if isinstance(end, LocalLocation):
            return end.to_json()
        values = {"container": str(end.store.container), "name": end.name}
        if not is_source(end.location):
            return values
        account = self._context.connections.account(end.in_container().container)
        return {**values, "source": source_values(account, self._environ)}


@dataclass(slots=True)
class RunningTasks:
    """The tasks of one run, as a job; see :class:`blobsync.spread.spread_engine.Tasks`."""

    shards: Sequence[Shard]
    place: SealedStore
    job: ArrayJob
    fail_soon: Callable[[], None]
    note: Callable[[str], None]

    def ended(self) -> str | None:
        return self.job.ended()

    def stop(self) -> None:
        """Wait only seconds for a store and a platform that do not answer."""
        self.fail_soon()
        try:
            self.place.write("ended", b"")
        except BlobsyncError as error:
            self.note(
                f"{self.place.shown} could not be notified that this transfer has ended: {error.message}; the job is "
                "stopped all the same, and the same command resumes it"
            )
        self.job.stop(_SOON_SECONDS)


def with_spread(plan: TransferPlan, cluster: Cluster, *, copies: bool) -> TransferPlan:
    """The plan with its spread, by ``--nodes``."""
    files = work = 0
    for _, action in plan.each():
        if action.action is Action.TRANSFER:
            files += 1
            work += weight(action)
    spread = choose_spread(plan.options, cluster.platform, cluster.name, Load(files, work), copies=copies)
    return replace(plan, spread=spread, processes=ProcessChoice(1, "each task has processes of its own"))
