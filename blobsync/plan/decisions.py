"""Decides what happens to each file. Pure: facts in, :class:`~blobsync.plan.transfer_plan.TransferPlan` parts out.

For a pair of files, with S and D = changed at the source / at the destination since the record was made:

    there is         record  S  D   decision
    ---------------  ------  -  -   -----------------------------------------------------------------
    source only      any     .  .   transfer (new)
    destination only any     .  .   nothing; with --mirror delete (extra)
    both             yes     -  -   unchanged (as last verified)
    both             yes     x  -   transfer (changed since verified)
    both             yes     -  x   newer_at_destination; with --overwrite transfer
    both             yes     x  x   equal content: unchanged, recorded; else a conflict
    both             no             same size and MD5 (or CRC64): unchanged, recorded; else a conflict

A conflict is left alone, unless ``--overwrite`` (transfer) or ``--keep`` resolves it. After ``--keep`` both ends are
equal, so that neither ``u`` nor ``d`` has anything left to do:

    --keep                    decision                     what is done, in this order
    ------------------------  ---------------------------  ---------------------------------------------------
    the source's side         transfer                     the destination's version is replaced
    the destination's side    adopt                        the source's version is replaced
    both                      transfer, with a name aside  the destination's version is copied aside, there; the
                                                           copy is brought to the source; it is replaced

A source given by ``-f`` or ``--from-path`` is only read: "adopt" is then a skip, with a record by which the destination
is newer from then on, and the copy aside is not brought. The file is in conflict until the last step, so that the same
command finishes after a kill, and no version is removed before a copy exists or the user gave it up by name.

Clocks are never compared.
"""

import heapq
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter
from types import MappingProxyType

from blobsync.base.errors import FailureCode, FileFailure, UnsafeNamesError
from blobsync.base.file_states import FileState
from blobsync.base.formatting import count_text
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.names import shape_clashes
from blobsync.local.sorted_runs import IN_MEMORY, SortedRuns, Spill, Spool
from blobsync.plan.keep_both_names import NAME_ASIDE, beside, sibling, with_free_name
from blobsync.plan.left_out_files import name_failure
from blobsync.plan.pairing import Pair, changes_since_verified, equal_content, is_as_recorded, source_is_near
from blobsync.plan.transfer_options import NO_LIMIT, Keep, TransferOptions, has_default_limits
from blobsync.plan.transfer_plan import PACKED_ACTION, Action, FileAction, Route, actions_of


def decide(
    pair: Pair, route: Route, options: TransferOptions, *, both_ends: bool = True, shown: str = ""
) -> FileAction | None:
    """The action for a file by the table above; None if there is nothing to do or report.

    ``both_ends``: ``--keep`` may write at the source's end, too; ``shown`` is the name of a pair without a path (a part
    of shape file).
    """
    source, destination = pair.source, pair.destination
    if pair.left_out is not None:
        if source is None and destination is not None and not options.mirror:
            return None
        seen = source or destination
        return FileAction(pair.path, Action.SKIP, pair.left_out, seen.size if seen else 0)
    if source is None:
        if destination is None or not options.mirror:
            return None
        return FileAction(pair.path, Action.DELETE, Reason.EXTRA, destination.size, None, destination)
    if destination is None:
        return FileAction(pair.path, Action.TRANSFER, Reason.NEW, source.size, source, None)
    if pair.record is not None:
        found = _decide_known(pair, source, destination, route, options)
        is_settled = found.action is not Action.CONFLICT
        return found if is_settled else _settle(found, route, options, both_ends=both_ends, shown=shown)
    same = equal_content(source, destination)
    if same:
        return _same(pair.path, source, destination)
    if same is None:
        reason = Reason.NO_MD5
    elif source.size != destination.size:
        reason = Reason.NEVER_VERIFIED
    else:
        reason = Reason.CONTENT_DIFFERS
    found = FileAction(pair.path, Action.CONFLICT, reason, source.size, source, destination)
    return _settle(found, route, options, both_ends=both_ends, shown=shown)


