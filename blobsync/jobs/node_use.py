"""How busy a job's nodes were: the heartbeats in their logs, as values.

``node/machine.py`` writes them: ``heartbeat: disk 120 of 500 GB free, load 3.1, GPU 97%/30000MB 95%/...``, and
``checkpoint 42 s behind`` where a complete one is not in the container yet; before the command starts
``preparing data: 1,200 of 5,000 files, 1.2 GB of 4 GB``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from blobsync.base.formatting import utc_seconds
from blobsync.base.records import dataclass
from blobsync.jobs.logs import FetchedLogs, attempt_of
from blobsync.jobs.record import JobRecord

_NODE_LOG = re.compile(r"(?:task_\d+/)?(?:attempt_\d{1,6}/)?system_logs/node_(\d{1,6})\.txt")
_HEARTBEAT = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) heartbeat: disk (\d{1,9}) of (\d{1,9}) GB free, load (\d{1,6}\.\d)"
    r"(?:, GPU ((?:\d{1,3}%/\d{1,7}MB ?)+))?(?:, checkpoint (\d{1,9}) s behind)?(?:, preparing (.{1,500}))?"
)
_SAID = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?:(left behind: .{1,2000})|(left without a mark: .{1,2000})"
    r"|ready: |the files of an earlier start are here)"
)
_ATTEMPT = re.compile(r"attempt_\d{1,6}/")
# A chart has no more points; of more, the ones between are left out.
_MOST = 400


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node at one moment (seconds since 1970). Disk in GB; ``gpus`` are each one's use in percent and MB.

    ``behind`` is how many seconds a complete checkpoint had been on the node alone; None: all were in the container.
    ``preparing`` is how far it was before the command's start; empty: that has started.
    """

    at: float
    disk_free: int
    disk_total: int
    load: float
    gpus: tuple[tuple[int, int], ...] = ()
    behind: int | None = None
    preparing: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class NodeUse:
    """One node over time."""

    node: int
    samples: tuple[NodeSample, ...]

    def __repr__(self) -> str:
        return f"<NodeUse of node {self.node}: {len(self.samples):,} samples>"


def node_of_log(name: str) -> int | None:
    """The node that writes the log, None for other logs."""
    match = _NODE_LOG.fullmatch(name)
    return int(match[1]) if match else None


def use_of_nodes(fetched: FetchedLogs) -> tuple[NodeUse, ...]:
    """Disk, load and GPUs of each node, from the ``fetched`` logs; nodes without samples are left out."""
    found = []
    for name in fetched.names:
        node = node_of_log(name)
        if node is not None:
            with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
                found.append(node_use(node, stream))
    return tuple(use for use in sorted(found, key=lambda use: use.node) if use.samples)


def seconds_behind(record: JobRecord, fetched: FetchedLogs) -> int | None:
    """How many seconds a complete checkpoint has been on a node of a running job alone; None: none, or not known."""
    if record.state.is_final or not any(entry.checkpoints for entry in record.spec.folders):
        return None
    last = [use.samples[-1].behind for use in use_of_nodes(fetched)]
    return max((each for each in last if each is not None), default=None)


def preparing_text(record: JobRecord, fetched: FetchedLogs) -> str:
    """How far the first node is that is still being made ready; empty: none is, or it is not known."""
    if record.state.is_final:
        return ""
    last = {use.node: use.samples[-1].preparing for use in use_of_nodes(fetched)}
    return next((f"{text} (node {node})" for node, text in last.items() if text), "")


def left_behind(record: JobRecord, fetched: FetchedLogs) -> tuple[str, ...]:
    """What :func:`said_at_end` finds; nothing of a job that has not ended, which may begin again."""
    return said_at_end(fetched) if record.state.is_final else ()


def said_at_end(fetched: FetchedLogs) -> tuple[str, ...]:
    """What each node said, as it ended, of files outside of the job's folders, and in its last start of checkpoints
    without a mark."""
    files: dict[str, None] = {}
    unmarked: dict[str, list[str]] = {}
    for name in sorted(filter(_NODE_LOG.fullmatch, fetched.names), key=attempt_of):
        in_last_start = unmarked[_ATTEMPT.sub("", name)] = []
        with fetched.path(name).open(encoding="utf-8", errors="replace") as stream:
            for match in filter(None, map(_SAID.match, stream)):
                if match[1]:
                    files[match[1]] = None
                elif match[2]:
                    in_last_start.append(match[2])
                else:
                    in_last_start.clear()
    return tuple(dict.fromkeys([*files, *(said for each in unmarked.values() for said in each)]))


def node_use(node: int, lines: Iterable[str]) -> NodeUse:
    """What the heartbeats among these lines say."""
    found: list[NodeSample] = []
    for line in lines:
        match = _HEARTBEAT.match(line)
        if match and (at := utc_seconds(match[1])) is not None:
            gpus = re.findall(r"(\d+)%/(\d+)MB", match[5] or "")
            used = tuple((min(100, int(share)), int(size)) for share, size in gpus)
            behind = int(match[6]) if match[6] else None
            preparing = (match[7] or "").rstrip()
            found.append(NodeSample(at, int(match[2]), int(match[3]), float(match[4]), used, behind, preparing))
    step = -(-len(found) // _MOST) or 1
    # The last one is the present.
    return NodeUse(node, tuple(found[::-1][::step][::-1]))
