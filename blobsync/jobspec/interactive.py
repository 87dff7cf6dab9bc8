"""Interactive jobs: which jobs wait for users instead of running a command, and how long. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from blobsync.base.errors import UsageError

# The command of an interactive job, as on Philly.
WAITING = ("ssh",)
# How long a job waits by default (seconds).
DEFAULT_HOLD = 4 * 3600
# The program that waits on a node, beside the job's specification, and the folder of its records in the run's folder.
HOLDER, HOLDING_FOLDER = "interactive.py", "interactive"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 366 * 86_400


def entering(run_dir: str, node: int) -> tuple[str, ...]:
    """The arguments with which that program enters the job on this node."""
    return ("enter", "--place", f"{run_dir}/{HOLDING_FOLDER}", "--node", str(node))


def entering_command(run_id: str) -> str:
    """The command that a user runs to enter the job."""
    return f"blobsync ssh {run_id.rpartition('_')[2]}"


def duration_seconds(text: str) -> int | None:
    """Parse ``90m``, ``5h``, ``2d``, or a number of seconds; None if invalid."""
    match = re.fullmatch(r"([0-9]{1,9})\s*([smhd]?)", text.strip())
    return int(match[1]) * _UNITS[match[2] or "s"] if match else None


def hold_text(seconds: int) -> str:
    """Format for ``--hold``, in the largest unit that divides it."""
    unit = next(letter for letter in reversed(_UNITS) if seconds % _UNITS[letter] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def hold_seconds(argv: Sequence[str], asked: str) -> int | None:
    """How long the job waits (seconds); None: it runs a command. ``asked`` is ``--hold``, or empty.

    Raises ``UsageError``.
    """
    if not asked:
        return DEFAULT_HOLD if tuple(argv) == WAITING else None
    if argv and tuple(argv) != WAITING:
        raise UsageError(
            "--hold and a command are two jobs: one that waits for you runs no command of its own",
            hint="blobsync submit --hold 4h; or sleep_if_fail: true in the cluster file keeps the node after a failure",
        )
    seconds = duration_seconds(asked)
    if not seconds or seconds > _LONGEST:
        raise UsageError(f"--hold {asked}: not a time", hint="write 90m, 4h or 2d")
    return seconds
