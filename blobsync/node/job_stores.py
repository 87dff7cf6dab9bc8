"""The stores of a job's code, folders and logs on a node: opened with a SAS, with an identity, or as a mount."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from blobsync.base.errors import CredentialError
from blobsync.base.locations import BlobContainer, MountedLocation, parse_store_location
from blobsync.base.redaction import SasToken, Secret, register_secret
from blobsync.base.trusted_hosts import Service, may_get_login
from blobsync.jobspec.spec import Secrets
from blobsync.node.mounted_container import MountedStore
from blobsync.store.azure_identity import TokenProvider, token_provider
from blobsync.store.open_locations import OpenBlob
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, Signer
from blobsync.store.rest.store import RestBlobStore

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
