"""Which code a job runs."""

from __future__ import annotations

from blobsync.config.model import Cluster
from blobsync.jobs.submit import ChooseCode, CodeChoice
from blobsync.project import Project


def code_chooser(project: Project, *, init: bool = False) -> ChooseCode:
    """X."""

    def choose(cluster: Cluster) -> CodeChoice:
        return CodeChoice(None)

    return choose