def _decide_known(
    pair: Pair, source: FileState, destination: FileState, route: Route, options: TransferOptions
) -> FileAction:
    record = pair.record
    assert record is not None
    near, far = (source, destination) if source_is_near(route) else (destination, source)
    if is_as_recorded(near, record.near) and is_as_recorded(far, record.remote):
        # Of an unchanged tree this is each file. The index already has both states, so the action need not keep them.
        return FileAction(pair.path, Action.UNCHANGED, Reason.SAME_RECORD, source.size)
    near_changed, far_changed = changes_since_verified(near, far, record)
    source_changed, destination_changed = (
        (near_changed, far_changed) if source_is_near(route) else (far_changed, near_changed)
    )
    if not source_changed and not destination_changed:
        # With the known content of both.
        known = (replace(source, md5=record.md5), replace(destination, md5=record.md5))
        return FileAction(pair.path, Action.UNCHANGED, Reason.SAME_RECORD, source.size, *known)
    if not destination_changed:
        return FileAction(pair.path, Action.TRANSFER, Reason.CHANGED_HERE, source.size, source, destination)
    if not source_changed:
        if options.overwrite:
            return FileAction(pair.path, Action.TRANSFER, Reason.OVERWRITE, source.size, source, destination)
        return FileAction(
            pair.path, Action.NEWER_AT_DESTINATION, Reason.DESTINATION_CHANGED, destination.size, source, destination
        )
    if equal_content(source, destination):
        return _same(pair.path, source, destination)
    return FileAction(pair.path, Action.CONFLICT, Reason.BOTH_CHANGED, source.size, source, destination)


def _same(path: str, source: FileState, destination: FileState) -> FileAction:
    by_md5 = source.md5 is not None and destination.md5 is not None
    reason = Reason.SAME_MD5 if by_md5 else Reason.SAME_CRC64
    return FileAction(path, Action.UNCHANGED, reason, source.size, source, destination)


def _settle(action: FileAction, route: Route, options: TransferOptions, *, both_ends: bool, shown: str) -> FileAction:
    """Resolve a conflict if the user said how."""
    if options.overwrite:
        return action._replace(action=Action.TRANSFER, reason=Reason.OVERWRITE)
    source_side = "remote" if route is Route.DOWNLOAD else "local"
    assert action.destination is not None
    if options.keep == "both":
        aside = beside(action.path or shown, _other(source_side), action.destination)
        return action._replace(action=Action.TRANSFER, reason=Reason.KEEP_BOTH, aside=aside)
    if options.keep == source_side:
        return action._replace(action=Action.TRANSFER, reason=Reason.KEEP_SOURCE)
    if options.keep is None:
        return action
    if not both_ends:
        return action._replace(action=Action.SKIP, reason=Reason.KEEP_DESTINATION)
    return action._replace(action=Action.ADOPT, reason=Reason.KEEP_DESTINATION, size=action.destination.size)


class Settlement(NamedTuple):
    """How one conflict is resolved, of the two versions that the user has seen."""

    keep: Keep
    source: FileState
    destination: FileState

    def is_about(self, action: FileAction) -> bool:
        """Whether both sides of a conflict are still these versions."""
        assert action.source is not None
        assert action.destination is not None
        return is_as_recorded(action.source, self.source) and is_as_recorded(action.destination, self.destination)


def _other(side: str) -> str:
    return "local" if side == "remote" else "remote"


