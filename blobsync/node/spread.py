"""The workers of a spread transfer on this node: what starts them, and starts them again, and one of them."""

from __future__ import annotations

import hmac
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, StorageError, TransferCancelledError
from blobsync.base.process import ProcessRunner, RunningProcess, SubprocessRunner
from blobsync.base.redaction import redact
from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.jobspec.spec import SPREAD_KEY
from blobsync.node.job import NodeJob
from blobsync.node.places import JobPlaces
from blobsync.node.ranks import NotReadyError
from blobsync.node.spread_parent import run_parent
from blobsync.spread.probe import probe_problem
from blobsync.spread.sealed_store import SealedStore, orders_seal, parent_keys, worker_keys
from blobsync.spread.shard import end_text
from blobsync.spread.shard_worker import Ends, ShardWorker, ShardWorkerSettings
from blobsync.spread.shared_store import ContainerStore, FolderStore, SharedStore
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd
from blobsync.store.rest.http import Pace

# A worker that was lost is started again so often, each time after a longer pause (seconds): its line may be cut for a
# minute.
_TIMES = 7
_PAUSE_SECONDS = 1.0
# The worker number of a detached transfer's parent.
PARENT = -1


def run_spread(job: NodeJob, places: JobPlaces, worker: int | None) -> int:
    """All workers of the node, or one of them."""
    orders = job.spec.spread
    if orders is None:
        raise NotReadyError("the job is no transfer")
    run = _run_key(job, orders)
    if worker is None:
        return _Workers(job, SubprocessRunner()).run(_numbers(job, orders))
    _listen_for_the_end()
    try:
        if worker == PARENT:
            alone = DirectEngine(source_sas=lambda end: places.sas(str(end.store.container)))
            raw, claims = open_place(orders, places), open_place(orders, places, "claims")
            place = SealedStore(raw, parent_keys(run), orders["run"], _tell, session=orders["run"])
            return run_parent(job, place, _all_ends(orders, places), alone, _tell, claims=claims)
        return _haul(job, orders, places, run, worker)
    except TransferCancelledError as stop:
        _tell(stop.message)
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM


def _numbers(job: NodeJob, orders: Mapping[str, Any]) -> list[int]:
    parent = [PARENT] if orders["detach"] and job.node_rank == 0 else []
    return [*parent, *range(int(orders["workers"]))]


class _Workers:
    """One process for each worker; one that is killed or fails is started again."""

    def __init__(self, job: NodeJob, runner: ProcessRunner) -> None:
        self._words = job.own_words("spread")
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
        # A detached parent's code is the job's.
        return self._codes.get(PARENT, max(self._codes.values(), default=0))

    def _serve(self, number: int) -> None:
        for attempt in range(_TIMES):
            process = self._runner.start((*self._words, "--worker", str(number)), env=os.environ)
            self._running[number] = process
            for line in process.lines():
                _tell(f"worker {number}: {line}")
            code = process.wait() or 0
            if said := process.stderr_tail():
                _tell(redact(f"worker {number}: {said}"))
            self._codes[number] = 128 - code if code < 0 else code
            # The parent's own codes tell how the transfer ended.
            if code == 0 or (number == PARENT and 0 < code < 128) or self._stopping.is_set():
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            _tell(f"worker {number} {how}; {'starting it again' if attempt + 1 < _TIMES else 'giving it up'}")
            if attempt + 1 < _TIMES and self._stopping.wait(_PAUSE_SECONDS * 2**attempt):
                return


def _run_key(job: NodeJob, orders: Mapping[str, Any]) -> SealKey:
    """The transfer's key. Orders that do not have its seal were not given by who submitted the job."""
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


def _haul(job: NodeJob, orders: Mapping[str, Any], places: JobPlaces, run: SealKey, worker: int) -> int:
    number = job.node_rank * int(orders["workers"]) + worker
    name = f"node{job.node_rank}.{worker}"
    place = SealedStore(open_place(orders, places), worker_keys(run, name), orders["run"], _tell)
    # Workers that were started again take back at once what they had.
    holder = str(uuid.uuid5(uuid.UUID(orders["owner"]), name))
    settings = ShardWorkerSettings(name, number, holder, orders["cap_mbps"])
    # Claims and records must not wait with the files, or the claim runs out.
    pace = Pace()
    ends = _all_ends(orders, places.keeping_to(pace))
    engine = DirectEngine(source_sas=lambda end: places.sas(str(end.store.container)), processes=int(orders["workers"]))
    known = {_key(each): each for each in ends}
    hauler = ShardWorker(place, known, engine, settings, _interrupt, _tell, pace=pace)
    try:
        if hauler.is_over():
            # Whoever ended the transfer has taken its probes along.
            return 0
        for given in orders["ends"]:
            problem = probe_problem(given.get("probe"))
            if problem:
                hauler.refuse(f"{os.uname().nodename}: {problem}")
                _tell(problem)
                return 0
        hauler.work()
    except StorageError as error:
        _tell(error.message)
        return 1
    return 0


def open_place(orders: Mapping[str, Any], places: JobPlaces, which: str = "path") -> SharedStore:
    """Where the job's parent has put the shards (``path``), or has its claim (``claims``)."""
    if not orders["container"]:
        return FolderStore(Path(orders[which]))
    store = places.container(orders["container"])
    return ContainerStore(store, store.leases(), orders[which])


def _all_ends(orders: Mapping[str, Any], places: JobPlaces) -> list[Ends]:
    return [Ends(_end(each["source"], places), _end(each["destination"], places)) for each in orders["ends"]]


def _key(ends: Ends) -> tuple[str, str]:
    return end_text(ends.source), end_text(ends.destination)


def _end(given: Mapping[str, Any], places: JobPlaces) -> LiveEnd:
    if "root" in given:
        return LocalEnd(Path(given["root"]), tuple(map(Path, given["boundary"])))
    return RemoteEnd(places.container(given["container"]), given["name"])


def _listen_for_the_end() -> None:
    """Who started us has gone when our input ends. What stops us is Ctrl-C to the engine, which then cleans up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch() -> None:
        while os.read(0, 4096):
            time.sleep(0)
        _interrupt()

    threading.Thread(target=watch, daemon=True).start()


def _interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _tell(text: str) -> None:
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except (OSError, BlobsyncError):
        # Nobody reads it any more.
        return
