"""The options of ``submit``: what they are called and mean, and which keys of the cluster file some of them set. Pure.

Those keys are merged into what ``-p`` changes, so that they are read, checked and recorded like the file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from blobsync.base.errors import UsageError
from blobsync.base.options import Option, options_of
from blobsync.base.plain_json import merged
from blobsync.config.job_keys import LINKING
from blobsync.config.known_keys import PLATFORMS
from blobsync.config.model import AML_PLATFORMS, Cluster
from blobsync.jobspec.spec import is_variable_name
from blobsync.jobspec.topology import FIXED_SIZE

# Platforms that start a job after another one.
ORDERING = LINKING
# Platforms that run one command with many sets of parameters.
SWEEPING = (*LINKING, "kubernetes", "aml")
_SLURM = ("slurm",)
_LIMITING = ("slurm", "kubernetes")
_ELASTIC = tuple(name for name in PLATFORMS if name not in FIXED_SIZE)


class SubmitKeywords(TypedDict, total=False):
    """The options of a submission besides its command; the cluster file gives the others.

    ``num_gpu``: GPUs in all (of a sweep: of each task), 0 for none. ``multi_process``: one process per GPU, or one per
    node. ``hold`` is for an interactive job, whose command is ``ssh`` or empty. ``env`` are variables with their
    values. ``sweep`` are words ``NAME=VALUES``, or lists of values by name. ``param`` are other keys of the cluster
    file, as for ``-p``.
    """

    num_gpu: Annotated[int | None, Option("The same as -n before submit.", "N", "--gpus", least=0)]
    nodes: Annotated[int | None, Option("The number of nodes.", "N", least=1)]
    name: Annotated[str, Option("A name to show instead of the command.")]
    multi_process: Annotated[bool | None, Option("One process per node, not per GPU.", name="--single", sets=False)]
    init: Annotated[bool, Option("First pack and upload the current code.")]
    code: Annotated[str, Option("The digest of the code to run, where it is not that of your last init.", "DIGEST")]
    trust_code: Annotated[str, Option("Trust code with this digest, and run it in this job and later ones.", "DIGEST")]
    elastic: Annotated[
        str | None, Option("The number of nodes can change as it runs.", "MIN:MAX", platforms=_ELASTIC, example="1:4")
    ]
    hold: Annotated[str | None, Option("Run no command; stay open for your shells this long.", "TIME", example="4h")]
    env: Annotated[
        Mapping[str, str] | None, Option("Set a variable; NAME alone: as it is here.", "NAME=VALUE", repeated=True)
    ]
    image: Annotated[str | None, Option("Run in this docker image.")]
    mem: Annotated[str | None, Option("The memory of each node.", "SIZE", platforms=_LIMITING, example="64G")]
    cpus_per_task: Annotated[int | None, Option("The CPUs of each process.", "N", platforms=_LIMITING, least=1)]
    after: Annotated[str | None, Option("Begin when that job has completed.", "ID", platforms=ORDERING)]
    sweep: Annotated[
        Sequence[str] | Mapping[str, Iterable[object]] | None,
        Option(
            "Run it once for each value, as {NAME}; several: for each combination.",
            "NAME=VALUES",
            platforms=SWEEPING,
            repeated=True,
        ),
    ]
    sweep_file: Annotated[
        str | None, Option("Run it for each line of a .csv, .jsonl or .yaml file.", "FILE", platforms=SWEEPING)
    ]
    zip: Annotated[bool, Option("Take the values of --sweep side by side.", platforms=SWEEPING)]
    parallel: Annotated[int | None, Option("Run so many tasks at a time.", "N", platforms=SWEEPING, least=1)]
    array: Annotated[str | None, Option("Run it once per number.", platforms=_SLURM, example="0-9%2")]
    partition: Annotated[str | None, Option("The partition.", platforms=_SLURM)]
    qos: Annotated[str | None, Option("The quality of service.", platforms=_SLURM)]
    time: Annotated[str | None, Option("The time limit.", platforms=_SLURM, example="2-12:00:00")]
    gres: Annotated[str | None, Option("Generic resources.", platforms=_SLURM, example="gpu:a100:4")]
    param: Mapping[str, Any] | None


SUBMIT_OPTIONS = options_of(SubmitKeywords)
# Of these, an array's numbers become tasks.
SLURM_OPTIONS = tuple(name for name, one in SUBMIT_OPTIONS.items() if one.about.platforms == _SLURM)

# Where an option that limits a node's memory or CPUs has no meaning, and what has.
_NO_LIMIT = {
    "local": "jobs on this machine share it: local: {slots} says how many run at a time",
    **dict.fromkeys(AML_PLATFORMS, "there the machine type decides: -p '{instance_type: ...}'"),
}


def read_pairs(words: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``--env NAME=VALUE``; ``NAME`` alone takes the value that it has here.

    Raises ``UsageError``, which shows no value.
    """
    found: dict[str, str] = {}
    for number, word in enumerate(words, 1):
        name, sign, value = word.partition("=")
        if not is_variable_name(name):
            what = f"number {number}, whose text is not shown, is not NAME=VALUE"
            raise UsageError(f"--env: {what}", hint="blobsync submit --env EPOCHS=20 ...")
        if not sign and name not in environ:
            raise UsageError(f"--env {name}: there is no such variable here", hint=f"--env {name}=VALUE sets it")
        found[name] = value if sign else environ[name]
    return found


def changed_keys(cluster: Cluster, words: SubmitKeywords, processes: int) -> dict[str, Any]:
    """The changes for these options; ``processes`` is the number on each node. Raises ``UsageError``."""
    env, image, mem, cpus = words.get("env"), words.get("image"), words.get("mem"), words.get("cpus_per_task")
    found: dict[str, Any] = {"env": dict(env)} if env else {}
    if image:
        found = merged(found, _image(cluster, image))
    for option, value, keys in (
        ("--mem", mem, {"slurm": "mem", "kubernetes": "memory"}),
        ("--cpus-per-task", cpus, {"slurm": "cpus_per_task", "kubernetes": "cpu"}),
    ):
        if value in (None, ""):
            continue
        platform = cluster.platform
        if platform not in keys:
            raise UsageError(
                f"{option} is for Slurm and Kubernetes, and {cluster.name} is {platform}: {_NO_LIMIT[platform]}"
            )
        # A pod holds all processes of its node.
        whole = value * processes if isinstance(value, int) and platform == "kubernetes" else value
        found = merged(found, {platform: {keys[platform]: whole}})
    return found


def _image(cluster: Cluster, image: str) -> dict[str, Any]:
    """The image in place of all that names another one, or none."""
    if cluster.platform == "kubernetes" and cluster.text("kubernetes.image"):
        return {"kubernetes": {"image": image}}
    docker = cluster.mapping("docker")
    gone = ["tag", "environment"]
    first, slash, _ = image.partition("/")
    if slash and (first == "localhost" or {".", ":"} & {*first}) and first != cluster.docker.address:
        # As docker reads it, this is a registry: not the one whose login the file has.
        gone += ["address", "username", "password"]
    changes: dict[str, Any] = {"docker": {"image": image, **{name: None for name in gone if name in docker}}}
    return {**changes, "use_custom_docker": None} if cluster.value("use_custom_docker") is False else changes
