"""Command lines that forward a port of another machine, and validation of their arguments: hosts, users, ports, keys.

They come from cluster files of other people's projects and from other systems. ssh takes an argument that begins with
a dash as an option, a comma in a jump host as the next one, ``%`` as the start of a token that it replaces, and a line
end in its configuration as the start of an option such as ``ProxyCommand``, which is a program. All are rejected. ssh
reads no option after ``--``; other programs get a value that could begin with a dash after ``=``.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
import stat
from pathlib import Path

from blobsync.base.errors import UsageError
from blobsync.base.records import dataclass

LOOPBACK = "127.0.0.1"
SSH_PORT = 22
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:]{2,39}(?:\.[0-9.]{1,11})?")
_KEY_FILE = re.compile(r"/[A-Za-z0-9_./+@,=-]+")
_MACHINE = re.compile(r"(?:(?P<user>[^@]*)@)?(?:\[(?P<six>[^\]]*)\]|(?P<host>[^\[\]@:]*))(?::(?P<port>[^:@]*))?")
_AZURE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.()-]{0,88}[A-Za-z0-9_()-])?")
_RESOURCE = re.compile(r"/subscriptions/[A-Za-z0-9-]{1,64}(?:/[A-Za-z0-9_.()-]{1,90}){2,20}")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.()-]{0,63}")

# Without questions: there is no terminal.
_SILENT = ("-o", "BatchMode=yes")
# Fail rather than connect without the port, and notice a broken connection within a minute.
_STEADY = (
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)


@dataclass(frozen=True, slots=True)
class SshMachine:
    """A computer reached over ssh: a host name, an address, or a ``Host`` of the user's ``~/.ssh/config``.

    With the words of a ``proxy`` program that reaches it, ``host`` is only ssh's name for it.
    """

    host: str
    user: str = ""
    port: int | None = None
    proxy: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``[USER@]HOST[:PORT]``, as ``-J`` takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")

    @property
    def destination(self) -> str:
        """``[USER@]HOST``, one argument of ssh."""
        return f"{self.user}@{self.host}" if self.user else self.host


def read_machine(text: str, what: str) -> SshMachine:
    """Parse ``[USER@]HOST[:PORT]``; an IPv6 address with a port is in brackets. Raises ``UsageError``."""
    if ":" in text and _IPV6.fullmatch(text.rpartition("@")[2]):
        user, _, six = text.rpartition("@")
        text = f"{user}@[{six}]" if user else f"[{six}]"
    found = _MACHINE.fullmatch(text)
    if found is None:
        raise UsageError(f"{what} {text!a} is not a machine", hint="write [USER@]HOST[:PORT]: me@login.example.org:22")
    user, port = found["user"], found["port"]
    if user is not None and not _USER.fullmatch(user):
        raise UsageError(f"{what} {text!a}: {user!a} is not a user name")
    host = read_host(found["six"] or found["host"] or "", what)
    return SshMachine(host, user or "", None if port is None else read_port(port, what))


def read_host(text: str, what: str) -> str:
    """Validate a host's name or address. Raises ``UsageError``."""
    if not (_HOST_NAME.fullmatch(text) or (":" in text and _IPV6.fullmatch(text))):
        raise UsageError(f"{what} {text!a} is not a host name")
    return text


def read_port(text: str | int, what: str) -> int:
    """Parse a port, 1 to 65535. Raises ``UsageError``."""
    digits = str(text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65_535):
        raise UsageError(f"{what} {digits!a} is not a port", hint="a number from 1 to 65535")
    return int(digits)


def read_key_file(text: str, home: Path) -> str:
    """The absolute path of a private key. Raises ``UsageError``: what ssh would replace or split is refused."""
    path = text.replace("~", str(home), 1) if text.startswith("~/") else text
    path = path if path.startswith("/") else str(Path.cwd() / path)
    if not _KEY_FILE.fullmatch(path):
        raise UsageError(f"key {path!a} has characters that ssh would read as more than a path", hint="rename the file")
    return path


