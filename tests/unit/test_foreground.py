from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ConfigError, ProcessError
from blobsync.base.process import Completed
from blobsync.config.model import Cluster, Docker, FolderEntry, StorageAccount
from blobsync.jobs.foreground import arrange, docker_problem, run_argv, run_here
from blobsync.jobspec.make_spec import SubmitRequest, describe
from tests.fakes.runner import Call, ScriptedRunner
from tests.unit.test_slurm import ScriptedProcess

IMAGE = Docker("img", "7", address="registry", shm_size="64g", args=("--ipc=host",))


def make_cluster(root: Path, **changes: Any) -> Cluster:
    return Cluster("eu", "eu.yaml", root, use_custom_docker=True, docker=IMAGE, env={"MY_TOKEN": "hush"}, **changes)


def test_docker_gets_values_through_its_environment_only(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    spec = describe(cluster, SubmitRequest(("python", "a b")), "local", None)
    argv = run_argv(cluster, spec, spec.argv)
    assert argv[:4] == ("docker", "run", "--rm", "-i")
    assert argv[argv.index("-e") :] == ("-e", "MY_TOKEN", "--ipc=host", "registry/img:7", "python", "a b")
    assert "--shm-size=64g" in argv and f"{tmp_path}:{tmp_path}" in argv
    started = arrange(cluster, spec, tmp_path, {"PATH": "/bin"}, None)
    assert started.argv == argv and started.env == {"PATH": "/bin", "MY_TOKEN": "hush"}
    assert not any("hush" in word for word in started.argv)


def test_folders_behind_links_are_in_the_image_too(tmp_path: Path) -> None:
    root, disk = tmp_path / "project", tmp_path / "disk"
    for folder in (root / "inside", disk):
        folder.mkdir(parents=True)
    (root / "data").symlink_to(disk)
    (root / "output").symlink_to(root / "inside")
    box = StorageAccount("box.yaml", "acct", "box", "http://127.0.0.1:1/acct")
    folders = tuple(FolderEntry(name, box, name) for name in ("data", "output", "models"))
    cluster = make_cluster(root, folders=folders)
    argv = run_argv(cluster, describe(cluster, SubmitRequest(("true",)), "local", None), ("true",))
    mounted = [value for option, value in pairwise(argv) if option == "-v"]
    assert mounted == [f"{root}:{root}", f"{disk}:{disk}"]


def test_an_image_cannot_be_an_option_of_docker(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)._replace(docker=Docker(image="--privileged"))
    with pytest.raises(ConfigError, match="is not an image name"):
        run_argv(cluster, describe(cluster, SubmitRequest(("true",)), "local", None), ("true",))


def test_a_shell_line_is_one_in_the_image_too(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    spec = describe(cluster, SubmitRequest(("a | b",)), "local", None)
    assert arrange(cluster, spec, tmp_path, {}, None).argv[-3:] == ("sh", "-c", "a | b")


def test_several_processes_are_started_inside_the_image(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    spec = describe(cluster, SubmitRequest(("python", "a b"), 2, here=True), "local", None)
    argv = arrange(cluster, spec, tmp_path, {"PATH": "/bin", "HOME": str(tmp_path)}, None).argv
    inside = argv[argv.index("registry/img:7") + 1 :]
    assert inside[:4] == ("python", "-I", str(tmp_path / "node"), "here")
    assert (tmp_path / "node" / "blobsync" / "node" / "__main__.py").is_file()
    assert json.loads((tmp_path / "job.json").read_text())["procs_per_node"] == 2
    assert f"{tmp_path}:{tmp_path}" in argv


@pytest.mark.parametrize(("gpus", "visible"), [(0, ""), (1, "3"), (None, "3")])
@pytest.mark.parametrize("problem", [None, ""])
def test_a_command_that_asks_for_no_gpu_sees_none(
    tmp_path: Path, gpus: int | None, visible: str, problem: str | None
) -> None:
    cluster = make_cluster(tmp_path)
    spec = describe(cluster, SubmitRequest(("true",), gpus, here=True), "local", None)
    assert (
        arrange(cluster, spec, tmp_path, {"CUDA_VISIBLE_DEVICES": "3"}, problem).env["CUDA_VISIBLE_DEVICES"] == visible
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Completed(0, "28.2\n", ""), None),
        (Completed(1, "", "Cannot connect to the Docker daemon\n"), "Cannot connect to the Docker daemon"),
        (ProcessError("cannot start docker: No such file"), "cannot start docker: No such file"),
    ],
)
def test_whether_docker_can_be_used(tmp_path: Path, answer: Completed | ProcessError, problem: str | None) -> None:
    assert docker_problem(make_cluster(tmp_path), ScriptedProcess({"docker": answer})) == problem


def test_docker_is_not_asked_for_when_the_cluster_file_does_not_want_it(tmp_path: Path) -> None:
    process = ScriptedProcess()
    assert docker_problem(Cluster("eu", "eu.yaml", tmp_path), process) == ""
    assert process.calls == []


def test_without_docker_the_command_runs_here_and_the_user_is_told(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    spec = describe(cluster, SubmitRequest(("python", "a b")), "local", None)
    started = arrange(cluster, spec, tmp_path, {}, "there is none")
    assert started.note == "not in registry/img:7: there is none"
    assert started.argv[3:5] == ("blobsync.node", "here")
    written = json.loads((tmp_path / "job.json").read_text())
    assert written["argv"] == ["python", "a b"] and "hush" not in (tmp_path / "job.json").read_text()


@pytest.mark.parametrize(
    ("asked", "environ", "shown", "is_told"),
    [
        (4, {}, "", True),
        (4, {"CUDA_VISIBLE_DEVICES": ""}, "GPU 0: A100\n", True),
        (4, {}, "GPU 0: A100\n", False),
        (4, {"CUDA_VISIBLE_DEVICES": "3"}, "", False),
        # Nobody asked for one.
        (None, {}, "", False),
        (0, {}, "", False),
    ],
)
def test_a_command_for_gpus_says_before_it_runs_that_there_are_none(
    tmp_path: Path, asked: int | None, environ: dict[str, str], shown: str, is_told: bool
) -> None:
    said: list[str] = []

    def answer(call: Call) -> Completed:
        if call.argv[0] != "nvidia-smi":
            said.append("it runs")
        return Completed(0, shown, "")

    cluster = Cluster("eu", "eu.yaml", tmp_path, gpu_per_node=asked)
    request = SubmitRequest(("true",), here=True)
    assert run_here(cluster, request, ScriptedRunner(answer), environ, said.append) == 0
    assert said == [*(["this machine has no GPU: the command runs on the CPU"] if is_told else []), "it runs"]
