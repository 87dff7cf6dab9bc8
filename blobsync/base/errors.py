"""Every error that blobsync raises on purpose, and the codes of all failures.

One root; each class has a :class:`FailureCode`, which sets the exit code; each error has one sentence for the user, and
an optional ``hint``: the next command to run, or what to change.

Modules that call other code convert its exceptions to these, always with ``raise ... from``. A ``ValueError`` from
our own code is a bug and is never shown as a user's mistake.

The codes are the ``code`` in ``errors`` of ``--json``, in receipts and of ``FileFailure``. They are public: scripts
compare them. Each has one sentence, the exit code of the command, and the retry rule of a transfer.
``docs/failure-codes.md`` is generated from this table.
"""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from blobsync.base.exit_codes import ExitCode
from blobsync.base.records import NamedTuple


class Retry(Enum):
    """Which engine retries a file that failed; the value is the sentence in the docs."""

    NONE = "no"
    DIRECT = "once more, with the direct engine, or with the relay again"
    DIRECT_AFTER_AZCOPY = "the direct engine retries by itself, and takes over files that azcopy fails on"
    NEW_SAS = "once more, where azcopy can be given a new SAS"
    RELAY = "once more, through this machine, with `--relay`"
    AT_THE_END = "waits for the connection, and once more at the end of the run"

    def engine_after(self, first: str) -> str | None:
        """The engine that retries after the engine ``first`` failed; None if a retry would not help."""
        if self is Retry.RELAY:
            return "relay"
        if self in (Retry.DIRECT, Retry.AT_THE_END):
            # What goes through this machine is what the service may not fetch.
            return "relay" if first == "relay" else "direct"
        if first != "azcopy" or self is Retry.NONE:
            return None
        return "direct" if self is Retry.DIRECT_AFTER_AZCOPY else first


