"""Who owns the programs that listen on this machine; ``trusted_hosts`` decides what may be sent to them.

Plain http to 127.0.0.1 reaches whatever program opened the port. Linux tells every user the owner of each socket of
their network namespace, in ``/proc/net/tcp`` and ``tcp6`` (https://docs.kernel.org/networking/proc_net_tcp.html).
Systems without these files, such as macOS, do not tell. To read them takes the kernel 4 ms each on a machine with much
memory, however few sockets there are, and each new connection is looked up. So the kernel is asked for the sockets
that matter (https://man7.org/linux/man-pages/man7/sock_diag.7.html), and the files are read where it does not answer.
"""

import enum
import errno
import os
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.records import NamedTuple
from blobsync.base.user_folders import environment, is_own

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
    def of(cls, address: str, port: int) -> "Endpoint":
        """Parse an address and a port. Raises ``ValueError``."""
        return cls.at(ip_address(address.partition("%")[0]), port)

    @classmethod
    def at(cls, address: IPv4Address | IPv6Address, port: int) -> "Endpoint":
        """The same of a parsed address."""
        return cls(getattr(address, "ipv4_mapped", None) or address, port)


class SocketRow(NamedTuple):
    """One socket of the kernel's table; ``peer`` has port 0 if it ``listens``. ``user`` is a number."""

    local: Endpoint
    peer: Endpoint
    listens: bool
    user: int


# The rows of the sockets that receive what the second endpoint sends to the first (None: what any sends); all rows of
# that port will do. None if the system does not show them.
FindSockets = Callable[[Endpoint, "Endpoint | None"], "Iterable[SocketRow] | None"]

_FILES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"
# The table is read in pieces while others open and close sockets: a row can be missed.
_LOOKS = 3
# The number that a user namespace shows for users that it does not know.
_OVERFLOW = 65_534
_WHOLE_RANGE = "4294967295"
_ANY_4, _ANY_6 = IPv4Address(0), IPv6Address(0)

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h. The numbers of families are Linux's, too.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_TCP, _INET, _INET6 = 6, 2, 10
_ESTABLISHED, _SYN_RECEIVED, _LISTENING = 1, 3, 10
_NO_COOKIE = b"\xff" * 8
# A message's length and type, and its request's flags and number; then what is asked for, or what is told. The user is
# behind the two endpoints, an interface, a cookie and three numbers.
_MESSAGE = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBBI")
_ENDPOINTS = struct.Struct("!HH16s16s")
_TOLD = struct.Struct("!BB2xHH16s16s12x12x")
# The kernel answers at once; sizes of its datagrams are below this.
_PATIENCE, _MOST_BYTES = 1.0, 1 << 16


def listener_behind(
    connection: "socket.socket", environ: Mapping[str, str] | None = None, *, find: FindSockets | None = None
) -> Listener:
    """The owner of the program that has accepted, or will accept, a new connection to this machine."""
    try:
        there, here = (Endpoint.of(*name[:2]) for name in (connection.getpeername(), connection.getsockname()))
    except (OSError, ValueError):
        return Listener.UNKNOWN
    return _look(there, here, environ, find or sockets_between)


def listener_at(
    host: str, port: int, environ: Mapping[str, str] | None = None, *, find: FindSockets | None = None
) -> Listener:
    """The owner of the program that listens on a port of this machine; ``host`` is its address, or ``localhost``."""
    addresses = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    found = {_look(Endpoint.of(each, port), None, environ, find or sockets_between) for each in addresses}
    return next(each for each in (Listener.FOREIGN, Listener.UNKNOWN, Listener.OWN, Listener.NOBODY) if each in found)


def sockets_between(
    there: Endpoint, here: Endpoint | None, *, connect: "Callable[[], socket.socket] | None" = None
) -> tuple[SocketRow, ...] | None:
    """The sockets of this machine that listen at the port of ``there``, and the one that is connected to ``here``; or
    all sockets at that port. None if the system does not show them. ``connect`` opens the line to the kernel."""
    try:
        with (connect or _line_to_the_kernel)() as line:
            rows = []
            for family in (_INET, _INET6):
                asked = _QUESTION.pack(family, _TCP, 0, 0, 1 << _LISTENING) + _ENDPOINTS.pack(there.port, 0, b"", b"")
                rows += _rows(line, _request(_REQUEST | _DUMP, asked))
            if here is not None:
                rows += _rows(line, _connected(there, here), missing=errno.ENOENT)
    except (OSError, ValueError, AttributeError, struct.error):
        rows = []
    # The table decides that nobody listens.
    return tuple(rows) if any(row.listens for row in rows) else socket_table(there.port)


def _line_to_the_kernel() -> "socket.socket":
    import socket

    # Only Linux has it.
    line = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    line.settimeout(_PATIENCE)
    return line


def _connected(there: Endpoint, here: Endpoint) -> bytes:
    family = _INET if there.address.version == 4 else _INET6
    ends = _ENDPOINTS.pack(there.port, here.port, there.address.packed, here.address.packed)
    return _request(_REQUEST | _ACKNOWLEDGE, _QUESTION.pack(family, _TCP, 0, 0, 1 << _ESTABLISHED) + ends)


def _request(flags: int, asked: bytes) -> bytes:
    body = asked + bytes(4) + _NO_COOKIE
    return _MESSAGE.pack(_MESSAGE.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, 0, 0) + body


def _rows(line: "socket.socket", request: bytes, missing: int = 0) -> list[SocketRow]:
    """The kernel's answer. Raises ``OSError`` for an error, other than ``missing``, and ``ValueError``."""
    line.sendto(request, (0, 0))
    rows: list[SocketRow] = []
    while True:
        data, sender = line.recvfrom(_MOST_BYTES)
        if sender[0] != 0:
            # Not the kernel.
            continue
        while data:
            length, kind, *_ = _MESSAGE.unpack_from(data)
            body, data = data[_MESSAGE.size : length], data[max(_MESSAGE.size, (length + 3) & ~3) :]
            if kind in (_ERROR, _DONE):
                failed = -int.from_bytes(body[:4], sys.byteorder, signed=True)
                if failed not in (0, missing):
                    raise OSError(failed, os.strerror(failed))
                return rows
            rows.append(_row_of(body))


def _row_of(body: bytes) -> SocketRow:
    family, state, port, peer_port, local, peer = _TOLD.unpack_from(body)
    user = body[_TOLD.size : _TOLD.size + 4]
    if state == _SYN_RECEIVED or len(user) < 4:
        # Of a socket that is only half connected the kernel tells no user here; the table has its listener's.
        raise ValueError
    addresses = (IPv4Address(each[:4]) if family == _INET else IPv6Address(each) for each in (local, peer))
    here, there = (Endpoint.at(*each) for each in zip(addresses, (port, peer_port), strict=True))
    return SocketRow(here, there, state == _LISTENING, int.from_bytes(user, sys.byteorder))


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


def _look(there: Endpoint, here: Endpoint | None, environ: Mapping[str, str] | None, find: FindSockets) -> Listener:
    for _ in range(_LOOKS):
        rows = find(there, here)
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
    return Endpoint.at(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed), int(port, 16))
