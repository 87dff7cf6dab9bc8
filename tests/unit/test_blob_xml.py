from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.store.protocol import BlobInfo, Block
from blobsync.store.rest.xml import (
    BadAnswerError,
    ServiceError,
    block_lists,
    decode_md5,
    list_page,
    names_without_content,
    next_marker,
    service_error,
)

HEAD = '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="box">'


def page(*items: str, marker: str = "<NextMarker />") -> bytes:
    return f"{HEAD}<Blobs>{''.join(items)}</Blobs>{marker}</EnumerationResults>".encode()


NEEDED = "<Etag>0x1</Etag><Content-Length>0</Content-Length>"


def item(name: str, properties: str = NEEDED, metadata: str = "") -> str:
    return f"<Blob>{name}<Properties>{properties}</Properties><Metadata>{metadata}</Metadata></Blob>"


def names(body: bytes) -> list[str]:
    return [entry if isinstance(entry, str) else entry.name for entry in list_page(body)]


def test_a_blob_with_all_properties() -> None:
    properties = (
        "<Creation-Time>Fri, 20 Nov 2026 06:00:00 GMT</Creation-Time>"
        "<Last-Modified>Fri, 20 Nov 2026 06:13:00 GMT</Last-Modified><Etag>0x8D</Etag>"
        "<Content-Length>12</Content-Length><Content-Type>image/png</Content-Type><Content-Encoding />"
        "<Content-MD5>SfaKXIST7CwL9ImCHCH8Ow==</Content-MD5><BlobType>AppendBlob</BlobType>"
        "<AccessTier>Cool</AccessTier><AccessTierInferred>true</AccessTierInferred>"
    )
    assert list(list_page(page(item("<Name>a/b</Name>", properties)))) == [
        BlobInfo(
            name="a/b",
            size=12,
            etag="0x8D",
            md5=bytes.fromhex("49f68a5c8493ec2c0bf489821c21fc3b"),
            last_modified=1795155180.0,
            tier="Cool",
            content_type="image/png",
            blob_type="AppendBlob",
            tier_inferred=True,
        )
    ]


@pytest.mark.parametrize("count", [1, 400])
def test_the_version_of_a_blob(count: int) -> None:
    versions = [f"2026-11-20T10:00:00.{number:07}Z" for number in range(count)]
    items = [item(f"<Name>a</Name><VersionId>{each}</VersionId>") for each in versions]
    assert [each.version for each in list_page(page(*items)) if isinstance(each, BlobInfo)] == versions
    for bad in ("../x", "a&amp;b", "x" * 65):
        with pytest.raises(BadAnswerError):
            list(list_page(page(*items, item(f"<Name>b</Name><VersionId>{bad}</VersionId>"))))


def test_a_blob_with_only_the_required_properties() -> None:
    assert list(list_page(page(item("<Name>a</Name>")))) == [BlobInfo("a", 0, "0x1")]


def properties(size: str = "1", etag: str = "0x1", date: str = "Fri, 20 Nov 2026 06:13:00 GMT") -> str:
    return (
        f"<Content-Length>{size}</Content-Length><Etag>{etag}</Etag><Last-Modified>{date}</Last-Modified>"
        "<Content-MD5>SfaKXIST7CwL9ImCHCH8Ow==</Content-MD5>"
    )


LARGEST_BLOCK = 4000 * 1024 * 1024
LARGEST = 50_000 * LARGEST_BLOCK


def test_the_largest_blob_there_can_be() -> None:
    (entry,) = list_page(page(item("<Name>a</Name>", properties(size=str(LARGEST)))))
    assert isinstance(entry, BlobInfo) and entry.size == LARGEST


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            properties(size=size)
            for size in ("-1", "+1", " 1", "1_0", "1e3", "0x1", "\u0663", "", str(LARGEST + 1), "9" * 5000)
        ),
        *(properties(etag=etag) for etag in ("", '""', "a b", "a&quot;b", "a&#xD;&#xA;x-ms-a: b", "\u00e9", "x" * 257)),
        *(properties(date=date) for date in ("yesterday", "Fri, 20 Nov 1926 06:13:00 GMT", "20 Nov 2026", "&#27;[2J")),
    ],
)
def test_an_invalid_size_date_or_etag_is_an_error_that_names_the_blob(wrong: str) -> None:
    bad = item("<Name>b\u0131d</Name>", wrong)
    good = item("<Name>good</Name>", properties())
    for items in ([good, bad], [good, *MANY, bad]):
        with pytest.raises(BadAnswerError) as refused:
            list(list_page(page(*items)))
        said = str(refused.value)
        assert said.startswith("the blob 'b\\u0131d': ")
        assert said.isprintable() and len(said) < 120


