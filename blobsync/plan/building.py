"""From PATHs to a plan: resolve both ends, survey them, let the planner decide. Touches nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blobsync.base.errors import NothingMatchedError, UntrustedLinkError, UsageError
from blobsync.config.trusted_links import trust_command
from blobsync.local import names
from blobsync.local.tree import LinkPolicy, ignores_case, way_to
from blobsync.plan.decisions import check_names, choose_engine, decide_all, guard_mirror, is_bulk, leave_out
from blobsync.plan.legs import Leg, ProjectContext, legs, rooted
from blobsync.plan.listener import Listener
from blobsync.plan.live_part import LivePart, route_of
from blobsync.plan.one_file import Names, settle, spare_links
from blobsync.plan.selection import selector
from blobsync.plan.shapes import refuse_blob_above
from blobsync.plan.survey import Request, Survey, survey
from blobsync.plan.transfer_plan import (
    Action,
    End,
    FileAction,
    FileFailure,
    PlanPart,
    Route,
    Shape,
    TransferOptions,
    TransferPlan,
)
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd
from blobsync.store.grants import MIRROR_FOLDER, READ_FOLDER, WRITE_FOLDER


def request_for(context: ProjectContext, leg: Leg, options: TransferOptions) -> Request:
    """What the survey has to look at for one leg."""
    return Request(
        shown=leg.shown,
        route=route_of(leg.source, leg.destination),
        source=leg.source,
        destination=leg.destination,
        links=_link_policy(context, leg, options),
        records=context.index.pair(*leg.record_roots),
        record_path=leg.record_path,
        folder_only=leg.folder_only,
        wanted=_wanted(leg, options),
        compare_content=options.compare_content,
    )


def both_ends(context: ProjectContext, path: str) -> tuple[Request, ...]:
    """The local files and the blobs of a PATH as typed, part by part, to be compared and not to be moved."""
    chosen = legs(context, "u", [rooted(context, path)], TransferOptions())
    check_links(context, chosen)
    return tuple(request_for(context, leg, TransferOptions()) for leg in chosen)


def _link_policy(context: ProjectContext, leg: Leg, options: TransferOptions) -> LinkPolicy:
    way = way_to(context.root, leg.shown, context.trusted)
    return LinkPolicy(options.links, os.path.realpath(context.root), leg.shown, way.entered, context.trusted)


def check_links(context: ProjectContext, chosen: Sequence[Leg]) -> None:
    """Raises ``UntrustedLinkError`` where the way to a local end leaves the project without the user's consent."""
    near = [leg.shown for leg in chosen if isinstance(leg.source, LocalEnd) or isinstance(leg.destination, LocalEnd)]
    links = dict.fromkeys(link for path in near for link in way_to(context.root, path, context.trusted).untrusted)
    if links:
        where = "; ".join(f"{link.link} leads to {link.target}" for link in links)
        raise UntrustedLinkError(
            f"a symlink leaves the project, and nothing is read or written there before you agree: {where}",
            links=tuple(links),
            hint=f"if that is meant: {' && '.join(trust_command(link.link) for link in links)}",
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
    names: list[Names] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreadable: list[FileFailure] = field(default_factory=list)
    refusals: list[FileFailure] = field(default_factory=list)
    extras: int = 0


def make_plan(
    context: ProjectContext,
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
    paths = tuple(rooted(context, path) for path in given)
    if options.from_path is not None:
        options = replace(options, from_path=rooted(context, options.from_path))
    chosen = legs(context, command, paths, options)
    check_links(context, chosen)
    found = _Found(warnings=_check_rights(context, chosen, options))
    _plan_legs(context, chosen, options, listener, found)
    plan = TransferPlan(
        route=route_of(chosen[0].source, chosen[0].destination),
        cluster=context.cluster.name,
        from_cluster=context.from_cluster.name if context.from_cluster else None,
        paths=paths,
        options=options,
        parts=settle(found.parts, found.names, writing=Action.TRANSFER if command == "d" else Action.ADOPT),
        engine=choose_engine("direct", 0, 0, None),
        warnings=tuple(found.warnings),
        unreadable=tuple(found.unreadable),
        extras=found.extras,
        refusals=tuple(found.refusals),
        created_at=time.time(),
    )
    files, size = plan.files_to_transfer, plan.bytes_to_transfer
    asked = options.engine == "azcopy" or (options.engine == "auto" and is_bulk(files, size))
    problem = azcopy_problem(plan.route, files, size) if asked else None
    return replace(plan, engine=choose_engine(options.engine, files, size, problem))


def _plan_legs(
    context: ProjectContext, chosen: Sequence[Leg], options: TransferOptions, listener: Listener, found: _Found
) -> None:
    missing: list[tuple[Leg, NothingMatchedError]] = []
    for leg in chosen:
        if _same_blobs(leg):
            found.warnings.append(f"{leg.shown}: source and destination are the same place; nothing to do")
            continue
        try:
            _plan_leg(context, leg, options, listener, found)
        except NothingMatchedError as nothing:
            missing.append((leg, nothing))
    for leg, error in missing:
        if leg.optional:
            if options.mirror:
                found.warnings.append(f"{leg.shown}: the source has nothing there, so --mirror deletes nothing there")
        elif not any(part.path.startswith(f"{leg.shown}/") for part in found.parts):
            # `d data` is fine where only `data/coco`, an entry of its own below it, has something.
            raise error


def _check_rights(context: ProjectContext, chosen: Sequence[Leg], options: TransferOptions) -> list[str]:
    """Look at both credentials before the first request: what is expired or too narrow stops the command here."""
    found: list[str] = []
    for leg in chosen:
        if not isinstance(leg.source, LocalEnd):
            found += context.connections.check(leg.source, READ_FOLDER)
        if not isinstance(leg.destination, LocalEnd):
            found += context.connections.check(leg.destination, MIRROR_FOLDER if options.mirror else WRITE_FOLDER)
    return list(dict.fromkeys(found))


def _same_blobs(leg: Leg) -> bool:
    if isinstance(leg.source, LocalEnd) or isinstance(leg.destination, LocalEnd):
        return False
    one, other = leg.source.store.container, leg.destination.store.container
    return one.same_service(other) and (one.container, leg.source.name) == (other.container, leg.destination.name)


def _plan_leg(context: ProjectContext, leg: Leg, options: TransferOptions, listener: Listener, found: _Found) -> None:
    request = request_for(context, leg, options)
    looked = survey(request, listener.seen)
    both_ends = context.from_cluster is None and options.from_path is None
    actions, extras = decide_all(looked.pairs, request.route, options, both_ends=both_ends, shown=leg.shown)
    actions = _see_links(leg, looked, actions, found)
    actions, left_out = _check_names(request, looked, actions, extras)
    if options.mirror:
        there, here, unseen = looked.destination_files, looked.source_files, len(looked.unreadable)
        refusal = guard_mirror(actions, there, here, unseen, options, leg.shown)
        found.refusals += [refusal] if refusal else []
    moving = sum(action.action is Action.TRANSFER and action.aside is None for action in actions)
    whole = looked.shape is Shape.FOLDER and moving == looked.source_files == len(actions) and request.wanted is None
    if request.route not in (Route.UPLOAD, Route.DOWNLOAD) and extras:
        # Who is handed the folder as such could replace them.
        whole = False
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
    found.unreadable += (*looked.unreadable, *looked.blocked, *left_out)
    found.extras += len(extras)


def _see_links(leg: Leg, looked: Survey, actions: tuple[FileAction, ...], found: _Found) -> tuple[FileAction, ...]:
    """Nothing is deleted through a link, and what is written through one is said: the paths do not show it."""
    end = leg.destination if isinstance(leg.destination, LocalEnd) else leg.source
    if not isinstance(end, LocalEnd):
        return actions
    names = Names(os.path.realpath(end.root), looked.followed)
    found.names.append(names)
    if end is leg.source:
        # What --keep brings here.
        moving = [action for action in actions if action.action is Action.ADOPT or action.aside]
    else:
        actions = spare_links(actions, names)
        moving = [action for action in actions if action.action is Action.TRANSFER]
    if moving and os.path.islink(end.root):
        found.warnings.append(f"{leg.shown} is a symlink: what comes down is written to {names.root}")
    for link in dict.fromkeys(names.link_of(action.path) for action in moving):
        if link is not None and os.path.isdir(names.followed[link]):
            place = names.followed[link]
            found.warnings.append(f"{leg.shown}/{link} is a symlink: what comes down below it is written to {place}")
    return actions


def _check_names(
    request: Request, looked: Survey, actions: tuple[FileAction, ...], extras: list[str]
) -> tuple[tuple[FileAction, ...], list[FileFailure]]:
    """What can be written, and the files of an upload that have to stay for their names.

    Raises ``UnsafeNamesError`` and ``ShapeConflictError`` where nothing is to be moved.
    """
    rule = _name_rule(request, looked.shape)
    left_out: list[FileFailure] = []
    if request.route is Route.UPLOAD and looked.shape is Shape.FOLDER:
        actions, left_out = leave_out(actions, request.shown, rule)
    others = [*extras, *looked.clashes]
    from_blobs = request.route is Route.DOWNLOAD
    check_names(actions, others, request.shown, rule, one_case=_one_case(request), from_blobs=from_blobs)
    writes = any(action.action is Action.TRANSFER for action in actions)
    if writes and not looked.destination_files and isinstance(request.destination, RemoteEnd):
        refuse_blob_above(request.destination, looked.shape, request.shown, request.record_path)
    return actions, left_out


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


def live_parts(context: ProjectContext, plan: TransferPlan, command: str) -> tuple[LivePart, ...]:
    """The plan's parts with their stores and their places in the index."""
    by_path = {leg.shown: leg for leg in legs(context, command, plan.paths, plan.options)}
    return tuple(
        LivePart(
            part=part,
            source=_bounded(context, by_path[part.path].source, part),
            destination=_bounded(context, by_path[part.path].destination, part),
            records=context.index.pair(*by_path[part.path].record_roots),
            record_path=by_path[part.path].record_path,
        )
        for part in plan.parts
    )


def _bounded(context: ProjectContext, end: LiveEnd, part: PlanPart) -> LiveEnd:
    """A local end with what no link may lead a write out of."""
    if not isinstance(end, LocalEnd):
        return end
    entered = [Path(place) for place in way_to(context.root, part.path, context.trusted).entered]
    below = [Path(link.target) for link in context.trusted if link.link.startswith(f"{part.path}/")]
    # A link that was named is followed, a file's too, whose folder then is the one to write in.
    root = Path(os.path.realpath(end.root)) if part.shape is Shape.FILE and end.root.is_symlink() else end.root
    places = [place.parent if part.shape is Shape.FILE and place == root else place for place in entered]
    return LocalEnd(root, (Path(os.path.realpath(context.root)), *places, *below))
