"""What the beginning of a file shows: text, a picture, or bytes. Whoever named or wrote the file is not trusted.

The kind is decided by the bytes; what a service calls a blob's type counts for nothing. SVG is text here: it can hold
scripts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from blobsync.project.browse import Beginning

# Bytes of a text that are shown, and the largest picture.
TEXT_BYTES = 64 * 1024
PICTURE_BYTES = 20_000_000
_HEX_BYTES = 256
# Comparing takes time that grows with the square of the lines.
_COMPARED_LINES = 2000
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


@dataclass(frozen=True, slots=True)
class Preview:
    """``kind`` is ``text``, ``picture``, ``bytes`` or ``empty``; ``cut`` says that there is more."""

    kind: str
    text: str = ""
    cut: bool = False


def picture_type(data: bytes) -> str | None:
    """The type of a picture that browsers show and that holds no scripts; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((name for start, name in _PICTURES if data.startswith(start)), None)


def preview_of(beginning: Beginning) -> Preview:
    """How to show it."""
    data = beginning.data[:TEXT_BYTES]
    if not data:
        return Preview("empty")
    if picture_type(data) and beginning.size <= PICTURE_BYTES:
        return Preview("picture")
    cut = beginning.size > len(data)
    text = _text(data, cut=cut)
    return Preview("bytes", "\n".join(_hex(data[:_HEX_BYTES])), cut) if text is None else Preview("text", text, cut)


def _text(data: bytes, *, cut: bool) -> str | None:
    """None for what is no text; the last character may be cut in two."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start].decode("utf-8") if cut and error.start >= len(data) - 3 else None


def _hex(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<47}  {signs}"


def changed_lines(before: Preview, after: Preview) -> list[tuple[str, str]]:
    """The difference of two texts as lines with a class: ``gone``, ``new``, ``same`` or ``place``; none for others."""
    if before.kind != "text" or after.kind != "text":
        return []
    old, new = (each.text.splitlines()[:_COMPARED_LINES] for each in (before, after))
    classes = {"-": "gone", "+": "new", "@": "place"}
    found = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return [(classes.get(line[:1], "same"), line) for line in found]
