"""The backends that run jobs: Slurm, Kubernetes, Azure ML and this machine, behind the ``Backend`` of ``protocol``.

Decides how a job is requested, and what the responses mean. In: a ``JobSpec`` and its secrets. Out: a request, a
``RunInfo``, logs. Each backend is imported when it is used, and none imports another. ``login_node`` runs commands over
ssh, ``ssh_arguments`` and ``port_forwarding`` make the command lines of tunnels. Calls ``jobspec`` and what that calls.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast

from blobsync.backends.protocol import Backend, Surroundings
from blobsync.base.errors import BackendUnavailableError

MODULES = {
    "aml": "blobsync.backends.aml.aml_backend",
    "itp": "blobsync.backends.aml.aml_backend",
    "kubernetes": "blobsync.backends.kubernetes.kubernetes_backend",
    "local": "blobsync.backends.local.local_backend",
    "singularity": "blobsync.backends.aml.aml_backend",
    "slurm": "blobsync.backends.slurm.slurm_backend",
}


class _Module(Protocol):
    def create(self, around: Surroundings) -> Backend[Any]: ...


def create_backend(platform: str, around: Surroundings) -> Backend[Any]:
    """The backend of ``platform``. Raises ``BackendUnavailableError`` for an unknown platform."""
    try:
        module = MODULES[platform]
    except KeyError:
        raise BackendUnavailableError(
            f"cluster {around.cluster}: unknown platform {platform!r}",
            hint=f"choose one of {', '.join(sorted(MODULES))}",
        ) from None
    return cast("_Module", import_module(module)).create(around)
