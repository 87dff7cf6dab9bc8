"""Parses the XML bodies of the Blob service, which are not trusted.

https://learn.microsoft.com/rest/api/storageservices/list-blobs. The work is done by expat inside ElementTree, and by
regular expressions where entries repeat each other: a listed blob takes 3 µs of CPU, with ElementTree alone 10 to
22, with azure-storage-blob 180.
"""

import re
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from urllib.parse import unquote
from xml.etree import ElementTree

from blobsync.base.file_states import DELETED, SNAPSHOT
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple
from blobsync.store.protocol import MAX_BLOB_BYTES, MAX_BLOCK_BYTES, MAX_BLOCKS, MAX_UNCOMMITTED, BlobInfo, Block
from blobsync.store.rest.transport import parse_http_date

# XML 1.0 cannot contain most control characters, yet blob names may, and some servers send them anyway. The parser gets
# characters of the last private plane instead.
_ILLEGAL_RAW = pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ILLEGAL_REFERENCE = pattern(r"&#(?:x([0-9a-fA-F]{1,4})|([0-9]{1,5}));")
_STAND_IN = 0x100000
_STAND_INS = pattern("[\U00100000-\U0010ffff]")


# How a page in Arrow's form begins; XML never does.
ARROW_START = b"\xff\xff\xff\xff"

# Services return an empty page for every 5,000 blobs that are deleted but still kept.
_MAX_EMPTY_PAGES = 10_000

# A marker is kept, and sent back in a URL.
_LONGEST_MARKER = 64 * 1024

# 16 bytes in base64, padding included.
_MD5_CHARS = 24

# Plain digits: int() would accept signs, blanks, underscores and the digits of other scripts.
_SIZE = pattern(r"[0-9]{1,15}", re.ASCII)
# RFC 9110, 8.8.3, without the quotes. It is sent back to the service in a header.
_ETAG = pattern(r"[\x21\x23-\x7e]{1,256}")
# A time, in ISO 8601. It is sent back to the service in a query.
_VERSION = pattern(r"[0-9A-Za-z:.-]{1,64}")
# Up to 64 bytes in base64. It is sent back to the service in XML and in a query.
_BLOCK_ID = pattern(r"[A-Za-z0-9+/]{1,88}={0,2}")

# Smaller pages (bytes) are parsed as a whole: that takes less than to find the form of their blobs.
_LARGE_PAGE = 64 * 1024
# Forms that are looked for in a page, and the length of a blob that makes none.
_MOST_FORMS = 4
_LARGE_BLOB = 16 * 1024
_HEAD = pattern(r'(?:<\?xml version="1\.0"(?: encoding="(?i:utf-8)")?\?>)?<EnumerationResults[ >]')
# What may hide a part of a page: comments, processing instructions, entities, and text that only looks like elements.
_DECLARED = pattern(r"<[!?]")
_TAG = pattern(r"[A-Za-z_][A-Za-z0-9_-]*")
_VALUE = r"[^<>&\x00-\x1f\ufffe\uffff]"
_PROPERTIES = (
    *("Content-Length", "Etag", "Content-MD5", "Last-Modified"),
    *("AccessTier", "Content-Type", "BlobType", "AccessTierInferred"),
)
# The names of an expression's groups have no hyphen.
_GROUP_OF = {
    ("Blob", "Name"): "name",
    **{("Properties", tag): f"value{number}" for number, tag in enumerate(_PROPERTIES)},
    ("Blob", "VersionId"): "version",
}
_GROUPS = tuple(_GROUP_OF.values())
# What the checks below demand of a value, as part of the expression: a blob with any other value is parsed. A size and
# an ETag have to be there.
_GATES = {
    "Content-Length": "(?P<value0>[0-9]{1,14})",
    "Etag": r'"?(?P<value1>[\x21\x23-\x25\x27-\x3b\x3d\x3f-\x7e]{1,256})"?',
    "Content-MD5": "(?P<value2>(?:[A-Za-z0-9+/]{22}==)?)",
    "Last-Modified": "(?P<value3>[A-Z][a-z]{2}, [0-9]{2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    " 2[0-9]{3} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT)",
    "VersionId": "(?P<version>[0-9A-Za-z:.-]{0,64})",
}


class BadAnswerError(Exception):
    """A malformed body; the caller adds which request it belongs to."""


class ServiceError(NamedTuple):
    """The ``<Error>`` document: the service's code and message, or empty texts."""

    code: str = ""
    message: str = ""
    detail: str = ""


