"""Asking once about a symlink that leaves the project."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from blobsync.base.errors import UntrustedLinkError
from blobsync.cli.confirm import confirm

if TYPE_CHECKING:
    from blobsync.cli.session import Session
    from blobsync.project.api import Project

T = TypeVar("T")


def with_consent(session: Session, project: Project, act: Callable[[], T]) -> T:
    """What ``act`` returns, after the user agreed to each link that it may not follow without.

    Without a terminal, raises ``UntrustedLinkError``, whose hint is the command to trust the link.
    """
    while True:
        try:
            return act()
        except UntrustedLinkError as error:
            if not sys.stdin.isatty():
                raise
            for link, target in error.links:
                confirm(session, f"{link} points outside the project, to {target}: read and write there from now on?")
            project.trust_links(error.links)