@pytest.mark.parametrize(
    ("properties", "metadata"),
    [
        ("", "<hdi_isfolder>true</hdi_isfolder>"),
        ("", "<Hdi_IsFolder>True</Hdi_IsFolder>"),
        ("<ResourceType>directory</ResourceType>", ""),
    ],
)
def test_folder_stubs(properties: str, metadata: str) -> None:
    (entry,) = list_page(page(item("<Name>d</Name>", properties, metadata)))
    assert isinstance(entry, BlobInfo) and entry.is_folder_stub


def test_other_metadata_does_not_make_a_folder() -> None:
    (entry,) = list_page(page(item("<Name>d</Name>", NEEDED, "<hdi_isfolder>false</hdi_isfolder><Etag>x</Etag>")))
    assert isinstance(entry, BlobInfo) and not entry.is_folder_stub and entry.etag == "0x1"


def test_folders_come_as_names() -> None:
    assert names(page("<BlobPrefix><Name>d/</Name></BlobPrefix>", item("<Name>e</Name>"))) == ["d/", "e"]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("<Name>a&amp;b &lt;c&gt; &quot;'</Name>", "a&b <c> \"'"),
        ("<Name>é/\U0001f600/e\u0301</Name>", "é/\U0001f600/e\u0301"),
        ('<Name Encoded="true">a%20%EF%BF%BE%2541</Name>', "a \ufffe%41"),
        ("<Name>100%25</Name>", "100%25"),
        ("<Name> lead and trail </Name>", " lead and trail "),
        ("<Name>cr&#xD;lf&#xA;tab&#x9;</Name>", "cr\rlf\ntab\t"),
        ("<Name>a\x01b\x1f</Name>", "a\x01b\x1f"),
        ("<Name>a&#x1;b&#31;&#65;</Name>", "a\x01b\x1fA"),
        ("<Name>a\ufffeb</Name>", "a\ufffeb"),
        ("<Name>\x7f\u0081</Name>", "\x7f\u0081"),
    ],
)
def test_names_are_unescaped(written: str, name: str) -> None:
    assert names(page(item(written))) == [name]


@pytest.mark.parametrize(
    ("written", "marker"),
    [
        ("<NextMarker />", ""),
        ("<NextMarker></NextMarker>", ""),
        ("<NextMarker>2!80!a&amp;b-</NextMarker>", "2!80!a&b-"),
    ],
)
def test_the_next_marker_is_found_without_parsing_the_page(written: str, marker: str) -> None:
    assert next_marker(page(item("<Name>&lt;NextMarker&gt;no</Name>"), marker=written)) == marker


@pytest.mark.parametrize("body", [b"", b"<html><br></html>", b"\xff\xfe", b"<EnumerationResults><Blobs><Blob>"])
def test_pages_that_cannot_be_parsed(body: bytes) -> None:
    with pytest.raises(BadAnswerError):
        list(list_page(body))


def test_a_blob_without_a_name_is_an_error() -> None:
    with pytest.raises(BadAnswerError):
        list(list_page(page("<Blob></Blob>")))


# -- large pages ---------------------------------------------------------------------------------------------------


def ordinary(number: int, metadata: str = "<Metadata />") -> str:
    """A blob as the service sends it."""
    return (
        f"<Blob><Name>base/f{number:06}.bin</Name><Properties><Creation-Time>Fri, 20 Nov 2026 06:00:00 GMT"
        f"</Creation-Time><Last-Modified>Fri, 20 Nov 2026 06:{number % 60:02}:00 GMT</Last-Modified>"
        f"<Etag>0x8D{number:X}</Etag><Content-Length>{number}</Content-Length><Content-Type>image/png</Content-Type>"
        f"<Content-Encoding /><Content-MD5>{'' if number % 7 else 'SfaKXIST7CwL9ImCHCH8Ow=='}</Content-MD5>"
        "<Cache-Control /><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
        f"<AccessTierInferred>true</AccessTierInferred></Properties>{metadata}<OrMetadata /></Blob>"
    )


MANY = [ordinary(number) for number in range(300)]


def read_alone(*items: str) -> list[BlobInfo | str]:
    """What the parser makes of each entry in a page of its own, which is small."""
    return [entry for each in items for entry in list_page(page(each))]


def test_a_large_page_is_read_as_its_entries_are() -> None:
    found = list(list_page(page(*MANY)))
    assert found == read_alone(*MANY)
    assert found[14] == BlobInfo(
        name="base/f000014.bin",
        size=14,
        etag="0x8DE",
        md5=bytes.fromhex("49f68a5c8493ec2c0bf489821c21fc3b"),
        last_modified=1795155240.0,
        tier="Hot",
        content_type="image/png",
        tier_inferred=True,
    )


