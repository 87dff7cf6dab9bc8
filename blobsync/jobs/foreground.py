"""``local CMD...``: runs the command in this terminal, with the environment of a job.

In the cluster's docker image where the cluster file says ``use_custom_docker`` and docker works here. This machine is
one node: as many processes as the job would have run here, or one.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blobsync.backends.local.local_backend import count_gpus, visible_gpus
from blobsync.base.process import DOCKER_VERSION, ProcessRunner, python_module, why_it_fails
from blobsync.base.records import dataclass
from blobsync.config.model import Cluster
from blobsync.config.trust_store import TRUSTED_LINKS
from blobsync.config.trusted_docker import DockerArgs, demand_docker
from blobsync.jobspec.make_spec import SubmitRequest, describe, image_of
from blobsync.jobspec.node_archive import node_archive
from blobsync.jobspec.spec import JobSpec
from blobsync.jobspec.sweep import is_shell_line
from blobsync.local.link_policy import demand_trust
from blobsync.local.private_folders import container_folder

_DOCKER_SECONDS = 30.0
_DEFAULT_SHM = "8g"


@dataclass(frozen=True, slots=True)
class Foreground:
    """What is started: a command, its environment (secrets included) and, when docker was not used, why."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    note: str = ""


def run_here(
    cluster: Cluster,
    request: SubmitRequest,
    process: ProcessRunner,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> int:
    """Run to the end with this terminal; returns the exit code. Notes first what differs from the job.

    Raises ``ProcessError``, and where it would run in docker, ``UntrustedDockerError`` and ``UntrustedLinkError``.
    """
    spec = describe(cluster, request, "local", None)
    problem = docker_problem(cluster, process)
    if problem is None:
        demand_docker(DockerArgs.of(cluster), environ)
        demand_trust(cluster.root, cluster.prefixes, TRUSTED_LINKS.load(cluster.root, environ))
    for entry in spec.folders:
        (cluster.root / entry.name).mkdir(parents=True, exist_ok=True)
    with container_folder("blobsync-") as scratch:
        started = arrange(cluster, spec, scratch, environ, problem)
        for sentence in filter(None, (started.note, _without_gpus(cluster, request, spec, process, environ))):
            note(sentence)
        return process.attach(started.argv, env=started.env, cwd=cluster.root)


def _without_gpus(
    cluster: Cluster, request: SubmitRequest, spec: JobSpec, process: ProcessRunner, environ: Mapping[str, str]
) -> str:
    """The note on GPUs that were asked for and are not there; one that nobody asked for is not missed."""
    is_asked = cluster.gpu_per_node or cluster.num_gpu or request.num_gpu
    if not (is_asked and spec.gpus_per_node):
        return ""
    visible = visible_gpus(environ)
    is_there = count_gpus(process) if visible is None else visible
    return "" if is_there else "this machine has no GPU: the command runs on the CPU"


def docker_problem(cluster: Cluster, process: ProcessRunner) -> str | None:
    """Why docker is not used; empty when it is not asked for, None when it can be."""
    if not (cluster.use_custom_docker and cluster.docker.reference):
        return ""
    return why_it_fails(process, DOCKER_VERSION, _DOCKER_SECONDS)


def arrange(
    cluster: Cluster, spec: JobSpec, scratch: Path, environ: Mapping[str, str], problem: str | None
) -> Foreground:
    """The command line and environment for ``spec``; ``problem`` as :func:`docker_problem` says."""
    env = {**environ, **cluster.env}
    if not spec.gpus_per_node:
        env["CUDA_VISIBLE_DEVICES"] = ""
    job, alone = scratch / "job.json", scratch / "node"
    job.write_text(_without_folders(spec))
    words = ["here", "--job", str(job), "--run-dir", str(scratch), "--root", str(cluster.root), "--node-rank", "0"]
    if problem is not None:
        note = f"not in {cluster.docker.reference}: {problem}" if problem else ""
        return Foreground((*python_module("blobsync.node"), *words), env, note)
    if spec.world_size == 1:
        command = ("sh", "-c", *spec.argv) if is_shell_line(spec.argv) else spec.argv
        return Foreground(run_argv(cluster, spec, command), env)
    # Several processes need a launcher inside, which sets their ranks.
    with zipfile.ZipFile(io.BytesIO(node_archive(environ).body)) as archive:
        archive.extractall(alone)
    python = cluster.text("interpreter_path") or cluster.text("runtime.python") or "python"
    return Foreground(run_argv(cluster, spec, (python, "-I", str(alone), *words), "-v", f"{scratch}:{scratch}"), env)


def run_argv(cluster: Cluster, spec: JobSpec, command: Sequence[str], *more: str) -> tuple[str, ...]:
    """The project at its own path inside; values of variables come from our environment, not from the command line."""
    root = str(cluster.root)
    image = image_of(cluster, here=True) or ""
    terminal = ("-it",) if sys.stdin.isatty() and sys.stdout.isatty() else ("-i",)
    gpus = ("--gpus", "all") if spec.gpus_per_node and os.path.exists("/dev/nvidia0") else ()
    names = [part for name in sorted(cluster.env) for part in ("-e", name)]
    linked = [part for path in _linked_folders(cluster) for part in ("-v", f"{path}:{path}")]
    return (
        *("docker", "run", "--rm", *terminal, *gpus, f"--shm-size={cluster.docker.shm_size or _DEFAULT_SHM}"),
        *("-v", f"{root}:{root}", *linked, *more, "-w", root, *names, *cluster.docker.args, image, *command),
    )


def _linked_folders(cluster: Cluster) -> tuple[str, ...]:
    """Where the project's folders really are, as far as that is outside of it: a link inside would lead nowhere."""
    root = cluster.root.resolve()
    real = {(cluster.root / prefix).resolve() for prefix in cluster.prefixes}
    return tuple(sorted(str(path) for path in real if not path.is_relative_to(root) and path.is_dir()))


def _without_folders(spec: JobSpec) -> str:
    # Here the project's folders are where they always are.
    return json.dumps({**json.loads(spec.to_json()), "folders": [], "setup": [], "logs": None})
