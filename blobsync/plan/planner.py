"""Makes the plan for the PATHs of a command: maps, lists and compares both ends. Changes nothing."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from blobsync.base.errors import FailureCode, FileFailure, NothingMatchedError, UsageError
from blobsync.base.events import Listener, Phase
from blobsync.base.formatting import count_text
from blobsync.base.locations import SOURCE_OPTION, BlobLocation, LocalLocation, Location, is_given, is_source
from blobsync.base.plan_reasons import Reason
from blobsync.config.mapping import entries_within, is_below
from blobsync.local import names
from blobsync.plan.blocks import for_engine, partial_uploads, with_on_record
from blobsync.plan.decisions import Decisions, Settlement, check_names, guard_mirror, leave_out
from blobsync.plan.engine_model import (
    NOT_DIRECT,
    EngineRules,
    RequestedEngine,
    Work,
    choose_engine,
    choose_processes,
)
from blobsync.plan.name_clashes import Names, refuse_blob_above, settle, spare_links
from blobsync.plan.path_mapping import (
    Leg,
    check_links,
    check_rights,
    chosen_paths,
    legs,
    patterns_in,
    request_for,
    rooted,
)
from blobsync.plan.project_context import LivePart, ProjectContext
from blobsync.plan.survey import Request, Survey, remember, remember_nothing, survey
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import (
    Action,
    Actions,
    Direction,
    FileAction,
    MovingFiles,
    PlanPart,
    ProcessChoice,
    Route,
    Shape,
    TransferPlan,
    actions_of,
    batches_of,
    totals_of,
)
from blobsync.plan.wildcards import ABOUT_PATTERNS
from blobsync.store.open_locations import OpenBlob


class _Found:
    """The totals of a plan's legs."""

    def __init__(self, warnings: list[str], settlements: Mapping[str, Settlement]) -> None:
        self.warnings = warnings
        self.settlements = settlements
        self.parts: list[PlanPart] = []
        self.names: list[Names] = []
        self.unreadable: list[FileFailure] = []
        self.refusals: list[FileFailure] = []
        self.extras = 0
        self.ignored = 0
        self.has_chosen = False
        # PATHs that are patterns, and those that match something.
        self.patterns: dict[str, None] = {}
        self.matched: set[str] = set()
        # Round-trip times of requests to containers, in seconds.
        self.round_trips: list[float] = []


def make_plan(
    context: ProjectContext,
    direction: Direction,
    given: Sequence[str],
    options: TransferOptions,
    engines: EngineRules,
    listener: Listener,
    settlements: Mapping[str, Settlement] = MappingProxyType({}),
) -> TransferPlan:
    """The plan for these PATHs; ``settlements`` resolve single conflicts. Reads only.

    Raises what the survey and the planner's guards raise.
    """
    given = chosen_paths(context, given, all_entries=options.all_entries)
    listener.emit(Phase("surveying"))
    paths = tuple(rooted(context, path) for path in given)
    if options.from_path is not None:
        options = options._replace(from_path=rooted(context, options.from_path))
    chosen = legs(context, direction, paths, options, patterns_in(context, direction, paths, options))
    check_links(context, chosen)
    found = _Found(check_rights(context, chosen, options), settlements)
    _plan_legs(context, chosen, options, listener, found)
    _demand_chosen(paths, options, found)
    writing = Action.TRANSFER if direction is Direction.DOWN else Action.ADOPT
    parts = settle(found.parts, found.names, context.spill, writing=writing)
    parts = with_on_record(parts, map(context.opened, parts), context.unfinished)
    totals = totals_of(parts)
    volume = totals.volume(both_ends=options.settles_both_ends(context.from_cluster))
    if writing is Action.TRANSFER or options.keep is not None or settlements:
        _look_for_room(context, found, parts, volume.size, force=options.force, writing=writing)
    engines = _for_attributes(chosen, options, _for_sources(context, chosen, options, engines))
    if options.locked:
        engines = _for_old_contents(context, parts, engines)
    work = _work(chosen, volume, engines.cores, found)._replace(spared=totals.spared)
    processes = choose_processes(options.processes, work, options.cap_mbps)
    if engines.alone:
        processes = ProcessChoice(1, f"one process {engines.alone}")
    engine = choose_engine(engines, work._replace(processes=processes.count))
    parts, whole = for_engine(parts, engine.name)
    if engine.name == "direct":
        found.warnings += _relayed_by_name(context, parts)
    return TransferPlan(
        route=chosen[0].part.route,
        cluster=context.cluster.name,
        from_cluster=context.from_cluster.name if context.from_cluster else None,
        paths=paths,
        options=options,
        parts=parts,
        engine=engine,
        processes=processes if engine.name == "direct" else NOT_DIRECT,
        warnings=(*found.warnings, *whole),
        unreadable=tuple(found.unreadable),
        extras=found.extras,
        ignored=found.ignored,
        refusals=tuple(found.refusals),
        created_at=time.time(),
    )


