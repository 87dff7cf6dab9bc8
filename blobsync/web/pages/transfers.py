"""Transfers: those under way, live, and what was done, with receipts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import NothingMatchedError
from blobsync.local.transfer_log import RUNNING, TransferEntry
from blobsync.web.charts import HEIGHT, WIDTH, bytes_chart, rate_curve
from blobsync.web.desk import Desk, desk_of
from blobsync.web.events import live_parts
from blobsync.web.render import fragment, page
from blobsync.web.works import WorkItem

_PAGE = 50
# Files of a receipt that are listed.
_FILES = 500


def _show(request: Request) -> Response:
    desk = desk_of(request)
    asked = request.query_params.get("page", "0")
    number = int(asked) if asked.isdecimal() and len(asked) < 7 else 0
    with desk.source.open() as project:
        entries = project.history()
    first = number * _PAGE
    active = [work for work in desk.works.moved() if work.is_active]
    return page(
        request, "transfers.html", works=active, active=_ids(active), others=_others(desk, entries),
        entries=entries[first : first + _PAGE], number=number, more=len(entries) > first + _PAGE, total=len(entries),
        chart=bytes_chart(entries, time.time()), width=WIDTH, height=HEIGHT,
    )  # fmt: skip


def _ids(works: list[WorkItem]) -> str:
    return "-".join(work.id for work in works)


def _others(desk: Desk, entries: tuple[TransferEntry, ...]) -> list[TransferEntry]:
    """Running ones that other processes of this project began, such as those of the command line."""
    ours = {work.pid for work in desk.works.moved()}
    return [each for each in entries if each.result == RUNNING and each.pid not in ours]


def _live(request: Request) -> Response:
    desk = desk_of(request)
    shown = request.query_params.get("active", "")

    def look() -> dict[str, str]:
        works = [work for work in desk.works.moved() if work.is_active]
        if _ids(works) != shown:
            return {"load": "/transfers"}
        return {f"work-{work.id}": fragment("transfers/progress.html", **_values(work)) for work in works}

    return live_parts(request, look)


def _values(work: WorkItem) -> dict[str, Any]:
    curve, most = rate_curve(work.points)
    return {"work": work, "curve": curve, "most": most, "width": WIDTH, "height": HEIGHT}


def _show_one(request: Request) -> Response:
    work = desk_of(request).works.find(request.path_params["id"])
    if work.began is None:
        return RedirectResponse(f"/plans/{work.id}", 303)
    return page(request, "transfer.html", state=work.state, **_values(work))


def _live_one(request: Request) -> Response:
    work = desk_of(request).works.find(request.path_params["id"])
    shown = request.query_params.get("state")

    def look() -> dict[str, str]:
        if work.state != shown:
            return {"load": f"/transfers/{work.id}"}
        return {f"work-{work.id}": fragment("transfers/progress.html", **_values(work))} if work.is_active else {}

    return live_parts(request, look)


def _cancel(request: Request) -> Response:
    works = desk_of(request).works
    work = works.find(request.path_params["id"])
    works.cancel(work)
    return RedirectResponse(f"/transfers/{work.id}", 303)


def _show_entry(request: Request) -> Response:
    wanted = request.path_params["id"]
    with desk_of(request).source.open() as project:
        entry = project.find_transfer(wanted)
        if entry.id != wanted:
            raise NothingMatchedError(f"no transfer of this project has the id {wanted!r}")
        receipt = project.receipt(entry)
    files = list(_files(receipt))
    return page(request, "history.html", entry=entry, kept=receipt is not None, files=files[:_FILES], count=len(files))


def _files(receipt: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for file in (receipt or {}).get("files", ()):
        yield {"action": file.get("route"), "is": file, "was": file.get("replaced"), "path": file.get("path")}
    for file in (receipt or {}).get("deleted_files", ()):
        yield {"action": "deleted", "is": None, "was": file, "path": file.get("path")}


ROUTES = (
    Route("/transfers", _show),
    Route("/transfers/live", _live),
    Route("/transfers/{id}", _show_one),
    Route("/transfers/{id}/live", _live_one),
    Route("/transfers/{id}/cancel", _cancel, methods=["POST"]),
    Route("/history/{id}", _show_entry),
)
