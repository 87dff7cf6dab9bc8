"""Chooses how to spread a plan over the nodes of a cluster, or refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blobsync.base.errors import UsageError
from blobsync.config.model import AML_PLATFORMS
from blobsync.plan.blocks import block_count
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import SpreadPlan

# Workers of each node of a cluster; nodes on this machine share its cores.
WORKERS_PER_NODE: Mapping[str, int] = {"slurm": 4, "kubernetes": 4, **dict.fromkeys(AML_PLATFORMS, 4)}
# Platforms whose nodes do not have this machine's file systems.
_WITHOUT_DISK = frozenset({"kubernetes", *AML_PLATFORMS})
# On this machine nodes are groups of processes.
_MOST_HERE = 64
# More shards than workers, so that a slow node takes fewer.
_SHARDS_PER_WORKER = 8
# Minimum weight of a shard, as bytes: handing over a smaller one costs more than it saves.
_LEAST = 50 << 20
# Bytes of a range of a large file: shorter ones cost more in reading twice and checking blocks than they save.
LEAST_RANGE = 1 << 30


class Load(NamedTuple):
    """The work to spread: the number of files, their weight, and the sizes of those that may be divided."""

    files: int = 0
    weight: int = 0
    large: Sequence[int] = ()


_NO_LOAD = Load()


def choose_spread(
    options: TransferOptions, platform: str, cluster: str, load: Load = _NO_LOAD, *, copies: bool, least: int = 0
) -> SpreadPlan:
    """Choose how to spread the work. ``copies``: nothing local is read or written. Ranges of a file have at least
    ``least`` bytes; 0: no file is divided.

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
    shards = min(load.files, shard_count(nodes * each, load.weight))
    why = f"--nodes {nodes} was given; {cluster} is {platform}"
    length = max(least, load.weight // (nodes * each * _SHARDS_PER_WORKER)) if least else 0
    cut = sum(is_cut(size, length) for size in load.large)
    return SpreadPlan(platform, nodes, each, shards, why, options.detach, length if cut else 0, cut)


def is_cut(size: int, length: int) -> bool:
    """Whether a file of ``size`` bytes is divided into ranges of ``length``; 0: never."""
    return 0 < 2 * length <= size and block_count(size) > 1


def shard_count(workers: int, weight: int) -> int:
    """The number of shards for this work; see ``blobsync.spread.shard.weight``."""
    return max(workers, min(workers * _SHARDS_PER_WORKER, weight // _LEAST))
