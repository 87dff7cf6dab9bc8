"""Runs the workers of a spread transfer on this node, and on node 0 its parent, which carries out the plan."""

from __future__ import annotations

import hmac
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blobsync.base.errors import BlobsyncError, ExitCode, StorageError, TransferCancelledError
from blobsync.base.events import Event, Note
from blobsync.base.formatting import count_text
from blobsync.base.locations import Bucket, LocalLocation
from blobsync.base.plain_json import parse_object
from blobsync.base.process import ProcessRunner, RunningProcess, SubprocessRunner
from blobsync.base.redaction import redact
from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.jobspec.spec import SPREAD_KEY
from blobsync.local.index import Index, PairIndex
from blobsync.node.job import NodeJob
from blobsync.node.places import JobPlaces
from blobsync.node.ranks import NotReadyError
from blobsync.plan.project_context import LivePart, key_between, without_stores
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import EngineChoice, FileAction, IndexKey, Part, PlanPart, TransferPlan
from blobsync.spread.coordinator_lock import CoordinatorLock
from blobsync.spread.probe import probe_problem, remove_probe
from blobsync.spread.sealed_store import SealedStore, orders_seal, parent_keys, worker_keys
from blobsync.spread.shard import Shard, listed_at
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings, read_shard
from blobsync.spread.shared_store import ContainerStore, FolderStore, SharedStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.read_only import SourceStore
from blobsync.store.rest.http import Pace
from blobsync.store.source_orders import open_source
from blobsync.store.url_list import UrlListStore
from blobsync.transfer.carry_out import Engines, carry_out
from blobsync.transfer.engines import Engine

# The log lists so many failures; the result has all.
_LOGGED_FAILURES = 100
_ENGINE = EngineChoice("direct", "nodes have no other engine")


def run_parent(
    job: NodeJob,
    place: SharedStore,
    ends: Sequence[Ends],
    alone: Engine,
    write: Callable[[str], None],
    *,
    poll: float = 1.0,
    claims: SharedStore | None = None,
) -> int:
    """Carry out the plan and save the result at ``place``; returns the exit code that ``u`` would have.

    ``alone`` is the engine of this process, ``poll`` the seconds between two reads of records, ``claims`` where the
    parent's claim is, if not at ``place``. A restarted parent makes the same shards and skips those that are done; if
    this job already has a result, nothing is tried again.
    """
    result = _earlier_result(job, place)
    if result is not None:
        # The earlier parent was killed before its end: workers may still wait for it.
        place.write("alive", b"")
    else:
        result = _carry_out(job, place, ends, alone, write, poll, claims or place)
    # Not after an interrupt: workers need them if the job continues on another node.
    for each in _orders(job)["ends"]:
        remove_probe(each.get("probe"))
    for failure in result.failures[:_LOGGED_FAILURES]:
        write(f"{failure['message']} ({failure['code']})")
    write(f"{count_text(result.verified, 'file')} verified, {len(result.failures):,} failed")
    return result.exit_code


class _Result(NamedTuple):
    """The result of a transfer; ``job`` is the job's run id."""

    job: str
    exit_code: int
    transferred: int
    verified: int
    failures: Sequence[Mapping[str, str]]


def _orders(job: NodeJob) -> Mapping[str, Any]:
    return job.spec.spread or {}


def _compares(orders: Mapping[str, Any]) -> bool:
    return bool(orders.get("compare_content"))


def _earlier_result(job: NodeJob, place: SharedStore) -> _Result | None:
    """The result that an earlier parent of this job saved; None if there is none, or it is invalid."""
    try:
        values = parse_object((place.read("result") or b"").decode())
        result = _Result(
            values["job"],
            ExitCode(values["exit_code"]),
            int(values["transferred"]),
            int(values["verified"]),
            [{key: str(each[key]) for key in ("path", "code", "message")} for each in values["failures"]],
        )
    except (ValueError, KeyError, TypeError):
        return None
    return result if result.job == job.spec.run_id else None


