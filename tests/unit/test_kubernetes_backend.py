"""The backend's requests to a Kubernetes server, depending on its responses."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends import create_backend
from blobsync.backends.kubernetes.kubectl import Kubectl
from blobsync.backends.kubernetes.object_names import INDEX_LABEL, JOB_LABEL
from blobsync.backends.kubernetes.request import CONTAINER, END_ALONE
from blobsync.backends.protocol import PortForward, Refused, Surroundings
from blobsync.base.errors import BackendDeniedError, BackendUnavailableError, ConfigError, JobError
from blobsync.base.process import Completed
from blobsync.jobs.logs import BackendLogs
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.spec import JobRef, Secrets
from blobsync.jobspec.sweep import sweep
from tests.fakes.aml_configs import CONTAINER as CONTAINER_URL
from tests.fakes.aml_configs import ENTRY, load
from tests.fakes.kubernetes import WITH_KUBECTL, plan
from tests.fakes.runner import Call, ScriptedRunner
from tests.unit.test_kubernetes_replies import pod

RUN = "me_1_0badcafe"
NAME = "me-1-0badcafe"


def backend_that_is_told(root: Path, answer: dict[str, Any]) -> tuple[Any, ScriptedRunner]:
    """A backend whose every request gets this response."""
    cluster, _ = load(root, platform="kubernetes", kubernetes={"context": "ctx", "namespace": "train"})
    runner = ScriptedRunner(lambda call: Completed(0, json.dumps(answer), ""))
    around = Surroundings(cluster, root / ".blobsync", WITH_KUBECTL, runner)
    return create_backend(around), runner


def a_kubectl(context: str, done: Completed, namespace: str = "") -> Kubectl:
    return Kubectl(ScriptedRunner(lambda call: done), WITH_KUBECTL, context, lambda text: None, namespace)


def test_a_command_that_is_shown_can_be_pasted_whatever_the_context_is_called() -> None:
    shown = a_kubectl("mine; rm -rf $HOME", Completed(0, "", "")).shown("get", "jobs")
    assert shown == "kubectl '--context=mine; rm -rf $HOME' get jobs"
    assert a_kubectl("", Completed(0, "", "")).shown("apply", "-f", "-") == "kubectl apply -f -"


def test_a_context_cannot_end_the_comment_of_the_printed_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the name of a context"):
        plan(tmp_path, kubernetes={"context": "a\u2028kind: Job", "image": "python:3"})


def test_nobody_is_asked_where_kubectl_has_no_context() -> None:
    said = "error: current-context must exist in order to minify"
    place = a_kubectl("", Completed(1, "", said))
    with pytest.raises(BackendUnavailableError, match="no such context: current-context must exist"):
        place.get("Job", NAME)


def test_nobody_is_asked_without_a_context_where_the_cluster_file_names_a_namespace() -> None:
    place = a_kubectl("", Completed(1, "", "error: current-context is not set"), "train")
    with pytest.raises(BackendUnavailableError, match="kubectl has no current context"):
        place.get("Job", NAME)


def test_a_list_that_is_forbidden_names_the_namespace_of_what_was_listed() -> None:
    said = 'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods"'
    place = a_kubectl("prod", Completed(1, "", said), "train")
    with pytest.raises(BackendDeniedError) as denied:
        place.ours("Pod", [NAME])
    assert (denied.value.hint or "").endswith("auth can-i --list -n train")


class Namespace:
    """A fake kubectl with objects by their paths; ``denied`` are forbidden requests: ``create configmaps``."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.objects: dict[str, Any] = {}
        self.asked: list[str] = []

    def answer(self, call: Call) -> Completed:
        words = list(call.argv)
        if "--raw" not in words:
            return Completed(0, "{}", "")
        verb, path = words[words.index("--raw") - 1], words[words.index("--raw") + 1].partition("?")[0]
        plural = path.split("/")[-1 if verb == "create" else -2]
        self.asked.append(f"{verb} {plural}")
        if f"{verb} {plural}" in self.denied:
            return Completed(1, "", f'Error from server (Forbidden): {plural} is forbidden: User "u" cannot {verb}')
        if verb == "create":
            body = json.loads(call.input or "")
            body["metadata"]["uid"] = "u"
            self.objects[f"{path}/{body['metadata']['name']}"] = body
            return Completed(0, json.dumps(body), "")
        if path not in self.objects:
            return Completed(1, "", f'Error from server (NotFound): {plural} "x" not found')
        found = self.objects.pop(path) if verb == "delete" else self.objects[path]
        # The garbage collector deletes the objects that it owned.
        gone = [key for key, one in self.objects.items() if verb == "delete" and owned_by(one, found)]
        for key in gone:
            del self.objects[key]
        return Completed(0, json.dumps(found), "")

    def submit(self, root: Path, mode: str = "download", request: SubmitRequest | None = None) -> Refused:
        folders = {"data_folder": {**ENTRY, "path": "me/data", "mode": mode}}
        made = plan(root, request, kubernetes={"context": "ctx", "image": "python:3"}, config_param=folders)
        cluster, _ = load(root, platform="kubernetes", kubernetes={"context": "ctx", "namespace": "train"})
        around = Surroundings(cluster, root / ".blobsync", WITH_KUBECTL, ScriptedRunner(self.answer))
        outcome = create_backend(around).submit(made, Secrets(dict.fromkeys([CONTAINER_URL], "sig=x"), {}))
        assert isinstance(outcome, Refused)
        return outcome


