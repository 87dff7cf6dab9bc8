"""Which buckets and addresses outside Azure a project may name: what the user's credentials or network can reach.

A project may come from a stranger, who knows the name of a private bucket or of a host behind the user's firewall, and
has a container to copy it into. So a file of a project names a bucket that is read with credentials only if the user's
own configuration lists it (``trusted_buckets``, ``trusted_profiles``), and no private address that it does not list.
What the user typed on the command line is the user's own word.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from blobsync.base.errors import CredentialError, StorageUnreachableError
from blobsync.base.trusted_hosts import host_of, is_loopback, is_private, is_safe_from_listeners
from blobsync.config.model import StorageAccount

_USUAL_PORTS = {"https": ":443", "http": ":80"}

# The addresses of a host's name.
Addresses = Callable[[str], Iterable[str]]


def addresses_of(host: str) -> Iterable[str]:
    """Ask the system for them. Raises ``StorageUnreachableError``."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
    except (OSError, UnicodeError) as error:
        raise StorageUnreachableError(f"cannot resolve the host {host}", hint="check this machine's DNS") from error


def server_of(url: str) -> str:
    """The scheme, host and port of a URL, in one form."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(_USUAL_PORTS.get(parts.scheme, ''))}"


def trusted_servers(buckets: Iterable[str]) -> frozenset[str]:
    """The servers (:func:`server_of`) among the user's ``trusted_buckets``: those that name no bucket of one."""
    return frozenset(server_of(each) for each in buckets if host_of(each) and not urlsplit(each).path.strip("/"))


def reaches_inside(url: str, addresses: Addresses = addresses_of) -> bool:
    """Whether the host of ``url`` is this machine or one that only its network reaches."""
    host = host_of(url) or ""
    return is_private(host) or any(map(is_private, addresses(host)))


def check_bucket(account: StorageAccount, environ: Mapping[str, str], addresses: Addresses = addresses_of) -> None:
    """Raise ``CredentialError`` if the bucket of ``account`` may not be read as its file says."""
    access = account.bucket
    assert access is not None
    bucket, endpoint = str(account.container), account.blob_endpoint
    if not is_safe_from_listeners(endpoint) and not access.anonymous:
        raise CredentialError(
            f"{account.file}: the endpoint of {bucket} is plain http, which would show to the network what your"
            " credentials sign",
            hint="use https://; plain http is allowed for this machine (127.0.0.1), and with anonymous: true",
        )
    if access.by_hand:
        return
    # Nodes, which have no YAML, get buckets that were checked where the command ran.
    from blobsync.config.user_config import TRUSTED_BUCKETS_VARIABLE, load_user_config, user_config_file

    own = load_user_config(environ)
    listed = {each.rstrip("/") for each in own.trusted_buckets}
    is_listed = bool({bucket, endpoint} & listed)
    how = f"list it under trusted_buckets in {user_config_file(environ)}, or export {TRUSTED_BUCKETS_VARIABLE}={bucket}"
    if not access.anonymous and not is_listed:
        raise CredentialError(
            f"{account.file}: {bucket} is not one of your trusted buckets, so your credentials are not used for it",
            hint=f"if you trust this project with what is in it, {how}; a public bucket needs anonymous: true",
        )
    if access.profile and access.profile not in own.trusted_profiles:
        raise CredentialError(
            f"{account.file}: '{access.profile}' is not one of your trusted profiles, so it is not used",
            hint=f"list it under trusted_profiles in {user_config_file(environ)}",
        )
    if not is_listed and reaches_inside(endpoint, addresses):
        raise CredentialError(
            f"{account.file}: {host_of(endpoint)} is an address inside your network, which a project may not name",
            hint=f"if you trust this project with what is there, {how}",
        )


def why_not_fetched(source: StorageAccount, destination: StorageAccount, addresses: Addresses = addresses_of) -> str:
    """Why the service of ``destination`` cannot fetch from ``source``; empty if it may be tried."""
    if source.bucket is not None and source.bucket.requester_pays:
        return f"the requester pays for {source.container}, and the service says so in no request"
    if is_loopback(destination.blob_endpoint):
        # An emulator reaches what this machine reaches.
        return ""
    if source.bucket is None:
        # Each file has a host of its own: the service says itself what it cannot reach.
        return ""
    if reaches_inside(source.blob_endpoint, addresses):
        return f"{host_of(source.blob_endpoint)} is inside your network, where the service cannot fetch from"
    if not source.blob_endpoint.startswith("https:"):
        return f"{source.blob_endpoint} is plain http, which would show the content to the network"
    return ""
