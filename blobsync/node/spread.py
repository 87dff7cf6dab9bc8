"""A task of a spread transfer on this node; of a detached transfer the last task also closes it.

It looks at the destination, and ends with the code that the command would have."""

from __future__ import annotations

import hmac
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base.allocator import keep_freed_memory
from blobsync.base.errors import BlobsyncError, CredentialError
from blobsync.base.events import NoteListener
from blobsync.base.exit_codes import SETUP_FAILED_EXIT, shell_code
from blobsync.base.formatting import count_text
from blobsync.base.locations import Bucket, LocalLocation
from blobsync.base.records import NamedTuple
from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.jobspec.spec import SERVICES, SPREAD_KEY
from blobsync.local.index import Index
from blobsync.local.resume_records import WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.node.job import NodeJob
from blobsync.node.job_stores import JobStores
from blobsync.node.ranks import NotReadyError
from blobsync.node.setup import clean_up
from blobsync.plan.project_context import LivePart, OpenedParts, direct_plan
from blobsync.plan.transfer_options import TransferOptions
from blobsync.spread.claim import free_claim
from blobsync.spread.file_json import FormatError
from blobsync.spread.probe import probe_problem, remove_probe
from blobsync.spread.record import Refused, ShardDone, read_body, record_body
from blobsync.spread.shard import Shard, read_shard
from blobsync.spread.shared_store import (
    ContainerStore,
    FolderStore,
    Result,
    SealedStore,
    SharedStore,
    earlier_result,
    orders_seal,
)
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.spread.task import Ends, Task, Tools, end_with_parent, part_of, task_name
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.read_only import SourceStore
from blobsync.store.source_orders import open_source
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import Engines

# The log lists so many failures; the result has all.
_LOGGED_FAILURES = 100
_STOPPED = shell_code(-signal.SIGTERM)
# A SAS that ends so soon (seconds) is of no use for a task.
_LEAST_SAS_SECONDS = 60.0


def run_spread(job: NodeJob, places: JobStores) -> int:
    """Run this task, or on a platform without tasks every task of this node; returns the exit code."""
    parent = os.getppid()
    orders = job.spec.spread
    if orders is None:
        raise NotReadyError("the job is not a transfer")
    key = _run_key(job, orders)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_freed_memory()
    code = _STOPPED
    try:
        run = _TaskRun(job, orders, key, places, lambda: end_with_parent(parent))
        code = max(map(run.carry, _numbers(job, orders)), default=0)
    except KeyboardInterrupt:
        _print_line("stopped")
    if job.number is not None:
        # Elsewhere the node's own program does it.
        clean_up(job, code)
    return code


def _numbers(job: NodeJob, orders: Mapping[str, Any]) -> Sequence[int]:
    if job.spec.platform in SERVICES:
        return range(job.node_rank, int(orders["count"]), job.spec.nodes)
    return (job.node_rank if job.number is None else job.number,)


def _run_key(job: NodeJob, orders: Mapping[str, Any]) -> SealKey:
    """The transfer's key. Refuses orders without its seal: the job's submitter did not write them."""
    secret = job.secret(SPREAD_KEY)
    if not orders.get("count") or not secret:
        raise NotReadyError(
            "the job has no key for its transfer: another version of blobsync submitted it",
            hint="abort it and run the command again",
        )
    try:
        key = SealKey(bytes.fromhex(secret))
    except ValueError as error:
        raise NotReadyError("the key of the transfer is none") from error
    if not hmac.compare_digest(str(orders.get("seal")), orders_seal(key, orders)):
        raise NotReadyError(
            "the orders of the job are not those that it was submitted with",
            hint="see who can write to its folder, then abort it and run the command again",
        )
    return key


