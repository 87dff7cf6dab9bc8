"""The owners of listening ports of this machine."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from blobsync.base.socket_owners import (
    Endpoint,
    Listener,
    SocketRow,
    listener_at,
    listener_behind,
    socket_table,
    sockets_between,
)
from tests.servers.stranger import USER, stranger

ME, OTHER = os.geteuid(), os.geteuid() + 12_345
ON_LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not tell")
NONE = Endpoint.of("0.0.0.0", 0)


def listens(address: str, user: int, port: int = 80) -> SocketRow:
    return SocketRow(Endpoint.of(address, port), NONE, listens=True, user=user)


def found(host: str, rows: Sequence[SocketRow] | None) -> Listener:
    return listener_at(host, 80, {}, find=lambda there, here: rows)


@pytest.mark.parametrize(
    ("host", "rows", "whose"),
    [
        ("127.0.0.1", [listens("127.0.0.1", ME)], Listener.OWN),
        ("127.0.0.1", [listens("127.0.0.1", 0)], Listener.OWN),
        ("127.0.0.1", [listens("127.0.0.1", OTHER)], Listener.FOREIGN),
        ("127.0.0.1", [listens("0.0.0.0", OTHER)], Listener.FOREIGN),
        ("127.0.0.1", [listens("::", OTHER)], Listener.FOREIGN),
        ("127.0.0.1", [listens("::ffff:127.0.0.1", OTHER)], Listener.FOREIGN),
        # Several sockets of one port, of which the kernel chooses one.
        ("127.0.0.1", [listens("127.0.0.1", ME), listens("127.0.0.1", OTHER)], Listener.FOREIGN),
        # The most specific address gets the connection.
        ("127.0.0.1", [listens("0.0.0.0", ME), listens("127.0.0.1", OTHER)], Listener.FOREIGN),
        ("127.0.0.1", [listens("0.0.0.0", OTHER), listens("127.0.0.1", ME)], Listener.OWN),
        ("127.0.0.1", [listens("0.0.0.0", ME), listens("::", OTHER)], Listener.OWN),
        # A listener at another address does not matter.
        ("127.0.0.1", [listens("127.0.0.1", ME), listens("127.0.0.2", OTHER)], Listener.OWN),
        ("127.0.0.1", [listens("127.0.0.2", OTHER)], Listener.NOBODY),
        ("127.0.0.1", [listens("::1", OTHER)], Listener.NOBODY),
        ("::1", [listens("::1", ME)], Listener.OWN),
        ("::1", [listens("::", OTHER)], Listener.FOREIGN),
        ("::1", [listens("0.0.0.0", ME)], Listener.NOBODY),
        # The name has both addresses, and resolvers differ in their order.
        ("localhost", [listens("127.0.0.1", ME)], Listener.OWN),
        ("localhost", [listens("127.0.0.1", ME), listens("::1", OTHER)], Listener.FOREIGN),
        ("localhost", [], Listener.NOBODY),
        ("127.0.0.1", [], Listener.NOBODY),
        ("127.0.0.1", None, Listener.UNKNOWN),
    ],
)
def test_whose_it_is(host: str, rows: list[SocketRow] | None, whose: Listener) -> None:
    assert found(host, rows) is whose


def test_root_through_sudo_is_whoever_called_sudo() -> None:
    rows = [listens("127.0.0.1", OTHER)]
    own = Listener.OWN if ME == 0 else Listener.FOREIGN
    assert listener_at("127.0.0.1", 80, {"SUDO_UID": str(OTHER)}, find=lambda there, here: rows) is own


def test_who_accepted_counts_as_well_as_who_listens_now() -> None:
    """A listener may be replaced by a trusted one once it has the connection."""
    with socket.create_server(("127.0.0.1", 0)) as place, socket.create_connection(place.getsockname()) as made:
        there, here = (Endpoint.of(*name) for name in (made.getpeername(), made.getsockname()))
        honest = listens("127.0.0.1", ME, there.port)
        accepted = SocketRow(there, here, listens=False, user=OTHER)
        ours = SocketRow(here, there, listens=False, user=OTHER)
        assert listener_behind(made, {}, find=lambda there, here: [honest, ours]) is Listener.OWN
        assert listener_behind(made, {}, find=lambda there, here: [honest, accepted]) is Listener.FOREIGN


def test_a_row_that_one_look_misses_is_looked_for_again() -> None:
    """The kernel's table is read in pieces, while sockets come and go."""
    looks = iter([[], [], [listens("127.0.0.1", OTHER)]])
    assert listener_at("127.0.0.1", 80, {}, find=lambda there, here: next(looks)) is Listener.FOREIGN


