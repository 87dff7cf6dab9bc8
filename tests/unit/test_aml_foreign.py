"""Jobs that another program submitted: what is read of them, and what is reported as unread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.aml.aml_backend import AmlBackend
from blobsync.backends.aml.replies import AmlReply, read_foreign
from blobsync.backends.protocol import SeenJob, Surroundings
from blobsync.base.process import ProcessRunner
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.queries import with_others
from blobsync.jobs.states import recent
from blobsync.jobspec.spec import JobRef, JobSpec, RunInfo, State, own_inputs
from tests.fakes.aml_configs import load
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec

CLUSTER = Cluster(name="eu", file="eu.yaml", root=Path("/p"), platform="aml", gpu_per_node=4)


def read(definition: dict[str, Any] | None = None, **properties: Any) -> JobSpec:
    body = {"name": "jolly_fig_1", "properties": {"jobType": "Command", "command": "python a.py", **properties}}
    details = {"runDefinition": definition} if definition is not None else {}
    return read_foreign(AmlReply(body), AmlReply(details), CLUSTER)


MPI = {"distributionType": "Mpi", "processCountPerInstance": 8}


@pytest.mark.parametrize(
    ("properties", "definition", "size"),
    [
        ({}, None, (1, 1, 4)),
        ({"resources": {"instanceCount": 3}}, None, (3, 1, 4)),
        ({"resources": {"instanceCount": 2}, "distribution": MPI}, None, (2, 8, 8)),
        ({}, {"nodeCount": 2, "mpi": {"processCountPerNode": 8}}, (2, 8, 8)),
    ],
)
def test_its_size(properties: Any, definition: Any, size: tuple[int, int, int]) -> None:
    spec = read(definition, **properties)
    assert (spec.nodes, spec.procs_per_node, spec.gpus_per_node) == size


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        (["--x", "1", "--command", "python b.py 'c d'", "--y", "2"], "python b.py 'c d'"),
        (["--command"], "python a.py"),
        (["--command", 7], "python a.py"),
        (["--command", "x", "--command", "y"], "python a.py"),
        ("--command x", "python a.py"),
        (None, "python a.py"),
    ],
)
def test_the_command_of_a_job_of_act_is_among_its_arguments(arguments: Any, argv: str) -> None:
    assert read({"arguments": arguments}).argv == (argv,)


def test_what_is_read_and_what_is_not() -> None:
    variables = {"LR": "1", "MY_TOKEN": "hush", "AZUREML_RUN": "x", "AZ_BATCH_Y": "z", "AZIMUTH": "3"}
    spec = read(
        displayName="n",
        environmentVariables=variables,
        limits={"jobLimitsType": "Command", "timeout": "P1MT2H"},
        codeId="/c",
        environmentId="/e",
        inputs={"raw": {"jobInputType": "uri_folder"}},
        outputs={"model": {"jobOutputType": "uri_folder"}},
    )
    assert (spec.name, spec.env, spec.timeout_s, spec.is_foreign) == ("n", {"LR": "1", "AZIMUTH": "3"}, None, True)
    assert spec.unread == (
        *("the variable MY_TOKEN", "the limit P1MT2H", "its code /c", "its environment /e", "the input raw"),
        "the output model",
    )
    assert "hush" not in spec.to_json() and JobSpec.from_json(spec.to_json()).unread == spec.unread
    assert read(limits={"timeout": "PT1H30M5S"}).timeout_s == 5405
    assert read(limits={"timeout": "P1DT2H"}).timeout_s == 93_600
    assert own_inputs(read(command="a ${{inputs.raw}} ${{ outputs.model }} ${HOME}")) == ["inputs.raw", "outputs.model"]


class Grouped(FakeBackend):
    """A service that lists jobs by experiment."""

    experiment = "trials"
    seen: tuple[SeenJob, ...] = ()

    def newest(self, states: Any, limit: int | None) -> Iterator[SeenJob]:
        self._check()
        yield from [one for one in self.seen if not states or one.info.state in states][:limit]


def seen(run_id: str, submitted: float) -> SeenJob:
    spec = make_spec("true", run_id=run_id, cluster="aml", platform="aml")
    return SeenJob(spec, JobRef(run_id, run_id, ""), RunInfo(run_id, State.RUNNING), submitted)


def test_the_list_has_the_experiments_other_jobs_in_their_order_and_records_none(tmp_path: Path) -> None:
    cluster, _ = load(tmp_path)
    backend = Grouped()
    backend.seen = tuple(seen(*each) for each in (("theirs", 30.0), ("me_1000000000_ab", 0.0), ("mine", 10.0)))
    context = JobContext(tmp_path, os.environ, cluster, backends={cluster.name: backend})
    context.history.add(seen("mine", 20.0).spec, JobRef("mine", "mine", ""), "aml", submitted=20.0)
    before = recent(context)
    found = with_others(context, before, (), 20, None)
    assert [record.run_id for record in found] == ["me_1000000000_ab", "theirs", "mine"]
    assert found.experiment == "trials" and found[0].home and found[0].is_settled
    assert len(context.history.page()) == 1 and len(with_others(context, before, (), 2, cluster.name)) == 2
    assert [with_others(context, before, (), limit, None).more for limit in (1, 2, 3)] == [2, 1, 0]
    assert with_others(context, before, (), 20, "no-such-cluster") == before
    backend.gone = True
    silent = with_others(context, before, (), 20, None)
    assert "jobs that this project did not submit are not shown" in silent.problems[0] and len(silent) == 1
    # A service that has just failed to respond is not asked again.
    assert with_others(context, silent, (), 20, None) is silent


@pytest.mark.parametrize(
    ("flag", "identity"),
    [(None, "DefaultAzureCredential"), (False, "DefaultAzureCredential"), (True, "AzureCliCredential")],
)
def test_any_login_that_azure_identity_finds_unless_the_file_names_the_cli(
    tmp_path: Path, flag: bool | None, identity: str
) -> None:
    cluster, _ = load(tmp_path, use_cli_auth=flag)
    backend = AmlBackend(Surroundings(cluster, tmp_path, {}, ProcessRunner()))
    assert type(backend._credential()).__name__ == identity
