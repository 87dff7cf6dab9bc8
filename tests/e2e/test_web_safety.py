"""``blobsync web`` lets only its own user in, and nothing that comes from outside acts in its pages."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.web_server import web_server, window
from tests.e2e.world import AS_INSTALLED, Container, Project, command_lines
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_only_the_users_own_pages_are_answered(project: Project, container: Container) -> None:
    project.configure(container)
    with web_server(project) as server:
        address, port = server.address, server.port
        token = server.link.partition("#")[2]
        # Nobody is in before the token was shown, and the token works once.
        assert server.ask("/").headers["location"] == "/login"
        assert server.ask("/live", headers={"Accept": "*/*"}).status == 401
        assert server.ask("/login", form={"login_token": "guessed"}).status == 403
        assert server.ask("/login", form={"login_token": token}, headers={"Origin": "http://evil.test"}).status == 403
        server.log_in()
        assert server.ask("/login", form={"login_token": token}).status == 403
        answer = server.ask("/")
        assert answer.status == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        # Names that point at this machine, other servers of this machine, other sites.
        for host in ("evil.test", f"evil.test:{port}", "127.0.0.1.evil.test", "", f"user@127.0.0.1:{port}"):
            assert server.ask("/", headers={"Host": host or "x"}).status == 421
        assert server.ask("/", headers={"Host": f"localhost:{port}"}).status == 200, "as through ssh -L"
        for origin in ("http://evil.test", "null", f"http://127.0.0.1:{port + 1}", f"https://127.0.0.1:{port}"):
            assert server.ask("/", headers={"Origin": origin}).status == 403
        assert server.ask("/", headers={"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}).status == 403
        # A change needs the token of our own form, and an Origin.
        form = {"form_token": server.form_token()}
        assert server.ask("/logout", form={}).status == 403
        assert server.ask("/logout", form={"form_token": "guessed"}).status == 403
        assert server.ask("/logout", form=form, headers={"Origin": ""}).status == 403
        assert server.ask("/logout", form=form, headers={"Origin": "http://evil.test"}).status == 403
        assert server.ask("/logout", form=form, headers={"Content-Type": "text/plain"}).status == 415
        assert server.ask("/logout", form={**form, "much": "x" * 1_000_001}).status == 413
        assert server.ask("/").status == 200, "none of these changed anything"
        assert server.ask("/logout", form=form).headers["location"] == "/login"
        assert server.ask("/").status == 303
        assert address.startswith("http://127.0.0.1:")


def test_the_login_is_a_file_for_the_user_alone_and_is_in_no_command_line(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    project.before = AS_INSTALLED
    with web_server(project) as server:
        file = Path(server.file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = file.read_text()
        token = server.link.partition("#")[2]
        assert token in first
        assert not [line for line in command_lines(server.pid) if token in line]
        with window(browser, server) as seen:
            (cookie,) = seen.page.context.cookies()
            assert cookie["name"] == f"blobsync-{server.port}"
            assert cookie["httpOnly"]
            assert cookie["sameSite"] == "Strict"
            assert token not in seen.page.url
            assert file.read_text() != first, "the file has the next token"
            assert seen.errors == []
        printed = server.stop()
        assert token not in printed
        assert not file.exists()
        assert os.path.basename(file) == f"login-{server.port}.html"


@contextmanager
def _on_socket(project: Project, place: Path) -> Iterator[str]:
    """The page at a Unix socket; what it says when it is ready. Ctrl-C ends it, and takes the socket away."""
    process = project.start("web", "--socket", str(place))
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        yield said
    finally:
        os.kill(process.pid, signal.SIGINT)
        done = project.finish(process)
    assert (done.code, done.out) == (0, "stopped\n"), done
    assert not place.exists()


def _with_browser(project: Project, folder: Path) -> Path:
    """A browser that writes its address into the file that is returned."""
    opened, program = folder / "opened", folder / "browser"
    program.write_text(f'#!/bin/sh\necho "$@" > {opened}.part && mv {opened}.part {opened}\n')
    program.chmod(0o755)
    project.environ["BROWSER"] = f"{program} %s"
    return opened


def _the_browser_gets_the_file(said: str, opened: Path) -> None:
    """Not the token: a command line is everybody's to read."""
    assert wait_until(opened.exists, seconds=60)
    address = opened.read_text().strip()
    assert address.startswith("file://") and address in said
    token = said.partition("/login#")[2].split()[0]
    assert token not in address
    assert token in Path(address.removeprefix("file://")).read_text()


def _the_socket_is_for_its_owner(said: str, place: Path) -> None:
    assert f"ssh -L 8737:{place} " in said
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(place))
        asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost:9000\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
        assert asking.recv(4096).startswith(b"HTTP/1.1 303 ")


def test_the_browser_gets_the_file_and_a_unix_socket_is_for_its_owner(
    project: Project, container: Container, tmp_path: Path
) -> None:
    project.configure(container)
    opened, place = _with_browser(project, tmp_path), tmp_path / "web.sock"
    with _on_socket(project, place) as said:
        _the_browser_gets_the_file(said, opened)
        _the_socket_is_for_its_owner(said, place)
        second = project.run("web", "--no-browser", "--socket", str(place))
        assert (second.code, "another program listens there" in second.err) == (2, True)


def test_the_page_has_no_json_and_one_place_to_listen(project: Project, container: Container) -> None:
    project.configure(container)
    assert project.run("web", "--json").code == 2
    assert project.run("web", "--port", "1", "--socket", "x").code == 2
