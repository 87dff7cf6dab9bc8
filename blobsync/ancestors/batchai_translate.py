"""A Batch AI job on one of blobsync's clusters: keys of a cluster file, and one command. Pure.

Both of Batch AI's mount roots become the job's own root, where the folder entry ``<relativeMountPath>_folder`` is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from blobsync.ancestors.batchai_job import RECORDED, BatchAiJob, JobDirectory, Volume, record_job
from blobsync.ancestors.batchai_runtime import HOSTS
from blobsync.base.records import dataclass
from blobsync.config.job_keys import LINKING, ONLY_ON, READ_ONLY_MODES, folder_mode
from blobsync.config.known_keys import FOLDER_SUFFIX
from blobsync.config.model import AML_PLATFORMS, Cluster, FolderEntry

_ROOTS = re.compile(r"\$\{?AZ_BATCHAI_(?:JOB_)?MOUNT_ROOT\}?/+([^/$]+(?:/[^/$]+)*)")
# Open MPI 4 and 5 start more processes than there are cores only if they are told to.
_OVERSUBSCRIBE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_REGISTRY_VARIABLE = "BLOBSYNC_REGISTRY_PASSWORD"
# What the service called the directory of standard output and error, and that of an output without a pathSuffix: the
# two may have the same prefix. https://github.com/Azure/BatchAI, recipes/*/cli-instructions.md
_STD_FOLDER, _OUTPUT_FOLDER = "stdouterr", "outputs"
# By so much Slurm prefers a job of normal priority; users may only lower it.
# https://slurm.schedmd.com/sbatch.html#OPT_nice
_LOW = "--nice=1000"


@dataclass(frozen=True, slots=True)
class NewAccount:
    """An account file that has to be there: its name, and the volume whose container it opens."""

    file: str
    volume: Volume


@dataclass(frozen=True, slots=True)
class Translation:
    """``values`` are keys of a cluster file, ``argv`` the command, ``nodes`` its ``--nodes`` (None: one machine).

    ``accounts`` are files that ``values`` name and that do not exist yet; ``notes`` what has no effect, or another one.
    """

    values: Mapping[str, Any] = field(repr=False)
    argv: tuple[str, ...]
    nodes: int | None = None
    accounts: tuple[NewAccount, ...] = ()
    notes: tuple[str, ...] = ()


def translate_job(
    job: BatchAiJob, cluster: Cluster, known_accounts: Mapping[tuple[str, str], str], *, writes: bool = False
) -> Translation:
    """The job on ``cluster``. ``known_accounts`` are account files by account and container.

    ``writes``: the answer becomes a file, in which no secret stands, and which may still have to be filled in; else
    everything must be there. Raises ``ConfigError`` with the line of what cannot be honoured on this platform.
    """
    notes = list(job.notes)
    folders, accounts = _folders(job, cluster, known_accounts, notes, writes=writes)
    _demand_volumes(job, {*folders, *cluster.prefixes})
    values: dict[str, Any] = {
        # Where it becomes a file, that file is what moves.
        "batchai": _batchai(job) if writes else {**_batchai(job), RECORDED: _plain(record_job(job))},
        **({"config_param": {f"{name}{FOLDER_SUFFIX}": entry for name, entry in folders.items()}} if folders else {}),
        **_setup(job, cluster),
        **({"timeout": str(job.seconds)} if job.seconds else {}),
        **_docker(job, cluster, notes, writes=writes),
    }
    env = {name: _plain(value) for name, value in job.env.items()}
    for name, secret in job.secrets.items():
        env[name] = f"${{BLOBSYNC_{name}}}" if writes else _plain(secret.reveal())
        if writes:
            notes.append(job.file.sentence("secrets", f"{name} is not copied: export BLOBSYNC_{name}=..."))
    if job.secrets:
        values["secret_env"] = [*cluster.texts("secret_env"), *job.secrets]
    argv, nodes = _spread(job, cluster, values, env, notes)
    _prioritise(job, cluster, values, notes, writes=writes)
    if env:
        values["env"] = env
    return Translation(values, argv, nodes, tuple(accounts), tuple(notes))


def _plain(text: str) -> str:
    """As a cluster file writes it: blobsync must not replace ``${NAME}``; the job's shell does."""
    return text.replace("${", "$${")


