"""The stores of the containers that a command uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blobsync.base.errors import PlanFileError
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.config.model import Cluster, StorageAccount
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobStore

Connect = Callable[[StorageAccount], BlobStore]
# Checks a credential for the needed rights before anything starts; returns warnings. Raises CredentialError.
CheckRights = Callable[[StorageAccount, str], tuple[str, ...]]


def _no_check(account: StorageAccount, needs: str) -> tuple[str, ...]:
    return ()


class Connections:
    """Creates stores on first use and keeps them; creating one uses no network."""

    def __init__(self, clusters: Sequence[Cluster], connect: Connect, check_rights: CheckRights = _no_check) -> None:
        self._connect = connect
        self._check_rights = check_rights
        self._stores: dict[BlobContainer, BlobStore] = {}
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
        return self._stores[container]

    def check(self, location: BlobLocation, needs: str) -> tuple[str, ...]:
        """Check early whether the credential has the needed rights; returns warnings.

        ``needs`` are letters of SAS rights. Raises ``CredentialError``.
        """
        return self._check_rights(self.account(location.container), needs)

    def open(self, location: BlobLocation) -> OpenBlob:
        """A blob or folder with its store."""
        return OpenBlob(self.store(location.container), location.name)

    def hurry(self) -> None:
        """Let requests of all present stores fail soon; later calls get new stores."""
        while self._stores:
            self._stores.popitem()[1].hurry()

    def close(self) -> None:
        """Close every store; the next use of one creates it anew."""
        while self._stores:
            self._stores.popitem()[1].close()
