"""Plans as JSON without secrets: saves, reads, compares and prints them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import LocalFileError, PlanFileError
from blobsync.base.file_states import FileState, LocalState
from blobsync.base.lazy_regexes import pattern
from blobsync.base.plain_json import made_of, parse_json
from blobsync.base.redaction import redact_each
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, PlanPart, TransferPlan, plan_record, verb

VERSION = 1


def save(plan: TransferPlan, file: Path) -> None:
    """Write the plan. Raises ``PlanFileError`` if the file cannot be written, or would be too large to read."""
    try:
        file.write_text(json.dumps(plan_document(plan), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise PlanFileError(f"cannot write the plan to {file}: {error.strerror}", hint="choose another file") from error


def plan_document(plan: TransferPlan) -> dict[str, object]:
    """The content of a plan file; no secrets. Raises ``PlanFileError`` for a plan that is not in memory."""
    if plan.is_large:
        raise PlanFileError(
            f"a plan of {sum(len(part.actions) for part in plan.parts):,} files is too large to be saved",
            hint="save plans of its folders one by one, or run u or d itself",
        )
    _demand_readable(plan.options)
    return {
        "blobsync_plan": VERSION,
        "command": plan.route.direction.value,
        "cluster": plan.cluster,
        "from_cluster": plan.from_cluster,
        "paths": list(plan.paths),
        "options": plan.options._asdict(),
        "created_at": plan.created_at,
        "engine": plan.engine.name,
        "parts": [_part(plan, part) for part in plan.parts],
    }


def _demand_readable(options: TransferOptions) -> None:
    """Raise ``PlanFileError`` for options that :func:`load` would refuse or change."""
    try:
        if made_of(TransferOptions, parse_json(json.dumps(options._asdict()))) == options:
            return
        why = "they would be read as others"
    except (TypeError, ValueError) as error:
        why = str(error)
    raise PlanFileError(f"a plan with {options!r} cannot be saved: {why}", hint="run u or d itself with these options")


def _part(plan: TransferPlan, part: PlanPart) -> dict[str, object]:
    return {
        "path": part.path,
        "shape": part.shape.value,
        "source": str(part.source),
        "destination": str(part.destination),
        "actions": [
            {
                "path": action.path,
                "action": verb(plan, action),
                "reason": action.reason.value,
                "size": action.size,
                "source": _state(action.source),
                "destination": _state(action.destination),
                "aside": action.aside,
            }
            for action in part.actions
        ],
    }


def _state(state: FileState | None) -> dict[str, object] | None:
    if state is None:
        return None
    md5 = state.md5.hex() if state.md5 else None
    if isinstance(state, LocalState):
        return {"size": state.size, "mtime_ns": state.mtime_ns, "inode": state.inode, "md5": md5}
    return {"size": state.size, "etag": state.etag, "md5": md5}


class SavedPlan:
    """A plan file as read: its arguments make the plan again, its actions show whether that is the same."""

    def __init__(self, document: Mapping[str, object], file: Path) -> None:
        self._document = document
        self.file = file
        try:
            command = _text(document["command"])
            if command not in {each.value for each in Direction}:
                raise ValueError(f"unknown command {command[:20]!a}")
            self.direction = Direction(command)
            self.cluster = _text(document["cluster"])
            self.from_cluster = None if document["from_cluster"] is None else _text(document["from_cluster"])
            self.paths = tuple(_text(path) for path in _sequence(document["paths"]))
            self.options = made_of(TransferOptions, document["options"])
            self._parts = _sequence(document["parts"])
            _by_path(self._parts)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanFileError(
                f"{file} is not a complete plan: {error}", hint="create it again: blobsync plan u PATH --save FILE"
            ) from error

    def demand_clusters(self, cluster: str, from_cluster: str | None) -> None:
        """Raise ``PlanFileError`` if it was made for others."""
        made, given = (self.cluster, self.from_cluster), (cluster, from_cluster)
        if made != given:
            raise PlanFileError(
                f"{self.file} is a plan for {_clusters(*made)}, not for {_clusters(*given)}",
                hint="'blobsync apply' without -c and -f takes them from the plan",
            )

    def check(self, plan: TransferPlan) -> None:
        """Raise ``PlanFileError`` with the differences if ``plan``, made just now, is not the same."""
        now = [_part(plan, part) for part in plan.parts]
        if now == self._parts:
            return
        before, after = _by_path(self._parts), _by_path(now)
        differing = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        names = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise PlanFileError(
            f"{self.file} is out of date: since it was saved, {names or 'the set of paths'} changed",
            hint="save the plan again (blobsync plan u PATH --save FILE), and review it",
        )


def load(file: Path) -> SavedPlan:
    """Read a plan file. Raises ``PlanFileError``."""
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"cannot read the plan {file}: {error.strerror}", hint="check the name") from error
    except ValueError as error:
        raise PlanFileError(
            f"{file} is not a plan: {error}", hint="create one: blobsync plan u PATH --save FILE"
        ) from error
    if not isinstance(document, dict) or document.get("blobsync_plan") != VERSION:
        raise PlanFileError(
            f"{file} is not a plan of this version of blobsync", hint="create one: blobsync plan u PATH --save FILE"
        )
    return SavedPlan(document, file)


def _clusters(cluster: str, from_cluster: str | None) -> str:
    return f"cluster {cluster}" + (f" from {from_cluster}" if from_cluster else "")


def _by_path(parts: Sequence[object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in parts:
        if isinstance(part, dict):
            for action in _sequence(part["actions"]):
                if not isinstance(action, dict):
                    raise TypeError("an action is missing")
                found[f"{_text(part['path'])}/{_text(action['path'])}".rstrip("/")] = action
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _sequence(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return value


_KEEP = 10
_OUR_NAME = pattern(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.jsonl")


def write_plan_records(plan: TransferPlan, folder: Path) -> Path:
    """JSON lines, in the order of the plan, in a new file of ``folder``. Raises ``LocalFileError``."""
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}.jsonl"
    part = file.with_suffix(".part")
    try:
        with part.open("w", encoding="utf-8") as out:
            for records in redact_each(plan_record(plan, *each) for each in plan.each()):
                out.writelines(f"{json.dumps(record)}\n" for record in records)
        os.replace(part, file)
        ours = sorted(path for path in folder.iterdir() if _OUR_NAME.fullmatch(path.name))
        for old in ours[:-_KEEP]:
            old.unlink(missing_ok=True)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LocalFileError(f"{file}: the files of the plan cannot be written: {error.strerror}") from error
    return file
