"""What is wrong with azcopy itself, or with what it answers."""

from __future__ import annotations

from blobsync.base.errors import BlobsyncError
from blobsync.base.failure_codes import FailureCode


class AzcopyError(BlobsyncError):
    """It could not do what it was asked for."""

    code = FailureCode.AZCOPY_FAILED


class AzcopyNotFoundError(AzcopyError):
    """There is none on this machine."""

    code = FailureCode.AZCOPY_NOT_FOUND


class AzcopyVersionError(AzcopyError):
    """There is one, of a version that blobsync does not use."""

    code = FailureCode.AZCOPY_VERSION


class AzcopyInstallError(AzcopyError):
    """It could not be fetched, or is not what was to be fetched."""

    code = FailureCode.AZCOPY_INSTALL
