"""What the server refuses though the schemas let it pass, in the server's words."""

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
# Resources of which a part can be given.
_DIVISIBLE = ("cpu", "memory", "ephemeral-storage")


def check(obj: dict[str, Any], resource: Resource) -> None:
    """Refuse an object that is not valid."""
    _refuse(resource, obj, [*_metadata(obj), *(_job(obj) if obj["kind"] == "Job" else _others(obj))])


def check_update(old: dict[str, Any], new: dict[str, Any], resource: Resource) -> None:
    """Refuse a change of what cannot change; then hold the new object to the rules."""
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
    yield from _labels(template["metadata"], "spec.template.labels")
    yield from _pod_spec(template["spec"], "spec.template.spec")
    if spec["completionMode"] == "Indexed" and spec.get("completions"):
        pod = f"{name}-{spec['completions'] - 1}"
        if len(pod) > 63 or not _LABEL.fullmatch(pod):
            yield Fault("metadata.name", name, f"will not able to create pod with invalid DNS label: {pod}")
    at = "spec.template.spec.restartPolicy"
    if not restart:
        yield Fault(at, None, 'valid values: "OnFailure", "Never"', "Required value")
    elif restart not in ("OnFailure", "Never"):
        yield Fault(at, restart, 'supported values: "OnFailure", "Never"', "Unsupported value")
    elif restart != "Never":
        for field in ("podFailurePolicy", "backoffLimitPerIndex"):
            if spec.get(field) is not None:
                yield Fault(at, restart, f'only "Never" is supported when {field} is specified')
                break
    yield from _policies(spec)


def _job_numbers(spec: dict[str, Any]) -> Iterator[Fault]:
    indexed, completions = spec["completionMode"] == "Indexed", spec.get("completions")
    for field in ("completions", "parallelism", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes"):
        if (spec.get(field) or 0) < 0:
            yield Fault(f"spec.{field}", spec[field], "must be greater than or equal to 0")
    if indexed and completions is None:
        text = "when completion mode is Indexed"
        yield Fault("spec.completions", None, text, "Required value")
    if (most := spec.get("maxFailedIndexes")) is not None:
        if completions is not None and most > completions:
            yield Fault("spec.maxFailedIndexes", most, "must be less than or equal to completions")
        if spec.get("backoffLimitPerIndex") is None:
            text = "when maxFailedIndexes is specified"
            yield Fault("spec.backoffLimitPerIndex", None, text, "Required value")
    if not indexed:
        for field in ("backoffLimitPerIndex", "successPolicy"):
            if spec.get(field) is not None:
                yield Fault(f"spec.{field}", spec[field], "requires indexed completion mode")


def _policies(spec: dict[str, Any]) -> Iterator[Fault]:
    names = {each["name"] for each in spec["template"]["spec"].get("containers", [])}
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        at = f"spec.podFailurePolicy.rules[{number}]"
        if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
            yield Fault(at, rule, "specifying one of OnExitCodes and OnPodConditions is required")
        if rule["action"] == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            yield Fault(f"{at}.action", "FailIndex", "requires the backoffLimitPerIndex to be set")
        codes = rule.get("onExitCodes") or {}
        if codes.get("containerName") and codes["containerName"] not in names:
            yield Fault(f"{at}.onExitCodes.containerName", codes["containerName"], "must be one of the container names")
        if codes.get("operator") == "In" and 0 in codes["values"]:
            yield Fault(f"{at}.onExitCodes.values[{codes['values'].index(0)}]", 0, "must not be 0 for the In operator")
    if spec["podReplacementPolicy"] == "TerminatingOrFailed" and spec.get("podFailurePolicy"):
        text = 'supported values: "Failed"'
        yield Fault("spec.podReplacementPolicy", "TerminatingOrFailed", text, "Unsupported value")


def _job_update(old: dict[str, Any], new: dict[str, Any], status: dict[str, Any]) -> Iterator[Fault]:
    if old["completionMode"] == "Indexed" and old.get("completions") != new.get("completions"):
        if new.get("completions") != new.get("parallelism"):
            text = "can only be modified in tandem with spec.parallelism"
            yield Fault("spec.completions", new.get("completions"), text)
    elif old.get("completions") != new.get("completions"):
        yield Fault("spec.completions", new.get("completions"), "field is immutable")
    for field in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy"):
        if old.get(field) != new.get(field):
            yield Fault(f"spec.{field}", new.get(field), "field is immutable")
    # While a Job is suspended and has never started, where its pods may run can still change.
    if old["template"] != new["template"] and not (old.get("suspend") and "startTime" not in status):
        shown = json.dumps(new["template"], separators=(",", ":"))
        yield Fault("spec.template", Verbatim(shown), "field is immutable")
