"""Every error that blobsync raises on purpose.

One root; each class has a stable ``code`` (part of ``--json``), the exit code it leads to, one sentence
for the user, and an optional ``hint``: the next command to run or the thing to change.

    BlobsyncError                        1
      UsageError                         2   words on the command line that do not fit together
      ConfigError                        2   names file, line and key
        ConfigNotFoundError              2
        ForeignProjectError              2   a project of another user, which nobody said is to be trusted
        UnknownClusterError              2
      MappingError                       2
        UnmappedPathError                2
        OutsideProjectError              2
      PlanError                          2
        ShapeConflictError               2   a file where a folder should be, or blob ``a`` beside ``a/b``
        UnsafeNamesError                 2   names that cannot exist at the destination
        UntrustedLinkError               2   a symlink out of the project that nobody agreed to
        MirrorRefusedError               2
        PlanFileError                    2   a saved plan that cannot be read, or is out of date
      NothingMatchedError                4
      CredentialError                    2
        SasExpiredError                  2
        SasPermissionError               2
        LoginRequiredError               2
      StorageError                       1   what the service or the network answered
        StorageUnreachableError          1
        AccessDeniedError                2
        ContainerNotFoundError           2
        BlobNotFoundError                4
        PreconditionFailedError          1   the blob changed since it was looked at
        ThrottledError                   1   429, 500, 503 and the like, after all retries
        ChecksumError                    1   the bytes that arrived are not the bytes that were sent
        CopySourceRefusedError           1   the destination service may not, or cannot, read the source
      LocalFileError                     1   local disk or file system error
        UnsafeNameError                  1   a name from outside that must not become a path
      AzcopyError                        1
        AzcopyNotFoundError              2
        AzcopyVersionError               2
        AzcopyInstallError               1
      ProcessError                       1
        ProcessTimeoutError              1
      TransferCancelledError             130
      EmulatorError                      1
      ArchiveError                       1
        IgnorePatternError               2
        SecretsFoundError                2
      JobError                           1
        BackendUnavailableError          2
          BackendFailingError            1   no answer, 429 or 5xx after all retries
            BackendBusyError             1   turned away unread
          LostContactError               2   the answer got lost on the way
        SubmissionError                  1
        SubmissionUnknownError           1   whether the job was taken is not known; it stays in the history
        JobNotFoundError                 4
        AmbiguousJobError                2

Foreign exceptions become one of these in the module that calls the foreign thing, always
``raise ... from``. A ``ValueError`` out of our own code is a bug and is never shown as a user's mistake.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with; scripts rely on these numbers."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    NOTHING_MATCHED = 4
    INTERRUPTED = 130


class BlobsyncError(Exception):
    """Root of all errors above; ``str()`` is one sentence that is safe to print."""

    code = "error"
    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str | None = None, path: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path


class UsageError(BlobsyncError):
    code = "usage"
    exit_code = ExitCode.USAGE


class ConfigError(BlobsyncError):
    """A mistake in a configuration file; ``file:line: key`` leads the message where they are known."""

    code = "config_invalid"
    exit_code = ExitCode.USAGE

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
    code = "config_not_found"


class ForeignProjectError(ConfigError):
    code = "project_foreign"


class UnknownClusterError(ConfigError):
    code = "cluster_unknown"


class MappingError(BlobsyncError):
    code = "path_invalid"
    exit_code = ExitCode.USAGE


class UnmappedPathError(MappingError):
    code = "path_unmapped"


class OutsideProjectError(MappingError):
    code = "path_outside_project"


class PlanError(BlobsyncError):
    code = "plan_impossible"
    exit_code = ExitCode.USAGE


class ShapeConflictError(PlanError):
    code = "shape_conflict"


class UnsafeNamesError(PlanError):
    """Names that must not or cannot be written at the destination; ``names`` lists them all."""

    code = "names_unsafe"

    def __init__(self, message: str, *, names: tuple[tuple[str, str], ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.names = names


class UntrustedLinkError(PlanError):
    """``links`` are what the user has to agree to: where each is, from the project's root, and where it leads."""

    code = "link_untrusted"

    def __init__(self, message: str, *, links: tuple[tuple[str, str], ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint, path=links[0][0])
        self.links = links


class MirrorRefusedError(PlanError):
    code = "mirror_refused"


class PlanFileError(PlanError):
    code = "plan_file_invalid"


class NothingMatchedError(BlobsyncError):
    code = "nothing_matched"
    exit_code = ExitCode.NOTHING_MATCHED


class CredentialError(BlobsyncError):
    code = "credential_invalid"
    exit_code = ExitCode.USAGE


class SasExpiredError(CredentialError):
    code = "sas_expired"


class SasPermissionError(CredentialError):
    code = "sas_permission"


class LoginRequiredError(CredentialError):
    code = "login_required"


class StorageError(BlobsyncError):
    """An answer of the blob service that no retry could mend.

    ``status`` is the HTTP status, ``service_code`` the ``x-ms-error-code`` (both 0 or empty when nothing
    answered), ``request_id`` what Azure support asks for.
    """

    code = "storage_error"

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
    code = "storage_unreachable"


class AccessDeniedError(StorageError):
    code = "access_denied"
    exit_code = ExitCode.USAGE


class ContainerNotFoundError(StorageError):
    code = "container_not_found"
    exit_code = ExitCode.USAGE


class BlobNotFoundError(StorageError):
    code = "blob_not_found"
    exit_code = ExitCode.NOTHING_MATCHED


class PreconditionFailedError(StorageError):
    code = "changed_meanwhile"


class ThrottledError(StorageError):
    code = "service_busy"


class ChecksumError(StorageError):
    code = "checksum_mismatch"


class CopySourceRefusedError(StorageError):
    code = "copy_source_refused"


class LocalFileError(BlobsyncError):
    code = "local_file"


class UnsafeNameError(LocalFileError):
    """A name from outside that must not become a path here."""

    code = "unsafe_name"


class AzcopyError(BlobsyncError):
    code = "azcopy_failed"


class AzcopyNotFoundError(AzcopyError):
    code = "azcopy_not_found"
    exit_code = ExitCode.USAGE


class AzcopyVersionError(AzcopyError):
    code = "azcopy_version"
    exit_code = ExitCode.USAGE


class AzcopyInstallError(AzcopyError):
    code = "azcopy_install"


class ProcessError(BlobsyncError):
    code = "process_failed"


class ProcessTimeoutError(ProcessError):
    """It was started, and killed because it did not end in time."""


class TransferCancelledError(BlobsyncError):
    code = "cancelled"
    exit_code = ExitCode.INTERRUPTED


class EmulatorError(BlobsyncError):
    code = "emulator"


class ArchiveError(BlobsyncError):
    code = "archive"


class IgnorePatternError(ArchiveError):
    code = "ignore_pattern"
    exit_code = ExitCode.USAGE


class SecretsFoundError(ArchiveError):
    code = "secrets_found"
    exit_code = ExitCode.USAGE


class JobError(BlobsyncError):
    code = "job_failed"


class BackendUnavailableError(JobError):
    code = "backend_unavailable"
    exit_code = ExitCode.USAGE


class BackendDeniedError(BackendUnavailableError):
    code = "access_denied"


class BackendFailingError(BackendUnavailableError):
    code = "backend_failing"
    exit_code = ExitCode.FAILED


class BackendBusyError(BackendFailingError):
    """The request was turned away unread (429, 503)."""


class LostContactError(BackendUnavailableError):
    """The answer got lost on the way: what was asked for may have been done or not."""


class SubmissionUnknownError(JobError):
    code = "submission_unknown"
    exit_code = ExitCode.FAILED


class SubmissionError(JobError):
    code = "submission_failed"


class JobNotFoundError(JobError):
    code = "job_not_found"
    exit_code = ExitCode.NOTHING_MATCHED


class AmbiguousJobError(JobError):
    code = "job_ambiguous"
    exit_code = ExitCode.USAGE
