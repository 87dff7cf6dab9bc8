"""What the survey is asked of the PATHs of a command: one request for each leg, after links and rights are checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from blobsync.base.errors import UsageError
from blobsync.base.locations import BlobLocation, LocalLocation
from blobsync.local.link_policy import LinkPolicy, demand_trust, way_to
from blobsync.plan.path_mapping import Leg, legs, rooted
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.survey import Request
from blobsync.plan.transfer_options import TransferOptions, below_any, ignored_by, selector
from blobsync.plan.transfer_plan import Direction
from blobsync.plan.wildcards import is_pattern, is_there
from blobsync.store.sas import MIRROR_FOLDER, READ_FOLDER, WRITE_FOLDER


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
    near = [
        part.path for part in parts if any(isinstance(end, LocalLocation) for end in (part.source, part.destination))
    ]
    demand_consent(context, near)


def demand_consent(context: ProjectContext, paths: Iterable[str]) -> None:
    """As :func:`check_links`, for ``paths`` from the project's root."""
    demand_trust(context.root, paths, context.trusted)


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
