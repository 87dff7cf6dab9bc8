"""What a job of Batch AI found where it ran, as plain parts of a job: variables, words before its command, results.

The ``batchai`` key of a cluster file says which. Names and meanings: https://github.com/Azure/BatchAI,
documentation/using-batchai-environment-variables.md; the port of TensorFlow's tasks is ours. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# For programs of any job: some find out by them where they run. Each process gets its own values.
VARIABLES: Mapping[str, str] = {
    "AZ_BATCHAI_JOB_MASTER_NODE_IP": "$MASTER_ADDR",
    "AZ_BATCHAI_MPI_MASTER_NODE": "$MASTER_ADDR",
    "AZ_BATCHAI_TASK_INDEX": "$NODE_RANK",
    "PHILLY_JOB_ID": "$BLOBSYNC_RUN_ID",
    "PHILLY_CONTAINER_INDEX": "$NODE_RANK",
}
# What `az batchai job file list` called the directory of standard output and error.
STD_ID = "stdouterr"
_REFERS = re.compile(r"\$\{?(?:AZ_BATCHAI_|BLOBSYNC_RUN_ID)")
_ROOT = re.compile(r"\$\{?AZ_BATCHAI_(?:JOB_)?MOUNT_ROOT\}?/+")

# The lines of mpirun's host file.
HOSTS = "printf '%s\\n' \"$AZ_BATCH_HOST_LIST\" | tr , '\\n' | sed -n \"/./s/\\$/ slots=${LOCAL_WORLD_SIZE:-1}/p\""

# What a program finds when it starts. A job that is tried again finds its earlier output; in the first attempt Batch AI
# left that empty. `${!AZ_BATCHAI_OUTPUT_@}` are the names of the variables that begin so.
_BEGIN = (
    r"""
NODES=$((${WORLD_SIZE:-1} / ${LOCAL_WORLD_SIZE:-1}))
for name in "${!AZ_BATCHAI_OUTPUT_@}"; do
    mkdir -p "${!name}" || exit 72
    [ "$BLOBSYNC_TASK_ATTEMPT" = 0 ] || export "AZ_BATCHAI_PREV_${name#AZ_BATCHAI_}=${!name}"
done
mkdir -p "$AZ_BATCHAI_JOB_TEMP" "$AZ_BATCHAI_SHARED_JOB_TEMP" "$AZ_BATCHAI_STDOUTERR_DIR" || exit 72
"""
    + HOSTS
    + r""" > "$AZ_BATCHAI_MPI_HOST_FILE.$$"
mv "$AZ_BATCHAI_MPI_HOST_FILE.$$" "$AZ_BATCHAI_MPI_HOST_FILE"
"""
)

_SUFFIX = r"""
suffix=
[ "${RANK:-0}" = 0 ] || suffix=-$RANK
"""

# Tasks go to nodes in turn; each node has equally many places for workers, then those for servers. Not the master's
# port, which a library of the program may use.
_TENSORFLOW = r"""
places=$(((WORKERS + NODES - 1) / NODES)) kind=worker index=$((LOCAL_RANK * NODES + NODE_RANK)) most=$WORKERS
if [ "$LOCAL_RANK" -ge $places ]; then
    kind=ps index=$(((LOCAL_RANK - places) * NODES + NODE_RANK)) most=$SERVERS
