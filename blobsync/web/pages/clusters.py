"""Clusters."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.web.render import page


def _show(request: Request) -> Response:
    return page(request, "clusters.html")


ROUTES = (Route("/clusters", _show),)
