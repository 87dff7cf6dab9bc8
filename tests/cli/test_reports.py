"""Plans, results and comparisons as lines for people: short unless asked, and narrow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.cli.keep import round_lines
from blobsync.cli.reports import (
    files_shown,
    plan_data,
    plan_lines,
    result_data,
    result_lines,
    verify_code,
    verify_data,
    verify_lines,
)
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, EngineChoice, FileAction, IndexKey, Part, PlanPart, Route, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.keep import KeptRound
from blobsync.project.verify import ComparedFile, VerifyReport
from tests.documents import check_data

_ENGINE = EngineChoice("direct", "that is enough")


def _plan(*kinds: tuple[Action, Reason, int]) -> TransferPlan:
    """So many files of each kind, taking turns."""
    actions = [
        FileAction(f"{action.value[0]}{number:04}.bin", action, reason, 999_000)
        for number in range(max(count for *_, count in kinds))
        for action, reason, count in kinds
        if number < count
    ]
    there = BlobContainer("acct", "cont", "http://127.0.0.1:1/acct").child("data/v")
    key = IndexKey(LocalLocation(Path("data/v")), there, "")
    part: PlanPart = Part("data/v", Route.UPLOAD, LocalLocation(Path("/p/data/v")), there, key, actions=tuple(actions))
    return TransferPlan(Route.UPLOAD, "aml", None, ("data/v",), TransferOptions(), (part,), _ENGINE)


_NEW = (Action.TRANSFER, Reason.NEW)
_CHANGED = (Action.TRANSFER, Reason.CHANGED_HERE)
_NEWER = (Action.NEWER_AT_DESTINATION, Reason.DESTINATION_CHANGED)
_SAME = (Action.UNCHANGED, Reason.SAME_RECORD)


def test_a_plan_lists_the_first_ten_of_each_kind_and_counts_the_rest() -> None:
    plan = _plan((*_NEW, 12_016), (*_CHANGED, 3), (*_NEWER, 11), (*_SAME, 5))
    lines = list(plan_lines(plan, files_shown(quiet=False, full=False), unchanged=False))
    assert lines[0] == "not at the destination yet:"
    assert lines[1] == "  upload    999 KB  data/v/t0000.bin"
    assert lines[11] == "  ... and 12,006 more, --full shows all"
    assert lines[12] == "changed since it was last verified:"
    assert lines[16] == "only the destination changed since it was last verified:"
    assert lines[17] == "  newer     999 KB  data/v/n0000.bin"
    assert lines[27] == "  ... and 1 more, --full shows all"
    assert lines[28] == "would upload 12,019 files, 12 GB; 5 unchanged; 11 newer at the destination, left alone"
    assert len(lines) == 29


def test_a_plan_that_moves_nothing_says_so_in_the_words_of_the_transfer() -> None:
    assert list(plan_lines(_plan((*_SAME, 5)), 10, unchanged=False)) == ["nothing to upload; 5 unchanged"]


def test_a_plan_names_its_engine_if_asked_or_if_it_is_not_the_usual_one() -> None:
    plan = _plan((*_NEW, 1))
    for engine, verbose, shown in (("direct", False, False), ("direct", True, True), ("azcopy", False, True)):
        last = list(plan_lines(replace(plan, engine=EngineChoice(engine, "why")), 1, unchanged=False, verbose=verbose))[
            -1
        ]
        assert (f"Engine: {engine}, why" in last) is shown


def test_every_file_of_a_plan_is_listed_in_full_and_none_with_quiet() -> None:
    plan = _plan((*_NEW, 500), (*_SAME, 40))
    full = list(plan_lines(plan, files_shown(quiet=False, full=True), unchanged=True))
    files = {line.split("  ")[-1] for line in full if line.startswith("  ")}
    assert files == {f"data/v/{action.path}" for _, action in plan.each()}
    assert not any("more" in line for line in full)
    quiet = list(plan_lines(plan, files_shown(quiet=True, full=False), unchanged=False))
    assert quiet == full[-1:]
    assert len(plan_data(plan)["actions"]) == 540
    check_data("plan", plan_data(plan))


def test_full_wins_over_quiet() -> None:
    assert files_shown(quiet=True, full=True) > 10**9


@pytest.mark.parametrize("action", list(Action))
def test_every_action_stands_in_its_columns(action: Action) -> None:
    lines = list(plan_lines(_plan((action, Reason.NEW, 1)), 10, unchanged=True))
    word, amount, unit, path = lines[1].split()
    assert lines[1] == f"  {word:<8} {amount:>4} {unit}  {path}"
    assert len(lines[1]) < 40


def _result(plan: TransferPlan) -> TransferResult:
    return TransferResult(plan, transferred=2, verified=2, deleted=0, bytes_transferred=1_998_000, seconds=0.05)


def test_the_time_told_is_that_of_the_whole_command() -> None:
    result = _result(_plan((*_NEW, 2)))
    assert list(result_lines(result, 2.6)) == ["uploaded 2 files, 2 MB in 2.60 s; 2 verified"]
    assert result_data(result, 2.6)["seconds"] == 2.6
    check_data("u", result_data(result, 2.6))


def test_a_result_lists_the_first_ten_that_are_newer_there() -> None:
    lines = list(result_lines(_result(_plan((*_NEW, 2), (*_NEWER, 13))), 1.0))
    assert len([line for line in lines if line.startswith("newer at the destination")]) == 10
    assert lines[10] == "  ... and 3 more, plan --full shows all"


def test_bytes_that_were_there_already_are_distinguished_from_those_that_moved() -> None:
    plan = _plan((*_NEW, 1))
    (part,) = plan.parts
    begun = replace(plan, parts=(replace(part, actions=(part.actions[0]._replace(on_record=600_000),)),))
    lines = list(plan_lines(begun, 10, unchanged=False))
    assert lines[1] == "  upload    999 KB  data/v/t0000.bin, 600 KB of it are there"
    assert lines[-1].startswith("would upload 1 file, 999 KB, of which 600 KB are there already")
    data = plan_data(begun)
    check_data("u", data)
    assert (data["bytes_planned"], data["bytes_on_record"]) == (999_000, 600_000)
    assert data["actions"][0]["on_record"] == 600_000
    assert plan_data(plan)["bytes_on_record"] == 0 and "on_record" not in plan_data(plan)["actions"][0]
    done = TransferResult(begun, 1, 1, deleted=0, bytes_transferred=399_000, seconds=0.5, bytes_reused=600_000)
    assert list(result_lines(done, 0.5)) == ["uploaded 1 file, 399 KB in 0.50 s, 600 KB were there already; 1 verified"]
    assert (result_data(done, 1)["bytes_transferred"], result_data(done, 1)["bytes_reused"]) == (399_000, 600_000)


def _report(status: str, count: int, equal: int = 0) -> VerifyReport:
    findings = tuple(ComparedFile(f"data/v/{status}{number}", status, 1) for number in range(count))
    counts = {status: count} | ({"equal": equal} if equal else {})
    return VerifyReport(counts if count else {}, findings, equal * 10)


def test_verify_lists_the_first_ten_of_each_class_and_counts_the_rest() -> None:
    reports = [_report("remote_only", 12_016, equal=3), _report("changed_here", 2)]
    lines = list(verify_lines(reports, files_shown(quiet=False, full=False)))
    assert lines[:2] == ["changed here: data/v/changed_here0", "changed here: data/v/changed_here1"]
    assert lines[2] == "remote only: data/v/remote_only0"
    assert lines[12] == "  ... and 12,006 more remote only, --full shows all"
    assert lines[13:] == ["3 equal, 2 changed here, 12,016 remote only; 30 B equal"]
    assert len(list(verify_lines(reports, files_shown(quiet=False, full=True)))) == 12_019
    assert list(verify_lines(reports, files_shown(quiet=True, full=False))) == lines[13:]
    assert len(verify_data(reports)["not_equal"]) == 12_018
    check_data("verify", verify_data(reports))
    assert verify_code(reports) == 3


def test_verify_of_nothing_says_so() -> None:
    assert list(verify_lines([_report("differs", 0)], 10)) == [
        "nothing to compare: no files here, none in the container"
    ]
    unread = VerifyReport({}, (), 0, (FileFailure("data/v/a", FailureCode.UNREADABLE, "cannot be read"),))
    assert list(verify_lines([unread], 10)) == ["nothing could be compared"]


def test_what_keep_brings_the_other_way_is_called_what_it_is() -> None:
    plan = _plan((*_NEW, 1), (Action.ADOPT, Reason.KEEP_DESTINATION, 1))
    lines = list(plan_lines(plan, files_shown(quiet=False, full=False), unchanged=False))
    assert "  upload    999 KB  data/v/t0000.bin" in lines
    assert "  download  999 KB  data/v/a0000.bin" in lines
    assert lines[-1].startswith("would move 2 files, 2 MB")
    result = TransferResult(plan, transferred=2, verified=2, deleted=0, bytes_transferred=1_998_000, seconds=1.0)
    (line,) = result_lines(result, 1.0)
    assert line.startswith("moved 2 files, 2 MB in")


def test_the_versions_that_are_kept_aside_are_named() -> None:
    plan = _plan((Action.TRANSFER, Reason.KEEP_BOTH, 1))
    (part,) = plan.parts
    settled = part.actions[0]._replace(path="d/x.bin", aside="x.remote-1f2e3d4c.bin")
    plan = replace(plan, parts=(replace(part, actions=(settled,)),))
    done = TransferResult(plan, transferred=2, verified=2, deleted=0, bytes_transferred=2, seconds=1.0)
    named = "both kept: data/v/d/x.bin, and the other version as data/v/d/x.remote-1f2e3d4c.bin"
    assert next(result_lines(done, 1.0)) == named
    check_data("plan", plan_data(plan))
    assert plan_data(plan)["actions"][0]["aside"] == "data/v/d/x.remote-1f2e3d4c.bin"
    failed = done._replace(failures=(FileFailure("data/v/d/x.bin", FailureCode.SERVICE_BUSY, "busy"),))
    assert named not in list(result_lines(failed, 1.0))


@pytest.mark.parametrize(("seconds", "end"), [(0.2, "uploaded"), (0.99, "uploaded"), (1.0, "uploaded in 1 s")])
def test_a_round_of_less_than_a_second_has_no_time(seconds: float, end: str) -> None:
    made = KeptRound("data", 1, 0.0, 1, 5, seconds, 0, (), (), "", 0.0, idle=False)
    (line,) = round_lines([made])
    assert line.endswith(f" data: 1 file (5 B) {end}")
