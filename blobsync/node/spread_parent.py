"""The parent of a detached transfer, on node 0 of its job: carries out the plan that was left at the place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from blobsync.base.errors import StorageError
from blobsync.base.failure_codes import ExitCode
from blobsync.base.plain_json import parse_object
from blobsync.local.index import Index, PairIndex
from blobsync.node.job import NodeJob
from blobsync.plan.listener import SilentListener
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import End, EngineChoice, FileAction, IndexKey, Part, PlanPart, TransferPlan
from blobsync.spread.coordinator_lock import CoordinatorLock
from blobsync.spread.probe import remove_probe
from blobsync.spread.shard import Shard, end_text
from blobsync.spread.shard_worker import Ends, read_shard
from blobsync.spread.shared_store import SharedStore
from blobsync.spread.spread_engine import SpreadEngine
from blobsync.store.ends import LiveEnd, LocalEnd
from blobsync.transfer.carry_out import Engines, carry_out
from blobsync.transfer.engines import Engine

# This many failures are told one by one; the result has all.
_TOLD = 100
_ENGINE = EngineChoice("direct", "nodes have no other engine")


def run_parent(
    job: NodeJob,
    place: SharedStore,
    ends: Sequence[Ends],
    alone: Engine,
    told: Callable[[str], None],
    *,
    poll: float = 1.0,
    claims: SharedStore | None = None,
) -> int:
    """Move all of it, look at the destination, and leave the result at the place; the code that ``u`` would end with.
    ``alone`` is the engine of this process. ``poll`` is how long records are waited for, in seconds. ``claims`` is
    where the parent's claim is, if that is another place.

    Started again, it cuts the same shards, and hears of those that are done. What an earlier one has left as the result
    of this job is the result: nothing is tried again.
    """
    result = _earlier_result(job, place)
    if result is not None:
        # It was killed before it could end: the workers may still wait for it.
        place.write("alive", b"")
    else:
        result = _carry_out(job, place, ends, alone, told, poll, claims or place)
    # Not after an interrupt: where the job goes on on another node, its workers look for them.
    for each in _orders(job)["ends"]:
        remove_probe(each.get("probe"))
    for failure in result.failures[:_TOLD]:
        told(f"{failure['message']} ({failure['code']})")
    told(f"{result.verified:,} files verified, {len(result.failures):,} failed")
    return result.exit_code


class _Result(NamedTuple):
    """What is left at the place. ``job`` is the run id of the job that it is the result of."""

    job: str
    exit_code: int
    transferred: int
    verified: int
    failures: Sequence[Mapping[str, str]]


def _orders(job: NodeJob) -> Mapping[str, Any]:
    return job.spec.spread or {}


def _earlier_result(job: NodeJob, place: SharedStore) -> _Result | None:
    """What cannot be the result of this job counts as none."""
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
    told: Callable[[str], None],
    poll: float,
    claims: SharedStore,
) -> _Result:
    orders = _orders(job)
    index = Index(job.beside("index.sqlite"), told)
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
            options=TransferOptions(engine="direct"),
            parts=tuple(_plain(part) for part in parts),
            engine=_ENGINE,
            created_at=time.time(),
        )
        found = carry_out(plan, _Opened(parts, index), Engines({"direct": lambda: engine}), _Telling(told), None)
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
    known = {(end_text(each.source), end_text(each.destination)): each for each in ends}
    actions: dict[tuple[str, str], list[FileAction]] = {}
    first: dict[tuple[str, str], Shard] = {}
    for shard in shards:
        key = shard.source, shard.destination
        actions.setdefault(key, []).extend(shard.actions)
        first.setdefault(key, shard)
    return [
        Part(
            shard.path,
            shard.route,
            known[key].source,
            known[key].destination,
            IndexKey(shard.path, " ".join(key), ""),
            actions=tuple(actions[key]),
        )
        for key, shard in first.items()
    ]


def _plain(part: LivePart) -> PlanPart:
    source, destination = _plain_end(part.source), _plain_end(part.destination)
    return Part(part.path, part.route, source, destination, part.key, part.shape, part.actions)


def _plain_end(end: LiveEnd) -> End:
    return end.root if isinstance(end, LocalEnd) else end.store.container.blob(end.name)


class _Opened(NamedTuple):
    """Opens the parts of a plan: they are open already."""

    parts: list[LivePart]
    known: Index

    def opened(self, part: PlanPart) -> LivePart:
        return next(each for each in self.parts if each.key == part.key)

    def records(self, key: IndexKey) -> PairIndex:
        return self.known.pair(key.near, key.remote)


class _OwnJob:
    """The workers are those of the job that this runs in."""

    def start(self) -> None: ...

    def ended(self) -> str | None:
        return None

    def stop(self) -> None: ...


class _Telling(SilentListener):
    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def note(self, text: str) -> None:
        self._told(text)
