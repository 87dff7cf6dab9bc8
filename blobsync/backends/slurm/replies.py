"""Parses output of Slurm's commands. Pure.

``squeue -O`` pads and cuts each field to the requested width, so its lines are read by position.

pyslurm has to be built against the cluster's own version of Slurm, and ``--json`` of its commands came with 21.08 and
changes from version to version; the text output is stable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from blobsync.backends.protocol import ClusterSummary, Holder
from blobsync.base.errors import UsageError
from blobsync.base.exit_codes import shell_code
from blobsync.base.formatting import count_text
from blobsync.base.records import dataclass
from blobsync.jobspec.spec import RunInfo, State, StateChange
from blobsync.jobspec.sweep import read_array
from blobsync.jobspec.task_states import ORDER

PREPARING_WORD = "PREPARING"
# https://slurm.schedmd.com/job_state_codes.html. A preempted job that will run again is PENDING in squeue; one that is
# only in the accounting, as PREEMPTED, will not.
_WORDS = {
    State.QUEUED: "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT SUSPENDED STOPPED",
    # The last one is not Slurm's own: it calls such a job running.
    State.PREPARING: f"CONFIGURING {PREPARING_WORD}",
    State.RUNNING: "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT",
    State.COMPLETED: "COMPLETED",
    State.FAILED: "BOOT_FAIL DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT",
    State.CANCELED: "CANCELLED",
}
STATES: Mapping[str, State] = {word: state for state, words in _WORDS.items() for word in words.split()}

# What a job's comment begins with, of which cluster it is; while its nodes are made ready, the other one.
MARK, PREPARING_MARK = "blobsync:", "blobsync preparing:"

COLUMNS = (
    ("JobArrayID", 40),
    ("State", 24),
    ("RestartCnt", 12),
    ("exit_code", 12),
    ("StartTime", 24),
    ("EndTime", 24),
    ("NumNodes", 12),
    ("tres-per-node", 40),
    ("UserName", 32),
    ("NodeList", 256),
    ("Reason", 160),
    ("Name", 128),
    ("Comment", 128),
)
SQUEUE_FORMAT = ",".join(f"{name}:{width}" for name, width in COLUMNS)
JOB_NUMBER = re.compile(r"[1-9][0-9]{0,18}")
SACCT_FORMAT = "JobID,State,ExitCode,Start,End,NodeList,JobName"
SINFO_FORMAT = "NodeList:64,StateLong:32,Gres:96,GresUsed:96"
_SINFO_WIDTHS = (64, 32, 96, 96)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, or a task of an array, in squeue or sacct. ``earlier`` are its runs before a requeue, ``tasks`` those of
    an array: the waiting ones are one together."""

    job_id: str
    word: str
    restarts: int = 0
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""
    name: str = ""
    user: str = ""
    gpus: int = 0
    node_count: int = 0
    earlier: tuple[SlurmJob, ...] = ()
    tasks: tuple[SlurmJob, ...] = ()

    @property
    def state(self) -> State:
        """The state; one of a newer Slurm is ``UNKNOWN``. sacct writes ``CANCELLED by 1000``."""
        return STATES.get(self.word.split(" ")[0].rstrip("+"), State.UNKNOWN)


# Slurm's programs begin a line with their name.
_SPOKEN = re.compile(r"s[a-z]+: ")
# Of an index above MaxArraySize, and of limits of jobs that are submitted at a time, in which each task counts.
_TOO_MANY_TASKS = re.compile(r"invalid job array specification|submit limit|MaxSubmitJob", re.IGNORECASE)


def submitted_id(stdout: str) -> str:
    """The job id in the output of ``sbatch --parsable``: ``id`` or ``id;cluster``."""
    return stdout.strip().split(";")[0]


def may_have_submitted(stderr: str) -> bool:
    """Whether sbatch timed out: the controller may have accepted the job."""
    return "timed out" in stderr.lower()


def has_too_many_tasks(stderr: str) -> bool:
    """Whether sbatch may accept an array with fewer tasks.

    Nothing is asked of Slurm in advance: MaxArraySize, and the limits of a QOS or user, are known when sbatch refuses.
    """
    return _TOO_MANY_TASKS.search(stderr) is not None


