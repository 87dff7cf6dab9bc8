"""Maps each PATH to a part of a plan: its two ends and its key in the index. Reads nothing."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import LocalFileError, UsageError
from blobsync.base.locations import BlobLocation, LocalLocation, Location
from blobsync.config.mapping import Resolution, project_relative, resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import NO_ATTRIBUTES, Direction, IndexKey, KeptAttributes, Part, PlanPart, Route
from blobsync.plan.wildcards import PathPattern


class Leg(NamedTuple):
    """A part before the survey.

    ``folder_only``: the user wrote a trailing ``/``. ``optional``: a nested folder entry maps it elsewhere, and it may
    be empty. ``elsewhere`` are the paths below it that have legs of their own; ``covered`` are those whose leg leads to
    another place, so that files below this leg's destination are hidden. ``ignores``: the path of each end below its
    folder entry, and that entry's patterns. ``patterns`` are the PATHs that choose files of it, ``above`` those that
    choose files of it for the leg of a folder above, and ``inside`` those of legs of folders in it, which may match
    nothing but files that this one takes. ``whole``: all its files take part, whatever ``patterns`` choose.
    """

    part: PlanPart
    folder_only: bool
    optional: bool
    elsewhere: tuple[str, ...]
    ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    covered: tuple[str, ...] = ()
    patterns: tuple[PathPattern, ...] = ()
    above: tuple[PathPattern, ...] = ()
    inside: tuple[PathPattern, ...] = ()
    whole: bool = True


def rooted(context: ProjectContext, given: str) -> str:
    """A PATH as typed, from the project's root; a slash at its end stays. Raises ``MappingError``."""
    path = project_relative(given, cwd=context.cwd, root=context.root)
    return f"{path}/" if given.endswith("/") else path


def chosen_paths(context: ProjectContext, given: Sequence[str], *, all_entries: bool) -> Sequence[str]:
    """The given PATHs, or with ``--all`` those of the folder entries. Raises ``UsageError``."""
    if given and all_entries:
        raise UsageError("--all means every folder entry: give no PATH with it")
    if not given and not all_entries:
        raise UsageError("no path given", hint="'blobsync ls' shows the folder entries; --all means all of them")
    return given or _every_entry(context)


def _every_entry(context: ProjectContext) -> tuple[str, ...]:
    """All folder entries, without those inside another one, which come with it, and file shares, which only jobs
    mount."""
    prefixes = [entry.prefix for entry in context.cluster.folders if entry.storage_type != "file"]
    if not prefixes:
        raise UsageError(f"{context.cluster.file} has no folder entries", hint="add one, such as data_folder")
    inner = {below for prefix in prefixes for below in nested(prefix, context.cluster)}
    return tuple(f"{context.root}/{prefix}" for prefix in sorted(prefixes) if prefix not in inner)


def route_of(source: Location | None, destination: Location | None) -> Route:
    """The route between two ends."""
    if isinstance(source, LocalLocation) and isinstance(destination, BlobLocation):
        return Route.UPLOAD
    if isinstance(source, BlobLocation) and isinstance(destination, LocalLocation):
        return Route.DOWNLOAD
    if isinstance(source, BlobLocation) and isinstance(destination, BlobLocation):
        same = source.container.same_service(destination.container)
        return Route.SAME_ACCOUNT if same else Route.CROSS_ACCOUNT
    raise LocalFileError("a transfer has a local end, a remote end, or two remote ones")


def legs(
    context: ProjectContext,
    direction: Direction,
    paths: Sequence[str],
    options: TransferOptions,
    patterns: Collection[str] = (),
) -> tuple[Leg, ...]:
    """Both ends of each PATH (from the project's root); those of a PATH that is one of ``patterns`` are the folder that
    has its matches.

    Raises mapping errors, and ``UsageError`` on a bad combination.
    """
    if options.from_path is not None and len(paths) != 1:
        raise UsageError("--from-path requires exactly one PATH", hint="run one command for each")
    if direction is Direction.UP and options.from_path is not None and context.from_cluster is None:
        raise UsageError("--from-path of an upload names a path of another cluster", hint="pass -f CLUSTER with it")
    chosen: dict[str, Leg] = {}
    for path in paths:
        by = PathPattern(path) if path in patterns else None
        for leg in _legs_of(context, direction, f"{by.folder}/" if by and by.folder else path, options):
            leg = leg._replace(patterns=(by,), whole=False) if by else leg
            known = chosen.get(leg.part.path)
            chosen[leg.part.path] = _together(known, leg) if known else leg
    every = chosen.values()
    kept = [leg for leg in every if not any(_is_within(leg, other) and _takes_all(other, leg) for other in every)]
    return tuple(
        leg._replace(
            above=tuple(by for other in kept if _is_within(leg, other) for by in other.patterns),
            inside=tuple(by for other in kept if _is_within(other, leg) for by in other.patterns),
        )
        for leg in kept
    )


def _together(one: Leg, other: Leg) -> Leg:
    """One leg for two of the same path."""
    # A PATH that was given must exist, even if it is part of another one.
    optional = one.optional and other.optional
    first = one if optional or not one.optional else other
    if one.whole != other.whole:
        first = one if one.whole else other
    return first._replace(patterns=one.patterns + other.patterns, optional=optional)


