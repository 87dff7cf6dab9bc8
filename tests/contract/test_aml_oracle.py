"""Compares our requests with those of Microsoft's own azure-ai-ml, field by field.

azure-ai-ml brings 60 packages and 111 MB: it is the extra ``oracle``, and without it these tests are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.sweep import sweep
from tests.fakes.aml_configs import BASE, CONTAINER, EIGHT, Asked, ask

REASON = "azure-ai-ml (111 MB) is not installed: pip install 'blobsync[oracle]'"
pytestmark = pytest.mark.filterwarnings("ignore")

# What azure-ai-ml writes although it is the service's default.
DEFAULTS = {"isArchived": False, "properties": {}}
IMAGE = f"{BASE}/environments/blobsync/versions/x"


@pytest.fixture(scope="module")
def sdk() -> Any:
    pytest.importorskip("azure.ai.ml", reason=REASON)
    return import_module("azure.ai.ml")


@pytest.mark.parametrize("name", EIGHT)
def test_the_job_is_the_same(name: str, tmp_path: Path, sdk: Any) -> None:
    changes, gpus = EIGHT[name]
    asked = ask(tmp_path, SubmitRequest(("python", "train.py"), gpus), **changes)
    theirs = plain(as_the_sdk_says(sdk, name, asked))
    ours = plain(asked.job)
    assert sorted(ours) == sorted(theirs)
    for field in ours:
        assert ours[field] == theirs[field], field


def test_a_sweep_is_the_same(tmp_path: Path, sdk: Any) -> None:
    asked = SubmitRequest(("python", "train.py", "{lr}"), 8, tasks=sweep(["lr=0.1,0.01"]), parallel=1)
    ours = ask(tmp_path, asked, timeout="5h").job
    of_sweep = import_module("azure.ai.ml.sweep")
    trial = sdk.entities.CommandJob(
        command=ours["trial"]["command"],
        environment=ours["trial"]["environmentId"],
        environment_variables={"NCCL_DEBUG": "INFO"},
        distribution=sdk.MpiDistribution(process_count_per_instance=4),
        resources=sdk.entities.JobResourceConfiguration(instance_count=2, shm_size="64g"),
    )
    made = of_sweep.SweepJob(
        display_name=ours["displayName"],
        experiment_name="trials",
        tags=dict(ours["tags"]),
        compute=f"{BASE}/computes/NC24RSV3",
        inputs={
            key: sdk.Input(type=one["jobInputType"], path=one["uri"], mode="download")
            for key, one in ours["inputs"].items()
        },
        outputs={
            key: sdk.Output(type="uri_folder", path=one["uri"], mode="rw_mount") for key, one in ours["outputs"].items()
        },
        limits=of_sweep.SweepJobLimits(max_concurrent_trials=1, max_total_trials=2, trial_timeout=5 * 3600),
        sampling_algorithm="grid",
        search_space={"task": of_sweep.Choice(values=[0, 1])},
        objective=of_sweep.Objective(goal="minimize", primary_metric="blobsync"),
        trial=trial,
    )
    theirs = made._to_rest_object().as_dict()["properties"]
    theirs = {key: value for key, value in theirs.items() if DEFAULTS.get(key, object()) != value}
    theirs["trial"]["distribution"] = dict(theirs["trial"]["distribution"])
    # Only preview versions have these beside the trial's; words are as they were given, and durations in hours.
    assert theirs.pop("resources") == theirs["trial"]["resources"]
    assert theirs["trial"]["resources"].pop("properties") == {}
    limits, objective = {**ours["limits"], "trialTimeout": "PT5H"}, {**ours["objective"], "goal": "minimize"}
    assert theirs == {**ours, "limits": limits, "objective": objective}


@pytest.mark.parametrize("name", ["one GPU", "file share", "identity only"])
def test_the_datastores_are_the_same(name: str, tmp_path: Path, sdk: Any) -> None:
    entities = sdk.entities
    changes, gpus = EIGHT[name]
    for store in ask(tmp_path, SubmitRequest(("true",), gpus), **changes).request.datastores:
        ours = store.body({CONTAINER: "sig=MINTED"}, datetime(2026, 5, 1, tzinfo=timezone.utc))["properties"]
        assert store.account
        token = ours["credentials"].get("secrets", {}).get("sasToken")
        assert bool(token) == (name != "identity only")
        credentials = entities.SasTokenConfiguration(sas_token=token) if token else None
        common = {"name": store.name, "account_name": store.account.account_name, "credentials": credentials}
        if store.share:
            made = entities.AzureFileDatastore(file_share_name=store.share, **common)
        else:
            made = entities.AzureBlobDatastore(container_name=store.account.container_name, **common)
        theirs = made._to_rest_object().as_dict()["properties"]
        ours.pop("description")
        assert {field: theirs.get(field) for field in ours} == ours
        assert set(theirs) - set(ours) <= {"tags", "properties", "isDefault", "serviceDataAccessAuthIdentity"}


def as_the_sdk_says(sdk: Any, name: str, asked: Asked) -> Mapping[str, Any]:
    """The same job in azure-ai-ml's words; command, environment, tags and paths are ours, the rest is written anew."""
    job = asked.job
    itp, singularity, identity = name.startswith("ITP"), name == "Singularity", name == "identity only"
    nodes = {"one GPU": 1, "nodes with MPI": 2, "ITP, preemptible": 2, "ITP, elastic": 4, "Singularity": 2}.get(name, 1)
    processes = {"one GPU": None, "single process": None, "Singularity": 8}.get(name, 4)
    modes = {"Download": "download", "ReadWriteMount": "rw_mount"}
    env = {"NCCL_DEBUG": "INFO"}
    if singularity:
        env.update(WORLD_SIZE="16", SINGULARITY_CUSTOM_IMAGE="true")
    compute = f"{BASE}/computes/{'itp-one' if itp else 'NC24RSV3'}"
    if singularity:
        compute = BASE.partition("/workspaces/")[0] + "/virtualclusters/vc-one"
    made = sdk.command(
        name="x",
        display_name="python train.py",
        experiment_name="trials",
        command=job["command"],
        environment=job["environmentId"],
        compute=compute,
        instance_count=nodes,
        shm_size="64g",
        timeout=5 * 3600 if name == "single process" else None,
        distribution=sdk.MpiDistribution(process_count_per_instance=processes) if processes else None,
        inputs={
            key: sdk.Input(type=one["jobInputType"], path=one["uri"], mode=modes[one["mode"]])
            for key, one in job["inputs"].items()
        },
        outputs={
            key: sdk.Output(type="uri_folder", path=one["uri"], mode=modes[one["mode"]])
            for key, one in job.get("outputs", {}).items()
        },
        environment_variables=env,
        tags=dict(job["tags"]),
        identity=sdk.UserIdentityConfiguration() if identity else None,
    )
    if itp or singularity:
        made.resources.properties = settings(name)
    found: Mapping[str, Any] = made._to_job()._to_rest_object().as_dict()["properties"]
    return found