def test_a_large_page_takes_no_memory_for_its_elements() -> None:
    body = page(*MANY * 10)
    tracemalloc.start()
    try:
        assert len(list(list_page(body))) == 3000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body), "of elements it would be more than five times the page"


UNUSUAL = {
    "next to nothing": item("<Name>a</Name>"),
    "references": item("<Name>a&amp;b&#65;</Name>"),
    "an encoded name": item('<Name Encoded="true">a%20b</Name>'),
    "a name that only looks encoded": item("<Name>a%20b</Name>"),
    "CDATA": item("<Name><![CDATA[</Blob><Blob>]]></Name>"),
    "a comment": item("<Name>a<!-- </Blob> -->b</Name>"),
    "text between elements": item("<Name>a</Name>between"),
    "an etag in quotes": item("<Name>a</Name>", '<Etag>"0x1"</Etag><Content-Length>0</Content-Length>'),
    "an etag in the metadata": item("<Name>a</Name>", NEEDED, "<Etag>x</Etag>"),
    "a name in the properties": item("<Name>a</Name>", f"<Name>b</Name>{NEEDED}"),
    "an element twice": item("<Name>a</Name>", f"<Etag>0x2</Etag>{NEEDED}"),
    "properties twice": item("<Name>a</Name>", f"{NEEDED}</Properties><Properties><Etag>0x9</Etag>"),
    "elements too deep": item("<Name>a</Name>", f"{NEEDED}<x><Etag>0x3</Etag></x>"),
    "a file's type": item("<Name>a</Name>", f"{NEEDED}<ResourceType>file</ResourceType>"),
    "a folder's type": item("<Name>a</Name>", "<ResourceType>directory</ResourceType>"),
    "a folder with a size": item("<Name>a</Name>", f"{NEEDED}<ResourceType>directory</ResourceType>"),
    "no folder": item("<Name>a</Name>", NEEDED, "<hdi_isfolder>false</hdi_isfolder>"),
    "a folder": item("<Name>a</Name>", NEEDED, "<hdi_isfolder>true</hdi_isfolder>"),
    "metadata": item("<Name>a</Name>", NEEDED, "<mtime>1</mtime>"),
    "a tier that was set": item("<Name>a</Name>", f"{NEEDED}<AccessTier>Cool</AccessTier>"),
    "no tier": item("<Name>a</Name>", f"{NEEDED}<AccessTier />"),
    "no tier, written otherwise": item("<Name>a</Name>", f"{NEEDED}<AccessTier></AccessTier>"),
    "a blank line": "\n" + item("<Name>a</Name>"),
    "a folder of a level": "<BlobPrefix><Name>d/</Name></BlobPrefix>",
    "a control character": item("<Name>a\x01b</Name>"),
    "a reference to one": item("<Name>a&#x1;b</Name>"),
    "no character": item("<Name>a\ufffeb</Name>"),
    "a line break": item("<Name>a\r\nb</Name>"),
}


@pytest.mark.parametrize("unusual", list(UNUSUAL.values()), ids=list(UNUSUAL))
def test_an_unusual_entry_of_a_large_page_is_read_as_it_is_alone(unusual: str) -> None:
    # Twice, so that what was learned from it is used as well, and before and after ordinary ones.
    items = [unusual, *MANY, unusual, *UNUSUAL.values(), unusual, *MANY]
    assert list(list_page(page(*items))) == read_alone(*items)
    assert list(list_page(page(unusual, unusual, *MANY))) == read_alone(unusual, unusual, *MANY)


@given(st.lists(st.sampled_from([*UNUSUAL.values(), *MANY[:20]]), max_size=12), st.integers(0, 300))
def test_any_mixture_of_entries_is_read_as_each_is_alone(some: list[str], at: int) -> None:
    items = [*MANY[:at], *some, *MANY[at:]]
    assert list(list_page(page(*items))) == read_alone(*items)


