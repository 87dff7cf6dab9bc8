"""Which hosts may get a credential that is not from the file that names the host.

A project file says where its data is, and a project may come from a stranger. A login, or a key in the environment or
in one of the user's files, opens far more than one container, so it is sent only to Azure's own hosts, to hosts that
the user listed outside all projects, and to this machine. A credential in the same file as its address may be sent
there: the same person wrote both.

This machine has other users, who can read what is sent over plain http to a port that they opened first. So nothing
is sent to a program that is known to be another user's, and a credential from outside the project only to one that
is known to be this user's or root's (:class:`Listener`). https to this machine is protected by its certificate.

Only Azure operates hosts below these suffixes. Azure's other domains are left out on purpose, because
customers' own programs run there (``cloudapp.azure.com``, ``instances.azureml.ms``, ``inference.ml.azure.com``).

Plain http to 127.0.0.1 reaches whatever program opened the port. Linux tells every user the owner of each socket of
their network namespace, in ``/proc/net/tcp`` and ``tcp6`` (https://docs.kernel.org/networking/proc_net_tcp.html).
Systems without these files, such as macOS, do not tell.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from blobsync.base.patterns import pattern
from blobsync.base.user_data import environment, is_own

if TYPE_CHECKING:
    import socket


class Listener(enum.Enum):
    """The listener's owner. ``OWN`` includes root: docker publishes a container's ports with a process of root."""

    OWN = enum.auto()
    FOREIGN = enum.auto()
    NOBODY = enum.auto()
    UNKNOWN = enum.auto()


class Endpoint(NamedTuple):
    """An address and a port; an IPv4 address in IPv6 form becomes plain IPv4."""

    address: IPv4Address | IPv6Address
    port: int

    @classmethod
    def of(cls, address: str, port: int) -> Endpoint:
        """Parse an address and a port. Raises ``ValueError``."""
        found = ip_address(address.partition("%")[0])
        return cls(getattr(found, "ipv4_mapped", None) or found, port)


class SocketRow(NamedTuple):
    """One socket of the kernel's table; ``peer`` has port 0 if it ``listens``. ``user`` is a number."""

    local: Endpoint
    peer: Endpoint
    listens: bool
    user: int


# The rows of a local port; None if the system has no table.
ReadTable = Callable[[int], "Iterable[SocketRow] | None"]

_FILES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
# The table is read in pieces while others open and close sockets: a row can be missed.
_LOOKS = 3
# The number that a user namespace shows for users that it does not know.
_OVERFLOW = 65_534
_WHOLE_RANGE = "4294967295"
_ANY_4, _ANY_6 = IPv4Address(0), IPv6Address(0)


def listener_behind(
    connection: socket.socket, environ: Mapping[str, str] | None = None, *, read: ReadTable | None = None
) -> Listener:
    """The owner of the program that has accepted, or will accept, a new connection to this machine."""
    try:
        there, here = (Endpoint.of(*name[:2]) for name in (connection.getpeername(), connection.getsockname()))
    except (OSError, ValueError):
        return Listener.UNKNOWN
    return _look(there, here, environ, read or socket_table)


def listener_at(
    host: str, port: int, environ: Mapping[str, str] | None = None, *, read: ReadTable | None = None
) -> Listener:
    """The owner of the program that listens on a port of this machine; ``host`` is its address, or ``localhost``."""
    addresses = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    found = {_look(Endpoint.of(each, port), None, environ, read or socket_table) for each in addresses}
    return next(each for each in (Listener.FOREIGN, Listener.UNKNOWN, Listener.OWN, Listener.NOBODY) if each in found)


def socket_table(port: int) -> tuple[SocketRow, ...] | None:
    """The sockets of this machine at a local port; None if the system does not show them."""
    at_port = f":{port:04X}"
    rows: list[SocketRow] = []
    for number, name in enumerate(_FILES):
        try:
            lines = [line.split() for line in Path(name).read_text(encoding="ascii").splitlines()[1:]]
            rows += [_row(fields) for fields in lines if fields[1].endswith(at_port)]
        except FileNotFoundError:
            # A kernel without IPv6 has only the first table.
            if number == 0:
                return None
        except (OSError, ValueError, IndexError):
            return None
    return tuple(rows)


