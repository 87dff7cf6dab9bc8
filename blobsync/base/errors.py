"""Every error that blobsync raises on purpose.

One root; each class has a code of ``failure_codes``, which sets the exit code; each error has one sentence
for the user, and an optional ``hint``: the next command to run, or what to change.
for the user, and an optional ``hint``: the next command to run, or what to change.
    BlobsyncError
      UsageError                         an invalid command line
      ConfigError                        names file, line and key
        ConfigNotFoundError
        ForeignProjectError              a project of another user that is not trusted
        UnknownClusterError
      UntrustedStateError                a state folder that may have come from somebody else
      MappingError
        UnmappedPathError
        OutsideProjectError
      PlanError
        ShapeConflictError               a file where a folder should be, or blob ``a`` beside ``a/b``
        UnsafeNamesError                 names that cannot exist at the destination
        UntrustedLinkError               a symlink out of the project that is not trusted
        MirrorRefusedError
        PlanFileError                    a saved plan that cannot be read, or is out of date
      NothingMatchedError
      CredentialError
        SasExpiredError
        SasPermissionError
        LoginRequiredError
      StorageError                       what the service or the network answered
        StorageUnreachableError
        AccessDeniedError
        ContainerNotFoundError
        BlobNotFoundError
        PreconditionFailedError          the blob changed since it was checked
        ThrottledError                   429, 500, 503 and the like, after all retries
        ChecksumError                    the bytes that arrived are not the bytes that were sent
        CopySourceRefusedError           the destination service cannot read the source
        SourceChangedError               the source of a copy is another version now
      LocalFileError                     local disk or file system error
        UnsafeNameError                  an external name that is not safe as a path
      AzcopyError                        of the room ``azcopy``, with three kinds
      ProcessError
        ProcessTimeoutError
      IncompleteTransferError            files failed or conflict; from Python, when asked to raise
      EmulatorError
      ArchiveError
        IgnorePatternError
        SecretsFoundError
        UntrustedCodeError               code for a job that was neither published from here nor trusted
      UntrustedDockerError               docker.args that reach beyond the project, on this machine
      JobError
        BackendUnavailableError
          BackendFailingError            no answer, 429 or 5xx after all retries
            BackendBusyError             rejected before it was processed
          LostContactError               the response was lost
        SubmissionError
        SubmissionUnknownError           unknown whether the job was accepted; it stays in the history
        JobNotFoundError
        AmbiguousJobError
    KeyboardInterrupt
      TransferCancelledError             Ctrl-C, after everything was stopped and recorded

Modules that call other code convert its exceptions to these, always with ``raise ... from``. A ``ValueError`` from our
own code is a bug and is never shown as a user's mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from blobsync.base.failure_codes import ExitCode, FailureCode


class BlobsyncError(Exception):
    """Root of all errors above; ``str()`` is one sentence that is safe to print."""

    code: FailureCode = FailureCode.ERROR

    def __init__(self, message: str, *, hint: str | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that raises this error."""
        return self.code.exit_code


class UsageError(BlobsyncError):
    code = FailureCode.USAGE


class ConfigError(BlobsyncError):
    """A mistake in a configuration file; the message starts with ``file:line: key`` if they are known."""

    code = FailureCode.CONFIG_INVALID

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        where = file or ""
        if file and line:
            where = f"{file}:{line}"
        parts = [part for part in (where, key) if part]
        super().__init__(": ".join([*parts, message]), hint=hint, path=file)
        self.file = file
        self.line = line
        self.key = key
        self.detail = message


class ConfigNotFoundError(ConfigError):
    code = FailureCode.CONFIG_NOT_FOUND


class ForeignProjectError(ConfigError):
    code = FailureCode.PROJECT_FOREIGN


class UnknownClusterError(ConfigError):
    code = FailureCode.CLUSTER_UNKNOWN


class UntrustedStateError(BlobsyncError):
    """``folder`` is the state folder; ``project`` the one that it was made for, None if unknown."""

    code = FailureCode.STATE_UNTRUSTED

    def __init__(self, message: str, *, folder: str, project: str | None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, path=folder)
        self.folder = folder
        self.project = project


class MappingError(BlobsyncError):
    code = FailureCode.PATH_INVALID


class UnmappedPathError(MappingError):
    code = FailureCode.PATH_UNMAPPED


class OutsideProjectError(MappingError):
    code = FailureCode.PATH_OUTSIDE_PROJECT


class PlanError(BlobsyncError):
    code = FailureCode.PLAN_IMPOSSIBLE


class ShapeConflictError(PlanError):
    code = FailureCode.SHAPE_CONFLICT


