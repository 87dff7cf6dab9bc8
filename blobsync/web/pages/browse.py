"""Folders of the project, here and in their containers, side by side; blobs with previews and links."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import LocalFileError, NothingMatchedError, UsageError
from blobsync.project.folders import FolderStatus
from blobsync.web.app_state import desk_of, form_of
from blobsync.web.events import live_parts
from blobsync.web.folder_rows import COLUMNS, SHOWN, folder_view
from blobsync.web.previews import PICTURE_BYTES, TEXT_BYTES, picture_type, preview_of
from blobsync.web.render import age_text, fragment, page, through_of
from blobsync.web.source import Source, source_of
from blobsync.web.status_cache import Standing

# Names on a page, and seconds that it waits for a quick look.
PAGE_NAMES = 200
_PATIENCE = 0.7
# What a blob holds is shown as nothing but a picture: no scripts, no frames, not even as a page of its own.
_INERT = {"content-security-policy": "default-src 'none'; sandbox", "content-disposition": "inline"}
_EXPIRIES = {"1": "1 hour", "24": "1 day", "168": "7 days", "720": "30 days"}


def trail(path: str) -> list[tuple[str, str]]:
    """The folders on the way to a path: name and path of each."""
    parts = path.split("/")
    return [(part, "/".join(parts[: at + 1])) for at, part in enumerate(parts)]


def path_of(request: Request) -> str:
    """The path that a request is about, from the project's root. Raises ``UsageError``."""
    path = request.query_params.get("path", "").strip("/")
    if not path:
        raise UsageError("no path given", hint="choose a folder on the Project page")
    return path


class _Asked(NamedTuple):
    """What the address asks for. ``sort`` is a column, with ``-`` the largest first."""

    path: str
    show: str
    text: str
    sort: str
    number: int

    def query(self, **changes: Any) -> str:
        """The address of the same with ``changes``."""
        values = {**self._asdict(), **changes}
        given = {"path": values["path"], "show": values["show"], "text": values["text"], "sort": values["sort"]}
        return "?" + urlencode({name: value for name, value in {**given, "page": values["number"]}.items() if value})


def _asked(request: Request) -> _Asked:
    query = request.query_params
    number, show, sort = query.get("page", "0"), query.get("show", ""), query.get("sort", "")
    return _Asked(
        path_of(request),
        show if show in SHOWN else "",
        query.get("text", "")[:200],
        sort if sort.removeprefix("-") in COLUMNS else "",
        int(number) if number.isdecimal() and len(number) < 7 else 0,
    )


def _list(request: Request) -> Response:
    source, asked = source_of(request), _asked(request)
    standing = desk_of(request).boards.folder(source, asked.path).renew(patience=_PATIENCE)
    if standing.status is not None and standing.status.is_file:
        return RedirectResponse(f"/blob?path={quote(asked.path)}{_through(request, source)}", 303)
    live = asked.query() + _through(request, source)
    values = _folder(asked, standing)
    return page(request, "browse.html", path=asked.path, trail=trail(asked.path), live=live, **values)


def _through(request: Request, source: Source) -> str:
    return through_of(source, desk_of(request).source)["through"]


def _folder(asked: _Asked, standing: Standing[FolderStatus]) -> dict[str, Any]:
    """What the part of the page shows that changes while somebody looks."""
    status = standing.status
    view = folder_view(status, asked.show, asked.text, asked.sort) if status else None
    first = asked.number * PAGE_NAMES
    return {
        "asked": asked,
        "standing": standing,
        "status": status,
        "view": view,
        "rows": view.rows[first : first + PAGE_NAMES] if view else (),
        "first": first,
        "age": age_text(status.as_of) if status and status.as_of is not None else "",
        "shown": SHOWN,
        "columns": COLUMNS,
    }


def _live(request: Request) -> Response:
    source, asked = source_of(request), _asked(request)
    board, through = desk_of(request).boards.folder(source, asked.path), through_of(source, desk_of(request).source)
    known: list[tuple[Standing[FolderStatus], Mapping[str, str]]] = []

    def look() -> Mapping[str, str]:
        standing = board.look()
        # Sorting 100,000 names again and again takes time.
        if not known or standing is not known[0][0] or standing.looking:
            values = {**_folder(asked, standing), **through}
            known[:] = [(standing, {"folder": fragment("browse/folder.html", **values)})]
        return known[0][1]

    return live_parts(request, look)


def _renew(request: Request) -> Response:
    source, path = source_of(request), form_of(request).get("path", "").strip("/")
    desk_of(request).boards.folder(source, path).renew(fresh=True)
    return RedirectResponse(f"/browse?path={quote(path)}{_through(request, source)}", 303)


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
            except LocalFileError:
                raise missing from None
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


ROUTES = (
    Route("/browse", _list),
    Route("/browse/live", _live),
    Route("/browse/renew", _renew, methods=["POST"]),
    Route("/blob", _show_blob),
    Route("/picture", _picture),
    Route("/links", _make_link, methods=["POST"]),
)
