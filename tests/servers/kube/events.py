"""Events of controllers about objects."""

from __future__ import annotations

import time
from typing import Any

from tests.servers.kube.store import Object, Store, micro_stamp, stamp

# Components that use the newer form, with microseconds and without a count.
_NEWER = ("default-scheduler",)


def tell(store: Store, about: Object, reason: str, message: str, *, by: str, warning: bool = False) -> None:
    """Record an event; for a repeated one, raise its count."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    involved = {"kind": about["kind"], "namespace": namespace, "name": meta["name"], "uid": meta["uid"]}
    with store.lock:
        for old in store.list("Event", namespace):
            same = old["involvedObject"]["uid"] == meta["uid"] and (old["reason"], old["message"]) == (reason, message)
            if same and reason not in ("SuccessfulCreate", "SuccessfulDelete"):
                if "count" in old:
                    store.update({**old, "count": old["count"] + 1, "lastTimestamp": stamp()})
                return
        version = "batch/v1" if about["kind"] == "Job" else "v1"
        event: dict[str, Any] = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": f"{meta['name']}.{time.time_ns():x}", "namespace": namespace},
            "involvedObject": {**involved, "apiVersion": version, "resourceVersion": meta.get("resourceVersion", "")},
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "reportingComponent": by,
            "reportingInstance": "",
        }
        if by in _NEWER:
            event |= {"source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": micro_stamp()}
            event |= {"action": "Scheduling" if warning else "Binding", "reportingInstance": f"{by}-0"}
        else:
            event |= {"source": {"component": by}, "firstTimestamp": stamp(), "lastTimestamp": stamp()}
            event |= {"count": 1, "eventTime": None}
        store.create(event)
