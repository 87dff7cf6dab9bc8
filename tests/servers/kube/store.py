"""Objects by kind, namespace and name, with versions and watches.

Every change has the next resource version and is in ``history``, which feeds the watches. The caller holds ``lock``
for atomic steps; every method takes it, too. A stored object is never changed, only replaced.
"""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from tests.servers.kube import errors
from tests.servers.kube.resources import Resource, of_kind
from tests.servers.kube.selectors import Selector

Object = dict[str, Any]
TERMINAL = ("Succeeded", "Failed")


class Change(NamedTuple):
    version: int
    resource: Resource
    kind: str
    obj: Object
    before: Object | None


def stamp(seconds_from_now: float = 0) -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds_from_now)).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def age(moment: str) -> float:
    """Seconds since a time that ``stamp`` wrote; negative before it."""
    return time.time() - datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()


class Store:
    def __init__(self, kept: int = 20_000) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 1
        self.history: list[Change] = []
        self._kept = kept
        self._oldest = 0
        self._objects: dict[tuple[str, str, str], Object] = {}

    def get(self, kind: str, namespace: str, name: str) -> Object:
        found = self.find(kind, namespace, name)
        if found is None:
            raise errors.not_found(of_kind(kind), name)
        return found

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        with self.lock:
            return copy.deepcopy(self._objects.get((kind, namespace, name)))

    def list(self, kind: str, namespace: str = "", selector: Selector | None = None) -> list[Object]:
        """The objects, sorted by name, read-only; ``namespace`` empty: all."""
        with self.lock:
            keys = sorted(key for key in self._objects if key[0] == kind and namespace in ("", key[1]))
            found = [self._objects[key] for key in keys]
            return [each for each in found if selector is None or selector.matches(each)]

    def create(self, obj: Object, *, dry: bool = False) -> Object:
        resource = of_kind(obj["kind"])
        meta = obj["metadata"]
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = stamp()
        if resource.kind in ("Job", "Pod"):
            meta["generation"] = 1
        with self.lock:
            key = _key(obj)
            if key in self._objects:
                raise errors.already_there(resource, meta["name"])
            if not dry:
                self._put(key, obj, "ADDED")
            return copy.deepcopy(obj)

    def update(self, obj: Object, *, dry: bool = False) -> Object:
        """Replace the object; a resource version in it must be the current one. Nothing changes if it is the same."""
        resource, key = of_kind(obj["kind"]), _key(obj)
        obj = {**obj, "metadata": dict(obj["metadata"])}
        with self.lock:
            before = self._objects.get(key)
            if before is None or before["metadata"]["uid"] != obj["metadata"].get("uid", before["metadata"]["uid"]):
                raise errors.not_found(resource, key[2])
            now = before["metadata"]["resourceVersion"]
            if obj["metadata"].get("resourceVersion", now) != now:
                raise errors.conflict(resource, key[2])
            if obj == before or dry:
                return copy.deepcopy(obj)
            if "generation" in before["metadata"] and obj.get("spec") != before.get("spec") and resource.kind == "Job":
                obj["metadata"]["generation"] = before["metadata"]["generation"] + 1
            if _is_over(obj):
                # The change that frees it is not stored: watchers see its deletion in the last stored state.
                return self._drop(key, copy.deepcopy(before))
            self._put(key, obj, "MODIFIED")
            return copy.deepcopy(obj)

    def modify(self, obj: Object, change: Callable[[Object], None]) -> Object | None:
        """Apply ``change`` to the current version of this object (by uid); None if it is gone."""
        with self.lock:
            found = self.find(*_key(obj))
            if found is None or found["metadata"]["uid"] != obj["metadata"]["uid"]:
                return None
            change(found)
            return self.update(found)

    def delete(self, obj: Object, grace: int | None = None, policy: str = "Background", *, dry: bool = False) -> Object:
        """Begin or finish the deletion, depending on finalizers and a pod's grace period."""
        key = _key(obj)
        with self.lock:
            found = self.get(*key)
            if dry:
                return found
            meta = found["metadata"]
            if policy == "Foreground" and "foregroundDeletion" not in meta.get("finalizers", []):
                meta["finalizers"] = [*meta.get("finalizers", []), "foregroundDeletion"]
            if policy == "Orphan":
                self._orphan(meta["uid"])
            if key[0] != "Pod":
                if not meta.get("finalizers"):
                    return self._drop(key, found)
                if "deletionTimestamp" not in meta:
                    meta |= {"deletionTimestamp": stamp(), "deletionGracePeriodSeconds": 0}
                    self._put(key, found, "MODIFIED")
                return copy.deepcopy(found)
            seconds = _grace(found, grace)
            if meta.get("deletionGracePeriodSeconds", seconds + 1) > seconds:
                if "deletionTimestamp" not in meta:
                    meta["generation"] += 1
                meta |= {"deletionTimestamp": stamp(seconds), "deletionGracePeriodSeconds": seconds}
                self._put(key, found, "MODIFIED")
            return self._drop(key, found) if _is_over(found) else copy.deepcopy(found)

    def since(self, version: int, resource: Resource, namespace: str) -> Iterator[Change]:
        """The changes after ``version``; raises ``Refused`` (410) if the history does not go back that far."""
        with self.lock:
            if version < self._oldest:
                raise errors.expired(version, self._oldest)
            start = next((i for i, each in enumerate(self.history) if each.version > version), len(self.history))
            found = [each for each in self.history[start:] if each.resource is resource]
        return (each for each in found if namespace in ("", each.obj["metadata"].get("namespace", "")))

    def compact(self) -> None:
        """Forget the history, as etcd does after five minutes."""
        with self.changed:
            self._oldest, self.history = self.version, []
            self.changed.notify_all()

    def _orphan(self, uid: str) -> None:
        for key, each in list(self._objects.items()):
            references = each["metadata"].get("ownerReferences", [])
            kept = [one for one in references if one["uid"] != uid]
            if len(kept) < len(references):
                changed = copy.deepcopy(each)
                changed["metadata"]["ownerReferences"] = kept
                self._put(key, changed, "MODIFIED")

    def _put(self, key: tuple[str, str, str], obj: Object, kind: str) -> None:
        before = self._objects.get(key)
        self._number(obj)
        self._objects[key] = copy.deepcopy(obj)
        self._tell(Change(self.version, of_kind(key[0]), kind, self._objects[key], before))

    def _drop(self, key: tuple[str, str, str], obj: Object) -> Object:
        before = self._objects.pop(key)
        self._number(obj)
        self._tell(Change(self.version, of_kind(key[0]), "DELETED", copy.deepcopy(obj), before))
        return obj

    def _number(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        if len(self.history) > self._kept:
            self._oldest = self.history[self._kept // 2].version
            self.history = self.history[self._kept // 2 + 1 :]
        self.changed.notify_all()


def _key(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", "") if of_kind(obj["kind"]).namespaced else "", meta["name"]


def _grace(pod: Object, asked: int | None) -> int:
    """The grace period in seconds: 0 for a pod that has ended or is not scheduled."""
    if pod.get("status", {}).get("phase") in TERMINAL or not pod["spec"].get("nodeName"):
        return 0
    usual = pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return int(usual)


def _is_over(obj: Object) -> bool:
    meta = obj["metadata"]
    done = "deletionTimestamp" in meta and not meta.get("finalizers")
    return done and (obj["kind"] != "Pod" or meta["deletionGracePeriodSeconds"] == 0)