class _TaskRun:
    """What all tasks of this process have in common."""

    def __init__(
        self, job: NodeJob, orders: Mapping[str, Any], key: SealKey, places: JobStores, watch: Callable[[], None]
    ) -> None:
        self._job, self._orders, self._places, self._watch = job, orders, places, watch
        self._place = SealedStore(open_place(orders, places), key, orders["run"], _print_line)

    def carry(self, number: int) -> int:
        """Carry out one task; returns its exit code."""
        try:
            self._demand_sas()
            # A transfer that has ended has removed its probes.
            if self._place.read("ended") is not None:
                _print_line("the transfer has ended")
                return 0
            if problem := self._problem():
                _print_line(problem)
                said = Refused(f"{os.uname().nodename}: {problem}")
                self._place.write(f"records/{task_name(number)}", record_body([said, ShardDone(number)]))
                return SETUP_FAILED_EXIT
            workers = int(self._orders["workers"])
            watch, self._watch = self._watch, lambda: None
            task = Task(self._place, number, self._tools, _print_line, workers, self._orders["cap_mbps"], watch)
            is_done = task.run()
        except FormatError as error:
            _print_line(f"task {number}: {error}")
            return 1
        except BlobsyncError as error:
            _print_line(error.message)
            return SETUP_FAILED_EXIT if isinstance(error, CredentialError) else 1
        if not is_done or not self._orders["detach"]:
            return 0 if is_done else 1
        ends = self._opened_ends()
        return close(self._job, self._place, number, ends, self._engine(1), _print_line, self._release)

    def _demand_sas(self) -> None:
        """Raise ``CredentialError`` if a SAS of the job has ended: the next job has new ones."""
        for container in self._orders["rights"]:
            ends = self._places.sas(container).expires_at
            if ends is not None and ends.timestamp() < time.time() + _LEAST_SAS_SECONDS:
                raise CredentialError(f"the SAS for {container} has ended: another job goes on with a new one")

    def _problem(self) -> str:
        for given in self._orders["ends"]:
            if problem := probe_problem(given.get("probe")):
                return problem
        return _source_problem(self._opened_ends())

    def _release(self) -> None:
        if self._orders["container"]:
            free_claim(ContainerStore(self._places.container(self._orders["container"]), self._orders["claim"]))

    def _opened_ends(self) -> list[Ends]:
        return _ends(self._orders, self._places)

    def _tools(self) -> Tools:
        # Connections and locks of another process are of no use.
        ends = _ends(self._orders, self._places.anew())
        return Tools({(str(each.source), str(each.destination)): each for each in ends}, self._engine(None))

    def _engine(self, processes: int | None) -> DirectEngine:
        state = self._orders["state"]
        return DirectEngine(
            source_sas=lambda end: self._places.sas(str(end.store.container)),
            processes=int(self._orders["workers"]) if processes is None else processes,
            intents=WriteIntents(StateDir(Path(state), lasting=True)) if state else None,
            comparing=bool(self._orders["compare_content"]),
        )


def open_place(orders: Mapping[str, Any], places: JobStores) -> SharedStore:
    """The store of the run's documents."""
    if not orders["container"]:
        return FolderStore(Path(orders["place"]))
    return ContainerStore(places.container(orders["container"]), orders["place"])


def _source_problem(ends: Sequence[Ends]) -> str:
    """Why this node cannot have the bucket fetched from: boto3 is not there, or finds no credentials. Else empty."""
    for store in {id(end.store): end.store for end, _ in ends if isinstance(end, OpenBlob)}.values():
        # Web servers are asked without any.
        if isinstance(store, SourceStore) and isinstance(store.container, Bucket):
            try:
                store.source_url("x", "", 1)
            except BlobsyncError as error:
                return f"{error.message} ({error.hint})" if error.hint else error.message
    return ""


def _ends(orders: Mapping[str, Any], places: JobStores) -> list[Ends]:
    return [Ends(_end(each["source"], places), _end(each["destination"], places)) for each in orders["ends"]]


