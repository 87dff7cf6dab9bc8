"""Membership of an elastic job's nodes over real sockets: present and lost nodes, and the state of node 0."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from blobsync.node.elastic import FirstNodeState, RendezvousClient, RendezvousServer
from blobsync.node.ranks import NotReadyError
from tests.servers.ports import free_ports
from tests.waiting import wait_until

RUN = "me_1_0badcafe"


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def place(port: int) -> Iterator[RendezvousServer]:
    place = RendezvousServer(RUN, port, 4)
    yield place
    place.close()


def test_a_node_hears_what_holds_when_it_comes_and_each_change(place: RendezvousServer, port: int) -> None:
    place.announce("runs abc1")
    node = RendezvousClient(RUN, 2, "127.0.0.1", port)
    assert wait_until(lambda: node.state == FirstNodeState("abc1")) and place.present == {2}
    place.announce("waits")
    assert wait_until(lambda: node.state == FirstNodeState())
    place.announce("runs abc2")
    assert wait_until(lambda: node.state == FirstNodeState("abc2"))
    place.announce("over 7")
    assert wait_until(lambda: node.state == FirstNodeState(over=7))
    node.leave()
    assert wait_until(lambda: not place.present)


def test_a_node_that_says_nothing_at_its_end_is_waited_for_a_moment(port: int) -> None:
    place = RendezvousServer(RUN, port, 4)
    place.announce("runs a")
    with socket.create_connection(("127.0.0.1", port)) as killed:
        killed.sendall(f"{RUN} 1 here\n".encode())
        assert wait_until(lambda: place.present == {1})
    time.sleep(0.5)
    assert place.present == {1}, "its connection may come back"
    again = RendezvousClient(RUN, 1, "127.0.0.1", port)
    assert wait_until(lambda: again.state.start == "a")
    again.leave()
    assert wait_until(lambda: not place.present), "it has said that it has finished"
    place.close()


def test_node_0_that_is_gone_is_missed_at_once_and_found_again(port: int) -> None:
    node = RendezvousClient(RUN, 1, "127.0.0.1", port)
    time.sleep(0.3)
    assert node.state == FirstNodeState(), "nobody is there yet"
    first = RendezvousServer(RUN, port, 4)
    first.announce("runs a")
    assert wait_until(lambda: node.state.start == "a")
    first.close()
    assert wait_until(lambda: node.state == FirstNodeState())
    second = RendezvousServer(RUN, port, 4)
    second.announce("runs b")
    assert wait_until(lambda: node.state.start == "b")
    second.announce("over 0")
    assert wait_until(lambda: node.state.over == 0)
    second.close()
    time.sleep(0.5)
    assert node.state == FirstNodeState(over=0), "what the job ended with stays true"
    node.leave()


@pytest.mark.parametrize(
    "said",
    [
        b"another_job 1 here\n",
        f"{RUN} 0 here\n".encode(),
        f"{RUN} 4 here\n".encode(),
        f"{RUN} -1 here\n".encode(),
        b"GET / HTTP/1.1\r\n",
        b"x" * 5000,
        b"\xff\xfe\x00\n",
    ],
)
def test_whoever_is_no_node_of_the_job_is_sent_away_and_changes_nothing(
    place: RendezvousServer, port: int, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(60.0)
        stranger.sendall(said)
        try:
            assert stranger.recv(100) == b""
        except ConnectionResetError:
            pass
    assert place.present == frozenset()
    node = RendezvousClient(RUN, 3, "127.0.0.1", port)
    assert wait_until(lambda: place.present == {3})
    node.leave()


@pytest.mark.parametrize("said", [b"runs ../x\n", b"over 1000\n", b"y" * 1000])
def test_a_node_believes_nobody_who_does_not_speak_as_node_0(said: bytes, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as other:
        node = RendezvousClient(RUN, 1, "127.0.0.1", port)
        connection, _ = other.accept()
        with connection:
            connection.sendall(said)
            connection.settimeout(60.0)
            while connection.recv(100):
                pass
        assert node.state == FirstNodeState()
    node.leave()


def test_a_port_that_is_taken_is_named(port: int) -> None:
    with socket.create_server(("", port)), pytest.raises(NotReadyError, match=f"port {port}, where the job's nodes"):
        RendezvousServer(RUN, port, 4, bind_seconds=0.0)
