"""Access control: the token, the rights that a test denies, and ``kubectl auth can-i``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.kube import errors
from tests.servers.kube.errors import Refused
from tests.servers.kube.resources import Resource

USER = "tester"
_PROTOBUF = b"k8s\0"
_ATTRIBUTES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}


class Access:
    """With the token everything is allowed except ``denied``: pairs of a verb and a resource (``pods/log``)."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.denied: set[tuple[str, str]] = set()

    def authenticate(self, header: str) -> None:
        if header != f"Bearer {self._token}":
            raise Refused(401, "Unauthorized")

    def authorize(self, verb: str, resource: Resource, subresource: str, namespace: str, name: str) -> None:
        if not self._allows(verb, resource.qualified, subresource):
            raise errors.forbidden(resource, verb, namespace, name, USER)

    def review(self, body: bytes) -> dict[str, Any]:
        """Answer a SelfSubjectAccessReview, in JSON or in protobuf."""
        asked = _from_protobuf(body) if body.startswith(_PROTOBUF) else json.loads(body)["spec"]["resourceAttributes"]
        name = asked.get("resource", "") + (f".{asked['group']}" if asked.get("group") else "")
        allowed = self._allows(asked.get("verb", ""), name, asked.get("subresource", ""))
        return {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": {"resourceAttributes": asked},
            "status": {"allowed": allowed},
        }

    def _allows(self, verb: str, resource: str, subresource: str) -> bool:
        whole = f"{resource}/{subresource}" if subresource else resource
        return not {(verb, whole), ("*", whole), (verb, "*")} & self.denied


def _from_protobuf(body: bytes) -> dict[str, str]:
    """The attributes: field 2 of the envelope is the review, its field 2 the spec, and its field 1 these."""
    data = body[len(_PROTOBUF) :]
    for number in (2, 2, 1):
        data = dict(_protobuf_fields(data)).get(number, b"")
    return {_ATTRIBUTES[number]: value.decode() for number, value in _protobuf_fields(data) if number in _ATTRIBUTES}


def _protobuf_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields with a length (messages and texts), without numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
