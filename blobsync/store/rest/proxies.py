"""Which server a URL names and the way to it: proxies of the environment, ``NO_PROXY``, certificates.

``urllib.request`` reads proxies from the process's own environment only; here the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from blobsync.base.errors import StorageUnreachableError
from blobsync.base.trusted_hosts import is_loopback
from blobsync.store.rest.transport import ServerOrigin

_PROXY_SCHEMES = frozenset({"http", "https"})


def origin_of(endpoint: str, environ: Mapping[str, str]) -> ServerOrigin:
    """The server of a URL, and the way to it. Raises ``StorageUnreachableError``."""
    try:
        parts = urlsplit(endpoint)
        scheme, host, _ = parts.scheme or "https", parts.hostname, parts.port
        proxy = proxy_for(scheme, parts.netloc, environ)
        usable = bool(host) and (proxy is None or _is_proxy(proxy))
    except ValueError:
        usable = False
    if not usable:
        raise StorageUnreachableError(
            f"cannot use the endpoint or proxy for {endpoint.partition('://')[2].partition('/')[0]}",
            hint="check blob_endpoint, HTTPS_PROXY and HTTP_PROXY",
        )
    # SSL_CERT_FILE first: azcopy honours only that one, and both should trust the same certificates.
    bundle = environ.get("SSL_CERT_FILE") or environ.get("REQUESTS_CA_BUNDLE") or None
    return ServerOrigin(scheme, parts.netloc, proxy, bundle)


def _is_proxy(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in _PROXY_SCHEMES and bool(parts.hostname) and (parts.port or 1) > 0


def proxy_for(scheme: str, netloc: str, environ: Mapping[str, str]) -> str | None:
    """The proxy URL that the environment names for this host: ``NO_PROXY`` lists hosts, domains or ``*``.

    None for this machine, as in Go's programs (azcopy, kubectl): else a proxy elsewhere would get its requests, with a
    SAS or signature.
    """
    if is_loopback(f"{scheme}://{netloc.rpartition('@')[2]}"):
        return None
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
