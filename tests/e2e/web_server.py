"""A ``blobsync web`` on a free port, and a browser that is logged in."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.e2e.world import Project
from tests.waiting import PATIENCE

PATIENCE_MS = 1000 * PATIENCE
DESKTOP = (1600, 1000)
PHONE = (390, 844)


@dataclass(frozen=True)
class Answer:
    """The raw response of the server."""

    status: int
    headers: Mapping[str, str]
    body: str


@dataclass
class WebServer:
    """A running ``blobsync web``; ``link`` logs a browser in, once."""

    project: Project
    words: tuple[str, ...]
    link: str = ""
    file: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)
    cookie: str = ""

    def start(self) -> None:
        self.process = self.project.start("web", "--no-browser", *self.words)
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"(http://127\.0\.0\.1:\d+/login#\S+)", said)
        assert found, f"{said}\n{self.process.stderr.read() if self.process.stderr else ''}"
        self.link = found[1]
        self.file = said.split("file://")[1].split()[0]

    @property
    def port(self) -> int:
        return int(self.link.split(":")[2].split("/")[0])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill the server."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> str:
        """Stop the server with Ctrl-C; returns all that it printed after the greeting."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGINT)
        return self._reap()

    def _reap(self) -> str:
        assert self.process is not None
        out, err = self.process.communicate(timeout=60)
        return out + err

    def ask(
        self, path: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request without the browser, with the headers of our pages unless ``headers`` replace them."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Accept": "text/html"}
        sent |= {"Cookie": self.cookie} if self.cookie else {}
        if form is not None:
            sent |= {"Origin": self.address, "Content-Type": "application/x-www-form-urlencoded"}
        for name, value in (headers or {}).items():
            sent[name] = value
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            method = "GET" if form is None else "POST"
            body = None if form is None else urlencode(form)
            connection.request(method, path, body, {name: value for name, value in sent.items() if value})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
        finally:
            connection.close()

    def log_in(self) -> None:
        """Log in without a browser: from now on ``ask`` sends the cookie."""
        answer = self.ask("/login", form={"login_token": self.link.partition("#")[2]})
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def form_token(self, path: str = "/") -> str:
        """The token in the forms of this page."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.ask(path).body)
        assert found
        return found[1]


@contextmanager
def web_server(project: Project, *words: str) -> Iterator[WebServer]:
    """Run a server for this project until the end of the block."""
    server = WebServer(project, words or ("--port", "0"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's browser; Playwright's own is never downloaded."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: run ./dev setup, or install the package chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, the user of build servers.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A window that is logged in; ``errors`` are those of scripts, and violations of the content policy."""

    page: Page
    errors: list[str]
    hosts: set[str]


def faults(page: Page, *rules: str) -> list[str]:
    """The serious and critical problems of accessibility that axe-core finds.

    ``rules`` are the ones to check; empty: all.
    """
    _has_its_styles(page)
    if not page.evaluate("'axe' in window"):
        script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
        page.evaluate(f"{script}\n;undefined")
    # Of what passes only the number is needed; nothing here asks for its parts or for style sheets of elsewhere.
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": list(rules)} if rules else {})
    found, held = page.evaluate(
        "(options) => axe.run(options).then((result) => [result.violations, result.passes.length])", options
    )
    assert held > (0 if rules else 10), "its rules were tried"
    return [
        f"{page.url}: {each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def overflow(page: Page) -> int:
    """The number of pixels by which the page is wider than its window."""
    _has_its_styles(page)
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def _has_its_styles(page: Page) -> None:
    """After a click the page may be there before its style sheets."""
    page.wait_for_load_state("load")


@contextmanager
def window(
    browser: Browser, server: WebServer, *, size: tuple[int, int] = DESKTOP, dark: bool = False
) -> Iterator[Watched]:
    """Open a window with a new profile, logged in with the server's file."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    watched = Watched(page, [], set())
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.on("console", lambda said: watched.errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: watched.hosts.add(request.url.split("/")[2]))
    try:
        page.goto(f"file://{server.file}")
        page.wait_for_url(f"{server.address}/")
        yield watched
    finally:
        context.close()
