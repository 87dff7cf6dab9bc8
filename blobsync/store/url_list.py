"""Reads files of the web: one URL, or a list of them. Writes nothing.

A list may come with a project, and so from a stranger, and a server redirects wherever it likes. So only the servers
that the user typed or listed may be inside the user's network. Which address another one has is seen on the connection,
before anything is sent; before a proxy connects, the name is looked up here. A redirect leads to https, and on this
machine from http to http.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urljoin, urlsplit

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    PreconditionFailedError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
)
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import UrlList
from blobsync.base.redaction import SignedUrl, redact_word
from blobsync.base.trusted_hosts import host_of, is_loopback, is_private
from blobsync.config.model import StorageAccount
from blobsync.config.sources import ListedFile
from blobsync.store.protocol import BlobInfo, BlobProperties, Checksum
from blobsync.store.read_only import SourceStore
from blobsync.store.rest.headers import byte_range
from blobsync.store.rest.transport import (
    CERTIFICATE_HINT,
    UNTRUSTED_CERTIFICATE,
    HttpRequest,
    Response,
    Timeouts,
    Transport,
    TransportError,
    Trouble,
    origin_of,
    parse_http_date,
)
from blobsync.store.rest.urllib3_transport import Urllib3Transport
from blobsync.store.rest.xml import BadAnswerError, checked_size
from blobsync.store.source_trust import Addresses, addresses_of, reaches_inside, server_of, trusted_servers

_MOST_REDIRECTS, _HEADS = 5, 16
# A signed URL may be of GET alone, and some servers do not know HEAD.
_NO_HEAD = frozenset({400, 403, 405, 501})
_TIMEOUTS = Timeouts(connect=10.0, read=60.0)
_ETAG = pattern(r'(?:W/)?"([\x21\x23-\x7e]{0,256})"')
_RANGE = pattern(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")


def open_urls(account: StorageAccount, environ: Mapping[str, str]) -> UrlListStore:
    """The files of ``account``. Uses no network of its own."""
    web, container = account.web, account.container
    assert web is not None
    assert isinstance(container, UrlList)
    # Nodes, which have no YAML, get the places that a list may name with their orders.
    from blobsync.config.user_config import load_user_config

    typed = map(server_of, (file.url for file in web.files.values()) if web.by_hand else ())
    reaches = trusted_servers(load_user_config(environ).trusted_buckets).union(typed)
    return UrlListStore(container, web.files, environ, may_reach=lambda server: server in reaches)


class UrlListStore(SourceStore):
    """The files of a list, or the one of a URL. Thread-safe."""

    def __init__(
        self,
        container: UrlList,
        files: Mapping[str, ListedFile],
        environ: Mapping[str, str],
        *,
        may_reach: Callable[[str], bool] = lambda url: False,
        addresses: Addresses = addresses_of,
    ) -> None:
        """``may_reach`` is whether the user has allowed a server (:func:`server_of`) inside the network."""
        super().__init__(container)
        self._files, self._environ = files, environ
        self._may_reach, self._addresses = may_reach, addresses
        self._lock = threading.Lock()
        self._transports: dict[str, Transport] = {}
        # Where each file was in the end.
        self._final: dict[str, str] = {}

    def close(self) -> None:
        with self._lock:
            transports, self._transports = list(self._transports.values()), {}
        for each in transports:
            each.close()

    def listed(self, name: str) -> ListedFile | None:
        return self._files.get(name)

    def set_files(self, files: Mapping[str, ListedFile]) -> None:
        """Have these files instead."""
        self._files, self._final = files, {}

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Each file of the list as its server has it now, in the order of the names. Raises the store's errors: for one
        that cannot be reached, too."""
        return self._infos(sorted(name for name in self._files if name.startswith(prefix)))

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """One level of it."""
        folders: set[str] = set()
        here: list[str] = []
        for name in sorted(self._files):
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                folders |= {f"{prefix}{first}/"} if slash else set()
                here += [] if slash else [name]
        yield from sorted(folders)
        yield from self._infos(here)

    def _infos(self, names: Sequence[str]) -> Iterator[BlobInfo]:
        for name, info in zip(names, side_by_side(self.head, names, _HEADS), strict=True):
            if info is None:
                raise self._missing(name)
            yield info

    def described(self, name: str) -> tuple[BlobInfo, BlobProperties] | None:
        """HEAD, or a GET of the first byte where the server does not answer that; None if there is no such file."""
        if name not in self._files:
            return None
        try:
            reply = self._ask("HEAD", name, {})
            if reply.status in _NO_HEAD:
                reply.close()
                reply = self._ask("GET", name, {"Range": byte_range(0, 1)})
            try:
                return self._info(name, reply), _properties(reply)
            finally:
                reply.close()
        except BlobNotFoundError:
            return None

    def source_url(self, name: str, version: str, seconds: int) -> SignedUrl:
        """The URL, after its redirects."""
        return SignedUrl(self._final.get(name) or self._url(name))

    def url_length(self, name: str) -> int:
        """The characters of the URL."""
        return self.source_url(name, "", 0).length

    # -- requests -----------------------------------------------------------------------------------------

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], Response]:
        is_range = start or length is not None
        reply = self._ask("GET", name, {"Range": byte_range(start, length)} if is_range else {})
        try:
            info = self._info(name, reply, start)
            if etag is not None and info.etag != etag:
                raise PreconditionFailedError(f"{self._shown(name)} is another version now", status=412)
        except BaseException:
            reply.close()
            raise
        return info, partial(_properties, reply), reply

    def _ask(self, method: str, name: str, headers: Mapping[str, str]) -> Response:
        url = self._url(name)
        for _ in range(_MOST_REDIRECTS):
            parts = urlsplit(url)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            try:
                fields = {**headers, "Accept-Encoding": "identity", "Host": parts.netloc}
                reply = self._transport(url).exchange(HttpRequest(method, target, fields))
            except TransportError as error:
                raise self._unreachable(name, url, error) from error
            if reply.status not in (301, 302, 303, 307, 308):
                self._final[name] = url
                return self._accepted(name, method, reply)
            reply.close()
            was = url
            try:
                url = urljoin(was, reply.headers.get("Location") or "")
            except ValueError:
                # Half an IPv6 address.
                url = ""
            if host_of(url) is None or not (url.startswith("https:") or (is_loopback(url) and was.startswith("http:"))):
                raise StorageError(f"{self._shown(name)}: leads to what is no https URL")
        raise StorageError(f"{self._shown(name)}: leads from one URL to the next without end")

    def _accepted(self, name: str, method: str, reply: Response) -> Response:
        shown, status = self._shown(name), reply.status
        if status in (200, 206) or (method == "HEAD" and status in _NO_HEAD):
            return reply
        reply.close()
        if status in (404, 410):
            raise BlobNotFoundError(f"{shown}: there is no such file", status=status)
        if status in (401, 403):
            raise AccessDeniedError(f"{shown}: its server answers {status}", status=status)
        if status in (429, 500, 502, 503, 504):
            raise ThrottledError(f"{shown}: its server answers {status}", status=status)
        raise StorageError(f"{shown}: its server answers {status}", status=status)

    def _info(self, name: str, reply: Response, start: int = 0) -> BlobInfo:
        shown, listed = self._shown(name), self._files[name]
        given = _RANGE.fullmatch(reply.headers.get("Content-Range") or "") if reply.status == 206 else None
        if (reply.status == 206 and (given is None or int(given[1]) != start)) or (reply.status == 200 and start):
            raise StorageError(f"{shown}: its server does not send the range that it was asked for")
        try:
            size = checked_size(given[2] if given is not None else reply.headers.get("Content-Length"))
        except BadAnswerError as error:
            raise StorageError(f"{shown}: its server does not say how large it is") from error
        if (reply.headers.get("Content-Encoding") or "identity") != "identity":
            raise StorageError(f"{shown}: its server sends it compressed, so its bytes are not those of the file")
        if listed.size not in (None, size):
            raise StorageError(f"{shown}: has {size:,} bytes, and the list says {listed.size:,}")
        kept = Checksum(*listed.checksum) if listed.checksum else None
        return BlobInfo(
            name,
            size,
            self._version(reply, size),
            md5=kept.value if kept is not None and kept.name == "md5" else None,
            last_modified=_seconds(reply.headers.get("Last-Modified")),
            content_type=reply.headers.get("Content-Type"),
            checksum=kept if kept is not None and kept.name != "md5" else None,
        )

    def _version(self, reply: Response, size: int) -> str:
        """What tells one version from the next: the ETag, else what the server says of its time and size."""
        match = _ETAG.fullmatch(reply.headers.get("ETag") or "")
        if match is not None and match[1]:
            return match[1]
        return f"{size}-{_seconds(reply.headers.get('Last-Modified')):.0f}"

    def _transport(self, url: str) -> Transport:
        server = server_of(url)
        with self._lock:
            found = self._transports.get(server)
            if found is None:
                way = origin_of(server, self._environ)
                if not self._may_reach(server):
                    # A proxy looks the name up itself.
                    if way.proxy is not None and reaches_inside(server, self._addresses):
                        raise TransportError(Trouble.REFUSED, _INSIDE)
                    way = way if way.proxy is not None else way._replace(guard=_only_outside)
                found = self._transports[server] = Urllib3Transport(way, _TIMEOUTS)
        return found

    def _unreachable(self, name: str, url: str, error: TransportError) -> StorageError:
        host = host_of(url) or "its host"
        if _INSIDE in str(error):
            return AccessDeniedError(
                f"{self._shown(name)}: {host} is an address inside your network, which you neither typed nor listed",
                hint=f"if you trust it, export BLOBSYNC_TRUSTED_BUCKETS={server_of(url)}, or type that URL yourself",
            )
        if error.trouble is Trouble.CERTIFICATE:
            return StorageUnreachableError(
                f"{self._shown(name)}: {host} {UNTRUSTED_CERTIFICATE}",
                hint=CERTIFICATE_HINT,
            )
        return StorageUnreachableError(f"{self._shown(name)}: {host} cannot be reached ({error.trouble.name.lower()})")

    def _url(self, name: str) -> str:
        listed = self._files.get(name)
        if listed is None:
            raise BlobNotFoundError(f"{name} is not in {self._container}", path=name)
        return listed.url

    def _missing(self, name: str) -> BlobNotFoundError:
        return BlobNotFoundError(f"{self._shown(name)}: there is no such file", path=name)

    def _shown(self, name: str) -> str:
        return redact_word(self._url(name))


_INSIDE = "an address inside the network"


def _only_outside(connection: socket.socket) -> None:
    if is_private(str(connection.getpeername()[0])):
        raise TransportError(Trouble.REFUSED, _INSIDE)


def _properties(reply: Response) -> BlobProperties:
    def text(name: str) -> str:
        value = reply.headers.get(name) or ""
        return value if value.isascii() and value.isprintable() else ""

    return BlobProperties(content_type=text("Content-Type"), content_language=text("Content-Language"))


def _seconds(text: str | None) -> float:
    return (parse_http_date(text) if text else None) or 0.0
