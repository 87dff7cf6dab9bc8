"""The public face: how a project is opened and closed, what its calls take, and how they tell what became of it."""

from __future__ import annotations

import inspect
import logging
import time
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from blobsync.base.errors import (
    BlobsyncError,
    FailureCode,
    FileFailure,
    IncompleteTransferError,
    NothingMatchedError,
    PlanFileError,
    UsageError,
)
from blobsync.base.events import BytesMoved, BytesReused, Expected, FilesDone, LoggingListener, Note, Phase
from blobsync.base.exit_codes import ExitCode
from blobsync.config.mapping import one_or_many
from blobsync.plan.progress import Progress
from blobsync.plan.transfer_keywords import TransferKeywords
from blobsync.plan.transfer_options import Keep, TransferOptions, chosen_options
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.project.api import Project
from blobsync.project.progress_listeners import CallbackListener
from blobsync.project.transfer_history import RunningTransfer
from tests.fakes.opened_project import KEY, Opened
from tests.fakes.store import Request

# -- what others see ---------------------------------------------------------------------------------------------


def test_an_upload_can_be_seen_from_elsewhere_while_it_is_planned(opened: Opened) -> None:
    opened.write("data/a.txt", b"one")
    found: list[RunningTransfer] = []

    def look(request: Request) -> None:
        end = time.monotonic() + 60
        while not found and time.monotonic() < end:
            found.extend(opened.project.running().values())
            time.sleep(0.01)

    opened.store.before = look
    assert opened.project.upload(iter([opened.root / "data"])).transferred == 1
    assert (found[0].kind, found[0].paths, found[0].planning) == ("upload", ("data",), True)
    assert opened.project.running() == {} and opened.project.history()[0].id != found[0].id


# -- opening and closing --------------------------------------------------------------------------------------


def test_closing_lets_go_of_connections_and_files(opened: Opened) -> None:
    opened.write("data/a", b"a")
    with opened.project as project:
        assert project.upload("data/a").ok
        index = project._open_context.index
        holding = (opened.store.closed, index._file._connection is None)
    assert holding == (0, False)
    assert (opened.store.closed, index._file._connection is None) == (1, True)
    project.close()
    assert opened.store.closed == 1


def test_a_project_that_nothing_was_asked_of_closes_without_connecting(opened: Opened) -> None:
    with opened.project:
        pass
    assert opened.connected == opened.store.closed == 0
    assert not (opened.root / ".blobsync").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda project: project.upload("data"),
        lambda project: project.plan_download("data"),
        lambda project: project.verify("data"),
        lambda project: list(project.list("data")),
        lambda project: project.stat("data/a"),
        lambda project: project.find_removal("data"),
        lambda project: project.resolve("data"),
        lambda project: project.url("data/a"),
        lambda project: project.state,
        lambda project: project.connections,
        lambda project: project.trust_links([("data/x", "/y")]),
        lambda project: project.__enter__(),
    ],
)
def test_using_a_closed_project_is_one_sentence(opened: Opened, use: Any) -> None:
    opened.project.close()
    with pytest.raises(UsageError, match=r"^the project .* was closed$") as caught:
        use(opened.project)
    assert caught.value.hint == "Project.open() opens it again"


