"""``--nodes``: one transfer over several nodes, killed in every place, exact by SHA-256."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import (
    Container,
    Project,
    every_text_below,
    hashes,
    kill_tree,
    random_files,
    read_tree,
    sha256,
    write_tree,
)
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.slurm_cluster import SlurmCluster
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_FILES = random_files(20261217, 160, [9 << 20] * 2)
_TWO = ("--nodes", "2")
_SLOWLY = ("--cap-mbps", "100")
# No transfer ends before its large files may go on, however long other commands take meanwhile.
HELD = Fault(
    "hold",
    rate=1,
    operations=("put blob", "put block", "get blob", "put blob from url", "put block from url"),
    pattern="/data/large",
)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """End the jobs of failed tests, which outlive their commands."""
    yield
    for pid, _ in processes_of(tmp_path):
        kill_tree(pid)


def processes_of(folder: Path) -> list[tuple[int, str]]:
    """The processes of jobs of projects below a folder, with their command lines."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if f"{folder}/" in words and ("blobsync.backends.local.supervisor" in words or " spread --" in words):
                found.append((int(entry), words))
    return found


def tasks_of(folder: Path) -> list[int]:
    """The processes of tasks, those that they have forked last."""
    return sorted(pid for pid, words in processes_of(folder) if " spread --" in words)


def _moves(counting: FaultHandle) -> int:
    done = counting.stats().operations
    return sum(done.get(each, 0) for each in ("put blob", "put block", "get blob"))


