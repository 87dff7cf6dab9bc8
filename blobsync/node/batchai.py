"""The environment of Azure Batch AI on a node: variables, directories and output files.

The job's ``batchai`` key says which. Names and meanings: https://github.com/Azure/BatchAI,
documentation/using-batchai-environment-variables.md; the port of TensorFlow's tasks is ours.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blobsync.jobspec.spec import JobSpec
from blobsync.node.ranks import Ranks

KEY = "batchai"
_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_OURS = ("AZ_BATCHAI_", "BLOBSYNC_RUN_ID")

# Standard output and error are also copied into the job's directory for them. The script waits for the program, not for
# what it leaves running. A parameter server never ends by itself: it is stopped when all workers have ended.
KEEPER = r"""
trap : TERM INT
mkdir -p "$AZ_BATCHAI_STDOUTERR_DIR" || exit 72
keep() { trap '' TERM INT; exec tee -a "$AZ_BATCHAI_STDOUTERR_DIR/$1$BLOBSYNC_TASK_SUFFIX.txt"; }
exec 4> >(keep stdout); out=$!
exec 5> >(exec 4>&-; keep stderr >&2); err=$!
ended() { [ "$(ls "$BLOBSYNC_WORKERS_ENDED" 2>/dev/null | wc -l)" -ge "$BLOBSYNC_WORKERS" ]; }
if [ "$BLOBSYNC_TASK_TYPE" = ps ]; then
    "$@" >&4 2>&5 4>&- 5>&- & server=$!
    until ended || ! kill -0 $server 2>/dev/null; do sleep 0.5; done
    if ended; then kill $server 2>/dev/null; wait $server 2>/dev/null; code=0; else wait $server; code=$?; fi
else
    "$@" >&4 2>&5 4>&- 5>&-; code=$?
    case "$BLOBSYNC_TASK_TYPE" in master|worker)
        [ $code -ne 0 ] || : > "$BLOBSYNC_WORKERS_ENDED/$AZ_BATCHAI_TASK_INDEX" ;;
    esac
fi
exec 4>&- 5>&-
for _ in {1..50}; do
    kill -0 $out 2>/dev/null || kill -0 $err 2>/dev/null || break
    sleep 0.1
done
exit $code
"""

# A process's rank as mpirun sets it: Open MPI's names, else those of MPICH and Intel MPI.
OF_MPI = r"""
export RANK="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"
export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}"
export LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS}" AZ_BATCHAI_TASK_INDEX="$RANK"
[ "$RANK" = 0 ] || export BLOBSYNC_TASK_SUFFIX="-$RANK"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The job's folders on this node: root, shared by all nodes, temporary; and the number of the attempt."""

    root: Path
    shared: Path
    temp: Path
    attempt: str


@dataclass(frozen=True, slots=True)
class Task:
    """A process's task in TensorFlow: ``master``, ``worker`` or ``ps``, with its index; or ``idle``."""

    kind: str
    index: int


