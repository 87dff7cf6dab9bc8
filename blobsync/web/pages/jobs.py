"""The jobs of all clusters, newest first, by pages; and two jobs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import UsageError
from blobsync.jobs.record import JobFilter, JobRecord
from blobsync.jobs.timeline import lasted
from blobsync.jobspec.spec import State
from blobsync.project.jobs import Jobs
from blobsync.web.app_state import app_state_of, page_number
from blobsync.web.events import live_parts
from blobsync.web.pages import job_outputs, one_job
from blobsync.web.render import fragment, page

# Jobs on a page, and seconds between two queries of the clusters.
PAGE_JOBS = 50
_EVERY = 5.0
# The same of a container, which has the jobs of other users.
_EVERY_OF_CONTAINERS = 60.0
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
    return [(record, lasted(record), one_job.badge_of(record)) for record in records]


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

    return live_parts(request, look, _EVERY_OF_CONTAINERS if asked.state == _ALL_USERS else _EVERY)


def _compare(request: Request) -> Response:
    chosen = request.query_params.getlist("job")
    if len(chosen) != 2:
        raise UsageError(f"two jobs can be compared, not {len(chosen)}", hint="select two in the list of jobs")
    found = app_state_of(request).source.jobs().compare(chosen[0], chosen[1])
    files = [*_marked("+", found.files.added), *_marked("-", found.files.removed), *_marked("±", found.files.changed)]
    return page(request, "job_compare.html", found=found, files=files, everything="all" in request.query_params)


def _marked(mark: str, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((mark, path) for path in paths)


def _abort(request: Request) -> Response:
    run_id = request.path_params["run_id"]
    app_state_of(request).source.jobs().cancel(run_id)
    return RedirectResponse(f"/jobs/{run_id}", 303)


ROUTES = (
    Route("/jobs", _show),
    Route("/jobs/live", _follow),
    Route("/jobs/compare", _compare),
    Route("/jobs/{run_id}/abort", _abort, methods=["POST"]),
    *job_outputs.ROUTES,
    *one_job.ROUTES,
)
