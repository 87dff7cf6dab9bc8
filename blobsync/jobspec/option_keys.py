"""Which keys of the cluster file the options of ``submit`` set for one job: ``--env``, ``--image``, ``--mem``,
``--cpus-per-task``. Pure.

They are merged into what ``-p`` changes, so that they are read, checked and recorded like the file itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import UsageError
from blobsync.config.model import AML_PLATFORMS, Cluster
from blobsync.jobspec.spec import is_variable_name

if TYPE_CHECKING:
    from blobsync.jobspec.describe import SubmitKeywords

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


def merged(first: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``first`` with ``more``, which wins; mappings in both are merged."""
    found = dict(first)
    for name, value in more.items():
        inner = found.get(name)
        found[name] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
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
