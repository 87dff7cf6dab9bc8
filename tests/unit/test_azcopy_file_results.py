"""The result of each of azcopy's files: from its log, its lists, and a check of the destination if it broke off."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from blobsync.azcopy.azcopy_process import AzcopyJobOutcome, FailedTransfer
from blobsync.azcopy.failure_reasons import ErrorDetails, LogReader
from blobsync.azcopy.file_results import LogFollower, Verdict
from blobsync.base.errors import BlobsyncError, StorageError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.redaction import SasToken
from blobsync.plan.transfer_plan import Route
from blobsync.store.open_locations import OpenBlob
from tests.fakes.store import MemoryStore, Request

ONE, TWO = b"1" * 16, b"2" * 16
DONE = "all parts of entire Job j successfully completed, cancelled or paused"


def outcome(*, status: str = "", ended_early: bool = False, **more: object) -> AzcopyJobOutcome:
    found = AzcopyJobOutcome(status=status, ended_early=ended_early, exit_code=1)
    for name, value in more.items():
        setattr(found, name, value)
    return found


def failed_transfer(store: MemoryStore, name: str, status: int = 503, *, here: str = "/links/a") -> FailedTransfer:
    return FailedTransfer(here, str(store.container.child(name)), status)


def code(error: BlobsyncError | None) -> str | None:
    return error.code if error else None


class Case:
    """One job about the folder ``x`` (or another ``folder``) of a store."""

    def __init__(
        self,
        found: AzcopyJobOutcome,
        *,
        route: Route = Route.UPLOAD,
        folder: str = "x",
        reasons: dict[str, ErrorDetails] | None = None,
        sas: SasToken | None = None,
    ) -> None:
        self.store = MemoryStore("one")
        log = LogReader()
        log.reasons.update(reasons or {})
        self.verdict = Verdict(route, found, log, [sas] if sas else [], OpenBlob(self.store, folder))

    def key(self, name: str) -> str:
        return f"/fake/one/{name}"


WANTED = LocalState(2, 1, 1, 1, ONE)


def test_where_azcopy_went_through_all_files_nothing_speaks_against_one_that_it_does_not_name() -> None:
    case = Case(outcome(status="CompletedWithErrors"))
    assert case.verdict.failure("a", WANTED) is None
    assert case.store.requests == []


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD, Route.CROSS_ACCOUNT])
def test_files_that_azcopy_names_failed(route: Route) -> None:
    store = MemoryStore("one")
    blob = str(store.container.child("x/b c"))
    ends = (blob, "/here/b c") if route is Route.DOWNLOAD else ("/links/b c", blob)
    found = outcome(status="CompletedWithErrors")
    found.failed["any"] = FailedTransfer(*ends, 429)
    verdict = Verdict(route, found, LogReader(), [], OpenBlob(store, "x"))
    assert code(verdict.failure("b c", WANTED)) == "service_busy"
    assert verdict.failure("b", WANTED) is None


def test_a_file_that_only_the_log_names_failed_for_the_logs_reason() -> None:
    case = Case(outcome(status="Completed"), reasons={"/fake/one/x/a": ErrorDetails(412, "ConditionNotMet", "no")})
    assert code(case.verdict.failure("a", WANTED)) == "changed_meanwhile"


def test_the_logs_reason_is_more_exact_than_the_lists_status() -> None:
    case = Case(outcome(status="Completed"), reasons={"/fake/one/x/a": ErrorDetails(412, "ConditionNotMet", "no")})
    case = Case(
        outcome(status="Completed", failed={"a": failed_transfer(case.store, "x/a", 503)}),
        reasons={"/fake/one/x/a": ErrorDetails(412, "ConditionNotMet", "no")},
    )
    assert code(case.verdict.failure("a", WANTED)) == "changed_meanwhile"


@pytest.mark.parametrize(
    ("there", "expected", "verdict"),
    [
        pytest.param(RemoteState(2, "e", ONE), WANTED, None, id="as planned"),
        pytest.param(RemoteState(2, "e", ONE), RemoteState(2, "other", ONE), None, id="as the source blob"),
        pytest.param(None, WANTED, "azcopy_failed", id="not there"),
        pytest.param(RemoteState(3, "e", ONE), WANTED, "azcopy_failed", id="another size"),
        pytest.param(RemoteState(2, "e", TWO), WANTED, "azcopy_failed", id="another MD5"),
        pytest.param(RemoteState(2, "e", None), WANTED, "azcopy_failed", id="no MD5 there"),
        pytest.param(RemoteState(2, "e", None), LocalState(2, 1, 1, 1), "azcopy_failed", id="no MD5 anywhere"),
        pytest.param(RemoteState(2, "e", ONE), LocalState(2, 1, 1, 1), "azcopy_failed", id="no MD5 here"),
        pytest.param(RemoteState(2, "e", ONE), None, "azcopy_failed", id="nothing to compare with"),
    ],
)
def test_after_a_job_that_broke_off_only_what_is_there_as_planned_counts(
    there: RemoteState | None, expected: FileState | None, verdict: str | None
) -> None:
    case = Case(outcome(status="Cancelled"))
    if there is not None:
        case.store.add("x/a", b"")
        case.store.blobs["x/a"].info = case.store.blobs["x/a"].info._replace(size=there.size, md5=there.md5)
    assert code(case.verdict.failure("a", expected)) == verdict


def test_twenty_files_are_asked_for_and_then_one_listing_made() -> None:
    case = Case(outcome())
    for number in range(25):
        case.store.put(f"x/{number}", b"AA", md5=md5_of(b"AA"))
    case.store.put("xy/1", b"AA", md5=md5_of(b"AA"))
    case.store.requests.clear()
    wanted = LocalState(2, 1, 1, 1, md5_of(b"AA"))
    assert [case.verdict.failure(str(number), wanted) for number in range(25)] == [None] * 25
    assert code(case.verdict.failure("gone", wanted)) == "azcopy_failed"
    assert len(case.store.asked("head")) == 20
    assert [each.name for each in case.store.asked("list")] == ["x/"]


def md5_of(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


def test_the_listing_of_a_whole_container_has_no_prefix() -> None:
    case = Case(outcome(), folder="")
    for number in range(21):
        case.verdict.failure(str(number), WANTED)
    assert [each.name for each in case.store.asked("list")] == [""]


def test_a_store_that_does_not_answer_is_asked_once() -> None:
    case = Case(outcome(fatal="RESPONSE 403: 403 no"))

    def refuse(request: Request) -> None:
        raise StorageError("no")

    case.store.before = refuse
    assert [code(case.verdict.failure(name, WANTED)) for name in "ab"] == ["access_denied"] * 2
    assert len(case.store.requests) == 1


@pytest.mark.parametrize("found", [outcome(status="Completed"), outcome(ended_early=True)])
def test_a_file_that_azcopy_passed_over_in_silence_changed(found: AzcopyJobOutcome) -> None:
    assert Case(found).verdict.reason("a").code == "changed_while_read"


def test_a_file_with_a_reason_did_not_just_change() -> None:
    store = MemoryStore("one")
    found = outcome(status="Completed", failed={"a": failed_transfer(store, "x/a", 503)})
    assert Case(found).verdict.reason("a").code == "service_busy"


def sas(hours: int) -> SasToken:
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    return SasToken.parse(f"se={moment:%Y-%m-%dT%H:%M:%SZ}&sig=x")


@pytest.mark.parametrize(
    ("status", "hours", "expected"),
    [(0, -1, "sas_expired"), (0, 1, "azcopy_failed"), (412, -1, "changed_meanwhile")],
)
def test_a_failure_without_a_status_after_the_sas_ended_is_its_expiry(status: int, hours: int, expected: str) -> None:
    case = Case(outcome(status="Cancelled"), reasons={"/fake/one/x/a": ErrorDetails(status, "", "eof")}, sas=sas(hours))
    error = case.verdict.reason("a")
    assert error.code == expected
    if expected == "sas_expired":
        assert "the SAS has expired" in error.message


@pytest.mark.parametrize(
    ("found", "reasons", "code", "said"),
    [
        pytest.param(
            outcome(stalled=True, fatal="RESPONSE 403: 403 no"), {}, "azcopy_failed", "no progress", id="stalled"
        ),
        pytest.param(
            outcome(fatal="RESPONSE 403: 403 no", words=["RESPONSE 503: 503 busy"]),
            {},
            "access_denied",
            "no",
            id="its last error",
        ),
        pytest.param(
            outcome(fatal="panic", words=["RESPONSE 412: 412 old", "RESPONSE 503: 503 busy", "Scanning"]),
            {},
            "service_busy",
            "busy",
            id="the newest refusal among its words",
        ),
        pytest.param(
            outcome(fatal="panic", words=["", "Scanning"]),
            {"/fake/one/x/other": ErrorDetails(503, "ServerBusy", "busy")},
            "service_busy",
            "busy",
            id="another file's reason",
        ),
        pytest.param(outcome(fatal="panic: oh"), {}, "azcopy_failed", "panic: oh", id="an error without a status"),
        pytest.param(
            outcome(stderr="killed", words=["Scanning"]), {}, "azcopy_failed", "its last output: killed", id="stderr"
        ),
        pytest.param(
            outcome(words=["Scanning", "Moving", "Counting"]),
            {},
            "azcopy_failed",
            "its last output: Counting",
            id="a word",
        ),
        pytest.param(outcome(), {}, "azcopy_failed", "code 1 and reported no result", id="nothing"),
    ],
)
def test_what_stopped_the_job_is_the_reason_for_files_without_one(
    found: AzcopyJobOutcome, reasons: dict[str, ErrorDetails], code: str, said: str
) -> None:
    error = Case(found, reasons=reasons).verdict.reason("a")
    assert error.code == code
    assert said in error.message


def test_a_log_is_read_on_in_whole_lines(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    log = tmp_path / "job.log"
    (tmp_path / "job-scanning.log").write_text(f"{DONE}\n")
    (tmp_path / "job.txt").write_text(f"{DONE}\n")
    assert not follower.shows_success()
    log.write_text(DONE)
    assert not follower.shows_success()
    log.write_text(f"{DONE}\n")
    assert follower.shows_success()


def test_a_log_is_read_from_its_first_character_on(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"{DONE}\n")
    assert LogFollower(tmp_path).shows_success()


def test_a_log_of_failures_shows_no_success(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"ERR: UPLOADFAILED: /links/a : 503 : 503 busy\n{DONE}\n")
    assert not LogFollower(tmp_path).shows_success()


@pytest.mark.parametrize("folder", ["x", ""])
def test_files_that_azcopy_failed_to_move_and_nobody_asked_for(folder: str) -> None:
    store = MemoryStore("one")
    at = f"{folder}/" if folder else ""
    listed = failed_transfer(store, f"{at}odd", here="/links/odd")
    reasons = {
        f"/fake/one/{at}a": ErrorDetails(503),
        f"/fake/one/{at}b/odd": ErrorDetails(503),
        "/here/odd": ErrorDetails(503),
    }
    case = Case(outcome(failed={"odd": listed}), folder=folder, reasons=reasons)
    assert case.verdict.unplanned(["a", "c"]) == ["b/odd", "odd"]


def test_a_log_is_read_once(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path)
    log = tmp_path / "job.log"
    log.write_bytes(b"ERR: UPLOADFAILED: /links/a : 503 : 503 busy\n   Dst: http://h/one/a\nhalf a \xff")
    follower.read()
    assert (follower.reader.failures, set(follower.reader.reasons)) == (1, {"/links/a", "/one/a"})
    with log.open("ab") as file:
        file.write(f" line\n{DONE}\n".encode())
    assert not follower.shows_success()
    assert follower.reader.finished
    assert follower.reader.failures == 1


def began(name: str) -> str:
    target = f"http://h/one/{name}%20x?se=1"
    return f'INFO: [P#0-T#1] Starting transfer: Source "/links/{name}" Destination "{target}". Specified'


def test_the_talkative_log_tells_what_is_under_way(tmp_path: Path) -> None:
    heard: list[tuple[int, str]] = []
    follower = LogFollower(tmp_path, lambda files, blob: heard.append((files, blob)))
    log = tmp_path / "job.log"
    steps = (
        (began("a"), began("b")),
        ("2 Done",),
        ("INFO: [P#0-T#1] UPLOADSUCCESSFUL: http://h/one/a%20x",),
        ("INFO: [P#0-T#2] COPYSUCCESSFUL: http://h/one/b%20x", began("c")),
        ("ERR: [P#0-T#3] UPLOADFAILED: /links/c : 503 : 503 busy",),
        ("ERR: [P#0-T#4] UPLOADFAILED: /links/never-begun : 503 : 503 busy",),
    )
    for lines in steps:
        with log.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        follower.read()
    assert heard == [(2, "/one/b x"), (1, "/one/b x"), (1, "/one/c x"), (0, "/one/c x"), (0, "/one/c x")]


def test_a_log_without_names_tells_of_none(tmp_path: Path) -> None:
    heard: list[tuple[int, str]] = []
    (tmp_path / "job.log").write_text("ERR: UPLOADFAILED: /links/a : 503 : 503 busy\n")
    LogFollower(tmp_path, lambda files, blob: heard.append((files, blob))).read()
    assert heard == []
