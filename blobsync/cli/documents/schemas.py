"""The schema of each command's document: ``data`` in a frame that is the same for all commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blobsync.base.errors import FailureCode
from blobsync.base.exit_codes import ExitCode
from blobsync.cli.documents.answers import data_answers, job_answers, setup_answers
from blobsync.cli.documents.kinds import INTEGER, NUMBER, TEXT, Schema, choice_of, described, list_of, maybe, record
from blobsync.cli.output import STATUSES, VERSION

_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_ERROR = record(
    code=described(choice_of(FailureCode), "what scripts compare"),
    message=TEXT,
    hint=described(maybe(TEXT), "what to do next"),
    path=described(maybe(TEXT), "the file, folder or job"),
)
_TIMINGS = described(list_of(record(span=TEXT, seconds=NUMBER)), "with --timings: the seconds of each phase")


def answers() -> Mapping[str, Sequence[Schema]]:
    """Command as typed (``u``, ``compute ls``) -> the schemas of its ``data``, of which one applies."""
    return {**data_answers(), **job_answers(), **setup_answers()}


def schema_id(command: str) -> str:
    """The ``$id`` of a schema; it changes with the version of the document only."""
    return f"urn:blobsync:json:{VERSION}:{command.replace(' ', '-')}"


def document_schema(command: str, shapes: Sequence[Schema]) -> dict[str, Any]:
    """The schema of the output of ``blobsync COMMAND --json``. ``data`` is empty if the command could not start."""
    timed = ({**each, "properties": {**each["properties"], "timings": _TIMINGS}} for each in shapes)
    whole = record(
        blobsync=described({"const": VERSION}, "the version of this document"),
        command=described(list_of(TEXT), "the words of the command line, without secrets"),
        status={"enum": [*STATUSES]},
        exit_code=described(
            INTEGER,
            "of blobsync: " + ", ".join(f"{int(each)} {each.name.lower().replace('_', ' ')}" for each in ExitCode),
        ),
        data={"anyOf": [*timed, record()]},
        errors=list_of(_ERROR),
    )
    succeeded = {"properties": {"status": {"const": STATUSES[0]}}}
    has_data = {"properties": {"data": {"minProperties": 1}}}
    heading = {"$schema": _DRAFT, "$id": schema_id(command), "title": f"blobsync {command} --json"}
    return {**heading, **whole, "if": succeeded, "then": has_data}
