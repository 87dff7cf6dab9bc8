"""A transport for plain http to this machine that checks each connection before a token is sent."""

from __future__ import annotations

from typing import Any

import requests
import urllib3
from azure.core.pipeline.transport import RequestsTransport
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

from blobsync.base.errors import CredentialError
from blobsync.base.socket_owners import listener_behind
from blobsync.base.trusted_hosts import Trusted, how_to_trust, may_listen, stranger_text


def guarded_transport(url: str, trusted: Trusted) -> RequestsTransport:
    """A transport to the program at ``url``; requests raise ``CredentialError`` if it may not have a token."""

    class Guarded(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            found = listener_behind(self.sock)
            if not may_listen(url, found, trusted, outside=True):
                self.close()
                raise CredentialError(
                    f"{stranger_text(url, found)}: your login was not sent there",
                    hint=how_to_trust(url, "your own configuration file"),
                )

    class GuardedPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Guarded

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": GuardedPool, "https": urllib3.HTTPSConnectionPool}

    session = requests.Session()
    # A proxy of the environment would receive the token.
    session.trust_env = False
    session.mount("http://", Adapter(max_retries=0))
    return RequestsTransport(session=session)
