"""Exact, verified transfers between a project's folders and Azure Blob storage, and jobs on that data.

    from blobsync import Project

    with Project.open() as project:
        project.upload("data/voc20").raise_for_failures()

``docs/python.md`` shows all of it. What is listed here is public, all else may change. Names are loaded when they are
first used, so that ``import blobsync`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

# isort: skip_file
# Type checkers know the constant of this name; typing itself would take most of the time of an import.
TYPE_CHECKING = False

# What is imported as itself is exported. The table below says the same for what is loaded late.
if TYPE_CHECKING:
    from blobsync.backends.aml.computes import (
        Compute as Compute,
        ComputeRequest as ComputeRequest,
        Computes as Computes,
        NodeBounds as NodeBounds,
    )
    from blobsync.backends.protocol import ClusterSummary as ClusterSummary, Holder as Holder
    from blobsync.base.errors import *  # noqa: F403 - each of them
    from blobsync.base.exit_codes import ExitCode as ExitCode
    from blobsync.base.events import (
        BytesMoved as BytesMoved,
        BytesReused as BytesReused,
        Connected as Connected,
        Disconnected as Disconnected,
        Event as Event,
        Expected as Expected,
        FilesCounted as FilesCounted,
        FilesDone as FilesDone,
        Hashing as Hashing,
        Listener as Listener,
        Looked as Looked,
        Moving as Moving,
        Note as Note,
        Phase as Phase,
        UnderWay as UnderWay,
        WorkerMoved as WorkerMoved,
    )
    from blobsync.base.file_states import FileState as FileState, LocalState as LocalState, RemoteState as RemoteState
    from blobsync.base.locations import BlobContainer as BlobContainer, BlobLocation as BlobLocation
    from blobsync.base.plan_reasons import Reason as Reason
    from blobsync.code.packed_files import CodeFile as CodeFile, Decision
    from blobsync.code.git import GitState as GitState
    from blobsync.code.project_code import (
        Code as Code,
        CodeOptions as CodeOptions,
        CodeResult as CodeResult,
        CodeState as CodeState,
    )
    from blobsync.code.secrets import PossibleSecret as PossibleSecret
    from blobsync.code.snapshot import CodeSnapshot as CodeSnapshot, HashedFile as HashedFile
    from blobsync.config.checkpoint_rule import CheckpointRule as CheckpointRule
    from blobsync.config.mapping import PathName as PathName, Paths as Paths, Resolution as Resolution
    from blobsync.config.model import (
        Cluster as Cluster,
        CodeEntry as CodeEntry,
        Docker as Docker,
        FolderEntry as FolderEntry,
        StorageAccount as StorageAccount,
    )
    from blobsync.config.sources import BucketAccess as BucketAccess, ListedFile as ListedFile, WebFiles as WebFiles
    from blobsync.jobs.array_job import ArrayJob as ArrayJob
    from blobsync.jobs.compare import (
        ComparedCode as ComparedCode,
        ComparedFact as ComparedFact,
        ComparedJobs as ComparedJobs,
    )
    from blobsync.jobs.logs import FetchedLogs as FetchedLogs
    from blobsync.jobs.outputs import CopiedOutputs as CopiedOutputs, JobOutputs as JobOutputs, OutputFile as OutputFile
    from blobsync.jobs.failure_causes import Cause as Cause, FoundCause as FoundCause
    from blobsync.jobs.queries import (
        Diagnosis as Diagnosis,
        JobLog as JobLog,
        JobName as JobName,
        JobPage as JobPage,
        JobReport as JobReport,
        LogLine as LogLine,
    )
    from blobsync.jobs.record import (
        JobFilter as JobFilter,
        JobList as JobList,
        JobRecord as JobRecord,
        JobTask as JobTask,
    )
    from blobsync.jobs.service import (
        Attempt as Attempt,
        Cancellation as Cancellation,
        Command as Command,
        PlannedJob as PlannedJob,
        Resubmission as Resubmission,
    )
    from blobsync.jobs.submit import Submitted as Submitted
    from blobsync.jobs.task_table import TaskRow as TaskRow
    from blobsync.jobspec.spec import (
        CodeRef as CodeRef,
        FolderLink as FolderLink,
        JobOptions as JobOptions,
        JobRef as JobRef,
        JobSpec as JobSpec,
        LogMirror as LogMirror,
        NodeArchiveRef as NodeArchiveRef,
        NodeChange as NodeChange,
        RunInfo as RunInfo,
        State,
        StateChange as StateChange,
        TaskArray as TaskArray,
        TaskInfo as TaskInfo,
    )
    from blobsync.jobspec.submit_options import SubmitKeywords as SubmitKeywords
    from blobsync.local.lock_files import Lock as Lock
    from blobsync.local.mark_complete import mark_complete as mark_complete
    from blobsync.local.trash import TrashedFile as TrashedFile
    from blobsync.plan.progress import Progress as Progress, WorkerProgress as WorkerProgress
    from blobsync.plan.saved_plan import SavedPlan as SavedPlan
    from blobsync.plan.spreading import SpreadPlan as SpreadPlan
    from blobsync.plan.transfer_keywords import TransferKeywords as TransferKeywords
    from blobsync.plan.transfer_options import (
        EngineName as EngineName,
        Keep as Keep,
        Links as Links,
        TransferOptions as TransferOptions,
    )
    from blobsync.plan.transfer_plan import (
        Action as Action,
        Direction as Direction,
        EngineChoice as EngineChoice,
        FileAction as FileAction,
        Part as Part,
        PlanPart as PlanPart,
        ProcessChoice as ProcessChoice,
        Route as Route,
        Shape as Shape,
        TransferPlan as TransferPlan,
    )
    from blobsync.plan.transfer_result import TransferResult as TransferResult
    from blobsync.project.api import Project as Project
    from blobsync.project.browse import (
        Beginning as Beginning,
        ListingEntry as ListingEntry,
        PathStatus as PathStatus,
        Usage as Usage,
    )
    from blobsync.project.checkpoints import Checkpoint as Checkpoint
    from blobsync.project.content import FileDifference as FileDifference
    from blobsync.project.folders import FolderName as FolderName, FolderStatus as FolderStatus
    from blobsync.project.job_writes import WritingJob as WritingJob
    from blobsync.project.jobs import Jobs as Jobs
    from blobsync.project.keep import Keeping as Keeping, KeepResult as KeepResult, KeptRound as KeptRound
    from blobsync.project.keeper_records import KeeperState as KeeperState
    from blobsync.project.transfer_history import RunningTransfer as RunningTransfer, TransferEntry as TransferEntry
    from blobsync.project.locks import (
        LockChange as LockChange,
        LockComparison as LockComparison,
        LockReport as LockReport,
    )
    from blobsync.project.open_jobs import open_jobs as open_jobs
    from blobsync.project.progress_listeners import OnProgress as OnProgress
    from blobsync.project.removal import Deletion as Deletion, Removal as Removal
    from blobsync.project.sharing import Link as Link
    from blobsync.project.status import (
        EntryStatus as EntryStatus,
        FileTally as FileTally,
        ProjectStatus as ProjectStatus,
    )
    from blobsync.project.transfer import Transfer as Transfer
    from blobsync.project.trash import Restored as Restored
    from blobsync.project.verify import ComparedFile as ComparedFile, VerifyReport as VerifyReport
    from blobsync.store.protocol import BlobInfo as BlobInfo, Checksum as Checksum
    from blobsync.tunnels.job_tunnel import JobTunnel as JobTunnel, TunnelRequest as TunnelRequest
    from blobsync.tunnels.named import NamedTunnel as NamedTunnel, Tunnels as Tunnels, TunnelState as TunnelState

    CodeDecision, JobState = Decision, State

__version__: str

# Module -> its public names. In their rooms it goes without saying what some are about: they get another one here.
_HOMES = {
    "backends.aml.computes": "Compute ComputeRequest Computes NodeBounds",
    "backends.protocol": "ClusterSummary Holder",
    "base.errors": (
        "AccessDeniedError AmbiguousJobError ArchiveError AzcopyError AzcopyInstallError AzcopyNotFoundError "
        "AzcopyVersionError BackendBusyError BackendDeniedError BackendFailingError BackendUnavailableError "
        "BlobNotFoundError BlobsyncError ChecksumError ConfigError ConfigNotFoundError ContainerNotFoundError "
        "CopySourceRefusedError CredentialError DiskFullError DiskTooSmallError EmulatorError FailureCode FileFailure "
        "ForeignProjectError IgnorePatternError IncompleteTransferError JobError JobNotFoundError LocalFileError "
        "LockError LoginRequiredError LostContactError LostContentError MappingError MirrorRefusedError "
        "NothingMatchedError OpenStateError OutsideProjectError PlanError PlanFileError PreconditionFailedError "
        "ProcessError ProcessTimeoutError Retry SasExpiredError SasPermissionError SecretsFoundError "
        "ShapeConflictError SourceChangedError SpreadBusyError StoppedError StorageError StorageUnreachableError "
        "SubmissionError SubmissionUnknownError ThrottledError TooManyTasksError TransferCancelledError "
        "TrashTooSmallError UndoImpossibleError UnknownClusterError UnmappedPathError UnsafeNameError UnsafeNamesError "
        "UntrustedCodeError UntrustedDockerError UntrustedLinkError UntrustedStateError UsageError"
    ),
    "base.events": (
        "BytesMoved BytesReused Connected Disconnected Event Expected FilesCounted FilesDone Hashing Listener Looked "
        "Moving Note Phase UnderWay WorkerMoved"
    ),
    "base.exit_codes": "ExitCode",
    "base.file_states": "FileState LocalState RemoteState",
    "base.locations": "BlobContainer BlobLocation",
    "base.plan_reasons": "Reason",
    "base.version": "__version__",
    "code.git": "GitState",
    "code.packed_files": "CodeFile Decision=CodeDecision",
    "code.project_code": "Code CodeOptions CodeResult CodeState",
    "code.secrets": "PossibleSecret",
    "code.snapshot": "CodeSnapshot HashedFile",
    "config.checkpoint_rule": "CheckpointRule",
    "config.mapping": "PathName Paths Resolution",
    "config.model": "Cluster CodeEntry Docker FolderEntry StorageAccount",
    "config.sources": "BucketAccess ListedFile WebFiles",
    "jobs.array_job": "ArrayJob",
    "jobs.compare": "ComparedCode ComparedFact ComparedJobs",
    "jobs.failure_causes": "Cause FoundCause",
    "jobs.logs": "FetchedLogs",
    "jobs.outputs": "CopiedOutputs JobOutputs OutputFile",
    "jobs.queries": "Diagnosis JobLog JobName JobPage JobReport LogLine",
    "jobs.record": "JobFilter JobList JobRecord JobTask",
    "jobs.service": "Attempt Cancellation Command PlannedJob Resubmission",
    "jobs.submit": "Submitted",
    "jobs.task_table": "TaskRow",
    "jobspec.spec": (
        "CodeRef FolderLink JobOptions JobRef JobSpec LogMirror NodeArchiveRef NodeChange RunInfo State=JobState "
        "StateChange TaskArray TaskInfo"
    ),
    "jobspec.submit_options": "SubmitKeywords",
    "local.lock_files": "Lock",
    "local.mark_complete": "mark_complete",
    "local.trash": "TrashedFile",
    "plan.progress": "Progress WorkerProgress",
    "plan.saved_plan": "SavedPlan",
    "plan.spreading": "SpreadPlan",
    "plan.transfer_keywords": "TransferKeywords",
    "plan.transfer_options": "EngineName Keep Links TransferOptions",
    "plan.transfer_plan": (
        "Action Direction EngineChoice FileAction Part PlanPart ProcessChoice Route Shape TransferPlan"
    ),
    "plan.transfer_result": "TransferResult",
    "project.api": "Project",
    "project.browse": "Beginning ListingEntry PathStatus Usage",
    "project.checkpoints": "Checkpoint",
    "project.content": "FileDifference",
    "project.folders": "FolderName FolderStatus",
    "project.job_writes": "WritingJob",
    "project.jobs": "Jobs",
    "project.keep": "KeepResult Keeping KeptRound",
    "project.keeper_records": "KeeperState",
    "project.locks": "LockChange LockComparison LockReport",
    "project.open_jobs": "open_jobs",
    "project.progress_listeners": "OnProgress",
    "project.removal": "Deletion Removal",
    "project.sharing": "Link",
    "project.status": "EntryStatus FileTally ProjectStatus",
    "project.transfer": "Transfer",
    "project.transfer_history": "RunningTransfer TransferEntry",
    "project.trash": "Restored",
    "project.verify": "ComparedFile VerifyReport",
    "store.protocol": "BlobInfo Checksum",
    "tunnels.job_tunnel": "JobTunnel TunnelRequest",
    "tunnels.named": "NamedTunnel TunnelState Tunnels",
}


def _homes() -> dict[str, tuple[str, str]]:
    """The module of each public name, and its name there."""
    found = {}
    for module, names in _HOMES.items():
        for at_home, _, name in (each.partition("=") for each in names.split()):
            found[name or at_home] = (f"{__name__}.{module}", at_home)
    return found


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    module, at_home = _homes().get(name, ("", ""))
    if not module:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), at_home)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
