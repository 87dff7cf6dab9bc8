"""``initc``: compiles the code in the docker image that jobs run in, away from the project's own folder.

The code is copied to a scratch folder and compiled there by the user's own script; everything in that folder
is then the code, because ``.gitignore`` usually excludes compiled files.
"""

from __future__ import annotations

import os
from pathlib import Path

from blobsync.base.errors import ArchiveError, BackendUnavailableError, ConfigError
from blobsync.base.process import DOCKER_VERSION, ProcessRunner, why_it_fails
from blobsync.code.snapshot import CodeSnapshot
from blobsync.config.model import Cluster

# ACT's name for the project's compile script.
COMPILE_SCRIPT = "compile.aml.sh"

_DOCKER_PATIENCE = 20.0


def compile_command(cluster: Cluster, snapshot: CodeSnapshot) -> tuple[str, ...]:
    """``bash compile.aml.sh`` and the cluster's ``compile_args``. Raises ``ConfigError`` without a script."""
    if COMPILE_SCRIPT not in {file.path for file in snapshot.files}:
        raise ConfigError(
            f"initc runs {COMPILE_SCRIPT} in the project root, and the code does not contain it",
            hint=f"write it (for example: python setup.py build_ext --inplace), or use 'blobsync init'; "
            f"'blobsync init --why {COMPILE_SCRIPT}' shows whether a pattern excludes it",
        )
    return "bash", COMPILE_SCRIPT, *(cluster.text("compile_args") or "").split()


def image_of(cluster: Cluster) -> str:
    """The cluster's docker image; raises ``ConfigError`` if it names none."""
    image = cluster.docker.reference
    if not image:
        raise ConfigError("does not name a docker image to compile in", file=cluster.file, key="docker.image")
    return image


def check_docker(runner: ProcessRunner) -> None:
    """Raise ``BackendUnavailableError`` if docker is not installed or its daemon does not answer."""
    if problem := why_it_fails(runner, DOCKER_VERSION, _DOCKER_PATIENCE):
        raise BackendUnavailableError(
            f"initc needs docker, which does not answer: {problem}",
            hint="install it, or start it (sudo systemctl start docker), or use 'blobsync init': the job compiles then",
        )


def compile_argv(image: str, args: tuple[str, ...], scratch: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command line that compiles in ``scratch``; as the user, so that its output can be read here.

    ``args`` are the cluster's own for docker, which win over ours.

    The compiler's output goes to standard error: standard output is for the result.
    """
    return (
        *("sh", "-c", 'exec "$@" >&2', "sh"),
        *("docker", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
        *("--volume", f"{scratch}:/code", "--workdir", "/code", *args, image, *command),
    )


def compile_code(cluster: Cluster, snapshot: CodeSnapshot, scratch: Path, runner: ProcessRunner) -> None:
    """Copy the code to ``scratch`` and compile it there, the compiler's output going to the terminal.

    Raises ``ConfigError``, ``BackendUnavailableError``, and ``ArchiveError`` when compiling fails.
    """
    command = compile_command(cluster, snapshot)
    image = image_of(cluster)
    check_docker(runner)
    snapshot.copy_to(scratch)
    code = runner.attach(compile_argv(image, cluster.docker.args, scratch, command))
    if code != 0:
        raise ArchiveError(
            f"'{' '.join(command)}' ended with {code} in {image}; nothing was uploaded",
            hint="see its output above",
        )
