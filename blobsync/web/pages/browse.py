"""Folders of the project, here and in their containers, side by side; blobs with previews and links; and of a conflict
both versions, and the ways to resolve it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError, LocalFileError, NothingMatchedError, UsageError
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import redact
from blobsync.project.api import Project
from blobsync.project.folders import FolderName, FolderStatus
from blobsync.web.open_project import source_of
from blobsync.web.previews import PICTURE_BYTES, TEXT_BYTES, Preview, changed_lines, picture_type, preview_of
from blobsync.web.render import age_text, app_state_of, form_of, fragment, live_parts, page, page_number, through_of
from blobsync.web.status_cache import CachedStatus

_UPLOAD = ("local_only", "changed_here")
_DOWNLOAD = ("remote_only", "changed_there")
_CONFLICT = ("differs", "unknown", "damaged")
_NEVER_UPLOADED = ("unnamable", "unreadable")
# Filters: the word in the address -> its name, and the classes of files that it shows.
SHOWN = MappingProxyType(
    {
        "": ("Everything", ()),
        "differs": ("What differs", (*_UPLOAD, *_DOWNLOAD, *_CONFLICT, *_NEVER_UPLOADED)),
        "upload": ("To upload", _UPLOAD),
        "download": ("To download", _DOWNLOAD),
        "conflict": ("In conflict", _CONFLICT),
        "same": ("In sync", ("equal",)),
    }
)
# The class of a file -> the colour and the words of its badge.
_WORDS = {
    "equal": ("good", "in sync"),
    "local_only": ("up", "only here"),
    "changed_here": ("up", "changed here"),
    "remote_only": ("down", "only in the container"),
    "changed_there": ("down", "newer in the container"),
    "differs": ("warn", "in conflict"),
    "unknown": ("warn", "never compared"),
    "damaged": ("bad", "damaged"),
    "unreadable": ("bad", "unreadable"),
    "left_out": ("", "left out"),
    "unnamable": ("bad", "cannot be uploaded"),
}
# Sort keys of the columns; sorted by name, folders come first.
COLUMNS: MappingProxyType[str, tuple[str, Callable[[FolderName], Any]]] = MappingProxyType(
    {
        "name": ("Name", lambda each: (not each.is_folder, each.name)),
        "state": ("State", lambda each: _weight(each)),
        "here": ("Here", lambda each: each.here.bytes),
        "there": ("Container", lambda each: each.there.bytes),
        "modified": ("Modified here", lambda each: each.modified or 0.0),
    }
)


class FolderRow(NamedTuple):
    """One name; ``badges`` are the class and the words of each."""

    entry: FolderName
    badges: tuple[tuple[str, str], ...]
    uploads: bool
    downloads: bool
    in_conflict: bool


def chosen_names(status: FolderStatus, show: str, text: str, sort: str) -> list[FolderName]:
    """The sorted entries of a folder that match a filter. ``show`` and ``sort`` are as in the address; ``text`` is part
    of a name, in any case."""
    classes, wanted = set(SHOWN[show][1]), text.casefold()
    chosen = [
        each
        # A copy, since another thread may add entries.
        for each in list(status.names.values())
        if (not classes or classes & each.states.keys()) and (not wanted or wanted in each.name.casefold())
    ]
    chosen.sort(key=COLUMNS["name"][1])
    chosen.sort(key=COLUMNS[sort.removeprefix("-") or "name"][1], reverse=sort.startswith("-"))
    return chosen


def row_of(entry: FolderName) -> FolderRow:
    """An entry as the page shows it."""
    up, down, conflict = (_count(entry, classes) for classes in (_UPLOAD, _DOWNLOAD, _CONFLICT))
    badges = tuple(_folder_badges(entry)) if entry.is_folder else tuple(_WORDS[kind] for kind in entry.states)
    return FolderRow(entry, badges, up > 0, down > 0, conflict > 0)


def _folder_badges(entry: FolderName) -> Iterator[tuple[str, str]]:
    counts = (
        ("warn", _CONFLICT, "in conflict"),
        ("up", _UPLOAD, "to upload"),
        ("down", _DOWNLOAD, "to download"),
        ("bad", _NEVER_UPLOADED, "cannot be uploaded"),
    )
    badges = [(look, f"{count:,} {words}") for look, classes, words in counts if (count := _count(entry, classes))]
    yield from badges
    if not badges:
        yield _WORDS["equal"] if entry.states.get("equal") else _WORDS["left_out"]


def _count(entry: FolderName, classes: tuple[str, ...]) -> int:
    return sum(entry.states.get(each, 0) for each in classes)


def _weight(entry: FolderName) -> tuple[int, int, int]:
    """Conflicts first, then what is to move."""
    return (-_count(entry, _CONFLICT), -_count(entry, _UPLOAD), -_count(entry, _DOWNLOAD))


# Names on a page, and seconds to wait for a quick look.
PAGE_NAMES = 200
_PATIENCE = 0.7
# The response may be shown as a picture only: no scripts, no frames, not even as a page of its own.
_INERT = {"content-security-policy": "default-src 'none'; sandbox", "content-disposition": "inline"}
_EXPIRIES = {"1": "1 hour", "24": "1 day", "168": "7 days", "720": "30 days"}


def trail(path: str) -> list[tuple[str, str]]:
    """The folders on the way to a path: name and path of each."""
    parts = path.split("/")
    return [(part, "/".join(parts[: at + 1])) for at, part in enumerate(parts)]


def path_of(request: Request) -> str:
    """The path in the request, from the project's root. Raises ``UsageError``."""
    path = request.query_params.get("path", "").strip("/")
    if not path:
        raise UsageError("no path given", hint="choose a folder on the Project page")
    return path


