"""The objects of a job with its pods, as one value. Pure; without secrets.

The Job is the last object and owns the others, or all of its Jobs do: https://kubernetes.io/docs/concepts/architecture/garbage-collection/.
Folders that the cluster's Blob CSI driver mounts were checked against its schemas only, never against a driver:
https://github.com/kubernetes-sigs/blob-csi-driver
"""

from __future__ import annotations

import base64
import copy
import io
import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blobsync.backends.kubernetes.object_names import (
    CONTAINER_NOTE,
    ELASTIC_NOTE,
    FAILURES_NOTE,
    IGNORED_NOTE,
    LEAST_NOTE,
    MANAGED_BY,
    NUMBERS_NOTE,
    QUEUE_LABEL,
    RELEASED_NOTE,
    RUN_ID_NOTE,
    RUN_LABEL,
    TASK_NOTE,
    TASKS_NOTE,
    US,
    JobName,
    job_names,
    object_name,
    pull_name,
)
from blobsync.backends.kubernetes.settings import RESTRICTED_CONTEXT, KubernetesSettings
from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.exit_codes import ENDED_ALONE_EXIT, SETUP_FAILED_EXIT, shell_code
from blobsync.base.locations import MountedLocation
from blobsync.base.records import dataclass
from blobsync.jobspec.log_frames import LAST_LINE_VARIABLE
from blobsync.jobspec.node_archive import travelling_sources
from blobsync.jobspec.node_secrets import rights_needed
from blobsync.jobspec.spec import OWN_SECRETS, TASK_VARIABLE, FolderLink, JobSpec, Secrets
from blobsync.jobspec.sweep import array_text

Object = Mapping[str, Any]

SECRETS_KEY = "secrets.json"
PULL_KEY = ".dockerconfigjson"
SAS_KEY = "azurestorageaccountsastoken"
# How often a failed index of an elastic job, or a task that was killed, is restarted.
_INDEX_RETRIES = 3
# The codes of a process after SIGTERM and SIGKILL.
_KILLED = (shell_code(-signal.SIGKILL), shell_code(-signal.SIGTERM))
_DAY = 86_400
# Each Job costs two runs of kubectl.
_MOST_JOBS = 500
_NO_CONTROLLER = {"controller": False, "blockOwnerDeletion": False}

_MODES = ("mount", "ro_mount")
_MOUNTED_AT = "/blobsync/mounts"
_PUBLIC_SUFFIX = "core.windows.net"

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


@dataclass(frozen=True, slots=True)
class KubernetesRequest:
    """The objects in the order in which ``kubectl apply -f`` creates them; values of Secrets are blank."""

    name: str
    objects: tuple[Object, ...]

    @property
    def jobs(self) -> tuple[Object, ...]:
        """One, or one for each task."""
        return tuple(each for each in self.objects if each["kind"] == "Job")

    @property
    def job(self) -> Object:
        """The first of them."""
        return self.jobs[0]

    def render(self, command: str) -> str:
        """The objects as YAML, for people and for ``kubectl apply -f``."""
        import yaml

        class Lines(yaml.SafeDumper):
            """Writes texts of several lines as blocks."""

            def ignore_aliases(self, data: Any) -> bool:
                return True

        def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
            style = "|" if "\n" in text else None
            return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

        Lines.add_representer(str, block)
        stream = io.StringIO()
        stream.write(f"# {command}\n# once the values of each Secret are filled in; each Job starts at once\n")
        yaml.dump_all(self.objects, stream, Dumper=Lines, sort_keys=False, width=2**31, explicit_start=True)
        return stream.getvalue()

    def suspended_jobs(self) -> list[dict[str, Any]]:
        """The Jobs as they are created: suspended, and outside any queue."""
        jobs = [copy.deepcopy(dict(job)) for job in self.jobs]
        for job in jobs:
            job["spec"]["suspend"] = True
            job["metadata"]["labels"].pop(QUEUE_LABEL, None)
        return jobs

    def release(self, when: int) -> dict[str, Any]:
        """The merge patch that starts a Job, or hands it to its queue."""
        metadata: dict[str, Any] = {"annotations": {RELEASED_NOTE: str(when)}}
        queue = self.job["metadata"]["labels"].get(QUEUE_LABEL)
        if queue:
            return {"metadata": {**metadata, "labels": {QUEUE_LABEL: queue}}}
        return {"metadata": metadata, "spec": {"suspend": False}}

    @property
    def user(self) -> int | None:
        """The user id of its pods; None: that of the image."""
        found: int | None = _pod(self.job).get("securityContext", {}).get("runAsUser")
        return found

    def restricted(self) -> KubernetesRequest:
        """The request with the fields that level ``restricted`` requires, unless the cluster file sets them."""
        made = replace(self, objects=copy.deepcopy(self.objects))
        for pod in map(_pod, made.jobs):
            for part, wanted in ((pod, RESTRICTED_CONTEXT.pod), (pod["containers"][0], RESTRICTED_CONTEXT.container)):
                part["securityContext"] = {**copy.deepcopy(dict(wanted)), **part.get("securityContext", {})}
        return made

    def owned(self, uids: Sequence[str], secrets: Secrets, login: str) -> list[dict[str, Any]]:
        """The other objects with their secrets and their owners, which are the Jobs with these ``uids``: they go with
        the last of them. **Contains the credentials**; ``login`` is the content of the pull secret.
        """
        names = [str(job["metadata"]["name"]) for job in self.jobs]
        owners = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, **_NO_CONTROLLER}
            for name, uid in zip(names, uids, strict=True)
        ]
        made = []
        for each in (each for each in self.objects if each["kind"] != "Job"):
            one = copy.deepcopy(dict(each))
            if one["kind"] == "Secret":
                one["stringData"] = filled(one, secrets, login)
            if one["kind"] != "PersistentVolume":
                # An object without a namespace cannot have an owner with one.
                one["metadata"]["ownerReferences"] = owners
            made.append(one)
        return made


