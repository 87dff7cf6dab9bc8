"""The schema of each command's whole document: what surrounds ``data`` is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blobsync.base.failure_codes import ExitCode, FailureCode
from blobsync.cli.documents.data_answers import data_answers
from blobsync.cli.documents.job_answers import JOB, job_answers
from blobsync.cli.documents.kinds import (
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    choice_of,
    list_of,
    maybe,
    noted,
    record,
)
from blobsync.cli.documents.setup_answers import setup_answers
from blobsync.cli.output import STATUSES, VERSION

_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_ERROR = record(
    {
        "code": noted(choice_of(FailureCode), "what scripts compare"),
        "message": TEXT,
        "hint": noted(maybe(TEXT), "what to do next"),
        "path": noted(maybe(TEXT), "the file, folder or job"),
    }
)
_TIMINGS = noted(list_of(record({"span": TEXT, "seconds": NUMBER})), "with --timings: where the time went")


def answers() -> Mapping[str, Sequence[Schema]]:
    """Command, as it is typed (``u``, ``compute ls``) -> the shapes that its ``data`` may have."""
    return {**data_answers(JOB), **job_answers(), **setup_answers()}


def schema_id(command: str) -> str:
    """A name for the schema that stays as long as the version of the document."""
    return f"urn:blobsync:json:{VERSION}:{command.replace(' ', '-')}"


def document_schema(command: str, shapes: Sequence[Schema]) -> dict[str, Any]:
    """The schema of what ``blobsync COMMAND --json`` prints. ``data`` is empty if the command could not begin."""
    whole = record(
        {
            "blobsync": noted({"const": VERSION}, "the version of this document"),
            "command": noted(list_of(TEXT), "the words of the command line, without secrets"),
            "status": {"enum": [*STATUSES]},
            "exit_code": noted(INTEGER, "of blobsync: " + ", ".join(_exit_code(each) for each in ExitCode)),
            "data": {"anyOf": [*map(_with_timings, shapes), record({})]},
            "errors": list_of(_ERROR),
        }
    )
    succeeded = {"properties": {"status": {"const": STATUSES[0]}}}
    has_data = {"properties": {"data": {"minProperties": 1}}}
    heading = {"$schema": _DRAFT, "$id": schema_id(command), "title": f"blobsync {command} --json"}
    return {**heading, **whole, "if": succeeded, "then": has_data}


def _with_timings(shape: Schema) -> Schema:
    return {**shape, "properties": {**shape["properties"], "timings": _TIMINGS}}


def _exit_code(code: ExitCode) -> str:
    return f"{int(code)} {code.name.lower().replace('_', ' ')}"
