"""The numbers of nodes, processes and GPUs of a job, and the least and most nodes of an elastic one. Pure."""

from __future__ import annotations

import re

from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.formatting import count_text
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple, dataclass
from blobsync.jobspec.spec import SERVICES, JobSpec, State

# The most nodes of a cluster in Slurm.
MOST_NODES = 65_536

# Platforms where jobs cannot change their number of nodes.
FIXED_SIZE = frozenset({"aml"})
_PAIR = pattern(r"([0-9]{1,9}):([0-9]{1,9})")
_EXAMPLE = "blobsync submit --elastic 1:4 -- torchrun train.py"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest number of nodes of an elastic job, both included."""

    least: int
    most: int

    def __contains__(self, nodes: int) -> bool:
        return self.least <= nodes <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most:,} nodes"


def find_bounds(
    platform: str, asked: str = "", least: int | None = None, most: int | None = None, file: str = ""
) -> Bounds | None:
    """The bounds of a submission; None: a fixed size. ``asked`` is the user's ``--elastic``, and overrides ``least``
    and ``most`` of the cluster file ``file``.

    Raises ``UsageError`` for ``--elastic``, ``ConfigError`` for the file.
    """
    fixed = f"a job on {platform} has a fixed number of nodes" if platform in FIXED_SIZE else ""
    if asked:
        match = _PAIR.fullmatch(asked)
        if not match:
            raise UsageError(f"--elastic {asked!a} is not MIN:MAX", hint=_EXAMPLE)
        if fixed:
            raise UsageError(f"--elastic {asked}: {fixed}", hint="use --nodes N, or another cluster: -c NAME")
        least, most = int(match[1]), int(match[2])
        if problem := _problem(least, most):
            raise UsageError(f"--elastic {asked}: {problem}", hint=_EXAMPLE)
        return Bounds(least, most)
    if least is None and most is None:
        return None
    if least is None or most is None:
        key, missing = ("min_nodes", "max_nodes") if most is None else ("max_nodes", "min_nodes")
        raise ConfigError(f"needs {missing} beside it", file=file, key=key)
    if fixed:
        raise ConfigError(fixed, file=file, key="min_nodes", hint="remove min_nodes, max_nodes")
    if problem := _problem(least, most):
        raise ConfigError(problem, file=file, key="min_nodes", hint="min_nodes: 1, max_nodes: 4")
    return Bounds(least, most)


def _problem(least: int, most: int) -> str:
    if least < 1:
        return "an elastic job has at least one node"
    if least > most:
        return f"the smallest number of nodes, {least}, is larger than the largest, {most}"
    return f"at most {MOST_NODES:,} nodes" if most > MOST_NODES else ""


def bounds_of(spec: JobSpec) -> Bounds | None:
    """The bounds within which blobsync changes the job's size; None if it does not."""
    return Bounds(spec.min_nodes, spec.max_nodes) if spec.is_elastic and spec.min_nodes and spec.max_nodes else None


def demand_scalable(spec: JobSpec, state: State, nodes: int) -> None:
    """Raise ``UsageError`` unless a job in this state may get this number of nodes."""
    bounds = bounds_of(spec)
    if bounds is None:
        reason = "its platform chooses its size" if spec.min_nodes else "it was not submitted with --elastic"
        raise UsageError(f"{spec.run_id} cannot be scaled: {reason}", hint=_EXAMPLE)
    if nodes not in bounds:
        wider = f"--elastic {max(1, min(bounds.least, nodes))}:{max(bounds.most, nodes)}"
        raise UsageError(f"{spec.run_id} may have {bounds}, not {nodes}", hint=f"submit it with {wider}")
    if state.is_final:
        raise UsageError(f"{spec.run_id} has ended: {state}", hint=f"blobsync resubmit {spec.run_id}")


# ACT's default number of GPUs of a node on Azure ML.
_AML_GPUS = 4


class Size(NamedTuple):
    """The requested size, and the cluster file's; None: not given.

    ``num_gpu`` is ``-n`` or the file's; ``nodes`` is ``--nodes``, ``file_nodes`` the file's number of nodes. ``here``:
    in the foreground of this machine, on any platform. ``bounds`` are those of an elastic job.
    """

    platform: str
    num_gpu: int | None = None
    nodes: int | None = None
    gpu_per_node: int | None = None
    file_nodes: int | None = None
    multi_process: bool = True
    processes_per_node: int | None = None
    here: bool = False
    bounds: Bounds | None = None

    @property
    def node_gpus(self) -> int | None:
        """The number of GPUs of a node, if known."""
        return _AML_GPUS if self.gpu_per_node is None and self.platform in SERVICES else self.gpu_per_node

    @property
    def one_machine(self) -> bool:
        """Whether this machine is the job's only node, so that its GPUs can be counted."""
        return self.here or (self.platform == "local" and self.bounds is None)


