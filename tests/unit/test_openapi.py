"""The validator of Azure ML's specification finds mistakes in requests."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.servers.aml_stub import refusal
from tests.servers.openapi import STABLE, azure_ml, load, refusal_problems

WORKSPACE = (
    "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/rg"
    "/providers/Microsoft.MachineLearningServices/workspaces/my-workspace"
)
QUERY = {"api-version": "2024-04-01"}
PUBLISHED = load(STABLE / "examples/Job/CommandJob/createOrUpdate.json")["parameters"]["body"]


def problems(change: Any, *, path: str = "jobs/me_1_x", query: dict[str, str] | None = None) -> list[str]:
    body = copy.deepcopy(PUBLISHED)
    change(body["properties"])
    return azure_ml().problems("PUT", f"{WORKSPACE}/{path}", query or QUERY, body)


def test_the_published_examples_are_accepted() -> None:
    assert problems(lambda job: None) == []
    for kind in ("Blob", "File"):
        body = load(STABLE / f"examples/Datastore/Azure{kind}WAccountKey/createOrUpdate.json")["parameters"]["body"]
        assert azure_ml().problems("PUT", f"{WORKSPACE}/datastores/ds", QUERY, body) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda job: job["outputs"]["string"].update(mode="rw_mount"), "'rw_mount' is none of"),
        (lambda job: job["distribution"].update(distributionType="MPI"), "'MPI' is no known kind"),
        (lambda job: job.pop("command"), "command: is missing"),
        (lambda job: job.update(comand="x"), "comand: is unknown"),
        (lambda job: job["resources"].update(instanceCount="2"), "'2' is no integer"),
        (lambda job: job["resources"].update(shmSize="big"), "does not match"),
        (lambda job: job["resources"].update(maxInstanceCount=3), "maxInstanceCount: is unknown"),
        (lambda job: job["limits"].update(timeout="5h"), "is no duration"),
        (lambda job: job["inputs"]["string"].pop("jobInputType"), "None is no known kind"),
        (lambda job: job["environmentVariables"].update(A=1), "1 is no string"),
        (lambda job: job.update(queueSettings={"jobTier": "Spot", "priority": 1}), "priority: is unknown"),
        (lambda job: job.update(status="Running"), "status: is read-only"),
    ],
)
def test_a_mistake_is_caught(change: Any, said: str) -> None:
    found = problems(change)
    assert found and any(said in each for each in found), found


def test_wrong_places_and_versions_are_caught() -> None:
    assert "no such operation" in problems(lambda job: None, path="job/x")[0]
    assert "api-version is missing" in problems(lambda job: None, query={"x": "1"})[0]
    assert "2019-01-01 is not" in problems(lambda job: None, query={"api-version": "2019-01-01"})[0]
    assert "does not match" in problems(lambda job: None, path="jobs/-starts-with-a-dash")[0]
    listing = {**QUERY, "listViewType": "ActiveOnly", "status": "Running"}
    assert azure_ml().problems("GET", f"{WORKSPACE}/jobs", listing, None) == ["query: status is unknown"]


def test_free_form_properties_are_free() -> None:
    assert problems(lambda job: job["resources"].update(properties={"itp": {"anything": [1, {"deep": None}]}})) == []


def test_refusals_are_error_documents() -> None:
    detail = {"code": "MaxValue", "message": "too large", "target": "resources"}
    assert refusal_problems(refusal("ValidationError", "no", detail, {"details": [detail]})) == []
    assert refusal_problems(refusal("ValidationError", "no", {"code": 5}))
    assert refusal_problems(refusal("ValidationError", "no", {"text": "x"}))
    assert refusal_problems({"code": "ValidationError"})