fi
suffix=-wk-$index
[ $kind = worker ] || suffix=-ps-$index
[ "$kind$index" != worker0 ] || kind=master
[ $index -lt $most ] || { kind=idle index=0 suffix=-idle-$RANK; }
IFS=, read -ra hosts <<< "$AZ_BATCH_HOST_LIST"
if [ ${#hosts[@]} != $NODES ]; then
    for ((i = 0; i < NODES; i++)); do hosts[i]=$MASTER_ADDR; done
fi
addresses() {
    local i all=
    for ((i = 0; i < $1; i++)); do all+=${all:+,}${hosts[i % NODES]}:$((MASTER_PORT + 1 + 2 * i + $2)); done
    echo "$all"
}
quoted() { [ -z "$1" ] || echo "\"${1//,/\", \"}\""; }
AZ_BATCHAI_PS_HOSTS=$(addresses $SERVERS 0) AZ_BATCHAI_WORKER_HOSTS=$(addresses $COUNTED 1)
cluster="{\"ps\": [$(quoted "$AZ_BATCHAI_PS_HOSTS")], \"worker\": [$(quoted "$AZ_BATCHAI_WORKER_HOSTS")]}"
TF_CONFIG="{\"cluster\": $cluster, \"task\": {\"type\": \"$kind\", \"index\": $index}, \"environment\": \"cloud\"}"
AZ_BATCHAI_TASK_INDEX=$index BLOBSYNC_TASK_TYPE=$kind
export AZ_BATCHAI_PS_HOSTS AZ_BATCHAI_WORKER_HOSTS AZ_BATCHAI_TASK_INDEX TF_CONFIG BLOBSYNC_TASK_TYPE
ended_folder=$AZ_BATCHAI_SHARED_JOB_TEMP/ended-$BLOBSYNC_TASK_ATTEMPT
mkdir -p "$ended_folder" || exit 72
"""

# Standard output and error are also copied into the job's directory for them. The script waits for the program, not for
# what it leaves running. A parameter server never ends by itself: it is stopped when all workers have ended.
_KEEPER = r"""
trap : TERM INT
keep() { trap '' TERM INT; exec tee -a "$AZ_BATCHAI_STDOUTERR_DIR/$1$suffix.txt"; }
exec 4> >(keep stdout); out=$!
exec 5> >(exec 4>&-; keep stderr >&2); err=$!
ended() { [ "$(ls "$ended_folder" 2>/dev/null | wc -l)" -ge "$WORKERS" ]; }
if [ "$BLOBSYNC_TASK_TYPE" = ps ]; then
    "$@" >&4 2>&5 4>&- 5>&- & server=$!
    until ended || ! kill -0 $server 2>/dev/null; do sleep 0.5; done
    if ended; then kill $server 2>/dev/null; wait $server 2>/dev/null; code=0; else wait $server; code=$?; fi
else
    "$@" >&4 2>&5 4>&- 5>&-; code=$?
    case "$BLOBSYNC_TASK_TYPE" in master|worker)
        [ $code -ne 0 ] || : > "$ended_folder/$AZ_BATCHAI_TASK_INDEX" ;;
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
_OF_MPI = r"""
export RANK="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" WORLD_SIZE="${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}"
export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}"
export LOCAL_WORLD_SIZE="${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS}" AZ_BATCHAI_TASK_INDEX="$RANK"
exec "$@"
"""


def plain_options(given: object, env: Mapping[str, str]) -> dict[str, Any]:
    """The options of a job for what the ``batchai`` key of a cluster file asks for, in a job with the variables
    ``env``; those of any job where there is none.

    Each process gets ``variables``, with its own values in place of ``$NAME``; ``wrapper`` stands before the command;
    ``outputs`` are folders of results by their names, from the root of the job on.
    """
    if not isinstance(given, Mapping):
        return {"variables": dict(VARIABLES)}
    outputs = {str(name): str(path) for name, path in dict(given.get("outputs") or {}).items()}
    std = str(given.get("std_out_err") or "$AZ_BATCHAI_SHARED_JOB_TEMP")
    variables = {
        "AZ_BATCHAI_MOUNT_ROOT": "$BLOBSYNC_ROOT",
        "AZ_BATCHAI_JOB_MOUNT_ROOT": "$BLOBSYNC_ROOT",
        "AZ_BATCHAI_JOB_TEMP": "$BLOBSYNC_TEMP",
        "AZ_BATCHAI_JOB_TEMP_DIR": "$BLOBSYNC_TEMP/..",
        "AZ_BATCHAI_SHARED_JOB_TEMP": "$BLOBSYNC_SHARED",
        "AZ_BATCHAI_MPI_HOST_FILE": "$BLOBSYNC_TEMP/hostfile",
        "AZ_BATCHAI_NUM_GPUS": "$BLOBSYNC_GPUS",
        "AZ_BATCHAI_NUM_GPUS_PER_NODE": "$BLOBSYNC_GPUS",
        "AZ_BATCHAI_TASK_INDEX": "$RANK",
        "BLOBSYNC_TASK_ATTEMPT": "$BLOBSYNC_ATTEMPT",
        "BLOBSYNC_TASK_TYPE": "",
    }
    if given.get("toolkit") == "pytorch":
        variables["AZ_BATCHAI_PYTORCH_INIT_METHOD"] = "tcp://$MASTER_ADDR:$MASTER_PORT"
        variables["AZ_BATCHAI_PYTORCH_BACKEND"] = str(given.get("communication_backend", ""))
    inputs = dict(given.get("inputs") or {})
    variables |= {f"AZ_BATCHAI_INPUT_{name}": str(path) for name, path in inputs.items()}
    variables |= {f"AZ_BATCHAI_OUTPUT_{name}": path for name, path in outputs.items()}
    variables |= {f"AZ_BATCHAI_PREV_OUTPUT_{name}": "" for name in outputs}
    variables["AZ_BATCHAI_STDOUTERR_DIR"] = std
    # The user's own variables may refer to those of the service.
    mine = {name: text for name, text in env.items() if name not in variables and _REFERS.search(text)}
    below = {name: _ROOT.sub("", path) for name, path in {**outputs, STD_ID: std}.items() if _ROOT.match(path)}
    options = {"variables": {**VARIABLES, **variables, **mine}, "wrapper": list(_wrapper(given)), "outputs": below}
    return options | ({"job_file": given["job_file"]} if isinstance(given.get("job_file"), str) else {})


def _wrapper(given: Mapping[str, Any]) -> tuple[str, ...]:
    workers, servers = int(given.get("workers") or 0), int(given.get("parameter_servers") or 0)
    head = f"WORKERS={workers or 1} COUNTED={workers} SERVERS={servers}"
    script = f"{head}{_BEGIN}{_TENSORFLOW if given.get('toolkit') == 'tensorflow' else _SUFFIX}{_KEEPER}"
    kept = ("bash", "-c", script, "batchai")
    count = given.get("mpi_processes")
    return ("mpirun", "-n", str(count), "sh", "-c", _OF_MPI, "batchai", *kept) if count else kept


def renewed(options: Mapping[str, Any], env: Mapping[str, str]) -> Mapping[str, Any]:
    """The options of a recorded job; an earlier version kept the ``batchai`` key of its cluster file there."""
    if "batchai" not in options:
        return options
    rest = {name: value for name, value in options.items() if name != "batchai"}
    return rest | plain_options(options["batchai"], env)
