"""Validates the arguments of ``ssh``: hosts, users, ports, key files. Pure, except for free ports and key files.

They come from cluster files of other people's projects and from other systems. ssh takes an argument that begins with
a dash as an option, a comma in a jump host as the next one, ``%`` as the start of a token that it replaces, and a line
end in its configuration as the start of an option such as ``ProxyCommand``, which is a program. All are rejected.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.errors import UsageError

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:]{2,39}(?:\.[0-9.]{1,11})?")
_KEY_FILE = re.compile(r"/[A-Za-z0-9_./+@,=-]+")
_MACHINE = re.compile(r"(?:(?P<user>[^@]*)@)?(?:\[(?P<six>[^\]]*)\]|(?P<host>[^\[\]@:]*))(?::(?P<port>[^:@]*))?")
_AZURE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.()-]{0,88}[A-Za-z0-9_()-])?")
_RESOURCE = re.compile(r"/subscriptions/[A-Za-z0-9-]{1,64}(?:/[A-Za-z0-9_.()-]{1,90}){2,20}")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.()-]{0,63}")
SSH_PORT = 22


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


@dataclass(frozen=True, slots=True)
class AzureBastion:
    """An Azure Bastion, and the resource id of the machine behind it."""

    name: str
    resource_group: str
    target: str
    subscription: str = ""


def read_bastion(name: str, resource_group: str, target: str, subscription: str = "") -> AzureBastion:
    """Raises ``UsageError`` for names that Azure does not allow."""
    # https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
    for what, text in (("bastion", name), ("resource group", resource_group)):
        if not _AZURE_NAME.fullmatch(text):
            raise UsageError(f"{what} {text!a} is not a name of Azure")
    if not _RESOURCE.fullmatch(target):
        hint = "az vm show --resource-group GROUP --name MACHINE --query id --output tsv"
        raise UsageError(f"target {target!a} is not the id of a resource of Azure", hint=hint)
    if subscription and not _SUBSCRIPTION.fullmatch(subscription):
        raise UsageError(f"subscription {subscription!a} is neither an id nor a name of Azure")
    return AzureBastion(name, resource_group, target, subscription)


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
            probe.bind(("127.0.0.1", wanted or 0))
        except PermissionError as error:
            raise UsageError(f"port {wanted} is for root only", hint="--local-port 8888") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return int(probe.getsockname()[1])
    return free_local_port(None)
