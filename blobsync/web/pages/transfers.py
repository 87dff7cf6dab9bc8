"""Transfers: live progress of those under way, and the history with receipts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError, NothingMatchedError
from blobsync.base.formatting import duration_text
from blobsync.base.records import NamedTuple
from blobsync.plan.progress import Progress, RatePoint
from blobsync.project.transfer_history import (
    RUNNING,
    LogBook,
    RunningTransfer,
    TransferEntry,
    failure_text,
    failures_in,
    files_in,
)
from blobsync.web.charts import CHART_SECONDS, HEIGHT, WIDTH, bytes_chart, rate_curve
from blobsync.web.open_project import look_through
from blobsync.web.render import AppState, app_state_of, fragment, live_parts, page, page_number
from blobsync.web.transfer_tasks import TransferTask

_PAGE = 50
# Files of a receipt on the page.
_FILES = 500
# Of a receipt: the routes of files that a user calls copied.
_COPIES = ("same-account", "cross-account")
# Seconds without an update until the page says so.
_SILENT = 15.0
# Longest list of ids in an address, in characters.
_LONGEST_IDS = 4000


class OtherTransfer(NamedTuple):
    """A transfer that another process runs, with the attributes of a :class:`TransferTask` that the templates use.

    ``moving`` is its progress if it has begun to move files; ``silence`` says how long it has not reported anything, if
    that is long.
    """

    entry: TransferEntry
    id: str
    shown: tuple[str, ...]
    state: str = "moving"
    progress: Progress | None = None
    moving: Progress | None = None
    points: tuple[RatePoint, ...] = ()
    silence: str = ""
    can_stop: bool = False
    is_active: bool = True

    @property
    def seconds(self) -> float:
        """How long it has moved files, by its last point."""
        return self.points[-1][0] if self.points else 0.0


def _other(entry: TransferEntry, running: RunningTransfer | None) -> OtherTransfer:
    other = OtherTransfer(entry, entry.id, entry.paths)
    if running is None:
        # A process reports first after half a second.
        return other
    far = running.progress
    return other._replace(
        state="planning" if running.planning else "moving",
        progress=far,
        moving=far if far.files_expected else None,
        points=running.points,
        silence="" if running.silent < _SILENT else duration_text(running.silent),
        can_stop=running.stoppable,
    )


def _others(book: LogBook, shown: Iterable[str]) -> list[OtherTransfer]:
    """Transfers that report their progress, and those of ``shown`` that run without reporting, except those of this
    process. Newest first. Raises ``LocalFileError`` if the log cannot be read."""
    running = book.running.all()
    logged = [entry for entry in book.log.each([*running, *shown]) if entry.result == RUNNING]
    planned = [_as_entry(each) for each in running.values() if each.planning]
    entries = sorted([*logged, *planned], key=attrgetter("began"), reverse=True)
    return [_other(entry, running.get(entry.id)) for entry in entries if not _is_ours(entry)]


def _as_entry(one: RunningTransfer) -> TransferEntry:
    """An entry like those that the history has after something has moved."""
    return TransferEntry(
        one.kind, one.paths, one.command, began=one.began, user=one.user, host=one.host, pid=one.pid, id=one.id
    )


def _is_ours(entry: TransferEntry) -> bool:
    """Whether this process carries it out."""
    return entry.pid == os.getpid() and entry.host == os.uname().nodename


def _show(request: Request) -> Response:
    state = app_state_of(request)
    number, book, now = page_number(request), state.source.logbook(), time.time()
    first, total = number * _PAGE, book.log.count()
    entries = book.recent(limit=_PAGE, offset=first)
    active = [task for task in state.tasks.moved() if task.is_active]
    others = _others(book, [entry.id for entry in book.recent(limit=_PAGE) if entry.result == RUNNING])
    return page(
        request, "transfers.html", tasks=active, active=_ids([*active, *others]), others=others,
        entries=entries, number=number, more=total > first + _PAGE, total=total,
        chart=bytes_chart(book.recent(since=now - CHART_SECONDS), now), width=WIDTH, height=HEIGHT,
    )  # fmt: skip


def _ids(tasks: Iterable[TransferTask | OtherTransfer]) -> str:
    return "-".join(task.id for task in tasks)


def _live(request: Request) -> Response:
    state = app_state_of(request)
    book = state.source.logbook()
    shown = request.query_params.get("active", "")[:_LONGEST_IDS]

    def look() -> dict[str, str]:
        tasks = [task for task in state.tasks.moved() if task.is_active]
        others = _others(book, shown.split("-"))
        if _ids([*tasks, *others]) != shown:
            return {"load": "/transfers"}
        active: list[TransferTask | OtherTransfer] = [*tasks, *others]
        return {f"task-{each.id}": fragment("transfers/progress.html", **_values(each)) for each in active}

    return live_parts(request, look)


def _values(task: TransferTask | OtherTransfer) -> dict[str, Any]:
    curve, most = rate_curve(task.points)
    return {"task": task, "curve": curve, "most": most, "width": WIDTH, "height": HEIGHT}


def _show_one(request: Request) -> Response:
    try:
        task = app_state_of(request).tasks.find(request.path_params["id"])
    except NothingMatchedError:
        # The server was restarted since: the transfer is in the history.
        return RedirectResponse("/transfers", 303)
    if task.began is None:
        return RedirectResponse(f"/plans/{task.id}", 303)
    look_through(request, task.request.cluster)
    return page(
        request, "transfer.html", state=task.state, entry=_entry_of(app_state_of(request), task), **_values(task)
    )


def _entry_of(state: AppState, task: TransferTask) -> TransferEntry | None:
    """The entry of the history: the first of these paths since it began."""
    paths = task.plan.paths if task.plan is not None else ()
    try:
        recent = state.source.logbook().recent(since=task.began)
    except BlobsyncError:
        # The Transfers page shows the error.
        return None
    return next((entry for entry in reversed(recent) if entry.paths == paths and _is_ours(entry)), None)


def _live_one(request: Request) -> Response:
    task = app_state_of(request).tasks.find(request.path_params["id"])
    shown = request.query_params.get("state")

    def look() -> dict[str, str]:
        if task.state != shown:
            return {"load": f"/transfers/{task.id}"}
        return {f"task-{task.id}": fragment("transfers/progress.html", **_values(task))} if task.is_active else {}

    return live_parts(request, look)


def _cancel(request: Request) -> Response:
    tasks = app_state_of(request).tasks
    task = tasks.find(request.path_params["id"])
    tasks.cancel(task)
    return RedirectResponse(f"/transfers/{task.id}", 303)


def _cancel_other(request: Request) -> Response:
    app_state_of(request).source.logbook().running.stop(request.path_params["id"])
    return RedirectResponse("/transfers", 303)


def _show_entry(request: Request) -> Response:
    wanted = request.path_params["id"]
    book = app_state_of(request).source.logbook()
    entry = book.log.find(wanted)
    if entry.id != wanted:
        raise NothingMatchedError(f"no transfer of this project has the id {wanted!r}")
    receipt = book.receipt(entry)
    files, failures = list(files_in(receipt)), [failure_text(each) for each in failures_in(receipt)]
    return page(
        request, "history.html", entry=entry, kept=receipt is not None,
        files=files[:_FILES], copies=_COPIES, count=len(files), failures=failures[:_FILES], failed=len(failures),
    )  # fmt: skip


ROUTES = (
    Route("/transfers", _show),
    Route("/transfers/live", _live),
    Route("/transfers/running/{id}/cancel", _cancel_other, methods=["POST"]),
    Route("/transfers/{id}", _show_one),
    Route("/transfers/{id}/live", _live_one),
    Route("/transfers/{id}/cancel", _cancel, methods=["POST"]),
    Route("/history/{id}", _show_entry),
)
