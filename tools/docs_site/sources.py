"""Collects what the site is built from: the pages of ``docs/``, those of the top folder, and those made from code."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.docs_site.json_pages import write_json_pages
from tools.docs_site.navigation import KINDS
from tools.docs_site.pictures import with_pictures
from tools.docs_site.reference import write_reference

ROOT = Path(__file__).resolve().parents[2]

# Pages of the top folder, and what they are called on the site.
_TOP_PAGES = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_TOP_FILES = ("LICENSE",)


def write_sources(source: Path) -> None:
    """Write everything that Sphinx reads into a new folder. Raises ``PictureError`` where a picture cannot be drawn."""
    shutil.copytree(ROOT / "docs", source)
    for page in source.rglob("*.md"):
        above = "../" * len(page.relative_to(source).parent.parts)
        page.write_text(moved_links(page.read_text(encoding="utf-8"), f"{above}../", above), encoding="utf-8")
    for name, page_name in _TOP_PAGES.items():
        text = moved_links((ROOT / name).read_text(encoding="utf-8"), "docs/", "")
        (source / page_name).write_text(text, encoding="utf-8")
    for name in _TOP_FILES:
        shutil.copy(ROOT / name, source / name)
    for page in source.rglob("*.md"):
        page.write_text(with_pictures(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
    write_reference(source / "reference")
    write_json_pages(source)
    index = source / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + navigation(), encoding="utf-8")


def moved_links(text: str, before: str, now: str) -> str:
    """A page's links: on the site, the pages of ``docs/`` and of the top folder lie side by side.

    Links that begin with ``before`` begin with ``now`` there.
    """
    text = text.replace(f"]({before}", f"]({now}")
    for name, page_name in _TOP_PAGES.items():
        text = text.replace(f"]({now}{name}", f"]({now}{page_name}")
    return text


def navigation() -> str:
    """Contents: each page under the heading of its kind."""
    blocks = []
    for kind, pages in KINDS.items():
        listed = "\n".join(pages)
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {kind}\n\n{listed}\n```\n")
    return "".join(blocks)
