"""Rights on a cluster, as ``kubectl auth can-i`` asks for them. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

# What belongs to no namespace.
CLUSTER_WIDE = frozenset({"csidrivers", "namespaces", "nodes", "persistentvolumes", "priorityclasses"})
_VERBS = {"replace": "update"}
# https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


class Right(NamedTuple):
    """One right: ``create secrets``."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""

    @property
    def whole(self) -> str:
        """The resource with its group: ``jobs.batch``."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def words(self) -> str:
        """As roles write it: ``get pods/log``."""
        return f"{self.verb} {self.whole}/{self.subresource}" if self.subresource else f"{self.verb} {self.whole}"

    def question(self, namespace: str) -> tuple[str, ...]:
        """The words of kubectl that ask for it; ``pods/log`` there would be the pod ``log``."""
        inside = () if self.resource in CLUSTER_WIDE or not namespace else ("-n", namespace)
        subresource = (f"--subresource={self.subresource}",) if self.subresource else ()
        return ("auth", "can-i", self.verb, self.whole, *subresource, *inside)


def question_of(verb: str, path: str) -> tuple[str, ...]:
    """The words of kubectl that ask for the right to a request; ``verb`` is a method of ``Kubectl``: ``read``.

    A path that is no object's, such as ``/version``, is a right of its own.
    """
    path = path.partition("?")[0]
    match = _PATH.fullmatch(path)
    if not match:
        return ("auth", "can-i", "get", path)
    verb = ("get" if match["name"] else "list") if verb == "read" else _VERBS.get(verb, verb)
    right = Right(verb, match["resource"], match["group"] or "", match["subresource"] or "")
    if right.resource == "namespaces" and match["name"]:
        # A role inside a namespace may allow this one.
        return ("auth", "can-i", verb, f"namespaces/{match['name']}", "-n", match["name"])
    return right.question(match["namespace"] or "")