def _is_within(leg: Leg, other: Leg) -> bool:
    """Whether files of ``leg`` are below ``other``, and have no other leg."""
    above, path = f"{other.part.path}/", leg.part.path
    return path.startswith(above) and not any(
        path == f"{above}{inner}" or path.startswith(f"{above}{inner}/") for inner in other.elsewhere
    )


def _takes_all(one: Leg, other: Leg) -> bool:
    """Whether ``one``, a leg of a folder above, has all files of ``other``."""
    return one.whole or any(matches(other.part.path) for matches in one.patterns)


def _legs_of(context: ProjectContext, direction: Direction, path: str, options: TransferOptions) -> Iterator[Leg]:
    """The PATH itself, and each prefix below it that an entry of either cluster maps elsewhere.

    Both clusters count, whichever end is theirs: a path that one of them maps elsewhere is neither read nor written
    below the other's folder.
    """
    far = context.from_cluster
    here = context.cluster if direction is Direction.UP or far is None else far

    def place(path: str, cluster: Cluster) -> Resolution:
        uploads = direction is Direction.UP
        return resolve(path, cwd=context.root, root=context.root, cluster=cluster, uploads=uploads)

    target = place(path, here)
    origin = place(options.from_path or path, far or context.cluster)
    inner = _apart(context, origin, target)
    folder_only = origin.folder_only or target.folder_only
    starts = {below: place(f"{origin.path}/{below}", far or context.cluster) for below in inner}
    ends = {below: place(f"{target.path}/{below}", here) for below in inner}
    found = {"": _part(context, direction, origin, target)}
    found.update({below: _part(context, direction, starts[below], ends[below]) for below in inner})
    optional, ignores = options.all_entries, _ignores(origin, target)
    yield Leg(found[""], folder_only, optional, inner, ignores, _covered("", inner, found))
    for below in inner:
        deeper = tuple(other[len(below) + 1 :] for other in inner if other.startswith(f"{below}/"))
        ignores, covered = _ignores(starts[below], ends[below]), _covered(below, deeper, found)
        yield Leg(found[below], folder_only=False, optional=True, elsewhere=deeper, ignores=ignores, covered=covered)


def _covered(at: str, inner: Sequence[str], parts: Mapping[str, PlanPart]) -> tuple[str, ...]:
    """The paths below the part ``at`` whose own part leads to another place of a container."""
    outer = parts[at].destination
    if not isinstance(outer, BlobLocation):
        return ()
    lead = f"{at}/" if at else ""
    # Files in the place of the outer part are seen only by the part of the nearest folder.
    first = [below for below in inner if not any(below.startswith(f"{other}/") for other in inner)]
    return tuple(below for below in first if parts[f"{lead}{below}"].destination != outer.child(below))


def _ignores(*ends: Resolution) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(dict.fromkeys((end.relative, end.entry.ignore) for end in ends if end.entry.ignore))


def _apart(context: ProjectContext, origin: Resolution, target: Resolution) -> tuple[str, ...]:
    """The paths below both ends that either cluster maps elsewhere."""
    clusters = [context.cluster, *([context.from_cluster] if context.from_cluster else [])]
    ends = {origin.path, target.path}
    return tuple(
        sorted({prefix[len(end) + 1 :] for end in ends for cluster in clusters for prefix in nested(end, cluster)})
    )


def nested(path: str, cluster: Cluster) -> tuple[str, ...]:
    """The prefixes below ``path`` that folder entries of their own map elsewhere."""
    return tuple(sorted(prefix for prefix in cluster.prefixes if prefix.startswith(f"{path}/")))


def _part(context: ProjectContext, direction: Direction, origin: Resolution, target: Resolution) -> PlanPart:
    is_copy = direction is Direction.UP and context.from_cluster is not None
    source: Location = origin.remote if is_copy or direction is Direction.DOWN else LocalLocation(origin.local)
    destination: Location = target.remote if direction is Direction.UP else LocalLocation(target.local)
    key = _index_key(origin.entry if is_copy else None, origin, target, direction)
    entry = (origin if direction is Direction.DOWN else target).entry
    # A copy takes the metadata of its source.
    kept = NO_ATTRIBUTES if is_copy else KeptAttributes(entry.modes, entry.times)
    return Part(target.path, route_of(source, destination), source, destination, key, kept=kept)


def _index_key(near: FolderEntry | None, origin: Resolution, target: Resolution, direction: Direction) -> IndexKey:
    """The two roots under which the index records this pair, and the path below both; ``near`` is a copy's source."""
    remote = origin if direction is Direction.DOWN else target
    if near is None and origin.path == target.path:
        return IndexKey(LocalLocation(Path(remote.entry.prefix)), remote.entry.remote, remote.relative)
    if near is None:
        return IndexKey(LocalLocation(Path(target.path)), remote.remote, "")
    # Entries may begin at different depths on the two sides: the record is below their common part.
    common = _common_end(origin.relative, target.relative)
    first = near.remote.child(origin.relative.removesuffix(common).rstrip("/"))
    second = target.entry.remote.child(target.relative.removesuffix(common).rstrip("/"))
    return IndexKey(first, second, common)


def _common_end(one: str, other: str) -> str:
    """The last parts that two paths share."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return "/".join(reversed([part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]))
