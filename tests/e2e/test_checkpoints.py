"""Jobs that train are killed and started elsewhere: no half set comes back, and no step below the last mark."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import FolderLink
from blobsync.keep.checkpoint_sets import FileSet
from blobsync.keep.set_files import files_of
from blobsync.local.mark_complete import mark_complete
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.job_stores import JobStores
from blobsync.node.transfers import NodeTransfers
from blobsync.plan.blocks import block_size
from tests.e2e.kills import TRAINERS, Training
from tests.e2e.web_server import web_server
from tests.e2e.world import Container, Project
from tests.fakes.jobs import make_spec
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

RIGHTS = "rcwdl"
LAYOUTS = {
    "huggingface": CheckpointRule("checkpoint-*", settle_seconds=0, keep_last=2),
    "dcp": CheckpointRule("step-*", settle_seconds=0, keep_last=2),
    "lightning": CheckpointRule("epoch=*.ckpt", settle_seconds=1),
    "last": CheckpointRule("last.ckpt", settle_seconds=0, keep_last=2),
    "deepspeed": CheckpointRule("global_step*", settle_seconds=0),
    "megatron": CheckpointRule("iter_*", settle_seconds=0),
}


REAL = {
    "hf_trainer": ("transformers", CheckpointRule("checkpoint-*", settle_seconds=0, keep_last=2)),
    "lightning_trainer": ("lightning", CheckpointRule("*.ckpt", settle_seconds=1, keep_last=3)),
    "dcp_trainer": ("torch", CheckpointRule("step-*", settle_seconds=0)),
}


def training(tmp_path: Path, container: Container, layout: str, *, steps: int, seed: int = 0) -> Training:
    # One file that is written again and again has to be whole for longer than an upload takes.
    every = "200" if layout == "last" else "5"
    argv = (sys.executable, str(TRAINERS / "played.py"), layout, "output", str(steps), every)
    return Training(tmp_path, container, container.sas(RIGHTS), argv, LAYOUTS[layout], seed=seed)


@pytest.mark.kill
def test_a_killed_job_goes_on_from_its_last_whole_checkpoint(tmp_path: Path, container: Container) -> None:
    job = training(tmp_path, container, "huggingface", steps=100_000)
    for how in ("program", "runner", "both"):
        job.round(how, (0.0, 1.5), after_mark=True)
    print(job.tally)
    assert job.tally.rounds == 3 and job.tally.restores == 2


TRAIN = """\
import json, os, pathlib, sys
start = int(os.environ.get("BLOBSYNC_RESTORED_STEP", 0))
print("started at", start, os.environ.get("BLOBSYNC_RESTORED"))
for step in range(start + 10, start + 30, 10):
    folder = pathlib.Path("output", f"checkpoint-{step}")
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(1000))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
"""


def with_checkpoints(project: Project, container: Container, url: str | None = None, /, **keys: object) -> None:
    project.configure(container, url=url)
    file = project.root / "aux_data/aml/aml.yaml"
    cluster = yaml.safe_load(file.read_text())
    account = cluster["config_param"]["data_folder"]["azure_blob_config_file"]
    here = {"azure_blob_config_file": account}
    entry = {**here, "path": "mine/output", "mode": "upload", "checkpoints": "checkpoint-*", "settle_seconds": 0}
    cluster["config_param"] = {"code_path": {**here, "path": "mine/c.zip"}, "output_folder": {**entry, **keys}}
    cluster["platform"] = "local"
    file.write_text(yaml.safe_dump(cluster))
    (project.root / "train.py").write_text(TRAIN)


def test_checkpoints_from_the_command_line(project: Project, container: Container) -> None:
    with_checkpoints(project, container)
    first = project.run("--json", "submit", "--init", "--wait", "python", "train.py")
    assert first.code == 0, first
    run_id = first.data["job_id"]
    container.put("mine/output/checkpoint-30/model.bin", b"half")

    listed = project.run("--json", "checkpoints").data["checkpoints"]
    assert [(each["path"], each["there"], each["is_next"]) for each in listed] == [
        ("output/checkpoint-30", "half", False),
        ("output/checkpoint-20", "complete", True),
        ("output/checkpoint-10", "complete", False),
    ]
    lacks = "it has no trainer_state.json yet; if the program writes none, complete: NAME in the cluster file or"
    assert listed[0]["missing"] == f"{lacks} blobsync checkpoint done says it"
    assert {each["lineage"] for each in listed[1:]} == {run_id}
    text = project.run("checkpoints", "output/checkpoint-20").out
    assert "a restart takes it" in text and "checkpoint-10" not in text

    refused = project.run("--json", "d", "output/checkpoint-30")
    assert refused.code == 2 and "it has no trainer_state.json yet" in refused.errors[0]["message"]
    assert "blobsync d output/checkpoint-30 --incomplete" in refused.errors[0]["hint"]
    assert not (project.root / "output/checkpoint-30").exists()
    assert project.run("d", "output/checkpoint-30", "--incomplete").code == 0
    assert project.run("d", "output/checkpoint-20").code == 0
    here = {each["path"]: each["here"] for each in project.run("--json", "checkpoints", "output").data["checkpoints"]}
    assert here["output/checkpoint-20"] == "complete" and here["output/checkpoint-30"] == "half"

    # A half one of the next run does not come back; the last complete one does.
    again = project.run("--json", "resubmit", run_id)
    assert again.code == 0, again
    second = again.data["job_id"]
    assert project.run("logs", second, "-F").code == 0
    log = project.run("logs", second).out
    assert "started at 20" in log and "/output/checkpoint-20" in log
    of_job = project.run("--json", "checkpoints", "--job", second).data["checkpoints"]
    assert {each["lineage"] for each in of_job if each["lineage"]} == {run_id}
    assert [each["path"] for each in of_job if each["is_next"]] == ["output/checkpoint-40"]
    # What lay half at its name is nobody's to replace.
    whole = {each["path"].partition("@")[0] for each in of_job if each["there"] == "complete"}
    assert whole == {f"output/checkpoint-{step}" for step in (10, 20, 30, 40)}
    assert container.get("mine/output/checkpoint-30/model.bin") == b"half"
    assert project.run("checkpoints", "output/nothing").code == 4
    with web_server(project) as page:
        page.log_in()
        assert 'id="checkpoints"' in page.ask(f"/jobs/{second}").body
        told = page.ask(f"/jobs/{second}/checkpoints").body
        assert re.search(r"output/checkpoint-40 <span[^>]*>a restart takes it", told), told


LOSSES = {10: 0.5, 20: 0.1, 30: 0.4, 40: 0.3}
# Each one is uploaded before the next, so that jobs let some go while they run.
TRAIN_WITH_LOSS = f"""\
import json, os, pathlib, sys, time
start, losses = int(os.environ.get("BLOBSYNC_RESTORED_STEP", 0)), {LOSSES}
print("started at", start, os.environ.get("BLOBSYNC_RESTORED"))
for step in losses if sys.argv[1:] == ["all"] and not start else [start + 1]:
    folder = pathlib.Path("output", f"checkpoint-{{step}}")
    folder.mkdir()
    (folder / "model.bin").write_bytes(os.urandom(1000))
    state = {{"global_step": step, "log_history": [{{"eval_loss": losses.get(step, 0.9)}}, {{"loss": 7}}]}}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    time.sleep(2.5)
