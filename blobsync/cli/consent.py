"""Asking once about a symlink or an option for docker that leaves the project, and a state folder of somebody else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blobsync.base.errors import UntrustedDockerError, UntrustedLinkError, UntrustedStateError, UsageError
from blobsync.cli.confirm import confirm
from blobsync.local.state_dir import trust_state

if TYPE_CHECKING:
    from blobsync.cli.session import Session
    from blobsync.project.api import Project

T = TypeVar("T")


def with_consent(session: Session, project: Project, act: Callable[[], T]) -> T:
    """What ``act`` returns, after the user agreed to each link and each option that it may not use without.

    Without a terminal, raises ``UntrustedLinkError`` or ``UntrustedDockerError``, whose hint is the command to trust
    it. ``act`` is begun anew then, and raises them before anything is changed.
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
        except UntrustedDockerError as error:
            if not sys.stdin.isatty():
                raise
            words = shlex.join(error.options)
            confirm(session, f"docker.args reaches beyond the project: use all of {words} here from now on?")
            project.trust_docker(error.options)


def agree_to_state(session: Session, error: UntrustedStateError) -> None:
    """Return when the user agreed to the state folder; what ``error`` stopped may run anew then, as a state folder is
    opened before anything is changed. Without a terminal, raises ``error``, whose hint is the command to accept it."""
    if not sys.stdin.isatty():
        raise error
    try:
        confirm(session, _question(error))
    except UsageError as refusal:
        raise UsageError(refusal.message, hint=error.hint) from error
    trust_state(Path(error.folder).parent.parent, session.environ)


def _question(error: UntrustedStateError) -> str:
    if error.project is None:
        return (
            f"{error.folder} is from an earlier version of blobsync, or came with this project from somebody else."
            " Have you used blobsync here before, and are its records yours?"
        )
    return f"{error.folder} was kept for the project at {error.project}. Did you move or copy that project here?"
