"""Azurite for measurements: a container per run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ResourceTypes,
    generate_account_sas,
)

from blobsync.emulator import Emulator as Azurite
from blobsync.emulator import new_key
from tests.servers.tls_azurite import tls_azurite

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools" / "blobsync"
_TICKS = os.sysconf("SC_CLK_TCK")

ACCOUNT = "benchmark"
_SECRET = new_key()
KEY = _SECRET.reveal()


def installed_azcopy() -> str | None:
    """The azcopy that ./dev installed, or the machine's."""
    installed = map(str, sorted(TOOLS.glob("azcopy*/**/azcopy*")))
    places = (os.environ.get("BLOBSYNC_AZCOPY"), *installed, shutil.which("azcopy"))
    return next((place for place in places if place and os.path.isfile(place) and os.access(place, os.X_OK)), None)


class Emulator:
    """A running server; ``endpoint`` may lead through a line with a delay.

    ``environ`` is what its clients need to know: the certificate of a server with TLS.
    """

    def __init__(self, pid: int, url: str, certificate: Path | None = None) -> None:
        self.pid = pid
        self.url = url
        self._direct = f"{self.url}/{ACCOUNT}"
        self._certificate = str(certificate) if certificate else None
        self.environ = {"SSL_CERT_FILE": str(certificate)} if certificate else {}
        self._containers = 0

    def cpu_seconds(self) -> float:
        """User and system time so far of the server and of what it runs in (``/proc``)."""
        processes: dict[int, tuple[int, int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                processes[int(stat.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
        ticks = 0
        family = {self.pid}
        for pid in sorted(processes):
            parent, used = processes[pid]
            if pid in family or parent in family:
                family.add(pid)
                ticks += used
        return ticks / _TICKS

    def new_container(self) -> str:
        """Create an empty container with a unique name."""
        self._containers += 1
        name = f"c{self._containers:05}"
        self.container(name).create_container()
        return name

    def container(self, name: str) -> ContainerClient:
        """Client of the Azure SDK, past every proxy."""
        verify = self._certificate or True
        return BlobServiceClient(self._direct, credential=KEY, connection_verify=verify).get_container_client(name)

    def count(self, name: str) -> tuple[int, int]:
        """How many blobs a container holds, and their bytes."""
        sizes = [blob.size for blob in self.container(name).list_blobs()]
        return len(sizes), sum(sizes)


@contextmanager
def emulator(*, tls: bool = False, location: Path | None = None) -> Iterator[Emulator]:
    """A fresh server, which ends with the block. ``location`` None keeps everything in memory."""
    if tls:
        Azurite(TOOLS).install()
        with tls_azurite(TOOLS, os.environ, {ACCOUNT: KEY}) as server:
            yield Emulator(server.pid, server.url, server.certificate)
        return
    with Azurite(TOOLS).session({ACCOUNT: _SECRET}, location=location) as state:
        yield Emulator(state.pid, f"http://127.0.0.1:{state.port}")


def account_sas() -> str:
    """A SAS with all rights for a day, for the peers."""
    return generate_account_sas(
        ACCOUNT,
        KEY,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True),
        datetime.now(timezone.utc) + timedelta(days=1),
    )
