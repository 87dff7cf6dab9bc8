"""Tunnels through two real sshds: to a running job's node behind the login node, and by name to a machine behind a
bastion. Lines are cut, jobs end, ports are taken."""

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
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import pytest

from tests.e2e.test_jobs import PATIENCE, Lab, lab
from tests.e2e.test_login_node import HOST, login
from tests.e2e.world import Project, wait_until
from tests.servers.ports import free_ports
from tests.servers.slurm_fixture import slurm_cluster
from tests.servers.sshd import SshServer, client_config, client_folder, missing_parts

__all__ = ["lab", "login", "slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.sshd]

# In Jupyter's place: opens to whoever has the token of its environment, and says what its command line is.
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
    """What is behind the URL; empty while nobody answers."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=10) as reply:
        return cast("str", reply.read().decode())
    return ""


def first_line(started: subprocess.Popen[str]) -> str:
    return cast("IO[str]", started.stdout).readline().strip()


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port
    return port


def listeners() -> dict[int, set[str]]:
    """Port -> the addresses of this machine at which somebody listens, as the kernel says."""
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
    """Of all programs of this machine that run, by their process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if words := path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found[int(path.parent.name)] = words
    return found


@pytest.fixture
def node(tmp_path: Path, lab: Lab, login: SshServer) -> Iterator[SshServer]:
    """The sshd of the cluster's nodes, which only the login node's name leads to."""
    with SshServer(tmp_path / "node-sshd") as server:
        config = client_config(tmp_path, {HOST: login, "n1": server, "n2": server})
        client_folder(tmp_path, config)
        yield server


@pytest.fixture
def start(lab: Lab) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts blobsync; what a test leaves running ends with it."""
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
    remote, local = free_ports(2)
    jupyter = lab.project.root / "programs" / "jupyter-lab"
    jupyter.parent.mkdir()
    jupyter.write_text(JUPYTER.format(python=sys.executable))
    jupyter.chmod(0o755)
    server = f"cd output && echo hello > page && exec {sys.executable} -m http.server {remote} --bind 127.0.0.1"
    job_id = lab.submit("uni", f"export PATH={jupyter.parent}:$PATH; {server}")
    lab.until(job_id, "Running")
    assert wait_until(lambda: remote in listeners(), seconds=PATIENCE)
    # The job's node is this very machine, so that its port is taken here.
    opened = start("tunnel", job_id, "--port", str(remote), "--node-ssh")
    # So would Jupyter's be, between the look whether it is free and ssh's own.
    beside = start("tunnel", "--jupyter", job_id, "--local-port", str(local))
    url, with_token = first_line(opened), first_line(beside)
    assert fetch(url + "page") == "hello\n" and port_of(url) != remote
    assert listeners()[port_of(url)] == {"127.0.0.1"}
    address, token = with_token.split("?token=")
    assert len(token) >= 32 and fetch(address) == ""
    # It starts where the job's code is, with the job's own PATH.
    assert wait_until(lambda: "--no-browser --ip=127.0.0.1" in fetch(with_token), seconds=PATIENCE)
    assert job_id in fetch(with_token).partition(" in ")[2]
    assert not [words for words in command_lines().values() if token in words]
    assert login.cut() >= 2 and "Accepted publickey" in node.log
    assert wait_until(lambda: fetch(url + "page") == "hello\n", seconds=PATIENCE, pause=0.3)
    lab.run("abort", job_id)
    ended = [lab.project.finish(each) for each in (opened, beside)]
    assert [each.code for each in ended] == [0, 0]
    assert all("is Canceled: closed" in each.err for each in ended)
    assert f"port {remote} is taken on this machine" in ended[0].err and "trying again" in ended[0].err
    told = [*command_lines().values(), ended[0].err, ended[1].err]
    assert port_of(url) not in listeners() and not [words for words in told if token in words]
    refused = lab.run("--json", "tunnel", job_id, "--port", "8888", code=1).errors[0]
    assert "only a running job has ports to open" in refused["message"]


def test_a_tunnel_with_a_name_leads_through_a_bastion(project: Project, tmp_path: Path) -> None:
    missing = missing_parts()
    if missing:
        pytest.skip(missing)
    with SshServer(tmp_path / "bastion") as bastion, SshServer(tmp_path / "box") as box:
        (tmp_path / "box" / "authorized_keys").write_text((bastion.base / "key.pub").read_text())
        # ssh is told of the servers' keys, and of nobody's own: that is what the tunnel is told.
        config = client_config(tmp_path, {"bastion.example.org": bastion, "sandbox-12": box}, keys=False)
        project.environ["PATH"] = f"{client_folder(tmp_path, config)}:{os.environ['PATH']}"
        taken, local = socket.socket(), free_ports(1)[0]
        words = ("--bastion", "bastion.example.org", "--key", str(bastion.key), "--local-port", str(local))
        user = getpass.getuser()
        added = project.json("tunnel", "add", "box", f"{user}@sandbox-12:{box.port}", *words)
        assert added.code == 0 and added.data["tunnel"]["port"] == box.port, str(added)
        with taken:
            taken.bind(("127.0.0.1", local))
            taken.listen()
            moved = project.json("tunnel", "open", "box")
        assert moved.code == 0 and moved.data["open_at"] != local and "is taken" in moved.err, str(moved)
        assert project.run("tunnel", "close", "box").out == "box: closed\n"
        opened = project.json("tunnel", "open", "box")
        assert opened.data["open"] and opened.data["open_at"] == local and listeners()[local] == {"127.0.0.1"}
        entry = tmp_path / "entry"
        known = f"HostKeyAlias sandbox-12\n  UserKnownHostsFile {config.with_name('known_hosts')}"
        entry.write_text("\n".join(opened.data["ssh_config"]).replace("HostKeyAlias sandbox-12", known) + "\n")
        ssh = ["/usr/bin/ssh", "-F", str(entry), "-o", "BatchMode=yes", "box", "echo through"]
        assert subprocess.run(ssh, capture_output=True, text=True).stdout == "through\n"
        assert bastion.cut() == 1

        def restarts() -> int:
            found: int = project.json("tunnel", "ls").data["tunnels"][0]["restarts"]
            return found

        assert wait_until(lambda: restarts() == 1, seconds=PATIENCE, pause=0.3)
        assert subprocess.run(ssh, capture_output=True, text=True).stdout == "through\n"
        assert project.run("tunnel", "rm", "box").code == 2
        # Where the process that keeps it is killed, ssh goes on holding the port, until somebody looks.
        folder = str(Path(project.environ["HOME"], ".local", "state", "blobsync", "tunnels", "box"))
        (keeper,) = [pid for pid, words in command_lines().items() if "tunnels.background" in words and folder in words]
        os.kill(keeper, signal.SIGKILL)
        assert wait_until(lambda: keeper not in command_lines(), seconds=PATIENCE) and local in listeners()
        assert project.json("tunnel", "open", "box").data["open_at"] == local
        assert subprocess.run(ssh, capture_output=True, text=True).stdout == "through\n"
        assert project.run("tunnel", "close", "box").out == "box: closed\n"
        assert local not in listeners() and project.run("tunnel", "rm", "box").code == 0
        assert project.json("tunnel", "open", "box").code == 4
        box.stop()
        project.json("tunnel", "add", "box", f"{user}@sandbox-12:{box.port}", *words)
        failed = project.json("tunnel", "open", "box")
        assert failed.code == 2 and "Connection refused" in failed.errors[0]["message"], str(failed)


def test_the_hint_of_a_bastion_that_ssh_does_not_know_asks_for_its_host_key(project: Project, tmp_path: Path) -> None:
    missing = missing_parts()
    if missing:
        pytest.skip(missing)
    with SshServer(tmp_path / "bastion") as bastion, SshServer(tmp_path / "box") as box:
        (tmp_path / "box" / "authorized_keys").write_text((bastion.base / "key.pub").read_text())
        config = client_config(tmp_path, {"bastion.example.org": bastion, "sandbox-12": box}, keys=False)
        config.write_text(config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking ask"))
        known = config.with_name("known_hosts")
        known.write_text("")
        project.environ["PATH"] = f"{client_folder(tmp_path, config)}:{os.environ['PATH']}"
        words = ("--bastion", "bastion.example.org", "--key", str(bastion.key), "--local-port", str(free_ports(1)[0]))
        machine = f"{getpass.getuser()}@sandbox-12:{box.port}"
        assert project.json("tunnel", "add", "box", machine, *words).code == 0
        refused = project.json("tunnel", "open", "box")
        assert refused.code == 2 and "Host key verification failed" in refused.errors[0]["message"], str(refused)
        hint = refused.errors[0]["hint"]
        line = hint.partition(": ")[2].partition("; Ctrl-C")[0]
        assert line.startswith("ssh ") and hint.endswith("then blobsync tunnel open box"), hint
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve("/bin/sh", ["sh", "-c", f"exec {line}"], {**os.environ, **project.environ})
        said = ""
        # One question for each of the two machines.
        for _ in range(2):
            until = said.count("continue connecting") + 1
            while said.count("continue connecting") < until:
                said += os.read(terminal, 1 << 16).decode()
            os.write(terminal, b"yes\n")
        assert wait_until(lambda: len(known.read_text().splitlines()) == 2, seconds=PATIENCE), said
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        os.close(terminal)
        assert project.json("tunnel", "open", "box").code == 0
        assert project.run("tunnel", "close", "box").code == 0
