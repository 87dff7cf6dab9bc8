"""The tasks of a job as rows: states, parameters, times, and the last line or a metric of each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blobsync.base.errors import UsageError
from blobsync.jobs.record import JobRecord, JobTask
from blobsync.keep.checkpoint_sets import best_field

# What a table can be sorted by, besides its parameters.
INDEX, STATE, MINUTES, METRIC = "index", "state", "minutes", "metric"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task; ``seconds`` is how long it ran, or has been running."""

    task: JobTask
    seconds: float | None = None
    last_line: str = ""
    metric: float | None = None


def task_rows(
    record: JobRecord, last_lines: Mapping[int, str], metrics: Mapping[int, float], now: float | None = None
) -> tuple[TaskRow, ...]:
    """A row for each task, in the order of their numbers."""
    now = time.time() if now is None else now
    return tuple(
        TaskRow(task, _seconds(task, now), last_lines.get(task.number, ""), metrics.get(task.number))
        for task in record.tasks
    )


def _seconds(task: JobTask, now: float) -> float | None:
    info = task.info
    if info.started is None or (info.state.is_final and info.ended is None):
        return None
    return max(0.0, (info.ended or now) - info.started)


def sorted_rows(rows: Sequence[TaskRow], by: str, metric: str = "") -> list[TaskRow]:
    """The rows by a column; numbers before words, and what is missing last. The best metric is first: the smallest, or
    with ``FILE:FIELD:max`` the largest. Raises ``UsageError`` for a column that there is not."""
    names = tuple(rows[0].task.parameters) if rows else ()
    if by not in (INDEX, STATE, MINUTES, METRIC, *names):
        known = ", ".join((INDEX, STATE, MINUTES, METRIC, *names))
        raise UsageError(f"--sort {by!a}: there is no such column", hint=f"one of {known}")
    sign = -1 if by == METRIC and metric and best_field(metric)[1] else 1

    def place(row: TaskRow) -> tuple[int, float, str]:
        value: object = row.task.parameters.get(by)
        if by not in names:
            value = {INDEX: row.task.number, STATE: str(row.task.state), MINUTES: row.seconds, METRIC: row.metric}[by]
        return _place(value, sign)

    return sorted(rows, key=place)


def _place(value: object, sign: int) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    return (0, sign * number, "") if math.isfinite(number) else (1, 0.0, str(value))
