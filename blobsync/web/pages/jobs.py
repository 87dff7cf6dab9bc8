"""The jobs of all clusters, newest first, by pages; two side by side; and one: its state over time, its live logs, the
load of its nodes, its outputs and checkpoints, why it failed, and what can be done."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError, NothingMatchedError, UsageError
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import redact, redact_answer
from blobsync.config.loader import cluster_names
from blobsync.jobs.logs import FetchedLogs, attempt_of, log_piece, rank_of, search_logs, task_of
from blobsync.jobs.node_use import left_behind, node_of_log, preparing_text, seconds_behind, use_of_nodes
from blobsync.jobs.queries import known_causes
from blobsync.jobs.record import JobFilter, JobRecord, JobTask
from blobsync.jobs.submit import Submitted
from blobsync.jobs.task_table import task_rows
from blobsync.jobs.timeline import lasted
from blobsync.jobspec.spec import SERVICES, State
from blobsync.jobspec.task_states import counts_text
from blobsync.project.checkpoints import Checkpoint
from blobsync.project.jobs import Jobs
from blobsync.web.charts import task_chart, timeline, use_charts
from blobsync.web.gate import TOKEN_FIELD
from blobsync.web.render import app_state_of, form_of, fragment, live_parts, page, page_number, part, pause, visit_of

# Jobs on a page.
PAGE_JOBS = 50
# Seconds between two queries of a job on this machine, of services, which limit the rate of requests, and of a
# container, which has the jobs of other users.
_EVERY, _EVERY_OF_SERVICES, _EVERY_OF_CONTAINERS = 1.0, 5.0, 60.0
_ALL_USERS = "all-users"
# The command line's words: qq, qr, qf.
_KINDS: Mapping[str, tuple[State, ...]] = {
    "queued": (State.QUEUED, State.PREPARING),
    "running": (State.RUNNING, State.CANCELING),
    "failed": (State.FAILED,),
}


class _Query(NamedTuple):
    """The parameters of the address."""

    state: str
    cluster: str
    text: str
    page: int

    @property
    def filter(self) -> JobFilter:
        return JobFilter(_KINDS.get(self.state, ()), self.cluster or None, self.text)

    def query(self, **changes: Any) -> str:
        """The query string of these parameters with ``changes``."""
        values = {**self._asdict(), **changes}
        return "?" + urlencode({name: value for name, value in values.items() if value not in ("", 1)})


def _asked(request: Request) -> _Query:
    query = request.query_params
    kind = query.get("state", "")
    return _Query(
        kind if kind in (*_KINDS, _ALL_USERS) else "",
        query.get("cluster", "")[:200],
        query.get("text", "")[:200],
        page_number(request, 1),
    )


def _show(request: Request) -> Response:
    asked, jobs = _asked(request), app_state_of(request).source.jobs()
    problems = jobs.refresh_unfinished() if "fresh" in request.query_params else ()
    values = {"problems": problems, **_listed(jobs, asked)}
    return page(request, "jobs.html", clusters=jobs.clusters_of_jobs(), live=asked.query(), **values)


def _listed(jobs: Jobs, asked: _Query) -> dict[str, Any]:
    """The values for the list of jobs."""
    chosen = replace(asked.filter, text="") if asked.state == _ALL_USERS else asked.filter
    found = jobs.page(chosen, limit=PAGE_JOBS, offset=(asked.page - 1) * PAGE_JOBS)
    last = max(1, -(-found.total // PAGE_JOBS))
    if asked.page > last:
        return _listed(jobs, asked._replace(page=last))
    kinds: list[tuple[str, str, int | None]] = [("", "All", sum(found.states.values()))]
    kinds += [(kind, kind.title(), sum(found.states.get(one, 0) for one in states)) for kind, states in _KINDS.items()]
    kinds.append((_ALL_USERS, "All users", None))
    values = {"asked": asked, "kinds": kinds, "first": (asked.page - 1) * PAGE_JOBS, "last_page": last}
    if asked.state != _ALL_USERS:
        return {**values, "rows": _rows(found.records), "total": found.total}
    shared = jobs.list(limit=PAGE_JOBS, cluster=asked.cluster or None, all_users=True)
    rows = _rows(shared.records)
    return {**values, "rows": rows, "total": len(rows), "problems": shared.problems}


def _rows(records: Sequence[JobRecord]) -> list[tuple[JobRecord, str, tuple[str, str]]]:
    return [(record, lasted(record), _badge(record)) for record in records]


def _follow(request: Request) -> Response:
    source, asked = app_state_of(request).source, _asked(request)

    def look() -> Mapping[str, str]:
        jobs = source.jobs()
        values = {"problems": jobs.refresh_unfinished(), **_listed(jobs, asked)}
        return {
            "job-list": fragment("job_list.html", **values),
            "job-kinds": fragment("job_kinds.html", **values),
            "job-problems": fragment("job_problems.html", problems=values["problems"]),
        }

    return live_parts(request, look, _EVERY_OF_CONTAINERS if asked.state == _ALL_USERS else _EVERY_OF_SERVICES)


def _compare(request: Request) -> Response:
    chosen = request.query_params.getlist("job")
    if len(chosen) != 2:
        raise UsageError(f"two jobs can be compared, not {len(chosen)}", hint="select two in the list of jobs")
    found = app_state_of(request).source.jobs().compare(chosen[0], chosen[1])
    kinds = (("+", found.files.added), ("-", found.files.removed), ("±", found.files.changed))
    files = [(mark, path) for mark, paths in kinds for path in paths]
    return page(request, "job_compare.html", found=found, files=files, everything="all" in request.query_params)


def _abort(request: Request) -> Response:
    run_id = request.path_params["run_id"]
    app_state_of(request).source.jobs().cancel(run_id)
    return RedirectResponse(f"/jobs/{run_id}", 303)


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


def _badge(job: JobRecord | JobTask) -> tuple[str, str]:
    """The class and the words of a state."""
    return _BADGES[job.state], f"{job.state} ({job.exit_code})" if job.exit_code else str(job.state)


def _show_one(request: Request) -> Response:
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
        rows=[(row, _badge(row.task)) for row in rows],
        names=tuple(record.tasks[0].parameters),
        counts=counts_text([task.info for task in record.tasks]),
        log="std_log_process_0.txt" if record.spec.has_numbered_logs else "std_log.txt",
        metric=metric,
        problem=problem,
        chart=task_chart(rows, metric),
    )


def _parts(record: JobRecord, fetched: FetchedLogs, name: str) -> dict[str, str]:
    """The parts of the page that are updated while a job runs."""
    behind, causes = seconds_behind(record, fetched), known_causes(record, fetched)
    about: dict[str, Any] = {"record": record, "spec": record.spec, "info": record.info}
    return {
        "job-state": fragment("job_state.html", badge=_badge(record), preparing=preparing_text(record, fetched)),
        "job-time": timeline(record, time.time()),
        "job-facts": fragment("job_facts.html", **about, left=left_behind(record, fetched)),
        "job-causes": fragment("job_causes.html", record=record, causes=causes),
        "job-use": use_charts(use_of_nodes(fetched)),
        "job-behind": "" if behind is None else f"{behind:,} s behind in the container",
        "job-logs": fragment(
            "job_logs.html", record=record, logs=_labelled(fetched), current=name, problem=fetched.problem
        ),
    }


def _labelled(fetched: FetchedLogs) -> list[tuple[str, str]]:
    """The logs of the processes, then those of the system, each with its label: its process, if that is unique; else
    its name."""
    names = sorted(fetched.names, key=lambda name: (rank_of(name) is None, rank_of(name) or (0, 0), name))
    labels = [_label(name) for name in names]
    return list(zip(names, labels if len(set(labels)) == len(names) else names, strict=True))


def _label(name: str) -> str:
    known, node, attempt = rank_of(name), node_of_log(name), attempt_of(name)
    tried, task = f", attempt {attempt + 1}" if attempt else "", task_of(name)
    if known is None and node is None:
        return name
    inner = f"node {node}" if known is None else f"rank {known[1]}"
    return f"{inner}{tried}" if task is None else f"task {task}, {inner}{tried}"


def _follow_one(request: Request) -> Response:
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
    cluster, latest_code = form.get("cluster") or None, form.get("latest_code") == "yes"
    jobs, run_id = app_state_of(request).source.jobs(), request.path_params["run_id"]
    submitted = jobs.resubmit(run_id, cluster=cluster, latest_code=latest_code)
    return after_submission(request, submitted)


def after_submission(request: Request, submitted: Submitted) -> Response:
    """Redirect to the page of the new job, which shows the warnings of the submission."""
    run_id = submitted.record.run_id
    app_state_of(request).submit_warnings[run_id] = tuple(redact(text) for text in submitted.warnings)
    return RedirectResponse(f"/jobs/{run_id}", 303)


# How many files are shown. Outputs are loaded after the job's page, since listing a container is slow.
_MOST = 500


def _outputs(request: Request) -> Response:
    run_id = request.path_params["run_id"]
    return part(
        "job_outputs.html",
        lambda: app_state_of(request).source.jobs().outputs(run_id),
        most=_MOST,
        token_field=TOKEN_FIELD,
        form_token=visit_of(request).form_token,
        run_id=run_id,
    )


def _checkpoints(request: Request) -> Response:
    """The sets of files that a restart of the job can go on from, and the halves that it passes over."""
    source = app_state_of(request).source

    def ask() -> Sequence[Checkpoint]:
        record = source.jobs().find(request.path_params["run_id"])
        with source.open(record.cluster) as project:
            return project.checkpoints(job=record.run_id)

    return part("job_checkpoints.html", ask, most=_MOST)


def _make_link(request: Request) -> Response:
    """A link that reads one file for a day. It is a secret, shown only on request."""
    source, wanted = app_state_of(request).source, form_of(request).get("name", "")
    run_id = request.path_params["run_id"]
    found = source.jobs().outputs(run_id, wanted)
    chosen = [one for one in found.files if one.shown == wanted]
    if not chosen:
        raise NothingMatchedError(f"the job {run_id} has no output file {wanted!a}")
    url = found.link(chosen[0], timedelta(days=1))
    above = [("Jobs", "/jobs"), (found.record.spec.name or run_id, f"/jobs/{run_id}")]
    return page(request, "link.html", reveals=True, above=above, trail=(), path=wanted, url=url, expiry="1 day")


ROUTES = (
    Route("/jobs", _show),
    Route("/jobs/live", _follow),
    Route("/jobs/compare", _compare),
    Route("/jobs/{run_id}", _show_one),
    Route("/jobs/{run_id}/live", _follow_one),
    Route("/jobs/{run_id}/log", _log),
    Route("/jobs/{run_id}/abort", _abort, methods=["POST"]),
    Route("/jobs/{run_id}/resubmit", _resubmit, methods=["POST"]),
    Route("/jobs/{run_id}/outputs", _outputs),
    Route("/jobs/{run_id}/checkpoints", _checkpoints),
    Route("/jobs/{run_id}/outputs/link", _make_link, methods=["POST"]),
)