def _demand_chosen(paths: Sequence[str], options: TransferOptions, found: _Found) -> None:
    """Raise ``NothingMatchedError`` if a PATH is a pattern that has chosen nothing, or --include and --exclude have."""
    words = "".join(
        f" {option} {shlex.quote(each)}"
        for option, given in (("--include", options.include), ("--exclude", options.exclude))
        for each in given
    )
    for path in (each for each in found.patterns if each not in found.matched):
        said = f", of those that{words} chooses" if words else ""
        raise NothingMatchedError(f"{path}: no file at the source matches{said}", hint=ABOUT_PATTERNS, path=path)
    if words and found.parts and not found.has_chosen and not found.unreadable:
        raise NothingMatchedError(
            f"{', '.join(paths)}: no file at the source is chosen by{words}",
            hint="patterns are as in .gitignore, from each PATH on; 'blobsync plan' without them shows the files",
            path=paths[0],
        )


def _for_sources(
    context: ProjectContext, chosen: Sequence[Leg], options: TransferOptions, engines: EngineRules
) -> EngineRules:
    """The rules for sources outside Azure: azcopy is not used for them, and the destination's service fetches, unless
    it cannot."""
    asked = engines.requested
    for leg in chosen:
        source, destination = leg.part.source, leg.part.destination
        if not isinstance(source, BlobLocation) or not is_source(source):
            continue
        engines = engines._replace(alone="reads a source outside Azure")
        if asked.name == "azcopy":
            raise UsageError(f"{asked.reason}, which does not read {source.container}", hint="leave it out")
        if options.nodes is not None:
            _demand_spreadable(context, source, destination, options.nodes)
        if asked.name == "relay":
            return engines
        why = context.connections.why_not_fetched(source, destination) if isinstance(destination, BlobLocation) else ""
        if why:
            return engines._replace(requested=RequestedEngine("relay", why))
        reason = asked.reason or "azcopy is not used for sources outside Azure"
        engines = engines._replace(requested=RequestedEngine("direct", reason))
    return engines


def _for_old_contents(context: ProjectContext, parts: Sequence[PlanPart], engines: EngineRules) -> EngineRules:
    """The rules where files of a lock are brought from elsewhere than the present blobs."""
    from blobsync.plan.locked_files import uses_old_contents  # late: few downloads are of a lock

    if not any(uses_old_contents(context, part) for part in parts):
        return engines
    what = "earlier versions of blobs"
    if engines.requested.name == "azcopy":
        raise UsageError(f"{engines.requested.reason}, which does not read {what}", hint="leave it out")
    requested = RequestedEngine("direct", f"azcopy does not read {what}")
    return engines._replace(requested=requested, alone=f"reads {what}")


def _for_attributes(chosen: Sequence[Leg], options: TransferOptions, engines: EngineRules) -> EngineRules:
    """The rules where a folder entry keeps executable bits or times: only the direct engine does, in this process."""
    asked = engines.requested
    if not any(any(leg.part.kept) for leg in chosen):
        return engines
    several = "--nodes" if options.nodes is not None else "--processes" if (options.processes or 1) > 1 else ""
    if several or asked.name == "azcopy":
        what = f"{several} was given" if several else asked.reason
        raise UsageError(
            f"{what}, but modes and times of {chosen[0].part.path} are kept by the direct engine in one process",
            hint="leave it out, or take modes and times out of the folder entry",
        )
    reason = asked.reason or "azcopy is not used where modes or times are kept"
    return engines._replace(requested=RequestedEngine("direct", reason), alone="keeps modes and times")


