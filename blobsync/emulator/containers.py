"""Containers in the emulator; for real accounts, making them is left to whoever owns the account."""

from __future__ import annotations

from blobsync.base.errors import EmulatorError
from blobsync.base.locations import ContainerUrl, Secret
from blobsync.store.rest.auth import SharedKeySigner
from blobsync.store.rest.http import BlobHttp


def make_container(container: ContainerUrl, key: Secret) -> ContainerUrl:
    """Make ``container`` where it is missing; returns it. Raises ``EmulatorError`` or ``StorageError``.

    https://learn.microsoft.com/rest/api/storageservices/create-container
    """
    # No proxy settings: the emulator is on this machine.
    http = BlobHttp(container, SharedKeySigner(container.account, key), environ={})
    reply = http.send("PUT", http.root, {"restype": "container"}, {}, b"")
    if reply.status not in (201, 409):
        raise EmulatorError(
            f"the emulator did not make the container {container.container}: HTTP status {reply.status}"
        )
    return container
