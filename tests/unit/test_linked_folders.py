"""What submit says before it hands a job over: its size, and linked folders that are empty and should not be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blobsync.base.errors import StorageError, SubmissionError
from blobsync.base.process import Completed
from blobsync.base.redaction import Secret
from blobsync.cli.jobs import job_data, job_table
from blobsync.code.project_code import CodeProject
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobs.context import JobContext
from blobsync.jobs.empty_folders import empty_here, empty_links
from blobsync.jobs.record import JobRecord
from blobsync.jobs.submit import asked_text, plan_job, submit
from blobsync.jobspec.code_choice import CodeChoice
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef, JobRef, RunInfo, State
from blobsync.project.jobs import Jobs
from tests.fakes.backend import FakeBackend
from tests.fakes.runner import ScriptedRunner
from tests.fakes.store import MemoryStore

ACCOUNT = StorageAccount("eu.yaml", "acct", "box", "https://acct.blob.core.windows.net", account_key=Secret("a2V5"))
CONTAINER = str(ACCOUNT.container)
CODE = CodeRef(CONTAINER, "code.zip.d/x.zip", "x")
FOLDERS = (FolderEntry("data", ACCOUNT, "me/data"), FolderEntry("output", ACCOUNT, "me/output"))


def cluster_of(root: Path, platform: str = "local", **values: Any) -> Cluster:
    return Cluster("eu", "eu.yaml", root, folders=FOLDERS, platform=platform, values=values)


def told(root: Path, cluster: Cluster, *blobs: str, answers: tuple[Completed, ...] = ()) -> list[str]:
    store = MemoryStore()
    for name in blobs:
        store.add(name, b"x")
    left = list(answers)
    runner = ScriptedRunner(lambda call: left.pop(0))
    context = JobContext(root, os.environ, cluster, stores={CONTAINER: store}, process=runner)
    return list(empty_links(context, cluster, describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE)))


@pytest.mark.parametrize(("platform", "base"), [("local", ""), ("slurm", ""), ("slurm", "shared")])
def test_an_empty_folder_is_reported_where_its_container_is_not_empty(tmp_path: Path, platform: str, base: str) -> None:
    values: dict[str, Any] = {"slurm": {"shared_root": str(tmp_path / base)}} if base else {}
    cluster, root = cluster_of(tmp_path, platform, **values), tmp_path / base
    missing, _ = told(tmp_path, cluster, "me/data/a.txt", "me/output/old.txt")
    assert missing == (
        f"data_folder is linked to {root}/data, which is not there, while {CONTAINER}/me/data has files:"
        " blobsync d data brings them here, mode: download to the job"
    )
    (root / "data").mkdir(parents=True)
    empty, output = told(tmp_path, cluster, "me/data/a.txt", "me/output/old.txt")
    assert "data, which is empty, while" in empty
    assert output.endswith("what the job writes stays on that disk; mode: upload brings it to the container")
    (root / "data" / "a.txt").touch()
    assert told(tmp_path, cluster, "me/data/a.txt") == []


def test_nothing_is_reported_where_the_container_is_empty_or_the_folder_is_no_link(tmp_path: Path) -> None:
    assert told(tmp_path, cluster_of(tmp_path), "me/database/a.txt", "other") == []
    copied = tuple(entry._replace(mode="download") for entry in FOLDERS)
    assert told(tmp_path, cluster_of(tmp_path)._replace(folders=copied), "me/data/a.txt") == []
    for platform in ("kubernetes", "aml"):
        assert told(tmp_path, cluster_of(tmp_path, platform), "me/data/a.txt") == []
    # A folder of the job that the cluster file does not name any more.
    cluster = cluster_of(tmp_path)
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE)
    assert list(empty_links(JobContext(tmp_path, os.environ, cluster), cluster._replace(folders=()), spec)) == []


def test_each_linked_folder_is_looked_at_whatever_the_others_are(tmp_path: Path) -> None:
    blobs = ("me/data/a.txt", "me/output/old.txt")
    copied = (FOLDERS[0]._replace(mode="download"), FOLDERS[1])
    (output,) = told(tmp_path, cluster_of(tmp_path)._replace(folders=copied), *blobs)
    assert output.startswith("output_folder is linked to")
    # A file share is mounted elsewhere, and has no blobs.
    share = (FOLDERS[0]._replace(storage_type="file"), FOLDERS[1])
    assert told(tmp_path, cluster_of(tmp_path)._replace(folders=share), *blobs) == [output]
    # A folder that is the whole container.
    whole = (FOLDERS[0]._replace(path=""),)
    assert len(told(tmp_path, cluster_of(tmp_path)._replace(folders=whole), "a.txt")) == 1


def test_a_folder_of_a_job_on_this_machine_is_looked_at_here(tmp_path: Path) -> None:
    (missing,) = told(tmp_path, cluster_of(tmp_path, ssh="me@login"), "me/data/a.txt")
    assert "which is not there" in missing


def test_a_container_that_does_not_answer_hides_no_other_folder(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def list_blobs(self, prefix: str = "") -> Any:
            if prefix == "me/data/":
                raise StorageError("nobody answers")
            return super().list_blobs(prefix)

    store, cluster = Away(), cluster_of(tmp_path)
    store.add("me/output/old.txt", b"x")
    context = JobContext(tmp_path, os.environ, cluster, stores={CONTAINER: store})
    (output,) = empty_links(context, cluster, describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE))
    assert output.startswith("output_folder is linked to")


@pytest.mark.parametrize("mode", ["link", "download"])
def test_a_command_in_this_terminal_is_told_what_is_empty_here(tmp_path: Path, mode: str) -> None:
    """Nothing is downloaded for it; what it writes to an output folder stays here, as everybody knows."""
    cluster = cluster_of(tmp_path, "slurm", ssh="me@login", slurm={"shared_root": "/s"})
    cluster = cluster._replace(folders=tuple(each._replace(mode=mode) for each in FOLDERS))
    store = MemoryStore()
    for name in ("me/data/a", "me/output/b"):
        store.add(name, b"x")
    notes: list[str] = []
    runner = ScriptedRunner()
    context = JobContext(tmp_path, os.environ, cluster, stores={CONTAINER: store}, process=runner, note=notes.append)
    remedy = f"while {CONTAINER}/me/data has files: blobsync d data brings them"
    assert Jobs(context, lambda _: pytest.fail("it needs no code archive")).run_here(["true"]) == 0
    assert notes == [f"data is not there, {remedy}"] and len(runner.calls) == 1
    assert (tmp_path / "data").is_dir()
    assert list(empty_here(context, cluster)) == [f"data is empty, {remedy}"]
    store.blobs.clear()
    assert list(empty_here(context, cluster)) == []
    (tmp_path / "data" / "a").touch()
    store.before = lambda request: pytest.fail(f"a folder with files needs no look at its container: {request}")
    assert list(empty_here(context, cluster)) == []


def test_a_folder_of_a_login_node_is_looked_at_there(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, "slurm", ssh="me@login", slurm={"shared_root": "/s"})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "here.txt").touch()
    empty, missing, full = Completed(0, "/s/data\n", ""), Completed(3, "", ""), Completed(0, "", "")
    data, output = told(tmp_path, cluster, "me/data/a", "me/output/b", answers=(empty, missing))
    assert "linked to /s/data, which is empty" in data and "linked to /s/output, which is not there" in output
    assert told(tmp_path, cluster, "me/data/a", "me/output/b", answers=(full, full)) == []
    inside = Completed(0, "/s/data/old\n/s/data/set/train\n", "")
    (data,) = told(tmp_path, cluster, "me/data/set/train/a", "me/output/b", answers=(inside, full))
    assert data.startswith("data_folder is linked to /s/data, where set/train is empty, while ")


def test_a_login_node_is_asked_without_python(tmp_path: Path) -> None:
    """The shell's line, with this machine as the login node."""
    (tmp_path / "data" / "set" / "train").mkdir(parents=True)
    (tmp_path / "data" / "set" / "val").mkdir()
    (tmp_path / "data" / "set" / "val" / "a.txt").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text('#!/bin/sh\nfor word; do last=$word; done\nexec sh -c "$last"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    cluster = cluster_of(tmp_path, "slurm", ssh="me@login", slurm={"shared_root": str(tmp_path)})
    store = MemoryStore()
    for name in ("me/data/set/train/a", "me/output/b"):
        store.add(name, b"x")
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    context = JobContext(tmp_path, environ, cluster, stores={CONTAINER: store})
    data, output = empty_links(context, cluster, describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE))
    assert "where set/train is empty" in data and "which is not there" in output


