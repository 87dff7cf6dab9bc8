"""The documentation site: built as ``./dev docs`` builds it, once for all tests here."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser

from blobsync.base.errors import FailureCode
from blobsync.base.exit_codes import ExitCode
from blobsync.cli.command_words import SECTIONS
from tests.e2e.web_server import chromium
from tests.source import ROOT, modules
from tools.docs_site.__main__ import build
from tools.docs_site.navigation import KINDS
from tools.docs_site.pictures import PictureError, drawn, is_drawn_from
from tools.docs_site.variables import AMONG_ITS_OWN, FOR_USERS, IN_JOBS

# For the first test the whole site is built, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(target)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return target / "html"


def test_each_page_is_in_the_navigation_of_the_first_under_its_kind(html: Path) -> None:
    first = (html / "index.html").read_text(encoding="utf-8")
    for kind, pages in KINDS.items():
        assert f'<span class="caption-text">{kind}</span>' in first
        assert [page for page in pages if f'href="{page}.html"' not in first] == []


def test_the_first_page_begins_with_what_blobsync_is(html: Path) -> None:
    """In a sentence, before any picture or program text."""
    page = (html / "index.html").read_text(encoding="utf-8").partition("</h1>")[2]
    assert re.match(r"\s*<p>blobsync moves data between", page), page[:300]


def test_the_site_fetches_nothing_from_elsewhere(html: Path) -> None:
    loaded = ('src="http', "src='http", "@import url(http", 'rel="stylesheet" type="text/css" href="http', "url(http")
    found = {
        f"{file.name}: {mark}"
        for file in (*html.rglob("*.html"), *html.rglob("*.css"))
        for mark in loaded
        if mark in file.read_text(encoding="utf-8")
    }
    assert found == set()


def test_no_row_stands_outside_of_its_table(html: Path) -> None:
    assert [page.name for page in html.rglob("*.html") if "<p>| " in page.read_text(encoding="utf-8")] == []


class _Places(HTMLParser):
    """What a page can be entered by, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.leads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif (
                name in ("href", "src") and value and "://" not in value and not value.startswith(("data:", "mailto:"))
            ):
                self.leads.add(value)


def test_every_link_of_the_site_leads_to_a_file_and_a_place_in_it(html: Path) -> None:
    pages = {page: _Places(page.read_text(encoding="utf-8")) for page in html.rglob("*.html")}
    dead, followed = [], 0
    for page, places in pages.items():
        for address in places.leads:
            name, _, place = unquote(address).partition("#")
            file = page.parent.joinpath(name.partition("?")[0]).resolve() if name else page
            followed += 1
            if not file.is_file() or (place and file in pages and place not in pages[file].ids):
                dead.append(f"{page.name}: {address}")
    assert (dead, followed > 1000) == ([], True)


def test_links_to_elsewhere_are_listed_with_their_pages(html: Path) -> None:
    lines = html.with_name("external-links.txt").read_text(encoding="utf-8").splitlines()
    assert "https://no-color.org  reference/environment.md" in lines
    assert [line for line in lines if not line.startswith("https://")] == []
    linked = {
        address
        for page in html.rglob("*.html")
        for address in re.findall(
            r'class="reference external" href="(https?://[^"#]+)', page.read_text(encoding="utf-8")
        )
    }
    assert linked <= {line.split("  ")[0].partition("#")[0] for line in lines}


def test_pictures_and_charts_are_in_their_pages_with_words_and_in_the_colors_that_the_reader_chose(html: Path) -> None:
    shown = {
        page: re.findall(r'<svg [^>]*class="blobsync-picture"[^>]*role="img" aria-label="([^"]{40,})"', text)
        for page, text in ((page, (html / f"{page}.html").read_text(encoding="utf-8")) for page in ("concepts", "jobs"))
    }
    assert [len(words) for words in shown.values()] == [3, 1], shown
    text = (html / "jobs.html").read_text(encoding="utf-8")
    assert 'body[data-theme="dark"] .blobsync-picture' in text and ">Preparing, once for each node<" in text
    assert 'class="blobsync-picture"' in (html / "performance.html").read_text(encoding="utf-8")


