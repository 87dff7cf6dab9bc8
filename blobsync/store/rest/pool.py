"""Connections to one host that are kept open, and the proxy and CA bundle that the environment names for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError

from blobsync.base.errors import StorageUnreachableError

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse

# How many connections stay open; as many threads may work at once without reconnecting.
POOL_SIZE = 64

# A connection that answered so few seconds ago is used without asking the socket whether it still stands: servers
# close those that idle for long, and a request that meets a closed one is sent again.
_WARM_SECONDS = 1.0


class Timeouts(NamedTuple):
    """Seconds to connect, and between two pieces of a body."""

    connect: float = 10.0
    read: float = 60.0


class _WarmConnection(HTTPConnection):
    """Spares a system call for each request, at which all other threads may take the interpreter's lock."""

    _answered = 0.0

    @property
    def is_connected(self) -> bool:
        warm = time.monotonic() - self._answered < _WARM_SECONDS
        return (warm and self.sock is not None) or super().is_connected

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        response = super().getresponse()
        self._answered = time.monotonic()
        return response


class _WarmSecureConnection(_WarmConnection, HTTPSConnection):
    pass


def pool_for(
    scheme: str, host: str, port: int | None, proxy: str | None, environ: Mapping[str, str], timeouts: Timeouts
) -> urllib3.HTTPConnectionPool:
    """A pool for ``host``, through ``proxy`` where given; raises ``StorageUnreachableError`` for unusable ones."""
    # SSL_CERT_FILE first: azcopy honours that one only, and both of us should trust the same.
    bundle = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or None
    timeout = urllib3.Timeout(connect=timeouts.connect, read=timeouts.read)
    try:
        manager: urllib3.PoolManager
        if proxy:
            credentials = urlsplit(proxy)
            login = None
            if credentials.username is not None:
                login = f"{credentials.username}:{credentials.password or ''}"
            manager = urllib3.ProxyManager(
                proxy,
                maxsize=POOL_SIZE,
                timeout=timeout,
                ca_certs=bundle,
                proxy_headers=urllib3.make_headers(proxy_basic_auth=login),
            )
        else:
            manager = urllib3.PoolManager(maxsize=POOL_SIZE, timeout=timeout, ca_certs=bundle)
        pool = manager.connection_from_host(host, port, scheme)
    except (HTTPError, LocationParseError, ValueError) as error:
        raise StorageUnreachableError(
            f"cannot use the endpoint or proxy for {host}", hint="check blob_endpoint, HTTPS_PROXY and HTTP_PROXY"
        ) from error
    pool.ConnectionCls = _WarmSecureConnection if scheme == "https" else _WarmConnection
    return pool


def proxy_for(scheme: str, netloc: str, environ: Mapping[str, str]) -> str | None:
    """The proxy URL that the environment names for this host: ``NO_PROXY`` lists hosts, domains or ``*``."""
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in environ.items()
        if value and name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    }
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None:
        return None
    if _bypassed(netloc.rpartition("@")[2].lower(), proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypassed(netloc: str, no_proxy: str) -> bool:
    host = netloc.rpartition(":")[0] if netloc.rpartition(":")[2].isdigit() else netloc
    for entry in (part.strip().lower().lstrip(".") for part in no_proxy.split(",")):
        if entry and (entry in ("*", netloc, host) or host.endswith(f".{entry}")):
            return True
    return False
