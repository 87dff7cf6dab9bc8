"""From a storage account file to a store, and to the SAS tokens that are handed to others.

Which credential signs our own requests: the SAS of the file, else its account key, else an identity; ``auth``
forces one. A SAS for azcopy, another account, a node or a person is made for that purpose, from the key or
an identity if there is one: for one container or blob, with the requested rights and a short lifetime. No
credential is sent to a host that it was not meant for (``trusted_hosts``). Nothing here
uses the network before the first request, except :func:`mint_sas` and :func:`sas_url` with an identity, which request
a user delegation key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

from blobsync.base.connection_events import ConnectionEvent
from blobsync.base.credentials import SasToken, Secret
from blobsync.base.environment import environment
from blobsync.base.errors import CredentialError
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.base.trusted_hosts import (
    Service,
    host_of,
    how_to_trust,
    is_plain_loopback,
    is_safe_from_listeners,
    listener_of,
    may_get_login,
    may_listen,
    stranger_text,
    why_not,
)
from blobsync.config.model import EMULATOR_ACCOUNT, StorageAccount
from blobsync.config.user_config import load_user_config, user_config_file
from blobsync.store import sas
from blobsync.store.protocol import BlobStore
from blobsync.store.rest.auth import BearerSigner, SasSigner, SharedKeySigner, Signer
from blobsync.store.rest.http import BlobHttp, RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Timeouts
from blobsync.store.sas_rights import LONGEST_DELEGATION_SECONDS


def connect(
    account: StorageAccount,
    *,
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
    emit: Callable[[ConnectionEvent], None] | None = None,
) -> RestBlobStore:
    """The container of ``account``, with the credential to use it. Touches no network.

    ``retry`` and ``timeouts`` None are those for transfers; ``emit`` hears of outages. Raises ``CredentialError`` for a
    credential that cannot work: missing, malformed, expired.
    """
    environ = environment(environ)
    demand_usable(account, environ)
    signer = signer_for(account, environ=environ, use_cli_auth=use_cli_auth)
    http = BlobHttp(
        account.container,
        signer,
        environ=environ,
        retry=retry,
        timeouts=timeouts,
        emit=emit,
        outside=_is_from_outside(account, account.credential),
        trusted=lambda: load_user_config(environ).trusted_hosts,
    )
    return RestBlobStore(account.container, http)


def impatient(
    account: StorageAccount, *, environ: Mapping[str, str] | None = None, use_cli_auth: bool = False
) -> RestBlobStore:
    """The same, for a question whose answer is not worth waiting for: one try, two seconds."""
    retry, timeouts = RetryPolicy(tries=1, patience=2.0), Timeouts(connect=2.0, read=2.0)
    return connect(account, environ=environ, use_cli_auth=use_cli_auth, retry=retry, timeouts=timeouts)


def signer_for(
    account: StorageAccount, *, environ: Mapping[str, str] | None = None, use_cli_auth: bool = False
) -> Signer:
    """The signer of requests to ``account``; raises ``CredentialError``."""
    environ = environment(environ)
    check_host(account, account.credential, environ)
    own = _signer_of_own(account)
    if own is not None:
        return own
    from blobsync.store.azure_identity import token_provider

    return BearerSigner(token_provider(environ, use_cli_auth=use_cli_auth))


def demand_usable(account: StorageAccount, environ: Mapping[str, str]) -> None:
    """Raise the ``CredentialError`` with which every request to ``account`` would be refused here, before it is sent:
    for a credential that is missing, malformed or expired, and for a host that may not have it."""
    check_host(account, account.credential, environ)
    _signer_of_own(account)
    check_sas(account, "")


def _signer_of_own(account: StorageAccount) -> Signer | None:
    """The signer with the account's own SAS or key; None: an identity is needed."""
    if account.credential == "sas":
        return SasSigner(_own_sas(account))
    if account.credential == "key":
        return SharedKeySigner(account.account_name, _own_key(account))
    if not account.blob_endpoint.startswith("https:"):
        # Even on this machine: any of its users may listen there.
        raise CredentialError(
            f"{account.file}: neither account_key nor sas_token, and an identity needs an https blob_endpoint",
            hint="put sas_token or account_key in the file",
        )
    return None


