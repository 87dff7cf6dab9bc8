"""The batch script of a job. Pure: the same specification gives the same text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from blobsync.backends.slurm.replies import JOB_NUMBER, MARK, PREPARING_MARK
from blobsync.base.errors import ConfigError
from blobsync.base.exit_codes import OUTPUT_FAILED_EXIT, SETUP_FAILED_EXIT
from blobsync.jobspec.spec import FIRST_MASTER_PORT, JOB_CODE, MASTER_PORTS, JobSpec, TaskArray, run_name
from blobsync.jobspec.sweep import array_argument, array_text
from blobsync.jobspec.topology import asks_for_gpus

# The variables of the submitting shell that a job gets: only search paths. The job's own are in its specification,
# because a comma in a value breaks --export.
EXPORTED = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "PATH",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "MODULEPATH",
    "LOADEDMODULES",
)

# Options with the same names in sbatch, in the order of the script.
_DIRECTIVES = ("partition", "qos", "account", "constraint", "reservation", "gres", "mem", "array")

# A value must not add lines to the script.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_BODY = """\
# squeue shows the comment: which jobs still prepare their nodes, also after a requeue.
comment() {{
    scontrol update JobId="$SLURM_JOB_ID" Comment="$1" >/dev/null 2>&1
}}
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || comment {preparing}
# --chdir is the job's own folder.
RUN=$PWD
echo "${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}" > slurm_job_id
TASK=$RUN${{SLURM_ARRAY_TASK_ID:+/task_$SLURM_ARRAY_TASK_ID}}
mkdir -p "$TASK/user_logs" "$TASK/system_logs"
rm -rf "$TASK/exit_code" "$TASK/{job_code}" "$TASK/up"
mkdir "$TASK/up"
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1){reached}
export MASTER_PORT=$(({first_port} + SLURM_JOB_ID % {ports}))
export HWLOC_COMPONENTS="${{HWLOC_COMPONENTS:--gl}}"
export BLOBSYNC_HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
# A program may start srun or mpirun itself. These would wait for what our own steps hold (Slurm before 20.11 knows no
# option --overlap, and does not need it), and would pass on only what sbatch was told to export.
export SLURM_OVERLAP=1 SLURM_EXPORT_ENV=ALL
PLACE=({place})
ONCE_PER_NODE=(srun --export=ALL --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1)
ended() {{
    echo "$1" > "$TASK/exit_code.new" && mv "$TASK/exit_code.new" "$TASK/exit_code"
    exit "$1"
}}

# A warning waits until all {ranks} processes are there to hear it.
warn() {{
    warned=1
    [ -n "${{child:-}}" ] || return
    until [ "$(ls "$TASK/up" | wc -l)" -ge {ranks} ]; do
        kill -0 "$child" 2>/dev/null || return
        sleep 0.5
    done
    # And has come up: some clusters signal the program itself, ready or not.
    sleep 3
    kill -USR1 "$child"
}}
trap warn USR1

# Once per node: the last uploads, and nothing left behind.
finish() {{{recount}
    "${{ONCE_PER_NODE[@]}}" --open-mode=append --output="$TASK/system_logs/finish.txt" \\
        {start} finish "${{PLACE[@]}}" --code "$1"
}}

# Once per node: the code, the folders, the setup commands.
"${{ONCE_PER_NODE[@]}}" --open-mode=append --output="$TASK/system_logs/prepare.txt" \\
    {start} prepare "${{PLACE[@]}}" || {{ finish {setup_failed}; ended {setup_failed}; }}
comment {running}

# Once per process, in the background so that the traps act at once.
{launch} \\
    {start} exec "${{PLACE[@]}}"{log} &
child=$!
trap 'kill -TERM "$child"' TERM
[ -z "${{warned:-}}" ] || warn
while :; do
    wait "$child"; code=$?
    kill -0 "$child" 2>/dev/null || break
done{own_code}

finish "$code" || {{ [ "$code" -ne 0 ] || code={output_failed}; }}
ended "$code"
"""

# A task of a transfer: no code, no folders, one program, which starts its own processes.
_TRANSFER = """\
# --chdir is the job's own folder.
RUN=$PWD
echo "${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}" > slurm_job_id
TASK=$RUN/task_$SLURM_ARRAY_TASK_ID
mkdir -p "$TASK/user_logs" "$TASK/system_logs"
rm -f "$TASK/exit_code"
{start} spread --job "$RUN/job.json" --secrets "$RUN/secrets.json" --run-dir "$RUN" --log &
child=$!
trap 'kill -TERM "$child"' TERM USR1
while :; do
    wait "$child"; code=$?
    kill -0 "$child" 2>/dev/null || break