def test_an_empty_folder_within_one_is_reported_too(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path)
    for name in ("old", "set/train", "set/val", "a/b/c/d"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "set" / "val" / "a.txt").touch()
    (tmp_path / "output" / "old").mkdir(parents=True)
    blobs = ("me/data/set/train/a.txt", "me/data/set/trainer/b.txt", "me/output/old/c.txt")
    (data,) = told(tmp_path, cluster, *blobs)
    assert data == (
        f"data_folder is linked to {tmp_path}/data, where set/train is empty, while {CONTAINER}/me/data/set/train"
        " has files: blobsync d data/set/train brings them here, mode: download to the job"
    )
    store = MemoryStore()
    store.add("me/data/set/train/a.txt", b"x")
    context = JobContext(tmp_path, os.environ, cluster, stores={CONTAINER: store})
    assert list(empty_here(context, cluster)) == [
        f"data/set/train is empty, while {CONTAINER}/me/data/set/train has files: blobsync d data/set/train brings them"
    ]
    (tmp_path / "data" / "set" / "train" / "a.txt").touch()
    assert told(tmp_path, cluster, *blobs) == []


@pytest.mark.parametrize(
    ("platform", "changes", "gpus", "says"),
    [
        ("slurm", {}, None, "eu (slurm): 1 node, 1 process, no GPU (-n or gpu_per_node asks for some)"),
        ("kubernetes", {}, None, "eu (kubernetes): 1 node, 1 process, no GPU (-n or gpu_per_node asks for some)"),
        ("slurm", {"gpu_per_node": 0}, None, "eu (slurm): 1 node, 1 process, no GPU"),
        ("slurm", {"gpu_per_node": 4}, 8, "eu (slurm): 2 nodes, 8 processes, 8 GPUs"),
        ("slurm", {"values": {"slurm": {"gres": "gpu:2"}}}, None,
         "eu (slurm): 1 node, 1 process, no GPU but those of gres gpu:2"),
        ("slurm", {"values": {"slurm": {"gres": "craynetwork:1,volta:{gpus}"}}}, None,
         "eu (slurm): 1 node, 1 process, no GPU (-n or gpu_per_node asks for some)"),
        ("kubernetes", {"values": {"slurm": {"gres": "gpu:2"}}}, 0,
         "eu (kubernetes): 1 node, 1 process, no GPU (-n or gpu_per_node asks for some)"),
        ("kubernetes", {"num_gpu": 0}, None, "eu (kubernetes): 1 node, 1 process, no GPU"),
        ("aml", {}, None, "eu (aml): 1 node, 4 processes, 4 GPUs"),
        ("local", {}, None, "eu (local): 1 node, 1 process, 1 GPU"),
    ],
)  # fmt: skip
def test_the_first_sentence_is_what_the_job_asks_for(
    tmp_path: Path, platform: str, changes: dict[str, Any], gpus: int | None, says: str
) -> None:
    cluster = Cluster("eu", "eu.yaml", tmp_path, platform=platform)._replace(**changes)
    spec = describe(cluster, SubmitRequest(("true",), gpus), "me_1_x", CODE)
    assert asked_text(cluster, spec) == says


