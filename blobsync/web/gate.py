"""Checks every request: its Host, its Origin, its login, and for a change the token of the form. Logins begin with a
one-time token, which a file of the user holds, and go on with a cookie.

A page of another site must neither read nor change anything. Checking the Host stops names that resolve to this
machine (DNS rebinding); checking the Origin stops forms and scripts of other pages, including those of other servers
on this machine, which browsers take for the same site; the cookie is sent with neither (``SameSite=Strict``).

Other users of this machine reach the port, too. A request without a login is rejected before its form is read, since
reading a large one takes seconds from the user.
"""

from __future__ import annotations

import hmac
import html
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blobsync.base.errors import LocalFileError
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.user_folders import replace_file

_BYTES = 32


def _fresh() -> str:
    return secrets.token_urlsafe(_BYTES)


@dataclass(frozen=True, slots=True)
class Visit:
    """One browser that has logged in. ``cookie`` identifies it, ``form_token`` proves that a form is from our page."""

    cookie: str = field(default_factory=_fresh, repr=False)
    form_token: str = field(default_factory=_fresh, repr=False)

    def wrote(self, form_token: str) -> bool:
        """Whether this is the form token of this login."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())


class Logins:
    """The browsers that have logged in to this server, and the one-time token for the next one.

    ``file`` is what a browser opens to log in: readable by its owner only, it leads to the page with the present token.
    The token is behind the ``#``: it is in no command line, and browsers do not send it to a server.
    """

    def __init__(self, file: Path, address: str) -> None:
        """``address`` is ``http://127.0.0.1:PORT``. Raises ``LocalFileError`` if the file cannot be written."""
        self.file = file
        self._address = address
        self._visits: dict[str, Visit] = {}
        self.token = ""
        self._renew()

    @property
    def link(self) -> str:
        """The address that logs the next browser in."""
        return f"{self._address}/login#{self.token}"

    def exchange(self, token: str) -> Visit | None:
        """Exchange the present token for a login, which invalidates the token; None for any other text."""
        if not hmac.compare_digest(self.token.encode(), token.encode()):
            return None
        self._renew()
        visit = Visit()
        self._visits[visit.cookie] = visit
        return visit

    def find(self, cookie: str) -> Visit | None:
        """The login that has this cookie."""
        return self._visits.get(cookie)

    def forget(self, visit: Visit) -> None:
        """Log out."""
        self._visits.pop(visit.cookie, None)

    def close(self) -> None:
        """End all logins."""
        self._visits.clear()
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _renew(self) -> None:
        self.token = _fresh()
        link = html.escape(self.link)
        text = (
            '<!doctype html>\n<meta charset="utf-8">\n<meta name="referrer" content="no-referrer">\n'
            f'<meta http-equiv="refresh" content="0; url={link}">\n<title>blobsync</title>\n'
            f'<p><a href="{link}">Open blobsync</a></p>\n'
        )
        try:
            replace_file(self.file, text.encode())
        except OSError as error:
            raise LocalFileError(f"{self.file}: {error.strerror}", path=str(self.file)) from error


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer browsers would hide the Origin of forms, which is checked here.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# An ssh -L on any port of the user's machine leads here with one of these names.
_HERE = ("127.0.0.1", "localhost", "::1")
_OPEN = ("/static/", "/login")
_LOOKS = ("GET", "HEAD")
# Bytes of a form; job templates are the longest. Without a login a form has a token and nothing else.
_LARGEST_FORM = 1_000_000
_LARGEST_LOGIN = 4_000
_MOST_FIELDS = 20_000
TOKEN_FIELD = "form_token"  # noqa: S105 - the name of a field

LOG_IN = "You are not logged in to this blobsync. Open the page /login, which says how."


class TurnedAway(NamedTuple):
    """Why a request is rejected."""

    status: int
    why: str


def cookie_name(host: str) -> str:
    """The name of the login cookie: all ports of a host share cookies, so each port has a name of its own."""
    return f"blobsync-{urlsplit(f'//{host}').port or 80}"


def strange_sender(method: str, headers: Mapping[str, str]) -> TurnedAway | None:
    """Why this request cannot come from one of our pages; None if it can. Header names are in lower case."""
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
    """ASGI middleware that lets only the user's own requests through, and adds headers to every response."""

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
        cookie, is_open = _cookie(headers.get("cookie", ""), cookie_name(headers["host"])), path.startswith(_OPEN)
        visit = None if cookie is None else self._logins.find(cookie)
        scope.setdefault("state", {}).update(visit=visit, form={})
        if visit is None and not is_open:
            return TurnedAway(401, LOG_IN)
        if method in _LOOKS:
            return None
        form = await _form(Request(scope, receive), _LARGEST_LOGIN if visit is None else _LARGEST_FORM)
        if isinstance(form, TurnedAway):
            return form
        scope["state"]["form"] = form
        if is_open or (visit is not None and visit.wrote(form.get(TOKEN_FIELD, ""))):
            return None
        return TurnedAway(403, "This form is not from this page, or from before the last login. Load the page again.")


def _cookie(sent: str, name: str) -> str | None:
    """The value of a cookie without quotes. ``http.cookies`` takes seconds for some headers of 60 kB."""
    for one in sent.split(";"):
        key, equals, value = one.strip().partition("=")
        if equals and key == name:
            return value
    return None


async def _form(request: Request, largest: int) -> Mapping[str, str] | TurnedAway:
    """The fields of a form of at most ``largest`` bytes.

    Of several fields with one name it has the last one, and all of them, as lines, under ``name[]``.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        return TurnedAway(415, "Changes are made by forms.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            return TurnedAway(413, "This form is too large.")
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return TurnedAway(413, "This form has too many fields.")
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {
        key: text
        for name, values in fields.items()
        for key, text in ((name, values[-1]), (f"{name}[]", "\n".join(values)))
    }


def _refused(scope: Scope, refusal: TurnedAway) -> Response:
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    if refusal.status == 401 and wants_page and scope["method"] in _LOOKS:
        return Response(status_code=303, headers={"location": "/login"})
    return PlainTextResponse(f"{refusal.why}\n", refusal.status)
