from __future__ import annotations

from typing import Any

import pytest

from blobsync.backends.aml.computes import summary_of
from blobsync.backends.aml.replies import (
    STATES,
    AmlReply,
    log_names,
    read_holders,
    read_job,
    read_quota,
    read_state,
    studio_url,
)
from blobsync.backends.aml.sweep_job import read_sweep
from blobsync.base.errors import LostContactError
from blobsync.base.formatting import utc_seconds
from blobsync.jobspec.spec import State, TaskInfo
from tests.servers.openapi import STABLE, example, load


def test_every_status_of_the_specification_is_known() -> None:
    published = load(STABLE / "mfe.json")["definitions"]["JobStatus"]["enum"]
    assert len(published) == 14 and set(STATES) == set(published)
    assert read_state("SomethingNew", {}) is State.UNKNOWN


@pytest.mark.parametrize(
    ("status", "tag", "state"),
    [
        ("Queued", {"amlk8s status": "running"}, State.RUNNING),
        ("Queued", {"amlk8s status": "pending"}, State.QUEUED),
        ("Queued", {"amlk8s_status": "status=running"}, State.RUNNING),
        ("Queued", {"other": "running"}, State.QUEUED),
        ("Canceled", {"amlk8s status": "killing"}, State.FAILED),
        ("Canceled", {"amlk8s status": "failed"}, State.FAILED),
        ("Canceled", {"amlk8s status": "succeeded"}, State.CANCELED),
        ("Canceled", {}, State.CANCELED),
        ("Completed", {"amlk8s status": "failed"}, State.COMPLETED),
    ],
)
def test_itp_tells_the_truth_in_a_tag(status: str, tag: Any, state: State) -> None:
    assert read_state(status, tag) is state


def test_a_published_job_and_what_run_history_adds() -> None:
    body = example("Job/CommandJob/get.json")
    assert read_job(AmlReply(body)).state is State.QUEUED
    body["properties"]["status"] = "Failed"
    inner = {"code": "UserError", "message": "User process 'python' exited with status code 7.\nmore"}
    details = {"startTimeUtc": "2026-11-20T10:00:00.1234567Z", "endTimeUtc": "2026-11-20T10:01:00+00:00"}
    info = read_job(AmlReply(body), AmlReply({**details, "error": {"error": inner}}))
    assert (info.state, info.exit_code) == (State.FAILED, 7)
    assert info.reason == "User process 'python' exited with status code 7. (UserError)"
    assert info.started and info.ended and info.ended - info.started == 60


def run(name: str, status: str, **more: Any) -> AmlReply:
    return AmlReply({"runId": name, "status": status, **more})


def swept(status: str) -> AmlReply:
    space = {"task": ["choice", [[3, 5, 8]]]}
    return AmlReply({"name": "me_1", "properties": {"jobType": "Sweep", "status": status, "searchSpace": space}})


def test_trials_are_the_tasks_whose_numbers_run_history_says() -> None:
    tags = {"_aml_system_me_1_0": '{"task": 5}', "me_1_1": '{"task": "8"}', "other": "1"}
    error = {"error": {"code": "UserError", "message": "exited with status code 9"}}
    times = {"startTimeUtc": "2026-11-20T10:00:00Z", "endTimeUtc": "2026-11-20T10:01:00Z"}
    own = {"tags": {"hyperparameters": '{"task": 3}'}}
    children = [run("me_1_0", "Failed", error=error, **times), run("me_1_1", "Running"), run("me_1_2", "Queued", **own)]
    found = read_sweep(swept("Running"), run("me_1", "Running", tags=tags), children)
    assert (found.state, [(task.number, task.state) for task in found.tasks]) == (
        State.RUNNING,
        [(3, State.QUEUED), (5, State.FAILED), (8, State.RUNNING)],
    )
    failed = found.tasks[1]
    assert (failed.exit_code, failed.reason) == (9, "exited with status code 9 (UserError)")
    assert failed.started and failed.ended and failed.ended - failed.started == 60


@pytest.mark.parametrize("known", [True, False])
def test_tasks_without_a_trial_end_as_the_sweep_unless_some_trial_is_of_an_unknown_task(known: bool) -> None:
    tags = {"me_1_0": '{"task": 3}' if known else "not JSON"}
    trials = [run("me_1_0", "Completed"), *([] if known else [run("me_1_1", "Failed")])]
    found = read_sweep(swept("Canceled"), run("me_1", "Canceled", tags=tags), trials)
    rest = (TaskInfo(5, State.CANCELED), TaskInfo(8, State.CANCELED))
    assert found.tasks == ((TaskInfo(3, State.COMPLETED, 0), *rest) if known else ())
    assert found.reason == ("" if known else "Azure ML does not say which tasks 2 of its trials are")


