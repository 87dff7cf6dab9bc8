"""What the backend asks of a Kubernetes server, by what the server said before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import BackendDeniedError, BackendUnavailableError, ConfigError, JobError
from blobsync.base.process import Completed
from blobsync.jobs.backends import create_backend
from blobsync.jobs.backends.base import Accepted, PortForward, Refused, Scaling, Surroundings, Tunnelling
from blobsync.jobs.backends.kubernetes.kubectl import Kubectl, find_kubectl
from blobsync.jobs.backends.kubernetes.naming import INDEX_LABEL, JOB_LABEL
from blobsync.jobs.backends.kubernetes.place import Place
from blobsync.jobs.backends.kubernetes.pod import CONTAINER
from blobsync.jobs.board import settings_of
from blobsync.jobs.spec import JobRef
from tests.fakes.aml_configs import load
from tests.fakes.kubernetes import plan
from tests.fakes.runner import Call, ScriptedRunner

RUN = "me_1_0badcafe"
NAME = "me-1-0badcafe"


def backend_that_is_told(root: Path, answer: dict[str, Any]) -> tuple[Any, ScriptedRunner]:
    """The backend of a namespace where every question gets this answer."""
    cluster, _ = load(root, platform="kubernetes", kubernetes={"context": "ctx", "namespace": "train"})
    runner = ScriptedRunner(lambda call: Completed(0, json.dumps(answer), ""))
    environ = {"PATH": str(Path(find_kubectl({"PATH": ""})).parent)}
    around = Surroundings("c", root, root / ".blobsync", settings_of(cluster), environ, runner, cluster)
    return create_backend("kubernetes", around), runner


def a_kubectl(context: str, done: Completed) -> Kubectl:
    environ = {"PATH": str(Path(find_kubectl({"PATH": ""})).parent)}
    return Kubectl(ScriptedRunner(lambda call: done), environ, context, lambda text: None)


def test_a_command_that_is_shown_can_be_pasted_whatever_the_context_is_called() -> None:
    shown = a_kubectl("mine; rm -rf $HOME", Completed(0, "", "")).shown("get", "jobs")
    assert shown == "kubectl '--context=mine; rm -rf $HOME' get jobs"
    assert a_kubectl("", Completed(0, "", "")).shown("apply", "-f", "-") == "kubectl apply -f -"


def test_a_context_cannot_end_the_comment_of_the_printed_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the name of a context"):
        plan(tmp_path, kubernetes={"context": "a\u2028kind: Job", "image": "python:3"})


def test_nobody_is_asked_where_kubectl_has_no_context() -> None:
    said = "error: current-context must exist in order to minify"
    place = Place(a_kubectl("", Completed(1, "", said)), "")
    with pytest.raises(BackendUnavailableError, match="no such context: current-context must exist"):
        place.get("Job", NAME)


def test_nobody_is_asked_without_a_context_where_the_cluster_file_names_a_namespace() -> None:
    place = Place(a_kubectl("", Completed(1, "", "error: current-context is not set")), "train")
    with pytest.raises(BackendUnavailableError, match="kubectl has no current context"):
        place.get("Job", NAME)


def test_a_list_that_is_forbidden_names_the_right_to_what_was_listed() -> None:
    said = 'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods"'
    place = Place(a_kubectl("prod", Completed(1, "", said)), "train")
    with pytest.raises(BackendDeniedError) as denied:
        place.ours("Pod", [NAME])
    assert (denied.value.hint or "").endswith("auth can-i list pods -n train")


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
    assert isinstance(backend, Scaling) and isinstance(backend.scale(ref, 3), Accepted)
    assert sum(map(is_patch, runner.calls)) == 1

    job["status"]["conditions"] = [{"type": condition, "status": "True"}]
    backend, runner = backend_that_is_told(tmp_path, job)
    refused = backend.scale(ref, 3)
    assert isinstance(refused, Refused) and "does not run (any more)" in refused.error.message
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
    assert isinstance(backend, Tunnelling) and tuple(backend.forward_argv(ref, forward))[-5:] == words
    assert backend.program_address(ref, forward) == "127.0.0.1"
    beside = tuple(backend.python_beside(ref, 1, "x y"))
    inside = ("exec", "-i", f"{NAME}-1-x", f"--container={CONTAINER}", "--", "python3", "-I", "-c", "x y")
    assert beside[-9:] == inside
    with pytest.raises(JobError, match="node 2"):
        backend.forward_argv(ref, PortForward(8888, 80, 2))
