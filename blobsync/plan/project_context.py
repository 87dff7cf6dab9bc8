"""The project of a command: its clusters, index and stores; opens the parts of a plan."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from blobsync.base.locations import BlobLocation, LocalLocation, Location
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.config.mapping import is_below
from blobsync.config.model import Cluster
from blobsync.config.project_root import STATE_FOLDER
from blobsync.config.trust_store import OutsideLink
from blobsync.local.disks import LocalDisks
from blobsync.local.index import Index, PairIndex
from blobsync.local.link_policy import demand_trust, way_to
from blobsync.local.resume_records import BlockJournal, RangeRecords
from blobsync.local.sorted_runs import Spill
from blobsync.plan.transfer_plan import EngineChoice, IndexKey, Part, PlanPart, Shape, TransferPlan
from blobsync.store.open_locations import Connections, OpenLocation, location_of

if TYPE_CHECKING:
    from blobsync.base.errors import FileFailure
    from blobsync.plan.transfer_options import TransferOptions
    from blobsync.store.old_contents import OldContent

LivePart: TypeAlias = Part[OpenLocation]


def direct_plan(
    cluster: str, parts: Sequence[LivePart], options: TransferOptions, why: str, unseen: tuple[FileFailure, ...] = ()
) -> TransferPlan:
    """The plan of parts that have their actions, for the direct engine; ``unseen`` files could not be read."""
    return TransferPlan(
        route=parts[0].route,
        cluster=cluster,
        from_cluster=None,
        paths=tuple(part.path for part in parts),
        options=options,
        parts=tuple(part.between(location_of(part.source), location_of(part.destination)) for part in parts),
        engine=EngineChoice("direct", why),
        unreadable=unseen,
        created_at=time.time(),
    )


def key_between(source: OpenLocation, destination: OpenLocation) -> IndexKey:
    """The key of a part that is recorded under its own two ends, not under a folder entry."""
    return IndexKey(location_of(source), location_of(destination), "")


class PartOpener(Protocol):
    """Opens the parts of a plan in a project, or on a compute node."""

    def opened(self, part: PlanPart) -> LivePart:
        """The part with the stores behind its ends; touches no network."""
        ...

    def records(self, key: IndexKey) -> PairIndex:
        """What the index knows between the two roots of a part."""
        ...


class OpenedParts(NamedTuple):
    """The parts of a plan, which are open already."""

    parts: Sequence[LivePart]
    known: Index

    def opened(self, part: PlanPart) -> LivePart:
        return next(each for each in self.parts if each.key == part.key)

    def records(self, key: IndexKey) -> PairIndex:
        return self.known.pair(*key.roots)


@dataclass(frozen=True, eq=False, repr=False)
class ProjectContext:
    """The project, its two clusters and what reaches them. ``unfinished`` are the downloads that were killed.

    ``spill`` says how much of a plan memory may hold, and where the rest goes; ``disks``, how much room there is.
    ``stop`` ends the planning as Ctrl-C does. ``kept`` is where this run keeps the local files that it replaces.
    """

    root: Path
    cwd: Path
    cluster: Cluster
    from_cluster: Cluster | None
    connections: Connections
    index: Index
    journal: BlockJournal
    trusted: frozenset[OutsideLink] = frozenset()
    unfinished: RangeRecords | None = None
    spill: Spill = field(default_factory=Spill)
    disks: LocalDisks = LocalDisks()
    stop: StopRequest = NEVER
    kept: Path | None = None
    # What plans name that is no current blob.
    old_contents: dict[tuple[str, str, str], OldContent] = field(default_factory=dict)

    def opened(self, part: PlanPart) -> LivePart:
        """The part with the stores behind its ends; touches no network."""
        return part.between(self._open(part.source, part), self._open(part.destination, part))

    def records(self, key: IndexKey) -> PairIndex:
        """What the index knows between the two roots of a part."""
        return self.index.pair(*key.roots)

    def demand_trust(self, paths: Iterable[str]) -> None:
        """Raise ``UntrustedLinkError`` if a link on the way to ``paths``, from the root, is not trusted."""
        demand_trust(self.root, paths, self.trusted)

    def _open(self, end: Location, part: PlanPart) -> OpenLocation:
        """A container's with its store, a local one with what no link may lead a write out of."""
        if isinstance(end, BlobLocation):
            opened = self.connections.open(end)
            if not self.old_contents:
                return opened
            from blobsync.store.old_contents import with_old_contents  # late: few plans name one

            return with_old_contents(opened, self.old_contents)
        path = end.path
        entered = [Path(place) for place in way_to(self.root, part.path, self.trusted).entered]
        below = [Path(link.target) for link in self.trusted if link.link.startswith(f"{part.path}/")]
        if part.shape is Shape.FILE:
            # A link that was named is followed, a file's too, whose folder then is the one to write in.
            path = Path(os.path.realpath(path)) if path.is_symlink() else path
            entered = [place.parent if place == path else place for place in entered]
        root = Path(os.path.realpath(self.root))
        # No entry of a cluster file leads into blobsync's own folder: init --folder uploads what it has put there.
        inside = root / os.path.relpath(path, self.root)
        own = (
            [inside]
            if is_below(str(inside), str(root / STATE_FOLDER)) and inside == Path(os.path.realpath(path))
            else []
        )
        return LocalLocation(path, (root, *own, *entered, *below), self.kept / part.path if self.kept else None)
