"""A job's secrets on Azure ML: a blob, closed by a one-time pad that is in the job's command."""

from __future__ import annotations

import base64
import hashlib
import secrets as random_source
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from blobsync.base.records import dataclass
from blobsync.config.model import Cluster
from blobsync.jobspec.node_secrets import reached_by_nodes
from blobsync.jobspec.spec import OWN_SECRETS, JobSpec, Secrets


@dataclass(frozen=True, slots=True)
class Opening:
    """What opens the blob with a job's secrets, as a part of the job's command: the blob's SHA-256, which nodes verify,
    and the pad (base64). Who can read only one of the two, the job or the blob, learns nothing."""

    digest: str = ""
    pad: str = field(default="", repr=False)


NOTHING = Opening()


def secrets_path(cluster: Cluster, spec: JobSpec) -> str:
    """The path of the blob with the job's secrets; empty if it has none."""
    if not spec.secret_env and spec.spread is None and not reached_by_nodes(spec):
        return ""
    if cluster.code is None:
        what = "secret variables" if spec.secret_env else "the SAS of nodes that transfer and upload"
        raise cluster.error(
            ("config_param", "code_path"),
            f"{what} need a code_path, because they reach the nodes through its container",
        )
    return f"{cluster.code.path}.d/secrets/{spec.run_id}.json"


def node_secrets(spec: JobSpec, secrets: Secrets) -> Secrets:
    """The contents of that blob, with the SAS of what nodes access themselves; other data is in datastores."""
    # Others may be able to read that container. Keys of seals are in the job's definition.
    env = {name: value for name, value in secrets.env.items() if name not in OWN_SECRETS}
    return Secrets({container: secrets.sas[container] for container in sorted(reached_by_nodes(spec))}, env)


def with_seal_keys(job: Mapping[str, Any], secrets: Secrets) -> Mapping[str, Any]:
    """The body of a job with the keys of its seals: **contains secrets**."""
    keys = {name: value for name, value in secrets.env.items() if name in OWN_SECRETS}
    if not keys:
        return job
    properties = job["properties"]
    started = properties.get("trial", properties)
    added = {"environmentVariables": {**started.get("environmentVariables", {}), **keys}}
    added = {"trial": {**started, **added}} if "trial" in properties else added
    return {**job, "properties": {**properties, **added}}


def close_secrets(secrets: Secrets) -> tuple[bytes, Opening]:
    """The blob of secrets, which says nothing without what opens it: a one-time pad of the same length."""
    plain = secrets.to_json().encode()
    pad = random_source.token_bytes(len(plain))
    closed = bytes(one ^ other for one, other in zip(plain, pad, strict=True))
    return closed, Opening(hashlib.sha256(closed).hexdigest(), base64.b64encode(pad).decode())
