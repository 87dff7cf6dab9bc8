"""What a server answers, and what azcopy and SAS strings say."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from blobsync.azcopy.azcopy_process import parse_line
from blobsync.azcopy.failure_reasons import LogReader, explain, reason_in
from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, redact, redact_answer
from blobsync.plan.transfer_plan import Route
from blobsync.store.protocol import BlobProperties, Sent
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Headers, HttpRequest
from blobsync.store.sas_token import DelegationKey, check_token, kind, remaining, sign_sas
from blobsync.store.sdk import SdkContainer
from tests.soak.target import Target, ignoring, text

BOX = BlobContainer("acct", "box", "https://acct.blob.core.windows.net")
NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
_SAS = "sv=2023-11-03&sp=racwdl&sr=c&se=2099-01-01T00%3A00%3A00Z&sig=c2VudGluZWw%3D"
_DATA = Path(__file__).resolve().parents[1] / "data" / "transcripts"


class CannedResponse:
    attempts = 1
    body = b""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers = status, headers
        self.read = io.BytesIO(body).read

    def close(self) -> None:
        """Keeps nothing."""


class Canned(BlobHttp):
    """Answers every request with the same status, headers and body; tries none twice."""

    def __init__(self) -> None:
        signer = SasSigner(SasToken.parse(_SAS))
        super().__init__(BOX, signer, environ={}, clock=NOW.timestamp, retry=RetryPolicy(tries=1))
        self.status, self.fields, self.content = 200, dict[str, str](), b""

    def _exchange(self, attempt: HttpRequest, sent: Sent | None) -> CannedResponse:
        shown = b"" if attempt.method == "HEAD" else self.content
        response = CannedResponse(self.status, Headers(list(self.fields.items())), shown)
        response.body = shown if attempt.most else b""
        return response

    def resumes(self, failures: int) -> bool:
        return False


def _requests(store: RestBlobStore, http: BlobHttp) -> Iterable[Callable[[], object]]:
    def read() -> None:
        with store.open("a/b", start=1, length=3) as reader:
            while reader.read(1 << 16):
                pass

    def key() -> None:
        _mint(store.user_delegation_key(NOW, NOW))

    written = partial(store.put, "a", b"x", md5=b"0" * 16, properties=BlobProperties())
    yield from (read, key, written, store.clock_skew, store.features)
    yield from (partial(store.head, "a"), partial(store.properties, "a"), partial(store.delete, "a"))
    yield lambda: list(itertools.islice(store.list_blobs("a/"), 10_000))
    yield lambda: list(itertools.islice(store.list_folder(), 10_000))
    yield partial(store.block_list, "a")
    yield lambda: list(store.without_content("a/", 2))
    yield lambda: store.delete_many(["a", "b"])
    yield lambda: SdkContainer(BOX, http).delete_batch([("a", None), ("b", "0x8DB")])
    yield SdkContainer(BOX, http).create


def _mint(key: DelegationKey) -> None:
    sign_sas(BOX, "r", key=key, expires=NOW)


def _replies(_: Path) -> Callable[[bytes], None]:
    http = Canned()
    store = RestBlobStore(BOX, http)

    def run(data: bytes) -> None:
        head, _, http.content = data.partition(b"\n\n")
        status, *lines = head.decode("latin-1").split("\n")
        http.status = int(status) if status in ("200", "201", "202", "206", "404", "403", "409", "412", "500") else 200
        http.fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        for request in _requests(store, http):
            try:
                request()
            except BlobsyncError as error:
                str(error)

    return run


_HEADERS = b"""\
ETag: "0x8DB"
Content-Length: 5
Content-Type: text/plain
Content-MD5: XUFAKrxLKna5cZ2REBfFkg==
Last-Modified: Fri, 20 Nov 2026 06:13:00 GMT
Date: Fri, 20 Nov 2026 06:13:00 GMT
Content-Range: bytes 0-4/5
x-ms-blob-content-md5: XUFAKrxLKna5cZ2REBfFkg==
x-ms-blob-type: BlockBlob
x-ms-access-tier: Hot
x-ms-request-id: 1-2-3
x-ms-error-code: AuthenticationFailed
x-ms-meta-hdi_isfolder: true
x-ms-is-hns-enabled: true
"""
_LISTING = b"""\
<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="https://acct.blob.core.windows.net/"><Prefix>a/\
</Prefix><Blobs><Blob><Name>a/b &amp; c</Name><Properties><Last-Modified>Fri, 20 Nov 2026 06:13:00 GMT</Last-Modified>\
<Etag>0x8DB</Etag><Content-Length>5</Content-Length><Content-Type>text/plain</Content-Type><Content-MD5>\
XUFAKrxLKna5cZ2REBfFkg==</Content-MD5><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier></Properties><Metadata>\
<hdi_isfolder>true</hdi_isfolder></Metadata></Blob>\
<Blob><Name Encoded="true">a%2F%01</Name><Properties><Etag>"1"</Etag>\
<Content-Length>0</Content-Length><ResourceType>directory</ResourceType></Properties></Blob><BlobPrefix><Name>d/</Name>\
</BlobPrefix></Blobs><NextMarker>2!88!MDAwMDIy</NextMarker></EnumerationResults>"""
_BLOCKS = b"""\
<?xml version="1.0" encoding="utf-8"?><BlockList><CommittedBlocks><Block><Name>YnNjMQ==</Name><Size>8388608</Size>\
</Block></CommittedBlocks><UncommittedBlocks><Block><Name>YnNjMg==</Name><Size>5</Size></Block></UncommittedBlocks>\
</BlockList>"""
_ERROR = b"""\
<?xml version="1.0"?><Error><Code>AuthenticationFailed</Code>\
<Message>no\nRequestId:1\nTime:2026-11-20T06:13:00Z</Message>\
<AuthenticationErrorDetail>Signature not valid in the specified time frame: Start [x] - Expiry [y] - Current [z]\
</AuthenticationErrorDetail><HeaderName>x-ms-version</HeaderName></Error>"""
_KEY = b"""\
<?xml version="1.0"?><UserDelegationKey>\
<SignedOid>o</SignedOid><SignedTid>t</SignedTid><SignedStart>2026-11-20T00:00:00Z\
</SignedStart><SignedExpiry>2026-11-21T00:00:00Z</SignedExpiry><SignedService>b</SignedService><SignedVersion>2023-11-03\
</SignedVersion><Value>c2VudGluZWw=</Value></UserDelegationKey>"""
_RETENTION = b"""\
<?xml version="1.0"?><StorageServiceProperties><DeleteRetentionPolicy><Enabled>true</Enabled><Days>7</Days>\
</DeleteRetentionPolicy></StorageServiceProperties>"""
_BATCH = b"""\
--batchresponse_1\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
HTTP/1.1 202 Accepted\r\nx-ms-request-id: 1\r\n\r\n\
--batchresponse_1\r\nContent-Type: application/http\r\nContent-ID: 1\r\n\r\nHTTP/1.1 404 The specified blob\r\n\
x-ms-error-code: BlobNotFound\r\n\r\n--batchresponse_1--\r\n"""


def _reply(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"%d\n%s%s\n%s" % (status, _HEADERS, more, body)


def _sas(data: bytes) -> None:
    try:
        token = SasToken.parse(text(data))
    except ValueError:
        return
    repr(token)
    kind(token)
    remaining(token, NOW)
    shown = redact(f"it was {text(data)} there")
    for said in check_token(token, BOX, "rl", now=NOW):
        shown += redact(said)


def _messages(data: bytes) -> None:
    for line in text(data).split("\n"):
        message = parse_line(line)
        if message.kind in ("Info", "Error") and (reason := reason_in(message.text)):
            for route in Route:
                explain(reason, route)


def _azcopy_log(data: bytes) -> None:
    reader = LogReader()
    reader.feed(text(data).splitlines(keepends=True))
    for reason in reader.reasons.values():
        str(explain(reason, Route.UPLOAD))


_PROMPT = b"""\
{"MessageType":"Prompt","MessageContent":"overwrite?","PromptDetails":{"PromptType":"Overwrite","ResponseOptions":[\
{"ResponseType":"","UserFriendlyResponseType":"Yes","ResponseString":"y"}]}}"""


def _transcripts(kind: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes()[:8000] for path in sorted(_DATA.glob(f"*.{kind}")))


def _redaction(data: bytes) -> None:
    redact(text(data))
    redact_answer(data.decode("latin-1"))


TARGETS = (
    Target(
        "replies",
        _replies,
        (
            _reply(200, _LISTING),
            _reply(200, _BLOCKS),
            _reply(206, b"hello"),
            _reply(201, b""),
            _reply(403, _ERROR),
            _reply(200, _KEY),
            _reply(200, _RETENTION),
            _reply(202, _BATCH, b"Content-Type: multipart/mixed; boundary=batchresponse_1\n"),
        ),
        (
            *(
                b"<Blob>",
                b"</Blob>",
                b"<Name>",
                b"</Name>",
                b"<Properties>",
                b"<Etag>",
                b"<NextMarker>",
                b"</NextMarker>",
            ),
            *(
                b' Encoded="true"',
                b'encoding="utf-16"',
                b'encoding="shift_jis"',
                b'encoding="x-none"',
                b"<!DOCTYPE a [",
            ),
            *(
                b'<!ENTITY b "&c;&c;&c;">',
                b'<!ENTITY c SYSTEM "file:///etc/passwd">',
                b"&#1;",
                b"&#xfffe;",
                b"Fri, 31 Feb",
            ),
        ),
    ),
    Target(
        "sas",
        ignoring(_sas),
        (
            _SAS.encode(),
            b"?sv=2022-11-02&ss=bf&srt=co&sp=rl&se=2026-11-20T00:30Z&st=2020-01-01&spr=https&sig=abc%2B%2Fd%3D",
            b"sp=rl&skoid=1&sktid=2&skt=2026-11-20T00:00:00Z&ske=2026-11-21&sks=b&skv=2023-11-03&sr=d&sdd=2&si=p&sig=a%3D",
        ),
        (
            b"&se=",
            b"&st=",
            b"&sp=",
            b"&sr=b",
            b"&sr=d",
            b"&si=",
            b"&srt=",
            b"&sig=",
            b"%3D",
            b"%2F",
            b";",
            b"+",
            b"T",
            b"Z",
        ),
    ),
    Target(
        "azcopy-messages",
        ignoring(_messages),
        (
            *_transcripts("jsonl"),
            _PROMPT,
        ),
        (
            b'\\"',
            b"JobStatus",
            b"RESPONSE 403",
            b"RESPONSE 999",
            b"<Code>",
            b"ERROR CODE: ",
            b"null",
            b"FailedTransfers",
        ),
    ),
    Target(
        "azcopy-log",
        ignoring(_azcopy_log),
        _transcripts("log"),
        (
            b"UPLOADFAILED: ",
            b" : ",
            b"\n   Dst: ",
            b"X-Ms-Request-Id: [",
            b"<Code>",
            b"</Code>",
            b"RESPONSE ",
            b" When ",
        ),
    ),
    Target(
        "redaction",
        ignoring(_redaction),
        (
            f"PUT https://acct.blob.core.windows.net/box/a?{_SAS} HTTP/1.1".encode(),
            b"AccountKey=c2VudGluZWxzZW50aW5lbHNlbnRpbmVs==;EndpointSuffix=core.windows.net",
            b"Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl; SharedKey a:c2ln=",
            b'{"account_key": "c2VudGluZWxzZW50aW5lbA==", "sig\\u003dabc": "sig%3Dabc", "a": "sig&#61;abc"}',
        ),
        (b"sig=", b"Signature:", b"key", b"Bearer ", b"SharedKey ", b"eyJ", b"==", b"%3D", b"&#x3d;", b"account"),
    ),
)
