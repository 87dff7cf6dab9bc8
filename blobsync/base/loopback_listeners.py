"""Finds the owner of a listening port of this machine: plain http to 127.0.0.1 reaches whatever program opened it.

Linux tells every user the owner of each socket of their network namespace, in ``/proc/net/tcp`` and ``tcp6``
(https://docs.kernel.org/networking/proc_net_tcp.html). Systems without these files, such as macOS, do not tell.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
