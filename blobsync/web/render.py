"""What all pages share: the state of the server, what a request says, and how templates, which escape every text,
become pages, live parts and the navigation.

No page contains a secret unless the user asked for it. Live parts are rendered here and sent to ``live.js``, which
replaces their elements: server-sent events, each of which is a JSON object, the id of an element -> its new content.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse

from blobsync.base.errors import BlobsyncError
from blobsync.base.formatting import count_text, duration_text, printable, size_text, took_text
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.redaction import redact_answer
from blobsync.config.mapping import is_below
from blobsync.jobspec.topology import job_size_text
from blobsync.plan.progress import step_verb, waiting_text
from blobsync.web.gate import TOKEN_FIELD, Logins, Visit
from blobsync.web.open_project import Source
from blobsync.web.status_cache import StatusCaches
from blobsync.web.transfer_tasks import TransferTasks


@dataclass(frozen=True, slots=True)
class AppState:
    """One per server. ``is_stopping``: the server is about to stop. ``submit_warnings``: the warnings with which jobs
    were submitted here, by the jobs' ids."""

    source: Source
    logins: Logins
    caches: StatusCaches
    tasks: TransferTasks
    is_stopping: Callable[[], bool]
    submit_warnings: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def close(self) -> None:
        """Stop all transfers and end all logins."""
        self.logins.close()
        self.tasks.close()


def app_state_of(request: Request) -> AppState:
    """The state of the server that got this request."""
    state = request.app.state.shared
    assert isinstance(state, AppState)
    return state


def visit_of(request: Request) -> Visit:
    """The login of the request; the gate ensures that there is one."""
    visit = request.state.visit
    assert isinstance(visit, Visit)
    return visit


def form_of(request: Request) -> Mapping[str, str]:
    """The fields of the submitted form."""
    form: Mapping[str, str] = request.state.form
    return form


def page_number(request: Request, first: int = 0) -> int:
    """Which page of a list the address names."""
    text = request.query_params.get("page", "")
    return max(first, int(text)) if text.isdecimal() and len(text) < 7 else first


class NavigationPlace(NamedTuple):
    """An item of the navigation: its name, address and icon (in ``icons.svg``), and other addresses of its pages."""

    name: str
    path: str
    icon: str
    more: tuple[str, ...] = ()


PLACES = (
    NavigationPlace("Project", "/", "folder"),
    NavigationPlace("Transfers", "/transfers", "arrows", ("/history",)),
    NavigationPlace("Jobs", "/jobs", "list"),
    NavigationPlace("New job", "/new-job", "plus"),
    NavigationPlace("Clusters", "/clusters", "nodes"),
)


def place_of(address: str) -> NavigationPlace:
    """The navigation item whose address is a prefix of ``address``; else the first one."""
    return next(
        (each for each in PLACES[1:] if any(is_below(address, own) for own in (each.path, *each.more))), PLACES[0]
    )


FOLDER = Path(__file__).parent
_NOW, _NOW_SECONDS = "just now", 90.0


@cache
def _templates(reveals: bool) -> Environment:
    found = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=_visible if reveals else _without_secrets,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        {
            "size": size_text,
            "count": count_text,
            "job_size": job_size_text,
            "took": took_text,
            "duration": duration_text,
            "moment": moment,
            "age": age_text,
            "ago": ago_text,
            "address": address_text,
            "breakable": breakable_text,
            "in_file": in_file_text,
            "as_is": as_is,
            "on_one_line": printable,
            "matched": matched_pieces,
            "verb": step_verb,
            "waiting": waiting_text,
        }
    )
    return found


