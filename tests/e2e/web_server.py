"""The installed ``blobsync web`` on a free port, and a browser that has logged in to it."""

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

from tests.e2e.world import Project, blobsync_command

# A loaded machine may take its time; nothing waits longer than it has to.
PATIENCE_MS = 60_000
DESKTOP = (1600, 1000)
PHONE = (390, 844)


@dataclass(frozen=True)
class Answer:
    """What the server said, straight from the socket."""

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
        self.process = subprocess.Popen(
            [blobsync_command(), "web", "--no-browser", *self.words],
            cwd=self.project.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.project.environ},
            start_new_session=True,
        )
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
        """As a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> str:
        """Ctrl-C; returns all that it printed after the greeting."""
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
        """One request past the browser, with the headers of a page of ours unless ``headers`` say otherwise."""
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
        """Without a browser: from now on ``ask`` sends the cookie."""
        answer = self.ask("/login", form={"login_token": self.link.partition("#")[2]})
        assert answer.status == 303, answer
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def form_token(self, path: str = "/") -> str:
        """The token that forms of this page carry."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.ask(path).body)
        assert found
        return found[1]


@contextmanager
def web_server(project: Project, *words: str) -> Iterator[WebServer]:
    """A server for this project, which ends with the block."""
    server = WebServer(project, words or ("--port", "0"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser; Playwright's own is never fetched."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: run ./dev setup, or install the package chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, as whom a build server runs.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A window that has logged in, and what went wrong in it: ``errors`` of scripts, refusals of the policy."""

    page: Page
    errors: list[str]
    hosts: set[str]


def faults(page: Page, *rules: str) -> list[str]:
    """What axe-core finds to be a serious or critical fault for somebody with a screen reader or without a mouse.

    ``rules`` are the only ones that are tried; without any, all are.
    """
    if not page.evaluate("'axe' in window"):
        script = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
        page.evaluate(f"{script}\n;undefined")
    options = {"runOnly": list(rules)} if rules else {}
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
    """By how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def window(
    browser: Browser, server: WebServer, *, size: tuple[int, int] = DESKTOP, dark: bool = False
) -> Iterator[Watched]:
    """A new window of a new profile, logged in by the file that the server wrote."""
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
