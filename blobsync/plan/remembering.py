"""Keeps what a survey saw in the container, so that ``status`` can answer without a listing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from blobsync.base.file_states import RemoteState
from blobsync.plan.pairs import Pair, source_is_near
from blobsync.plan.survey import Request, Survey
from blobsync.plan.transfer_plan import Route, Shape


def remember(request: Request, looked: Survey, now: Callable[[], float] = time.time) -> None:
    """From now on the pairs of ``looked`` are noted as they pass, and stored after the last one.

    Only a listing of a whole folder tells what is not there, and a copy has no side here to compare with.
    """
    local = request.part.route in (Route.UPLOAD, Route.DOWNLOAD)
    if local and looked.shape is Shape.FOLDER and not request.selective:
        looked.pairs = _noting(request, looked.pairs, now())


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
