"""Opens the container of a storage account file, with the credential that may go to its host.

Which credential signs our own requests: the SAS of the file, else its account key, else an identity; ``auth`` forces
one. No credential is sent to a host that it was not meant for (``trusted_hosts``). Nothing here uses the network before
the first request. SAS for others are made by ``store.sas``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from blobsync.base.errors import CredentialError, PlanError
from blobsync.base.events import ConnectionEvent
from blobsync.base.redaction import SasToken, Secret
from blobsync.base.trusted_hosts import (
    Service,
    host_of,
    how_to_trust,
    is_plain_loopback,
    is_safe_from_listeners,
    listener_of,
    listener_text,
    may_get_login,
    may_listen,
    why_not,
)
from blobsync.base.user_folders import environment
from blobsync.config.model import EMULATOR_ACCOUNT, StorageAccount
from blobsync.config.user_config import load_user_config, user_config_file
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner, Signer
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Timeouts
from blobsync.store.sas_token import check_token

# The letters of SAS rights with which nothing is changed.
READ_ONLY = "rl"


def connect(
    account: StorageAccount,
    *,
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
    emit: Callable[[ConnectionEvent], None] | None = None,
) -> RestBlobStore:
    """Open the container of ``account`` with its credential. Uses no network.

    ``retry`` and ``timeouts`` default to those for transfers; ``emit`` gets the events of outages. Raises
    ``CredentialError`` for a credential that cannot work: missing, malformed, expired.
    """
    environ = environment(environ)
    signer = signer_for(account, environ=environ, use_cli_auth=use_cli_auth)
    check_sas(account, "")
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
    """As :func:`connect`, for requests that are not worth waiting for: one attempt of two seconds."""
    retry, timeouts = RetryPolicy(tries=1, patience=2.0), Timeouts(connect=2.0, read=2.0)
    return connect(account, environ=environ, use_cli_auth=use_cli_auth, retry=retry, timeouts=timeouts)


def signer_for(
    account: StorageAccount, *, environ: Mapping[str, str] | None = None, use_cli_auth: bool = False
) -> Signer:
    """The signer of requests to ``account``; raises ``CredentialError``."""
    environ = environment(environ)
    demand_container(account)
    check_host(account, account.credential, environ)
    own = _signer_of_own(account)
    if own is not None:
        return own
    from blobsync.store.azure_identity import token_provider

    chosen_by = account.file if account.auth == "identity" else ""
    return BearerSigner(token_provider(environ, use_cli_auth=use_cli_auth, chosen_by=chosen_by))


def demand_usable(account: StorageAccount, environ: Mapping[str, str]) -> None:
    """Raise ``CredentialError`` if the credential of ``account`` is missing, malformed or expired, or may not be sent
    to its host."""
    check_host(account, account.credential, environ)
    _signer_of_own(account)
    check_sas(account, "")


def demand_container(account: StorageAccount) -> None:
    """Raise ``PlanError`` for a source, where this would be more than it can do."""
    if account.is_source:
        raise PlanError(
            f"{account.file}: {account.container} is a source: blobsync reads it, and nothing is written there,"
            " deleted there, or handed out from there",
            hint="copy it with -f into a cluster of yours, or download it",
        )


def _signer_of_own(account: StorageAccount) -> Signer | None:
    """The signer with the account's own SAS or key; None: an identity is needed."""
    if account.credential == "sas":
        return SasSigner(own_sas(account))
    if account.credential == "key":
        return SharedKeySigner(account.account_name, own_key(account))
    if not account.blob_endpoint.startswith("https:"):
        # Also on this machine: any of its users may listen there.
        raise CredentialError(
            f"{account.file}: neither account_key nor sas_token, and an identity needs an https blob_endpoint",
            hint="put sas_token or account_key in the file",
        )
    return None


def check_host(account: StorageAccount, credential: str, environ: Mapping[str, str]) -> None:
    """Raise ``CredentialError`` if ``credential`` (sas, key, identity) may not be sent to the account's host."""
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
    """Raise ``CredentialError`` if a program that may not have a SAS of ``account`` listens at its address on this
    machine. Call right before a SAS is given to a program that does not check its connections itself."""
    endpoint = account.blob_endpoint
    if not is_plain_loopback(endpoint):
        return
    found = listener_of(endpoint)
    outside = _is_from_outside(account, account.granting_credential)
    if not may_listen(endpoint, found, lambda: load_user_config(environ).trusted_hosts, outside=outside):
        raise CredentialError(
            f"{account.file}: {listener_text(endpoint, found)}: no SAS is sent there",
            hint=how_to_trust(endpoint, str(user_config_file(environ))),
        )


def _is_from_outside(account: StorageAccount, credential: str) -> bool:
    return credential == "identity" or credential in account.from_outside


def check_copy(source: StorageAccount, destination: StorageAccount, environ: Mapping[str, str]) -> None:
    """Raise ``CredentialError`` if the service of ``destination`` may not have a SAS for ``source``.

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
    """Check the file's own SAS, if that will be used, before anything starts.

    ``needs`` are letters of rights, ``seconds`` is how long the work may take. Returns warnings, and raises
    ``SasExpiredError``, ``SasPermissionError`` or ``CredentialError``.
    """
    if set(needs) - set(READ_ONLY):
        demand_container(account)
    if account.credential != "sas":
        return ()
    return check_token(
        own_sas(account), account.container, needs, now=now or datetime.now(timezone.utc), seconds=seconds
    )


def own_sas(account: StorageAccount) -> SasToken:
    """The SAS of an account file. Raises ``CredentialError``."""
    if account.sas_token is None:
        raise CredentialError(f"{account.file} has auth: sas but no sas_token", hint="add it, or remove auth")
    return account.sas_token


def own_key(account: StorageAccount) -> Secret:
    """The account key of an account file. Raises ``CredentialError``."""
    if account.account_key is None:
        raise CredentialError(f"{account.file} has auth: key but no account_key", hint="add it, or remove auth")
    return account.account_key
