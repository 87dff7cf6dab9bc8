"""Refusals, with the text and form of the real server's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.servers.kube.resources import Resource

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    504: "Timeout",
}


class Refused(Exception):
    """A refusal; ``status`` is the object that the client gets."""

    def __init__(self, code: int, message: str, reason: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS[code],
            **({"details": details} if details else {}),
            "code": code,
        }


class Verbatim(NamedTuple):
    """A value that a message shows as this text, or not."""

    text: str


@dataclass(frozen=True)
class Fault:
    """An invalid field."""

    field: str
    value: Any
    text: str
    kind: str = "Invalid value"

    @property
    def message(self) -> str:
        if self.kind in ("Required value", "Forbidden"):
            return f"{self.kind}: {self.text}"
        shown = self.value.text if isinstance(self.value, Verbatim) else json.dumps(self.value, separators=(",", ":"))
        return ": ".join(part for part in (self.kind, shown, self.text) if part)

    @property
    def cause(self) -> dict[str, str]:
        reasons = {"Required value": "FieldValueRequired", "Forbidden": "FieldValueForbidden"}
        reasons |= {"Unsupported value": "FieldValueNotSupported", "Not found": "FieldValueNotFound"}
        return {
            "reason": reasons.get(self.kind, "FieldValueInvalid"),
            "message": self.message,
            "field": self.field,
        }


def invalid(resource: Resource, name: str, faults: Sequence[Fault]) -> Refused:
    # A repeated fault is once in the message, and twice in the causes.
    said = list(dict.fromkeys(f"{fault.field}: {fault.message}" for fault in faults))
    text = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = {**_named(resource, name), "kind": resource.kind, "causes": [fault.cause for fault in faults]}
    return Refused(422, f'{resource.qualified_kind} "{name}" is invalid: {text}', details=details)


def not_found(resource: Resource, name: str) -> Refused:
    return Refused(404, f'{resource.qualified} "{name}" not found', details=_named(resource, name))


def already_there(resource: Resource, name: str) -> Refused:
    text = f'{resource.qualified} "{name}" already exists'
    return Refused(409, text, "AlreadyExists", _named(resource, name))


def conflict(resource: Resource, name: str) -> Refused:
    text = (
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return Refused(409, text, details=_named(resource, name))


def forbidden(resource: Resource, verb: str, namespace: str, name: str, user: str) -> Refused:
    whole = f"{resource.qualified} is forbidden" if not name else f'{resource.qualified} "{name}" is forbidden'
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    text = f'{whole}: User "{user}" cannot {verb} resource "{resource.plural}" in API group "{resource.group}" {where}'
    return Refused(403, text, details=_named(resource, name))


def expired(asked: int, oldest: int) -> Refused:
    return Refused(410, f"too old resource version: {asked} ({oldest})")


def _named(resource: Resource, name: str) -> dict[str, Any]:
    found = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in found.items() if value}
