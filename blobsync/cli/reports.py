"""Plans and results as JSON data and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blobsync.cli.output import count_text, duration_text, size_text
from blobsync.plan import VERBS, Action, FileFailure, Route, Shape, TransferPlan, TransferResult, verb

_DONE = {"upload": "uploaded", "download": "downloaded", "copy": "copied"}
_CONFLICT_HINT = "look at both, then choose with --keep local, remote or both, or with --overwrite"
# Files that are listed one by one where nobody asked for a list.
_SHOWN = 20


def plan_data(plan: TransferPlan) -> dict[str, Any]:
    """``data`` of ``plan`` and ``--dry-run``."""
    data = _counts(plan) | {"bytes_planned": plan.bytes_to_transfer, "engine_why": plan.engine.why}
    data["actions"] = [
        {
            "path": part.shown(action),
            "action": verb(plan, action),
            "reason": action.reason.value,
            "size": action.size,
        }
        for part, action in plan.each()
    ]
    return data


def result_data(result: TransferResult) -> dict[str, Any]:
    """``data`` of ``u``, ``d`` and ``apply``."""
    return _counts(result.plan) | {
        "transferred": result.transferred,
        "verified": result.verified,
        "deleted": result.deleted,
        "failed": len(result.failures),
        "bytes_transferred": result.bytes_transferred,
        "seconds": round(result.seconds, 3),
        "azcopy_job_ids": list(result.azcopy_job_ids),
        "receipt": str(result.receipt) if result.receipt else None,
    }


def _counts(plan: TransferPlan) -> dict[str, Any]:
    shapes = {part.shape for part in plan.parts}
    return {
        "route": plan.route.value,
        "engine": plan.engine.name,
        "shape": (shapes.pop() if len(shapes) == 1 else Shape.FOLDER).value,
        "planned": plan.count(Action.TRANSFER),
        "transferred": 0,
        "verified": 0,
        "unchanged": plan.count(Action.UNCHANGED),
        "newer_at_destination": plan.count(Action.NEWER_AT_DESTINATION),
        "skipped": plan.count(Action.SKIP),
        "extras": plan.extras,
        "deleted": 0,
        "failed": len(plan.unreadable),
        "conflicts": plan.count(Action.CONFLICT),
        "bytes_transferred": 0,
        "seconds": 0.0,
        "azcopy_job_ids": [],
        "warnings": list(plan.warnings),
    }


def conflicts(plan: TransferPlan) -> tuple[FileFailure, ...]:
    """Each file that was left alone because both sides have something of their own."""
    return tuple(
        FileFailure(part.shown(action), "conflict", f"left alone: {action.reason.value}", _CONFLICT_HINT)
        for part, action in plan.each()
        if action.action is Action.CONFLICT
    )


def plan_lines(plan: TransferPlan, *, every_file: bool) -> Iterator[str]:
    """What would happen. Files that stay as they are get lines only with ``every_file``."""
    for part, action in plan.each():
        if every_file or action.action is not Action.UNCHANGED:
            size = size_text(action.size)
            target = f" as {action.target}" if action.target else ""
            yield f"{verb(plan, action):<10} {size:>9}  {part.shown(action)}{target}  ({action.reason.value})"
    yield plan_summary(plan)


def plan_summary(plan: TransferPlan) -> str:
    """What would move, what would not, and which engine moves it, with the reason for that."""
    moving = count_text(plan.count(Action.TRANSFER), "file")
    words = [f"would {VERBS[plan.route]} {moving}, {size_text(plan.bytes_to_transfer)}{_way(plan)}"]
    words += [f"{plan.count(action):,} {name}" for action, name in _OTHERS if plan.count(action)]
    if plan.extras and not plan.options.mirror:
        words.append(f"{plan.extras:,} only at the destination, left there")
    return f"{'; '.join(words)}. Engine: {plan.engine.name}, {plan.engine.why}"


def _way(plan: TransferPlan) -> str:
    """Of a copy: whether its bytes pass through this machine."""
    if plan.route in (Route.UPLOAD, Route.DOWNLOAD) or not plan.bytes_to_transfer:
        return ""
    return " through this machine" if plan.engine.name == "relay" else " server to server, 0 B through this machine"


_OTHERS = (
    (Action.DELETE, "to delete"),
    (Action.UNCHANGED, "unchanged"),
    (Action.NEWER_AT_DESTINATION, "newer at the destination, left alone"),
    (Action.CONFLICT, "in conflict, left alone"),
    (Action.SKIP, "skipped"),
)


def result_lines(result: TransferResult) -> Iterator[str]:
    """What happened."""
    plan = result.plan
    for part, action in _first(plan, Action.NEWER_AT_DESTINATION):
        yield f"newer at the destination, left alone: {part.shown(action)}"
    words = [_moved(result)]
    if result.deleted:
        words.append(f"deleted {result.deleted:,}")
    words += [f"{plan.count(action):,} {name}" for action, name in _OTHERS[1:] if plan.count(action)]
    if result.failures:
        words.append(f"{len(result.failures):,} failed")
    words.append(f"{result.verified:,} verified")
    yield "; ".join(words)


def _moved(result: TransferResult) -> str:
    verb = VERBS[result.plan.route]
    if not result.transferred and not result.plan.count(Action.TRANSFER):
        return f"nothing to {verb}"
    files = count_text(result.transferred, "file")
    seconds = f"{result.seconds:.2f} s" if result.seconds < 10 else duration_text(result.seconds)
    return f"{_DONE[verb]} {files}, {size_text(result.bytes_transferred)} in {seconds}"


def _first(plan: TransferPlan, kind: Action) -> Iterator[Any]:
    left = _SHOWN
    for part, action in plan.each():
        if action.action is kind:
            if not left:
                return
            left -= 1
            yield part, action
