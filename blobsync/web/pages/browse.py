"""The container's folders and blobs: lists, previews, links."""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.web.desk import desk_of, form_of
from blobsync.web.listings import PAGE
from blobsync.web.previews import PICTURE_BYTES, TEXT_BYTES, picture_type, preview_of
from blobsync.web.render import page
from blobsync.web.source import source_of

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


def _list(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    number = request.query_params.get("page", "0")
    number_wanted = int(number) if number.isdecimal() and len(number) < 7 else 0
    try:
        listing = desk_of(request).listings.find(source, path, request.query_params.get("listing", ""))
        entries = listing.page(number_wanted)
    except NothingMatchedError:
        return page(request, "browse.html", path=path, trail=trail(path), listing=None, entries=[], number=0, first=0)
    return page(
        request, "browse.html", path=path, trail=trail(path), listing=listing, entries=entries, number=number_wanted,
        first=number_wanted * PAGE,
    )  # fmt: skip


def _show_blob(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    with source.open() as project:
        beginning = project.beginning(f"{project.root}/{path}", TEXT_BYTES)
        entry = next(project.list(f"{project.root}/{path}"))
    return page(
        request, "blob.html", path=path, trail=trail(path), entry=entry, preview=preview_of(beginning),
        expiries=_EXPIRIES,
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
    Route("/blob", _show_blob),
    Route("/picture", _picture),
    Route("/links", _make_link, methods=["POST"]),
)
