"""``-c a,b,c``: the first cluster with enough free GPUs, by the backends' summaries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.backends.protocol import ClusterSummary
from blobsync.base.errors import BackendUnavailableError, ConfigError
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.first_free import choose_cluster, verdict
from blobsync.jobspec.make_spec import SubmitRequest
from tests.fakes.backend import FakeBackend


@pytest.mark.parametrize(
    ("size", "summary", "chosen", "why"),
    [
        ((1, 4), ClusterSummary(gpus_free=4), True, "4 GPUs free, enough for 4"),
        ((2, 4), ClusterSummary(gpus_free=7), False, "7 GPUs free, and the job needs 8"),
        ((1, 1), ClusterSummary(gpus_free=0), False, "0 GPUs free, and the job needs 1"),
        ((1, 1), ClusterSummary(nodes_free=9), False, "does not say how many GPUs are free"),
        ((3, 0), ClusterSummary(nodes_free=3, gpus_free=0), True, "3 nodes free, enough for 3"),
        ((1, 0), ClusterSummary(nodes_free=0), False, "0 nodes free, and the job needs 1"),
        ((1, 0), ClusterSummary(gpus_free=9), False, "does not say how many nodes are free"),
    ],
)
def test_the_figures_of_the_summary_decide(
    size: tuple[int, int], summary: ClusterSummary, chosen: bool, why: str
) -> None:
    found = verdict("eu", *size, summary)
    assert (found.chosen, found.why, found.sentence) == (chosen, why, f"cluster eu: {why}")


class Free(FakeBackend):
    """A backend with so many free GPUs."""

    gpus: int | None = None

    def summary(self) -> ClusterSummary:
        self._check()
        self.asked += 1
        return ClusterSummary(gpus_free=self.gpus)


def free(gpus: int | None, *, gone: bool = False) -> Free:
    backend = Free(gone=gone)
    backend.gpus = gpus
    return backend


REQUEST = SubmitRequest(("true",), num_gpu=4)


def clusters(root: Path, *names: str) -> list[Cluster]:
    return [Cluster(name, f"aux_data/aml/{name}.yaml", root, gpu_per_node=4, platform="slurm") for name in names]


def test_the_first_with_enough_is_chosen_and_the_others_say_why_not(tmp_path: Path) -> None:
    backends = {"a": free(3), "b": free(8, gone=True), "c": free(None), "d": free(4), "e": free(99)}
    context = JobContext(tmp_path, {**os.environ, "HOME": str(tmp_path)}, backends=backends)
    found = choose_cluster(context, clusters(tmp_path, *backends), REQUEST)
    assert [(one.cluster, one.chosen) for one in found] == [
        *(("a", False), ("b", False), ("c", False), ("d", True), ("e", False)),
    ]
    said = [one.why for one in found]
    assert said[0] == "3 GPUs free, and the job needs 4" and said[1].startswith("did not answer: ")
    assert said[3:] == ["4 GPUs free, enough for 4", "not asked: an earlier one has enough"]
    assert backends["e"].asked == 0


def test_where_none_has_enough_each_says_why(tmp_path: Path) -> None:
    context = JobContext(tmp_path, {**os.environ, "HOME": str(tmp_path)}, backends={"a": free(3), "b": free(0)})
    with pytest.raises(BackendUnavailableError) as caught:
        choose_cluster(context, clusters(tmp_path, "a", "b"), REQUEST)
    assert caught.value.message == (
        "no cluster has enough free: cluster a: 3 GPUs free, and the job needs 4; "
        "cluster b: 0 GPUs free, and the job needs 4"
    )
    assert caught.value.hint == "to wait in the queue of one: blobsync -c a submit ..."


def test_a_cluster_that_can_run_no_job_is_an_error_even_behind_a_free_one(tmp_path: Path) -> None:
    context = JobContext(tmp_path, {**os.environ, "HOME": str(tmp_path)}, backends={"a": free(9)})
    gone = Cluster("b", "b.yaml", tmp_path, platform_given=False)
    with pytest.raises(ConfigError):
        choose_cluster(context, [*clusters(tmp_path, "a"), gone], REQUEST)
