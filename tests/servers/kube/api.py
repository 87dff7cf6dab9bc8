"""The API: carries out requests on the store, with the responses of the real server."""

from __future__ import annotations

import base64
import copy
from typing import Any

from tests.servers.kube import errors, pod_security, rules
from tests.servers.kube.access import Access
from tests.servers.kube.defaults import complete_secret, prepare
from tests.servers.kube.errors import Refused
from tests.servers.kube.exec_stream import PROTOCOLS, Session, accept_key
from tests.servers.kube.fields import checked
from tests.servers.kube.kubelet import Kubelet
from tests.servers.kube.patches import APPLY, patched
from tests.servers.kube.quota import admit_pod
from tests.servers.kube.requests import Request, Target
from tests.servers.kube.resources import Resource, discovery
from tests.servers.kube.scheduler import disrupt
from tests.servers.kube.selectors import Selector
from tests.servers.kube.store import Object, Store
from tests.servers.kube.streams import container_of, logs, watch

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Api:
    def __init__(self, store: Store, kubelet: Kubelet, access: Access, scale: float) -> None:
        self._store, self._kubelet, self._access, self._scale = store, kubelet, access, scale

    def serve(self, request: Request) -> None:
        try:
            self._access.authenticate(request.handler.headers.get("Authorization") or "")
            if request.path in ("healthz", "livez", "readyz"):
                request.answer(200, b"ok", kind="text/plain")
            elif request.method == "GET" and (found := discovery(request.path, request.accept)):
                request.answer(200, found[1], kind=found[0])
            elif target := request.target():
                self._act(request, target)
            else:
                raise Refused(404, "the server could not find the requested resource")
        except Refused as refused:
            request.answer(refused.code, refused.status)

    def _act(self, request: Request, target: Target) -> None:
        resource = target.resource
        if resource.kind == "SelfSubjectAccessReview":
            request.answer(201, self._access.review(request.body))
            return
        verb = _VERBS.get(request.method, "get" if target.name else "list")
        if verb == "list" and request.flag("watch"):
            verb = "watch"
        self._access.authorize(verb, resource, target.subresource, target.namespace, target.name)
        if target.subresource and target.subresource not in resource.subresources:
            raise Refused(404, "the server could not find the requested resource")
        if target.subresource not in ("", "status"):
            self._subresource(request, target)
        elif verb in ("list", "watch"):
            self._list(request, target)
        elif verb == "get":
            request.answer(200, self._get(target))
        elif verb == "create" and not target.name:
            self._create(request, target, request.json())
        elif verb in ("update", "patch") and target.name:
            self._change(request, target)
        elif verb == "delete":
            self._delete(request, target)
        else:
            raise Refused(405, "the server does not allow this method on the requested resource")

    def _get(self, target: Target) -> Object:
        return self._store.get(target.resource.kind, target.namespace, target.name)

    def _list(self, request: Request, target: Target) -> None:
        selector = Selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        resource, query = target.resource, request.query
        if request.flag("watch"):
            watch(request, self._store, target, selector, self._scale)
            return
        with self._store.lock:
            found = self._store.list(resource.kind, target.namespace, selector)
            meta: dict[str, Any] = {"resourceVersion": str(self._store.version)}
        start = int(base64.b64decode(query["continue"])) if query.get("continue") else 0
        end = start + int(query.get("limit") or len(found) or 1)
        if end < len(found):
            meta["continue"] = base64.b64encode(str(end).encode()).decode()
            meta["remainingItemCount"] = len(found) - end
        items = [{key: each[key] for key in each if key not in ("kind", "apiVersion")} for each in found[start:end]]
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.group_version}
        request.answer(200, {**kind, "metadata": meta, "items": items})

    def _create(self, request: Request, target: Target, obj: Object) -> None:
        resource, namespace = target.resource, target.namespace
        warnings = self._admitted(request, resource, obj)
        obj.setdefault("metadata", {})
        if resource.namespaced:
            if obj["metadata"].setdefault("namespace", namespace) != namespace:
                raise Refused(
                    400, "the namespace of the provided object does not match the namespace sent on the request"
                )
            self._store.get("Namespace", "", namespace)
        status = obj.get("status")
        prepare(obj)
        if resource.kind == "Node" and status:
            obj["status"] = status
        name = obj["metadata"].get("name", "")
        if name and self._store.find(resource.kind, namespace, name):
            raise errors.already_there(resource, name)
        rules.check(obj, resource)
        if resource.kind == "Pod":
            pod_security.admit_pod(self._store, obj)
            admit_pod(self._store, obj)
        if resource.kind == "Job":
            warnings += pod_security.warnings_of(self._store, obj)
        request.answer(201, self._store.create(obj, dry=_is_dry(request)), warnings=warnings)

    def _admitted(self, request: Request, resource: Resource, obj: Any) -> tuple[str, ...]:
        """Check an object's kind and fields; returns the warnings."""
        if not isinstance(obj, dict) or obj.get("kind", resource.kind) != resource.kind:
            raise Refused(400, f"the object provided is unrecognized (must be of type {resource.kind})")
        if obj.get("apiVersion", resource.group_version) != resource.group_version:
            given = obj["apiVersion"]
            text = f"the API version in the data ({given}) does not match the expected one ({resource.group_version})"
            raise Refused(400, text)
        obj |= {"kind": resource.kind, "apiVersion": resource.group_version}
        return tuple(checked(obj, resource, request.query.get("fieldValidation", "Warn")))

    def _change(self, request: Request, target: Target) -> None:
        resource = target.resource
        with self._store.lock:
            old = self._store.find(resource.kind, target.namespace, target.name)
            if old is None and request.content_type == APPLY:
                created = patched({}, request.body, APPLY, resource)
                self._create(request, Target(resource, target.namespace), created)
                return
            old = old or self._get(target)
            if request.method == "PUT":
                new = request.json()
            else:
                new = patched(old, request.body, request.content_type, resource)
            warnings = self._admitted(request, resource, new)
            new["metadata"] = {**new["metadata"], "uid": new["metadata"].get("uid", old["metadata"]["uid"])}
            if target.subresource == "status":
                new = {**copy.deepcopy(old), "status": new.get("status", {})}
            else:
                if resource.kind == "Secret":
                    complete_secret(new)
                if "status" in old:
                    new["status"] = copy.deepcopy(old["status"])
                rules.check_update(old, new, resource)
                if resource.kind == "Job":
                    warnings += pod_security.warnings_of(self._store, new)
            changed = self._store.update(new, dry=_is_dry(request))
        request.answer(200, changed, warnings=warnings)

    def _delete(self, request: Request, target: Target) -> None:
        resource = target.resource
        options = request.json() if request.body else {}
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        policy = options.get("propagationPolicy", request.query.get("propagationPolicy", "Background"))
        seconds = None if grace is None else int(grace)
        if not target.name:
            selector = Selector(request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
            for each in self._store.list(resource.kind, target.namespace, selector):
                self._store.delete(each, seconds, policy)
            request.answer(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
            return
        found = self._get(target)
        uid = (options.get("preconditions") or {}).get("uid", found["metadata"]["uid"])
        if uid != found["metadata"]["uid"]:
            raise errors.conflict(resource, target.name)
        if resource.kind == "Namespace":
            for kind in ("Job", "Pod", "Service", "Secret", "ConfigMap", "PersistentVolumeClaim", "Event"):
                for each in self._store.list(kind, target.name):
                    self._store.delete(each)
        gone = self._store.delete(found, seconds, policy, dry=_is_dry(request))
        if resource.answers_with_object:
            request.answer(200, gone)
            return
        details = {"name": target.name, "group": resource.group, "kind": resource.plural, "uid": uid}
        details = {key: value for key, value in details.items() if value}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        request.answer(200, status)

    def _subresource(self, request: Request, target: Target) -> None:
        pod = self._get(target)
        if target.subresource == "log" and request.method == "GET":
            logs(request, self._kubelet, pod)
        elif target.subresource == "eviction" and request.method == "POST":
            disrupt(self._store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
            self._store.delete(pod, (request.json().get("deleteOptions") or {}).get("gracePeriodSeconds"))
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
            request.answer(201, status)
        elif target.subresource == "exec":
            self._exec(request, pod)
        else:
            raise Refused(500, f"this server does not carry out {target.subresource} of pods")

    def _exec(self, request: Request, pod: Object) -> None:
        headers = request.handler.headers
        offered = [each.strip() for each in (headers.get("Sec-WebSocket-Protocol") or "").split(",")]
        chosen = next((each for each in PROTOCOLS if each in offered), None)
        if chosen is None:
            raise Refused(400, "Upgrade request required")
        name, tries = container_of(request, self._kubelet, pod)
        if not tries or tries[-1].first_process() is None:
            raise Refused(500, f'unable to upgrade connection: container not found ("{name}")')
        handler = request.handler
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", accept_key(headers.get("Sec-WebSocket-Key") or ""))
        handler.send_header("Sec-WebSocket-Protocol", chosen)
        handler.end_headers()
        handler.close_connection = True
        # The terminal is the command's own, so that a shell has job control.
        own = ["setsid", "--ctty", "--wait"] if request.flag("tty") else []
        argv = tries[-1].enter([*own, *request.words])
        Session(handler.connection, argv, stdin=request.flag("stdin"), tty=request.flag("tty")).run()


def _is_dry(request: Request) -> bool:
    return request.query.get("dryRun") == "All"