def _carry_out(
    job: NodeJob,
    place: SharedStore,
    ends: Sequence[Ends],
    alone: Engine,
    write: Callable[[str], None],
    poll: float,
    claims: SharedStore,
) -> _Result:
    orders = _orders(job)
    index = Index(job.beside("index.sqlite"), write)
    with CoordinatorLock(claims, orders["owner"]) as presence:
        presence.show(place)
        parts = _parts(place, ends, int(orders["planned"]))
        workers = int(orders["workers"]) * int(orders["nodes"])
        about = int(orders["range_bytes"])
        engine = SpreadEngine(alone, place, _OwnJob(), workers, poll=poll, keep_records=True, range_bytes=about)
        plan = TransferPlan(
            route=parts[0].route,
            cluster=job.spec.cluster,
            from_cluster=None,
            paths=tuple(part.path for part in parts),
            options=TransferOptions(engine="direct", compare_content=_compares(orders)),
            parts=tuple(without_stores(part) for part in parts),
            engine=_ENGINE,
            created_at=time.time(),
        )
        found = carry_out(plan, _Opened(parts, index), Engines({"direct": lambda: engine}), _NoteListener(write), None)
        failures = [{"path": each.path, "code": str(each.code), "message": each.message} for each in found.failures]
        result = _Result(job.spec.run_id, int(found.exit_code), found.transferred, found.verified, failures)
        place.write("result", json.dumps(result._asdict()).encode())
    return result


def _parts(place: SharedStore, ends: Sequence[Ends], planned: int) -> list[LivePart]:
    bodies = [place.read(f"plan/{number:07}") for number in range(planned)]
    if None in bodies:
        raise StorageError(
            f"{place.shown}plan/{bodies.index(None):07} is not there as it was left: the plan is not carried out",
            hint="run the same command again",
        )
    shards = [read_shard(body) for body in bodies if body is not None]
    known = {(str(each.source), str(each.destination)): each for each in ends}
    actions: dict[tuple[str, str], list[FileAction]] = {}
    first: dict[tuple[str, str], Shard] = {}
    for shard in shards:
        key = shard.source, shard.destination
        actions.setdefault(key, []).extend(shard.actions)
        first.setdefault(key, shard)
    for key in first:
        source = known[key].source
        if isinstance(source, OpenBlob) and isinstance(source.store, UrlListStore):
            ours = (listed_at(source, shard) for shard in shards if (shard.source, shard.destination) == key)
            source.store.set_files(dict(ChainMap(*map(dict, ours))))
    return [
        Part(
            shard.path,
            shard.route,
            known[key].source,
            known[key].destination,
            key_between(known[key].source, known[key].destination),
            actions=tuple(actions[key]),
        )
        for key, shard in first.items()
    ]


class _Opened(NamedTuple):
    """The parts of a plan, which are open already."""

    parts: list[LivePart]
    known: Index

    def opened(self, part: PlanPart) -> LivePart:
        return next(each for each in self.parts if each.key == part.key)

    def records(self, key: IndexKey) -> PairIndex:
        return self.known.pair(*key.roots)


class _OwnJob:
    """The workers of the job that this parent is part of; nothing has to be started."""

    def start(self) -> None: ...

    def ended(self) -> str | None:
        return None

    def stop(self) -> None: ...


class _NoteListener:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._write(event.text)


# How often a lost worker is restarted, each time after a longer pause (seconds): its network may be down for a minute.
_TIMES = 7
_PAUSE_SECONDS = 1.0
# The worker number of a detached transfer's parent.
PARENT = -1


def run_spread(job: NodeJob, places: JobPlaces, worker: int | None) -> int:
    """Run all workers of the node, or one of them; returns the exit code."""
    orders = job.spec.spread
    if orders is None:
        raise NotReadyError("the job is not a transfer")
    run = _run_key(job, orders)
    if worker is None:
        return _Workers(job, SubprocessRunner()).run(_numbers(job, orders))
    _interrupt_at_end_of_input()
    try:
        if worker == PARENT:
            alone = DirectEngine(
                source_sas=lambda end: places.sas(str(end.store.container)),
                comparing=_compares(orders),
            )
            raw, claims = open_place(orders, places), open_place(orders, places, "claims")
            place = SealedStore(raw, parent_keys(run), orders["run"], _print_line, session=orders["run"])
            return run_parent(job, place, _all_ends(orders, places), alone, _print_line, claims=claims)
        return _move_shards(job, orders, places, run, worker)
    except TransferCancelledError as stop:
        _print_line(stop.message)
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM


def _numbers(job: NodeJob, orders: Mapping[str, Any]) -> list[int]:
    parent = [PARENT] if orders["detach"] and job.node_rank == 0 else []
    return [*parent, *range(int(orders["workers"]))]


