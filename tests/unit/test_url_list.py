"""Files of the web: one version, wherever it leads to; and no address inside the network for a list."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    PlanError,
    PreconditionFailedError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
)
from blobsync.base.locations import UrlList
from blobsync.config.model import StorageAccount
from blobsync.config.sources import ListedFile, WebFiles
from blobsync.store.protocol import Checksum
from blobsync.store.url_list import UrlListStore, open_urls
from tests.fakes.scripted_http import Step, scripted
from tests.servers.tls_azurite import make_certificate

BODY = bytes(range(256)) * 40


class Site:
    """A web server: ``answers`` are called with the handler; anything else is a file of ``files``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/a.bin": BODY}
        self.headers: dict[str, str] = {"ETag": '"v1"', "Content-Type": "text/x-odd"}
        self.answers: dict[tuple[str, str], Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *words: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        self.asked.append((to.command, to.path, dict(to.headers)))
        special = self.answers.get((to.command, to.path)) or self.answers.get(("*", to.path))
        if special is not None:
            special(to)
            return
        body = self.files.get(to.path)
        if body is None:
            reply(to, 404)
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", to.headers.get("Range", ""))
        if match is None:
            reply(to, 200, body, **self.headers)
            return
        start, end = int(match[1]), min(int(match[2] or len(body)), len(body) - 1)
        reply(to, 206, body[start : end + 1], **self.headers, Content_Range=f"bytes {start}-{end}/{len(body)}")


def reply(to: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    to.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        to.send_header(name.replace("_", "-"), value)
    to.end_headers()
    if to.command != "HEAD":
        to.wfile.write(body)


@pytest.fixture
def site() -> Iterator[Site]:
    with closing(Site()) as found:
        yield found


def store_of(site: Site, *, may_reach: bool = True, **files: ListedFile) -> UrlListStore:
    listed = {
        "a.bin": ListedFile(f"{site.url}/a.bin"),
        **{name.replace("__", "/"): each for name, each in files.items()},
    }
    return UrlListStore(UrlList("", "list.tsv", ""), listed, {}, may_reach=lambda origin: may_reach)


def body_of(store: UrlListStore, name: str = "a.bin", **words: Any) -> bytes:
    with store.open(name, **words) as reader:
        return b"".join(iter(lambda: reader.read(1000), b""))


def test_a_file_is_found_and_read(site: Site) -> None:
    with closing(store_of(site)) as store:
        found = store.head("a.bin")
        assert found is not None and (found.size, found.etag) == (len(BODY), "v1")
        assert body_of(store) == BODY and body_of(store, start=10, length=20) == BODY[10:30]
        assert body_of(store, etag="v1") == BODY
        assert store.properties("a.bin").content_type == "text/x-odd"
        assert [each.name for each in store.list_blobs()] == ["a.bin"] and store.head("b") is None
        with pytest.raises(PreconditionFailedError):
            body_of(store, etag="v2")
        with pytest.raises(PlanError):
            store.put("a", b"", md5=b"")


def test_one_level_of_a_list(site: Site) -> None:
    there = ListedFile(f"{site.url}/a.bin")
    with closing(store_of(site, sub__b=there, sub__deep__c=there)) as store:
        assert [each if isinstance(each, str) else each.name for each in store.list_folder()] == ["sub/", "a.bin"]
        assert [each if isinstance(each, str) else each.name for each in store.list_folder("sub/")] == [
            "sub/deep/",
            "sub/b",
        ]
        assert [each.name for each in store.list_blobs("sub/")] == ["sub/b", "sub/deep/c"]


def test_what_the_list_says_counts(site: Site) -> None:
    md5, sha256 = hashlib.md5(BODY).digest(), hashlib.sha256(BODY).digest()
    url = f"{site.url}/a.bin"
    listed: dict[str, Any] = {
        "size": ListedFile(url, len(BODY) - 1),
        "md5": ListedFile(url, len(BODY), ("md5", md5)),
        "sha": ListedFile(url, None, ("sha256", sha256)),
    }
    with closing(store_of(site, **listed)) as store:
        one, other = store.head("md5"), store.head("sha")
        assert one is not None and one.md5 == md5 and one.checksum is None
        assert other is not None and other.md5 is None and other.checksum == Checksum("sha256", sha256)
        with pytest.raises(StorageError, match="the list says"):
            store.head("size")
        with pytest.raises(StorageError, match="the list says"):
            list(store.list_blobs())


def test_without_an_etag_the_time_and_the_size_are_the_version(site: Site) -> None:
    site.headers = {"Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}
    with closing(store_of(site)) as store:
        found = store.head("a.bin")
        assert found is not None and found.etag == f"{len(BODY)}-{found.last_modified:.0f}" and found.last_modified


def test_a_redirect_is_followed_to_the_url_that_the_service_gets(site: Site) -> None:
    site.files["/final"] = BODY
    site.answers["*", "/a.bin"] = lambda to: reply(to, 302, Location=f"/final?token={'t' * 40}")
    site.answers["*", f"/final?token={'t' * 40}"] = lambda to: reply(to, 200, BODY, ETag='"f"')
    with closing(store_of(site)) as store:
        assert body_of(store) == BODY
        url = store.source_url("a.bin", "", 5)
        assert url.reveal() == f"{site.url}/final?token={'t' * 40}" and "tttt" not in str(url)
        assert store.url_length("a.bin") == url.length


@pytest.mark.parametrize(
    "to", ["http://elsewhere.example/x", "ftp://x", "file:///etc/passwd", "https://user@h/x", "https://[::1", ""]
)
def test_a_redirect_to_what_is_no_https_url_is_refused(site: Site, to: str) -> None:
    site.answers["*", "/a.bin"] = lambda handler: reply(handler, 302, Location=to)
    with closing(store_of(site)) as store, pytest.raises(StorageError, match=r"no https|without end"):
        store.head("a.bin")


def test_a_list_reaches_nothing_inside_the_network(site: Site) -> None:
    with closing(store_of(site, may_reach=False)) as store:
        with pytest.raises(AccessDeniedError, match="inside your network"):
            store.head("a.bin")
        with pytest.raises(AccessDeniedError, match="inside your network"):
            body_of(store)
    assert not site.asked, "nothing was sent"


def opened(site: Site, **environ: str) -> UrlListStore:
    """The URL as the user types it."""
    (name, file) = "a.bin", ListedFile(f"{site.url}/a.bin")
    web = WebFiles({name: file}, by_hand=True)
    return open_urls(StorageAccount("--source", "", site.url, site.url, web=web), {"HOME": "/nonexistent", **environ})


def test_a_redirect_into_the_network_is_seen_on_the_connection(site: Site, tmp_path: Path) -> None:
    with closing(Site()) as inner:
        site.answers["*", "/a.bin"] = lambda to: reply(to, 302, Location=f"{inner.url}/a.bin")
        # The word of the user who types a URL counts for that server alone.
        with closing(opened(site)) as store, pytest.raises(AccessDeniedError, match="inside your network") as caught:
            store.head("a.bin")
        assert f"BLOBSYNC_TRUSTED_BUCKETS={inner.url}" in (caught.value.hint or "")
        assert site.asked and not inner.asked
        with closing(opened(site, BLOBSYNC_TRUSTED_BUCKETS=f"{inner.url}/data")) as store, pytest.raises(StorageError):
            store.head("a.bin")
        assert not inner.asked, "a bucket of a server is not the server"
        with closing(opened(site, BLOBSYNC_TRUSTED_BUCKETS=f"{inner.url.upper().replace('HTTP', 'http')}/")) as store:
            assert body_of(store) == BODY


def test_a_redirect_leads_from_https_to_no_plain_http(site: Site, tmp_path: Path) -> None:
    away = Step(302, headers={"Location": f"{site.url}/a.bin"})
    certificate = make_certificate(tmp_path)
    with scripted([away], certificate) as first:
        listed = {"a.bin": ListedFile(first.url)}
        store = UrlListStore(
            UrlList("", "l.tsv", ""), listed, {"SSL_CERT_FILE": str(certificate[0])}, may_reach=lambda server: True
        )
        with closing(store), pytest.raises(StorageError, match="no https URL"):
            store.head("a.bin")
    assert len(first.seen) == 1 and not site.asked


def test_a_proxy_gets_no_name_that_leads_inside() -> None:
    listed = {"a.bin": ListedFile("https://inside.example/a.bin")}
    environ = {"https_proxy": "http://127.0.0.1:1"}
    store = UrlListStore(UrlList("", "l.tsv", ""), listed, environ, addresses=lambda host: ["10.0.0.1"])
    with closing(store), pytest.raises(AccessDeniedError, match="inside your network"):
        store.head("a.bin")


def break_off(site: Site, then: Callable[[], object] = lambda: None) -> None:
    """Have the next body end too early."""

    def cut(to: BaseHTTPRequestHandler) -> None:
        del site.answers["GET", "/a.bin"]
        then()
        to.send_response(200)
        to.send_header("Content-Length", str(len(BODY)))
        to.send_header("ETag", '"v1"')
        to.end_headers()
        to.wfile.write(BODY[:1000])
        to.close_connection = True

    site.answers["GET", "/a.bin"] = cut


def test_a_body_that_breaks_off_goes_on(site: Site) -> None:
    break_off(site)
    with closing(store_of(site)) as store:
        assert body_of(store, etag="v1") == BODY
    assert site.asked[-1][2]["Range"].startswith("bytes=1000-")


def test_another_version_in_the_middle_is_no_continuation(site: Site) -> None:
    break_off(site, lambda: site.headers.update(ETag='"v2"'))
    with closing(store_of(site)) as store, pytest.raises(PreconditionFailedError):
        body_of(store, etag="v1")


def test_a_stopped_store_asks_no_more(site: Site) -> None:
    with closing(store_of(site)) as store:
        break_off(site, store.fail_soon)
        with pytest.raises(StorageUnreachableError):
            body_of(store, etag="v1")
    assert len(site.asked) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda to: reply(to, 404), BlobNotFoundError),
        (lambda to: reply(to, 401), AccessDeniedError),
        (lambda to: reply(to, 503), ThrottledError),
        (lambda to: reply(to, 418), StorageError),
        (lambda to: reply(to, 200, BODY, Content_Encoding="gzip"), StorageError),
        (lambda to: reply(to, 206, BODY), StorageError),
        (lambda to: reply(to, 206, BODY, Content_Range="bytes 5-9/10"), StorageError),
        (lambda to: reply(to, 206, BODY, Content_Range=f"bytes 0-9/{'9' * 5000}"), StorageError),
        (lambda to: reply(to, 200, Content_Length=str(1 << 63)), StorageError),
    ],
)
def test_answers_that_are_no_file(
    site: Site, answer: Callable[[BaseHTTPRequestHandler], None], kind: type[BlobsyncError]
) -> None:
    site.answers["*", "/a.bin"] = answer
    with closing(store_of(site)) as store, pytest.raises(kind):
        body_of(store)


def test_a_server_that_refuses_head_is_asked_for_a_byte(site: Site) -> None:
    for status in (403, 405, 501):
        site.answers["HEAD", "/a.bin"] = lambda to, status=status: reply(to, status)  # type: ignore[misc]
        with closing(store_of(site)) as store:
            found = store.head("a.bin")
            assert found is not None and found.size == len(BODY)


def test_a_server_that_is_gone(site: Site) -> None:
    gone = {"a.bin": ListedFile("http://127.0.0.1:1/a.bin?sig=secretsecretsecretsecretsecretsecret")}
    store = UrlListStore(UrlList("", "l.tsv", ""), gone, {}, may_reach=lambda origin: True)
    with closing(store), pytest.raises(StorageUnreachableError) as raised:
        store.head("a.bin")
    assert "secret" not in str(raised.value)
