"""azcopy's lines, recorded and made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.azcopy.azcopy_process import (
    AzcopyMessage,
    FailedTransfer,
    FatalError,
    Info,
    JobProgress,
    JobStarted,
    Prompt,
    parse_line,
)
from tests.fakes.azcopy_process import transcript


def line(kind: str, content: object, details: object = None) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return json.dumps({"TimeStamp": "", "MessageType": kind, "MessageContent": text, "PromptDetails": details})


def parsed(name: str) -> list[AzcopyMessage | None]:
    return [parse_line(each) for each in transcript(name)]


def test_an_upload_that_completed() -> None:
    messages = parsed("upload_completed")
    assert [type(each) for each in messages] == [Info, Info, Info, JobStarted, JobProgress, JobProgress]
    (started, progress, ended) = messages[3:]
    assert isinstance(started, JobStarted) and started.job_id
    assert isinstance(progress, JobProgress) and not progress.is_last
    assert ended == JobProgress(
        status="Completed",
        files_total=3,
        files_done=3,
        files_failed=0,
        bytes_done=5005,
        bytes_over_wire=5005,
        is_last=True,
    )


def test_a_failure_is_named_once_and_not_in_the_last_message() -> None:
    *_, progress, ended = parsed("download_damaged")
    assert isinstance(progress, JobProgress)
    assert progress.failed == (FailedTransfer("http://127.0.0.1:10000/one/rec/dl/damaged", "/staging/f/damaged", 0),)
    assert isinstance(ended, JobProgress) and ended.is_last
    assert ended.failed == ()
    assert ended.status == "CompletedWithErrors"


def test_a_refused_job_cancels_itself() -> None:
    ended = parsed("upload_denied")[-1]
    assert isinstance(ended, JobProgress) and ended.is_last
    assert (ended.status, ended.files_done) == ("Cancelled", 0)


def test_a_fatal_error() -> None:
    failure = parsed("download_denied")[-1]
    assert isinstance(failure, FatalError)
    assert failure.text.startswith("Cannot perform copy due to error: cannot list files due to reason")


def test_nothing_to_do_is_completed_too() -> None:
    ended = parsed("upload_nothing")[-1]
    assert isinstance(ended, JobProgress) and ended.is_last
    assert (ended.status, ended.files_total) == ("Completed", 0)


@pytest.mark.parametrize("numbers", ["strings", "plain"])
def test_numbers_come_as_strings_or_plain(numbers: str) -> None:
    content: dict[str, Any] = {"JobID": "j", "JobStatus": "InProgress"}
    for key, value in {"TotalTransfers": 7, "TransfersCompleted": 3, "TotalBytesTransferred": 2**40}.items():
        content[key] = str(value) if numbers == "strings" else value
    progress = parse_line(line("Progress", content))
    assert isinstance(progress, JobProgress)
    assert (progress.files_total, progress.files_done, progress.bytes_done) == (7, 3, 2**40)


def test_scanning() -> None:
    assert parse_line(line("Progress", {"FilesScannedAtSource": "12", "FilesScannedAtDestination": 3})) is None


def test_a_prompt() -> None:
    options = [
        {"ResponseType": "Yes", "UserFriendlyResponseType": "Yes", "ResponseString": "y"},
        {"ResponseType": "No", "UserFriendlyResponseType": "No", "ResponseString": "n"},
    ]
    message = parse_line(line("Prompt", "sure?", {"PromptType": "Cancel", "ResponseOptions": options}))
    assert message == Prompt("Cancel", "sure?", (("Yes", "y"), ("No", "n")))


def test_a_prompt_without_details() -> None:
    assert parse_line(line("Prompt", "sure?")) == Prompt("", "sure?", ())


def test_warnings_are_words_like_others() -> None:
    assert parse_line(line("Info", "WARN: look out")) == Info("look out")


@pytest.mark.parametrize(
    "strange",
    [
        "",
        "panic: runtime error",
        "[]",
        "7",
        '{"MessageType": 7}',
        line("Response", "x"),
        line("Progress", "{}"),
        line("Progress", "no json"),
        line("Init", {}),
        line("Novelty", {"JobStatus": "Completed"}),
    ],
)
def test_what_is_not_known_survives(strange: str) -> None:
    assert parse_line(strange) == Info(strange)


@given(st.text())
def test_no_line_is_too_strange(text: str) -> None:
    parse_line(text)
    parse_line(line("Progress", text))
    parse_line(line("Progress", {"JobStatus": text, "TotalTransfers": text, "FailedTransfers": [text]}))
