"""The pods of a job: containers, volumes, and resources. Pure.

Folders that the cluster's Blob CSI driver mounts were checked against its schemas only, never against a driver:
https://github.com/kubernetes-sigs/blob-csi-driver
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blobsync.backends.kubernetes.object_names import (
    FAILURES_NOTE,
    IGNORED_NOTE,
    MANAGED_BY,
    RUN_LABEL,
    US,
    JobName,
    pull_name,
)
from blobsync.backends.kubernetes.settings import KubernetesSettings
from blobsync.base.errors import ConfigError
from blobsync.base.exit_codes import ENDED_ALONE_EXIT
from blobsync.base.locations import MountedLocation
from blobsync.jobspec.log_frames import LAST_LINE_VARIABLE
from blobsync.jobspec.node_archive import travelling_sources
from blobsync.jobspec.spec import TASK_VARIABLE, FolderLink, JobSpec

_MODES = ("mount", "ro_mount")
MOUNTED_AT = "/blobsync/mounts"
_PUBLIC_SUFFIX = "core.windows.net"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted container: the name of its objects, the account, its own name, and its path in pods."""

    name: str
    container: str
    account: str
    box: str
    path: str
    read_only: bool
    options: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)


def find_mounts(spec: JobSpec, name: str, namespace: str) -> tuple[Mount, ...]:
    """One mount for each container with folders to mount. Raises ``ConfigError`` for what the driver cannot mount."""
    containers = _containers(spec)
    if containers and not namespace:
        raise ConfigError(
            "is missing: the driver finds the secret of a mount by its namespace",
            key="kubernetes.namespace",
            hint="kubernetes: {namespace: default}, or mode: download",
        )
    names = mount_names(spec, name)
    return tuple(_mount(spec, names[number], number, container) for number, container in enumerate(containers))


def mount_names(spec: JobSpec, name: str) -> tuple[str, ...]:
    """The name of the volume, claim and Secret of each mount; ``name`` is that of the job's other objects."""
    return tuple(f"{name}-{number}" for number in range(len(_containers(spec))))


def _containers(spec: JobSpec) -> tuple[str, ...]:
    """The containers with folders to mount; each has its own volume."""
    return tuple(dict.fromkeys(folder.container for folder in spec.folders if folder.mode in _MODES))


def _mount(spec: JobSpec, name: str, number: int, container: str) -> Mount:
    folders = [folder for folder in spec.folders if folder.container == container and folder.mode in _MODES]
    host, _, box = (urlsplit(container).hostname or ""), "", urlsplit(container).path.strip("/")
    account, dot, suffix = host.partition(".blob.")
    if not dot or "/" in box:
        raise ConfigError(
            f"{container} cannot be mounted: the Blob CSI driver takes accounts of Azure only",
            key=f"config_param.{folders[0].name}_folder",
            hint="mode: download, or mode: upload",
        )
    seconds = next((folder.cache_seconds for folder in folders if folder.cache_seconds is not None), None)
    options = ["-o allow_other", "--virtual-directory=true"]
    options += [f"--file-cache-timeout-in-seconds={seconds}"] if seconds is not None else []
    options += [word for folder in folders for word in folder.fuse_options if word not in options]
    read_only = all(folder.mode == "ro_mount" for folder in folders)
    options += ["-o ro"] if read_only else []
    other = {"storageEndpointSuffix": suffix} if suffix != _PUBLIC_SUFFIX else {}
    attributes = {"storageAccount": account, **other}
    return Mount(name, container, account, box, f"{MOUNTED_AT}/{number}", read_only, tuple(options), attributes)


def on_node(spec: JobSpec, mounts: Sequence[Mount]) -> JobSpec:
    """The specification for the node: mounts become links to their volumes."""
    places = {mount.container: mount.path for mount in mounts}

    def placed(folder: FolderLink) -> FolderLink:
        if folder.mode not in _MODES:
            return folder
        path = f"{places[folder.container]}/{folder.path}".rstrip("/")
        if folder.include:
            return replace(folder, mode="download", container=str(MountedLocation(Path(path))), path="")
        return replace(folder, mode="link", source=path, read_only=folder.mode == "ro_mount")

    return replace(spec, folders=tuple(map(placed, spec.folders)))


CONTAINER = "main"
FILES, _SECRETS, _WORK = "/blobsync/files", "/blobsync/secrets", "/blobsync/work"
RUN_DIR = f"{_WORK}/run"
_ENDED_ALONE = f"{_WORK}/ended-alone"
# What is in this file at the end of a container is in the pod's status.
_SAID = "/blobsync/last-line"
# After SIGTERM: the program's own ten seconds, then the last uploads.
_GRACE_SECONDS = 60
# A container's first process ignores signals without a handler, and Python takes a while to install one.
# Programs write below HOME: for a user that the image does not know that is the root folder.
_FIRST = f"""\
[ -w "${{HOME:-/}}" ] || export HOME={_WORK}
"$@" & child=$!
trap 'kill -TERM "$child"' TERM
wait "$child"; code=$?
while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done
[ ! -e {_ENDED_ALONE} ] || code={ENDED_ALONE_EXIT}
exit "$code"
"""
# Ends a task alone: its index fails, and no other pod comes. An API for that does not exist.
END_ALONE = f": > {_ENDED_ALONE}; kill -TERM 1"
# Readable by all users of the container: the job may run under any user id.
_READABLE = 0o444


