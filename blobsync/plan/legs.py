"""From PATHs to legs: pairs of ends between which files move, each with its place in the index. Looks at nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import UsageError
from blobsync.config.mapping import Resolution, project_relative, resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.config.trusted_links import OutsideLink
from blobsync.local.index import Index
from blobsync.plan.transfer_plan import TransferOptions
from blobsync.store.connections import Connections
from blobsync.store.ends import LiveEnd, LocalEnd


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """Where a command stands: the project, its two clusters and what reaches them."""

    root: Path
    cwd: Path
    cluster: Cluster
    from_cluster: Cluster | None
    connections: Connections
    index: Index
    trusted: frozenset[OutsideLink] = frozenset()


class Leg(NamedTuple):
    """One PATH, or the part of it that a nested folder entry maps elsewhere (then ``optional``)."""

    shown: str
    source: LiveEnd
    destination: LiveEnd
    record_roots: tuple[str, str]
    record_path: str
    folder_only: bool
    optional: bool
    elsewhere: tuple[str, ...]


def rooted(context: ProjectContext, given: str) -> str:
    """A PATH as typed, from the project's root; a slash at its end stays. Raises ``MappingError``."""
    path = project_relative(given, cwd=context.cwd, root=context.root)
    return f"{path}/" if given.endswith("/") else path


def legs(context: ProjectContext, command: str, paths: Sequence[str], options: TransferOptions) -> tuple[Leg, ...]:
    """Both ends of each PATH (from the project's root), for ``u`` or ``d``.

    Raises mapping errors, and ``UsageError`` on a bad combination.
    """
    if options.from_path is not None and len(paths) != 1:
        raise UsageError("--from-path goes with exactly one PATH", hint="run one command for each")
    if command == "u" and options.from_path is not None and context.from_cluster is None:
        raise UsageError("--from-path of an upload names a path of another cluster", hint="pass -f CLUSTER with it")
    found: list[Leg] = []
    for path in paths:
        found += _legs_of(context, command, path, options)
    chosen: dict[str, Leg] = {}
    for leg in found:
        # A PATH that was given stays one that has to be there, also where it is part of another one.
        if leg.shown not in chosen or (chosen[leg.shown].optional and not leg.optional):
            chosen[leg.shown] = leg
    return tuple(
        leg for leg in chosen.values() if not any(_covers(other, leg) for other in chosen.values() if other is not leg)
    )


def _covers(one: Leg, other: Leg) -> bool:
    """Whether ``other`` moves anyway as a part of ``one``."""
    return other.shown.startswith(f"{one.shown}/") and not any(
        other.shown == f"{one.shown}/{inner}" or other.shown.startswith(f"{one.shown}/{inner}/")
        for inner in one.elsewhere
    )


def _legs_of(context: ProjectContext, command: str, path: str, options: TransferOptions) -> Iterator[Leg]:
    """The PATH itself, and each prefix below it that an entry of either cluster maps elsewhere.

    Both clusters count, whichever end is theirs: what one of them keeps apart is neither looked for below the
    other's folder nor put there.
    """
    far = context.from_cluster
    here = context.cluster if command == "u" or far is None else far

    def place(path: str, cluster: Cluster) -> Resolution:
        return resolve(path, cwd=context.root, root=context.root, cluster=cluster)

    target = place(path, here)
    origin = place(options.from_path or path, far or context.cluster)
    inner = _apart(context, origin, target)
    yield _leg(context, command, origin, target, inner, optional=False)
    for below in inner:
        start = place(f"{origin.path}/{below}", far or context.cluster)
        end = place(f"{target.path}/{below}", here)
        deeper = tuple(other[len(below) + 1 :] for other in inner if other.startswith(f"{below}/"))
        yield _leg(context, command, start, end, deeper, optional=True)


def _apart(context: ProjectContext, origin: Resolution, target: Resolution) -> tuple[str, ...]:
    """What lies below both ends and is mapped elsewhere by either cluster, as paths below the ends."""
    clusters = [context.cluster, *([context.from_cluster] if context.from_cluster else [])]
    ends = {origin.path, target.path}
    return tuple(
        sorted({prefix[len(end) + 1 :] for end in ends for cluster in clusters for prefix in nested(end, cluster)})
    )


def nested(path: str, cluster: Cluster) -> tuple[str, ...]:
    """The prefixes below ``path`` that folder entries of their own map elsewhere."""
    return tuple(sorted(prefix for prefix in cluster.prefixes if prefix.startswith(f"{path}/")))


def _leg(
    context: ProjectContext,
    command: str,
    origin: Resolution,
    target: Resolution,
    elsewhere: tuple[str, ...],
    *,
    optional: bool,
) -> Leg:
    connections = context.connections
    source: LiveEnd
    destination: LiveEnd
    if command == "d":
        source, destination = connections.end(origin.remote), LocalEnd(target.local)
    elif context.from_cluster is not None:
        source, destination = connections.end(origin.remote), connections.end(target.remote)
    else:
        source, destination = LocalEnd(origin.local), connections.end(target.remote)
    near = origin.entry if command == "u" and context.from_cluster is not None else None
    roots, record_path = _record_place(near, origin, target, command)
    return Leg(
        shown=target.path,
        source=source,
        destination=destination,
        record_roots=roots,
        record_path=record_path,
        folder_only=origin.folder_only or target.folder_only,
        optional=optional,
        elsewhere=elsewhere,
    )


def _record_place(
    near: FolderEntry | None, origin: Resolution, target: Resolution, command: str
) -> tuple[tuple[str, str], str]:
    """The two roots that the index knows this pair of ends by, and the path below both."""
    remote = origin if command == "d" else target
    if near is None and origin.path == target.path:
        return (remote.entry.prefix, str(remote.entry.remote)), remote.relative
    if near is None:
        return (target.path, str(remote.remote)), ""
    # Entries may begin at different depths on the two sides: the record lies below what both have in common.
    common = _common_end(origin.relative, target.relative)
    first = near.remote.child(origin.relative.removesuffix(common).rstrip("/"))
    second = target.entry.remote.child(target.relative.removesuffix(common).rstrip("/"))
    return (str(first), str(second)), common


def _common_end(one: str, other: str) -> str:
    """The last parts that two paths share."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return "/".join(reversed([part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]))
