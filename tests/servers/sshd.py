"""A real sshd on 127.0.0.1, for tests: Debian's openssh-server with its own keys, configuration and port.

The tests' user logs in with one key, and everything is below one directory. Each connection is a process:
:meth:`SshServer.cut` ends all of them, like a broken network.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.servers.ports import free_ports

READY_SECONDS = 60.0
# sshd drops the rights of root in this folder, which its package's start script makes.
_PRIVILEGE_FOLDER = Path("/run/sshd")

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {base}/host_key
AuthorizedKeysFile {base}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
LogLevel VERBOSE
"""


def missing_parts() -> str:
    """What this machine lacks for an sshd, as a sentence; empty if it can run one."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return "an sshd for tests needs Linux and root"
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if _program(name) is None]
    return f"there is no {missing[0]} (Debian: apt-get install openssh-server)" if missing else ""


class SshServer:
    """A server that runs while its block lasts. ``environ`` are variables of sessions besides sshd's own."""

    def __init__(self, base: Path, environ: Mapping[str, str] | None = None) -> None:
        base.mkdir(parents=True, exist_ok=True)
        base.chmod(0o755)
        self.base = base
        (self.port,) = free_ports(1)
        self.key = base / "key"
        for name in ("host_key", "key"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(base / name)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        shutil.copyfile(base / "key.pub", base / "authorized_keys")
        self.known_host = self.known_as(f"[127.0.0.1]:{self.port}")
        variables = "".join(f' "{name}={value}"' for name, value in (environ or {}).items())
        text = _CONFIG.format(port=self.port, base=base) + (f"SetEnv{variables}\n" if variables else "")
        (base / "sshd_config").write_text(text)
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SshServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def known_as(self, name: str) -> str:
        """The server's line in ``known_hosts`` under a name."""
        kind, value, _ = (self.base / "host_key.pub").read_text().split()
        return f"{name} {kind} {value}\n"

    @property
    def log(self) -> str:
        """sshd's log."""
        return (self.base / "sshd.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the daemon, and wait until it responds."""
        _PRIVILEGE_FOLDER.mkdir(mode=0o755, exist_ok=True)
        with (self.base / "sshd.log").open("ab") as sink:
            self._daemon = subprocess.Popen(
                [str(_program("sshd")), "-D", "-e", "-f", str(self.base / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return
            if self._daemon.poll() is not None:
                raise RuntimeError(f"sshd ended with {self._daemon.returncode}: {self.log}")
            time.sleep(0.05)
        raise RuntimeError(f"sshd was not ready after {READY_SECONDS:g} seconds: {self.log}")

    def cut(self) -> int:
        """End all connections, like a broken network; returns their number. New ones are possible."""
        connections = _children(self._daemon.pid) if self._daemon else []
        for pid in connections:
            for number in (*_children(pid), pid):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        return len(connections)

    def stop(self) -> None:
        """End the daemon and its connections; safe to repeat."""
        if self._daemon is None:
            return
        connections = _children(self._daemon.pid)
        self._daemon.terminate()
        self._daemon.wait(30)
        for pid in connections:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._daemon = None


def client_config(base: Path, hosts: Mapping[str, SshServer], *, keys: bool = True) -> Path:
    """A configuration of ``ssh`` with the servers under these names, and nothing else of this machine.

    ``keys``: also the keys for logging in.
    """
    known = base / "known_hosts"
    known.write_text("".join(server.known_host + server.known_as(name) for name, server in hosts.items()))
    lines = []
    for name, server in hosts.items():
        lines += [f"Host {name}", "  HostName 127.0.0.1", f"  Port {server.port}"]
        lines += [f"  IdentityFile {server.key}"] if keys else []
    lines += ["Host *", f"  User {getpass.getuser()}", f"  UserKnownHostsFile {known}", "  GlobalKnownHostsFile none"]
    lines += ["  StrictHostKeyChecking yes", "  IdentitiesOnly yes", "  IdentityAgent none"]
    config = base / "ssh_config"
    config.write_text("\n".join(lines) + "\n")
    return config


def client_folder(base: Path, config: Path) -> Path:
    """A folder for the front of PATH, whose ``ssh`` runs the real one with this configuration.

    The real one finds its configuration by the password file, not by HOME.
    """
    folder = base / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {_program("ssh")} -F {config} "$@"\n')
    ssh.chmod(0o755)
    return folder


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        # Processes start and end meanwhile. The name, which may contain blanks, ends with the last parenthesis.
        with suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            found += [int(status.parent.name)] if parent == pid else []
    return found