@ON_LINUX
@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", "::"])
def test_a_listener_of_ours_is_found_in_the_kernels_table(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        place = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with place:
        port = place.getsockname()[1]
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        assert listener_at(reached, port) is Listener.OWN
        with socket.create_connection((reached, port)) as made:
            assert listener_behind(made) is Listener.OWN
        # Another test may listen at the same port of the other address family.
        assert ME in {row.user for row in socket_table(port) or () if row.listens}
    assert listener_at(reached, port) is Listener.NOBODY


@ON_LINUX
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
def test_a_listener_of_another_user_is_known_as_such(tmp_path: Path, address: str) -> None:
    reached = {"0.0.0.0": "127.0.0.1"}.get(address, address)
    with stranger(tmp_path, address=address) as other:
        assert listener_at(reached, other.port) is Listener.FOREIGN
        with socket.create_connection((reached, other.port)) as made:
            assert listener_behind(made) is Listener.FOREIGN


@ON_LINUX
def test_a_connection_that_is_closed_tells_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        made = socket.create_connection(place.getsockname())
        made.close()
        assert listener_behind(made) is Listener.UNKNOWN


def told(family: int, state: int, ends: tuple[int, int, bytes, bytes], user: int) -> bytes:
    """What the kernel tells of a socket: ``struct inet_diag_msg``, and the header of the message."""
    body = struct.pack("!BB2xHH16s16s24x", family, state, *ends) + struct.pack("=II", user, 7)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 0, 0) + body


def ended(error: int = 0, kind: int = 3) -> bytes:
    return struct.pack("=IHHIIi", 20, kind, 2, 0, 0, -error)


class Kernel:
    """Answers one question after the other; ``sender`` is its number as a process."""

    def __init__(self, *answers: bytes, sender: int = 0) -> None:
        self._answers = iter(answers)
        self._sender = sender

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None: ...

    def sendto(self, data: bytes, place: tuple[int, int]) -> int:
        return len(data)

    def recvfrom(self, most: int) -> tuple[bytes, tuple[int, int]]:
        answer = next(self._answers, None)
        if answer is None:
            raise TimeoutError
        return answer, (self._sender, 0)


@contextmanager
def connected(place: socket.socket, reached: str) -> Iterator[tuple[Endpoint, Endpoint]]:
    """A connection to a listener: its two ends."""
    with socket.create_connection((reached, place.getsockname()[1])) as made:
        yield Endpoint.of(*made.getpeername()[:2]), Endpoint.of(*made.getsockname()[:2])


def refused() -> socket.socket:
    raise PermissionError(errno.EACCES, "not allowed in this sandbox")


