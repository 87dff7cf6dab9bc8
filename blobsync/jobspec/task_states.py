"""The state of a job with tasks, from those of its tasks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from blobsync.base.formatting import count_text
from blobsync.jobspec.spec import RunInfo, State, TaskArray, TaskInfo

# The state of a job is the first of these in which one of its tasks is.
ORDER = (
    State.RUNNING,
    State.PREPARING,
    State.QUEUED,
    State.CANCELING,
    State.UNKNOWN,
    State.FAILED,
    State.CANCELED,
    State.COMPLETED,
)


def together(info: RunInfo, tasks: Iterable[TaskInfo]) -> RunInfo:
    """``info`` with these tasks, and the state, times, restarts and exit code that they make."""
    tasks = tuple(sorted(tasks, key=lambda task: task.number))
    state = min((task.state for task in tasks), key=ORDER.index, default=info.state)
    codes = [task.exit_code or 0 for task in tasks if task.state is not State.CANCELED]
    return replace(
        info,
        state=state,
        exit_code=max(codes, default=None) if state.is_final else None,
        restarts=max((task.restarts for task in tasks), default=0),
        started=min((task.started for task in tasks if task.started), default=info.started),
        ended=max((task.ended for task in tasks if task.ended), default=info.ended) if state.is_final else None,
        tasks=tasks,
    )


def settled(array: TaskArray, known: Sequence[TaskInfo], info: RunInfo) -> RunInfo:
    """``info`` with a state for each task of the array: as the platform says now, else an end that it has forgotten
    since that was ``known``, else what the job's own state says of it."""
    if info.state is State.QUEUED and not (info.tasks or known):
        return info
    now = {task.number: task for task in info.tasks}
    ended = {task.number: task for task in known if task.state.is_final}
    # A platform that tells of some tasks knows nothing of the others.
    lost = info.state is State.FAILED or bool(info.tasks)
    rest = (State.UNKNOWN if lost else info.state) if info.state.is_final else State.QUEUED
    tasks = [_both(now.get(each), ended.get(each)) or TaskInfo(each, rest) for each in array.all_numbers]
    found = together(info, tasks)
    if info.state is State.COMPLETED and found.state is State.UNKNOWN:
        # Slurm has forgotten the job, and only some tasks have recorded their end.
        unknown = sum(task.state is State.UNKNOWN for task in tasks)
        return replace(found, reason=info.reason or f"the end of {count_text(unknown, 'task')} is not known")
    if info.state.is_final and found.state.is_final:
        return replace(found, exit_code=found.exit_code or info.exit_code)
    return replace(found, state=info.state, exit_code=info.exit_code, ended=info.ended)


def _both(now: TaskInfo | None, known: TaskInfo | None) -> TaskInfo | None:
    """A task as the platform says now, with what it said of the same end before: a pod that is gone had the times."""
    if now is None or known is None or now.state is not known.state:
        return now or known
    code = known.exit_code if now.exit_code is None else now.exit_code
    return replace(now, exit_code=code, started=now.started or known.started, ended=now.ended or known.ended)


def counts_text(tasks: Sequence[TaskInfo]) -> str:
    """``12 of 30 done, 2 failed, 4 running``."""
    counts = Counter(task.state for task in tasks)
    done = f"{counts.get(State.COMPLETED, 0):,} of {len(tasks):,} done"
    told = (State.FAILED, State.CANCELED, State.RUNNING, State.PREPARING, State.CANCELING, State.UNKNOWN)
    return ", ".join([done, *(f"{counts[state]:,} {state.value.lower()}" for state in told if counts.get(state))])