class FailureCode(str, Enum):
    """One kind of failure. It is a ``str`` equal to its value, and prints as that."""

    sentence: str
    exit_code: ExitCode
    retry: Retry

    # The default is there for ``FailureCode("usage")`` as well, which looks one up by its value.
    def __new__(cls, value: str, sentence: str = "", *rules: ExitCode | Retry) -> "FailureCode":
        code = str.__new__(cls, value)
        code._value_ = value
        code.sentence, code.exit_code, code.retry = sentence, ExitCode.FAILED, Retry.NONE
        for rule in rules:
            if isinstance(rule, Retry):
                code.retry = rule
            else:
                code.exit_code = rule
        return code

    def __str__(self) -> str:
        return str(self.value)

    # Words and configuration
    USAGE = "usage", "the command line is invalid", ExitCode.USAGE
    CONFIG_INVALID = "config_invalid", "a mistake in a configuration file", ExitCode.USAGE
    CONFIG_NOT_FOUND = "config_not_found", "a project or a configuration file does not exist", ExitCode.USAGE
    PROJECT_FOREIGN = "project_foreign", "the project belongs to a user whom you do not trust yet", ExitCode.USAGE
    STATE_UNTRUSTED = "state_untrusted", "the project's state folder may be somebody else's", ExitCode.USAGE
    CLUSTER_UNKNOWN = "cluster_unknown", "no cluster has that name", ExitCode.USAGE
    PATH_INVALID = "path_invalid", "a PATH is invalid", ExitCode.USAGE
    PATH_UNMAPPED = "path_unmapped", "no folder entry of the cluster file covers the path", ExitCode.USAGE
    PATH_OUTSIDE_PROJECT = "path_outside_project", "the path lies outside the project", ExitCode.USAGE
    NOTHING_MATCHED = "nothing_matched", "nothing has that name", ExitCode.NOTHING_MATCHED
    # Plans
    PLAN_IMPOSSIBLE = "plan_impossible", "the request cannot be planned", ExitCode.USAGE
    SHAPE_CONFLICT = "shape_conflict", "a file is where a folder is needed, or the reverse", ExitCode.USAGE
    NAMES_UNSAFE = "names_unsafe", "the destination does not allow these names", ExitCode.USAGE
    LINK_UNTRUSTED = "link_untrusted", "a symlink points outside the project and is not trusted", ExitCode.USAGE
    LINK_REFUSED = "link_refused", "a symlink is refused, because of `--links error` or where it leads"
    MIRROR_REFUSED = "mirror_refused", "the deletions of `--mirror` look like a mistake", ExitCode.USAGE
    TRASH_TOO_SMALL = "trash_too_small", "the trash cannot hold the local files that would go", ExitCode.USAGE
    UNDO_IMPOSSIBLE = "undo_impossible", "what could not be undone is refused by `undo: required`", ExitCode.USAGE
    PLAN_FILE_INVALID = "plan_file_invalid", "a saved plan cannot be read, or is out of date", ExitCode.USAGE
    LOCK_INVALID = "lock_invalid", "a lock is missing, or is not the one that was written", ExitCode.USAGE
    CONTENT_LOST = "content_lost", "what a lock names is nowhere any more, so nothing was moved"
    CONFLICT = "conflict", "both sides changed since they were last verified", ExitCode.PARTIAL
    # Credentials
    CREDENTIAL_INVALID = "credential_invalid", "the credential cannot be used", ExitCode.USAGE
    SAS_EXPIRED = "sas_expired", "the SAS has expired", ExitCode.USAGE, Retry.NEW_SAS
    SAS_PERMISSION = "sas_permission", "the SAS lacks a permission", ExitCode.USAGE
    LOGIN_REQUIRED = "login_required", "not logged in to Azure", ExitCode.USAGE
    # The service and the network
    STORAGE_ERROR = "storage_error", "the service rejected the request"
    STORAGE_UNREACHABLE = "storage_unreachable", "the service cannot be reached", Retry.AT_THE_END
    ACCESS_DENIED = "access_denied", "the service denied access with this credential", ExitCode.USAGE
    CONTAINER_NOT_FOUND = "container_not_found", "the container does not exist", ExitCode.USAGE
    BLOB_NOT_FOUND = "blob_not_found", "the blob does not exist", ExitCode.NOTHING_MATCHED
    CHANGED_MEANWHILE = "changed_meanwhile", "the blob was changed by someone else since the plan was made"
    SERVICE_BUSY = "service_busy", "the service is busy or failing, after all retries", Retry.AT_THE_END
    CHECKSUM_MISMATCH = (
        "checksum_mismatch",
        "the bytes that arrived are not the bytes that were sent",
        Retry.DIRECT_AFTER_AZCOPY,
    )
    COPY_SOURCE_REFUSED = "copy_source_refused", "the destination's service cannot read the source", Retry.RELAY
    # Files of a transfer
    LOCAL_FILE = "local_file", "local disk or file system error"
    DISK_FULL = "disk_full", "no space is left on the disk, or the quota is used up"
    DISK_TOO_SMALL = "disk_too_small", "the disk has less free space than a download needs", ExitCode.USAGE
    UNSAFE_NAME = "unsafe_name", "a name is not safe to use as a local path"
    UNREADABLE = "unreadable", "a file or folder of the source cannot be read"
    CHANGED_WHILE_READ = "changed_while_read", "the source changed while it was being read", Retry.DIRECT
    MISSING_AFTER_TRANSFER = "missing_after_transfer", "the file is missing at the destination after the transfer"
    SIZE_MISMATCH = "size_mismatch", "the file's size differs at the destination"
    MD5_MISSING = "md5_missing", "the file arrived without an MD5 to check"
    MD5_MISMATCH = "md5_mismatch", "the file's content differs at the destination"
    DELETE_FAILED = "delete_failed", "the file was not deleted"
    NOT_REPORTED = "not_reported", "the engine reported no result for the file"
    NOT_PLANNED = "not_planned", "an engine reported a file that is not in the plan"
    NOT_ASKED_FOR = "not_asked_for", "azcopy copied a blob that is not in the plan"
    ACCOUNT_WRONG = "account_wrong", "the counts of a transfer do not add up: a bug in blobsync"
    TRANSFER_INCOMPLETE = "transfer_incomplete", "some files failed, or conflict", ExitCode.PARTIAL
    CANCELLED = "cancelled", "stopped by Ctrl-C or a signal", ExitCode.INTERRUPTED
    SPREAD_REFUSED = "spread_refused", "a node of the cluster cannot take part in the transfer"
    SPREAD_BUSY = "spread_busy", "another command moves files to the same folder with `--nodes`", ExitCode.PARTIAL
    # Programs
    AZCOPY_FAILED = "azcopy_failed", "azcopy failed on a file, or exited too early", Retry.DIRECT_AFTER_AZCOPY
    AZCOPY_CANNOT_CARRY = "azcopy_cannot_carry", "azcopy would lose or change this file", Retry.DIRECT
    AZCOPY_NOT_FOUND = "azcopy_not_found", "azcopy is not installed", ExitCode.USAGE
    AZCOPY_VERSION = "azcopy_version", "azcopy is too old, or cannot run here", ExitCode.USAGE
    AZCOPY_INSTALL = "azcopy_install", "azcopy could not be installed"
    PROCESS_FAILED = "process_failed", "a program could not be started, or timed out"
    EMULATOR = "emulator", "the storage emulator could not be installed, started or stopped"
    # Code
    ARCHIVE = "archive", "the code could not be packed"
    IGNORE_PATTERN = "ignore_pattern", "a pattern of an ignore file is invalid", ExitCode.USAGE
    SECRETS_FOUND = "secrets_found", "the code seems to contain a credential", ExitCode.USAGE
    CODE_UNTRUSTED = "code_untrusted", "the code of a job was neither published from here nor trusted", ExitCode.USAGE
    DOCKER_UNTRUSTED = (
        "docker_untrusted",
        "options for docker reach beyond the project and are not trusted",
        ExitCode.USAGE,
    )
    # Jobs
    JOB_FAILED = "job_failed", "a job operation failed"
    BACKEND_UNAVAILABLE = (
        "backend_unavailable",
        "the scheduler is unavailable, or the connection was lost",
        ExitCode.USAGE,
    )
    BACKEND_FAILING = "backend_failing", "the scheduler does not respond, or fails, after all retries"
    SUBMISSION_FAILED = "submission_failed", "the job was not accepted"
    SUBMISSION_UNKNOWN = "submission_unknown", "it is not known whether the job was accepted; it stays in the history"
    JOB_NOT_FOUND = "job_not_found", "there is no such job", ExitCode.NOTHING_MATCHED
    JOB_AMBIGUOUS = "job_ambiguous", "several jobs match", ExitCode.USAGE
    # Ours
    ERROR = "error", "any other error"
    INTERNAL = "internal", "a bug in blobsync"


