"""``python -m tools.docs_site [FOLDER]``: builds the site (default: build/docs)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.docs_site.links import write_external_links
from tools.docs_site.man_pages import write_man_pages
from tools.docs_site.pictures import PictureError
from tools.docs_site.search_texts import write_search_texts
from tools.docs_site.sources import ROOT, write_sources


def main(words: list[str]) -> int:
    """Build into the named folder: ``source``, ``html``, ``man`` and ``external-links.txt`` in it are replaced."""
    target = Path(words[0]) if words else ROOT / "build" / "docs"
    source, html, manual = target / "source", target / "html", target / "man"
    for folder in (source, html, manual):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        write_sources(source)
    except PictureError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    write_external_links(source, target / "external-links.txt")
    write_man_pages(manual)
    code = build(source, html)
    if code == 0:
        write_search_texts(html)
        print(f"open {html / 'index.html'}")
    return code


def build(source: Path, html: Path) -> int:
    """Sphinx's exit code: with these options a link that leads nowhere, or a page without a place, is an error."""
    strict = ["--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
    places = ["--conf-dir", str(Path(__file__).parent), "--doctree-dir", str(html.with_name("doctrees")), "--fresh-env"]
    return subprocess.run([sys.executable, "-m", "sphinx", *strict, *places, str(source), str(html)]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
