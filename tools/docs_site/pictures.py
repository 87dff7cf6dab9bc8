"""Pictures: drawn from text by Graphviz (``docs/pictures/*.dot``), and put into the pages of the site.

The site draws each of them anew. Beside each text lies what it looked like last, for those who read the pages on
GitHub: ``python -m tools.docs_site.pictures`` writes it, and a test compares the text that it was drawn from.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.svg import EMBEDDED, opening, style

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"

# What all of them look like; colours come from the classes.
_LOOKS = (
    *("-Gbgcolor=transparent", "-Gfontname=Helvetica", "-Gfontsize=12", "-Gpad=0.1"),
    *("-Nshape=box", "-Nstyle=rounded,filled", "-Nclass=plain", "-Nfontname=Helvetica", "-Nfontsize=12"),
    *("-Nmargin=0.16,0.09", "-Nheight=0.3", "-Efontname=Helvetica", "-Efontsize=11", "-Earrowsize=0.7"),
)
_SVG = re.compile(r"<svg .*?viewBox=\"0\.00 0\.00 ([\d.]+) ([\d.]+)\"[^>]*>(.*)</svg>", re.DOTALL)
_IMAGE = re.compile(r"^!\[([^\]]+)\]\(([^)]+\.svg)\)$", re.MULTILINE)
# Graphviz counts in points, of which an inch has 72; a pixel is the 96th part of one.
_PIXELS = 96 / 72


class PictureError(Exception):
    """A picture cannot be drawn; the text says what to do."""


def drawn(text: str, alt: str, *, program: str = "dot") -> str:
    """The picture as SVG. Raises ``PictureError`` without Graphviz, or with its message for a mistake in the text."""
    found = shutil.which(program)
    if found is None:
        raise PictureError(
            "the pictures need Graphviz: apt-get install graphviz (Debian, Ubuntu), brew install graphviz"
        )
    done = subprocess.run([found, "-Tsvg", *_LOOKS], input=text, capture_output=True, text=True)
    inner = _SVG.search(done.stdout)
    if done.returncode != 0 or inner is None:
        raise PictureError(f"Graphviz: {done.stderr.strip()}")
    width, height = (float(inner[at]) for at in (1, 2))
    # Its comments, tooltips and ids say nothing, and ids of two pictures on one page are the same.
    body = re.sub(
        r"<!--.*?-->\n?|<title>.*?</title>\n?| id=\"[^\"]*\"| font-family=\"[^\"]*\"", "", inner[3], flags=re.DOTALL
    )
    body = _with_edges_in_our_colors(body)
    head = opening(alt, round(width * _PIXELS), round(height * _PIXELS))
    scaled = f'<g transform="scale({_PIXELS:.4f})">\n{body.strip()}\n</g>'
    return f"{head}\n<!-- {_mark(text)} -->\n<style>\n{style()}\n{_EDGES}\n</style>\n{scaled}\n</svg>\n"


_EDGES = (
    f".{EMBEDDED} .edge path {{ stroke: var(--quiet); fill: none; }}\n"
    f".{EMBEDDED} .edge polygon {{ stroke: var(--quiet); fill: var(--quiet); }}\n"
    f".{EMBEDDED} .cluster polygon {{ fill-opacity: 0.25; stroke-dasharray: 4 3; }}"
)


def _with_edges_in_our_colors(body: str) -> str:
    """Fixed colours would win over none of ours, but are wrong where a style is not read."""
    return re.sub(r" (?:fill|stroke)=\"(?:black|lightgrey|white)\"", "", body)


def _mark(text: str) -> str:
    return f"drawn from {hashlib.sha256(text.encode()).hexdigest()}"


def is_drawn_from(svg: str, text: str) -> bool:
    """Whether the picture was drawn from this text."""
    return f"<!-- {_mark(text)} -->" in svg


def with_pictures(page: str, folder: Path) -> str:
    """A page with its pictures in it, those with a text drawn anew; ``folder`` is the one that it lies in.

    An SVG in an ``img`` does not know which colours the reader chose on the site. Recordings of terminals stay there:
    they are dark, as terminals are.
    """

    def embedded(found: re.Match[str]) -> str:
        alt, name = found.groups()
        file = folder / name
        text = file.with_suffix(".dot")
        svg = drawn(text.read_text(encoding="utf-8"), alt) if text.is_file() else file.read_text(encoding="utf-8")
        if f'class="{EMBEDDED}"' not in svg:
            return found[0]
        return f'```{{raw}} html\n<figure class="picture">\n{svg}</figure>\n```'

    return _IMAGE.sub(embedded, page)


def write_pictures() -> None:
    """Write each beside its text, with the words of the page that shows it."""
    pages = [*FOLDER.parent.rglob("*.md"), FOLDER.parents[1] / "README.md"]
    alts = {Path(name).name: alt for page in pages for alt, name in _IMAGE.findall(page.read_text(encoding="utf-8"))}
    for text in sorted(FOLDER.glob("*.dot")):
        svg = text.with_suffix(".svg")
        svg.write_text(drawn(text.read_text(encoding="utf-8"), alts[svg.name]), encoding="utf-8")


if __name__ == "__main__":
    try:
        write_pictures()
    except PictureError as error:
        sys.exit(str(error))