done
echo "$code" > "$TASK/exit_code.new" && mv "$TASK/exit_code.new" "$TASK/exit_code"
exit "$code"
"""

_SRUN = 'srun --export=ALL --kill-on-bad-exit=1 --open-mode=append --output="$TASK/user_logs/{log}"'
_ELASTIC_SRUN = (
    'srun --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --open-mode=append --output="$TASK/user_logs/{log}"'
)
_MPIRUN = "env{env} mpirun --npernode {procs} -x MASTER_ADDR -x MASTER_PORT -x BLOBSYNC_HOSTS"

_SET_HERE = ("MASTER_ADDR", "MASTER_PORT", "BLOBSYNC_HOSTS", "SLURM_OVERLAP", "SLURM_EXPORT_ENV")


# srun ends with the highest code of all processes, also of those that it stopped because another one failed.
_FIXED = {
    "own_code": f"""
[ "$code" = 0 ] || ! [ -s "$TASK/{JOB_CODE}" ] || code=$(cat "$TASK/{JOB_CODE}")""",
    "reached": "",
    "recount": "",
}
# Lines for an elastic job, whose code is that of node 0. Some nodes may be lost by then.
_ELASTIC = {
    "own_code": f"""
[ "$code" = {OUTPUT_FAILED_EXIT} ] || ! [ -s "$TASK/{JOB_CODE}" ] || code=$(cat "$TASK/{JOB_CODE}")""",
    # A node's name need not be a host name; this is Slurm's own address of it.
    "reached": r"""
MASTER_ADDR=$(scontrol show node "$MASTER_ADDR" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p' | head -n1)""",
    "recount": """
    NOW=$(squeue -h -j "$SLURM_JOB_ID" -o %D)
    ONCE_PER_NODE+=(--no-kill --kill-on-bad-exit=0 --nodes="$NOW" --ntasks="$NOW")""",
}


def build_script(spec: JobSpec, options: Mapping[str, Any]) -> str:
    """The script for sbatch. ``options`` are the cluster's ``slurm:`` keys, updated with the submission's."""
    if spec.tasks is not None:
        options = _array_options(spec.tasks, options)
    lines = ["#!/bin/bash", *(f"#SBATCH --{text}" for text in _directives(spec, options)), ""]
    if options.get("scratch"):
        lines.append(f"export BLOBSYNC_SCRATCH={_quoted('scratch', options['scratch'])}")
    if options.get("cpus_per_task"):
        # Since 22.05 srun does not inherit it from sbatch.
        lines.append(f"export SRUN_CPUS_PER_TASK={_whole('cpus_per_task', options['cpus_per_task'])}")
    place = ['--job "$RUN/job.json" --secrets "$RUN/secrets.json" --run-dir "$RUN"']
    for name in ("sync_seconds", "keep_root"):
        if options.get(name) is not None:
            place.append(f"--{name.replace('_', '-')} {_quoted(name, options[name])}")
    # Slurm opens a log for each task; under mpirun blobsync does.
    mpirun = options.get("launcher") == "mpirun"
    python = _quoted("interpreter_path", options.get("python") or "python3")
    if spec.spread is not None:
        return "\n".join([*lines, _TRANSFER.format(start=f'{python} -I "$RUN/bootstrap.py"')])
    body = _BODY.format(
        place=" ".join(place),
        start=f'{python} -I "$RUN/bootstrap.py"',
        launch=_launcher(spec, mpirun=mpirun),
        log=" --log" if mpirun else "",
        ranks='"$SLURM_JOB_NUM_NODES"' if spec.is_elastic else spec.world_size,
        first_port=FIRST_MASTER_PORT,
        ports=MASTER_PORTS,
        setup_failed=SETUP_FAILED_EXIT,
        output_failed=OUTPUT_FAILED_EXIT,
        job_code=JOB_CODE,
        preparing=_quoted("comment", PREPARING_MARK + spec.cluster),
        running=_quoted("comment", MARK + spec.cluster),
        **(_ELASTIC if spec.is_elastic else _FIXED),
    )
    return "\n".join([*lines, body])


