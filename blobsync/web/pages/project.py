"""The first page: the status of the folder entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact
from blobsync.project.status import EntryStatus, ProjectStatus
from blobsync.project.transfer_history import TransferEntry
from blobsync.web.open_project import Source, source_of
from blobsync.web.render import app_state_of, fragment, live_parts, page, through_of
from blobsync.web.status_cache import CachedStatus

# Seconds that the first page waits for the status.
_PATIENCE = 0.25
# Transfers among which the last one of each entry is searched.
_LOOKED_BACK = 300

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EntryRow:
    """A row of the table: ``parts`` are the segments of its bar (class, share of the largest entry's bytes)."""

    status: EntryStatus
    parts: tuple[tuple[str, float], ...]
    states: tuple[tuple[str, str], ...]
    last: TransferEntry | None
    problem: str


def _show(request: Request) -> Response:
    source = source_of(request)
    cached = app_state_of(request).caches.of(source).renew(patience=_PATIENCE)
    with source.open() as project:
        entries = [(entry.prefix, str(entry.remote)) for entry in project.folders]
        warnings = [redact(text) for text in project.cluster.warnings]
    return page(
        request, "project.html", entries=entries, warnings=warnings, clusters=source.clusters(),
        **_parts(source, cached),
    )  # fmt: skip


def _live(request: Request) -> Response:
    source = source_of(request)
    cache, through = app_state_of(request).caches.of(source), through_of(request)

    def look() -> dict[str, str]:
        values = {**_parts(source, cache.look()), **through}
        return {
            "entries": fragment("project/entries.html", **values),
            "checked": fragment("project/checked.html", **values),
        }

    return live_parts(request, look)


def _renew(request: Request) -> Response:
    source = source_of(request)
    app_state_of(request).caches.of(source).renew(fresh=True)
    return RedirectResponse("/" + through_of(request)["through_first"], 303)


def _parts(source: Source, cached: CachedStatus[ProjectStatus]) -> dict[str, Any]:
    problems: dict[str, None] = {}

    def known(look: Callable[[], Sequence[T]]) -> Sequence[T]:
        try:
            return look()
        except BlobsyncError as error:
            problems[redact(error.message)] = None
            return ()

    transfers = known(lambda: source.logbook().recent(limit=_LOOKED_BACK))
    last = [each for each in transfers if source.cluster_name in (each.cluster, each.from_cluster)]
    rows = tuple(_rows(cached.status.entries, last)) if cached.status else ()
    kept = known(source.keepers)
    # The status most often fails for the same reason.
    return {"rows": rows, "cached": cached, "kept": kept, "problems": () if cached.problem else tuple(problems)}


def _rows(entries: Sequence[EntryStatus], transfers: Sequence[TransferEntry]) -> Iterator[EntryRow]:
    sizes = [dict(_bytes(entry)) for entry in entries]
    largest = max([1, *(sum(size.values()) for size in sizes)])
    for entry, size in zip(entries, sizes, strict=True):
        parts = tuple((name, count / largest) for name, count in size.items())
        last = next((each for each in transfers if each.concerns(entry.path)), None)
        problem = redact(entry.problem.message) if entry.problem else redact(entry.silence or "")
        yield EntryRow(entry, parts, tuple(badges_of(entry)), last, problem)


def _bytes(entry: EntryStatus) -> Iterator[tuple[str, int]]:
    unknown = entry.never_verified.bytes
    differing = entry.to_upload.bytes + entry.conflicts.bytes + unknown
    yield "same", max(0, entry.here.bytes - differing)
    yield "up", entry.to_upload.bytes
    yield "down", entry.to_download.bytes
    yield "conflict", entry.conflicts.bytes
    yield "unknown", unknown


def badges_of(entry: EntryStatus) -> Iterator[tuple[str, str]]:
    """Class and words of each badge; first what is to be done."""
    if entry.problem is not None:
        yield "bad", "could not be looked at"
        return
    counts = (
        ("up", entry.to_upload.files, "to upload"),
        ("down", entry.to_download.files, "to download"),
        ("warn", entry.conflicts.files, "in conflict"),
    )
    yield from ((name, f"{count:,} {words}") for name, count, words in counts if count)
    if entry.as_of is None:
        yield "", "listed in part" if entry.there.files else "not listed yet"
    elif entry.never_verified.files:
        yield "", f"{entry.never_verified.files:,} never verified"
    elif not entry.differs and not entry.jobs:
        yield "good", "in sync"
    if any(job.ran for job in entry.jobs):
        yield "down", "a job uploaded since the listing"
    elif entry.jobs:
        yield "", "a job will upload"
    if entry.silence is not None:
        yield "bad", "does not answer"
    if entry.unreadable:
        yield "bad", f"{len(entry.unreadable):,} cannot be uploaded"


ROUTES = (
    Route("/", _show),
    Route("/project/live", _live),
    Route("/project/renew", _renew, methods=["POST"]),
)
