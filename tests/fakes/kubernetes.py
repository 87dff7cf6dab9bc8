"""Requests to Kubernetes, validated by its schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from blobsync.backends import create_backend
from blobsync.backends.kubernetes.kubectl import find_kubectl
from blobsync.backends.protocol import Plan, Surroundings
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef
from tests.fakes.aml_configs import CONTAINER, RUN_ID, load
from tests.fakes.runner import ScriptedRunner
from tests.unit.project_files import NO_ENVIRON

WITH_KUBECTL = {"PATH": str(Path(find_kubectl({"PATH": ""})).parent)}
# The oldest supported server, and the newest with schemas here.
SCHEMAS = ("1.31", "1.37")


def plan(root: Path, request: SubmitRequest | None = None, run_id: str = RUN_ID, **changes: Any) -> Plan:
    """The request of one submission; ``changes`` are keys of the cluster file."""
    given = {"namespace": "train", **changes.pop("kubernetes", {})}
    cluster, _ = load(root, platform="kubernetes", kubernetes=given, **changes)
    code = CodeRef(CONTAINER, "me/code.zip.d/d1.zip", "d1")
    spec = describe(cluster, request or SubmitRequest(("python", "train.py")), run_id, code)
    made = create_backend(Surroundings(cluster, Path("/p/.blobsync"), NO_ENVIRON, ScriptedRunner())).plan(spec)
    demand_valid(made.text)
    return made


def demand_valid(text: str) -> list[Mapping[str, Any]]:
    """All objects of the text, after validation by each schema."""
    objects = [each for each in yaml.safe_load_all(text) if each]
    for each in objects:
        for version in SCHEMAS:
            validator(each["kind"], each["apiVersion"], version).validate(each)
    return objects


@cache
def validator(kind: str, api: str, version: str) -> Any:
    """What kubernetes_validate checks strictly; it reads a megabyte of schemas again for each object."""
    (folder,) = (
        each
        for each in files("kubernetes_validate").joinpath("kubernetes-json-schema").iterdir()
        if each.name.startswith(f"v{version}.") and each.name.endswith("-local-strict")
    )
    group, _, name = api.rpartition("/")
    own = f"{kind}-{group.partition('.')[0]}-{name}".replace("--", "-").lower()
    schema, shared = (json.loads(folder.joinpath(file).read_text()) for file in (f"{own}.json", "_definitions.json"))
    known = [Resource.from_contents(each) for each in (schema, shared)]
    registry: Any = known @ Registry()
    return Draft202012Validator(schema, registry=registry)