def _array_options(tasks: TaskArray, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for an array. Tasks that say how many CPUs they need share nodes, and take no other resource."""
    array = {"array": array_text(tasks)}
    if not tasks.cpus:
        return {**options, **array}
    plain = {name: value for name, value in options.items() if name not in ("gres", "exclusive")}
    return {**plain, **array, "cpus_per_task": tasks.cpus}


def _launcher(spec: JobSpec, *, mpirun: bool) -> str:
    if mpirun and spec.is_elastic:
        raise ConfigError("mpirun ends when a node is lost; an elastic job needs srun", key="slurm.launcher")
    if mpirun:
        return _MPIRUN.format(env=_variables(spec.env), procs=spec.procs_per_node)
    log = "std_log_process_%t.txt" if spec.has_numbered_logs else "std_log.txt"
    return (_ELASTIC_SRUN if spec.is_elastic else _SRUN).format(log=log)


def _variables(env: Mapping[str, str]) -> str:
    """The job's variables for mpirun itself, as arguments of ``env``; the rank variables stay the script's.

    An invalid value is left to the node, which refuses the job.
    """
    named = [name for name in env if _VARIABLE.fullmatch(name) and name not in _SET_HERE]
    words = [f"{name}={env[name]}" for name in sorted(named) if "\0" not in env[name]]
    return "".join(f" {shlex.quote(word)}" for word in words if word.encode("utf-8", "replace").decode() == word)


def _size(spec: JobSpec) -> list[str]:
    """Options for nodes and tasks; with a number of tasks, an elastic job would get no more nodes than those need."""
    if spec.is_elastic:
        return [f"nodes={spec.nodes}-{spec.max_nodes}", "no-kill"]
    return [f"nodes={spec.nodes}", f"ntasks-per-node={spec.procs_per_node}"]


def _directives(spec: JobSpec, options: Mapping[str, Any]) -> list[str]:
    export = (*EXPORTED, *(_variable(name) for name in options.get("export") or ()))
    lines = [
        f"job-name={run_name(spec.run_id)}",
        # So it begins; a task of a transfer has nothing to prepare.
        f"comment={_quoted('comment', (PREPARING_MARK if spec.spread is None else MARK) + spec.cluster)}",
        *_size(spec),
        "requeue",
        "open-mode=append",
        "signal=B:USR1@60",
        "output=system_logs/batch.txt",
        f"export={','.join(export)}",
    ]
    if spec.gpus_per_node and not asks_for_gpus(str(options.get("gres") or "")):
        lines.append(f"gpus-per-node={spec.gpus_per_node}")
    if options.get("time") or spec.timeout_s:
        lines.append(f"time={_quoted('time', options.get('time') or -(-int(spec.timeout_s or 0) // 60))}")
    for name in _DIRECTIVES:
        # Zero GPUs are not a resource to request.
        if options.get(name) and (spec.gpus_per_node or "{gpus}" not in str(options[name])):
            value = str(options[name]).replace("{gpus}", str(spec.gpus_per_node))
            lines.append(f"{name}={_quoted(name, value)}")
    if spec.after:
        # Slurm removes a job whose condition can no longer be met; else it would wait for ever.
        lines += [f"dependency=afterok:{_number(options['after'])}", "kill-on-invalid-dep=yes"]
    if options.get("cpus_per_task"):
        lines.append(f"cpus-per-task={_whole('cpus_per_task', options['cpus_per_task'])}")
    if options.get("exclusive"):
        lines.append("exclusive")
    # The array of a job's tasks is already there.
    told = [_one_line("args", argument) for argument in options.get("args") or ()]
    return [*lines, *(one.lstrip("-") for one in told if not (spec.tasks and array_argument([one])))]


def _quoted(key: str, value: object) -> str:
    return shlex.quote(_one_line(key, value))


def _one_line(key: str, value: object) -> str:
    text = str(value)
    if _CONTROL.search(text):
        raise ConfigError(f"{text!a} contains a line break or another control character", key=f"slurm.{key}")
    return text


def _whole(key: str, value: object) -> int:
    if not str(value).isascii() or not str(value).isdigit():
        raise ConfigError(f"{value!a} is not a whole number", key=f"slurm.{key}")
    return int(str(value))


def _number(after: Mapping[str, Any]) -> str:
    """Slurm's number of the job that comes first."""
    number = str(after.get("native_id"))
    if not JOB_NUMBER.fullmatch(number):
        raise ConfigError(f"{number!a} is not a Slurm job number", key="after")
    return number


def _variable(name: object) -> str:
    if not _VARIABLE.fullmatch(str(name)):
        raise ConfigError(f"{name!a} is not a variable name", key="slurm.export")
    return str(name)
