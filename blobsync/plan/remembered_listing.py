"""Stores what a listing showed, so that ``status`` can answer without another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from blobsync.base.errors import NothingMatchedError
from blobsync.base.file_states import RemoteState
from blobsync.local.index import PairIndex
from blobsync.local.sorted_runs import Spill
from blobsync.plan.pairing import Pair, source_is_near
from blobsync.plan.survey import Request, Survey
from blobsync.plan.transfer_plan import Route, Shape


def remember(request: Request, looked: Survey, now: Callable[[], float] = time.time) -> None:
    """Note the pairs of ``looked`` as they pass, and store them after the last one.

    Only a listing of a whole folder tells what is not there, and a copy has no side here to compare with.
    """
    if _tells_all(request):
        note = _noting if looked.shape is Shape.FOLDER else _noting_file
        looked.pairs = note(request, looked.pairs, now())


def remember_nothing(request: Request, nothing: NothingMatchedError, now: Callable[[], float] = time.time) -> None:
    """Store that the container has nothing there, if that is why the survey ended with ``nothing``."""
    if _tells_all(request) and (not nothing.elsewhere or not source_is_near(request.part.route)):
        path, began = request.part.key.path, now()
        request.records.remember_listing(path, request.records.differences(path, request.spill), began)
        if not request.folder_only:
            request.records.remember_blob(path, None, began)


def _tells_all(request: Request) -> bool:
    return request.part.route in (Route.UPLOAD, Route.DOWNLOAD) and not request.selective


def _noting(request: Request, pairs: Iterator[Pair], began: float) -> Iterator[Pair]:
    key = request.part.key
    found = request.records.differences(key.path, request.spill)
    near = source_is_near(request.part.route)
    for pair in pairs:
        blob = pair.destination if near else pair.source
        if isinstance(blob, RemoteState):
            found.seen(key.at(pair.path), blob)
        yield pair
    request.records.remember_listing(key.path, found, began)


def _noting_file(request: Request, pairs: Iterator[Pair], began: float) -> Iterator[Pair]:
    near = source_is_near(request.part.route)
    for pair in pairs:
        blob = pair.destination if near else pair.source
        request.records.remember_blob(request.part.key.path, blob if isinstance(blob, RemoteState) else None, began)
        yield pair


class Listing:
    """A listing of a folder, or of one level of it, that nothing is compared with; remembered once it has ended."""

    def __init__(
        self, records: PairIndex, folder: str, spill: Spill, *, recursive: bool, now: Callable[[], float] = time.time
    ) -> None:
        self._records, self._folder, self._spill, self._recursive = records, folder, spill, recursive
        self._whole = records.differences(folder, spill) if recursive else None
        # A level without folders is the whole folder, which shows at its end.
        self._level: list[tuple[str, RemoteState]] = []
        self._has_folders = False
        self._began = now()

    def blob(self, relative: str, state: RemoteState) -> None:
        """Call for each blob, with its name below the folder."""
        path = f"{self._folder}/{relative}" if self._folder else relative
        if self._whole is not None:
            self._whole.seen(path, state)
        else:
            self._level.append((path, state))

    def inner(self) -> None:
        """Call for each folder whose content is not listed."""
        self._has_folders = True

    def only_blob(self, state: RemoteState | None) -> None:
        """Call where the path is this blob, or (None) neither a blob nor a folder."""
        self._records.remember_blob(self._folder, state, self._began)

    def ended(self) -> None:
        """Call after the last blob."""
        one_level = self._has_folders
        found = self._whole or self._records.differences(self._folder, self._spill, one_level=one_level)
        for path, state in self._level:
            found.seen(path, state)
        self._records.remember_listing(self._folder, found, self._began, one_level=one_level)
