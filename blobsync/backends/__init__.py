"""The backends that run jobs: Slurm, Kubernetes, Azure ML and this machine, behind the ``Backend`` of ``protocol``.

Decides how a job is requested, and what the responses mean. In: a ``JobSpec`` and its secrets. Out: a request, a
``RunInfo``, logs. Each backend is imported when it is used, and none imports another. ``login_node`` runs commands over
ssh, ``port_forwarding`` makes the command lines of tunnels. Calls ``jobspec`` and what that calls.
"""

from __future__ import annotations

from importlib import import_module

from blobsync.backends.protocol import Backend, Surroundings
from blobsync.base.errors import BackendUnavailableError

# The module and the class of each platform.
_CLASSES = {
    "aml": ("aml.aml_backend", "AmlBackend"),
    "itp": ("aml.aml_backend", "AmlBackend"),
    "kubernetes": ("kubernetes.kubernetes_backend", "KubernetesBackend"),
    "local": ("local.local_backend", "LocalBackend"),
    "singularity": ("aml.aml_backend", "AmlBackend"),
    "slurm": ("slurm.slurm_backend", "SlurmBackend"),
}


def create_backend(around: Surroundings) -> Backend:
    """The backend of a cluster. Raises ``BackendUnavailableError`` for an unknown platform."""
    cluster = around.cluster
    if cluster.platform not in _CLASSES:
        raise BackendUnavailableError(
            f"cluster {cluster.name}: unknown platform {cluster.platform!r}",
            hint=f"choose one of {', '.join(_CLASSES)}",
        )
    module, name = _CLASSES[cluster.platform]
    backend: Backend = getattr(import_module(f"blobsync.backends.{module}"), name)(around)
    return backend
