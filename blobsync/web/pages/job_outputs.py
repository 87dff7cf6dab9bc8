"""The output files of a job, with a link for each, and its checkpoints.

They are loaded after the job's page, since listing a container is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.base.errors import NothingMatchedError
from blobsync.keep.listing import Checkpoint
from blobsync.web.app_state import app_state_of, form_of, visit_of
from blobsync.web.gate import TOKEN_FIELD
from blobsync.web.render import page, part

# How many files are shown, and for how long a link is valid.
_MOST = 500
_DAY = timedelta(days=1)


def _list(request: Request) -> Response:
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


def _link(request: Request) -> Response:
    """A link that reads one file for a day. It is a secret, shown only on request."""
    source, wanted = app_state_of(request).source, form_of(request).get("name", "")
    run_id = request.path_params["run_id"]
    found = source.jobs().outputs(run_id, wanted)
    chosen = [one for one in found.files if one.shown == wanted]
    if not chosen:
        raise NothingMatchedError(f"the job {run_id} has no output file {wanted!a}")
    url = found.link(chosen[0], _DAY)
    above = [("Jobs", "/jobs"), (found.record.spec.name or run_id, f"/jobs/{run_id}")]
    return page(request, "link.html", reveals=True, above=above, trail=(), path=wanted, url=url, expiry="1 day")


ROUTES = (
    Route("/jobs/{run_id}/outputs", _list),
    Route("/jobs/{run_id}/checkpoints", _checkpoints),
    Route("/jobs/{run_id}/outputs/link", _link, methods=["POST"]),
)