def test_trials_that_all_completed_are_all_tasks_whichever_is_which() -> None:
    trials = [run(f"me_1_{number}", "Completed") for number in range(3)]
    found = read_sweep(swept("Completed"), run("me_1", "Completed"), trials)
    assert (found.state, {task.state for task in found.tasks}) == (State.COMPLETED, {State.COMPLETED})
    found = read_sweep(swept("Completed"), run("me_1", "Completed"), [*trials[:2], run("me_1_2", "Failed")])
    assert (found.state, found.tasks) == (State.FAILED, ())


def test_a_node_that_does_not_answer_is_running_with_a_reason() -> None:
    info = read_job(AmlReply({"name": "x", "properties": {"status": "NotResponding"}}))
    assert info.state is State.RUNNING and "does not respond" in info.reason
    assert read_job(AmlReply()).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:01:00Z", 60.0), ("1970-01-01T00:01:00", 60.0), ("1970-01-01T01:01:00.5+01:00", 60.0),
     ("soon", None), ("", None), ("0001-01-01T00:00:00+23:59", -62135683140.0)],
)  # fmt: skip
def test_times(text: str, seconds: float | None) -> None:
    assert utc_seconds(text) == seconds


def test_both_families_of_logs_are_kept_and_nothing_leaves_the_folder() -> None:
    names = ("user_logs/std_log_process_0.txt", "azureml-logs/70_driver_log_0.txt", "system_logs/lifecycler/a.log")
    evil = ("../x", "user_logs/../../x", "/etc/passwd", "other/x.txt", "user_logs\\..\\x", "user_logs/a\\..\\b")
    assert sorted(log_names(dict.fromkeys([*names, *evil], "https://x"))) == sorted(names)


def test_a_published_compute() -> None:
    body = example("Compute/get/AmlCompute.json")
    found = summary_of(AmlReply(body), 4)
    assert (found.nodes_total, found.nodes_free, found.gpus_total, found.gpus_free) == (1, 1, 4, 4)
    assert found.notes == ("AmlCompute compute123", "STANDARD_NC6, Dedicated")
    assert summary_of(AmlReply(example("Compute/get/KubernetesCompute.json")), 4).nodes_total is None


def test_quotas_and_holders() -> None:
    limits = {"limits": [{"slaTier": "Basic", "used": 1, "limit": 8}, {"slaTier": "Premium", "used": 8, "limit": 8}]}
    body = {"properties": {"managed": {"quotas": {"ND40": limits}}}}
    assert read_quota(AmlReply(body)) == ("ND40: Basic 1 of 8 used", "ND40: Premium 8 of 8 used")
    assert read_quota(AmlReply()) == ()
    runs: list[dict[str, Any]] = [
        {"runId": "a", "status": "Running", "createdBy": {"userName": "U"}, "compute": {"instanceCount": 2}},
        {"runId": "b", "status": "Completed"},
        {"runId": "c", "status": "Queued"},
    ]
    holders = read_holders(AmlReply({"value": runs}), 8)
    assert [(one.native_id, one.user, one.gpus) for one in holders] == [("a", "U", 16), ("c", "?", 8)]


def test_the_page_of_a_job() -> None:
    assert (
        studio_url(AmlReply({"properties": {"services": {"Studio": {"endpoint": "https://ml/x"}}}})) == "https://ml/x"
    )
    assert studio_url(AmlReply({"properties": {"services": None}})) == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"properties": []}, "properties is not an object"),
        ({"properties": {"tags": {"a": {}}}}, "properties.tags.a is not a text"),
        ({"properties": {"status": ["Running"]}}, "properties.status is not a text"),
        ({"name": {}}, "name is not a text"),
    ],
)
def test_an_answer_of_another_shape_names_the_host_and_the_place(body: Any, said: str) -> None:
    with pytest.raises(LostContactError) as caught:
        read_job(AmlReply(body, "management.example"))
    assert caught.value.message == f"management.example returned data that does not match Azure ML's API: {said}"
    assert "management_endpoint" in (caught.value.hint or "")


@pytest.mark.parametrize("count", [-1, 1.5, "4", True, 10**9, []])
def test_a_number_of_nodes_that_cannot_be_is_refused(count: Any) -> None:
    body = {"properties": {"properties": {"scaleSettings": {"maxNodeCount": count}}}}
    with pytest.raises(LostContactError, match=r"properties.properties.scaleSettings.maxNodeCount"):
        summary_of(AmlReply(body), 4)


def test_an_exit_code_of_thousands_of_digits_is_none() -> None:
    error = {"message": f"exit code: {'7' * 5000}"}
    assert read_job(AmlReply({"properties": {"status": "Failed"}}), AmlReply({"error": error})).exit_code is None
