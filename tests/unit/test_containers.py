"""Images on this machine and on Slurm: the runtime, its command line, and the clean-up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ConfigError, JobError, ProcessError
from blobsync.base.process import Completed
from blobsync.config.model import Cluster, Docker
from blobsync.jobspec.containers import (
    Inside,
    Runtime,
    WantedImage,
    candidates,
    find_runtime,
    given_names,
    image_text,
    pull_words,
    run_words,
    script_text,
    source_of,
    wanted_image,
)
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import JobSpec, is_variable_name
from tests.fakes.blob_service import serve
from tests.fakes.jobs import Node, make_spec
from tests.unit.test_slurm import ScriptedProcess

WANTED = WantedImage("team/image:7", file="aux_data/aml/uni.yaml")
INSIDE = Inside("blobsync-x", ("/scratch/root", "/shared/data"), "1000:100", ("100", "200"))
DOCKER, PODMAN, APPTAINER = Runtime("docker"), Runtime("podman"), Runtime("apptainer")


def described(platform: str, request: SubmitRequest | None = None, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {"docker": Docker("team/image", "7"), **changes}
    cluster = Cluster("uni", "aux_data/aml/uni.yaml", Path("/p"), platform=platform, **values)
    return describe(cluster, request or SubmitRequest(("true",)), "me_1_0badcafe", None)


@pytest.mark.parametrize("platform", ["local", "slurm"])
def test_the_cluster_files_image_is_what_its_jobs_run_in(platform: str) -> None:
    docker = Docker("team/image", "7", address="reg.io", args=("--cap-add=X",), shm_size="8g", runtime="podman")
    found = wanted_image(described(platform, docker=docker))
    assert found == WantedImage("reg.io/team/image:7", "podman", ("--cap-add=X",), "8g", "aux_data/aml/uni.yaml")
    assert wanted_image(described(platform, docker=Docker())) is None
    # ACT's key for jobs without the image.
    assert wanted_image(described(platform, values={"use_custom_docker": False})) is None
    # Not in the foreground, nor for interactive jobs, whose program is ours.
    assert wanted_image(described(platform, SubmitRequest(("true",), here=True))) is None
    assert wanted_image(described(platform, SubmitRequest((), hold="1h"))) is None
    with pytest.raises(ConfigError, match="'--privileged' is not an image name"):
        described(platform, docker=Docker("--privileged"))


@pytest.mark.parametrize("platform", ["kubernetes", "aml"])
def test_platforms_that_run_images_themselves_have_nothing_to_do_with_it(platform: str) -> None:
    assert wanted_image(described(platform)) is None


def test_who_is_asked_and_in_which_order() -> None:
    assert candidates(WANTED, "local")[0] == "docker" and candidates(WANTED, "slurm")[0] == "apptainer"
    assert candidates(WantedImage("i", "podman"), "slurm") == ("podman",)
    # Options for docker need docker or podman; an image file needs Apptainer or Singularity.
    assert candidates(WantedImage("i", args=("--cap-add=X",)), "slurm") == ("podman", "docker")
    for image in ("/images/train.sif", "oras://reg.io/i:1"):
        assert candidates(WantedImage(image), "local") == ("apptainer", "singularity")
    assert "in team/image:7 by apptainer or singularity or podman or docker" in image_text(described("slurm"))
    assert image_text(described("slurm", docker=Docker())) == ""


def test_the_first_that_works_runs_it_and_where_none_does_each_says_why() -> None:
    absent = ProcessError("it is not installed")
    docker = Completed(1, "", "warning\npermission denied: docker.sock")
    process = ScriptedProcess(
        {"docker": docker, "podman": Completed(0, "4.3", ""), "apptainer": absent, "singularity": absent}
    )
    assert find_runtime(WANTED, "local", process) == PODMAN
    assert find_runtime(WANTED, "slurm", process) == PODMAN
    with pytest.raises(JobError) as caught:
        find_runtime(WantedImage("i", "docker"), "local", process)
    assert caught.value.message == "is i, and nothing here can run it (docker: permission denied: docker.sock)"
    assert caught.value.hint and "use_custom_docker: false" in caught.value.hint


def test_the_words_of_docker_and_podman() -> None:
    words = run_words(DOCKER, "team/image:7", WANTED, INSIDE, "/scratch/s.sh")
    assert words == (
        *("docker", "run", "--name=blobsync-x", "--rm", "--network=host", "--pid=host", "--ipc=host"),
        *("--security-opt", "label=disable", "--entrypoint", "", "--user=1000:100", "--group-add=100"),
        *("--group-add=200", "-v", "/scratch/root:/scratch/root", "-v", "/shared/data:/shared/data"),
        *("team/image:7", "sh", "/scratch/s.sh"),
    )
    podman = run_words(PODMAN, "i", WANTED, INSIDE, "s")
    assert "--userns=keep-id" in podman and not any(word.startswith("--group-add") for word in podman)
    own = WantedImage("i", args=("--cap-add=X",), shm_size="8g")
    words = run_words(DOCKER, "i", own, Inside("x", (), gpus="2,3", keeps=True), "s")
    assert words[-4:] == ("--cap-add=X", "i", "sh", "s") and "--shm-size=8g" in words and "--rm" not in words
    assert words[words.index("--gpus") + 1] == '"device=2,3"' and not any("--user" in word for word in words)
    # Several processes of a node share the node's /dev/shm.
    assert "--ipc=host" in run_words(DOCKER, "i", own, Inside("x", (), shares_memory=True), "s")
    assert "nvidia.com/gpu=all" in run_words(PODMAN, "i", WANTED, Inside("x", (), gpus="all"), "s")
    assert source_of("docker://i:1", DOCKER) == "i:1" and pull_words(DOCKER, "i:1", "t") == ("docker", "pull", "i:1")


def test_the_words_of_apptainer() -> None:
    words = run_words(APPTAINER, "/scratch/i.sif", WANTED, INSIDE, "/scratch/s.sh")
    assert words == (
        *("apptainer", "exec", "--cleanenv", "--bind", "/scratch/root", "--bind", "/shared/data"),
        *("/scratch/i.sif", "sh", "/scratch/s.sh"),
    )
    assert "--nv" in run_words(APPTAINER, "i", WANTED, Inside("x", (), gpus="all"), "s")
    assert pull_words(APPTAINER, source_of("i:1", APPTAINER), "t.sif") == (
        *("apptainer", "pull", "--force", "t.sif", "docker://i:1"),
    )
    assert source_of("/i.sif", APPTAINER) == "/i.sif" and source_of("oras://i", APPTAINER) == "oras://i"


def test_the_script_gives_exactly_the_jobs_variables_and_words(tmp_path: Path) -> None:
    env = {
        "LIST": "a, 'b'\n$HOME `id`",
        "PATH": "/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/mine",
        "bad-name": "x",
        "RANK": "1",
    }
    outside = {"PATH": "/bin:/usr/bin", "PYTHONPATH": "/node", "SLURM_JOB_ID": "7"}
    names = given_names({**outside, **env, "SLURM_JOB_ID": "7"}, outside, ["LIST"], is_variable_name)
    assert names == {"LIST", "LD_LIBRARY_PATH", "RANK", "SLURM_JOB_ID"}
    assert "PATH" in given_names(env, outside, ["PATH"], is_variable_name)
    script, words = tmp_path / "s.sh", ["printf", "%s|", "two words", "$HOME", "*", ""]
    script.write_text(script_text([*words], {**env, "SLURM_JOB_ID": "7"}, names, str(tmp_path)))
    assert subprocess.run(["sh", script], capture_output=True, text=True).stdout == "two words|$HOME|*||"
    assert not script.exists()
    show = ["sh", "-c", 'printf %s "$LIST"; printf "|%s|" "$LD_LIBRARY_PATH"; pwd']
    script.write_text(script_text(show, env, {"LIST", "LD_LIBRARY_PATH"}, str(tmp_path)))
    done = subprocess.run(["sh", script], env={"LD_LIBRARY_PATH": "/nv"}, capture_output=True, text=True)
    assert done.stdout == f"{env['LIST']}|/mine:/nv|{tmp_path}\n"


# It records its arguments, and runs the program without the node's variables, as with --cleanenv.
STAND_IN = """#!/bin/sh
echo "$@" >> "$0.log"
case $1 in
    --version) echo 'apptainer version 1.3.4' ;;
    pull) echo sif > "$3" ;;
    exec) while [ "$1" != sh ]; do shift; done; exec env -i PATH="$PATH" "$@" ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with serve() as service:
        yield Node(tmp_path, service)


