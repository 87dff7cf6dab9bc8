"""From PATHs to a plan: resolve both ends, survey them, let the planner decide. Touches nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from blobsync import names
from blobsync.config.model import Cluster, FolderEntry
from blobsync.connections import Connections
from blobsync.engines import Listener, LiveEnd, LocalEnd
from blobsync.errors import NothingMatchedError, UsageError
from blobsync.index import Index
from blobsync.ledger import LivePart
from blobsync.local_tree import ignores_case, link_policy
from blobsync.mapping import Resolution, project_relative, resolve
from blobsync.plan import (
    Action,
    End,
    FileFailure,
    PlanPart,
    Route,
    Shape,
    TransferOptions,
    TransferPlan,
)
from blobsync.planner import check_names, choose_engine, decide_all, guard_mirror, is_bulk
from blobsync.selection import selector
from blobsync.survey import Request, survey
from blobsync.transfer import route_of


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a command stands: the project, its two clusters and what reaches them."""

    root: Path
    cwd: Path
    cluster: Cluster
    from_cluster: Cluster | None
    connections: Connections
    index: Index


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


def rooted(ground: Ground, given: str) -> str:
    """A PATH as typed, from the project's root; a slash at its end stays. Raises ``MappingError``."""
    path = project_relative(given, cwd=ground.cwd, root=ground.root)
    return f"{path}/" if given.endswith("/") else path


def legs(ground: Ground, command: str, paths: Sequence[str], options: TransferOptions) -> tuple[Leg, ...]:
    """Both ends of each PATH (from the project's root), for ``u`` or ``d``.

    Raises mapping errors, and ``UsageError`` on a bad combination.
    """
    if options.from_path is not None and len(paths) != 1:
        raise UsageError("--from-path goes with exactly one PATH", hint="run one command for each")
    if command == "u" and options.from_path is not None and ground.from_cluster is None:
        raise UsageError("--from-path of an upload names a path of another cluster", hint="pass -f CLUSTER with it")
    found: list[Leg] = []
    for path in paths:
        found += _legs_of(ground, command, path, options)
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


def _legs_of(ground: Ground, command: str, path: str, options: TransferOptions) -> Iterator[Leg]:
    """The PATH itself, and each prefix below it that an entry of either cluster maps elsewhere.

    Both clusters count, whichever end is theirs: what one of them keeps apart is neither looked for below the
    other's folder nor put there.
    """
    far = ground.from_cluster
    here = ground.cluster if command == "u" or far is None else far

    def place(path: str, cluster: Cluster) -> Resolution:
        return resolve(path, cwd=ground.root, root=ground.root, cluster=cluster)

    target = place(path, here)
    origin = place(options.from_path or path, far or ground.cluster)
    inner = _apart(ground, origin, target)
    yield _leg(ground, command, origin, target, inner, optional=False)
    for below in inner:
        start = place(f"{origin.path}/{below}", far or ground.cluster)
        end = place(f"{target.path}/{below}", here)
        deeper = tuple(other[len(below) + 1 :] for other in inner if other.startswith(f"{below}/"))
        yield _leg(ground, command, start, end, deeper, optional=True)


def _apart(ground: Ground, origin: Resolution, target: Resolution) -> tuple[str, ...]:
    """What lies below both ends and is mapped elsewhere by either cluster, as paths below the ends."""
    clusters = [ground.cluster, *([ground.from_cluster] if ground.from_cluster else [])]
    ends = {origin.path, target.path}
    return tuple(
        sorted({prefix[len(end) + 1 :] for end in ends for cluster in clusters for prefix in nested(end, cluster)})
    )


def nested(path: str, cluster: Cluster) -> tuple[str, ...]:
    """The prefixes below ``path`` that folder entries of their own map elsewhere."""
    return tuple(sorted(prefix for prefix in cluster.prefixes if prefix.startswith(f"{path}/")))


