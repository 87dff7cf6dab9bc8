"""The command lines that open a port of another machine here. Pure; every word has passed ``addresses``.

ssh reads no option behind ``--``; other programs get a value that could begin with a dash behind ``=``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from blobsync.backends.addresses import AzureBastion, SshMachine

LOOPBACK = "127.0.0.1"

# No question, since nobody can answer.
_SILENT = ("-o", "BatchMode=yes")
# An error instead of a connection without its port; and a line that is cut is noticed within a minute, where the
# network says nothing.
_STEADY = (
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
_QUIET = (*_SILENT, *_STEADY)


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
    """``ssh -L``: what connects to ``local`` here is connected to ``remote`` of ``to`` over there.

    ``to`` is as ``machine`` sees it. ``jump`` is the machine before it, which uses ``key`` as well. With ``asks`` a
    person runs it: ssh may ask whether a host key is right, or for a passphrase.
    """
    manner = () if asks else _SILENT
    target = f"[{to}]" if ":" in to else to
    port = ("-p", str(machine.port)) if machine.port else ()
    forward = f"{LOOPBACK}:{local}:{target}:{remote}"
    return (
        *("ssh", "-N", "-T", *manner, *_STEADY, *_identity(key), *_through(jump, key, manner), *port),
        *("-L", forward, "--", machine.destination),
    )


def machine_command(machine: SshMachine, *command: str) -> tuple[str, ...]:
    """Run a command on a machine; the shell over there gets it as one line."""
    port = ("-p", str(machine.port)) if machine.port else ()
    return ("ssh", "-T", *_QUIET, *port, "--", machine.destination, shlex.join(command))


def _identity(key: str) -> tuple[str, ...]:
    return ("-i", key, "-o", "IdentitiesOnly=yes") if key else ()


def _through(jump: SshMachine | None, key: str, manner: tuple[str, ...]) -> tuple[str, ...]:
    """``-J`` cannot be told of a key: then it is written out, as a line for the shell; ``%h`` is the target."""
    if jump is None or not key:
        return ("-J", str(jump)) if jump else ()
    port = ("-p", str(jump.port)) if jump.port else ()
    words = ("ssh", *manner, *_identity(key), *port, "-W", "[%h]:%p", "--", jump.destination)
    return "-o", f"ProxyCommand={shlex.join(words)}"


class SshProxy(NamedTuple):
    """A machine that ssh reaches through a program of its own; ``name`` is only what ssh calls it."""

    words: tuple[str, ...]
    user: str
    name: str


def proxy_line(proxy: SshProxy, *, local: int, remote: int) -> tuple[str, ...]:
    """``ssh -L`` to 127.0.0.1 of a machine behind such a program."""
    forward = f"{LOOPBACK}:{local}:{LOOPBACK}:{remote}"
    return ("ssh", "-N", "-T", *_QUIET, *_behind(proxy), "-L", forward, "--", f"{proxy.user}@{proxy.name}")


def proxy_command(proxy: SshProxy, *command: str) -> tuple[str, ...]:
    """Run a command there; the shell over there gets it as one line."""
    return ("ssh", "-T", *_QUIET, *_behind(proxy), "--", f"{proxy.user}@{proxy.name}", shlex.join(command))


def _behind(proxy: SshProxy) -> tuple[str, ...]:
    """Each job has another host key under the same name: who answers is the program's affair."""
    line = shlex.join(proxy.words).replace("%", "%%")
    return (
        *("-o", f"ProxyCommand={line}"),
        *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    )


def pod_line(kubectl: Sequence[str], namespace: str, pod: str, *, local: int, remote: int) -> tuple[str, ...]:
    """``kubectl port-forward``; ``kubectl`` is the program with its context."""
    words = ("port-forward", f"--namespace={namespace}", f"--address={LOOPBACK}", f"pod/{pod}", f"{local}:{remote}")
    return (*kubectl, *words)


def bastion_line(bastion: AzureBastion, *, local: int, remote: int) -> tuple[str, ...]:
    """``az network bastion tunnel``, which listens at ``localhost`` alone.

    https://learn.microsoft.com/cli/azure/network/bastion#az-network-bastion-tunnel
    """
    subscription = (f"--subscription={bastion.subscription}",) if bastion.subscription else ()
    return (
        *("az", "network", "bastion", "tunnel", f"--name={bastion.name}"),
        *(f"--resource-group={bastion.resource_group}", f"--target-resource-id={bastion.target}"),
        *(f"--resource-port={remote}", f"--port={local}", *subscription),
    )