class FileFailure(NamedTuple):
    """One file that is not as planned, why, and what to do."""

    path: str
    code: FailureCode
    message: str
    hint: str | None = None


class BlobsyncError(Exception):
    """Root of all errors; ``str()`` is one sentence that is safe to print."""

    code: FailureCode = FailureCode.ERROR

    def __init__(
        self, message: str, *, hint: str | None = None, path: str | None = None, code: FailureCode | None = None
    ) -> None:
        """``code`` takes the place of the class's."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path
        if code is not None:
            self.code = code

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
    """``name`` is the word that is no cluster of the project at ``root``."""

    code = FailureCode.CLUSTER_UNKNOWN

    def __init__(self, message: str, *, root: Path | None = None, name: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.root = root
        self.name = name


class UntrustedStateError(BlobsyncError):
    """``folder`` is the state folder; ``project`` the one that it was made for, None if unknown; ``root`` the one
    that contains it. ``question`` asks the user for what is needed."""

    code = FailureCode.STATE_UNTRUSTED

    def __init__(
        self, message: str, *, folder: str, project: str | None, root: str, question: str, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, path=folder)
        self.folder = folder
        self.project = project
        self.root = root
        self.question = question


class OpenStateError(UntrustedStateError):
    """``folder`` is the user's own, and others can write to it."""


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


class LostContentError(UnsafeNamesError):
    code = FailureCode.CONTENT_LOST


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


class UndoImpossibleError(PlanError):
    code = FailureCode.UNDO_IMPOSSIBLE


class TrashTooSmallError(PlanError):
    code = FailureCode.TRASH_TOO_SMALL


class PlanFileError(PlanError):
    code = FailureCode.PLAN_FILE_INVALID


class LockError(PlanError):
    code = FailureCode.LOCK_INVALID


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


class StoppedError(KeyboardInterrupt):
    """Ctrl-C, with what it leaves. A ``KeyboardInterrupt`` and not a :class:`BlobsyncError`: a program that catches
    those and continues with the next file must not continue after Ctrl-C.

    ``message`` and ``hint`` are as in other errors.
    """

    code: FailureCode = FailureCode.CANCELLED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def exit_code(self) -> ExitCode:
        """130, as for every program that Ctrl-C ends."""
        return self.code.exit_code


class TransferCancelledError(StoppedError):
    """Ctrl-C stopped a transfer; ``result`` is a ``TransferResult``: what was done before."""

    def __init__(self, message: str, *, hint: str | None = None, result: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.result = result


class IncompleteTransferError(BlobsyncError):
    """``failures`` are all files that failed or conflict; the message names the first."""

    code = FailureCode.TRANSFER_INCOMPLETE

    def __init__(self, message: str, *, failures: tuple[FileFailure, ...], hint: str | None = None) -> None:
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
    """``where`` is the place of the pattern as it is shown, ``detail`` the message without it."""

    code = FailureCode.IGNORE_PATTERN

    def __init__(self, detail: str, *, where: str, path: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {detail}", hint=hint, path=path)
        self.detail = detail


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


class TooManyTasksError(SubmissionError):
    """A limit of the platform or of the user allows fewer tasks at a time."""


class JobNotFoundError(JobError):
    code = FailureCode.JOB_NOT_FOUND


class AmbiguousJobError(JobError):
    code = FailureCode.JOB_AMBIGUOUS
