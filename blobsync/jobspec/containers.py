"""Container runtimes for jobs on this machine and on Slurm, and their command lines.

Kubernetes and Azure ML run images themselves. Here only the user's program and ``setup`` are inside the image. Their
variables and arguments are in a file that the image's ``sh`` reads: no command line shows them, no runtime evaluates or
records them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from blobsync.base.errors import JobError
from blobsync.base.exit_codes import SETUP_FAILED_EXIT
from blobsync.base.process import DOCKER_VERSION, ProcessRunner, why_it_fails
from blobsync.base.records import NamedTuple
from blobsync.jobspec.spec import JobSpec

OPTION = "container"
# In order of preference. Sites with Slurm have Apptainer, seldom a docker that users may run.
_DAEMONS, _FILES = ("docker", "podman"), ("apptainer", "singularity")
RUNTIMES = (*_DAEMONS, *_FILES)
_ORDER: Mapping[str, tuple[str, ...]] = {"local": RUNTIMES, "slurm": (*_FILES, "podman", "docker")}
_PROBES: Mapping[str, tuple[str, ...]] = {
    "docker": DOCKER_VERSION,
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "apptainer": ("apptainer", "--version"),
    "singularity": ("singularity", "--version"),
}
_PROBE_SECONDS = 30.0


class WantedImage(NamedTuple):
    """The image in the cluster file, its runtime (empty: any that is installed), and options for docker.

    ``file`` is the cluster file. ``shm_size`` is docker's; ``args`` are docker's and podman's.
    """

    image: str
    runtime: str = ""
    args: tuple[str, ...] = ()
    shm_size: str = ""
    file: str = ""


class Runtime(NamedTuple):
    """A program that runs images."""

    name: str

    @property
    def has_containers(self) -> bool:
        """Whether its containers have names, and outlive the program that started them."""
        return self.name in _DAEMONS


def wanted_image(spec: JobSpec) -> WantedImage | None:
    """The image in which blobsync itself runs the job; None: no image, or the platform runs it.

    blobsync's own programs (transfers, interactive jobs) need no image.
    """
    given = spec.options.get(OPTION)
    if spec.image is None or not isinstance(given, Mapping) or spec.hold or spec.spread is not None:
        return None
    args = given.get("args")
    return WantedImage(
        spec.image,
        str(given.get("runtime") or ""),
        tuple(map(str, args)) if isinstance(args, (list, tuple)) else (),
        str(given.get("shm_size") or ""),
        str(given.get("file") or "the cluster file"),
    )


def image_text(spec: JobSpec) -> str:
    """The line of a dry run about the image; empty without an image."""
    wanted = wanted_image(spec)
    if wanted is None:
        return ""
    return f", in {wanted.image} by {' or '.join(candidates(wanted, spec.platform))}, whichever works there first"


def candidates(wanted: WantedImage, platform: str) -> tuple[str, ...]:
    """The runtimes that could run the image, the preferred one first."""
    if wanted.runtime:
        return (wanted.runtime,)
    names = _ORDER.get(platform, RUNTIMES)
    if is_for_files(wanted.image):
        return tuple(name for name in names if name in _FILES)
    # Options for docker have no effect elsewhere.
    return tuple(name for name in names if name in _DAEMONS or not wanted.args)


def is_for_files(image: str) -> bool:
    """Whether only Apptainer and Singularity accept it: a file, a folder, or another scheme than docker's."""
    return image.startswith("/") or image.endswith(".sif") or ("://" in image and not image.startswith("docker://"))


def find_runtime(wanted: WantedImage, platform: str, process: ProcessRunner) -> Runtime:
    """The first runtime that works here. Raises ``JobError`` that names the key, and the reason for each."""
    problems = []
    for name in candidates(wanted, platform):
        problem = why_it_fails(process, _PROBES[name], _PROBE_SECONDS)
        if problem is None:
            return Runtime(name)
        problems.append(f"{name}: {problem}")
    raise JobError(
        f"is {wanted.image}, and nothing here can run it ({'; '.join(problems)})",
        hint="install one of them, name another with docker: {runtime: NAME}, or run the command without the image:"
        " use_custom_docker: false",
    )


def source_of(image: str, runtime: Runtime) -> str:
    """The image's address for the runtime."""
    if runtime.has_containers:
        return image.removeprefix("docker://")
    return image if is_for_files(image) or "://" in image else f"docker://{image}"