def test_a_project_is_opened_from_any_kind_of_path(tmp_path: Path) -> None:
    for name, text in {
        "aux_data/aml/aml.yaml": "config_param: {data_folder: {azure_blob_config_file: c.yaml, path: p}}\n",
        "c.yaml": "account_name: acct\ncontainer_name: cont\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {"HOME": str(tmp_path / "home")}
    for start in (str(tmp_path), tmp_path, tmp_path / "aux_data"):
        assert Project.open(start, environ=environ).root == tmp_path


def test_the_same_project_through_another_cluster_is_closed_for_itself(opened: Opened) -> None:
    opened.write("data/a", b"a")
    other = opened.project.with_cluster(opened.project.cluster)
    assert other.upload("data").ok and other.listener is opened.project.listener
    other.close()
    assert opened.project.verify("data").ok


# -- paths ----------------------------------------------------------------------------------------------------


def test_paths_are_texts_or_path_objects_one_or_many(opened: Opened) -> None:
    for name in "abcd":
        opened.write(f"data/{name}", name.encode())
    project = opened.project
    assert project.upload("data/a").transferred == 1
    assert project.upload(Path("data/b")).transferred == 1
    assert project.upload(["data/c", opened.root / "data/d"]).transferred == 2
    assert opened.blobs() == {"data/a": b"a", "data/b": b"b", "data/c": b"c", "data/d": b"d"}
    assert project.verify(Path("data")).counts == {"equal": 4}
    assert project.stat(Path("data/a")).equal
    assert [entry.path for entry in project.list(Path("data"))] == ["data/a", "data/b", "data/c", "data/d"]
    told: list[Progress] = []
    assert project.remove(project.find_removal(Path("data/a")), on_progress=told.append).bytes_deleted == 1
    assert {each.phase for each in told} == {"deleting"} and told[-1].files == 1
    assert "data/a" not in opened.blobs()


def test_one_or_many() -> None:
    assert one_or_many("ab") == ["ab"]
    assert one_or_many(Path("a/b")) == ["a/b"]
    assert one_or_many(path for path in ("a", Path("b"))) == ["a", "b"]
    with pytest.raises(UsageError, match="no path given"):
        one_or_many([])
    for wrong in (b"data", [b"data"], 7, [7]):
        with pytest.raises(TypeError):
            one_or_many(wrong)  # type: ignore[arg-type]


def test_a_plan_is_saved_to_and_loaded_from_any_kind_of_path(opened: Opened) -> None:
    opened.write("data/a", b"a")
    file = opened.root / "a.plan"
    plan = opened.project.plan_upload("data", exclude="*.tmp")
    opened.project.save_plan(plan, str(file))
    loaded = opened.project.load_plan(file)
    assert loaded == plan and loaded.options.exclude == ("*.tmp",)
    assert opened.project.load_plan(str(file)) == plan
    with pytest.raises(PlanFileError, match="cannot read the plan"):
        opened.project.load_plan(opened.root / "none.plan")


def test_a_plan_of_another_cluster_is_refused_by_name(opened: Opened) -> None:
    opened.write("data/a", b"a")
    file = opened.root / "a.plan"
    opened.project.save_plan(opened.project.plan_upload("data"), file)
    file.write_text(file.read_text().replace('"cluster": "eu"', '"cluster": "us"'))
    with pytest.raises(PlanFileError, match="is a plan for cluster us, not for cluster eu"):
        opened.project.load_plan(file)


# -- options --------------------------------------------------------------------------------------------------


def test_every_option_is_a_keyword_of_the_same_type() -> None:
    keywords, options = get_type_hints(TransferKeywords), get_type_hints(TransferOptions)
    assert list(keywords) == list(TransferOptions._fields)
    easier = {"include", "exclude", "from_path"}
    assert {name: keywords[name] for name in keywords if name not in easier} == {
        name: options[name] for name in options if name not in easier
    }
    for name in easier:
        assert set(get_args(keywords[name])) > {str}


@pytest.mark.parametrize("call", [Project.upload, Project.download, Project.plan_upload, Project.plan_download])
def test_each_transfer_takes_every_option_as_a_keyword(call: Any) -> None:
    parameters = inspect.signature(call).parameters
    assert parameters["keywords"].kind is inspect.Parameter.VAR_KEYWORD
    assert parameters["keywords"].annotation == "Unpack[TransferKeywords]"
    assert parameters["on_progress"].kind is inspect.Parameter.KEYWORD_ONLY


def test_keywords_win_over_the_object() -> None:
    base = TransferOptions(engine="direct", overwrite=True)
    assert chosen_options(None, {}) == TransferOptions()
    assert chosen_options(base, {}) == base
    assert chosen_options(base, {"engine": "azcopy"}) == TransferOptions(engine="azcopy", overwrite=True)
    assert chosen_options(base, {"overwrite": False}) == TransferOptions(engine="direct")


def test_one_pattern_is_a_pattern_and_not_its_letters() -> None:
    assert chosen_options(None, {"exclude": "*.tmp"}).exclude == ("*.tmp",)
    assert chosen_options(None, {"include": ["*.a", "*.b"]}).include == ("*.a", "*.b")
    careless: Any = "*.tmp"
    assert chosen_options(TransferOptions(exclude=careless), {}).exclude == ("*.tmp",)
    assert chosen_options(None, {"from_path": Path("data/x")}).from_path == "data/x"


def test_a_keyword_that_is_no_option_is_a_type_error_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"no transfer option 'excludes'; did you mean 'exclude'\?"):
        chosen_options(None, {"excludes": "*"})
    with pytest.raises(TypeError, match="options takes TransferOptions, not dict"):
        chosen_options({"exclude": "*"}, {})  # type: ignore[arg-type]


def test_keywords_reach_the_transfer(opened: Opened) -> None:
    opened.write("data/a.jpg", b"a")
    opened.write("data/b.tmp", b"b")
    assert opened.project.upload("data", TransferOptions(include=("*.jpg",)), exclude="*.tmp").ok
    assert opened.blobs() == {"data/a.jpg": b"a"}
    with pytest.raises(UsageError, match="--engine carrier-pigeon: not one of"):
        opened.project.upload("data", engine="carrier-pigeon")  # type: ignore[arg-type]


# -- failures -------------------------------------------------------------------------------------------------


