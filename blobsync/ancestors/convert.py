"""From the files of Batch AI and Philly to what ``submit --file`` submits, and to what ``convert`` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from blobsync.ancestors.batchai_job import RECORDED, read_job_file, recorded_job
from blobsync.ancestors.batchai_translate import NewAccount, Translation, translate_job
from blobsync.ancestors.philly import philly_names, philly_variables
from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.plain_json import merged
from blobsync.base.records import dataclass
from blobsync.config.account_files import account_file_names
from blobsync.config.accounts import AccountFile, first_of
from blobsync.config.job_keys import IDLE, LINKING, NOWHERE, read_only_words
from blobsync.config.known_keys import CODE_KEY, PHILLY_MARKS
from blobsync.config.loader import ClusterFile, flattened, reload_cluster
from blobsync.config.model import Cluster, FolderEntry, Written
from blobsync.config.project_root import CLUSTER_FOLDER
from blobsync.config.scaffold import NewFile
from blobsync.config.yaml_document import Document

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PHILLY_COMMAND = ("python", "train.py")
# What becomes something else in the new file.
_TAKEN_OVER = (PHILLY_MARKS - {"vc_type"}) | {
    "user_name",
    "azure_blob_config_file",
    "datastore_name",
    "docker_tag",
    "platform",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The files to write, the command that submits the job, and what has no effect, or another one."""

    files: tuple[NewFile, ...]
    command: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class MovedJob:
    """A recorded job on another cluster: that cluster with the job file's keys, the job, and its secret variables."""

    cluster: Cluster
    translation: Translation
    secrets: tuple[str, ...]


def read_for(cluster: Cluster, job: Path, cluster_file: Path | None, environ: Mapping[str, str]) -> Translation:
    """The job file as a job on ``cluster``. Raises ``ConfigError``; nothing is changed."""
    return translate_job(read_job_file(job, cluster_file, environ), cluster, accounts_on_file(cluster.root, environ))


def translate_again(cluster: Cluster, job_file: str | None, environ: Mapping[str, str]) -> MovedJob | None:
    """A job that was submitted from a job file, as the same file on ``cluster``; None for other jobs, and where the
    cluster has the file's keys already. ``job_file`` is what the job's option of that name holds.

    Its secret variables are those of ``cluster``, because their values are recorded nowhere. Raises ``ConfigError`` for
    what cannot be honoured there.
    """
    if job_file is None or cluster.written is None or cluster.text(f"batchai.{RECORDED}"):
        return None
    job, secrets = recorded_job(job_file)
    translation = translate_job(job, cluster, accounts_on_file(cluster.root, environ))
    values = {**translation.values, "secret_env": [*cluster.texts("secret_env"), *secrets]} if secrets else None
    changed = {**cluster.written.overrides, **flattened(values or translation.values)}
    written = Written(cluster.written.path, changed, cluster.written.values)
    moved = reload_cluster(cluster.root, written, environ=environ, anew=True)
    return MovedJob(moved, translation, secrets)


