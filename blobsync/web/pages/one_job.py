"""One job: its state over time, its live logs, the load of its nodes, why it failed, and what can be done."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError
from blobsync.base.redaction import redact, redact_answer
from blobsync.config.loader import cluster_names
from blobsync.jobs.logs import FetchedLogs, attempt_of, log_piece, rank_of, search_logs, task_of
from blobsync.jobs.node_use import left_behind, node_of_log, preparing_text, seconds_behind, use_of_nodes
from blobsync.jobs.queries import known_causes
from blobsync.jobs.record import JobRecord, JobTask
from blobsync.jobs.submit import Submitted
from blobsync.jobs.task_table import task_rows
from blobsync.jobspec.spec import SERVICES, State
from blobsync.jobspec.task_states import counts_text
from blobsync.project.jobs import Jobs
from blobsync.web.app_state import app_state_of, form_of
from blobsync.web.charts import task_chart, timeline, use_charts
from blobsync.web.events import live_parts, pause
from blobsync.web.render import fragment, page

# Seconds between two queries of a job, on this machine and of services, which limit the rate of requests.
_EVERY, _EVERY_OF_SERVICES = 1.0, 5.0
_BADGES = {
    State.QUEUED: "",
    State.PREPARING: "warn",
    State.RUNNING: "running",
    State.CANCELING: "warn",
    State.COMPLETED: "good",
    State.FAILED: "bad",
    State.CANCELED: "",
    State.UNKNOWN: "warn",
}


def badge_of(record: JobRecord) -> tuple[str, str]:
    """The class and the words of a job's state."""
    return _BADGES[record.state], _state_words(record)


def _show(request: Request) -> Response:
    source, query = app_state_of(request).source, request.query_params
    jobs = source.jobs()
    record = jobs.find(request.path_params["run_id"])
    chosen, metric = query.get("log", ""), query.get("metric", "")[:200]
    if "fresh" in query:
        record = jobs.get(record)
        fetched = _fetched(jobs, record, chosen)
    else:
        fetched = jobs.fetched_logs(record)
        if (task := _chosen_task(record, chosen)) is not None:
            fetched = fetched.of_tasks([task])
    name = chosen if chosen in fetched.names else fetched.leading
    wanted = query.get("find", "")[:500]
    found = search_logs(fetched, wanted)
    piece = log_piece(fetched, name, ended=record.state.is_final) if name else None
    return page(
        request,
        "job.html",
        chosen=chosen,
        wanted=wanted,
        found=found,
        piece=piece,
        follow_at=f"/jobs/{record.run_id}/log?name={quote(chosen)}&start={piece.end if piece else ''}",
        clusters=cluster_names(source.root),
        warnings=app_state_of(request).submit_warnings.get(record.run_id, ()),
        parts={**_parts(record, fetched, name or ""), "job-tasks": _tasks(jobs, record, metric)},
        record=record,
        metric=metric,
    )


def _chosen_task(record: JobRecord, log: str) -> int | None:
    """Of a sweep, which may have thousands of logs: the task whose logs are shown, that of ``log`` or the first."""
    task = task_of(log)
    return record.tasks[0].number if record.tasks and task is None else task


def _fetched(jobs: Jobs, record: JobRecord, log: str) -> FetchedLogs:
    return jobs.logs(record, task=_chosen_task(record, log))


def _tasks(jobs: Jobs, record: JobRecord, metric: str, *, asks: bool = False) -> str:
    """The tasks of a sweep; ``asks``: with the last line of each, which the cluster is asked for."""
    if not record.tasks:
        return ""
    rows, problem = task_rows(record, {}, {}), ""
    if metric or asks:
        try:
            rows = tuple(jobs.task_rows(record, metric=metric))
        except BlobsyncError as error:
            problem = error.message
    return fragment(
        "job_tasks.html",
        rows=[(row, (_BADGES[row.task.state], _state_words(row.task))) for row in rows],
        names=tuple(record.tasks[0].parameters),
        counts=counts_text([task.info for task in record.tasks]),
        log="std_log_process_0.txt" if record.spec.has_numbered_logs else "std_log.txt",
        metric=metric,
        problem=problem,
        chart=task_chart(rows, metric),
    )


def _state_words(job: JobRecord | JobTask) -> str:
    code = f" ({job.exit_code})" if job.exit_code else ""
    return f"{job.state}{code}"


