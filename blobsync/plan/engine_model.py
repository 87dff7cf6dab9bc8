"""Estimates how long ``direct`` and ``azcopy`` would take for the same files, and chooses one of them.

    time        = start + the longest of what limits it
    requests    one for each file, over all connections, each as long as a round trip
    CPU         seconds a file and a byte (``engine_costs``, measured), on all cores; what Python does for each
                file is on one core for each process
    MD5         of the largest file, which one thread computes from its beginning to its end

azcopy checks only every two seconds whether it is done (tag v10.32.2, azcopy/jobLifecycleManager.go, ``wait``), so its
time is a multiple of that, unless blobsync sees the end itself: in downloads, and uploads of few files.

``direct`` checks each response and replaces no version that it did not see, so azcopy has to be clearly faster.

It also chooses the number of processes of the direct engine. The threads of one process take turns at Python's lock for
the work on each file (``engine_costs``); they use several cores only while they hash, or are inside the transport or
the TLS library. So more processes help little with a few large files, and more with many small ones. The costs of
starting a process and of its record for each file set the break-even (``python -m benchmarks.processes``,
docs/performance.md). Whether the server or other programs leave cores for them is not predicted: one process moves the
first files, and its use of the CPU decides.
"""

import math
from collections.abc import Callable

from blobsync.base.formatting import duration_text
from blobsync.base.records import NamedTuple
from blobsync.plan.blocks import ONE_REQUEST
from blobsync.plan.engine_costs import COSTS
from blobsync.plan.transfer_options import EngineName
from blobsync.plan.transfer_plan import EngineChoice, ProcessChoice, Route

# azcopy is chosen if it needs less than this share of direct's time and saves this many seconds, since the estimates
# are no better. With a round trip of 40 ms azcopy took three times as long as estimated for 500 files.
CLEARLY_FASTER = 0.75
LEAST_GAIN = 10.0
# Up to this many files azcopy writes its verbose log, which shows at once that an upload is done; for more, the log
# costs more than the two seconds that it saves.
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
    """The amount of work, and its route.

    ``size`` and ``largest`` (file) in bytes; ``round_trip`` in seconds, as measured in the survey, 0 if nothing was
    requested. ``processes`` of blobsync share the work; ``spared`` bytes are already there, and only ``direct`` does
    not send them again.
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
        """Whether the content passes through this machine, and is hashed here."""
        return self.route in (Route.UPLOAD, Route.DOWNLOAD)


class RequestedEngine(NamedTuple):
    """The requested engine, and where the request comes from, as the beginning of a sentence: ``--engine direct was
    given``."""

    name: EngineName = "auto"
    reason: str = ""


class EngineRules(NamedTuple):
    """What the choice depends on besides the work.

    ``azcopy_problem`` returns why azcopy cannot move this number of files and bytes on a route, None if it can.
    ``alone`` goes on with "one process", if no other may help.
    """

    azcopy_problem: Callable[[Route, int, int], str | None]
    requested: RequestedEngine = RequestedEngine()
    cores: int = 1
    alone: str = ""


def direct_seconds(work: Work) -> float:
    """The estimated time of ``direct`` in seconds."""
    cost = _cost("direct", work)
    connections = _NEAR_CONNECTIONS if work.round_trip < _FAR else _FAR_CONNECTIONS
    return cost.start + max(
        work.files * work.round_trip / connections,
        seconds_in_turn(work) / max(1, min(work.processes, work.cores)),
        _cpu(cost, work._replace(size=work.size - work.spared)) / work.cores,
        _md5_of_largest(work),
    )


def seconds_in_turn(work: Work) -> float:
    """The CPU seconds for the files in one process of blobsync, whose threads take turns."""
    return work.files * _cost("direct", work).file


def azcopy_seconds(work: Work) -> float:
    """The estimated time of azcopy in seconds, with blobsync's own work for it."""
    cost, around = _cost("azcopy", work), _cost("around", work)
    connections = max(_AZCOPY_LEAST, min(_AZCOPY_A_CORE * work.cores, _AZCOPY_MOST))
    working = max(
        work.files * work.round_trip / connections,
        work.files * around.file,
        (_cpu(cost, work) + _cpu(around, work)) / work.cores,
        _md5_of_largest(work),
    )
    # Else blobsync knows that azcopy is done before azcopy does.
    if work.route is not Route.DOWNLOAD and not (work.route is Route.UPLOAD and work.files <= CHATTY_FILES):
        working = max(1, math.ceil(working / _AZCOPY_STEP)) * _AZCOPY_STEP
    return cost.start + around.start + working


