"""From where pages open the project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blobsync.project.api import Project


@dataclass(frozen=True, slots=True)
class Source:
    """From where pages open the project: as the command line did that started them.

    ``folder`` is the current folder, ``cluster`` what -c chose, ``cluster_name`` the cluster that it came to.
    """

    root: Path
    folder: Path
    cluster: str | None
    cluster_name: str
    overrides: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)

    def open(self, cluster: str | None = None) -> Project:
        """For one request, since a project is for one thread at a time. Raises ``ConfigError``."""
        other = cluster not in (None, self.cluster_name)
        overrides = None if other else self.overrides
        return Project.open(
            self.folder, cluster=cluster if other else self.cluster, overrides=overrides, environ=self.environ
        )
