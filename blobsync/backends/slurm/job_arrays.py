"""Slurm's job arrays: their options in a script, the numbers of their tasks in squeue, and refusals of too many tasks.

Nothing is asked of Slurm in advance: MaxArraySize, and the limits of a QOS or user, are known when sbatch refuses. For
a spread transfer ``spread.spread_engine.with_fewer_tasks`` then cuts fewer and larger shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from blobsync.base.errors import UsageError
from blobsync.jobspec.spec import TaskArray
from blobsync.jobspec.sweep import array_text, read_array

# Of an index above MaxArraySize, and of limits of jobs that are submitted at a time, in which each task counts.
_TOO_MANY_TASKS = re.compile(r"invalid job array specification|submit limit|MaxSubmitJob", re.IGNORECASE)


def array_options(tasks: TaskArray, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for an array. Tasks that say how many CPUs they need share nodes, and take no other resource."""
    array = {"array": array_text(tasks)}
    if not tasks.cpus:
        return {**options, **array}
    plain = {name: value for name, value in options.items() if name not in ("gres", "exclusive")}
    return {**plain, **array, "cpus_per_task": tasks.cpus}


def task_numbers(job_id: str) -> Sequence[int]:
    """That of one task, ``5_3``, or of all that wait, ``5_[4-9%2]``; none of a list that squeue has cut."""
    try:
        return read_array(job_id.partition("_")[2].strip("[]")).all_numbers
    except UsageError:
        return ()


def has_too_many_tasks(stderr: str) -> bool:
    """Whether sbatch may accept an array with fewer tasks."""
    return _TOO_MANY_TASKS.search(stderr) is not None
