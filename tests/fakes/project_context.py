"""A project with containers in memory, without the network and azcopy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blobsync.base.events import Listener, SilentListener
from blobsync.base.locations import BlobLocation
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.config.sources import BucketAccess
from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.direct.thread_pool import Stopping
from blobsync.local.disks import LocalDisks
from blobsync.local.index import Index
from blobsync.local.resume_records import BlockJournal, RangeRecords
from blobsync.local.sorted_runs import Spill
from blobsync.plan.engine_model import EngineRules, RequestedEngine
from blobsync.plan.planner import make_plan
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import Connections
from blobsync.store.protocol import BlobStore
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import Engine, Engines
from tests.fakes.source_store import MemorySource
from tests.fakes.store import MemoryStore

DEFAULTS = TransferOptions()
SILENT = SilentListener()


def account(name: str, container: str = "data") -> StorageAccount:
    """An account whose endpoint does not exist."""
    return StorageAccount(f"aux_data/configs/{name}.yaml", name, container, f"http://127.0.0.1:1/{name}")


def bucket(name: str) -> StorageAccount:
    """A bucket of a service that does not exist."""
    return StorageAccount(f"aux_data/configs/{name}.yaml", "", name, "https://s3.example", bucket=BucketAccess())


def cluster(name: str, **folders: StorageAccount) -> Cluster:
    """A cluster with one folder entry for each keyword (``__`` stands for ``/``), below ``store/``."""
    entries = tuple(
        FolderEntry(prefix.replace("__", "/"), each, f"store/{prefix.replace('__', '/')}")
        for prefix, each in folders.items()
    )
    return Cluster(name, f"aux_data/aml/{name}.yaml", Path("/nowhere"), folders=entries)


def rules(options: TransferOptions, problem: str | None) -> EngineRules:
    """The choice of engine for ``options``, on a machine with two cores."""
    requested = (
        RequestedEngine(options.engine, f"--engine {options.engine} was given") if options.engine else RequestedEngine()
    )
    return EngineRules(lambda *_: problem, requested, 2)


class _Connections(Connections):
    """Credentials are not looked at, and the test says why a service may not fetch from a source."""

    why = ""

    def check(self, location: BlobLocation, needs: str) -> tuple[str, ...]:
        return ()

    def why_not_fetched(self, source: BlobLocation, destination: BlobLocation) -> str:
        return self.why


@dataclass
class World:
    """A project at ``root``; ``stores`` are its containers by account name."""

    root: Path
    here: Cluster
    there: Cluster | None = None
    stores: dict[str, MemoryStore] = field(default_factory=dict)
    sources: dict[str, MemorySource] = field(default_factory=dict)
    relay_allowed: bool = False
    why_not_fetched: str = ""
    unfinished: RangeRecords | None = None
    stopping: Stopping = Stopping()  # noqa: RUF009 - it has no state
    spill: Spill = field(default_factory=Spill)
    disks: LocalDisks = LocalDisks()  # noqa: RUF009 - it is frozen

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.index = Index(self.root / "index.sqlite")
        self.journal = BlockJournal(self.root / "unfinished.sqlite")

    def store(self, name: str) -> MemoryStore:
        """The container of an account."""
        if name not in self.stores:
            self.stores[name] = MemoryStore(others=self.stores)
            self.stores[name].container_url = account(name).container
        return self.stores[name]

    def source(self, name: str) -> MemorySource:
        """The bucket of this name."""
        if name not in self.sources:
            self.sources[name] = MemorySource(name)
            self.stores[f"bucket {name}"] = self.sources[name].inner
        return self.sources[name]

    def write(self, path: str, body: bytes) -> Path:
        """Write a file of the project, which is named from its root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return file

    def _connect(self, of: StorageAccount) -> BlobStore:
        if of.bucket is not None:
            return self.source(of.container_name)
        return self.store(of.account_name)

    def context(self, *, copy: bool = False) -> ProjectContext:
        clusters = [self.here, *([self.there] if self.there else [])]
        far = self.there if copy else None
        connections = _Connections(clusters, self._connect)
        connections.why = self.why_not_fetched
        return ProjectContext(
            self.root,
            self.root,
            self.here,
            far,
            connections,
            self.index,
            self.journal,
            unfinished=self.unfinished,
            spill=self.spill,
            disks=self.disks,
        )

    def plan(self, command: str, *paths: str, options: TransferOptions = DEFAULTS, copy: bool = False) -> TransferPlan:
        context, direction = self.context(copy=copy), Direction(command)
        return make_plan(context, direction, paths, options, rules(options, None), SilentListener())

    def run(
        self,
        command: str,
        *paths: str,
        options: TransferOptions = DEFAULTS,
        copy: bool = False,
        azcopy: Callable[[], Engine] = DirectEngine,
    ) -> TransferResult:
        problem = "it is not part of this test"
        context, direction = self.context(copy=copy), Direction(command)
        plan = make_plan(context, direction, paths, options, rules(options, problem), SilentListener())
        return self.carry_out(plan, azcopy=azcopy)

    def carry_out(
        self,
        plan: TransferPlan,
        *,
        azcopy: Callable[[], Engine] = DirectEngine,
        relay: Callable[[], Engine] = RelayEngine,
        direct: Callable[[], Engine] | None = None,
        listener: Listener = SILENT,
    ) -> TransferResult:
        """Carry out a plan, as a command does."""
        context = self.context(copy=plan.from_cluster is not None)
        own = direct or (
            lambda: DirectEngine(
                source_sas=lambda _: None, journal=self.journal, unfinished=self.unfinished, stopping=self.stopping
            )
        )
        engines = Engines(
            {"direct": own, "relay": relay, "azcopy": azcopy},
            relay_allowed=self.relay_allowed,
            unfinished=self.unfinished,
        )
        receipts = self.root / "receipts"
        receipts.mkdir(exist_ok=True)
        return carry_out(plan, context, engines, listener, receipts, self.spill)