class Inside(NamedTuple):
    """The options for one program in the image.

    ``name`` is its container's; ``places`` are folders mounted at their own paths; ``user`` is its user and group id
    (``1000:1000``, empty: root); ``groups`` are further groups. ``gpus``: ``all``, or numbers of the node's; empty:
    none. ``shares_memory``: the processes of a node share /dev/shm. ``keeps``: the container is not removed at its end.
    """

    name: str
    places: tuple[str, ...]
    user: str = ""
    groups: tuple[str, ...] = ()
    gpus: str = ""
    shares_memory: bool = False
    keeps: bool = False


def run_words(runtime: Runtime, image: str, wanted: WantedImage, inside: Inside, script: str) -> tuple[str, ...]:
    """The command that runs ``script`` with the image's ``sh``.

    Docker: https://docs.docker.com/reference/cli/docker/container/run/; podman has the same options, and
    ``--userns=keep-id``. Apptainer and Singularity: https://apptainer.org/docs/user/latest/cli/apptainer_exec.html.
    """
    if not runtime.has_containers:
        binds = [word for place in inside.places for word in ("--bind", place)]
        nv = ("--nv",) if inside.gpus else ()
        return (runtime.name, "exec", "--cleanenv", *nv, *binds, image, "sh", script)
    mounts = [word for place in inside.places for word in ("-v", f"{place}:{place}")]
    memory = ("--ipc=host",) if inside.shares_memory or not wanted.shm_size else (f"--shm-size={wanted.shm_size}",)
    return (
        *(runtime.name, "run", f"--name={inside.name}", *(() if inside.keeps else ("--rm",))),
        # Processes of the job can connect to each other as without an image.
        *("--network=host", "--pid=host", *memory, "--security-opt", "label=disable", "--entrypoint", ""),
        *_user_words(runtime, inside),
        *_gpu_words(runtime, inside.gpus),
        *(*mounts, *wanted.args, image, "sh", script),
    )


def _user_words(runtime: Runtime, inside: Inside) -> tuple[str, ...]:
    """Files that a job writes belong to its user, as without an image."""
    if not inside.user:
        return ()
    keep = ("--userns=keep-id",) if runtime.name == "podman" else ()
    return (*keep, f"--user={inside.user}", *(f"--group-add={group}" for group in inside.groups if not keep))


def _gpu_words(runtime: Runtime, gpus: str) -> tuple[str, ...]:
    if not gpus:
        return ()
    if runtime.name == "podman":
        names = ("all",) if gpus == "all" else gpus.split(",")
        return tuple(word for name in names for word in ("--device", f"nvidia.com/gpu={name}"))
    return ("--gpus", "all" if gpus == "all" else f'"device={gpus}"')


def pull_words(runtime: Runtime, source: str, target: str) -> tuple[str, ...]:
    """The command that fetches an image; Apptainer writes it to ``target``, so that it is fetched only once."""
    if runtime.has_containers:
        return (runtime.name, "pull", source)
    return (runtime.name, "pull", "--force", target, source)


def script_text(command: Sequence[str], env: Mapping[str, str], names: Iterable[str], folder: str) -> str:
    """The script for the image's ``sh``: variables, folder, command. It removes itself if the image has ``rm``."""
    lines = [
        'rm -f "$0" 2>/dev/null',
        *(_export(name, env[name]) for name in sorted(names)),
        f"cd {shlex.quote(folder)} || exit {SETUP_FAILED_EXIT}",
    ]
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])


def _export(name: str, value: str) -> str:
    # Apptainer puts the driver's libraries there.
    more = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" if name == "LD_LIBRARY_PATH" else ""
    return f"export {name}={shlex.quote(value)}{more}"


def given_names(
    env: Mapping[str, str], outside: Mapping[str, str], own: Iterable[str], is_name: Callable[[str], bool]
) -> set[str]:
    """The variables of ``env`` for a program in an image: the job's, not those of the node's own programs."""
    mine = set(own)
    return {
        name
        for name, value in env.items()
        if is_name(name) and (name in mine or outside.get(name) != value or name.startswith(_PASSED))
    }


# Variables of launchers, drivers, and a site's network.
_PASSED = (
    *("SLURM_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "I_MPI_", "UCX_", "NCCL_", "CUDA_VISIBLE_DEVICES"),
    *("BLOBSYNC_", "MASTER_", "PET_", "PYTHONUNBUFFERED", "HWLOC_COMPONENTS", "http_proxy", "https_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "LANG", "LC_", "TZ"),
)
