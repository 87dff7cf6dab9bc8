"""The documentation site: built as ``./dev docs`` builds it, once for all tests here."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blobsync.cli.app import SECTIONS
from tests.source import ROOT, modules
from tools.docs_site.__main__ import build
from tools.docs_site.navigation import KINDS
from tools.docs_site.variables import FOR_USERS, IN_JOBS, IN_THE_EMULATOR


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


def test_the_site_fetches_nothing_from_elsewhere(html: Path) -> None:
    loaded = ('src="http', "src='http", "@import url(http", 'rel="stylesheet" type="text/css" href="http', "url(http")
    found = {
        f"{file.name}: {mark}"
        for file in (*html.rglob("*.html"), *html.rglob("*.css"))
        for mark in loaded
        if mark in file.read_text(encoding="utf-8")
    }
    assert found == set()


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
    for node in (node for module in modules() for node in ast.walk(module.tree)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OURS.fullmatch(node.value):
            found.add(node.value)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            found |= _text(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("environ.get"):
            found |= _text(node.args[0])
    return found


def _text(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_the_list_of_environment_variables_is_that_of_the_code() -> None:
    listed = set(FOR_USERS) | IN_JOBS | IN_THE_EMULATOR
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
    "how do I restore a deleted blob": "how-to/restore-a-deleted-blob",
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


def test_ten_questions_are_answered_in_the_first_three_pages_that_the_search_finds(html: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("the search of the site runs in a browser, or in Node.js")
    script = ROOT / "tests/data/search_site.js"
    done = subprocess.run([node, script, html, *_QUESTIONS, "carrier pigeon"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *found, none = [list(dict.fromkeys(hits)) for hits in json.loads(done.stdout)]
    wrong = {
        question: hits[:5]
        for (question, page), hits in zip(_QUESTIONS.items(), found, strict=True)
        if page not in hits[:3]
    }
    assert (wrong, none) == ({}, [])
