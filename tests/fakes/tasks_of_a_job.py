"""Jobs of tasks in this process, for the engine that spreads a transfer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blobsync.base.seals import SealKey
from blobsync.direct.engine import DirectEngine
from blobsync.plan.project_context import LivePart
from blobsync.spread.shard import Shard, cut, shard_body
from blobsync.spread.shared_store import FolderStore, SealedStore
from blobsync.spread.spread_engine import Cutter
from blobsync.spread.task import Ends, Task, Tools, task_name
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Engine, MoveTask
from tests.fakes.store import MemoryStore

KEY = SealKey(bytes(range(32)))


def ends_of(*parts: LivePart) -> dict[tuple[str, str], Ends]:
    return {(str(each.source), str(each.destination)): Ends(each.source, each.destination) for each in parts}


def put_shard(place: SealedStore, task: MoveTask) -> None:
    """Leave all files of ``task`` to task 0."""
    (shard,) = cut(task.part, task.actions, 1)
    place.write(f"shards/{task_name(0)}", shard_body(shard))


def store_of(task: MoveTask) -> MemoryStore:
    """The store at the destination."""
    assert isinstance(task.part.destination, OpenBlob)
    store = task.part.destination.store
    assert isinstance(store, MemoryStore)
    return store


def task_of(
    place: SealedStore, number: int, parts: Sequence[LivePart], engine: Engine | None = None, **words: object
) -> Task:
    tools = Tools(ends_of(*parts), engine or DirectEngine())
    return Task(place, number, lambda: tools, lambda text: None, **words)  # type: ignore[arg-type]


@dataclass
class Job:
    """One job: its tasks are carried out when it begins, except the ``lost`` ones."""

    shards: Sequence[Shard]
    place: SealedStore
    over: str | None = "Completed"
    stopped: bool = False

    def ended(self) -> str | None:
        return self.over

    def stop(self) -> None:
        self.stopped = True


@dataclass
class Jobs:
    """Begins jobs. ``do`` gets each job and carries out its tasks; by default all of them."""

    folder: Path
    parts: Sequence[LivePart]
    wanted: int = 3
    do: Callable[[Jobs, Job], None] = field(default=lambda jobs, job: jobs.carry(job))
    warned: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    def begin(self, cutter: Cutter) -> Job:
        run = f"run{len(self.jobs)}"
        place = SealedStore(FolderStore(self.folder / run), KEY.derive(run), run, self.warned.append)
        job = Job(cutter(self.wanted), place)
        for shard in job.shards:
            place.write(f"shards/{task_name(shard.number)}", shard_body(shard))
        self.jobs.append(job)
        self.do(self, job)
        return job

    def carry(self, job: Job, *, without: Sequence[int] = (), engine: Engine | None = None) -> None:
        for shard in job.shards:
            if shard.number not in without:
                task_of(job.place, shard.number, self.parts, engine).run()
