"""The documentation site: built as ``./dev docs`` builds it, once for all tests here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT
from tools.docs_site.__main__ import build
from tools.docs_site.navigation import KINDS


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
