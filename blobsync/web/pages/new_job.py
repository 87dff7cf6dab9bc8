"""New job: a form with the fields of the cluster's platform, and beside it the exact request.

Everything is checked by ``jobs.form``; without scripts the button Check shows the same.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blobsync.base.errors import BlobsyncError, UntrustedCodeError
from blobsync.base.formatting import count_text
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact_answer
from blobsync.code.project_code import Code
from blobsync.config.loader import cluster_names, load_cluster
from blobsync.config.model import Cluster, value_at
from blobsync.config.trusted_code import demand_digest, trust_code
from blobsync.jobs.form.fields import (
    FOLDER_FIELD_BY_KEY,
    FOLDER_FIELDS,
    FieldEntry,
    FormField,
    by_group,
    fields_of,
    folder_field,
    key_on,
)
from blobsync.jobs.form.filled import CheckedForm, JobForm, check_form, form_of_job
from blobsync.jobs.form.templates import load_template, save_template, template_names
from blobsync.jobs.record import JobFilter
from blobsync.web.open_project import Source, problem_of
from blobsync.web.pages.jobs import after_submission
from blobsync.web.render import app_state_of, form_of, fragment, page

# Old jobs in the list, and characters of a request that are shown.
_RECENT = 50
_SHOWN_CHARS = 200_000
# The button that trusts code sends this word and the digest.
_TRUST = "trust-code "
# Fields of the page that are not fields of the job.
_OWN = ("do", "cluster", "template_name", "replace", "form_token")


@dataclass(frozen=True, slots=True)
class _Message:
    """The result of the last button."""

    good: str = ""
    problem: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()


def _known(source: Source, name: str) -> Cluster | None:
    try:
        return load_cluster(source.root, name, environ=source.environ)
    except BlobsyncError:
        # The check of the form says what is wrong with the file.
        return None


def _show(request: Request) -> Response:
    """An empty form, or one filled from an old job or a template."""
    source, query = app_state_of(request).source, request.query_params
    form = JobForm(query.get("cluster") or source.cluster_name)
    message = _Message()
    try:
        if query.get("job"):
            record = source.jobs().find(query["job"])
            filled = form_of_job(record, _known(source, record.cluster))
            form, message = filled.form, _Message(f"Filled from {record.run_id}.", notes=filled.notes)
        elif query.get("template"):
            filled = load_template(source.root, query["template"])
            form = filled.form if filled.form.cluster else replace(filled.form, cluster=source.cluster_name)
            message = _Message(f"Filled from the template {query['template']}.", notes=filled.notes)
    except BlobsyncError as error:
        message = _Message("", *problem_of(error))
    return _page(request, check_form(source.root, form, source.environ), message, fresh=not form.values)


def _sent(request: Request) -> JobForm:
    given = form_of(request)
    values = {name: text for name, text in given.items() if name not in _OWN and not name.endswith("[]")}
    return JobForm(given.get("cluster", ""), values)


def _do(request: Request) -> Response:
    """Carry out a button: submit, save, init, trust code, or only check."""
    source, given = app_state_of(request).source, form_of(request)
    form = _sent(request)
    found, what = check_form(source.root, form, source.environ), given.get("do", "check")
    message = _Message()
    try:
        if what == "submit" and found.asked is not None:
            with source.open(found.asked.cluster, changes=found.changes) as project:
                submitted = project.jobs.submit(found.asked.argv, **found.asked.keywords)
            return after_submission(request, submitted)
        if what == "submit":
            message = _Message(problem="Nothing was submitted. Correct the fields below first.")
        elif what == "save":
            name, anew = given.get("template_name", "").strip(), given.get("replace") == "yes"
            file = save_template(source.root, name, form, replace=anew)
            message = _Message(f"Saved as {file}.")
        elif what == "init":
            message = _synchronize(source, found)
        elif what.startswith(_TRUST):
            digest = demand_digest(what.removeprefix(_TRUST), "trust-code")
            trust_code(source.root, (digest,), source.environ)
            message = _Message(f"Jobs of this project may now run the code {digest}.")
    except BlobsyncError as error:
        message = _Message("", *problem_of(error))
    return _page(request, found, message, fresh=False)


def _synchronize(source: Source, found: CheckedForm) -> _Message:
    """Upload the code as ``submit --init`` of this form would."""
    with source.open(found.form.cluster, changes=found.changes) as project:
        result = Code(project).publish()
    words = "The code is unchanged:" if result.status == "unchanged" else "Uploaded the code:"
    return _Message(
        f"{words} {result.digest[:12]}, {count_text(len(result.state.snapshot.files), 'file')}.", notes=result.notes
    )


def _check(request: Request) -> Response:
    """The check while typing, as JSON: mistakes by field, the command line, the request, and the fields on request."""
    source = app_state_of(request).source
    found = check_form(source.root, _sent(request), source.environ)
    answer: dict[str, Any] = {
        "mistakes": [{"field": one.field, "message": one.message, "hint": one.hint} for one in found.mistakes],
        "aside": fragment("new_job_aside.html", **_aside(request, found, fresh=False)),
    }
    if "fields" in request.query_params:
        answer["fields"] = fragment("new_job_fields.html", **_fields(found, fresh=True))
    return Response(redact_answer(json.dumps(answer)), media_type="application/json")


def _page(request: Request, found: CheckedForm, message: _Message, *, fresh: bool) -> Response:
    """The page. ``fresh``: nothing was typed yet, so no mistakes are shown."""
    source = app_state_of(request).source
    recent = source.jobs().page(JobFilter(), limit=_RECENT).records
    return page(
        request,
        "new_job.html",
        code=400 if message.problem else 200,
        message=message,
        clusters=cluster_names(source.root),
        recent=recent,
        templates=template_names(source.root),
        **_fields(found, fresh=fresh),
        **_aside(request, found, fresh=fresh),
    )


def _fields(found: CheckedForm, *, fresh: bool) -> dict[str, Any]:
    known = found.known
    return {
        "form": found.form,
        "groups": by_group(_fields_of(found)),
        "known": known,
        "hints": {**{one.name: _hint(found, one) for one in _fields_of(found)}, **_folder_hints(known)},
        "mistakes": {one.field: one for one in reversed(found.mistakes) if not fresh or one.field == "cluster"},
        "entries": FieldEntry,
        "folder_groups": by_group(FOLDER_FIELDS),
        "folder_field": folder_field,
        "opened": _opened(found),
    }


def _fields_of(found: CheckedForm) -> tuple[FormField, ...]:
    return fields_of(found.known.platform) if found.known else ()


def _hint(found: CheckedForm, field: FormField) -> str:
    """The default value of a field; nothing that could be a credential."""
    if found.known is None or not field.key or field.key in ("env", "setup"):
        return ""
    return _shown(found.known.value(key_on(field, found.known)), "\n")


def _folder_hints(known: Cluster | None) -> dict[str, str]:
    """What the cluster file says of its folder entries."""
    found: dict[str, str] = {}
    for entry in known.folders if known else ():
        for key, field in FOLDER_FIELD_BY_KEY.items():
            value = value_at(known.values if known else None, ("config_param", entry.key, key))
            found[folder_field(field, entry.prefix)] = _shown(value, "; ")
    return found


def _folder_labels(known: Cluster | None) -> dict[str, str]:
    """The labels of the fields of folder entries, each with the folder's name."""
    named = [entry.prefix for entry in known.folders] if known else []
    return {
        folder_field(field, folder): f"{field.label} ({folder})" if field.group else f"{field.label} {folder}"
        for folder in named
        for field in FOLDER_FIELDS
    }