def _pod(job: Object) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def filled(secret: Object, secrets: Secrets, login: str) -> dict[str, str]:
    """The values of one of the request's Secrets."""
    values = dict(secret["stringData"])
    if SECRETS_KEY in values:
        values[SECRETS_KEY] = secrets.to_json()
    if PULL_KEY in values:
        values[PULL_KEY] = login
    if SAS_KEY in values:
        values[SAS_KEY] = secrets.sas[secret["metadata"]["annotations"][CONTAINER_NOTE]].strip().lstrip("?")
    return values


def with_own_keys(secret: Object, secrets: Secrets) -> Secrets:
    """Renewed secrets, with the keys of seals that the job has had from its start: those of its own submitter."""
    had = Secrets()
    with suppress(KeyError, TypeError, ValueError):
        had = Secrets.from_json(base64.b64decode(secret["data"][SECRETS_KEY]).decode())
    keys = {name: value for name, value in had.env.items() if name in OWN_SECRETS}
    return replace(secrets, env={**secrets.env, **keys})


def pull_login(address: str, username: str, password: str) -> str:
    """https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/"""
    auth = base64.b64encode(f"{username}:{password}".encode()).decode() if password else ""
    return json.dumps({"auths": {address: {"username": username, "password": password, "auth": auth}}})


def build_kubernetes(spec: JobSpec, settings: KubernetesSettings) -> KubernetesRequest:
    """The request of one submission. Raises ``ConfigError`` for folders that cannot be mounted, ``UsageError`` for too
    many tasks of several nodes."""
    name = object_name(spec.run_id)
    names = job_names(spec)
    if len(names) > _MOST_JOBS:
        raise UsageError(
            f"{len(names):,} tasks of several nodes: Kubernetes has a Job for each, and a sweep at most {_MOST_JOBS:,}",
            hint="--nodes 1, or several sweeps",
        )
    mounts = _find_mounts(spec, name, settings.namespace)
    place = _Place(spec, name, settings.namespace)
    objects: list[Object] = [place.secret(name, "Opaque", {SECRETS_KEY: _blank(spec)})]
    if settings.registry:
        login = pull_login(*settings.registry, "")
        objects.append(place.secret(pull_name(name), "kubernetes.io/dockerconfigjson", {PULL_KEY: login}))
    for mount in mounts:
        values = {"azurestorageaccountname": mount.account, SAS_KEY: ""}
        objects.append(place.secret(mount.name, "Opaque", values, {CONTAINER_NOTE: mount.container}))
        objects += _volume(place, mount)
    told = _on_node(spec, mounts)
    files = {"job.json": told.to_json() + "\n", **travelling_sources(told)}
    objects.append(place.object("v1", "ConfigMap", name, {"data": files}))
    if _most_nodes(spec) > 1:
        service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN_LABEL: name}}
        objects.append(place.object("v1", "Service", name, {"spec": service}))
    objects += [_job(place, settings, mounts, each) for each in names]
    return KubernetesRequest(name, tuple(objects))


