"""One line of azcopy's JSON output -> one typed message; pure.

``--output-type=json`` prints one object a line: ``TimeStamp, MessageType, MessageContent, PromptDetails``, where
the content is a text that is often JSON itself, with most of its numbers as strings (azcopy 10.32,
``cmd/uihooks_models.go`` and ``common/rpc-models.go``). Any other line becomes ``Info``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blobsync.base.plain_json import parse_json


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The first message of a job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A file that azcopy failed to move, or skipped. ``http_status`` is 0 where it knows none. Local paths and URLs
    without SAS."""

    source: str
    destination: str
    http_status: int


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Counts of files and bytes. ``failed`` names only what is new since the last message.

    Of the last one (``is_last``) ``status`` is Completed, CompletedWithErrors, Cancelled, Failed, ...
    """

    status: str
    files_total: int
    files_done: int
    files_failed: int
    bytes_done: int
    bytes_over_wire: int
    failed: tuple[FailedTransfer, ...] = ()
    error: str = ""
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """azcopy waits for an answer; ``options`` are (title, what to type)."""

    kind: str
    text: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Info:
    """A note or warning for people, and any other line, unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class FatalError:
    """A fatal error: azcopy ends after it."""

    text: str


AzcopyMessage = JobStarted | JobProgress | Prompt | Info | FatalError


def parse_line(line: str) -> AzcopyMessage | None:
    """Parse one line; never raises. None is for the progress of a job that is still listing."""
    outer = _object(line)
    if outer is None or not isinstance(outer.get("MessageType"), str):
        return Info(line)
    kind = outer["MessageType"]
    text = outer.get("MessageContent")
    text = text if isinstance(text, str) else json.dumps(text)
    if kind == "Info":
        return Info(text.removeprefix("INFO: ").removeprefix("WARN: "))
    if kind == "Error":
        return FatalError(text)
    if kind == "Prompt":
        return _prompt(text, outer.get("PromptDetails"))
    content = _object(text)
    if content is None:
        return Info(line)
    if kind == "Init" and content.get("JobID"):
        return JobStarted(str(content["JobID"]))
    if kind in ("Progress", "EndOfJob") and "JobStatus" in content:
        return _progress(content, is_last=kind == "EndOfJob")
    if kind == "Progress" and "FilesScannedAtSource" in content:
        return None
    return Info(line)


def _progress(content: Mapping[str, Any], *, is_last: bool) -> JobProgress:
    return JobProgress(
        status=str(content["JobStatus"]),
        files_total=_int(content, "TotalTransfers"),
        files_done=_int(content, "TransfersCompleted"),
        files_failed=_int(content, "TransfersFailed") + _int(content, "TransfersSkipped"),
        bytes_done=_int(content, "TotalBytesTransferred"),
        bytes_over_wire=_int(content, "BytesOverWire"),
        failed=(*_transfers(content.get("FailedTransfers")), *_transfers(content.get("SkippedTransfers"))),
        error=str(content.get("ErrorMsg") or ""),
        is_last=is_last,
    )


def _transfers(found: object) -> tuple[FailedTransfer, ...]:
    entries = found if isinstance(found, list) else []
    return tuple(
        FailedTransfer(
            source=str(entry.get("Src", "")),
            destination=str(entry.get("Dst", "")),
            http_status=_int(entry, "ErrorCode"),
        )
        for entry in entries
        if isinstance(entry, dict)
    )


def _prompt(text: str, details: object) -> Prompt:
    known = details if isinstance(details, dict) else {}
    options = known.get("ResponseOptions")
    return Prompt(
        kind=str(known.get("PromptType", "")),
        text=text,
        options=tuple(
            (str(each.get("UserFriendlyResponseType", "")), str(each.get("ResponseString", "")))
            for each in (options if isinstance(options, list) else [])
            if isinstance(each, dict)
        ),
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _int(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    try:
        return int(value) if isinstance(value, (int, str)) else 0
    except ValueError:
        return 0