class JobShape(NamedTuple):
    """The nodes and processes of a job. Every backend starts exactly ``world_size`` processes, or refuses the job.

    The command of an elastic job runs once on each node and starts ``workers_per_node`` processes there.
    """

    nodes: int
    procs_per_node: int
    gpus_per_node: int
    workers_per_node: int = 1

    @property
    def world_size(self) -> int:
        """The number of processes that run the command."""
        return self.nodes * self.procs_per_node


def find_shape(size: Size) -> JobShape:
    """ACT's rule: up to ``gpu_per_node`` GPUs are one node, more have to fill whole nodes.

    Without GPUs (``-n 0``) there is one process per node. ``gpu_per_node: 0`` is a cluster without GPUs; there ``-n``
    counts processes. This machine is always one node. Raises ``UsageError``.

    An elastic job begins with the smallest number of nodes, unless one within its bounds is asked for; its nodes on
    this machine are groups of processes.
    """
    if size.bounds and not size.here:
        size = size._replace(nodes=_first_nodes(size, size.bounds))
    per_node, each = size.node_gpus, 0
    if size.num_gpu == 0:
        nodes = size.nodes or 1
    else:
        count = size.num_gpu or (per_node or 1) * (size.nodes or size.file_nodes or 1)
        nodes = 1 if size.here else _node_count(size, count)
        if count % nodes:
            what = "processes" if per_node == 0 else "GPUs"
            hint = f"-n must be a multiple of {nodes}"
            raise UsageError(f"{count} {what} cannot be divided evenly among {nodes:,} nodes", hint=hint)
        each = count // nodes
    _demand_room(size, nodes, each)
    known = size.num_gpu is not None or per_node is not None or size.here or size.platform == "local"
    processes = (size.processes_per_node or each) if each and size.multi_process else 1
    gpus = each if known and per_node != 0 else 0
    return JobShape(nodes, 1, gpus, processes) if size.bounds and not size.here else JobShape(nodes, processes, gpus)


# What Slurm itself calls a GPU, or a share of one (https://slurm.schedmd.com/gres.html).
_GPU_KINDS = frozenset({"gpu", "mps", "shard"})


def asks_for_gpus(gres: str) -> bool:
    """Whether a ``gres`` of Slurm names GPUs, or whatever the cluster calls them, by their number ``{gpus}``."""
    kinds = (re.sub(r"^gres[:/]", "", part.strip()).partition(":")[0] for part in gres.split(","))
    return "{gpus}" in gres or not _GPU_KINDS.isdisjoint(kinds)


def job_size_text(spec: JobSpec) -> str:
    """``2 nodes, 8 processes, 8 GPUs``; of a sweep ``30 tasks, 4 at a time, each 1 node, ...``."""
    gpus = count_text(spec.gpus, "GPU") if spec.gpus else "no GPU"
    tasks = ""
    if spec.tasks and spec.spread is None:
        several = f", {spec.tasks.parallel:,} at a time" if spec.tasks.parallel else ""
        tasks = f"{count_text(spec.tasks.count, 'task')}{several}, each "
    return f"{tasks}{count_text(spec.nodes, 'node')}, {count_text(spec.world_size, 'process')}, {gpus}"


def _first_nodes(size: Size, bounds: Bounds) -> int:
    """The initial number of nodes of an elastic job."""
    nodes = size.nodes or bounds.least
    if size.nodes is None and size.num_gpu and size.node_gpus:
        nodes = max(nodes, _node_count(size, size.num_gpu))
    elif size.nodes is None and size.file_nodes:
        nodes = min(max(size.file_nodes, bounds.least), bounds.most)
    if nodes not in bounds:
        raise UsageError(f"the job may have {bounds}, and cannot begin with {nodes}", hint="change --nodes or -n")
    return nodes


def _node_count(size: Size, count: int) -> int:
    if size.nodes:
        return size.nodes
    per_node = size.node_gpus
    if size.file_nodes and not count % size.file_nodes and count // size.file_nodes <= (per_node or count):
        return size.file_nodes
    if size.one_machine or not per_node or count <= per_node:
        return 1
    if count % per_node:
        raise UsageError(
            f"{count:,} GPUs do not fill whole nodes of {per_node}", hint=f"-n must be a multiple of {per_node}"
        )
    return count // per_node


def _demand_room(size: Size, nodes: int, each: int) -> None:
    if size.one_machine:
        if nodes != 1:
            raise UsageError(
                f"this machine is one node, but the job requests {nodes}",
                hint="omit nodes, or choose a cluster with more nodes: -c NAME",
            )
    elif size.node_gpus and each > size.node_gpus:
        raise UsageError(
            f"{count_text(each, 'GPU')} per node requested, but the nodes of this cluster have {size.node_gpus}",
            hint="ask for more nodes, or correct gpu_per_node in the cluster file",
        )
