"""Which requests no page of ours can have sent, and who may look."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from blobsync.web.gate import cookie_name, strange_sender
from blobsync.web.login import LoginFile, Logins

_OURS = {"host": "127.0.0.1:8737"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", _OURS),
        ("GET", {"host": "localhost:9000"}),
        ("GET", {"host": "[::1]:8737"}),
        ("POST", {**_OURS, "origin": "http://127.0.0.1:8737"}),
        ("POST", {"host": "localhost:9000", "origin": "http://localhost:9000"}),
        # Typed by the user, or from the file that logs in.
        ("GET", {**_OURS, "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}),
        ("GET", {**_OURS, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("GET", {**_OURS, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}),
    ],
)
def test_requests_of_our_pages_pass(method: str, headers: dict[str, str]) -> None:
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
        # Another server of this machine is the same site to a browser, and not the same origin.
        ("POST", {**_OURS, "origin": "http://127.0.0.1:3000"}, 403),
        ("POST", {**_OURS, "origin": "https://127.0.0.1:8737"}, 403),
        ("POST", {**_OURS, "origin": "http://localhost:8737"}, 403),
        ("POST", _OURS, 403),
        ("GET", {**_OURS, "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ("GET", {**_OURS, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, 403),
    ],
)
def test_requests_of_other_pages_are_turned_away(method: str, headers: dict[str, str], status: int) -> None:
    turned_away = strange_sender(method, headers)
    assert turned_away is not None
    assert turned_away.status == status


def test_each_port_has_a_cookie_of_its_own() -> None:
    assert cookie_name("127.0.0.1:8737") == "blobsync-8737"
    assert cookie_name("localhost:9000") == "blobsync-9000"
    assert cookie_name("localhost") == "blobsync-80"


def test_a_token_lets_one_browser_in_and_the_file_has_the_next(tmp_path: Path) -> None:
    file = tmp_path / "login.html"
    logins = Logins(LoginFile(file, "http://127.0.0.1:1"))
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
    Logins(LoginFile(file, "http://127.0.0.1:1"))
    assert theirs.read_text() == "before"
    assert not file.is_symlink()
