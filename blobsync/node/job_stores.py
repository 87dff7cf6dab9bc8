"""The stores of a job's code, folders and logs on a node: opened with a SAS, with an identity, or as a mount."""

from __future__ import annotations

import copy
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    CredentialError,
    PreconditionFailedError,
    StorageError,
)
from blobsync.base.locations import BlobContainer, MountedLocation, parse_store_location
from blobsync.base.redaction import SasToken, Secret, register_secret
from blobsync.base.trusted_hosts import Service, may_get_login
from blobsync.jobspec.spec import Secrets
from blobsync.store.azure_identity import TokenProvider, token_provider
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties, BlockKind, BlockList
from blobsync.store.read_only import ReadOnlyStore
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, Signer
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.resumed_reader import ResumedReader

# Variables of a pod with a workload identity:
# https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html
_WORKLOAD_IDENTITY = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE")
# A SAS is not used in its last minute: a request may take that long.
_LAST_SECONDS = 60


class JobStores:
    """The stores of one job's containers, each with the SAS that came with the job."""

    def __init__(
        self,
        sas: Mapping[str, str],
        environ: Mapping[str, str],
        source: Path | None = None,
        *,
        identity: Callable[[Mapping[str, str]], TokenProvider] = token_provider,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``sas`` are tokens by container URL; ``environ`` has the proxies and CA bundles.

        ``source`` is their file of secrets, which a cluster may renew while the job runs. After a SAS has expired the
        node's own ``identity`` is used, if it has one; ``now`` is in seconds since 1970.
        """
        self._identity, self._now = identity, now
        self._by_identity: set[str] = set()
        self._sas = sas
        self._source, self._read_at = source, _changed_at(source)
        # The libcurl of the node's Python may be of any age.
        self._environ = {"BLOBSYNC_TRANSPORT": "urllib3", **environ}
        self._connections: dict[str, BlobHttp] = {}
        _register(sas)

    def anew(self) -> JobStores:
        """The same with connections of its own."""
        places = copy.copy(self)
        places._by_identity, places._connections = set(), {}
        return places

    def blobs(self, container: str, name: str) -> OpenBlob:
        """A blob, or a folder of blobs; a mount is itself that blob or folder.

        Raises ``CredentialError`` for a container that the job has no access to.
        """
        place = parse_store_location(container)
        if isinstance(place, MountedLocation):
            is_file = place.path.is_file()
            return (
                OpenBlob(MountedStore(place.parent), place.path.name) if is_file else OpenBlob(MountedStore(place), "")
            )
        return OpenBlob(self.container(container), name)

    def container(self, container: str) -> RestBlobStore:
        """The container. Raises ``CredentialError`` as :meth:`blobs` does."""
        return RestBlobStore(BlobContainer.parse(container), self._connection(container))

    def sas(self, container: str) -> SasToken:
        """The container's SAS token. Raises ``CredentialError``."""
        self._reload_sas()
        text = self._sas.get(container)
        if text is None:
            raise CredentialError(f"the job has no access to {container}", hint="submit it again: blobsync resubmit ID")
        try:
            return SasToken.parse(text)
        except ValueError as error:
            raise CredentialError(f"the SAS for {container} cannot be used: {error}") from error

    def _reload_sas(self) -> None:
        """Read the file of secrets again."""
        changed = _changed_at(self._source)
        if self._source is None or changed in (None, self._read_at):
            return
        with suppress(OSError, ValueError):
            self._sas = Secrets.from_json(self._source.read_text(encoding="utf-8")).sas
            _register(self._sas)
            self._connections.clear()
            self._read_at = changed

    def _connection(self, container: str) -> BlobHttp:
        self._reload_sas()
        by_identity = self._needs_identity(container)
        if container not in self._connections or by_identity != (container in self._by_identity):
            signer: Signer = self._identity_of_node() if by_identity else SasSigner(self.sas(container))
            url = BlobContainer.parse(container)
            self._connections[container] = BlobHttp(url, signer, environ=self._environ, outside=by_identity)
            (self._by_identity.add if by_identity else self._by_identity.discard)(container)
        return self._connections[container]

    def _needs_identity(self, container: str) -> bool:
        """Whether the SAS has expired, and the node has an identity that may be sent to the container's host."""
        if not all(self._environ.get(name) for name in _WORKLOAD_IDENTITY):
            return False
        with suppress(CredentialError):
            ends = self.sas(container).expires_at
            if ends is None or ends.timestamp() - _LAST_SECONDS > self._now():
                return False
        # The host is from the specification, whose author is not known here.
        return may_get_login(container, Service.STORAGE, tuple)

    def _identity_of_node(self) -> Signer:
        provide = self._identity(self._environ)

        def token() -> tuple[Secret, float]:
            try:
                return provide()
            except ImportError as error:
                raise CredentialError(
                    "the job's SAS has ended, and its Python has no azure-identity to use the pod's identity",
                    hint="install azure-identity in the image, or run any blobsync command: it renews the SAS",
                ) from error

        return BearerSigner(token)


def _changed_at(file: Path | None) -> int | None:
    """The file's time of modification in nanoseconds; None without a file."""
    with suppress(OSError):
        return file.stat().st_mtime_ns if file else None
    return None


def _register(sas: Mapping[str, str]) -> None:
    for text in sas.values():
        # First, so that no error shows it.
        register_secret(text.strip().lstrip("?"))
        with suppress(ValueError):
            SasToken.parse(text)


@final
class MountedStore(ReadOnlyStore):
    """A ``BlobStore`` of a folder; a file's ETag is made of its ``stat``."""

    def __init__(self, location: MountedLocation) -> None:
        self._location, self._root = location, location.path

    @property
    def container(self) -> MountedLocation:
        return self._location

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Every file whose path below the folder starts with ``prefix``. Raises ``StorageError``."""
        for folder, names, files in os.walk(self._root / prefix.rpartition("/")[0], onerror=_raise_unreadable):
            names.sort()
            for file in sorted(files):
                path = Path(folder, file)
                name = path.relative_to(self._root).as_posix()
                if name.startswith(prefix) and (found := self.head(name)) is not None:
                    yield found

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """One level below ``prefix``."""
        shown = set()
        for blob in self.list_blobs(prefix):
            below, slash, _ = blob.name[len(prefix) :].partition("/")
            if not slash:
                yield blob
            elif below not in shown:
                shown.add(below)
                yield f"{prefix}{below}/"

    def head(self, name: str) -> BlobInfo | None:
        try:
            found = os.stat(self._root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(name, error) from error
        return _info(name, found) if stat.S_ISREG(found.st_mode) else None

    def properties(self, name: str) -> BlobProperties:
        """Empty: a file has none."""
        if self.head(name) is None:
            raise BlobNotFoundError(f"there is no {name} in {self._root}", path=name)
        return BlobProperties()

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Empty: a file has no blocks."""
        found = self.head(name)
        return BlockList((), (), found.etag) if found else None

    def open(self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> ResumedReader:
        """A range of one version of a file. What breaks off here has changed, and is not continued."""
        return ResumedReader(self._get, lambda breaks: False, StorageError, name, start, length, etag)

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], _OpenFile]:
        try:
            fd = os.open(self._root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise BlobNotFoundError(f"there is no {name} in {self._root}", path=name) from error
        except OSError as error:
            raise _unreadable(name, error) from error
        info = _info(name, os.fstat(fd))
        if etag not in (None, info.etag):
            os.close(fd)
            raise PreconditionFailedError(f"{name} changed since it was checked", path=name)
        return info, BlobProperties, _OpenFile(info, fd, start)

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def fail_soon(self) -> None:
        """Does nothing: there are no waits to cut short."""

    def refusal(self, name: str) -> BlobsyncError:
        return AccessDeniedError(f"{name}: the mount at {self._root} is read-only", path=name)


class _OpenFile:
    """The rest of a file that must not change."""

    def __init__(self, info: BlobInfo, fd: int, at: int) -> None:
        self._info, self._fd, self._at = info, fd, at

    def close(self) -> None:
        """Safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes. Raises ``PreconditionFailedError`` for a file that has changed, or has no more."""
        name = self._info.name
        try:
            data = os.pread(self._fd, limit, self._at)
        except OSError as error:
            raise _unreadable(name, error) from error
        if not data or _info(name, os.fstat(self._fd)).etag != self._info.etag:
            raise PreconditionFailedError(f"{name} changed while it was being read", path=name)
        self._at += len(data)
        return data


def _info(name: str, found: os.stat_result) -> BlobInfo:
    version = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    return BlobInfo(name, found.st_size, version, None, found.st_mtime)


def _raise_unreadable(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise _unreadable(str(error.filename), error) from error


def _unreadable(name: str, error: OSError) -> StorageError:
    return StorageError(f"{name}: cannot be read: {error.strerror}", path=name)
