"""Names that exclude each other, found before anything is written or deleted.

No file system can have a blob ``t`` beside blobs ``t/...``. blobsync creates no such pair, and shows how
to resolve one; ``survey`` refuses a PATH that is both.

Two names can lead to the same local file through symlinks. With ``dl -> d0`` the two blobs ``dl/g`` and ``d0/g``
are one local file. A download of both would write it twice; a mirror without ``dl/g`` would delete the file that
``d0/g`` still needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import AccessDeniedError, ShapeConflictError
from blobsync.base.locations import LocalLocation, at_and_above
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.sorted_runs import IN_MEMORY, SortedRuns, Spill
from blobsync.plan.transfer_plan import PACKED_ACTION, Action, FileAction, PlanPart, Shape, actions_of
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.protocol import BlobInfo

_THREADS = 8


def both_hint(shown: str) -> str:
    """The hint if ``shown`` is a blob and a folder."""
    name = shlex.quote(shown)
    return f"'{shown}/' (with the slash) means the folder; 'blobsync rm --blob {name}' removes the blob alone"


def blob_hint(shown: str, end: OpenLocation, what: str) -> str:
    """The end of a hint about ``what``, which is in the way at ``end``: how to remove it, if it is a blob."""
    if isinstance(end, LocalLocation) or not what.endswith("file"):
        return ""
    return f", or remove the blob with 'blobsync rm --blob {shlex.quote(shown)}'"


def refuse_blob_above(end: OpenBlob, shape: Shape, shown: str, relative: str) -> None:
    """Raise ``ShapeConflictError`` if a file at or below ``end`` would be below the name of a blob.

    ``shown`` is ``end`` as a user would type it, and ``relative`` its part below the folder entry.
    One concurrent HEAD for each parent name, because a listing of the folder does not include them.
    """
    parts = end.name.split("/") if end.name else []
    depth = len(parts) + 1 if shape is Shape.FOLDER else len(parts)
    above = ["/".join(parts[:count]) for count in range(1, depth)]

    def head(name: str) -> BlobInfo | None:
        # A SAS of a single folder cannot read above it.
        with suppress(AccessDeniedError):
            return end.store.head(name)
        return None

    for blob in side_by_side(head, above, _THREADS):
        if blob is not None and not blob.is_folder_stub:
            there = end.store.container.child(blob.name)
            raise ShapeConflictError(
                f"{shown}: nothing was moved, because there is a blob {there}, which would be a folder as well",
                hint=_way_out(shown, relative, end.name[len(blob.name) :].count("/")),
                path=shown,
            )


def _way_out(shown: str, relative: str, levels: int) -> str:
    """The hint; the blob is ``levels`` names above ``shown``."""
    if levels > (relative.count("/") + 1 if relative else 0):
        return "use another path in the cluster file: no folder entry has that blob"
    blob = "/".join(shown.split("/")[: -levels or None])
    return f"'blobsync rm --blob {shlex.quote(blob)}' removes that blob alone; or use another name here"


class Names(NamedTuple):
    """The real paths of the names of one part: ``root`` is its real path, ``followed`` are the links below it with
    theirs."""

    root: str
    followed: Mapping[str, str]

    def real(self, path: str) -> str:
        """The real path of a file of this part, which need not exist."""
        link = self.link_of(path)
        if link is None:
            return f"{self.root}/{path}" if path else self.root
        return self.followed[link] + path[len(link) :]

    def link_of(self, path: str) -> str | None:
        """The last link on the way to ``path``, the file itself included."""
        return next((at for at in at_and_above(path) if at in self.followed), None) if self.followed else None


def spare_links(actions: Iterable[FileAction], names: Names) -> tuple[FileAction, ...]:
    """Remove deletions of links and of files below them: a mirror deletes these only if the PATH names the link."""
    return tuple(
        action._replace(action=Action.SKIP, reason=Reason.THROUGH_LINK)
        if action.action is Action.DELETE and names.link_of(action.path) is not None
        else action
        for action in actions
    )


def settle(
    parts: Sequence[PlanPart], names: Sequence[Names], spill: Spill = IN_MEMORY, *, writing: Action
) -> tuple[PlanPart, ...]:
    """The parts with each local file written by at most one name, and deleted only if none of its names stays.

    ``writing`` is the action that writes here: a download's ``TRANSFER``, an upload's ``ADOPT``. ``names`` are those of
    ``parts``, empty if nothing is local.
    """
    roots = pairwise(sorted(f"{each.root}/" for each in names))
    if not any(each.followed for each in names) and not any(later.startswith(earlier) for earlier, later in roots):
        return tuple(parts)
    # Sorted by real path, then each part by its own paths again.
    places = SortedRuns(spill)
    for number, part in enumerate(parts):
        for action in part.actions:
            # The name without a link first.
            linked = names[number].link_of(action.path) is not None
            places.add(names[number].real(action.path), linked, number, PACKED_ACTION.pack(action))
    changed = [SortedRuns(spill) for _ in parts]
    for _, group in groupby(places, key=itemgetter(0)):
        same = sorted(group, key=itemgetter(1))
        rows = [row[3] for row in same]
        if len(same) > 1:
            decided = settle_one([PACKED_ACTION.unpack(row) for row in rows], writing)
            rows = [PACKED_ACTION.pack(action) for action in decided]
        for (_, _, number, _), row in zip(same, rows, strict=True):
            changed[number].add(*row)
    return tuple(
        replace(part, actions=actions_of(part.actions).replaced(map(PACKED_ACTION.unpack, rows)))
        for part, rows in zip(parts, changed, strict=True)
    )


def settle_one(actions: Sequence[FileAction], writing: Action) -> list[FileAction]:
    """The actions for all names of one file, the plainest name first."""
    deletion = Action.DELETE if writing is Action.TRANSFER else None
    staying = [each for each in actions if each.action is not deletion and each.reason is not Reason.THROUGH_LINK]
    written = [action for action in staying if action.action is writing]
    contents = {_content(action) for action in written}
    # All names get the same content: writing the first one is enough.
    agreed = len(written) == len(staying) and len(contents) == 1 and None not in contents
    decided = []
    for action in actions:
        if action.action is deletion and staying:
            decided.append(action._replace(action=Action.SKIP, reason=Reason.THROUGH_LINK))
        elif action.action is not writing or len(staying) == 1 or (agreed and action is written[0]):
            decided.append(action)
        elif agreed:
            decided.append(action._replace(action=Action.SKIP, reason=Reason.SAME_FILE))
        else:
            decided.append(action._replace(action=Action.CONFLICT, reason=Reason.ONE_FILE_HERE, aside=None))
    return decided


def _content(action: FileAction) -> tuple[int, bytes] | None:
    arriving = action.source if action.action is Action.TRANSFER else action.destination
    return None if arriving is None or arriving.md5 is None else (arriving.size, arriving.md5)
