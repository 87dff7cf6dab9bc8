"""Why a job failed, read from its logs: known messages, what each means, and whether trying again helps.

The table is data. ``code`` is stable and is what ``--json`` shows; where ACT had a word for a cause, it is
ACT's. A pattern may only count when another text stands shortly before it (``after``), or from so many
occurrences on (``at_least``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TextIO

from blobsync.base.records import dataclass

# How many lines back ``after`` is looked for.
CONTEXT_LINES = 100
# How much of a line is searched, and how much is read at a time.
_LINE_CHARS = 4000
_READ_CHARS = 1 << 16
# How long a shown line may be.
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause of failure."""

    code: str
    pattern: str
    meaning: str
    retriable: bool = False
    after: str = ""
    unless_after: str = ""
    at_least: int = 1


@dataclass(frozen=True, slots=True, repr=False)
class FoundCause:
    """A cause that was found: where first, and how often."""

    cause: Cause
    log: str
    line_number: int
    line: str
    count: int

    def __repr__(self) -> str:
        return f"<FoundCause {self.cause.code} in {self.log}:{self.line_number}, {self.count:,} times>"


_BARRIER = r"barrier\(\)"

# One that may pass: another try, or another machine, may help.
_passing = partial(Cause, retriable=True)

CAUSES: tuple[Cause, ...] = (
    # Memory
    Cause(
        "OOM",
        r"CUDA out of memory|CUDA error: out of memory|torch\.(cuda\.)?OutOfMemoryError|HIP out of memory",
        "a GPU has too little memory: a smaller batch, activation checkpointing, or more GPUs",
        unless_after=_BARRIER,
    ),
    Cause(
        "HostOOM",
        r"OOMKilled|oom-kill|oom_kill|Out Of Memory|Out of memory: Killed process|^MemoryError",
        "the machine ran out of main memory: fewer loader workers, smaller caches, or a larger machine",
    ),
    Cause(
        "Loader",
        r"DataLoader worker \(pid|RuntimeError: DataLoader worker",
        "a data loader process died; often too little main or shared memory (docker.shm_size)",
    ),
    # GPUs
    _passing("ECC", r"ECC error|uncorrectable ECC|Xid.{0,60}: (48|63|64|94|95)\b", "a GPU has faulty memory"),
    _passing(
        "GPULost",
        r"GPU has fallen off the bus|Xid.{0,60}: 79\b|Unable to determine the device handle for GPU",
        "a GPU is no longer reachable: the machine is faulty",
    ),
    _passing(
        "Init",
        r"CUDA driver initialization failed|cuda runtime error \(3\) : initialization error",
        "the GPU driver did not start: the machine is faulty",
    ),
    _passing(
        "Init",
        r"NCCL error in|CUDA error: misaligned address|Connection reset by peer|all CUDA-capable devices"
        r"|CUDA out of memory|CUDA error: out of memory",
        "the processes could not connect to each other at the start: a machine is faulty",
        after=_BARRIER,
    ),
    _passing(
        "init_access",
        r"an illegal memory access was encountered",
        "a GPU failed at the first synchronisation: the machine is faulty",
        after=_BARRIER,
    ),
    Cause(
        "illegal_access",
        r"an illegal memory access was encountered",
        "a GPU kernel read or wrote outside its memory: most often a bug in a custom operator or an index",
        unless_after=_BARRIER,
    ),
    Cause("assert", r"device-side assert triggered", "an index or label is out of range on the GPU"),
    Cause(
        "DriverVersion",
        r"CUDA driver version is insufficient|no kernel image is available for execution",
        "the program was built for another CUDA version or GPU than this machine has",
    ),
    Cause("cuda", r"CUDA error|unhandled cuda error", "CUDA failed; CUDA_LAUNCH_BLOCKING=1 shows where"),
    # Network between the processes
    _passing(
        "NCCLTimeout",
        r"Watchdog caught collective operation timeout",
        "a collective operation timed out: one process was late, hung or dead",
    ),
    _passing(
        "NCCLSocket",
        r"ncclSystemError: System call|NCCL WARN.{0,120}(Net|socket).{0,120}(closed|refused|failed)",
        "NCCL could not use the network between the nodes",
    ),
    _passing(
        "NCCLRemote",
        r"ncclRemoteError|remote process exited or there was a network error",
        "another process ended first: look in the logs of the other ranks",
    ),
    _passing("IBVModifyQP", r"Call to ibv_modify_qp failed", "InfiniBand could not connect two nodes"),
    _passing("IBError", r"Got async event : local catastrophic error", "an InfiniBand card failed"),
    Cause("connect", r"connect\(\) timed out|The client socket has timed out", "a process could not reach the master"),
    _passing(
        "PortInUse",
        r"Address already in use|EADDRINUSE",
        "the master's port is taken; MASTER_PORT in env chooses another",
    ),
    _passing(
        "ORTE_comm",
        r"ORTE has lost communication with a remote daemon|PRTE has lost communication",
        "mpirun lost a node",
    ),
    Cause(
        "MpiRoot",
        r"mpirun has detected an attempt to run as root",
        "Open MPI does not run as root unless told to:"
        " env: {OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1'} in the cluster file",
    ),
    Cause(
        "MpiSlots",
        r"There are not enough slots available in the system",
        "mpirun was to start more processes than the job has places for: fewer of them, more nodes, or --oversubscribe",
    ),
    Cause(
        "MpiStart",
        r"mpirun was unable to (find|launch|start)|ORTE was unable to|PRTE was unable to|prterun was unable to"
        r"|mpirun: (command )?not found|mpirun.{0,3}: No such file",
        "mpirun could not start the program: the lines below it in the log say what is missing",
    ),
    Cause(
        "MpiOption",
        r"The specified (mapping|ranking|binding) policy is not recognized|mpirun: Error: unknown option"
        r"|Open MPI has detected that a parameter given to a command line",
        "mpirun was given an option, or a value of one, that it does not have: the lines below it in the log say which,"
        " and a variable OMPI_MCA_... can be where it comes from",
    ),
    Cause(
        "MpiAborted",
        r"Primary job +terminated normally, but|mpirun noticed that process rank|MPI_ABORT was invoked",
        "mpirun ended all processes because one of them failed: look in the logs of the other ranks",
    ),
    _passing(
        "waiting",
        r"has not done sshd setup wait",
        "the nodes of the job never found each other",
        at_least=1000,
    ),
    _passing("before", r"Signal code: Address not mapped", "a process crashed in native code"),
    # Machines and clusters
    _passing(
        "Preempted",
        r"DUE TO PREEMPTION|DisruptionTarget|Job was preempted|\bEvicted\b|\bPREEMPTED\b",
        "the machine was reclaimed for another job",
    ),
    Cause(
        "PodDeleted",
        r"its pod was deleted",
        "somebody, or a program of the cluster, deleted the pod of a node: blobsync resubmit runs the job again",
    ),
    _passing("NodeFail", r"DUE TO NODE FAILURE|NODE_FAIL\b", "a machine went down"),
    Cause("TimeLimit", r"DUE TO TIME LIMIT|^TIMEOUT\b", "the job reached its time limit"),
    Cause(
        "Image",
        r"ImagePullBackOff|ErrImagePull|manifest unknown|pull access denied",
        "the docker image cannot be pulled: wrong name, or no right to it",
    ),
    Cause("daemon", r"Error response from daemon", "docker refused to start the container"),
    Cause("Setup", r"this node could not be made ready", "code, folders or setup commands failed on a node"),
    Cause(
        "CodeNotAvail", r"unzip: +cannot find or open|the code archive .{0,300} does not hold", "the code was not there"
    ),
    # Storage
    Cause("NotUploaded", r"^\S+Z not uploaded: ", "outputs of the job are not in its container: the line says why"),
    _passing("NoSpace", r"No space left on device", "a disk is full"),
    Cause("Quota", r"Disk quota exceeded", "a disk quota is used up"),
    _passing("blobIO", r"Errno 5\] Input/output error", "a mounted blob folder failed"),
    Cause("BlobThrottle", r"ErrorCode:BlockCountExceedsLimit", "a blob has too many blocks: append less often"),
    Cause(
        "BlobAuth",
        r"AuthenticationFailed|AuthorizationPermissionMismatch|AuthorizationFailure",
        "the blob service refused the job: its SAS has ended or lacks a right",
    ),
    Cause("TooMany", r"Errno 24\] Too many open files", "too many open files: fewer workers, or ulimit -n"),
    # The program
    Cause("ModuleErr", r"ModuleNotFoundError|No module named", "a Python package is missing: setup can install it"),
    Cause(
        "SharedLibrary",
        r"error while loading shared libraries|cannot open shared object file",
        "a system library is missing in the image",
    ),
    Cause("FileNotFound", r"FileNotFoundError|No such file or directory: ", "the program did not find a file"),
    Cause(
        "CommandNotFound", r"command not found|cannot start .{0,300}: No such file", "the command is not on the node"
    ),
    Cause("Permission", r"PermissionError|Permission denied", "no permission for a file or folder"),
    Cause("NaN", r"NaN encountered!|[Ll]oss is (NaN|nan|inf)\b", "the loss is not a number any more"),
    Cause("RegNaN", r"regression_loss is NaN", "the regression loss is not a number any more"),
    Cause("ScaleNaN", r"ZeroDivisionError: float division by zero", "the loss scale became zero", after=r"1\./scale"),
    Cause("DSNaN", r"Attempted loss scale: 1, reducing to 1", "DeepSpeed cannot reduce the loss scale any further"),
    Cause("InputSmall", r"Output size is too small", "an input is smaller than the network can take"),
    Cause("copy_if", r"copy_if failed to synchronize", "a GPU kernel failed earlier than where it shows"),
    Cause(
        "mask compile",
        r"module 'maskrcnn_benchmark\._C'",
        "the native part of the project was not compiled: add it to setup",
    ),
    Cause(
        "DeprecatedNoIterInSampler",
        r"recommended to set attach_iter_in_sampler as True",
        "the sampler runs without an iteration number",
    ),
    _passing(
        "HuggingFaceConnect",
        r"(Internal Server Error|Server Error|Too Many Requests) for url: https://huggingface\.co",
        "Hugging Face did not answer",
    ),
    Cause("Segfault", r"Segmentation fault|SIGSEGV", "a process crashed in native code"),
    Cause(
        "Killed", r"exit(ed with)? code 137|exitcode: -9|^Killed$", "a process was killed, most often for its memory"
    ),
    Cause(
        "Hang",
        r"GPU (100%/[^\s%]+ ?)+$",
        "all GPUs show 100 % for hours while nothing is logged: the processes wait for each other",
        at_least=128,
    ),
)