def complaint(stderr: str) -> str:
    """The message in a Slurm command's standard error, without the program's name."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    # After an unknown option there is a line of advice.
    telling = (
        [line for line in lines if "error:" in line] or [line for line in lines if _SPOKEN.match(line)] or lines[-1:]
    )
    return re.sub(r"^\w+: (error: )?", "", telling[0]) if telling else "no reason given"


def read_squeue(text: str) -> dict[str, SlurmJob]:
    """Jobs by id; the tasks of an array are one job."""
    tasks: dict[str, list[SlurmJob]] = {}
    for line in text.splitlines():
        if line.strip():
            job = _squeue_line(line)
            tasks.setdefault(job.job_id.split("_")[0], []).append(job)
    return {job_id: _together(job_id, jobs) for job_id, jobs in tasks.items()}


def read_sacct(text: str) -> dict[str, SlurmJob]:
    """Jobs by id, from ``sacct -n --parsable2 -X -D -o`` with :data:`SACCT_FORMAT`.

    With ``-D`` there is a line for each time that a job was queued (https://slurm.schedmd.com/sacct.html), and for
    older jobs with the same number, which have other names.
    """
    runs: dict[str, list[SlurmJob]] = {}
    for line in text.splitlines():
        job_id, word, code, start, end, nodes, name = [*line.split("|"), *[""] * 6][:7]
        exit_code, _, signal = code.partition(":")
        number = shell_code(-_number(signal)) or _number(exit_code)
        job = SlurmJob(job_id, word, 0, number, _when(start), _when(end), expand_nodes(nodes), name=name)
        runs.setdefault(job_id, []).append(job)
    tasks: dict[str, list[SlurmJob]] = {}
    for job_id, lines in runs.items():
        tasks.setdefault(job_id.split("_")[0], []).append(_latest(lines))
    return {job_id: _together(job_id, jobs) for job_id, jobs in tasks.items()}


def _latest(runs: Sequence[SlurmJob]) -> SlurmJob:
    # A pending job has not started.
    *before, last = sorted(runs, key=lambda job: job.started or float("inf"))
    earlier = tuple(job for job in before if job.name == last.name)
    return replace(last, restarts=len(earlier), earlier=earlier)


def as_run_info(run_id: str, job: SlurmJob) -> RunInfo:
    """Convert to ``RunInfo``; fields of ended jobs are empty before the end."""
    state = job.state
    reason = "" if job.reason == "None" else job.reason
    if state is State.FAILED and job.word != "FAILED":
        reason = f"{job.word}: {reason}" if reason else job.word
    # One that was canceled while it waited has times of both, and no node.
    waited = state is State.QUEUED or (state is State.CANCELED and not job.nodes)
    return RunInfo(
        run_id,
        state,
        exit_code=job.exit_code if state.is_final else None,
        restarts=job.restarts,
        reason=reason,
        started=None if waited else job.started,
        ended=job.ended if state.is_final else None,
        nodes=job.nodes,
        states=tuple(_earlier_states(job)),
        tasks=tuple(one for task in job.tasks for one in map(as_run_info("", task).of_task, task_numbers(task.job_id))),
    )


def task_numbers(job_id: str) -> Sequence[int]:
    """That of one task, ``5_3``, or of all that wait, ``5_[4-9%2]``; none of a list that squeue has cut."""
    try:
        return read_array(job_id.partition("_")[2].strip("[]")).all_numbers
    except UsageError:
        return ()


def _earlier_states(job: SlurmJob) -> Iterator[StateChange]:
    for number, run in enumerate(job.earlier):
        if run.started and run.ended:
            yield StateChange(run.started, State.RUNNING, number)
            yield StateChange(run.ended, State.QUEUED, number + 1)


def read_summary(sinfo_lines: Sequence[str], squeue_lines: Sequence[str]) -> ClusterSummary:
    """Summarise ``sinfo -N -O`` with :data:`SINFO_FORMAT`, where a node is listed once per partition."""
    nodes: dict[str, tuple[str, int, int]] = {}
    for line in sinfo_lines:
        name, word, gres, used = _cut(line, _SINFO_WIDTHS)
        nodes[name] = (word, count_gpus(gres), count_gpus(used))
    up = [node for node in nodes.values() if not node[0].startswith(("down", "drain", "fail", "inval", "power"))]
    states = Counter(_squeue_line(line).state for line in squeue_lines if line.strip())
    unusable = len(nodes) - len(up)
    return ClusterSummary(
        nodes_total=len(nodes),
        nodes_free=sum(word.startswith("idle") for word, _, _ in up),
        gpus_total=sum(total for _, total, _ in nodes.values()),
        gpus_free=sum(total - used for _, total, used in up),
        jobs_running=states[State.RUNNING] + states[State.PREPARING],
        jobs_queued=states[State.QUEUED],
        notes=(f"down or drained: {count_text(unusable, 'node')}",) if unusable else (),
    )


def read_tasks(text: str) -> dict[str, SlurmJob]:
    """Jobs by id, and each task of an array by its own."""
    jobs = [_squeue_line(line) for line in text.splitlines() if line.strip()]
    return {job.job_id: job for job in jobs}


def read_holders(jobs: Iterable[SlurmJob]) -> tuple[Holder, ...]:
    """The running and waiting jobs."""
    return tuple(
        Holder(job.user, job.job_id, job.name, job.state, job.gpus * job.node_count, job.node_count)
        for job in jobs
        if not job.state.is_final
    )


def count_gpus(gres: str) -> int:
    """Count GPUs: six in ``gpu:a100:4(S:0-1),gpu:2``, none in ``(null)``."""
    bare = re.sub(r"\([^)]*\)", "", gres)
    return sum(_number(match[1]) for match in re.finditer(r"gpu(?::[^:,]+)?:([0-9]+)(?=,|$)", bare))


# Slurm itself allows for 65,536 nodes in a cluster.
_MOST_NODES = 100_000
_SHOWN_CHARS = 200


def expand_nodes(text: str) -> tuple[str, ...]:
    """Expand ``n[1-2,5],m07`` to n1, n2, n5, m07, with leading zeros. Other or very long lists are kept."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\[\]]*\])?", text.strip()):
        head, bracket, ranges = part.partition("[")
        if not bracket:
            names.extend([] if head in ("(null)", "None assigned", "None") else [head])
            continue
        for one in ranges.rstrip("]").split(","):
            first, _, last = one.partition("-")
            numbers = _numbers(first, last or first)
            if len(names) + len(numbers) > _MOST_NODES or not numbers:
                return (text.strip()[:_SHOWN_CHARS],)
            names.extend(f"{head}{number:0{len(first)}d}" for number in numbers)
    return tuple(names)


