"""What pages make of values: previews, charts, listings page by page, places of the navigation."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from blobsync.local.transfer_log import TransferEntry
from blobsync.project.api import Project
from blobsync.project.browse import Beginning, ListingEntry
from blobsync.web.charts import HEIGHT, bytes_chart, rate_curve
from blobsync.web.listings import PAGE, OpenListing
from blobsync.web.places import place_of
from blobsync.web.previews import TEXT_BYTES, changed_lines, picture_type, preview_of
from blobsync.web.render import breakable_text

_PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"# notes\n", "text"),
        ("größe\n".encode(), "text"),
        (b"<svg onload=alert(1)>", "text"),
        (b"<html><script>", "text"),
        (_PNG, "picture"),
        (b"GIF89a....", "picture"),
        (b"RIFF....WEBP", "picture"),
        (b"\0\1\2\3", "bytes"),
        (b"\xff\xfe\xfd", "bytes"),
    ],
)
def test_the_kind_of_a_preview_is_what_the_bytes_are(data: bytes, kind: str) -> None:
    assert preview_of(Beginning("a", len(data), data)).kind == kind


def test_a_text_that_is_cut_within_a_character_is_still_text() -> None:
    data = b"a" * (TEXT_BYTES - 1) + "ü".encode()
    shown = preview_of(Beginning("a", len(data) + 9, data))
    assert (shown.kind, shown.cut, shown.text) == ("text", True, "a" * (TEXT_BYTES - 1))
    assert preview_of(Beginning("a", len(data), b"\xfc" + data)).kind == "bytes"


def test_a_picture_is_no_larger_than_a_page_can_show() -> None:
    assert preview_of(Beginning("a", 30_000_000, _PNG)).kind == "bytes"
    assert picture_type(b"<svg xmlns='http://www.w3.org/2000/svg'>") is None


def test_changed_lines_are_those_of_two_texts() -> None:
    one, two = (preview_of(Beginning("a", len(data), data)) for data in (b"x\ny\n", b"x\nz\n"))
    assert [line for kind, line in changed_lines(one, two) if kind in ("gone", "new")] == ["-y", "+z"]
    assert changed_lines(one, preview_of(Beginning("a", 2, b"\0\1"))) == []


def test_a_page_of_a_listing_reads_no_more_than_it_shows() -> None:
    asked = 0

    def blobs() -> Iterator[ListingEntry]:
        nonlocal asked
        for number in range(100_000):
            asked += 1
            yield ListingEntry(f"data/{number:06}", 1)

    listing = OpenListing("data", "aml", cast(Project, None), blobs())
    assert [entry.path for entry in listing.page(0)][:2] == ["data/000000", "data/000001"]
    assert asked == PAGE + 1
    assert len(listing.page(0)) == PAGE
    assert asked == PAGE + 1, "what was read is kept"
    assert listing.page(2)[0].path == f"data/{2 * PAGE:06}"
    assert asked == 3 * PAGE + 1
    known = [listing.complete]
    assert listing.page(499)[-1].path == "data/099999"
    assert [*known, listing.complete] == [False, True]
    assert listing.page(500) == []


def _entry(ago: float, size: int, kind: str = "upload") -> TransferEntry:
    entry = TransferEntry(kind, ("data",), bytes=size, seconds=2.0, transferred=1, result="done")
    return replace(entry, began=time.time() - ago)


def test_the_chart_has_hours_or_days_and_its_tallest_column_is_the_most() -> None:
    now = time.time()
    assert bytes_chart([], now) is None
    assert bytes_chart([_entry(60, 0)], now) is None
    hours = bytes_chart([_entry(10, 1000), _entry(7 * 3600, 4000), _entry(7 * 3600, 4000, "download")], now)
    assert hours is not None
    assert (hours.unit, hours.most, hours.fastest) == ("hour", 8000, 2000.0)
    tall = max(sum(part[2] for part in column.parts) for column in hours.columns)
    assert tall == HEIGHT
    assert sum(column.bytes for column in hours.columns) == 9000
    assert sum(column.files for column in hours.columns) == 3
    days = bytes_chart([_entry(10, 1000), _entry(9 * 86400, 500), _entry(90 * 86400, 10**9)], now)
    assert days is not None
    assert (days.unit, days.most) == ("day", 1000)


def test_a_curve_needs_two_points() -> None:
    assert rate_curve([(0.0, 0, 0.0)]) == ("", 0.0)
    line, most = rate_curve([(0.0, 0, 0.0), (1.0, 50, 50.0), (2.0, 150, 100.0)])
    assert most == 100.0
    assert line.startswith(f"0,{HEIGHT} 0.0,{HEIGHT:.1f} 500.0,")


@pytest.mark.parametrize(
    ("address", "name"),
    [("/", "Project"), ("/browse", "Project"), ("/plans/1", "Project"), ("/transfers/1", "Transfers"),
     ("/history/1", "Transfers"),      ("/transfersx", "Project"), ("/new-job", "New job"), ("/jobs/x/y", "Jobs")],
)  # fmt: skip
def test_each_address_belongs_to_a_place(address: str, name: str) -> None:
    assert place_of(address).name == name


def test_a_path_breaks_after_its_slashes_and_is_escaped() -> None:
    assert breakable_text("a/<b>/ü") == "a/<wbr>&lt;b&gt;/<wbr>ü"


def test_no_page_holds_an_inline_script_or_style() -> None:
    import blobsync.web

    folder = Path(blobsync.web.__file__).parent
    for file in (folder / "templates").rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert " style=" not in text and "<style" not in text and " on" + "click=" not in text, file
        assert "<script>" not in text and "javascript:" not in text, file
        assert not re.search(r"(?<!\"\])\|safe", text), "only parts that templates made"
        assert "http://" not in text and "https://" not in text, file
    for file in (folder / "static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text and "@import" not in text, file