class _Query(NamedTuple):
    """The parameters of the address. ``sort`` is a column; ``-`` before it reverses the order."""

    path: str
    show: str
    text: str
    sort: str
    page: int

    def query(self, **changes: Any) -> str:
        """The query string of these parameters with ``changes``."""
        values = {**self._asdict(), **changes}
        return "?" + urlencode({name: value for name, value in values.items() if value})


def _asked(request: Request) -> _Query:
    query = request.query_params
    show, sort = query.get("show", ""), query.get("sort", "")
    return _Query(
        path_of(request),
        show if show in SHOWN else "",
        query.get("text", "")[:200],
        sort if sort.removeprefix("-") in COLUMNS else "",
        page_number(request),
    )


def _list(request: Request) -> Response:
    source, asked = source_of(request), _asked(request)
    cached = app_state_of(request).caches.folder(source, asked.path).renew(patience=_PATIENCE)
    if cached.status is not None and cached.status.is_file:
        return RedirectResponse(f"/blob?path={quote(asked.path)}{through_of(request)['through']}", 303)
    live = asked.query() + through_of(request)["through"]
    values = _folder(asked, cached)
    return page(request, "browse.html", path=asked.path, trail=trail(asked.path), live=live, **values)


def _folder(asked: _Query, cached: CachedStatus[FolderStatus]) -> dict[str, Any]:
    """The values for the part of the page that is updated live."""
    status = cached.status
    names = chosen_names(status, asked.show, asked.text, asked.sort) if status else []
    asked = asked._replace(page=min(asked.page, max(0, len(names) - 1) // PAGE_NAMES))
    first = asked.page * PAGE_NAMES
    return {
        "asked": asked,
        "cached": cached,
        "status": status,
        "found": len(names),
        "rows": [row_of(each) for each in names[first : first + PAGE_NAMES]],
        "first": first,
        "age": age_text(status.as_of) if status and status.as_of is not None else "",
        "shown": SHOWN,
        "columns": COLUMNS,
    }


def _live(request: Request) -> Response:
    source, asked = source_of(request), _asked(request)
    cache, through = app_state_of(request).caches.folder(source, asked.path), through_of(request)
    known: list[tuple[CachedStatus[FolderStatus], Mapping[str, str]]] = []

    def look() -> Mapping[str, str]:
        cached = cache.look()
        # Do not sort 100,000 names again if nothing changed.
        if not known or cached is not known[0][0] or cached.looking:
            values = {**_folder(asked, cached), **through}
            known[:] = [(cached, {"folder": fragment("browse/folder.html", **values)})]
        return known[0][1]

    return live_parts(request, look)


def _renew(request: Request) -> Response:
    source, path = source_of(request), form_of(request).get("path", "").strip("/")
    app_state_of(request).caches.folder(source, path).renew(fresh=True)
    return RedirectResponse(f"/browse?path={quote(path)}{through_of(request)['through']}", 303)


def _show_blob(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    as_text = "text" in request.query_params
    with source.open() as project:
        place = f"{project.root}/{path}"
        try:
            beginning, side = project.beginning(place, TEXT_BYTES), "remote"
            entry = next(project.list(place))
        except NothingMatchedError as missing:
            try:
                beginning, side, entry = project.beginning(place, TEXT_BYTES, local=True), "local", None
            except LocalFileError as unseen:
                # A folder and a name that is nowhere have no reason of their own.
                is_told = os.path.lexists(place) and not os.path.isdir(place)
                raise (unseen if is_told else missing) from None
    return page(
        request, "blob.html", path=path, trail=trail(path), entry=entry, size=beginning.size, side=side,
        preview=preview_of(beginning, "" if as_text else path), as_text=as_text, expiries=_EXPIRIES,
    )  # fmt: skip


def _picture(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    with source.open() as project:
        local = request.query_params.get("side") == "local"
        beginning = project.beginning(f"{project.root}/{path}", PICTURE_BYTES, local=local)
    kind = picture_type(beginning.data)
    if kind is None or beginning.size > PICTURE_BYTES:
        raise UsageError(f"{path} is not an image that a browser can show")
    return Response(beginning.data, media_type=kind, headers=_INERT)


def _make_link(request: Request) -> Response:
    form = form_of(request)
    path, hours = form.get("path", ""), form.get("hours", "")
    if hours not in _EXPIRIES or not path:
        raise UsageError("choose a blob and how long its link works")
    with source_of(request).open() as project:
        url = project.url(f"{project.root}/{path}", expiry=timedelta(hours=int(hours)))
    return page(request, "link.html", reveals=True, path=path, trail=trail(path), url=url, expiry=_EXPIRIES[hours])


def _show_conflict(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    with source.open() as project:
        status = project.stat(f"{project.root}/{path}")
        here = _side(project, path, local=True) if status.local else Preview("missing")
        there = _side(project, path, local=False) if status.remote else Preview("missing")
    return page(
        request, "conflict.html", path=path, trail=trail(path), status=status, here=here, there=there,
        changes=changed_lines(there, here),
    )  # fmt: skip


def _side(project: Project, path: str, *, local: bool) -> Preview:
    try:
        return preview_of(project.beginning(f"{project.root}/{path}", TEXT_BYTES, local=local))
    except BlobsyncError as error:
        return Preview("problem", redact(error.message))


ROUTES = (
    Route("/browse", _list),
    Route("/browse/live", _live),
    Route("/browse/renew", _renew, methods=["POST"]),
    Route("/blob", _show_blob),
    Route("/picture", _picture),
    Route("/conflict", _show_conflict),
    Route("/links", _make_link, methods=["POST"]),
)
