"""Exact, verified transfers between a project's folders and Azure Blob storage, and jobs on that data.

    from blobsync import Project

    with Project.open() as project:
        project.upload("data/voc20").raise_for_failures()

``docs/python.md`` shows all of it. What is listed here is public, all else may change. Names are loaded when they are
first used, so that ``import blobsync`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blobsync.backends.aml.computes import Compute, ComputeRequest, Computes, NodeBounds
    from blobsync.backends.protocol import ClusterSummary, Holder
    from blobsync.base.errors import (
        AccessDeniedError,
        AmbiguousJobError,
        ArchiveError,
        AzcopyError,
        AzcopyInstallError,
        AzcopyNotFoundError,
        AzcopyVersionError,
        BackendBusyError,
        BackendDeniedError,
        BackendFailingError,
        BackendUnavailableError,
        BlobNotFoundError,
        BlobsyncError,
        ChecksumError,
        ConfigError,
        ConfigNotFoundError,
        ContainerNotFoundError,
        CopySourceRefusedError,
        CredentialError,
        DiskFullError,
        DiskTooSmallError,
        EmulatorError,
        ExitCode,
        FailureCode,
        FileFailure,
        ForeignProjectError,
        IgnorePatternError,
        IncompleteTransferError,
        JobError,
        JobNotFoundError,
        LocalFileError,
        LoginRequiredError,
        LostContactError,
        MappingError,
        MirrorRefusedError,
        NothingMatchedError,
        OpenStateError,
        OutsideProjectError,
        PlanError,
        PlanFileError,
        PreconditionFailedError,
        ProcessError,
        ProcessTimeoutError,
        Retry,
        SasExpiredError,
        SasPermissionError,
        SecretsFoundError,
        ShapeConflictError,
        SourceChangedError,
        SpreadBusyError,
        StorageError,
        StorageUnreachableError,
        SubmissionError,
        SubmissionUnknownError,
        ThrottledError,
        TooManyTasksError,
        TransferCancelledError,
        UnknownClusterError,
        UnmappedPathError,
        UnsafeNameError,
        UnsafeNamesError,
        UntrustedCodeError,
        UntrustedDockerError,
        UntrustedLinkError,
        UntrustedStateError,
        UsageError,
    )
    from blobsync.base.events import (
        BytesMoved,
        BytesReused,
        Connected,
        Disconnected,
        Event,
        Expected,
        FileDone,
        FilesCounted,
        Hashing,
        Listener,
        Looked,
        Moving,
        Note,
        Phase,
        UnderWay,
        WorkerMoved,
    )
    from blobsync.base.file_states import FileState, LocalState, RemoteState
    from blobsync.base.locations import BlobContainer, BlobLocation
    from blobsync.base.reasons import Reason
    from blobsync.code.files import CodeFile
    from blobsync.code.files import Decision as CodeDecision
    from blobsync.code.git import GitState
    from blobsync.code.project_code import Code, CodeOptions, CodeResult, CodeState
    from blobsync.code.secrets import PossibleSecret
    from blobsync.code.snapshot import CodeSnapshot, HashedFile
    from blobsync.config.mapping import PathName, Paths, Resolution
    from blobsync.config.model import (
        BucketAccess,
        CheckpointRule,
        Cluster,
        CodeEntry,
        Docker,
        FolderEntry,
        ListedFile,
        StorageAccount,
        WebFiles,
    )
    from blobsync.jobs.compare import ComparedCode, ComparedFact, ComparedJobs
    from blobsync.jobs.logs import FetchedLogs
    from blobsync.jobs.outputs import CopiedOutputs, JobOutputs, OutputFile
    from blobsync.jobs.parse import Cause, FoundCause
    from blobsync.jobs.queries import Diagnosis, JobLog, JobName, JobPage, JobReport, LogLine
    from blobsync.jobs.record import JobFilter, JobRecord
    from blobsync.jobs.service import Attempt, Cancellation, Command, PlannedJob, Resubmission
    from blobsync.jobs.states import JobList
    from blobsync.jobs.submit import Submitted
    from blobsync.jobspec.spec import (
        CodeRef,
        FolderLink,
        JobOptions,
        JobRef,
        JobSpec,
        LogMirror,
        NodeArchiveRef,
        NodeChange,
        RunInfo,
        StateChange,
        TaskArray,
    )
    from blobsync.jobspec.spec import State as JobState
    from blobsync.jobspec.submit_options import SubmitKeywords
    from blobsync.keep.listing import Checkpoint
    from blobsync.local.set_requests import mark_complete
    from blobsync.plan.progress import Progress, WorkerProgress
    from blobsync.plan.saved_plan import SavedPlan
    from blobsync.plan.transfer_options import EngineName, Keep, Links, TransferKeywords, TransferOptions
    from blobsync.plan.transfer_plan import (
        Action,
        Direction,
        EngineChoice,
        FileAction,
        Part,
        PlanPart,
        ProcessChoice,
        Route,
        Shape,
        SpreadPlan,
        TransferPlan,
        TransferResult,
    )
    from blobsync.project.api import Project
    from blobsync.project.browse import Beginning, ListingEntry, PathStatus, Usage
    from blobsync.project.content import FileDifference
    from blobsync.project.folders import FolderName, FolderStatus
    from blobsync.project.job_writes import WritingJob
    from blobsync.project.jobs import Jobs
    from blobsync.project.keep import Keeping, KeepResult, KeptRound
    from blobsync.project.keeper_records import KeeperState
    from blobsync.project.logbook import RunningTransfer, TransferEntry
    from blobsync.project.open_jobs import open_jobs
    from blobsync.project.progress_listeners import OnProgress
    from blobsync.project.removal import Deletion, Removal
    from blobsync.project.sharing import Link
    from blobsync.project.status import EntryStatus, FileTally, ProjectStatus
    from blobsync.project.transfer import Transfer
    from blobsync.project.verify import ComparedFile, VerifyReport
    from blobsync.store.protocol import BlobInfo, Checksum
    from blobsync.tunnels.job_tunnel import JobTunnel
    from blobsync.tunnels.named import NamedTunnel, Tunnels, TunnelState
    from blobsync.tunnels.node_apps import TunnelRequest

__version__: str

__all__ = [
    "AccessDeniedError",
    "Action",
    "AmbiguousJobError",
    "ArchiveError",
    "Attempt",
    "AzcopyError",
    "AzcopyInstallError",
    "AzcopyNotFoundError",
    "AzcopyVersionError",
    "BackendBusyError",
    "BackendDeniedError",
    "BackendFailingError",
    "BackendUnavailableError",
    "Beginning",
    "BlobContainer",
    "BlobInfo",
    "BlobLocation",
    "BlobNotFoundError",
    "BlobsyncError",
    "BucketAccess",
    "BytesMoved",
    "BytesReused",
    "Cancellation",
    "Cause",
    "Checkpoint",
    "CheckpointRule",
    "Checksum",
    "ChecksumError",
    "Cluster",
    "ClusterSummary",
    "Code",
    "CodeDecision",
    "CodeEntry",
    "CodeFile",
    "CodeOptions",
    "CodeRef",
    "CodeResult",
    "CodeSnapshot",
    "CodeState",
    "Command",
    "ComparedCode",
    "ComparedFact",
    "ComparedFile",
    "ComparedJobs",
    "Compute",
    "ComputeRequest",
    "Computes",
    "ConfigError",
    "ConfigNotFoundError",
    "Connected",
    "ContainerNotFoundError",
    "CopiedOutputs",
    "CopySourceRefusedError",
    "CredentialError",
    "Deletion",
    "Diagnosis",
    "Direction",
    "Disconnected",
    "DiskFullError",
    "DiskTooSmallError",
    "Docker",
    "EmulatorError",
    "EngineChoice",
    "EngineName",
    "EntryStatus",
    "Event",
    "ExitCode",
    "Expected",
    "FailureCode",
    "FetchedLogs",
    "FileAction",
    "FileDifference",
    "FileDone",
    "FileFailure",
    "FileState",
    "FileTally",
    "FilesCounted",
    "FolderEntry",
    "FolderLink",
    "FolderName",
    "FolderStatus",
    "ForeignProjectError",
    "FoundCause",
    "GitState",
    "HashedFile",
    "Hashing",
    "Holder",
    "IgnorePatternError",
    "IncompleteTransferError",
    "JobError",
    "JobFilter",
    "JobList",
    "JobLog",
    "JobName",
    "JobNotFoundError",
    "JobOptions",
    "JobOutputs",
    "JobPage",
    "JobRecord",
    "JobRef",
    "JobReport",
    "JobSpec",
    "JobState",
    "JobTunnel",
    "Jobs",
    "Keep",
    "KeepResult",
    "KeeperState",
    "Keeping",
    "KeptRound",
    "Link",
    "Links",
    "ListedFile",
    "Listener",
    "ListingEntry",
    "LocalFileError",
    "LocalState",
    "LogLine",
    "LogMirror",
    "LoginRequiredError",
    "Looked",
    "LostContactError",
    "MappingError",
    "MirrorRefusedError",
    "Moving",
    "NamedTunnel",
    "NodeArchiveRef",
    "NodeBounds",
    "NodeChange",
    "Note",
    "NothingMatchedError",
    "OnProgress",
    "OpenStateError",
    "OutputFile",
    "OutsideProjectError",
    "Part",
    "PathName",
    "PathStatus",
    "Paths",
    "Phase",
    "PlanError",
    "PlanFileError",
    "PlanPart",
    "PlannedJob",
    "PossibleSecret",
    "PreconditionFailedError",
    "ProcessChoice",
    "ProcessError",
    "ProcessTimeoutError",
    "Progress",
    "Project",
    "ProjectStatus",
    "Reason",
    "RemoteState",
    "Removal",
    "Resolution",
    "Resubmission",
    "Retry",
    "Route",
    "RunInfo",
    "RunningTransfer",
    "SasExpiredError",
    "SasPermissionError",
    "SavedPlan",
    "SecretsFoundError",
    "Shape",
    "ShapeConflictError",
    "SourceChangedError",
    "SpreadBusyError",
    "SpreadPlan",
    "StateChange",
    "StorageAccount",
    "StorageError",
    "StorageUnreachableError",
    "SubmissionError",
    "SubmissionUnknownError",
    "SubmitKeywords",
    "Submitted",
    "TaskArray",
    "ThrottledError",
    "TooManyTasksError",
    "Transfer",
    "TransferCancelledError",
    "TransferEntry",
    "TransferKeywords",
    "TransferOptions",
    "TransferPlan",
    "TransferResult",
    "TunnelRequest",
    "TunnelState",
    "Tunnels",
    "UnderWay",
    "UnknownClusterError",
    "UnmappedPathError",
    "UnsafeNameError",
    "UnsafeNamesError",
    "UntrustedCodeError",
    "UntrustedDockerError",
    "UntrustedLinkError",
    "UntrustedStateError",
    "Usage",
    "UsageError",
    "VerifyReport",
    "WebFiles",
    "WorkerMoved",
    "WorkerProgress",
    "WritingJob",
    "__version__",
    "mark_complete",
    "open_jobs",
]

# Where each name is at home, for those that ask for it; errors have a room of their own.
_ERRORS = "blobsync.base.errors"
_HOMES = {
    "blobsync.base.events": (
        "BytesMoved",
        "BytesReused",
        "Connected",
        "Disconnected",
        "Event",
        "Expected",
        "FileDone",
        "FilesCounted",
        "Hashing",
        "Listener",
        "Looked",
        "Moving",
        "Note",
        "Phase",
        "UnderWay",
        "WorkerMoved",
    ),
    "blobsync.base.errors": ("ExitCode", "FailureCode", "FileFailure", "Retry"),
    "blobsync.base.file_states": ("FileState", "LocalState", "RemoteState"),
    "blobsync.base.locations": ("BlobContainer", "BlobLocation"),
    "blobsync.base.reasons": ("Reason",),
    "blobsync.local.set_requests": ("mark_complete",),
    "blobsync.base.version": ("__version__",),
    "blobsync.code.files": ("CodeDecision", "CodeFile"),
    "blobsync.code.git": ("GitState",),
    "blobsync.code.project_code": ("Code", "CodeOptions", "CodeResult", "CodeState"),
    "blobsync.code.secrets": ("PossibleSecret",),
    "blobsync.code.snapshot": ("CodeSnapshot", "HashedFile"),
    "blobsync.config.mapping": ("PathName", "Paths", "Resolution"),
    "blobsync.config.model": (
        *("BucketAccess", "CheckpointRule", "Cluster", "CodeEntry", "Docker", "FolderEntry", "ListedFile"),
        *("StorageAccount", "WebFiles"),
    ),
    "blobsync.backends.aml.computes": ("Compute", "ComputeRequest", "Computes", "NodeBounds"),
    "blobsync.backends.protocol": ("ClusterSummary", "Holder"),
    "blobsync.jobs.compare": ("ComparedFact", "ComparedCode", "ComparedJobs"),
    "blobsync.jobs.queries": ("Diagnosis", "JobLog", "JobName", "JobPage", "JobReport", "LogLine"),
    "blobsync.jobs.service": ("Attempt", "Cancellation", "Command", "PlannedJob", "Resubmission"),
    "blobsync.jobs.states": ("JobList",),
    "blobsync.jobs.record": ("JobFilter", "JobRecord"),
    "blobsync.jobs.logs": ("FetchedLogs",),
    "blobsync.jobs.outputs": ("CopiedOutputs", "JobOutputs", "OutputFile"),
    "blobsync.jobs.parse": ("Cause", "FoundCause"),
    "blobsync.jobspec.spec": (
        *(
            "CodeRef",
            "FolderLink",
            "JobOptions",
            "JobRef",
            "JobSpec",
            "JobState",
            "LogMirror",
            "NodeArchiveRef",
            "NodeChange",
        ),
        *("RunInfo", "StateChange", "TaskArray"),
    ),
    "blobsync.jobspec.submit_options": ("SubmitKeywords",),
    "blobsync.jobs.submit": ("Submitted",),
    "blobsync.tunnels.node_apps": ("TunnelRequest",),
    "blobsync.tunnels.job_tunnel": ("JobTunnel",),
    "blobsync.tunnels.named": ("NamedTunnel", "TunnelState", "Tunnels"),
    "blobsync.project.logbook": ("RunningTransfer", "TransferEntry"),
    "blobsync.keep.listing": ("Checkpoint",),
    "blobsync.plan.progress": ("Progress", "WorkerProgress"),
    "blobsync.plan.saved_plan": ("SavedPlan",),
    "blobsync.plan.transfer_options": ("EngineName", "Keep", "Links", "TransferKeywords", "TransferOptions"),
    "blobsync.plan.transfer_plan": (
        "Action",
        "Direction",
        "EngineChoice",
        "FileAction",
        "Part",
        "PlanPart",
        "ProcessChoice",
        "Route",
        "Shape",
        "SpreadPlan",
        "TransferPlan",
        "TransferResult",
    ),
    "blobsync.project.api": ("Project",),
    "blobsync.project.browse": ("Beginning", "ListingEntry", "PathStatus", "Usage"),
    "blobsync.project.progress_listeners": ("OnProgress",),
    "blobsync.project.content": ("FileDifference",),
    "blobsync.project.folders": ("FolderName", "FolderStatus"),
    "blobsync.project.job_writes": ("WritingJob",),
    "blobsync.project.jobs": ("Jobs",),
    "blobsync.project.keeper_records": ("KeeperState",),
    "blobsync.project.keep": ("KeepResult", "Keeping", "KeptRound"),
    "blobsync.project.open_jobs": ("open_jobs",),
    "blobsync.project.removal": ("Deletion", "Removal"),
    "blobsync.project.sharing": ("Link",),
    "blobsync.project.status": ("EntryStatus", "FileTally", "ProjectStatus"),
    "blobsync.project.transfer": ("Transfer",),
    "blobsync.project.verify": ("ComparedFile", "VerifyReport"),
    "blobsync.store.protocol": ("BlobInfo", "Checksum"),
}
# In their rooms it goes without saying what they are about.
_NAMES_AT_HOME = {"CodeDecision": "Decision", "JobState": "State"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), _ERRORS)
    value: object = getattr(import_module(home), _NAMES_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
