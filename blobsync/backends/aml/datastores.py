"""The datastores of a job, with which Azure ML accesses the containers of the cluster file. Pure.

A datastore stores a credential in the workspace, and jobs refer to it by name; so no job's body contains one. Instead
of an account key it gets a SAS with the rights that the job needs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from blobsync.base.errors import ConfigError
from blobsync.base.records import dataclass
from blobsync.base.redaction import HIDDEN
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobspec.node_secrets import known_accounts
from blobsync.store.sas import JOB_FOLDER, JOB_SECONDS
from blobsync.store.sas_token import sign_share_sas

_NAME_CHARS = 255
_OURS = "made by blobsync"


@dataclass(frozen=True, slots=True)
class Datastore:
    """One datastore. ``account`` None: a container of another cluster file, with a SAS made for the job.

    ``given`` is a name from the configuration: an existing datastore of that name is used unchanged, unless it is
    ours (:meth:`is_ours`). ``rights`` are the letters for a ``share``.
    """

    name: str
    container: str
    account: StorageAccount | None
    share: str | None = None
    given: bool = False
    rights: str = ""

    @property
    def credential(self) -> str:
        """``sas`` or ``identity``."""
        return "identity" if self.account and self.account.granting_credential == "identity" else "sas"

    def uri(self, path: str) -> str:
        """The URI of a folder or file in it, for a job's body."""
        return f"azureml://datastores/{self.name}/paths/{path}"

    def is_ours(self, properties: Mapping[str, Any]) -> bool:
        """Whether blobsync made this datastore for this place, so that its SAS may be renewed."""
        known = self._body(HIDDEN)["properties"]
        same = ("description", "accountName", "containerName", "fileShareName")
        return self.credential == "sas" and all(properties.get(name) == known.get(name) for name in same)

    def body(self, sas: Mapping[str, str], now: datetime) -> dict[str, Any]:
        """The request that registers it; **contains the credential**. ``sas`` are those of the job, by container."""
        return self._body(self._secret(sas, now))

    def shown_body(self) -> dict[str, Any]:
        """The same without the credential."""
        return self._body(HIDDEN)

    def _secret(self, sas: Mapping[str, str], now: datetime) -> str:
        account = self.account
        if self.credential == "identity":
            return ""
        if account is None or (account.granting_credential == "key" and not self.share):
            return sas[self.container]
        kind = account.granting_credential
        if kind == "key" and account.account_key:
            https = account.blob_endpoint.startswith("https:")
            place, ends = f"{account.account_name}/{self.share}", now + timedelta(seconds=JOB_SECONDS)
            return sign_share_sas(place, self.rights, key=account.account_key, expires=ends, https=https).reveal()
        if account.sas_token is None or kind == "key":
            raise ConfigError(f"has auth: {kind}, but no such credential", file=account.file)
        return account.sas_token.reveal()

    def _body(self, secret: str) -> dict[str, Any]:
        protocol, endpoint, account, container = _parts(self.container, self.account)
        place: dict[str, Any] = (
            {"datastoreType": "AzureFile", "fileShareName": self.share}
            if self.share
            else {"datastoreType": "AzureBlob", "containerName": container}
        )
        by_kind: dict[str, dict[str, Any]] = {
            "sas": {"credentialsType": "Sas", "secrets": {"secretsType": "Sas", "sasToken": secret}},
            "identity": {"credentialsType": "None"},
        }
        credentials = by_kind[self.credential]
        known = {"accountName": account, "endpoint": endpoint, "protocol": protocol, "credentials": credentials}
        return {"properties": {**place, **known, "description": _OURS}}


def for_folder(cluster: Cluster, name: str, container: str, run_id: str, mode: str) -> Datastore:
    """The datastore of a job's folder. Raises ``ConfigError`` if the container is not in the cluster file."""
    entry = cluster.folder(name)
    if entry and str(entry.account.container) == container:
        share = entry.file_share if entry.storage_type == "file" else None
        given, cache = entry.datastore_name, entry.blob_cache_timeout
        rights = JOB_FOLDER["mount" if given else mode]
        return make(entry.account, run_id, share=share, given=given, cache=cache, rights=rights if share else "")
    account = known_accounts([cluster]).get(container)
    if account is None:
        raise ConfigError(
            f"the job needs {container}, which this cluster file does not contain",
            file=cluster.file,
            hint="use the cluster file that the job was submitted with",
        )
    return make(account, run_id)


def for_code(cluster: Cluster, container: str, run_id: str) -> Datastore:
    """The datastore of the code archive, which may be in another cluster's container."""
    code = cluster.code
    if code and str(code.account.container) == container:
        return make(code.account, run_id, given=code.datastore_name)
    account = known_accounts([cluster]).get(container)
    if account:
        return make(account, run_id)
    return Datastore(_legal(*_account_and_container(container), _hash(container, run_id)), container, None)


def make(
    account: StorageAccount,
    run_id: str,
    *,
    share: str | None = None,
    given: str | None = None,
    cache: int | None = None,
    rights: str = "",
) -> Datastore:
    """Make a datastore, named as in ACT, but without a hash of the key.

    The hash is of the job's id if the job has its own SAS, else of the datastore's purpose and the file's SAS."""
    container = str(account.container)
    if given:
        return Datastore(given, container, account, share, given=True, rights=rights)
    if account.granting_credential == "key":
        parts = (container, share or "", rights, run_id)
    else:
        own = account.sas_token.reveal() if account.sas_token and account.granting_credential == "sas" else ""
        parts = (account.account_name, share or account.container_name, account.granting_credential, own)
    timeout = (f"t{cache}",) if cache is not None else ()
    name = _legal(account.account_name, share or account.container_name, _hash(*parts), *timeout)
    return Datastore(name, container, account, share, rights=rights)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _legal(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "_".join(parts))[-_NAME_CHARS:].lstrip("_")


def _account_and_container(container: str) -> tuple[str, str]:
    parts = urlsplit(container)
    first, _, last = parts.path.strip("/").rpartition("/")
    return first or (parts.hostname or "").split(".")[0], last


def _parts(container: str, account: StorageAccount | None) -> tuple[str, str, str, str]:
    """Split a URL into protocol, endpoint without the account (``core.windows.net``), account, container."""
    parts = urlsplit(container)
    name, box = _account_and_container(container)
    if account:
        name = account.account_name
    host = parts.netloc
    for prefix in (f"{name}.blob.", f"{name}.file."):
        if host.startswith(prefix):
            host = host[len(prefix) :]
    return parts.scheme, host, name, box