def _end(given: Mapping[str, Any], places: JobStores) -> OpenLocation:
    if "root" in given:
        return LocalLocation.from_json(given)
    if "source" in given:
        return OpenBlob(open_source(given["source"], os.environ), given["name"])
    return OpenBlob(places.container(given["container"]), given["name"])


def close(
    job: NodeJob,
    place: SealedStore,
    number: int,
    ends: Sequence[Ends],
    alone: DirectEngine,
    write: Callable[[str], None],
    release: Callable[[], None] = lambda: None,
) -> int:
    """Close the transfer if no task is without a record and no other task closes it; returns the exit code.

    A task that was stopped while it closed goes on. ``alone`` moves what is to be tried again, ``release`` gives the
    claim on the destination up.
    """
    orders = job.spec.spread or {}
    names = [task_name(each) for each in range(int(orders["count"]))]
    if not set(names) <= set(place.names("records")):
        return 0
    if not place.create("closing", task_name(number).encode()) and place.read("closing") != task_name(number).encode():
        return 0
    result = earlier_result(job.spec.run_id, place)
    if result is None:
        shards = [read_shard(body) for name in names if (body := place.read(f"shards/{name}")) is not None]
        if len(shards) != len(names) or not all(_is_whole(place, shard) for shard in shards):
            # It is left to the next command.
            return 1
        with tempfile.TemporaryDirectory() as folder:
            result = _carry_out(job, place, shards, ends, alone, Index(Path(folder, "index.sqlite"), write), write)
        place.write("result", result.body())
        place.write("ended", b"")
        release()
    # Not after an interrupt: tasks need them if the job continues on another node.
    for each in orders["ends"]:
        remove_probe(each.get("probe"))
    for failure in result.failures[:_LOGGED_FAILURES]:
        write(f"{failure.message} ({failure.code})")
    write(f"{count_text(result.verified, 'file')} verified, {len(result.failures):,} failed")
    return result.exit_code


def _is_whole(place: SealedStore, shard: Shard) -> bool:
    with suppress(FormatError):
        body = place.read(f"records/{task_name(shard.number)}") or b""
        return any(isinstance(each, ShardDone) for each in read_body(body, shard.route))
    return False


def _carry_out(
    job: NodeJob,
    place: SealedStore,
    shards: Sequence[Shard],
    ends: Sequence[Ends],
    alone: DirectEngine,
    index: Index,
    write: Callable[[str], None],
) -> Result:
    parts = _parts(shards, ends)
    engine = SpreadEngine(alone, lambda cut: _Ended(place, shards), together=parts, jobs=1, poll=0)
    options = TransferOptions(engine="direct", compare_content=bool((job.spec.spread or {}).get("compare_content")))
    plan = direct_plan(job.spec.cluster, parts, options, "nodes have no other engine")
    found = carry_out(plan, OpenedParts(parts, index), Engines({"direct": lambda: engine}), NoteListener(write), None)
    return Result(job.spec.run_id, found.exit_code, found.transferred, found.verified, tuple(found.failures))


def _parts(shards: Sequence[Shard], ends: Sequence[Ends]) -> list[LivePart]:
    known = {(str(each.source), str(each.destination)): each for each in ends}
    by_ends: dict[tuple[str, str], list[Shard]] = {}
    for shard in shards:
        by_ends.setdefault((shard.source, shard.destination), []).append(shard)
    return [part_of(_joined(some), known[key]) for key, some in by_ends.items()]


def _joined(shards: Sequence[Shard]) -> Shard:
    """One shard with the files of all of these."""
    actions = tuple(action for shard in shards for action in shard.actions)
    return replace(shards[0], actions=actions, listed=tuple(line for shard in shards for line in shard.listed))


class _Ended(NamedTuple):
    """The tasks of this job, each of which has its record."""

    place: SealedStore
    shards: Sequence[Shard]

    def ended(self) -> str | None:
        return "its last task closes it"

    def stop(self) -> None: ...


def _print_line(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except (OSError, BlobsyncError):
        # The reader has gone.
        return
