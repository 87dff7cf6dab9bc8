"""Asking once about a symlink that leaves the project, and about a state folder that may be somebody else's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blobsync.base.errors import UntrustedLinkError, UntrustedStateError, UsageError
from blobsync.cli.confirm import confirm
from blobsync.local.state_dir import trust_state

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
