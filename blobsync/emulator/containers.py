"""Containers in the emulator; for real accounts, making them is left to whoever owns the account."""

from __future__ import annotations

from contextlib import closing

from blobsync.base.azure_urls import ContainerUrl, Secret
from blobsync.store.rest.auth import SharedKeySigner
from blobsync.store.rest.http import BlobHttp


def make_container(container: ContainerUrl, key: Secret) -> ContainerUrl:
    """Make ``container`` where it is missing; returns it. Raises ``StorageError``."""
    from blobsync.store.sdk import SdkContainer

    # No proxy settings: the emulator is on this machine.
    with closing(BlobHttp(container, SharedKeySigner(container.account, key), environ={})) as http:
        SdkContainer(container, http).create()
    return container
