"""Values -> pages. Every text is escaped by the templates, and no secret leaves in a page unless it was asked for."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from blobsync.base.amounts import count_text, duration_text, size_text, took_text
from blobsync.base.redaction import redact_answer
from blobsync.web.desk import desk_of
from blobsync.web.gate import TOKEN_FIELD
from blobsync.web.login import Visit
from blobsync.web.places import PLACES, place_of

FOLDER = Path(__file__).parent


@cache
def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        {
            "size": size_text,
            "count": count_text,
            "took": took_text,
            "duration": duration_text,
            "moment": moment,
            "address": address_text,
        }
    )
    return found


def moment(seconds: float) -> str:
    """A time (seconds since 1970) on this machine's clock: ``2026-11-20 10:30``."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def address_text(url: str) -> str:
    """A URL as a place: without its scheme."""
    return url.partition("://")[2] or url


def fragment(template: str, **values: Any) -> str:
    """A part of a page."""
    return _templates().get_template(template).render(**values)


def page(request: Request, template: str, *, code: int = 200, reveals: bool = False, **values: Any) -> HTMLResponse:
    """A whole page. ``reveals``: it has a link that was asked for, which is a secret."""
    visit = getattr(request.state, "visit", None)
    source = desk_of(request).source
    text = fragment(
        template,
        places=PLACES,
        current_place=place_of(request.url.path),
        form_token=visit.form_token if isinstance(visit, Visit) else "",
        token_field=TOKEN_FIELD,
        project_name=source.root.name,
        project_folder=str(source.root),
        cluster_name=source.cluster_name,
        **values,
    )
    return HTMLResponse(text if reveals else redact_answer(text), code)
