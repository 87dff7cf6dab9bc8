"""The objects of a job, as one value. Pure; without secrets.

The Job is the last object and owns the others, or all of its Jobs do: https://kubernetes.io/docs/concepts/architecture/garbage-collection/.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from blobsync.backends.kubernetes.object_names import (
    CONTAINER_NOTE,
    ELASTIC_NOTE,
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
from blobsync.backends.kubernetes.pod import Mount, find_mounts, node_files, on_node, pod_template
from blobsync.backends.kubernetes.settings import RESTRICTED_CONTEXT, KubernetesSettings
from blobsync.base.errors import UsageError
from blobsync.base.exit_codes import SETUP_FAILED_EXIT, shell_code
from blobsync.jobspec.node_secrets import rights_needed
from blobsync.jobspec.spec import OWN_SECRETS, JobSpec, Secrets
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
    mounts = find_mounts(spec, name, settings.namespace)
    place = _Place(spec, name, settings.namespace)
    objects: list[Object] = [place.secret(name, "Opaque", {SECRETS_KEY: _blank(spec)})]
    if settings.registry:
        login = pull_login(settings.registry.address, settings.registry.username, "")
        objects.append(place.secret(pull_name(name), "kubernetes.io/dockerconfigjson", {PULL_KEY: login}))
    for mount in mounts:
        values = {"azurestorageaccountname": mount.account, SAS_KEY: ""}
        objects.append(place.secret(mount.name, "Opaque", values, {CONTAINER_NOTE: mount.container}))
        objects += _volume(place, mount)
    objects.append(place.object("v1", "ConfigMap", name, {"data": node_files(on_node(spec, mounts))}))
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
        "mountOptions": list(mount.options),
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
    content["template"] = pod_template(place.spec, name, settings, mounts, several=_most_nodes(spec) > 1)
    if own:
        content["template"]["metadata"]["annotations"] = own
    return job


def _when_it_fails(spec: JobSpec) -> dict[str, Any]:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy: the first rule that matches.

    With several nodes one failure ends all, since the others would hang. A single node is restarted after an eviction.
    An elastic job goes on with the nodes it has, and succeeds with its first one. Tasks have nothing to do with each
    other.
    """
    evicted = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}

    def exits(operator: str, code: int) -> dict[str, Any]:
        return {"onExitCodes": {"containerName": "main", "operator": operator, "values": [code]}}

    if spec.tasks:
        # One that was killed is tried again. With any other code it would end in the same way.
        failed = {"onExitCodes": {"containerName": "main", "operator": "NotIn", "values": [0, *_KILLED]}}
        return {
            "backoffLimit": _INDEX_RETRIES * spec.tasks.count,
            "backoffLimitPerIndex": _INDEX_RETRIES,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", **evicted}, {"action": "FailIndex", **failed}],
            },
        }
    if spec.is_elastic:
        rules = [{"action": "Ignore", **evicted}, {"action": "FailIndex", **exits("In", SETUP_FAILED_EXIT)}]
        success = {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
        return {
            "backoffLimitPerIndex": _INDEX_RETRIES,
            "podFailurePolicy": {"rules": rules},
            "successPolicy": success,
        }
    rules = [
        {"action": "FailJob" if spec.nodes > 1 else "Ignore", **evicted},
        {"action": "FailJob", **exits("NotIn", 0)},
    ]
    # With a limit per index, the controller annotates each pod with the number of earlier ones.
    limit = {"backoffLimit": 0} if spec.nodes > 1 else {"backoffLimitPerIndex": 0}
    return {**limit, "podFailurePolicy": {"rules": rules}}