def _batchai(job: BatchAiJob) -> dict[str, Any]:
    kit = job.toolkit
    counts = {"workers": kit.workers, "parameter_servers": kit.servers}
    return {
        "toolkit": kit.name,
        "std_out_err": _plain(_own_path(job.std_prefix, _STD_FOLDER)),
        "inputs": {one.id: _plain(one.path) for one in job.inputs},
        "outputs": {one.id: _plain(_own_path(one.path, one.suffix or _OUTPUT_FOLDER)) for one in job.outputs},
        **{name: count for name, count in counts.items() if count},
        **({"communication_backend": kit.backend} if kit.backend else {}),
    }


def _own_path(prefix: str, suffix: str) -> str:
    """With the job's id in the place of ``jobOutputDirectoryPathSegment``."""
    return f"{prefix.rstrip('/')}/$BLOBSYNC_RUN_ID/{suffix.strip('/')}"


def _folders(
    job: BatchAiJob,
    cluster: Cluster,
    known: Mapping[tuple[str, str], str],
    notes: list[str],
    *,
    writes: bool,
) -> tuple[dict[str, Any], list[NewAccount]]:
    """The folder entries that the cluster does not have yet, and the account files that they need."""
    folders: dict[str, Any] = {}
    accounts: list[NewAccount] = []
    for volume in job.volumes:
        entry = cluster.folder(volume.path)
        if entry is not None:
            notes += _differences(volume, entry, cluster)
        elif volume.kind == "blob":
            file = known.get((volume.account, volume.container))
            if file is not None:
                notes += _unused_key(volume, file)
            else:
                file = f"aux_data/configs/{volume.account}-{volume.container}.yaml"
                if not writes:
                    words = ("blobsync", "-c", cluster.name, "convert", "batchai", job.file.document.file)
                    hint = f"{shlex.join(words)} writes {file}"
                    raise volume.where.error("containerName", "no file in aux_data/configs/ opens it", hint=hint)
                accounts.append(NewAccount(file, volume))
            folders[volume.path] = {"azure_blob_config_file": file, "path": "", **_mode(job, volume, cluster)}
        else:
            folders[volume.path] = _stand_in(volume, cluster, notes, _needed(job, cluster), writes=writes)
    return folders, accounts


def _differences(volume: Volume, entry: FolderEntry, cluster: Cluster) -> Iterator[str]:
    """What is not the same with a folder entry that the cluster has. Raises ``ConfigError`` for another container."""
    account = entry.account
    if volume.kind != "blob":
        return
    if (volume.account, volume.container) != (account.account_name, account.container_name):
        raise volume.where.error(
            "containerName",
            f"is {volume.account}/{volume.container}, and {entry.key} of {cluster.file} is"
            f" {account.account_name}/{account.container_name}",
            hint="change relativeMountPath, or the folder entry",
        )
    if volume.read_only and folder_mode(cluster.platform, entry) not in READ_ONLY_MODES:
        raise volume.where.error(
            "mountOptions",
            f"is read-only, and {entry.key} of {cluster.file} is not",
            hint=f"give {entry.key} mode: download or ro_mount, or take -o ro out",
        )
    if entry.path:
        what = f"is {entry.path} of the container here, not all of it: {entry.key} of {cluster.file} says so"
        yield volume.where.sentence("relativeMountPath", what)
    yield from _unused_key(volume, account.file)


def _unused_key(volume: Volume, file: str) -> Iterator[str]:
    if volume.key:
        yield volume.where.sentence("credentials", f"has no effect: {file} opens the container")


