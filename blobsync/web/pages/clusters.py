"""Clusters: free resources, their users, the checks of ``doctor``, and the configuration with its problems by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.base.check_results import CheckResult, CheckStatus
from blobsync.base.records import NamedTuple
from blobsync.config.check import CheckedFile, check_project, line_in
from blobsync.config.loader import cluster_names
from blobsync.jobs.preflight import refusals
from blobsync.local.ignore_patterns import bad_patterns
from blobsync.project.doctor import diagnose
from blobsync.project.jobs import Jobs
from blobsync.web.render import app_state_of, page, part

_BADGES = {CheckStatus.OK: "good", CheckStatus.UNTRIED: "", CheckStatus.WARN: "warn", CheckStatus.FAIL: "bad"}


class _Remark(NamedTuple):
    """A warning about a file; ``jobs_only``: ``submit`` refuses it, transfers do not."""

    message: str
    hint: str | None = None
    jobs_only: bool = False


def _remarks(item: CheckedFile, environ: Mapping[str, str]) -> list[_Remark]:
    """In the order of the lines, as ``config check``."""
    refused = refusals(item.cluster, environ) if item.cluster else ()
    remarks = [*map(_Remark, item.warnings), *(_Remark(error.message, error.hint, jobs_only=True) for error in refused)]
    return sorted(remarks, key=lambda each: line_in(item.file, each.message))


def _show(request: Request) -> Response:
    """Everything that needs no network; free resources are loaded afterwards."""
    return _page(request, "", ())


def _page(request: Request, examined: str, checks: tuple[CheckResult, ...]) -> Response:
    source = app_state_of(request).source
    checked = check_project(source.root, environ=source.environ, further=bad_patterns)
    by_name = {item.cluster.name: item for item in checked if item.cluster}
    return page(
        request,
        "clusters.html",
        names=cluster_names(source.root),
        by_name=by_name,
        files=checked,
        remarks={item.file: _remarks(item, source.environ) for item in checked},
        examined=examined,
        checks=[(each, _BADGES[each.status]) for each in checks],
    )


def _free(request: Request) -> Response:
    """The free resources of a cluster, or why they are unknown."""
    return _asked(request, "cluster_free.html", lambda jobs: jobs.summary())


def _holders(request: Request) -> Response:
    """Who uses the cluster."""
    return _asked(request, "cluster_holders.html", lambda jobs: jobs.holders())


def _asked(request: Request, template: str, of: Callable[[Jobs], object]) -> Response:
    def ask() -> object:
        with app_state_of(request).source.open(request.path_params["name"]) as project:
            return of(project.jobs)

    return part(template, ask)


def _examine(request: Request) -> Response:
    """``blobsync doctor``. It writes and removes a blob, so it runs only on request."""
    source, name = app_state_of(request).source, request.path_params["name"]
    with source.open(name) as project:
        checks = tuple(diagnose(project.cluster, source.environ))
    return _page(request, name, checks)


ROUTES = (
    Route("/clusters", _show),
    Route("/clusters/{name}/free", _free),
    Route("/clusters/{name}/holders", _holders),
    Route("/clusters/{name}/doctor", _examine, methods=["POST"]),
)