class Decisions:
    """The decisions about the files of one part in the order of their paths: in memory while there are few, else on
    the disk. ``shown`` is the part as a user would type it; ``most`` of them stay in memory. ``settlements`` resolve
    single conflicts, by their paths as a user would type them.

    Read them once. That raises ``UnsafeNamesError`` where an end names a file twice.
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        route: Route,
        options: TransferOptions,
        spill: Spill,
        *,
        both_ends: bool,
        shown: str,
        most: int,
        settlements: Mapping[str, Settlement] = MappingProxyType({}),
    ) -> None:
        self._route, self._shown = route, shown
        keeps_both = options.keep == "both" or any(each.keep == "both" for each in settlements.values())
        self._actions = SortedRuns(spill, PACKED_ACTION, most=most)
        # Files that only the destination has.
        self.extras = Spool(spill)
        # Files with a name like that of a version that was set aside.
        self._asides: dict[str, Pair] = {}
        for pair in pairs:
            if pair.source is None and pair.destination is not None:
                self.extras.append(pair.path)
            if keeps_both and NAME_ASIDE.search(pair.path):
                self._asides[pair.path] = pair
            action = decide(pair, route, options, both_ends=both_ends, shown=shown)
            if action is not None and action.action is Action.CONFLICT:
                action = self._settled(action, settlements, options, both_ends=both_ends)
            if action is not None:
                self._actions.add(action.path, action)

    def _settled(
        self, action: FileAction, settlements: Mapping[str, Settlement], options: TransferOptions, *, both_ends: bool
    ) -> FileAction:
        known = settlements.get(f"{self._shown}/{action.path}" if action.path else self._shown)
        if known is None or not known.is_about(action):
            return action
        options = options._replace(keep=known.keep)
        return _settle(action, self._route, options, both_ends=both_ends, shown=self._shown)

    @property
    def is_on_disk(self) -> bool:
        """Whether they are on the disk, not in memory."""
        return self._actions.is_on_disk

    def __len__(self) -> int:
        return len(self._actions)

    def __iter__(self) -> Iterator[FileAction]:
        named = self._with_names()
        if self._asides:
            # A version to set aside may exist since an earlier run: do not delete it.
            kept = {name for each in self._with_names() for name in _aside(each)} & self._asides.keys()
            named = (each for each in named if each.action is not Action.DELETE or each.path not in kept)
        return self._once_each(named)

    def _with_names(self) -> Iterator[FileAction]:
        actions: Iterator[FileAction] = (row[1] for row in self._actions)
        if not self._asides:
            return actions
        return (with_free_name(action, self._route, self._asides) for action in actions)

    def _once_each(self, actions: Iterator[FileAction]) -> Iterator[FileAction]:
        """Refuse a name that occurs twice.

        A listing that repeats a name makes one file both present and surplus: nothing is safe to do with it.
        """
        twice: list[str] = []
        count = 0
        for path, same in groupby(actions, key=attrgetter("path")):
            first, *again = same
            yield first
            if again:
                count += 1
                twice += [path] if count <= _TOLD else []
        if count:
            names = tuple((f"{self._shown}/{name}", "is listed twice") for name in twice)
            raise UnsafeNamesError(
                f"{names[0][0]} is listed twice ({count_text(count, 'such file')}), so nothing was moved",
                names=names,
                hint="run the same command again; if it happens again, a proxy or the service returns wrong listings",
            )


def decide_all(
    pairs: Iterable[Pair], route: Route, options: TransferOptions, *, both_ends: bool = True, shown: str = ""
) -> tuple[tuple[FileAction, ...], list[str]]:
    """The actions of a part that fits in memory, and the files that only the destination has.

    ``shown`` is the part as a user would type it. Raises ``UnsafeNamesError`` where an end names a file twice.
    """
    found = Decisions(pairs, route, options, IN_MEMORY, both_ends=both_ends, shown=shown, most=IN_MEMORY.most)
    return tuple(found), list(found.extras)


# The default share applies from this many files at the destination on: one of seven is no mistake.
_FEWEST_FOR_SHARE = 20
# Maximum number of files that a refusal names.
_NAMED = 3


def guard_mirror(
    deletions: int,
    at_destination: int,
    source_files: int,
    unreadable: Sequence[str],
    options: TransferOptions,
    shown: str = "",
    doomed: Iterable[str] = (),
) -> FileFailure | None:
    """Why the deletions look like a mistake, so that the plan for ``shown`` is refused; else None.

    ``at_destination`` and ``source_files`` are the numbers of files at each side; ``unreadable`` are the entries of the
    source that cannot be read, as a user would type them; ``doomed`` are the paths that would be deleted.
    """
    if not deletions:
        return None
    code = FailureCode.MIRROR_REFUSED
    named = _named((f"{shown}/{path}" if path else shown for path in doomed), deletions)
    names = f": {named}" if named else ""
    if source_files == 0:
        all_files = f"all {deletions:,} files" if deletions > 1 else "the only file"
        return FileFailure(
            shown,
            code,
            f"--mirror would delete {all_files} of the destination, because the source is empty{names}",
            "check the source; to remove the destination on purpose use 'blobsync rm'",
        )
    if unreadable:
        return FileFailure(
            shown,
            code,
            f"--mirror is refused: {count_text(len(unreadable), 'name')} of the source could not be read"
            f" ({_named(unreadable, len(unreadable))}), so blobsync cannot tell what is missing there; it would delete"
            f" {named or count_text(deletions, 'file')}",
            "make what is unreadable readable, remove it or --exclude it; or omit --mirror",
        )
    share = 100.0 * deletions / max(at_destination, 1)
    too_few = has_default_limits(options) and at_destination < _FEWEST_FOR_SHARE
    if deletions > options.max_delete_files or (share > options.max_delete_percent and not too_few):
        return FileFailure(
            shown,
            code,
            f"--mirror would delete {deletions:,} of {at_destination:,} files ({share:.0f} %), more than the limit of"
            f" {_limit_text(options)}{names}",
            "--full lists all of them; to delete them, raise --max-delete (a count, or N%)",
        )
    return None


def _named(paths: Iterable[str], count: int) -> str:
    """The first of ``count`` paths, and the number of the others; empty without paths."""
    named = list(itertools.islice(paths, _NAMED))
    more = f", and {count - len(named):,} more" if named and count > len(named) else ""
    return f"{', '.join(named)}{more}"


def _limit_text(options: TransferOptions) -> str:
    """The limit in words; giving one limit removes the other."""
    files, share = count_text(options.max_delete_files, "file"), f"{options.max_delete_percent:g} %"
    if options.max_delete_percent >= 100:
        return files
    return share if options.max_delete_files >= NO_LIMIT else f"{files} or {share}"


def leave_out(
    actions: Sequence[FileAction], shown: str, problem: Callable[[str], str | None]
) -> tuple[tuple[FileAction, ...], list[FileFailure]]:
    """Remove the files whose names the destination cannot have (``problem`` says why); each is a failure."""
    kept, failures = [], []
    for action in actions:
        why = next(filter(None, map(problem, written_names(action))), None)
        if why is None:
            kept.append(action)
        else:
            path = f"{shown}/{action.path}" if action.path else shown
            failures.append(name_failure(path, why))
    return tuple(kept), failures


def written_names(action: FileAction) -> Sequence[str]:
    """The names that an action writes at the destination."""
    if action.action is not Action.TRANSFER:
        return ()
    return (action.path, sibling(action.path, action.aside)) if action.aside and action.path else (action.path,)


def _aside(action: FileAction) -> Sequence[str]:
    """The name of the copy aside, if there is one."""
    return written_names(action)[1:]


# Maximum number of names in an error; its count includes all.
_TOLD = 1000


class _BadNames:
    """The number of bad names, and the first ones with the reasons."""

    def __init__(self) -> None:
        self.first: list[tuple[str, str]] = []
        self.count = 0

    def add(self, name: str, why: str) -> None:
        self.count += 1
        if len(self.first) < _TOLD:
            self.first.append((name, why))


class _NameCheck:
    """Checks the names of one part: those that are written, and existing ones that stay."""

    def __init__(self, problem: Callable[[str], str | None], spill: Spill, *, one_case: bool) -> None:
        self._problem = problem
        # Names that are out of order; usually few.
        self._more = SortedRuns(spill)
        self._folded = SortedRuns(spill) if one_case else None
        self.bad = _BadNames()

    def add(self, name: str, *, is_new: bool) -> None:
        """Add a name, in any order."""
        self._note(name, is_new=is_new)
        self._more.add(name, is_new)

    def clashes(self, actions: Iterable[FileAction]) -> Iterator[tuple[str, str, bool]]:
        """Files beside folders of the same name; ``actions`` are in order. Add all other names before."""
        names = self._of_each(actions)
        return shape_clashes(heapq.merge(names, self._more))

    def _of_each(self, actions: Iterable[FileAction]) -> Iterator[tuple[str, bool]]:
        for action in actions:
            if action.action is not Action.DELETE:
                is_new = action.action is Action.TRANSFER
                self._note(action.path, is_new=is_new)
                yield action.path, is_new

    def _note(self, name: str, *, is_new: bool) -> None:
        if is_new and (why := self._problem(name)):
            self.bad.add(name, why)
        if self._folded is not None:
            self._folded.add(name.casefold(), not is_new, name)

    def case_clashes(self) -> Iterator[tuple[str, str]]:
        """Names that are the same if case is ignored. Call after :meth:`clashes`."""
        for _, rows in groupby(self._folded or (), key=itemgetter(0)):
            # Written names come before existing ones.
            first, *same = dict.fromkeys(row[2] for row in sorted(rows, key=itemgetter(1)))
            for name in same:
                yield name, f"differs from '{first}' only in case, and this disk ignores case"


def check_names(
    actions: Sequence[FileAction],
    others: Iterable[str],
    shown: str,
    problem: Callable[[str], str | None],
    *,
    one_case: bool = False,
    from_blobs: bool = True,
    spill: Spill = IN_MEMORY,
) -> None:
    """Raise one ``UnsafeNamesError`` for all names that cannot exist at the destination.

    ``actions`` are in the order of their paths; ``others`` are the existing names, in any order. ``problem`` is the
    destination's rule; ``one_case``: it ignores case; ``from_blobs``: the names come from a container.
    """
    totals = actions_of(actions).totals
    if not totals.counts[Action.TRANSFER]:
        return
    check = _NameCheck(problem, spill, one_case=one_case)
    for name in others:
        check.add(name, is_new=False)
    for action in actions if totals.aside.files else ():
        for name in _aside(action):
            check.add(name, is_new=True)
    blob = None
    for name, why, is_new in check.clashes(actions):
        check.bad.add(name, why)
        blob = name if blob is None and is_new == from_blobs else blob
    for name, why in check.case_clashes():
        check.bad.add(name, why)
    if check.bad.count:
        raise unsafe_names(check.bad.first, check.bad.count, shown, blob)


def unsafe_names(bad: Sequence[tuple[str, str]], count: int, shown: str, blob: str | None) -> UnsafeNamesError:
    """The error for ``count`` names below ``shown``; ``bad`` are the first ones with their reasons.

    ``blob`` is a blob beside a folder of the same name.
    """
    names = tuple((f"{shown}/{name}" if name else shown, why) for name, why in bad)
    listed = "; ".join(f"{name!r} {why}" for name, why in names[:20])
    more = f"; and {count - 20} more" if count > 20 else ""
    return UnsafeNamesError(
        f"{count} name{'s' if count != 1 else ''} cannot be written at the destination, so nothing was"
        f" moved: {listed}{more}",
        names=names,
        hint="rename them at the source, or leave them out with --exclude"
        + (f"; 'blobsync rm --blob {shlex.quote(f'{shown}/{blob}')}' removes that blob alone" if blob else ""),
    )