def _demand_spreadable(context: ProjectContext, source: BlobLocation, destination: Location, nodes: int) -> None:
    """Raise ``UsageError`` if nodes cannot have the destination's service fetch from a source outside Azure."""
    if not isinstance(destination, BlobLocation):
        raise UsageError(f"--nodes {nodes}: downloads from {source.container} are not spread over nodes")
    if why := context.connections.why_not_fetched(source, destination):
        raise UsageError(f"--nodes {nodes}: copies from {source.container} go through this machine: {why}")
    web = context.connections.account(source.container).web
    if web is not None and any("?" in file.url for file in web.files.values()):
        raise UsageError(
            f"--nodes {nodes}: {source.container} has URLs with a query, which may be a secret, and nodes read their"
            " URLs in files of the container",
            hint="omit --nodes",
        )


def _relayed_by_name(context: ProjectContext, parts: Sequence[PlanPart]) -> Iterator[str]:
    """Say which objects go through this machine, because the service does not take their URLs."""
    for part in parts:
        if not is_source(part.source):
            continue
        from blobsync.store.read_only import LONGEST_SOURCE_URL, SourceStore  # late: most plans have no such source

        live = context.opened(part)
        if not isinstance(live.source, OpenBlob) or not isinstance(live.destination, OpenBlob):
            continue
        if not isinstance(live.source.store, SourceStore):
            continue
        store, moving = live.source.store, (each for each in part.actions if each.action is Action.TRANSFER)
        long = [each.path for each in moving if store.url_length(live.source.at(each.path)) > LONGEST_SOURCE_URL]
        if long:
            count = "1 file goes" if len(long) == 1 else f"{len(long):,} files go"
            yield f"{part.path}: {count} through this machine, because the URL is too long for the service: {long[0]}"


def _look_for_room(
    context: ProjectContext, found: _Found, parts: Sequence[PlanPart], size: int, *, force: bool, writing: Action
) -> None:
    """Refuse a plan that does not fit on the local disks; with ``force`` only warn."""
    from blobsync.plan.disk_space import WrittenHere, lacking_room  # late: most uploads write nothing here

    # Copies between containers write nothing here, and have no local names.
    here = [WrittenHere(part.path, names, part.actions) for part, names in zip(parts, found.names, strict=False)]
    lacking = lacking_room(here, writing, size, context.disks)
    if force:
        found.warnings += [each.message for each in lacking]
    else:
        found.refusals += lacking


def _work(chosen: Sequence[Leg], volume: MovingFiles, cores: int, found: _Found) -> Work:
    ends = [end for leg in chosen for end in (leg.part.source, leg.part.destination)]
    tls = any(isinstance(end, BlobLocation) and end.container.endpoint.startswith("https:") for end in ends)
    round_trip = min(found.round_trips, default=0.0)
    return Work(chosen[0].part.route, volume.files, volume.size, volume.largest, cores, tls, round_trip)


def _plan_legs(
    context: ProjectContext, chosen: Sequence[Leg], options: TransferOptions, listener: Listener, found: _Found
) -> None:
    missing: list[tuple[Leg, NothingMatchedError]] = []
    for leg in chosen:
        if _same_blobs(leg.part.source, leg.part.destination):
            found.warnings.append(f"{leg.part.path}: source and destination are the same place; nothing to do")
            continue
        try:
            _plan_leg(context, leg, options, listener, found)
        except NothingMatchedError as nothing:
            missing.append((leg, nothing))
    for leg, error in missing:
        # `d data` is fine if only `data/coco`, an entry of its own, has files.
        if not leg.optional and not any(part.path.startswith(f"{leg.part.path}/") for part in found.parts):
            if context.from_cluster is not None:
                error.hint = _where_to_look(context.from_cluster.name, leg.part.path)
            raise error
        if options.mirror and error.elsewhere:
            found.warnings.append(f"{leg.part.path}: the source has nothing there, so --mirror deletes nothing there")
    if options.all_entries and missing and not found.parts:
        raise missing[0][1]


