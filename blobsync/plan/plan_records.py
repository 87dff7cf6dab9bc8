"""The files of a plan as ``--json`` prints them: in the document, or as JSON lines in a file."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from blobsync.base.errors import LocalFileError
from blobsync.base.redaction import redact_each
from blobsync.plan.transfer_plan import FileAction, PlanPart, TransferPlan, verb

_KEEP = 10
_OUR_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.jsonl")


def plan_record(plan: TransferPlan, part: PlanPart, action: FileAction) -> dict[str, Any]:
    """One of ``actions``."""
    return (
        {
            "path": part.shown(action),
            "action": verb(plan, action),
            "reason": action.reason.value,
            "size": action.size,
        }
        | ({"aside": part.shown_aside(action)} if action.aside else {})
        | ({"on_record": action.on_record} if action.on_record else {})
        | ({"delta": True} if action.delta else {})
    )


def write_plan_records(plan: TransferPlan, folder: Path) -> Path:
    """JSON lines, in the order of the plan, in a new file of ``folder``. Raises ``LocalFileError``."""
    file = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}.jsonl"
    part = file.with_suffix(".part")
    try:
        with part.open("w", encoding="utf-8") as out:
            for record in redact_each(plan_record(plan, *each) for each in plan.each()):
                out.write(json.dumps(record) + "\n")
        os.replace(part, file)
        ours = sorted(path for path in folder.iterdir() if _OUR_NAME.fullmatch(path.name))
        for old in ours[:-_KEEP]:
            old.unlink(missing_ok=True)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LocalFileError(f"{file}: the files of the plan cannot be written: {error.strerror}") from error
    return file
