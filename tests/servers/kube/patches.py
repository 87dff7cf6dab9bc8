"""The three patches that kubectl sends: merge, strategic merge, and the server-side apply of YAML.

Server-side apply is carried out as a strategic merge, without owners of fields.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml

from tests.servers.kube.errors import Refused
from tests.servers.kube.fields import resolved, schema_of
from tests.servers.kube.resources import Resource

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def patched(obj: dict[str, Any], body: bytes, kind: str, resource: Resource) -> dict[str, Any]:
    """A changed copy of ``obj``."""
    if kind not in (MERGE, STRATEGIC, APPLY):
        accepted = ", ".join((MERGE, STRATEGIC, APPLY))
        raise Refused(
            415, f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        )
    patch = yaml.safe_load(body) if kind == APPLY else json.loads(body)
    if kind == MERGE:
        return dict(_merged(copy.deepcopy(obj), patch))
    return dict(_strategic(copy.deepcopy(obj), patch, schema_of(resource)))


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = value if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), change)
    return result


def _strategic(value: Any, patch: Any, schema: dict[str, Any]) -> Any:
    schema = resolved(schema)
    if isinstance(patch, list):
        return _strategic_list(value, patch, schema)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: each for key, each in patch.items() if key != "$patch"}
    result = value if isinstance(value, dict) else {}
    for key, change in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.split("/", 1)[1]
            result[name] = [each for each in result.get(name, []) if each not in change]
        elif key.startswith("$"):
            continue
        elif change is None:
            result.pop(key, None)
        else:
            below = schema.get("properties", {}).get(key, {})
            if "x-kubernetes-patch-merge-key" in below or below.get("x-kubernetes-patch-strategy") == "merge":
                result[key] = _strategic_list(result.get(key), change, below)
            else:
                result[key] = _strategic(result.get(key), change, below) if isinstance(change, dict) else change
    return result


def _strategic_list(value: Any, patch: list[Any], schema: dict[str, Any]) -> list[Any]:
    merge_key = schema.get("x-kubernetes-patch-merge-key")
    if schema.get("x-kubernetes-patch-strategy", "") not in ("merge", "merge,retainKeys"):
        return patch
    result = list(value or [])
    if merge_key is None:
        return result + [each for each in patch if each not in result]
    if any(each.get("$patch") == "replace" for each in patch):
        return [each for each in patch if "$patch" not in each]
    for each in patch:
        at = next((i for i, old in enumerate(result) if old.get(merge_key) == each.get(merge_key)), None)
        if each.get("$patch") == "delete":
            result = [old for i, old in enumerate(result) if i != at]
        elif at is None:
            result.append(_strategic({}, each, schema.get("items", {})))
        else:
            result[at] = _strategic(result[at], each, schema.get("items", {}))
    return result
