"""The datastores of a job: how Azure ML reaches the containers of the cluster file. Pure.

A datastore keeps a credential once, in the workspace; jobs name it. So no body of a job, and no name, holds one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from blobsync.base.errors import ConfigError
from blobsync.base.redaction import HIDDEN
from blobsync.config.model import Cluster, StorageAccount

_NAME_CHARS = 255


@dataclass(frozen=True, slots=True)
class Datastore:
    """One datastore. ``account`` None: a container of another cluster file, reached with a SAS made for the job.

    ``given`` is a name from the configuration: an existing datastore of that name is used as it is.
    """

    name: str
    container: str
    account: StorageAccount | None
    share: str | None = None
    given: bool = False

    @property
    def credential(self) -> str:
        """``sas``, ``key`` or ``identity``."""
        return self.account.credential if self.account else "sas"

    def uri(self, path: str) -> str:
        """A folder or file in it, as a job's body names it."""
        return f"azureml://datastores/{self.name}/paths/{path}"

    def body(self, sas: Mapping[str, str]) -> dict[str, Any]:
        """The request that registers it; **holds the credential**."""
        return self._body(self._secret(sas))

    def shown_body(self) -> dict[str, Any]:
        """The same for people."""
        return self._body(HIDDEN)

    def _secret(self, sas: Mapping[str, str]) -> str:
        if self.account is None:
            return sas[self.container]
        held = {"sas": self.account.sas_token, "key": self.account.account_key}.get(self.credential)
        if held is None and self.credential != "identity":
            raise ConfigError(f"has auth: {self.credential}, but no such credential", file=self.account.file)
        return held.reveal() if held else ""

    def _body(self, secret: str) -> dict[str, Any]:
        protocol, endpoint, account, container = _parts(self.container, self.account)
        place: dict[str, Any] = (
            {"datastoreType": "AzureFile", "fileShareName": self.share}
            if self.share
            else {"datastoreType": "AzureBlob", "containerName": container}
        )
        by_kind: dict[str, dict[str, Any]] = {
            "sas": {"credentialsType": "Sas", "secrets": {"secretsType": "Sas", "sasToken": secret}},
            "key": {"credentialsType": "AccountKey", "secrets": {"secretsType": "AccountKey", "key": secret}},
            "identity": {"credentialsType": "None"},
        }
        credentials = by_kind[self.credential]
        known = {"accountName": account, "endpoint": endpoint, "protocol": protocol, "credentials": credentials}
        return {"properties": {**place, **known, "description": "made by blobsync"}}


def for_folder(cluster: Cluster, name: str, container: str) -> Datastore:
    """Where a folder of a job is. Raises ``ConfigError`` when the cluster file does not know the container."""
    entry = cluster.folder(name)
    if entry and str(entry.account.container) == container:
        share = entry.file_share if entry.storage_type == "file" else None
        return make(entry.account, share=share, given=entry.datastore_name, cache=entry.blob_cache_timeout)
    account = find_account(cluster, container)
    if account is None:
        raise ConfigError(
            f"the job needs {container}, which this cluster file does not contain",
            file=cluster.file,
            hint="use the cluster file that the job was submitted with",
        )
    return make(account)


def for_code(cluster: Cluster, container: str, run_id: str) -> Datastore:
    """Where the code archive is, also when it is another cluster's."""
    code = cluster.code
    if code and str(code.account.container) == container:
        return make(code.account, given=code.datastore_name)
    account = find_account(cluster, container)
    if account:
        return make(account)
    return Datastore(_legal(*_account_and_container(container), _hash(container, run_id)), container, None)


def find_account(cluster: Cluster, container: str) -> StorageAccount | None:
    """The account file of a container's URL."""
    accounts = [entry.account for entry in cluster.folders] + ([cluster.code.account] if cluster.code else [])
    return next((account for account in accounts if str(account.container) == container), None)


def make(
    account: StorageAccount, *, share: str | None = None, given: str | None = None, cache: int | None = None
) -> Datastore:
    """Named as ACT did, but the hash is not of the key alone: it covers what the datastore is for as well."""
    container = str(account.container)
    if given:
        return Datastore(given, container, account, share, given=True)
    secret = {"sas": account.sas_token, "key": account.account_key}.get(account.credential)
    digest = _hash(
        account.account_name, share or account.container_name, account.credential, secret.reveal() if secret else ""
    )
    timeout = (f"t{cache}",) if cache is not None else ()
    return Datastore(
        _legal(account.account_name, share or account.container_name, digest, *timeout), container, account, share
    )


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _legal(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(parts))[-_NAME_CHARS:].lstrip("_")


def _account_and_container(container: str) -> tuple[str, str]:
    parts = urlsplit(container)
    first, _, last = parts.path.strip("/").rpartition("/")
    return first or (parts.hostname or "").split(".")[0], last


def _parts(container: str, account: StorageAccount | None) -> tuple[str, str, str, str]:
    """Protocol, endpoint without the account (``core.windows.net``), account, container."""
    parts = urlsplit(container)
    name, box = _account_and_container(container)
    if account:
        name = account.account_name
    host = parts.netloc
    for prefix in (f"{name}.blob.", f"{name}.file."):
        if host.startswith(prefix):
            host = host[len(prefix) :]
    return parts.scheme, host, name, box