def _without_secrets(value: Any) -> Any:
    """Redact each value by itself: a password that is a word of HTML, such as "hidden", would break the whole page."""
    return _visible(redact_answer(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def _visible(value: Any) -> Any:
    """What reorders a name or is not seen in it stands there as on a terminal."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return printable(value, kept="\n\r\t")


def as_is(text: str) -> Markup:
    """A value that comes back with its form, or the content of a file: every character stays."""
    return escape(redact_answer(text))


def moment(seconds: float) -> str:
    """A time (seconds since 1970) on this machine's clock: ``2026-11-20 10:30``."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def age_text(at: float) -> str:
    """The age of a listing, in the words of ``status``, but not to the second, so that the text seldom changes."""
    ago = ago_text(at)
    return "listed just now" if ago == _NOW else f"as of {ago}"


def ago_text(at: float) -> str:
    """``just now``, ``5 min ago``."""
    age = max(0.0, time.time() - at)
    return _NOW if age < _NOW_SECONDS else f"{duration_text(age)} ago"


def matched_pieces(line: str, wanted: str) -> list[tuple[str, bool]]:
    """A line in pieces, each with whether it matches ``wanted``, ignoring case."""
    pieces = re.split(f"({re.escape(wanted)})", redact_answer(line), flags=re.IGNORECASE)
    return [(piece, bool(number % 2)) for number, piece in enumerate(pieces) if piece]


def address_text(url: str) -> str:
    """A URL without its scheme."""
    return url.partition("://")[2] or url


def breakable_text(text: str) -> Markup:
    """A path or a URL, escaped, with line breaks allowed after its slashes."""
    return escape(_visible(redact_answer(text))).replace("/", Markup("/<wbr>"))


def in_file_text(message: str, file: str) -> str:
    """A message about a file, where the page has named that file: ``line 7: nodes: ...``."""
    return message.removeprefix(f"{file}: ").replace(f"{file}:", "line ", 1)


def fragment(template: str, *, reveals: bool = False, **values: Any) -> str:
    """Render a part of a page. ``reveals``: it has a link that the user asked for, which is a secret."""
    return _templates(reveals).get_template(template).render(**values)


def part(template: str, ask: Callable[[], Any], **values: Any) -> HTMLResponse:
    """A part that is loaded after its page, since ``ask`` asks a service: with the ``answer``, or the ``problem``."""
    answer = problem = None
    try:
        answer = ask()
    except BlobsyncError as error:
        problem = error
    return HTMLResponse(redact_answer(fragment(template, answer=answer, problem=problem, **values)))


def _source_of(request: Request) -> Source:
    """That of the page, which may be about another cluster than the server's."""
    found: Source = getattr(request.state, "source", app_state_of(request).source)
    return found


def through_of(request: Request) -> dict[str, str]:
    """Parameters that keep the links and forms of a page at its cluster, if that is not the server's own."""
    source = _source_of(request)
    if source is app_state_of(request).source:
        return {"through": "", "through_first": "", "through_cluster": ""}
    query = urlencode({"cluster": source.cluster_name})
    return {"through": f"&{query}", "through_first": f"?{query}", "through_cluster": source.cluster_name}


def page(request: Request, template: str, *, code: int = 200, reveals: bool = False, **values: Any) -> HTMLResponse:
    """Render a whole page. ``reveals`` as with :func:`fragment`."""
    visit = getattr(request.state, "visit", None)
    source = _source_of(request)
    text = fragment(
        template,
        reveals=reveals,
        places=PLACES,
        current_place=place_of(request.url.path),
        form_token=visit.form_token if isinstance(visit, Visit) else "",
        # A word of ours, not a value: a secret of the same word would hide it, and break every form.
        token_field=Markup(TOKEN_FIELD),  # noqa: S704
        project_name=source.root.name,
        project_folder=str(source.root),
        cluster_name=source.cluster_name,
        **through_of(request),
        **values,
    )
    return HTMLResponse(text, code)


# Seconds between two checks, and after which a line is sent although nothing changed.
_EVERY = 0.4
_AT_LEAST = 10.0
_TICK = 0.1


async def pause(seconds: float, over: Callable[[], bool]) -> None:
    """Wait, at most until ``over``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not over():
        await asyncio.sleep(_TICK)


def live_parts(request: Request, look: Callable[[], Mapping[str, str]], every: float = _EVERY) -> StreamingResponse:
    """A stream of what ``look`` returns (parts by :func:`fragment`); each is sent when it changes.

    ``look`` runs in a thread of its own. A part named ``load`` is no content but a local address to load.
    """

    async def stream() -> AsyncIterator[str]:
        sent: dict[str, str] = {}
        silent = _AT_LEAST
        stopping = app_state_of(request).is_stopping
        while not stopping():
            parts = await run_in_threadpool(look)
            new = {name: text for name, text in parts.items() if sent.get(name) != text}
            sent.update(parts)
            if new or silent >= _AT_LEAST:
                yield f"data: {json.dumps(new)}\n\n"
                silent = 0.0
            await pause(every, stopping)
            silent += every

    return StreamingResponse(stream(), media_type="text/event-stream")
