"""The pages: a module for each place of the navigation. ``ROUTES`` are what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from starlette.routing import Route

from blobsync.web.places import PLACES


def all_routes() -> Iterator[Route]:
    """Those of every place."""
    for place in PLACES:
        yield from import_module(f"{__name__}.{place.module}").ROUTES
