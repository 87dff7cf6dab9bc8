"""Recorded conversations with a real Kubernetes, carried on again with the stand-in.

A recording has one line for each request: method, path, body, status, and the reply or, for a watch, its events,
reduced by ``reduced`` to what kubectl or we read. Before it is sent, what the server itself chose (uids, versions,
endings of names) is replaced by what this server chose.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.kube.cluster import KubeCluster

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "kubernetes"
_ENDING = re.compile(r"(-\d+)-[bcdfghjklmnpqrstvwxz2456789]{5}(?![\w-])")
# The real server shows the value as its own language does.
_SHOWN = re.compile(r"\{.*\}: field is immutable", re.DOTALL)
_CHOSEN = {
    *("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "lastProbeTime"),
    *("lastTransitionTime", "observedGeneration", "imageID", "remainingItemCount", "qosClass"),
}
_MOMENTS = ("startTime", "completionTime", "deletionTimestamp")


def reduced(value: Any, key: str = "") -> Any:
    """What has to be the same in both: without times, versions, uids and the random endings of names."""
    if isinstance(value, list):
        return len(value) if key in ("failed", "succeeded") else [reduced(each) for each in value]
    if isinstance(value, str):
        return _ENDING.sub(r"\1-*", _SHOWN.sub("{...}: field is immutable", value))
    if not isinstance(value, dict):
        return value
    if "status" in value and "containers" in value.get("spec", {}):
        return _pod(value)
    kept = {name: each for name, each in value.items() if name not in _CHOSEN}
    kept |= {name: "*" for name in kept if name in _MOMENTS or name.endswith("controller-uid")}
    return {name: reduced(each, name) for name, each in kept.items()}


def _pod(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod as the controller, the scheduler and the kubelet together have made it."""
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    found = {
        "name": reduced(meta["name"]),
        "labels": {name: "*" if name.endswith("controller-uid") else each for name, each in meta["labels"].items()},
        "annotations": meta["annotations"],
        "owners": reduced(meta["ownerReferences"]),
        "tracked": "finalizers" in meta,
        "grace": meta.get("deletionGracePeriodSeconds"),
        "node": "nodeName" in spec,
        "hostname": spec["hostname"],
        "index": [each for each in spec["containers"][0]["env"] if each["name"] == "JOB_COMPLETION_INDEX"],
        "resources": spec["containers"][0]["resources"],
        "phase": status["phase"],
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "unschedulable": conditions.get("PodScheduled", {}).get("message"),
        "disrupted": conditions.get("DisruptionTarget", {}).get("reason"),
    }
    for each in status.get("containerStatuses", []):
        code = each["state"].get("terminated", {}).get("exitCode")
        # A first process hears SIGTERM only if it has a handler; the recorder's was no first process.
        found["ended"] = {143: "by a signal", 137: "by a signal"}.get(code, code)
    return found


class WorkerPipe:
    """One recording, replayed against one cluster."""

    def __init__(self, cluster: KubeCluster, folder: Path) -> None:
        config = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
        ca = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=ca)
        self._token = config["users"][0]["user"]["token"]
        self._address = cluster.url.removeprefix("https://")
        self._chosen: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self.watches: list[tuple[dict[str, Any], list[Any]]] = []
        self._streams: list[tuple[http.client.HTTPConnection, threading.Thread]] = []

    def send(self, line: dict[str, Any]) -> tuple[int, Any]:
        """The status and the reply as JSON."""
        connection, answer = self._open(line)
        try:
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()
        finally:
            connection.close()

    def watch(self, line: dict[str, Any]) -> None:
        """Begin it; its events gather in ``watches``."""
        connection, answer = self._open(line)
        events: list[Any] = []
        self.watches.append((line, events))

        def read() -> None:
            try:
                for each in answer:
                    events.append(json.loads(each))
            except (OSError, ValueError, http.client.HTTPException):
                pass  # closed at the end

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._streams.append((connection, thread))

    def close(self) -> None:
        for connection, thread in self._streams:
            if connection.sock:
                connection.sock.shutdown(socket.SHUT_RDWR)
            thread.join()
            connection.close()

    def learn(self, recorded: Any, given: Any) -> None:
        """Pair what the recorded server chose with what this one chose."""
        if not isinstance(recorded, dict) or not isinstance(given, dict):
            return
        for pair in zip(recorded.get("chosen", []), chosen(given), strict=False):
            self._chosen[pair[0]] = pair[1]
        if "version" in recorded:
            self._versions[recorded["version"]] = given["metadata"]["resourceVersion"]

    def _open(self, line: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        path, body = line["path"], line.get("body") or ""
        for old, new in self._chosen.items():
            path, body = path.replace(old, new), body.replace(old, new)
        if match := re.search(r"resourceVersion=([1-9]\d*)", path):
            path = path.replace(match[0], f"resourceVersion={self._versions[match[1]]}")
        headers = {"Authorization": f"Bearer {self._token}", "Accept": line.get("accept") or "application/json"}
        if line.get("content_type"):
            headers["Content-Type"] = line["content_type"]
        connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=30)
        connection.request(line["method"], path, body.encode() or None, headers)
        return connection, connection.getresponse()


def chosen(reply: dict[str, Any]) -> list[str]:
    """What a server chose in a reply, in order: uids, and names that it ended itself."""
    objects = reply.get("items") or [reply]
    objects = sorted(objects, key=lambda each: reduced(each.get("metadata", {}).get("name", "")))
    found = []
    for each in objects:
        meta = each.get("metadata", {})
        found += [meta.get("uid", ""), meta["name"] if "generateName" in meta else ""]
    return found


def recording(scene: str) -> list[dict[str, Any]]:
    text = (RECORDINGS / f"{scene}.jsonl").read_text(encoding="utf-8")
    # A shorter grace period and shorter programs, in what is asked and in what is expected.
    text = re.sub(r"sleep 6\b", "sleep 3", text)
    text = re.sub(r'(\\*"(?:grace|terminationGracePeriodSeconds)\\*": ?)5\b', r"\g<1>1", text)
    return [json.loads(line) for line in text.splitlines()]


def stories(events: list[Any]) -> dict[str, list[Any]]:
    """Each object's events in order, equal neighbours once; an object is known by its kind and name without ending.

    Of pods that came one after the other for one index, each has its own story.
    """
    found: dict[str, list[Any]] = {}
    for event in events:
        if event["type"] != "BOOKMARK":
            story = found.setdefault(event["who"], [])
            seen = [event["type"], event["object"]]
            if not story or story[-1] != seen:
                story.append(seen)
    return found


def told(events: list[Any]) -> list[Any]:
    """The events of a watch, reduced, each with who it is about: name and how many of that name came before."""
    order: dict[str, list[str]] = {}
    result = []
    for event in events:
        meta = event["object"]["metadata"]
        if event["type"] == "BOOKMARK":
            continue
        name = reduced(meta.get("name", ""))
        names = order.setdefault(name, [])
        if meta["uid"] not in names:
            names.append(meta["uid"])
        who = f"{name} ({names.index(meta['uid']) + 1})"
        seen = reduced(event["object"])
        # Of a Job's specification only these can change.
        if "spec" in seen:
            numbers = {key: seen["spec"][key] for key in ("completions", "parallelism", "suspend")}
            seen = {"spec": numbers, "status": seen["status"]}
        result.append({"type": event["type"], "who": who, "object": seen})
    return result


def polled(seconds: float) -> Iterator[None]:
    """Again and again until the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
