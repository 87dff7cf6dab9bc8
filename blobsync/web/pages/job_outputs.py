"""The output files of a job, with a link for each, and its checkpoints.

They are loaded after the job's page, since listing a container is slow.
"""

from __future__ import annotations

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError, NothingMatchedError
from blobsync.base.redaction import redact_answer
from blobsync.web.app_state import app_state_of, form_of, visit_of
from blobsync.web.gate import TOKEN_FIELD
from blobsync.web.render import fragment, page

# How many files are shown, and for how long a link is valid.
_MOST = 500
_DAY = timedelta(days=1)


def _list(request: Request) -> Response:
    found, problem = None, None
    try:
        found = app_state_of(request).source.jobs().outputs(request.path_params["run_id"])
    except BlobsyncError as error:
        problem = error
    text = fragment(
        "job_outputs.html",
        found=found,
        problem=problem,
        most=_MOST,
        token_field=TOKEN_FIELD,
        form_token=visit_of(request).form_token,
        run_id=request.path_params["run_id"],
    )
    return HTMLResponse(redact_answer(text))


def _checkpoints(request: Request) -> Response:
    """The sets of files that a restart of the job can go on from, and the halves that it passes over."""
    source, run_id = app_state_of(request).source, request.path_params["run_id"]
    found, problem = None, None
    try:
        record = source.jobs().find(run_id)
        with source.open(record.cluster) as project:
            found = project.checkpoints(job=record.run_id)
    except BlobsyncError as error:
        problem = error
    return HTMLResponse(redact_answer(fragment("job_checkpoints.html", found=found, problem=problem, most=_MOST)))


def _link(request: Request) -> Response:
    """A link that reads one file for a day. It is a secret, shown only on request."""
    source, wanted = app_state_of(request).source, form_of(request).get("name", "")
    run_id = request.path_params["run_id"]
    found = source.jobs().outputs(run_id, wanted)
    chosen = [one for one in found.files if one.shown == wanted]
    if not chosen:
        raise NothingMatchedError(f"the job {run_id} has no output file {wanted!a}")
    url = found.link(chosen[0], _DAY)
    return page(request, "job_link.html", reveals=True, record=found.record, file=chosen[0], url=url)


ROUTES = (
    Route("/jobs/{run_id}/outputs", _list),
    Route("/jobs/{run_id}/checkpoints", _checkpoints),
    Route("/jobs/{run_id}/outputs/link", _link, methods=["POST"]),
)