def test_the_pictures_that_github_shows_are_drawn_from_the_present_text() -> None:
    texts = sorted((ROOT / "docs/pictures").glob("*.dot"))
    assert len(texts) == 4
    stale = [
        text.name
        for text in texts
        if not is_drawn_from(text.with_suffix(".svg").read_text(encoding="utf-8"), text.read_text(encoding="utf-8"))
    ]
    assert stale == [], "run: python -m tools.docs_site.pictures"


def test_without_graphviz_the_build_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="apt-get install graphviz"):
        drawn("digraph { a }", "one box", program="dot-that-nobody-has")
    # The build itself, where PATH has nothing.
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.startswith("docs: the pictures need Graphviz: apt-get install graphviz")


def test_a_mistake_in_a_pictures_text_is_an_error_with_the_words_of_graphviz() -> None:
    with pytest.raises(PictureError, match="syntax error"):
        drawn("digraph { a -> }", "half an arrow")


def test_the_exit_codes_of_the_explanation_are_those_of_the_code(html: Path) -> None:
    table = (ROOT / "docs/concepts.md").read_text(encoding="utf-8").split("## Exit codes")[1].split("##")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in ExitCode]
    page = (html / "reference" / "exit-codes.html").read_text(encoding="utf-8")
    assert [code.value for code in FailureCode if f">{code.value}<" not in page] == []


def test_a_bad_link_a_bad_heading_and_a_page_without_a_place_fail_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text("# First\n\n[page](nowhere.md), [heading](#nowhere)\n")
    (source / "lost.md").write_text("# Lost\n")
    assert build(source, tmp_path / "html") != 0
    told = capfd.readouterr().err
    assert "'nowhere.md'" in told and "nowhere'" in told and "lost.md: WARNING: document isn't included" in told


_OURS = re.compile(r"(BLOBSYNC|AML|XDG|SSL|REQUESTS|AZURE_STORAGE)(_[A-Z]+)+")


