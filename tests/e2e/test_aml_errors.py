"""Refusals of Azure: the messages of the command line, and that nothing is left behind.

The envelopes are ARM's: an error with a code, a message and, for validation, details with targets.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.aml_lab import Lab, lab, stub
from tests.servers.aml_stub import SOON, Fault, refusal

__all__ = ["lab", "stub"]

pytestmark = pytest.mark.e2e

SECRET = "sentinel-of-a-secret-value"
REQUEST = {"x-ms-correlation-request-id": "c0ffee00-0000-4000-8000-000000000001"}
JOB = "PUT .*/jobs/"
FORBIDDEN = (
    "The client 'me@example.org' does not have authorization to perform action"
    " 'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope '/subscriptions/sub0'."
)
NO_QUOTA = "The specified subscription has a total vCPU quota of 24 for the compute's family and cannot take 48 more."

# What refuses: the file of the workspace, the cluster file, a service that is full, and one that is busy. What is said
# of each refusal is in tests/contract/test_aml_client.py.
CASES: dict[str, dict[str, Any]] = {
    "compute": {
        "cluster": {"compute_target": "typo"},
        "code": "config_invalid",
        "says": "aux_data/aml/aml.yaml: compute_target: Azure ML says: Unknown compute target 'typo'.",
        "end": "(UserError, HTTP 400, request ",
        "hint": "to list them: az ml compute list --resource-group rg0 --workspace-name ws-one --subscription sub0",
    },
    "parent": {
        "fault": (404, refusal("ParentResourceNotFound", "the parent resource ws-one could not be found.")),
        "pattern": "GET .*/datastores/",
        "code": "config_invalid",
        "says": "aux_data/aml/config.json: workspace_name: Azure says: the parent resource ws-one could not be found.",
        "end": "(ParentResourceNotFound, HTTP 404, request c0ffee00",
        "hint": "az ml workspace list --resource-group rg0 --subscription sub0 shows them",
    },
    "quota": {
        "fault": (400, refusal("QuotaExceeded", NO_QUOTA)),
        "exit": 1,
        "code": "submission_failed",
        "says": f"Azure ML rejected the job: {NO_QUOTA}",
        "end": "(QuotaExceeded, HTTP 400, request c0ffee00",
        "hint": "ask for fewer nodes (-n), wait, or ask for more quota; blobsync summary shows what is used",
    },
    "throttled for good": {
        "fault": (429, refusal("TooManyRequests", "The request is being throttled.")),
        "exit": 1,
        "code": "backend_failing",
        "says": "Azure ML did not complete the request: The request is being throttled.",
        "end": "(TooManyRequests, HTTP 429, request c0ffee00",
        "hint": "try again later",
    },
}
_FIRST, *_OTHERS = CASES


@pytest.mark.parametrize("what", [_FIRST, *(pytest.param(what, marks=pytest.mark.soak) for what in _OTHERS)])
def test_a_submission_that_azure_refuses(lab: Lab, what: str) -> None:
    case = {"pattern": JOB, "exit": 2, **CASES[what]}
    lab.cluster(**{"env": {"MY_TOKEN": SECRET}, **case.get("cluster", {})})
    if "fault" in case:
        status, body = case["fault"]
        lab.stub.faults = [Fault(case["pattern"], status, body, {**REQUEST, **SOON}, times=999)]
    before = names_in(lab)
    done = lab.run("--json", "submit", "python", "show.py", code=case["exit"])
    assert (done.document["status"], done.document["exit_code"], done.data) == ("error", case["exit"], {})
    (error,) = done.errors
    assert set(error) == {"code", "message", "hint", "path"}
    assert error["code"] == case["code"]
    assert error["message"].startswith(f"{case['says']} {case['end']}"), error["message"]
    assert error["hint"] == case["hint"]
    told = lab.run("submit", "python", "show.py", code=case["exit"])
    assert told.out == ""
    assert f"blobsync: {case['says']} {case['end']}" in told.err and f"  hint: {case['hint']}\n" in told.err
    assert "Traceback" not in told.err and SECRET not in done.out + told.err and lab.container.key not in told.err
    nothing_is_left(lab, before)


def test_a_gateway_that_gave_up_says_nothing_about_the_job(lab: Lab) -> None:
    lab.cluster(env={"MY_TOKEN": SECRET})
    lab.stub.faults = [Fault(JOB, 502, "<html>Bad Gateway</html>", {**REQUEST, **SOON}, times=99)]
    before = names_in(lab)
    done = lab.run("--json", "submit", "python", "show.py", code=1)
    said = "Azure ML did not complete the request: Bad Gateway (no code, HTTP 502, request c0ffee00"
    assert done.codes == {"submission_unknown"} and done.errors[0]["message"].startswith(said)
    assert len(names_in(lab)) == len(before) + 1
    assert [job["status"] for job in lab.ask("q")["jobs"]] == ["Unknown"]
    with sqlite3.connect(lab.project.state / "jobs.sqlite") as database:
        database.execute("update jobs set submitted = submitted - 700")
    database.close()
    (job,) = lab.ask("q")["jobs"]
    assert job["status"] == "Failed" and "never received it" in job["reason"]
    assert names_in(lab) == before and not lab.stub.jobs


def names_in(lab: Lab) -> list[str]:
    """Without the node archive, which is kept: it belongs to a version of blobsync, not to a job."""
    return [name for name in lab.container.names() if not name.startswith("path/to/code.zip.d/node/")]


def nothing_is_left(lab: Lab, before: list[str]) -> None:
    lab.stub.faults = []
    assert lab.ask("history")["jobs"] == [] and not lab.stub.jobs
    assert names_in(lab) == before
    assert not (lab.project.root / "assets").exists()


def test_a_missing_login(lab: Lab, tmp_path: Path) -> None:
    az, before = tmp_path / "bin" / "az", names_in(lab)
    az.write_text("#!/bin/sh\necho \"ERROR: Please run 'az login' to setup account.\" >&2; exit 1\n")
    done = lab.run("--json", "submit", "true", code=2)
    assert done.errors == [
        {
            "code": "login_required",
            "message": "no Azure identity is signed in for the workspace: Please run 'az login' to set up an account",
            "hint": "az login",
            "path": None,
        }
    ]
    az.unlink()
    done = lab.run("--json", "submit", "true", code=2)
    assert done.codes == {"login_required"} and "Azure CLI not found on path" in done.errors[0]["message"]
    assert done.errors[0]["hint"] == "install the Azure CLI, then az login; or use_cli_auth: false in the cluster file"
    assert lab.stub.requests == []
    nothing_is_left(lab, before)


@pytest.mark.soak
def test_a_busy_service_is_waited_for(lab: Lab) -> None:
    busy = refusal("TooManyRequests", "The request is being throttled.")
    lab.stub.faults = [
        Fault(JOB, 429, busy, {"Retry-After": "1"}),
        Fault(JOB, 503, busy, SOON),
        Fault("PUT .*/datastores/", 429, busy, SOON, times=2),
    ]
    job_id = lab.submit("--single", "true")
    assert lab.until(job_id)["status"] == "Completed"
    assert sum(line.startswith("PUT") and "/jobs/" in line for line in lab.stub.requests) == 3
    assert list(lab.stub.jobs) == [job_id]


def test_a_lost_response_is_not_a_refusal(lab: Lab) -> None:
    lab.stub.held = True
    gone = refusal("GatewayTimeout", "The gateway did not get an answer in time.")
    lab.stub.faults = [Fault(JOB, 504, gone, SOON, times=99, after=True)]
    job_id = lab.submit("--single", "true")
    assert list(lab.stub.jobs) == [job_id]
    assert [job["job_id"] for job in lab.ask("history")["jobs"]] == [job_id]
    lab.stub.faults = [
        Fault(JOB, 504, gone, {**REQUEST, **SOON}, times=99, after=True),
        Fault("GET .*/jobs/", 504, gone, SOON, times=99),
    ]
    done = lab.run("--json", "submit", "--single", "true", code=1)
    (other,) = set(lab.stub.jobs) - {job_id}
    assert f"unknown whether it accepted {other}" in done.errors[0]["message"]
    assert done.codes == {"submission_unknown"}
    assert done.errors[0]["hint"].startswith(f"blobsync q {other.rpartition('_')[2]} looks for it")
    lab.stub.faults = []
    assert lab.detail(other)["status"] == "Queued"

    # azure-core sends the request again, and the service knows the name.
    taken = refusal("Conflict", "A job with this name already exists.")
    lab.stub.faults = [Fault(JOB, 504, gone, SOON, after=True), Fault(JOB, 409, taken)]
    assert lab.detail(lab.submit("--single", "true"))["status"] == "Queued"


@pytest.mark.soak
def test_the_secrets_of_a_job_stay_while_its_answer_is_lost_and_go_when_it_is_refused(lab: Lab) -> None:
    lab.cluster(env={"MY_TOKEN": SECRET})
    lab.stub.held = True
    secrets = "path/to/code.zip.d/secrets"
    lab.stub.faults = [Fault(JOB, 400, refusal("UserError", "no such thing"))]
    lab.run("submit", "--single", "true", code=1)
    assert lab.container.names(secrets) == [] and lab.ask("history")["jobs"] == []
    gone = refusal("GatewayTimeout", "The gateway did not get an answer in time.")
    lab.stub.faults = [
        Fault(JOB, 504, gone, SOON, times=99, after=True),
        Fault("GET .*/jobs/", 504, gone, SOON, times=99),
    ]
    lab.run("submit", "--single", "test $MY_TOKEN", code=1)
    (job_id,) = lab.stub.jobs
    assert lab.container.names(secrets) == [f"{secrets}/{job_id}.json"]
    assert [job["status"] for job in lab.ask("q")["jobs"]] == ["Unknown"]
    lab.stub.faults = []
    lab.stub.release(lab.stub.jobs[job_id])
    assert lab.until(job_id)["status"] == "Completed"
    assert lab.container.names(secrets) == []


def test_a_service_that_is_not_there(lab: Lab) -> None:
    lab.workspace(management_endpoint="http://127.0.0.1:1")
    lab.stub.faults = []
    done = lab.run("--json", "-c", "aml", "summary", code=1)
    assert done.codes == {"backend_failing"}
    assert done.errors[0]["message"] == "cannot connect to 127.0.0.1:1 (connection refused)"
    assert done.errors[0]["hint"] == "check the network, and management_endpoint in the workspace file"


@pytest.mark.soak
def test_logs_that_cannot_be_had_are_an_error_and_old_ones_are_called_old(lab: Lab) -> None:
    first, second = (lab.submit("--single", "echo printed") for _ in range(2))
    assert lab.until(first)["status"] == lab.until(second)["status"] == "Completed"
    assert lab.run("logs", first).out == "printed\n"
    for file in (lab.project.root / "assets" / second).rglob("*.txt"):
        file.unlink()
    lab.stub.faults = [Fault("GET .*/history/", 403, refusal("AuthorizationFailed", FORBIDDEN), REQUEST, times=99)]
    old = lab.run("logs", first)
    assert old.out == "printed\n"
    assert f"showing the logs that were fetched earlier: Azure refused the request: {FORBIDDEN}" in old.err
    refused = lab.run("--json", "logs", second, code=2)
    assert refused.errors[0]["message"].startswith(f"Azure refused the request: {FORBIDDEN}")


@pytest.mark.soak
def test_jobs_stay_what_they_are_while_their_workspace_cannot_be_asked(lab: Lab) -> None:
    lab.stub.held = True
    job_id = lab.submit("--single", "true")
    lab.workspace(workspace_name="other")
    assert [job["status_confirmed"] for job in lab.ask("q")["jobs"]] == [True]
    lab.workspace()
    gone = refusal("WorkspaceNotFound", "The workspace ws-one could not be found.")
    lab.stub.faults = [Fault("/jobs", 404, gone, REQUEST, times=99)]
    listed = lab.run("q")
    assert "cluster aml: aux_data/aml/config.json: workspace_name: Azure says: " in listed.err
    assert "; showing the last known state" in listed.err and "Queued" in listed.out
    assert [job["status"] for job in lab.ask("q", job_id)["jobs"]] == ["Queued"]
    refused = lab.run("--json", "abort", job_id, code=2)
    assert "workspace_name" in refused.errors[0]["message"]
    lab.stub.faults = [Fault("POST .*/cancel", 403, refusal("AuthorizationFailed", FORBIDDEN), REQUEST, times=9)]
    refused = lab.run("--json", "abort", job_id, code=2)
    assert refused.errors[0]["message"].startswith(
        f"Azure refused the request: {FORBIDDEN} (AuthorizationFailed, HTTP 403"
    )
    assert lab.detail(job_id)["status"] == "Queued"
    lab.cluster(compute_target="typo")
    done = lab.run("--json", "summary", code=2)
    assert done.errors[0]["message"].startswith("aux_data/aml/aml.yaml: compute_target: Azure ML says: Compute typo")
    assert json.dumps(done.document).count("Traceback") == 0
