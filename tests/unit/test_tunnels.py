"""Command lines of tunnels, validation of their arguments, and keeping a tunnel open."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from blobsync.backends.port_forwarding import (
    SshMachine,
    bastion_line,
    forward_line,
    free_local_port,
    read_key_file,
    read_machine,
    read_port,
)
from blobsync.base.errors import BackendUnavailableError, ConfigError, NothingMatchedError, UsageError
from blobsync.node.standalone.tensorboard_jupyter import choose_port, environment_of, program_words, wait_until_open
from blobsync.tunnels.job_tunnel import TunnelRequest, demand_tunnel
from blobsync.tunnels.named import NamedTunnel, TunnelFolder, Tunnels, keep_tunnel
from blobsync.tunnels.tunnel_keeper import TunnelKeeper
from tests.fakes.runner import FakeProcess, Starting
from tests.servers.other_user import needs_root, program_of_another_user

QUIET = (
    *("ssh", "-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
ME, HUB = SshMachine("box", "me", 2222), SshMachine("hub.example.org", "you")
TARGET = "/subscriptions/0-1/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/gpu13"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            forward_line(HUB, local=8888, remote=80, to="10.0.0.4"),
            (*QUIET, "-L", "127.0.0.1:8888:10.0.0.4:80", "--", "you@hub.example.org"),
        ),
        (
            forward_line(ME, local=1, remote=2, jump=HUB),
            (*QUIET, "-J", "you@hub.example.org", "-p", "2222", "-L", "127.0.0.1:1:127.0.0.1:2", "--", "me@box"),
        ),
        (
            forward_line(ME, local=1, remote=2, jump=HUB, key="/k"),
            (
                *(*QUIET, "-i", "/k", "-o", "IdentitiesOnly=yes", "-o"),
                "ProxyCommand=ssh -o BatchMode=yes -i /k -o IdentitiesOnly=yes -W '[%h]:%p' -- you@hub.example.org",
                *("-p", "2222", "-L", "127.0.0.1:1:127.0.0.1:2", "--", "me@box"),
            ),
        ),
        (
            forward_line(ME, local=1, remote=2, jump=HUB, key="/k", asks=True),
            (
                *("ssh", "-N", "-T", *QUIET[5:], "-i", "/k", "-o", "IdentitiesOnly=yes", "-o"),
                "ProxyCommand=ssh -i /k -o IdentitiesOnly=yes -W '[%h]:%p' -- you@hub.example.org",
                *("-p", "2222", "-L", "127.0.0.1:1:127.0.0.1:2", "--", "me@box"),
            ),
        ),
        (
            forward_line(SshMachine("fe80::1"), local=1, remote=2, to="fe80::2", jump=SshMachine("::3", "", 7)),
            (*QUIET, "-J", "[::3]:7", "-L", "127.0.0.1:1:[fe80::2]:2", "--", "fe80::1"),
        ),
        (
            bastion_line("hub", "net", TARGET, "sub", local=22222, remote=22),
            (
                *("az", "network", "bastion", "tunnel", "--name=hub", "--resource-group=net"),
                *(f"--target-resource-id={TARGET}", "--resource-port=22", "--port=22222", "--subscription=sub"),
            ),
        ),
    ],
    ids=["login", "jump", "jump-with-key", "jump-on-a-terminal", "ipv6", "azure"],
)
def test_the_line_of_each_way(line: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert line == expected


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_ssh_itself_reads_our_lines_as_they_are_meant(tmp_path: Path) -> None:
    key = tmp_path / "k"
    key.touch()
    line = forward_line(ME, local=18888, remote=80, jump=HUB, key=str(key))
    read = subprocess.run(
        ["ssh", "-F", os.devnull, "-G", *line[1:]], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = {
        "user me",
        "hostname box",
        "port 2222",
        "batchmode yes",
        "exitonforwardfailure yes",
        f"identityfile {key}",
    }
    assert wanted | {"localforward [127.0.0.1]:18888 [127.0.0.1]:80", "sessiontype none"} <= set(read)
    assert [each for each in read if each.startswith("proxycommand")] == [
        f"proxycommand ssh -o BatchMode=yes -i {key} -o IdentitiesOnly=yes -W '[%h]:%p' -- you@hub.example.org"
    ]


HOSTILE = [
    "",
    "-oProxyCommand=touch x",
    "me@-oProxyCommand=x",
    "-me@host",
    "host -p 1",
    "a,b",
    "host\nProxyCommand x",
    "host\0",
    "%h",
    "me%r@host",
    "$(id)",
    "`id`",
    "me@host;id",
    "a'b",
    "host:22:33",
    "host:0",
    "host:65536",
    "host:-1",
    "[host]:22:1",
    "me@you@host",
    "h" * 300,
    "хост",
    "host:٢٢",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("place", ["machine", "bastion"])
def test_what_is_more_than_a_machine_is_refused(text: str, place: str) -> None:
    machine, bastion = (text, "") if place == "machine" else ("me@host", text or "@")
    with pytest.raises(UsageError, match=place):
        NamedTunnel("x", machine, 1, bastion=bastion).check()


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("login", SshMachine("login")),
        ("me@login.example.org:2222", SshMachine("login.example.org", "me", 2222)),
        ("FAREAST.v-me@10.0.0.1", SshMachine("10.0.0.1", "FAREAST.v-me")),
        ("me@::1", SshMachine("::1", "me")),
        ("[fe80::1]:22", SshMachine("fe80::1", "", 22)),
    ],
)
def test_machines(text: str, machine: SshMachine) -> None:
    assert read_machine(text, "machine") == machine
    assert read_machine(str(machine), "machine") == machine


@pytest.mark.parametrize("key", ["a b", "/k%d", "/k${HOME}", "/k\nProxyCommand x", '/k"', "/k'", "/k;id", "/k\0"])
def test_a_key_that_ssh_would_read_as_more_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="key"):
        NamedTunnel("x", "host", 1, key=key).check()


def test_a_key_of_the_home_folder() -> None:
    assert read_key_file("~/.ssh/id", Path("/h")) == "/h/.ssh/id"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\nHost *", "../x", "a/b", "*", "x" * 65])
def test_invalid_tunnel_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        NamedTunnel(name, "host", 1).check()


@pytest.mark.parametrize(
    "values",
    [
        ("--name", "g", TARGET, ""),
        ("b", "g g", TARGET, ""),
        ("b", "g", "/subscriptions/x y", ""),
        ("b", "g", "--port=1", ""),
        ("b", "g", TARGET + "\n", ""),
        ("b", "g", TARGET, "-x"),
    ],
)
def test_names_that_azure_does_not_have_are_refused(values: tuple[str, str, str, str]) -> None:
    with pytest.raises(UsageError):
        bastion_line(*values, local=1, remote=22)


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "-1", "8 8", "1e3", "٣", "8888:22"])
def test_an_invalid_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="port"):
        read_port(text, "port")


def test_a_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = free_local_port(taken)
    assert found != taken and found >= 1024
    assert free_local_port(taken) == taken


@pytest.mark.parametrize(
    "asked",
    [
        TunnelRequest(),
        TunnelRequest(tensorboard="x", jupyter=True),
        TunnelRequest(tensorboard=""),
        TunnelRequest(port=0),
        TunnelRequest(port=80, local_port=70_000),
    ],
)
def test_a_request_that_opens_nothing_is_refused(asked: TunnelRequest) -> None:
    with pytest.raises(UsageError):
        demand_tunnel(asked)


# -- keeping one open -------------------------------------------------------------------------------------------------


def make_keeper(*lines: FakeProcess) -> tuple[TunnelKeeper, Starting, list[float], list[str]]:
    clock, notes = [100.0], list[str]()
    runner = Starting(*lines)
    keeper = TunnelKeeper(
        lambda: ("ssh", "x"), 8888, runner, {}, note=notes.append, answers=lambda port: True, clock=lambda: clock[0]
    )
    return keeper, runner, clock, notes


def test_a_line_that_drops_is_started_again_after_a_pause() -> None:
    first, second = FakeProcess(), FakeProcess()
    keeper, runner, clock, notes = make_keeper(first, second)
    keeper.open()
    assert keeper.reopen_if_lost() and keeper.reopen_if_lost() and len(runner.started) == 1
    first.code, first.stderr = 255, "Timeout, server not responding."
    assert not keeper.reopen_if_lost() and not keeper.reopen_if_lost() and len(runner.started) == 1
    assert keeper.problem == "Timeout, server not responding."
    clock[0] += 1.1
    assert keeper.reopen_if_lost() and keeper.restarts == 1 and keeper.problem == ""
    assert notes == [
        "the tunnel is down, trying again: Timeout, server not responding.",
        "the tunnel is open again at 127.0.0.1:8888",
    ]
    keeper.close()
    keeper.close()
    assert second.stops and not first.stops


def test_failures_in_a_row_are_reported_once_and_tried_less_and_less_often() -> None:
    dead = [FakeProcess(255, stderr="Connection refused") for _ in range(9)]
    first = FakeProcess()
    keeper, runner, clock, notes = make_keeper(first, *dead)
    keeper.open()
    first.code, first.stderr = 255, "ssh could not open the tunnel: Connection refused"
    for _ in range(150):
        keeper.reopen_if_lost()
        clock[0] += 1.0
    assert 6 <= len(runner.started) <= 9 and len(notes) == 1


def test_a_line_that_never_opens_says_what_ssh_says() -> None:
    keeper, *_ = make_keeper(FakeProcess(255, stderr="a\nb\nroot@x: Permission denied (publickey).\n"))
    with pytest.raises(
        BackendUnavailableError, match=r"ssh could not open the tunnel: a; b; root@x: Permission denied"
    ):
        keeper.open()


def test_a_port_taken_by_another_program_is_an_error() -> None:
    """Another program answers, and the command ends at once because it cannot listen."""

    class EndsSoon(FakeProcess):
        def wait(self, timeout: float | None = None) -> int | None:
            return 255 if timeout and timeout > 0.2 else None

    keeper, *_ = make_keeper(EndsSoon(stderr="cannot listen to port: 8888"))
    with pytest.raises(BackendUnavailableError, match="cannot listen"):
        keeper.open()


# -- by name ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tunnels(tmp_path: Path) -> Tunnels:
    return Tunnels({"HOME": str(tmp_path)})


def test_tunnels_that_are_added_at_once_are_all_kept(tunnels: Tunnels) -> None:
    added = [NamedTunnel(f"t{number}", "me@gpu", 22_222 + number) for number in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(tunnels.add, added))
    assert {*tunnels.all()} == {*added}


def test_tunnels_are_kept_for_the_user_alone_and_by_their_names(tunnels: Tunnels, tmp_path: Path) -> None:
    assert tunnels.all() == () and tunnels.next_port() == 22_222
    key = tmp_path / "k"
    key.touch(mode=0o600)
    box = NamedTunnel("box", "me@box", 22_222, bastion="hub", key=str(key))
    tunnels.add(box)
    tunnels.add(NamedTunnel("board", "me@box", 6006, 6006))
    assert [each.name for each in tunnels.all()] == ["board", "box"] and tunnels.next_port() == 22_223
    file = tmp_path / ".config" / "blobsync" / "tunnels.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert tunnels.find("box") == box and [state.is_open for state in tunnels.states()] == [False, False]
    tunnels.remove("board")
    with pytest.raises(NothingMatchedError):
        tunnels.find("board")
    assert box.ssh_config(22_222) == (
        *(
            "Host box",
            "  HostName 127.0.0.1",
            "  Port 22222",
            "  HostKeyAlias box",
            "  User me",
            f"  IdentityFile {key}",
        ),
    )
    # A key that was removed later is an error of `open` only.
    key.unlink()
    assert tunnels.find("box") == box


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda key: None, "No such file"),
        (lambda key: key.mkdir(), "is not a file"),
        (lambda key: os.mkfifo(key, 0o600), "is not a file"),
        (lambda key: (key.touch(), key.chmod(0o640)), "can be read by others"),
        (lambda key: (key.touch(), key.chmod(0o604)), "can be read by others"),
    ],
    ids=["missing", "folder", "fifo", "group", "others"],
)
def test_a_key_that_ssh_would_not_use_is_refused_when_it_is_named(
    tunnels: Tunnels, tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    key = tmp_path / "k"
    make(key)
    with pytest.raises(UsageError, match=said) as refused:
        tunnels.add(NamedTunnel("box", "me@box", 22_222, key=str(key)))
    assert str(key) in str(refused.value) and refused.value.hint and tunnels.all() == ()


def test_a_public_key_stands_for_the_one_in_the_agent(tunnels: Tunnels, tmp_path: Path) -> None:
    key = tmp_path / "k.pub"
    key.touch()
    key.chmod(0o644)
    tunnels.add(NamedTunnel("box", "me@box", 22_222, key=str(key)))
    assert [each.name for each in tunnels.all()] == ["box"]


@pytest.mark.parametrize(
    "change",
    [{"machine": "-oProxyCommand=x"}, {"bastion": "a b"}, {"port": "22"}, {"more": 1}, {"name": "../x"}],
    ids=str,
)
def test_a_foreign_tunnels_file_is_ignored(tunnels: Tunnels, tmp_path: Path, change: object) -> None:
    tunnels.add(NamedTunnel("box", "me@box", 22_222))
    file = tmp_path / ".config" / "blobsync" / "tunnels.json"
    values = json.loads(file.read_text())
    values["tunnels"][0].update(change)
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="not a file of tunnels"):
        tunnels.all()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no program shows whose it is")
@pytest.mark.parametrize("whose", ["left behind", "another program's", "held"])
def test_the_line_of_a_process_that_was_killed_is_ended_by_whoever_looks_next(
    tunnels: Tunnels, tmp_path: Path, whose: str
) -> None:
    tunnels.add(NamedTunnel("box", "me@box", 22_222))
    folder = TunnelFolder(tmp_path / ".local" / "state" / "blobsync" / "tunnels" / "box")
    with (
        subprocess.Popen(["sh", "-c", "read nothing"], start_new_session=True, stdin=subprocess.PIPE) as line,
        ExitStack() as held,
    ):
        folder.note_line(line.pid)
        if whose == "another program's":
            folder.write(folder.line, {"pid": line.pid, "born": "1"})
        if whose == "held":
            held.enter_context(folder.held())
        assert not tunnels.states()[0].is_open
        if whose != "left behind":
            assert line.poll() is None
            line.kill()
        assert line.wait() == -signal.SIGKILL and folder.line.exists() == (whose == "held")


def test_a_tunnel_for_a_job_closes_when_the_job_has_ended(tmp_path: Path) -> None:
    folder = TunnelFolder(tmp_path)
    with socket.socket() as answering:
        answering.bind(("127.0.0.1", 0))
        answering.listen()
        port = answering.getsockname()[1]
        tunnel = {"name": "x", "machine": "box", "local_port": port}
        folder.write(folder.order, {"tunnel": tunnel, "port": port, "project": "", "job_id": "me_1_0badcafe"})
        line = FakeProcess()
        clock = iter(range(0, 1000, 3))
        assert keep_tunnel(folder, Starting(line), {}, lambda: True, clock=lambda: next(clock)) == 0
    assert line.stops and folder.read() == {
        "open": True,
        "port": port,
        "restarts": 0,
        "problem": "",
        "job_id": "me_1_0badcafe",
    }


# -- beside the job ---------------------------------------------------------------------------------------------------


def test_programs_beside_a_job_know_its_environment_and_no_token_is_in_their_words(tmp_path: Path) -> None:
    for name in ("tensorboard", "jupyter-notebook"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    request = {"program": "tensorboard", "logdir": "--x y", "address": "127.0.0.1", "token": "hush", "port": 1}
    assert program_words(request, 6006, str(tmp_path)) == [
        *(f"{tmp_path}/tensorboard", "--logdir=--x y", "--host=127.0.0.1", "--port=6006"),
    ]
    words = program_words({**request, "program": "jupyter"}, 8888, str(tmp_path))
    assert words[:4] == [f"{tmp_path}/jupyter-notebook", "--no-browser", "--ip=127.0.0.1", "--port=8888"]
    assert "hush" not in " ".join(words)
    with pytest.raises(FileNotFoundError, match="not installed where the job runs"):
        program_words(request, 6006, "/nowhere")
    argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    # No other program of this machine has the port.
    run_id = f"me_1_{uuid.uuid4().hex}"
    env = {"BLOBSYNC_RUN_ID": run_id, "OF_THE_JOB": "yes"}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout and program.stdout.readline()
        assert environment_of(run_id)["OF_THE_JOB"] == "yes"
    assert "OF_THE_JOB" not in environment_of(run_id)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert choose_port("127.0.0.1", other.getsockname()[1]) != other.getsockname()[1]


@needs_root
@pytest.mark.parametrize("as_root", [False, True])
def test_no_other_user_chooses_what_runs_beside_a_job(as_root: bool) -> None:
    run_id = f"me_1_{uuid.uuid4().hex}"
    theirs = {"BLOBSYNC_RUN_ID": run_id, "PATH": "/home/other/bin", "BLOBSYNC_ROOT": "/home/other"}
    with program_of_another_user(theirs, as_root=as_root):
        assert environment_of(run_id)["PATH"] == os.environ["PATH"]
        argv = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
        own = {"BLOBSYNC_RUN_ID": run_id, "PATH": "/own/bin"}
        with subprocess.Popen(argv, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout and program.stdout.readline()
            assert environment_of(run_id)["PATH"] == "/own/bin"


def test_a_program_beside_a_job_is_open_once_it_listens_and_one_that_ends_is_reported() -> None:
    late = "import socket, time; time.sleep(0.3); held = socket.create_server(('127.0.0.1', {})); time.sleep(60)"
    port = free_local_port(None)
    with subprocess.Popen([sys.executable, "-c", late.format(port)]) as child:
        wait_until_open(child, "127.0.0.1", port)
        assert child.poll() is None
        child.kill()
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as child:
        with pytest.raises(OSError, match="it ended with 3"):
            wait_until_open(child, "127.0.0.1", free_local_port(None))