def _needed(job: BatchAiJob, cluster: Cluster) -> str:
    """The folder entries that are missing, as a cluster file would have them, all at once."""
    missing = [one.path for one in job.volumes if one.kind != "blob" and cluster.folder(one.path) is None]
    return "; ".join(f"{name}{FOLDER_SUFFIX}: {{azure_blob_config_file: FILE, path: FOLDER}}" for name in missing)


def _stand_in(volume: Volume, cluster: Cluster, notes: list[str], needed: str, *, writes: bool) -> dict[str, Any]:
    """The folder entry in the place of what blobsync cannot mount; the user names it."""
    entry = f"{volume.path}{FOLDER_SUFFIX}"
    why = f"is a volume that blobsync cannot mount ({volume.kind})"
    if not writes:
        hint = f"in config_param: {needed}"
        raise volume.where.error("relativeMountPath", f"{why}: {cluster.file} needs {entry} in its place", hint=hint)
    notes.append(volume.where.sentence("relativeMountPath", f"{why}: fill in {entry}, which stands in its place"))
    path = f"<a folder of your container for {volume.path}>"
    return {"azure_blob_config_file": "aux_data/configs/storage.yaml", "path": path}


def _mode(job: BatchAiJob, volume: Volume, cluster: Cluster) -> dict[str, str]:
    if cluster.platform not in LINKING:
        return {"mode": "ro_mount"} if volume.read_only else {}
    if volume.read_only:
        return {"mode": "download"}
    outputs = [job.std_prefix, *(one.path for one in job.outputs)]
    is_written = any(_volume_of(path, {volume.path}) for path in outputs)
    is_read = any(_volume_of(one.path, {volume.path}) for one in job.inputs)
    return {"mode": "mount" if is_written and is_read else "upload" if is_written else "download"}


def _volume_of(path: str, names: set[str]) -> str:
    """The volume that a path lies in; empty where it is none of these."""
    match = _ROOTS.match(path)
    found = [name for name in names if match and f"{match[1]}/".startswith(f"{name}/")]
    return max(found, key=len, default="")


def _demand_volumes(job: BatchAiJob, names: set[str]) -> None:
    """What lies below a mount root lies in a volume: what would be written beside them is lost with the node."""
    for key, number, path in _paths(job):
        if "MOUNT_ROOT" in path and not _volume_of(path, names):
            known = ", ".join(sorted(names)) or "none"
            raise job.file.document.error(
                (*job.file.path, key, *number),
                f"lies in no volume of the job or its cluster ({known})",
                hint="give the cluster's file as well, or a folder entry of that name",
            )


def _paths(job: BatchAiJob) -> Iterator[tuple[str, tuple[str, ...], str]]:
    yield "stdOutErrPathPrefix", (), job.std_prefix
    lists: tuple[tuple[str, str, tuple[JobDirectory, ...]], ...] = (
        ("inputDirectories", "path", job.inputs),
        ("outputDirectories", "pathPrefix", job.outputs),
    )
    for key, inner, directories in lists:
        for number, one in enumerate(directories):
            yield key, (str(number), inner), one.path


def _setup(job: BatchAiJob, cluster: Cluster) -> dict[str, str]:
    if not job.setup:
        return {}
    names = ("JOB_TEMP", "SHARED_JOB_TEMP", "STDOUTERR_DIR", *(f"OUTPUT_{one.id}" for one in job.outputs))
    folders = " ".join(f'"$AZ_BATCHAI_{name}"' for name in names)
    hosts = f'{_plain(HOSTS)} > "$AZ_BATCHAI_MPI_HOST_FILE"'
    lines = (f"mkdir -p {folders} && {hosts}", *cluster.texts("setup"), *map(_plain, job.setup))
    return {"setup": " && ".join(f"(\n{line}\n)" for line in lines)}