def _parts(record: JobRecord, fetched: FetchedLogs, name: str) -> dict[str, str]:
    """The parts of the page that are updated while a job runs."""
    names, behind = _in_order(fetched), seconds_behind(record, fetched)
    use, causes = use_of_nodes(fetched), known_causes(record, fetched)
    about: dict[str, Any] = {"record": record, "spec": record.spec, "info": record.info}
    return {
        "job-state": fragment("job_state.html", badge=badge_of(record), preparing=preparing_text(record, fetched)),
        "job-time": timeline(record, time.time()),
        "job-facts": fragment("job_facts.html", **about, left=left_behind(record, fetched)),
        "job-causes": fragment("job_causes.html", record=record, causes=causes),
        "job-use": use_charts(use),
        "job-behind": "" if behind is None else f"{behind:,} s behind in the container",
        "job-logs": fragment(
            "job_logs.html", record=record, logs=_labelled(names), current=name, problem=fetched.problem
        ),
    }


def _in_order(fetched: FetchedLogs) -> list[str]:
    """The logs of the processes, then those of the system."""
    return sorted(fetched.names, key=lambda name: (rank_of(name) is None, rank_of(name) or (0, 0), name))


def _labelled(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each log with its label: its process, if that is unique; else its name."""
    labels = [_label(name) for name in names]
    return list(zip(names, labels if len(set(labels)) == len(names) else names, strict=True))


def _label(name: str) -> str:
    known, node, attempt = rank_of(name), node_of_log(name), attempt_of(name)
    tried, task = f", attempt {attempt + 1}" if attempt else "", task_of(name)
    if known is None and node is None:
        return name
    inner = f"node {node}" if known is None else f"rank {known[1]}"
    return f"{inner}{tried}" if task is None else f"task {task}, {inner}{tried}"


def _follow(request: Request) -> Response:
    source, query = app_state_of(request).source, request.query_params
    run_id, chosen = request.path_params["run_id"], query.get("log", "")
    metric = query.get("metric", "")[:200]
    over: dict[str, Mapping[str, str]] = {}

    def look() -> Mapping[str, str]:
        if over:
            return over["parts"]
        jobs = source.jobs()
        record = jobs.get(run_id)
        fetched = _fetched(jobs, record, chosen)
        parts = _parts(record, fetched, (chosen if chosen in fetched.names else fetched.leading) or "")
        parts["job-tasks"] = _tasks(jobs, record, metric, asks=True)
        if record.state.is_final:
            over["parts"] = parts
        return parts

    record = source.jobs().find(run_id)
    return live_parts(request, look, _pause(record))


def _pause(record: JobRecord) -> float:
    return _EVERY_OF_SERVICES if record.by or record.spec.platform in SERVICES else _EVERY


def _log(request: Request) -> Response:
    """A live log: each event is a list of lines, its id the byte offset of the next one."""
    source, query = app_state_of(request).source, request.query_params
    stopping = app_state_of(request).is_stopping
    run_id, chosen = request.path_params["run_id"], query.get("name", "")
    given = request.headers.get("last-event-id") or query.get("start", "")
    begin = int(given) if given.isdecimal() and len(given) < 19 else None
    record = source.jobs().find(run_id)

    def look(start: int | None) -> tuple[tuple[str, ...], int | None, bool]:
        jobs = source.jobs()
        now = jobs.get(run_id)
        over, fetched = now.state.is_final, _fetched(jobs, now, chosen)
        name = chosen if chosen in fetched.names else fetched.leading
        if name is None:
            return (), start, over
        piece = log_piece(fetched, name, start, ended=over)
        return piece.lines, piece.end, over and not piece.lines

    async def stream() -> AsyncIterator[str]:
        start, over = begin, False
        while not stopping() and not over:
            try:
                lines, start, over = await run_in_threadpool(look, start)
            except BlobsyncError:
                # The state of the job, beside the log, shows the problem.
                lines = ()
            if lines:
                yield f"id: {start}\ndata: {redact_answer(json.dumps(lines))}\n\n"
                continue
            yield ": waiting\n\n"
            if not over:
                await pause(_pause(record), stopping)
        yield "event: over\ndata: \n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


def _resubmit(request: Request) -> Response:
    form = form_of(request)
    submitted = (
        app_state_of(request)
        .source.jobs()
        .resubmit(
            request.path_params["run_id"],
            cluster=form.get("cluster") or None,
            latest_code=form.get("latest_code") == "yes",
        )
    )
    return after_submission(request, submitted)


def after_submission(request: Request, submitted: Submitted) -> Response:
    """Redirect to the page of the new job, which shows the warnings of the submission."""
    run_id = submitted.record.run_id
    app_state_of(request).submit_warnings[run_id] = tuple(redact(text) for text in submitted.warnings)
    return RedirectResponse(f"/jobs/{run_id}", 303)


ROUTES = (
    Route("/jobs/{run_id}", _show),
    Route("/jobs/{run_id}/live", _follow),
    Route("/jobs/{run_id}/log", _log),
    Route("/jobs/{run_id}/resubmit", _resubmit, methods=["POST"]),
)
