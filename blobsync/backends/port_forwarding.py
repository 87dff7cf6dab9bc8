"""Command lines that forward a port of another machine. Pure; every argument was validated by ``ssh_arguments``.

ssh reads no option after ``--``; other programs get a value that could begin with a dash after ``=``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from blobsync.backends.ssh_arguments import AzureBastion, SshMachine

LOOPBACK = "127.0.0.1"

# Without questions: there is no terminal.
_SILENT = ("-o", "BatchMode=yes")
# Fail rather than connect without the port, and notice a broken connection within a minute.
_STEADY = (
    *("-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)


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


def pod_line(kubectl: Sequence[str], namespace: str, pod: str, *, local: int, remote: int) -> tuple[str, ...]:
    """``kubectl port-forward``; ``kubectl`` is the command with its context."""
    words = ("port-forward", f"--namespace={namespace}", f"--address={LOOPBACK}", f"pod/{pod}", f"{local}:{remote}")
    return (*kubectl, *words)


def bastion_line(bastion: AzureBastion, *, local: int, remote: int) -> tuple[str, ...]:
    """``az network bastion tunnel``, which listens at ``localhost`` only.

    https://learn.microsoft.com/cli/azure/network/bastion#az-network-bastion-tunnel
    """
    subscription = (f"--subscription={bastion.subscription}",) if bastion.subscription else ()
    return (
        *("az", "network", "bastion", "tunnel", f"--name={bastion.name}"),
        *(f"--resource-group={bastion.resource_group}", f"--target-resource-id={bastion.target}"),
        *(f"--resource-port={remote}", f"--port={local}", *subscription),
    )