@dataclass(frozen=True, slots=True)
class _Place:
    spec: JobSpec
    name: str
    namespace: str

    def object(
        self, version: str, kind: str, name: str, content: Object, notes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name}
        if self.namespace and kind != "PersistentVolume":
            metadata["namespace"] = self.namespace
        metadata["labels"] = {MANAGED_BY: US, RUN_LABEL: self.name}
        metadata["annotations"] = {RUN_ID_NOTE: self.spec.run_id, **(notes or {})}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    def secret(
        self, name: str, kind: str, values: Mapping[str, str], notes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return self.object("v1", "Secret", name, {"type": kind, "stringData": dict(values)}, notes)


def _blank(spec: JobSpec) -> str:
    """The file of secrets with blank values, for display."""
    containers = [*rights_needed(spec), *([spec.logs.container] if spec.logs else [])]
    return Secrets(dict.fromkeys(containers, ""), dict.fromkeys(spec.secret_env, "")).to_json()


def _most_nodes(spec: JobSpec) -> int:
    return max(spec.nodes, spec.max_nodes or 0) if spec.is_elastic else spec.nodes


def _volume(place: _Place, mount: Mount) -> list[Object]:
    """https://github.com/kubernetes-sigs/blob-csi-driver/blob/master/docs/driver-parameters.md, static provisioning."""
    access = ["ReadOnlyMany" if mount.read_only else "ReadWriteMany"]
    source = {
        "driver": "blob.csi.azure.com",
        "readOnly": mount.read_only,
        "volumeHandle": f"{mount.account}_{mount.box}_{mount.name}",
        "volumeAttributes": {"containerName": mount.box, "protocol": "fuse2", **mount.attributes},
        "nodeStageSecretRef": {"name": mount.name, "namespace": place.namespace},
    }
    # "Delete" would remove the container with all its blobs.
    volume = {
        "capacity": {"storage": "1Pi"},
        "accessModes": access,
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "mountOptions": mount.options,
        "csi": source,
    }
    claim = {
        "accessModes": access,
        "resources": {"requests": {"storage": "1Pi"}},
        "volumeName": mount.name,
        "storageClassName": "",
    }
    return [
        place.object("v1", "PersistentVolume", mount.name, {"spec": volume}),
        place.object("v1", "PersistentVolumeClaim", mount.name, {"spec": claim}),
    ]


def _job(place: _Place, settings: KubernetesSettings, mounts: tuple[Mount, ...], name: JobName) -> Object:
    # A task's own Job is like that of a job without tasks.
    spec = place.spec if name.task is None else replace(place.spec, tasks=None)
    elastic = spec.is_elastic
    count = min(max(spec.nodes, spec.min_nodes or 1), spec.max_nodes or spec.nodes) if elastic else spec.nodes
    content: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": spec.tasks.count if spec.tasks else count,
        "parallelism": (spec.tasks.parallel or spec.tasks.count) if spec.tasks else count,
        **_when_it_fails(spec),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": settings.ttl_days * _DAY,
    }
    if spec.timeout_s:
        content["activeDeadlineSeconds"] = spec.timeout_s
    notes = {LEAST_NOTE: str(spec.min_nodes)} if elastic else {}
    notes |= {TASKS_NOTE: str(spec.tasks.count)} if spec.tasks else {}
    tasks = place.spec.tasks
    numbers = {NUMBERS_NOTE: array_text(replace(tasks, parallel=0))} if tasks and not spec.spread else {}
    own = numbers if name.task is None else {TASK_NOTE: str(name.task)}
    notes |= {**numbers, **own}
    notes |= {ELASTIC_NOTE: "true"} if elastic and settings.queue else {}
    job = place.object("batch/v1", "Job", name.own, {"spec": content}, notes)
    if settings.queue:
        job["metadata"]["labels"][QUEUE_LABEL] = settings.queue
    content["template"] = _pod_template(place.spec, name, settings, mounts, several=_most_nodes(spec) > 1)
    if own:
        content["template"]["metadata"]["annotations"] = own
    return job


