"""The tasks of a job as rows: states, parameters, times, and the last line, the metric or the result of each."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobsyncError, JobError, UsageError
from blobsync.base.file_states import regular_only
from blobsync.base.plain_json import parse_json
from blobsync.base.records import dataclass
from blobsync.jobs.context import JobContext
from blobsync.jobs.outputs import account_of, output_places
from blobsync.jobs.record import JobRecord, JobTask
from blobsync.keep.checkpoint_sets import best_field, value_at
from blobsync.local.names import relative_name
from blobsync.store.protocol import BlobStore

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


_METRIC = re.compile(r"[^:/][^:]*:[^:]+(:(min|max))?")
# A larger file is not read (bytes).
_MOST_BYTES = 1 << 20
# How many blobs are read at a time.
_AT_A_TIME = 16


def read_metrics(context: JobContext, record: JobRecord, metric: str) -> dict[int, float]:
    """The value of ``FILE:FIELD``, as ``keep_best`` names one, of each task that has it. In a file of JSON lines the
    last line counts. Raises ``UsageError`` for another form."""
    if not _METRIC.fullmatch(metric):
        raise UsageError(f"--metric {metric!a} is not FILE:FIELD", hint="--metric metrics.json:eval.loss")
    file, _, field = best_field(metric)[0].partition(":")
    found = {}
    for number, body in _bodies(context, record, file):
        lines = body.decode("utf-8", "replace").strip().split("\n")
        for text in ("\n".join(lines), lines[-1]):
            with suppress(ValueError):
                value = value_at(parse_json(text), field)
                if value is not None:
                    found[number] = value
                break
    return found


def read_json_files(context: JobContext, record: JobRecord, file: str) -> dict[int, Any]:
    """The content of a JSON file of each task that has it."""
    found = {}
    for number, body in _bodies(context, record, file):
        try:
            found[number] = parse_json(body.decode("utf-8"))
        except ValueError as error:
            raise JobError(f"{file} of task {number} of {record.run_id} is not JSON: {error}") from error
    return found


def _bodies(context: JobContext, record: JobRecord, file: str) -> Iterator[tuple[int, bytes]]:
    """The file of each task that wrote it, unless it is too large."""
    (place, *_) = output_places(record.spec) or (None,)
    if place is None or place.is_shared or record.spec.tasks is None:
        raise UsageError(
            f"the tasks of {record.run_id} have no outputs of their own", hint="output: per_job in the cluster file"
        )
    name, numbers = relative_name(file), [task.number for task in record.tasks if task.info.state.value != "Queued"]
    if place.folder.mode == "link":
        base = Path(place.folder.source, relative_name(place.below))
        found = ((number, _on_disk(base / str(number) / name)) for number in numbers)
        yield from ((number, body) for number, body in found if body is not None)
        return
    cluster = context.cluster_of(record)
    with context.store(cluster, account_of(context, cluster, place.folder.container)) as store:
        base_name = place.in_container
        # One listing says which of them are there.
        there = {blob.name for blob in store.list_blobs(f"{base_name}/") if blob.size <= _MOST_BYTES}
        blobs = {number: f"{base_name}/{number}/{name}" for number in numbers}
        wanted = [number for number in numbers if blobs[number] in there]
        read = side_by_side(lambda number: _in_container(store, blobs[number]), wanted, _AT_A_TIME)
        yield from zip(wanted, read, strict=True)


def _on_disk(path: Path) -> bytes | None:
    with suppress(OSError), open(path, "rb", opener=regular_only) as source:
        if os.fstat(source.fileno()).st_size <= _MOST_BYTES:
            return source.read(_MOST_BYTES)
    return None


def _in_container(store: BlobStore, name: str) -> bytes:
    try:
        with store.open(name, length=_MOST_BYTES) as reader:
            return b"".join(iter(lambda: reader.read(_MOST_BYTES), b""))
    except BlobsyncError:
        # It was replaced or removed meanwhile: the next look has it.
        return b""
