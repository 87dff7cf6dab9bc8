"""What every request has to pass: its Host, its Origin, who asks, and for a change the token of our own page.

A page of another site must neither read nor change anything. The name of the Host stops names that were pointed at this
machine (DNS rebinding); the Origin stops forms and scripts of other pages, those of other servers on this machine
included, which browsers take for the same site; the cookie is sent with neither (``SameSite=Strict``).
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blobsync.web.login import Logins, Visit

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer browsers hide the Origin of forms, which is checked here.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# An ssh -L on any port of the user's machine leads here under one of these names.
_HERE = ("127.0.0.1", "localhost", "::1")
_OPEN = ("/static/", "/login")
_LOOKS = ("GET", "HEAD")
# Bytes of a form; templates of jobs are the longest.
_LARGEST_FORM = 1_000_000
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field

LOG_IN = "You are not logged in to this blobsync. Open the page /login, which says how."


class TurnedAway(NamedTuple):
    """Why a request is not answered."""

    status: int
    why: str


def cookie_name(host: str) -> str:
    """Cookies of one host are shared by all of its ports, so each port has a name of its own."""
    return f"blobsync-{urlsplit(f'//{host}').port or 80}"


def strange_sender(method: str, headers: Mapping[str, str]) -> TurnedAway | None:
    """Why no page of ours can have sent this; None if one can. Header names are in lower case."""
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        parts = urlsplit(f"//{host}")
        known = parts.hostname in _HERE and parts.port != 0 and "@" not in host
    except ValueError:
        known = False
    if not known:
        return TurnedAway(421, "This page is for 127.0.0.1 and localhost only.")
    if origin is not None and origin != f"http://{host}":
        return TurnedAway(403, "This request came from another page.")
    if method not in _LOOKS and origin is None:
        return TurnedAway(403, "This request does not say from which page it came.")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return TurnedAway(403, "This request came from another page.")
    return None


class Gate:
    """ASGI middleware: lets only the user's own requests through, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, logins: Logins) -> None:
        self._app = app
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._refusal(scope, receive)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        await _refused(scope, refusal)(scope, receive, guarded)

    async def _refusal(self, scope: Scope, receive: Receive) -> TurnedAway | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        refusal = strange_sender(method, headers)
        if refusal is not None:
            return refusal
        visit = self._visit(headers)
        scope.setdefault("state", {}).update(visit=visit, form={})
        form: Mapping[str, str] = {}
        if method not in _LOOKS:
            found = await _form(Request(scope, receive))
            if isinstance(found, TurnedAway):
                return found
            form = scope["state"]["form"] = found
        if path.startswith(_OPEN):
            return None
        if visit is None:
            return TurnedAway(401, LOG_IN)
        if method not in _LOOKS and not visit.wrote(form.get(TOKEN_FIELD, "")):
            return TurnedAway(
                403, "This form is not from this page, or from before the last login. Load the page again."
            )
        return None

    def _visit(self, headers: Headers) -> Visit | None:
        try:
            cookies: Mapping[str, Any] = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies.get(cookie_name(headers["host"]))
        return self._logins.find(found.value) if found is not None else None


async def _form(request: Request) -> Mapping[str, str] | TurnedAway:
    """The fields of a form; of several with one name the last one, and all of them, by lines, as ``name[]``."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return TurnedAway(415, "Changes are made by forms.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_FORM:
            return TurnedAway(413, "This form is too large.")
    form: dict[str, str] = {}
    for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        form[name] = value
        form[f"{name}[]"] = f"{form[f'{name}[]']}\n{value}" if f"{name}[]" in form else value
    return form


def _refused(scope: Scope, refusal: TurnedAway) -> Response:
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    if refusal.status == 401 and wants_page and scope["method"] in _LOOKS:
        return Response(status_code=303, headers={"location": "/login"})
    return PlainTextResponse(f"{refusal.why}\n", refusal.status)