def node_files(spec: JobSpec) -> dict[str, str]:
    """The files from which a node starts, by name; without secrets."""
    return {"job.json": spec.to_json() + "\n", **travelling_sources(spec)}


def pod_template(
    spec: JobSpec, name: JobName, settings: KubernetesSettings, mounts: Sequence[Mount], *, several: bool
) -> dict[str, Any]:
    """``several``: the job has, or may get, more than one node, which find each other by name."""
    labels = {MANAGED_BY: US, RUN_LABEL: name.run}
    content: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    if several:
        content["subdomain"] = name.run
    if settings.service_account:
        content["serviceAccountName"] = settings.service_account
        # https://azure.github.io/azure-workload-identity/docs/topics/service-account-labels-and-annotations.html
        labels["azure.workload.identity/use"] = "true"
    if settings.node_selector:
        content["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        content["tolerations"] = [dict(one) for one in settings.tolerations]
    if settings.priority_class:
        content["priorityClassName"] = settings.priority_class
    if settings.security.pod:
        content["securityContext"] = dict(settings.security.pod)
    pull = [settings.pull_secret] if settings.pull_secret else []
    pull += [pull_name(name.run)] if settings.registry else []
    if pull:
        content["imagePullSecrets"] = [{"name": each} for each in pull]
    content["containers"] = [_container(spec, name, settings, mounts, several)]
    content["volumes"] = _volumes(name.run, settings, mounts)
    return {"metadata": {"labels": labels}, "spec": content}


def _container(
    spec: JobSpec, name: JobName, settings: KubernetesSettings, mounts: Sequence[Mount], several: bool
) -> dict[str, Any]:
    command = ["/bin/sh", "-c", _FIRST, "blobsync", _literal(settings.python), "-I", f"{FILES}/bootstrap.py", "node"]
    command += ["--job", f"{FILES}/job.json", "--secrets", f"{_SECRETS}/secrets.json"]
    command += ["--run-dir", RUN_DIR, "--echo"]
    command += ["--keep-root", settings.keep_root, "--sync-seconds", str(settings.sync_seconds)]
    volumes = [
        {"name": "files", "mountPath": FILES, "readOnly": True},
        {"name": "secrets", "mountPath": _SECRETS, "readOnly": True},
        {"name": "work", "mountPath": _WORK},
    ]
    volumes += [{"name": "shm", "mountPath": "/dev/shm"}] if settings.shm_size else []  # noqa: S108 - of the pod
    for number, mount in enumerate(mounts):
        volumes.append({"name": f"mount-{number}", "mountPath": mount.path, "readOnly": mount.read_only})
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": command,
        # The end of a task, without a request for each: of one that is killed, what the kubelet has of its log.
        **(
            {"terminationMessagePath": _SAID, "terminationMessagePolicy": "FallbackToLogsOnError"} if spec.tasks else {}
        ),
        "env": _environment(spec, name, settings, several),
        "resources": {"limits": limits} if (limits := _limits(spec, settings)) else {},
        "volumeMounts": volumes,
        **({"securityContext": dict(settings.security.container)} if settings.security.container else {}),
    }


def _environment(spec: JobSpec, name: JobName, settings: KubernetesSettings, several: bool) -> list[dict[str, Any]]:
    """Variables for the node program; the job's own are in its specification, secret ones in the Secret."""
    plain = {"BLOBSYNC_SCRATCH": _literal(settings.scratch or _WORK)}
    if several:
        # The master is index 0: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
        plain["MASTER_ADDR"] = f"{name.own}-0.{name.run}"
        nodes = max(spec.nodes, spec.max_nodes or 0)
        plain["BLOBSYNC_HOSTS"] = ",".join(f"{name.own}-{number}.{name.run}" for number in range(nodes))
    if name.task is not None:
        plain[TASK_VARIABLE] = str(name.task)
    if spec.tasks:
        plain[LAST_LINE_VARIABLE] = _SAID
    entries: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in plain.items()]
    for key, note in (("BLOBSYNC_FAILURES", FAILURES_NOTE), ("BLOBSYNC_EVICTIONS", IGNORED_NOTE)):
        entries.append({"name": key, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{note}']"}}})
    return entries


def _literal(text: str) -> str:
    """Escape a text: the kubelet replaces ``$(NAME)`` and ``$$`` in command lines and variables.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$")


def _limits(spec: JobSpec, settings: KubernetesSettings) -> Mapping[str, str]:
    cpus = str(spec.tasks.cpus) if spec.tasks and spec.tasks.cpus else ""
    asked = {"cpu": settings.cpu or cpus, "memory": settings.memory}
    if spec.gpus_per_node:
        asked[settings.gpu_resource] = str(spec.gpus_per_node)
    return {name: value for name, value in asked.items() if value}


def _volumes(name: str, settings: KubernetesSettings, mounts: Sequence[Mount]) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "files", "configMap": {"name": name, "defaultMode": _READABLE}},
        {"name": "secrets", "secret": {"secretName": name, "defaultMode": _READABLE}},
        {"name": "work", "emptyDir": {}},
    ]
    if settings.shm_size:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}})
    for number, mount in enumerate(mounts):
        claim = {"claimName": mount.name, "readOnly": mount.read_only}
        volumes.append({"name": f"mount-{number}", "persistentVolumeClaim": claim})
    return volumes
