"""The pages. Each module lists its routes in ``ROUTES``; ``MODULES`` are all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from starlette.routing import Route

MODULES = ("project", "plans", "conflicts", "browse", "transfers", "jobs", "new_job", "clusters")


def all_routes() -> Iterator[Route]:
    """The routes of all pages."""
    for name in MODULES:
        yield from import_module(f"{__name__}.{name}").ROUTES
