"""CPU time of one small request with each transport: ``python -m benchmarks.transports [REQUESTS]``.

PUT and GET of 16 KiB from 16 threads on the fast server, with and without TLS: CPU time of this process.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from benchmarks.emulator import ACCOUNT, account_sas
from benchmarks.fast_server import fast_server
from blobsync.store.rest.http import transport_to
from blobsync.store.rest.transport import HttpRequest, Timeouts, Transport

_THREADS = 16
_BODY = os.urandom(16 * 1024)
_HEADERS = {"x-ms-version": "2023-11-03"}


def main(requests: int) -> None:
    for tls in (False, True):
        with fast_server(tls=tls) as server:
            server.container("box1").create_container()
            for name in ("urllib3", "curl"):
                endpoint = f"{server.url}/{ACCOUNT}"
                transport = transport_to(endpoint, {**server.environ, "BLOBSYNC_TRANSPORT": name}, Timeouts())
                place = f"{urlsplit(endpoint).path}/box1/{name}"
                put, get = (_milliseconds(each, requests) for each in _exchanges(transport, place))
                print(f"{name:8} {'TLS' if tls else 'plain':6} PUT {put:.3f} ms  GET {get:.3f} ms", flush=True)
                transport.close()


def _exchanges(transport: Transport, place: str) -> tuple[Callable[[int], None], Callable[[int], None]]:
    sas = account_sas()

    def put(number: int) -> None:
        headers = {**_HEADERS, "x-ms-blob-type": "BlockBlob"}
        response = transport.exchange(HttpRequest("PUT", f"{place}{number}?{sas}", headers, _BODY))
        assert response.status == 201 and not response.read(1)
        response.close()

    def get(number: int) -> None:
        response = transport.exchange(HttpRequest("GET", f"{place}{number}?{sas}", _HEADERS))
        size = 0
        while piece := response.read(1 << 20):
            size += len(piece)
        assert size == len(_BODY)
        response.close()

    return put, get


def _milliseconds(exchange: Callable[[int], None], requests: int) -> float:
    def share(first: int) -> None:
        for number in range(first, requests, _THREADS):
            exchange(number)

    before = _cpu()
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(share, first) for first in range(_THREADS)]:
            done.result()
    return (_cpu() - before) / requests * 1000


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