@pytest.fixture
def apptainer(node: Node) -> Path:
    program = node.folder / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    node.env.update(PATH=f"{program.parent}:{os.environ['PATH']}", PYTHONPATH_OF_NODE="/node")
    return program


def test_a_node_runs_setup_and_each_process_in_the_image(node: Node, apptainer: Path) -> None:
    spec = make_spec(
        'echo "$RANK ${PYTHONPATH_OF_NODE-unset} $LIST $MY_TOKEN"; cat made; exit 5',
        code=node.code({"a": ""}), procs_per_node=2, env={"LIST": "a, b"}, setup=("echo set > made",),
        image="team/image:7", options={"container": {"runtime": "apptainer", "file": "uni.yaml"}},
        secret_env=("MY_TOKEN",),
    )  # fmt: skip
    assert node.do("node", spec, secret_env={"MY_TOKEN": "hush"}).returncode == 5, node.node_log
    assert [node.log(rank) for rank in (0, 1)] == [f"{rank} unset a, b hush\nset\n" for rank in (0, 1)]
    asked = Path(f"{apptainer}.log").read_text()
    assert asked.count("pull --force") == 1 and "docker://team/image:7" in asked and asked.count("exec ") == 3
    assert f"--bind {node.root}" in asked and "hush" not in asked
    assert "the command runs in team/image:7, with apptainer" in node.node_log
    assert not list(node.folder.glob("root.image*"))


def test_a_node_without_anything_that_runs_images_names_the_key(node: Node) -> None:
    option = {"container": {"runtime": "singularity", "file": "aux_data/aml/uni.yaml"}}
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), image="i:1", options=option))
    assert done.returncode == 72
    assert "docker.image of aux_data/aml/uni.yaml is i:1, and nothing here can run it (singularity: " in done.stderr


def test_an_image_that_cannot_be_fetched_ends_the_job_before_its_program(node: Node, apptainer: Path) -> None:
    apptainer.write_text(STAND_IN.replace('echo sif > "$3"', "echo manifest unknown >&2; exit 1"))
    spec = make_spec("true", code=node.code({"a": ""}), image="i:1", options={"container": {"runtime": "apptainer"}})
    done = node.do("node", spec)
    assert done.returncode == 72 and "apptainer cannot fetch docker://i:1" in done.stderr
    assert "manifest unknown" in node.node_log
