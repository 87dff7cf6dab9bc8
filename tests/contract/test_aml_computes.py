"""Compute clusters of Azure ML: validated requests, and the service's responses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.aml.client import AmlClient
from blobsync.backends.aml.computes import Computes, NodeBounds, creation, read_compute_of
from blobsync.backends.aml.replies import AmlReply
from blobsync.base.errors import BlobsyncError, JobError, NothingMatchedError, UsageError
from blobsync.config.model import WorkspaceConfig
from tests.servers.aml_stub import AmlStub, Fault, Login, refusal, serve
from tests.servers.openapi import azure_ml, example


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[AmlStub]:
    with serve(tmp_path / "service") as stub:
        yield stub
        # Each request was checked against Microsoft's specification.
        assert stub.violations == []


SOME = NodeBounds(0, 4, 600)
# Commands of the Azure CLI name this workspace, independent of the user's defaults.
WHERE = "--resource-group rg0 --workspace-name ws-one --subscription sub0"


class Desk:
    """The computes of the stand-in's workspace; ``waits`` are the pauses, which take no time.

    Each answer takes ``answer_seconds`` by its clock.
    """

    def __init__(self, stub: AmlStub) -> None:
        names = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
        workspace = WorkspaceConfig("aux_data/aml/config.json", management_endpoint=stub.url, **names)
        self.waits: list[float] = []
        self.notes: list[str] = []
        self.now = 0.0
        self.answer_seconds = 0.0
        self.computes = Computes(
            AmlClient(workspace, Login), self.notes.append, sleep=self.sleep, clock=lambda: self.now
        )

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds + self.answer_seconds

    def create(self, name: str = "gpu", bounds: NodeBounds = SOME, *, wait: bool = True) -> Any:
        request = self.computes.plan_create(name, "Standard_NC6s_v3", "low", bounds)
        return self.computes.send(name, request, wait=wait)


@pytest.fixture
def desk(stub: AmlStub) -> Desk:
    return Desk(stub)


def test_a_cluster_is_made_waited_for_scaled_and_removed(stub: AmlStub, desk: Desk) -> None:
    stub.provisioning["gpu"] = [{"provisioningState": "Creating"}, {"provisioningState": "Succeeded"}]
    made = desk.create()
    assert stub.made["gpu"]["location"] == "westeurope"
    assert stub.made["gpu"]["properties"]["properties"] == {
        "vmSize": "Standard_NC6s_v3",
        "vmPriority": "LowPriority",
        "scaleSettings": {"minNodeCount": 0, "maxNodeCount": 4, "nodeIdleTimeBeforeScaleDown": "PT600S"},
    }
    assert (made.state, made.bounds, made.vm_priority) == ("Succeeded", NodeBounds(0, 4, 600), "LowPriority")
    assert len(desk.waits) == 1 and desk.notes == ["gpu: Creating"]

    scaled = desk.computes.send("gpu", desk.computes.plan_scale("gpu", NodeBounds(least=2)))
    assert scaled and scaled.bounds == NodeBounds(2, 4, 600)
    assert [one.name for one in desk.computes.list()] == ["gpu", "itp-one"]

    assert desk.computes.send("gpu", desk.computes.plan_remove("gpu")) is None
    assert [one.name for one in desk.computes.list()] == ["itp-one"]
    assert any(line.startswith("DELETE") and "underlyingResourceAction=Delete" in line for line in stub.requests)


def test_without_waiting_the_first_look_is_the_answer(stub: AmlStub, desk: Desk) -> None:
    stub.provisioning["gpu"] = [{"provisioningState": "Creating"}]
    assert desk.create(wait=False).state == "Creating" and desk.waits == []
    desk.answer_seconds = 55.0
    with pytest.raises(JobError, match="gpu is still Creating after half an hour"):
        desk.computes.send("gpu", desk.computes.plan_scale("gpu", NodeBounds(most=5)))


def test_a_name_that_is_taken_is_not_changed(stub: AmlStub, desk: Desk) -> None:
    desk.create()
    with pytest.raises(JobError, match=r"gpu exists already .AmlCompute, Standard_NC6s_v3, 0 to 4 nodes") as caught:
        desk.create(bounds=NodeBounds(0, 9))
    assert "blobsync compute scale gpu --max N" in str(caught.value.hint)
    assert sum(line.startswith("PUT") for line in stub.requests) == 1

    # A machine has a size, and no bounds.
    stub.made["box"] = example("Compute/get/ComputeInstance.json") | {"name": "box"}
    with pytest.raises(JobError, match=r"box exists already .ComputeInstance.$") as caught:
        desk.create("box")
    assert caught.value.hint == "choose another name"


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        (
            400,
            "QuotaExceeded",
            "The family NCSv3 has no cores left.",
            f"az ml compute list-usage {WHERE} shows the quota",
        ),
        (409, "ClusterCoreQuotaReached", "Reached the limit.", f"az ml compute list-usage {WHERE} shows the quota"),
        (400, "InvalidVmSize", "Standard_NC6s_v3 is not there.", f"az ml compute list-sizes {WHERE} shows the sizes"),
        (400, "BadRequest", "Something else.", "see the request with --dry-run"),
        (403, "AuthorizationFailed", "No right to write computes.", "ask for the role"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_next_command(
    stub: AmlStub, desk: Desk, status: int, code: str, message: str, hint: str
) -> None:
    stub.faults.append(Fault("^PUT .*/computes/", status, refusal(code, message)))
    with pytest.raises(BlobsyncError) as caught:
        desk.create()
    assert message.rstrip(".") in caught.value.message and code in caught.value.message
    assert hint in str(caught.value.hint) and stub.made == {}


def test_what_fails_later_is_reported_with_the_services_sentence(stub: AmlStub, desk: Desk) -> None:
    error = refusal("QuotaExceeded", "You asked for 24 cores and have 0.")
    failed = {"provisioningState": "Failed", "provisioningErrors": [error]}
    stub.provisioning["gpu"] = [{"provisioningState": "Creating"}, failed]
    with pytest.raises(JobError) as caught:
        desk.create()
    assert caught.value.message == "the compute gpu is Failed: You asked for 24 cores and have 0. (QuotaExceeded)"
    assert "list-usage" in str(caught.value.hint) and "blobsync compute rm gpu" in str(caught.value.hint)


def test_a_compute_that_cannot_be_changed_is_refused(stub: AmlStub, desk: Desk) -> None:
    with pytest.raises(NothingMatchedError, match="ws-one has no compute nix"):
        desk.computes.plan_scale("nix", NodeBounds(most=1))
    with pytest.raises(NothingMatchedError, match="ws-one has no compute nix"):
        desk.computes.plan_remove("nix")
    stub.made["aks"] = {**example("Compute/get/KubernetesCompute.json"), "name": "aks"}
    with pytest.raises(UsageError, match="aks is a Kubernetes") as caught:
        desk.computes.plan_remove("aks")
    assert f"az ml compute detach --name aks {WHERE}" in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot be the name of a compute"):
        desk.computes.find("../jobs")
    with pytest.raises(UsageError, match="--min 3 is more than --max 2"):
        desk.create(bounds=NodeBounds(3, 2))


def test_microsofts_examples_of_computes_are_read() -> None:
    cluster = read_compute_of(AmlReply(example("Compute/get/AmlCompute.json")))
    assert (cluster.kind, cluster.vm_size, cluster.vm_priority) == ("AmlCompute", "STANDARD_NC6", "Dedicated")
    assert (cluster.bounds, cluster.nodes, cluster.busy) == (NodeBounds(0, 1, 300), 0, 0)
    for name in ("AKSCompute", "ComputeInstance", "KubernetesCompute"):
        assert read_compute_of(AmlReply(example(f"Compute/get/{name}.json"))).state == "Succeeded"


def test_the_specification_catches_a_wrong_body() -> None:
    path = "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/ws1/computes/c"
    body = creation("westeurope", "Standard_NC6", "dedicated", NodeBounds(0, 1))
    query = {"api-version": "2024-04-01"}
    assert azure_ml().problems("PUT", path, query, body) == []
    body["properties"]["properties"]["vmPriority"] = "low"
    assert azure_ml().problems("PUT", path, query, body) != []
