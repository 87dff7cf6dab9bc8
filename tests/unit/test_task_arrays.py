"""Jobs with tasks: as each platform's own queue is asked for them, and how it is told that they ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.backends import create_backend
from blobsync.backends.kubernetes.replies import job_info, last_lines, read_jobs, read_pods, sweep_info
from blobsync.backends.local.children import TaskPool
from blobsync.backends.local.run_files import RunFiles
from blobsync.backends.protocol import Refused, Surroundings
from blobsync.backends.slurm.script import build_script
from blobsync.base.errors import SubmissionError, TooManyTasksError, UsageError
from blobsync.base.exit_codes import ENDED_ALONE_EXIT
from blobsync.base.process import Completed
from blobsync.config.model import Cluster
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.spec import JobSpec, Secrets, State, StateChange, TaskArray
from blobsync.jobspec.sweep import sweep
from tests.fakes.aml_configs import CONTAINER, load
from tests.fakes.jobs import make_spec
from tests.fakes.kubernetes import demand_valid, plan
from tests.fakes.runner import ScriptedRunner, Starting
from tests.servers.kube.defaults import prepare
from tests.servers.kube.job_state import Picture
from tests.unit.project_files import NO_ENVIRON
from tests.unit.test_kubernetes_replies import job, pod, shown
from tests.unit.test_kubernetes_request import COPIED
from tests.unit.test_slurm import ScriptedProcess, file_work, make_backend

_TASKS = TaskArray(12, 4, cpus=4)


def _transfer(**words: Any) -> JobSpec:
    return make_spec("blobsync", tasks=_TASKS, options={"spread": {"count": 12}}, **words)


def test_a_specification_keeps_its_tasks_and_an_older_one_has_none() -> None:
    spec = make_spec("true", tasks=_TASKS)
    assert JobSpec.from_json(spec.to_json()) == spec and spec.has_many_logs
    values = json.loads(make_spec("true").to_json())
    del values["tasks"]
    assert JobSpec.from_json(json.dumps(values)).tasks is None
    for wrong in ({"count": "x", "parallel": 1, "cpus": 0}, {"count": 1}):
        with pytest.raises(ValueError, match=r"not a job specification|wrong type"):
            JobSpec.from_json(json.dumps({**values, "tasks": wrong}))


# -- Slurm ---------------------------------------------------------------------------------------------------------

_SCRIPT = """\
# --chdir is the job's own folder.
RUN=$PWD
echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" > slurm_job_id
TASK=$RUN/task_$SLURM_ARRAY_TASK_ID
mkdir -p "$TASK/user_logs" "$TASK/system_logs"
rm -f "$TASK/exit_code"
python3 -I "$RUN/bootstrap.py" spread --job "$RUN/job.json" --secrets "$RUN/secrets.json" --run-dir "$RUN" --log &
child=$!
trap 'kill -TERM "$child"' TERM USR1
while :; do
    wait "$child"; code=$?
    kill -0 "$child" 2>/dev/null || break
