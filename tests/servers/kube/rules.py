"""Rules of the server beyond the schemas, with the server's messages.

The rules of Jobs are those of ``pkg/apis/batch/validation/validation.go`` in github.com/kubernetes/kubernetes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.servers.kube import errors
from tests.servers.kube.errors import Fault, Verbatim
from tests.servers.kube.quantities import canonical, parse
from tests.servers.kube.resources import Resource

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NUMBERS = (
    *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
    *("backoffLimitPerIndex", "maxFailedIndexes"),
)
_SCHEDULING = ("nodeSelector", "tolerations", "schedulingGates")
# Resources with fractions.
_DIVISIBLE = ("cpu", "memory", "ephemeral-storage")


def check(obj: dict[str, Any], resource: Resource) -> None:
    """Refuse an invalid object."""
    _refuse(resource, obj, [*_metadata(obj), *(_job(obj) if obj["kind"] == "Job" else _others(obj))])


def check_update(old: dict[str, Any], new: dict[str, Any], resource: Resource) -> None:
    """Refuse a change of immutable fields, or an invalid new object."""
    faults: list[Fault] = []
    for key in ("uid", "name"):
        if new["metadata"].get(key, old["metadata"][key]) != old["metadata"][key]:
            faults.append(Fault(f"metadata.{key}", new["metadata"][key], "field is immutable"))
    changed = any(old.get(key) != new.get(key) for key in ("data", "immutable"))
    if resource.kind == "Secret" and old.get("immutable") and changed:
        faults.append(Fault("data", None, "field is immutable when `immutable` is set", "Forbidden"))
    if resource.kind == "Secret" and old.get("type") != new.get("type"):
        faults.append(Fault("type", new.get("type"), "field is immutable"))
    if resource.kind == "Job":
        faults += _job_update(old["spec"], new["spec"], old.get("status", {}))
    _refuse(resource, new, faults)
    check(new, resource)


def _refuse(resource: Resource, obj: dict[str, Any], faults: list[Fault]) -> None:
    if faults:
        raise errors.invalid(resource, obj["metadata"].get("name", ""), faults)


def _metadata(obj: dict[str, Any]) -> Iterator[Fault]:
    meta = obj["metadata"]
    name, label = meta.get("name", ""), obj["kind"] in ("Service", "Namespace")
    if not name:
        yield Fault("metadata.name", None, "name or generateName is required", "Required value")
    elif len(name) > (63 if label else 253):
        yield Fault("metadata.name", name, f"must be no more than {63 if label else 253} characters")
    elif not (_LABEL if label else _SUBDOMAIN).fullmatch(name):
        yield Fault("metadata.name", name, _LABEL_TEXT if label else _SUBDOMAIN_TEXT)
    yield from _labels(meta, "metadata.labels")


def _labels(meta: dict[str, Any], field: str) -> Iterator[Fault]:
    for value in (meta.get("labels") or {}).values():
        if len(value) > 63:
            yield Fault(field, value, "must be no more than 63 bytes")
        elif not _LABEL_VALUE.fullmatch(value):
            yield Fault(field, value, _LABEL_VALUE_TEXT)


def _others(obj: dict[str, Any]) -> Iterator[Fault]:
    if obj["kind"] == "Pod":
        yield from _pod_spec(obj["spec"], "spec")
    if obj["kind"] == "Service" and obj["spec"]["clusterIP"] != "None" and not obj["spec"].get("ports"):
        yield Fault("spec.ports", None, "", "Required value")


def _pod_spec(spec: dict[str, Any], at: str) -> Iterator[Fault]:
    if not spec.get("containers"):
        yield Fault(f"{at}.containers", None, "", "Required value")
    volumes = {each["name"] for each in spec.get("volumes") or []}
    for group in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(group) or []):
            yield from _container(container, f"{at}.{group}[{number}]", volumes)
    for field in ("hostname", "subdomain"):
        value = spec.get(field)
        if value and len(value) > 63:
            yield Fault(f"{at}.{field}", value, "must be no more than 63 characters")
        elif value and not _LABEL.fullmatch(value):
            yield Fault(f"{at}.{field}", value, _LABEL_TEXT)


def _container(container: dict[str, Any], at: str, volumes: set[str]) -> Iterator[Fault]:
    if not container.get("image"):
        yield Fault(f"{at}.image", None, "", "Required value")
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield Fault(f"{at}.volumeMounts[{number}].name", mount["name"], "", "Not found")
    for what in ("limits", "requests"):
        for name, amount in (container["resources"].get(what) or {}).items():
            if name not in _DIVISIBLE and parse(amount) % 1:
                yield Fault(f"{at}.resources.{what}[{name}]", canonical(amount), "must be an integer")


def _job(obj: dict[str, Any]) -> Iterator[Fault]:
    spec, name = obj["spec"], obj["metadata"].get("name", "")
    template, restart = spec["template"], spec["template"]["spec"].get("restartPolicy")
    yield from _job_numbers(spec)
    yield from _policies(spec)
    yield from _labels(template["metadata"], "spec.template.labels")
    yield from _pod_spec(template["spec"], "spec.template.spec")
    at = "spec.template.spec.restartPolicy"
    if restart in (None, "Always"):
        yield Fault(at, None, 'valid values: "OnFailure", "Never"', "Required value")
    elif restart not in ("OnFailure", "Never"):
        yield Fault(at, restart, 'supported values: "OnFailure", "Never"', "Unsupported value")
    elif restart != "Never" and spec.get("podFailurePolicy"):
        yield Fault(at, restart, 'only "Never" is supported when podFailurePolicy is specified')
    if spec["completionMode"] == "Indexed" and spec.get("completions"):
        pod = f"{name}-{spec['completions'] - 1}"
        if len(pod) > 63 or not _LABEL.fullmatch(pod):
            yield Fault("metadata.name", name, f"will not able to create pod with invalid DNS label: {pod}")


def _job_numbers(spec: dict[str, Any]) -> Iterator[Fault]:
    completions, most = spec.get("completions"), spec.get("maxFailedIndexes")
    for field in _NUMBERS:
        if (spec.get(field) or 0) < 0:
            yield Fault(f"spec.{field}", spec[field], "must be greater than or equal to 0")
    if most is not None and spec.get("backoffLimitPerIndex") is None:
        yield Fault("spec.backoffLimitPerIndex", None, "when maxFailedIndexes is specified", "Required value")
    if spec["completionMode"] != "Indexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if spec.get(field) is not None:
                yield Fault(f"spec.{field}", spec[field], "requires indexed completion mode")
    elif completions is None:
        yield Fault("spec.completions", None, "when completion mode is Indexed", "Required value")
    elif most is not None and most > completions:
        yield Fault("spec.maxFailedIndexes", most, "must be less than or equal to completions")


def _policies(spec: dict[str, Any]) -> Iterator[Fault]:
    containers = [*spec["template"]["spec"].get("containers", []), *spec["template"]["spec"].get("initContainers", [])]
    names = {each["name"] for each in containers}
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        at, codes, patterns = (
            f"spec.podFailurePolicy.rules[{number}]",
            rule.get("onExitCodes"),
            rule.get("onPodConditions"),
        )
        if rule["action"] == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            yield Fault(f"{at}.action", "FailIndex", "requires the backoffLimitPerIndex to be set")
        if codes and codes.get("containerName") and codes["containerName"] not in names:
            text = "must be one of the container or initContainer names in the pod template"
            yield Fault(f"{at}.onExitCodes.containerName", codes["containerName"], text)
        if codes and not codes["values"]:
            yield Fault(f"{at}.onExitCodes.values", [], "at least one value is required")
        if codes and patterns:
            yield Fault(at, Verbatim(""), "specifying both OnExitCodes and OnPodConditions is not supported")
        if not codes and not patterns:
            yield Fault(at, Verbatim(""), "specifying one of OnExitCodes and OnPodConditions is required")
    if spec["podReplacementPolicy"] == "TerminatingOrFailed" and spec.get("podFailurePolicy"):
        text = 'supported values: "Failed"'
        yield Fault("spec.podReplacementPolicy", "TerminatingOrFailed", text, "Unsupported value")


def _job_update(old: dict[str, Any], new: dict[str, Any], status: dict[str, Any]) -> Iterator[Fault]:
    """Check changed sizes. ``parallelism`` alone may change: there are never more pods than ``completions``."""
    if old["completionMode"] == "Indexed" and old.get("completions") != new.get("completions"):
        if new.get("completions") != new.get("parallelism"):
            text = "can only be modified in tandem with spec.parallelism"
            yield Fault("spec.completions", new.get("completions"), text)
    elif old.get("completions") != new.get("completions"):
        yield Fault("spec.completions", new.get("completions"), "field is immutable")
    for field in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy"):
        if old.get(field) != new.get(field):
            yield Fault(f"spec.{field}", new.get(field), "field is immutable")
    before, after = old["template"], new["template"]
    if old.get("suspend") and "startTime" not in status:
        before, after = _without_scheduling(before), _without_scheduling(after)
    if before != after:
        yield Fault("spec.template", Verbatim(json.dumps(new["template"], separators=(",", ":"))), "field is immutable")


def _without_scheduling(template: dict[str, Any]) -> dict[str, Any]:
    """The immutable fields of a suspended Job that has never started: all but its pods' scheduling."""
    return {"spec": {key: each for key, each in template["spec"].items() if key not in _SCHEDULING}}
