"""From how many files on a plan is made on the disk."""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.base.errors import UsageError
from blobsync.local.sorted_runs import MOST_IN_MEMORY, Spill
from blobsync.local.state_dir import StateDir

LARGE_PLAN_VARIABLE = "BLOBSYNC_LARGE_PLAN"


def spill_of(state: StateDir, environ: Mapping[str, str]) -> Spill:
    """The project's own folder has room for a large plan; the system's temporary one is often in memory itself.

    Raises ``UsageError`` for a variable that is no number.
    """
    said = environ.get(LARGE_PLAN_VARIABLE) or str(MOST_IN_MEMORY)
    if not (said.isascii() and said.isdigit() and 0 < int(said) <= 10**9):
        raise UsageError(
            f"{LARGE_PLAN_VARIABLE}={said[:40]!a} is not a number of files", hint=f"unset {LARGE_PLAN_VARIABLE}"
        )
    return Spill(lambda: state.folder("plans"), int(said))
