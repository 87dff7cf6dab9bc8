"""What an undo does with each file that a run wrote or deleted; pure.

What the run replaced or deleted comes back if the file is still as the run left it, and if its former content is kept
somewhere; what the run created goes. A file that somebody has changed since is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.plan.transfer_plan import Action, FileAction, Route


class Version(NamedTuple):
    """The content of a file at some time; ``md5`` and ``etag`` are empty if unknown."""

    size: int
    md5: bytes = b""
    etag: str = ""

    def is_in(self, state: FileState) -> bool:
        """Whether a file has this content."""
        if isinstance(state, RemoteState) and self.etag and state.etag == self.etag:
            return True
        return bool(self.md5) and (state.size, state.md5) == (self.size, self.md5)


class Touched(NamedTuple):
    """A file that a run wrote or deleted, or was about to: ``path`` from the project's root, what ``was`` there before
    (None: no file), and what the run ``left`` (None: no file). ``here``: a file of this machine. ``is_sure``: the run
    ended; else what it left is not known."""

    path: str
    was: Version | None
    left: Version | None
    here: bool
    is_sure: bool = True


def touched_files(receipt: Mapping[str, Any]) -> Iterator[Touched]:
    """The files of a receipt. Raises ``ValueError``, ``TypeError`` or ``LookupError`` for one that is damaged."""
    for file in receipt.get("files", ()):
        yield Touched(str(file["path"]), _version(file.get("replaced")), _version(file), _is_here(file["route"]))
    for file in (*receipt.get("deleted_files", ()), *receipt.get("deletions_not_known", ())):
        yield Touched(str(file["path"]), _version(file), None, _is_here(file.get("route", receipt["route"])))
    for file in receipt.get("planned_files", ()):
        yield Touched(str(file["path"]), _version(file.get("replaced")), None, _is_here(file["route"]), is_sure=False)
    for file in receipt.get("planned_deletions", ()):
        yield Touched(str(file["path"]), _version(file.get("replaced")), None, _is_here(file["route"]))


def undo_action(path: str, touched: Touched, now: FileState | None, back: FileState | None) -> FileAction:
    """The decision about one file: ``path`` is relative to its part, ``now`` its present state, and ``back`` is where
    what was there before comes from."""
    was, left = touched.was, touched.left
    if (now is None and was is None) or (now is not None and was is not None and was.is_in(now)):
        return FileAction(path, Action.UNCHANGED, Reason.AS_BEFORE, now.size if now else 0)
    is_as_left = now is None if left is None else now is not None and left.is_in(now)
    if not is_as_left:
        return FileAction(path, Action.CONFLICT, Reason.CHANGED_SINCE, now.size if now else 0, None, now)
    if was is None:
        assert now is not None, "a file that is not there, and was not, is as before"
        return FileAction(path, Action.DELETE, Reason.CREATED, now.size, None, now)
    if back is None:
        return FileAction(path, Action.CONFLICT, Reason.NOT_KEPT, was.size, None, now)
    return FileAction(path, Action.TRANSFER, Reason.REPLACED, was.size, back, now)


def _is_here(route: str) -> bool:
    return Route(route) is Route.DOWNLOAD if route != "rm" else False


def _version(values: Mapping[str, Any] | None) -> Version | None:
    if values is None:
        return None
    size, md5, etag = values["size"], values.get("md5") or "", values.get("etag") or ""
    if not isinstance(size, int) or not isinstance(etag, str):
        raise TypeError("a size or an ETag of the receipt is none")
    return Version(size, bytes.fromhex(md5), etag)