def azcopy_is_worth_it(work: Work) -> bool:
    """Whether azcopy would be clearly faster."""
    direct, azcopy = direct_seconds(work), azcopy_seconds(work)
    return azcopy < CLEARLY_FASTER * direct and azcopy < direct - LEAST_GAIN


def choose_engine(rules: EngineRules, work: Work) -> EngineChoice:
    """The engine for ``work``, with both estimates and one sentence.

    ``azcopy_problem`` is called only if azcopy would be chosen, since it may have to start azcopy.
    """
    requested = rules.requested
    if requested.name == "relay":
        return EngineChoice("relay", requested.reason)
    if work.files == 0:
        name = "direct" if requested.name == "auto" else requested.name
        return EngineChoice(name, requested.reason or "nothing to move")
    direct, azcopy = direct_seconds(work), azcopy_seconds(work)
    times = {"direct": f"about {_text(direct)}", "azcopy": f"about {_text(azcopy)}"}
    if requested.name != "auto":
        return EngineChoice(requested.name, f"{requested.reason}; {times[requested.name]}", direct, azcopy)
    if not azcopy_is_worth_it(work):
        than = "azcopy would take" if azcopy >= direct else "azcopy would be little faster:"
        return EngineChoice("direct", f"{times['direct']}; {than} {times['azcopy']}", direct, azcopy)
    problem = rules.azcopy_problem(work.route, work.files, work.size)
    if problem is not None:
        why = f"{times['direct']}; azcopy would take {times['azcopy']}, but is not used because {problem}"
        return EngineChoice("direct", why, direct, azcopy)
    return EngineChoice("azcopy", f"{times['azcopy']}; direct would take {times['direct']}", direct, azcopy)


def _cost(engine: str, work: Work) -> EngineCost:
    direction = "down" if work.route is Route.DOWNLOAD else "up"
    cost = EngineCost(*COSTS[engine, direction, work.tls])
    # From server to server no byte passes through this machine.
    return cost if work.hashing else cost._replace(byte=0.0)


def _cpu(cost: EngineCost, work: Work) -> float:
    return work.files * cost.file + work.size * cost.byte


def _md5_of_largest(work: Work) -> float:
    return work.largest * _MD5_BYTE if work.hashing else 0.0


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else duration_text(seconds)


# Minimum of work for each process, in CPU seconds. Starting one costs 0.2, and each of its files 0.00005 in the parent:
# the break-even of two processes is at 0.6 together.
LEAST_SECONDS = 1.0
# The maximum without ``--processes``; more were never measured.
_MOST = 8

# What one process moves before others are started, in CPU seconds of the model; and the largest of these files (bytes),
# so that a few large ones do not keep the other processes waiting.
_TRIAL_SECONDS = 1.0
TRIAL_FILE = ONE_REQUEST
# A shorter trial says nothing (seconds): the kernel counts idle time in hundredths of a second.
_LEAST_TRIAL = 0.2
# A process whose threads use less than this share of a core waits for the network or the disk, which others would, too.
_BUSY = 0.75

NOT_DIRECT = ProcessChoice(1, "only the direct engine starts worker processes")


def choose_processes(requested: int | None, work: Work, cap_mbps: float | None = None) -> ProcessChoice:
    """The number of processes of the direct engine for this work, at most; ``requested`` None leaves it to the model,
    and to :func:`processes_after_trial`.

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
    took = f"one would need about {_text(seconds)} of CPU for the files"
    count = min(work.cores, _MOST, int(seconds / LEAST_SECONDS))
    if count < 2:
        return ProcessChoice(1, f"{took}; a second one is worth it from {2 * LEAST_SECONDS:g} s on")
    return ProcessChoice(count, f"{took}, and this machine has {work.cores} cores; the first files show how many help")


class CpuUse(NamedTuple):
    """What happened while something ran, in seconds: how long it took, this process's CPU time, and the time that the
    usable cores were idle, together."""

    seconds: float
    own: float
    idle: float


def trial_files(work: Work) -> int:
    """The number of files that one process moves before others are started."""
    return math.ceil(_TRIAL_SECONDS / _cost("direct", work).file)


def processes_after_trial(most: int, use: CpuUse) -> int:
    """The number of processes, up to ``most``, for the rest of the files after one process has used this much.

    More than one only if that process was limited by the CPU, and a core was idle for each further one.
    """
    if use.seconds < _LEAST_TRIAL:
        return most
    if use.own < _BUSY * use.seconds:
        return 1
    return min(most, 1 + round(use.idle / use.seconds))
