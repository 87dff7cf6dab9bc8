"""Which symlinks out of a project the user has agreed to.

A link may come with a project from a stranger, and would let blobsync read or write anywhere. So the user must trust
each such link once, with its current target.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

from blobsync.config.trust_store import TrustStore


class OutsideLink(NamedTuple):
    """``link`` is its path from the project's root; ``target`` is the target's path without links."""

    link: str
    target: str


TRUSTED_LINKS = TrustStore("links", OutsideLink._make, "blobsync config trust-link PATH")


def trust_command(link: str) -> str:
    """The command that trusts a link."""
    return f"blobsync config trust-link {shlex.quote(link)}"