class UnsafeNamesError(PlanError):
    """Names that must not or cannot be written at the destination; ``names`` lists them all."""

    code = FailureCode.NAMES_UNSAFE

    def __init__(self, message: str, *, names: tuple[tuple[str, str], ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.names = names


class UntrustedLinkError(PlanError):
    """``links`` are what the user has to agree to: each link's path from the project's root, and its target."""

    code = FailureCode.LINK_UNTRUSTED

    def __init__(self, message: str, *, links: tuple[tuple[str, str], ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint, path=links[0][0])
        self.links = links


class MirrorRefusedError(PlanError):
    code = FailureCode.MIRROR_REFUSED


class DiskTooSmallError(PlanError):
    code = FailureCode.DISK_TOO_SMALL


class PlanFileError(PlanError):
    code = FailureCode.PLAN_FILE_INVALID


class NothingMatchedError(BlobsyncError):
    """``nearby`` finds the most similar existing name, None if there is none; it sends a request.

    ``elsewhere``: the other side has something with that name.
    """

    code = FailureCode.NOTHING_MATCHED

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        path: str | None = None,
        nearby: Callable[[], str | None] | None = None,
        elsewhere: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, path=path)
        self.nearby = nearby
        self.elsewhere = elsewhere

    def suggest(self) -> None:
        """Add the most similar existing name to the hint."""
        found = self.nearby() if self.nearby else None
        if found is not None:
            self.hint = f"did you mean {found}?" + (f" {self.hint}" if self.hint else "")
        self.nearby = None


class CredentialError(BlobsyncError):
    code = FailureCode.CREDENTIAL_INVALID


class SasExpiredError(CredentialError):
    code = FailureCode.SAS_EXPIRED


class SasPermissionError(CredentialError):
    code = FailureCode.SAS_PERMISSION


class LoginRequiredError(CredentialError):
    code = FailureCode.LOGIN_REQUIRED


class StorageError(BlobsyncError):
    """The blob service rejected a request, and a retry would not help.

    ``status`` is the HTTP status, ``service_code`` the ``x-ms-error-code`` (0 and empty if there was no response),
    ``request_id`` the ID that Azure support asks for.
    """

    code = FailureCode.STORAGE_ERROR

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        service_code: str = "",
        request_id: str = "",
        hint: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, path=path)
        self.status = status
        self.service_code = service_code
        self.request_id = request_id


class StorageUnreachableError(StorageError):
    code = FailureCode.STORAGE_UNREACHABLE


class AccessDeniedError(StorageError):
    code = FailureCode.ACCESS_DENIED


class ContainerNotFoundError(StorageError):
    code = FailureCode.CONTAINER_NOT_FOUND


class BlobNotFoundError(StorageError):
    code = FailureCode.BLOB_NOT_FOUND


class PreconditionFailedError(StorageError):
    code = FailureCode.CHANGED_MEANWHILE


class ThrottledError(StorageError):
    code = FailureCode.SERVICE_BUSY


class ChecksumError(StorageError):
    code = FailureCode.CHECKSUM_MISMATCH


class SourceChangedError(StorageError):
    code = FailureCode.CHANGED_WHILE_READ


class CopySourceRefusedError(StorageError):
    code = FailureCode.COPY_SOURCE_REFUSED


class LocalFileError(BlobsyncError):
    code = FailureCode.LOCAL_FILE


class DiskFullError(LocalFileError):
    code = FailureCode.DISK_FULL


class UnsafeNameError(LocalFileError):
    """An external name that must not be used as a local path."""

    code = FailureCode.UNSAFE_NAME


class ProcessError(BlobsyncError):
    code = FailureCode.PROCESS_FAILED


class ProcessTimeoutError(ProcessError):
    """The program was killed because it did not end in time."""


class TransferCancelledError(KeyboardInterrupt):
    """Ctrl-C stopped a transfer. A ``KeyboardInterrupt`` and not a :class:`BlobsyncError`: a program that catches those
    and continues with the next file must not continue after Ctrl-C.

    ``result`` is a ``TransferResult``: what was done before. ``message`` and ``hint`` are as in other errors.
    """

    code: FailureCode = FailureCode.CANCELLED

    def __init__(self, message: str, *, hint: str | None = None, result: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.result = result

    @property
    def exit_code(self) -> ExitCode:
        """130, as for every program that Ctrl-C ends."""
        return self.code.exit_code


class Failure(Protocol):
    """A file that was not transferred as planned: ``blobsync.FileFailure``."""

    @property
    def path(self) -> str: ...

    @property
    def code(self) -> FailureCode: ...

    @property
    def message(self) -> str: ...

    @property
    def hint(self) -> str | None: ...


class IncompleteTransferError(BlobsyncError):
    """``failures`` are all files that failed or conflict; the message names the first."""

    code = FailureCode.TRANSFER_INCOMPLETE

    def __init__(self, message: str, *, failures: tuple[Failure, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.failures = failures


class SpreadBusyError(BlobsyncError):
    """Another process is spreading a transfer to the same folder now."""

    code = FailureCode.SPREAD_BUSY


class EmulatorError(BlobsyncError):
    code = FailureCode.EMULATOR


class ArchiveError(BlobsyncError):
    code = FailureCode.ARCHIVE


class IgnorePatternError(ArchiveError):
    code = FailureCode.IGNORE_PATTERN


class SecretsFoundError(ArchiveError):
    code = FailureCode.SECRETS_FOUND


class UntrustedCodeError(ArchiveError):
    """``digest`` is what the user has to agree to; empty if the code has no digest."""

    code = FailureCode.CODE_UNTRUSTED

    def __init__(self, message: str, *, digest: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.digest = digest


class UntrustedDockerError(BlobsyncError):
    """``options`` are the docker options that the user has to agree to."""

    code = FailureCode.DOCKER_UNTRUSTED

    def __init__(self, message: str, *, options: tuple[str, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.options = options


class JobError(BlobsyncError):
    code = FailureCode.JOB_FAILED


class BackendUnavailableError(JobError):
    code = FailureCode.BACKEND_UNAVAILABLE


class BackendDeniedError(BackendUnavailableError):
    code = FailureCode.ACCESS_DENIED


class BackendFailingError(BackendUnavailableError):
    code = FailureCode.BACKEND_FAILING


class BackendBusyError(BackendFailingError):
    """The request was rejected before it was processed (429, 503)."""


class LostContactError(BackendUnavailableError):
    """The response was lost: the request may or may not have been carried out."""


class SubmissionUnknownError(JobError):
    code = FailureCode.SUBMISSION_UNKNOWN


class SubmissionError(JobError):
    code = FailureCode.SUBMISSION_FAILED


class JobNotFoundError(JobError):
    code = FailureCode.JOB_NOT_FOUND


class AmbiguousJobError(JobError):
    code = FailureCode.JOB_AMBIGUOUS