def accounts_on_file(root: Path, environ: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The account files of a project, by account and container; the first of several, those that are wrong left out."""
    found: dict[tuple[str, str], str] = {}
    for name in account_file_names(root):
        try:
            account = AccountFile(root / name, name, environ).account
        except ConfigError:
            continue
        if account:
            found.setdefault((account.account_name, account.container_name), name)
    return found


def convert_batchai(
    base: Cluster, name: str, job: Path, cluster_file: Path | None, environ: Mapping[str, str]
) -> Conversion:
    """The job file as the cluster ``name``, made of the cluster ``base``. Raises ``ConfigError``."""
    read = read_job_file(job, cluster_file, environ)
    file = _cluster_file(name)
    made = translate_job(read, base, accounts_on_file(base.root, environ), writes=True)
    start = base.written.values if base.written else {}
    values = merged({"platform": base.platform, **start}, made.values)
    comment = f"Converted from {job.name}, a job file of Azure Batch AI, by: blobsync convert batchai"
    files = (NewFile(file, comment, values), *(_account(one) for one in made.accounts))
    nodes = ("--nodes", str(made.nodes)) if made.nodes else ()
    return Conversion(files, ("blobsync", "-c", name, "submit", *nodes, *made.argv), made.notes)


def _account(new: NewAccount) -> NewFile:
    values = {"account_name": new.volume.account, "container_name": new.volume.container}
    if new.volume.key:
        values["account_key"] = new.volume.key.reveal()
    comment = "This file may hold a key: keep it out of git. Without one, your Azure login opens the container."
    return NewFile(new.file, comment, values, is_private=True)


def convert_philly(root: Path, path: Path, name: str | None, platform: str, environ: Mapping[str, str]) -> Conversion:
    """Philly's files as clusters on ``platform``: one file as ``name``, or each that ``multi_philly_vc.yaml`` names,
    under its own name. Raises ``ConfigError`` and ``UsageError``."""
    several = philly_names(path, str(path))
    if not several:
        return _one_philly(root, path, name or f"{path.stem}-{platform}", platform, environ)
    if name and len(several) > 1:
        raise UsageError(
            f"--name {name}: {path} names {len(several)} clusters, {', '.join(several)}", hint="omit --name"
        )
    made = [
        _one_philly(root, root / file if "/" in file else path.parent / file, name or one, platform, environ, one)
        for one, file in several.items()
    ]
    command = ("blobsync", "-c", name or ",".join(several), "submit", *_PHILLY_COMMAND)
    notes = tuple(dict.fromkeys(note for one in made for note in one.notes))
    return Conversion(tuple(file for one in made for file in one.files), command, notes)


def _one_philly(
    root: Path, path: Path, name: str, platform: str, environ: Mapping[str, str], cluster_name: str = ""
) -> Conversion:
    """``cluster_name`` is that of Philly's cluster where the file of all names gives it."""
    file = _cluster_file(name)
    loaded = ClusterFile(root, path.absolute(), {}, environ)
    cluster = loaded.cluster
    if cluster is None or cluster.written is None:
        raise first_of(loaded.problems)
    if not PHILLY_MARKS & cluster.written.values.keys():
        marks = ", ".join(sorted(PHILLY_MARKS))
        raise UsageError(f"{path} is not a Philly file: it has none of {marks}", hint="use it as it is: -c NAME")
    given = cluster.written.values
    gone = {key: NOWHERE.get(key) or IDLE[key] for key in given if (key in NOWHERE or key in IDLE)}
    notes = [
        f"{loaded.document.place((key,))}: {key}: left out: {why}"
        for key, why in gone.items()
        if key not in _TAKEN_OVER and given[key] not in (None, False, "")
    ]
    values: dict[str, Any] = {"platform": platform}
    values |= {key: value for key, value in given.items() if key not in gone and key not in _TAKEN_OVER}
    values["config_param"] = _entries(cluster, platform, notes)
    if variables := philly_variables(cluster):
        values["env"] = {**variables, **cluster.mapping("env")}
    if cluster.docker.image and (tag := cluster.text("docker_tag")):
        # As on Philly, where it counted before the tag beside the image.
        values["docker"] = {**dict(values["docker"]), "tag": tag}
    if cluster.gpu_per_node is None:
        has_eight = cluster.text("vc_type") == "ap" or (cluster_name or cluster.text("cluster")) == "philly-prod-cy4"
        values["gpu_per_node"] = 8 if has_eight else 4
        notes.append(f"gpu_per_node: {values['gpu_per_node']}, as Philly's machines had, and -n of a job without one")
    notes += _taken_out(root, file, values, loaded, environ)
    comment = f"Converted from {path.name}, a file of Philly, by: blobsync convert philly"
    command = ("blobsync", "-c", name, "submit", *_PHILLY_COMMAND)
    return Conversion((NewFile(file, comment, values),), command, (*cluster.warnings, *notes))


def _entries(cluster: Cluster, platform: str, notes: list[str]) -> dict[str, Any]:
    """Each entry with its own account file, its path below the container, not below a mount point, and a mode.

    Philly mounted all of them. Nodes of Slurm need not have blobfuse2, so there a folder is copied instead; a link
    would show an empty folder of this machine, and what a job writes behind it would be in no container.
    """
    found: dict[str, Any] = {}
    given = cluster.mapping("config_param")
    if cluster.code:
        found[CODE_KEY] = {"azure_blob_config_file": cluster.code.account.file, "path": cluster.code.path}
    for entry in cluster.folders:
        options = given.get(entry.key)
        is_read_only, words = read_only_words(entry.blob_fuse_options)
        mode = entry.mode or _mode_on(platform, entry, is_read_only=is_read_only)
        found[entry.key] = {
            **(dict(options) if isinstance(options, Mapping) else {}),
            **({"datastore_name": entry.datastore_name} if entry.datastore_name else {}),
            "azure_blob_config_file": entry.account.file,
            "path": entry.path,
            "mode": mode,
            **({"blob_fuse_options": list(words)} if words else {}),
        }
        if not words:
            found[entry.key].pop("blob_fuse_options", None)
        if not entry.mode:
            notes.append(f"{entry.key}: mode {mode}: {_MODES[mode]}")
    return found


_MODES = {
    "mount": "jobs read and write the container's folder",
    "ro_mount": "jobs only read the container's folder, as its mount point said",
    "download": "copied to each node before the command; what a job writes there stays on the node"
    " (mode: mount, where nodes have blobfuse2, reads and writes it)",
    "upload": "empty when the command begins; what a job writes there goes to the container",
}


def _mode_on(platform: str, entry: FolderEntry, *, is_read_only: bool) -> str:
    if platform not in LINKING:
        return "ro_mount" if is_read_only else "mount"
    return "upload" if entry.is_output and not is_read_only else "download"


def _taken_out(
    root: Path, file: str, values: dict[str, Any], loaded: ClusterFile, environ: Mapping[str, str]
) -> Iterator[str]:
    """Take out what ``submit`` would refuse on the platform, and name each with its line in Philly's file."""
    made = ClusterFile(root, root / file, {}, environ, Document(file, values, {})).cluster
    for path, error in made.job_refusals if made else ():
        here: Any = values
        for part in path[:-1]:
            here = here[part]
        del here[path[-1]]
        yield f"{loaded.document.place(path)}: {'.'.join(path)}: left out: {error.detail}"


def _cluster_file(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!a} cannot be the name of a cluster", hint="use letters, digits, - and _: --name NAME")
    return f"{CLUSTER_FOLDER}/{name}.yaml"