def owned_by(one: dict[str, Any], owner: dict[str, Any]) -> bool:
    references = one["metadata"].get("ownerReferences", [])
    return any(each["name"] == owner["metadata"]["name"] for each in references) and owner["kind"] == "Job"


def test_a_refusal_half_way_removes_all_without_a_look_at_the_whole_cluster(tmp_path: Path) -> None:
    everywhere = [f"{verb} persistentvolumes" for verb in ("get", "delete", "create")]
    server = Namespace("create configmaps", "get secrets", *everywhere)
    refused = server.submit(tmp_path)
    assert server.objects == {} and not [each for each in server.asked if "persistentvolumes" in each]
    assert refused.error.hint == "see what you may do: kubectl --context=ctx auth can-i --list -n train"


def test_a_refusal_half_way_removes_the_jobs_of_all_tasks(tmp_path: Path) -> None:
    server = Namespace("create configmaps")
    server.submit(tmp_path, request=SubmitRequest(("x",), 8, tasks=sweep(["n=0..2"])))
    assert server.objects == {} and server.asked.count("create jobs") == server.asked.count("delete jobs") == 3


def test_a_sweep_ends_with_the_jobs_of_its_tasks_and_a_task_with_its_own(tmp_path: Path) -> None:
    def job_of(number: int, **more: Any) -> dict[str, Any]:
        notes = {"blobsync.dev/run-id": RUN, "blobsync.dev/task": str(number), "blobsync.dev/released": "1"}
        metadata = {"name": f"{NAME}-t{number}", "annotations": notes}
        return {"metadata": metadata, "spec": {"completions": 2, **more}, "status": {}}

    over, waits, runs = job_of(0), job_of(1, suspend=True), job_of(2)
    over["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    ref = JobRef(RUN, NAME, "ctx/train")
    backend, runner = backend_that_is_told(tmp_path, {"items": [over, waits, runs]})
    backend.cancel(ref)
    ended = [call.argv for call in runner.calls if "patch" in call.argv or "delete" in call.argv]
    assert sorted(" ".join(argv).count("-t1") for argv in ended) == [0, 1]
    assert [f"{NAME}-t2" in argv for argv in ended if "patch" in argv] == [True]

    pods = [pod(index, "Running") for index in range(2)]
    for each in pods:
        each["metadata"].setdefault("annotations", {})["blobsync.dev/task"] = "2"
        each["metadata"]["labels"][JOB_LABEL] = f"{NAME}-t2"
    backend, runner = backend_that_is_told(tmp_path, {"items": pods})
    backend.cancel_task(ref, 2)
    assert [f"{NAME}-t2" in call.argv for call in runner.calls if is_patch(call)] == [True]
    with pytest.raises(JobError, match="have several nodes each"):
        backend.ssh_command(ref, 1)
    with pytest.raises(JobError, match="takes no task out of its queue"):
        backend.cancel_task(ref, 1)


def test_a_refusal_half_way_names_what_could_not_be_removed_and_nothing_else(tmp_path: Path) -> None:
    server = Namespace("create configmaps", "delete secrets", "delete jobs")
    hint = server.submit(tmp_path).error.hint or ""
    (job,) = [one["metadata"]["name"] for one in server.objects.values() if one["kind"] == "Job"]
    command = f"kubectl --context=ctx delete Job/{job} --namespace=train --ignore-not-found"
    assert hint.endswith(f"; then remove what was made: {command}")
    # A Secret that may not be deleted is deleted with its Job.
    server = Namespace("create configmaps", "delete secrets")
    assert "then remove" not in (server.submit(tmp_path).error.hint or "") and server.objects == {}


def test_volumes_belong_to_no_job_and_are_named_where_they_stay(tmp_path: Path) -> None:
    server = Namespace("create persistentvolumeclaims", "delete persistentvolumes")
    hint = server.submit(tmp_path, "mount").error.hint or ""
    (volume,) = [one["metadata"]["name"] for one in server.objects.values()]
    assert f"delete PersistentVolume/{volume} --namespace=train" in hint and "Job/" not in hint
    server = Namespace("create persistentvolumeclaims")
    assert "then remove" not in (server.submit(tmp_path, "mount").error.hint or "")
    assert server.objects == {}


def is_patch(call: Call) -> bool:
    return "patch" in call.argv


@pytest.mark.parametrize("condition", ["SuccessCriteriaMet", "FailureTarget", "Complete", "Failed"])
def test_a_job_whose_end_is_decided_gets_no_other_size(tmp_path: Path, condition: str) -> None:
    job: dict[str, Any] = {
        "metadata": {"name": NAME, "annotations": {"blobsync.dev/run-id": RUN}},
        "spec": {"completions": 2, "parallelism": 2},
        "status": {},
    }
    ref = JobRef(RUN, NAME, "ctx/train")
    backend, runner = backend_that_is_told(tmp_path, job)
    backend.scale(ref, 3)
    assert sum(map(is_patch, runner.calls)) == 1

    job["status"]["conditions"] = [{"type": condition, "status": "True"}]
    backend, runner = backend_that_is_told(tmp_path, job)
    with pytest.raises(JobError, match=r"does not run \(any more\)"):
        backend.scale(ref, 3)
    assert not any(map(is_patch, runner.calls))


def test_a_port_of_a_pod_is_opened_at_this_machine_alone(tmp_path: Path) -> None:
    def pod(index: int) -> dict[str, Any]:
        labels = {INDEX_LABEL: str(index), JOB_LABEL: NAME}
        state = {"name": CONTAINER, "state": {"running": {}}}
        return {
            "metadata": {"name": f"{NAME}-{index}-x", "labels": labels},
            "status": {"phase": "Running", "containerStatuses": [state]},
        }

    backend, _ = backend_that_is_told(tmp_path, {"items": [pod(0), pod(1)]})
    ref, forward = JobRef(RUN, NAME, "ctx/train"), PortForward(8888, 80, 1)
    words = ("port-forward", "--namespace=train", "--address=127.0.0.1", f"pod/{NAME}-1-x", "8888:80")
    assert tuple(backend.forward_argv(ref, forward))[-5:] == words
    assert backend.program_address(ref, forward) == "127.0.0.1"
    beside = tuple(backend.python_beside(ref, 1, "x y"))
    inside = ("exec", "-i", f"{NAME}-1-x", f"--container={CONTAINER}", "--", "python3", "-I", "-c", "x y")
    assert beside[-9:] == inside
    with pytest.raises(JobError, match="node 2"):
        backend.forward_argv(ref, PortForward(8888, 80, 2))


def test_of_one_task_the_log_of_its_pod_alone_is_read(tmp_path: Path) -> None:
    pods = [pod(0, "Running"), pod(1, "Running")]
    for each in pods:
        each["metadata"].setdefault("annotations", {})["blobsync.dev/task-numbers"] = "3,7"
        each["metadata"]["labels"][JOB_LABEL] = NAME
    backend, runner = backend_that_is_told(tmp_path, {"items": pods})
    for tasks, read in (((7,), 1), (None, 2)):
        before = len(runner.calls)
        BackendLogs(backend, JobRef(RUN, "uid", "ctx/train"), tasks).files()
        assert len([call for call in runner.calls[before:] if any("/log?" in word for word in call.argv)]) == read


@pytest.mark.parametrize(("phase", "taken"), [("Running", 1), ("Pending", 0), ("Succeeded", 0)])
def test_one_task_is_ended_inside_of_its_pod_which_runs(phase: str, taken: int, tmp_path: Path) -> None:
    one = pod(1, phase)
    one["metadata"].setdefault("annotations", {})["blobsync.dev/task-numbers"] = "3,7"
    backend, runner = backend_that_is_told(tmp_path, {"items": [one]})
    is_refused = pytest.raises(JobError, match="takes no task out of its queue")
    with is_refused if phase == "Pending" else nullcontext():
        backend.cancel_task(JobRef(RUN, "uid", "ctx/train"), 7)
    entered = [call.argv for call in runner.calls if "exec" in call.argv]
    assert len(entered) == taken and all(argv[-3:] == ("sh", "-c", END_ALONE) for argv in entered)
