"""Chooses how to spread a plan over the nodes of a cluster, or refuses."""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.base.errors import UsageError
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.model import AML_PLATFORMS
from blobsync.plan.transfer_options import TransferOptions

# Processes of each task of a cluster; tasks on this machine share its cores.
WORKERS_PER_NODE: Mapping[str, int] = {"slurm": 4, "kubernetes": 4, **dict.fromkeys(AML_PLATFORMS, 4)}
# Platforms whose nodes do not have this machine's file systems.
_WITHOUT_DISK = frozenset({"kubernetes", *AML_PLATFORMS})
# On this machine tasks are processes.
_MOST_HERE = 64
# More shards than workers, so that a slow one takes fewer.
_SHARDS_PER_WORKER = 8
# The same for tasks, each of which has to be started.
_TASKS_PER_NODE = 4
# Minimum weight of a shard, as bytes: handing over a smaller one costs more than it saves.
_LEAST = 50 << 20


class Load(NamedTuple):
    """The work to spread: the number of files, and their weight."""

    files: int = 0
    weight: int = 0


_NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class SpreadPlan:
    """A transfer by tasks of ``backend``, of which ``nodes`` run at a time, each with ``workers_per_node`` processes.
    There are about as many tasks as ``shards``, balanced by bytes and requests; each PATH has its own. ``why`` is one
    sentence for the user. ``detach``: the last task closes the transfer.
    """

    backend: str
    nodes: int
    workers_per_node: int
    shards: int
    why: str
    detach: bool = False


def choose_spread(
    options: TransferOptions, platform: str, cluster: str, load: Load = _NO_LOAD, *, copies: bool
) -> SpreadPlan:
    """Choose how to spread the work. ``copies``: nothing local is read or written.

    Raises ``UsageError`` if the cluster's nodes cannot do it.
    """
    nodes = options.nodes or 1
    if platform == "local" and nodes > _MOST_HERE:
        raise UsageError(f"--nodes {nodes}: this machine takes at most {_MOST_HERE} as nodes")
    if platform in _WITHOUT_DISK and not copies:
        raise UsageError(
            f"--nodes: the nodes of {cluster} ({platform}) do not see this disk, so only copies with -f spread there",
            hint="use --processes on this machine, or the cluster file of a Slurm cluster that shares its file system",
        )
    each = WORKERS_PER_NODE.get(platform, 1)
    shards = min(load.files, max(nodes, min(nodes * _TASKS_PER_NODE, load.weight // (each * _LEAST))))
    why = f"--nodes {nodes} was given; {cluster} is {platform}"
    return SpreadPlan(platform, nodes, each, shards, why, options.detach)


def shard_count(workers: int, weight: int) -> int:
    """The number of shards for this work; see ``blobsync.spread.shard.weight``."""
    return max(workers, min(workers * _SHARDS_PER_WORKER, weight // _LEAST))