@pytest.mark.parametrize(
    "body",
    [
        page(*MANY, "<Blob><Name>a</Name>"),
        page(*MANY, "</Blob>"),
        page(*MANY, "<Blob><Name>a</Nam></Blob>"),
        page(*MANY, "<Blob><Name>\x00</Name>"),
        page(*MANY, "]]>"),
        page(*MANY)[:-1],
        page(*MANY) + b"<more/>",
        b"garbage" + page(*MANY),
        page(*MANY).replace(b"f000200", b"\xff"),
        page(*MANY).replace(b"f000200", b"&unknown;"),
        page(*MANY).replace(b"f000200", b"a]]>b"),
    ],
)
def test_a_large_page_that_is_no_page(body: bytes) -> None:
    with pytest.raises(BadAnswerError):
        list(list_page(body))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<Blobs>", "<!-- <Blobs>"),
        ("<Blobs>", "<Blobs></Blobs><Blobs>"),
        ("<Blobs>", "<Blobs /><Blobs>"),
        ("<Blobs>", "<x><Blobs>"),
        ("<Blobs>", "<?x <Blobs>"),
        ("<Blobs>", '<Blobs x="">'),
    ],
)
def test_blobs_that_are_not_where_blobs_are_do_not_count(old: str, new: str) -> None:
    end = {"<!-- <Blobs>": "</Blobs> -->", "<x><Blobs>": "</Blobs></x>", "<?x <Blobs>": "</Blobs>?>"}
    body = page(*MANY).decode().replace(old, new).replace("</Blobs><NextM", f"{end.get(new, '</Blobs>')}<NextM")
    assert len(list(list_page(body.encode()))) == (300 if new == '<Blobs x="">' else 0)


def test_a_large_page_in_another_encoding() -> None:
    body = page(item("<Name>é</Name>"), *MANY).decode().replace("utf-8", "iso-8859-1").encode("iso-8859-1")
    assert names(body)[0] == "é"
    # Valid in both.
    assert names(page(item("<Name>é</Name>"), *MANY).replace(b"utf-8", b"iso-8859-1"))[0] == "Ã©"


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_a_large_page_with_a_byte_order_mark_or_without_a_declaration(mark: str) -> None:
    body = f"{mark}{page(*MANY).decode().partition('?>')[2]}"
    assert list(list_page(body.encode())) == read_alone(*MANY)


def test_a_large_page_where_no_blob_has_the_form_of_another() -> None:
    items = [ordinary(number, f"<Metadata><k{number}>v</k{number}></Metadata>") for number in range(300)]
    assert list(list_page(page(*items))) == read_alone(*items)


def test_error_codes_and_messages() -> None:
    body = (
        "\ufeff<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code><Message>Server failed.\nRequestId:1\n"
        "Time:x</Message><AuthenticationErrorDetail>in the specified time frame</AuthenticationErrorDetail></Error>"
    )
    assert service_error(body.encode()) == ServiceError(
        "AuthenticationFailed", "Server failed.", "in the specified time frame"
    )
    assert service_error(b"<html>proxy</html>") == service_error(b"502") == ServiceError()


@pytest.mark.parametrize("text", [None, "", "????", "YWJj"])
def test_invalid_md5s(text: str | None) -> None:
    assert decode_md5(text) is None


def blocks(committed: str = "", uncommitted: str = "") -> bytes:
    lists = f"<CommittedBlocks>{committed}</CommittedBlocks><UncommittedBlocks>{uncommitted}</UncommittedBlocks>"
    return f'<?xml version="1.0" encoding="utf-8"?><BlockList>{lists}</BlockList>'.encode()


def block(name: str = "AAAA", size: str = "1") -> str:
    return f"<Block><Name>{name}</Name><Size>{size}</Size></Block>"


def test_committed_and_uncommitted_blocks() -> None:
    body = blocks(block("AAA=", "7") + block("ab+/", "0"), block("BBBB", str(LARGEST_BLOCK)))
    assert block_lists(body) == ((Block("AAA=", 7), Block("ab+/", 0)), (Block("BBBB", LARGEST_BLOCK),))
    assert block_lists(b"<BlockList />") == ((), ())


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"<html>proxy</html>",
        blocks("<Block><Size>1</Size></Block>"),
        blocks("<Block><Name>AAAA</Name></Block>"),
        *(blocks(block(size=size)) for size in ("-1", " 1", "1.0", "", str(LARGEST_BLOCK + 1), "9" * 5000)),
        *(blocks(uncommitted=block(name)) for name in ("", "A A", "A\n", "&lt;Latest&gt;", "é", "A" * 93, "A===")),
        blocks(block() * 50_001),
        blocks(uncommitted=block() * 100_001),
    ],
    ids=lambda body: repr(body[90:140]),
)
def test_impossible_block_lists_are_refused(wrong: bytes) -> None:
    with pytest.raises(BadAnswerError):
        block_lists(wrong)


def test_blobs_without_content_need_no_other_properties() -> None:
    body = page(
        item("<Name>full</Name>", properties()),
        item("<Name>empty</Name>", properties(size="0")),
        '<Blob><Name Encoded="true">a%2Fb</Name><Properties><BlobType>BlockBlob</BlobType></Properties></Blob>',
        "<Blob><Name>bare</Name></Blob>",
        "<Blob><Name>d</Name><Properties><ResourceType>directory</ResourceType></Properties></Blob>",
    )
    assert names_without_content(body) == ["empty", "a/b", "bare"]
