"""How many processes of the direct engine carry a plan.

The threads of one process take turns at Python's lock for what each file costs (``engine_costs``). Only while they
hash, or are inside the transport or the TLS library, do they use several cores; so a few large files gain little from
more processes, and many small ones gain. What it costs to start a process and to hear of each of its files sets the
break-even (``python -m benchmarks.processes``, docs/performance.md).
"""

from __future__ import annotations

import os

from blobsync.base.amounts import duration_text
from blobsync.plan.engine_model import Work, seconds_in_turn
from blobsync.plan.transfer_plan import ProcessChoice

# What each process gets at least, in CPU seconds. One costs 0.2 to start, and each of its files 0.00005 in the parent:
# the break-even of two is at 0.6 for both together.
LEAST_SECONDS = 1.0
# By itself it starts no more than this; more were never measured.
_MOST = 8
# The largest number that a user may ask for.
MOST_PROCESSES = 64

NOT_DIRECT = ProcessChoice(1, "only the direct engine starts worker processes")


def choose_processes(requested: int | None, work: Work, cap_mbps: float | None = None) -> ProcessChoice:
    """How many processes the direct engine uses for this work; ``requested`` None lets the model say.

    ``cap_mbps``: megabits (10^6) a second at most.
    """
    if requested is not None:
        return ProcessChoice(requested, f"--processes {requested} was given")
    if work.files == 0:
        return ProcessChoice(1, "nothing to move")
    if work.cores == 1:
        return ProcessChoice(1, "this machine has one core")
    seconds = seconds_in_turn(work)
    if cap_mbps and work.size * 8 / (cap_mbps * 1e6) > seconds:
        return ProcessChoice(1, "--cap-mbps is the limit, not the CPU")
    amount = f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)
    took = f"one would need about {amount} of CPU for the files"
    count = min(work.cores, _MOST, int(seconds / LEAST_SECONDS))
    if count < 2:
        return ProcessChoice(1, f"{took}; a second one is worth it from {2 * LEAST_SECONDS:g} s on")
    return ProcessChoice(count, f"{took}, and this machine has {work.cores} cores")


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
