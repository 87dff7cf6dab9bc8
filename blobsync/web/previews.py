"""Previews of the beginning of a file: text, a picture, or bytes. Names and content of files are not trusted.

The bytes decide the kind (``project.content.text_of``: whether they are text); a blob's content type is ignored. SVG
is shown as text: it can contain scripts.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from typing import Any

from blobsync.base.plain_json import parse_object
from blobsync.base.records import dataclass
from blobsync.project import content
from blobsync.project.browse import Beginning

# Bytes of a text that are shown, and the largest picture.
TEXT_BYTES = 64 * 1024
PICTURE_BYTES = 20_000_000
_HEX_BYTES = 256
_JSON_LINES = ("jsonl", "ndjson")
_TABLES = ("csv", "tsv", *_JSON_LINES)
# Limits of a table.
_ROWS, _COLUMNS, _CELL_CHARS = 500, 60, 300
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)


@dataclass(frozen=True, slots=True)
class Preview:
    """``kind`` is ``text``, ``table`` (with ``columns`` and ``rows``), ``picture``, ``bytes`` or ``empty``; ``cut``
    says that there is more."""

    kind: str
    text: str = ""
    cut: bool = False
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def picture_type(data: bytes) -> str | None:
    """The type of a picture that browsers show and that cannot contain scripts; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((name for start, name in _PICTURES if data.startswith(start)), None)


def preview_of(beginning: Beginning, name: str = "") -> Preview:
    """The preview; a table if ``name`` has such an ending (.csv, .tsv, .jsonl, .ndjson) and the text is one."""
    data = beginning.data[:TEXT_BYTES]
    if not data:
        return Preview("empty")
    if picture_type(data) and beginning.size <= PICTURE_BYTES:
        return Preview("picture")
    cut = beginning.size > len(data)
    text = content.text_of(data, cut=cut)
    if text is None:
        return Preview("bytes", "\n".join(_hex(data[:_HEX_BYTES])), cut)
    return _table(text, name, cut=cut) or Preview("text", text, cut)


def _table(text: str, name: str, *, cut: bool) -> Preview | None:
    kind = name.rpartition(".")[2].lower()
    if kind not in _TABLES:
        return None
    if cut:
        # The last line may be incomplete.
        text = text[: text.rfind("\n") + 1]
    try:
        found = list(islice(_json_rows(text) if kind in _JSON_LINES else _csv_rows(text, kind), _ROWS + 2))
    except (csv.Error, ValueError, RecursionError):
        return None
    if len(found) < 2 or not found[0]:
        return None
    columns, *rows = ([_cell(value) for value in row[:_COLUMNS]] for row in found)
    # A row that is too short gets empty cells; for one that is longer, columns without a name are added.
    width = max(map(len, (columns, *rows)))
    whole = [tuple(row + [""] * (width - len(row))) for row in (columns, *rows[:_ROWS])]
    return Preview("table", "", cut or len(rows) > _ROWS, whole[0], tuple(whole[1:]))


def _csv_rows(text: str, kind: str) -> Iterator[list[str]]:
    first = text.partition("\n")[0]
    marks = "\t" if kind == "tsv" else max(",;\t|", key=first.count)
    yield from (row for row in csv.reader(StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=marks) if row)


def _json_rows(text: str) -> Iterator[list[Any]]:
    """The keys, in the order of first appearance, then the values; ``ValueError`` if a line is no object."""
    lines = list(islice((line for line in text.splitlines() if line.strip()), _ROWS + 1))
    found = [parse_object(line) for line in lines]
    keys = list(dict.fromkeys(key for each in found for key in each))
    yield list(keys)
    yield from ([each.get(key, "") for key in keys] for each in found)


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}…"


def _hex(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<47}  {signs}"


def changed_lines(before: Preview, after: Preview) -> list[tuple[str, str]]:
    """The difference of two texts as lines with a class: ``gone``, ``new``, ``same`` or ``place``; else empty."""
    if before.kind != "text" or after.kind != "text":
        return []
    # The last line of a text that was cut may be incomplete.
    old, new = (each.text[: each.text.rfind("\n") + 1] if each.cut else each.text for each in (before, after))
    found = content.changed_lines(old, new, context=2) or []
    classes = {"-": "gone", "+": "new", "@": "place"}
    return [(classes.get(line[:1], "same"), line) for line in found]
