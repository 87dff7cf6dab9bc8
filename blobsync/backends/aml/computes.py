"""The compute clusters of an Azure ML workspace: list, create, resize and delete.

Bodies and answers: Microsoft.MachineLearningServices 2024-04-01 (machineLearningServices.json of azure-rest-api-specs).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from typing import Any

from blobsync.backends.aml.client import AmlClient
from blobsync.backends.aml.error_responses import MOST_SAID, az_ml, compute_hint
from blobsync.backends.aml.replies import AmlReply
from blobsync.backends.protocol import ClusterSummary
from blobsync.base.errors import JobError, NothingMatchedError, UsageError
from blobsync.base.formatting import count_text, iso_seconds, quoted
from blobsync.base.records import dataclass

AML_COMPUTE = "AmlCompute"
PRIORITIES: Mapping[str, str] = {"dedicated": "Dedicated", "low": "LowPriority"}
# What may be a segment of a URL; the service has narrower rules.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_POLL_SECONDS = 5.0
# Creating a cluster takes a minute or two; its nodes start when a job needs them.
_PATIENCE_SECONDS = 1800.0
_BUSY = ("running", "preparing", "leaving", "preempted", "unusable")


@dataclass(frozen=True, slots=True)
class NodeBounds:
    """The least and most nodes of a cluster, and the idle seconds after which one is removed; None: unchanged."""

    least: int | None = None
    most: int | None = None
    idle_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """A compute of the workspace; fields that its kind does not have are None or empty.

    ``state`` is that of its provisioning (``Succeeded``: it exists), ``problems`` are errors that the service reports.
    """

    name: str
    kind: str
    state: str
    vm_size: str = ""
    vm_priority: str = ""
    location: str = ""
    bounds: NodeBounds = NodeBounds()
    nodes: int | None = None
    busy: int | None = None
    unusable: int = field(default=0, repr=False)
    problems: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ComputeRequest:
    """One request, as ``--dry-run`` prints it."""

    method: str
    url: str
    body: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The request line and the body."""
        shown = json.dumps(self.body, indent=2, sort_keys=True) if self.body else ""
        return f"# {self.method} {self.url}\n{shown}".rstrip()


def creation(location: str, vm_size: str, priority: str, bounds: NodeBounds) -> dict[str, Any]:
    """The body that creates a cluster. Raises ``UsageError`` for bounds that contradict each other."""
    inner = {"vmSize": vm_size, "vmPriority": PRIORITIES[priority], "scaleSettings": _scale_settings(bounds)}
    return {"location": location, "properties": {"computeType": AML_COMPUTE, "properties": inner}}


def _scale_settings(bounds: NodeBounds) -> dict[str, Any]:
    least, most = bounds.least or 0, bounds.most or 0
    if least > most:
        raise UsageError(f"--min {least} is more than --max {most}", hint="raise --max, or lower --min")
    idle = {} if bounds.idle_seconds is None else {"nodeIdleTimeBeforeScaleDown": f"PT{bounds.idle_seconds}S"}
    return {"minNodeCount": least, "maxNodeCount": most, **idle}


def read_compute_of(body: AmlReply) -> Compute:
    """Parse a compute in a response."""
    outer = body.inner("properties")
    inner = outer.inner("properties")
    scale, counts = inner.inner("scaleSettings"), inner.inner("nodeStateCounts")
    has_nodes = bool(inner.values.get("nodeStateCounts"))
    errors = [
        error.inner("error") or error for error in (*outer.objects("provisioningErrors"), *inner.objects("errors"))
    ]
    sentences = [_sentence(error) for error in errors]
    return Compute(
        name=body.text("name"),
        kind=outer.text("computeType"),
        state=outer.text("provisioningState") or "Unknown",
        vm_size=inner.text("vmSize"),
        vm_priority=inner.text("vmPriority"),
        location=body.text("location"),
        bounds=NodeBounds(
            scale.count("minNodeCount"),
            scale.count("maxNodeCount"),
            iso_seconds(scale.text("nodeIdleTimeBeforeScaleDown")),
        ),
        nodes=inner.count("currentNodeCount"),
        busy=sum(counts.count(f"{word}NodeCount") or 0 for word in _BUSY) if has_nodes else None,
        unusable=counts.count("unusableNodeCount") or 0,
        problems=tuple(sentence for sentence in sentences if sentence),
    )


def summary_of(body: AmlReply, gpus_per_node: int) -> ClusterSummary:
    """Summarise a compute; Kubernetes does not report nodes."""
    found = read_compute_of(body)
    notes = [f"{found.kind or 'compute'} {found.name}".strip()]
    notes += [f"{found.vm_size}, {found.vm_priority or 'Dedicated'}"] if found.vm_size else []
    total = found.bounds.most
    if total is None:
        return ClusterSummary(notes=(*notes, "the service does not report how many nodes it has"))
    if found.unusable:
        notes.append(f"{count_text(found.unusable, 'node')} cannot be used")
    free = max(0, total - (found.busy or 0))
    return ClusterSummary(total, free, total * gpus_per_node, free * gpus_per_node, notes=tuple(notes))


