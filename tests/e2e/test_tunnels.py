"""Tunnels through two real sshds: to a running job's node behind the login node, and named ones to a machine behind a
bastion. With broken connections, ended jobs and ports in use."""

from __future__ import annotations

import getpass
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import pytest

from tests.e2e.test_jobs import Lab, lab
from tests.e2e.test_login_node import HOST, login
from tests.e2e.world import Done, Project
from tests.servers.ports import free_ports
from tests.servers.slurm_fixture import slurm_cluster
from tests.servers.sshd import SshServer, client_config, client_folder, missing_parts
from tests.waiting import wait_until

__all__ = ["lab", "login", "slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.sshd]

# A fake Jupyter: responds to requests with its token in the environment, with its command line and folder.
JUPYTER = """\
#!{python}
import http.server, os, sys, urllib.parse
words = dict(word.partition("=")[::2] for word in sys.argv[1:])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("token")
        self.send_response(200 if token == [os.environ["JUPYTER_TOKEN"]] else 403)
        self.end_headers()
        self.wfile.write((" ".join(sys.argv[1:]) + " in " + os.getcwd()).encode())
http.server.ThreadingHTTPServer((words["--ip"], int(words["--port"])), Answer).serve_forever()
"""


def fetch(url: str) -> str:
    """The body of the URL; empty while no server responds."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=60) as reply:
        return cast("str", reply.read().decode())
    return ""


def first_line(started: subprocess.Popen[str]) -> str:
    return cast("IO[str]", started.stdout).readline().strip()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port
    return port


def listeners() -> dict[int, set[str]]:
    """Listening TCP ports of this machine and their addresses, from the kernel."""
    found: dict[int, set[str]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, state = line.split()[1], line.split()[3]
        if state == "0A":
            number, _, port = address.partition(":")
            found.setdefault(int(port, 16), set()).add(socket.inet_ntoa(bytes.fromhex(number)[::-1]))
    for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        if line.split()[3] == "0A":
            found.setdefault(int(line.split()[1].partition(":")[2], 16), set()).add("IPv6")
    return found


def command_lines() -> dict[int, str]:
    """Command lines of all running processes, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if words := path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found[int(path.parent.name)] = words
    return found


@pytest.fixture
def node(tmp_path: Path, lab: Lab, login: SshServer) -> Iterator[SshServer]:
    """The sshd of the cluster's nodes, which is reachable only from the login node."""
    with SshServer(tmp_path / "node-sshd") as server:
        config = client_config(tmp_path, {HOST: login, "n1": server, "n2": server})
        client_folder(tmp_path, config)
        yield server


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts blobsync; ends running processes after the test."""
    started: list[subprocess.Popen[str]] = []

    def one(*words: str) -> subprocess.Popen[str]:
        started.append(lab.project.start(*words))
        return started[-1]

    yield one
    for process in started:
        process.terminate()
        process.communicate()


@pytest.mark.slurm
def test_a_port_of_a_jobs_node_is_here_until_the_job_ends(
    lab: Lab, login: SshServer, node: SshServer, start: Callable[..., subprocess.Popen[str]]
) -> None:
    (remote,) = free_ports(1)
    server = f"cd output && echo hello > page && exec {sys.executable} -m http.server {remote} --bind 127.0.0.1"
    job_id = lab.submit("uni", server)
    lab.until(job_id, "Running")
    assert wait_until(lambda: remote in listeners())
    # The job's node is this machine, so that its port is in use here.
    opened = start("tunnel", job_id, "--port", str(remote), "--node-ssh")
    url = first_line(opened)
    assert fetch(url + "page") == "hello\n" and port_of(url) != remote
    assert listeners()[port_of(url)] == {"127.0.0.1"}
    assert login.cut() >= 1 and "Accepted publickey" in node.log
    assert wait_until(lambda: fetch(url + "page") == "hello\n", pause=0.3)
    lab.run("abort", job_id)
    ended = lab.project.finish(opened)
    assert ended.code == 0 and "is Canceled: closed" in ended.err, str(ended)
    assert f"port {remote} is taken on this machine" in ended.err and "trying again" in ended.err
    assert port_of(url) not in listeners()
    refused = lab.run("--json", "tunnel", job_id, "--port", "8888", code=1).errors[0]
    assert "only a running job has ports to open" in refused["message"]


@pytest.mark.soak
@pytest.mark.slurm
def test_jupyter_runs_beside_a_job_and_its_token_is_on_no_command_line(
    lab: Lab, login: SshServer, node: SshServer, start: Callable[..., subprocess.Popen[str]]
) -> None:
    jupyter = lab.project.root / "programs" / "jupyter-lab"
    jupyter.parent.mkdir()
    jupyter.write_text(JUPYTER.format(python=sys.executable))
    jupyter.chmod(0o755)
    begun, local = free_ports(2)
    program = f"exec {sys.executable} -m http.server {begun} --bind 127.0.0.1"
    job_id = lab.submit("uni", f"export PATH={jupyter.parent}:$PATH; {program}")
    lab.until(job_id, "Running")
    # Slurm says "Running" before the job's program, whose environment Jupyter gets, has begun.
    assert wait_until(lambda: begun in listeners())
    # Without --local-port, another program could take Jupyter's port before ssh does: the node is this very machine.
    opened = start("tunnel", "--jupyter", job_id, "--local-port", str(local))
    address, token = (url := first_line(opened)).split("?token=")
    assert len(token) >= 32 and fetch(address) == ""
    # It starts in the folder of the job's code, with the job's PATH.
    assert wait_until(lambda: "--no-browser --ip=127.0.0.1" in fetch(url))
    assert job_id in fetch(url).partition(" in ")[2]
    assert not [words for words in command_lines().values() if token in words]
    assert login.cut() >= 1
    lab.run("abort", job_id)
    ended = lab.project.finish(opened)
    assert ended.code == 0 and "is Canceled: closed" in ended.err, str(ended)
    assert not [words for words in (*command_lines().values(), ended.err) if token in words]


@dataclass
class NamedTunnel:
    """The tunnel ``box`` from port ``local`` to a machine behind a bastion."""

    project: Project
    bastion: SshServer
    box: SshServer
    local: int
    config: Path

    def add(self) -> Done:
        machine = f"{getpass.getuser()}@sandbox-12:{self.box.port}"
        words = ("--bastion", "bastion.example.org", "--key", str(self.bastion.key), "--local-port", str(self.local))
        return self.project.json("tunnel", "add", "box", machine, *words)

    def open(self) -> Done:
        return self.project.json("tunnel", "open", "box")

    def close(self) -> None:
        assert self.project.run("tunnel", "close", "box").out == "box: closed\n"

    def restarts(self) -> int:
        found: int = self.project.json("tunnel", "ls").data["tunnels"][0]["restarts"]
        return found

    def echo(self, opened: Done) -> str:
        """Run a command on the box, with the entry of ssh's configuration that ``tunnel open`` printed."""
        entry = self.config.with_name("entry")
        known = f"HostKeyAlias sandbox-12\n  UserKnownHostsFile {self.config.with_name('known_hosts')}"
        entry.write_text("\n".join(opened.data["ssh_config"]).replace("HostKeyAlias sandbox-12", known) + "\n")
        ssh = ["/usr/bin/ssh", "-F", str(entry), "-o", "BatchMode=yes", "box", "echo through"]
        return subprocess.run(ssh, capture_output=True, text=True).stdout


@pytest.fixture
def tunnel(project: Project, tmp_path: Path) -> Iterator[NamedTunnel]:
    missing = missing_parts()
    if missing:
        pytest.skip(missing)
    with SshServer(tmp_path / "bastion") as bastion, SshServer(tmp_path / "box") as box:
        (tmp_path / "box" / "authorized_keys").write_text((bastion.base / "key.pub").read_text())
        # ssh has the servers' keys, but not the user's, which --key gives.
        config = client_config(tmp_path, {"bastion.example.org": bastion, "sandbox-12": box}, keys=False)
        project.environ["PATH"] = f"{client_folder(tmp_path, config)}:{os.environ['PATH']}"
        named = NamedTunnel(project, bastion, box, free_ports(1)[0], config)
        added = named.add()
        assert added.code == 0 and added.data["tunnel"]["port"] == box.port, str(added)
        yield named
        project.run("tunnel", "close", "box")


def test_a_tunnel_with_a_name_leads_through_a_bastion_connects_again_and_is_removed_once_closed(
    tunnel: NamedTunnel,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", tunnel.local))
        taken.listen()
        moved = tunnel.open()
    assert moved.code == 0 and moved.data["open_at"] != tunnel.local and "is taken" in moved.err, str(moved)
    tunnel.close()
    opened = tunnel.open()
    assert opened.data["open"] and opened.data["open_at"] == tunnel.local
    assert listeners()[tunnel.local] == {"127.0.0.1"}
    assert tunnel.echo(opened) == "through\n"
    assert tunnel.bastion.cut() == 1
    assert wait_until(lambda: tunnel.restarts() == 1, pause=0.3)
    assert tunnel.echo(opened) == "through\n"
    assert tunnel.project.run("tunnel", "rm", "box").code == 2
    tunnel.close()
    assert tunnel.project.run("tunnel", "rm", "box").code == 0
    assert tunnel.open().code == 4


def test_a_tunnel_with_a_name_is_taken_over_when_the_process_that_keeps_it_was_killed(tunnel: NamedTunnel) -> None:
    tunnel.open()
    folder = str(Path(tunnel.project.environ["HOME"], ".local", "state", "blobsync", "tunnels", "box"))
    (keeper,) = [pid for pid, words in command_lines().items() if "tunnels.named" in words and folder in words]
    os.kill(keeper, signal.SIGKILL)
    # ssh continues and keeps the port until the next command.
    assert wait_until(lambda: keeper not in command_lines()) and tunnel.local in listeners()
    again = tunnel.open()
    assert again.data["open_at"] == tunnel.local and tunnel.echo(again) == "through\n"
    tunnel.close()
    assert tunnel.local not in listeners()
    # A machine that does not answer: what ssh says.
    tunnel.box.stop()
    failed = tunnel.open()
    assert failed.code == 2 and "Connection refused" in failed.errors[0]["message"], str(failed)


def test_the_hint_of_a_bastion_that_ssh_does_not_know_asks_for_its_host_key(tunnel: NamedTunnel) -> None:
    config, known = tunnel.config, tunnel.config.with_name("known_hosts")
    config.write_text(config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask"))
    known.write_text("")
    refused = tunnel.open()
    assert refused.code == 2 and "Host key verification failed" in refused.errors[0]["message"], str(refused)
    hint = refused.errors[0]["hint"]
    line = hint.partition(": ")[2].partition("; Ctrl-C")[0]
    assert line.startswith("ssh ") and hint.endswith("then blobsync tunnel open box"), hint
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/bin/sh", ["sh", "-c", f"exec {line}"], {**os.environ, **tunnel.project.environ})
    said = ""
    # One question for each of the two machines.
    for _ in range(2):
        until = said.count("continue connecting") + 1
        while said.count("continue connecting") < until:
            said += os.read(terminal, 1 << 16).decode()
        os.write(terminal, b"yes\n")
    assert wait_until(lambda: len(known.read_text().splitlines()) == 2), said
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    os.close(terminal)
    assert tunnel.open().code == 0
