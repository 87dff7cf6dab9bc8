"""The owners of listening ports of this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from blobsync.base.trusted_hosts import Endpoint, Listener, SocketRow, listener_at, listener_behind, socket_table
from tests.servers.stranger import stranger

ME, OTHER = os.geteuid(), os.geteuid() + 12_345
ON_LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not tell")
NONE = Endpoint.of("0.0.0.0", 0)


def listens(address: str, user: int, port: int = 80) -> SocketRow:
    return SocketRow(Endpoint.of(address, port), NONE, listens=True, user=user)


def found(host: str, rows: Sequence[SocketRow] | None) -> Listener:
    return listener_at(host, 80, {}, read=lambda port: rows)


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
    assert listener_at("127.0.0.1", 80, {"SUDO_UID": str(OTHER)}, read=lambda port: rows) is own


def test_who_accepted_counts_as_well_as_who_listens_now() -> None:
    """A listener may be replaced by a trusted one once it has the connection."""
    with socket.create_server(("127.0.0.1", 0)) as place, socket.create_connection(place.getsockname()) as made:
        there, here = (Endpoint.of(*name) for name in (made.getpeername(), made.getsockname()))
        honest = listens("127.0.0.1", ME, there.port)
        accepted = SocketRow(there, here, listens=False, user=OTHER)
        ours = SocketRow(here, there, listens=False, user=OTHER)
        assert listener_behind(made, {}, read=lambda port: [honest, ours]) is Listener.OWN
        assert listener_behind(made, {}, read=lambda port: [honest, accepted]) is Listener.FOREIGN


def test_a_row_that_one_look_misses_is_looked_for_again() -> None:
    """The kernel's table is read in pieces, while sockets come and go."""
    looks = iter([[], [], [listens("127.0.0.1", OTHER)]])
    assert listener_at("127.0.0.1", 80, {}, read=lambda port: next(looks)) is Listener.FOREIGN


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
