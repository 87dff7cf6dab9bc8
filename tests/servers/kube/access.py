"""Access control: the token, the rights that a test denies, and what one may do."""

from __future__ import annotations

import json
from typing import Any

from tests.servers.kube import errors
from tests.servers.kube.errors import Refused
from tests.servers.kube.resources import Resource

USER = "tester"


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
        """Answer a SelfSubjectAccessReview."""
        asked = json.loads(body)["spec"]["resourceAttributes"]
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
