"""Nodes of an elastic job as processes: when each starts its command again, and ends; and which of them are there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import JobSpec
from blobsync.node.elastic import FirstNodeState, RendezvousClient, RendezvousServer, membership_port
from blobsync.node.ranks import NotReadyError
from tests.fakes.blob_service import serve
from tests.fakes.jobs import Node, make_spec
from tests.servers.ports import free_ports
from tests.waiting import wait_until

# Seconds for what is soon true on a quiet machine.
PATIENCE = 60.0
# Records that it runs, then follows the file "do": ends with a code, or continues.
COMMAND = """\
import os, subprocess, sys, time
open("ran", "a").write(os.environ["NODE_RANK"] + "\\n")
if os.path.exists("stray"):
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    os.rename("stray", "strayed")
while not os.path.exists("do"):
    time.sleep(0.02)
code = int(open("do").read())
os.remove("do")
sys.exit(code)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with serve() as service:
        yield Node(tmp_path / "node", service, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})


def free_port() -> int:
    """A port for the rendezvous whose membership port is free: nothing listens at the other one here."""
    (meeting,) = free_ports(1)
    return meeting + 5_000 if membership_port(meeting + 5_000) == meeting else meeting - 5_000


def port_of(node: Node) -> int:
    return membership_port(int(node.env["MASTER_PORT"]))


def elastic(node: Node, **changes: Any) -> JobSpec:
    code = node.code({"command.py": COMMAND})
    return make_spec(sys.executable, "command.py", code=code, min_nodes=2, max_nodes=3, **changes)


def started(node: Node, number: int, spec: JobSpec, *more: str) -> subprocess.Popen[str]:
    words = ("--node-rank", str(number), "--keep-root", "always", *more)
    return node.start("node", spec, *words, stderr=subprocess.DEVNULL)


def runs(node: Node) -> int:
    """How often the command was started."""
    with suppress(OSError):
        return len((node.root / "ran").read_text().splitlines())
    return 0


def has_run(node: Node, times: int) -> bool:
    return runs(node) == times


def let_end(node: Node, code: int) -> None:
    (node.root / "do.new").write_text(str(code))
    (node.root / "do.new").rename(node.root / "do")


def said(node: Node, number: int) -> str:
    with suppress(OSError):
        return (node.run / "system_logs" / f"node_{number}.txt").read_text()
    return ""


def test_node_0_waits_for_enough_nodes_and_ends_after_the_last_upload(node: Node) -> None:
    with started(node, 0, elastic(node)) as first:
        assert wait_until(lambda: "waiting for 1 more node before the command starts" in said(node, 0))
        time.sleep(0.3)
        assert runs(node) == 0
        other = RendezvousClient("me_1_0badcafe", 1, "127.0.0.1", port_of(node))
        assert wait_until(lambda: runs(node) == 1 and bool(other.state.start))
        let_end(node, 0)
        assert wait_until(lambda: other.state == FirstNodeState(over=0))
        time.sleep(1.0)
        assert first.poll() is None, "the other one is still uploading"
        other.leave()
        assert first.wait(PATIENCE) == 0


def test_node_0_starts_its_command_again_when_it_was_killed_and_ends_what_that_left_behind(node: Node) -> None:
    spec = elastic(node, setup=("touch stray",))
    with started(node, 0, spec) as first:
        other = RendezvousClient("me_1_0badcafe", 1, "127.0.0.1", port_of(node))
        assert wait_until(lambda: (node.root / "strayed").exists() and bool(other.state.start))
        before, stray = other.state.start, programs(spec, "sleep")
        assert len(stray) == 1
        os.kill(programs(spec, "command.py")[0], signal.SIGKILL)
        assert wait_until(lambda: runs(node) == 2 and other.state.start not in ("", before))
        # A killed one is shown until it has had a turn to end.
        assert wait_until(lambda: programs(spec, "sleep") == [])
        let_end(node, 7)
        assert wait_until(lambda: other.state == FirstNodeState(over=7)), (
            "it failed by itself, and is not started again"
        )
        other.leave()
        assert first.wait(PATIENCE) == 7
    assert runs(node) == 2 and "the command was killed (137); starting it again" in said(node, 0)


# Node 0 writes one set after the one that was brought to it.
SAVES = """\
import os, pathlib, time
step = int(os.environ.get("BLOBSYNC_RESTORED_STEP", 0))
with open("ran", "a") as ran:
    print(step, file=ran)
if os.environ["NODE_RANK"] == "0":
    folder = pathlib.Path(f"output/step-{step + 1}")
    folder.mkdir(parents=True)
    (folder / "0.distcp").write_text("x")
    (folder / ".metadata").write_text("m")
while not os.path.exists("end"):
    time.sleep(0.02)
"""


def saving(node: Node, **changes: Any) -> JobSpec:
    link = node.folder_link("output", "upload", checkpoints=CheckpointRule("step-*", settle_seconds=0))
    return make_spec(sys.executable, "saves.py", code=node.code({"saves.py": SAVES}), folders=(link,), **changes)