def batchai_variables(
    spec: JobSpec, given: Mapping[str, Any], ranks: Ranks, place: NodePlace, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables of one process; ``env`` is its environment so far. Pure."""
    found = {
        "AZ_BATCHAI_MOUNT_ROOT": str(place.root),
        "AZ_BATCHAI_JOB_MOUNT_ROOT": str(place.root),
        "AZ_BATCHAI_JOB_TEMP": str(place.temp),
        "AZ_BATCHAI_JOB_TEMP_DIR": str(place.temp.parent),
        "AZ_BATCHAI_SHARED_JOB_TEMP": str(place.shared),
        "AZ_BATCHAI_MPI_HOST_FILE": str(place.temp / "hostfile"),
        "AZ_BATCHAI_NUM_GPUS": str(spec.gpus_per_node),
        "AZ_BATCHAI_NUM_GPUS_PER_NODE": str(spec.gpus_per_node),
        "AZ_BATCHAI_TASK_INDEX": str(ranks.rank),
        "BLOBSYNC_RUN_ID": spec.run_id,
        "BLOBSYNC_TASK_TYPE": "",
        "BLOBSYNC_TASK_SUFFIX": f"-{ranks.rank}" if ranks.rank else "",
    }
    if given.get("toolkit") == "pytorch":
        address = f"tcp://{env.get('MASTER_ADDR', '127.0.0.1')}:{env.get('MASTER_PORT', '')}"
        found["AZ_BATCHAI_PYTORCH_INIT_METHOD"] = address
        found["AZ_BATCHAI_PYTORCH_BACKEND"] = str(given.get("communication_backend", ""))
    if given.get("toolkit") == "tensorflow":
        found.update(_tensorflow(spec, given, ranks, place, env))
    for kind, name in (("inputs", "INPUT"), ("outputs", "OUTPUT")):
        for identity, path in dict(given.get(kind) or {}).items():
            found[f"AZ_BATCHAI_{name}_{identity}"] = _expand(str(path), found)
    # A retried job finds its earlier output here; in the first attempt Batch AI left this empty.
    for identity in dict(given.get("outputs") or {}):
        earlier = found[f"AZ_BATCHAI_OUTPUT_{identity}"] if place.attempt != "0" else ""
        found[f"AZ_BATCHAI_PREV_OUTPUT_{identity}"] = earlier
    found["AZ_BATCHAI_STDOUTERR_DIR"] = _expand(str(given.get("std_out_err") or place.shared), found)
    # In Batch AI, the user's variables may refer to its own.
    return {**found, **{name: _expand(value, found) for name, value in spec.env.items() if name not in found}}


def make_directories(env: Mapping[str, str], slots: int) -> None:
    """Make the program's directories, and the host file with ``slots`` on each host."""
    names = ["AZ_BATCHAI_JOB_TEMP", "AZ_BATCHAI_SHARED_JOB_TEMP", "AZ_BATCHAI_STDOUTERR_DIR", "BLOBSYNC_WORKERS_ENDED"]
    names += [name for name in env if name.startswith("AZ_BATCHAI_OUTPUT_")]
    for name in names:
        if env.get(name):
            Path(env[name]).mkdir(parents=True, exist_ok=True)
    hosts = env.get("AZ_BATCH_HOST_LIST", "").split(",")
    lines = "".join(f"{host} slots={slots}\n" for host in hosts if host)
    Path(env["AZ_BATCHAI_MPI_HOST_FILE"]).write_text(lines, encoding="utf-8")


def kept_command(command: tuple[str, ...], given: Mapping[str, Any], bash: str | None = None) -> tuple[str, ...]:
    """The command with its output copied to the job's directory (requires bash), and under mpirun if ``given`` says so.

    ``bash`` is that of the image; None: this node's."""
    bash = bash or shutil.which("bash")
    kept = (bash, "-c", KEEPER, KEY, *command) if bash else command
    count = given.get("mpi_processes")
    return ("mpirun", "-n", str(count), "sh", "-c", OF_MPI, KEY, *kept) if count else kept


def task_of(given: Mapping[str, Any], ranks: Ranks, nodes: int) -> Task:
    """Assign tasks to nodes in turn; each node has equally many slots for workers, then those for servers."""
    workers, servers = int(given.get("workers") or 1), int(given.get("parameter_servers") or 0)
    places = -(-workers // nodes)
    is_worker = ranks.local_rank < places
    index = (ranks.local_rank if is_worker else ranks.local_rank - places) * nodes + ranks.node_rank
    if index >= (workers if is_worker else servers):
        return Task("idle", 0)
    return Task("ps" if not is_worker else "worker" if index else "master", index)


def _tensorflow(
    spec: JobSpec, given: Mapping[str, Any], ranks: Ranks, place: NodePlace, env: Mapping[str, str]
) -> dict[str, str]:
    nodes = spec.nodes
    task = task_of(given, ranks, nodes)
    hosts = [host for host in env.get("AZ_BATCH_HOST_LIST", "").split(",") if host]
    hosts = hosts if len(hosts) == nodes else [env.get("MASTER_ADDR", "127.0.0.1")] * nodes
    # Not the master's port, which a library of the program may use.
    first = int(env.get("MASTER_PORT") or 2222) + 1
    cluster: dict[str, list[str]] = {"ps": [], "worker": []}
    for kind, name in (("ps", "parameter_servers"), ("worker", "workers")):
        for index in range(int(given.get(name) or 0)):
            port = first + 2 * index + (kind == "worker")
            cluster[kind].append(f"{hosts[index % nodes]}:{port}")
    tf_config = {"cluster": cluster, "task": {"type": task.kind, "index": task.index}, "environment": "cloud"}
    suffix = {"ps": f"-ps-{task.index}", "idle": f"-idle-{ranks.rank}"}.get(task.kind, f"-wk-{task.index}")
    return {
        "AZ_BATCHAI_PS_HOSTS": ",".join(cluster["ps"]),
        "AZ_BATCHAI_WORKER_HOSTS": ",".join(cluster["worker"]),
        "AZ_BATCHAI_TASK_INDEX": str(task.index),
        "TF_CONFIG": json.dumps(tf_config),
        "BLOBSYNC_TASK_TYPE": task.kind,
        "BLOBSYNC_TASK_SUFFIX": suffix,
        "BLOBSYNC_WORKERS": str(given.get("workers") or 1),
        "BLOBSYNC_WORKERS_ENDED": str(place.shared / f"ended-{place.attempt}"),
    }


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace Batch AI's variables by their values; others are left to the shell."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return env[name] if name.startswith(_OURS) and name in env else match[0]

    return _NAME.sub(value, text)
