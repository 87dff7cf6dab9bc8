"""The pages of ``blobsync web`` without a server and a browser: requests go directly to the application."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from blobsync.web.gate import Logins, cookie_name
from blobsync.web.open_project import Source
from blobsync.web.render import AppState
from blobsync.web.server import web_application
from blobsync.web.status_cache import StatusCaches
from blobsync.web.transfer_tasks import TransferTasks

_HOST = "127.0.0.1:8737"


class WebAnswer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str


class WebPages:
    """Pages of one project, logged in."""

    def __init__(self, source: Source, folder: Path) -> None:
        logins = Logins(folder / "login.html", f"http://{_HOST}")
        caches = StatusCaches()
        self.tasks = TransferTasks(source, caches.outdate)
        self._app_state = AppState(source, logins, caches, self.tasks, lambda: False)
        self._application = web_application(self._app_state)
        self._loop = asyncio.new_event_loop()
        visit = logins.exchange(logins.token)
        assert visit is not None
        self._cookie, self._token = visit.cookie, visit.form_token

    def get(self, address: str, until: Callable[[str], bool] = bool) -> WebAnswer:
        """GET a page; of a stream its first event, or all until ``until`` returns True."""
        return self._loop.run_until_complete(self._ask("GET", address, b"", until))

    def post(self, address: str, **form: str) -> WebAnswer:
        """POST a form with a valid form token."""
        body = urlencode({"form_token": self._token, **form}).encode()
        return self._loop.run_until_complete(self._ask("POST", address, body))

    def parts(self, address: str) -> dict[str, str]:
        """First event of a stream: the id of each element and its content."""
        found: dict[str, str] = json.loads(self.get(address).text.removeprefix("data: "))
        return found

    def close(self) -> None:
        self._app_state.close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _ask(self, method: str, address: str, body: bytes, until: Callable[[str], bool] = bool) -> WebAnswer:
        path, _, query = address.partition("?")
        cookie = f"{cookie_name(_HOST)}={self._cookie}"
        sent = {"host": _HOST, "cookie": cookie, "origin": f"http://{_HOST}", "accept": "text/html"}
        sent["content-type"] = "application/x-www-form-urlencoded"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8737), "state": {},
        }  # fmt: skip
        told: list[Any] = []
        enough = asyncio.Event()
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            if (first := next(asked, None)) is not None:
                return first
            await enough.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            told.append(message)
            if until(said()):
                enough.set()

        def said() -> str:
            return b"".join(message.get("body", b"") for message in told[1:]).decode("utf-8", "replace")

        await self._application(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
        return WebAnswer(told[0]["status"], headers, said())


def words_of(page: str) -> str:
    """Visible text of a page, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
