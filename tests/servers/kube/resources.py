"""The kinds of object that the server stores, and the documents by which kubectl discovers them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.0",
    "gitCommit": "0" * 40,
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
# The content type with which a client requests all groups in one document.
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


_SINGLY = tuple(each for each in VERBS if each != "deletecollection")


@dataclass(frozen=True)
class Resource:
    """``answers_with_object``: DELETE returns the removed object, not a Status."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    answers_with_object: bool = False

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """``jobs.batch``, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def root(self) -> str:
        return f"apis/{self.group_version}" if self.group else f"api/{self.version}"


RESOURCES = (
    Resource("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Resource("", "v1", "events", "Event", short=("ev",)),
    Resource("", "v1", "namespaces", "Namespace", False, ("ns",), ("status",), _SINGLY, True),
    Resource("", "v1", "nodes", "Node", False, ("no",), ("status",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), answers_with_object=True),
    Resource("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), answers_with_object=True),
    Resource(
        *("", "v1", "pods", "Pod"),
        short=("po",),
        subresources=("attach", "eviction", "exec", "log", "portforward", "status"),
        answers_with_object=True,
    ),
    Resource("", "v1", "resourcequotas", "ResourceQuota", short=("quota",), subresources=("status",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",), answers_with_object=True),
    Resource("", "v1", "services", "Service", short=("svc",), subresources=("status",), answers_with_object=True),
    Resource(
        "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=("create",)
    ),
    Resource("batch", "v1", "jobs", "Job", subresources=("status",)),
)
_KINDS = {"attach": "PodAttachOptions", "exec": "PodExecOptions", "portforward": "PodPortForwardOptions"}
_KINDS |= {"eviction": "Eviction"}
_GROUPS = sorted({(each.group, each.version) for each in RESOURCES if each.group})


def of_kind(kind: str) -> Resource:
    return next(each for each in RESOURCES if each.kind == kind)


def find(group: str, version: str, plural: str) -> Resource | None:
    wanted = (group, version, plural)
    return next((each for each in RESOURCES if (each.group, each.version, each.plural) == wanted), None)


def discovery(path: str, accept: str) -> tuple[str, Any] | None:
    """The document at ``path`` and its content type; None if there is none."""
    whole = "as=APIGroupDiscoveryList" in accept
    if path == "version":
        return "application/json", VERSION
    if path == "api":
        plain: Any = {"kind": "APIVersions", "versions": ["v1"]}
        return (AGGREGATED, _aggregated([("", "v1")])) if whole else ("application/json", plain)
    if path == "apis":
        plain = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in _GROUPS]}
        return (AGGREGATED, _aggregated(_GROUPS)) if whole else ("application/json", plain)
    if path == "openapi/v2":
        # kubectl requests it when it reads a List; an empty document in protobuf.
        return "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", b""
    if path == "openapi/v3":
        return "application/json", {"paths": {root: {"serverRelativeURL": _openapi_url(root)} for root in _roots()}}
    if path.startswith("openapi/v3/") and path.removeprefix("openapi/v3/") in _roots():
        return "application/json", _openapi(path.removeprefix("openapi/v3/"))
    if path in _roots():
        return "application/json", _resource_list(path)
    return None


def _roots() -> list[str]:
    return ["api/v1", *(f"apis/{group}/{version}" for group, version in _GROUPS)]


def _group(group: str, version: str) -> dict[str, Any]:
    one = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [one], "preferredVersion": one}


def _resource_list(root: str) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for each in (each for each in RESOURCES if each.root == root):
        one: dict[str, Any] = {"name": each.plural, "singularName": each.kind.lower(), "namespaced": each.namespaced}
        one |= {"categories": _categories(each)}
        entries.append({**one, "kind": each.kind, "verbs": list(each.verbs), "shortNames": list(each.short)})
        entries += [
            {**one, "name": f"{each.plural}/{sub}", "singularName": "", "kind": _KINDS.get(sub, each.kind)}
            | {"verbs": _sub_verbs(sub)}
            for sub in each.subresources
        ]
    version = root.split("/", 1)[1]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}


def _categories(resource: Resource) -> list[str]:
    return ["all"] if resource.kind in ("Job", "Pod", "Service") else []


def _sub_verbs(name: str) -> list[str]:
    if name == "status":
        return ["get", "patch", "update"]
    return {"log": ["get"], "eviction": ["create"]}.get(name, ["create", "get"])


def _aggregated(groups: list[tuple[str, str]]) -> dict[str, Any]:
    items = []
    for group, version in groups:
        found = [_described(each) for each in RESOURCES if (each.group, each.version) == (group, version)]
        metadata = {"name": group} if group else {}
        items.append(
            {"metadata": metadata, "versions": [{"version": version, "resources": found, "freshness": "Current"}]}
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _described(resource: Resource) -> dict[str, Any]:
    kind = {"group": "", "version": "", "kind": resource.kind}
    return {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.kind.lower(),
        "verbs": list(resource.verbs),
        "shortNames": list(resource.short),
        "categories": _categories(resource),
        "subresources": [
            {"subresource": each, "responseKind": kind, "verbs": _sub_verbs(each)} for each in resource.subresources
        ],
    }


def _openapi_url(root: str) -> str:
    return f"/openapi/v3/{root}?hash={hashlib.sha512(root.encode()).hexdigest().upper()}"


def _openapi(root: str) -> dict[str, Any]:
    """The part that kubectl reads: each kind accepts a patch whose fields the server validates."""
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    parameters = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in names]
    paths = {}
    for each in (each for each in RESOURCES if each.root == root):
        place = f"/{root}/namespaces/{{namespace}}/" if each.namespaced else f"/{root}/"
        kind = {"group": each.group, "version": each.version, "kind": each.kind}
        act = {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": {}}
        patch = {**act, "x-kubernetes-action": "patch", "operationId": f"patch{each.kind}"}
        paths[f"{place}{each.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "1.36"}, "paths": paths, "components": {}}