def check_host(account: StorageAccount, credential: str, environ: Mapping[str, str]) -> None:
    """Refuse to let ``credential`` (sas, key, identity) go to a host that it is not for: ``CredentialError``."""
    endpoint = account.blob_endpoint
    host = host_of(endpoint) or "that host"
    if not is_safe_from_listeners(endpoint) and account.account_name != EMULATOR_ACCOUNT:
        raise CredentialError(
            f"{account.file}: blob_endpoint is plain http, which would expose the credential on the network to {host}",
            hint="use https://; plain http is allowed for this machine (127.0.0.1) only",
        )
    if not _is_from_outside(account, credential):
        return
    if not may_get_login(endpoint, Service.STORAGE, lambda: load_user_config(environ).trusted_hosts, guarded=True):
        what = "your login" if credential == "identity" else "a secret from outside the project"
        why = why_not(endpoint, Service.STORAGE)
        raise CredentialError(
            f"{account.file}: blob_endpoint names {host}, {why}: {what} is not sent there",
            hint=how_to_trust(endpoint, str(user_config_file(environ))),
        )


def check_listener(account: StorageAccount, environ: Mapping[str, str]) -> None:
    """Raise ``CredentialError`` where what another program is to send to ``account`` would reach one of this machine
    that may not have it: that program looks at no connection, so this is asked right before it gets a SAS."""
    endpoint = account.blob_endpoint
    if not is_plain_loopback(endpoint):
        return
    found = listener_of(endpoint)
    outside = _is_from_outside(account, account.granting_credential)
    if not may_listen(endpoint, found, lambda: load_user_config(environ).trusted_hosts, outside=outside):
        raise CredentialError(
            f"{account.file}: {stranger_text(endpoint, found)}: no SAS is sent there",
            hint=how_to_trust(endpoint, str(user_config_file(environ))),
        )


def _is_from_outside(account: StorageAccount, credential: str) -> bool:
    return credential == "identity" or credential in account.from_outside


def check_copy(source: StorageAccount, destination: StorageAccount, environ: Mapping[str, str]) -> None:
    """Refuse to hand a SAS for ``source`` to another service that may not have it: ``CredentialError``.

    In a copy the destination's service reads the source with a SAS.
    """
    if not _is_from_outside(source, source.granting_credential):
        return
    if not may_get_login(destination.blob_endpoint, Service.STORAGE, lambda: load_user_config(environ).trusted_hosts):
        host = host_of(destination.blob_endpoint) or "that host"
        trust = how_to_trust(destination.blob_endpoint, str(user_config_file(environ)))
        why = why_not(destination.blob_endpoint, Service.STORAGE)
        raise CredentialError(
            f"{destination.file}: blob_endpoint names {host}, {why}: it gets no "
            f"SAS for {source.container} made with a credential from outside the project",
            hint=f"--engine relay sends it none; or, {trust}",
        )


def check_sas(account: StorageAccount, needs: str, *, seconds: int = 0, now: datetime | None = None) -> tuple[str, ...]:
    """Check the file's own SAS, where that is what will be used, before anything starts.

    ``needs`` are letters of rights, ``seconds`` is how long the work may take. Returns warnings, and raises
    ``SasExpiredError``, ``SasPermissionError`` or ``CredentialError``.
    """
    if account.credential != "sas":
        return ()
    return sas.check_token(_own_sas(account), account.container, needs, now=now or _now(), seconds=seconds)


def mint_sas(
    account: StorageAccount,
    rights: str,
    seconds: int,
    *,
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
) -> SasToken:
    """A SAS of the one container, with ``rights`` (letters such as ``rl``), good for ``seconds``.

    Signed with the account key, even if the file also has a SAS, or with a user delegation key of the identity
    (seven days at most). If the file has only a SAS, or ``auth: sas``, that SAS is checked
    for the rights and returned unchanged.
    """
    environ = environment(environ)
    if account.granting_credential == "sas":
        check_host(account, "sas", environ)
        check_sas(account, rights, seconds=seconds)
        return _own_sas(account)
    return _mint(account, account.container, rights, seconds, environ=environ, use_cli_auth=use_cli_auth)