def _sentence(error: AmlReply) -> str:
    message, code = quoted(error.text("message"), MOST_SAID), error.text("code")
    return f"{message} ({code})" if message and code else message or code


class Computes:
    """The computes of one workspace. ``sleep`` and ``clock`` are in seconds; ``note`` reports waits."""

    def __init__(
        self,
        client: AmlClient,
        note: Callable[[str], None] = lambda text: None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._note, self._sleep, self._clock = note, sleep, clock

    def __repr__(self) -> str:
        return f"<Computes of {self._client.workspace.workspace_name}>"

    def list(self) -> tuple[Compute, ...]:
        """All computes, sorted by name."""
        found = (read_compute_of(body) for body in self._client.pages("computes"))
        return tuple(sorted(found, key=lambda one: one.name))

    def find(self, name: str) -> Compute:
        """The compute of this name. Raises ``NothingMatchedError``."""
        body = self._client.try_call(f"computes/{_checked(name)}")
        if body is None:
            place = self._client.workspace.workspace_name
            raise NothingMatchedError(f"the workspace {place} has no compute {name}", hint="blobsync compute ls")
        return read_compute_of(body)

    def plan_create(
        self, name: str, vm_size: str, priority: str, bounds: NodeBounds, location: str = ""
    ) -> ComputeRequest:
        """The request that creates a cluster, in the workspace's own region unless ``location`` names one.

        Raises ``JobError`` if the name is taken: the request would change that compute.
        """
        known = self._client.try_call(f"computes/{_checked(name)}")
        if known is not None:
            there = read_compute_of(known)
            said, hint = there.kind, "choose another name"
            if there.kind == AML_COMPUTE:
                said += f", {there.vm_size}, {there.bounds.least or 0} to {there.bounds.most or 0:,} nodes"
                hint += f", or change its bounds: blobsync compute scale {name} --max N"
            raise JobError(f"the compute {name} exists already ({said})", hint=hint)
        body = creation(location or self._client.call("GET", "").text("location"), vm_size, priority, bounds)
        return self._request("PUT", name, body)

    def sketch_create(
        self, name: str, vm_size: str, priority: str, bounds: NodeBounds, location: str = ""
    ) -> ComputeRequest:
        """The same request as far as it is known offline: for display, not to be sent."""
        region = location or f"<region of {self._client.workspace.workspace_name}>"
        return self._request("PUT", _checked(name), creation(region, vm_size, priority, bounds))

    def plan_scale(self, name: str, wanted: NodeBounds) -> ComputeRequest:
        """The request that gives a cluster other bounds; None leaves one as it is.

        Raises ``NothingMatchedError`` and ``UsageError``.
        """
        given = {key: value for key, value in asdict(wanted).items() if value is not None}
        scaled = _scale_settings(replace(self._cluster(name).bounds, **given))
        return self._request("PATCH", name, {"properties": {"properties": {"scaleSettings": scaled}}})

    def plan_remove(self, name: str) -> ComputeRequest:
        """The request that deletes a cluster with its nodes. Raises ``NothingMatchedError`` and ``UsageError``."""
        return self._request("DELETE", self._cluster(name).name, None)

    def send(self, name: str, request: ComputeRequest, *, wait: bool = True) -> Compute | None:
        """Send a planned request; with ``wait``, until the service has completed it. None: the compute is deleted.

        Raises ``JobError`` with the service's message if it fails.
        """
        more = {"underlyingResourceAction": "Delete"} if request.method == "DELETE" else {}
        self._client.call(request.method, f"computes/{_checked(name)}", request.body, doing="compute", **more)
        until = self._clock() + _PATIENCE_SECONDS
        while True:
            body = self._client.try_call(f"computes/{name}")
            found = None if body is None else read_compute_of(body)
            if found is None or not wait or found.state in ("Succeeded", "Failed", "Canceled"):
                break
            if self._clock() > until:
                raise JobError(f"{name} is still {found.state} after half an hour", hint="blobsync compute ls")
            self._note(f"{name}: {found.state}")
            self._sleep(_POLL_SECONDS)
        if found and wait and (found.state != "Succeeded" or (found.problems and request.method != "DELETE")):
            why = "; ".join(found.problems) or "no reason given"
            hint = f"{compute_hint(why, self._client.workspace)}; to take it away: blobsync compute rm {name}"
            raise JobError(f"the compute {name} is {found.state}: {why}", hint=hint)
        return found

    def _cluster(self, name: str) -> Compute:
        found = self.find(name)
        if found.kind != AML_COMPUTE:
            show, detach = (
                az_ml(self._client.workspace, "compute", verb, "--name", name) for verb in ("show", "detach")
            )
            raise UsageError(
                f"{name} is a {found.kind}: only compute clusters ({AML_COMPUTE}) have nodes that Azure ML makes",
                hint=f"for other kinds: {show}, {detach}",
            )
        return found

    def _request(self, method: str, name: str, body: Mapping[str, Any] | None) -> ComputeRequest:
        client = self._client
        more = "underlyingResourceAction=Delete&" if method == "DELETE" else ""
        url = f"{client.base}{client.path}/computes/{name}?{more}api-version={client.api_version}"
        return ComputeRequest(method, url, body)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!a} cannot be the name of a compute", hint="use letters, digits and -")
    return name
