"""The options of ``submit`` that set keys of the cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import UsageError
from blobsync.base.plain_json import merged
from blobsync.config.model import Cluster, Docker
from blobsync.jobspec.submit_options import changed_keys, read_pairs


def make_cluster(platform: str = "slurm", **values: Any) -> Cluster:
    docker = Docker(**values.get("docker", {}))
    return Cluster("eu", "eu.yaml", Path("/p"), platform=platform, docker=docker, values=values)


def test_variables_are_read_from_the_words_or_from_here() -> None:
    assert read_pairs(["A=1", "B=x=y", "C=", "HOME", "A=2"], {"HOME": "/me"}) == {
        "A": "2",
        "B": "x=y",
        "C": "",
        "HOME": "/me",
    }


@pytest.mark.parametrize("word", ["=hunter2", "9=hunter2", "a b=hunter2", "hunter2 hunter2\n", "MISSING", ""])
def test_what_is_no_variable_is_refused_without_its_value(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_pairs([word], {})
    assert caught.value.message.startswith("--env")
    assert "hunter2" not in caught.value.message + str(caught.value.hint)


def test_later_changes_win_and_mappings_are_merged() -> None:
    first = {"env": {"A": 1, "B": 2}, "nodes": 2, "docker": "x"}
    assert merged(first, {"env": {"B": 3}, "docker": {"image": "y"}}) == {
        "env": {"A": 1, "B": 3},
        "nodes": 2,
        "docker": {"image": "y"},
    }
    assert first["env"] == {"A": 1, "B": 2}


def test_memory_and_cpus_are_what_each_platform_calls_them() -> None:
    words: Any = {"mem": "64G", "cpus_per_task": 4}
    assert changed_keys(make_cluster(), words, 8) == {"slurm": {"mem": "64G", "cpus_per_task": 4}}
    # A pod holds all processes of its node.
    assert changed_keys(make_cluster("kubernetes"), words, 8) == {"kubernetes": {"memory": "64G", "cpu": 32}}
    assert changed_keys(make_cluster(), {"mem": None, "cpus_per_task": None, "image": None, "env": {}}, 1) == {}


@pytest.mark.parametrize("platform", ["local", "aml", "itp", "singularity"])
def test_where_nothing_limits_a_node_the_options_are_refused(platform: str) -> None:
    with pytest.raises(UsageError, match=f"--mem is for Slurm and Kubernetes, and eu is {platform}: "):
        changed_keys(make_cluster(platform), {"mem": "1G"}, 1)
    with pytest.raises(UsageError, match="--cpus-per-task is for Slurm and Kubernetes"):
        changed_keys(make_cluster(platform), {"cpus_per_task": 1}, 1)


def test_an_image_takes_the_place_of_all_that_names_another() -> None:
    login = {"address": "acr.io", "username": "me", "password": "x"}
    cluster = make_cluster(docker={"image": "old", "tag": "7", "environment": "azureml:x:1", **login})
    plain = {"image": "python:3.12", "tag": None, "environment": None}
    assert changed_keys(cluster, {"image": "python:3.12"}, 1) == {"docker": plain}
    mine = {**plain, "image": "acr.io/team/x:1"}
    assert changed_keys(cluster, {"image": "acr.io/team/x:1"}, 1) == {"docker": mine}
    # The login is that of its own registry.
    other = {**plain, "image": "ghcr.io/x/y:1", "address": None, "username": None, "password": None}
    assert changed_keys(cluster, {"image": "ghcr.io/x/y:1"}, 1) == {"docker": other}
    kube = make_cluster("kubernetes", kubernetes={"image": "old"})
    assert changed_keys(kube, {"image": "new"}, 1) == {"kubernetes": {"image": "new"}}
    assert changed_keys(make_cluster(use_custom_docker=False), {"image": "new"}, 1) == {
        "docker": {"image": "new"},
        "use_custom_docker": None,
    }
