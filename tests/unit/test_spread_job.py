"""The job of a spread transfer: its specification, and how it is watched and ended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import SpreadBusyError, UsageError
from blobsync.config.model import Cluster
from blobsync.jobs.array_job import ArrayJob, is_over
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.spread_job import SpreadRequest, demand_other_ended, spread_spec, unended_jobs
from blobsync.jobs.states import refresh
from blobsync.jobspec.node_secrets import run_key
from blobsync.jobspec.spec import JobRef, JobSpec, RunInfo, State, TaskArray
from blobsync.plan.spreading import SpreadPlan
from blobsync.spread.shared_store import FolderStore, orders_seal
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec


class World:
    """One project whose jobs a fake platform has."""

    def __init__(self, tmp_path: Path) -> None:
        self.fake, self.told = FakeBackend(), list[str]()
        self.cluster = Cluster("eu", "eu.yaml", tmp_path)
        environ = {**os.environ, "HOME": str(tmp_path), "USER": "me"}
        self.context = JobContext(tmp_path, environ, self.cluster, backends={"eu": self.fake}, note=self.told.append)

    def job(self, *argv: str, **orders: Any) -> JobRecord:
        known = {"container": "box", "base": "b", "run": "", "count": 2, "detach": False, **orders}
        run_id = f"me_1_{len(self.fake.jobs):08x}"
        spec = make_spec(*argv, run_id=run_id, cluster="eu", platform="local", options={"spread": known})
        return ArrayJob.submit(self.context, (self.cluster, None), spec).record


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _spec(world: World, platform: str = "slurm", **words: Any) -> JobSpec:
    plan = SpreadPlan(platform, words.pop("nodes", 4), 4, 16, "")
    plan = replace(plan, detach=words.pop("detach", False))
    cluster = world.cluster._replace(platform=platform, values=words.pop("values", {}))
    base = ".blobsync/spread/x/y"
    request = SpreadRequest(("blobsync", "u", "data"), plan, "https://a/c", base, (), {"https://a/c": "rl"}, "one")
    request = replace(request, **{"count": 16, **words})
    return spread_spec(world.context, cluster, request, FolderStore(Path("/nowhere")))


def test_a_transfer_is_an_array_of_small_tasks_with_sealed_orders(world: World) -> None:
    values = {"nodes": 8, "min_nodes": 2, "max_nodes": 4, "gpu_per_node": 8, "multi_process": True}
    spec = _spec(world, cap_mbps=100.0, values=values)
    assert spec.tasks == TaskArray(16, 4, 4) and not spec.is_elastic
    assert (spec.nodes, spec.procs_per_node, spec.gpus_per_node, spec.folders, spec.env) == (1, 1, 0, (), {})
    orders = spec.spread
    assert orders is not None
    assert (orders["place"], orders["cap_mbps"]) == (".blobsync/spread/x/y/runs/one", 25.0)
    assert orders["seal"] == orders_seal(run_key(world.context.environ, "one"), orders)
    assert spec.node_archive is not None
    assert spec.node_archive.path == ".blobsync/spread/x/y/runs/one/node/archive"


def test_no_more_tasks_run_at_a_time_than_there_are(world: World) -> None:
    spec = _spec(world, count=2, cap_mbps=100.0)
    assert spec.tasks == TaskArray(2, 2, 4) and (spec.spread or {})["cap_mbps"] == 50.0


def test_on_azure_ml_it_is_a_job_of_so_many_nodes(world: World) -> None:
    spec = _spec(world, "aml")
    assert spec.tasks is None and spec.nodes == 4
    assert _spec(world, "aml", count=3).nodes == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [({}, "sets no time limit"), ({"timeout": "8d"}, "a SAS lives at most"), ({"timeout": "2d"}, "")],
)
def test_a_detached_transfer_ends_before_its_sas_do(values: dict[str, object], said: str, world: World) -> None:
    if said:
        with pytest.raises(UsageError, match=said):
            _spec(world, detach=True, values=values)
    else:
        assert _spec(world, detach=True, values=values).timeout_s == 172_800


def test_a_job_is_over_when_its_platform_says_so_or_has_forgotten_it(world: World) -> None:
    record = refresh(world.context, [world.job("sleep")])[0]
    assert not is_over(record)
    gone = replace(record, info=RunInfo(record.run_id, State.UNKNOWN))
    assert is_over(gone)
    # Not if nobody could be asked, nor if nobody knows that it was accepted.
    assert not is_over(replace(gone, current=False))
    assert not is_over(replace(gone, ref=JobRef(record.run_id, "")))


def test_a_job_that_ended_says_how(world: World) -> None:
    job = ArrayJob(world.context, world.job("sleep"))
    assert job.ended() is None
    world.fake.cancel(job.record.ref)
    assert job.ended() == f"Canceled; see blobsync logs {job.record.run_id}"


def test_stopping_a_job_waits_until_its_platform_says_that_it_has_ended(world: World) -> None:
    job = ArrayJob(world.context, world.job("sleep"))
    assert job.stop() and job.record.info.state is State.CANCELED
    assert job.stop(0) and not [said for said in world.told if "was not stopped" in said]


def test_a_job_that_cannot_be_stopped_is_named_with_the_command_that_stops_it(world: World) -> None:
    job = ArrayJob(world.context, world.job("sleep"))
    world.told.clear()
    world.fake.gone = True
    assert not job.stop(0)
    [said] = [each for each in world.told if "was not stopped" in each]
    name = job.record.run_id
    assert said.startswith(f"the job {name} was not stopped: ") and said.endswith(f"blobsync abort {name}")


@pytest.mark.parametrize(
    ("orders", "found"),
    [
        ({}, True),
        ({"base": "other", "path": "b"}, True),
        ({"base": "other", "claims": "b"}, True),
        ({"base": "other"}, False),
        ({"container": "other"}, False),
    ],
)
def test_jobs_of_a_place_are_those_with_its_orders_also_of_an_older_version(
    orders: dict[str, Any], found: bool, world: World
) -> None:
    record = world.job("sleep", **orders)
    assert [each.run_id for each in unended_jobs(world.context, "box", "b")] == ([record.run_id] if found else [])


def test_an_earlier_commands_job_is_stopped_before_the_next_one_begins(world: World) -> None:
    record = world.job("sleep")
    demand_other_ended(world.context, "box", "b")
    assert world.fake.jobs[record.run_id].state is State.CANCELED
    assert f"an earlier command left the job {record.run_id}: stopping it" in world.told


@pytest.mark.parametrize(("orders", "said"), [({"detach": True}, "folder"), ({"count": 0}, "an older blobsync")])
def test_a_detached_job_and_one_of_an_older_version_are_waited_for(
    orders: dict[str, Any], said: str, world: World
) -> None:
    record = world.job("sleep", **orders)
    with pytest.raises(SpreadBusyError, match=said) as busy:
        demand_other_ended(world.context, "box", "b")
    assert f"blobsync abort {record.run_id}" in (busy.value.hint or "")
    assert world.fake.jobs[record.run_id].state is State.RUNNING


def test_a_job_that_is_not_known_to_have_ended_is_waited_for(world: World) -> None:
    record = world.job("sleep")
    world.fake.gone = True
    with pytest.raises(SpreadBusyError, match="not known to have ended"):
        demand_other_ended(world.context, "box", "b")
    world.fake.gone = False
    world.fake.cancel(record.ref)
    demand_other_ended(world.context, "box", "b")
