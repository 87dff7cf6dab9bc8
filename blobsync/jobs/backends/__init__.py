"""Which backend a cluster's ``platform`` means; each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from blobsync.base.errors import BackendUnavailableError
from blobsync.jobs.backends.base import Backend, Surroundings

MODULES = {
    "aml": "blobsync.jobs.backends.aml.backend",
    "itp": "blobsync.jobs.backends.aml.backend",
    "kubernetes": "blobsync.jobs.backends.kubernetes.backend",
    "local": "blobsync.jobs.backends.local.backend",
    "singularity": "blobsync.jobs.backends.aml.backend",
    "slurm": "blobsync.jobs.backends.slurm.backend",
}


class _Module(Protocol):
    def create(self, around: Surroundings) -> Backend: ...


def create_backend(platform: str, around: Surroundings) -> Backend:
    """The backend of ``platform``. Raises ``BackendUnavailableError`` for an unknown platform."""
    try:
        module = MODULES[platform]
    except KeyError:
        raise BackendUnavailableError(
            f"cluster {around.cluster}: unknown platform {platform!r}",
            hint=f"choose one of {', '.join(sorted(MODULES))}",
        ) from None
    return cast("_Module", import_module(module)).create(around)