@ON_LINUX
@pytest.mark.parametrize(
    ("address", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.3.2.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")],
)
def test_the_kernel_tells_of_the_same_sockets_as_its_table(address: str, reached: str) -> None:
    try:
        place = socket.create_server(
            (address, 0),
            family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            dualstack_ipv6=address == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with place, connected(place, reached) as (there, here):
        table = {row for row in socket_table(there.port) or () if row.listens or (row.local, row.peer) == (there, here)}
        assert {row.listens for row in table} == {True, False}
        assert set(sockets_between(there, here) or ()) == table
        assert set(sockets_between(there, None) or ()) == {row for row in table if row.listens}


@ON_LINUX
def test_the_kernel_tells_the_user_of_a_listener_and_of_who_accepted(tmp_path: Path) -> None:
    with stranger(tmp_path) as other, socket.create_connection(("127.0.0.1", other.port)) as made:
        there, here = (Endpoint.of(*name) for name in (made.getpeername(), made.getsockname()))
        rows = sockets_between(there, here) or ()
        assert [row.user for row in rows if row.listens] == [USER]


@ON_LINUX
def test_the_table_is_not_read_where_the_kernel_answers() -> None:
    """Its rows are of all connections of the port, not of the one that is asked for."""
    with socket.create_server(("127.0.0.1", 0)) as place, connected(place, "127.0.0.1") as (there, here):
        with connected(place, "127.0.0.1") as (_, another):
            assert another in {row.peer for row in socket_table(there.port) or ()}
            assert another not in {row.peer for row in sockets_between(there, here) or ()}


HOME = socket.inet_aton("127.0.0.1")
LISTENS = told(socket.AF_INET, 10, (80, 0, HOME, bytes(16)), OTHER)


def test_what_the_kernel_tells_is_read_to_its_end() -> None:
    """Several messages in one datagram, in a second one, and the answer to each question."""
    ours = told(socket.AF_INET6, 10, (80, 0, bytes(16), bytes(16)), ME)
    accepted = told(socket.AF_INET, 1, (80, 4711, HOME, HOME), OTHER + 1)
    kernel = Kernel(LISTENS + LISTENS, LISTENS + ended(), ours, ended(), accepted + ended(kind=2))
    there, here = Endpoint.of("127.0.0.1", 80), Endpoint.of("127.0.0.1", 4711)
    assert sockets_between(there, here, connect=lambda: kernel) == (  # type: ignore[arg-type,return-value]
        *[listens("127.0.0.1", OTHER)] * 3,
        listens("::", ME)._replace(peer=Endpoint.of("::", 0)),
        SocketRow(there, here, listens=False, user=OTHER + 1),
    )


def test_a_connection_that_was_not_accepted_here_has_only_a_listener() -> None:
    kernel = Kernel(LISTENS + ended(), ended(), ended(errno.ENOENT, kind=2))
    there, here = Endpoint.of("127.0.0.1", 80), Endpoint.of("127.0.0.1", 4711)
    assert sockets_between(there, here, connect=lambda: kernel) == (  # type: ignore[arg-type,return-value]
        listens("127.0.0.1", OTHER),
    )


SYN = told(socket.AF_INET, 3, (80, 4711, HOME, HOME), 0)


@ON_LINUX
@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([], id="no answer"),
        pytest.param([ended(errno.ENOENT), ended(), ended()], id="no such question"),
        pytest.param([LISTENS + ended(), ended(errno.EPERM, kind=2)], id="an error"),
        pytest.param([ended(), ended(), ended(errno.ENOENT, kind=2)], id="nobody listens"),
        pytest.param([LISTENS + ended(), ended(), SYN + ended(kind=2)], id="half connected"),
        pytest.param([LISTENS[:60]], id="cut off"),
        pytest.param([LISTENS[:9]], id="cut off in the header"),
        pytest.param([bytes(16), LISTENS[:3]], id="no length"),
        pytest.param([LISTENS[:82] + bytes(2), ended(), ended()], id="cut off in the user"),
    ],
)
def test_the_table_is_read_where_the_kernel_does_not_answer(answers: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place, connected(place, "127.0.0.1") as (there, here):
        rows = sockets_between(there, here, connect=partial(Kernel, *answers))  # type: ignore[arg-type]
        assert set(rows or ()) == set(socket_table(there.port) or ())
        assert {row.user for row in rows or ()} == {ME}


@ON_LINUX
def test_only_the_kernel_is_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place, connected(place, "127.0.0.1") as (there, here):
        answers = [LISTENS + ended(), ended(), ended(errno.ENOENT, kind=2)]
        rows = sockets_between(there, here, connect=partial(Kernel, *answers, sender=1))  # type: ignore[arg-type]
        assert {row.user for row in rows or ()} == {ME}


@ON_LINUX
def test_the_table_is_read_where_no_line_to_the_kernel_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place, connected(place, "127.0.0.1") as (there, here):
        assert set(sockets_between(there, here, connect=refused) or ()) == set(socket_table(there.port) or ())
