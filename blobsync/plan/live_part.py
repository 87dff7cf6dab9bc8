"""A part of a plan with what reaches its two ends."""

from __future__ import annotations

from typing import NamedTuple

from blobsync.base.errors import LocalFileError
from blobsync.local.index import PairIndex
from blobsync.plan.transfer_plan import PlanPart, Route
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd


class LivePart(NamedTuple):
    """A part of the plan with the stores behind its ends and its place in the index."""

    part: PlanPart
    source: LiveEnd
    destination: LiveEnd
    records: PairIndex
    record_path: str


def route_of(source: object, destination: object) -> Route:
    """The route between two live ends."""
    if isinstance(source, LocalEnd):
        return Route.UPLOAD
    if isinstance(destination, LocalEnd):
        return Route.DOWNLOAD
    if isinstance(source, RemoteEnd) and isinstance(destination, RemoteEnd):
        same = source.store.container.same_service(destination.store.container)
        return Route.SAME_ACCOUNT if same else Route.CROSS_ACCOUNT
    raise LocalFileError("a transfer has a local end, a remote end, or two remote ones")
