"""The transport of requests: no answer is read without end, and plain http to this machine checks each connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import requests
import urllib3
from azure.core.pipeline.transport import RequestsTransport
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from blobsync.base.errors import CredentialError, LostContactError
from blobsync.base.socket_owners import listener_behind
from blobsync.base.trusted_hosts import Trusted, host_of, how_to_trust, listener_text, may_listen

# Bytes. A page of a list has a few megabytes, a piece of a log eight.
MOST_ANSWER = 64 << 20


class _Adapter(HTTPAdapter):
    def build_response(self, req: Any, resp: Any) -> Any:
        pieces, host = resp.stream, host_of(req.url)

        def stream(*words: Any, **options: Any) -> Iterator[bytes]:
            left = MOST_ANSWER
            for piece in pieces(*words, **options):
                left -= len(piece)
                if left < 0:
                    resp.close()
                    raise LostContactError(f"{host} sent an answer of more than {MOST_ANSWER >> 20} MiB")
                yield piece

        resp.stream = stream
        return super().build_response(req, resp)


def limited_transport() -> RequestsTransport:
    """A transport that reads answers of a reasonable size."""
    return _transport(_Adapter())


def guarded_transport(url: str, trusted: Trusted) -> RequestsTransport:
    """The same, to the program at ``url``; requests raise ``CredentialError`` if it may not have a token."""

    class Guarded(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            found = listener_behind(self.sock)
            if not may_listen(url, found, trusted, outside=True):
                self.close()
                raise CredentialError(
                    f"{listener_text(url, found)}: your login was not sent there",
                    hint=how_to_trust(url, "your own configuration file"),
                )

    class GuardedPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Guarded

    class Adapter(_Adapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": GuardedPool, "https": urllib3.HTTPSConnectionPool}

    transport = _transport(Adapter())
    # A proxy of the environment would receive the token.
    transport.session.trust_env = False
    return transport


def _transport(adapter: HTTPAdapter) -> RequestsTransport:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return RequestsTransport(session=session)
