"""The ssh service of a job on Azure ML: runs ``ssh`` to a node in the same way as ``az ml job connect-ssh``.

``connect-ssh`` has no option for a port. So ssh is started here: with the proxy program of Microsoft's extension
``ml``, which connects over a websocket with the login of ``az``. blobsync sends no credential there.

Sources: ``job_connect_ssh.go``, ``job_ssh_proxy.go`` and ``serviceinstance.go`` of ``azure.ai.training`` in
https://github.com/Azure/azure-dev (the response for a node, the user, ssh's options), and the extension's own
``azext_mlv2/manual/custom/_ssh_connector.py``, whose argument is the address. None of it was tried on Azure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from blobsync.backends.aml.replies import AmlReply
from blobsync.backends.port_forwarding import SshMachine, read_machine
from blobsync.base.errors import BackendUnavailableError, JobError
from blobsync.base.process import ProcessRunner

_ADDRESS = re.compile(
    r"wss://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/[A-Za-z0-9._/-]{0,200})?"
)
_TAG = re.compile(r"ssh://([A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5})")
# Lines of ``az --version``.
_PYTHON = re.compile(r"^Python location '(/[^'\n]+)'$", re.MULTILINE)
_EXTENSIONS = re.compile(r"^Extensions directory '(/[^'\n]+)'$", re.MULTILINE)
_CONNECTOR = "ml/azext_mlv2/manual/custom/_ssh_connector.py"
# A name of our own, under which ~/.ssh/config may set options such as a key. The proxy knows the address.
_USER, _NAME = "azureuser", "azureml-job"
# The Azure CLI starts slowly.
_AZ_SECONDS = 120.0


def find_az(process: ProcessRunner, environ: Mapping[str, str]) -> tuple[str, str]:
    """The Python of this machine's Azure CLI, and the proxy program of its extension.

    Raises ``BackendUnavailableError`` and ``ProcessError``.
    """
    output = process.run(("az", "--version"), timeout=_AZ_SECONDS, env=environ).stdout
    python, extensions = _PYTHON.search(output), _EXTENSIONS.search(output)
    if not python or not extensions:
        raise BackendUnavailableError(
            "az --version does not say where its Python and its extensions are", hint="update the Azure CLI: az upgrade"
        )
    connector = f"{extensions[1]}/{_CONNECTOR}"
    if not Path(connector).is_file():
        raise BackendUnavailableError("the Azure CLI has no extension ml", hint="az extension add --name ml")
    return python[1], connector


def read_address(body: AmlReply, run_id: str, node: int) -> str:
    """The address of a node's ssh service, from run history. Raises ``JobError``."""
    service = next((one for one in body.members("instances").values() if one.text("type") == "SSH"), None)
    if service is None:
        raise JobError(
            f"node {node} of {run_id} has no ssh service",
            hint="set ssh_public_key in the cluster file before you submit",
        )
    if service.text("status") != "Running":
        raise JobError(
            f"the ssh service of node {node} of {run_id} is {service.text('status') or 'not there yet'}",
            hint="it comes a minute or two after the job runs: try again",
        )
    address = service.inner("properties").text("ProxyEndpoint")
    if not _ADDRESS.fullmatch(address):
        raise JobError(f"Azure ML names no address for the ssh service of node {node} of {run_id}")
    return address


def machine_behind(az: tuple[str, str], address: str) -> SshMachine:
    """The node, which ssh reaches through the proxy program; ``az``: what ``find_az`` found."""
    return SshMachine(_NAME, _USER, proxy=(*az, address))


def tagged_machine(body: AmlReply) -> SshMachine | None:
    """The ssh address in the tags of a job on ITP, as ACT used it; None if there is none. Raises ``UsageError``."""
    match = _TAG.fullmatch(body.inner("properties").texts("tags").get("ssh", ""))
    return read_machine(match[1], "ssh") if match else None