"""


@pytest.mark.soak
def test_jobs_start_from_the_best_one_a_step_and_another_jobs_and_keep_what_the_keys_say(
    project: Project, container: Container
) -> None:
    keys = {"keep_last": 1, "keep_every": 30, "keep_best": "trainer_state.json:log_history.eval_loss"}
    with_checkpoints(project, container, **keys)
    file = project.root / "aux_data/aml/aml.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "runtime": {"sync_seconds": 1}}))
    (project.root / "train.py").write_text(TRAIN_WITH_LOSS)

    def there() -> set[str]:
        return {name.split("/")[2] for name in container.names("mine/output/checkpoint-")}

    def began(*words: str) -> tuple[str, str]:
        """The id of a job that has ended, and what it was started with."""
        done = project.run("--json", *words)
        assert done.code == 0, done
        job_id = done.data["job_id"]
        assert project.run("logs", job_id, "-F").code == 0
        found = re.search(r"started at (\d+) (?:\S*/)?(\S+)", project.run("logs", job_id).out)
        assert found, job_id
        return job_id, f"{found[1]} {found[2]}"

    def submitted(line: str, **more: object) -> tuple[str, str]:
        parameters = json.dumps({"config_param": {"output_folder": more}})
        return began("-p", parameters, "submit", "--init", "python", *line.split())

    first, said = submitted("train.py all", restore="best")
    assert said == "0 None"
    # The best one, the multiple of 30, and the last; the first one had been there, and went.
    assert there() == {"checkpoint-20", "checkpoint-30", "checkpoint-40"}
    logs = "".join(path.read_text() for path in (project.state / "jobs" / first).rglob("*.txt"))
    assert "checkpoint checkpoint-10 is removed from the container" in logs, logs

    # In its place: the best one of the lineage, then, again in its place, still the best.
    second, said = began("resubmit", first)
    assert said == "20 checkpoint-20"
    listed = project.run("--json", "checkpoints", "--job", second).data["checkpoints"]
    assert [each["path"] for each in listed if each["is_next"]] == ["output/checkpoint-21"], "its own last one"
    assert began("resubmit", first)[1] == "20 checkpoint-20"

    # A new lineage: a step of another job, and its last one.
    third, said = submitted("train.py", restore=30, restore_from=first)
    assert said == "30 checkpoint-30"
    assert submitted("train.py", restore_from=third)[1] == "31 checkpoint-31"
    assert submitted("train.py", restore=77, restore_from=first)[1] == "0 None"
    assert {"checkpoint-20", "checkpoint-30"} <= there(), "no other lineage lets them go"


@pytest.mark.slow
def test_while_a_checkpoint_goes_up_q_and_the_page_say_how_far_behind_the_container_is(
    project: Project, container: Container, service: str
) -> None:
    # Neither the upload nor the program ends before that was seen.
    with fault_proxy(
        service, Fault("hold", rate=1, operations=("put blob", "put block"), pattern="checkpoint-")
    ) as line:
        with_checkpoints(project, container, line.url)
        file, seen = project.root / "aux_data/aml/aml.yaml", project.root.parent / "seen"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "runtime": {"sync_seconds": 1}}))
        wait = f"import time\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.1)\n"
        (project.root / "train.py").write_text(TRAIN + wait)
        job_id = project.run("--json", "submit", "--init", "python", "train.py").data["job_id"]

        def behind() -> int | None:
            found: int | None = project.run("--json", "q", job_id).data["jobs"][0]["checkpoint_seconds_behind"]
            return found

        assert wait_until(lambda: behind() is not None, seconds=60, pause=0.1)
        with web_server(project) as page:
            page.log_in()
            assert wait_until(lambda: "s behind in the container" in page.ask(f"/jobs/{job_id}").body)
        line.inject()
        line.release()
        seen.touch()
        assert project.run("logs", job_id, "-F").code == 0
        assert behind() is None, "it has ended"


def test_keep_uploads_files_of_checkpoints_one_by_one_and_says_so(project: Project, container: Container) -> None:
    with_checkpoints(project, container, keep_last=1)
    for step in (10, 20):
        folder = project.root / f"output/checkpoint-{step}"
        folder.mkdir(parents=True)
        for name in ("model.bin", "trainer_state.json"):
            (folder / name).write_text("{}")
    done = project.run("keep", "output", "--settle", "0.3s", "--until-idle")
    assert done.code == 0, done
    assert "output: files go up one by one; only jobs upload checkpoints as one, and mark them" in done.err
    assert len(container.names()) == 4 and container.names(".blobsync/") == []
    listed = project.run("--json", "checkpoints").data["checkpoints"]
    assert [(each["there"], each["missing"], each["is_next"]) for each in listed] == [
        ("half", "it has no mark that says that it is complete", False)
    ] * 2


def test_a_project_without_checkpoints_is_told_how_to_have_some(project: Project, container: Container) -> None:
    project.configure(container)
    done = project.run("--json", "checkpoints")
    assert done.code == 2 and "checkpoints: PATTERN" in done.errors[0]["hint"]
    (project.root / "data/run").mkdir(parents=True)
    refused = project.run("checkpoint", "done", "data/run")
    assert refused.code == 2 and "data/run is no checkpoint" in refused.err, str(refused)
    assert [path.name for path in project.data.iterdir()] == ["run"], "nothing was written"
    mark_complete(project.data / "run")
    assert project.run("checkpoint", "done", "data/nothing").code == 2
    assert project.run("u", "data").code == 0
    assert container.names() == [], "what was said of a set is no data"


def test_marks_are_no_data_of_an_entry_at_the_containers_root(project: Project, container: Container) -> None:
    project.configure(container, path="")
    mark = ".blobsync/checkpoints/out/me_1_0badcafe/checkpoint-1.json"
    for name in (mark, "a.txt", "b.txt"):
        container.put(name, b"x")
    assert project.run("d", "data").code == 0
    assert sorted(path.name for path in (project.root / "data").iterdir()) == ["a.txt", "b.txt"]
    (project.root / "data/a.txt").unlink()
    assert project.run("u", "data", "--mirror", "--max-delete", "9", "-y").code == 0
    assert container.names() == [mark, "b.txt"]
    assert project.run("rm", "-y", "data/").code == 0
    assert container.names() == [mark]


def test_a_set_that_goes_again_sends_only_the_blocks_that_changed(
    tmp_path: Path, container: Container, service: str
) -> None:
    rule, body = CheckpointRule("*", settle_seconds=0), random.Random(5).randbytes(18 << 20)
    changed = body[: 9 << 20] + b"changed" + body[(9 << 20) + 7 :]
    local = tmp_path / "root/output/checkpoint-1"
    local.mkdir(parents=True)
    with fault_proxy(service) as counting:
        url = f"{counting.url}/{container.account}/{container.name}"
        entry = FolderLink("output", url, "mine/output", "upload", checkpoints=rule)
        words = (
            "node",
            "--job",
            str(tmp_path / "job.json"),
            "--run-dir",
            str(tmp_path),
            "--root",
            str(tmp_path / "root"),
        )
        job = NodeJob(make_spec("true", folders=(entry,)), {}, parse_arguments(words), os.environ, 0)
        destination = JobStores({url: container.sas(RIGHTS)}, os.environ).blobs(url, "mine/output/checkpoint-1")
        sent = []
        for content in (body, changed):
            (local / "model.bin").write_bytes(content)
            # A file that is read within a tick of the clock after its last change is not marked, but read again.
            time.sleep(0.1)
            # As after a start on the same node.
            transfers = NodeTransfers(job)
            one = FileSet("checkpoint-1", dict(files_of(local)))
            counting.reset()
            uploaded = transfers.upload_set(entry, one, local, destination, cap_mbps=None)
            sent.append(counting.stats().uploaded)
            transfers.close()
            assert uploaded.failures == () and list(uploaded.etags) == ["model.bin"]
    assert sent == [len(body), block_size(len(body))]
    assert container.get("mine/output/checkpoint-1/model.bin") == changed


@pytest.mark.kill
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_the_layout_of_a_framework_through_kills(tmp_path: Path, container: Container, layout: str) -> None:
    job = training(tmp_path, container, layout, steps=100_000, seed=7)
    for number in range(6):
        job.round(("program", "runner", "both")[number % 3], (0.2, 6.0), after_mark=number == 0)
    print(layout, job.tally)
    # What has to hold is checked in each round.
    assert job.marks() and job.tally.restores


@pytest.mark.kill
@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(REAL))
def test_a_framework_through_kills(tmp_path: Path, container: Container, name: str) -> None:
    needed, rule = REAL[name]
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    argv = (sys.executable, str(TRAINERS / f"{name}.py"), "output", "100000", "20")
    job = Training(tmp_path, container, container.sas(RIGHTS), argv, rule, seed=8)
    for number in range(10):
        # On a busy machine none of the kills might come after a mark.
        job.round(("program", "runner", "both")[number % 3], (0.2, 10.0), after_mark=number == 0)
    print(name, job.tally)
    assert job.marks() and job.tally.restores
