"""Errors about azcopy itself or its output."""

from __future__ import annotations

from blobsync.base.errors import BlobsyncError, FailureCode


class AzcopyError(BlobsyncError):
    """azcopy failed at what it was asked to do."""

    code = FailureCode.AZCOPY_FAILED


class AzcopyNotFoundError(AzcopyError):
    """azcopy is not installed on this machine."""

    code = FailureCode.AZCOPY_NOT_FOUND


class AzcopyVersionError(AzcopyError):
    """azcopy has a version that blobsync does not use."""

    code = FailureCode.AZCOPY_VERSION


class AzcopyInstallError(AzcopyError):
    """azcopy could not be downloaded, or the download is not the expected program."""

    code = FailureCode.AZCOPY_INSTALL
