"""Estimates how long ``direct`` and ``azcopy`` would take for the same files, and chooses one of them.

    time        = start + the longest of what limits it
    requests    a file each, over so many connections, each as long as a round trip
    CPU         seconds a file and a byte (``engine_costs``, measured), on all cores; what Python does for each
                file is on one core for each process
    MD5         of the largest file, which one thread computes from its beginning to its end

azcopy only looks every two seconds whether it is done (tag v10.32.2, azcopy/jobLifecycleManager.go, ``wait``), so its
time is a multiple of that, except where blobsync sees the end itself: downloads, and uploads of few files.

``direct`` checks each answer itself and replaces no version that it did not see, so azcopy has to be clearly faster.

It also chooses how many processes of the direct engine carry a plan. The threads of one process take turns at Python's
lock for what each file costs (``engine_costs``). Only while they hash, or are inside the transport or the TLS library,
do they use several cores; so a few large files gain little from more processes, and many small ones gain. The costs of
a process's start and of its record for each file set the break-even (``python -m benchmarks.processes``,
docs/performance.md).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import NamedTuple

from blobsync.base.amounts import duration_text
from blobsync.plan.engine_costs import COSTS
from blobsync.plan.transfer_options import EngineName
from blobsync.plan.transfer_plan import EngineChoice, ProcessChoice, Route

# azcopy is taken where it needs less than this share of direct's time and saves so many seconds: the estimates are no
# better than that. Over a line of 40 ms azcopy took three times what the model says of 500 files.
CLEARLY_FASTER = 0.75
LEAST_GAIN = 10.0
# Up to so many files azcopy writes its talkative log, which shows at once that an upload is done; above, the log
# itself costs more than the two seconds that it saves.
CHATTY_FILES = 2500

# Seconds.
_AZCOPY_STEP = 2.0
_FAR = 0.010
# Connections at once. azcopy's own rule: 16 for each core, at least 32, at most 300 (``azcopy.argv``).
_NEAR_CONNECTIONS, _FAR_CONNECTIONS = 16, 64
_AZCOPY_LEAST, _AZCOPY_MOST, _AZCOPY_A_CORE = 32, 300, 16
# Seconds of CPU a byte: `openssl speed md5` and hashlib agree on 0.15 s for 100 MB (docs/performance.md, "Profile").
_MD5_BYTE = 1.5e-9


class EngineCost(NamedTuple):
    """Seconds of CPU for the start, for a file, and for a byte."""

    start: float
    file: float
    byte: float


class Work(NamedTuple):
    """What there is to do, and where.

    ``size`` and ``largest`` (file) in bytes; ``round_trip`` in seconds, as seen in the survey, 0 where nothing was
    asked. ``processes`` is how many of ours share the work; ``spared`` are bytes that are there already, and that only
    ``direct`` does not send again.
    """

    route: Route
    files: int
    size: int
    largest: int
    cores: int
    tls: bool
    round_trip: float = 0.0
    processes: int = 1
    spared: int = 0

    @property
    def hashing(self) -> bool:
        """Whether the content passes through this machine, which then hashes it."""
        return self.route in (Route.UPLOAD, Route.DOWNLOAD)


class EngineWish(NamedTuple):
    """Which engine somebody wants, and how the wish was made, as a sentence begins: ``--engine direct was given``."""

    name: EngineName = "auto"
    said: str = ""


class EngineRules(NamedTuple):
    """What the choice depends on beside the work itself.

    ``azcopy_problem`` says why azcopy cannot be used for so many files of so many bytes on a route, None where it can.
    """

    azcopy_problem: Callable[[Route, int, int], str | None]
    wish: EngineWish = EngineWish()
    cores: int = 1


def direct_seconds(work: Work) -> float:
    """How long ``direct`` would take, in seconds."""
    cost = _cost("direct", work)
    connections = _NEAR_CONNECTIONS if work.round_trip < _FAR else _FAR_CONNECTIONS
    return cost.start + max(
        work.files * work.round_trip / connections,
        seconds_in_turn(work) / max(1, min(work.processes, work.cores)),
        _cpu(cost, work._replace(size=work.size - work.spared)) / work.cores,
        _md5_of_largest(work),
    )


def seconds_in_turn(work: Work) -> float:
    """What the files cost one process of ours, in CPU seconds: its threads take turns at it."""
    return work.files * _cost("direct", work).file


def azcopy_seconds(work: Work) -> float:
    """How long azcopy would take with what blobsync does around it, in seconds."""
    cost, around = _cost("azcopy", work), _cost("around", work)
    connections = max(_AZCOPY_LEAST, min(_AZCOPY_A_CORE * work.cores, _AZCOPY_MOST))
    working = max(
        work.files * work.round_trip / connections,
        work.files * around.file,
        (_cpu(cost, work) + _cpu(around, work)) / work.cores,
        _md5_of_largest(work),
    )
    if not _end_is_seen(work):
        working = max(1, math.ceil(working / _AZCOPY_STEP)) * _AZCOPY_STEP
    return cost.start + around.start + working


def azcopy_is_worth_it(work: Work) -> bool:
    """Whether azcopy would be clearly faster."""
    direct, azcopy = direct_seconds(work), azcopy_seconds(work)
    return azcopy < CLEARLY_FASTER * direct and azcopy < direct - LEAST_GAIN


def choose_engine(rules: EngineRules, work: Work) -> EngineChoice:
    """The engine for ``work``, with both estimates and one sentence.

    What speaks against azcopy is asked only where it would be taken: the answer may have to start it.
    """
    wish = rules.wish
    if wish.name == "relay":
        return EngineChoice("relay", wish.said)
    if work.files == 0:
        name = "direct" if wish.name == "auto" else wish.name
        return EngineChoice(name, wish.said or "nothing to move")
    direct, azcopy = direct_seconds(work), azcopy_seconds(work)
    said = {"direct": f"about {_text(direct)}", "azcopy": f"about {_text(azcopy)}"}
    if wish.name != "auto":
        return EngineChoice(wish.name, f"{wish.said}; {said[wish.name]}", direct, azcopy)
    if not azcopy_is_worth_it(work):
        than = "azcopy would take" if azcopy >= direct else "azcopy would be little faster:"
        return EngineChoice("direct", f"{said['direct']}; {than} {said['azcopy']}", direct, azcopy)
    problem = rules.azcopy_problem(work.route, work.files, work.size)
    if problem is not None:
        why = f"{said['direct']}; azcopy would take {said['azcopy']}, but is not used because {problem}"
        return EngineChoice("direct", why, direct, azcopy)
    return EngineChoice("azcopy", f"{said['azcopy']}; direct would take {said['direct']}", direct, azcopy)


def _cost(engine: str, work: Work) -> EngineCost:
    direction = "down" if work.route is Route.DOWNLOAD else "up"
    cost = EngineCost(*COSTS[engine, direction, work.tls])
    # From server to server no byte comes by.
    return cost if work.hashing else cost._replace(byte=0.0)


def _cpu(cost: EngineCost, work: Work) -> float:
    return work.files * cost.file + work.size * cost.byte


def _md5_of_largest(work: Work) -> float:
    return work.largest * _MD5_BYTE if work.hashing else 0.0


def _end_is_seen(work: Work) -> bool:
    """Whether blobsync knows that azcopy is done before azcopy does."""
    return work.route is Route.DOWNLOAD or (work.route is Route.UPLOAD and work.files <= CHATTY_FILES)


def _text(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"


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
