"""One scripted azcopy process: its output, recorded and made up, is parsed, answered, and stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.azcopy.argv import Command
from blobsync.azcopy.azcopy_process import (
    AzcopyJob,
    AzcopyJobOutcome,
    FailedTransfer,
    JobProgress,
    Message,
    answer,
    parse_line,
    progress_of,
)
from blobsync.base.process import LineReader
from tests.fakes.azcopy_process import AzcopyRunner, ScriptedAzcopy, transcript
from tests.waiting import wait_until


def line(kind: str, content: object, details: object = None) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return json.dumps({"MessageType": kind, "MessageContent": text, "PromptDetails": details})


def counts(status: str, done: int = 0, **more: Any) -> dict[str, Any]:
    return {"JobID": "job-1", "JobStatus": status, "TotalTransfers": "9", "TransfersCompleted": str(done), **more}


def failed(name: str) -> dict[str, str]:
    return {"Src": f"/links/{name}", "Dst": f"https://h/c/{name}", "TransferStatus": "Failed", "ErrorCode": "503"}


STARTED = line("Init", {"JobID": "job-1", "LogFileLocation": "/log"})
CANCELLED = line("EndOfJob", counts("Cancelled"))
CANCEL_PROMPT = line(
    "Prompt",
    "not all is scanned, cancel?",
    {
        "PromptType": "Cancel",
        "ResponseOptions": [
            {"UserFriendlyResponseType": "Yes", "ResponseString": "y"},
            {"UserFriendlyResponseType": "No", "ResponseString": "n"},
        ],
    },
)
ALREADY = line("Error", "Cannot perform copy due to error: Can't cancel JobID=job-1 because it has already completed")


@dataclass
class Watching:
    """``says`` answers whether all is done; ``clock`` jumps by an hour at each look where ``hurry`` is set."""

    says: Callable[[], bool] = lambda: False
    on_progress: Callable[[JobProgress], None] = lambda progress: None
    pids: list[int] = field(default_factory=list)
    seen: list[JobProgress] = field(default_factory=list)

    def started(self, pid: int) -> None:
        self.pids.append(pid)

    def progress(self, progress: JobProgress) -> None:
        self.seen.append(progress)
        self.on_progress(progress)

    def finished(self) -> bool:
        return self.says()


def run(process: ScriptedAzcopy, watch: Watching | None = None, **more: Any) -> AzcopyJobOutcome:
    runner, watch = AzcopyRunner(process), watch or Watching()
    job = AzcopyJob(
        runner,
        Command(("/bin/azcopy", "copy"), "azcopy copy"),
        {"HOME": "/s"},
        watch.started,
        watch.progress,
        watch.finished,
        300.0,
        **more,
    )
    outcome = job.run()
    assert runner.argv == ("/bin/azcopy", "copy")
    assert runner.env == {"HOME": "/s"}
    assert process.stopped
    return outcome


def test_a_job_that_completes() -> None:
    watch = Watching()
    outcome = run(ScriptedAzcopy(transcript("upload_completed")), watch)
    assert (outcome.status, outcome.clean, outcome.failed, outcome.ended_early) == ("Completed", True, {}, False)
    assert outcome.job_id
    assert watch.pids == [4711]
    assert [progress.files_done for progress in watch.seen] == [3, 3]


def test_failures_are_united_over_all_messages() -> None:
    outcome = run(
        ScriptedAzcopy(
            [
                STARTED,
                line("Progress", counts("InProgress", FailedTransfers=[failed("a")])),
                line("Progress", counts("InProgress", FailedTransfers=[failed("b")], SkippedTransfers=[failed("c")])),
                line("EndOfJob", counts("CompletedWithErrorsAndSkipped", FailedTransfers=None)),
            ]
        )
    )
    assert set(outcome.failed) == {"/links/a", "/links/b", "/links/c"}
    assert outcome.clean


@pytest.mark.parametrize(
    ("name", "status"),
    [("upload_denied", "Cancelled"), ("copy_cannot_verify", "Cancelled"), ("copy_not_implemented", "Failed")],
)
def test_a_job_that_gives_up_is_not_clean(name: str, status: str) -> None:
    outcome = run(ScriptedAzcopy(transcript(name), exit_code=1))
    assert (outcome.status, outcome.clean) == (status, False)


def test_a_fatal_error() -> None:
    outcome = run(ScriptedAzcopy(transcript("download_denied"), exit_code=1))
    assert not outcome.clean
    assert "RESPONSE 403" in outcome.fatal
    assert outcome.fatal.startswith("Cannot perform copy due to error: cannot list files due to reason")


def test_silence_and_exit_code_0_are_not_success() -> None:
    assert not run(ScriptedAzcopy([STARTED])).clean


def test_a_panic_is_kept_for_the_report() -> None:
    outcome = run(ScriptedAzcopy(["goroutine 1 [running]:"], exit_code=2, stderr="panic: sig=SENTINEL out of range"))
    assert (outcome.exit_code, outcome.clean, outcome.stderr) == (2, False, "panic: sig=*** out of range")
    assert list(outcome.words) == ["goroutine 1 [running]:"]


def test_azcopy_confirms_that_it_need_not_be_waited_for() -> None:
    process = ScriptedAzcopy([STARTED], lambda line: [ALREADY, None], ends=False)
    outcome = run(process, Watching(says=lambda: True))
    assert process.received == ["cancel"]
    assert (outcome.ended_early, outcome.clean) == (True, True)


def test_azcopy_that_was_not_done_after_all_is_not_clean() -> None:
    process = ScriptedAzcopy([STARTED], lambda line: [CANCELLED, None], ends=False)
    outcome = run(process, Watching(says=lambda: True))
    assert (outcome.ended_early, outcome.status, outcome.clean) == (False, "Cancelled", False)


def test_no_progress_for_long_ends_the_job() -> None:
    moments = iter([0.0, 0.0, 100.0, 200.0, 301.0])
    process = ScriptedAzcopy(
        [STARTED, line("Progress", counts("InProgress", 1))], lambda line: [CANCELLED, None], ends=False
    )
    outcome = run(process, clock=lambda: next(moments, 1000.0))
    assert outcome.stalled
    assert not outcome.clean
    assert process.received == ["cancel"]


def test_ctrl_c_cancels_answers_and_stops() -> None:
    def interrupt(progress: JobProgress) -> None:
        raise KeyboardInterrupt

    def reply(text: str) -> Sequence[str | None]:
        return [CANCEL_PROMPT] if text == "cancel" else [CANCELLED, None]

    process = ScriptedAzcopy([STARTED, line("Progress", counts("InProgress"))], reply, ends=False)
    with pytest.raises(KeyboardInterrupt):
        run(process, Watching(on_progress=interrupt))
    assert process.received == ["cancel", "y"]
    assert process.stopped == 1


def test_azcopy_that_does_not_answer_is_stopped_all_the_same() -> None:
    def interrupt(progress: JobProgress) -> None:
        raise KeyboardInterrupt

    moments = iter(range(100))
    process = ScriptedAzcopy([line("Progress", counts("InProgress"))], ends=False)
    with pytest.raises(KeyboardInterrupt):
        run(process, Watching(on_progress=interrupt), clock=lambda: float(next(moments)))
    assert process.stopped == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_lines_that_end_with_a_bug_end() -> None:
    class Faulty(ScriptedAzcopy):
        def lines(self) -> Iterator[str]:
            yield "one"
            raise RuntimeError("a bug")

    reader = LineReader(Faulty([]))
    assert wait_until(lambda: reader.next(0.1) is None and reader.ended, seconds=10.0)


OPTIONS = [
    {"ResponseType": word, "UserFriendlyResponseType": word, "ResponseString": reply}
    for word, reply in (("Yes", "y"), ("No", "n"), ("Yes for all", "a"))
]


@pytest.mark.parametrize(
    ("details", "reply"),
    [
        ({"PromptType": "Cancel", "ResponseOptions": OPTIONS}, "y"),
        ({"PromptType": "Overwrite", "ResponseOptions": OPTIONS}, "n"),
        ({"PromptType": "DeleteDestination", "ResponseOptions": OPTIONS}, "n"),
        ({"PromptType": "Reauth"}, "n"),
        ({"PromptType": 7, "ResponseOptions": [7, {}]}, "n"),
        (None, "n"),
    ],
)
def test_prompts_never_get_a_yes_but_for_cancelling(details: dict[str, Any] | None, reply: str) -> None:
    message = parse_line(line("Prompt", "sure?", details))
    assert message == Message("Prompt", "sure?", details or {})
    assert answer(message.content) == reply


# -- azcopy's lines ------------------------------------------------------------------------------------------------


def parsed(name: str) -> list[Message]:
    return [parse_line(each) for each in transcript(name)]


def test_an_upload_that_completed() -> None:
    messages = parsed("upload_completed")
    assert [each.kind for each in messages] == ["Info", "Info", "Info", "Init", "Progress", "EndOfJob"]
    (started, progress, ended) = messages[3:]
    assert started.content["JobID"]
    assert not progress_of(progress).is_last
    assert progress_of(ended) == JobProgress(
        status="Completed",
        files_total=3,
        files_done=3,
        files_failed=0,
        bytes_done=5005,
        bytes_over_wire=5005,
        is_last=True,
    )


def test_a_failure_is_named_once_and_not_in_the_last_message() -> None:
    progress, ended = map(progress_of, parsed("download_damaged")[-2:])
    assert progress.failed == (FailedTransfer("http://127.0.0.1:10000/one/rec/dl/damaged", "/staging/f/damaged", 0),)
    assert (ended.is_last, ended.failed, ended.status) == (True, (), "CompletedWithErrors")


def test_nothing_to_do_is_completed_too() -> None:
    ended = progress_of(parsed("upload_nothing")[-1])
    assert (ended.is_last, ended.status, ended.files_total) == (True, "Completed", 0)


@pytest.mark.parametrize("numbers", ["strings", "plain"])
def test_numbers_come_as_strings_or_plain(numbers: str) -> None:
    content: dict[str, Any] = {"JobID": "j", "JobStatus": "InProgress"}
    for key, value in {"TotalTransfers": 7, "TransfersCompleted": 3, "TotalBytesTransferred": 2**40}.items():
        content[key] = str(value) if numbers == "strings" else value
    progress = progress_of(parse_line(line("Progress", content)))
    assert (progress.files_total, progress.files_done, progress.bytes_done) == (7, 3, 2**40)


def test_scanning_is_neither_progress_nor_a_word() -> None:
    watch = Watching()
    scanning = line("Progress", {"FilesScannedAtSource": "12", "FilesScannedAtDestination": 3})
    assert not run(ScriptedAzcopy([scanning]), watch).words
    assert watch.seen == []


def test_warnings_are_words_like_others() -> None:
    assert parse_line(line("Info", "WARN: look out")) == Message("Info", "look out")


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
        line("Init", {"JobID": ""}),
        line("Novelty", {"JobStatus": "Completed"}),
    ],
)
def test_what_is_not_known_survives(strange: str) -> None:
    assert parse_line(strange) == Message("Info", strange)


@given(st.text())
def test_no_line_is_too_strange(text: str) -> None:
    parse_line(text)
    parse_line(line("Progress", text))
    progress_of(parse_line(line("Progress", {"JobStatus": text, "TotalTransfers": text, "FailedTransfers": [text]})))
