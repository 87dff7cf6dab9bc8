"""Identities: tokens from azure-identity, which is imported only if needed.

The import takes a third of a second, and trying the sources in turn may take more; a command whose storage
account has a key or a SAS does not use this module.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import LoginRequiredError
from blobsync.base.redaction import Secret
from blobsync.base.trusted_hosts import is_loopback

if TYPE_CHECKING:
    from datetime import datetime

    from azure.core.credentials import TokenCredential

# One scope for the Blob service of every cloud:
# https://learn.microsoft.com/azure/storage/blobs/authorize-access-azure-active-directory
STORAGE_SCOPE = "https://storage.azure.com/.default"

# The chain's members: https://learn.microsoft.com/python/api/azure-identity/azure.identity.defaultazurecredential
_IDENTITIES = {
    "AzureCliCredential": "az login",
    "AzureDeveloperCliCredential": "azd auth login",
    "AzurePowerShellCredential": "Connect-AzAccount",
    "DeviceCodeCredential": "a code on another device",
    "EnvironmentCredential": "the environment (AZURE_CLIENT_ID and others)",
    "ManagedIdentityCredential": "the managed identity of this machine",
    "WorkloadIdentityCredential": "workload identity",
}

TokenProvider = Callable[[], tuple[Secret, float]]


def token_provider(environ: Mapping[str, str], *, use_cli_auth: bool = False, chosen_by: str = "") -> TokenProvider:
    """A function that returns a token for the Blob service, and its expiry in seconds since 1970.

    ``chosen_by`` is the account file that allows an identity alone.

    The order is azure-identity's own: environment, workload identity, managed identity, Azure CLI,
    PowerShell, Azure Developer CLI. ``use_cli_auth`` asks the Azure CLI only. ``BLOBSYNC_LOGIN=device-code``
    signs in with a code on another device. The provider raises ``LoginRequiredError``.
    """

    def provide() -> tuple[Secret, float]:
        from azure.core.exceptions import ClientAuthenticationError

        try:
            token = credential(environ, use_cli_auth=use_cli_auth).get_token(STORAGE_SCOPE)
        except ClientAuthenticationError as error:
            raise LoginRequiredError(
                "no Azure identity is signed in for the storage account",
                hint=f"run az login; without 'auth: identity' in {chosen_by}, 'blobsync login' takes a SAS or a key"
                if chosen_by
                else "run az login, or store a SAS or an account key: blobsync login",
            ) from error
        return Secret(token.token), float(token.expires_on)

    return provide


def credential(environ: Mapping[str, str], *, use_cli_auth: bool = False) -> TokenCredential:
    """The same identity as an azure-core credential."""
    if use_cli_auth:
        return _credential("cli")
    return _credential("device-code" if environ.get("BLOBSYNC_LOGIN") == "device-code" else "default")


def identity_used(environ: Mapping[str, str], *, use_cli_auth: bool = False) -> str:
    """The identity that provided a token, in words."""
    used = credential(environ, use_cli_auth=use_cli_auth)
    # The chain keeps the member that answered (azure-identity 1.27, _credentials/chained.py).
    name = type(getattr(used, "_successful_credential", None) or used).__name__
    return _IDENTITIES.get(name, name)


@lru_cache(maxsize=3)
def _credential(source: str) -> TokenCredential:
    # One per process: it caches tokens, and each call of the Azure CLI takes a second.
    from azure.identity import AzureCliCredential, DefaultAzureCredential, DeviceCodeCredential

    # Without a handler Python prints its warnings about each source that has no identity.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    if source == "cli":
        return AzureCliCredential()
    if source == "device-code":
        return DeviceCodeCredential(prompt_callback=_show_device_code)
    return DefaultAzureCredential(transport=_transport())


def _transport() -> Any:
    """A transport without a proxy for this machine, as in the REST client: some machines serve their managed identity
    themselves."""
    import requests
    from azure.core.pipeline.transport import RequestsTransport

    class Session(requests.Session):
        def merge_environment_settings(self, url: Any, *given: Any) -> Any:
            settings = super().merge_environment_settings(url, *given)
            if is_loopback(str(url)):
                settings["proxies"] = {}
            return settings

    return RequestsTransport(session=Session())


def _show_device_code(address: str, code: str, expires: datetime) -> None:
    # On a terminal this line may contain the rest of a progress bar.
    erase = "\x1b[K" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{erase}To sign in, open {address} and enter the code {code} (until {expires:%H:%M} UTC).\n")