def _of_another_entry(context: ProjectContext, part: PlanPart, actions: Sequence[FileAction]) -> FileFailure | None:
    """Why a mirror is refused that would delete blobs of another entry, which has no files below ``part``."""
    if not isinstance(part.destination, BlobLocation):
        return None
    for entry, within in entries_within(context.cluster, part.path, part.destination):
        doomed = (each.path for each in actions if each.action is Action.DELETE)
        name = next((path for path in doomed if within and is_below(path, within)), None)
        if name is not None:
            said = f"--mirror would delete {name}, which {entry.key} has as its own ({entry.remote})"
            hint = f"--exclude {shlex.quote(f'{within}/')} keeps it; or give one of the two entries another folder"
            return FileFailure(part.path, FailureCode.MIRROR_REFUSED, said, hint)
    return None


def _where_to_look(far: str, path: str) -> str:
    """The hint if a source is not there that ``-f`` or ``--source`` names."""
    if not is_given(far):
        return f"'blobsync -c {shlex.quote(far)} ls' shows its folder entries, and with one of them what is there"
    above, slash, _ = far.removeprefix("s3://").rstrip("/").rpartition("/")
    if not far.startswith("s3://"):
        return f"check {far}"
    words = shlex.join(["blobsync", "ls", path, SOURCE_OPTION, f"s3://{above}" if slash else far])
    return f"what is there: {words}, with the same options for the service"


def _same_blobs(one: Location, other: Location) -> bool:
    if not isinstance(one, BlobLocation) or not isinstance(other, BlobLocation):
        return False
    same = one.container.same_service(other.container)
    return same and (one.container.name, one.name) == (other.container.name, other.name)


def _plan_leg(context: ProjectContext, leg: Leg, options: TransferOptions, listener: Listener, found: _Found) -> None:
    request = request_for(context, leg, options)
    if options.locked:
        from blobsync.plan.locked_files import as_locked, located  # late: few downloads are of a lock

        request = as_locked(context.root, request, request.part.source)
    try:
        looked = survey(request, listener.emit)
    except NothingMatchedError as nothing:
        remember_nothing(request, nothing)
        raise
    if looked.shape is Shape.FILE and request.ignored is not None and request.ignored(""):
        raise UsageError(
            f"{leg.part.path} is ignored: a pattern in 'ignore' of its folder entry matches it",
            hint="take the pattern out of the cluster file to transfer it",
        )
    remember(request, looked)
    both, path, route = options.settles_both_ends(context.from_cluster), leg.part.path, leg.part.route
    # The actions of earlier parts that are in memory.
    held = sum(len(part.actions) for part in found.parts if not actions_of(part.actions).is_on_disk)
    decided = Decisions(
        looked.pairs,
        route,
        options,
        context.spill,
        both_ends=both,
        shown=path,
        most=max(1, context.spill.most - held),
        settlements=found.settlements,
    )
    actions = _prepared(context, request, looked, decided, found)
    if options.locked:
        actions = located(context, request, actions)
    _check_names(context, request.part, looked, actions, decided.extras)
    counts, extras = actions.totals.counts, len(decided.extras)
    if options.mirror:
        there, here, unseen = looked.destination_files, looked.source_files, [each.path for each in looked.unreadable]
        doomed = (each.path for each in actions if each.action is Action.DELETE)
        refusal = guard_mirror(counts[Action.DELETE], there, here, unseen, options, path, doomed)
        found.refusals += filter(None, (refusal, _of_another_entry(context, leg.part, actions)))
        found.warnings += looked.excluded.warnings(path)
    moving = counts[Action.TRANSFER] - actions.totals.aside.files
    whole = looked.shape is Shape.FOLDER and moving == looked.source_files == len(actions) and not request.chooses
    if route not in (Route.UPLOAD, Route.DOWNLOAD) and extras:
        # An engine that transfers the whole folder could replace these.
        whole = False
    whole = whole and not looked.warnings and not looked.unreadable and not looked.has_hidden
    # The container may have more than what a lock names.
    whole = whole and not actions.is_on_disk and request.remembered is None
    found.parts.append(replace(leg.part, shape=looked.shape, actions=actions, whole=whole))
    found.warnings += (*looked.warnings, *_other_attributes(leg.part, actions))
    found.unreadable += (*looked.unreadable, *looked.blocked)
    found.extras += extras
    found.ignored += looked.ignored
    found.has_chosen = found.has_chosen or looked.has_chosen
    found.patterns |= dict.fromkeys(each.path for each in leg.patterns)
    found.matched |= looked.matched
    found.round_trips += looked.round_trips


