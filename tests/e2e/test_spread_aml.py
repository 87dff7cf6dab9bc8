"""``--nodes`` on Azure ML: a copy between containers by the nodes of a job, without a shared disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from blobsync.base.formatting import count_text
from tests.e2e.aml_lab import Lab, lab, stub
from tests.e2e.test_spread import nothing_is_left, tasks_of
from tests.e2e.world import Container, every_text_below, hashes, random_files
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.unit.test_config_loader import ACT_EXAMPLE
from tests.waiting import wait_until

__all__ = ["lab", "nothing_is_left", "stub"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_FILES = random_files(20261219, 80, [9 << 20])


def _account(lab: Lab, name: str, container: Container, url: str) -> None:
    account = {"account_name": container.account, "container_name": container.name, "account_key": container.key}
    lab.write(f"aux_data/configs/{name}.yaml", {**account, "blob_endpoint": f"{url}/{container.account}"})


@pytest.mark.soak
def test_azure_ml_nodes_copy_from_server_to_server_and_lose_a_process(
    lab: Lab, new_container: Callable[[str], Container], service: str
) -> None:
    source = new_container("one")
    for name, data in _FILES.items():
        source.put(f"sets/{name}", data)
    entries: dict[str, Any] = yaml.safe_load(ACT_EXAMPLE)["config_param"]
    entries["sets_folder"] = {"azure_blob_config_file": "./aux_data/configs/acct.yaml", "path": "path/to/sets"}
    origin = {"azure_blob_config_file": "./aux_data/configs/origin.yaml", "path": "sets"}
    with copy_source_proxy(service) as copying:
        _account(lab, "acct", lab.container, copying.url)
        _account(lab, "origin", source, copying.url)
        lab.cluster(config_param=entries)
        lab.write("aux_data/aml/from.yaml", {"config_param": {"sets_folder": origin}})
        words = ("u", "sets", "--nodes", "2")
        for refused in (words, ("d", "sets", "--nodes", "2")):
            done = lab.project.json(*refused)
            assert (done.code, len(done.errors)) == (2, 1), str(done)
            assert "the nodes of aml (aml) do not see this disk" in done.errors[0]["message"]
        copy = (*words, "-f", "from")
        unlimited = lab.project.json(*copy, "--detach")
        assert unlimited.code == 2 and "no time limit" in unlimited.errors[0]["message"], str(unlimited)
        assert "timeout: 2d" in str(unlimited.errors[0]["hint"]) and not lab.stub.jobs

        process = lab.project.start(*copy, "--cap-mbps", "300", "--json")
        assert wait_until(lambda: bool(lab.stub.jobs) or process.poll() is not None, seconds=60)
        assert process.poll() is None, str(lab.project.finish(process))
        (job,) = lab.stub.jobs.values()
        assert wait_until(lambda: len(tasks_of(job.folder)) > 2 or process.poll() is not None, seconds=60)
        # The processes that the tasks have forked are the last.
        for pid in tasks_of(job.folder)[-1:]:
            os.kill(pid, signal.SIGKILL)
        done = lab.project.finish(process, seconds=120)
        assert (done.code, done.data["transferred"]) == (0, len(_FILES)), str(done)
        # Only their program, shards and records went through nodes.
        assert copying.stats().downloaded < 6 << 20 < copying.stats().fetched
        assert lab.until(job.name)["status"] == "Completed"
        assert "task 0 of sets: " in lab.run("logs", job.name).out
        assert job.body["properties"]["resources"]["instanceCount"] == 2
        _no_secret_is_left(lab, source, str(job.body))

    assert lab.container.contents("path/to/sets/") == hashes(_FILES)
    assert not lab.container.names(".blobsync/")


def _no_secret_is_left(lab: Lab, source: Container, body: str) -> None:
    assert "sig=" not in body and source.key not in body
    kept = every_text_below(lab.project.root / ".blobsync")
    assert not [file for file, text in kept if b"sig=" in text or source.key.encode() in text]
    assert not [name for name in lab.container.names() if "/secrets/" in name]


@pytest.mark.soak
def test_a_detached_copy_on_azure_ml_is_a_job_like_any_other_and_tells_its_end(
    lab: Lab, new_container: Callable[[str], Container], service: str
) -> None:
    source = new_container("one")
    files = random_files(20261220, 12, [9 << 20])
    for name, data in files.items():
        source.put(f"data/{name}", data)
    with copy_source_proxy(service) as copying, fault_proxy(copying.url) as line:
        _account(lab, "acct", lab.container, line.url)
        lab.project.configure(source, cluster="from", url=line.url)
        words = ("u", "data", "-f", "from", "--nodes", "1", "--detach", "-p", "{timeout: 2d}")
        line.inject(Fault("stall", rate=1, operations=("put blob from url", "put block from url"), pattern="/large0"))
        stopped = [_waits_and_is_stopped(lab, words), _runs_and_is_stopped(lab, words)]
        line.inject()
        _no_secret_is_left(lab, source, str(lab.stub.jobs[stopped[1]].body))
        done = lab.project.json(*words)
        # Files that the stopped job has moved do not move again.
        assert done.code == 0 and 0 < done.data["planned"] < len(files), str(done)
        job = lab.stub.jobs[done.data["job_id"]]
        assert job.body["properties"]["limits"]["timeout"] == "PT172800S"
        assert lab.until(job.name)["status"] == "Completed", lab.run("logs", job.name).out
        assert f"{count_text(done.data['planned'], 'file')} verified, 0 failed" in lab.run("logs", job.name).out
        told = [(each["job_id"], each["status"]) for each in lab.ask("history")["jobs"]]
        assert told == [(job.name, "Completed"), *((each, "Canceled") for each in reversed(stopped))]
    there = lab.container.contents("path/to/data/")
    assert {name: there.get(name) for name in files} == hashes(files)


def _waits_and_is_stopped(lab: Lab, words: Sequence[str]) -> str:
    lab.stub.held = True
    job = str(lab.ask(*words)["job_id"])
    shown = lab.detail(job)
    command = ["blobsync", "-c", "aml", "-f", "from", "u", "data", "--nodes", "1"]
    assert (shown["status"], shown["backend"], shown["command"]) == ("Queued", "aml", command)
    second = lab.project.json(*words)
    assert (second.code, second.codes) == (3, {"spread_busy"}) and f"blobsync abort {job}" in str(second), str(second)
    assert "Canceled" in lab.run("abort", job).out
    lab.stub.held = False
    return job


def _runs_and_is_stopped(lab: Lab, words: Sequence[str]) -> str:
    """The large file is never completed."""
    job = lab.stub.jobs[lab.ask(*words)["job_id"]]

    assert wait_until(lambda: len(lab.container.names("path/to/data/")) > 5, seconds=60), lab.run("logs", job.name).out
    assert [each["job_id"] for each in lab.ask("qr")["jobs"]] == [job.name]
    lab.run("abort", job.name[-6:])
    ended = lab.until(job.name)
    assert ended["status"] == "Canceled" and not tasks_of(job.folder), str(ended)
    assert "stopped" in lab.run("logs", job.name).out
    return job.name
