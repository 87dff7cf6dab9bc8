"""Several names of one local file, through symlinks: known to be one before anything is written or deleted. Pure.

With ``dl -> d0`` the blobs ``dl/g`` and ``d0/g`` are two, and the file here is one. A download of both would write it
twice; a mirror that finds ``dl/g`` gone would delete what ``d0/g`` still stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from blobsync.base.reasons import Reason
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart


class Names(NamedTuple):
    """Where the names of one part lead: ``root`` is its real path, ``followed`` the links below it with theirs."""

    root: str
    followed: Mapping[str, str]

    def real(self, path: str) -> str:
        """The real path of a file of this part, whether it is there yet or not."""
        link = self.link_of(path)
        if link is None:
            return f"{self.root}/{path}" if path else self.root
        return self.followed[link] + path[len(link) :]

    def link_of(self, path: str) -> str | None:
        """The last link on the way to ``path``, the file itself included."""
        if not self.followed:
            return None
        at = path
        while at:
            if at in self.followed:
                return at
            at = at.rpartition("/")[0]
        return None


def spare_links(actions: Iterable[FileAction], names: Names) -> tuple[FileAction, ...]:
    """A mirror removes no links, and nothing that it sees through one: who means that names the link."""
    return tuple(
        replace(action, action=Action.SKIP, reason=Reason.THROUGH_LINK)
        if action.action is Action.DELETE and names.link_of(action.path) is not None
        else action
        for action in actions
    )


def settle(parts: Sequence[PlanPart], names: Sequence[Names], *, writing: Action) -> tuple[PlanPart, ...]:
    """The parts, in which each file here is written by one name at most, and deleted only if none of its names stays.

    ``writing`` is the action that writes here: a download's ``TRANSFER``, an upload's ``ADOPT``. ``names`` are those
    of ``parts``, or none where nothing is local.
    """
    if not names_may_meet(names):
        return tuple(parts)
    places: dict[str, list[tuple[int, int]]] = {}
    for number, part in enumerate(parts):
        for at, action in enumerate(part.actions):
            places.setdefault(names[number].real(action.path), []).append((number, at))
    changed = [list(part.actions) for part in parts]
    for same in places.values():
        if len(same) > 1:
            # The name without a link comes first.
            same.sort(key=lambda place: names[place[0]].link_of(parts[place[0]].actions[place[1]].path) is not None)
            decided = settle_one([changed[number][at] for number, at in same], writing)
            for (number, at), action in zip(same, decided, strict=True):
                changed[number][at] = action
    return tuple(replace(part, actions=tuple(actions)) for part, actions in zip(parts, changed, strict=True))


def names_may_meet(names: Sequence[Names]) -> bool:
    """Whether two names may be of one file."""
    return any(each.followed for each in names) or _overlap([each.root for each in names])


def _overlap(roots: Sequence[str]) -> bool:
    ordered = sorted(f"{root}/" for root in roots)
    return any(later.startswith(earlier) for earlier, later in pairwise(ordered))


def settle_one(actions: Sequence[FileAction], writing: Action) -> list[FileAction]:
    """The actions for all names of one file, the plainest name first."""
    deletion = Action.DELETE if writing is Action.TRANSFER else None
    staying = [each for each in actions if each.action is not deletion and each.reason is not Reason.THROUGH_LINK]
    written = [action for action in staying if action.action is writing]
    contents = {_content(action) for action in written}
    # All of its names get one content: writing the first is writing all.
    agreed = len(written) == len(staying) and len(contents) == 1 and None not in contents
    decided = []
    for action in actions:
        if action.action is deletion and staying:
            decided.append(replace(action, action=Action.SKIP, reason=Reason.THROUGH_LINK))
        elif action.action is not writing or len(staying) == 1 or (agreed and action is written[0]):
            decided.append(action)
        elif agreed:
            decided.append(replace(action, action=Action.SKIP, reason=Reason.SAME_FILE))
        else:
            decided.append(replace(action, action=Action.CONFLICT, reason=Reason.ONE_FILE_HERE, aside=None))
    return decided


def _content(action: FileAction) -> tuple[int, bytes] | None:
    arriving = action.source if action.action is Action.TRANSFER else action.destination
    return None if arriving is None or arriving.md5 is None else (arriving.size, arriving.md5)
