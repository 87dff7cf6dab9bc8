"""Asking before something cannot be undone."""

from __future__ import annotations

import sys

from blobsync.errors import UsageError


def confirm(question: str) -> None:
    """Return when the answer is yes. Raises ``UsageError`` on any other answer, or where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError(f"nobody here to ask: {question}", hint="add -y to answer yes; --dry-run shows what it is")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, nothing was touched")