def _variables_in_code() -> set[str]:
    found = set()
    # To parse the others takes longer than all else here.
    asking = [module for module in modules() if "environ" in module.text or _OURS.search(module.text)]
    for node in (node for module in asking for node in module.nodes):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OURS.fullmatch(node.value):
            found.add(node.value)
        elif isinstance(node, ast.Subscript) and _is_environment(node.value):
            found |= _text(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found |= _text(node.args[0]) if _is_environment(node.func.value) else set()
    return found


def _is_environment(node: ast.expr) -> bool:
    """Whether it is called ``environ``, ``self._environ`` or the like; as text it takes ten times longer."""
    return str(getattr(node, "attr", getattr(node, "id", ""))).endswith("environ")


def _text(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_the_list_of_environment_variables_is_that_of_the_code() -> None:
    listed = set(FOR_USERS) | IN_JOBS | AMONG_ITS_OWN
    assert _variables_in_code() == listed, "tools/docs_site/variables.py lists them"


def test_each_command_has_a_heading_in_the_reference_and_a_manual_page(html: Path) -> None:
    page = (html / "reference" / "options.html").read_text(encoding="utf-8")
    manual = html.with_name("man")
    for word in (word for _, words in SECTIONS for word in words):
        assert f"<h2>{', '.join(word.names)}<a" in page
        assert (manual / f"blobsync-{word.names[0]}.1").is_file()
    text = (manual / "blobsync-u.1").read_text(encoding="utf-8")
    assert ".SH EXAMPLES\n.nf\nblobsync u data/voc20 " in text and "\\fB\\-\\-cap\\-mbps N\\fR" in text


_QUESTIONS = {
    "how do I restore a deleted blob": "undo",
    "share a folder": "how-to/share-a-folder",
    "limit the bandwidth": "how-to/limit-bandwidth",
    "how to move from azcopy": "how-to/from-azcopy",
    "move from rclone": "how-to/from-rclone",
    "move from DVC": "how-to/from-dvc",
    "migrate from ACT": "migrating-from-act",
    "use a proxy": "how-to/use-a-proxy",
    "cluster without internet": "how-to/without-internet",
    "many storage accounts": "how-to/many-accounts",
    "how do I use it in CI": "how-to/in-ci",
}


def test_ten_questions_are_answered_in_the_first_three_hits_of_the_search(html: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("the search of the site runs in a browser, or in Node.js")
    script = ROOT / "tests/data/search_site.js"
    done = subprocess.run([node, script, html, *_QUESTIONS, "carrier pigeon"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *found, none = json.loads(done.stdout)
    wrong = {
        question: hits[:5]
        for (question, page), hits in zip(_QUESTIONS.items(), found, strict=True)
        if page not in hits[:3]
    }
    assert (wrong, none) == ({}, [])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_a_search_in_pages_opened_as_files_names_sections_and_shows_where_the_words_stand(
    html: Path, browser: Browser
) -> None:
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{html.as_uri()}/search.html?q=restore+deleted+blob")
    page.locator("#search-results .search-sections a").first.wait_for()
    title = page.get_by_role("link", name="Bring back what was deleted or replaced", exact=True)
    found = page.locator("#search-results li", has=title).first
    found.locator(".search-sections a").first.wait_for()
    assert "Show deleted blobs" in found.locator(".context").first.inner_text()
    page.goto(f"{html.as_uri()}/search.html?q=elastic+jobs")
    page.locator(".search-sections a").nth(2).wait_for()
    links = [str(link.get_attribute("href")) for link in page.locator(".search-sections a").all()]
    page.locator(".search-sections a").first.click()
    page.wait_for_selector("article section:target")
    assert said == []
    assert all(re.fullmatch(r"[\w./-]+\.html#.+", link) for link in links), links


# Options of the page that stand in two lines.
_BROKEN = """() => [...document.querySelectorAll('code > .pre')]
    .filter((each) => each.textContent.startsWith('-'))
    .filter((each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;
    })
    .map((each) => each.textContent)"""


def test_no_option_is_broken_into_two_lines_and_no_page_is_wider_than_its_window(html: Path, browser: Browser) -> None:
    page = browser.new_page()
    for name in ("index", "commands", "configuration", "how-to/in-ci"):
        page.goto((html / f"{name}.html").as_uri())
        assert not [each for each in page.locator("h2, h3").all_inner_texts() if re.search(r"–\w", each)]
        for width in (390, 1350):
            page.set_viewport_size({"width": width, "height": 900})
            assert (width, page.evaluate(_BROKEN)) == (width, [])
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_recording_begins_with_what_it_shows_at_its_end(columns: int) -> None:
    text = (ROOT / f"docs/images/terminal-{columns}.svg").read_text(encoding="utf-8")
    found = re.search(r"g \{ animation: ([\d.]+)s step-end (-[\d.]+)s infinite; \}", text)
    assert found, "run: python -m tools.recordings"
    whole, delay = float(found[1]), float(found[2])
    last = max(float(at) for at in re.findall(r"([\d.]+)% \{ visibility: (?:visible|hidden) \}", text))
    assert last / 100 <= -delay / whole + 0.001 < 1, "everything has happened by then"


def test_dev_docs_installs_only_what_builds_the_documentation(tmp_path: Path) -> None:
    """In a virtual environment whose Python only writes down what it is asked for."""
    told = tmp_path / "told"
    (tmp_path / "bin").mkdir()
    for name in ("python", "blobsync"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
        program.chmod(0o755)
    for _ in range(2):
        environ = {**os.environ, "BLOBSYNC_VENV": str(tmp_path), "CI": "true"}
        done = subprocess.run([sys.executable, "tools/dev.py", "docs"], cwd=ROOT, env=environ, capture_output=True)
        assert done.returncode == 0, done
    lines = [line for line in told.read_text().splitlines() if line != "-m pip --version"]
    assert lines[0].endswith(f"--editable {ROOT}[docs]")
    # The second time everything is there.
    assert lines[1:] == ["-m tools.prose", "-m tools.docs_site"] * 2
