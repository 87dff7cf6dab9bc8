"""Requests to Kubernetes, validated by its schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from blobsync.backends import create_backend
from blobsync.backends.protocol import Plan, Surroundings
from blobsync.jobs.context import settings_of
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef
from tests.fakes.aml_configs import CONTAINER, RUN_ID, load
from tests.fakes.runner import ScriptedRunner
from tests.unit.project_files import NO_ENVIRON

# The oldest supported server, and the newest with schemas here.
SCHEMAS = ("1.31", "1.37")


def plan(root: Path, request: SubmitRequest | None = None, run_id: str = RUN_ID, **changes: Any) -> Plan[Any]:
    """The request of one submission; ``changes`` are keys of the cluster file."""
    given = {"namespace": "train", **changes.pop("kubernetes", {})}
    cluster, _ = load(root, platform="kubernetes", kubernetes=given, **changes)
    code = CodeRef(CONTAINER, "me/code.zip.d/d1.zip", "d1")
    spec = describe(cluster, request or SubmitRequest(("python", "train.py")), run_id, code)
    around = Surroundings(
        "c", Path("/p"), Path("/p/.blobsync"), settings_of(cluster), NO_ENVIRON, ScriptedRunner(), cluster
    )
    made = create_backend("kubernetes", around).plan(spec)
    demand_valid(made.text)
    return made


def demand_valid(text: str) -> list[Mapping[str, Any]]:
    """All objects of the text, after validation by each schema."""
    objects = [each for each in yaml.safe_load_all(text) if each]
    for each in objects:
        for version in SCHEMAS:
            kubernetes_validate.validate(each, version, strict=True)
    return objects