def test_a_result_raises_its_failures_when_it_is_asked_to(opened: Opened) -> None:
    for number in range(5):
        opened.write(f"data/{number}", b"x")

    def refuse(request: Request) -> None:
        if request.operation == "put" and not request.name.endswith("/4"):
            raise BlobsyncError("the service said no")

    opened.store.before = refuse
    result = opened.project.upload("data")
    with pytest.raises(IncompleteTransferError) as caught:
        result.raise_for_failures()
    error = caught.value
    assert [failure.path for failure in error.failures] == [f"data/{number}" for number in range(4)]
    assert (error.code, error.exit_code) == ("transfer_incomplete", ExitCode.PARTIAL)
    assert "4 files failed, 0 conflict: data/0: " in str(error) and "and 1 more" in str(error)
    assert str(error).endswith("next: blobsync -c eu u data: run the same command again to finish")
    opened.store.before = lambda _: None
    opened.project.upload("data").raise_for_failures()


def test_conflicts_count_as_failures_there(opened: Opened) -> None:
    opened.write("data/a", b"mine")
    opened.store.add("store/data/a", b"theirs")
    result = opened.project.upload("data")
    assert [conflict.path for conflict in result.conflicts] == ["data/a"]
    with pytest.raises(IncompleteTransferError, match=r"^0 files failed, 1 conflict: data/a: .*--keep") as caught:
        result.raise_for_failures()
    assert [failure.code for failure in caught.value.failures] == ["conflict"]


# -- progress -------------------------------------------------------------------------------------------------


def test_a_plain_function_is_told_how_it_goes(opened: Opened) -> None:
    for number in range(5):
        opened.write(f"data/{number}", b"x" * 1000)
    told: list[Progress] = []
    assert opened.project.upload("data", on_progress=told.append).ok
    assert "surveying" in {each.phase for each in told}
    last = [each for each in told if each.phase == "moving"][-1]
    assert (last.files, last.files_expected, last.bytes, last.bytes_expected) == (5, 5, 5000, 5000)
    assert last.rate > 0 and last.seconds > 0
    before = len(told)
    opened.project.verify("data")
    assert len(told) == before
    opened.project.verify("data", on_progress=told.append)
    assert told[-1].phase == "verifying" and told[-1].looked >= 5


def test_a_function_that_raises_is_not_called_again_and_stops_no_transfer(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened.write("data/a", b"a")
    calls: list[Progress] = []

    def broken(progress: Progress) -> None:
        calls.append(progress)
        raise ZeroDivisionError

    assert opened.project.upload("data", on_progress=broken).ok
    assert len(calls) == 1
    assert "on_progress raised" in caplog.text and "ZeroDivisionError" in caplog.text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock, told = Clock(), list[Progress]()
    listener = CallbackListener(told.append, clock)
    listener.emit(Phase("moving"))
    listener.emit(Expected(1, 10_000))
    for _ in range(10):
        clock.now += 1
        listener.emit(BytesMoved(100))
    assert told[-1].rate == pytest.approx(100)
    for _ in range(10):
        clock.now += 1
        listener.emit(BytesMoved(500))
    assert told[-1].rate == pytest.approx(500)
    clock.now += 20
    listener.close()
    assert told[-1].rate < 500 and told[-1].bytes == 6000


def test_what_was_there_already_has_no_rate() -> None:
    clock, told = Clock(), list[Progress]()
    listener = CallbackListener(told.append, clock)
    listener.emit(Phase("moving"))
    listener.emit(Expected(1, 10_000))
    clock.now += 2
    listener.emit(BytesReused(5000))
    listener.emit(BytesMoved(100))
    listener.close()
    assert (told[-1].bytes, told[-1].reused) == (5100, 5000)
    assert told[-1].rate == pytest.approx(50)


def test_it_is_told_a_few_times_a_second_and_at_each_end(tmp_path: Path) -> None:
    clock, told = Clock(), list[Progress]()
    listener = CallbackListener(told.append, clock)
    listener.emit(Phase("surveying"))
    listener.emit(Phase("moving"))
    for number in range(1000):
        listener.emit(
            FilesDone([str(number)], FileFailure(str(number), FailureCode.UNREADABLE, "broke") if number == 7 else None)
        )
    assert len(told) == 3
    listener.close()
    assert (len(told), told[-1].files, told[-1].failures) == (4, 1000, 1)


def test_notes_of_a_project_without_a_listener_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "blobsync"):
        LoggingListener().emit(Note("the index is gone"))
    assert caplog.messages == ["the index is gone"]


# -- how values show themselves -------------------------------------------------------------------------------


