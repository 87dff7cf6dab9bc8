"""A conflict: both versions of a file side by side, and the ways to resolve it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError
from blobsync.base.redaction import redact
from blobsync.project.api import Project
from blobsync.web.open_project import source_of
from blobsync.web.pages.browse import path_of, trail
from blobsync.web.previews import TEXT_BYTES, Preview, changed_lines, preview_of
from blobsync.web.render import page


def _show(request: Request) -> Response:
    source, path = source_of(request), path_of(request)
    with source.open() as project:
        status = project.stat(f"{project.root}/{path}")
        here = _preview(project, path, local=True) if status.local else Preview("missing")
        there = _preview(project, path, local=False) if status.remote else Preview("missing")
    return page(
        request, "conflict.html", path=path, trail=trail(path), status=status, here=here, there=there,
        changes=changed_lines(there, here),
    )  # fmt: skip


def _preview(project: Project, path: str, *, local: bool) -> Preview:
    try:
        return preview_of(project.beginning(f"{project.root}/{path}", TEXT_BYTES, local=local))
    except BlobsyncError as error:
        return Preview("problem", redact(error.message))


ROUTES = (Route("/conflict", _show),)