def _leg(
    ground: Ground, command: str, origin: Resolution, target: Resolution, elsewhere: tuple[str, ...], *, optional: bool
) -> Leg:
    connections = ground.connections
    source: LiveEnd
    destination: LiveEnd
    if command == "d":
        source, destination = connections.end(origin.remote), LocalEnd(target.local, _boundary(ground, target))
    elif ground.from_cluster is not None:
        source, destination = connections.end(origin.remote), connections.end(target.remote)
    else:
        source, destination = LocalEnd(origin.local, _boundary(ground, origin)), connections.end(target.remote)
    near = origin.entry if command == "u" and ground.from_cluster is not None else None
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


def _boundary(ground: Ground, target: Resolution) -> Path:
    """What no link may lead a download out of: the project, or the mapped folder where that is on another disk."""
    real_root = Path(os.path.realpath(ground.root))
    mapped = ground.root / target.entry.prefix
    return ground.root if Path(os.path.realpath(mapped)).is_relative_to(real_root) else mapped


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


def request_for(ground: Ground, leg: Leg, options: TransferOptions) -> Request:
    """What the survey has to look at for one leg."""
    local = [end.root for end in (leg.source, leg.destination) if isinstance(end, LocalEnd)]
    mapped = [ground.root / entry.prefix for entry in ground.cluster.folders]
    return Request(
        shown=leg.shown,
        route=route_of(leg.source, leg.destination),
        source=leg.source,
        destination=leg.destination,
        links=link_policy(options.links, ground.root, *local, *mapped),
        records=ground.index.pair(*leg.record_roots),
        record_path=leg.record_path,
        folder_only=leg.folder_only,
        wanted=_wanted(leg, options),
        compare_content=options.compare_content,
    )


def _wanted(leg: Leg, options: TransferOptions) -> Callable[[str], bool] | None:
    chosen = selector(options.include, options.exclude)
    if not leg.elsewhere:
        return chosen
    folders = tuple(f"{inner}/" for inner in leg.elsewhere)
    # An entry may be a single file's.
    files = frozenset(leg.elsewhere)
    return lambda path: path not in files and not path.startswith(folders) and (chosen is None or chosen(path))


@dataclass(slots=True)
class _Found:
    """What the legs of one plan add up to."""

    parts: list[PlanPart] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreadable: list[FileFailure] = field(default_factory=list)
    extras: int = 0


def make_plan(
    ground: Ground,
    command: str,
    given: Sequence[str],
    options: TransferOptions,
    azcopy_problem: Callable[[Route, int, int], str | None],
    listener: Listener,
) -> TransferPlan:
    """The plan for ``u`` or ``d`` of these PATHs. Looks, but touches nothing.

    ``azcopy_problem`` says why azcopy cannot be used for so many files of so many bytes on this route. Raises what the
    survey and the planner's guards raise.
    """
    if not given:
        raise UsageError("no PATH was given", hint="'blobsync ls' shows the folder entries")
    listener.phase("surveying")
    paths = tuple(rooted(ground, path) for path in given)
    if options.from_path is not None:
        options = replace(options, from_path=rooted(ground, options.from_path))
    chosen = legs(ground, command, paths, options)
    found = _Found(warnings=_check_rights(ground, chosen, options))
    _plan_legs(ground, chosen, options, listener, found)
    plan = TransferPlan(
        route=route_of(chosen[0].source, chosen[0].destination),
        cluster=ground.cluster.name,
        from_cluster=ground.from_cluster.name if ground.from_cluster else None,
        paths=paths,
        options=options,
        parts=tuple(found.parts),
        engine=choose_engine("direct", 0, 0, None),
        warnings=tuple(found.warnings),
        unreadable=tuple(found.unreadable),
        extras=found.extras,
        created_at=time.time(),
    )
    files, size = plan.files_to_transfer, plan.bytes_to_transfer
    asked = options.engine == "azcopy" or (options.engine == "auto" and is_bulk(files, size))
    problem = azcopy_problem(plan.route, files, size) if asked else None
    return replace(plan, engine=choose_engine(options.engine, files, size, problem))


