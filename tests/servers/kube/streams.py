"""Streaming responses: watches, and logs of containers."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.servers.kube.container_process import ContainerProcess
from tests.servers.kube.errors import Refused
from tests.servers.kube.kubelet import Kubelet
from tests.servers.kube.requests import Request, Target
from tests.servers.kube.resources import Resource
from tests.servers.kube.selectors import Selector
from tests.servers.kube.store import Change, Object, Store

_BOOKMARK_EVERY = 60.0


def watch(request: Request, store: Store, target: Target, selector: Selector, scale: float) -> None:
    """The changes after a resource version; without one, first all objects as ADDED."""
    asked = request.query.get("resourceVersion", "0") or "0"
    resource, namespace = target.resource, target.namespace
    end = time.monotonic() + float(request.query.get("timeoutSeconds", 3600))
    request.begin_stream("application/json")
    with store.lock:
        version = int(asked)
        first = version == 0 or request.flag("sendInitialEvents")
        there = store.list(resource.kind, namespace, selector) if first else []
        version = store.version if first else version
    for each in there:
        _send(request, "ADDED", each)
    if request.flag("sendInitialEvents"):
        _send(request, "BOOKMARK", _bookmark(resource, version, {"k8s.io/initial-events-end": "true"}))
    bookmark = time.monotonic() + _BOOKMARK_EVERY * scale
    while time.monotonic() < end and not request.is_gone():
        try:
            changes = list(store.since(version, resource, namespace))
        except Refused as refused:
            _send(request, "ERROR", refused.status)
            break
        for change in changes:
            version = change.version
            if kind := _kind_for(change, selector):
                _send(request, kind, change.obj)
        if request.flag("allowWatchBookmarks") and time.monotonic() > bookmark:
            bookmark = time.monotonic() + _BOOKMARK_EVERY * scale
            _send(request, "BOOKMARK", _bookmark(resource, version, {}))
        with store.changed:
            if store.version <= version or not changes:
                store.changed.wait(0.5)
    request.send(b"")


def _bookmark(resource: Resource, version: int, annotations: dict[str, str]) -> Object:
    meta = {"resourceVersion": str(version), **({"annotations": annotations} if annotations else {})}
    return {"kind": resource.kind, "apiVersion": resource.group_version, "metadata": meta}


def _kind_for(change: Change, selector: Selector) -> str:
    """The event for a watcher with this selector: an object that no longer matches is DELETED."""
    before = change.before is not None and selector.matches(change.before)
    now = change.kind != "DELETED" and selector.matches(change.obj)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


def _send(request: Request, kind: str, obj: Object) -> None:
    request.send(json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n")


def container_of(request: Request, kubelet: Kubelet, pod: Object) -> tuple[str, list[ContainerProcess]]:
    """The container that a request names, and its attempts."""
    name = pod["metadata"]["name"]
    every = [each["name"] for group in ("initContainers", "containers") for each in pod["spec"].get(group) or []]
    wanted = request.query.get("container", "")
    if not wanted:
        if len(pod["spec"]["containers"]) > 1:
            text = f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]"
            raise Refused(400, text)
        wanted = pod["spec"]["containers"][0]["name"]
    if wanted not in every:
        raise Refused(400, f"container {wanted} is not valid for pod {name}")
    run = kubelet.run_of(pod)
    return wanted, run.attempts.get(wanted, []) if run else []


def logs(request: Request, kubelet: Kubelet, pod: Object) -> None:
    """Send the log as plain text, continuously if the client follows."""
    if not pod["spec"].get("nodeName"):
        request.answer(200, b"", kind="text/plain")
        return
    name, tries = container_of(request, kubelet, pod)
    meta = pod["metadata"]
    previous = request.flag("previous")
    if previous and len(tries) < 2:
        raise Refused(400, f'previous terminated container "{name}" in pod "{meta["name"]}" not found')
    if not tries:
        raise Refused(400, f'container "{name}" in pod "{meta["name"]}" is waiting to start: {_why(pod, name)}')
    process = tries[-2 if previous else -1]
    since = _since(request.query)
    tail = request.query.get("tailLines")
    start = process.log.first_of(None if tail is None else int(tail))
    left = int(request.query.get("limitBytes", 1 << 60))
    request.begin_stream("text/plain")
    for line in process.log.read(start, follow=request.flag("follow")):
        if line is None:
            if request.is_gone():
                return
        elif line[0] >= since:
            # The real server's times have nanoseconds.
            text = (f"{line[0][:-1]}000Z ".encode() if request.flag("timestamps") else b"") + line[1]
            request.send(text[:left]) if text[:left] else None
            left -= len(text)
    request.send(b"")


def _since(query: dict[str, str]) -> str:
    """The earliest time of lines, in the log's format."""
    if seconds := query.get("sinceSeconds"):
        moment = datetime.now(timezone.utc) - timedelta(seconds=float(seconds))
    elif text := query.get("sinceTime"):
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    else:
        return ""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _why(pod: Object, name: str) -> str:
    found: list[dict[str, Any]] = pod["status"].get("containerStatuses", [])
    reasons = [each["state"].get("waiting", {}).get("reason", "") for each in found if each["name"] == name]
    return next(iter(reasons), "") or "ContainerCreating"
