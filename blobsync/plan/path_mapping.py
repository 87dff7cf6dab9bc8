"""Maps each PATH to a part of a plan: its two ends and its key in the index; and makes the request for its survey.

Links and rights are checked before anything is listed."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from blobsync.base.errors import LocalFileError, UsageError
from blobsync.base.locations import BlobLocation, LocalLocation, Location
from blobsync.base.records import NamedTuple
from blobsync.config.mapping import Resolution, project_relative, resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.local.link_policy import LinkPolicy, way_to
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.plan.transfer_options import TransferOptions, below_any, ignored_by, selector
from blobsync.plan.transfer_plan import NO_ATTRIBUTES, Direction, IndexKey, KeptAttributes, Part, PlanPart, Route
from blobsync.plan.wildcards import PathPattern, is_pattern, is_there
from blobsync.store.sas import MIRROR_FOLDER, READ_FOLDER, WRITE_FOLDER


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


def request_for(context: ProjectContext, leg: Leg, options: TransferOptions) -> Request:
    """The survey's request for one leg."""
    path, project = leg.part.path, os.path.realpath(context.root)
    way = way_to(context.root, path, context.trusted)
    return Request(
        part=context.opened(leg.part),
        links=LinkPolicy(options.links, project, path, way.entered, context.trusted),
        records=context.records(leg.part.key),
        folder_only=leg.folder_only,
        wanted=_wanted(leg, options),
        compare_content=options.compare_content,
        selective=bool(options.include or options.exclude or leg.above) or not leg.whole,
        ignored=ignored_by(leg.ignores),
        apart=below_any(leg.elsewhere),
        covered=below_any(leg.covered),
        patterns=leg.patterns + leg.inside,
        spill=context.spill,
        stop=context.stop,
        journal=context.journal,
    )


def _wanted(leg: Leg, options: TransferOptions) -> Callable[[str], bool] | None:
    """Whether a relative path of the leg takes part; ``""`` is the file that the leg is, which has only its name."""
    by_options, patterns, above = selector(options.include, options.exclude), leg.patterns, leg.above
    if by_options is None and not patterns and not above:
        return None
    lead, name = f"{leg.part.path}/", leg.part.path.rpartition("/")[2]

    def wanted(path: str) -> bool:
        if by_options is not None and not by_options(path or name):
            return False
        full = lead + path if path else leg.part.path
        return (leg.whole or any(matches(full) for matches in patterns)) and not any(matches(full) for matches in above)

    return wanted


def both_ends(context: ProjectContext, path: str, *, wildcards: bool = False) -> tuple[Request, ...]:
    """The local files and the blobs of a PATH, part by part, for comparison only."""
    options, paths = TransferOptions(wildcards=wildcards), [rooted(context, path)]
    chosen = legs(context, Direction.UP, paths, options, patterns_in(context, Direction.UP, paths, options, both=True))
    check_links(context, chosen)
    return tuple(request_for(context, leg, options) for leg in chosen)


def patterns_in(
    context: ProjectContext, direction: Direction, paths: Sequence[str], options: TransferOptions, *, both: bool = False
) -> frozenset[str]:
    """Those of ``paths`` that are patterns: the source (with ``both`` either end) has nothing of exactly that name.

    Raises ``UsageError`` for patterns with an option that needs a name.
    """
    found: set[str] = set()
    for path in filter(is_pattern, paths) if options.wildcards else ():
        leg = legs(context, direction, [path], options)[0]
        check_rights(context, [leg], options)
        part = context.opened(leg.part)
        ends = (part.source, part.destination) if both else (part.source,)
        if not any(is_there(end, folder_only=leg.folder_only) for end in ends):
            found.add(path)
    for option, given in (("--mirror", options.mirror), ("--from-path", options.from_path)):
        if given and found:
            raise UsageError(
                f"{option} needs the name of a folder or file, and {min(found)} is a pattern",
                hint="name the folder; --include chooses among its files",
            )
    return frozenset(found)


def check_links(context: ProjectContext, chosen: Sequence[Leg]) -> None:
    """Raise ``UntrustedLinkError`` if a local path leaves the project through a link that the user has not trusted."""
    parts = [leg.part for leg in chosen]
    context.demand_trust(
        part.path for part in parts if any(isinstance(end, LocalLocation) for end in (part.source, part.destination))
    )


def check_rights(context: ProjectContext, chosen: Sequence[Leg], options: TransferOptions) -> list[str]:
    """Check both credentials before the first request: one that is expired or too narrow ends the command."""
    found: list[str] = []
    for leg in chosen:
        source, destination = leg.part.source, leg.part.destination
        writing = MIRROR_FOLDER if options.mirror else WRITE_FOLDER
        if isinstance(source, BlobLocation):
            found += context.connections.check(source, READ_FOLDER)
        if isinstance(destination, BlobLocation):
            found += context.connections.check(destination, writing)
    return list(dict.fromkeys(found))