def settings(name: str) -> Any:
    known = import_module("azure.ai.ml._internal.entities.runsettings")
    if name == "Singularity":
        virtual_cluster = BASE.partition("/workspaces/")[0] + "/virtualclusters/vc-one"
        return {
            "AISuperComputer": known.AISuperComputerConfiguration(
                instance_types=["Singularity.ND40_v2"],
                sla_tier="Premium",
                virtual_cluster_arm_id=virtual_cluster,
                interactive=False,
                image_version="",
                enable_azml_int=False,
            ).as_dict()
        }
    elastic = {"node_count_set": [1, 2, 4], "scale_interval": 480} if name == "ITP, elastic" else {}
    priority = known.ITPPriorityConfiguration(job_priority=200, is_preemptible=name == "ITP, preemptible", **elastic)
    resources = known.ITPResourceConfiguration(gpu_count=4)
    return {"itp": known.ITPConfiguration(resource_configuration=resources, priority_configuration=priority).as_dict()}


def plain(job: Mapping[str, Any]) -> dict[str, Any]:
    """Without defaults, with durations in seconds and with the free-form keys in one spelling."""
    found = {key: value for key, value in job.items() if DEFAULTS.get(key, object()) != value}
    if "limits" in found:
        found["limits"] = {**found["limits"], "timeout": seconds(found["limits"]["timeout"])}
    if "distribution" in found:
        found["distribution"] = dict(found["distribution"])
    resources = dict(found["resources"])
    free = resources.pop("properties", None)
    # azure-ai-ml has PascalCase, the service's users camelCase; the count of instances is in the latter only.
    free = {key: without_case(value) for key, value in (free or {}).items()}
    free.get("AISuperComputer", {}).pop("instancecount", None)
    found["resources"] = {**resources, "properties": free}
    return found


def without_case(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {key.lower(): without_case(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}
    return value


def seconds(text: str) -> int:
    match = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", text)
    assert match, text
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest
