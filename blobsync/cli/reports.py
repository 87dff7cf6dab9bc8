"""Plans, results and the findings of ``verify``, as JSON data and as lines of text."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text, took_text
from blobsync.base.plan_reasons import Reason
from blobsync.cli.output import fields_of, more_line
from blobsync.plan.transfer_plan import (
    VERBS,
    Action,
    FileAction,
    PlanPart,
    Route,
    Shape,
    TransferPlan,
    plan_record,
    verb,
)
from blobsync.plan.transfer_result import TransferResult

if TYPE_CHECKING:
    from blobsync.base.locations import BlobContainer
    from blobsync.jobs.record import JobRecord
    from blobsync.plan.request_counts import Operations
    from blobsync.project.verify import VerifyReport
    from blobsync.store.account_features import AccountFeatures


_DONE = {"upload": "uploaded", "download": "downloaded", "copy": "copied"}
# What only a transfer that was carried out has done.
_MOVED = ("transferred", "verified", "deleted", "bytes_transferred", "bytes_reused", "not_compared")
# Files of one kind that are listed without --full.
_SHOWN = 10


def files_shown(*, quiet: bool, full: bool) -> int:
    """How many files of each kind to list: all of them with ``--full``, none with ``-q``."""
    return sys.maxsize if full else 0 if quiet else _SHOWN


_Accounts: TypeAlias = "Mapping[BlobContainer, AccountFeatures]"


def plan_data(
    plan: TransferPlan, records: Path | None = None, accounts: _Accounts = MappingProxyType({})
) -> dict[str, Any]:
    """``data`` of ``plan`` and ``--dry-run``; ``records`` is the file with the actions, if the document omits them."""
    from blobsync.plan.request_counts import planned_operations  # late, as in all of these: only --json and -v count

    data = _counts(plan) | {
        "bytes_planned": plan.bytes_to_transfer,
        "bytes_on_record": plan.bytes_on_record,
        "engine_why": plan.engine.why,
        "estimated_seconds": {
            name: round(seconds, 2)
            for name, seconds in (("direct", plan.engine.direct_seconds), ("azcopy", plan.engine.azcopy_seconds))
            if seconds is not None
        },
        "processes": plan.processes.count,
        "processes_why": plan.processes.why,
        "spread": asdict(plan.spread) if plan.spread else None,
        "operations": asdict(planned_operations(plan)),
        "accounts": [_account_data(container, found) for container, found in accounts.items()],
    }
    if records is None:
        data["actions"] = [plan_record(plan, part, action) for part, action in plan.each()]
    else:
        data["actions_file"] = str(records)
    return data


def feature_lines(accounts: _Accounts) -> Iterator[str]:
    """What each container keeps of what is deleted, and whether it has directories: one line for each."""
    for container, found in accounts.items():
        yield f"{container}: {found}"


def _account_data(container: BlobContainer, found: AccountFeatures) -> dict[str, Any]:
    known = fields_of(found, "versioning", "soft_delete_days", "immutability")
    return {"container": str(container), **known, "hierarchical_namespace": found.hns}


def result_data(result: TransferResult, seconds: float) -> dict[str, Any]:
    """``data`` of ``u``, ``d`` and ``apply``; ``seconds`` is how long the command took."""
    return _counts(result.plan) | {
        **fields_of(result, *_MOVED, "azcopy_job_ids"),
        "failed": len(result.failures),
        "seconds": round(seconds, 3),
        "operations": asdict(done_operations(result)),
        "receipt": str(result.receipt) if result.receipt else None,
    }


def done_operations(result: TransferResult) -> Operations:
    """What the account was asked: the requests of this process, and by estimate those of other processes."""
    from blobsync.plan.request_counts import Operations, leaves_account, planned_operations

    plan = result.plan
    kinds = ("write", "list", "read", "delete")
    done = Operations(*(result.requests.get(kind, 0) for kind in kinds))
    if plan.engine.name == "azcopy" or plan.processes.count > 1 or plan.spread is not None:
        planned = planned_operations(plan)
        done = replace(done, write=done.write + planned.write, read=done.read + planned.read)
    return replace(done, bytes_out=result.bytes_transferred if leaves_account(plan) else 0)


def detached_data(plan: TransferPlan, record: JobRecord) -> dict[str, Any]:
    """``data`` of a transfer that continues in its job."""
    return {
        "job_id": record.run_id,
        "backend": record.backend,
        "cluster": record.cluster,
        "status": record.info.state.value,
        "planned": plan.files_to_transfer,
        "bytes_planned": plan.bytes_to_transfer,
        "nodes": plan.spread.nodes if plan.spread else 0,
        "shards": plan.spread.shards if plan.spread else 0,
    }


def _counts(plan: TransferPlan) -> dict[str, Any]:
    shapes = {part.shape for part in plan.parts}
    return {
        "route": plan.route.value,
        "engine": plan.engine.name,
        "shape": (shapes.pop() if len(shapes) == 1 else Shape.FOLDER).value,
        **dict.fromkeys(_MOVED, 0),
        "planned": plan.files_to_transfer,
        "unchanged": plan.count(Action.UNCHANGED),
        "newer_at_destination": plan.count(Action.NEWER_AT_DESTINATION),
        "skipped": plan.count(Action.SKIP),
        "extras": plan.extras,
        "ignored": plan.ignored,
        "failed": len(plan.unreadable),
        "conflicts": plan.count(Action.CONFLICT),
        "seconds": 0.0,
        "azcopy_job_ids": [],
        "warnings": list(plan.warnings),
    }


def plan_lines(plan: TransferPlan, shown: int, *, unchanged: bool, verbose: bool = False) -> Iterator[str]:
    """What would happen: the first ``shown`` files of each reason, then the counts.

    Unchanged files are listed only with ``unchanged``. ``verbose``: see :func:`plan_summary`.
    """
    groups: dict[tuple[Action, Reason], list[str]] = {}
    left: Counter[tuple[Action, Reason]] = Counter()
    for part, action in plan.each():
        if shown and (unchanged or action.action is not Action.UNCHANGED):
            group = groups.setdefault((action.action, action.reason), [])
            if len(group) < shown:
                group.append(_plan_line(plan, part, action))
            else:
                left[action.action, action.reason] += 1
    for kind in sorted(groups, key=lambda kind: _ORDER.index(kind[0])):
        yield f"{kind[1].value}:"
        yield from groups[kind]
        if left[kind]:
            yield more_line(left[kind])
    yield plan_summary(plan, verbose=verbose)


def deletion_lines(plan: TransferPlan, shown: int) -> Iterator[str]:
    """The first ``shown`` of the files that ``--mirror`` would delete."""
    deletions = ((part, action) for part, action in plan.each() if action.action is Action.DELETE)
    for part, action in islice(deletions, shown):
        yield _plan_line(plan, part, action)
    left = plan.count(Action.DELETE) - shown
    if shown and left > 0:
        yield more_line(left)


def _plan_line(plan: TransferPlan, part: PlanPart, action: FileAction) -> str:
    # JSON has the full name; here the heading explains it.
    word = "newer" if action.action is Action.NEWER_AT_DESTINATION else verb(plan, action)
    aside = f", and the other version as {action.aside}" if action.aside else ""
    there = f", {size_text(action.on_record)} of it are there" if action.on_record else ""
    there += ", only the blocks that changed" if action.delta else ""
    return f"  {word:<8} {size_text(action.size):>7}  {part.shown(action)}{aside}{there}"


def _goes_both_ways(plan: TransferPlan) -> bool:
    """Whether ``--keep`` also writes at the source, so that no single verb fits all files."""
    return plan.files_to_transfer > plan.count(Action.TRANSFER)


def plan_summary(plan: TransferPlan, *, verbose: bool) -> str:
    """What would and what would not move; the engine and its reason, if it is not the direct engine, or with
    ``verbose``."""
    moving = count_text(plan.files_to_transfer, "file")
    word = "move" if _goes_both_ways(plan) else VERBS[plan.route]
    there = f", of which {size_text(plan.bytes_on_record)} are there already" if plan.bytes_on_record else ""
    words = [f"would {word} {moving}, {size_text(plan.bytes_to_transfer)}{there}{_way(plan)}"]
    if not plan.files_to_transfer:
        words = [f"nothing to {word}"]
    words += [f"{plan.count(action):,} {name}" for action, name in _OTHERS if plan.count(action)]
    if plan.ignored:
        words.append(f"{plan.ignored:,} ignored")
    if plan.extras and not plan.options.mirror:
        words.append(f"{plan.extras:,} only at the destination, left there")
    engine = f". Engine: {plan.engine.name}, {plan.engine.why}" if verbose or plan.engine.name != "direct" else ""
    asked = ""
    if verbose:
        from blobsync.plan.request_counts import planned_operations

        asked = f". Requests: {operations_text(planned_operations(plan))}"
    return f"{'; '.join(words)}{engine}{_processes(plan)}{_nodes(plan)}{asked}"


def operations_text(operations: Operations) -> str:
    """What the account is asked, in words."""
    counts = [(count, name) for name, count in asdict(operations).items() if name != "bytes_out"]
    words = ", ".join(f"{count:,} {name}" for count, name in counts if count) or "none"
    return f"{words}; {size_text(operations.bytes_out)} leave the account"


def _processes(plan: TransferPlan) -> str:
    """The number of processes, if there are several or if the user asked for it."""
    if plan.spread is not None or (plan.processes.count == 1 and plan.options.processes is None):
        return ""
    most = "" if plan.options.processes is not None or plan.processes.count == 1 else "up to "
    return f". Processes: {most}{plan.processes.count}, {plan.processes.why}"


def _nodes(plan: TransferPlan) -> str:
    """How the plan is spread over nodes, if it is."""
    if plan.spread is None:
        return ""
    spread, each = plan.spread, count_text(plan.spread.workers_per_node, "process")
    tasks = f"{count_text(spread.shards, 'task')}, {spread.nodes:,} at a time with {each} each"
    return f". Nodes: {spread.nodes}; {tasks}, {spread.why}"


def _way(plan: TransferPlan) -> str:
    """The route of a copy: from server to server, or through this machine."""
    if plan.route in (Route.UPLOAD, Route.DOWNLOAD) or not plan.bytes_to_transfer:
        return ""
    return " through this machine" if plan.engine.name == "relay" else " server to server, 0 B through this machine"


# Files that need attention come last, close to the counts.
_ORDER = (
    *(Action.UNCHANGED, Action.TRANSFER, Action.ADOPT, Action.DELETE),
    *(Action.SKIP, Action.NEWER_AT_DESTINATION, Action.CONFLICT),
)
_OTHERS = (
    (Action.DELETE, "to delete"),
    (Action.UNCHANGED, "unchanged"),
    (Action.NEWER_AT_DESTINATION, "newer at the destination, left alone"),
    (Action.CONFLICT, "in conflict, left alone"),
    (Action.SKIP, "skipped"),
)


def result_lines(result: TransferResult, seconds: float) -> Iterator[str]:
    """What happened; ``seconds`` is how long the command took."""
    plan = result.plan
    newer = plan.count(Action.NEWER_AT_DESTINATION)
    paths = (part.shown(action) for part, action in plan.each() if action.action is Action.NEWER_AT_DESTINATION)
    for path in islice(paths, min(newer, _SHOWN)):
        yield f"newer at the destination, left alone: {path}"
    if newer > _SHOWN:
        yield more_line(newer - _SHOWN, full="plan --full")
    failed = {failure.path for failure in result.failures}
    kept = [each for each in plan.each() if each[1].aside and each[0].shown(each[1]) not in failed]
    for part, action in kept[:_SHOWN]:
        yield f"both kept: {part.shown(action)}, and the other version as {part.shown_aside(action)}"
    if len(kept) > _SHOWN:
        yield f"and {len(kept) - _SHOWN:,} more; the receipt has them all"
    words = [_moved(result, seconds)]
    if result.deleted:
        words.append(f"deleted {result.deleted:,}")
    words += [f"{plan.count(action):,} {name}" for action, name in _OTHERS[1:] if plan.count(action)]
    if result.failures:
        words.append(f"{len(result.failures):,} failed")
    words.append(f"{result.verified:,} verified")
    if result.not_compared:
        words.append(f"{result.not_compared:,} of them copied, not compared: their source keeps no checksum of them")
    yield "; ".join(words)


def _moved(result: TransferResult, seconds: float) -> str:
    verb = VERBS[result.plan.route]
    if not result.transferred and not result.plan.files_to_transfer:
        return f"nothing to {verb}"
    files = count_text(result.transferred, "file")
    done = "moved" if _goes_both_ways(result.plan) else _DONE[verb]
    reused = f", {size_text(result.bytes_reused)} were there already" if result.bytes_reused else ""
    return f"{done} {files}, {size_text(result.bytes_transferred)} in {took_text(seconds)}{reused}"


def verify_data(reports: Sequence[VerifyReport]) -> dict[str, Any]:
    """``data`` of ``verify``."""
    return {
        "counts": _verify_counts(reports),
        "bytes_equal": _bytes(reports),
        "compared_by": _compared_by(reports),
        "not_equal": [fields_of(each, "path", "status", "size") for report in reports for each in report.not_equal],
    }


def verify_lines(reports: Sequence[VerifyReport], shown: int) -> Iterator[str]:
    """The first ``shown`` files of each class that is not ``equal``, then the counts."""
    counts = _verify_counts(reports)
    for status in (each for each in counts if each not in ("equal", "left_out") and shown):
        said = status.replace("_", " ")
        # A pass for each class: the files may be too many for memory.
        files = (file for report in reports for file in report.not_equal if file.status == status)
        yield from (f"{said}: {file.path}" for file in islice(files, shown))
        if counts[status] > shown:
            yield more_line(counts[status] - shown, f" {said}")
    if not counts:
        unread = any(report.unreadable for report in reports)
        yield "nothing could be compared" if unread else "nothing to compare: no files here, none in the container"
        return
    words = ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items())
    by_crc64 = _compared_by(reports).get("crc64nvme", 0)
    how = f"; {by_crc64:,} of them compared by CRC64" if by_crc64 else ""
    yield f"{words}; {size_text(_bytes(reports))} equal{how}"


def _compared_by(reports: Sequence[VerifyReport]) -> dict[str, int]:
    """The number of equal files by what that is known."""
    return dict(sorted(sum((Counter(each.compared_by) for each in reports), Counter[str]()).items()))


def verify_code(reports: Sequence[VerifyReport]) -> ExitCode:
    """The exit code if all PATHs have the same; else ``PARTIAL``."""
    codes = {report.exit_code for report in reports}
    return codes.pop() if len(codes) == 1 else ExitCode.PARTIAL


def _verify_counts(reports: Sequence[VerifyReport]) -> dict[str, int]:
    """The number of files of each class, in the order of the classes."""
    from blobsync.project.verify import CLASSES

    found = sum((Counter(each.counts) for each in reports), Counter[str]())
    return {status: found[status] for status in CLASSES if found[status]}


def _bytes(reports: Sequence[VerifyReport]) -> int:
    return sum(report.bytes_equal for report in reports)
