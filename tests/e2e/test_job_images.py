"""Jobs in the image of ``docker``: a real docker daemon under jobs on this machine and under a real Slurm cluster."""

from __future__ import annotations

import pytest

from tests.e2e.test_jobs import Lab, lab
from tests.servers.docker_daemon import IMAGE, DockerDaemon
from tests.servers.docker_fixture import docker
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["docker", "lab", "slurm_cluster"]

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def boxed(lab: Lab, docker: DockerDaemon, cluster: str, name: str = IMAGE, **more: object) -> None:
    """The cluster's file names the image that the daemon has, or another one."""
    lab.project.environ.update(docker.environ)
    image = {"image": name, "runtime": "docker"}
    slurm = {"export": list(docker.environ)} if cluster == "uni" else None
    sized = {"gpu_per_node": 0, "slurm": slurm} if slurm else {"local": {"slots": 4, "gpus": 0}}
    lab.configure(cluster, "slurm" if slurm else "local", docker=image, **sized, **more)


def nothing_is_left(docker: DockerDaemon) -> bool:
    images = docker.client("images", "-q", "blobsync-job").stdout
    return docker.client("ps", "-aq").stdout == b"" and images == b""


@pytest.mark.parametrize("cluster", ["here", pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak])])
def test_a_job_runs_in_the_image_and_writes_as_its_user(lab: Lab, docker: DockerDaemon, cluster: str) -> None:
    boxed(
        lab, docker, cluster, setup="mkdir -p /opt/made; echo $MY_TOKEN > /opt/made/a; exit 0", use_custom_docker=True
    )
    # It has its data, its variables, and the changes of setup, but no program of this machine.
    line = (
        'cat data/voc/a.txt > output/$RANK; echo "$WORLD_SIZE $LIST $MY_TOKEN"; cat /opt/made/a; [ ! -e /usr/bin/perl ]'
    )
    job_id = lab.submit(cluster, line, gpus=2)
    assert lab.until(job_id)["status"] == "Completed", lab.run("q", job_id)
    for rank in (0, 1):
        assert lab.run("logs", job_id, "--rank", str(rank)).out == "2 a,b; c hush-hush\nhush-hush\n"
        assert lab.container.get(f"mine/output/{rank}") == b"a picture"
    told = (lab.project.root / "assets" / job_id / "system_logs" / "node_0.txt").read_text()
    assert f"the command runs in {IMAGE}, with docker" in told
    assert wait_until(lambda: nothing_is_left(docker) and lab.scratch_is_empty)
    kept = [path for path in lab.project.state.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert [path for path in kept if "user_logs" not in path.parts] == []


def test_neither_a_container_nor_a_layer_shows_a_secret(lab: Lab, docker: DockerDaemon) -> None:
    boxed(lab, docker, "here", setup="true")
    job_id = lab.submit("here", "echo up; while :; do read -t 0.2 x < /dev/zero || :; done")
    lab.until_up(job_id)
    images = docker.client("images", "-q", "blobsync-job").stdout.decode().split()
    assert images and wait_until(lambda: docker.client("ps", "-q").stdout)
    containers = docker.client("ps", "-q").stdout.decode().split()
    shown = docker.client("inspect", *images, *containers).stdout + docker.client("history", images[0]).stdout
    assert job_id.encode() in shown and b"hush" not in shown
    lab.run("abort", job_id)
    lab.until(job_id)
    assert wait_until(lambda: nothing_is_left(docker))


@pytest.mark.parametrize("cluster", ["here", pytest.param("uni", marks=[pytest.mark.slurm, pytest.mark.soak])])
def test_abort_ends_what_runs_in_the_image(lab: Lab, docker: DockerDaemon, cluster: str) -> None:
    boxed(lab, docker, cluster)
    # It saves its state when it is asked to stop.
    line = "trap 'echo saved > output/saved; exit 0' TERM; echo up; while :; do read -t 0.2 x < /dev/zero || :; done"
    job_id = lab.submit(cluster, line)
    lab.until_up(job_id)
    # The program may be heard before docker says that its container runs.
    assert wait_until(lambda: b"blobsync-" in docker.client("ps", "--format", "{{.Names}}").stdout)
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled"
    assert lab.container.get("mine/output/saved") == b"saved\n"
    assert wait_until(lambda: nothing_is_left(docker))


@pytest.mark.soak
def test_a_program_that_does_not_stop_is_killed_in_its_container(lab: Lab, docker: DockerDaemon) -> None:
    boxed(lab, docker, "here")
    job_id = lab.submit("here", "trap '' TERM; echo up; while :; do read -t 0.2 x < /dev/zero || :; done")
    lab.until_up(job_id)
    lab.run("abort", job_id)
    assert lab.until(job_id)["status"] == "Canceled"
    assert wait_until(lambda: nothing_is_left(docker))


@pytest.mark.soak
def test_exit_codes_and_signals_are_the_programs_own(lab: Lab, docker: DockerDaemon) -> None:
    boxed(lab, docker, "here")
    for words, code in ((["exit 7; true"], 7), (["nosuchprogram"], 127), (["kill -9 $$; true"], 137)):
        job_id = lab.submit("here", *words)
        assert lab.until(job_id)["exit_code"] == code, lab.run("q", job_id)


def test_an_image_that_nothing_can_run_is_refused_with_its_key(lab: Lab, docker: DockerDaemon) -> None:
    lab.configure("here", "local", docker={"image": IMAGE, "runtime": "apptainer"})
    refused = lab.run("--json", "-c", "here", "submit", "true", code=2).errors[0]
    lines = (lab.project.root / "aux_data/aml/here.yaml").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.startswith("  image:"))
    assert f"aux_data/aml/here.yaml:{line}: docker.image: is {IMAGE}" in refused["message"]
    assert f"{IMAGE}, and nothing here can run it (apptainer: cannot start" in refused["message"]
    assert "use_custom_docker: false" in refused["hint"]
    lab.configure("here", "local", docker={"image": IMAGE, "runtime": "apptainer"}, use_custom_docker=False)
    job_id = lab.submit("here", "echo outside; true")
    assert lab.until(job_id)["status"] == "Completed"
    boxed(lab, docker, "here", "no-such-image:1")
    job_id = lab.submit("here", "true")
    assert lab.until(job_id)["exit_code"] == 72
    assert "docker cannot fetch no-such-image:1, docker.image of aux_data/aml/here.yaml" in lab.run("q", job_id).out
