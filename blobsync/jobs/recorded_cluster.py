"""The cluster of a submitted job as it was then, so later commands ask that one even if its files have changed.

A home holds no secret: credentials and secret variables are taken from the project's files when they are needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blobsync.base.errors import BackendUnavailableError, ConfigError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.redaction import is_secret_name
from blobsync.config.loader import load_workspace, reload_cluster
from blobsync.config.model import Cluster, Written
from blobsync.jobspec.spec import SERVICES

# Values that hold a credential, whatever their key is called.
_SECRET_VALUE = pattern(r"(?:\bsig|\w(?:KEY|SIGNATURE)|TOKEN|SECRET|PASSWORD|PASSWD|\bSAS)\s*(?:=|%3D)", re.IGNORECASE)
# Variables are in the specification, secret ones by name.
_NOT_KEPT = "env"
# Keys that look like secrets but are not.
_PUBLIC = ("ssh_public_key", "pull_secret")


@dataclass(frozen=True, slots=True)
class Home:
    """The backend of a job, and the configuration that led to it.

    ``address`` identifies the place on its platform. ``file``, ``overrides`` and ``values`` are the
    cluster file, what -p changed, and both together.
    """

    platform: str
    address: Mapping[str, str]
    file: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A text that is equal for all jobs of one place."""
        return json.dumps([self.platform, dict(self.address)], sort_keys=True)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Home:
        """The inverse of :meth:`to_json`. Raises ``ValueError`` for other texts."""
        return made_of(cls, parse_object(text))


def home_of(cluster: Cluster, environ: Mapping[str, str]) -> Home:
    """The place where jobs of this cluster run. Raises ``ConfigError`` where the Azure ML workspace cannot be read."""
    written = cluster.written or Written(Path(), {}, {})
    values = without_secrets(written.values)
    address: dict[str, str] = {}
    if cluster.platform == "slurm":
        address["ssh"] = cluster.text("ssh") or ""
    if cluster.platform == "kubernetes":
        address = {key: cluster.text(f"kubernetes.{key}") or "" for key in ("context", "namespace")}
    if cluster.platform in SERVICES:
        place = load_workspace(cluster, environ=environ)
        address = {
            "subscription_id": place.subscription_id,
            "resource_group": place.resource_group,
            "workspace_name": place.workspace_name,
            "management_endpoint": place.management_endpoint,
        }
        values["aml_config"] = {**address, **({"api_version": place.api_version} if place.api_version else {})}
    file = str(written.path) if cluster.written else ""
    return Home(cluster.platform, address, file, without_secrets(written.overrides), values)


def cluster_at(home: Home, name: str, root: Path, environ: Mapping[str, str]) -> Cluster:
    """The cluster for this home: from today's file if it still leads there, else from the file as it was recorded.

    Raises ``BackendUnavailableError`` if neither can be read.
    """
    written = Written(Path(home.file), home.overrides, home.values)
    problem: ConfigError | None = None
    for anew in (True, False) if home.file else ():
        try:
            cluster = reload_cluster(root, written, environ=environ, anew=anew)
            if cluster.platform == home.platform and home_of(cluster, environ).address == home.address:
                return cluster
        except ConfigError as error:
            problem = problem or error
    raise BackendUnavailableError(
        f"the job was submitted to {home.platform} with the cluster file {home.file or name}, which has changed"
        + (f": {problem.message}" if problem else ""),
        hint="restore the cluster file as it was",
    )


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without everything that is, or looks like, a credential."""
    return {
        key: _plain(value)
        for key, value in values.items()
        if key in _PUBLIC or not (key.split("$")[0] == _NOT_KEPT or is_secret(key, value))
    }


def is_secret(key: str, value: Any) -> bool:
    """Whether a key or value looks like a credential, which must not be recorded."""
    if isinstance(value, Mapping):
        return False
    named = is_secret_name(key) and isinstance(value, (str, int)) and not isinstance(value, bool)
    return named or (isinstance(value, str) and _SECRET_VALUE.search(value) is not None)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if not is_secret("", item)]
    return value