def _when_it_fails(spec: JobSpec) -> dict[str, Any]:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy: the first rule that matches.

    With several nodes one failure ends all, since the others would hang. A single node is restarted after an eviction.
    An elastic job goes on with the nodes it has, and succeeds with its first one. Tasks have nothing to do with each
    other.
    """

    def policy(when_evicted: str, action: str, operator: str, *codes: int) -> dict[str, Any]:
        evicted = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        exits = {"onExitCodes": {"containerName": CONTAINER, "operator": operator, "values": list(codes)}}
        return {"podFailurePolicy": {"rules": [{"action": when_evicted, **evicted}, {"action": action, **exits}]}}

    if spec.tasks:
        # One that was killed is tried again. With any other code it would end in the same way. A backoffLimit beside it
        # would count the pods of all tasks together, and end those that still run; the server's default is no limit.
        return {"backoffLimitPerIndex": _INDEX_RETRIES, **policy("Ignore", "FailIndex", "NotIn", 0, *_KILLED)}
    if spec.is_elastic:
        failing = policy("Ignore", "FailIndex", "In", SETUP_FAILED_EXIT)
        success = {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
        return {"backoffLimitPerIndex": _INDEX_RETRIES, **failing, "successPolicy": success}
    # With a limit per index, the controller annotates each pod with the number of earlier ones.
    limit = {"backoffLimit": 0} if spec.nodes > 1 else {"backoffLimitPerIndex": 0}
    return {**limit, **policy("FailJob" if spec.nodes > 1 else "Ignore", "FailJob", "NotIn", 0)}


# -- pods --------------------------------------------------------------------------------------------------------------


class Mount:
    """A mounted container: the ``name`` of its objects, its account and own name, and its path in pods."""

    def __init__(self, spec: JobSpec, name: str, number: int, container: str) -> None:
        """Raises ``ConfigError`` for what the driver cannot mount."""
        folders = [folder for folder in spec.folders if folder.container == container and folder.mode in _MODES]
        url = urlsplit(container)
        self.account, dot, suffix = (url.hostname or "").partition(".blob.")
        self.box = url.path.strip("/")
        if not dot or "/" in self.box:
            raise ConfigError(
                f"{container} cannot be mounted: the Blob CSI driver takes accounts of Azure only",
                key=f"config_param.{folders[0].name}_folder",
                hint="mode: download, or mode: upload",
            )
        seconds = next((folder.cache_seconds for folder in folders if folder.cache_seconds is not None), None)
        self.options = ["-o allow_other", "--virtual-directory=true"]
        self.options += [f"--file-cache-timeout-in-seconds={seconds}"] if seconds is not None else []
        self.options += [word for folder in folders for word in folder.fuse_options if word not in self.options]
        self.read_only = all(folder.mode == "ro_mount" for folder in folders)
        self.options += ["-o ro"] if self.read_only else []
        other = {"storageEndpointSuffix": suffix} if suffix != _PUBLIC_SUFFIX else {}
        self.attributes = {"storageAccount": self.account, **other}
        self.name, self.container, self.path = name, container, f"{_MOUNTED_AT}/{number}"


def _find_mounts(spec: JobSpec, name: str, namespace: str) -> tuple[Mount, ...]:
    """One mount for each container with folders to mount. Raises ``ConfigError`` for what the driver cannot mount."""
    containers = _containers(spec)
    if containers and not namespace:
        raise ConfigError(
            "is missing: the driver finds the secret of a mount by its namespace",
            key="kubernetes.namespace",
            hint="kubernetes: {namespace: default}, or mode: download",
        )
    names = mount_names(spec, name)
    return tuple(Mount(spec, names[number], number, container) for number, container in enumerate(containers))


def mount_names(spec: JobSpec, name: str) -> tuple[str, ...]:
    """The name of the volume, claim and Secret of each mount; ``name`` is that of the job's other objects."""
    return tuple(f"{name}-{number}" for number in range(len(_containers(spec))))


def _containers(spec: JobSpec) -> tuple[str, ...]:
    """The containers with folders to mount; each has its own volume."""
    return tuple(dict.fromkeys(folder.container for folder in spec.folders if folder.mode in _MODES))


def _on_node(spec: JobSpec, mounts: Sequence[Mount]) -> JobSpec:
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


def _pod_template(
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