def _numbers(first: str, last: str) -> range:
    if not re.fullmatch(r"[0-9]{1,9}", first) or not re.fullmatch(r"[0-9]{1,9}", last):
        return range(0)
    return range(int(first), int(last) + 1)


def _squeue_line(line: str) -> SlurmJob:
    fields = dict(zip((name for name, _ in COLUMNS), _cut(line, [width for _, width in COLUMNS]), strict=True))
    status, ended = _number(fields["exit_code"]), _when(fields["EndTime"])
    # The nodes of a job that was requeued are put in order first, and squeue says no more than of one that ends.
    waits_again = fields["State"] == "COMPLETING" and ended is None
    is_preparing = fields["State"] == "RUNNING" and fields["Comment"].startswith(PREPARING_MARK)
    word = "REQUEUED" if waits_again else PREPARING_WORD if is_preparing else fields["State"]
    return SlurmJob(
        fields["JobArrayID"],
        word,
        _number(fields["RestartCnt"]),
        # A wait status: exit code in the upper byte, signal in the lower one.
        status >> 8 or shell_code(-(status & 127)),
        _when(fields["StartTime"]),
        ended,
        expand_nodes(fields["NodeList"]),
        fields["Reason"],
        fields["Name"],
        fields["UserName"],
        count_gpus(fields["tres-per-node"]),
        _number(fields["NumNodes"].split("-")[0]),
    )


def _number(text: str) -> int:
    """Parse a number; zero if it is invalid or too large."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _together(job_id: str, tasks: Sequence[SlurmJob]) -> SlurmJob:
    """Combine an array's tasks: the state of the least advanced one, or failed if one failed."""
    leading = min(tasks, key=lambda job: ORDER.index(job.state))
    of_array = tuple(task for task in tasks if "_" in task.job_id)
    if len(tasks) == 1:
        return replace(leading, job_id=job_id, tasks=of_array)
    starts = [job.started for job in tasks if job.started]
    ends = [job.ended for job in tasks if job.ended]
    return replace(
        leading,
        job_id=job_id,
        restarts=max(job.restarts for job in tasks),
        started=min(starts, default=None),
        ended=max(ends, default=None),
        nodes=tuple(dict.fromkeys(node for job in tasks for node in job.nodes)),
        tasks=of_array,
    )


def _cut(line: str, widths: Sequence[int]) -> list[str]:
    cells, at = [], 0
    for width in widths:
        cells.append(line[at : at + width].strip())
        at += width
    return cells


def _when(text: str) -> float | None:
    """Parse a local time of the login node, without a zone."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
