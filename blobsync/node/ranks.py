"""The rank of a process, the address of the job's master, and the environment of a program. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from blobsync.base.errors import JobError
from blobsync.base.records import NamedTuple
from blobsync.jobspec.spec import FIRST_MASTER_PORT, MASTER_PORTS, JobSpec


class NotReadyError(JobError):
    """The node cannot be made ready (exit code 72); the text is safe to print."""


class Ranks(NamedTuple):
    """The rank of a process in the job and on its node."""

    rank: int
    local_rank: int
    world_size: int
    local_size: int
    node_rank: int


class RankNames(NamedTuple):
    """The variables in which a launcher sets a process's ranks; empty if it has none."""

    rank: str
    local_rank: str
    node_rank: str


# Open MPI comes first: children of its daemons also have Slurm's variables, which are the daemons' ranks. It has none
# for the node's rank.
LAUNCHERS = (
    RankNames("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    RankNames("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    RankNames("PMI_RANK", "MPI_LOCALRANKID", "NODE_RANK"),
    RankNames("RANK", "LOCAL_RANK", "NODE_RANK"),
)
# The node's rank, for what is started once per node; the last is that of an Indexed Job of Kubernetes.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
_NODE_NAMES = ("SLURM_NODEID", "NODE_RANK", INDEX_VARIABLE)
# Those variables of :func:`rank_variables` that differ between processes.
OF_ONE_PROCESS = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    }
)
_MASTER_NAMES = ("MASTER_ADDR", "AZ_BATCHAI_JOB_MASTER_NODE_IP")


def ranks_of_node(spec: JobSpec, node_rank: int) -> tuple[Ranks, ...]:
    """The ranks of all processes of one node."""
    size = spec.procs_per_node
    first = node_rank * size
    return tuple(Ranks(first + local, local, _world_size(spec), size, node_rank) for local in range(size))


def _world_size(spec: JobSpec) -> int:
    """The number of processes; of an elastic job the largest possible one, so that every rank is below it."""
    return (spec.max_nodes if spec.is_elastic and spec.max_nodes else spec.nodes) * spec.procs_per_node


def ranks_from_launcher(spec: JobSpec, environ: Mapping[str, str]) -> Ranks:
    """The rank set by the launcher. Raises ``NotReadyError`` if it is missing and there are several processes."""
    size, world_size = spec.procs_per_node, _world_size(spec)
    for names in LAUNCHERS:
        if names.rank in environ:
            rank = _number(environ, names.rank, 0)
            local = _number(environ, names.local_rank, rank % size)
            return Ranks(rank, local, world_size, size, _number(environ, names.node_rank, rank // size))
    if world_size > 1:
        names_of = ", ".join(names.rank for names in LAUNCHERS)
        raise NotReadyError(
            f"the job has {world_size:,} processes, but the rank of this one is unknown: none of {names_of} is set",
            hint="start it with srun, mpirun or torchrun's variables",
        )
    return Ranks(0, 0, 1, 1, 0)


def node_rank_from_launcher(spec: JobSpec, environ: Mapping[str, str]) -> int:
    """This node's rank. Raises ``NotReadyError`` if it is unknown and there are several nodes."""
    # The index of a task is not that of a node; a task of several nodes has a Job of its own.
    names = _NODE_NAMES[:-1] if spec.tasks and spec.spread is None and spec.nodes == 1 else _NODE_NAMES
    for name in names:
        if environ.get(name):
            return _number(environ, name, 0)
    nodes = _world_size(spec) // spec.procs_per_node
    if nodes > 1:
        raise NotReadyError(
            f"the job has {nodes:,} nodes, but the rank of this one is unknown:"
            f" none of {', '.join(_NODE_NAMES)} is set",
            hint="pass --node-rank N",
        )
    return 0


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) if name else None
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise NotReadyError(f"{name} is {text!a}, which is not a number")
    return int(text)


def master_address(spec: JobSpec, environ: Mapping[str, str]) -> str:
    """The address of process 0. Raises ``NotReadyError`` if it is unknown and there are several nodes: each would take
    itself for the master and wait forever."""
    for name in _MASTER_NAMES:
        if environ.get(name):
            return environ[name]
    if environ.get("AZ_BATCH_MASTER_NODE"):
        return environ["AZ_BATCH_MASTER_NODE"].rpartition(":")[0] or environ["AZ_BATCH_MASTER_NODE"]
    nodes = _world_size(spec) // spec.procs_per_node
    if nodes > 1:
        raise NotReadyError(
            f"the job has {nodes:,} nodes, but the address of the master is unknown:"
            f" none of {', '.join((*_MASTER_NAMES, 'AZ_BATCH_MASTER_NODE'))} is set",
            hint="set MASTER_ADDR to the address of the node that has process 0",
        )
    return "127.0.0.1"


def master_port(spec: JobSpec, environ: Mapping[str, str]) -> str:
    """The master's port: the launcher's, or one computed from the job's id."""
    derived = FIRST_MASTER_PORT + int(hashlib.sha256(spec.run_id.encode()).hexdigest(), 16) % MASTER_PORTS
    return environ.get("MASTER_PORT") or str(derived)


def rank_variables(spec: JobSpec, ranks: Ranks, environ: Mapping[str, str]) -> dict[str, str]:
    """A program's rank variables, under the names of all launchers."""
    master, port = master_address(spec, environ), master_port(spec, environ)
    return {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_WORLD_SIZE": str(ranks.local_size),
        "NODE_RANK": str(ranks.node_rank),
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "OMPI_COMM_WORLD_RANK": str(ranks.rank),
        "OMPI_COMM_WORLD_SIZE": str(ranks.world_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(ranks.local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks.local_size),
        "AZ_BATCH_MASTER_NODE": f"{master}:{port}",
        "AZ_BATCH_HOST_LIST": environ.get("BLOBSYNC_HOSTS") or environ.get("AZ_BATCH_HOST_LIST") or master,
    }


# What the variables of a job may refer to, besides each other; all else is left to a shell.
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_GIVEN = re.compile(r"BLOBSYNC_[A-Z_]+|(?:LOCAL_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)")


def expanded(variables: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """``variables`` in their order, with values of ``env`` and of earlier ones in place of ``$NAME``, ``${NAME}``."""
    found: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        known = found.get(name, env.get(name) if _GIVEN.fullmatch(name) else None)
        return match[0] if known is None else known

    for name, text in variables.items():
        found[name] = _REFERENCE.sub(value, text)
    return found