def _look(there: Endpoint, here: Endpoint | None, environ: Mapping[str, str] | None, read: ReadTable) -> Listener:
    for _ in range(_LOOKS):
        rows = read(there.port)
        if rows is None:
            return Listener.UNKNOWN
        users = _users(tuple(rows), there, here)
        if users is not None:
            return _owner(users, environment(environ))
    return Listener.NOBODY


def _users(rows: Collection[SocketRow], there: Endpoint, here: Endpoint | None) -> set[int] | None:
    """The owners of the sockets that receive what ``here`` sends to ``there``; None if no socket listens."""
    # The most specific socket gets the connection; an IPv6 wildcard also takes IPv4 unless an IPv4 socket exists.
    wildcards = [_ANY_4, _ANY_6] if there.address.version == 4 else [_ANY_6]
    for address in (there.address, *wildcards):
        users = {row.user for row in rows if row.listens and row.local.address == address}
        if users:
            # And the owner of the accepted connection: the listener may have been replaced since.
            return users | {row.user for row in rows if row.local == there and row.peer == here}
    return None


def _owner(users: Iterable[int], environ: Mapping[str, str]) -> Listener:
    others = {user for user in users if user != 0 and not is_own(user, os.geteuid(), environ)}
    if not others:
        return Listener.OWN
    if others == {_OVERFLOW} and _knows_some_users_only():
        return Listener.UNKNOWN
    return Listener.FOREIGN


def _knows_some_users_only() -> bool:
    """Whether this is a user namespace, as in a rootless container, which does not show all user ids."""
    try:
        return _WHOLE_RANGE not in Path("/proc/self/uid_map").read_text(encoding="ascii")
    except OSError:
        return True


def _row(fields: list[str]) -> SocketRow:
    return SocketRow(_endpoint(fields[1]), _endpoint(fields[2]), fields[3] == _LISTENS, int(fields[7]))


def _endpoint(text: str) -> Endpoint:
    """Parse 32-bit words in machine order, in hexadecimal, and the port."""
    words, _, port = text.partition(":")
    numbers = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    packed = struct.pack(f"={len(numbers)}I", *numbers)
    found = IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
    return Endpoint(getattr(found, "ipv4_mapped", None) or found, int(port, 16))


class Service(enum.Enum):
    """The service whose hosts are meant; the value is what messages call one."""

    STORAGE = "a blob endpoint of Azure"
    MANAGEMENT = "a management endpoint of Azure"
    MACHINE_LEARNING = "a host of Azure Machine Learning"


# A leading dot matches every host below it; a name without one matches only that host.
#
# Storage: https://learn.microsoft.com/azure/storage/common/storage-account-overview#storage-account-endpoints (with
# the endpoints of DNS zones), and for the other clouds
# https://learn.microsoft.com/azure/azure-government/compare-azure-government-global-azure and
# https://learn.microsoft.com/azure/china/resources-developer-guide. Private endpoints keep these names:
# https://learn.microsoft.com/azure/private-link/private-endpoint-dns.
# Management: https://learn.microsoft.com/azure/azure-resource-manager/management/control-plane-and-data-plane.
# Azure ML: https://learn.microsoft.com/azure/machine-learning/how-to-access-azureml-behind-firewall and
# https://learn.microsoft.com/azure/machine-learning/reference-machine-learning-cloud-parity.
# The closed cloud of Germany is left out: its names may change owner.
_AZURE: dict[Service, tuple[str, ...]] = {
    Service.STORAGE: (
        ".blob.core.windows.net",
        ".blob.storage.azure.net",
        ".blob.core.usgovcloudapi.net",
        ".blob.core.chinacloudapi.cn",
    ),
    Service.MANAGEMENT: (
        "management.azure.com",
        ".management.azure.com",
        "management.usgovcloudapi.net",
        "management.chinacloudapi.cn",
    ),
    Service.MACHINE_LEARNING: (
        ".api.azureml.ms",
        ".experiments.azureml.net",
        ".api.ml.azure.us",
        ".api.ml.azure.cn",
    ),
}