def _docker(job: BatchAiJob, cluster: Cluster, notes: list[str], *, writes: bool) -> dict[str, Any]:
    image = job.image
    if image is None:
        return {}
    if cluster.platform in LINKING and cluster.value("use_custom_docker") is False:
        what = f"has no effect: {cluster.file} says use_custom_docker: false, so {image.name}'s programs must be there"
        notes.append(job.file.sentence("containerSettings", what))
    docker = {"image": image.name, "address": re.sub(r"^https?://|/+$", "", image.server), "username": image.username}
    docker["shm_size"] = image.shm_size
    if image.username and cluster.platform not in ONLY_ON["docker.username"]:
        why = f"has the login of a registry, which jobs on {cluster.platform} cannot hand on"
        hint = "remove its credentials, once the nodes can pull the image without them"
        _lacking(job, "containerSettings", why, hint, notes, writes=writes)
        docker["username"] = ""
    elif image.password and writes:
        docker["password"] = f"${{{_REGISTRY_VARIABLE}}}"
        what = f"the registry's password is not copied: export {_REGISTRY_VARIABLE}=..."
        notes.append(job.file.sentence("containerSettings", what))
    elif image.password:
        docker["password"] = image.password.reveal()
    return {"docker": {name: text for name, text in docker.items() if text}}


def _spread(
    job: BatchAiJob, cluster: Cluster, values: dict[str, Any], env: dict[str, str], notes: list[str]
) -> tuple[tuple[str, ...], int | None]:
    """The command and the number of nodes; how many processes run on each goes to ``values``."""
    kit, platform = job.toolkit, cluster.platform
    is_here = platform == "local"
    nodes = 1 if is_here else job.nodes
    line = (kit.line,) if any(letter.isspace() for letter in kit.line.strip()) else ("bash", "-c", kit.line)
    if is_here and job.nodes > 1:
        notes.append(job.file.sentence("nodeCount", "this machine is one node: all processes run here"))
    if kit.servers and nodes > 1 and platform != "slurm":
        why = f"parameter servers need nodes that share a folder, unlike those of {platform}"
        raise job.file.error("tensorFlowSettings", why)
    if kit.uses_mpi and kit.processes > 1 and platform in ("local", "kubernetes"):
        if nodes > 1:
            why = f"is {nodes}, and MPI cannot start processes on other nodes of {platform}"
            raise job.file.error("nodeCount", why)
        values["multi_process"] = False
        values["batchai"]["mpi_processes"] = kit.processes
        env.update(_OVERSUBSCRIBE)
        return line, None if is_here else 1
    values["multi_process"] = True
    values["process_count_per_node"] = kit.processes_on_each(nodes)
    if kit.uses_mpi and kit.processes > 1 and platform == "slurm" and not cluster.text("slurm.launcher"):
        values["slurm"] = {"launcher": "mpirun"}
    if kit.uses_mpi and platform in AML_PLATFORMS:
        values["launcher"] = "mpi"
    return line, None if is_here else nodes


def _lacking(job: BatchAiJob, name: str, why: str, hint: str, notes: list[str], *, writes: bool) -> None:
    """What jobs on the platform do not have: refused with its line, left out and named where it becomes a file; a
    recorded job, whose file is not here, moves without it."""
    if job.file.has(name) and not writes:
        raise job.file.error(name, why, hint=hint)
    notes.append(job.file.sentence(name, f"left out: {why}"))


def _prioritise(job: BatchAiJob, cluster: Cluster, values: dict[str, Any], notes: list[str], *, writes: bool) -> None:
    if job.priority in ("", "normal"):
        return
    if cluster.platform == "singularity":
        values["priority"] = job.priority.title()
        return
    if cluster.platform == "slurm" and job.priority == "low":
        values.setdefault("slurm", {})["args"] = [*cluster.texts("slurm.args"), _LOW]
        return
    name = "schedulingPriority" if job.file.has("schedulingPriority") else "priority"
    way = {"slurm": "name a qos", "kubernetes": "name kubernetes: {priority_class}", "itp": "write priority: NUMBER"}
    instead = f", and {way[cluster.platform]} in the cluster file" if cluster.platform in way else ""
    why = f"is {job.priority}, which jobs on {cluster.platform} do not have"
    _lacking(job, name, why, f"remove it{instead}", notes, writes=writes)
