"""Asks the service for the :class:`AccountFeatures` of a container.

The SAS of a container can read few settings of the account. https://learn.microsoft.com/rest/api/storageservices has a
page for each operation that is named here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from blobsync.base.background_calls import side_by_side
from blobsync.store.account_features import MOST_DAYS, AccountFeatures
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.transport import Response
from blobsync.store.rest.xml import BadAnswerError, kept_days, newest_has_version

_T = TypeVar("_T")

_NOTHING: dict[str, str] = {}
# Where old blobs have no version yet, or old versions stayed, the newest of so many decides.
_LOOKED_AT = "200"


def ask(http: BlobHttp) -> AccountFeatures:
    """Ask the service: four small requests, side by side. Raises ``StorageUnreachableError``; a refusal is unknown."""
    account, settings, container, listed = side_by_side(
        lambda target: http.send("GET", target[0], target[1], _NOTHING), _targets(http), 4
    )
    directories = _flag(account, "x-ms-is-hns-enabled")
    return AccountFeatures(
        # https://learn.microsoft.com/azure/storage/blobs/versioning-overview: not with a hierarchical namespace.
        False if directories else _read(listed, newest_has_version),
        _read(settings, lambda body: kept_days(body, MOST_DAYS)),
        directories,
        _is_immutable(container),
    )


def _targets(http: BlobHttp) -> list[tuple[str, Mapping[str, str]]]:
    service = http.root.rpartition("/")[0] + "/"
    versions = {"restype": "container", "comp": "list", "maxresults": _LOOKED_AT, "include": "versions"}
    return [
        # Get Account Information: also with the SAS of a container, below the container.
        (http.root, {"restype": "account", "comp": "properties"}),
        # Get Blob Service Properties.
        (service, {"restype": "service", "comp": "properties"}),
        # Get Container Properties.
        (http.root, {"restype": "container"}),
        (http.root, versions),
    ]


def _flag(reply: Response, name: str) -> bool | None:
    return {"true": True, "false": False}.get(reply.headers.get(name, "").lower()) if reply.status == 200 else None


def _is_immutable(container: Response) -> bool | None:
    kinds = ("x-ms-has-immutability-policy", "x-ms-has-legal-hold", "x-ms-immutable-storage-with-versioning-enabled")
    found = [_flag(container, name) for name in kinds]
    return True if True in found else None if found[0] is None else False


def _read(reply: Response, read: Callable[[bytes], _T | None]) -> _T | None:
    try:
        return read(reply.body) if reply.status == 200 else None
    except BadAnswerError:
        return None