# All URL parsers agree on these hosts; other forms may mean different hosts to different parsers.
_AUTHORITY = pattern(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")
_LAST_PORT = 65535
_HTTP_PORT = 80

# The user's own list; read only if the host is not one of Azure's.
Trusted = Callable[[], Sequence[str]]
# Whose program listens at the host and the port.
WhoListens = Callable[[str, int], Listener]

TRUSTED_HOSTS_VARIABLE = "BLOBSYNC_TRUSTED_HOSTS"


def host_of(url: str) -> str | None:
    """The host in lower case; None for a URL that programs could read in different ways."""
    if not url.isascii() or not url.isprintable() or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    found = _AUTHORITY.fullmatch(parts.netloc)
    if parts.scheme not in ("http", "https") or not found or int(found[2] or 0) > _LAST_PORT:
        return None
    return found[1].lower().strip("[]").removesuffix(".")


def is_loopback(url: str) -> bool:
    """Whether the host is this machine, by address or as ``localhost``."""
    host = host_of(url) or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_safe_from_listeners(url: str) -> bool:
    """Whether nobody can read on the way what is sent there: https, or this machine."""
    return host_of(url) is not None and (url.lower().startswith("https:") or is_loopback(url))


def is_plain_loopback(url: str) -> bool:
    """Whether whoever listens at that port of this machine can read what is sent there."""
    return is_loopback(url) and url.lower().startswith("http:")


def listener_of(url: str, who: WhoListens = listener_at) -> Listener:
    """Whose program listens now at the host and port of ``url`` on this machine."""
    return who(host_of(url) or "", urlsplit(url).port or _HTTP_PORT)


def may_listen(url: str, found: Listener, trusted: Trusted, *, outside: bool) -> bool:
    """Whether a program with the owner ``found`` may receive what is sent to ``url``; ``outside``: with a credential
    that is not from the file that names the host."""
    if found is Listener.OWN or (found is not Listener.FOREIGN and not outside):
        return True
    return _listed(host_of(url) or "", trusted())


def may_get_login(
    url: str, service: Service, trusted: Trusted, *, guarded: bool = False, who: WhoListens = listener_at
) -> bool:
    """Whether a credential from outside the project may be sent to ``url`` now.

    ``guarded``: the sender checks each connection to this machine, so it does not matter yet that no program listens
    there.
    """
    host = host_of(url)
    if host is None or not is_safe_from_listeners(url):
        return False
    if is_plain_loopback(url):
        found = listener_of(url, who)
        return (guarded and found is Listener.NOBODY) or may_listen(url, found, trusted, outside=True)
    return is_loopback(url) or _listed(host, _AZURE[service]) or _listed(host, trusted())


def why_not(url: str, service: Service, who: WhoListens = listener_at) -> str:
    """Why :func:`may_get_login` returned False: a clause that follows the host's name."""
    return (
        f"but {stranger_text(url, listener_of(url, who))}"
        if is_plain_loopback(url)
        else f"which is not {service.value}"
    )


def stranger_text(url: str, found: Listener) -> str:
    """What is wrong with the program that listens at the host and port of ``url`` on this machine."""
    place = urlsplit(url).netloc
    if found is Listener.FOREIGN:
        return f"a program of another user of this machine listens at {place}"
    return f"nothing says whose program listens at {place}, on this machine"


def how_to_trust(url: str, file: str) -> str:
    """What the user can do for a host that is right but unknown; ``file`` is the user's own configuration file."""
    host = host_of(url) or "HOST"
    return f"if you trust that host, list it under trusted_hosts in {file}, or export {TRUSTED_HOSTS_VARIABLE}={host}"


def _listed(host: str, names: Sequence[str]) -> bool:
    for name in names:
        plain = name.lower().removeprefix("*").removesuffix(".")
        if host == plain or (len(plain) > 1 and plain.startswith(".") and host.endswith(plain)):
            return True
    return False
