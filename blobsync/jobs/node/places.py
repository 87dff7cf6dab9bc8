"""Where the job's code, folders and logs are: containers that are reached with a SAS, and what is mounted here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from blobsync.base.errors import CredentialError
from blobsync.base.locations import ContainerUrl, SasToken
from blobsync.base.redaction import register_secret
from blobsync.base.trusted_hosts import host_of
from blobsync.jobs.node.mounted import MountedStore
from blobsync.jobs.spec import Secrets
from blobsync.store.ends import RemoteEnd
from blobsync.store.rest.append import RestAppendBlobs
from blobsync.store.rest.auth import SasSigner
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.store import RestBlobStore

# What a container is called that is a folder, or a file, of this node.
MOUNTED = "mounted:"


class JobPlaces:
    """What reaches the containers of one job, each with the SAS that came with the job; one store each."""

    def __init__(self, sas: Mapping[str, str], environ: Mapping[str, str], source: Path | None = None) -> None:
        """``sas`` are tokens by container URL; ``environ`` is asked for proxies and CA bundles.

        ``source`` is the file of secrets that they are from: a cluster may put others there while the job runs.
        """
        self._sas = sas
        self._source, self._read_at = source, _changed_at(source)
        # What the node's own Python has of libcurl may be of any age.
        self._environ = {"BLOBSYNC_TRANSPORT": "urllib3", **environ}
        self._connections: dict[str, BlobHttp] = {}
        _register(sas)

    def blobs(self, container: str, name: str) -> RemoteEnd:
        """A blob, or a folder of blobs. Of what is mounted, the mount is that blob or folder itself.

        Raises ``CredentialError`` for a container that the job has no access to.
        """
        if container.startswith(MOUNTED):
            path = Path(container.removeprefix(MOUNTED))
            return (
                RemoteEnd(MountedStore(path.parent), path.name) if path.is_file() else RemoteEnd(MountedStore(path), "")
            )
        return RemoteEnd(RestBlobStore(container_url(container), self._connection(container)), name)

    def appendable(self, container: str) -> RestAppendBlobs:
        """The container's blobs that grow at their end."""
        return RestAppendBlobs(container_url(container), self._connection(container))

    def sas(self, container: str) -> SasToken:
        """What opens the container. Raises ``CredentialError``."""
        self._look_again()
        text = self._sas.get(container)
        if text is None:
            raise CredentialError(f"the job has no access to {container}", hint="submit it again: blobsync resubmit ID")
        try:
            return SasToken.parse(text)
        except ValueError as error:
            raise CredentialError(f"the SAS for {container} cannot be used: {error}") from error

    def _look_again(self) -> None:
        """Take new tokens from where the others were."""
        changed = _changed_at(self._source)
        if self._source is None or changed in (None, self._read_at):
            return
        with suppress(OSError, ValueError):
            self._sas = Secrets.from_json(self._source.read_text(encoding="utf-8")).sas
            _register(self._sas)
            self._connections.clear()
            self._read_at = changed

    def _connection(self, container: str) -> BlobHttp:
        self._look_again()
        if container not in self._connections:
            signer = SasSigner(self.sas(container))
            self._connections[container] = BlobHttp(container_url(container), signer, environ=self._environ)
        return self._connections[container]


def _changed_at(file: Path | None) -> int | None:
    """When the file was written, to the nanosecond; None where there is none."""
    with suppress(OSError):
        return file.stat().st_mtime_ns if file else None
    return None


def _register(sas: Mapping[str, str]) -> None:
    for text in sas.values():
        # First of all, so that no error shows it.
        register_secret(text.strip().lstrip("?"))
        with suppress(ValueError):
            SasToken.parse(text)


def container_url(text: str) -> ContainerUrl:
    """``https://ACCOUNT.blob.core.windows.net/CONTAINER``, or path style. Raises ``CredentialError`` for anything
    else: nothing of it may be asked."""
    endpoint, _, container = text.rstrip("/").rpartition("/")
    host = host_of(endpoint)
    if host is None or not container:
        raise CredentialError(f"{text!a} is not a container URL")
    account = urlsplit(endpoint).path.strip("/") or host.partition(".")[0]
    return ContainerUrl(account, container, endpoint)