def demand_key_file(path: str) -> None:
    """Raises ``UsageError`` for a key that ssh would not use: a missing file, or a private one that others can read.

    A public key (``.pub``) may be read by all: its private half is in the user's ssh-agent.
    """
    hint = "ssh-keygen -t ed25519 makes a key; --key takes its private file"
    try:
        known = os.stat(path)
    except OSError as error:
        raise UsageError(f"key {path}: {error.strerror}", hint=hint, path=path) from error
    if not stat.S_ISREG(known.st_mode):
        raise UsageError(f"key {path} is not a file", hint=hint, path=path)
    if path.endswith(".pub"):
        return
    # https://man.openbsd.org/ssh: "ssh will simply ignore a private key file if it is accessible by others"
    if known.st_uid == os.getuid() and known.st_mode & 0o077:
        raise UsageError(
            f"key {path} can be read by others (mode {known.st_mode & 0o777:03o}): ssh does not use such a key",
            hint=f"chmod 600 {shlex.quote(path)}",
            path=path,
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"key {path}: you may not read it", hint=hint, path=path)


def free_local_port(wanted: int | None) -> int:
    """``wanted`` if that port of 127.0.0.1 is free, else a free one. Raises ``UsageError`` below 1024."""
    with socket.socket() as probe:
        # A connection that has just ended does not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except PermissionError as error:
            raise UsageError(f"port {wanted} is for root only", hint="--local-port 8888") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return int(probe.getsockname()[1])
    return free_local_port(None)


def forward_line(
    machine: SshMachine,
    *,
    local: int,
    remote: int,
    to: str = LOOPBACK,
    jump: SshMachine | None = None,
    key: str = "",
    asks: bool = False,
) -> tuple[str, ...]:
    """``ssh -L``: forward port ``local`` of this machine to ``remote`` of ``to``, an address as ``machine`` sees it.

    ``jump`` is a machine on the way, with the same ``key``. With ``asks`` a person runs the command: ssh may ask about
    a host key, or for a passphrase.
    """
    manner = () if asks else _SILENT
    target = f"[{to}]" if ":" in to else to
    forward = f"{LOOPBACK}:{local}:{target}:{remote}"
    return (
        *("ssh", "-N", "-T", *manner, *_STEADY, *_identity(key), *_through(jump, key, manner), *_way_to(machine)),
        *("-L", forward, "--", machine.destination),
    )


def machine_command(machine: SshMachine, *command: str) -> tuple[str, ...]:
    """Run a command on a machine, quoted as one line for its shell."""
    return ("ssh", "-T", *_SILENT, *_STEADY, *_way_to(machine), "--", machine.destination, shlex.join(command))


def _identity(key: str) -> tuple[str, ...]:
    return ("-i", key, "-o", "IdentitiesOnly=yes") if key else ()


def _through(jump: SshMachine | None, key: str, manner: tuple[str, ...]) -> tuple[str, ...]:
    """``-J`` takes no key: with one, a ``ProxyCommand`` for the shell is used; ``%h`` is the target."""
    if jump is None or not key:
        return ("-J", str(jump)) if jump else ()
    words = ("ssh", *manner, *_identity(key), *_way_to(jump), "-W", "[%h]:%p", "--", jump.destination)
    return "-o", f"ProxyCommand={shlex.join(words)}"


def _way_to(machine: SshMachine) -> tuple[str, ...]:
    """The options that lead to a machine. Behind a proxy, host keys are not checked: each job has another one, and the
    proxy authenticates."""
    if not machine.proxy:
        return ("-p", str(machine.port)) if machine.port else ()
    line = shlex.join(machine.proxy).replace("%", "%%")
    return (
        *("-o", f"ProxyCommand={line}"),
        *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    )


def bastion_line(
    name: str, resource_group: str, target: str, subscription: str, *, local: int, remote: int
) -> tuple[str, ...]:
    """``az network bastion tunnel`` to the resource ``target``, which listens at ``localhost`` only.

    https://learn.microsoft.com/cli/azure/network/bastion#az-network-bastion-tunnel. Raises ``UsageError`` for names
    that Azure does not allow.
    """
    # https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
    for what, text in (("bastion", name), ("resource group", resource_group)):
        if not _AZURE_NAME.fullmatch(text):
            raise UsageError(f"{what} {text!a} is not a name of Azure")
    if not _RESOURCE.fullmatch(target):
        hint = "az vm show --resource-group GROUP --name MACHINE --query id --output tsv"
        raise UsageError(f"target {target!a} is not the id of a resource of Azure", hint=hint)
    if subscription and not _SUBSCRIPTION.fullmatch(subscription):
        raise UsageError(f"subscription {subscription!a} is neither an id nor a name of Azure")
    return (
        *("az", "network", "bastion", "tunnel", f"--name={name}"),
        *(f"--resource-group={resource_group}", f"--target-resource-id={target}"),
        *(f"--resource-port={remote}", f"--port={local}"),
        *([f"--subscription={subscription}"] if subscription else []),
    )
