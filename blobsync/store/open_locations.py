"""Open locations: a blob with its store, or a local path; and the stores of the containers that a command uses."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from blobsync.base.errors import BlobsyncError, PlanFileError
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.locations import BlobContainer, BlobLocation, LocalLocation, Location, MountedLocation, below
from blobsync.base.records import NamedTuple
from blobsync.config.model import Cluster, StorageAccount
from blobsync.store.protocol import BlobInfo, BlobStore

_READ_BYTES = 1 << 20


class OpenBlob(NamedTuple):
    """A blob or a virtual folder, with its store."""

    store: BlobStore
    name: str

    def __str__(self) -> str:
        return str(self.location)

    @property
    def location(self) -> BlobLocation | MountedLocation:
        """The location without the store."""
        return self.store.container.child(self.name)

    def in_container(self) -> BlobLocation:
        """The location as a blob's. Raises ``ValueError`` for a mounted folder, which has no URL and no account."""
        location = self.location
        if not isinstance(location, BlobLocation):
            raise ValueError(f"{location} is in no container")
        return location

    def at(self, relative: str) -> str:
        """The name of :meth:`child`."""
        return below(self.name, relative)

    def child(self, relative: str) -> OpenBlob:
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        return OpenBlob(self.store, self.at(relative))

    @property
    def parent(self) -> OpenBlob:
        """The folder that contains this one."""
        return OpenBlob(self.store, self.name.rpartition("/")[0])


OpenLocation = LocalLocation | OpenBlob


def location_of(end: OpenLocation) -> Location:
    """The location of ``end`` without its store."""
    return end.location if isinstance(end, OpenBlob) else end


def blob_md5(end: OpenBlob, path: str, etag: str) -> bytes:
    """The MD5 of a blob's bytes, which are downloaded for it."""
    digest = hashlib.md5(usedforsecurity=False)
    with end.store.open(end.at(path), etag=etag) as reader:
        while chunk := reader.read(_READ_BYTES):
            digest.update(chunk)
    return digest.digest()


def with_md5(end: OpenBlob, path: str, state: FileState) -> FileState:
    """The state with the MD5 of the blob's bytes, if the service keeps none.

    Unchanged if the blob cannot be read, or is another version now.
    """
    if isinstance(state, RemoteState) and state.md5 is None:
        with suppress(BlobsyncError):
            return replace(state, md5=blob_md5(end, path, state.etag))
    return state


Connect = Callable[[StorageAccount], BlobStore]


class Connections:
    """Creates stores on first use and keeps them; creating one uses no network."""

    def __init__(self, clusters: Sequence[Cluster], connect: Connect) -> None:
        self._connect = connect
        self._stores: dict[BlobContainer, BlobStore] = {}
        self._opened: list[BlobStore] = []
        self._accounts: dict[BlobContainer, StorageAccount] = {}
        for cluster in clusters:
            code = [cluster.code.account] if cluster.code else []
            for account in [*(entry.account for entry in cluster.folders), *code]:
                self._accounts.setdefault(account.container, account)

    def account(self, container: BlobContainer) -> StorageAccount:
        """The account file of a container URL; ``PlanFileError`` if no cluster in use has it."""
        found = self._accounts.get(container)
        if found is None:
            raise PlanFileError(
                f"{container} is not covered by any folder entry of this cluster",
                hint="make the plan again, or pass -c or -f",
            )
        return found

    def store(self, container: BlobContainer) -> BlobStore:
        """The store of a container."""
        if container not in self._stores:
            self._stores[container] = self._connect(self.account(container))
            self._opened.append(self._stores[container])
        return self._stores[container]

    def requests(self) -> Counter[str]:
        """The number of requests of all stores that count them so far: write, list, read, delete."""
        return sum((Counter(getattr(store, "requests", ())) for store in self._opened), Counter[str]())

    def check(self, location: BlobLocation, needs: str) -> tuple[str, ...]:
        """Check early whether the credential has the needed rights; returns warnings.

        ``needs`` are letters of SAS rights. Raises ``CredentialError``.
        """
        from blobsync.store.connect import check_sas  # late, with what opens the stores

        return check_sas(self.account(location.container), needs)

    def why_not_fetched(self, source: BlobLocation, destination: BlobLocation) -> str:
        """Why the destination's service cannot fetch from a source outside Azure; empty if it may."""
        from blobsync.store.source_trust import why_not_fetched  # late: only for sources

        return why_not_fetched(self.account(source.container), self.account(destination.container))

    def open(self, location: BlobLocation) -> OpenBlob:
        """A blob or folder with its store."""
        return OpenBlob(self.store(location.container), location.name)

    def fail_soon(self) -> None:
        """Let requests of all present stores fail soon; later calls get new stores."""
        while self._stores:
            self._stores.popitem()[1].fail_soon()

    def close(self) -> None:
        """Close every store; the next use of one creates it anew."""
        while self._stores:
            self._stores.popitem()[1].close()


def remote_state(blob: BlobInfo) -> RemoteState:
    """The plan's record of a blob."""
    return RemoteState(blob.size, blob.etag, blob.md5)