class Markers:
    """The markers of one listing. Raises ``BadAnswerError`` for an endless listing."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._empty = 0

    def after(self, page: bytes) -> str:
        """The marker of the page after this one; empty on the last page."""
        return self.checked(next_marker(page), is_empty=b"<Name" not in page)

    def checked(self, marker: str, *, is_empty: bool) -> str:
        """The marker that a page ended with; ``is_empty``: the page lists nothing."""
        if marker in self._seen:
            raise BadAnswerError("it never ends: the service returned the same marker twice")
        if len(marker) > _LONGEST_MARKER:
            raise BadAnswerError(f"the service returned a marker of {len(marker):,} characters")
        self._empty = self._empty + 1 if is_empty else 0
        if self._empty > _MAX_EMPTY_PAGES:
            raise BadAnswerError(f"it never ends: the service returned {self._empty:,} empty pages in a row")
        if marker:
            self._seen.add(marker)
        return marker


def next_marker(page: bytes) -> str:
    """The marker of the page after this one, found at its end without parsing; empty on the last page."""
    start = page.rfind(b"<NextMarker>")
    end = page.find(b"</NextMarker>", start)
    if not 0 <= start < end:
        return ""
    try:
        return ElementTree.fromstring(b"<m>" + page[start + 12 : end] + b"</m>").text or ""
    except (ElementTree.ParseError, ValueError) as error:
        raise BadAnswerError(f"its marker is not text: {error}") from error


def list_page(page: bytes) -> Sequence[BlobInfo | str]:
    """The blobs of one page of List Blobs, and the ``<BlobPrefix>`` names if there was a delimiter."""
    blobs = _blobs_by_form(page) if len(page) >= _LARGE_PAGE else None
    if blobs is not None:
        return blobs
    return [name if item.tag == "BlobPrefix" else _blob(name, item) for name, item in _listed(page)]


def names_without_content(page: bytes) -> list[str]:
    """The names of a page that have no bytes, directories left out."""
    return [
        name
        for name, item in _listed(page)
        if item.findtext("Properties/Content-Length") in (None, "", "0")
        and item.findtext("Properties/ResourceType") != "directory"
    ]


def newest_has_version(page: bytes) -> bool | None:
    """Whether the blob of a page with ``include=versions`` that changed last has a version; None: it lists none."""
    blobs = [item for _, item in _listed(page) if item.tag == "Blob"]
    if not blobs:
        return None
    newest = max(blobs, key=lambda item: checked_date(item.findtext("Properties/Last-Modified")))
    return bool(newest.findtext("VersionId"))


def kept_days(settings: bytes, most: int) -> int | None:
    """For how many days deleted blobs are kept, from Get Blob Service Properties; 0: not at all, None: not said."""
    policy = _parse(settings)[0].find("DeleteRetentionPolicy")
    if policy is None:
        return None
    if policy.findtext("Enabled") != "true":
        return 0
    days = checked_size(policy.findtext("Days"))
    if not 1 <= days <= most:
        raise BadAnswerError(f"deleted blobs are kept for {days:,} days")
    return days


def deleted_in(page: bytes) -> list[BlobInfo]:
    """The deleted blobs of a page, and its snapshots, each with the words for it as its version."""
    found = []
    for name, item in _listed(page):
        time, deletion = (checked_version(item.findtext(tag)) for tag in ("Snapshot", "DeletionId"))
        words = (DELETED if item.findtext("Deleted") == "true" else "", SNAPSHOT if time else "", time or deletion)
        if any(words) and not item.findtext("VersionId"):
            found.append(_blob(name, item)._replace(version=" ".join(filter(None, words))))
    return found


def _listed(page: bytes) -> Iterator[tuple[str, ElementTree.Element]]:
    root, restore = _parse(page)
    blobs = root.find("Blobs")
    for item in () if blobs is None else blobs:
        yield _name(item, restore=restore), item


def _name(item: ElementTree.Element, *, restore: bool = False) -> str:
    element = item.find("Name")
    if element is None:
        raise BadAnswerError("a listed blob has no name")
    name = element.text or ""
    if restore:
        name = _STAND_INS.sub(lambda found: chr(ord(found.group()) - _STAND_IN), name)
    return unquote(name) if element.get("Encoded") == "true" else name


def _blob(name: str, item: ElementTree.Element) -> BlobInfo:
    properties = item.find("Properties")
    found = {} if properties is None else {element.tag: element.text for element in properties}
    metadata = item.find("Metadata")
    is_stub = found.get("ResourceType") == "directory" or (metadata is not None and _marks_folder(metadata))
    size, etag, md5, date, tier, content_type, kind, inferred = map(found.get, _PROPERTIES)
    try:
        # Only entries without data may lack both.
        count = 0 if is_stub and not size else checked_size(size)
        tag = "" if is_stub and not etag else checked_etag(etag)
        version = checked_version(item.findtext("VersionId"))
        place = (tier or None, content_type or None, kind or "BlockBlob", is_stub, inferred == "true")
        return BlobInfo(name, count, tag, decode_md5(md5), checked_date(date), *place, version=version)
    except BadAnswerError as error:
        raise BadAnswerError(f"the blob {name!a}: {error}") from error


def checked_version(version: str | None) -> str:
    """The name of a version, empty without one; raises ``BadAnswerError`` for an invalid one."""
    if version and not _VERSION.fullmatch(version):
        raise BadAnswerError("its version has an invalid form")
    return version or ""


def _blobs_by_form(page: bytes) -> list[BlobInfo] | None:
    """The blobs of a large page, in half of the parser's time; None for a page that the parser has to read.

    The blobs of a page differ in their values, but hardly in their elements. So one blob of each form is parsed, and
    an expression made from it finds the values of the others. It matches only what the parser would read the same way:
    values without markup, references and control characters.
    """
    try:
        # One text: to cut a page of megabytes takes as long as to search it.
        text = page.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    at, end = text.find("<Blobs>") + len("<Blobs>"), text.rfind("</Blobs>")
    if not len("<Blobs>") <= at <= end or not _is_frame(text[:at], text[end:]):
        return None
    forms: list[re.Pattern[str]] = []
    found: list[BlobInfo] = []
    while at < end:
        begin = at
        for form in forms:
            while match := form.match(text, at, end):
                at = match.end()
                found.append(_blob_of_form(*match.group(*_GROUPS)))
        if at > begin:
            continue
        at = text.find("</Blob>", begin, end) + len("</Blob>")
        if at < begin or not text.startswith("<Blob>", begin):
            return None
        try:
            item = ElementTree.fromstring(text[begin:at])
        except (ElementTree.ParseError, ValueError):
            return None
        found.append(_blob(_name(item), item))
        if len(forms) < _MOST_FORMS and at - begin < _LARGE_BLOB and (learned := _form(item)) is not None:
            forms.append(learned)
    return found


def _blob_of_form(
    name: str,
    size: str,
    etag: str,
    md5: str | None,
    date: str | None,
    tier: str | None,
    content_type: str | None,
    kind: str | None,
    inferred: str | None,
    version: str | None,
) -> BlobInfo:
    digest, changed = a2b_base64(md5) if md5 else None, parse_http_date(date) if date else 0.0
    place = (tier or None, content_type or None, kind or "BlockBlob", False, inferred == "true", "", None)
    return BlobInfo(name, int(size), etag, digest, changed, *place, version or "")


def _is_frame(head: str, tail: str) -> bool:
    """Whether this is a page without its blobs, so that what was between is only them."""
    if not _HEAD.match(head) or not tail.startswith("</Blobs>") or _DECLARED.search(head[1:] + tail):
        return False
    try:
        root = ElementTree.fromstring(head + tail)
    except (ElementTree.ParseError, ValueError):
        return False
    return len(root.findall("Blobs")) == 1


def _form(item: ElementTree.Element) -> re.Pattern[str] | None:
    """The expression for blobs with the elements of this one; None if they need the parser."""
    expression = _element_form(item, None)
    if expression is None or "<value0>" not in expression or "<value1>" not in expression:
        return None
    missing = (f"(?P<{group}>(?!))?" for group in _GROUPS if f"(?P<{group}>" not in expression)
    return re.compile(f"{expression}{''.join(missing)}")


def _element_form(element: ElementTree.Element, parent: str | None) -> str | None:
    tag = element.tag
    if not _TAG.fullmatch(tag) or tag.lower() == "hdi_isfolder" or element.keys():
        return None
    if not len(element) and parent is not None:
        group = _GROUP_OF.get((parent, tag))
        other = "(?!directory<)" if tag == "ResourceType" else ""
        value = (group and _GATES.get(tag)) or f"{other}({f'?P<{group}>' if group else '?:'}{_VALUE}*)"
        is_needed = group in ("value0", "value1")
        return f"<{tag}>{value}</{tag}>" if is_needed else f"(?:<{tag}>{value}</{tag}>|<{tag} ?/>)"
    # Blobs have properties and metadata, and nothing is deeper. No form has text between elements, or two of a name.
    inner = [None if child.tail or parent not in (None, "Blob") else _element_form(child, tag) for child in element]
    if element.text or None in inner or len({child.tag for child in element}) < len(element):
        return None
    return f"<{tag}>{''.join(filter(None, inner))}</{tag}>"


def block_lists(body: bytes) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """The committed and the uncommitted blocks of a Get Block List."""
    root, _ = _parse(body)
    if root.tag != "BlockList":
        raise BadAnswerError("not a list of blocks")
    return _blocks(root, "CommittedBlocks", MAX_BLOCKS), _blocks(root, "UncommittedBlocks", MAX_UNCOMMITTED)


def _blocks(root: ElementTree.Element, kind: str, most: int) -> tuple[Block, ...]:
    items = [item for group in root.findall(kind) for item in group.findall("Block")]
    if len(items) > most:
        raise BadAnswerError(f"{len(items):,} {kind}, more than a blob can have")
    return tuple(_block(item) for item in items)


def _block(item: ElementTree.Element) -> Block:
    block_id, size = item.findtext("Name") or "", checked_size(item.findtext("Size"))
    if not _BLOCK_ID.fullmatch(block_id):
        raise BadAnswerError(f"{_quoted(block_id)} is not the id of a block")
    if size > MAX_BLOCK_BYTES:
        raise BadAnswerError(f"{size:,} bytes are more than a block can have")
    return Block(block_id, size)


def checked_size(text: str | None) -> int:
    """The size of a blob, in bytes; raises ``BadAnswerError`` for an impossible one."""
    size = int(text) if text and _SIZE.fullmatch(text) else -1
    if not 0 <= size <= MAX_BLOB_BYTES:
        raise BadAnswerError(f"{_quoted(text)} is not a blob size")
    return size


def checked_etag(text: str | None) -> str:
    """An ETag without its quotes; raises ``BadAnswerError`` for an invalid one."""
    etag = (text or "").strip('"')
    if not _ETAG.fullmatch(etag):
        raise BadAnswerError(f"{_quoted(text)} is not an ETag")
    return etag


def checked_date(text: str | None) -> float:
    """Seconds since 1970, 0.0 without a date; raises ``BadAnswerError`` for an invalid date, or one before 1970."""
    if not text:
        return 0.0
    seconds = parse_http_date(text)
    if seconds <= 0:
        raise BadAnswerError(f"{_quoted(text)} is not a date")
    return seconds


def _quoted(text: str | None) -> str:
    """Quote a text for an error message; it may be long, and contain terminal escapes."""
    return ascii(text[:40]) if text else "nothing"


def _marks_folder(metadata: ElementTree.Element) -> bool:
    return any(one.tag.lower() == "hdi_isfolder" and (one.text or "").lower() == "true" for one in metadata)


def service_error(body: bytes) -> ServiceError:
    """Read an ``<Error>`` body; anything else (a proxy's page, nothing) has empty fields."""
    try:
        root, _ = _parse(body)
    except BadAnswerError:
        return ServiceError()
    if root.tag != "Error":
        return ServiceError()
    message = (root.findtext("Message") or "").split("\n", 1)[0].strip()
    detail = (root.findtext("AuthenticationErrorDetail") or root.findtext("HeaderName") or "").strip()
    return ServiceError((root.findtext("Code") or "").strip(), message, detail)


def decode_md5(text: str | None) -> bytes | None:
    """The 16 bytes of a Content-MD5 value, or None if it is missing or invalid."""
    # Characters that are not base64 are skipped, which makes the result too short.
    if not text or len(text) != _MD5_CHARS:
        return None
    try:
        digest = a2b_base64(text)
    except ValueError:
        return None
    return digest if len(digest) == 16 else None


def _parse(body: bytes) -> tuple[ElementTree.Element, bool]:
    """The document, and whether it contains substitutes for characters that XML cannot contain."""
    try:
        return ElementTree.fromstring(body), False
    except (ElementTree.ParseError, ValueError, LookupError):
        pass
    try:
        text = body.decode("utf-8-sig")
        text = _ILLEGAL_RAW.sub(lambda found: chr(ord(found.group()) + _STAND_IN), text)
        text = _ILLEGAL_REFERENCE.sub(_stand_in_reference, text)
        return ElementTree.fromstring(text), True
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadAnswerError(f"not XML: {error}") from error


def _stand_in_reference(found: re.Match[str]) -> str:
    code = int(found.group(1), 16) if found.group(1) else int(found.group(2))
    return chr(code + _STAND_IN) if _ILLEGAL_RAW.match(chr(code)) else found.group()