def sas_url(
    account: StorageAccount,
    target: BlobLocation,
    rights: str,
    seconds: int,
    *,
    scope: str = "blob",
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
) -> str:
    """A URL to give away, good for ``seconds``; ``scope`` is what it opens: the ``blob``, the ``folder`` (a directory
    of an account with a hierarchical namespace), or the ``container`` around it.

    It contains a signature: anyone who has it has its rights. Raises ``CredentialError`` where the file has only
    a SAS, unless that grants no more than the container and ``rights``: a narrower one cannot be made from it.
    """
    environ = environment(environ)
    if account.granting_credential == "sas":
        check_host(account, "sas", environ)
        return f"{target}?{_own_sas_to_give_away(account, rights, scope).reveal()}"
    opened = target.container if scope == "container" else target
    minted = _mint(account, opened, rights, seconds, scope=scope, environ=environ, use_cli_auth=use_cli_auth)
    return f"{target}?{minted.reveal()}"


def _own_sas_to_give_away(account: StorageAccount, rights: str, scope: str) -> SasToken:
    own = _own_sas(account)
    check_sas(account, rights)
    if own.field("srt"):
        raise CredentialError(
            f"{account.file} has only an account SAS: a link made with it would open every container of the account",
            hint="use account_key or an identity, or a SAS of the container",
        )
    if scope != "container":
        raise CredentialError(
            f"{account.file} has only a SAS of the container: a narrower one cannot be made from it",
            hint="use account_key or an identity; --container hands out that SAS, which opens the whole container",
        )
    if set(own.permissions) != set(rights):
        raise CredentialError(
            f"{account.file} has a SAS only, with the rights {own.permissions}: one with fewer cannot be made from it",
            hint="use account_key or an identity, or ask for exactly its rights with --permission",
        )
    return own


def recovery_sentence(store: BlobStore) -> str:
    """Whether blobs that are deleted from ``store`` can be had back, and how; asks the service."""
    if not isinstance(store, RestBlobStore):
        return f"whether blobs deleted from {store.container} can be restored is not known"
    found = store.recovery()
    if found.versioning:
        return (
            f"{store.container} keeps versions: restore a deleted blob by copying its last version back"
            " (az storage blob list --include v, then az storage blob copy start --source-uri URL?versionid=...)"
        )
    if found.soft_delete_days:
        return (
            f"{store.container} keeps deleted blobs for {found.soft_delete_days} days: restore them with"
            " 'az storage blob undelete', or in the portal"
        )
    if found.soft_delete_days == 0:
        return f"{store.container} has neither versioning nor soft delete: deleted blobs cannot be restored"
    return f"whether blobs deleted from {store.container} can be restored cannot be checked with this credential"


def _mint(
    account: StorageAccount,
    target: BlobContainer | BlobLocation,
    rights: str,
    seconds: int,
    *,
    scope: str = "container",
    environ: Mapping[str, str],
    use_cli_auth: bool = False,
) -> SasToken:
    now = _now()
    folder = scope == "folder"
    if account.granting_credential == "key":
        check_host(account, "key", environ)
        key = _own_key(account)
        SharedKeySigner(account.account_name, key)  # raises if the key is not base64
        return sas.sign_sas(target, rights, key=key, expires=now + timedelta(seconds=seconds), folder=folder)
    ends = now + timedelta(seconds=min(seconds, LONGEST_DELEGATION_SECONDS))
    with connect(account, environ=environ, use_cli_auth=use_cli_auth) as store:
        delegation = store.user_delegation_key(now, ends)
    return sas.sign_sas(target, rights, key=delegation, expires=ends, folder=folder)


def _own_sas(account: StorageAccount) -> SasToken:
    if account.sas_token is None:
        raise CredentialError(f"{account.file} has auth: sas but no sas_token", hint="add it, or remove auth")
    return account.sas_token


def _own_key(account: StorageAccount) -> Secret:
    if account.account_key is None:
        raise CredentialError(f"{account.file} has auth: key but no account_key", hint="add it, or remove auth")
    return account.account_key


def _now() -> datetime:
    return datetime.now(timezone.utc)
