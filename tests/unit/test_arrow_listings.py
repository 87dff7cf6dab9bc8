"""A page of List Blobs in Arrow's form is read as azure-storage-blob reads it, and a damaged one is refused.

nanoarrow writes the pages. No page of a real account is at hand: names and types of the columns are those that the SDK
reads, and that rclone's tests write.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import nanoarrow as na
import pytest
from azure.storage.blob import BlobProperties
from azure.storage.blob._list_blobs_helper import _parse_arrow_response

from blobsync.store.protocol import MAX_BLOB_BYTES, BlobInfo
from blobsync.store.rest.arrow import blobs_of, is_readable, marker_after
from blobsync.store.rest.xml import BadAnswerError, Markers
from tests.servers.listing_server import COLUMNS, Row, arrow_page

FULL = Row("b/ä/1.jpg", '"0x1"', 16_384, inferred=True, version="2026-11-20T10:00:00.0000000Z")
ROWS = [FULL, Row("b/2", "0x2", MAX_BLOB_BYTES, md5=None, content_type=None, tier=None, blob_type="AppendBlob")]


def as_the_sdk_reads(page: bytes) -> list[BlobInfo]:
    _, found = _parse_arrow_response(page, "box")
    infos = []
    for each in found:
        assert isinstance(each, BlobProperties)
        content = each.content_settings
        assert each.name and each.etag and each.blob_type
        infos.append(
            BlobInfo(
                each.name,
                each.size,
                each.etag.strip('"'),
                bytes(content.content_md5) if content.content_md5 else None,
                each.last_modified.timestamp(),
                each.blob_tier,
                content.content_type,
                each.blob_type.value,
                tier_inferred=bool(each.blob_tier_inferred),
                version=each.version_id or "",
            )
        )
    return infos


def test_a_page_is_read_as_the_sdk_reads_it() -> None:
    page = arrow_page(ROWS, "next page")
    assert is_readable(page) and list(blobs_of(page)) == as_the_sdk_reads(page)
    assert [(each.name, each.size) for each in blobs_of(page)] == [("b/ä/1.jpg", 16_384), ("b/2", MAX_BLOB_BYTES)]
    assert marker_after(Markers(), page) == _parse_arrow_response(page, "box")[0] == "next page"


def test_the_last_page_and_an_empty_one_have_no_marker() -> None:
    assert [marker_after(Markers(), arrow_page(rows)) for rows in (ROWS, [])] == ["", ""]
    assert list(blobs_of(arrow_page([]))) == []
    markers = Markers()
    marker_after(markers, arrow_page([], "m"))
    with pytest.raises(BadAnswerError, match="never ends"):
        marker_after(markers, arrow_page([], "m"))


def test_unknown_columns_are_passed_over_and_missing_ones_are_empty() -> None:
    columns = {"New": na.list_(na.int32()), "Name": na.string(), "Etag": na.string(), "Content-Length": na.int64()}
    ids = na.c_array_from_buffers(na.list_(na.int32()), 1, [None, na.c_buffer([0, 0], na.int32())], children=[
        na.c_array([], na.int32())
    ])  # fmt: skip
    page = arrow_page([(ids, "b/1", "0x1", 5)], columns=columns)
    assert is_readable(page) and list(blobs_of(page)) == [BlobInfo("b/1", 5, "0x1")]


def marked(key: str, value: str) -> na.Schema:
    """Metadata of one entry, of the second of two blobs."""
    kind = na.map_(na.string(), na.string())
    entries = na.c_array_from_buffers(
        na.struct({"key": na.Schema(na.string(), nullable=False), "value": na.string()}, nullable=False),
        1,
        [None],
        children=[na.c_array([key], na.Schema(na.string(), nullable=False)), na.c_array([value], na.string())],
    )
    return na.c_array_from_buffers(kind, 2, [None, na.c_buffer([0, 0, 1], na.int32())], children=[entries])


@pytest.mark.parametrize(("key", "value", "is_stub"), [("hdi_isFolder", "True", True), ("color", "true", False)])
def test_what_marks_a_folder_is_seen(key: str, value: str, is_stub: bool) -> None:
    columns = {**COLUMNS, "Metadata": na.map_(na.string(), na.string())}
    rows = [Row("b/1", "0x1"), Row("b/2", "0x2")]
    page = arrow_page(rows, columns=columns, last=marked(key, value))
    assert is_readable(page) and [each.is_folder_stub for each in blobs_of(page)] == [False, is_stub]
    # Directories of a hierarchical namespace have neither size nor ETag.
    page = arrow_page([Row("b/d", None, None, resource="directory")])
    assert [(each.is_folder_stub, each.size, each.etag) for each in blobs_of(page)] == [(True, 0, "")]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"name": ""}, "no name"),
        ({"size": MAX_BLOB_BYTES + 1}, "the blob 'b': .* is not a blob size"),
        ({"size": None}, "the blob 'b': None is not a blob size"),
        ({"etag": None}, "the blob 'b': nothing is not an ETag"),
        ({"etag": "a\nb"}, "is not an ETag"),
        ({"changed": -1}, "is not a date"),
        ({"version": "a&b"}, "its version"),
    ],
)
def test_a_hostile_value_is_refused_as_in_xml(row: Mapping[str, object], why: str) -> None:
    with pytest.raises(BadAnswerError, match=why):
        list(blobs_of(arrow_page([Row("b", "0x1")._replace(**row)])))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "value"), [(na.binary(), b"b"), (na.int64(), 7), (na.large_string(), "b")])
def test_a_column_of_another_type_makes_a_page_unreadable(kind: na.Schema, value: object) -> None:
    page = arrow_page([(value, "0x1", 1)], columns={"Name": kind, "Etag": na.string(), "Content-Length": na.uint64()})
    assert not is_readable(page)
    with pytest.raises(BadAnswerError, match="the type of its Name"):
        list(blobs_of(page))


def test_a_damaged_page_is_refused_and_does_no_harm() -> None:
    page = arrow_page([Row(f"b/{number}", f"0x{number}", number) for number in range(9)], "m")
    assert not is_readable(page[:-100]) and not is_readable(b"<?xml") and not is_readable(b"\xff\xff\xff\xff\x00")
    drawn = random.Random(20)
    refused = 0
    for _ in range(500):
        damaged = bytearray(page)
        for _ in range(drawn.choice((1, 2, 5))):
            damaged[drawn.randrange(4, len(page))] = drawn.choice((0, 127, 128, 255, drawn.randrange(256)))
        try:
            is_readable(bytes(damaged))
            marker_after(Markers(), bytes(damaged))
            assert len(list(blobs_of(bytes(damaged)))) <= 9
        except BadAnswerError:
            refused += 1
    assert 100 < refused < 450
