"""The gate of the web server: which requests it refuses, and who may log in."""

from __future__ import annotations

import asyncio
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blobsync.web.gate import Gate, Logins, cookie_name, strange_sender

_OURS = {"host": "127.0.0.1:8737"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", _OURS),
        ("GET", {"host": "localhost:9000"}),
        ("GET", {"host": "[::1]:8737"}),
        ("POST", {**_OURS, "origin": "http://127.0.0.1:8737"}),
        ("POST", {"host": "localhost:9000", "origin": "http://localhost:9000"}),
        # The user typed the address, or opened the login file.
        ("GET", {**_OURS, "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}),
        ("GET", {**_OURS, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("GET", {**_OURS, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}),
    ],
)
def test_requests_of_our_pages_are_accepted(method: str, headers: dict[str, str]) -> None:
    assert strange_sender(method, headers) is None


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 421),
        ("GET", {"host": "evil.test"}, 421),
        ("GET", {"host": "evil.test:8737"}, 421),
        ("GET", {"host": "127.0.0.1.evil.test:8737"}, 421),
        ("GET", {"host": "127.0.0.1@evil.test"}, 421),
        ("GET", {"host": "evil@127.0.0.1:8737"}, 421),
        ("GET", {"host": "127.0.0.1:port"}, 421),
        ("GET", {"host": "[::1"}, 421),
        ("GET", {"host": "192.168.1.4:8737"}, 421),
        ("GET", {**_OURS, "origin": "http://evil.test"}, 403),
        ("GET", {**_OURS, "origin": "null"}, 403),
        # To a browser another server of this machine is the same site but another origin.
        ("POST", {**_OURS, "origin": "http://127.0.0.1:3000"}, 403),
        ("POST", {**_OURS, "origin": "https://127.0.0.1:8737"}, 403),
        ("POST", {**_OURS, "origin": "http://localhost:8737"}, 403),
        ("POST", _OURS, 403),
        ("GET", {**_OURS, "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {**_OURS, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, 403),
    ],
)
def test_requests_of_other_pages_are_refused(method: str, headers: dict[str, str], status: int) -> None:
    turned_away = strange_sender(method, headers)
    assert turned_away is not None
    assert turned_away.status == status


def test_each_port_has_its_own_cookie() -> None:
    assert cookie_name("127.0.0.1:8737") == "blobsync-8737"
    assert cookie_name("localhost:9000") == "blobsync-9000"
    assert cookie_name("localhost") == "blobsync-80"


def test_a_token_logs_in_one_browser_and_the_login_file_gets_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "login.html"
    logins = Logins(file, "http://127.0.0.1:1")
    token, text = logins.token, file.read_text()
    assert token in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert logins.exchange("") is None
    assert logins.exchange("x" * len(token)) is None
    assert logins.exchange("é") is None
    visit = logins.exchange(token)
    assert visit is not None
    assert logins.exchange(token) is None
    assert token not in file.read_text()
    assert logins.token in file.read_text()
    assert logins.find(visit.cookie) is visit
    assert visit.cookie not in repr(visit)
    assert visit.wrote(visit.form_token) and not visit.wrote(visit.cookie) and not visit.wrote("")
    logins.forget(visit)
    assert logins.find(visit.cookie) is None
    logins.close()
    assert not file.exists()


def test_the_login_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("before")
    file = tmp_path / "login.html"
    file.symlink_to(theirs)
    Logins(file, "http://127.0.0.1:1")
    assert theirs.read_text() == "before"
    assert not file.is_symlink()


@dataclass
class Sent:
    """The gate's response to a request: 200 means that the application answered, with ``form`` as it arrived."""

    status: int
    bytes_read: int
    cpu_seconds: float
    form: dict[str, str]


def send(logins: Logins, path: str, body: bytes, **headers: str) -> Sent:
    """A POST as of our own page; ``body`` comes in pieces of 1,000 bytes, as many as are asked for."""
    sent = Sent(0, 0, 0.0, {})

    async def application(scope: Any, receive: Any, send: Any) -> None:
        sent.form = scope["state"]["form"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> dict[str, Any]:
        piece = body[sent.bytes_read : sent.bytes_read + 1_000]
        sent.bytes_read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": sent.bytes_read < len(body)}

    async def answered(message: Any) -> None:
        sent.status = message.get("status", sent.status)

    headers = {
        **_OURS,
        "origin": "http://127.0.0.1:8737",
        "content-type": "application/x-www-form-urlencoded",
        **headers,
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    began = time.process_time()
    asyncio.run(Gate(application, logins)(scope, receive, answered))
    sent.cpu_seconds = time.process_time() - began
    return sent


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    return Logins(tmp_path / "login.html", "http://127.0.0.1:1")


def test_the_form_of_an_unknown_browser_is_not_read(logins: Logins) -> None:
    large = b"a=1&" * 1_000_000
    for path in ("/logout", "/jobs/new"):
        turned_away = send(logins, path, large)
        assert (turned_away.status, turned_away.bytes_read) == (401, 0)
    for path in ("/login", "/static/page.css"):
        turned_away = send(logins, path, large)
        assert turned_away.status == 413
        assert turned_away.bytes_read <= 5_000, "only the bytes that a token needs"
    wrong = send(logins, "/logout", large, cookie=f"{cookie_name('127.0.0.1:8737')}=guessed")
    assert (wrong.status, wrong.bytes_read) == (401, 0)
    assert send(logins, "/login", f"login_token={logins.token}".encode()).form["login_token"] == logins.token


def test_a_large_form_is_read_in_linear_time(logins: Logins) -> None:
    visit = logins.exchange(logins.token)
    assert visit is not None
    cookie = f"other=1; {cookie_name('127.0.0.1:8737')}={visit.cookie}; more=2"
    token = f"form_token={visit.form_token}"
    fields = "&".join([token, *(f"path={'x' * 40}{number}" for number in range(19_000))])
    done = send(logins, "/plans", fields.encode(), cookie=cookie)
    assert done.status == 200
    assert len(done.form["path[]"].split("\n")) == 19_000
    assert done.form["path"].endswith("x18999")
    # As many fields as fit into the bytes.
    many = send(logins, "/plans", f"{token}&{'a=&' * 330_000}".encode(), cookie=cookie)
    assert many.status == 413
    assert many.cpu_seconds < 3


def test_no_cookie_takes_long_to_read(logins: Logins) -> None:
    # A server takes headers of 64 kB, before anybody has logged in.
    for cookie in ('a="' + "\\" * 60_000 + '"', 'a="' + '\\"' * 30_000 + '"', ";=" * 30_000):
        turned_away = send(logins, "/logout", b"", cookie=cookie)
        assert turned_away.status == 401
        assert turned_away.cpu_seconds < 2