def _plan_legs(
    ground: Ground, chosen: Sequence[Leg], options: TransferOptions, listener: Listener, found: _Found
) -> None:
    missing: list[tuple[Leg, NothingMatchedError]] = []
    for leg in chosen:
        if _same_blobs(leg):
            found.warnings.append(f"{leg.shown}: source and destination are the same place; nothing to do")
            continue
        try:
            _plan_leg(ground, leg, options, listener, found)
        except NothingMatchedError as nothing:
            missing.append((leg, nothing))
    for leg, error in missing:
        if leg.optional:
            if options.mirror:
                found.warnings.append(f"{leg.shown}: the source has nothing there, so --mirror deletes nothing there")
        elif not any(part.path.startswith(f"{leg.shown}/") for part in found.parts):
            # `d data` is fine where only `data/coco`, an entry of its own below it, has something.
            raise error


def _check_rights(ground: Ground, chosen: Sequence[Leg], options: TransferOptions) -> list[str]:
    """Look at both credentials before the first request: what is expired or too narrow stops the command here."""
    found: list[str] = []
    for leg in chosen:
        if not isinstance(leg.source, LocalEnd):
            found += ground.connections.check(leg.source, "rl")
        if not isinstance(leg.destination, LocalEnd):
            found += ground.connections.check(leg.destination, "rwld" if options.mirror else "rwl")
    return list(dict.fromkeys(found))


def _same_blobs(leg: Leg) -> bool:
    if isinstance(leg.source, LocalEnd) or isinstance(leg.destination, LocalEnd):
        return False
    one, other = leg.source.store.container, leg.destination.store.container
    return one.same_service(other) and (one.container, leg.source.name) == (other.container, leg.destination.name)


def _plan_leg(ground: Ground, leg: Leg, options: TransferOptions, listener: Listener, found: _Found) -> None:
    request = request_for(ground, leg, options)
    looked = survey(request, listener.seen)
    both_ends = ground.from_cluster is None and options.from_path is None
    actions, extras = decide_all(looked.pairs, request.route, options, both_ends=both_ends, shown=leg.shown)
    check_names(actions, extras, leg.shown, _name_rule(request, looked.shape), one_case=_one_case(request))
    if options.mirror:
        guard_mirror(actions, looked.destination_files, looked.source_files, len(looked.unreadable), options)
    moving = sum(action.action is Action.TRANSFER and action.aside is None for action in actions)
    whole = looked.shape is Shape.FOLDER and moving == looked.source_files == len(actions) and request.wanted is None
    part = PlanPart(
        path=leg.shown,
        shape=looked.shape,
        source=_plain(leg.source),
        destination=_plain(leg.destination),
        actions=actions,
        whole=whole and not looked.warnings and not looked.unreadable and not looked.has_hidden,
    )
    found.parts.append(part)
    found.warnings += looked.warnings
    found.unreadable += looked.unreadable
    found.extras += len(extras)


def _name_rule(request: Request, shape: Shape) -> Callable[[str], str | None]:
    if request.route is Route.DOWNLOAD and isinstance(request.destination, LocalEnd):
        root = request.destination.root
        if shape is Shape.FILE:
            return lambda name: names.local_problem(root.name, str(root.parent))
        return lambda name: names.local_problem(name, str(root))
    if request.route is Route.UPLOAD and not isinstance(request.destination, LocalEnd):
        end = request.destination
        return lambda name: names.blob_problem(end.at(name))
    return lambda name: None


def _one_case(request: Request) -> bool:
    return isinstance(request.destination, LocalEnd) and ignores_case(request.destination.root)


def _plain(end: LiveEnd) -> End:
    return end.root if isinstance(end, LocalEnd) else end.store.container.blob(end.name)


def live_parts(ground: Ground, plan: TransferPlan, command: str) -> tuple[LivePart, ...]:
    """The plan's parts with their stores and their places in the index."""
    by_path = {leg.shown: leg for leg in legs(ground, command, plan.paths, plan.options)}
    return tuple(
        LivePart(
            part=part,
            source=by_path[part.path].source,
            destination=by_path[part.path].destination,
            records=ground.index.pair(*by_path[part.path].record_roots),
            record_path=by_path[part.path].record_path,
        )
        for part in plan.parts
    )