def _opened(found: CheckedForm) -> set[str]:
    """The folders whose checkpoints are unfolded: the cluster file or the form says something of them."""
    entries = found.known.folders if found.known else ()
    wrong = {one.field for one in found.mistakes}
    names = [field for field in FOLDER_FIELDS if field.group]
    return {
        entry.prefix
        for entry in entries
        if entry.checkpoints
        or any(found.form.text(name) or name in wrong for name in (folder_field(one, entry.prefix) for one in names))
    }


def _shown(value: Any, between: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return between.join(map(str, value))
    return str(value) if isinstance(value, (str, int)) else ""


def _aside(request: Request, found: CheckedForm, *, fresh: bool) -> dict[str, Any]:
    """The command line and the exact request, or why there is none."""
    shown: dict[str, Any] = dict.fromkeys(("line", "request", "problem", "hint", "digest"), "")
    shown |= {"spec": None, "warnings": found.warnings, "missing": (), "fresh": fresh}
    if found.asked is None:
        labels = {**{one.name: one.label for one in _fields_of(found)}, **_folder_labels(found.known)}
        shown["missing"] = [(labels.get(one.field, one.field.title()), one) for one in found.mistakes]
        return {"aside": shown}
    shown["line"] = shlex.join(found.asked.command_line)
    try:
        with app_state_of(request).source.open(found.asked.cluster, changes=found.changes) as project:
            planned = project.jobs.plan(found.asked.argv, **found.asked.keywords)
    except BlobsyncError as error:
        shown["problem"], shown["hint"] = problem_of(error)
        if isinstance(error, UntrustedCodeError):
            shown["digest"] = error.digest
    else:
        warnings = tuple(dict.fromkeys((*found.warnings, *planned.warnings)))
        shown |= {"request": planned.shown[:_SHOWN_CHARS], "spec": planned.spec, "warnings": warnings}
    return {"aside": shown}


ROUTES = (
    Route("/new-job", _show),
    Route("/new-job", _do, methods=["POST"]),
    Route("/new-job/check", _check, methods=["POST"]),
)
