"""A plan: the first click makes it, the page shows it by reason, the second click carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from blobsync.base.errors import UsageError
from blobsync.base.records import dataclass
from blobsync.plan.transfer_options import Keep, TransferOptions, deletion_limits
from blobsync.plan.transfer_plan import Action, Direction, FileAction, PlanPart, TransferPlan, verb
from blobsync.web.open_project import Source, look_through, source_of
from blobsync.web.render import app_state_of, form_of, fragment, live_parts, page, page_number
from blobsync.web.transfer_tasks import TransferRequest, TransferTask

# Files of each reason in the plan, and on each page of the full list.
_SHOWN = 8
_LISTED = 500
# What needs attention comes first.
_ORDER = (
    *(Action.CONFLICT, Action.DELETE, Action.TRANSFER, Action.ADOPT, Action.NEWER_AT_DESTINATION),
    *(Action.SKIP, Action.UNCHANGED),
)
_CLASSES = {
    Action.CONFLICT: "warn",
    Action.DELETE: "bad",
    Action.NEWER_AT_DESTINATION: "down",
    Action.UNCHANGED: "good",
}


N = TypeVar("N")


@dataclass
class ReasonGroup:
    """The files with the same action for the same reason."""

    action: Action
    verb: str
    reason: str
    files: int = 0
    bytes: int = 0
    first: list[tuple[str, FileAction]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The CSS class of its colour."""
        return kind_of(self.action, self.verb)


def kind_of(action: Action, word: str) -> str:
    """The CSS class for the colour of an action."""
    return _CLASSES.get(action, "down" if word == "download" else "up")


def plan_groups(plan: TransferPlan) -> list[ReasonGroup]:
    """All files, grouped by action and reason."""
    groups: dict[tuple[str, str], ReasonGroup] = {}
    for part, action in plan.each():
        key = _key(plan, action)
        group = groups.get(key)
        if group is None:
            group = groups[key] = ReasonGroup(action.action, *key)
        group.files += 1
        group.bytes += action.size
        if len(group.first) < _SHOWN:
            group.first.append((part.shown(action), action))
    return sorted(groups.values(), key=lambda group: _ORDER.index(group.action))


def _key(plan: TransferPlan, action: FileAction) -> tuple[str, str]:
    return verb(plan, action), action.reason.value


def plan_address(task: TransferTask) -> str:
    """The address of a plan's page."""
    return f"/plans/{task.id}"


def _make(request: Request) -> Response:
    tasks = app_state_of(request).tasks
    form = form_of(request)
    wanted = (
        _again(tasks.find(form["again"]).request, form) if "again" in form else _requested(form, source_of(request))
    )
    return RedirectResponse(plan_address(tasks.begin(wanted)), 303)


def _again(wanted: TransferRequest, form: Mapping[str, str]) -> TransferRequest:
    """The same request, with ``keep`` or ``force`` of the form."""
    changes: dict[str, Any] = {"keep": form["keep"] or None} if "keep" in form else {}
    if "force" in form:
        changes["force"] = True
    return replace(wanted, options=wanted.options._replace(**changes))


def _requested(form: Mapping[str, str], source: Source) -> TransferRequest:
    direction, _, path = form.get("act", "").partition(":")
    paths = (path,) if path else tuple(form.get("path[]", "").split("\n"))
    direction = direction or form.get("direction", "")
    if not path and form.get("path[]", "") == form.get("path", ""):
        # One path whose name contains a line break.
        paths = (form.get("path", ""),)
    paths = tuple(each.strip("/") for each in paths if each.strip("/"))
    if direction not in ("u", "d") or not paths:
        raise UsageError("choose what to plan", hint="go back to the Project page")
    far = form.get("from_cluster") or None
    if far is not None and far not in source.clusters():
        raise UsageError(f"there is no cluster {far!r}", hint="go back to the Project page")
    return TransferRequest(Direction(direction), paths, _options(form), source.cluster_name, far)


def _options(form: Mapping[str, str]) -> TransferOptions:
    files, percent = deletion_limits(form.get("max_delete", "").split())
    return TransferOptions(
        keep=cast("Keep | None", form.get("keep") or None),
        mirror="mirror" in form,
        max_delete_files=files,
        max_delete_percent=percent,
        compare_content="compare_content" in form,
        include=tuple(form.get("include", "").split()),
        exclude=tuple(form.get("exclude", "").split()),
        processes=_number(form, "processes", int, "the number of processes is a whole number"),
        cap_mbps=_number(form, "cap_mbps", float, "the bandwidth is a number of megabits a second"),
        from_path=form.get("from_path", "").strip().strip("/") or None,
    )


def _number(form: Mapping[str, str], name: str, kind: Callable[[str], N], what: str) -> N | None:
    """The number of a field; None: it is empty. The plan refuses numbers that are too small or too large."""
    try:
        return kind(form[name]) if form.get(name, "").strip() else None
    except ValueError:
        raise UsageError(what) from None


def _show(request: Request) -> Response:
    task = app_state_of(request).tasks.find(request.path_params["id"])
    if task.began is not None:
        return RedirectResponse(f"/transfers/{task.id}", 303)
    look_through(request, task.request.cluster)
    # Read the state before the plan: a thread sets the plan first.
    state = task.state
    groups = plan_groups(task.plan) if task.plan else []
    return page(request, "plan.html", task=task, state=state, plan=task.plan, groups=groups)


def _live(request: Request) -> Response:
    task = app_state_of(request).tasks.find(request.path_params["id"])
    shown = request.query_params.get("state")

    def look() -> dict[str, str]:
        if task.state != "planning" and shown != "planning":
            return {}
        if task.state != "planning":
            return {"load": plan_address(task)}
        return {"planning": fragment("plan/planning.html", task=task)}

    return live_parts(request, look)


def _carry_out(request: Request) -> Response:
    tasks = app_state_of(request).tasks
    task = tasks.find(request.path_params["id"])
    if task.plan is not None:
        task.plan.demand_allowed()
    tasks.carry_out(task)
    return RedirectResponse(f"/transfers/{task.id}", 303)


def _files(request: Request) -> Response:
    """All files of one reason, by pages."""
    task = app_state_of(request).tasks.find(request.path_params["id"])
    key = request.query_params.get("verb", ""), request.query_params.get("reason", "")
    number = page_number(request)
    chosen = _chosen(task.plan, key) if task.plan else iter(())
    files = list(islice(chosen, number * _LISTED, (number + 1) * _LISTED + 1))
    query = f"verb={quote(key[0])}&reason={quote(key[1])}"
    return page(
        request, "plan_files.html", task=task, key=key, query=query, number=number, files=files[:_LISTED],
        more=len(files) > _LISTED, first=number * _LISTED + 1,
        kind=kind_of(files[0][1].action, key[0]) if files else "",
    )  # fmt: skip


def _chosen(plan: TransferPlan, key: tuple[str, str]) -> Iterator[tuple[PlanPart, FileAction]]:
    return ((part, action) for part, action in plan.each() if _key(plan, action) == key)


ROUTES = (
    Route("/plans", _make, methods=["POST"]),
    Route("/plans/{id}", _show),
    Route("/plans/{id}/live", _live),
    Route("/plans/{id}/files", _files),
    Route("/plans/{id}/carry-out", _carry_out, methods=["POST"]),
)
