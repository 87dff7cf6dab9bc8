"""Exact, verified transfers between a project's folders and Azure Blob storage.

    from blobsync import Project

    project = Project.open()
    result = project.upload(["data/voc20"])

Public names are loaded when they are first used, so that ``import blobsync`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blobsync.base.errors import BlobsyncError
    from blobsync.base.failure_codes import ExitCode
    from blobsync.plan.transfer_plan import TransferOptions, TransferPlan, TransferResult
    from blobsync.project.api import Project

__version__ = "0.1.0"

__all__ = [
    "BlobsyncError",
    "ExitCode",
    "Project",
    "TransferOptions",
    "TransferPlan",
    "TransferResult",
    "__version__",
]

_HOMES = {
    "BlobsyncError": "blobsync.base.errors",
    "ExitCode": "blobsync.base.failure_codes",
    "Project": "blobsync.project.api",
    "TransferOptions": "blobsync.plan.transfer_plan",
    "TransferPlan": "blobsync.plan.transfer_plan",
    "TransferResult": "blobsync.plan.transfer_plan",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
