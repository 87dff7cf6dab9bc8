"""What our SVG files share: their colours in light and dark, and the first line that says what they show.

A file works alone (the reader's system chooses light or dark) and inside a page of the site, whose switch then decides:
furo writes the choice into ``data-theme`` of the body.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

# What the site's pages embed, so that their switch decides about its colours.
EMBEDDED = "blobsync-picture"

# Role -> colours in light and dark: text, lines; then the fill and the line of each kind of box or bar.
_COLORS = {
    "text": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9da7b3"),
    "plain-fill": ("#f6f8fa", "#1c2128"),
    "plain-line": ("#818b98", "#6e7681"),
    "here-fill": ("#ddf4ff", "#0c2d6b"),
    "here-line": ("#0969da", "#58a6ff"),
    "there-fill": ("#fbefff", "#3c1e70"),
    "there-line": ("#8250df", "#bc8cff"),
    "good-fill": ("#dafbe1", "#033a16"),
    "good-line": ("#1a7f37", "#3fb950"),
    "stop-fill": ("#fff1e5", "#4d2d00"),
    "stop-line": ("#bc4c00", "#f0883e"),
}
_KINDS = ("plain", "here", "there", "good", "stop")


def style() -> str:
    """The rules of every picture; the later ones win, so a kind stands behind what it changes."""
    light, dark = (_variables(at) for at in (0, 1))
    c = f".{EMBEDDED}"
    return "\n".join(
        [
            f"{c} {{ {light} font-family: Helvetica, Arial, 'Liberation Sans', sans-serif; }}",
            f"@media (prefers-color-scheme: dark) {{ {c} {{ {dark} }} }}",
            f'body[data-theme="light"] {c} {{ {light} }}',
            f'body[data-theme="dark"] {c} {{ {dark} }}',
            f"{c} text {{ fill: var(--text); font-family: inherit; }}",
            f"{c} .quiet, {c} .edge text {{ fill: var(--quiet); }}",
            *_kinds(c),
        ]
    )


def _variables(at: int) -> str:
    return " ".join(f"--{name}: {both[at]};" for name, both in _COLORS.items())


def _kinds(c: str) -> Iterator[str]:
    shapes = ("path", "polygon", "ellipse", "rect")
    for kind in _KINDS:
        where = ", ".join(f"{c} .{kind} {shape}, {c} {shape}.{kind}" for shape in shapes)
        yield f"{where} {{ fill: var(--{kind}-fill); stroke: var(--{kind}-line); }}"


def opening(alt: str, width: float, height: float, *, kind: str = EMBEDDED) -> str:
    """The first line: the size in pixels, and a description for readers who cannot see it."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" {size} role="img" aria-label={quoteattr(alt)}>'
        f"\n<title>{escape(alt)}</title>"
    )