def fill(container: Container, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        container.put(f"data/{name}", data)


def jobs_of(err: str) -> list[str]:
    """The jobs of a command, in their order."""
    return list(dict.fromkeys(re.findall(r"job (\S+) on ", err)))


@pytest.mark.soak
def test_an_upload_survives_a_task_that_is_killed_and_is_a_job_like_any_other(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    plan = project.json("plan", "u", "data", *_TWO)
    assert plan.data["spread"]["nodes"] == 2 and plan.data["spread"]["backend"] == "local", str(plan)
    assert "Nodes: 2; 2 tasks, 2 at a time with 1 process each" in project.run("plan", "u", "data", *_TWO).out
    process = project.start("u", "data", *_TWO, *_SLOWLY, "--json")
    assert wait_until(lambda: _moves(counting) > 40 or process.poll() is not None, seconds=60)
    tasks = tasks_of(project.root)
    assert len(tasks) == 2
    os.kill(tasks[0], signal.SIGKILL)
    done = project.finish(process)
    assert (done.code, done.data["transferred"], done.data["verified"]) == (0, len(_FILES), len(_FILES)), str(done)
    assert container.contents("data/") == _FILES.hashes
    # Shards, records, the claim and uncommitted blocks are removed.
    assert set(container.names(uncommitted=True)) == {f"data/{name}" for name in _FILES}
    # What the killed task had not recorded is another job's.
    first, second = jobs_of(done.err)
    assert "of the job are left: it ended early, Failed" in done.err and "another job takes them" in done.err
    shown = {each["job_id"]: each["status"] for each in project.json("q", first, second).data["jobs"]}
    assert shown == {first: "Failed", second: "Completed"}
    assert re.search(r"task \d of data: \d+ files, \S+ \S+, 0 failed", project.run("logs", second).out)
    secret = container.key.encode()
    assert not [
        file for file, text in every_text_below(project.root / ".blobsync") if secret in text or b"sig=" in text
    ]
    again = project.json("u", "data", *_TWO)
    assert (again.code, again.data["unchanged"], again.data["transferred"]) == (0, len(_FILES), 0), str(again)


def test_a_copy_goes_from_server_to_server_and_a_second_person_is_told(
    project: Project, new_container: Callable[[str], Container], service: str
) -> None:
    source, destination = new_container("one"), new_container("two")
    fill(source, _FILES)
    other = Project(project.root.parent / "other", project.environ, project.before)
    with copy_source_proxy(service) as copying, fault_proxy(copying.url, HELD) as proxy:
        for each in (project, other):
            each.configure(source, cluster="from", url=proxy.url)
            each.configure(destination, url=proxy.url)
        words = ("u", "data", "-f", "from", *_TWO)
        process = project.start(*words, "--json")
        assert wait_until(lambda: destination.names(".blobsync/spread/") or process.poll() is not None, seconds=60)
        second = other.json(*words)
        assert (second.code, second.codes) == (3, {"spread_busy"}), str(second)
        mine = project.json(*words)
        assert (mine.code, mine.codes) == (3, {"spread_busy"}), str(mine)
        proxy.inject()
        proxy.release()
        done = project.finish(process)
        assert (done.code, done.data["transferred"]) == (0, len(_FILES)), str(done)
        # Only shards and records went through this machine.
        assert copying.stats().downloaded < 1 << 20 < copying.stats().fetched
    assert destination.contents() == {f"data/{name}": digest for name, digest in _FILES.hashes.items()}


@pytest.mark.soak
@pytest.mark.slurm
@pytest.mark.timeout(600)
def test_two_slurm_nodes_upload_lose_a_process_and_download(
    project: Project, container: Container, counting: FaultHandle, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    write_tree(project.data, _FILES)
    other = Project(tmp_path / "other", project.environ, project.before)
    runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
    project.environ.update(slurm_cluster.environ)
    for each in (project, other):
        each.configure(container, url=counting.url, extra={"platform": "slurm", "gpu_per_node": 0, "runtime": runtime})
    counting.inject(HELD)
    process = project.start("u", "data", *_TWO, "--json")
    assert wait_until(lambda: _moves(counting) > 60 or process.poll() is not None, seconds=120)
    # Two tasks; of the four processes of each, those with a large file are there in any case.
    tasks = tasks_of(tmp_path)
    assert 2 < len(tasks) <= 10, str(project.finish(process))
    os.kill(tasks[-1], signal.SIGKILL)
    counting.inject()
    counting.release()
    done = project.finish(process)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    assert container.contents() == {f"data/{name}": digest for name, digest in _FILES.hashes.items()}
    # The task itself moved what its process had not recorded.
    (job,) = jobs_of(done.err)
    shown = project.json("q", job).data["jobs"][0]
    assert (shown["backend"], shown["status"]) == ("slurm", "Completed"), str(shown)
    # Four tasks at a time, of which one has room: another job has all of the other node.
    slurm_cluster.client("sbatch", "--exclusive", "--nodelist=n2", f"--output={tmp_path}/other.txt", "--wrap=sleep 600")
    done = other.json("d", "data", "--nodes", "4")
    assert (done.code, done.data["verified"]) == (0, len(_FILES)), str(done)
    assert read_tree(other.data) == _FILES.hashes


@pytest.mark.soak
@pytest.mark.slurm
@pytest.mark.timeout(600)
def test_the_array_of_a_killed_command_is_cancelled_before_the_next_one_begins(
    project: Project, container: Container, counting: FaultHandle, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    write_tree(project.data, _FILES)
    runtime = {"python": sys.executable, "scratch": str(tmp_path / "scratch")}
    project.environ.update(slurm_cluster.environ)
    project.configure(container, url=counting.url, extra={"platform": "slurm", "gpu_per_node": 0, "runtime": runtime})
    counting.inject(HELD)
    process = project.start("u", "data", *_TWO)
    assert wait_until(lambda: _moves(counting) > 60 or process.poll() is not None, seconds=120)
    os.kill(process.pid, signal.SIGKILL)
    (first,) = jobs_of(project.finish(process).err)
    second = project.start("u", "data", *_TWO, "--json")

    def is_canceled() -> bool:
        return bool(project.json("q", first).data["jobs"][0]["status"] == "Canceled")

    assert wait_until(lambda: is_canceled() or second.poll() is not None, seconds=120, pause=0.5)
    counting.inject()
    counting.release()
    done = project.finish(second)
    # What its tasks had recorded or moved does not move again.
    assert f"an earlier command left the job {first}: stopping it" in done.err and is_canceled(), str(done)
    assert (done.code, done.data["verified"]) == (0, len(_FILES)) and done.data["unchanged"] > 60, str(done)
    assert container.contents() == {f"data/{name}": digest for name, digest in _FILES.hashes.items()}


def test_a_detached_transfer_goes_on_without_its_command_and_is_never_completed_unverified(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    counting.inject(HELD)
    done = project.json("u", "data", *_TWO, "--detach", *_SLOWLY)
    assert (done.code, done.data["planned"], done.data["nodes"]) == (0, len(_FILES), 2), str(done)
    job = done.data["job_id"]
    second = project.json("u", "data", *_TWO)
    assert (second.code, second.codes) == (3, {"spread_busy"}), str(second)

    def shown() -> Mapping[str, Any]:
        return dict(project.json("q", job).data["jobs"][0])

    assert wait_until(lambda: _moves(counting) > 60, seconds=60), project.run("logs", job).out
    counting.inject()
    counting.release()
    assert wait_until(lambda: shown()["status"] in ("Completed", "Failed"), seconds=120, pause=0.5)
    # One of the two tasks closes it.
    told = project.run("logs", job, "-F").out
    assert shown()["status"] == "Completed" and f"{len(_FILES):,} files verified, 0 failed" in told, told
    assert container.contents("data/") == _FILES.hashes
    again = project.json("u", "data", *_TWO)
    assert (again.code, again.data["unchanged"], again.data["transferred"]) == (0, len(_FILES), 0), str(again)
    assert set(container.names()) == {f"data/{name}" for name in _FILES}


def test_what_no_task_has_closed_the_next_command_closes(
    project: Project, container: Container, counting: FaultHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    counting.inject(HELD)
    job = project.json("u", "data", *_TWO, "--detach").data["job_id"]
    place = next(name.partition("shards/")[0] for name in container.names(".blobsync/") if "/shards/" in name)
    # Somebody else says that he closes it.
    container.put(f"{place}closing", b"9")
    counting.inject()
    counting.release()
    ended = ("Completed", "Failed")
    assert wait_until(lambda: project.json("q", job).data["jobs"][0]["status"] in ended, seconds=120, pause=0.5)
    left = project.json("q", job).data["jobs"][0]
    assert left["status"] == "Failed" and "moved, not verified" in left["reason"], left
    again = project.json("u", "data", *_TWO)
    assert (again.code, again.data["unchanged"], again.data["transferred"]) == (0, len(_FILES), 0), str(again)
    assert f"an earlier run moved {len(_FILES)} files" in again.err
    closed = project.json("q", job).data["jobs"][0]
    assert closed["status"] == "Completed" and "a later command verified it" in closed["reason"], closed


def test_a_saved_plan_that_leaves_its_transfer_to_nodes_does(project: Project, container: Container) -> None:
    write_tree(project.data, {"a.txt": b"a", "b.txt": b"b"})
    project.configure(container)
    assert project.json("plan", "u", "data", *_TWO, "--detach", "--save", "nodes.plan").code == 0
    done = project.json("apply", "nodes.plan")
    assert (done.code, done.data["planned"], done.data["nodes"]) == (0, 2, 2), str(done)
    job = done.data["job_id"]
    ended = ("Completed", "Failed")
    assert wait_until(lambda: project.json("q", job).data["jobs"][0]["status"] in ended, seconds=120, pause=0.5)
    assert container.contents("data/") == hashes({"a.txt": b"a", "b.txt": b"b"})


@pytest.mark.soak
def test_a_part_that_is_one_large_file_is_one_task_and_is_downloaded_by_the_command(
    project: Project, container: Container
) -> None:
    big, words = random_files(20261221, 0, [24 << 20])["large0.bin"], ("data/sets/big.bin", *_TWO)
    write_tree(project.root, {words[0]: big})
    project.configure(container)
    done = project.json("u", *words)
    assert (done.code, done.data["transferred"]) == (0, 1) and ": 1 task, 1 at a time" in done.err, str(done)
    assert container.contents() == {words[0]: sha256(big)}
    (project.root / words[0]).unlink()
    refused = project.json("d", *words, "--detach")
    assert refused.code == 2 and "is one file, and no node can show" in refused.errors[0]["message"], str(refused)
    back = project.json("d", *words)
    assert (back.code, back.data["transferred"], jobs_of(back.err)) == (0, 1, []), str(back)
    assert read_tree(project.data) == {"sets/big.bin": sha256(big)}