@pytest.mark.parametrize("gpus", [0, 2])
def test_a_job_on_a_machine_without_gpus_says_once_that_it_runs_on_the_cpu(tmp_path: Path, gpus: int) -> None:
    cluster = cluster_of(tmp_path)._replace(platform="local", gpu_per_node=4, values={"local": {"gpus": gpus}})
    said = list[str]()
    context = JobContext(tmp_path, os.environ, cluster, note=said.append)
    if gpus:
        with pytest.raises(SubmissionError, match="this machine has 2 GPUs, but the job requests 4"):
            plan_job(context, cluster, SubmitRequest(("true",)), lambda _: CodeChoice(None))
        return
    plan, _ = plan_job(context, cluster, SubmitRequest(("true",)), lambda _: CodeChoice(None))
    text = "eu (local): 1 node, 4 processes, no GPU: this machine has none, so it runs on the CPU"
    assert asked_text(cluster, plan.spec) == text
    # What it asked for is known to a resubmission elsewhere.
    assert (plan.spec.gpus, plan.spec.gpus_per_node) == (0, 4)
    record = JobRecord(plan.spec, JobRef("a", "a", "/a"), "local", RunInfo("a", State.RUNNING), 0.0)
    assert job_data(record)["gpus"] == 0 and "4 CPU" in "\n".join(job_table([record]))


def test_a_gres_of_the_submission_counts_before_that_of_the_file(tmp_path: Path) -> None:
    cluster = Cluster("eu", "eu.yaml", tmp_path, platform="slurm", values={"slurm": {"gres": "gpu:2"}})
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE)
    spec = replace(spec, options={**spec.options, "gres": "gpu:a100:1"})
    assert asked_text(cluster, spec).endswith("but those of gres gpu:a100:1")


def test_it_is_reported_before_the_job_is_handed_over_and_by_a_dry_run(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path)
    store = MemoryStore()
    store.add("me/data/a.txt", b"x")
    said, handed = list[str](), list[str]()
    backend = FakeBackend()

    def note(text: str) -> None:
        assert handed or not backend.jobs
        said.append(text)

    context = JobContext(tmp_path, os.environ, cluster, backends={"eu": backend}, stores={CONTAINER: store}, note=note)
    handed.append(submit(context, cluster, SubmitRequest(("true",)), lambda _: CodeChoice(None)).record.run_id)
    assert said[0] == "eu (local): 1 node, 1 process, 1 GPU" and said[1].startswith("data_folder is linked to")
    project = SimpleNamespace(cluster=cluster, close=lambda: None)
    planned = Jobs(context, lambda _: cast("CodeProject", project)).plan("true")
    assert planned.asked == said[0] and planned.warnings == (said[1],)
