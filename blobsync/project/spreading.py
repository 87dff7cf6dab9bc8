"""Transfers over the nodes of a cluster (``--nodes``): the plan's division, the shared folder, and the job."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from blobsync.base.errors import BlobsyncError, SpreadBusyError, UsageError
from blobsync.base.events import Listener, notes_to
from blobsync.base.formatting import count_text
from blobsync.base.locations import BlobLocation, LocalLocation, is_source
from blobsync.base.plain_json import parse_object
from blobsync.base.user_data import config_home
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.spread_job import JobWorkforce, SpreadRequest, demand_shared
from blobsync.jobspec.transfer_key import own_key
from blobsync.local.state_dir import KEY_FILE, StateDir
from blobsync.plan.project_context import LivePart, ProjectContext
from blobsync.plan.spreading import LEAST_RANGE, Load, choose_spread
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, ProcessChoice, Route, Shape, TransferPlan
from blobsync.spread.coordinator_lock import CoordinatorLock, OwnerLock
from blobsync.spread.earlier_records import EarlierBlocks, leave_told, merge_records, recall, record_files
from blobsync.spread.probe import OwnProbe, source_probe
from blobsync.spread.sealed_store import SealedStore, new_session, parent_keys
from blobsync.spread.shard import cut, shard_lines
from blobsync.spread.shared_store import ContainerStore, FolderStore, SharedStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.connect import connect
from blobsync.store.open_locations import OpenLocation
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.sas import READ_FOLDER, WRITE_FOLDER
from blobsync.store.source_orders import source_values
from blobsync.transfer.carry_out import Engines

# The folder of the places of all transfers into a container.
_PREFIX = ".blobsync/spread"
# Tells the next command which key opens the files at the place; sealed with the user's own key.
_RUN = "run"
_MARK_CHARS = 16


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
        self._plan = plan
        self._environ = environ
        self._listener, self._note = listener, notes_to(listener)
        self._stores, self._leaving = ExitStack(), ExitStack()
        self._parts = [context.opened(part) for part in plan.parts]
        texts = sorted(str(part.destination) for part in self._parts)
        self._id = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._workforce: JobWorkforce | None = None
        self._detached = False
        self._job_lives = False
        self._first = 0
        self._blocks = EarlierBlocks()
        self._owner = ""
        # The transfer whose key the workers have, and its parent's store.
        self._run = ""
        self._sealed: SealedStore | None = None

    def __enter__(self) -> Spreading:
        if self._plan.route in (Route.UPLOAD, Route.DOWNLOAD):
            demand_shared(self._context.cluster)
        with ExitStack() as entering:
            entering.enter_context(self._stores)
            self._owner = entering.enter_context(OwnerLock(self._state.folder("spread") / f"{self._id}.lock"))
            self._own_key = own_key(self._environ)
            self._presence = entering.enter_context(CoordinatorLock(self._claims, self._owner))
            entering.push(self._leave_claim)
            self._job_lives = self._demand_no_other_job()
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
            self._end_early()
            return
        if self._workforce is not None:
            self._presence.end()
            self._workforce.wait()
        self._place.remove_all()

    def _end_early(self) -> None:
        """After Ctrl-C or a failure, wait only seconds for services that do not answer."""
        self._place.hurry()
        self._context.connections.hurry()
        try:
            if self._workforce is not None:
                self._presence.end(hurried=True)
                self._workforce.wait()
            if self._sealed is not None:
                self._leave(self._sealed)
        except BlobsyncError as error:
            job = ""
            if self._workforce is not None:
                self._workforce.stop()
                job = "the workers' job is stopped all the same, and "
            self._note(
                f"{self._place.shown} could not be notified that this transfer has ended: {error.message}; {job}the "
                "same command resumes it"
            )

    def _leave(self, place: SealedStore) -> None:
        """Leave the place to the next command, with everything that would have to be read first."""
        is_copy = self._plan.route not in (Route.UPLOAD, Route.DOWNLOAD)
        if is_copy:
            record_files(place, self._parts, self._context.records)
        if leave_told(place, files=not is_copy):
            self._say_whose(place)

    def merge(self) -> bool:
        """Add the records of an earlier run's workers to the index; returns whether there were any.

        Call it also if nothing is left to move: it removes the files of that run.
        """
        earlier = self._earlier()
        if earlier is not None:
            if self._job_lives:
                recall(earlier, self._owner)
            found = merge_records(earlier, self._parts, self._context.records)
            if found.files:
                self._note(f"an earlier run that was stopped moved {count_text(found.files, 'file')}")
            self._first, self._blocks = found.next_number, found.blocks
        self._note_foreign_files()
        if not self._job_lives:
            self._place.remove_all()
        return earlier is not None and found.anything

    def engines(self, plan: TransferPlan, engines: Engines) -> Engines:
        """The engines of the plan, with that of the nodes in place of the direct one."""
        spread = self._plan.spread
        assert spread is not None
        if not plan.files_to_transfer:
            return engines
        place = self._sealed or self._begin(self._run or new_session(), new_session())
        request = self._request(plan)
        self._workforce = JobWorkforce(
            self._jobs, (self._context.cluster, self._context.from_cluster), request, self._place
        )
        self._presence.show(place)
        place.remove("stop")
        alone = engines.make["direct"]()
        engine = SpreadEngine(
            alone,
            place,
            self._workforce,
            spread.workers,
            first=self._first,
            range_bytes=(plan.spread or spread).range_bytes,
            earlier=self._blocks,
        )
        return engines._replace(make={**engines.make, "direct": lambda: engine})

    def submit(self, plan: TransferPlan) -> JobRecord:
        """Write the whole plan to the place, and submit the job whose node 0 carries it out."""
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
        run = new_session()
        place = self._begin(run, run)
        spread = self._plan.spread
        assert spread is not None
        count = 0
        for part in self._parts:
            moving = [action for action in part.actions if action.action is Action.TRANSFER]
            for shard in cut(part, moving, spread.workers) if moving else ():
                body = ("\n".join(shard_lines(replace(shard, number=count))) + "\n").encode()
                place.write(f"plan/{count:07}", body)
                count += 1
        request = replace(self._request(plan), planned=count)
        workforce = JobWorkforce(self._jobs, (self._context.cluster, self._context.from_cluster), request, self._place)
        # Workers that start before their parent wait for it.
        place.write("alive", b"submitted")
        record = workforce.submit()
        self._detached = True
        return record

    def _probe(self, part: LivePart, end: LocalLocation) -> OwnProbe:
        return OwnProbe(end.path if part.shape is Shape.FOLDER else end.path.parent, self._id)

    def _remove_probes(self) -> None:
        """Remove the probes; those of a detached transfer belong to its parent."""
        for part in () if self._detached else self._parts:
            for end in (part.source, part.destination):
                if isinstance(end, LocalLocation):
                    self._probe(part, end).remove()

    def _demand_no_other_job(self) -> bool:
        """Raise an error if a detached transfer, which has no claim yet, waits for its nodes."""
        found = JobWorkforce(
            self._jobs, (self._context.cluster, None), self._request(self._plan, probes=False), self._place
        ).find()
        orders = (found.spec.spread or {}) if found is not None else {}
        if found is not None and (orders.get("detach") or not orders.get("run")):
            older = "" if orders.get("run") else "; an older blobsync submitted it, which seals nothing"
            raise SpreadBusyError(
                f"the job {found.run_id} moves files to this folder{older}",
                hint=f"blobsync q {found.run_id} shows it, blobsync abort {found.run_id} stops it",
            )
        self._run = str(orders.get("run") or "")
        return found is not None

    def _begin(self, run: str, session: str) -> SealedStore:
        """Make this process the parent of the transfer ``run``."""
        self._run = run
        self._sealed = self._opened(run, session)
        self._say_whose(self._sealed)
        return self._sealed

    def _opened(self, run: str, session: str) -> SealedStore:
        keys = parent_keys(self._own_key.derive("run", run))
        return SealedStore(self._place, keys, run, self._note, session=session)

    def _say_whose(self, place: SealedStore) -> None:
        """Record for the next command which key opens the files at the place."""
        body = json.dumps({"run": self._run, "session": place.session}).encode()
        self._place.write(_RUN, self._own_key.seal("run", self._place_name, _RUN, body))

    def _earlier(self) -> SealedStore | None:
        """The transfer that an earlier command of this user left at the place."""
        document = self._place.read(_RUN)
        body = self._own_key.opened("run", self._place_name, _RUN, document) if document is not None else None
        if body is None:
            return None
        said = parse_object(body.decode())
        if self._run not in ("", said["run"]):
            return None
        return self._opened(said["run"], said["session"])

    def _note_foreign_files(self) -> None:
        """Note files at the place that this user's key does not open."""
        known = self._place.read(_RUN)
        strange = known is not None and self._own_key.opened("run", self._place_name, _RUN, known) is None
        unsealed = known is None and any(self._place.names(folder) for folder in ("shards", "records", "plan"))
        if strange or unsealed or self._others():
            where = self._place.shown if strange or unsealed else self._claims.shown
            self._note(
                f"{where} has files that are not sealed with your key, {config_home(self._environ) / KEY_FILE}: they "
                "are ignored. If you began a transfer there on another machine, copy the key from there; otherwise the "
                "files can be removed"
            )

    def _others(self) -> bool:
        """Whether another user, or this one with another key, has left a transfer to the same destination."""
        claims = self._claims
        return isinstance(claims, ContainerStore) and claims.has_more_than((self._mark, "owner"))

    def _leave_claim(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the claim, unless it has expired."""
        if error is not None:
            self._claims.hurry()
        # It is not essential: the claim expires, and this project's next command takes it at once.
        with suppress(*(() if error is None else (BlobsyncError,))):
            if not self._detached and self._claims is not self._place and self._claims.claim("owner", self._owner):
                self._claims.remove("owner")

    @cached_property
    def _jobs(self) -> JobContext:
        return JobContext(self._context.root, self._environ, self._context.cluster, note=self._note)

    @property
    def _place_name(self) -> str:
        """A name that is unique among all transfers of this user."""
        request = self._paths
        return f"{request.container} {request.path}"

    @cached_property
    def _mark(self) -> str:
        """A mark of the key: each key has a place of its own, so that no user removes another's files."""
        return self._own_key.derive("place").secret.hex()[:_MARK_CHARS]

    @cached_property
    def _paths(self) -> _Paths:
        destination = self._plan.parts[0].destination
        if not isinstance(destination, BlobLocation):
            # The state folder is this user's own.
            folder = str(self._state.folder("spread") / self._id)
            return _Paths("", folder, folder)
        claims = f"{_PREFIX}/{self._id}"
        return _Paths(str(destination.container), f"{claims}/{self._mark}", claims)

    @cached_property
    def _place(self) -> SharedStore:
        return self._at(self._paths.path)

    @cached_property
    def _claims(self) -> SharedStore:
        return self._place if self._paths.claims == self._paths.path else self._at(self._paths.claims)

    def _at(self, path: str) -> SharedStore:
        destination = self._plan.parts[0].destination
        if not isinstance(destination, BlobLocation):
            return FolderStore(Path(path))
        if not all(isinstance(part.destination, BlobLocation) and part.destination.name for part in self._plan.parts):
            raise UsageError(
                "--nodes: the destination is a whole container, and the workers need a place beside it",
                hint="give the folder entry a path in the container, or omit --nodes",
            )
        return ContainerStore(self._store, self._store.leases(), path)

    @cached_property
    def _store(self) -> RestBlobStore:
        destination = self._plan.parts[0].destination
        assert isinstance(destination, BlobLocation)
        account = self._context.connections.account(destination.container)
        cli_login = self._context.cluster.flag("use_cli_auth")
        store = connect(account, environ=self._environ, use_cli_auth=cli_login, emit=self._listener.emit)
        return self._stores.enter_context(store)

    def _request(self, plan: TransferPlan, *, probes: bool = True) -> SpreadRequest:
        spread, paths = self._plan.spread, self._paths
        assert spread is not None
        rights: dict[str, str] = {}
        for part in self._parts:
            for end, letters in ((part.source, READ_FOLDER), (part.destination, WRITE_FOLDER)):
                if not isinstance(end, LocalLocation) and not is_source(end.location):
                    container = str(end.store.container)
                    rights[container] = WRITE_FOLDER if rights.get(container) == WRITE_FOLDER else letters
        words = (*shlex.split(plan.command), "--nodes", str(spread.nodes))
        return SpreadRequest(
            words=words,
            plan=spread,
            container=paths.container,
            path=paths.path,
            ends=[self._ends(part, probes=probes) for part in map(self._context.opened, plan.parts)],
            compare_content=plan.options.compare_content,
            rights=rights,
            owner=self._owner,
            cap_mbps=plan.options.cap_mbps,
            claims=paths.claims,
            run=self._run,
        )

    def _ends(self, part: LivePart, *, probes: bool) -> Mapping[str, Any]:
        probe: Mapping[str, Any] | None = None
        if probes and isinstance(part.source, LocalLocation):
            actions = (action for each, action in self._plan.each() if each.path == part.path)
            probe = source_probe(self._probe(part, part.source), part.source, actions)
        elif probes and isinstance(part.destination, LocalLocation) and part.shape is Shape.FOLDER:
            probe = self._probe(part, part.destination).write()
        return {"source": self._values(part.source), "destination": self._values(part.destination), "probe": probe}

    def _values(self, end: OpenLocation) -> Mapping[str, Any]:
        if isinstance(end, LocalLocation):
            return end.to_json()
        values = {"container": str(end.store.container), "name": end.name}
        if not is_source(end.location):
            return values
        account = self._context.connections.account(end.in_container().container)
        return {**values, "source": source_values(account, self._environ)}


class _Paths(NamedTuple):
    """The container (empty: none), the place in it and the place of the claim; or their local folders."""

    container: str
    path: str
    claims: str


RANGE_VARIABLE = "BLOBSYNC_SPREAD_RANGE"


def demand_spreadable(options: TransferOptions, cluster: Cluster, *, copies: bool) -> None:
    """Raise ``UsageError`` if the cluster's nodes cannot do it, before anything is listed."""
    if options.nodes is not None:
        choose_spread(options, cluster.platform, cluster.name, copies=copies)


def with_spread(plan: TransferPlan, cluster: Cluster, environ: Mapping[str, str], *, copies: bool) -> TransferPlan:
    """The plan with its spread, if ``--nodes`` was given. Raises ``UsageError``."""
    if plan.options.nodes is None:
        return plan
    from blobsync.spread.shard import weight

    # A local file is written by one worker, and an object from outside Azure copied by one.
    whole = plan.route is Route.DOWNLOAD or any(is_source(part.source) for part in plan.parts)
    least = 0 if whole else _least_range(environ)
    files, work, large = 0, 0, []
    for _, action in plan.each():
        if action.action is Action.TRANSFER:
            files += 1
            work += weight(action)
            if 0 < 2 * least <= action.size:
                large.append(action.size)
    load = Load(files, work, large)
    spread = choose_spread(plan.options, cluster.platform, cluster.name, load, copies=copies, least=least)
    return replace(plan, spread=spread, processes=ProcessChoice(1, "each node has workers of its own"))


def _least_range(environ: Mapping[str, str]) -> int:
    said = environ.get(RANGE_VARIABLE) or str(LEAST_RANGE)
    if not (said.isascii() and said.isdigit() and 0 < int(said) <= 1 << 50):
        raise UsageError(f"{RANGE_VARIABLE}={said[:40]!a} is not a number of bytes", hint=f"unset {RANGE_VARIABLE}")
    return int(said)
