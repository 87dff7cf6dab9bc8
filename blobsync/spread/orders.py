"""Orders that a worker on this machine gets in private, over its standard input: ends, credentials, limits.

One line of JSON with secrets, which are in no file, argument or environment. A shard names files only; their locations
are in the orders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import Any

from blobsync.base.errors import CredentialError, FailureCode
from blobsync.base.locations import BlobLocation, LocalLocation
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken, Secret
from blobsync.base.trusted_hosts import TRUSTED_HOSTS_VARIABLE
from blobsync.local.state_dir import StateDir
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner, Signer

VERSION = 2

# The environment variables that transports read; a proxy's URL may hold a password.
_FOR_TRANSPORT = (
    *("ssl_cert_file", "requests_ca_bundle", "blobsync_transport", "blobsync_outage_seconds", "no_proxy"),
    # Names users whose programs on this machine may be connected to.
    *(TRUSTED_HOSTS_VARIABLE.lower(), "sudo_uid"),
)


@dataclass(frozen=True, slots=True)
class RemoteOrders:
    """A folder of a container. ``credential`` is ``key``, ``sas`` or ``token``; tokens are requested when needed."""

    location: BlobLocation
    credential: str
    secret: Secret | None = None


EndOrders = LocalLocation | RemoteOrders


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """``processes`` is the number of workers on this machine, ``cap_mbps`` (10^6 bits per second) the limit of one,
    ``environ`` the variables for its transport, ``state`` this project's folder with the records of earlier runs."""

    source: EndOrders
    destination: EndOrders
    processes: int
    cap_mbps: float | None
    environ: Mapping[str, str] = field(repr=False)
    state: StateDir | None = None


def remote_orders(location: BlobLocation, signer: Signer) -> RemoteOrders:
    """The orders with which a worker can sign as ``signer`` does."""
    if isinstance(signer, SharedKeySigner):
        return RemoteOrders(location, "key", signer.key)
    if isinstance(signer, SasSigner):
        return RemoteOrders(location, "sas", Secret(signer.token.reveal()))
    return RemoteOrders(location, "token")


def signer_of(orders: RemoteOrders, ask_token: Callable[[], tuple[Secret, float]]) -> Signer:
    """The signer of a worker's requests. Raises ``CredentialError``, ``ValueError``."""
    if orders.credential == "token":
        return BearerSigner(ask_token)
    if orders.secret is None:
        raise ValueError("orders without a secret")
    if orders.credential == "sas":
        return SasSigner(SasToken.parse(orders.secret.reveal()))
    return SharedKeySigner(orders.location.container.account, orders.secret)


def transport_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a worker's transport reads."""
    return {
        name: value
        for name, value in environ.items()
        if name.lower() in _FOR_TRANSPORT or name.lower() in ("http_proxy", "https_proxy", "all_proxy")
    }


def orders_line(orders: WorkerOrders) -> str:
    """The orders as one line, which is a secret."""
    return json.dumps({"blobsync_orders": VERSION, **asdict(orders)}, default=_text_of)


def _text_of(value: object) -> str:
    return value.reveal() if isinstance(value, Secret) else str(value)


def read_orders(line: str) -> WorkerOrders:
    """Read the orders of a coordinator of the same version. Raises ``ValueError``, which quotes nothing."""
    values = parse_object(line)
    if values.pop("blobsync_orders", None) != VERSION:
        raise ValueError(f"not orders of version {VERSION}")
    return made_of(WorkerOrders, values)


@dataclass(frozen=True, slots=True)
class Handed:
    """The response to a worker's request for a credential: the secret (None: there is none) and when it expires
    (seconds since 1970), or the error."""

    secret: Secret | None = None
    ends: float = 0.0
    problem: CredentialError | None = None


def handed_line(handed: Handed) -> str:
    """The response as one line, which is a secret."""
    if handed.problem is not None:
        problem = handed.problem
        return json.dumps({"refused": problem.code.value, "message": problem.message, "hint": problem.hint})
    return json.dumps({"handed": handed.secret.reveal() if handed.secret else None, "ends": handed.ends})


def read_handed(values: Mapping[str, Any]) -> Handed:
    """Read the output of :func:`handed_line`."""
    if "refused" in values:
        code = FailureCode(values["refused"])
        return Handed(problem=CredentialError(values["message"], hint=values["hint"], code=code))
    secret = values["handed"]
    return Handed(Secret(secret) if secret is not None else None, values["ends"])


STOP_LINE = '{"stop": true}'