def test_what_a_container_keeps_for_blobsync_is_not_removed_by_its_name_either(opened: Opened) -> None:
    (entry,) = opened.project.folders
    own = ".blobsync/checkpoints/run/job/checkpoint-1.json"
    opened.store.add(own, b"{}")
    opened.store.add("a", b"a")
    top = opened.project.cluster._replace(folders=(entry._replace(path=""),))
    with opened.project.with_cluster(top) as project:
        for blob_only in (False, True):
            with pytest.raises(NothingMatchedError):
                project.find_removal(f"data/{own}", blob_only=blob_only)
        assert [each.name for found in project.find_removal("data") for each in found.blobs] == ["a"]


def test_values_show_themselves_in_a_few_words(opened: Opened) -> None:
    for number in range(300):
        opened.write(f"data/{number}", b"x" * 10)
    project = opened.project
    assert repr(project) == f"<Project {str(opened.root)!r}, cluster='eu'>"
    plan = project.plan_upload(["data/1", "data/2"])
    assert repr(plan) == "<TransferPlan upload 'data/1' and 1 more: 2 files, 20 bytes to move by direct>"
    assert repr(plan.parts[0]) == "<Part 'data/1': file, 1 actions>"
    assert repr(plan.options) == "TransferOptions()"
    assert repr(TransferOptions(mirror=True, exclude=("*.tmp",))) == "TransferOptions(mirror=True, exclude=('*.tmp',))"
    result = project.upload("data")
    expected = "<TransferResult upload 'data': 300 transferred, 300 verified, 0 failed, 0 conflicts>"
    assert repr(result) == expected
    deletions = project.find_removal("data")
    report = project.verify("data")
    shown = [result.plan, *result.plan.parts, result.plan.parts[0].actions[0], report, deletions[0]]
    place = project.resolve("data")
    shown += [project.remove(deletions), place, place.entry, place.entry.account, project.cluster]
    for value in shown:
        assert len(repr(value)) < 200, repr(value)
        assert KEY.reveal() not in repr(value)
    project.close()
    assert repr(project).endswith(", closed>")


def in_conflict(opened: Opened, *names: str) -> TransferPlan:
    for name in names:
        opened.write(f"data/{name}", b"base")
    assert opened.project.upload("data").ok
    for name in names:
        opened.write(f"data/{name}", b"mine " + name.encode())
        opened.store.add(f"store/data/{name}", b"theirs " + name.encode())
    return opened.project.plan_upload("data")


def test_conflicts_are_settled_one_by_one(opened: Opened) -> None:
    plan = in_conflict(opened, "a", "b", "c", "d")
    keep: dict[str, Keep] = {"data/a": "local", "data/b": "remote", "data/c": "both", "data/elsewhere": "local"}
    settled = opened.project.settle(plan, keep)
    assert [failure.path for failure in settled.conflicts] == ["data/d"]
    result = opened.project.carry_out(settled)
    assert (result.exit_code, len(result.failures)) == (3, 0)
    aside = next(name for name in opened.blobs() if name.startswith("data/c.remote-"))
    assert opened.blobs() == {
        "data/a": b"mine a",
        "data/b": b"theirs b",
        "data/c": b"mine c",
        aside: b"theirs c",
        "data/d": b"theirs d",
    }
    here = {path.name: path.read_bytes() for path in (opened.root / "data").iterdir()}
    assert here == {"a": b"mine a", "b": b"theirs b", "c": b"mine c", aside[5:]: b"theirs c", "d": b"mine d"}


def test_a_single_file_in_conflict_is_settled(opened: Opened) -> None:
    in_conflict(opened, "a")
    plan = opened.project.plan_upload("data/a")
    assert opened.project.carry_out(opened.project.settle(plan, {"data/a": "local"})).ok
    assert opened.blobs() == {"data/a": b"mine a"}


@pytest.mark.parametrize("side", ["here", "there", "gone", "deleted"])
def test_a_conflict_whose_versions_were_not_seen_stays_one(opened: Opened, side: str) -> None:
    plan = in_conflict(opened, "a")
    if side == "here":
        opened.write("data/a", b"a third version")
    elif side == "there":
        opened.store.add("store/data/a", b"a third version")
    elif side == "gone":
        opened.write("data/a", b"base")
    else:
        opened.store.delete("store/data/a")
    settled = opened.project.settle(plan, {"data/a": "local"})
    assert settled.files_to_transfer == (side == "deleted")
    assert settled.count(Action.CONFLICT) == (side in ("here", "there"))


def test_a_settled_conflict_keeps_both_under_a_name_that_is_free(opened: Opened) -> None:
    plan = in_conflict(opened, "c.txt")
    first = opened.project.settle(plan, {"data/c.txt": "both"})
    ((_, action),) = [each for each in first.each() if each[1].aside]
    opened.write(f"data/{action.aside}", b"somebody else's")
    ((_, again),) = [each for each in opened.project.settle(plan, {"data/c.txt": "both"}).each() if each[1].aside]
    assert again.aside != action.aside