def _other_attributes(part: PlanPart, actions: Actions) -> Iterator[str]:
    """Say how many files were touched: their modes and times are kept, but alone not sent."""
    if part.route is Route.UPLOAD and any(part.kept):
        same = (each for each in actions if each.action is Action.UNCHANGED and each.reason is Reason.SAME_RECORD)
        if count := sum(each.destination is not None for each in same):
            yield f"{part.path}: {count_text(count, 'file')} touched, not changed: modes and times alone are not sent"


def _prepared(context: ProjectContext, request: Request, looked: Survey, decided: Decisions, found: _Found) -> Actions:
    """The decisions, with bytes on record, without files whose names the service cannot have."""
    part = request.part
    end = part.destination if isinstance(part.destination, LocalLocation) else part.source
    names = Names(os.path.realpath(end.path), looked.followed) if isinstance(end, LocalLocation) else None
    found.names += [names] if names else []
    prepared = Actions(context.spill, on_disk=decided.is_on_disk)
    warnings: dict[str, None] = {}
    for actions in batches_of(decided, context.spill.batch):
        if names is not None:
            actions = actions if isinstance(part.source, LocalLocation) else spare_links(actions, names)
            warnings |= dict.fromkeys(_writes_through_links(part, names, actions))
        if _names_from_elsewhere(part) and looked.shape is Shape.FOLDER:
            actions, left_out = leave_out(actions, part.path, _name_rule(part, looked.shape))
            found.unreadable += left_out
        partial = partial_uploads(part, actions, context.journal)
        warnings |= dict.fromkeys(partial.warnings)
        prepared.extend(partial.actions)
    found.warnings += warnings
    return prepared


def _writes_through_links(part: LivePart, names: Names, actions: Sequence[FileAction]) -> Iterator[str]:
    """Report writes through links, which the paths do not show."""
    if isinstance(part.source, LocalLocation):
        root = part.source.path
        # Files that --keep brings here.
        moving = [action for action in actions if action.action is Action.ADOPT or action.aside]
    else:
        assert isinstance(part.destination, LocalLocation)
        root = part.destination.path
        moving = [action for action in actions if action.action is Action.TRANSFER]
    if moving and os.path.islink(root):
        yield f"{part.path} is a symlink: its files are written to {names.root}"
    for link in dict.fromkeys(names.link_of(action.path) for action in moving):
        if link is not None and os.path.isdir(names.followed[link]):
            yield f"{part.path}/{link} is a symlink: files below it are written to {names.followed[link]}"


def _check_names(
    context: ProjectContext, part: LivePart, looked: Survey, actions: Actions, extras: Iterable[str]
) -> None:
    """Raise ``UnsafeNamesError`` or ``ShapeConflictError`` for names that must not be written."""
    end, from_blobs, one_case = part.destination, part.route is Route.DOWNLOAD, False
    if isinstance(end, LocalLocation):
        from blobsync.local.tree import ignores_case  # late: uploads need none

        one_case = ignores_case(end.path)
    # Files whose names the service refuses were left out.
    is_checked = _names_from_elsewhere(part) and looked.shape is Shape.FOLDER
    rule = (lambda name: None) if is_checked else _name_rule(part, looked.shape)
    others = chain(extras, looked.not_chosen)
    check_names(actions, others, part.path, rule, one_case=one_case, from_blobs=from_blobs, spill=context.spill)
    if actions.totals.counts[Action.TRANSFER] and not looked.destination_files and isinstance(end, OpenBlob):
        refuse_blob_above(end, looked.shape, part.path, part.key.path)


def _names_from_elsewhere(part: LivePart) -> bool:
    """Whether the names come to a container from a place with other rules for names."""
    outside = isinstance(part.source, OpenBlob) and is_source(part.source.location)
    return isinstance(part.destination, OpenBlob) and (part.route is Route.UPLOAD or outside)


def _name_rule(part: LivePart, shape: Shape) -> Callable[[str], str | None]:
    if isinstance(part.destination, LocalLocation):
        root = part.destination.path
        if shape is Shape.FILE:
            return lambda name: names.local_problem(root.name, str(root.parent))
        return lambda name: names.local_problem(name, str(root))
    if _names_from_elsewhere(part):
        end = part.destination
        return lambda name: names.blob_problem(end.at(name))
    return lambda name: None
