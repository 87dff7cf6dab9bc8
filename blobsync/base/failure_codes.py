"""Every code of a failure: the ``code`` in ``errors`` of ``--json``, in receipts and of ``FileFailure``.

The codes are public: scripts compare them. Each has one sentence, the exit code of the command, and the
retry rule of a transfer. ``docs/failure-codes.md`` is generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """The exit code of the process; scripts rely on these numbers. ``sentence`` says what each means."""

    sentence: str

    # The default is there for ``ExitCode(3)`` as well, which looks one up by its value.
    def __new__(cls, value: int, sentence: str = "") -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.sentence = sentence
        return code

    DONE = 0, "done and verified"
    FAILED = 1, "failed"
    USAGE = 2, "usage or configuration (nothing was changed)"
    PARTIAL = 3, "some files failed or conflict"
    NOTHING_MATCHED = 4, "nothing has that name"
    INTERRUPTED = 130, "interrupted"


class Retry(Enum):
    """Which engine retries a file that failed; the value is the sentence in the docs."""

    NONE = "no"
    DIRECT = "once, with the direct engine"
    DIRECT_AFTER_AZCOPY = "the direct engine retries by itself, and takes over files that azcopy fails on"
    NEW_SAS = "once, where azcopy can be given a new SAS"
    RELAY = "once, through this machine, with `--relay`"
    AT_THE_END = "waits for the connection, and once more at the end of the run"

    def engine_after(self, first: str) -> str | None:
        """The engine that retries after the engine ``first`` failed; None if a retry would not help."""
        if self is Retry.AT_THE_END and first != "relay":
            return "direct"
        if self is Retry.DIRECT:
            return "direct"
        if self is Retry.RELAY or (self is Retry.AT_THE_END and first == "relay"):
            return "relay"
        if first != "azcopy" or self is Retry.NONE:
            return None
        return "direct" if self is Retry.DIRECT_AFTER_AZCOPY else first


class FailureCode(str, Enum):
    """One kind of failure. It is a ``str`` equal to its value, and prints as that."""

    sentence: str
    exit_code: ExitCode
    retry: Retry

    # The defaults are there for ``FailureCode("usage")`` as well, which looks one up by its value.
    def __new__(
        cls, value: str, sentence: str = "", exit_code: ExitCode = ExitCode.FAILED, retry: Retry = Retry.NONE
    ) -> FailureCode:
        code = str.__new__(cls, value)
        code._value_ = value
        code.sentence, code.exit_code, code.retry = sentence, exit_code, retry
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
    PLAN_FILE_INVALID = "plan_file_invalid", "a saved plan cannot be read, or is out of date", ExitCode.USAGE
    CONFLICT = "conflict", "both sides changed since they were last verified", ExitCode.PARTIAL
    # Credentials
    CREDENTIAL_INVALID = "credential_invalid", "the credential cannot be used", ExitCode.USAGE
    SAS_EXPIRED = "sas_expired", "the SAS has expired", ExitCode.USAGE, Retry.NEW_SAS
    SAS_PERMISSION = "sas_permission", "the SAS lacks a permission", ExitCode.USAGE
    LOGIN_REQUIRED = "login_required", "not logged in to Azure", ExitCode.USAGE
    # The service and the network
    STORAGE_ERROR = "storage_error", "the service rejected the request"
    STORAGE_UNREACHABLE = (
        *("storage_unreachable", "the service cannot be reached"),
        *(ExitCode.FAILED, Retry.AT_THE_END),
    )
    ACCESS_DENIED = "access_denied", "the service denied access with this credential", ExitCode.USAGE
    CONTAINER_NOT_FOUND = "container_not_found", "the container does not exist", ExitCode.USAGE
    BLOB_NOT_FOUND = "blob_not_found", "the blob does not exist", ExitCode.NOTHING_MATCHED
    CHANGED_MEANWHILE = "changed_meanwhile", "the blob was changed by someone else since the plan was made"
    SERVICE_BUSY = (
        *("service_busy", "the service is busy or failing, after all retries"),
        *(ExitCode.FAILED, Retry.AT_THE_END),
    )
    CHECKSUM_MISMATCH = (
        *("checksum_mismatch", "the bytes that arrived are not the bytes that were sent"),
        *(ExitCode.FAILED, Retry.DIRECT_AFTER_AZCOPY),
    )
    COPY_SOURCE_REFUSED = (
        *("copy_source_refused", "the destination's service cannot read the source"),
        *(ExitCode.FAILED, Retry.RELAY),
    )
    # Files of a transfer
    LOCAL_FILE = "local_file", "local disk or file system error"
    DISK_FULL = "disk_full", "no space is left on the disk, or the quota is used up"
    DISK_TOO_SMALL = "disk_too_small", "the disk has less free space than a download needs", ExitCode.USAGE
    UNSAFE_NAME = "unsafe_name", "a name is not safe to use as a local path"
    UNREADABLE = "unreadable", "a file or folder of the source cannot be read"
    CHANGED_WHILE_READ = (
        *("changed_while_read", "the source changed while it was being read"),
        *(ExitCode.FAILED, Retry.DIRECT),
    )
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
    SPREAD_BUSY = (
        "spread_busy",
        "another command moves files to the same folder with `--nodes`",
        ExitCode.PARTIAL,
    )
    # Programs
    AZCOPY_FAILED = (
        "azcopy_failed",
        "azcopy failed on a file, or exited too early",
        ExitCode.FAILED,
        Retry.DIRECT_AFTER_AZCOPY,
    )
    AZCOPY_CANNOT_CARRY = (
        *("azcopy_cannot_carry", "azcopy would lose or change this file"),
        *(ExitCode.FAILED, Retry.DIRECT),
    )
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


@dataclass(frozen=True, slots=True)
class FileFailure:
    """One file that is not as planned, why, and what to do."""

    path: str
    code: FailureCode
    message: str
    hint: str | None = None