def read_causes(log: str, lines: Iterable[str]) -> tuple[FoundCause, ...]:
    """The causes that one log shows, in the order of the table."""
    compiled = [(cause, re.compile(cause.pattern)) for cause in CAUSES]
    # Most lines match nothing: one search rules them out, instead of one per cause.
    anything = re.compile("|".join(f"(?:{cause.pattern})" for cause in CAUSES))
    seen: dict[int, tuple[int, str, int]] = {}
    before: deque[str] = deque(maxlen=CONTEXT_LINES)
    for index, line in enumerate(map(_bounded, lines)):
        matches = anything.search(line) is not None
        for number, (cause, pattern) in enumerate(compiled if matches else ()):
            if pattern.search(line) and _fits(cause, before):
                first, text, count = seen.get(number, (index + 1, line.strip()[:_SHOWN_CHARS], 0))
                seen[number] = (first, text, count + 1)
        before.append(line)
    return tuple(
        FoundCause(cause, log, *seen[number])
        for number, (cause, _) in enumerate(compiled)
        if number in seen and seen[number][2] >= cause.at_least
    )


def summarise(findings: Iterable[FoundCause]) -> tuple[FoundCause, ...]:
    """One cause per code, with added counts; plain ``cuda`` only if nothing more specific about a GPU was found."""
    merged: dict[str, FoundCause] = {}
    for finding in findings:
        known = merged.get(finding.cause.code)
        count = finding.count + (known.count if known else 0)
        first = known or finding
        merged[finding.cause.code] = FoundCause(first.cause, first.log, first.line_number, first.line, count)
    if merged.keys() & {"OOM", "ECC", "illegal_access", "init_access", "assert", "Init"}:
        merged.pop("cuda", None)
    return tuple(merged.values())


def is_retriable(findings: Iterable[FoundCause]) -> bool:
    """Whether another try may help."""
    return any(finding.cause.retriable for finding in findings)


def log_lines(stream: TextIO) -> Iterator[str]:
    """The lines of a log, of each the beginning and the end: a progress bar may write a line of gigabytes."""
    while line := stream.readline(_READ_CHARS):
        end = line
        while end and not end.endswith("\n"):
            end = stream.readline(_READ_CHARS)
            line = line[:_READ_CHARS] + line[_READ_CHARS:][-_LINE_CHARS:] + end
        yield line


def _bounded(line: str) -> str:
    """The part of a line that is searched: it bounds what takes quadratic time."""
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS // 2]} ... {line[-_LINE_CHARS // 2 :]}"


def _fits(cause: Cause, before: Iterable[str]) -> bool:
    if cause.after:
        return any(re.search(cause.after, line) for line in before)
    return not (cause.unless_after and any(re.search(cause.unless_after, line) for line in before))
