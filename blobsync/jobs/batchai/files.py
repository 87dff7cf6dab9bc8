"""From the files of Batch AI and Philly to what ``submit --file`` submits, and to what ``convert`` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import ConfigError, UsageError
from blobsync.config.account_files import ACCOUNT_FOLDER
from blobsync.config.accounts import AccountFile, first_of
from blobsync.config.job_notes import IDLE
from blobsync.config.known_keys import PHILLY_MARKS
from blobsync.config.loader import CLUSTER_FOLDER, ClusterFile, reload_cluster
from blobsync.config.model import Cluster
from blobsync.config.new_cluster import NewFile, flattened, with_changes
from blobsync.config.typed import CODE_KEY
from blobsync.jobs.batchai.job_file import read_job_file
from blobsync.jobs.batchai.recorded_job import RECORDED, recorded_job
from blobsync.jobs.batchai.translate import NewAccount, Translation, translate_job
from blobsync.jobs.describe import demand_platform, philly_variables
from blobsync.jobs.spec import JobSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PHILLY_COMMAND = ("python", "train.py")


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
    demand_platform(cluster)
    return translate_job(read_job_file(job, cluster_file, environ), cluster, accounts_on_file(cluster.root, environ))


def translate_again(cluster: Cluster, spec: JobSpec, environ: Mapping[str, str]) -> MovedJob | None:
    """A job that was submitted from a job file, as the same file on ``cluster``; None for other jobs, and where the
    cluster has the file's keys already.

    Its secret variables are those of ``cluster``, because their values are recorded nowhere. Raises ``ConfigError`` for
    what cannot be honoured there.
    """
    found = recorded_job(spec)
    if found is None or cluster.written is None or cluster.text(f"batchai.{RECORDED}"):
        return None
    job, secrets = found
    translation = translate_job(job, cluster, accounts_on_file(cluster.root, environ))
    values = {**translation.values, "secret_env": [*cluster.texts("secret_env"), *secrets]} if secrets else None
    changed = {**cluster.written.overrides, **flattened(values or translation.values)}
    moved = reload_cluster(cluster.root, replace(cluster.written, overrides=changed), environ=environ, anew=True)
    return MovedJob(moved, translation, secrets)


def accounts_on_file(root: Path, environ: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The account files of a project, by account and container; the first of several, those that are wrong left out."""
    found: dict[tuple[str, str], str] = {}
    folder = root / ACCOUNT_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix not in (".yaml", ".yml"):
            continue
        name = f"{ACCOUNT_FOLDER}/{path.name}"
        try:
            account = AccountFile(path, name, environ).account
        except ConfigError:
            continue
        if account:
            found.setdefault((account.account_name, account.container_name), name)
    return found


def convert_batchai(
    base: Cluster, name: str, job: Path, cluster_file: Path | None, environ: Mapping[str, str]
) -> Conversion:
    """The job file as the cluster ``name``, made of the cluster ``base``. Raises ``ConfigError``."""
    file = _cluster_file(name)
    made = translate_job(
        read_job_file(job, cluster_file, environ), base, accounts_on_file(base.root, environ), writes=True
    )
    start = base.written.values if base.written else {}
    values = with_changes({"platform": base.platform, **start}, made.values)
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


def convert_philly(root: Path, path: Path, name: str, platform: str, environ: Mapping[str, str]) -> Conversion:
    """A Philly file as the cluster ``name`` on ``platform``. Raises ``ConfigError``."""
    file = _cluster_file(name)
    loaded = ClusterFile(root, path.absolute(), {}, environ)
    cluster = loaded.cluster
    if cluster is None or cluster.written is None:
        raise first_of(loaded.problems)
    if not PHILLY_MARKS & cluster.written.values.keys():
        marks = ", ".join(sorted(PHILLY_MARKS))
        raise UsageError(f"{path} is no file of Philly: it has none of {marks}", hint="use it as it is: -c NAME")
    kept = {
        key: value
        for key, value in cluster.written.values.items()
        if key not in IDLE
        and key not in PHILLY_MARKS
        and key not in ("azure_blob_config_file", "config_param", "docker_tag")
    }
    values: dict[str, Any] = {**kept, "platform": platform, "config_param": _entries(cluster)}
    if told := philly_variables(cluster):
        values["env"] = {**told, **cluster.mapping("env")}
    tag = cluster.text("docker_tag")
    if tag and cluster.docker.image and not cluster.docker.tag:
        values["docker"] = {**dict(values.get("docker", {})), "tag": tag}
    comment = f"Converted from {path.name}, a file of Philly, by: blobsync convert philly"
    gone = tuple(note for note in cluster.job_notes if "docker_tag" not in note)
    command = ("blobsync", "-c", name, "submit", *_PHILLY_COMMAND)
    return Conversion((NewFile(file, comment, values),), command, (*cluster.warnings, *gone))


def _entries(cluster: Cluster) -> dict[str, Any]:
    """Each entry with its own account file, and its path below the container, not below a mount point."""
    found: dict[str, Any] = {}
    given = cluster.mapping("config_param")
    if cluster.code:
        found[CODE_KEY] = {"azure_blob_config_file": cluster.code.account.file, "path": cluster.code.path}
    for entry in cluster.folders:
        options = given.get(entry.key)
        more = dict(options) if isinstance(options, Mapping) else {}
        if entry.blob_fuse_options:
            more["blob_fuse_options"] = list(entry.blob_fuse_options)
        found[entry.key] = {**more, "azure_blob_config_file": entry.account.file, "path": entry.path}
    return found


def _cluster_file(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!a} cannot be the name of a cluster", hint="use letters, digits, - and _: --name NAME")
    return f"{CLUSTER_FOLDER}/{name}.yaml"