def is_marked(node: Node, step: int) -> bool:
    return any(name.endswith(f"/step-{step}.json") for name in node.service.blobs)


def test_a_command_that_was_killed_on_node_0_begins_with_the_last_checkpoint(node: Node) -> None:
    spec = saving(node, min_nodes=1, max_nodes=3)
    with started(node, 0, spec, "--sync-seconds", "0.2") as first:
        for step in (1, 2):
            assert wait_until(partial(is_marked, node, step)), said(node, 0)
            os.kill(programs(spec, "saves.py")[0], signal.SIGKILL)
            assert wait_until(partial(has_run, node, step + 1)), said(node, 0)
        (node.root / "end").touch()
        assert first.wait(PATIENCE) == 0
    assert (node.root / "ran").read_text().split() == ["0", "1", "2"]


def test_a_command_that_ended_with_node_0_begins_with_the_last_checkpoint(node: Node, tmp_path: Path) -> None:
    with started(node, 1, saving(node, min_nodes=1, max_nodes=3)) as other:
        place = RendezvousServer("me_1_0badcafe", port_of(node), 3)
        place.announce("runs a")
        assert wait_until(lambda: runs(node) == 1)
        # Meanwhile node 0 has a checkpoint.
        first = Node(tmp_path / "first", node.service)
        assert first.do("node", saving(first, setup=("touch end",))).returncode == 0
        assert is_marked(node, 1)
        os.kill(programs(saving(node), "saves.py", 1)[0], signal.SIGKILL)
        # Only its next start finds this.
        (node.root / "end").touch()
        place.announce("runs b")
        assert wait_until(lambda: runs(node) == 2), said(node, 1)
        place.announce("over 0")
        assert other.wait(PATIENCE) == 0
        place.close()
    assert (node.root / "ran").read_text().split() == ["0", "1"]


def test_a_command_is_not_started_again_from_an_old_checkpoint(node: Node) -> None:
    spec = saving(node, min_nodes=1, max_nodes=3)
    with started(node, 0, spec, "--sync-seconds", "0.2") as first:
        assert wait_until(lambda: is_marked(node, 1)), said(node, 0)
        node.service.put("mine/output/step-1/0.distcp", b"y")
        os.kill(programs(spec, "saves.py")[0], signal.SIGKILL)
        assert first.wait(PATIENCE) != 0
    assert runs(node) == 1 and "the command is not started again: folder output: 1 checkpoint marked" in said(node, 0)


def programs(spec: JobSpec, word: str, number: int = 0) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            ours = f"BLOBSYNC_NODE_OF={spec.run_id}/{number}".encode() in Path("/proc", name, "environ").read_bytes()
            if ours and word.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
    return found


def test_another_node_begins_with_node_0_comes_back_with_it_and_succeeds_with_it(node: Node) -> None:
    with started(node, 1, elastic(node)) as other:
        assert wait_until(lambda: "waiting for node 0 before the command starts" in said(node, 1))
        assert runs(node) == 0
        place = RendezvousServer("me_1_0badcafe", port_of(node), 3)
        place.announce("runs a")
        assert wait_until(lambda: runs(node) == 1)
        # Node 0 is lost, and the rendezvous with it: the command ends, and the node waits.
        place.close()
        let_end(node, 1)
        assert wait_until(lambda: "the command ended with 1 and node 0 is gone; waiting" in said(node, 1))
        assert other.poll() is None and runs(node) == 1
        place = RendezvousServer("me_1_0badcafe", port_of(node), 3)
        place.announce("runs b")
        assert wait_until(lambda: runs(node) == 2)
        place.announce("over 0")
        let_end(node, 1)
        assert other.wait(PATIENCE) == 0, "the job has succeeded"
        assert wait_until(lambda: not place.present)
        place.close()


def test_a_node_that_comes_when_the_job_is_over_starts_nothing(node: Node) -> None:
    place = RendezvousServer("me_1_0badcafe", port_of(node), 3)
    place.announce("over 0")
    with started(node, 2, elastic(node)) as late:
        assert late.wait(PATIENCE) == 0
    place.close()
    assert runs(node) == 0


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_that_waits_ends_when_it_is_asked_to(node: Node, number: int) -> None:
    with started(node, number, elastic(node)) as waiting:
        assert wait_until(lambda: "waiting for" in said(node, number))
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE) == 143
    assert runs(node) == 0


def test_a_node_that_comes_later_finds_what_the_others_have_uploaded(node: Node) -> None:
    folder = node.folder_link("output", "upload")
    node.service.put("mine/output/checkpoint.txt", b"step 7")
    place = RendezvousServer("me_1_0badcafe", port_of(node), 3)
    place.announce("over 0")
    for number, files in ((1, []), (2, ["checkpoint.txt"])):
        spec = elastic(node, folders=(folder,), nodes=2)
        node.root.mkdir(parents=True, exist_ok=True)
        with started(node, number, spec, "--root", str(node.root / str(number))) as one:
            assert one.wait(PATIENCE) == 0
        assert [path.name for path in (node.root / str(number) / "output").iterdir()] == files
    place.close()


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