class _Workers:
    """One process per worker; restarts those that are killed or fail."""

    def __init__(self, job: NodeJob, runner: ProcessRunner) -> None:
        self._words = job.own_command("spread")
        self._runner = runner
        self._running: dict[int, RunningProcess] = {}
        self._codes: dict[int, int] = {}
        self._stopping = threading.Event()

    def run(self, numbers: list[int]) -> int:
        threads = [threading.Thread(target=self._serve, args=(number,), daemon=True) for number in numbers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stopping.set()
            for process in list(self._running.values()):
                process.stop()
        # The exit code of a detached parent is the job's.
        return self._codes.get(PARENT, max(self._codes.values(), default=0))

    def _serve(self, number: int) -> None:
        for attempt in range(_TIMES):
            process = self._runner.start((*self._words, "--worker", str(number)), env=os.environ)
            self._running[number] = process
            for line in process.lines():
                _print_line(f"worker {number}: {line}")
            code = process.wait() or 0
            if said := process.stderr_tail():
                _print_line(redact(f"worker {number}: {said}"))
            self._codes[number] = 128 - code if code < 0 else code
            # These exit codes of the parent are the transfer's result.
            if code == 0 or (number == PARENT and 0 < code < 128) or self._stopping.is_set():
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            _print_line(f"worker {number} {how}; {'starting it again' if attempt + 1 < _TIMES else 'giving it up'}")
            if attempt + 1 < _TIMES and self._stopping.wait(_PAUSE_SECONDS * 2**attempt):
                return


def _run_key(job: NodeJob, orders: Mapping[str, Any]) -> SealKey:
    """The transfer's key. Refuses orders without its seal: the job's submitter did not write them."""
    secret = job.secret(SPREAD_KEY)
    if not orders.get("run") or not secret:
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


def _move_shards(job: NodeJob, orders: Mapping[str, Any], places: JobPlaces, run: SealKey, worker: int) -> int:
    number = job.node_rank * int(orders["workers"]) + worker
    name = f"node{job.node_rank}.{worker}"
    place = SealedStore(open_place(orders, places), worker_keys(run, name), orders["run"], _print_line)
    # Restarted workers take their own claims back at once.
    holder = str(uuid.uuid5(uuid.UUID(orders["owner"]), name))
    settings = ShardWorkerSettings(name, number, holder, orders["cap_mbps"])
    # Claims and records must not wait behind files, or the claim expires.
    pace = Pace()
    ends = _all_ends(orders, places.keeping_to(pace))
    engine = DirectEngine(
        source_sas=lambda end: places.sas(str(end.store.container)),
        processes=int(orders["workers"]),
        comparing=_compares(orders),
    )
    known = {_key(each): each for each in ends}
    shards = ShardWorker(place, known, engine, settings, _interrupt, _print_line, pace=pace)
    try:
        if shards.is_over():
            # The end of the transfer removes its probes.
            return 0
        for given in orders["ends"]:
            problem = probe_problem(given.get("probe"))
            if problem:
                shards.refuse(f"{os.uname().nodename}: {problem}")
                _print_line(problem)
                return 0
        if problem := _source_problem(ends):
            shards.refuse(f"{os.uname().nodename}: {problem}")
            _print_line(problem)
            return 0
        shards.work()
    except StorageError as error:
        _print_line(error.message)
        return 1
    return 0


def open_place(orders: Mapping[str, Any], places: JobPlaces, which: str = "path") -> SharedStore:
    """The store of the shards (``path``), or of the parent's claim (``claims``)."""
    if not orders["container"]:
        return FolderStore(Path(orders[which]))
    store = places.container(orders["container"])
    return ContainerStore(store, store.leases(), orders[which])


def _all_ends(orders: Mapping[str, Any], places: JobPlaces) -> list[Ends]:
    return [Ends(_end(each["source"], places), _end(each["destination"], places)) for each in orders["ends"]]


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


def _key(ends: Ends) -> tuple[str, str]:
    return str(ends.source), str(ends.destination)


def _end(given: Mapping[str, Any], places: JobPlaces) -> OpenLocation:
    if "root" in given:
        return LocalLocation.from_json(given)
    if "source" in given:
        return OpenBlob(open_source(given["source"], os.environ), given["name"])
    return OpenBlob(places.container(given["container"]), given["name"])


def _interrupt_at_end_of_input() -> None:
    """Interrupt this process at the end of standard input (its parent has exited) and on SIGTERM.

    To the engine that is Ctrl-C, after which it cleans up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch() -> None:
        while os.read(0, 4096):
            time.sleep(0)
        _interrupt()

    threading.Thread(target=watch, daemon=True).start()


def _interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _print_line(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except (OSError, BlobsyncError):
        # The reader has gone.
        return