done
echo "$code" > "$TASK/exit_code.new" && mv "$TASK/exit_code.new" "$TASK/exit_code"
exit "$code"
"""


def test_a_transfer_is_an_array_whose_tasks_share_nodes_and_have_no_gpu() -> None:
    options = {"gres": "gpu:4", "exclusive": True, "cpus_per_task": 32, "partition": "cpu", "array": "0-3"}
    script = build_script(_transfer(), options)
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in lines if line.startswith("array")] == ["array=0-11%4"]
    assert {"nodes=1", "ntasks-per-node=1", "cpus-per-task=4", "partition=cpu", "requeue"} <= set(lines)
    assert not [line for line in lines if "gpu" in line or "gres" in line or line == "exclusive"]
    assert script.endswith(_SCRIPT)


def test_an_array_of_a_users_program_keeps_what_the_cluster_file_says() -> None:
    script = build_script(make_spec("true", tasks=TaskArray(3, 2)), {"gres": "gpu:4", "exclusive": True})
    assert "#SBATCH --array=0-2%2\n" in script and "#SBATCH --gres=gpu:4\n" in script and "srun" in script
    assert "#SBATCH --exclusive\n" in script


@pytest.mark.parametrize(
    ("said", "fewer"),
    [
        ("sbatch: error: Batch job submission failed: Invalid job array specification", True),
        ("sbatch: error: Batch job submission failed: Job violates policy (job submit limit, user's size)", True),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", True),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", False),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False),
    ],
)
def test_a_limit_of_the_number_of_tasks_is_told_from_other_refusals(said: str, fewer: bool) -> None:
    for spec in (_transfer(), make_spec("true")):
        process = ScriptedProcess({sys.executable: file_work("/x"), "sbatch": Completed(1, "", said)})
        backend = make_backend(process)
        outcome = backend.submit(backend.plan(spec), Secrets())
        assert isinstance(outcome, Refused) and isinstance(outcome.error, SubmissionError)
        assert isinstance(outcome.error, TooManyTasksError) is (fewer and spec.tasks is not None)


# -- Kubernetes ----------------------------------------------------------------------------------------------------


def _kubernetes_job(root: Path, spec: JobSpec, **more: Any) -> Mapping[str, Any]:
    cluster, _ = load(root, platform="kubernetes", kubernetes={"namespace": "train", **more})
    around = Surroundings(cluster, Path("/p/.blobsync"), NO_ENVIRON, ScriptedRunner())
    text = create_backend(around).plan(spec).text
    demand_valid(text)
    found = [each for each in yaml.safe_load_all(text) if each]
    assert "Service" not in [each["kind"] for each in found]
    return next(each for each in found if each["kind"] == "Job")


def test_an_array_is_an_indexed_job_in_which_one_task_does_not_end_the_others(tmp_path: Path) -> None:
    spec = _kubernetes_job(tmp_path, _transfer(platform="kubernetes"))["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 12, 4)
    assert spec["backoffLimitPerIndex"] == 3
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailIndex", "onExitCodes": {"containerName": "main", "operator": "NotIn", "values": [0, 137, 143]}},
    ]
    (main,) = spec["template"]["spec"]["containers"]
    assert main["resources"] == {"limits": {"cpu": "4"}}


def test_tasks_that_are_killed_to_their_limit_end_no_other_one(tmp_path: Path) -> None:
    spec = replace(_transfer(platform="kubernetes"), tasks=TaskArray(5, 0))
    job = {**_kubernetes_job(tmp_path, spec), "status": {"failed": 16, "failedIndexes": "0-3"}}
    prepare(job)
    assert Picture(job, (), 1.0).finish() is None
    job["status"] = {"failed": 20, "failedIndexes": "0-4"}
    assert (ended := Picture(job, (), 1.0).finish()) and ended.reason == "FailedIndexes"


def test_the_cpus_of_the_cluster_file_are_those_of_a_task(tmp_path: Path) -> None:
    spec = _kubernetes_job(tmp_path, _transfer(platform="kubernetes"), cpu="500m")["spec"]
    assert spec["template"]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}


def test_a_sweep_is_an_indexed_job_whose_pods_know_the_numbers_of_its_tasks(tmp_path: Path) -> None:
    swept = make_spec("x", "{n}", tasks=TaskArray(2, 0, numbers=(3, 7), names=("n",), rows=(("a",), ("b",))))
    made = _kubernetes_job(tmp_path, replace(swept, platform="kubernetes"))
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (2, 2)
    assert made["spec"]["template"]["metadata"]["annotations"] == {"blobsync.dev/task-numbers": "3,7"}
    body = job(notes={"blobsync.dev/tasks": "2", "blobsync.dev/task-numbers": "3,7"}, completions=2, parallelism=2)
    body["status"]["completedIndexes"] = "0"
    (one,) = read_jobs({"items": [body]})
    running = pod(1, "Running")
    running["metadata"].setdefault("annotations", {})["blobsync.dev/task-numbers"] = "3,7"
    pods = read_pods({"items": [running]})
    found = job_info(one, pods, {}, shown)
    assert [(task.number, task.state, task.exit_code) for task in found.tasks] == [
        (3, State.COMPLETED, 0),
        (7, State.RUNNING, None),
    ]
    assert [each.task for each in pods] == [7]


def test_tasks_of_several_nodes_have_a_job_each_under_one_label(tmp_path: Path) -> None:
    tasks = TaskArray(2, 0, numbers=(3, 7), names=("n",), rows=(("a",), ("b",)))
    made = plan(tmp_path, SubmitRequest(("x", "{n}"), 8, tasks=tasks), config_param=COPIED)
    first, second = (each for each in yaml.safe_load_all(made.text) if each["kind"] == "Job")
    name = first["metadata"]["name"]
    assert second["metadata"]["name"] == f"{name}-t1"
    for one, number in ((first, "3"), (second, "7")):
        assert one["metadata"]["labels"]["blobsync.dev/run"] == name
        assert one["metadata"]["annotations"]["blobsync.dev/task"] == number
        spec, pod_of_it = one["spec"], one["spec"]["template"]["spec"]
        assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (2, 2, 0)
        assert spec["podFailurePolicy"]["rules"][0]["action"] == "FailJob" and pod_of_it["subdomain"] == name
        env = {each["name"]: each.get("value") for each in pod_of_it["containers"][0]["env"]}
        own = one["metadata"]["name"]
        assert (env["MASTER_ADDR"], env["BLOBSYNC_TASK"]) == (f"{own}-0.{name}", number)
        assert env["BLOBSYNC_HOSTS"] == f"{own}-0.{name},{own}-1.{name}"
    # All other objects go with the last of the Jobs.
    bodies = made.request.owned(["u1", "u2"], Secrets({CONTAINER: "sig=1"}, {"MY_TOKEN": "t"}), "")
    owners = [[(each["name"], each["uid"]) for each in body["metadata"]["ownerReferences"]] for body in bodies]
    assert owners == [[(name, "u1"), (f"{name}-t1", "u2")]] * 3
    restricted = [each["spec"]["template"]["spec"] for each in made.request.restricted().jobs]
    assert all("securityContext" in each for each in restricted)


def test_so_many_jobs_at_a_time_are_counted_by_a_queue_alone(tmp_path: Path) -> None:
    for count, parallel in ((4, 2), (500, 0)):
        asked = SubmitRequest(("x",), 8, tasks=sweep([f"n=0..{count}"]), parallel=parallel)
        with pytest.raises(UsageError, match=r"only a queue counts those|501 tasks of several nodes"):
            plan(tmp_path, asked, config_param=COPIED)


def _of_task(number: int, index: int, phase: str, **more: Any) -> dict[str, Any]:
    body = pod(index, phase, **more)
    body["metadata"].setdefault("annotations", {})["blobsync.dev/task"] = str(number)
    body["metadata"]["name"] += f"-of-{number}"
    body["metadata"]["labels"]["batch.kubernetes.io/job-name"] = f"j{number}"
    return body


def test_a_sweep_is_as_its_tasks_jobs_are() -> None:
    def one(number: int, *conditions: tuple[str, str, str], **more: str) -> dict[str, Any]:
        notes = {"blobsync.dev/task": str(number), "blobsync.dev/task-numbers": "3-6", **more}
        body = job(*conditions, notes=notes, completions=2, parallelism=2)
        body["metadata"]["name"] = f"j{number}"
        return body

    said = "Container main for pod train/me-1-0badcafe-1-abcde failed with exit code 5 matching FailJob rule"
    bodies = [one(3, ("Complete", "", "")), one(4, ("Failed", "PodFailurePolicy", said)), one(5)]
    pods = [_of_task(5, index, "Running") for index in range(2)]

    def told(*jobs_bodies: dict[str, Any]) -> Any:
        found = read_jobs({"items": list(jobs_bodies)})
        of = {
            each.name: [each_pod for each_pod in read_pods({"items": pods}) if each_pod.job == each.name]
            for each in found
        }
        return sweep_info([(each, of[each.name]) for each in found], {}, shown)

    info = told(*bodies)
    assert (info.state, info.reason) == (State.RUNNING, "") and {each.task for each in read_pods({"items": pods})} == {
        5
    }
    # Of task 6 nothing is said: whatever was known of it stays.
    assert [(each.number, each.state, each.exit_code) for each in info.tasks] == [
        (3, State.COMPLETED, 0),
        (4, State.FAILED, 5),
        (5, State.RUNNING, None),
    ]
    info = told(*bodies[:2])
    assert (info.state, info.exit_code) == (State.FAILED, 5)
    assert info.reason == "task 4: node 1 ended with exit code 5, and the task ended with it"
    # Those that waited in a queue were deleted when the job was canceled.
    info = told(bodies[0], one(4, ("Failed", "DeadlineExceeded", ""), **{"blobsync.dev/canceled": "1"}))
    assert [each.state for each in info.tasks] == [State.COMPLETED, *[State.CANCELED] * 3]
    assert info.state is State.CANCELED


def test_a_task_that_was_ended_alone_is_canceled_and_one_that_failed_has_its_last_line() -> None:
    notes = {"blobsync.dev/task-numbers": "3,7"}
    pods = [pod(index, "Failed") for index in range(2)]
    said = "[std_log 0] half a line\n[std_log 90] it broke\n[node_0 40] the command ended with 1\n"
    for each, code, message in zip(pods, (ENDED_ALONE_EXIT, 1), ("", said), strict=True):
        each["metadata"].setdefault("annotations", {}).update(notes)
        (status,) = each["status"]["containerStatuses"]
        status["state"] = {"terminated": {"exitCode": code, "message": message}}
    body = job(notes={"blobsync.dev/tasks": "2", **notes}, completions=2, parallelism=2)
    body["status"]["failedIndexes"] = "0-1"
    (one,) = read_jobs({"items": [body]})
    found = job_info(one, read_pods({"items": pods}), {}, shown)
    assert [(task.number, task.state, task.exit_code) for task in found.tasks] == [
        (3, State.CANCELED, None),
        (7, State.FAILED, 1),
    ]
    assert last_lines(read_pods({"items": pods})) == {7: "it broke"}


def _info(pods: Sequence[dict[str, Any]], *conditions: tuple[str, str, str], done: str = "") -> Any:
    body = job(*conditions, notes={"blobsync.dev/tasks": "5"}, completions=5, parallelism=2)
    body["status"]["completedIndexes"] = done
    (one,) = read_jobs({"items": [body]})
    return job_info(one, read_pods({"items": list(pods)}), {}, shown)


def test_an_array_runs_as_soon_as_one_task_does_and_says_how_many_are_done() -> None:
    found = _info([pod(0, "Succeeded"), pod(1, "Running"), pod(2, "Pending")], done="0")
    assert (found.state, found.reason) == (State.RUNNING, "1 of 5 tasks done, 1 run")
    assert _info([pod(0, "Pending", node=""), pod(1, "Pending", node="")]).state is State.QUEUED


def test_an_array_that_failed_has_the_exit_code_of_a_task() -> None:
    failed = pod(3, "Failed", state={"terminated": {"exitCode": 3}})
    found = _info([failed], ("Failed", "FailedIndexes", "Job has failed indexes"))
    assert (found.state, found.exit_code, found.reason) == (
        State.FAILED,
        3,
        "FailedIndexes: Job has failed indexes",
    )


def test_a_task_that_no_node_fits_is_named_by_its_number() -> None:
    notes = {"blobsync.dev/tasks": "2", "blobsync.dev/task-numbers": "3,7"}
    unfit = [{"type": "PodScheduled", "status": "False", "message": "3 taints"}]
    (one,) = read_jobs({"items": [job(notes=notes, completions=2, parallelism=2)]})
    pods = [pod(0, "Succeeded"), pod(1, "Pending", node="", conditions=unfit)]
    found = job_info(one, read_pods({"items": pods}), {}, shown)
    assert found.reason.startswith("task 7: no node of the cluster fits: 3 taints; see kubectl")


# -- this machine --------------------------------------------------------------------------------------------------


def _pool(tmp_path: Path, count: int, parallel: int) -> tuple[TaskPool, Starting, RunFiles]:
    files, runner = RunFiles(tmp_path / "job"), Starting()
    files.make({})
    spec = make_spec("true", tasks=TaskArray(count, parallel), options={"spread": {"count": count}})
    return TaskPool(spec, files, ("node",), runner, {"A": "b"}, (), lambda: 100.0), runner, files


def test_so_many_tasks_run_at_a_time_in_their_order_and_each_knows_its_number(tmp_path: Path) -> None:
    pool, runner, files = _pool(tmp_path, 5, 2)
    assert files.phase() is State.PREPARING
    assert pool.look(canceled=False) is None and len(runner.started) == 2 and files.phase() is State.RUNNING
    os.utime(files.folder / "phase", (7.0, 7.0))
    runner.started[1].code = 0
    assert pool.look(canceled=False) is None and len(runner.started) == 3
    for _ in range(3):
        for child in runner.started:
            child.code = 0
        code = pool.look(canceled=False)
    assert code == 0 and [child.env["BLOBSYNC_TASK"] for child in runner.started] == list("01234")
    # The job has run since its first task did.
    assert files.read_states(None) == (StateChange(7.0, State.RUNNING),)
    roots = [child.argv[child.argv.index("--root") + 1] for child in runner.started]
    assert len(set(roots)) == 5 and all(child.env["A"] == "b" for child in runner.started)


@pytest.mark.parametrize(("codes", "code"), [([0, 3], 3), ([-9, 1], 137), ([0, 0], 0)])
def test_the_code_of_an_array_is_the_highest_of_a_task_and_none_is_started_again(
    codes: list[int], code: int, tmp_path: Path
) -> None:
    pool, runner, files = _pool(tmp_path, 2, 2)
    pool.look(canceled=False)
    for child, each in zip(runner.started, codes, strict=True):
        child.code, child.stderr = each, "it broke" if each else ""
    assert pool.look(canceled=False) == code and len(runner.started) == 2
    assert ("it broke" in (files.log.read_text() if files.log.exists() else "")) is bool(code)
    assert [task.reason for task in files.read_tasks().values()] == ["it broke" if each else "" for each in codes]


def test_gpus_are_divided_among_tasks_and_a_canceled_task_ends_alone(tmp_path: Path) -> None:
    files, runner = RunFiles(tmp_path / "job"), Starting()
    files.make({})
    spec = make_spec("x", tasks=TaskArray(4, 0, numbers=(1, 2, 5, 9)), gpus_per_node=2, options={"in_place": "/p"})
    pool = TaskPool(spec, files, ("node",), runner, {}, list("abcde"), lambda: 100.0)
    pool.look(canceled=False)
    assert [child.env["CUDA_VISIBLE_DEVICES"] for child in runner.started] == ["a,b", "c,d"]
    files.cancel_task(2)
    files.cancel_task(9)
    pool.look(canceled=False)
    runner.started[0].code, runner.started[1].code = 0, 143
    pool.look(canceled=False)
    assert [child.env["BLOBSYNC_TASK"] for child in runner.started] == ["1", "2", "5"]
    runner.started[2].code = 0
    assert pool.look(canceled=False) == 0
    states = {number: task.state for number, task in files.read_tasks().items()}
    done, gone = State.COMPLETED, State.CANCELED
    assert states == {1: done, 2: gone, 5: done, 9: gone}
    with files.tasks.open("a") as file:
        file.write('{"number": 1, "state": "Lost"}\n{"number": "x", "state": "Failed"}\n{"number": 5')
    assert {number: task.state for number, task in files.read_tasks().items()} == states


def test_a_canceled_array_begins_nothing_and_ends_when_its_tasks_have(tmp_path: Path) -> None:
    pool, runner, _ = _pool(tmp_path, 5, 2)
    pool.look(canceled=False)
    assert pool.look(canceled=True) is None
    for child in runner.started:
        child.code = 143
    assert pool.look(canceled=True) == 143 and len(runner.started) == 2
    waiting, none, _ = _pool(tmp_path / "other", 5, 2)
    assert waiting.look(canceled=True) == 143 and not none.started


def test_this_machine_takes_so_many_tasks_at_a_time(tmp_path: Path) -> None:
    cluster = Cluster("c", "c.yaml", tmp_path)
    around = Surroundings(cluster, tmp_path, {**os.environ, "HOME": str(tmp_path)}, ScriptedRunner())
    backend = create_backend(around)
    with pytest.raises(SubmissionError, match="at most 64 tasks of a job at a time, not 65"):
        backend.plan(make_spec("true", tasks=TaskArray(100, 65)))
    made = backend.plan(_transfer())
    assert "spread --log" in made.text and " node --job" not in made.text
